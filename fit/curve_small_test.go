package fit

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// Messages of a megabyte and more, as some projects publish them, say next to nothing of how
// long a small one takes. A law of them takes what physics says of those, not the time of the
// smallest measured one nor none at all, and its interval there says how unsure that is.
func TestLawsOfLargeMessagesKnowThatSmallOnesAreQuicker(t *testing.T) {
	for _, from := range []int{10, 14} { // 1 and 16 MiB
		r := rand.New(rand.NewPCG(1, 2))
		d := &Data{Devices: []op.DeviceType{{Name: "gpu", Sheet: op.Sheet{LinkPerS: 300e9, HostPerS: 32e9}}}}
		var tasks []*task
		for _, n := range []int{2, 4, 8} {
			g := op.NewGroupType([]op.Member{{Device: "gpu", Count: n}}, 1, "nvlink")
			d.addGroup(g)
			points := invented(n, 20, 0.02, r, ring(n))[from:]
			tasks = append(tasks, &task{Stratum: Stratum{On: g.Name, Op: op.KindAllGather, Variant: points[0].Shape.Variant()}, points: points})
		}
		estimate(d, tasks, nil)
		inside, of := 0, 0
		for i, n := range []int{2, 4, 8} {
			if tasks[i].err != nil {
				t.Fatal(tasks[i].err)
			}
			for b := 1e3; b < 5e5; b *= 2 {
				e := tasks[i].law.Predict(op.AllGather{Message: op.Message{Group: n, Bytes: units.Bytes(b)}})
				want := ring(n)(b)
				if off := float64(e.Mid) / want; off > 3 || off < 1/3. {
					t.Errorf("from %d KiB on, %.0f bytes among %d: %.3g s, want %.3g", 1<<from, b, n, float64(e.Mid), want)
				}
				if of++; float64(e.Lo) <= want && want <= float64(e.Hi) {
					inside++
				}
				if wide := math.Log(float64(e.Hi / e.Lo)); wide < 0.2 || wide > 4 {
					t.Errorf("from %d KiB on, %.0f bytes among %d: from %.3g to %.3g s", 1<<from, b, n, float64(e.Lo), float64(e.Hi))
				}
			}
		}
		if inside*10 < of*9 {
			t.Errorf("from %d KiB on: %d of %d smaller messages lie in their intervals", 1<<from, inside, of)
		}
	}
}

// Of a dense sweep some points compare forms. The smallest of those is not the smallest message
// measured: a law of pieces that its family does not equal stays, which tells latencies itself.
func TestDenseSweepsKeepTheirPieces(t *testing.T) {
	if testing.Short() {
		t.Skip("cross-validates dozens of partitions")
	}
	d := &Data{Devices: []op.DeviceType{{Name: "gpu"}}}
	g := op.NewGroupType([]op.Member{{Device: "gpu", Count: 2}}, 1, "nvlink")
	d.addGroup(g)
	points := sized(2*enoughToCompare, 0.01, rand.New(rand.NewPCG(1, 3)), switching)
	small := points[0]
	small.Shape, small.Key, small.Seconds = message(100), "100", 2*switching(100)
	small.rank, points[7].rank = 1, 0 // the second, of which every second is taken
	points = append(points, small)
	law, err := lawOf(d, Stratum{On: g.Name, Op: points[0].Shape.Kind(), Variant: points[0].Shape.Variant()}, points)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(law.Curve.Pieces); n < 5 {
		t.Errorf("%s, want pieces", law.Form())
	}
}
