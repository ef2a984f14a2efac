package multitask

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/evenkeel/evenkeel/costmodel/multitask"
	"github.com/evenkeel/evenkeel/internal/units"
)

func seconds(v float64) units.Seconds { return units.Seconds(v) }

// No plan is faster than the bound, and none faster than ours, whatever modules need and
// however many devices there are; all plans stand up to the checker.
func TestBoundBelowOursBelowOthers(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 5))
	surely := 0
	for i := range 60 {
		tasks := drawn(r, 8)
		if i%10 == 0 { // more samples than the bound tells apart
			tasks.Modules[0].Batch, tasks.Modules[0].Curve.PerSample = 3000, 0.001
		}
		p := published(t, tasks, 1+r.IntN(24))
		ordered(t, p)
		if planOf(t, Evenkeel{}, p).Time < 0.99*planOf(t, Spindle{}, p).Time {
			surely++
		}
	}
	if surely < 30 {
		t.Errorf("faster than spindle by a percent in %d of 60", surely)
	}
}

// The same on real GPUs, of one type and of several, within a node and across nodes.
func TestBoundBelowOursBelowOthersByLaws(t *testing.T) {
	for _, cluster := range []string{"1x1 h100_sxm", "1x8 h100_sxm", "2x4 a100_sxm", "1x4 h100_sxm + 1x4 a100_sxm", "2x2 b200_sxm + 1x4 h100_sxm + 1x8 rtx_pro_6000_server"} {
		ordered(t, byLaws(t, encoders(), cluster))
	}
}

func ordered(t *testing.T, p *Problem) {
	t.Helper()
	bound, ours := Bound(p), planOf(t, Evenkeel{}, p)
	if ours.Time < bound*(1-1e-9) {
		t.Errorf("%d devices, %d modules: ours takes %v, less than the bound %v", p.Devices(), len(p.Tasks.Modules), ours.Time, bound)
	}
	for _, s := range Published() {
		plan, err := s.Solve(t.Context(), p)
		if err != nil {
			if _, illegal := errors.AsType[*IllegalError](err); !illegal {
				t.Errorf("%s: %v", s.Name(), err)
			}
			continue
		}
		if found := Check(p.Costs, plan); len(found) > 0 {
			t.Errorf("%s: %v", s.Name(), found)
		}
		if plan.Time < bound*(1-1e-9) || plan.Time < ours.Time*(1-1e-9) {
			t.Errorf("%d devices, %d modules: %s takes %v, ours %v, bound %v", p.Devices(), len(p.Tasks.Modules), s.Name(), plan.Time, ours.Time, bound)
		}
	}
}

// Of tiny problems every plan without splits is tried: ours is never slower than the best,
// and the bound never above it.
func TestOursAgainstAllPlansOfTinyProblems(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 3))
	for range 40 {
		tasks := drawn(r, 3)
		for i := range tasks.Modules {
			tasks.Modules[i].Layers = 1 + r.IntN(3)
		}
		p := published(t, tasks, 1+r.IntN(4))
		best := exhaustive(t, p)
		ours := planOf(t, Evenkeel{}, p)
		if ours.Time > best*(1+1e-9) {
			t.Errorf("ours takes %v, the best without splits %v: %v", ours.Time, best, describe(ours))
		}
		if bound := Bound(p); bound > best*(1+1e-9) {
			t.Errorf("the bound %v is above the best plan without splits, %v", bound, best)
		}
	}
}

// exhaustive is the least time of all numbers of devices and all orders, each module whole.
func exhaustive(t *testing.T, p *Problem) units.Seconds {
	t.Helper()
	best, n := forever, len(p.Tasks.Modules)
	widths := make([]int, n)
	var order []int
	var orders func()
	orders = func() {
		if len(order) == n {
			plan := &multitask.Plan{}
			placeAll(p, order, widths, make([]units.Seconds, p.Devices()), plan)
			if err := p.Simulate(plan); err != nil {
				t.Fatal(err)
			}
			best = min(best, plan.Time)
			return
		}
		for m := range n {
			if slices.Contains(order, m) || slices.ContainsFunc(p.Needs[m], func(need int) bool { return !slices.Contains(order, need) }) {
				continue
			}
			order = append(order, m)
			orders()
			order = order[:len(order)-1]
		}
	}
	var each func(m int)
	each = func(m int) {
		if m == n {
			orders()
			return
		}
		for widths[m] = 1; widths[m] <= min(p.Devices(), p.Tasks.Modules[m].Batch); widths[m]++ {
			each(m + 1)
		}
	}
	each(0)
	return best
}

