package comparison

import (
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/costmodel/pipeline"
	"github.com/evenkeel/evenkeel/fit"
	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/replay"
)

// relay is a made-up machine that plays pipelines, or tasks, on ranks like those of a party.
type relay struct {
	plans  []replay.PipelineRun
	tasks  []replay.TasksRun
	slower func(costmodel.ReplayKey) float64       // of computing; nil is 1
	gap    func(costmodel.ReplayKey) units.Seconds // after a stretch of computing; nil is none
	rate   float64                                 // of links; 0 is linkRate
	noise  float64                                 // of every stretch of computing
	drop   func(*replay.Span) bool                 // spans that are not recorded
	change func(*replay.Header)
}

// stagesOf gives layers to stages of ranks.
func stagesOf(layers []int, ranks ...[]int) (all []pipeline.Stage) {
	for s, n := range layers {
		all = append(all, pipeline.Stage{Ranks: ranks[s], Layers: n})
	}
	return all
}

// sliced is a long sequence in three slices, of which one has short ones beside it, and a pack
// of others: all chunks go forward, and then backward the other way round.
func sliced(stages []pipeline.Stage) replay.PipelineRun {
	x := replay.PipelineRun{Lengths: []units.Tokens{3000, 400, 900, 160, 16}}
	x.Stages = stages
	x.Chunks = []pipeline.Chunk{
		{Sequence: 0, Slice: 1200},
		{Sequence: -1, Whole: []int{2, 1}},
		{Sequence: 0, Context: 1200, Slice: 1000, Whole: []int{3, 4}},
		{Sequence: 0, Context: 2200, Slice: 800},
	}
	n := len(x.Chunks)
	for s, of := range stages {
		x.Layers += of.Layers
		x.Recompute = append(x.Recompute, []int{of.Layers, 0, min(1, of.Layers), s % 2})
		var order []pipeline.Op
		for k := range 2 * n {
			if k < n {
				order = append(order, pipeline.Op{Chunk: k})
				continue
			}
			order = append(order, pipeline.Op{Chunk: 2*n - 1 - k, Backward: true})
		}
		x.Orders = append(x.Orders, order)
	}
	return x
}

// inTurns are n equal sequences, a chunk each, one forward and one backward.
func inTurns(n int, stages []pipeline.Stage) replay.PipelineRun {
	var x replay.PipelineRun
	x.Stages = stages
	for k := range n {
		x.Lengths, x.Chunks = append(x.Lengths, 600), append(x.Chunks, pipeline.Chunk{Sequence: -1, Whole: []int{k}})
	}
	for s, of := range stages {
		x.Layers += of.Layers
		x.Recompute = append(x.Recompute, make([]int, n))
		var order []pipeline.Op
		ahead := min(n, len(stages)-s)
		for k := range n + ahead {
			if k >= ahead {
				order = append(order, pipeline.Op{Chunk: k - ahead, Backward: true})
			}
			if k < n {
				order = append(order, pipeline.Op{Chunk: k})
			}
		}
		x.Orders = append(x.Orders, order)
	}
	return x
}

// relays are pipelines that every disturbance is tried on. Ranks 0 and 2 are fast.
func relays() map[string]relay {
	one := func(x replay.PipelineRun) relay { return relay{plans: []replay.PipelineRun{x}} }
	return map[string]relay{
		"pairs":     one(sliced(stagesOf([]int{4, 2}, []int{0, 2}, []int{1, 3}))),
		"singles":   one(sliced(stagesOf([]int{2, 1, 2, 1}, []int{0}, []int{1}, []int{2}, []int{3}))),
		"turns":     one(inTurns(7, stagesOf([]int{1, 2, 1}, []int{3}, []int{0, 2}, []int{1}))),
		"unlike":    one(sliced(stagesOf([]int{2, 1}, []int{0, 1}, []int{2, 3}))),
		"one stage": one(sliced(stagesOf([]int{2}, []int{0, 1, 2, 3}))),
		"one rank":  one(sliced(stagesOf([]int{3}, []int{2}))),
		"loss":      losing(one(sliced(stagesOf([]int{2, 1}, []int{0, 2}, []int{1, 3})))),
	}
}

