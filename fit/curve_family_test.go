package fit

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"gonum.org/v1/gonum/mat"
	"pgregory.net/rapid"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// invented makes points of an all_gather among n ranks: a known physics with
// noise, at every so many-th octave from 1 KiB on.
func invented(ranks, points int, noise float64, r *rand.Rand, truth func(bytes float64) float64) []Point {
	var all []Point
	for i := range points {
		b := units.Bytes(1 << 10 << i)
		s := op.AllGather{Message: op.Message{Group: ranks, Bytes: b}}
		all = append(all, Point{Shape: s, Key: b.String(), Seconds: truth(float64(b)) * math.Exp(noise*r.NormFloat64())})
	}
	return all
}

func ring(ranks int) func(float64) float64 {
	n := float64(ranks)
	return func(s float64) float64 {
		return 8e-6*(1+0.15*(n-2)) + s*(n-1)/n/200e9 + 6e-9*math.Sqrt(s)
	}
}

func switched(float64) fabric { return switchedFabric(300e9) }

// A family finds the physics again, between its sizes, eight times beyond them
// and for a group that it has not seen.
func TestAFamilyFindsItsPhysics(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	laws := [][]Point{invented(2, 14, 0.01, r, ring(2)), invented(4, 14, 0.01, r, ring(4))}
	fitted, fits, err := curveLaws(switched, laws)
	if err != nil {
		t.Fatal(err)
	}
	if got := fits[0].noise; got < 0.003 || got > 0.03 {
		t.Errorf("noise %v, want about 0.01", got)
	}
	for i, n := range []int{2, 4} {
		for b := 1.5e3; b < 8*8e6; b *= 1.9 {
			x := op.Volume(op.AllGather{Message: op.Message{Group: n, Bytes: units.Bytes(b)}})
			if got, want := float64(fitted[i].curve.Seconds(x)), ring(n)(b); math.Abs(math.Log(got/want)) > 0.07 {
				t.Errorf("%d ranks, %.0f bytes: %v, want %v", n, b, got, want)
			}
		}
	}
	steps := fits[0].steps("gpu", "nvlink")
	if len(steps) != 1 || !slices.Equal(steps[0].Ranks, []int{2, 4}) {
		t.Fatalf("%+v", steps)
	}
	eight := steps[0].Law(8)
	for b := 1e4; b < 1e7; b *= 3 {
		s := op.AllGather{Message: op.Message{Group: 8, Bytes: units.Bytes(b)}}
		if got, want := float64(eight.Seconds(s)), ring(8)(b); math.Abs(math.Log(got/want)) > 0.1 {
			t.Errorf("8 ranks, %.0f bytes: %v, want %v", b, got, want)
		}
	}
}

// Of messages smaller than all that were fitted a group that was not measured takes what the
// physics says, in an interval that holds it, and not the time of the smallest fitted one.
func TestUnmeasuredGroupsBelowTheSmallestMessage(t *testing.T) {
	var points []Point
	for _, p := range invented(2, 19, 0.01, rand.New(rand.NewPCG(1, 2)), ring(2)) {
		if op.Volume(p.Shape) >= 4<<20 {
			points = append(points, p)
		}
	}
	_, fits, err := curveLaws(switched, [][]Point{points})
	if err != nil {
		t.Fatal(err)
	}
	steps := fits[0].steps("gpu", "nvlink")
	four := steps[0].Law(4)
	for b := units.Bytes(1); b <= 4<<20; b *= 4 {
		e, want := four.Predict(op.AllGather{Message: op.Message{Group: 4, Bytes: b}}), units.Seconds(ring(4)(float64(b)))
		if want < e.Lo || want > e.Hi || e.Mid > 5*want {
			t.Errorf("%v: %v in %v to %v, want %v", b, e.Mid, e.Lo, e.Hi, want)
		}
	}
}

