package op

import (
	"math"
	"testing"

	"github.com/evenkeel/evenkeel/internal/units"
)

// Arithmetic takes its FLOPs at the peak of its precision, streamed tensors their bytes at ten
// times the memory's rate, if they are twenty times as large as the cache; nothing else is
// bounded by one device's figures, and nothing by those that are not known.
func TestLeastTimesOfASheet(t *testing.T) {
	sheet := Sheet{BF16PerS: 1e15, FP8PerS: 2e15, MemoryPerS: 4e12, L2: 50 << 20}
	product := func(d DType) GEMM { return GEMM{Pass: Forward, M: 1000, N: 1000, K: 1000, DType: d} } // 2e9 FLOPs
	norm := func(tokens units.Tokens) Norm { return Norm{Rowwise{tokens, 1 << 20, BF16}} }
	large := norm(1024)
	for _, c := range []struct {
		name  string
		sheet Sheet
		shape Shape
		want  float64 // s
	}{
		{"bf16", sheet, product(BF16), 2e-6},
		{"fp8", sheet, product(FP8), 1e-6},
		{"fp8 of an unknown rate", Sheet{BF16PerS: 1e15}, product(FP8), 2e-6},
		{"no peak", Sheet{MemoryPerS: 4e12, L2: 50 << 20}, product(BF16), 0},
		{"large tensors", sheet, large, float64(large.Work().Bytes()) / 40e12},
		{"small tensors", sheet, norm(16), 0},
		{"no cache", Sheet{MemoryPerS: 4e12}, large, 0},
		{"no memory", Sheet{L2: 50 << 20}, large, 0},
		{"a collective", sheet, AllReduce{Message: Message{Group: 8, Bytes: 1 << 30, DType: BF16}}, 0},
	} {
		if got := float64(c.sheet.Least(c.shape)); math.Abs(got-c.want) > 1e-9*c.want {
			t.Errorf("%s: %g s, want %g", c.name, got, c.want)
		}
	}
}
