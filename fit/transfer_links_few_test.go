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
	"github.com/evenkeel/evenkeel/profile"
)

// likeOf is a device type with the datasheet of another model.
func likeOf(d op.DeviceType, model string) op.DeviceType {
	d.Name, d.Model = model+"/nccl", model
	d.Fingerprint = profile.Fingerprint(d.Name)
	return d
}

// messages are points of a law in a group, at sizes from 4 KiB to 512 MiB.
func messages(l *costmodel.Law, g op.GroupType, n int, slower float64, rng *rand.Rand) (all []Point) {
	for range n {
		s := op.OfMessage(l.Op, op.Message{Group: g.Ranks(), Bytes: units.Bytes(math.Exp2(12 + 17*rng.Float64()))})
		all = append(all, Point{On: g.Name, Shape: s, Key: profile.NewSpot(g.Name, s).Key("x"), Seconds: slower * float64(l.Seconds(s))})
	}
	return all
}

// nodeOf is a node's group of so many devices of a type.
func nodeOf(d op.DeviceType, n int) op.GroupType {
	return op.NewGroupType([]op.Member{{Device: d.Name, Count: n}}, 1, "nvlink")
}

// TestFewMessagesMoveALentCurve: one to five messages, too few for a law, make one of that of
// GPUs with the same links, whose intervals hold the others; also where the lender has groups
// of half the size alone, or is off as a whole.
func TestFewMessagesMoveALentCurve(t *testing.T) {
	for _, c := range []struct {
		lender, measured string
		size, below      int     // below: the lender's groups are smaller than that
		slower, least    float64 // share of messages inside, of all n together
	}{
		{"gb200", "b200_sxm", 4, 99, 1, 0.95},
		{"b200_sxm", "gb200", 4, 99, 1, 0.95},
		{"gb200", "b200_sxm", 4, 99, 1.3, 0.9},
		{"h100_sxm", "h100_sxm", 8, 8, 1, 0.85},
		{"a100_sxm", "a100_sxm", 8, 8, 1, 0.85},
		{"b200_sxm", "gb200", 4, 4, 1, 0.85},
	} {
		lender, measured := embedded(t, c.lender), embedded(t, c.measured)
		lender.Groups = slices.DeleteFunc(lender.Groups, func(g op.GroupType) bool { return g.Ranks() >= c.below })
		dev := likeOf(measured.Devices[0], "new")
		g := nodeOf(dev, c.size)
		d := &Data{Devices: []op.DeviceType{dev}, Groups: []op.GroupType{g}}
		rng := rand.New(rand.NewPCG(1, 2))
		inside, all := 0, 0
		for i := range measured.Laws {
			l := &measured.Laws[i]
			if at := slices.IndexFunc(measured.Groups, func(o op.GroupType) bool { return measuredOn(o, l) }); at < 0 || measured.Groups[at].Ranks() != c.size {
				continue
			}
			for _, n := range []int{1, 2, 3, 4, 5} {
				for range 5 {
					points := messages(l, g, n, c.slower, rng)
					lent := d.lentLinks(Stratum{On: g.Name, Op: l.Op, Variant: l.Variant, Points: points}, points, []*costmodel.Profile{lender})
					if lent == nil {
						t.Fatalf("%s lends %s no %s", c.lender, g.Name, l.Op)
					}
					if e := lent.Predict(points[0].Shape); lent.Group != g.Name || !strings.Contains(lent.From, c.lender) || e.Source != costmodel.Transferred {
						t.Fatalf("law of %s from %q: %+v", lent.Group, lent.From, e)
					}
					for _, p := range messages(l, g, 20, c.slower, rng) {
						all++
						if e := lent.Predict(p.Shape); p.Seconds >= float64(e.Lo) && p.Seconds <= float64(e.Hi) {
							inside++
						}
					}
				}
			}
		}
		if share := float64(inside) / float64(all); all == 0 || share < c.least {
			t.Errorf("%+v: %.3f of %d messages inside", c, share, all)
		}
	}
}

