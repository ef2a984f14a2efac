package fit

import (
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
)

// GPUs with laws in bf16 are lent f16 beside one that has f16 alone, in the same time with a wider
// interval; beside others like them, and where they have f16, nothing changes.
func TestAssumeF16(t *testing.T) {
	law := func(device string, k op.Kind, d op.DType) costmodel.Law {
		return costmodel.Law{
			Op: k, Device: device, Variant: op.Variant{Mask: op.Full, HeadDim: 128, DType: d}, Attention: &costmodel.AttentionCore{},
			Scale: 2, Spread: costmodel.Spread{Lo: 1 / 1.2, Hi: 1.2}, Held: costmodel.FitError{Points: 3},
		}
	}
	profile := func() *costmodel.Profile {
		sheet := op.Sheet{BF16PerS: 1e14}
		return &costmodel.Profile{
			Devices: []op.DeviceType{{Name: "old", Sheet: sheet}, {Name: "new", Sheet: sheet}, {Name: "both", Sheet: sheet}, {Name: "cpu"}},
			Laws: []costmodel.Law{
				law("old", op.KindAttnFwd, op.F16), law("new", op.KindAttnFwd, op.BF16), law("new", op.KindAttnBwd, op.BF16),
				law("both", op.KindAttnFwd, op.BF16), law("both", op.KindAttnFwd, op.F16), law("cpu", op.KindAttnFwd, op.BF16),
			},
		}
	}
	for _, devices := range [][]string{{"new", "both"}, {"old", "both"}, {"old", "cpu"}, {"old"}, nil} {
		if p := profile(); len(AssumeF16(p, devices)) > 0 || len(p.Laws) != 6 {
			t.Errorf("%v: %+v", devices, p.Laws)
		}
	}
	p := profile()
	if of := AssumeF16(p, []string{"old", "new", "both"}); len(of) != 1 || of[0] != "new" || len(p.Laws) != 8 {
		t.Fatalf("%v: %d laws", of, len(p.Laws))
	}
	for i, l := range p.Laws[6:] {
		from := p.Laws[1+i]
		if l.Op != from.Op || l.Variant.DType != op.F16 || l.Scale != from.Scale || l.Spread.Hi <= from.Spread.Hi || l.Held.Points > 0 || !strings.HasPrefix(l.Assumed, "f16 was not measured") {
			t.Errorf("%+v", l)
		}
	}
	if len(AssumeF16(p, []string{"old", "new"})) > 0 || len(p.Laws) != 8 {
		t.Error("lent twice")
	}
}
