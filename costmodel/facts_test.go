package costmodel

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/internal/units"
)

// layerOf is a measured layer with the widths of the test model.
func layerOf(perToken float64) LayerMemory {
	m := smallModel()
	return LayerMemory{
		Hidden: m.Hidden, FFN: m.FFN, QHeads: m.QHeads, KVHeads: m.KVHeads, HeadDim: m.HeadDim, DType: op.F32,
		PerToken: perToken, MinTokens: 1024, MaxTokens: 3072, Points: 2,
	}
}

func TestProfileFactsAreChecked(t *testing.T) {
	good := func() *Profile {
		p := usual(t)
		p.Memory = []MemoryFacts{{Device: "fast", Capacity: 1 << 30, Reserve: 1 << 20, Layers: []LayerMemory{layerOf(1000)}}}
		p.Overlaps = []OverlapFact{{On: "fast", Compute: op.KindGEMM, Comm: op.KindH2D, Slowed: op.SlowedCompute, Ratio: 1.1, Lo: 1, Hi: 1.2, Points: 3}}
		p.Outliers = []Outlier{{On: "fast", Place: "n1/g3", Scale: 1.06, Points: 5}}
		p.Training = []TrainingFact{{Device: "fast", Layers: 1.1, Loss: 3, Optimizer: 0.9, Steps: 4, Ratio: 1.04}}
		return p
	}
	if err := good().Validate(); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func(*Profile)
		want   string
	}{
		"memory device":  {func(p *Profile) { p.Memory[0].Device = "other" }, `memory[0].device: "other"`},
		"memory twice":   {func(p *Profile) { p.Memory = append(p.Memory, p.Memory[0]) }, `memory[1].device: "fast"`},
		"reserve":        {func(p *Profile) { p.Memory[0].Reserve = -1 }, "memory[0].capacity_bytes, reserve_bytes"},
		"slope":          {func(p *Profile) { p.Memory[0].Layers[0].PerToken = math.NaN() }, "memory[0].layers[0].per_token_bytes: NaN"},
		"one length":     {func(p *Profile) { p.Memory[0].Layers[0].MaxTokens = 1024 }, "a slope takes two lengths"},
		"overlap on":     {func(p *Profile) { p.Overlaps[0].On = "other" }, `overlaps[0].on: "other"`},
		"overlap":        {func(p *Profile) { p.Overlaps[0].Ratio = 1.3 }, "overlaps[0]: 1.3 in [1, 1.2]"},
		"outlier on":     {func(p *Profile) { p.Outliers[0].On = "other" }, `outliers[0].on: "other"`},
		"outlier scale":  {func(p *Profile) { p.Outliers[0].Scale = 0 }, "outliers[0].scale: 0"},
		"trained on":     {func(p *Profile) { p.Training[0].Device = p.Groups[0].Name }, "training[0].device: "},
		"trained twice":  {func(p *Profile) { p.Training = append(p.Training, p.Training[0]) }, `training[1].device: "fast"`},
		"trained ratio":  {func(p *Profile) { p.Training[0].Optimizer = math.Inf(1) }, "training[0].optimizer: +Inf: want a factor from 0.1 to 100"},
		"trained loss":   {func(p *Profile) { p.Training[0].Loss = 0 }, "training[0].loss: 0"},
		"trained steps":  {func(p *Profile) { p.Training[0].Steps = 0 }, "training[0].steps: 0: want at least one, or assumed"},
		"trained error":  {func(p *Profile) { p.Training[0].Ratio = 0.9 }, "training[0].ratio: 0.9: want a factor of 1 to 100"},
		"law of a layer": {func(p *Profile) { p.Laws[0].Op = op.KindLayerFwd }, "op: layer_fwd has no law"},
		"law of memory":  {func(p *Profile) { p.Laws[0].Op = op.KindMemLayer }, "op: mem_layer has no law"},
	} {
		p := good()
		c.change(p)
		if err := p.Validate(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// A profile without facts is written as it was before there were any.
func TestFactsAreWrittenOnlyWhenMeasured(t *testing.T) {
	data, err := doc.Encode(usual(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{`"memory"`, `"overlaps"`, `"outliers"`, `"training"`, `"kernel"`, `"pairs"`} {
		if strings.Contains(string(data), key) {
			t.Errorf("%s is written although nothing was measured", key)
		}
	}
}

func TestOutliersReadAsSentences(t *testing.T) {
	for want, o := range map[string]Outlier{
		"n1/g3: all_gather 22 % slower than its peers (7 points)":       {Place: "n1/g3", Op: op.KindAllGather, Scale: 1.22, Points: 7},
		"n0/g1 in n0: all_gather 30 % slower than its peers (3 points)": {Place: "n0", Rank: "n0/g1", Op: op.KindAllGather, Scale: 1.3, Points: 3},
		"n1/g3: 6 % faster than its peers (5 points)":                   {Place: "n1/g3", Scale: 0.94, Points: 5},
		"n1/g3: send_recv_pairs 22 % slower than its peers (4 points)":  {Rank: "n1/g3", Op: op.KindSendRecvPairs, Scale: 1.22, Points: 4},
	} {
		if got := o.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// Capacity and reserve both leave the context out, so it is not taken off twice.
func TestUsableMemoryIsTheLesserOfTwoMeasurements(t *testing.T) {
	for _, c := range []struct{ whole, capacity, reserve, want units.Bytes }{
		{100, 0, 0, 100},
		{100, 95, 0, 95},
		{100, 0, 10, 90},
		{100, 95, 10, 90},
		{100, 80, 10, 80},
		{0, 80, 10, 80}, // nobody knows the whole
		{100, 0, 200, 1},
	} {
		if got := (MemoryFacts{Capacity: c.capacity, Reserve: c.reserve}).usable(c.whole); got != c.want {
			t.Errorf("%+v: %d", c, got)
		}
	}
}

// A measured reserve and slope reach the account of a step, and a slope far off
// the formula is said aloud, once.
func TestMeasuredMemoryReplacesTheFormula(t *testing.T) {
	p := usual(t)
	c := cluster(t, "1x2 fast", p, "bus", "net")
	j := testJob(c, []units.Tokens{512, 512})
	formula := mustSimulate(t, p, j, ringOf([]units.Tokens{512, 512}))
	slope := 1.67 * float64(j.LayerActivations())
	p.Memory = []MemoryFacts{{Device: "fast", Reserve: 1 << 30, Layers: []LayerMemory{layerOf(slope)}}}
	measured := mustSimulate(t, p, j, ringOf([]units.Tokens{512, 512}))
	was, is := formula.Ranks[0].Memory, measured.Ranks[0].Memory
	if is.Capacity != was.Capacity-1<<30 || was.LayerToken != 0 {
		t.Errorf("capacity %d, before %d", is.Capacity, was.Capacity)
	}
	// The layer's, and of the attention's output a copy.
	out := float64(j.Model.QHeads*j.Model.HeadDim) * float64(j.DType.Size()) / float64(j.LayerActivations())
	layer := math.Ceil(512 * math.Ceil(slope) * (1 + out))
	if want := units.Bytes(6 * layer); is.Activations != want || is.States != was.States || is.Transient != was.Transient {
		t.Errorf("%+v, want %d of activations; by formula %+v", is, want, was)
	}
	said := strings.Join(measured.Warnings, "\n")
	if strings.Count(said, "1.67 times the formula's") != 1 || strings.Contains(strings.Join(formula.Warnings, "\n"), "measured to take") {
		t.Errorf("warnings: %s", said)
	}
	j.Recompute = RecomputeFull
	if got, want := mustSimulate(t, p, j, ringOf([]units.Tokens{512, 512})).Ranks[0].Memory.Activations, units.Bytes(512*6*256*4+layer); got != want {
		t.Errorf("recomputed: %d, want %d", got, want)
	}
	// Another width, another layer.
	j.Recompute = RecomputeNone
	p.Memory[0].Layers[0].FFN++
	if got := mustSimulate(t, p, j, ringOf([]units.Tokens{512, 512})).Ranks[0].Memory; got.Activations != was.Activations || got.LayerToken != 0 {
		t.Errorf("a layer of other widths counts: %+v", got)
	}
	p.Memory[0].Layers[0] = layerOf(1.05 * float64(j.LayerActivations()))
	for _, w := range mustSimulate(t, p, j, ringOf([]units.Tokens{512, 512})).Warnings {
		if strings.Contains(w, "measured to take") {
			t.Errorf("5 %% off is no warning: %s", w)
		}
	}
}

// A layer is predicted as the sum of its parts' laws; the intervals of one law
// add, those of different laws in quadrature.
func TestALayerIsPredictedFromItsParts(t *testing.T) {
	p := usual(t)
	q := NewPredictor(p)
	l := op.Layer{Tokens: 2048, Hidden: 256, FFN: 688, QHeads: 4, KVHeads: 2, HeadDim: 64, DType: op.F32}
	for _, s := range []op.Compound{op.LayerFwd{Layer: l}, op.LayerBwd{Layer: l}} {
		var mid, width units.Seconds
		for _, part := range s.Parts() {
			e, err := q.Time("fast", part)
			if err != nil {
				t.Fatal(err)
			}
			mid, width = mid+e.Mid, width+e.Hi-e.Mid
		}
		got, err := q.Time("fast", s)
		if err != nil || !near(got.Mid, mid, 1e-12) || got.Source != Interpolated || got.Hi-got.Mid >= width || got.Hi <= got.Mid {
			t.Errorf("%s: %+v, %v; the parts take %v +- %v", s.Kind(), got, err, mid, width)
		}
	}
	p.Laws = slicesWithout(p.Laws, op.KindRope, op.KindSwiGLU)
	_, err := NewPredictor(p).Time("fast", op.LayerBwd{Layer: l})
	var missing *MissingPartsError
	if !errors.As(err, &missing) || len(missing.Missing) != 2 || !strings.Contains(err.Error(), "its parts have no law for swiglu f32, rope f32; measure them: evenkeel calibrate --fresh --only swiglu,rope, then") {
		t.Errorf("%v", err)
	}
	l.HeadDim, l.DType = 256, op.F16
	if _, err = q.Time("fast", op.LayerFwd{Layer: l}); err == nil || !strings.Contains(err.Error(), "rope f16 (the profile has it in f32), ") || !strings.Contains(err.Error(), " --dtype f16, then fit again") {
		t.Errorf("%v", err)
	}
	l.DType = op.F32
	if _, err = q.Time("fast", op.LayerFwd{Layer: l}); err == nil || !strings.Contains(err.Error(), "no law for attn_fwd diag d256 f32 (the profile has it for heads of 64); measure them: evenkeel calibrate --fresh --only attn_fwd --model config.json, then") {
		t.Errorf("%v", err)
	}
}

// What a plan charges a lone rank for a layer is what the layer check measures
// it against: the same parts, whichever side lists them.
func TestTheStepChargesALayerForTheSameParts(t *testing.T) {
	p := usual(t)
	j := testJob(cluster(t, "1x1 fast", p, "bus", "net"), []units.Tokens{2048})
	c := newCoster(NewPredictor(p), j)
	m := j.Model
	l := op.Layer{Tokens: 2048, Hidden: m.Hidden, FFN: m.FFN, QHeads: m.QHeads, KVHeads: m.KVHeads, HeadDim: m.HeadDim, DType: j.DType}
	whole := Shard{Segments: []Segment{{0, 2048}}}
	forward := c.beforeAttention("fast", 2048, nil) + c.attention("fast", whole, whole, m.QHeads, m.KVHeads, false, nil) + c.afterAttention("fast", 2048, nil)
	backward := c.backToAttention("fast", 2048, nil) + c.attention("fast", whole, whole, m.QHeads, m.KVHeads, true, nil) + c.backFromAttention("fast", 2048, nil)
	for s, want := range map[op.Shape]units.Seconds{op.LayerFwd{Layer: l}: forward, op.LayerBwd{Layer: l}: backward} {
		if e, err := c.q.Time("fast", s); err != nil || c.err != nil || !near(e.Mid, want, 1e-12) {
			t.Errorf("%s: %v, %v; the step charges %v, %v", s.Kind(), e.Mid, err, want, c.err)
		}
	}
}

func slicesWithout(laws []Law, kinds ...op.Kind) []Law {
	var kept []Law
	for _, l := range laws {
		drop := false
		for _, k := range kinds {
			drop = drop || l.Op == k
		}
		if !drop {
			kept = append(kept, l)
		}
	}
	return kept
}

// withKernels replaces every attention law of a profile by two kernels', of
// which the second is twice as fast.
func withKernels(p *Profile, slow, fast string) {
	var laws []Law
	for _, l := range p.Laws {
		if l.Op != op.KindAttnFwd && l.Op != op.KindAttnBwd {
			laws = append(laws, l)
			continue
		}
		for name, factor := range map[string]float64{slow: 1, fast: 0.5} {
			k := l
			k.Variant.Kernel = name
			k.Linear = &Linear{Parallel: 1, PerFLOP: coef(factor * l.Linear.PerFLOP.Value)}
			laws = append(laws, k)
		}
	}
	p.Laws = laws
}

func TestAttentionWithoutKernelTakesTheFastest(t *testing.T) {
	p := usual(t)
	a := op.AttnFwd{Attention: op.Attention{Mask: op.Diag, QLen: 512, KVLen: 512, QHeads: 4, KVHeads: 2, HeadDim: 64, DType: op.F32}}
	before, err := NewPredictor(p).Time("fast", a)
	if err != nil {
		t.Fatal(err)
	}
	plain := *p
	withKernels(p, "fa2", "fa3")
	q := NewPredictor(p)
	if l, err := q.Law("fast", a.Kind(), a.Variant()); err != nil || l.Variant.Kernel != "fa3" {
		t.Fatalf("%+v, %v", l, err)
	}
	if e, _ := q.Time("fast", a); !near(e.Mid, before.Mid/2, 1e-12) {
		t.Errorf("%v, want half of %v", e.Mid, before.Mid)
	}
	a.Kernel = "fa2" // by name there is no choice
	if e, _ := q.Time("fast", a); !near(e.Mid, before.Mid, 1e-12) {
		t.Errorf("fa2 takes %v, want %v", e.Mid, before.Mid)
	}
	a.Kernel = "fa4"
	if _, err := q.Time("fast", a); err == nil || !strings.Contains(err.Error(), "attn_fwd (diag d64 f32 fa4)") {
		t.Errorf("%v", err)
	}
	// A law without kernel is nobody's substitute.
	both := *p
	both.Laws = append(append([]Law(nil), p.Laws...), plain.Laws[0])
	if l, _ := NewPredictor(&both).Law("fast", plain.Laws[0].Op, plain.Laws[0].Variant); l.Variant.Kernel != "" {
		t.Errorf("%s is taken although there is a law without kernel", l.Variant)
	}
	// The step says which kernel it stands on.
	j := testJob(cluster(t, "1x2 fast", p, "bus", "net"), []units.Tokens{512, 512})
	said := strings.Join(mustSimulate(t, p, j, ringOf([]units.Tokens{512, 512})).Warnings, "\n")
	for _, want := range []string{"attn_bwd (full d64 f32 fa3) on fast: kernel fa3 is the fastest of 2", "attn_bwd (full d64 f32 fa3) on fast: kernel fa3"} {
		if !strings.Contains(said, want) {
			t.Errorf("no %q among the warnings: %s", want, said)
		}
	}
}

// The fastest is chosen where all kernels were measured: one with a high launch
// cost wins on long sequences, and loses where only short ones are common.
func TestTheFastestKernelIsThatOfTheCommonRange(t *testing.T) {
	for _, kind := range []op.Kind{op.KindAttnFwd, op.KindAttnBwd, op.KindAttnVarlenFwd, op.KindAttnVarlenBwd} {
		law := func(kernel string, launch, perFLOP, most float64) Law {
			v := op.Variant{HeadDim: 64, DType: op.F32, Kernel: kernel}
			if kind == op.KindAttnFwd || kind == op.KindAttnBwd {
				v.Mask = op.Diag
			}
			l := Law{Op: kind, Variant: v, Device: "fast", Linear: &Linear{Parallel: 1, Launch: coef(launch), PerFLOP: coef(perFLOP)}, Spread: tenPercent}
			for _, axis := range op.CoordNames(kind) {
				top := most
				if strings.HasSuffix(axis, "heads") {
					top = 4
				}
				l.Range = append(l.Range, AxisRange{axis, 1, top})
			}
			return l
		}
		for most, want := range map[float64]string{64: "quick", 1 << 16: "wide"} {
			p := usual(t)
			p.Laws = append(slicesWithout(p.Laws, op.KindAttnFwd, op.KindAttnBwd), law("wide", 1e-4, 1e-14, most), law("quick", 1e-6, 1e-11, 1<<16))
			if err := p.Validate(); err != nil {
				t.Fatal(err)
			}
			v := p.Laws[len(p.Laws)-1].Variant
			v.Kernel = ""
			if l, err := NewPredictor(p).Law("fast", kind, v); err != nil || l.Variant.Kernel != want {
				t.Errorf("%s up to %v: %v, want %s", kind, most, l, want)
			}
		}
	}
}
