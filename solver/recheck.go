package solver

import (
	"context"
	"fmt"
	"reflect"
	"slices"
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
	step, err := problem.posed.Simulate(context.Background(), p.Layout())
	if err != nil {
		// structure says which field; this is for what it might not know of.
		f.add("ranks", "cannot be simulated: %v", err)
		return f, nil
	}
	f.same("step", p.Step, *step)
	// Only here: a plan that is read may be of another version, whose words were others.
	if !slices.Equal(p.Notes, notModelled()) {
		f.add("notes", "not the notes of this version of the cost model")
	}
	bound, err := LowerBound(problem)
	if err != nil {
		return nil, err
	}
	f.same("lower_bound_s", p.Bound, bound)
	f.comparison(p, problem, step)
	return f, nil
}

// comparison simulates the layouts of all candidates, the baseline's first, for
// gains are measured from it. own is the step of the plan itself.
func (f *findings) comparison(p *Plan, problem *Problem, own *costmodel.Step) {
	steps := make([]*costmodel.Step, len(p.Compared))
	base := p.Baseline()
	var before *costmodel.Step
	for i := range p.Compared {
		c := &p.Compared[i]
		at := fmt.Sprintf("considered[%d]", i)
		switch {
		case c.Verdict == NotLegal:
			continue
		case c.Layout == nil:
			steps[i] = own
		default:
			var err error
			if steps[i], err = problem.posed.Simulate(context.Background(), *c.Layout); err != nil {
				f.add(at+".layout", "cannot be simulated: %v", err)
				continue
			}
		}
		f.candidate(at, c, steps[i])
		if c == base {
			before = steps[i]
		}
	}
	for i := range p.Compared {
		if c := &p.Compared[i]; before != nil && steps[i] != nil && c != base && c.Runs() {
			half, _ := costmodel.GainError(before, steps[i])
			f.gain(fmt.Sprintf("considered[%d]", i), c, half)
		}
	}
}

// candidate compares a candidate with the step of its layout.
func (f *findings) candidate(at string, c *Candidate, step *costmodel.Step) {
	f.same(at+".time", c.Time, step.Time)
	var fullest costmodel.RankStep
	fits, most := true, -1.0
	var busy, exposed, idle units.Seconds
	for _, r := range step.Ranks {
		busy, exposed, idle = busy+r.Busy, exposed+r.Exposed, idle+r.Idle
		fits = fits && r.Memory.Fits()
		if share := float64(r.Memory.Peak()) / float64(r.Memory.Capacity); share > most {
			fullest, most = r, share
		}
	}
	f.same(at+".peak_memory_bytes", c.Peak, fullest.Memory.Peak())
	n := units.Seconds(len(step.Ranks))
	f.same(at+".busy_s", c.Busy, busy/n)
	f.same(at+".exposed_s", c.Exposed, exposed/n)
	f.same(at+".idle_s", c.Idle, idle/n)
	if fits == (c.Verdict == Infeasible) {
		f.add(at+".verdict", "%q: memory computed anew says that it fits is %v", string(c.Verdict), fits)
	}
}

// gain compares the error of a gain. It is a difference of nearly equal times,
// so it is compared on the scale of the times.
func (f *findings) gain(at string, c *Candidate, anew units.Seconds) {
	if !near(float64(c.Time.Mid+c.GainError), float64(c.Time.Mid+anew)) {
		f.add(at+".gain_error_s", "%v: computed anew it is %v", float64(c.GainError), float64(anew))
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
			if name != "-" && a.Type().Field(i).IsExported() {
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
