package fit

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// Intervals of what nobody measured, as the 90 % range of measured over
// predicted that we would bet on.
const (
	// aKin is of the same kernel on another mask or pass.
	aKin = 1.4
	// aBackward is of a backward kernel from its forward: 1.25 either way hold all that was
	// published and measured of two GPU types (see backwardTime), and as much again is for
	// the others.
	aBackward = 1.5
	// aWidth is of one head width from another.
	aWidth = costmodel.NarrowSpread
	// aProportion is of one head width from another in the proportion that both have under
	// the other mask. Of four kernels on an H200 the proportion on full blocks was within
	// 1.10 of that on causal ones in nine of ten shapes, from 2,048 tokens and 4 heads on;
	// as much again is for other GPU types.
	aProportion = 1.25
	// aMask is of a backward kernel from its forward on one mask beside the same on the
	// other: what is left of aBackward where both are guessed, for they are one kernel.
	aMask = 1.2
	// aMaker is of how a GPU of another maker trains, whose libraries are others.
	aMaker = 1.25
	// aSheet is of a datasheet's rate at sheetShare: memory rates reached by
	// element-wise kernels run from 50 to 95 %.
	aSheet = 1.8
)

// guessWidens is by what share of itself the interval of a guess widens with
// every doubling beyond the range of the law it came from: most of it is what
// the guess has wrong at every size. Between the kernels of aiconfigurator's tables
// that have both, the standard deviation of log time of 64-wide heads over 128-wide
// ones is 0.235, 0.244 and 0.244 at 4k, 8k and 16k tokens: it hardly grows. As much
// again is for the law it came from, whose own interval of 3 % widens by 0.8 of
// itself.
const guessWidens = 0.1

const (
	// backwardTime is the time of attention's backward kernel over that of its forward,
	// of the kernels that people train with. zhuzilin/ring-flash-attention publishes both
	// on an A100: with 8,192 tokens and heads of 128 elements 373.4 forwards and 94.7
	// forwards with backwards a second of 32 heads, so a backward takes 2.94 times as
	// long, and 2.29 times with 5 heads, where the forward is short of tiles. On an H200
	// (results/evidence/h200) the fastest kernels take 2.3 to 3.2 times as long from 2,048
	// tokens on, 2.7 in the median, on either mask and with heads of 64 and 128.
	backwardTime = 2.65
	// servedBackward is the same over a forward that does more than attention:
	// TensorRT-LLM's also turns positions into angles and fills a cache. The backward
	// above takes 1.97 times as long on the A100, and the H200's 1.7 to 2.6 times as long
	// as that forward on an H100, 2.2 in the median.
	servedBackward = 2.1
	servedForward  = "torch_flow"
	// backwardFLOPs is five matrix products for two.
	backwardFLOPs = 2.5
	// What calls take in whole training steps over what they take one by one. Of nine steps of
	// three models on an H100 (results/evidence/h100), by the laws of its own calls 1.12, 3.41
	// and 1.55; by others' recordings of an H100's products and attention forward, and what is
	// assumed beside them of attention backward, the cross-entropy and the optimizer, 1.16, 4.28
	// and 1.65. The half widths of a step's interval are those of the same nine, before
	// costmodel.LentRatio.
	layersInTraining, assumedLayersInTraining       = 1.12, 1.16
	lossInTraining, assumedLossInTraining           = 3.38, 4.29
	optimizerInTraining, assumedOptimizerInTraining = 1.55, 1.65
	trainingError, assumedTrainingError             = 1.045, 1.105

	// sheetShare is the share of a datasheet's rate that a kernel reaches.
	sheetShare = 0.8
	// sheetLaunch is the time of a kernel that does nothing, where no law tells.
	sheetLaunch = 4e-6
)