// TestALentCurveIsOfTheBorrowersGroup: a law says how far it was measured in bytes of messages,
// of which groups of another size send another share; its port is the borrower's own.
func TestALentCurveIsOfTheBorrowersGroup(t *testing.T) {
	lender := embedded(t, "b200_sxm") // in groups of 2 and 4
	dev := likeOf(lender.Devices[0], "b300_sxm")
	dev.Sheet.LinkPerS *= 1.005 // the same, and told from the lender's
	for _, c := range []struct {
		op       op.Kind
		ranks    int
		from     string
		min, max float64
	}{
		{op.KindAllGather, 2, "2 ", 512, 1 << 29},
		{op.KindAllGather, 8, "4 ", 512 * (3. / 4) / (7. / 8), (1 << 29) * (3. / 4) / (7. / 8)},
		{op.KindAllReduce, 8, "4 ", 512 * (6. / 4) / (14. / 8), (1 << 29) * (6. / 4) / (14. / 8)},
	} {
		g := nodeOf(dev, c.ranks)
		d := &Data{Devices: []op.DeviceType{dev}, Groups: []op.GroupType{g}}
		point := Point{On: g.Name, Shape: op.OfMessage(c.op, op.Message{Group: c.ranks, Bytes: 1 << 20}), Seconds: 1}
		lent := d.lentLinks(Stratum{On: g.Name, Op: c.op, Points: []Point{point}}, []Point{point}, []*costmodel.Profile{lender})
		if lent == nil || !strings.HasPrefix(lent.From, c.from) {
			t.Fatalf("%s of %d: %+v", c.op, c.ranks, lent)
		}
		if r := lent.Range[0]; math.Abs(r.Min/c.min-1) > 1e-9 || math.Abs(r.Max/c.max-1) > 1e-9 {
			t.Errorf("%s of %d: messages of %v to %v bytes, want %v to %v", c.op, c.ranks, r.Min, r.Max, c.min, c.max)
		}
		if lent.Port == nil || float64(lent.Port.PerS) != dev.Sheet.LinkPerS || !lent.Port.InNetwork {
			t.Errorf("%s of %d: port %+v, want %v", c.op, c.ranks, lent.Port, dev.Sheet.LinkPerS)
		}
		point.Seconds = 1e-9 // in which no port sends it: its rate is not known
		lent = d.lentLinks(Stratum{On: g.Name, Op: c.op, Points: []Point{point}}, []Point{point}, []*costmodel.Profile{lender})
		if lent == nil || lent.Port != nil {
			t.Errorf("%s of %d: %+v, faster than its port", c.op, c.ranks, lent)
		}
	}
}

// TestElementsOfOtherSizesLendNoCurve: what was measured of 16 bits lends to any element of
// 16 bits, and to one that is not told, but not to one of 32.
func TestElementsOfOtherSizesLendNoCurve(t *testing.T) {
	lender := embedded(t, "b200_sxm") // of float16
	dev := likeOf(lender.Devices[0], "b300_sxm")
	g := nodeOf(dev, 4)
	d := &Data{Devices: []op.DeviceType{dev}, Groups: []op.GroupType{g}}
	points := []Point{{On: g.Name, Shape: op.OfMessage(op.KindAllReduce, op.Message{Group: 4, Bytes: 1 << 20}), Seconds: 1}}
	for v, want := range map[op.DType]bool{op.F16: true, op.BF16: true, "": true, op.F32: false} {
		s := Stratum{On: g.Name, Op: op.KindAllReduce, Variant: op.Variant{DType: v}, Points: points}
		if lent := d.lentLinks(s, points, []*costmodel.Profile{lender}); (lent != nil) != want {
			t.Errorf("to %q: %+v", v, lent)
		}
	}
}

