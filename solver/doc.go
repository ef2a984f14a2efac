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
package solver