// Assume adds laws that a plan needs and nobody measured to a profile. Each is derived
// from another law of the same device type where there is one, else from the device's
// datasheet. Law.Assumed says from what, and the interval is wide. An existing law is
// never replaced, and a device type without laws of attention and matrix products gets
// none.
func Assume(p *costmodel.Profile) {
	for _, d := range p.Devices {
		a := assumer{p: p, dev: d, launch: sheetLaunch}
		if !a.goesBy() {
			continue
		}
		a.headDims()
		a.attention()
		a.products()
		a.elementwise()
		a.copies()
		a.inTraining()
	}
	for _, g := range slices.Clone(p.Groups) {
		assumeCollectives(p, g)
	}
}

// NothingToAssume names the device types of a profile that have laws, though not those that
// Assume goes by, and to which it adds none.
func NothingToAssume(p *costmodel.Profile) (names []string) {
	for _, d := range p.Devices {
		has := slices.ContainsFunc(p.Laws, func(l costmodel.Law) bool { return l.Device == d.Name })
		if a := (&assumer{p: p, dev: d}); has && !a.goesBy() {
			names = append(names, d.Name)
		}
	}
	return names
}

// assumer fills in the laws of one device type.
type assumer struct {
	p      *costmodel.Profile
	dev    op.DeviceType
	launch float64
}

func (a *assumer) has(k op.Kind) bool {
	return slices.ContainsFunc(a.p.Laws, func(l costmodel.Law) bool { return l.Device == a.dev.Name && l.Op == k })
}

// goesBy says whether there are laws to derive others from.
func (a *assumer) goesBy() bool { return a.has(op.KindAttnFwd) && a.has(op.KindGEMM) }

// of lists the device's laws of an op as planners ask for them: under a variant
// without kernel stands the fastest one measured, and no other.
func (a *assumer) of(k op.Kind) []costmodel.Law {
	q := costmodel.NewCallPredictor(a.p)
	var all []costmodel.Law
	var seen []op.Variant
	for _, l := range a.p.Laws {
		v := l.Variant
		v.Kernel = ""
		if l.Device != a.dev.Name || l.Op != k || slices.Contains(seen, v) {
			continue
		}
		if best, err := q.Law(a.dev.Name, k, v); err == nil {
			seen, all = append(seen, v), append(all, *best)
		}
	}
	return all
}

// add appends a law unless there is one that answers for its op and variant.
func (a *assumer) add(l costmodel.Law) {
	l.Device = a.dev.Name
	if !costmodel.NewCallPredictor(a.p).Has(l.Device, l.Op, l.Variant) {
		a.p.Laws = append(a.p.Laws, l)
	}
}

// kin is the body of a law for another op or mask of the same kernel: without
// what its own residuals taught, and with the interval of a guess. It shares the doubts
// of a law that is a guess itself, and what of its own is told.
func kin(l costmodel.Law, k op.Kind, v op.Variant, factor, wide float64, why string, shared ...costmodel.Doubt) costmodel.Law {
	if l.Assumed != "" || l.From != "" { // two guesses that know nothing of each other
		wide = costmodel.CombineFactors(wide, l.Spread.Hi)
		shared = append(l.PassedOn(), shared...)
	}
	if l.Assumed != "" {
		why += "; and " + l.Assumed
	}
	return costmodel.Law{
		Op: k, Variant: v, Linear: l.Linear, Attention: l.Attention, GEMM: l.GEMM, Scale: scaled(l, factor),
		Range: slices.Clone(l.Range), MaxCells: l.MaxCells, Peak: l.Peak, Spread: costmodel.Spread{Lo: 1 / wide, Hi: wide}, Widen: guessWidens, From: l.From, Assumed: why, Doubts: shared,
	}
}

// scaled is a law's scale times a factor, absent where that is one.
func scaled(l costmodel.Law, factor float64) float64 {
	if l.Scale != 0 {
		factor *= l.Scale
	}
	if factor == 1 {
		return 0
	}
	return factor
}

