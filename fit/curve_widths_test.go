package fit

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/op"
)

// Small messages that repeat to 20 % and large ones that repeat to 1 % have intervals of
// their own, whether the law is one of the simple forms or its family's curve.
func TestIntervalsFollowTheSize(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	sequential(t)
	for name, truth := range map[string]func(float64) float64{
		"ring": ring(2),
		"steps": func(x float64) float64 { // three protocols
			switch {
			case x < 3e4:
				return 1e-5 + x/1e9
			case x < 1e6:
				return 6e-5 + x/4e9
			}
			return 1e-3 + x/20e9
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(5, 6))
			noise := func(p *Point) float64 {
				if op.Volume(p.Shape) < 1e6 {
					return 0.2
				}
				return 0.01
			}
			points := sized(400, 0, r, truth)
			for i := range points {
				points[i].Seconds *= math.Exp(noise(&points[i]) * r.NormFloat64())
			}
			g := op.NewGroupType([]op.Member{{Device: "a", Count: 2}}, 1, "wire")
			d := NewData()
			d.Groups = []op.GroupType{g}
			s := points[0].Shape
			law, err := lawOf(d, Stratum{On: g.Name, Op: s.Kind(), Variant: s.Variant()}, points)
			if err != nil {
				t.Fatal(err)
			}
			inside, all := map[bool]float64{}, map[bool]float64{}
			for _, p := range points {
				x := float64(op.Volume(p.Shape))
				if x > 5e5 && x < 2e6 {
					continue // both are near
				}
				e := law.Predict(p.Shape)
				small := x < 1e6
				if all[small]++; p.Seconds >= float64(e.Lo) && p.Seconds <= float64(e.Hi) {
					inside[small]++
				}
			}
			for small, n := range all {
				if share := inside[small] / n; share < 0.86 || share > 0.975 {
					t.Errorf("%s: of the %v messages with noise of %v 90 %% would be inside, %.0f %% are", law.Form(), n, map[bool]float64{true: 0.2, false: 0.01}[small], 100*share)
				}
			}
		})
	}
}