// placeAll puts modules one by one on the devices that are free first.
func placeAll(p *Problem, order, widths []int, free []units.Seconds, plan *multitask.Plan) {
	ends := make([]units.Seconds, len(order))
	for _, m := range order {
		ranks := make([]int, p.Devices())
		for i := range ranks {
			ranks[i] = i
		}
		slices.SortStableFunc(ranks, func(a, b int) int { return compareTimes(free[a], free[b]) })
		ranks = slices.Sorted(slices.Values(ranks[:widths[m]]))
		run := multitask.Run{Module: m, Layers: p.Tasks.Modules[m].Layers, Ranks: ranks, Samples: p.EqualShares(m, len(ranks))}
		start := units.Seconds(0)
		for _, r := range ranks {
			start = max(start, free[r])
		}
		for _, need := range p.Needs[m] {
			start = max(start, ends[need])
		}
		ends[m] = start + units.Seconds(run.Layers)*p.Layer(m, ranks, run.Samples)
		for _, r := range ranks {
			free[r] = ends[m]
		}
		plan.Runs = append(plan.Runs, run)
	}
}

func describe(plan *multitask.Plan) string {
	text, _ := json.Marshal(plan.Runs)
	return string(text)
}

// The same problem gives the same plan, byte for byte.
func TestPlansRepeat(t *testing.T) {
	first := describe(planOf(t, Evenkeel{}, byLaws(t, encoders(), "1x4 h100_sxm + 1x4 a100_sxm")))
	if again := describe(planOf(t, Evenkeel{}, byLaws(t, encoders(), "1x4 h100_sxm + 1x4 a100_sxm"))); again != first {
		t.Errorf("%s\n%s", first, again)
	}
}

// On one device there is nothing to decide: every strategy takes as long, which is the bound.
func TestOneDevice(t *testing.T) {
	p := published(t, anchors(), 1)
	bound := Bound(p)
	for _, s := range []Strategy{Sequential{}, TowersSideBySide{}, Spindle{}, Evenkeel{}} {
		if plan := planOf(t, s, p); plan.Time < bound*(1-1e-9) || plan.Time > bound*(1+1e-9) {
			t.Errorf("%s: %v, bound %v", s.Name(), plan.Time, bound)
		}
	}
	if _, err := (TasksSideBySide{}).Solve(t.Context(), p); err == nil || !strings.Contains(err.Error(), "4 tasks have no devices of their own among 1") {
		t.Error(err)
	}
}

// Devices of which one type is faster have more samples of a run.
func TestFasterDevicesHaveMoreSamples(t *testing.T) {
	tasks := encoders()
	tasks.Modules = tasks.Modules[1:2]
	tasks.Modules[0].After = nil
	tasks.Modules[0].Shape.SeqLen = 8192 // so that gradients hide behind the backward pass
	p := byLaws(t, tasks, "1x(4 h100_sxm + 4 a100_sxm)")
	plan := planOf(t, Evenkeel{}, p)
	mixed := false
	for _, r := range plan.Runs {
		for i, rank := range r.Ranks {
			for j, other := range r.Ranks {
				if p.PoolOf(rank) < p.PoolOf(other) { // H100 before A100
					mixed = true
					if r.Samples[i] <= r.Samples[j] {
						t.Errorf("rank %d (H100) has %d samples, rank %d (A100) %d", rank, r.Samples[i], other, r.Samples[j])
					}
				}
			}
		}
	}
	if !mixed {
		t.Error("no run is on both types")
	}
	if equal := planOf(t, Sequential{}, p); plan.Time > 0.9*equal.Time {
		t.Errorf("%v, with equal shares %v", plan.Time, equal.Time)
	}
}

// More effort never makes a plan slower, and does make some faster.
func TestMoreEffortIsNeverSlower(t *testing.T) {
	r := rand.New(rand.NewPCG(6, 7))
	faster := 0
	for range 6 {
		tasks, n := drawn(r, 10), 4+r.IntN(24)
		last := forever
		for _, effort := range []float64{0, 1, 1.9, 2, 4} {
			p := published(t, tasks, n)
			p.Effort = effort
			now := planOf(t, Evenkeel{}, p).Time
			if now > last {
				t.Errorf("%d modules on %d devices: %v at an effort of %v, with less %v", len(tasks.Modules), n, now, effort, last)
			}
			if effort > 1 && now < last {
				faster++
			}
			last = now
		}
	}
	if faster == 0 {
		t.Error("no plan is faster for more effort")
	}
}

