package costmodel

import (
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// stacked is a profile whose kernels and collectives were measured under
// different software: two engines of one GPU, one of another, two libraries.
func stacked() *Profile {
	p := &Profile{}
	for _, name := range []string{"big/engine-1", "big/engine-2", "small/engine-1", "big/net-1", "big/net-2", "small/net-1"} {
		p.Devices = append(p.Devices, op.DeviceType{Name: name, Fingerprint: "00", Parallel: 1})
	}
	p.Laws = []Law{
		{Op: op.KindAttnFwd, Device: "big/engine-1"},
		{Op: op.KindGEMM, Device: "big/engine-1"},
		{Op: op.KindAttnFwd, Device: "big/engine-2"},
		{Op: op.KindGEMM, Device: "small/engine-1"},
		{Op: op.KindAttnFwd, Device: "small/engine-1"},
	}
	for i, m := range []op.Member{{Device: "small/net-1", Count: 4}, {Device: "big/net-1", Count: 4}, {Device: "big/net-2", Count: 2}} {
		g := op.NewGroupType([]op.Member{m}, 1, "wire")
		p.Groups = append(p.Groups, g)
		p.Laws = append(p.Laws, Law{Op: op.KindAllGather, Group: g.Name, Curve: knots(1024, float64(i+1))})
	}
	return p
}

// knots is a curve of one time at every size.
func knots(bytes units.Bytes, seconds float64) *Curve {
	return &Curve{Form: LogLog, Knots: []Knot{{Bytes: bytes, Seconds: units.Seconds(seconds)}}}
}

func TestDeviceFor(t *testing.T) {
	p := stacked()
	for name, want := range map[string]string{
		"big": "big/engine-1", "big/engine-2": "big/engine-2", "small": "small/engine-1", "big/net-1": "big/net-1",
	} {
		if got, err := p.DeviceFor(name); got != want || err != nil {
			t.Errorf("%s: %q, %v, want %q", name, got, err, want)
		}
	}
	for name, want := range map[string]string{
		"smal":         `did you mean "small"`,
		"big/engine-3": `did you mean "big/engine-1"`,
		"medium":       "it has big/engine-1",
	} {
		if got, err := p.DeviceFor(name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %q, %v, want %q", name, got, err, want)
		}
	}
	p.Laws = append(p.Laws, Law{Op: op.KindGEMM, Device: "big/engine-2"})
	if _, err := p.DeviceFor("big"); err == nil || !strings.Contains(err.Error(), "big/engine-1, big/engine-2; name one") {
		t.Errorf("two engines with all laws: %v", err)
	}
}

// Collectives of a model are those of whatever library was measured on it, and
// never those of another model while there are some of its own.
func TestOverGoesByTheModel(t *testing.T) {
	q := NewPredictor(stacked())
	for _, c := range []struct {
		member op.Member
		want   string
		factor float64
	}{
		{op.Member{Device: "big/engine-1", Count: 4}, "4 big/net-1 over wire", 1},
		{op.Member{Device: "big/engine-1", Count: 2}, "2 big/net-2 over wire", 1},
		{op.Member{Device: "big/net-2", Count: 2}, "2 big/net-2 over wire", 1},
		{op.Member{Device: "big/engine-1", Count: 16}, "2 big/net-2 over wire", transferFactor},
		{op.Member{Device: "small/engine-1", Count: 2}, "4 small/net-1 over wire", transferFactor},
		{op.Member{Device: "other", Count: 4}, "4 small/net-1 over wire", transferFactor},
	} {
		l, factor, err := q.Over("wire", op.KindAllGather, []op.Member{c.member})
		if err != nil || l.Group != c.want || factor != c.factor {
			t.Errorf("%v: %v x %v, %v, want %s x %v", c.member, l, factor, err, c.want, c.factor)
		}
	}
	if _, _, err := q.Over("wire", op.KindSendRecv, []op.Member{{Device: "big", Count: 2}}); err == nil {
		t.Error("a collective nobody measured has a law")
	}
}

// What is known of a model together with another hides nothing that was measured of it alone
// under another name.
func TestAMixedGroupHidesNoStack(t *testing.T) {
	p := stacked()
	g := op.NewGroupType([]op.Member{{Device: "big/engine-1", Count: 2}, {Device: "small/engine-1", Count: 2}}, 1, "wire")
	p.Groups = append(p.Groups, g)
	p.Laws = append(p.Laws, Law{Op: op.KindAllGather, Group: g.Name, Curve: knots(1024, 9)})
	q := NewPredictor(p)
	for _, c := range []struct {
		members []op.Member
		want    string
	}{
		{[]op.Member{{Device: "big/engine-1", Count: 4}}, "4 big/net-1 over wire"},
		{[]op.Member{{Device: "big/engine-1", Count: 2}, {Device: "small/engine-1", Count: 2}}, g.Name},
	} {
		if l, _, err := q.Over("wire", op.KindAllGather, c.members); err != nil || l.Group != c.want {
			t.Errorf("%v: %v, %v, want %s", c.members, l, err, c.want)
		}
	}
}

// Two stacks of one model in a ring count as that many of the model.
func TestRenamedAddsUp(t *testing.T) {
	got := renamed([]op.Member{{Device: "a/x", Count: 2}, {Device: "b", Count: 1}, {Device: "a/y", Count: 3}}, []op.Member{{Device: "a/net", Count: 8}, {Device: "b/net", Count: 8}})
	if len(got) != 2 || got[0] != (op.Member{Device: "a/net", Count: 5}) || got[1] != (op.Member{Device: "b/net", Count: 1}) {
		t.Errorf("renamed: %v", got)
	}
}

func TestOriginsAreComplete(t *testing.T) {
	o := Origin{"title", "repository", "licence", "commit"}
	if err := o.validate(); err != nil {
		t.Error(err)
	}
	o.Commit = " "
	if err := o.validate(); err == nil || !strings.Contains(err.Error(), "commit: missing") {
		t.Errorf("without commit: %v", err)
	}
}

// An assumed law says so at every size, and never claims to be measured.
func TestAssumedSaysSo(t *testing.T) {
	l := Law{Op: op.KindAllGather, Curve: knots(1024, 1), Range: []AxisRange{{"bytes", 1, 1 << 40}}, Spread: Spread{0.5, 2}, Assumed: "because", From: "elsewhere"}
	if e := l.Predict(op.AllGather{Message: op.Message{Group: 2, Bytes: 4096}}); e.Source != Assumed || e.Lo >= e.Mid {
		t.Errorf("%+v", e)
	}
}

// The simulator passes shapes by pointer: both must mean the same.
func TestLawsTakeShapesByPointer(t *testing.T) {
	core := exampleCore()
	f := &Field{Axes: []FieldAxis{{Name: "q_len", Nodes: []float64{64, 4096}}}, Decay: 1, Step: 0.1, Values: NodeValues{-3, 4}}
	a := op.Attention{Mask: op.Full, QLen: 1000, KVLen: 3000, QHeads: 8, KVHeads: 2, HeadDim: 128, DType: op.BF16}
	fwd, bwd := op.AttnFwd{Attention: a}, op.AttnBwd{Attention: a}
	law := &Law{Attention: &core, Correction: f}
	if law.Seconds(fwd) != law.Seconds(&fwd) || law.Seconds(bwd) != law.Seconds(&bwd) {
		t.Error("a shape and its pointer differ")
	}
}
