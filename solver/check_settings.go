package solver

import (
	"fmt"
	"math"
	"strings"
)

// settings checks that the plan's own setting is the one that was chosen, and no other
// takes less but for little. Plans in other settings are not kept.
func (f *findings) settings(p *Plan) {
	chosen := 0
	for i, s := range p.Settings {
		at := fmt.Sprintf("settings[%d].", i)
		own := p.Job
		own.Zero, own.Recompute = s.Zero, s.Recompute
		if err := own.Validate(); err != nil {
			field, why, _ := strings.Cut(err.Error(), ": ")
			f.add(at+field, "%s", why)
		}
		planned := true
		switch s.Verdict {
		case Infeasible, Untried:
			f.alikeSetting(at, s, Setting{})
			planned = false
		case Chosen:
			chosen++
			f.chosenSetting(at, s, p)
		case Slower, Tie, Equal:
			f.otherSetting(at, s, p)
		default:
			f.add(at+"verdict", "%q: want %s, %s, %s, %s, %s or %s", s.Verdict, Chosen, Slower, Tie, Equal, Infeasible, Untried)
		}
		if planned == (s.Why != "") {
			f.add(at+"why", "%q: there is a reason for what has no plan, and for nothing else", s.Why)
		}
	}
	if len(p.Settings) > 0 && chosen != 1 {
		f.add("settings", "%d of them chosen, want one", chosen)
	}
}

// alikeSetting compares what a setting says of its plan with what it should.
func (f *findings) alikeSetting(at string, s, want Setting) {
	for _, x := range []struct {
		field     string
		got, want any
	}{
		{"strategy", s.Strategy, want.Strategy},
		{"time.lo_s", s.Time.Lo, want.Time.Lo},
		{"time.mid_s", s.Time.Mid, want.Time.Mid},
		{"time.hi_s", s.Time.Hi, want.Time.Hi},
		{"time.source", s.Time.Source, want.Time.Source},
		{"baseline_s", s.Baseline, want.Baseline},
		{"peak_memory_bytes", s.Peak, want.Peak},
		{"gain_error_s", s.GainError, want.GainError},
	} {
		if x.got != x.want {
			f.add(at+x.field, "%v: of a setting that is %s it is %v", x.got, s.Verdict, x.want)
		}
	}
}

// chosenSetting compares a setting with the plan that it is of.
func (f *findings) chosenSetting(at string, s Setting, p *Plan) {
	var want Setting
	want.of(p)
	f.alikeSetting(at, s, want)
	if s.Bound != p.Bound {
		f.add(at+"lower_bound_s", "%v: the plan's is %v", s.Bound, p.Bound)
	}
	if s.Zero != p.Job.Zero {
		f.add(at+"zero", "%q: chosen, but the job has %q", s.Zero, p.Job.Zero)
	}
	if s.Recompute != p.Job.Recompute {
		f.add(at+"recompute", "%q: chosen, but the job has %q", s.Recompute, p.Job.Recompute)
	}
}

// otherSetting checks what can be known of a plan in another setting.
func (f *findings) otherSetting(at string, s Setting, p *Plan) {
	f.estimate(at+"time", s.Time)
	if p.Step.Time.Mid > s.Time.Mid*(1+hardlyLonger) {
		f.add(at+"time", "%v: the chosen setting takes %v", s.Time.Mid, p.Step.Time.Mid)
	}
	if _, err := Lookup(s.Strategy); err != nil && s.Strategy != (fixed{}).Name() {
		f.add(at+"strategy", "%v", err)
	}
	if b := float64(s.Baseline); !(b >= 0) || math.IsInf(b, 0) {
		f.add(at+"baseline_s", "%v: want a time of 0 or more", s.Baseline)
	}
	if e := float64(s.GainError); !(e >= 0) || math.IsInf(e, 0) {
		f.add(at+"gain_error_s", "%v: want a time of 0 or more", s.GainError)
	}
	if !(s.Bound > 0 && s.Bound <= s.Time.Mid*(1+tolerance)) {
		f.add(at+"lower_bound_s", "%v: want above 0 and no more than the step's %v", s.Bound, s.Time.Mid)
	}
	if s.Peak < 1 {
		f.add(at+"peak_memory_bytes", "%d: want at least 1", int64(s.Peak))
	}
}
