package costmodel

import (
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
