package fit

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
)

// A kernel packs the query heads of a KV head into its tiles: short queries that share take a
// fraction of the time that a law of others without sharing says. It cannot know, and says so
// by the width of its interval there, and that it lies outside what was measured.
func TestLawsOfOneRatioAreUnsureOfOthers(t *testing.T) {
	dev := coreDevice()
	rng := rand.New(rand.NewPCG(3, 5))
	draw := func(ratio, n int) []Point {
		var all []Point
		for len(all) < n {
			a := attentionShape(1<<(4+rng.IntN(9)), 1<<rng.IntN(4), 1<<(3+rng.IntN(3)), 1)
			a.KVHeads = a.QHeads / ratio
			took := waves(dev, a.Attention)
			packed := a.Attention
			packed.QLen, packed.QHeads = packed.QLen*8, packed.QHeads/8
			if ratio == 8 { // in tiles of 8 heads' queries
				took = min(took, waves(dev, packed))
			}
			all = append(all, pointOf(dev, a, took*math.Exp(0.01*rng.NormFloat64())))
		}
		return all
	}
	for _, n := range []int{60, 300} {
		for _, ratio := range []int{1, 8} {
			law := lawFrom(t, dev, draw(ratio, n))
			own, other := draw(ratio, 50), draw(9-ratio, 50)
			if in := insideOf(law, own); in < 0.8 {
				t.Errorf("%d points of ratio %d: %.0f %% of others like them lie inside", n, ratio, 100*in)
			}
			for _, p := range own {
				if e := law.Predict(p.Shape); e.Source != costmodel.Interpolated && law.Beyond(p.Shape) == 0 {
					t.Errorf("%v is %s", p.Shape, e.Source)
				}
			}
			for _, p := range other {
				e := law.Predict(p.Shape)
				if half := math.Log(float64(e.Hi/e.Lo)) / 2; e.Source != costmodel.Extrapolated || half < 0.35 || half > 2 {
					t.Errorf("%d points of ratio %d, asked of %d: %s with a half width of %.2f", n, ratio, 9-ratio, e.Source, half)
					break
				}
			}
		}
	}
}

// insideOf is the share of points that lie in the intervals of a law.
func insideOf(law *costmodel.Law, points []Point) float64 {
	in := 0.0
	for _, p := range points {
		if e := law.Predict(p.Shape); p.Seconds >= float64(e.Lo) && p.Seconds <= float64(e.Hi) {
			in += 1 / float64(len(points))
		}
	}
	return in
}
