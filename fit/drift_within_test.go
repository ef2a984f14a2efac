package fit

import (
	"slices"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/op"
)

// driftOf is a canary with these times.
func driftOf(times ...float64) *Drift {
	c := NewDrift("cpu:1", op.Norm{}, times[0])
	for _, t := range times[1:] {
		c.Repeat(t)
	}
	return c
}

// A machine that became slower or faster, by a step or little by little, drifted; one slow
// visit at either end is a disturbance, as it is between them, and what visits scatter is noise.
func TestOneSlowVisitIsNoDrift(t *testing.T) {
	quiet := []float64{1, 1.01, 0.99, 1, 1.02, 1, 0.99, 1.01, 1, 1.01}
	with := func(change func(i int, x float64) float64) []float64 {
		all := slices.Clone(quiet)
		for i := range all {
			all[i] = change(i, all[i])
		}
		return all
	}
	at := func(place int, factor float64) []float64 {
		return with(func(i int, x float64) float64 {
			if i == place {
				return x * factor
			}
			return x
		})
	}
	last := len(quiet) - 1
	for name, c := range map[string]struct {
		times []float64
		want  bool
	}{
		"quiet":           {quiet, false},
		"slow at last":    {at(last, 4), false},
		"slow at first":   {at(0, 4), false},
		"slow in between": {at(4, 4), false},
		"slow for the last two": {with(func(i int, x float64) float64 {
			if i >= last-1 {
				return x * 1.5
			}
			return x
		}), true},
		"less than the limit":     {[]float64{1, 1, 1, 1, 1, 1.02, 1.02, 1.02, 1.02, 1.02}, false},
		"noisy":                   {[]float64{1, 1.4, 0.9, 1.3, 1, 1.5, 1.1, 1.4, 1.2, 1.1}, false},
		"a step":                  {with(func(i int, x float64) float64 { return x * (1 + 0.08*float64(i/5)) }), true},
		"a step down":             {with(func(i int, x float64) float64 { return x * (1 - 0.08*float64(i/5)) }), true},
		"little by little":        {with(func(i int, x float64) float64 { return x * (1 + 0.01*float64(i)) }), true},
		"a step of noisy visits":  {[]float64{1, 1.2, 1.1, 1, 1.2, 2, 2.3, 2.1, 2.2, 2}, true},
		"one repeat, as long":     {[]float64{1, 1.02}, false},
		"one repeat, longer":      {[]float64{1, 1.05}, true},
		"two of three are longer": {[]float64{1, 1.2, 1.2}, true},
	} {
		if got := driftOf(c.times...); got.Drifted() != c.want {
			t.Errorf("%s: %v (%.3f), want %v", name, got.Drifted(), got.Ratio(), c.want)
		}
	}
	if got := driftOf(at(last, 4)...).Farthest(); got < 3.9 {
		t.Errorf("the farthest repeat is told all the same: %v", got)
	}
}

// A machine at two and a half times its first time takes 149 % more, not "149 % of" it.
func TestDriftIsSaidAsADifference(t *testing.T) {
	for want, c := range map[string]*Drift{
		"norm on cpu:1 takes 149 % more in the end than at first (3 repeats)": driftOf(1, 1, 2.49, 2.49),
		"takes 12 % less in the end than at first (1 repeat)":                 driftOf(1, 0.88),
	} {
		if got := c.String(); !strings.Contains(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
