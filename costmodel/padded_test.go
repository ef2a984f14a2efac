package costmodel

import (
	"math"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/op"
)

// Heads of a width that nobody measured have the law of the next wider ones; of
// wider ones than any there is none.
func TestHeadsAreFilledUp(t *testing.T) {
	q := NewPredictor(usual(t))
	wide, err := q.Law("fast", op.KindAttnFwd, op.Variant{Mask: op.Diag, HeadDim: 64, DType: op.F32})
	if err != nil {
		t.Fatal(err)
	}
	v := wide.Variant
	v.HeadDim = 48
	narrow, err := q.Law("fast", op.KindAttnFwd, v)
	if err != nil {
		t.Fatal(err)
	}
	again, _ := q.Law("fast", op.KindAttnFwd, v)
	if again != narrow {
		t.Error("the law is made anew at every question")
	}
	if narrow.Variant != v || !strings.Contains(narrow.Assumed, "not measured") || narrow.Spread.Hi <= wide.Spread.Hi {
		t.Errorf("%v, assumed %q, spread %v beside %v: want a wider interval and the reason", narrow.Variant, narrow.Assumed, narrow.Spread, wide.Spread)
	}
	v.HeadDim = 65
	if l, err := q.Law("fast", op.KindAttnFwd, v); err == nil {
		t.Errorf("heads of %d elements have the law of %v", v.HeadDim, l.Variant)
	}
}

// Heads half as wide have tiles of their own on GPUs, so that they take less than wide ones; a
// linear law knows their arithmetic already.
func TestHeadsHalfAsWideTakeLess(t *testing.T) {
	core := exampleCore()
	p := &Profile{Laws: []Law{
		{Op: op.KindAttnFwd, Device: "gpu", Variant: op.Variant{Mask: op.Full, HeadDim: 128, DType: op.BF16}, Attention: &core, Scale: 2, Range: wide(op.KindAttnFwd), Spread: tenPercent},
		{Op: op.KindAttnFwd, Device: "cpu", Variant: op.Variant{Mask: op.Full, HeadDim: 128, DType: op.BF16}, Linear: &Linear{Parallel: 1, PerFLOP: coef(1e-9)}, Range: wide(op.KindAttnFwd), Spread: tenPercent},
	}}
	q := NewPredictor(p)
	shape := op.AttnFwd{Attention: op.Attention{Mask: op.Full, QLen: 4096, KVLen: 4096, QHeads: 8, KVHeads: 8, HeadDim: 64, DType: op.BF16}}
	for i, want := range []float64{NarrowTime, 1} {
		l, err := q.Law(p.Laws[i].Device, op.KindAttnFwd, shape.Variant())
		if err != nil {
			t.Fatal(err)
		}
		narrow := l.Predict(shape)
		if got := float64(narrow.Mid / p.Laws[i].Seconds(shape)); math.Abs(got-want) > 1e-9 {
			t.Errorf("%s: heads of 64 take %v times what the law of 128 says of them, want %v", l.Device, got, want)
		}
		if least := []float64{NarrowSpread, paddedSpread}[i]; float64(narrow.Hi/narrow.Mid) < least || narrow.Source != Assumed {
			t.Errorf("%s: %+v, want a wide interval and assumed", l.Device, narrow)
		}
	}
}
