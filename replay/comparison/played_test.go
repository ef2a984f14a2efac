package comparison

import (
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/replay"
)

// linkRate is that of the made-up profile's links, in B/s: slow enough for
// messages to be seen.
const linkRate = 2e9

// madeUp is a profile of two device types, fast and slow, over one link class.
func madeUp(t testing.TB, rate float64) *costmodel.Profile {
	t.Helper()
	p := &costmodel.Profile{}
	coef := func(v float64) costmodel.Coef { return costmodel.Coef{Value: v, Lo: v, Hi: v} }
	law := func(k op.Kind, v op.Variant) costmodel.Law {
		l := costmodel.Law{Op: k, Variant: v, Spread: costmodel.Spread{Lo: 0.9, Hi: 1.1}}
		for _, axis := range op.CoordNames(k) {
			l.Range = append(l.Range, costmodel.AxisRange{Axis: axis, Min: 1, Max: 1e18})
		}
		return l
	}
	line := func(alpha, rate float64) *costmodel.Curve {
		return &costmodel.Curve{Form: costmodel.AlphaBeta, Pieces: []costmodel.Piece{{Alpha: coef(alpha), Beta: coef(1 / rate)}}}
	}
	for name, rate := range map[string]float64{"fast": 2e12, "slow": 1e12} {
		p.Devices = append(p.Devices, op.DeviceType{Name: name, Fingerprint: "f", Parallel: 1, Memory: 1 << 40})
		add := func(l costmodel.Law) { l.Device = name; p.Laws = append(p.Laws, l) }
		linear := func(k op.Kind, v op.Variant) {
			l := law(k, v)
			l.Linear = &costmodel.Linear{Parallel: 1, PerFLOP: coef(1 / rate)}
			add(l)
		}
		for _, mask := range []op.Mask{op.Full, op.Diag} {
			for _, k := range []op.Kind{op.KindAttnFwd, op.KindAttnBwd} {
				linear(k, op.Variant{Mask: mask, HeadDim: 64, DType: op.F32})
			}
		}
		for _, pass := range []op.Pass{op.Forward, op.DGrad, op.WGrad} {
			linear(op.KindGEMM, op.Variant{Pass: pass, DType: op.F32})
		}
		for _, k := range []op.Kind{op.KindNorm, op.KindRope, op.KindSwiGLU, op.KindCEChunk, op.KindAdamW, op.KindLSEMerge} {
			l := law(k, op.Variant{DType: op.F32})
			l.Curve = line(1e-9, rate/2)
			add(l)
		}
	}
	g := op.NewGroupType([]op.Member{{Device: "any", Count: 4}}, 1, "bus")
	p.Groups = append(p.Groups, g)
	for _, k := range []op.Kind{op.KindSendRecv, op.KindAllToAll, op.KindAllGather, op.KindReduceScatter, op.KindAllReduce} {
		l := law(k, op.Variant{})
		l.Group, l.Curve = g.Name, line(1e-6, rate)
		p.Laws = append(p.Laws, l)
	}
	if err := p.Validate(); err != nil {
		t.Fatal(err)
	}
	return p
}

// jobOf is a small job on two fast and two slow devices.
func jobOf(t testing.TB, p *costmodel.Profile, tokens ...units.Tokens) costmodel.Job {
	t.Helper()
	c, err := costmodel.ParseCluster("1x(2 fast + 2 slow)")
	if err == nil {
		c, err = c.Resolve(p, "bus", "")
	}
	if err != nil {
		t.Fatal(err)
	}
	j := costmodel.Job{
		Model:   costmodel.Model{Name: "test", Layers: 6, Hidden: 256, FFN: 688, QHeads: 4, KVHeads: 2, HeadDim: 64, Vocab: 1000, GatedMLP: true},
		Cluster: c, DType: op.F32, Recompute: costmodel.RecomputeNone, RingBuffers: 2, LossChunk: 300,
	}
	for _, n := range tokens {
		j.SeqLen += n
	}
	return j
}

// ring puts every rank into a group of its own.
func ring(tokens ...units.Tokens) costmodel.Layout {
	return costmodel.ZigZag(tokens, costmodel.Singles(tokens, 4))
}

