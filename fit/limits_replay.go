package fit

import "fmt"

// ReplayLimits limit the error of predictions of replayed plans.
type ReplayLimits struct {
	// Step limits the error of a plan's step time, |log(predicted/measured)|, where
	// measured is the median over blocks.
	Step float64 `json:"step"`
	// Compute limits the mean error of the computing stretches of a plan, weighted by
	// their measured times.
	Compute float64 `json:"compute"`
	// TauB is the least allowed rank correlation (Kendall's tau-b) between predicted and
	// measured steps.
	TauB float64 `json:"tau_b"`
	// Regret limits the upper bound of how much longer the plan that the model ranks first
	// takes than the best plan, as a share of the best one's time.
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

// Replayed returns the limits of replayed plans: those of the file, or the built-in ones
// where the file has none, as files from before such limits do.
func (f *Limits) Replayed() ReplayLimits {
	if f.Replay != nil {
		return *f.Replay
	}
	return *DefaultLimits().Replay
}
