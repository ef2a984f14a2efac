package recommend

import "errors"

// Strategy is what there is to say of a strategy, whatever it plans.
type Strategy interface {
	// Name is the strategy's name in documents and on the command line.
	Name() string
	// Claims says what the strategy is and how it is shown.
	Claims() Claims
}

// Claims says what a strategy is.
type Claims struct {
	Baseline  bool   // what people run today
	Published bool   // the algorithm of a paper
	Slow      bool   // may take minutes where others take milliseconds
	Doc       string // one sentence for the user
}

// IllegalError says why a strategy has no plan for a problem.
type IllegalError struct{ Why string }

// Error gives the reason.
func (e *IllegalError) Error() string { return e.Why }

// InfeasibleError says that no plan fits the devices' memory, by the plan that is nearest.
type InfeasibleError struct{ Why error }

// Error says what has no room.
func (e *InfeasibleError) Error() string { return "no plan fits: " + e.Why.Error() }

// Unwrap is why.
func (e *InfeasibleError) Unwrap() error { return e.Why }

// overfull is an error that says by what factor a plan exceeds the memory of a device.
type overfull interface {
	error
	Over() float64
}

// NoRoom is the *InfeasibleError of attempts that all failed; nil where none of them did for
// want of memory.
func NoRoom(attempts []Attempt) error {
	var nearest overfull
	for _, a := range attempts {
		if full, ok := errors.AsType[overfull](a.Err); ok && (nearest == nil || full.Over() < nearest.Over()) {
			nearest = full
		}
	}
	if nearest == nil {
		return nil
	}
	return &InfeasibleError{nearest}
}