// Beyond the measured sizes the interval of a collective whose library's others were not
// measured is a standard deviation's nine tenths, of one among several less.
func TestALoneCollectiveTellsLittleOfLargerMessages(t *testing.T) {
	half := func(kinds ...op.Kind) float64 {
		var laws [][]Point
		for _, k := range kinds {
			points := invented(4, 14, 0.01, rand.New(rand.NewPCG(1, 2)), ring(4))
			for i := range points {
				points[i].Shape = op.OfMessage(k, op.Message{Group: 4, Bytes: 1 << 10 << i})
			}
			laws = append(laws, points)
		}
		fitted, _, err := curveLaws(switched, laws)
		if err != nil {
			t.Fatal(err)
		}
		h, _ := fitted[0].curve.HalfWidth(op.Volume(op.OfMessage(kinds[0], op.Message{Group: 4, Bytes: 8 << 23})))
		return h
	}
	lone, several := half(op.KindAllGather), half(op.KindAllGather, op.KindReduceScatter, op.KindAllReduce)
	if lone < several*loneFactor/farFactor || lone > 3*several || several <= 0 {
		t.Errorf("half widths eight times beyond: %.3f alone, %.3f of three collectives", lone, several)
	}
}

// Six points, all of them wild, one size only, many repeats of a size, and
// sizes of one byte still give a valid curve that never falls.
func TestCurvesOfFewOrStrangePointsNeverFall(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 0))
		kind := rapid.SampledFrom([]op.Kind{op.KindAllReduce, op.KindAllToAll, op.KindSendRecv}).Draw(rt, "kind")
		octaves := rapid.IntRange(0, 20).Draw(rt, "octaves")
		var points []Point
		for range rapid.IntRange(6, 40).Draw(rt, "points") {
			b := units.Bytes(math.Exp2(float64(octaves) * r.Float64()))
			points = append(points, Point{Shape: op.OfMessage(kind, op.Message{Group: 2, Bytes: b}), Seconds: 1e-6 * math.Exp(2*r.NormFloat64())})
		}
		fitted, fits, err := curveLaws(unknownFabric, [][]Point{points})
		if err != nil {
			rt.Fatal(err)
		}
		if len(fitted[0].logs) != len(points) {
			rt.Fatalf("%d errors of %d points", len(fitted[0].logs), len(points))
		}
		c, last := fitted[0].curve, units.Seconds(0)
		for x := units.Bytes(1); x < 1<<40; x = x*5/4 + 1 {
			now := c.Seconds(x)
			half, ok := c.HalfWidth(x)
			if now < last*(1-1e-12) || !(now > 0) || !ok || !(half > 0 && half <= widest) {
				rt.Fatalf("%v +- %v at %d bytes after %v", now, half, x, last)
			}
			last = now
		}
		for _, s := range fits[0].steps("gpu", "link") {
			if l := s.Law(16); len(l.Curve.Knots) == 0 {
				rt.Fatalf("%+v", s)
			}
		}
	})
}

// Leaving a block out by the closed form is the same as predicting it from the
// other points with the same covariance.
func TestLeaveOutAgainstConditioning(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	laws := [][]Point{invented(2, 9, 0.03, r, ring(2)), invented(4, 9, 0.03, r, ring(4))}
	_, fits, err := curveLaws(switched, laws)
	if err != nil {
		t.Fatal(err)
	}
	f := fits[0]
	n := len(f.seen)
	var k mat.SymDense
	f.chol.ToSym(&k)
	var z mat.VecDense
	z.MulVec(&k, f.pull)
	for _, block := range f.blocks() {
		var rest []int
		for i := range n {
			if !slices.Contains(block, i) {
				rest = append(rest, i)
			}
		}
		others := mat.NewSymDense(len(rest), nil)
		y := mat.NewVecDense(len(rest), nil)
		for a, i := range rest {
			y.SetVec(a, z.AtVec(i))
			for b, j := range rest {
				others.SetSym(a, b, k.At(i, j))
			}
		}
		var solved mat.VecDense
		if err := solved.SolveVec(others, y); err != nil {
			t.Fatal(err)
		}
		for _, i := range block {
			want := z.AtVec(i)
			for a, j := range rest {
				want -= k.At(i, j) * solved.AtVec(a)
			}
			if math.Abs(f.off[i].log-want) > 1e-6 {
				t.Errorf("point %d: %v, want %v", i, f.off[i].log, want)
			}
		}
	}
}

