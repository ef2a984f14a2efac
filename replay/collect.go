package replay

import (
	"fmt"
	"os"
	"slices"

	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/profile/backend/torch"
	"github.com/evenkeel/evenkeel/python"
)

// collect makes the trace of what rank 0 wrote and of what the ranks said.
func (r *run) collect() error {
	h := r.header()
	result := r.ranks[0].result
	f, err := os.Open(r.traceFile(0))
	if err != nil {
		return fmt.Errorf("%s gave a result but no spans: %w", r.name(0), err)
	}
	defer f.Close()
	var spans, steps int64
	return WriteTrace(r.config.Out, h, func(span func(*Span) error, step func(*Step) error) error {
		name := "spans of the ranks"
		d := &reader{name: name}
		lines := doc.LineReader{MaxLine: maxLine}
		torn, err := lines.Read(name, f, func(n int, data []byte) error {
			if lineType(data) == lineStep {
				steps++
				return decodeLine(d, n, data, &d.step, step)
			}
			spans++
			return decodeLine(d, n, data, &d.span, span)
		})
		if err == nil && (torn || spans != result.Spans || steps != result.Steps) {
			err = fmt.Errorf("rank 0 wrote %d spans and %d steps and says they are %d and %d: is the disk of %s full?", spans, steps, result.Spans, result.Steps, r.folder)
		}
		return err
	})
}

func (r *run) header() *Header {
	c, result := r.config, r.ranks[0].result
	h := &Header{
		Header:  doc.Header{Schema: TraceSchema, Tool: c.Tool, Created: c.Created, Inputs: c.Inputs},
		Backend: r.backend, Mode: r.mode, Parts: c.Parts, Layers: c.Layers, LossChunk: c.LossChunk, Kernel: r.ranks[0].hello.Kernel, Docs: c.Docs, Seed: c.Seed,
		Repeats: c.Repeats, Warmup: c.Warmup, Program: python.Hash(), Oversubscribed: c.crowded, Numerics: result.Numerics, Exact: result.Exact,
	}
	for i, p := range c.Plans {
		run := p.run()
		if !p.Several() && !p.Tasks() {
			run.Micro = c.micro()
		}
		if i < len(c.Inputs) {
			run.Path = c.Inputs[i].Path
		}
		h.Plans = append(h.Plans, run)
	}
	for i, p := range c.Plans[0].Ranks {
		h.Ranks = append(h.Ranks, r.rankOf(i, p.Device))
	}
	return h
}

// micro is the micro-batches of a step of plans of one sequence, as a header has it: where
// any plan has its micro-batches in twos all have two, so that their steps compare.
func (c *Config) micro() int {
	if slices.ContainsFunc(c.Plans, func(p *Plan) bool { return p.TwoBatch }) {
		return 2
	}
	return 0
}

// run is the plan as the header has it.
func (p *Plan) run() PlanRun {
	if p.Batch() {
		return PlanRun{
			Path: p.Path, SHA256: p.SHA256, Strategy: p.Strategy, Batch: true, Micro: len(p.micro), Model: &p.Job.Model, DType: p.Job.DType,
			Zero: p.Job.Zero, OverlapZero: p.Job.OverlapZero, LeftOut: p.leftOut, Groups: p.groups(),
		}
	}
	if p.stages != nil {
		return PlanRun{Path: p.Path, SHA256: p.SHA256, Strategy: p.Strategy, Micro: len(p.stages.Chunks), Model: &p.Job.Model, DType: p.Job.DType, Pipeline: p.stages}
	}
	if p.Tasks() {
		return PlanRun{Path: p.Path, SHA256: p.SHA256, Strategy: p.Strategy, Micro: len(p.tasks.Runs), DType: p.Job.DType, Tasks: p.tasks}
	}
	return PlanRun{Path: p.Path, SHA256: p.SHA256, Strategy: p.Strategy, Job: p.Job, Layout: p.Layout()}
}

// rankOf is what is known of a rank: from itself where it ran here, else from
// what rank 0 learned when they met.
func (r *run) rankOf(i int, device string) Rank {
	threads, _, _ := torch.Processor(device)
	k := Rank{Rank: i, Device: device, Threads: threads}
	for _, m := range r.ranks {
		if m.rank == i {
			k.Host, k.Cores, k.Python, k.Torch = m.hello.Host, m.cores, m.hello.Python, m.hello.Torch
			return k
		}
	}
	for _, met := range r.ranks[0].result.Ranks {
		if met.Rank == i {
			k.Host, k.Cores, k.Python, k.Torch = met.Host, met.Cores, met.Python, met.Torch
		}
	}
	return k
}
