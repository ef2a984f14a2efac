package recommend

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
