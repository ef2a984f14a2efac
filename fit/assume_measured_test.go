package fit

import (
	"math"
	"slices"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/internal/units"
)

// fastest is the time of the fastest kernel that a profile has measured.
func fastest(t *testing.T, p *costmodel.Profile, k op.Kind, a op.Attention) float64 {
	t.Helper()
	least := math.Inf(1)
	for i := range p.Laws {
		l := &p.Laws[i]
		if v := l.Variant; l.Op != k || l.Assumed != "" || v.Mask != a.Mask || v.HeadDim != a.HeadDim || v.DType != a.DType {
			continue
		}
		a.Kernel = l.Variant.Kernel
		shape := op.Shape(op.AttnFwd{Attention: a})
		if k == op.KindAttnBwd {
			shape = op.AttnBwd{Attention: a}
		}
		least = min(least, float64(l.Seconds(shape)))
	}
	return least
}

// What is assumed of a backward holds those measured on an H200, over the forward there and
// over that of the engine which the reference of an H100 was measured with; and it is
// near the middle of them.
func TestAssumedBackwardHoldsTheMeasuredRatios(t *testing.T) {
	var h200, h100 costmodel.Profile
	for path, p := range map[string]*costmodel.Profile{"../results/evidence/h200/calibration.profile.json": &h200, "../results/profiles/h100_sxm.profile.json": &h100} {
		if err := doc.Load(path, p); err != nil {
			t.Fatal(err)
		}
	}
	for _, over := range []struct {
		of    *costmodel.Profile
		times float64
	}{{&h200, backwardTime}, {&h100, servedBackward}} {
		var ratios []float64
		for _, mask := range []op.Mask{op.Diag, op.Full} {
			for _, width := range []int{64, 128} {
				for n := units.Tokens(2048); n <= 32768; n *= 2 {
					for _, heads := range []int{4, 8, 32} {
						a := op.Attention{Mask: mask, QLen: n, KVLen: n, QHeads: heads, KVHeads: heads, HeadDim: width, DType: op.BF16}
						ratio := fastest(t, &h200, op.KindAttnBwd, a) / fastest(t, over.of, op.KindAttnFwd, a)
						if ratio == 0 {
							continue // the H100 was not measured on full blocks with heads of 128
						}
						if x := ratio / over.times; x < 1/aBackward || x > aBackward {
							t.Errorf("%s of %d tokens, %d heads of %d: a backward of %.2f forwards, assumed %v", mask, n, heads, width, ratio, over.times)
						}
						ratios = append(ratios, ratio)
					}
				}
			}
		}
		slices.Sort(ratios)
		if mid := ratios[len(ratios)/2]; len(ratios) < 40 || math.Abs(math.Log(mid/over.times)) > 0.08 {
			t.Errorf("%d backwards of %.2f to %.2f forwards, %.2f in the median, assumed %v", len(ratios), ratios[0], ratios[len(ratios)-1], mid, over.times)
		} else {
			t.Logf("%d backwards of %.2f to %.2f forwards, %.2f in the median, assumed %v", len(ratios), ratios[0], ratios[len(ratios)-1], mid, over.times)
		}
	}
}

// Of kernels measured with both widths under both masks, one width follows from the other in
// the proportion of the other mask about as often as the interval says.
func TestWidthsKeepTheirProportion(t *testing.T) {
	var h200 costmodel.Profile
	if err := doc.Load("../results/evidence/h200/calibration.profile.json", &h200); err != nil {
		t.Fatal(err)
	}
	var logs []float64
	for _, kernel := range []string{"sdpa_cudnn", "sdpa_flash", "sdpa_efficient", "varlen"} {
		for n := units.Tokens(2048); n <= 32768; n *= 2 {
			for _, heads := range []int{4, 8, 16, 32} {
				wider := func(mask op.Mask) float64 {
					a := op.Attention{Mask: mask, QLen: n, KVLen: n, QHeads: heads, KVHeads: heads, HeadDim: 128, DType: op.BF16, Kernel: kernel}
					narrow := a
					narrow.HeadDim = 64
					of := func(a op.Attention) float64 {
						at := slices.IndexFunc(h200.Laws, func(l costmodel.Law) bool { return l.Op == op.KindAttnFwd && l.Variant == a.Variant() })
						return float64(h200.Laws[at].Seconds(op.AttnFwd{Attention: a}))
					}
					return of(a) / of(narrow)
				}
				logs = append(logs, math.Abs(math.Log(wider(op.Full)/wider(op.Diag))))
			}
		}
	}
	slices.Sort(logs)
	if got := math.Exp(logs[len(logs)*9/10]); math.Abs(got-1.10) > 0.01 || got*got > aProportion {
		t.Errorf("nine of ten of %d are within a factor of %v, assumed %v", len(logs), got, aProportion)
	}
}