// pairs are two all-to-all groups of two, each a fast and a slow rank.
func pairs(tokens ...units.Tokens) costmodel.Layout {
	return costmodel.ZigZag(tokens, []costmodel.Group{{{Rank: 0, QHeads: 3}, {Rank: 2, QHeads: 1}}, {{Rank: 1, QHeads: 2}, {Rank: 3, QHeads: 2}}})
}

// inChunks is one group of all ranks, which compute their heads in chunks.
func inChunks(tokens ...units.Tokens) costmodel.Layout {
	l := costmodel.ZigZag(tokens, []costmodel.Group{{{Rank: 0, QHeads: 3}, {Rank: 1, QHeads: 1}, {Rank: 2, QHeads: 0}, {Rank: 3, QHeads: 0}}})
	l.HeadChunks = 2
	return l
}

// inTwos lets micro-batches go through the layers in twos.
func inTwos(l costmodel.Layout) costmodel.Layout {
	l.TwoBatch = true
	return l
}

func ownLast(l costmodel.Layout) costmodel.Layout {
	l.OwnLast = true
	return l
}

// world is what a made-up machine does unlike the profile says.
type world struct {
	job       costmodel.Job
	layouts   []costmodel.Layout
	layers    int
	micro     int // micro-batches; 0 is one
	blocks    int
	attention bool
	loss      bool                                    // behind the layers, of as many tokens at a time as the job says
	step      bool                                    // whole steps, of all the model's layers, with gradients added up by all_reduce
	docs      []units.Tokens                          // packed into the sequence
	slower    func(costmodel.ReplayKey) float64       // of computing; nil is 1
	gap       func(costmodel.ReplayKey) units.Seconds // after a stretch of computing; nil is none
	rate      float64                                 // of links; 0 is linkRate
	noise     float64                                 // of every stretch of computing
	drift     float64                                 // of all that a block computes
	drop      func(*replay.Span) bool                 // spans that are not recorded
	change    func(*replay.Header)
}

// header is that of the world's trace.
func (w *world) header() *replay.Header {
	h := &replay.Header{
		Header:  doc.Header{Schema: replay.TraceSchema, Tool: "test", Created: "2026-01-31T12:00:00Z"},
		Backend: "gloo", Mode: replay.ModeCPU, Parts: replay.PartsLayer, Layers: max(1, w.layers), Kernel: "math",
		Docs: w.docs, Seed: 1, Repeats: w.blocks, Warmup: 2,
	}
	if w.step {
		h.Parts, h.LossChunk, h.Layers = replay.PartsStep, w.job.LossChunk, w.job.Model.Layers
	}
	if w.attention {
		h.Parts = replay.PartsAttention
	}
	if w.loss {
		h.Parts, h.LossChunk = replay.PartsLoss, w.job.LossChunk
	}
	for i, l := range w.layouts {
		h.Plans = append(h.Plans, replay.PlanRun{Path: "a.plan.json", SHA256: strings.Repeat("ab", 32), Strategy: "evenkeel", Job: w.job, Layout: l, Micro: w.micro})
		h.Numerics = append(h.Numerics, replay.Numerics{Plan: i, Limit: 1e-5, Reference: "dense", Loss: lossOf(h)})
		if w.step {
			updated(&h.Numerics[i], w.job.Model, l)
		}
		h.Exact = append(h.Exact, replay.ExactCounts{Plan: i, Messages: 1, Bytes: 1, FLOPs: 1})
	}
	for r, rank := range w.job.Cluster.Ranks() {
		h.Ranks = append(h.Ranks, replay.Rank{Rank: r, Host: "h", Device: rank.Device, Threads: 1, Python: "3.11.2", Torch: "2.1.0"})
	}
	if w.change != nil {
		w.change(h)
	}
	return h
}

// updated adds what is checked of whole steps.
func updated(n *replay.Numerics, m costmodel.Model, l costmodel.Layout) {
	n.Update = &replay.UpdateNumerics{Limit: 1e-3, Parameters: m.Params()}
	ranks := 0
	for _, g := range l.Groups {
		ranks += len(g)
	}
	if ranks > 1 {
		n.Exchange = &replay.ExchangeNumerics{Limit: 1e-5, DType: op.F32, Kind: op.KindAllReduce}
	}
}

