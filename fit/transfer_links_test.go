package fit

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/internal/stats"
	"github.com/evenkeel/evenkeel/internal/units"
)

// embedded is the reference profile of a GPU model.
func embedded(t *testing.T, model string) *costmodel.Profile {
	t.Helper()
	var p costmodel.Profile
	if err := doc.Load("../results/profiles/"+model+".profile.json", &p); err != nil {
		t.Fatal(err)
	}
	return &p
}

// alone is a profile without groups.
func alone(p *costmodel.Profile) *costmodel.Profile {
	bare := *p
	bare.Groups = nil
	bare.Laws = slices.DeleteFunc(slices.Clone(p.Laws), func(l costmodel.Law) bool { return l.Group != "" })
	return &bare
}

// offBy are log(measured/predicted) of messages of 64 KiB to 1 GiB, where a law of the
// measured profile's is what was measured, and how many lie in the predicted intervals.
func offBy(t *testing.T, measured, predicted *costmodel.Profile, link string) (logs []float64, inside int) {
	t.Helper()
	q := costmodel.NewCallPredictor(predicted)
	for _, l := range measured.Laws {
		at := slices.IndexFunc(measured.Groups, func(g op.GroupType) bool { return g.Name == l.Group })
		if at < 0 || l.Assumed != "" || l.From != "" {
			continue
		}
		n, device := measured.Groups[at].Ranks(), predicted.Devices[0].Name
		by, factor, err := q.Over(link, l.Op, []op.Member{{Device: device, Count: n}})
		if err != nil {
			t.Fatal(err)
		}
		for x := 16.0; x <= 30; x++ {
			s := op.OfMessage(l.Op, op.Message{Group: n, Bytes: units.Bytes(math.Exp2(x))})
			took, e := l.Seconds(s), costmodel.Transfer(by, factor, s)
			logs = append(logs, math.Log(float64(took/e.Mid)))
			if e.Lo <= took && took <= e.Hi {
				inside++
			}
		}
	}
	return logs, inside
}

func absolute(logs []float64) []float64 {
	all := slices.Clone(logs)
	for i := range all {
		all[i] = math.Abs(all[i])
	}
	return all
}

// TestLinksAreLentBetweenEqualLinks: collectives of a B200's NVLink are a GB200's within
// the interval that they are lent with, and far nearer than the datasheet's rate.
func TestLinksAreLentBetweenEqualLinks(t *testing.T) {
	for _, pair := range [][2]string{{"b200_sxm", "gb200"}, {"gb200", "b200_sxm"}} {
		lender, measured := embedded(t, pair[0]), embedded(t, pair[1])
		p := alone(measured)
		LendLinks(p, embedded(t, "a100_sxm"), lender, embedded(t, "h100_sxm"))
		if err := p.Validate(); err != nil {
			t.Fatal(err)
		}
		logs, inside := offBy(t, measured, p, measured.Groups[0].Link)
		if len(logs) < 100 {
			t.Fatalf("%v: %d messages", pair, len(logs))
		}
		sheet := alone(measured)
		node := costmodel.Node{Name: "n", Devices: []op.Member{{Device: measured.Devices[0].Name, Count: 4}}}
		c, err := AssumeLinks(sheet, &costmodel.Profile{}, costmodel.Cluster{Nodes: []costmodel.Node{node}})
		if err != nil {
			t.Fatal(err)
		}
		bySheet, _ := offBy(t, measured, sheet, c.Nodes[0].Link)
		lent, assumed := stats.Median(absolute(logs)), stats.Median(absolute(bySheet))
		t.Logf("%s for %s: lent laws are off by %.3f in the median, the datasheet's rate by %.3f, %d of %d in the interval", pair[0], pair[1], lent, assumed, inside, len(logs))
		if share := float64(inside) / float64(len(logs)); lent > 0.06 || lent > assumed/4 || share < 0.9 {
			t.Errorf("%v: off by %.3f, by the datasheet %.3f; %.2f in the interval", pair, lent, assumed, share)
		}
	}
}

// TestOtherLinksAreNotLent: links of another rate or architecture, and those of a GPU that
// has laws of its own, stay as they are.
func TestOtherLinksAreNotLent(t *testing.T) {
	h100, a100 := embedded(t, "h100_sxm"), embedded(t, "a100_sxm")
	h800 := alone(h100)
	h800.Devices = slices.Clone(h100.Devices)
	for i := range h800.Devices {
		h800.Devices[i].Name, h800.Devices[i].Sheet.LinkPerS = "h800_sxm", 200e9
	}
	older := alone(h100)
	older.Devices = slices.Clone(h100.Devices)
	for i := range older.Devices {
		older.Devices[i].Name, older.Devices[i].Sheet.LinkPerS = "h9000_sxm", 900e9 // a B200's
	}
	unlinked := alone(h100)
	unlinked.Devices = []op.DeviceType{{Name: "gpu", Sheet: op.Sheet{Arch: "sm90"}}}
	for name, p := range map[string]*costmodel.Profile{"a100_sxm's for h100_sxm": alone(h100), "a slower NVLink": h800, "an older GPU's": older, "no NVLink": unlinked} {
		before := len(p.Laws)
		lenders := []*costmodel.Profile{a100, embedded(t, "b200_sxm"), h100}
		if p.Devices[0].Name == h100.Devices[0].Name {
			lenders = lenders[:2]
		}
		if LendLinks(p, lenders...); len(p.Laws) != before || len(p.Groups) > 0 {
			t.Errorf("%s: %d laws became %d", name, before, len(p.Laws))
		}
	}
	bus := embedded(t, "rtx_pro_6000_server")
	workstation := alone(bus)
	if LendLinks(workstation, bus); len(workstation.Groups) > 0 {
		t.Errorf("a PCIe card borrowed %s", workstation.Groups[0].Name)
	}
	own := embedded(t, "b200_sxm")
	before := len(own.Laws)
	if LendLinks(own, embedded(t, "gb200")); len(own.Laws) != before {
		t.Errorf("a measured profile borrowed %d laws", len(own.Laws)-before)
	}
}