// What is assumed of ops that stream memory and of backward products holds what an H200
// takes over them, in torch's kernels.
func TestAssumedOpsHoldTheMeasuredOnes(t *testing.T) {
	var full, less costmodel.Profile
	for _, p := range []*costmodel.Profile{&full, &less} {
		if err := doc.Load("../results/evidence/h200/calibration.profile.json", p); err != nil {
			t.Fatal(err)
		}
	}
	less.Laws = slices.DeleteFunc(less.Laws, func(l costmodel.Law) bool {
		return l.Op != op.KindAttnFwd && (l.Op != op.KindGEMM || l.Variant.Pass != op.Forward)
	})
	Assume(&less)
	measured, assumed := costmodel.NewCallPredictor(&full), costmodel.NewCallPredictor(&less)
	for _, n := range []units.Tokens{1024, 4096, 8192, 32768} {
		rows := op.Rowwise{Tokens: n, Width: 4096, DType: op.BF16}
		wide := op.Rowwise{Tokens: n, Width: 11008, DType: op.BF16}
		for _, s := range []op.Shape{
			op.Norm{Rowwise: rows},
			op.Rope{Rowwise: rows},
			op.SwiGLU{Rowwise: wide},
			op.GELU{Rowwise: wide},
			op.CEChunk{Rowwise: op.Rowwise{Tokens: min(n, 8192), Width: 32000, DType: op.F32}},
			op.LSEMerge{Tokens: n, QHeads: 32, HeadDim: 128},
			op.AdamW{Params: 10000 * int64(n)},
			op.GEMM{Pass: op.DGrad, M: n, N: 4096, K: 11008, DType: op.BF16},
			op.GEMM{Pass: op.WGrad, M: n, N: 4096, K: 11008, DType: op.BF16},
		} {
			took, err := measured.Time("h200_sxm", s)
			if err != nil {
				t.Fatal(err)
			}
			guess, err := assumed.Time("h200_sxm", s)
			if err != nil {
				t.Fatal(err)
			}
			if took.Source == costmodel.Assumed || guess.Source != costmodel.Assumed {
				t.Errorf("%s of %d tokens: %s beside %s", s.Kind(), n, took.Source, guess.Source)
			}
			if took.Mid < guess.Lo || took.Mid > guess.Hi {
				t.Errorf("%s of %d tokens: measured %v, assumed %v to %v", s.Kind(), n, took.Mid, guess.Lo, guess.Hi)
			}
		}
	}
}

// Over the forward of an engine that does more than attention in it, a backward is shorter:
// the published one of an A100 over that of the engine which its reference was measured with.
func TestAssumedBackwardOverAnEnginesForward(t *testing.T) {
	a := op.Attention{Mask: op.Diag, QLen: 8192, KVLen: 8192, QHeads: 32, KVHeads: 8, HeadDim: 128, DType: op.BF16}
	for kernel, want := range map[string]float64{servedForward: servedBackward, "fa2": backwardTime} {
		p := measuredOnly("gpu")
		p.Laws[0].Variant.Kernel = kernel
		Assume(p)
		q := costmodel.NewCallPredictor(p)
		for _, a.Mask = range []op.Mask{op.Full, op.Diag} { // full blocks are guessed themselves
			for _, a.HeadDim = range []int{64, 128} {
				fwd, err := q.Time("gpu/engine", op.AttnFwd{Attention: a})
				if err != nil {
					t.Fatal(err)
				}
				bwd, err := q.Time("gpu/engine", op.AttnBwd{Attention: a})
				if err != nil {
					t.Fatal(err)
				}
				// A launch and bytes are not multiplied as tiles are.
				if got := float64(bwd.Mid / fwd.Mid); got > 1.08*want || got < 0.9*want {
					t.Errorf("kernel %s, %s, heads of %d: a backward of %v forwards, want %v", kernel, a.Mask, a.HeadDim, got, want)
				}
			}
		}
	}
	var a100 costmodel.Profile
	if err := doc.Load("../results/profiles/a100_sxm.profile.json", &a100); err != nil {
		t.Fatal(err)
	}
	const published = 1/94.7 - 1/373.4 // seconds
	if got := published / fastest(t, &a100, op.KindAttnFwd, a); math.Abs(got-1.97) > 0.05 || got < servedBackward/aBackward {
		t.Errorf("the published backward takes %v times the engine's forward, assumed %v", got, servedBackward)
	}
}
