package fit

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// switching is a library that changes protocols four times, twice to a slower one.
func switching(x float64) float64 {
	switch {
	case x < 50e3:
		return 10e-6 + x/1e9
	case x < 400e3:
		return 30e-6 + x/4e9
	case x < 2e6:
		return 50e-6 + x/2e9
	case x < 9e6:
		return 100e-6 + x/6e9
	}
	return 500e-6 + x/5e9
}

// A library's switches are found where they are, with one more at most, and between them
// the law is what the library does.
func TestProtocolSwitchesAreFound(t *testing.T) {
	if testing.Short() {
		t.Skip("statistics over some seeds")
	}
	// Points are 3 % apart, and where pieces nearly meet noise decides for some.
	near := func(x, at float64) bool { return math.Abs(math.Log(x/at)) < 0.25 }
	switches := []float64{50e3, 400e3, 2e6, 9e6}
	for seed := range 3 {
		law := fitCurve(t, sized(400, 0.02, rand.New(rand.NewPCG(uint64(seed), 3)), switching))
		if n := len(law.Curve.Pieces); n < len(switches)+1 || n > len(switches)+2 {
			t.Errorf("seed %d: %s, want 5 pieces", seed, law.Form())
			continue
		}
		for _, at := range switches {
			if !slices.ContainsFunc(law.Curve.Pieces, func(p costmodel.Piece) bool { return near(float64(p.From), at) }) {
				t.Errorf("seed %d: switches at %.0f bytes: %+v", seed, at, law.Curve.Pieces)
			}
		}
		for x := 2e3; x < 5e7; x *= 1.1 {
			if slices.ContainsFunc(switches, func(at float64) bool { return near(x, at) }) {
				continue
			}
			if e := math.Abs(math.Log(float64(law.Curve.Seconds(units.Bytes(x))) / switching(x))); e > 0.03 {
				t.Errorf("seed %d: off by %.1f %% at %.0f bytes", seed, 100*e, x)
			}
		}
	}
}

// Where a line or a bent curve is the truth no switches are made up among hundreds of
// points, and too few sizes for three pieces make none at all.
func TestNoSwitchesAreMadeUp(t *testing.T) {
	if testing.Short() {
		t.Skip("statistics over many draws")
	}
	line := func(x float64) float64 { return 1e-5 + x/5e9 }
	bent := func(x float64) float64 { return 1e-6 * math.Pow(x/1e3, 0.3+0.05*math.Log10(x)) }
	for name, truth := range map[string]func(float64) float64{"line": line, "bent": bent} {
		for seed := range 3 {
			r := rand.New(rand.NewPCG(uint64(seed), 4))
			if law := fitCurve(t, sized(300, 0.02, r, truth)); law.Curve.Form == costmodel.AlphaBeta && len(law.Curve.Pieces) >= fewestSeveral {
				t.Errorf("%s, seed %d: %s", name, seed, law.Form())
			}
		}
	}
	few := sized(2*sizesAPiece, 0, rand.New(rand.NewPCG(1, 4)), switching)
	if c, err := severalPieces(few); err == nil {
		t.Errorf("%d sizes make %d pieces", len(few), len(c.Pieces))
	}
}

// The partition is the best of all: none of three cuts drawn at random has less loss.
func TestThePartitionIsTheBest(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 4))
	for range 20 {
		points := sized(60, 0.3, r, switching)
		p := newPartition(points)
		least, begins := p.into(4)
		total := func(at []int) float64 {
			sum := 0.0
			for i, from := range at {
				to := len(points)
				if i+1 < len(at) {
					to = at[i+1]
				}
				if to-from < fewestInPiece {
					return math.Inf(1)
				}
				sum += p.loss(from, to) // every point is a place
			}
			return sum
		}
		if got := total(begins); math.Abs(got-least) > 1e-9*least {
			t.Fatalf("pieces from %v have a loss of %v, not %v", begins, got, least)
		}
		for range 2000 {
			a, b, c := r.IntN(60), r.IntN(60), r.IntN(60)
			if a < b && b < c && total([]int{0, a, b, c}) < least-1e-9 {
				t.Fatalf("%v is better than %v", []int{0, a, b, c}, begins)
			}
		}
	}
}

