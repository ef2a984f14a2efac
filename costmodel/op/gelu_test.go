package op

import (
	"testing"

	"github.com/evenkeel/evenkeel/internal/units"
)

// Every element is read once and written once, wherever it lies; with a gate
// there are two to read.
func TestGELUTouchesEveryElementOnce(t *testing.T) {
	for _, r := range []Rowwise{{1, 1, F32}, {3, 5, BF16}, {64, 7, F16}, {9, 16384, F32}} {
		var elements units.Bytes
		for range r.Tokens {
			for range r.Width {
				elements++
			}
		}
		w, gated := GELU{r}.Work(), SwiGLU{r}.Work()
		if w.Read != elements*r.DType.Size() || w.Write != w.Read || float64(w.FLOPs) != 7*float64(elements) || w.Wire != 0 {
			t.Errorf("%+v: %+v for %d elements", r, w, elements)
		}
		if gated.Read != 2*w.Read || gated.Write != w.Write {
			t.Errorf("%+v: %+v, gated %+v", r, w, gated)
		}
	}
	if err := (GELU{Rowwise{0, 8, F32}}).Validate(); err == nil || err.Error() != "shape.tokens: 0: must be at least 1" {
		t.Error(err)
	}
}
