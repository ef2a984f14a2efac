package fit

import (
	"math"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// sized makes points of a collective with the given true curve and noise.
func sized(n int, noise float64, r *rand.Rand, truth func(x float64) float64) []Point {
	var points []Point
	for i := range n {
		b := units.Bytes(math.Round(1e3 * math.Pow(1e5, (float64(i)+r.Float64())/float64(n))))
		s := op.SendRecv{Message: op.Message{Group: 2, Bytes: b}}
		points = append(points, Point{On: "g", Shape: s, Key: b.String(), Seconds: truth(float64(b)) * math.Exp(noise*r.NormFloat64()), rank: r.Uint64()})
	}
	return points
}

func fitCurve(t testing.TB, points []Point) costmodel.Law {
	t.Helper()
	law := costmodel.Law{Op: op.KindSendRecv, Group: "g", Range: hull(op.KindSendRecv, points)}
	candidates, compared := forms(op.Spec{Class: op.Collective}, 1, points)
	if err := choose(&law, candidates, compared, points); err != nil {
		t.Fatal(err)
	}
	return law
}

// Each form is found again where it is the truth.
func TestTheFormOfACurveIsFound(t *testing.T) {
	if testing.Short() {
		t.Skip("statistics over many seeds")
	}
	line := func(x float64) float64 { return 1e-5 + x/5e9 }
	steps := func(x float64) float64 {
		if x < 60e3 {
			return 5e-6 + x/2e9
		}
		return 60e-6 + x/9e9
	}
	bent := func(x float64) float64 { return 1e-6 * math.Pow(x/1e3, 0.3+0.05*math.Log10(x)) }
	for want, truth := range map[string]func(float64) float64{"alpha_beta": line, "2-piece alpha_beta": steps, "log_log": bent} {
		found := 0
		for seed := range 20 {
			r := rand.New(rand.NewPCG(uint64(seed), 0))
			law := fitCurve(t, sized(40, 0.02, r, truth))
			if law.Form() == want {
				found++
			}
			for x := 2e3; x < 5e7; x *= 1.7 {
				if want == "2-piece alpha_beta" && x > 30e3 && x < 120e3 {
					continue // the cut lies between two points
				}
				if e := math.Abs(math.Log(float64(law.Curve.Seconds(units.Bytes(x))) / truth(x))); e > 0.15 {
					t.Errorf("%s, seed %d: %s is off by %.0f %% at %.0f bytes", want, seed, law.Form(), 100*e, x)
				}
			}
		}
		if found < 15 {
			t.Errorf("%s was found in %d of 20 cases", want, found)
		}
	}
}

// A log-log curve never falls, whatever the points.
func TestLogLogNeverFalls(t *testing.T) {
	sequential(t)
	rapid.Check(t, func(rt *rapid.T) {
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 0))
		n := rapid.IntRange(4, 60).Draw(rt, "n")
		points := sized(n, 1, r, func(x float64) float64 { return 1e-6 * x })
		c, err := logLog(points)
		if err != nil {
			rt.Fatal(err)
		}
		last := units.Seconds(0)
		for x := units.Bytes(1); x < 1<<40; x = x*5/4 + 1 {
			now := c.Seconds(x)
			if now < last*(1-1e-12) || !(now > 0) {
				rt.Fatalf("%v at %d bytes after %v", now, x, last)
			}
			last = now
		}
	})
}

// The interval from cross-validation covers new points of the same truth.
func TestSpreadCoversNewPoints(t *testing.T) {
	if testing.Short() {
		t.Skip("statistics over many seeds")
	}
	in, of := 0, 0
	for seed := range 60 {
		r := rand.New(rand.NewPCG(uint64(seed), 9))
		truth := func(x float64) float64 { return 1e-5 + x/5e9 }
		law := fitCurve(t, sized(16, 0.1, r, truth))
		for _, p := range sized(20, 0.1, r, truth) {
			e := law.Predict(p.Shape)
			of++
			if p.Seconds >= float64(e.Lo) && p.Seconds <= float64(e.Hi) {
				in++
			}
		}
	}
	if share := float64(in) / float64(of); share < 0.86 || share > 0.97 {
		t.Errorf("%.1f %% of new points lie inside their 90 %% interval", 100*share)
	}
}
