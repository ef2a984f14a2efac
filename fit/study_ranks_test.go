package fit

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// groupsOf measures all_reduce on groups of several sizes whose time is
// alpha (n-1) + wire bytes / rate, a point a power of two.
func groupsOf(ranks ...int) *Data {
	d := NewData()
	d.Devices = []op.DeviceType{{Name: "gpu", Fingerprint: "x", Parallel: 108}}
	for _, n := range ranks {
		g := op.NewGroupType([]op.Member{{Device: "gpu", Count: n}}, 1, "nvlink")
		d.Groups = append(d.Groups, g)
		for e := 10; e <= 28; e++ {
			s := op.OfMessage(op.KindAllReduce, op.Message{Group: n, Bytes: 1 << e})
			seconds := 3e-6*float64(n-1) + float64(op.Volume(s))/200e9
			d.Points = append(d.Points, Point{On: g.Name, Shape: s, Key: fmt.Sprintf("%d %d", n, e), Seconds: seconds, visits: []float64{seconds}})
		}
	}
	return d
}

// All laws of a split by ranks are told of at once.
func TestStudyOfRanksIsToldOf(t *testing.T) {
	splits, err := SplitsNamed("ranks")
	if err != nil {
		t.Fatal(err)
	}
	var told [][2]int
	if _, err := Study(groupsOf(2, 4, 8), splits, func(done, all int) { told = append(told, [2]int{done, all}) }); err != nil || !slices.Equal(told, [][2]int{{1, 1}}) {
		t.Errorf("%v, %v", told, err)
	}
}

// Only the largest group is held out, all of it, and only where two smaller
// ones say how time grows with the group.
func TestStudyOfRanks(t *testing.T) {
	splits, err := SplitsNamed("ranks")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		ranks []int
		held  bool
	}{{[]int{2, 4, 8}, true}, {[]int{8, 2, 4}, true}, {[]int{2, 4}, false}, {[]int{8}, false}} {
		rows, err := Study(groupsOf(c.ranks...), splits, nil)
		if (err == nil) != c.held {
			t.Errorf("%v: %v", c.ranks, err)
			continue
		}
		for _, r := range rows {
			if r.On != "8 gpu over nvlink" || r.Held != 19 || r.Ours != (r.Form == "steps over ranks") || r.Ours && r.Fitted != 38 || !r.Ours && r.Fitted != 19 {
				t.Errorf("%v: %+v", c.ranks, r)
			}
		}
		if c.held && (len(rows) != 3 || rows[0].MAPE > 0.1 || rows[0].MAPE >= rows[1].MAPE) {
			t.Errorf("%v: %d rows, ours is off by %.1f %%, alpha_beta by %.1f %%", c.ranks, len(rows), 100*rows[0].MAPE, 100*rows[1].MAPE)
		}
	}
}

// A size is held out in all its element types or in none, and about a quarter are.
func TestHeldSizes(t *testing.T) {
	held, all := 0, 0
	for e := 6.0; e < 30; e += 0.04 {
		m := op.Message{Group: 4, Bytes: units.Bytes(16 * math.Round(math.Exp2(e)))}
		a := heldSize(Point{Shape: op.OfMessage(op.KindAllGather, m)})
		m.DType = op.I8
		if b := heldSize(Point{Shape: op.OfMessage(op.KindAllGather, m)}); a != b {
			t.Errorf("%d bytes: %v, and %v of another element type", m.Bytes, a, b)
		}
		if all++; a {
			held++
		}
	}
	if share := float64(held) / float64(all); math.Abs(share-0.25) > 0.06 {
		t.Errorf("%.0f %% of the sizes are held out", 100*share)
	}
}

// A band's share is that of its points alone, and every held-out point is in one.
func TestStudyBands(t *testing.T) {
	splits, err := SplitsNamed("interp,longer")
	if err != nil {
		t.Fatal(err)
	}
	rows, err := Study(groupsOf(2, 4), splits, nil)
	if err != nil {
		t.Fatal(err)
	}
	ours := 0
	for _, r := range rows {
		held, in := 0, 0.0
		for _, b := range r.Bands {
			held, in = held+b.Held, in+b.Coverage*float64(b.Held)
		}
		switch {
		case !r.Ours && len(r.Bands) > 0:
			t.Errorf("%+v has bands", r)
		case r.Ours && (held != r.Held || math.Abs(in/float64(held)-r.Coverage) > 1e-9):
			t.Errorf("%d points in bands of %d, coverage %v of %v", held, r.Held, in/float64(held), r.Coverage)
		case r.Ours:
			ours++
		}
	}
	if ours != 4 {
		t.Errorf("%d laws, want 4", ours)
	}
}
