package batch

import "context"

// Effort is how much work a plan may take.
type Effort int

// Efforts, for half a thousand sequences on 64 devices.
const (
	Online   Effort = iota // some ten milliseconds: while the step before runs
	Thorough               // a second: for one batch that is looked at
	Quick                  // a few milliseconds: for a plan that is needed at once
)

// Options of the planner.
type Options struct {
	Effort Effort
	// Times is how many times as many searches at noisy prices as usual follow the first;
	// less than 1 is 1.
	Times float64
}

// Evenkeel is our planner as a strategy. See Planner.
type Evenkeel struct{ Options Options }

// Name is "evenkeel".
func (Evenkeel) Name() string { return "evenkeel" }

// Claims says what the planner does.
func (Evenkeel) Claims() Claims {
	return Claims{Doc: "micro-batches, groups and assignment chosen together: sequences fill micro-batches of given times, longest first, each where it takes the least share of the step, and the times are searched for"}
}

// Solve plans one batch.
func (e Evenkeel) Solve(ctx context.Context, p *Problem) (*Plan, error) {
	return NewPlanner(e.Options).Plan(ctx, p)
}