// headDims fills in heads of 64 elements from those of 128, or the other way
// round, where only one of the two was measured: nearly all models have one. They take
// in proportion what they take under the other mask, if both were measured there, or
// else what they do on other GPU types.
func (a *assumer) headDims() {
	all := a.of(op.KindAttnFwd)
	for _, l := range all {
		v, factor := l.Variant, costmodel.NarrowTime
		switch v.Kernel = ""; v.HeadDim {
		case 128:
			v.HeadDim = 64
		case 64:
			v.HeadDim, factor = 128, 1/costmodel.NarrowTime
		default:
			continue
		}
		wide, where, as := aWidth, "", "on other GPU types"
		if own, mask := widthRatio(all, v, l.Variant.HeadDim); own > 0 {
			factor, wide, where, as = own, aProportion, fmt.Sprintf(" on %s blocks", v.Mask), fmt.Sprintf("on %s ones", mask)
		}
		if l.Linear != nil {
			factor *= float64(l.Variant.HeadDim) / float64(v.HeadDim) // its features hold the FLOPs already
		}
		a.add(kin(l, op.KindAttnFwd, v, factor, wide,
			fmt.Sprintf("heads of %d elements were not measured%s: %.2f times those of %d, as %s", v.HeadDim, where, factor, l.Variant.HeadDim, as)))
	}
}

// widthRatio is how long heads of a variant's width take over those of another under
// the other mask, by a device type's laws; 0 unless both were measured there. It is
// that of the longest blocks of both, of so many heads that arithmetic bounds them.
func widthRatio(all []costmodel.Law, v op.Variant, from int) (ratio float64, mask op.Mask) {
	mask = otherMask(v.Mask)
	measured := func(width int) *costmodel.Law {
		at := slices.IndexFunc(all, func(l costmodel.Law) bool {
			of := l.Variant
			of.Kernel = ""
			return of == (op.Variant{Mask: mask, HeadDim: width, DType: v.DType, Window: v.Window}) && l.Assumed == "" && l.From == ""
		})
		if at < 0 {
			return nil
		}
		return &all[at]
	}
	of, to := measured(v.HeadDim), measured(from)
	if of == nil || to == nil {
		return 0, mask
	}
	most := func(axis string) float64 { return min(mostOf(of, axis), mostOf(to, axis)) }
	n, heads := units.Tokens(min(most("q_len"), 1<<17)), int(min(most("q_heads"), 32))
	time := func(l *costmodel.Law, width int) float64 {
		return float64(l.Seconds(op.AttnFwd{Attention: op.Attention{Mask: mask, QLen: n, KVLen: n, QHeads: heads, KVHeads: heads, HeadDim: width, DType: v.DType}}))
	}
	return time(of, v.HeadDim) / time(to, from), mask
}

// mostOf is the upper end of a law's measured range on an axis.
func mostOf(l *costmodel.Law, axis string) float64 {
	for _, r := range l.Range {
		if r.Axis == axis {
			return r.Max
		}
	}
	return 1
}

func otherMask(m op.Mask) op.Mask {
	if m == op.Full {
		return op.Diag
	}
	return op.Full
}

// attention fills in the other mask of each forward kernel, and all backwards.
func (a *assumer) attention() {
	for _, l := range a.of(op.KindAttnFwd) {
		v := l.Variant
		if v.Window != 0 {
			continue
		}
		v.Kernel, v.Mask = "", otherMask(l.Variant.Mask)
		a.add(kin(l, op.KindAttnFwd, v, 1, aKin,
			fmt.Sprintf("the kernel was measured on %s blocks only: a tile of a %s block is taken to cost the same", l.Variant.Mask, v.Mask)))
	}
	for _, l := range a.of(op.KindAttnFwd) {
		if l.Variant.Window == 0 {
			a.backward(l)
		}
	}
}

