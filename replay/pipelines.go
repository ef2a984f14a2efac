package replay

import (
	"fmt"

	"github.com/evenkeel/evenkeel/costmodel/pipeline"
	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver"
	pipelines "github.com/evenkeel/evenkeel/solver/pipeline"
	"github.com/go-json-experiment/json"
)

// pipelineKind begins the schemas of plans of pipelines, of any version.
const pipelineKind = "evenkeel.pipelineplan/"

// PipelineRun is a batch on the stages of a pipeline, as it was planned.
type PipelineRun struct {
	Lengths []units.Tokens `json:"lengths_tokens"` // of the sequences
	Layers  int            `json:"layers"`         // of the model; all are run
	pipeline.Plan
}

// pipelineHead is a plan of a pipeline as far as the rank program reads it.
type pipelineHead struct {
	Schema string     `json:"schema"`
	Job    partJob    `json:"job"`
	Ranks  []partRank `json:"ranks"`
	PipelineRun
}

// readPipeline fills a plan from a document of a pipeline.
func (p *Plan) readPipeline(data []byte, of *Trained) error {
	var d pipelines.Document
	if err := doc.Decode(p.Path, data, &d); err != nil {
		return err
	}
	if of == nil {
		return &NoModelError{Path: p.Path, Schema: d.Schema}
	}
	p.from(d.Header, d.Strategy, d.Simulated, of)
	p.Ranks = make([]solver.PlanRank, len(d.Devices))
	for r, device := range d.Devices {
		p.Ranks[r] = solver.PlanRank{Rank: r, Device: device, Group: -1}
	}
	err := p.trains(d.Lengths)
	if err == nil {
		err = p.suits(&d)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", p.Path, err)
	}
	p.stages = &PipelineRun{Lengths: d.Lengths, Layers: d.Layers, Plan: d.Plan}
	head := pipelineHead{Schema: d.Schema, Job: partJob{Model: p.Job.Model, DType: p.Job.DType}, Ranks: p.bare(), PipelineRun: *p.stages}
	p.raw, err = json.Marshal(head)
	return err
}

// suits checks that the stages can run, none waiting for ever, and that the model has their
// layers, and heads for their ranks.
func (p *Plan) suits(d *pipelines.Document) error {
	m := p.Job.Model
	if m.Layers != d.Layers {
		return fmt.Errorf("layers: %d: the model has %d: name the config.json that the plan was made for: --model", d.Layers, m.Layers)
	}
	if err := d.Plan.Validate(d.Lengths, d.Layers, len(d.Devices)); err != nil {
		return err
	}
	for s, x := range d.Stages {
		if m.QHeads%len(x.Ranks) != 0 {
			return fmt.Errorf("stages[%d].ranks: %d of them share each layer's heads, and the model has %d query heads: name the config.json that the plan was made for: --model", s, len(x.Ranks), m.QHeads)
		}
	}
	return nil
}

// validPipeline checks a pipeline of a trace.
func (p *PlanRun) validPipeline(ranks int) error {
	x := p.Pipeline
	switch {
	case p.Micro != len(x.Chunks):
		return fmt.Errorf("micro_batches: %d: want as many as there are chunks, %d", p.Micro, len(x.Chunks))
	case p.Groups != nil:
		return fmt.Errorf("groups: only of a plan of batches")
	case x.Layers != p.Model.Layers:
		return fmt.Errorf("pipeline.layers: %d: want the model's %d", x.Layers, p.Model.Layers)
	}
	for i, n := range x.Lengths {
		if n < 1 || n > maxTokens {
			return fmt.Errorf("pipeline.lengths_tokens[%d]: %d: want 1 to %d", i, int64(n), int64(maxTokens))
		}
	}
	if err := x.Validate(x.Lengths, x.Layers, ranks); err != nil {
		return fmt.Errorf("pipeline.%w", err)
	}
	for s, of := range x.Stages {
		if p.Model.QHeads%len(of.Ranks) != 0 {
			return fmt.Errorf("pipeline.stages[%d].ranks: %d of them: want a divisor of the model's %d query heads", s, len(of.Ranks), p.Model.QHeads)
		}
	}
	return nil
}