// TestLentLinksNameTheirGroup: a law says whose it was, keeps its sizes, and is less sure.
func TestLentLinksNameTheirGroup(t *testing.T) {
	h100 := embedded(t, "h100_sxm")
	h200 := &costmodel.Profile{Devices: []op.DeviceType{{Name: "h200_sxm", Parallel: 132, Sheet: h100.Devices[0].Sheet}}}
	LendLinks(h200, h100)
	if len(h200.Groups) != 3 {
		t.Fatalf("groups %v, want those of 2, 4 and 8", h200.Groups)
	}
	for _, l := range h200.Laws {
		at := slices.IndexFunc(h100.Laws, func(o costmodel.Law) bool { return o.Group == l.From && o.Op == l.Op && o.Variant == l.Variant })
		if at < 0 {
			t.Fatalf("%s from %q", l.Op, l.From)
		}
		of := h100.Laws[at]
		n := h200.Groups[slices.IndexFunc(h200.Groups, func(g op.GroupType) bool { return g.Name == l.Group })].Ranks()
		for _, x := range []float64{12, 20, 30} {
			s := op.OfMessage(l.Op, op.Message{Group: n, Bytes: units.Bytes(math.Exp2(x))})
			lent, own := l.Predict(s), of.Predict(s)
			if lent.Mid != own.Mid || lent.Hi <= own.Hi || lent.Source.Worse(costmodel.Transferred) != lent.Source {
				t.Errorf("%s of %v bytes: %+v, of the lender %+v", l.Op, math.Exp2(x), lent, own)
			}
		}
	}
}

// TestWhoBorrowedLinksLendsNone: the nearest GPU may have been lent its own collectives, as an
// H200 has of an H100; they are that one's to lend.
func TestWhoBorrowedLinksLendsNone(t *testing.T) {
	h100, h200 := embedded(t, "h100_sxm"), embedded(t, "h200_sxm")
	sheet := h200.Devices[0].Sheet
	sheet.BF16PerS = 148e12 // as an H20's
	h20 := &costmodel.Profile{Devices: []op.DeviceType{{Name: "h20", Parallel: 78, Sheet: sheet}}}
	if far := distance(h200.Devices[0], h20.Devices[0]); far >= distance(h100.Devices[0], h20.Devices[0]) {
		t.Fatalf("the H200 is not nearer: %v", far)
	}
	LendLinks(h20, h200, h100)
	if len(h20.Groups) != 3 || len(h20.Laws) == 0 || !strings.Contains(h20.Laws[0].From, "h100_sxm") {
		t.Errorf("groups %v, %d laws", h20.Groups, len(h20.Laws))
	}
}

// TestLentLinksAreLessSureAtEverySize: also where the lender's interval differs by size,
// whether its curve or a field of widths says so.
func TestLentLinksAreLessSureAtEverySize(t *testing.T) {
	a100 := embedded(t, "a100_sxm")
	small := alone(a100)
	small.Devices = []op.DeviceType{{Name: "a100_sxm_40gb", Parallel: 108, Sheet: a100.Devices[0].Sheet}}
	wide := 0
	for i := range a100.Laws {
		if l := &a100.Laws[i]; l.Width != nil && l.Group != "" && l.Assumed == "" {
			l.Spread = costmodel.Spread{Lo: 0.999, Hi: 1.001} // it is the widths that count
			wide++
		}
	}
	LendLinks(small, a100)
	for _, l := range small.Laws {
		at := slices.IndexFunc(a100.Laws, func(o costmodel.Law) bool { return o.Group == l.From && o.Op == l.Op && o.Variant == l.Variant })
		if at < 0 || l.Group == "" {
			continue
		}
		of := a100.Laws[at]
		n := small.Groups[slices.IndexFunc(small.Groups, func(g op.GroupType) bool { return g.Name == l.Group })].Ranks()
		for x := 12.0; x <= 28; x += 0.25 {
			s := op.OfMessage(l.Op, op.Message{Group: n, Bytes: units.Bytes(math.Exp2(x))})
			lent, own := l.Predict(s), of.Predict(s)
			if lent.Mid != own.Mid || lent.Hi <= own.Hi || lent.Lo > own.Lo || l.Width == nil != (of.Width == nil) {
				t.Errorf("%s over %s of %.0f bytes: %+v, of the lender %+v", l.Op, l.Group, math.Exp2(x), lent, own)
			}
		}
	}
	if wide == 0 {
		t.Error("no law has widths by size")
	}
}

// TestOneOfTwoLibrariesLends: a lender that was measured with two of them gives one law of a
// kind to a group.
func TestOneOfTwoLibrariesLends(t *testing.T) {
	h100 := embedded(t, "h100_sxm")
	for _, g := range slices.Clone(h100.Groups) {
		other := g
		other.Name += " again"
		h100.Groups = append(h100.Groups, other)
		for _, l := range slices.Clone(h100.Laws) {
			if l.Group == g.Name {
				l.Group = other.Name
				h100.Laws = append(h100.Laws, l)
			}
		}
	}
	to := alone(embedded(t, "h200_sxm"))
	LendLinks(to, h100)
	if err := to.Validate(); err != nil || len(to.Groups) != 3 {
		t.Errorf("%d groups: %v", len(to.Groups), err)
	}
}