// What others plan is a draft to begin with: on one type of devices it takes as long.
func TestOthersPlansAreDrafts(t *testing.T) {
	p := published(t, anchors(), 16)
	x := newSearch(t.Context(), p)
	plan := planOf(t, Sequential{}, p)
	d := x.draftOf(plan)
	if got := x.s.run(&d); got > plan.Time*(1+1e-9) {
		t.Errorf("the draft takes %v, the plan %v", got, plan.Time)
	}
	if all, scores := x.sorted(plan); len(all) != len(x.begins())+1 || !slices.IsSorted(scores) {
		t.Errorf("%d drafts, scores %v", len(all), scores)
	}
}

// A search that is stopped at once still has a plan.
func TestAStoppedSearchHasAPlan(t *testing.T) {
	p := published(t, anchors(), 16)
	stopped, cancel := context.WithCancel(t.Context())
	cancel()
	plan, err := Evenkeel{}.Solve(stopped, p)
	if err != nil {
		t.Fatal(err)
	}
	if found := Check(p.Costs, plan); len(found) > 0 {
		t.Error(found)
	}
	if spindle := planOf(t, Spindle{}, p); plan.Time > spindle.Time {
		t.Errorf("%v, spindle %v", plan.Time, spindle.Time)
	}
}

// What does not fit is no plan: ours fits wherever another's does. Encoders on two H100 and
// two A100 fill them so that the fastest split of all does not fit.
func TestOursFitsWhereAnotherDoes(t *testing.T) {
	tasks := encoders()
	for i := range tasks.Modules {
		tasks.Modules[i].Batch *= 6
	}
	p := byLaws(t, tasks, "1x2 h100_sxm + 1x2 a100_sxm")
	fit := 0
	for _, s := range Published() {
		plan, err := s.Solve(t.Context(), p)
		if err == nil && p.Fits(plan) == nil {
			fit++
		}
	}
	free := byLaws(t, tasks, "1x2 h100_sxm + 1x2 a100_sxm")
	ours := planOf(t, Evenkeel{}, free)
	if err := p.Fits(ours); fit == 0 || err != nil {
		t.Errorf("%d of the others' plans fit; ours: %v", fit, err)
	}
	slow := &multitask.Plan{Runs: ours.Runs, Time: 2 * ours.Time}
	over := &multitask.Plan{Runs: []multitask.Run{{Module: 1, Layers: 16, Ranks: []int{0}, Samples: []int{tasks.Modules[1].Batch}}}, Time: ours.Time / 2}
	if p.Fits(over) == nil || !p.better(slow, over) || p.better(over, slow) {
		t.Errorf("a plan that does not fit (%v) is better than one that does", p.Fits(over))
	}
}

// A search that the time was up for is said to have been stopped.
func TestAStoppedSearchIsTold(t *testing.T) {
	p := published(t, anchors(), 16)
	late, cancel := context.WithDeadline(t.Context(), time.Unix(0, 0))
	defer cancel()
	d, err := Solve(late, p, "", func() units.Seconds { return 0 }, nil)
	if err != nil {
		t.Fatal(err)
	}
	told := func(n string) bool {
		return strings.Contains(n, "evenkeel was stopped before it was done, and its plan is the best until then: ")
	}
	if !slices.ContainsFunc(d.Notes, told) {
		t.Errorf("%q", d.Notes)
	}
	if d, err = Solve(t.Context(), p, "", func() units.Seconds { return 0 }, nil); err != nil || slices.ContainsFunc(d.Notes, told) {
		t.Errorf("%q, %v", d.Notes, err)
	}
}

// Of several types nobody knows from a device's samples who else is in its run: the bound
// counts no exchange of gradients then, which of one type on nodes of one device it does.
func TestTheBoundCountsExchangesOfOneTypeAlone(t *testing.T) {
	const text, share = 3, 6 // of 48 samples: eight devices at least
	for _, c := range []struct {
		cluster string
		counts  bool
	}{{"8x1 a100_sxm", true}, {"8x1 a100_sxm + 1x8 h100_sxm", false}} {
		p := byLaws(t, encoders(), c.cluster)
		floor := newBounder(p).floors(text, 0, shareSteps(p.Tasks.Modules[text].Batch))[share-1]
		if alone := float64(p.Alone(text, 0, share)); c.counts != (floor > 1.5*alone) || floor < 0.999*alone {
			t.Errorf("%s: %v, of %d samples alone %v", c.cluster, floor, share, alone)
		}
	}
}
