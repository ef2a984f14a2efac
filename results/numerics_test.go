package results

import (
	"bytes"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/profile"
)

func TestNumericsNamesWhatIsWrongAndWhatIsNotOffered(t *testing.T) {
	attention := op.AttnFwd{Attention: op.Attention{Mask: op.Diag, QLen: 64, KVLen: 64, QHeads: 2, KVHeads: 1, HeadDim: 64, DType: op.BF16, Kernel: "fa9"}}
	gemm := op.GEMM{Pass: op.Forward, M: 8, N: 8, K: 8, DType: op.F32}
	norm := op.Norm{Rowwise: op.Rowwise{Tokens: 8, Width: 8, DType: op.F32}}
	all := []profile.Numeric{
		{Spot: profile.NewSpot("gpu", attention), Output: "out", Worst: 1e-3, Limit: 1e-2},
		{Spot: profile.NewSpot("gpu", attention), Output: "lse", Worst: 4e-3, Limit: 1e-2},
		{Spot: profile.NewSpot("gpu", attention), Cuts: []int{3}, Output: "dq", Worst: 0.5, Limit: 1e-2},
		{Spot: profile.NewSpot("gpu", gemm), Limit: 1e-5, Error: "holds values that are not finite"},
		{Spot: profile.NewSpot("gpu", norm), Limit: 1e-5, Error: "no such kernel", Skipped: true},
	}
	var out bytes.Buffer
	if err := Numerics(&out, all); err != nil {
		t.Fatal(err)
	}
	text := strings.Join(strings.Fields(out.String()), " ")
	for _, want := range []string{
		"attn_fwd fa9 bf16 2 4.0e-03 lse 1e-02 right",
		"ring of blocks fa9 bf16 1 5.0e-01 dq 1e-02 1 WRONG",
		"norm f32 0 0.0e+00 1e-05 not offered (1)",
		"WRONG: gemm on gpu at {", "holds values that are not finite", "dq is off by 0.5, limit 0.01", "(1) no such kernel",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, &out)
		}
	}
	for i, n := range all {
		if ok := n.OK(); ok != (i < 2 || i == 4) {
			t.Errorf("%d: OK is %v", i, ok)
		}
	}
}
