package torch

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/profile"
)

// Limits of the relative error of an output in the 2-norm, by precision.
var numericLimits = map[op.DType]float64{op.F32: 1e-5, op.BF16: 1e-2, op.F16: 1e-2}

// numericLimit is that of an op, twice as much for a whole layer, as the worker and
// replay have it: a gradient passes about eight roundings on its way through. In
// bfloat16 the worst one of the layer below is off by 0.0083 with attention weights
// in float32, and by 0.0092 with them rounded as a GPU's kernels do.
func numericLimit(k op.Kind, dtype op.DType) float64 {
	if k == op.KindLayerFwd || k == op.KindLayerBwd {
		return 2 * numericLimits[dtype]
	}
	return numericLimits[dtype]
}

// Numerics compares every op of the first rank of each device type, and every
// collective of every group, with its float64 reference at shapes that kernels
// get wrong first: odd lengths and head counts, eight query heads a KV head,
// packed documents of one token, and causal squares put together from the
// blocks of unequal shards, as a ring does. Nothing is timed.
//
// A check that cannot be made is in the result with its reason; the error is
// discovery's or ctx's.
func (b *Backend) Numerics(ctx context.Context, report func(profile.Numeric)) ([]profile.Numeric, error) {
	if _, err := b.Discover(ctx); err != nil {
		return nil, err
	}
	var all []profile.Numeric
	check := func(on string, cases []numericCase) error {
		x, err := b.Open(ctx, on, "")
		if err != nil {
			return err
		}
		for _, c := range cases {
			n := x.(*executor).numeric(ctx, on, c)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			report(n)
			all = append(all, n)
		}
		return nil
	}
	seen := map[string]bool{}
	for _, r := range b.ranks {
		if seen[r.device.Name] {
			continue
		}
		seen[r.device.Name] = true
		if err := check(r.device.Name, r.numericCases()); err != nil {
			return all, err
		}
	}
	for _, g := range b.groups {
		var cases []numericCase
		for _, s := range b.groupSpaces(g) {
			cases = append(cases, numericCase{shape: s.Make(slices.Repeat([]float64{0.4}, s.Dims))})
		}
		if err := check(g.Name, cases); err != nil {
			return all, err
		}
	}
	return all, nil
}

// numericCase is one comparison.
type numericCase struct {
	shape op.Shape
	cuts  []int // tokens at which a causal square is cut into the blocks of a ring; nil: computed at once
	limit float64
}

// numeric makes one comparison.
func (x *executor) numeric(ctx context.Context, on string, c numericCase) profile.Numeric {
	n := profile.Numeric{Spot: profile.NewSpot(on, c.shape), Cuts: c.cuts, Limit: c.limit}
	errs, err := x.verify(ctx, c.shape, c.cuts)
	if err != nil {
		n.Error = err.Error()
		n.Skipped = classOf(err) == profile.Unsupported
		return n
	}
	for output, e := range errs {
		if e >= n.Worst {
			n.Worst, n.Output = e, output
		}
	}
	if math.IsInf(n.Worst, 0) {
		n.Worst, n.Error = 0, "holds values that are not finite"
	}
	return n
}

func classOf(err error) profile.Class {
	var e *profile.OpError
	if errors.As(err, &e) {
		return e.Class
	}
	return ""
}

// numericCases lists the comparisons of a rank's ops, in every precision that
// it has.
func (r *rank) numericCases() []numericCase {
	var cases []numericCase
	for _, dtype := range r.greeting.DTypes {
		add := func(cuts []int, shapes ...op.Shape) {
			for _, s := range shapes {
				if slices.Contains(r.greeting.Ops, s.Kind()) {
					cases = append(cases, numericCase{s, cuts, numericLimit(s.Kind(), dtype)})
				}
			}
		}
		// Attention kernels for GPUs know 16 bits only.
		if r.greeting.Device.Kind != "cuda" || dtype != op.F32 {
			for _, kernel := range kernels(r.greeting) {
				attentionCases(kernel, dtype, add)
			}
		}
		add(nil, plainShapes(dtype)...)
	}
	return cases
}

