package multitask

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/evenkeel/evenkeel/internal/units"
)

// A plan takes as long, and holds as much, when its modules are listed in another order.
func TestReorderedPricesAreTheSame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		w.room = []units.Bytes{100, 200}
		for m := range w.tasks.Modules {
			w.states, w.kept = append(w.states, units.Bytes(10+m)), append(w.kept, units.Bytes(1+m))
		}
		c, plan := w.costs(t), drawPlan(t, w)
		order := make([]int, len(w.tasks.Modules))
		for m := range order {
			order[m] = m
		}
		order = rapid.Permutation(order).Draw(t, "order")
		other := c.Reordered(order)
		if err := c.Simulate(plan); err != nil {
			t.Fatal(err)
		}
		renamed := plan.Clone()
		for i := range renamed.Runs {
			r := &renamed.Runs[i]
			r.Module, r.Start, r.End = slices.Index(order, r.Module), 0, 0
		}
		if err := other.Simulate(renamed); err != nil || renamed.Time != plan.Time {
			t.Fatalf("%v, in the order %v %v (%v)", plan.Time, order, renamed.Time, err)
		}
		if diff := cmp.Diff(c.Memory(plan), other.Memory(renamed)); diff != "" {
			t.Fatalf("in the order %v (-want +got)\n%s", order, diff)
		}
		for m, was := range order {
			if got := other.Tasks.Modules[m]; got.Name != w.tasks.Modules[was].Name || !slices.IsSorted(other.Needs[m]) || len(other.Needs[m]) != len(c.Needs[was]) {
				t.Fatalf("module %d of the order %v: %s, needs %v", m, order, got.Name, other.Needs[m])
			}
		}
	})
}