// rise is the least-squares curve that never falls: no other one on a fine grid
// of such curves is closer.
func TestRiseIsTheClosestRisingCurve(t *testing.T) {
	heights := []float64{0, 1, 2, 3}
	for a := range 4 {
		for b := range 4 {
			for c := range 4 {
				logs := []float64{heights[a], heights[b], heights[c]}
				rows := []row{{log: logs[0]}, {log: logs[1]}, {log: logs[2]}}
				rise(rows)
				loss := func(x, y, z float64) float64 {
					return (x-logs[0])*(x-logs[0]) + (y-logs[1])*(y-logs[1]) + (z-logs[2])*(z-logs[2])
				}
				got := loss(rows[0].log, rows[1].log, rows[2].log)
				for x := 0.0; x <= 3; x += 0.25 {
					for y := x; y <= 3; y += 0.25 {
						for z := y; z <= 3; z += 0.25 {
							if loss(x, y, z) < got-1e-12 {
								t.Fatalf("%v: %v is closer than %v", logs, []float64{x, y, z}, rows)
							}
						}
					}
				}
				if rows[0].log > rows[1].log || rows[1].log > rows[2].log {
					t.Fatalf("%v became %v", logs, rows)
				}
			}
		}
	}
}

// Families of more points than are fitted together are divided by collective,
// and thinned where that is not enough; every point still gets its error.
func TestLargeFamiliesAreDivided(t *testing.T) {
	if testing.Short() {
		t.Skip("long; goroutines have shorter tests")
	}
	r := rand.New(rand.NewPCG(5, 6))
	var laws [][]Point
	for _, k := range []op.Kind{op.KindAllReduce, op.KindAllGather} {
		var points []Point
		for range mostTogether + 40 {
			b := units.Bytes(math.Exp2(10 + 18*r.Float64()))
			points = append(points, Point{Shape: op.OfMessage(k, op.Message{Group: 4, Bytes: b}), Seconds: ring(4)(float64(b))})
		}
		laws = append(laws, points)
	}
	fitted, fits, err := curveLaws(switched, laws)
	if err != nil || len(fits) != 2 {
		t.Fatalf("%d estimates, %v", len(fits), err)
	}
	for i, l := range fitted {
		if len(l.logs) != len(laws[i]) || medianError(l.logs) > 0.03 {
			t.Errorf("law %d: %d errors of %d points, median %.3f", i, len(l.logs), len(laws[i]), medianError(l.logs))
		}
	}
}

// A straight line is kept where it is the truth.
func TestAStraightLineIsKept(t *testing.T) {
	sequential(t)
	lines := 0
	for seed := range uint64(20) {
		points := invented(2, 16, 0.02, rand.New(rand.NewPCG(seed, 11)), func(s float64) float64 { return 1e-5 + s/10e9 })
		for i := range points {
			points[i].rank = uint64(i)
		}
		law := fitCurve(t, points)
		fitted, _, err := curveLaws(unknownFabric, [][]Point{points})
		if err != nil {
			t.Fatal(err)
		}
		if fitted[0].prefer(&law, points); law.Form() == "alpha_beta" {
			lines++
		}
	}
	if lines < 14 {
		t.Errorf("%d of 20 laws are straight lines", lines)
	}
}

// Between dense sizes a jump is many times what the estimate expects of one that is left out.
// That widens the intervals of sizes near it, but not those of a group that was not measured,
// of which it expects as little there as elsewhere.
func TestAJumpBetweenSizesWidensNoOtherGroup(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	var points []Point
	for i := range 160 {
		b := units.Bytes(1 << 20 * math.Pow(64, float64(i)/159))
		seconds := ring(2)(float64(b)) * math.Exp(0.003*r.NormFloat64())
		if b > 8<<20 {
			seconds *= 1.35
		}
		points = append(points, Point{Shape: op.AllGather{Message: op.Message{Group: 2, Bytes: b}}, Key: b.String(), Seconds: seconds, rank: uint64(i)})
	}
	_, fits, err := curveLaws(switched, [][]Point{points})
	if err != nil {
		t.Fatal(err)
	}
	var halves []float64
	for _, c := range fits[0].steps("gpu", "nvlink")[0].Chunks {
		if c.Bytes >= 1<<19 { // of the smallest message, halves of it
			halves = append(halves, c.Half)
		}
	}
	slices.Sort(halves)
	if least, most := halves[0], halves[len(halves)-1]; most > 4*least {
		t.Errorf("half widths from %v to %v: %v", least, most, halves)
	}
}
