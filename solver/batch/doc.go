// Package batch plans the unequal sequences of a global batch: it cuts the batch into
// micro-batches, forms groups of devices in each, and assigns the sequences to groups so
// that the step takes the least time.
//
// A step of micro-batches m with groups g takes, in seconds,
//
//	Fixed + Σ_m ( T_m + max(0, Hidden - h T_m) + MicroBase ) + max(0, Behind - 0.6 (L-1)/L T)
//	T_m = max_g time(g),    time(g) = Base(c) + Σ_k Time(c, s_k),    Σ_k s_k <= Cap(c)
//
// where c is the class of group g, s_k are the lengths of its sequences in tokens, and T is
// T_m of the last micro-batch, of which the backward pass takes six tenths, of all
// but one of the model's L layers: where something travels behind that once a step (Behind),
// the longest is the last. What travels in every micro-batch (Hidden) does so behind both passes,
// with h = 0.9 (L-1)/L, or as Behind does.
// Groups of a micro-batch share no device; micro-batches run one after another. The
// prices Base, Time and Cap come from package costmodel/groupcost: from fitted laws or
// from a published cost model. All strategies use the same prices, so they can be compared.
// Single long sequences are planned by package solver.
//
// # Main types
//
//   - [Problem] is a global batch on a fleet of devices with prices. [NewProblem] makes it
//     of groupcost.Costs.
//   - [Strategy] turns a problem into a [Plan]; [Strategies] lists them: baselines (static,
//     adaptive, bfd, megatron-dynamic-cp), published algorithms (fcp, flexsp) and our own,
//     evenkeel. [Sure] is evenkeel for those who want a gain that is beyond the prices' error.
//   - [Planner] is evenkeel for a training loop that plans every batch.
//   - [Evaluate] computes a plan's times, [Place] gives its groups ranks, and [Check]
//     verifies a plan; it shares no code with any of these.
//   - [LowerBound] is a time that no plan beats; [FastBound] and [Planner.Bound] are cheaper.
//   - [OnParts] has strategies plan for some of the nodes or types of devices alone, a [Part],
//     where that may take less; [TrySure] and [BoundOf] are Sure and a bound over all of these.
//   - [Try] runs a strategy, [Choose] recommends one of the plans as a [Document], and
//     [GroupLayout] says which device of a group holds which tokens.
//
// # Where to begin
//
//	costs, err := groupcost.FromLaws(ctx, predictor, job, groupcost.Options{})
//	p, err := batch.NewProblem(costs, lengths)
//	plan, err := batch.NewPlanner(batch.Options{}).Plan(ctx, p)
//	found := batch.Check(p, plan) // nil: no rule is broken
//
// The planner is in planner.go, which describes its steps, and evenkeel*.go: a few sequences
// (evenkeel_few.go), starting
// points (evenkeel_start.go), the construction of a plan (evenkeel_fill.go), and searches
// that improve it (evenkeel_climb.go, evenkeel_local.go, evenkeel_refill.go). The lower
// bound is in bound*.go. Every other strategy is a file, or several with its name as their
// prefix. Plans that leave nodes out are in parts.go, the document in document.go, the choice in
// choose.go.
//
// # Vocabulary
//
//   - fleet and pool: all devices, and those that are alike (one type in nodes of one kind).
//   - class: a kind of group, with numbers of devices of each pool and prices.
//   - degree: the number of devices of a group.
//   - roof: a limit on the times of all groups of a micro-batch, or what the slowest takes.
//   - worth: a device's share of the fleet, by which devices of several pools are compared;
//     a group's value is the sum over its devices.
//   - bin: a group while a plan is made. An item is a sequence, numbered longest first.
//   - lead: a state of the search from which it is worth going on.
//   - lineup: the devices in the order of their ranks, as the baselines see them.
package batch