// lossOf is what is said of the loss where it is run.
func lossOf(h *replay.Header) *replay.LossNumerics {
	if !replay.WithLoss(h.Parts) {
		return nil
	}
	return &replay.LossNumerics{Limit: 1e-5, Rows: 1}
}

// losing has the loss behind the last stage.
func losing(w relay) relay {
	w.change = func(h *replay.Header) { h.Parts, h.LossChunk = replay.PartsLoss, 512 }
	return w
}

func (w *relay) header() *replay.Header {
	h := &replay.Header{
		Header:  doc.Header{Schema: replay.TraceSchema, Tool: "test", Created: "2026-01-31T12:00:00Z"},
		Backend: "gloo", Mode: replay.ModeCPU, Parts: replay.PartsLayer, Layers: 1, Kernel: "math", Seed: 1, Repeats: 6, Warmup: 2,
	}
	for i := range w.plans {
		x, model := w.plans[i], jobModel()
		model.Layers = x.Layers
		h.Plans = append(h.Plans, replay.PlanRun{Path: "a.plan.json", SHA256: strings.Repeat("ab", 32), Strategy: "evenkeel", Micro: len(x.Chunks), Model: &model, DType: op.F32, Pipeline: &x})
	}
	for i := range w.tasks {
		x := w.tasks[i]
		h.Layers = x.Layers()
		h.Plans = append(h.Plans, replay.PlanRun{Path: "t.plan.json", SHA256: strings.Repeat("ab", 32), Strategy: "evenkeel", Micro: len(x.Runs), DType: x.DType, Tasks: &x})
	}
	for r := range 4 {
		h.Ranks = append(h.Ranks, replay.Rank{Rank: r, Host: "h", Device: []string{"fast", "slow"}[r%2], Threads: 1, Python: "3.11.2", Torch: "2.1.0"})
	}
	if w.change != nil {
		w.change(h)
	}
	for i := range h.Plans {
		h.Numerics = append(h.Numerics, replay.Numerics{Plan: i, Limit: 1e-5, Reference: "dense", Loss: lossOf(h)})
		h.Exact = append(h.Exact, replay.ExactCounts{Plan: i, Messages: 1, Bytes: 1, FLOPs: 1})
	}
	return h
}