// backward takes the backward kernel to have the forward's tiles, each of which takes
// longer.
func (a *assumer) backward(l costmodel.Law) {
	longer := backwardTime
	if a.served(&l) {
		longer = servedBackward
	}
	factor := longer
	if l.Linear != nil {
		factor /= backwardFLOPs // its features hold the FLOPs already
	}
	v := l.Variant
	v.Kernel = ""
	kernels := cmp.Or(a.dev.Sheet.Arch, a.dev.Name) // one generation of devices has the same
	a.add(kin(l, op.KindAttnBwd, v, factor, aBackward,
		fmt.Sprintf("no backward kernel was measured: the forward's tiles, each taking %v times as long, as published of an A100 and measured on an H200", longer),
		costmodel.Doubt{Of: fmt.Sprintf("%s on %s", op.KindAttnBwd, kernels), Ratio: costmodel.RemainingFactor(aBackward, aMask)}))
}

// served says whether a forward law is of an engine's kernel that does more than attention,
// or derived from such: guesses of other masks and widths name no kernel.
func (a *assumer) served(l *costmodel.Law) bool {
	if l.Assumed == "" {
		return l.Variant.Kernel == servedForward
	}
	return slices.ContainsFunc(a.of(op.KindAttnFwd), func(o costmodel.Law) bool {
		return o.Assumed == "" && o.Variant.DType == l.Variant.DType && o.Variant.Kernel == servedForward
	})
}

// AssumeTraining takes the GPUs of a profile that no whole training step was measured of to train
// as an H100 did, over what was measured of each and what was not. It is a part of Assume, for
// profiles that lack nothing else.
func AssumeTraining(p *costmodel.Profile) {
	for _, d := range p.Devices {
		if a := (assumer{p: p, dev: d}); a.goesBy() {
			a.inTraining()
		}
	}
}

func (a *assumer) inTraining() {
	known := slices.ContainsFunc(a.p.Training, func(t costmodel.TrainingFact) bool { return t.Device == a.dev.Name })
	if known || a.dev.Sheet == (op.Sheet{}) { // a processor trains as nobody knows
		return
	}
	t := costmodel.TrainingFact{
		Device: a.dev.Name, Layers: layersInTraining, Loss: lossInTraining, Optimizer: optimizerInTraining, Ratio: trainingError,
		Assumed: "whole training steps of one H100",
	}
	if !a.measured(op.KindAttnBwd) {
		t.Layers, t.Ratio = assumedLayersInTraining, assumedTrainingError
	}
	if !a.measured(op.KindCEChunk) {
		t.Loss = assumedLossInTraining
	}
	if !a.measured(op.KindAdamW) {
		t.Optimizer = assumedOptimizerInTraining
	}
	t.Ratio = costmodel.CombineFactors(t.Ratio, costmodel.LentRatio)
	if !sameMaker(a.dev, op.DeviceType{Sheet: op.Sheet{Arch: "sm90"}}) {
		t.Ratio = costmodel.CombineFactors(t.Ratio, aMaker)
	}
	a.p.Training = append(a.p.Training, t)
}

// measured says whether an op was measured on the device itself.
func (a *assumer) measured(k op.Kind) bool {
	return slices.ContainsFunc(a.of(k), func(l costmodel.Law) bool { return l.Assumed == "" && l.From == "" })
}

// products fills in a linear layer's backward products.
func (a *assumer) products() {
	for _, l := range a.of(op.KindGEMM) {
		if l.GEMM != nil {
			a.launch = max(l.GEMM.Launch, sheetLaunch/4)
		}
		for _, pass := range []op.Pass{op.Forward, op.DGrad, op.WGrad} {
			v := l.Variant
			v.Pass = pass
			a.add(kin(l, op.KindGEMM, v, 1, aKin,
				fmt.Sprintf("only the %s product was measured: a product of equal rows, columns and inner length is taken to cost the same", l.Variant.Pass)))
		}
	}
}

