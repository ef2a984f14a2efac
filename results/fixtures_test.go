package results

import (
	"math"
	"math/rand/v2"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/fit"
	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/internal/units"
)

// testProfile is a small profile with every form of law and every footnote.
// Its numbers are made up; only that they differ matters.
func testProfile() *costmodel.Profile {
	devices := []op.DeviceType{
		{Name: "cpu:1", Model: "Example CPU Type 9 @ 2.10GHz", Stack: "go1.26 amd64 avx2, evenkeel kernels 1", Fingerprint: "aa", Parallel: 1, Memory: 4 * units.GiB},
		{Name: "cpu:2", Model: "Example CPU Type 9 @ 2.10GHz", Stack: "go1.26 amd64 avx2, evenkeel kernels 1", Fingerprint: "bb", Parallel: 2},
	}
	group := op.NewGroupType([]op.Member{{Device: "cpu:1", Count: 2}}, 1, "unix_socket")
	spread := costmodel.Spread{Lo: 0.93, Hi: 1.08}
	return &costmodel.Profile{
		Header:    doc.Header{Tool: "evenkeel 0.1.0", Created: "2026-01-31T12:00:00Z", Inputs: []doc.Input{{Path: "cpu.rec.jsonl", SHA256: "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"}}},
		Simulated: true,
		Devices:   devices, Groups: []op.GroupType{group},
		Holdout: costmodel.Holdout{Seed: 7, Share: 0.25},
		Laws: []costmodel.Law{
			linearLaw(op.KindAttnFwd, op.Variant{Mask: op.Full, HeadDim: 128, DType: op.F32}, spread, costmodel.FitError{Points: 24, Median: 0.021, P90: 0.055, P95: 0.07, Bias: 0.004, Coverage: 0.92}),
			linearLaw(op.KindGEMM, op.Variant{DType: op.F32}, spread, costmodel.FitError{Points: 22, Outside: 2, Median: 0.11, P90: 0.31, P95: 0.4, Bias: -0.06, Coverage: 0.61}),
			{
				Op: op.KindNorm, Device: "cpu:1", Variant: op.Variant{DType: op.F32},
				Curve: &costmodel.Curve{Form: costmodel.AlphaBeta, Pieces: []costmodel.Piece{
					{Alpha: costmodel.Coef{Value: 2e-6, Lo: 1e-6, Hi: 3e-6}, Beta: costmodel.Coef{Value: 1e-10, Lo: 9e-11, Hi: 1.1e-10}},
					{From: 1 << 20, Beta: costmodel.Coef{Value: 2e-10, Lo: 1.9e-10, Hi: 2.3e-10}},
				}},
				Range:  []costmodel.AxisRange{{Axis: "tokens", Min: 64, Max: 8192}, {Axis: "width", Min: 512, Max: 4096}},
				Spread: spread, Fit: costmodel.FitError{Points: 9, Median: 0.03, P90: 0.1}, Held: costmodel.FitError{Points: 3, Median: 0.04, P90: 0.09, Coverage: 1},
				Rivals: []costmodel.Rival{{Form: "2-piece alpha_beta", Median: 0.03, Chosen: true}, {Form: "alpha_beta", Median: 0.09}},
			},
			{
				Op: op.KindSendRecv, Group: group.Name,
				Curve:  &costmodel.Curve{Form: costmodel.LogLog, Knots: []costmodel.Knot{{Bytes: 4096, Seconds: 2e-5}, {Bytes: 1 << 20, Seconds: 4e-4}}},
				Range:  []costmodel.AxisRange{{Axis: "bytes", Min: 4096, Max: 1 << 20}},
				Spread: costmodel.Spread{Lo: 0.7, Hi: 1.4}, Fit: costmodel.FitError{Points: 8, Median: 0.05, P90: 0.2},
				Rivals: []costmodel.Rival{{Form: "log_log", Median: 0.08}, {Form: fit.FamilyForm, Median: 0.06, Chosen: true}},
			},
		},
		Warnings: []string{"SIMULATED: made from a simulated backend, no hardware was measured", "3 points could not be measured; the recording holds the reasons"},
	}
}

// factsProfile has what a profile may know beside its laws, and laws of two
// kernels.
func factsProfile() *costmodel.Profile {
	p := testProfile()
	for _, kernel := range []string{"a_kernel_with_a_long_name", "fa3"} {
		l := p.Laws[0]
		l.Variant.Kernel = kernel
		p.Laws = append([]costmodel.Law{l}, p.Laws...)
	}
	p.Laws = slices.Delete(p.Laws, 2, 3)
	p.Memory = []costmodel.MemoryFacts{
		{Device: "cpu:1", Capacity: 3 * units.GiB, Reserve: 128 * units.MiB, Layers: []costmodel.LayerMemory{
			{Hidden: 4096, FFN: 14336, QHeads: 32, KVHeads: 8, HeadDim: 128, DType: op.BF16, PerToken: 139400, Base: 1 << 20, MinTokens: 2048, MaxTokens: 8192, Points: 3},
		}},
		{Device: "cpu:2", Reserve: 256 * units.MiB},
	}
	p.Overlaps = []costmodel.OverlapFact{
		{On: "cpu:1", Compute: op.KindAttnFwd, Comm: op.KindH2D, Slowed: op.SlowedCompute, Ratio: 1.08, Lo: 1.02, Hi: 1.11, Points: 3},
		{On: "cpu:1", Compute: op.KindAttnFwd, Comm: op.KindH2D, Slowed: op.SlowedComm, Ratio: 1.4, Lo: 1.4, Hi: 1.4, Points: 1},
	}
	p.Outliers = []costmodel.Outlier{
		{On: p.Groups[0].Name, Place: "n1/g0+n1/g3", Rank: "n1/g3", Op: op.KindAllGather, Scale: 1.22, Points: 7},
		{On: "cpu:1", Place: "n1/g3", Scale: 0.94, Points: 5},
	}
	return p
}

