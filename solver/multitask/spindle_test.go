package multitask

import (
	"math"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/multitask"
)

// What an independent rebuild of Spindle's planner in Python says of the anchors, in ms. C*
// and A are exact; a plan's time depends on how ties are broken, and all of these agree.
func TestAnchors(t *testing.T) {
	for _, want := range []struct {
		devices                                                  int
		bound, continuous, spindle, longest, sequential, optimus float64
		waves                                                    int
	}{
		{8, 76.8804, 78.8348, 86.2862, 86.2862, 187.3752, 158.3160, 7},
		{16, 47.7801, 48.5288, 55.5771, 55.7343, 159.3816, 102.4824, 7},
		{32, 35.1731, 35.5430, 43.6873, 45.5806, 145.3848, 74.5656, 7},
		{64, 29.4163, 29.4463, 38.1355, 35.5788, 139.7472, 60.6072, 7},
		{256, 27.4200, 27.4200, 32.4312, 32.4312, 138.0024, 50.1384, 10},
	} {
		p := published(t, anchors(), want.devices)
		near := func(what string, got, want float64) {
			t.Helper()
			if math.Abs(got-want) > 0.00011 {
				t.Errorf("%d devices: %s %.4f, want %.4f", p.Devices(), what, got, want)
			}
		}
		near("A", boundOfDivisors(p), want.bound)
		near("C*", float64(p.Continuous()), want.continuous)
		for _, of := range []struct {
			Strategy
			time float64
		}{{Spindle{}, want.spindle}, {longest{}, want.longest}, {Sequential{}, want.sequential}, {TasksSideBySide{}, want.optimus}} {
			plan := planOf(t, of.Strategy, p)
			near(of.Name(), float64(plan.Time), of.time)
			if last := plan.Runs[len(plan.Runs)-1].Wave + 1; of.Strategy == (Spindle{}) && last != want.waves {
				t.Errorf("%d devices: %d waves, want %d", p.Devices(), last, want.waves)
			}
		}
	}
}

// boundOfDivisors is the bound where numbers of devices divide the batch, as the rebuild has
// them.
func boundOfDivisors(p *Problem) float64 {
	b := newBounder(p)
	for m := range b.columns {
		var keep []column
		for _, c := range b.columns[m] {
			if p.Tasks.Modules[m].Batch%c.samples[0] == 0 {
				keep = append(keep, c)
			}
		}
		b.columns[m] = keep
	}
	_, bound := b.best()
	return bound
}

func planOf(t testing.TB, s Strategy, p *Problem) *multitask.Plan {
	t.Helper()
	plan, err := s.Solve(t.Context(), p)
	if err != nil {
		t.Fatalf("%s: %v", s.Name(), err)
	}
	if found := Check(p.Costs, plan); len(found) > 0 {
		t.Fatalf("%s: %v", s.Name(), found)
	}
	return plan
}

// The continuous numbers of devices at 16 devices, to four decimals: they add up to all.
func TestContinuousNumbersOfDevices(t *testing.T) {
	p := published(t, anchors(), 16)
	time := p.Continuous()
	for m, want := range []float64{1.6416, 0.5399, 1.8264, 0.7462, 5.2560, 4.0348, 1.0248, 0.9303} {
		if got := inverse(p.equal()[m], p.Tasks.Modules[m].Layers, time); math.Abs(got-want) > 0.0002 {
			t.Errorf("module %d: %.4f devices, want %.4f", m+1, got, want)
		}
	}
}

// A module's parts together take what the bi-point discretisation promises, as far as whole
// layers allow, and are on neighbouring widths.
func TestAModuleIsSplitBetweenNeighbours(t *testing.T) {
	p := published(t, anchors(), 64)
	all := p.equal()[4]
	layers := p.Tasks.Modules[4].Layers
	for _, time := range []float64{30, 40, 60, 90, 150} {
		parts := split(all, 4, layers, seconds(time))
		sum, took := 0, 0.0
		for _, x := range parts {
			sum += x.layers
			took += float64(x.layers) * float64(timeAt(all, x.n))
		}
		slowest := float64(timeAt(all, parts[len(parts)-1].n))
		if sum != layers || len(parts) > 2 || took-time > slowest/2 || time-took > slowest/2 && parts[0].n > 1 {
			t.Errorf("in %v: %v take %.2f", time, parts, took)
		}
		if len(parts) == 2 && next(all, parts[1].n) != next(all, parts[0].n)-1 && next(all, parts[0].n) >= 0 {
			t.Errorf("in %v: %v are no neighbours", time, parts)
		}
	}
}

// Modules that need each other are on levels, one after the other; a level's modules are not.
func TestLevelsFollowNeeds(t *testing.T) {
	tasks := anchors()
	tasks.Modules[1].After = []string{"m1"}
	tasks.Modules[2].After = []string{"m2", "m8"}
	p := published(t, tasks, 16)
	got := levels(p.Costs)
	if len(got) != 3 || len(got[0]) != 6 || got[1][0] != 1 || got[2][0] != 2 {
		t.Errorf("levels %v", got)
	}
	plan := planOf(t, Spindle{}, p)
	free := planOf(t, Evenkeel{}, p)
	if free.Time > plan.Time {
		t.Errorf("evenkeel %v, spindle %v", free.Time, plan.Time)
	}
}
