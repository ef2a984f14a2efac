package fit

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
)

// A library that changes its kernel between two lengths nearer than nodes usually are: the law
// is right at both. Where nothing changes there, the two share a node as before.
func TestAJumpBetweenNearLengthsIsLearnt(t *testing.T) {
	if testing.Short() {
		t.Skip("nothing in it runs beside anything else")
	}
	dev := coreDevice()
	for _, jump := range []float64{1, 1.25, 0.8} {
		r := rand.New(rand.NewPCG(5, 5))
		var points []Point
		for _, q := range []int{1024, 2048, 4096, 8192, 8320, 16384} {
			for heads := 1; heads <= 32; heads *= 2 {
				for _, group := range []int{1, 4} {
					for batch := 1; batch <= 4 && heads%group == 0; batch *= 2 {
						s := attentionShape(q, batch, heads, heads/group)
						v := waves(dev, s.Attention) * math.Exp(0.01*r.NormFloat64())
						if q >= 8320 {
							v *= jump
						}
						points = append(points, pointOf(dev, s, v))
					}
				}
			}
		}
		law := mustCorrect(t, dev, points)
		off, n := map[float64]float64{}, 0.0
		for _, p := range points {
			q := costmodel.AxisOf("q_len", p.Shape)
			off[q] += math.Log(p.Seconds / float64(law.Seconds(p.Shape)))
			if q == 8192 {
				n++
			}
		}
		nodes := len(law.Correction.Axes[0].Nodes)
		t.Logf("%.2f times as long: off by %.3f and %.3f, %d nodes", jump, off[8192]/n, off[8320]/n, nodes)
		if jump != 1 && math.Abs(off[8192]/n)+math.Abs(off[8320]/n) > 0.02 || jump == 1 && nodes != 7 {
			t.Errorf("%.2f times as long: off by %.3f and %.3f, %d nodes", jump, off[8192]/n, off[8320]/n, nodes)
		}
	}
}
