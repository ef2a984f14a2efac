package evenkeel

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/internal/strategy"
	"github.com/evenkeel/evenkeel/solver/internal/world"
)

// What was found is improved once more: never slower, faster somewhere, and equal devices
// keep the layout that is known.
func TestSettlingImproves(t *testing.T) {
	world.Sequential(t)
	faster := 0
	for _, c := range []struct {
		cluster string
		seq     units.Tokens
	}{
		{"2x8 h100_sxm + 2x8 a100_sxm", 512 << 10},
		{"1x2 h100_sxm + 2x4 a100_sxm + 1x8 b200_sxm", 512 << 10},
		{"2x4 h100_sxm + 1x8 a100_sxm + 2x2 b200_sxm", 128 << 10},
		{"3x8 a100_sxm", 256 << 10},
		{"6x4 a100_sxm", 1 << 20},
	} {
		p := world.GPUs(t, c.cluster, c.seq)
		s := searchOf(t, p)
		s.explore(1)
		before, layout, tried := s.Time(), s.Best().Layout, s.Evaluated()
		s.settle(1)
		switch {
		case s.Err() != nil:
			t.Fatal(s.Err())
		case s.Time() > before:
			t.Errorf("%s: %v, %v before", c.cluster, s.Time(), before)
		case s.Time() < before*(1-1e-4):
			faster++
		case !s.unequal() && (s.Evaluated() > tried || !strategy.SameLayout(layout, s.Best().Layout)):
			t.Errorf("%s: equal devices are searched again", c.cluster)
		}
		if bad := s.p.Overfull(s.Best().Layout); bad != nil {
			t.Errorf("%s: %v", c.cluster, bad)
		}
		t.Logf("%s: %v instead of %v", c.cluster, s.Time(), before)
	}
	if faster == 0 {
		t.Error("no plan is faster")
	}
}

// A neighbour is listed once and none is the grouping itself; none is left out for that.
func TestRegroupingsAreListedOnce(t *testing.T) {
	s := newSearch(t.Context(), world.Problem(t, "1x(2 fast + 2 slow)", 1<<15), Name, nil)
	var err error
	if s.est, err = newEstimator(s.p); err != nil {
		t.Fatal(err)
	}
	now := [][]int{{0}, {1, 2}, {3}}
	d := s.est.draft(now)
	d.ring = ringOf(d, now)
	seen := map[string]bool{}
	for _, groups := range s.regroupings(d) {
		if key := formationKey(groups); seen[key] {
			t.Errorf("%v is listed twice", groups)
		} else {
			seen[key] = true
		}
	}
	if seen[formationKey(now)] {
		t.Errorf("%v is its own neighbour", now)
	}
	for _, want := range [][][]int{
		{{1, 2}, {3}},
		{{0}, {2}, {3}},
		{{0, 1, 2}, {3}},
		{{1, 2}, {0, 3}},
		{{0, 3}, {1, 2}},
		{{1, 2}, {0}, {3}},
		{{1, 2}, {3}, {0}},
		{{0, 1}, {2}, {3}},
		{{0}, {2}, {1, 3}},
		{{0}, {1}, {2}, {3}},
		{{0}, {2}, {3}, {1}},
		{{2}, {1, 0}, {3}},
	} {
		if !seen[formationKey(want)] {
			t.Errorf("%v is not listed", want)
		}
	}
}

// A descent ends where neither its draft nor any near it fits: their layouts are known after
// one round, and looking them up costs no work that would end it.
func TestDescentEndsWhereNothingFits(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	s := newSearch(ctx, world.GPUs(t, "1x(1 h100_sxm + 1 a100_sxm)", 16<<20), Name, nil)
	if err := s.seed(); err != nil {
		t.Fatal(err)
	}
	groups := [][]int{{0}, {1}}
	d := s.est.draft(groups)
	d.ring = ringOf(d, groups)
	s.estimate(d)
	if x := s.descend(s.judgeDraft(d), s.budget); !math.IsInf(x.t, 1) || s.Err() != nil {
		t.Fatalf("%v s, error %v: want a draft that does not fit", x.t, s.Err())
	}
	if ctx.Err() != nil {
		t.Error("only the deadline ended the descent")
	}
}
