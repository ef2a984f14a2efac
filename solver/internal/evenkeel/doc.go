// Package evenkeel is our strategy: every sensible grouping with near-exact shares by
// an estimate, the best of them simulated, then local search on simulated time.
// It judges every layout by the simulator and starts from the layouts of the
// strategies solved before it, so it never loses to one of those. [New] makes it, and
// evenkeel-sure ([Sure]), which picks among what it simulated.
//
// Under the nested zigzag a rank's attention work is h s S/2 pairs, linear in
// its tokens s whatever the others have, so that one water-filling balances
// linear and attention work of all groups at once; inside a group tokens balance
// the one and heads the other, for all-to-alls divide them. At last groups that
// memory or links keep short of tokens are moved to the end of the sequence, where
// tokens have more attention work (see moveLate), and groups are lined up along it, so
// that keys and values go one way only (see chains).
//
// # Where to begin
//
// Evenkeel.Solve in evenkeel.go, and search.run in search.go. Then, in the order of a run:
//
//   - Which groups: pools.go chooses ranks, groupings.go groups them, options.go lists what
//     is worth a simulation, bestfirst.go in which order.
//   - What they take and get, by estimate: estimate.go, with attention.go, wires.go,
//     exchange.go, memory.go, tradeoff.go and waterfill.go. draft.go is a layout as all of
//     these see it.
//   - Better ones, by simulation: moves.go (descent) and refine.go.
//   - What layouts can have besides groups and shares: overlap.go (own blocks last,
//     micro-batches in twos, chunks of heads), late.go, chain.go and chain_deal.go, lead.go,
//     lean.go, spread.go.
//   - describe.go says what was found; sure.go and runners.go are evenkeel-sure.
//
// # Vocabulary
//
//   - class: ranks that are alike: of one device type on nodes alike.
//   - pool: the set of ranks that a layout uses; the others idle.
//   - kind: groups that are alike, of equal classes, heads and (but for rounding) tokens.
//     A draft is a layout as the search changes it: kinds, and their order in the ring.
//   - option: a grouping with estimated shares and time, before it is simulated. A point
//     is a draft with its simulated time.
//   - shares: each group's tokens, and each member's tokens and heads. Water-filling gives
//     them so that all are done at the same time.
//   - estimator: a closed formula of a draft's time, by which options are ranked; the
//     simulator of package costmodel has the last word.
//   - best first: the order in which options are simulated, with estimates corrected by
//     what simulations have shown.
//   - work and budget: what a search has done and may do, in units of 20 to 40 ns of one
//     core; counted and not timed, so that results repeat.
//   - descent (walk): local search by moves of tokens, heads and groups.
//   - late: moved to the last tier, where tokens have more attention work, so that a group
//     short of memory or bandwidth computes more on fewer tokens.
//   - lean: given far fewer tokens than it could compute, because its link is slow.
//   - chain: a layout with a tier for each group. Keys and values go one way only.
//   - lead: the tokens that the last group of a chain has at the beginning of the sequence.
//   - spread: shares that are even over nodes, so that less crosses their network cards.
//   - tradeoff: heads for tokens inside a group, both of which need memory.
//   - runners: layouts that were simulated and gain over the strongest baseline, some of
//     each kind, for evenkeel-sure to ask.
package evenkeel
