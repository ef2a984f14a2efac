// Package solver plans one long sequence: it turns a problem (a job and the profile of
// its devices) into a plan that says which rank owns which tokens, which ranks share
// attention heads by all-to-all, and in which order these groups pass keys and values
// around the ring. Batches of unequal sequences are planned by package solver/batch.
//
// Everything here is a pure function of its inputs; only a context's end can cut a search
// short.
//
// # Main types
//
//   - [Problem] is a job on the devices of a profile; [NewProblem] checks that it can be
//     planned.
//   - [Strategy] proposes a layout for a problem; [Strategies] lists them: baselines
//     (ring, ulysses, usp), published algorithms (hexiseq) and our own, evenkeel, which
//     starts from the others' layouts.
//   - [Solve] runs the strategies, has the simulator of package costmodel judge all of
//     them alike, and returns a [Plan]: the chosen layout, its predicted
//     [costmodel.Step], and every [Candidate] with its verdict.
//   - [LowerBound] is a time that no layout can beat, so that a plan states how far from
//     optimal it can be at most.
//   - [Check] verifies a finished plan. It shares no code with any strategy.
//
// # Where to begin
//
//	p, err := solver.NewProblem(profile, job)
//	plan, err := solver.Solve(ctx, p, nil, nil) // nil: the default strategy, no progress reports
//	err = solver.Check(plan, profile)
//
// A strategy is a file, or several with its name as their prefix: ring.go, ulysses.go,
// usp.go, hexiseq*.go, evenkeel*.go. The lower bound is in bound*.go, with the floors of
// single resources in floors*.go.
//
// # Vocabulary of the planner
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
//   - zigzag: the order of tokens in which each group has a piece near the beginning and
//     one near the end of a stretch, which balances causal attention (costmodel.ZigZag).
//   - tier: groups whose tokens are one stretch of the sequence. Higher tiers come later,
//     and see the keys of all lower ones.
//   - late: moved to the last tier, where tokens have more attention work, so that a group
//     short of memory or bandwidth computes more on fewer tokens.
//   - lean: given far fewer tokens than it could compute, because its link is slow.
//   - chain: a layout with a tier for each group. Keys and values go one way only.
//   - lead: the tokens that the last group of a chain has at the beginning of the sequence.
//   - spread: shares that are even over nodes, so that less crosses their network cards.
//   - tradeoff: heads for tokens inside a group, both of which need memory.
//   - in twos: see package costmodel.
//   - overfull, fill: over, and the part of, a rank's usable memory.
//   - floor: a lower bound of the time that some part of the work takes. A border is what
//     has to pass between a rank and all others (in the estimator: from one group to the
//     next). A scope is a set of ranks, of which a layout that a bound is for uses some.
//   - crew: an all-to-all group in the analytic model of hexiseq.
package solver