// play writes the relay's trace.
func (w *relay) play(t testing.TB) string {
	t.Helper()
	if w.rate == 0 {
		w.rate = linkRate
	}
	h, profile := w.header(), madeUp(t, w.rate)
	c := &making{rec: &Recording{Header: h}, profile: profile, predictor: costmodel.NewPredictor(profile)}
	path := filepath.Join(t.TempDir(), "x.trace.jsonl")
	rng := rand.New(rand.NewPCG(7, 11))
	err := replay.WriteTrace(path, h, func(span func(*replay.Span) error, step func(*replay.Step) error) error {
		for b := range h.Repeats {
			for i := range h.Plans {
				if err := w.block(c, i, b, rng, span, step); err != nil {
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

func (w *relay) block(c *making, plan, block int, rng *rand.Rand, span func(*replay.Span) error, step func(*replay.Step) error) error {
	x, err := c.courseOf(plan)
	if err != nil {
		return err
	}
	tasks, gaps := x.tasks, map[costmodel.ReplayKey]units.Seconds{}
	if of := &c.rec.Header.Plans[plan]; of.Pipeline != nil || of.Tasks != nil { // others are played as predicted
		if tasks, gaps, err = w.disturbed(x, rng); err != nil {
			return err
		}
	}
	ns := func(t units.Seconds) int64 { return int64(math.Round(float64(t) * 1e9)) }
	ends := make([]units.Seconds, len(c.rec.Header.Ranks))
	for _, k := range tasks {
		ends[k.Rank] = max(ends[k.Rank], k.Start+k.Time)
		if !k.Op.Waits() {
			of := stretch(joined(k.ReplayKey))
			k.Time -= gaps[of] // all of it behind the stretch's first part
			delete(gaps, of)
		}
		line := &replay.Span{Block: block, Plan: plan, MB: k.Micro, Rank: k.Rank, Layer: k.Layer, Dir: replay.Dir(k.Dir), Again: k.Again, Step: k.Step, Op: replay.SpanOp(k.Op), T0NS: ns(k.Start), DurNS: ns(k.Start+k.Time) - ns(k.Start)}
		if line.Op == replay.A2AIn || line.Op == replay.A2AOut {
			line.Out = 1
		}
		if p := c.rec.Header.Plans[plan].Pipeline; p != nil && line.Op == replay.Attn {
			line.FLOPs = flopsOf(p, line)
		}
		if t := c.rec.Header.Plans[plan].Tasks; t != nil && line.Op == replay.Attn {
			line.FLOPs = taskFLOPs(t, line)
		}
		if w.drop != nil && w.drop(line) {
			continue
		}
		if err := span(line); err != nil {
			return err
		}
	}
	for r, end := range ends {
		if err := step(&replay.Step{Block: block, Plan: plan, Rank: r, DurNS: ns(end)}); err != nil {
			return err
		}
	}
	return nil
}

// flopsOf are those that a rank counts in a layer: two products forward and five backward, of
// each pair of a query with a key that is not behind it in its sequence.
func flopsOf(p *replay.PipelineRun, s *replay.Span) int64 {
	x := p.Chunks[s.MB]
	pairs := int64(0)
	for at := x.Context; at < x.Context+x.Slice; at++ {
		pairs += int64(at) + 1
	}
	for _, w := range x.Whole {
		pairs += int64(p.Lengths[w]) * int64(p.Lengths[w]+1) / 2
	}
	products := int64(2)
	if s.Dir == replay.Backward {
		products = 5
	}
	for _, stage := range p.Stages {
		if slices.Contains(stage.Ranks, s.Rank) {
			return 2 * products * pairs * 64 * 4 / int64(len(stage.Ranks))
		}
	}
	return 0
}

// disturbed is what the ranks do, and how long they rest within stretches. What the ranks of a
// stage wait for one another at the end of a pass, real ones wait in their next message.
func (w *relay) disturbed(x *course, rng *rand.Rand) (tasks []costmodel.ReplayTask, gaps map[costmodel.ReplayKey]units.Seconds, err error) {
	took := map[costmodel.ReplayKey]units.Seconds{}
	gaps = map[costmodel.ReplayKey]units.Seconds{}
	for _, k := range x.tasks {
		if !k.Op.Waits() {
			took[stretch(joined(k.ReplayKey))] += k.Time
		}
	}
	for _, k := range x.tasks { // in order, for the sake of the noise
		key := joined(k.ReplayKey)
		if k.Op.Waits() || k.Op == costmodel.MergeOp {
			continue
		}
		factor := math.Exp(w.noise * rng.NormFloat64())
		if w.slower != nil {
			factor *= w.slower(key)
		}
		if took[key] *= units.Seconds(factor); w.gap != nil {
			gaps[key] = w.gap(key)
		}
	}
	all, err := x.micro[0].of[slices.IndexFunc(x.micro[0].of, func(k *part) bool { return k != nil })].supposing(func(k costmodel.ReplayKey) units.Seconds { return took[k] + gaps[k] })
	if err != nil {
		return nil, nil, err
	}
	at, early := map[int]units.Seconds{}, map[int]units.Seconds{}
	for _, k := range all.Tasks {
		r := k.Rank
		early[r] = max(early[r], k.Start-at[r])
		if k.Start -= early[r]; k.Op.Waits() {
			k.Time, early[r] = k.Time+early[r], 0
		}
		at[r] = k.Start + k.Time
		tasks = append(tasks, k)
	}
	return tasks, gaps, nil
}

func (w *relay) report(t testing.TB) *Report {
	t.Helper()
	r, err := New(read(t, w.play(t)), madeUp(t, linkRate), fit.DefaultLimits(), Links{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range r.Plans {
		addsUp(t, &r.Plans[i])
	}
	return r
}
