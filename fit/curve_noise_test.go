package fit

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// switchedRing is an all_reduce of a library with three protocols, by its steps and the bytes of
// every port.
func switchedRing(n int, s float64) float64 {
	steps, bytes := 2*float64(n-1), 2*s*float64(n-1)/float64(n)
	switch {
	case s <= 64<<10:
		return 6e-6 + 1.5e-6*steps + bytes/11e9
	case s <= 1<<20:
		return 9e-6 + 2.2e-6*steps + bytes/19e9
	}
	return 16e-6 + 4e-6*steps + bytes/23e9 + 2e-9*math.Sqrt(s)
}

// Of sweeps with a message an octave, or two an octave, the intervals hold nine tenths of the
// same messages measured again, and of others between them, whether one group was measured or
// three and now and then a time is far off: a curve that runs through its points does not show
// the noise in what it leaves over. Small noise is less than small messages are taken to have.
func TestIntervalsHoldSweepsMeasuredAgain(t *testing.T) {
	if testing.Short() {
		t.Skip("statistics over many seeds")
	}
	sequential(t)
	for _, c := range []struct {
		groups   []int
		apart    float64 // octaves
		noise    float64
		outliers float64 // share
		most     float64
	}{
		{[]int{4}, 2, 0.02, 0, 1},
		{[]int{4}, 1, 0.005, 0, 1},
		{[]int{4}, 1, 0.02, 0, 0.97},
		{[]int{4}, 1, 0.04, 0, 0.97},
		{[]int{4}, 0.5, 0.02, 0, 0.97},
		{[]int{2, 4, 8}, 1, 0.02, 0, 0.97},
		{[]int{2, 4, 8}, 1, 0.02, 0.01, 0.985},
	} {
		var again, between share
		for seed := range uint64(12 / len(c.groups)) {
			r := rand.New(rand.NewPCG(seed, 7))
			measured := func(n int, u float64) Point {
				b := units.Bytes(math.Round(math.Exp2(u)))
				s := op.AllReduce{Message: op.Message{Group: n, Bytes: b}}
				seconds := switchedRing(n, float64(b)) * math.Exp(c.noise*r.NormFloat64())
				if r.Float64() < c.outliers {
					seconds *= 1.15 + 0.85*r.Float64()
				}
				return Point{Shape: s, Key: b.String(), Seconds: seconds}
			}
			d := NewData()
			var tasks []*task
			for _, n := range c.groups {
				g := op.NewGroupType([]op.Member{{Device: "a", Count: n}}, 1, "pcie")
				d.Groups = append(d.Groups, g)
				var points []Point
				for u := 10.0; u <= 28; u += c.apart {
					points = append(points, measured(n, u))
				}
				tasks = append(tasks, &task{Stratum: Stratum{On: g.Name, Op: op.KindAllReduce, Points: points}, points: points})
			}
			estimate(d, tasks, nil)
			for i, n := range c.groups {
				if tasks[i].err != nil {
					t.Fatal(tasks[i].err)
				}
				for u := 10.0; u < 28; u += c.apart {
					for range 4 {
						again.add(tasks[i].law, measured(n, u))
						between.add(tasks[i].law, measured(n, u+c.apart*r.Float64()))
					}
				}
			}
		}
		t.Logf("%+v: %.3f again, %.3f between", c, again.of(), between.of())
		if again.of() < 0.87 || again.of() > c.most || between.of() < 0.85 {
			t.Errorf("%+v: %.3f of the same messages again inside, %.3f of those between", c, again.of(), between.of())
		}
	}
}

// The larger the noise may be, the wider the interval of a law; but how far from the curve a form
// may be to take its place stays.
func TestNoiseThatMayBeSaysNothingOfTheCurve(t *testing.T) {
	points := invented(2, 12, 0.02, rand.New(rand.NewPCG(3, 11)), ring(2))
	_, fits, err := curveLaws(switched, [][]Point{points})
	if err != nil {
		t.Fatal(err)
	}
	family := fits[0]
	largest := op.Volume(largestOf(points))
	before := family.law(family.curves[0], points)
	family.likely = 4 * family.noise
	after := family.law(family.curves[0], points)
	was, _ := before.curve.HalfWidth(2 * largest)
	is, _ := after.curve.HalfWidth(2 * largest)
	if is < 1.2*was {
		t.Errorf("with four times the noise half a width is %v, %v before", is, was)
	}
	if before.beyond != after.beyond || before.beyond[0] <= 0 {
		t.Errorf("with four times the noise a form may be %v off, %v before", after.beyond, before.beyond)
	}
}

// share counts points in the intervals of laws.
type share struct{ in, all float64 }

func (s *share) add(law *costmodel.Law, p Point) {
	e := law.Predict(p.Shape)
	if s.all++; p.Seconds >= float64(e.Lo) && p.Seconds <= float64(e.Hi) {
		s.in++
	}
}

func (s *share) of() float64 { return s.in / s.all }
