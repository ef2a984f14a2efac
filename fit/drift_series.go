package fit

import (
	"fmt"
	"math"
)

// DriftSeries follows the shift of a device or group over a series of recordings, each
// compared with the first, by an exponentially weighted mean (EWMA) and two one-sided
// cumulative sums (CUSUM, Page 1954).
type DriftSeries struct {
	Shifts  []float64 `json:"shifts_log"` // median of log(time/first) of each recording
	EWMA    float64   `json:"ewma_log"`   // exponentially weighted mean of Shifts
	CUSUMUp float64   `json:"cusum_up_log"`
	CUSUMDn float64   `json:"cusum_down_log"`
	Alarm   float64   `json:"cusum_alarm_log"` // a cumulative sum beyond this is a drift
}

const (
	// ewmaWeight is that of the newest recording: about the last six count.
	ewmaWeight = 0.3
	// cusumSlack is taken off every shift before it is summed: half of the shift
	// that is to be found (Page 1954).
	cusumSlack = DriftLimit / 2
	// cusumAlarm is five deviations of a machine whose shifts scatter by 1 % from
	// recording to recording.
	cusumAlarm = 0.05
)

// newSeries sums the shifts up, two-sided.
func newSeries(shifts []float64) *DriftSeries {
	s := &DriftSeries{Shifts: shifts, Alarm: cusumAlarm}
	for _, x := range shifts {
		s.EWMA = ewmaWeight*x + (1-ewmaWeight)*s.EWMA
		s.CUSUMUp = max(0, s.CUSUMUp+x-cusumSlack)
		s.CUSUMDn = max(0, s.CUSUMDn-x-cusumSlack)
	}
	return s
}

// crept says whether a sum is beyond the alarm and the last two recordings both
// add to it: a single one proves nothing.
func (s *DriftSeries) crept() bool {
	n := len(s.Shifts)
	if n < 2 {
		return false
	}
	last, previous := s.Shifts[n-1], s.Shifts[n-2]
	return s.CUSUMUp > cusumAlarm && min(last, previous) > cusumSlack ||
		s.CUSUMDn > cusumAlarm && max(last, previous) < -cusumSlack
}

// follow takes the recordings between the first and the last in: a shift of
// the last alone is not yet a drift, and one that crept up over many is. A
// changed fingerprint needs no second recording to be believed.
func (p *DriftPlace) follow(runs []*Run) {
	first, last := runs[0], runs[len(runs)-1]
	var shifts []float64
	before := Same // verdict of the recording before the last
	for _, run := range runs[1 : len(runs)-1] {
		if q := comparePlace(first, run, p.On); q.Shared >= 2 {
			shifts = append(shifts, q.Shift)
			before = q.Verdict
			if q.Cause == CauseEnvironment { // its times had not moved
				before = Same
			}
		}
	}
	p.Series = newSeries(append(shifts, p.Shift))
	changed := elsewhere(first, last, p.On)
	crept := p.Series.crept()
	switch {
	case p.Verdict == Drifted && before != Drifted && !changed && !crept && len(shifts) > 0:
		p.Verdict, p.Why = Ambiguous, p.Why+", in the last recording alone: measure once more"
	case p.Verdict != Drifted && crept:
		p.Verdict, p.Why = Drifted, fmt.Sprintf("shifts of %+.1f %% on average crept up over %d recordings", 100*math.Expm1(p.Series.EWMA), len(p.Series.Shifts))
	case p.Verdict == Same && math.Abs(p.Series.EWMA) > DriftLimit:
		p.Verdict, p.Why = Ambiguous, "earlier recordings had moved by more than 3 %; the last has come back"
	}
}