// elementwise fills in the ops that stream memory, in the precision of the
// device's attention laws; losses, merges and the optimizer are in float32.
func (a *assumer) elementwise() {
	rate := sheetShare * a.dev.Sheet.MemoryPerS
	if rate == 0 {
		return
	}
	types := []op.DType{}
	for _, l := range a.of(op.KindAttnFwd) {
		if !slices.Contains(types, l.Variant.DType) {
			types = append(types, l.Variant.DType)
		}
	}
	for _, t := range types {
		for _, k := range []op.Kind{op.KindNorm, op.KindRope, op.KindSwiGLU, op.KindGELU} {
			a.stream(k, t, rate)
		}
	}
	for _, k := range []op.Kind{op.KindCEChunk, op.KindLSEMerge, op.KindAdamW} {
		a.stream(k, op.F32, rate)
	}
}

func (a *assumer) stream(k op.Kind, t op.DType, rate float64) {
	l := costmodel.Law{
		Op: k, Variant: op.Variant{DType: t},
		Linear: &costmodel.Linear{Parallel: a.dev.Parallel, Launch: within(a.launch), PerByte: within(1 / rate)},
		Range:  anywhere(k), Spread: costmodel.Spread{Lo: 1 / aSheet, Hi: aSheet},
		Assumed: fmt.Sprintf("not measured: a launch and the least bytes at %.0f %% of the datasheet's memory rate", 100*sheetShare),
	}
	if most := unfused(k); most > 1 {
		l.Spread.Hi = most
		l.Assumed += fmt.Sprintf("; in several kernels instead of one it takes up to %v times as long", most)
		l.Doubts = []costmodel.Doubt{{Of: fmt.Sprintf("whether %s is one kernel", k), Ratio: costmodel.RemainingFactor(most, aSheet)}}
	}
	a.add(l)
}

// unfused is how many times as long an op may take that whoever trains may run in several
// kernels, which read and write everything again; 1 of others. Those of torch take 5.1 to
// 5.8 times as long as is assumed for rope, 3.4 to 3.6 for swiglu and 1.6 to 2.0 for a chunk
// of the loss, from 1,024 tokens on, on an H200 (results/evidence/h200).
func unfused(k op.Kind) float64 {
	switch k {
	case op.KindRope:
		return 6
	case op.KindSwiGLU:
		return 4
	case op.KindCEChunk:
		return 2.2
	}
	return 1
}

// copies fills in the transfers to and from the host.
func (a *assumer) copies() {
	rate := sheetShare * a.dev.Sheet.HostPerS
	if rate == 0 {
		return
	}
	for _, k := range []op.Kind{op.KindH2D, op.KindD2H} {
		a.add(costmodel.Law{
			Op: k, Curve: sheetLine(2*a.launch, rate), Range: anywhere(k), Spread: costmodel.Spread{Lo: 1 / aSheet, Hi: aSheet},
			Assumed: fmt.Sprintf("not measured: %.0f %% of the datasheet's rate to the host", 100*sheetShare),
		})
	}
}

// within is a guessed coefficient with the interval of a datasheet's figure.
func within(v float64) costmodel.Coef {
	return costmodel.Coef{Value: v, Lo: v / aSheet, Hi: v * aSheet}
}

// sheetLine is a curve of one latency and one rate.
func sheetLine(latency, rate float64) *costmodel.Curve {
	return &costmodel.Curve{Form: costmodel.AlphaBeta, Pieces: []costmodel.Piece{{Alpha: within(latency), Beta: within(1 / rate)}}}
}

// anywhere is the range of a law that holds for every size alike.
func anywhere(k op.Kind) []costmodel.AxisRange {
	var axes []costmodel.AxisRange
	for _, name := range op.CoordNames(k) {
		axes = append(axes, costmodel.AxisRange{Axis: name, Min: 1, Max: math.Exp2(50)})
	}
	return axes
}
