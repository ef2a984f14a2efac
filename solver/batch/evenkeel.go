package batch

import "context"

// Effort is how much work the planner may do for a plan. It is counted in steps of the
// search and not timed, so that plans do not depend on the machine.
type Effort int

// The efforts, with about the time that 500 sequences on 64 devices take.
const (
	Online   Effort = iota // tens of milliseconds: for the next batch, while a step runs
	Thorough               // a second: for a single batch
	Quick                  // a few milliseconds: for a plan that is needed at once
)

// Options are the planner's.
type Options struct {
	Effort Effort
	// Times multiplies the number of further searches at perturbed prices (see tryNoisy).
	// Values below 1 count as 1.
	Times float64
}

// Evenkeel is our planner as a strategy. See Planner.
type Evenkeel struct{ Options Options }

// Name is "evenkeel".
func (Evenkeel) Name() string { return "evenkeel" }

// Claims describes the algorithm.
func (Evenkeel) Claims() Claims {
	return Claims{Doc: "micro-batches, groups and assignment chosen together: sequences fill micro-batches of given times, longest first, each where it takes the least share of the step, and the times are searched for"}
}

// Solve plans one batch.
func (e Evenkeel) Solve(ctx context.Context, p *Problem) (*Plan, error) {
	return NewPlanner(e.Options).Plan(ctx, p)
}