// Beyond the largest message a law of pieces grows as its family does, and says so with an
// interval that is no narrower than the family's.
func TestPiecesGoOnAsTheirFamily(t *testing.T) {
	family := &costmodel.Curve{Form: costmodel.LogLog, Knots: []costmodel.Knot{{Bytes: 1000, Seconds: 1e-5}, {Bytes: 1e6, Seconds: 1e-3}, {Bytes: 8e6, Seconds: 5e-3}}, HalfWidths: []float64{0.05, 0.05, 0.4}}
	pieces := func(beta float64) *costmodel.Law {
		return &costmodel.Law{Spread: costmodel.Spread{Lo: 0.95, Hi: 1.05}, Curve: &costmodel.Curve{Form: costmodel.AlphaBeta, Pieces: []costmodel.Piece{
			{Alpha: exactCoef(1e-5), Beta: exactCoef(1e-9)}, {From: 1e5, Alpha: exactCoef(2e-4), Beta: exactCoef(1e-9)}, {From: 5e5, Alpha: exactCoef(1e-3 - beta*1e6), Beta: exactCoef(beta)},
		}}}
	}
	for _, c := range []struct {
		beta float64 // of the last piece: the family's is 4/7 ns a byte
		more int     // pieces
	}{{0.1e-9, 1}, {0.95e-9, 1}, {4e-9 / 7, 0}} {
		law := pieces(c.beta)
		curveLaw{curve: family}.goOn(law, message(1e6))
		if n := len(law.Curve.Pieces); n != 3+c.more {
			t.Errorf("%v s a byte: %d pieces", c.beta, n)
		}
		for _, x := range []units.Bytes{1e6, 8e6} {
			if off := float64(law.Curve.Seconds(x) / family.Seconds(x)); math.Abs(off-1) > 1e-6 {
				t.Errorf("%v s a byte: %v times the family's time at %v", c.beta, off, x)
			}
		}
		if wide := math.Log(law.Spread.Hi) * (1 + octavesOn*law.Widen); wide < 0.9*mostJump(law.Curve.Pieces[:3]) || wide < 0.38 {
			t.Errorf("%v s a byte: an interval of %.2f three doublings on", c.beta, wide)
		}
	}
}

func message(b units.Bytes) op.Shape {
	return op.OfMessage(op.KindSendRecv, op.Message{Group: 2, Bytes: b})
}

// A library without any noise, and without jumps, still has a law that can be written.
func TestPiecesWithoutNoiseAreALaw(t *testing.T) {
	flat := &costmodel.Curve{Form: costmodel.LogLog, Knots: []costmodel.Knot{{Bytes: 1, Seconds: 1}, {Bytes: 1 << 30, Seconds: 1}}, HalfWidths: []float64{0, 0}}
	one := costmodel.Piece{Alpha: exactCoef(1)}
	law := &costmodel.Law{Spread: costmodel.Spread{Lo: 1, Hi: 1}, Curve: &costmodel.Curve{Form: costmodel.AlphaBeta, Pieces: []costmodel.Piece{one, one, one}}}
	curveLaw{curve: flat}.goOn(law, message(1000))
	if !(law.Widen >= 1 && law.Widen <= mostGrowth) {
		t.Errorf("widens by %v a doubling", law.Widen)
	}
}

// NCCL among 16 A100 on two nodes is twice as slow just below some sizes as above them: a law
// of the other sizes is nearly as good as a table of them at those left out.
func TestSwitchesOfARecordedLibrary(t *testing.T) {
	if testing.Short() {
		t.Skip("cross-validates dozens of partitions")
	}
	judged := 0
	for _, r := range tables(t, "vidur/a100_dgx/all_reduce.csv") {
		if !strings.HasSuffix(r.name, " 16 ranks") {
			continue
		}
		train, test := divide(r.points, position)
		law := fitCurve(t, train)
		table, err := sizeTable(train)
		if err != nil {
			t.Fatal(err)
		}
		off, tableOff := 0.0, 0.0
		for _, p := range test {
			off += math.Abs(p.Seconds/float64(law.Seconds(p.Shape))-1) / float64(len(test))
			tableOff += math.Abs(p.Seconds/table(p.Shape)-1) / float64(len(test))
		}
		t.Logf("%s: %s, off by %.1f %%, a table by %.1f %%", r.name, law.Form(), 100*off, 100*tableOff)
		if judged++; off > 0.03 || off > 1.5*tableOff || len(law.Curve.Pieces) < 5 {
			t.Errorf("%s: %s, off by %.1f %%, a table by %.1f %%", r.name, law.Form(), 100*off, 100*tableOff)
		}
	}
	if judged != 1 {
		t.Errorf("%d tables of 16 ranks, want 1", judged)
	}
}
