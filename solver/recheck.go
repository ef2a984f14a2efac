package solver

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
)

// costs checks what the profile decides: it simulates every layout of the plan
// again, computes memory and bound again, and compares number by number.
func costs(p *Plan, profile *costmodel.Profile) ([]Finding, error) {
	var f findings
	if p.Simulated != profile.Simulated {
		f.add("simulated", "%v: the profile says %v", p.Simulated, profile.Simulated)
	}
	problem, err := NewProblem(profile, p.Job)
	if err != nil {
		return nil, fmt.Errorf("the plan cannot be checked against this profile: %w", err)
	}
	step, err := problem.simulate(p.Layout())
	if err != nil {
		// structure says which field; this is for what it might not know of.
		f.add("ranks", "cannot be simulated: %v", err)
		return f, nil
	}
	f.same("step", p.Step, *step)
	bound, err := LowerBound(problem)
	if err != nil {
		return nil, err
	}
	f.same("lower_bound_s", p.Bound, bound)
	for i := range p.Compared {
		f.candidate(fmt.Sprintf("considered[%d]", i), p, &p.Compared[i], problem)
	}
	return f, nil
}

// candidate simulates a candidate's own layout.
func (f *findings) candidate(at string, p *Plan, c *Candidate, problem *Problem) {
	layout := p.Layout()
	if c.Layout != nil {
		layout = *c.Layout
	}
	step, err := problem.simulate(layout)
	if err != nil {
		f.add(at+".layout", "cannot be simulated: %v", err)
		return
	}
	f.same(at+".time", c.Time, step.Time)
	var fullest costmodel.RankStep
	fits, most := true, -1.0
	for _, r := range step.Ranks {
		fits = fits && r.Memory.Fits()
		if share := float64(r.Memory.Peak()) / float64(r.Memory.Capacity); share > most {
			fullest, most = r, share
		}
	}
	f.same(at+".peak_memory_bytes", c.Peak, fullest.Memory.Peak())
	if fits == (c.Verdict == Infeasible) {
		f.add(at+".verdict", "%q: memory computed anew says that it fits is %v", string(c.Verdict), fits)
	}
	base := p.Baseline()
	if base == nil || base == c || c.Verdict == Infeasible {
		return
	}
	from := p.Layout()
	if base.Layout != nil {
		from = *base.Layout
	}
	gainError, err := problem.gainError(from, layout)
	if err != nil {
		f.add(at+".gain_error_s", "cannot be computed anew: %v", err)
		return
	}
	// A difference of nearly equal times: compare it on the scale of the times.
	if !near(float64(c.Time.Mid+c.GainError), float64(c.Time.Mid+gainError)) {
		f.add(at+".gain_error_s", "%v: computed anew it is %v", float64(c.GainError), float64(gainError))
	}
}

// same compares what the plan says with what came out anew, field by field
// under their names in the document, numbers to rounding.
func (f *findings) same(field string, said, anew any) {
	f.sameValue(field, reflect.ValueOf(said), reflect.ValueOf(anew))
}

func (f *findings) sameValue(field string, a, b reflect.Value) {
	switch a.Kind() {
	case reflect.Struct:
		for i := range a.NumField() {
			name, _, _ := strings.Cut(a.Type().Field(i).Tag.Get("json"), ",")
			if name != "-" {
				f.sameValue(field+"."+name, a.Field(i), b.Field(i))
			}
		}
	case reflect.Slice:
		if a.Len() != b.Len() {
			f.add(field, "%d entries: computed anew there are %d", a.Len(), b.Len())
			return
		}
		for i := range a.Len() {
			f.sameValue(fmt.Sprintf("%s[%d]", field, i), a.Index(i), b.Index(i))
		}
	case reflect.Float64:
		if !nearTime(a, b) {
			f.add(field, "%v: computed anew it is %v", a.Float(), b.Float())
		}
	default:
		if !a.Equal(b) {
			f.add(field, "%v: computed anew it is %v", a, b)
		}
	}
}

// nearTime compares times to rounding. Idle time is a difference of sums, so
// what is left of equal ones may be a hair of either.
func nearTime(a, b reflect.Value) bool {
	const hair = units.Seconds(1e-12)
	d := units.Seconds(a.Float() - b.Float())
	return near(a.Float(), b.Float()) || (d < hair && d > -hair)
}