// TestFitOfFewMessagesBorrows: Fit makes a law of a collective of four messages, or of four
// on a link of another class none, and says how many there were.
func TestFitOfFewMessagesBorrows(t *testing.T) {
	lender := embedded(t, "b200_sxm")
	dev := likeOf(lender.Devices[0], "b300_sxm")
	l := &lender.Laws[slices.IndexFunc(lender.Laws, func(l costmodel.Law) bool { return l.Op == op.KindAllReduce })]
	for _, link := range []string{"nvlink", "pcie"} {
		g := nodeOf(dev, 8)
		g = op.NewGroupType(g.Members, 1, link)
		d := &Data{Devices: []op.DeviceType{dev}, Groups: []op.GroupType{g}, Points: messages(l, g, 4, 1, rand.New(rand.NewPCG(3, 4)))}
		o := Defaults()
		o.Lenders = []*costmodel.Profile{lender}
		p, err := Fit(d, o)
		if link == "pcie" {
			if err == nil || !strings.Contains(err.Error(), "a law needs 6") {
				t.Errorf("over another link: %v", err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Validate(); err != nil || len(p.Laws) != 1 || p.Laws[0].Fit.Outside != 4 || len(p.Warnings) > 0 {
			t.Errorf("%v: %+v, %q", err, p.Laws, p.Warnings)
		}
	}
}

// TestLinksAreLentLawByLaw: a model that has a collective in one size of group is lent the
// others, beside its own groups; in another element type it counts as had, and a model whose
// links are of another class is lent none.
func TestLinksAreLentLawByLaw(t *testing.T) {
	h100 := embedded(t, "h100_sxm")
	dev := likeOf(h100.Devices[0], "h200_sxm")
	other := likeOf(h100.Devices[0], "h200_sxm")
	other.Name = "h200_sxm/torch"
	has := nodeOf(dev, 8)
	law := func(v op.DType) costmodel.Law {
		at := slices.IndexFunc(h100.Laws, func(l costmodel.Law) bool { return l.Op == op.KindAllReduce && strings.HasPrefix(l.Group, "8 ") })
		l := h100.Laws[at]
		l.Group, l.Variant.DType = has.Name, v
		return l
	}
	kinds := func(p *costmodel.Profile) map[string]int {
		n := map[string]int{}
		for _, l := range p.Laws {
			n[l.Group+" "+string(l.Op)]++
		}
		return n
	}
	for _, v := range []op.DType{op.F16, op.F32} {
		p := &costmodel.Profile{Devices: []op.DeviceType{other, dev}, Groups: []op.GroupType{has}, Laws: []costmodel.Law{law(v)}}
		LendLinks(p, h100)
		if err := p.Validate(); err != nil {
			t.Fatal(err)
		}
		got := kinds(p)
		for _, n := range []int{2, 4, 8} {
			for _, k := range []op.Kind{op.KindAllReduce, op.KindAllGather, op.KindReduceScatter, op.KindAllToAll} {
				if key := nodeOf(dev, n).Name + " " + string(k); got[key] != 1 {
					t.Errorf("%s: %d laws of %s", v, got[key], key)
				}
			}
		}
		if len(p.Groups) != 3 || p.Laws[0].From != "" {
			t.Errorf("%s: groups %v", v, p.Groups)
		}
	}
	bus := op.NewGroupType(has.Members, 1, "pcie")
	p := &costmodel.Profile{Devices: []op.DeviceType{dev}, Groups: []op.GroupType{bus}}
	if LendLinks(p, h100); len(p.Laws) > 0 {
		t.Errorf("over %s: %d laws were lent", bus.Name, len(p.Laws))
	}
	plain := op.DeviceType{Name: "h200_sxm/plain", Fingerprint: other.Fingerprint, Parallel: 1} // whose links nobody described
	both := &costmodel.Profile{Devices: []op.DeviceType{plain, other, dev}}
	LendLinks(both, h100)
	once, n := kinds(both), len(both.Laws)
	if LendLinks(both, h100); n != 12 || len(once) != n || len(both.Laws) != n || len(both.Groups) != 3 {
		t.Errorf("to three of one model: %d laws, then %d, in %d groups", n, len(both.Laws), len(both.Groups))
	}
	few := &costmodel.Profile{Devices: []op.DeviceType{dev}, Groups: []op.GroupType{has}} // whose points were too few for a law
	if LendLinks(few, h100); len(few.Laws) < 12 || len(few.Groups) != 3 {
		t.Errorf("a group without laws: %d laws and %d groups", len(few.Laws), len(few.Groups))
	}
}
