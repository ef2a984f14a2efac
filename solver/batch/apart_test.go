package batch

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/recommend"
)

// Where devices are unequal, our plan is never worse than one of pools that keep to
// themselves; and that is a sound plan.
func TestEvenkeelIsNeverWorseThanPoolsApart(t *testing.T) {
	sequential(t)
	rng := rand.New(rand.NewPCG(11, 11))
	planned := 0
	for i := range 100 {
		p := mixedNodes()
		p.MicroBase, p.Hidden = units.Seconds(0.05*rng.Float64()), units.Seconds(0.3*rng.Float64())
		p.BothPasses, p.Layers = i%2 == 0, i%4
		if own, _ := p.ofPool(1, []int{}); own.cost(0.1) != p.cost(0.1) {
			t.Fatalf("a pool's micro-batch costs %v, the whole's %v", own.cost(0.1), p.cost(0.1))
		}
		p.Lengths = drawBatch(rng, longestHeld(p))
		apart, err := plannedApart(p)
		var illegal *IllegalError
		if errors.As(err, &illegal) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		planned++
		if found := Check(p, apart); len(found) > 0 {
			t.Fatalf("batch %d: %v", i, found)
		}
		for _, m := range apart.Micro {
			for _, g := range m.Groups {
				if uses := p.Classes[g.Class].Uses; uses[0] > 0 && uses[1] > 0 {
					t.Fatalf("batch %d: a group of both pools: %v", i, uses)
				}
			}
		}
		// Each pool's longest micro-batch stays beside the others' longest, which the step ends with.
		behind, longest := *p, units.Seconds(0)
		for _, m := range apart.Micro {
			longest = max(longest, m.slowest())
		}
		behind.Behind = 5
		if other, err := plannedApart(&behind); err != nil || !recommend.Same(other.Time, apart.Time+5-p.hides()*longest) {
			t.Errorf("batch %d: with 5 s behind the last micro-batch %+v, %v, without %v", i, other, err, apart.Time)
		}
		if ours := solvedBy(t, Evenkeel{}, p); slower(ours.Time, apart.Time) {
			t.Errorf("batch %d (%v): %v, apart %v", i, p.Lengths, ours.Time, apart.Time)
		}
	}
	if planned < 20 {
		t.Errorf("%d batches were planned apart: the test says little", planned)
	}
}

// plannedApart is the plan of pools that keep to themselves.
func plannedApart(p *Problem) (*Plan, error) {
	plan, err := newApart(Options{}).plan(context.Background(), p)
	if err != nil {
		return nil, err
	}
	for i := range plan.Micro {
		if err := Place(p, plan.Micro[i].Groups); err != nil {
			return nil, err
		}
	}
	Evaluate(p, plan)
	return plan, nil
}
