package op

import (
	"fmt"
	"math"

	"github.com/evenkeel/evenkeel/internal/units"
)

// Pass is which of a linear layer's three matrix products is meant.
type Pass string

// The passes of a linear layer.
const (
	Forward Pass = "fwd"   // C[m,n] = A[m,k] B[k,n]
	DGrad   Pass = "dgrad" // dA[m,k] = dC[m,n] B^T
	WGrad   Pass = "wgrad" // dB[k,n] = A^T dC
)

// KindGEMM is the matrix product of a linear layer.
const KindGEMM Kind = "gemm"

// GEMM is one matrix product of a linear layer with m tokens, n outputs and k
// inputs; the three axes keep their meaning in all three passes.
type GEMM struct {
	Pass  Pass         `json:"pass"`
	M     units.Tokens `json:"m"` // tokens
	N     int          `json:"n"`
	K     int          `json:"k"`
	DType DType        `json:"dtype"`
}

var gemmSpec = Spec{
	Kind: KindGEMM, Class: Compute, Measures: Time,
	Doc:     "matrix product of a linear layer: fwd C=AB, dgrad dA=dC B^T, wgrad dB=A^T dC; m tokens, n outputs, k inputs",
	Example: GEMM{Forward, 1024, 1024, 1024, F32},
}

// Kind implements Shape.
func (GEMM) Kind() Kind { return KindGEMM }

// Validate implements Shape.
func (g GEMM) Validate() error {
	if g.Pass != Forward && g.Pass != DGrad && g.Pass != WGrad {
		return &AxisError{KindGEMM, "pass", fmt.Sprintf("%q: want fwd, dgrad or wgrad", string(g.Pass))}
	}
	for _, err := range []error{
		within(KindGEMM, "m", g.M, maxTokens), within(KindGEMM, "n", g.N, maxWidth),
		within(KindGEMM, "k", g.K, maxWidth), g.DType.validate(KindGEMM),
	} {
		if err != nil {
			return err
		}
	}
	return nil
}

// Variant implements Shape.
func (g GEMM) Variant() Variant { return Variant{Pass: g.Pass, DType: g.DType} }

// Work implements Shape: 2mnk FLOPs in every pass.
func (g GEMM) Work() Work {
	a := units.Bytes(g.M) * units.Bytes(g.K) * g.DType.Size()
	b := units.Bytes(g.K) * units.Bytes(g.N) * g.DType.Size()
	c := units.Bytes(g.M) * units.Bytes(g.N) * g.DType.Size()
	w := Work{FLOPs: units.FLOPs(2 * float64(g.M) * float64(g.N) * float64(g.K))}
	switch g.Pass {
	case DGrad:
		w.Read, w.Write = c+b, a
	case WGrad:
		w.Read, w.Write = a+c, b
	default:
		w.Read, w.Write = a+b, c
	}
	return w
}

// out gives the rows and columns of the result and the length of the inner product.
func (g GEMM) out() (rows, cols, inner float64) {
	m, n, k := float64(g.M), float64(g.N), float64(g.K)
	switch g.Pass {
	case DGrad:
		return m, k, n
	case WGrad:
		return k, n, m
	}
	return m, n, k
}

// Features implements Featured. Rows counts the elements of the result; a task
// is one tile of 64 x 128 of them.
func (g GEMM) Features(parallel int) Features {
	rows, cols, inner := g.out()
	w, tail := g.Work(), g.tail(rows, cols, inner, parallel)
	return Features{
		FLOPs: float64(w.FLOPs)/float64(parallel) + tail,
		Rows:  rows * cols / float64(parallel),
		Bytes: float64(w.Bytes()),
		Tail:  tail,
	}
}

// tail is what the busiest unit does beyond its even share when the full tiles
// are handed out in waves and the smaller ones at the lower and right edge fill
// what room there is. Counting those as full ones, as kernels that pad do, put
// the law of one that does not 13 % off.
func (g GEMM) tail(rows, cols, inner float64, parallel int) float64 {
	high, wide := min(rows, rowTile), min(cols, colTile)
	full := math.Floor(rows/high) * math.Floor(cols/wide)
	busiest := math.Ceil(full/float64(parallel)) * 2 * high * wide * inner
	return max(0, busiest-2*rows*cols*inner/float64(parallel)) * unshared(parallel)
}

// colTile is the width of a tile of a GEMM's result.
const colTile = 128