func linearLaw(kind op.Kind, v op.Variant, s costmodel.Spread, held costmodel.FitError) costmodel.Law {
	l := costmodel.Law{
		Op: kind, Variant: v, Device: "cpu:1", Spread: s, Held: held, Fit: costmodel.FitError{Points: 70, Median: 0.02, P90: 0.05},
		Linear: &costmodel.Linear{
			Parallel: 2, Launch: costmodel.Coef{Value: 1.5e-6, Lo: 1e-6, Hi: 2e-6}, PerFLOP: costmodel.Coef{Value: 1.2e-10, Lo: 1.1e-10, Hi: 1.25e-10},
			PerRow: costmodel.Coef{Value: 3e-9, Hi: 5e-9}, PerByte: costmodel.Coef{Value: 2e-11, Lo: 1e-11, Hi: 4e-11},
		},
		Rivals: []costmodel.Rival{{Form: "linear", Median: 0.021, Chosen: true}, {Form: "roofline", Median: 0.2}},
	}
	for _, axis := range op.CoordNames(kind) {
		l.Range = append(l.Range, costmodel.AxisRange{Axis: axis, Min: 16, Max: 2048})
	}
	return l
}

// testReport has pairs whose log errors are normal with a family's own width,
// drawn from a fixed seed, and rows of every verdict.
func testReport(perFamily int) *fit.Report {
	r := &fit.Report{Simulated: true, Covered: fit.CoverageLimit{Least: 0.7, Reason: "less promises too much"}, Missing: []string{"all_to_all on 2 cpu:1 over unix_socket"}, Warnings: []string{"the machine drifted: gemm on cpu:1 takes 5 % more in the end than at first (4 repeats); measure again on a quiet or cooled machine if that is too much"}}
	rng := rand.New(rand.NewPCG(1, 2))
	kinds := map[fit.Family]op.Kind{fit.FamilyAttention: op.KindAttnFwd, fit.FamilyGEMM: op.KindGEMM, fit.FamilyBandwidth: op.KindNorm, fit.FamilyCollective: op.KindSendRecv, fit.FamilyLayer: op.KindLayerFwd}
	for i, f := range fit.Families() {
		for range perFamily {
			mid := math.Exp(math.Log(2e-6) + rng.Float64()*math.Log(1e6))
			measured := mid * math.Exp(rng.NormFloat64()*0.02*float64(min(i+1, 4)))
			r.Pairs = append(r.Pairs, fit.Pair{Family: f, On: "cpu:1", Op: kinds[f], Measured: measured, Estimate: costmodel.Estimate{Lo: units.Seconds(0.95 * mid), Mid: units.Seconds(mid), Hi: units.Seconds(1.05 * mid), Source: costmodel.Interpolated}})
		}
	}
	r.Rows = []fit.Row{
		{Family: fit.FamilyAttention, On: "cpu:1", Limit: fit.Limit{Median: 0.06, P90: 0.2}, Verdict: fit.Pass, FitError: costmodel.FitError{Points: 40, Median: 0.013, P90: 0.04, P95: 0.051, Bias: -0.002, Coverage: 0.9}, MedianUpper: 0.016, P90Upper: 0.049, CoverageUpper: 0.955, Least: 0.7},
		{Family: fit.FamilyGEMM, On: "cpu:1", Limit: fit.Limit{Median: 0.06, P90: 0.2}, Verdict: fit.Fail, FitError: costmodel.FitError{Points: 40, Outside: 3, Median: 0.07, P90: 0.21, P95: 0.24, Bias: 0.03, Coverage: 0.275}, MedianUpper: 0.09, P90Upper: 0.26, CoverageUpper: 0.405, Least: 0.7, Broken: []string{"median 7.00 %, upper bound 9.00 %, limit 6.00 %", "p90 21.00 %, upper bound 26.00 %, limit 20.00 %", "inside the 90 % interval 27.50 %, upper bound 40.50 %, at least 70.00 %: it is too narrow for these errors"}},
		{Family: fit.FamilyCollective, On: "2 a100_sxm + 2 h100_sxm over nvlink on 2 nodes", Limit: fit.Limit{Median: 0.15, P90: 0.5}, Verdict: fit.Insufficient, FitError: costmodel.FitError{Points: 0, Outside: 5}},
	}
	return r
}
