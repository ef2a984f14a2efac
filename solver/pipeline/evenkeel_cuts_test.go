package pipeline

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/evenkeel/evenkeel/costmodel/pipeline"
	"github.com/evenkeel/evenkeel/internal/units"
)

// fewLengths are five sequences of about as long.
var fewLengths = []units.Tokens{6721, 4380, 4838, 3606, 6814}

// shapeOf is, by stage, the device's first letter and how many there are.
func shapeOf(p *Problem, stages []pipeline.Stage) string {
	var out []string
	for _, s := range stages {
		out = append(out, fmt.Sprintf("%.1s%d", p.Device(s.Ranks[0]), len(s.Ranks)))
	}
	return strings.Join(out, " ")
}

// quickly is our plan of a short search.
func quickly(t *testing.T, p *Problem) *pipeline.Plan {
	t.Helper()
	p.Effort = 0.03
	plan, err := Online(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	if found := Check(p.Costs, plan); len(found) > 0 {
		t.Error(found[0])
	}
	if bound := Bound(p); plan.Time < bound*(1-1e-9) {
		t.Errorf("%v, less than the bound, %v", plan.Time, bound)
	}
	return plan
}

// What is left over when devices are cut into stages of one size makes further stages, and is
// left out as well. The model has 32 heads, so that there are no stages of three.
func TestCutsOfMixedSizes(t *testing.T) {
	for _, c := range []struct {
		cluster string
		stages  int
		want    []string
	}{
		{"1x5 h100_sxm", 0, []string{"h1 h1 h1 h1 h1", "h2 h2", "h2 h2 h1", "h4", "h4 h1"}},
		{"1x5 h100_sxm", 2, []string{"h1 h1", "h2 h2", "h4", "h4 h1"}},
		{"1x7 h100_sxm", 3, []string{"h1 h1 h1", "h2 h2 h2", "h4", "h4 h2 h1"}},
		{"1x8 h100_sxm", 3, []string{"h1 h1 h1", "h2 h2 h2", "h4 h2 h2", "h4 h4", "h8"}},
		{"1x4 h100_sxm + 1x2 h100_sxm", 0, []string{"h1 h1 h1 h1 h1 h1", "h2 h2 h2", "h4", "h4 h2"}},
		{"3x8 h100_sxm", 2, []string{"h1 h1", "h16", "h16 h8", "h2 h2", "h4 h4", "h8 h8"}},
		{"3x2 h100_sxm", 4, []string{"h1 h1 h1 h1", "h2 h2 h1 h1", "h2 h2 h2", "h4", "h4 h2"}},
	} {
		p := byLaws(t, c.cluster, 16, fewLengths...)
		p.Stages = c.stages
		var got []string
		for _, x := range p.cuts(p.Types()[0], true) {
			got = append(got, shapeOf(p, x))
		}
		slices.Sort(got)
		if !slices.Equal(got, c.want) {
			t.Errorf("%s, %d stages: %q, want %q", c.cluster, c.stages, got, c.want)
		}
	}
}

// Stages of unequal sizes on one device type: a plan on fixed ones is faster by no more than what short searches differ by.
func TestOursIsAsFastAsOnFixedStagesOfMixedSizes(t *testing.T) {
	for _, c := range []struct {
		cluster string
		stages  int
		sizes   []int // of the fixed stages, on ranks in their order
		layers  []int
	}{
		{"1x5 h100_sxm", 2, []int{4, 1}, []int{13, 3}},
		{"1x6 h100_sxm", 2, []int{4, 2}, []int{11, 5}},
		{"1x7 h100_sxm", 3, []int{4, 2, 1}, []int{9, 5, 2}},
		{"1x8 h100_sxm", 3, []int{4, 2, 2}, []int{9, 4, 3}},
		{"1x8 h100_sxm + 1x4 h100_sxm", 2, []int{8, 4}, []int{11, 5}},
		{"1x8 h100_sxm + 1x4 h100_sxm", 0, []int{8, 4}, []int{11, 5}},
		{"3x8 h100_sxm", 2, []int{16, 8}, []int{11, 5}},
		{"1x2 h100_sxm + 1x5 rtx_pro_6000_server", 3, []int{2, 4, 1}, []int{10, 5, 1}},
	} {
		p := byLaws(t, c.cluster, 16, fewLengths...)
		p.Stages = c.stages
		ours := quickly(t, p)
		fixed, rank := byLaws(t, c.cluster, 16, fewLengths...), 0
		for s, n := range c.sizes {
			fixed.Fixed = append(fixed.Fixed, pipeline.Stage{Ranks: fixed.all()[rank : rank+n], Layers: c.layers[s]})
			rank += n
		}
		fixed.Stages = len(fixed.Fixed)
		if on := quickly(t, fixed); ours.Time > 1.1*on.Time {
			t.Errorf("%s, %d stages: %v on %s, and %v on %v", c.cluster, c.stages, ours.Time, shapeOf(p, ours.Stages), on.Time, fixed.Fixed)
		}
	}
}

// A device more makes no plan slower by more than a hundredth, more stages than layers or not.
func TestADeviceMoreIsNotSlower(t *testing.T) {
	for _, of := range []string{"1x%d h100_sxm", "1x1 h100_sxm + 1x%d rtx_pro_6000_server", "1x%d h100_sxm + 1x2 a100_sxm"} {
		for layers, stages := range map[int]int{4: 0, 6: 2} {
			before, than := forever, ""
			for n := 3; n < 6; n++ {
				cluster := fmt.Sprintf(of, n)
				p := byLaws(t, cluster, layers, fewLengths...)
				p.Stages = stages
				plan := quickly(t, p)
				if plan.Time > 1.01*before {
					t.Errorf("%d layers, %d stages: %v on %s (%s), %v on %s", layers, stages, plan.Time, cluster, shapeOf(p, plan.Stages), before, than)
				}
				before, than = plan.Time, cluster
			}
		}
	}
}

// Of more stages than there may be the slowest are left out, in no matter which order they come.
func TestQuickest(t *testing.T) {
	p := byLaws(t, "1x2 a100_sxm + 1x4 h100_sxm", 4, fewLengths...)
	stages := []pipeline.Stage{{Ranks: []int{0}}, {Ranks: []int{1}}, {Ranks: []int{2, 3}}, {Ranks: []int{4}}, {Ranks: []int{5}}}
	for most, want := range []string{"", "h2", "h2 h1", "h2 h1 h1", "a1 h2 h1 h1", "a1 a1 h2 h1 h1"} {
		if got := p.quickest(stages, most); shapeOf(p, got) != want {
			t.Errorf("%d: %s, want %s", most, shapeOf(p, got), want)
		}
	}
}

// More effort is no slower: its turns begin with those of less.
func TestMoreEffortIsNotSlower(t *testing.T) {
	for _, c := range []struct {
		effort float64
		want   []turn
	}{{0, []turn{{1, 0}}}, {0.1, []turn{{0.1, 0}}}, {4, []turn{{1, 0}, {1, 1}, {2, 2}}}, {3.5, []turn{{1, 0}, {1, 1}, {1.5, 2}}}} {
		if got := (&Problem{Effort: c.effort}).turns(); !slices.Equal(got, c.want) {
			t.Errorf("effort %v: %v, want %v", c.effort, got, c.want)
		}
	}
	for _, cluster := range []string{"1x4 h100_sxm + 1x2 rtx_pro_6000_server"} {
		before := forever
		for _, effort := range []float64{1, 2} {
			p := byLaws(t, cluster, 8, fewLengths...)
			p.Effort = effort
			plan, err := Online(t.Context(), p)
			if err != nil {
				t.Fatal(err)
			}
			if plan.Time > before {
				t.Errorf("%s: %v with effort %v, %v with less", cluster, plan.Time, effort, before)
			}
			before = plan.Time
		}
	}
}

// A deadline that comes before there is any plan gets the first one that fits, and a plan is chosen;
// one that is interrupted has none.
func TestDeadlineBeforeThereIsAnyPlan(t *testing.T) {
	late, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	for _, stages := range []int{0, 2} {
		p := byLaws(t, "1x4 h100_sxm + 1x4 a100_sxm", 8, fewLengths...)
		p.Stages = stages
		d, err := Solve(late, p, "", func() units.Seconds { return 0 }, nil)
		if err != nil {
			t.Fatal(err)
		}
		if d.Strategy != "evenkeel" || p.Room(&d.Plan) != nil || stages > 0 && len(d.Stages) != stages {
			t.Errorf("%s: %v", d.Strategy, d.Stages)
		}
	}
	m := published(8, 0)
	m.PerNode, m.Layers, m.Each, m.StateBytes = 4, 8, 1e-4, 0
	m.Capacity = units.BytesOf((m.TokenBytes*0.6 + m.LogitBytes) * 30000 / 8 * 0.2)
	p := batchOf(t, m, 30000, 500)
	if plan, err := (Evenkeel{}).Solve(late, p); plan != nil || err == nil {
		t.Errorf("%v, %v: want why there is no plan", plan, err)
	}
}
