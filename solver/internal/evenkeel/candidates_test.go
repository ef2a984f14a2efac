package evenkeel

import (
	"context"
	"math"
	"slices"
	"testing"

	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/internal/world"
)

// What candidates leaves out takes far longer than the best: of all there are up to
// half as long again it lists every one, with the same estimate.
func TestCandidatesLeaveOutTheHopelessOnly(t *testing.T) {
	world.Sequential(t)
	short := 0
	for _, cluster := range []string{"1x8 h100_sxm + 1x8 a100_sxm", "1x(2 h100_sxm + 3 a100_sxm) + 2x3 h100_sxm", "4x8 h100_sxm + 2x8 a100_sxm"} {
		for _, seq := range []units.Tokens{8 << 10, 128 << 10, 1 << 20} {
			p := world.GPUs(t, cluster, seq)
			s := newSearch(context.Background(), p, "test", nil)
			var err error
			if s.est, err = newEstimator(p); err != nil {
				t.Fatal(err)
			}
			all, best := everyEstimate(t, s)
			near := func(x []float64) []float64 {
				x = slices.DeleteFunc(x, func(t float64) bool { return t > 1.5*best })
				slices.Sort(x)
				return x
			}
			var listed []float64
			for _, c := range s.candidates() {
				listed = append(listed, c.t)
			}
			if len(listed) < len(all) {
				short++
			}
			if want, got := near(all), near(listed); !slices.Equal(got, want) {
				t.Errorf("%s, %d tokens: %d candidates near the best, want %d", cluster, int64(seq), len(got), len(want))
			}
		}
	}
	if short < 5 {
		t.Errorf("only %d lists are shorter than all there is", short)
	}
}

// everyEstimate is the estimate of every grouping, and the least rank. None takes
// less than the least that its pool could.
func everyEstimate(t *testing.T, s *search) (all []float64, best float64) {
	t.Helper()
	best = math.Inf(1)
	for i, pool := range s.est.pools() {
		limit, least := groupingsOfAll, s.est.leastTime(pool.ranks)
		if i > 0 {
			limit = groupingsOfPart
		}
		for _, d := range s.est.groupings(pool.ranks, limit) {
			x := s.estimate(d)
			if x < 0.9*least { // rectangles may be cheaper a token than a causal square
				t.Errorf("%v of %v takes %v, the ranks at least %v", d.kinds, pool.ranks, x, least)
			}
			x = s.est.shown(d, x, pool.hidden) + pool.tax
			all = append(all, x)
			best = min(best, x*max(1, s.est.fullest(d)))
		}
	}
	return all, best
}
