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
//   - [Strategies] lists the algorithms that propose layouts: baselines (ring, ulysses,
//     usp, usp-subset), published ones (hexiseq) and our own, evenkeel, which starts from the
//     others' layouts.
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
// # Where things are
//
// This package poses the problem, chooses among what the strategies found, and writes and
// checks the document. What it chooses from is below it, one package an idea:
//
//   - internal/strategy: what a strategy is given, has to do and may answer. It knows none.
//   - internal/baseline, internal/hexiseq, internal/evenkeel: the strategies. Each exports
//     itself and hardly anything else; strategies.go lists them.
//   - internal/analytic: a layout's time in closed formulas, which they share.
//   - internal/bound: the lower bound, which knows no strategy.
//   - internal/world: made-up problems for the tests of all of these.
//
// # Vocabulary of the planner
//
//   - zigzag: the order of tokens in which each group has a piece near the beginning and
//     one near the end of a stretch, which balances causal attention (costmodel.ZigZag).
//   - tier: groups whose tokens are one stretch of the sequence. Higher tiers come later,
//     and see the keys of all lower ones.
//   - in twos: see package costmodel.
//   - seed: the result of a strategy, from which later ones may start.
//   - overfull, fill: over, and the part of, a rank's usable memory.
//
// The words of evenkeel's search, and of the lower bound, are in the documentation of their
// packages.
package solver
