package fit

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
)

// A kernel packs the query heads of a KV head into its tiles: short queries that share take a
// fraction of the time that a law of others without sharing says. It cannot know, and says so
// by the width of its interval there, and that it lies outside what was measured.
func TestLawsOfOneRatioAreUnsureOfOthers(t *testing.T) {
	if testing.Short() {
		t.Skip("nothing in it runs beside anything else")
	}
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

// Calls of one length do not tell what grows with it: a law of them is as sure of the others as
// devices are alike, not as its own points are.
func TestLawsOfOneLengthAreUnsureOfOthers(t *testing.T) {
	if testing.Short() {
		t.Skip("nothing in it runs beside anything else")
	}
	dev := coreDevice()
	rng := rand.New(rand.NewPCG(3, 5))
	// This kernel starts every tile of queries anew, and reads keys at a rate of its own.
	took := func(p *Point) {
		a := p.Shape.(op.AttnFwd)
		tasks := float64(a.Blocks()*a.QHeads) * math.Ceil(float64(a.QLen)/128)
		p.Seconds = (waves(dev, a.Attention) + math.Ceil(tasks/float64(dev.Parallel))*4e-6) * math.Exp(0.01*rng.NormFloat64())
	}
	var points, others []Point
	for batch := range 24 {
		for heads := range 8 {
			for _, length := range []int{2048, 64 << rng.IntN(4), 8192 << rng.IntN(3)} {
				p := pointOf(dev, attentionShape(length, 1+batch, 8*(1+heads), 8*(1+heads)), 0)
				took(&p)
				if length == 2048 {
					points = append(points, p)
				} else {
					others = append(others, p)
				}
			}
		}
	}
	for _, n := range []int{40, len(points)} {
		law := lawFrom(t, dev, sample(points, n))
		if in := insideOf(law, points); in < 0.8 {
			t.Errorf("%d points: %.0f %% of their length lie inside", n, 100*in)
		}
		if in := insideOf(law, others); in < 0.85 {
			t.Errorf("%d points: %.0f %% of other lengths lie inside", n, 100*in)
		}
		for _, p := range others {
			if e := law.Predict(p.Shape); math.Log(float64(e.Hi/e.Lo))/2 > 2 {
				t.Errorf("%v: from %v to %v", p.Shape, e.Lo, e.Hi)
			}
		}
	}
}
