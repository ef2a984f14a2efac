package fit

import "fmt"

// ReplayLimits limit how far replayed plans may be from their predictions.
type ReplayLimits struct {
	// Step is the most error of a plan's step, |log(predicted / measured)| of the
	// median over blocks.
	Step float64 `json:"step"`
	// Compute is the most mean error of a plan's stretches of computing, weighted by
	// their measured time.
	Compute float64 `json:"compute"`
	// TauB is the least rank correlation between predicted and measured steps.
	TauB float64 `json:"tau_b"`
	// Regret is the most upper bound of how much longer the plan that the model
	// ranks first takes than the best one, as a share.
	Regret float64 `json:"regret"`
	Reason string  `json:"reason"`
}

func (l *ReplayLimits) validate() error {
	for _, f := range []struct {
		name        string
		value, most float64
	}{{"step", l.Step, mostLimit}, {"compute", l.Compute, mostLimit}, {"tau_b", l.TauB, 1}, {"regret", l.Regret, mostLimit}} {
		if !(f.value > 0 && f.value <= f.most) {
			return fmt.Errorf("%s: %v: want a number above 0 and at most %v", f.name, f.value, f.most)
		}
	}
	if l.Reason == "" {
		return fmt.Errorf("reason: missing: say why the limits are what they are")
	}
	return nil
}

// Replayed returns the limits of replayed plans: the file's own, or the ones that
// are built in where a file, maybe older than they are, has none.
func (f *LimitsFile) Replayed() ReplayLimits {
	if f.Replay != nil {
		return *f.Replay
	}
	return *DefaultLimitsFile().Replay
}