// play writes the trace of a world.
func (w *world) play(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "x.trace.jsonl")
	if w.rate == 0 {
		w.rate = linkRate
	}
	one := w.job
	one.Accumulate = 0
	s, err := costmodel.NewSimulator(costmodel.NewPredictor(madeUp(t, w.rate)), one)
	if err != nil {
		t.Fatal(err)
	}
	h := w.header()
	rng := rand.New(rand.NewPCG(7, 11))
	err = replay.WriteTrace(path, h, func(span func(*replay.Span) error, step func(*replay.Step) error) error {
		for b := range w.blocks {
			drift := math.Exp(w.drift * rng.NormFloat64())
			for i := range w.layouts {
				if err := w.block(s, h, i, b, drift, rng, span, step); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// stretches are how long the world computes and rests, stretch by stretch.
func (w *world) stretches(r *costmodel.Replayed, drift float64, rng *rand.Rand) (took, gaps map[costmodel.ReplayKey]units.Seconds) {
	took, gaps = map[costmodel.ReplayKey]units.Seconds{}, map[costmodel.ReplayKey]units.Seconds{}
	for _, k := range r.Tasks {
		if k.Op.Waits() {
			continue
		}
		took[stretch(joined(k.ReplayKey))] += k.Time
	}
	for _, k := range r.Tasks { // in order, for the sake of the noise
		if k.Op.Waits() || k.Op == costmodel.MergeOp {
			continue
		}
		key := joined(k.ReplayKey)
		factor := drift * math.Exp(w.noise*rng.NormFloat64())
		if w.slower != nil {
			factor *= w.slower(key)
		}
		took[key] *= units.Seconds(factor)
		if w.gap != nil && took[key] > 0 {
			gaps[key] = w.gap(key)
		}
	}
	return took, gaps
}

func (w *world) block(s *costmodel.Simulator, h *replay.Header, plan, block int, drift float64, rng *rand.Rand, span func(*replay.Span) error, step func(*replay.Step) error) error {
	work := costmodel.ReplayWork{Layout: w.layouts[plan], Layers: h.Layers, Micro: w.micro, AttentionOnly: w.attention, Packed: w.docs, Loss: w.loss, Update: w.step, Reduced: costmodel.Reduction{Whole: w.step}}
	r, err := s.Replayed(work)
	if err != nil {
		return err
	}
	took, gaps := w.stretches(r, drift, rng)
	if r, err = s.Supposing(work, func(k costmodel.ReplayKey) (units.Seconds, bool) { return took[k] + gaps[k], true }); err != nil {
		return err
	}
	ns := func(t units.Seconds) int64 { return int64(math.Round(float64(t) * 1e9)) }
	for _, k := range r.Tasks {
		if key := stretch(joined(k.ReplayKey)); !k.Op.Waits() && k.Time > 0 {
			k.Time *= took[key] / (took[key] + gaps[key])
		}
		x := &replay.Span{Block: block, Plan: plan, Rank: k.Rank, MB: k.Micro, Layer: k.Layer, Dir: replay.Dir(k.Dir), Again: k.Again, Step: k.Step, Chunk: k.Chunk, Op: replay.SpanOp(k.Op), T0NS: ns(k.Start), DurNS: ns(k.Start+k.Time) - ns(k.Start)}
		if x.Op == replay.A2AIn || x.Op == replay.A2AOut {
			x.Out = 1
		}
		if w.drop != nil && w.drop(x) {
			continue
		}
		if err := span(x); err != nil {
			return err
		}
	}
	for rank := range h.Ranks {
		if err := step(&replay.Step{Block: block, Plan: plan, Rank: rank, DurNS: ns(r.Ranks[rank].End)}); err != nil {
			return err
		}
	}
	return nil
}

// read reads a trace back.
func read(t testing.TB, path string) *Recording {
	t.Helper()
	rec, err := Read(path, opened(t, path))
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

func opened(t testing.TB, path string) *os.File {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}
