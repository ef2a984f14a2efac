package solver

import (
	"testing"

	"github.com/evenkeel/evenkeel/internal/units"
)

// What was found is improved once more: never slower, faster somewhere, and equal devices
// keep the layout that is known.
func TestSettlingImproves(t *testing.T) {
	sequential(t)
	faster := 0
	for _, c := range []struct {
		cluster string
		seq     units.Tokens
	}{
		{"2x8 h100_sxm + 2x8 a100_sxm", 512 << 10},
		{"1x2 h100_sxm + 2x4 a100_sxm + 1x8 b200_sxm", 256 << 10},
		{"2x4 h100_sxm + 1x8 a100_sxm + 2x2 b200_sxm", 128 << 10},
		{"3x8 a100_sxm", 256 << 10},
		{"6x4 a100_sxm", 1 << 20},
	} {
		p := gpuProblem(t, c.cluster, c.seq)
		s := newSearch(t.Context(), p, Default, nil)
		if err := s.seed(); err != nil {
			t.Fatal(err)
		}
		s.explore(1)
		before, layout, tried := s.time, s.best.Layout, s.evaluated
		s.settle(1)
		switch {
		case s.err != nil:
			t.Fatal(s.err)
		case s.time > before:
			t.Errorf("%s: %v, %v before", c.cluster, s.time, before)
		case s.time < before*(1-1e-4):
			faster++
		case !s.unequal() && (s.evaluated > tried || !sameLayout(layout, s.best.Layout)):
			t.Errorf("%s: equal devices are searched again", c.cluster)
		}
		if bad := s.p.overfull(s.best.Layout); bad != nil {
			t.Errorf("%s: %v", c.cluster, bad)
		}
		t.Logf("%s: %v instead of %v", c.cluster, s.time, before)
	}
	if faster == 0 {
		t.Error("no plan is faster")
	}
}