func attentionCases(kernel string, dtype op.DType, add func(cuts []int, shapes ...op.Shape)) {
	for _, heads := range [][2]int{{8, 1}, {5, 5}, {6, 2}, {3, 1}, {7, 7}, {16, 2}} {
		for _, dim := range []int{64, 128} {
			a := op.Attention{QHeads: heads[0], KVHeads: heads[1], HeadDim: dim, DType: dtype, Kernel: kernel}
			a.Mask, a.QLen, a.KVLen = op.Full, 173, 311
			add(nil, op.AttnFwd{Attention: a}, op.AttnBwd{Attention: a})
			a.QLen, a.KVLen = 300, 65
			add(nil, op.AttnFwd{Attention: a}, op.AttnBwd{Attention: a})
			a.Mask, a.QLen, a.KVLen = op.Diag, 257, 257
			add(nil, op.AttnFwd{Attention: a}, op.AttnBwd{Attention: a})
		}
	}
	for _, heads := range [][2]int{{8, 1}, {5, 5}, {3, 1}} {
		v := op.Varlen{SeqLens: []units.Tokens{1, 130, 67, 200}, QHeads: heads[0], KVHeads: heads[1], HeadDim: 64, DType: dtype, Kernel: kernel}
		add(nil, op.AttnVarlenFwd{Varlen: v}, op.AttnVarlenBwd{Varlen: v})
		// Three shards of unequal length, none a multiple of a tile.
		ring := op.Attention{Mask: op.Diag, QLen: 1000, KVLen: 1000, QHeads: heads[0], KVHeads: heads[1], HeadDim: 64, DType: dtype, Kernel: kernel}
		add([]int{517, 911}, op.AttnBwd{Attention: ring})
	}
}

// plainShapes are the ops besides attention; losses and merges are float32
// whatever the precision.
func plainShapes(dtype op.DType) []op.Shape {
	rows := op.Rowwise{Tokens: 77, Width: 320, DType: dtype}
	layer := op.Layer{Tokens: 130, Hidden: 192, FFN: 448, QHeads: 3, KVHeads: 1, HeadDim: 64, DType: dtype}
	shapes := []op.Shape{
		op.Norm{Rowwise: rows},
		op.Rope{Rowwise: rows},
		op.SwiGLU{Rowwise: rows},
		op.GELU{Rowwise: rows},
		op.LayerFwd{Layer: layer},
		op.LayerBwd{Layer: layer},
	}
	for _, pass := range []op.Pass{op.Forward, op.DGrad, op.WGrad} {
		shapes = append(shapes, op.GEMM{Pass: pass, M: 131, N: 67, K: 259, DType: dtype})
	}
	if dtype == op.F32 {
		shapes = append(shapes, op.CEChunk{Rowwise: rows}, op.LSEMerge{Tokens: 93, QHeads: 5, HeadDim: 64}, op.AdamW{Params: 4099})
	}
	return shapes
}

// verify compares an op with its reference at exactly this shape and gives the
// relative error of every output. An error that JSON cannot carry arrives as
// infinity.
func (x *executor) verify(ctx context.Context, s op.Shape, cuts []int) (map[string]float64, error) {
	if err := x.Ready(ctx); err != nil {
		return nil, err
	}
	data, err := op.Encode(s)
	if err != nil {
		return nil, err
	}
	frames, err := x.ask(ctx, request{T: "verify", Op: s.Kind(), Shape: data, Group: x.group, Cuts: cuts})
	if err != nil {
		return nil, err
	}
	errs := map[string]float64{}
	for _, f := range frames {
		for name, v := range f.Errors {
			if v == nil {
				errs[name] = math.Inf(1)
				continue
			}
			errs[name] = max(errs[name], *v)
		}
	}
	if len(errs) == 0 {
		return nil, &profile.OpError{Class: profile.Failed, Err: fmt.Errorf("the worker compared nothing")}
	}
	return errs, nil
}
