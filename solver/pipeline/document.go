package pipeline

import (
	"fmt"
	"math"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/pipeline"
	"github.com/evenkeel/evenkeel/costmodel/workload"
	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/recommend"
)

// Schema is the schema of the plans this version writes.
const Schema = "evenkeel.pipelineplan/v1"

// Document is a plan of a pipeline together with the batch and the other strategies' times.
// It does not contain the prices, which follow from the job and the inputs that the header names
// by hash.
type Document struct {
	doc.Header
	Name   string `json:"name"`
	Prices string `json:"prices"` // where they come from, for the user
	// Simulated is true if the prices' laws were made on a simulated backend.
	Simulated bool           `json:"simulated,omitzero"`
	Lengths   []units.Tokens `json:"lengths_tokens"` // of the sequences
	// Rows are the places of the sequences in what they are from, an input or a distribution,
	// counted from 0; none where they are its first ones.
	Rows    []int    `json:"lengths_rows,omitempty"`
	Layers  int      `json:"layers"`  // of the model
	Devices []string `json:"devices"` // by rank
	// Job is what the prices are of: the model, the cluster and the settings, but for recomputation,
	// which the plan decides. Plans have none from before they held it.
	Job costmodel.Job `json:"job,omitzero"`
	// StagesOf, unless empty, is the input whose stages the plan had to have: an earlier plan.
	StagesOf string `json:"stages_of,omitzero"`
	Strategy string `json:"strategy"` // whose plan it is
	// Taken is true if the user named the strategy and another one would be recommended.
	Taken bool `json:"taken,omitzero"`
	pipeline.Plan
	Bound    units.Seconds         `json:"lower_bound_s"` // of every plan's time
	Gap      float64               `json:"gap"`           // step time / lower bound - 1
	Memory   []pipeline.Memory     `json:"memory"`        // of each rank, by stage
	Compared []recommend.Candidate `json:"considered"`    // all strategies, this one included
	Notes    []string              `json:"notes"`         // what the model leaves out, for the user
}

// Limits of a document, far above what is trained in a step.
const (
	mostLengths = 1 << 20
	mostLayers  = 1 << 12 // as of a costmodel.Model
)

// Head implements doc.Document.
func (d *Document) Head() *doc.Header { return &d.Header }

// SchemaName implements doc.Document.
func (*Document) SchemaName() string { return Schema }

// Validate implements doc.Document: all that can be checked without prices.
func (d *Document) Validate() error {
	if len(d.Lengths) < 1 || len(d.Lengths) > mostLengths {
		return fmt.Errorf("lengths_tokens: %d: want 1 to %d sequences", len(d.Lengths), mostLengths)
	}
	for i, n := range d.Lengths {
		if n < 1 || n > math.MaxInt32 {
			return fmt.Errorf("lengths_tokens[%d]: %d: want 1 to %d", i, int64(n), math.MaxInt32)
		}
	}
	if err := workload.CheckRows(d.Rows, len(d.Lengths)); err != nil {
		return err
	}
	if d.Layers < 1 || d.Layers > mostLayers {
		return fmt.Errorf("layers: %d: want 1 to %d", d.Layers, mostLayers)
	}
	for r, device := range d.Devices {
		if device == "" {
			return fmt.Errorf("devices[%d]: empty", r)
		}
	}
	if d.StagesOf != "" && !slices.ContainsFunc(d.Inputs, func(in doc.Input) bool { return in.Path == d.StagesOf }) {
		return fmt.Errorf("stages_of: %q: want one of inputs", d.StagesOf)
	}
	batch := batch{d.Lengths, d.Layers, len(d.Devices)}
	if found := batch.rules(&d.Plan); len(found) > 0 {
		return found[0]
	}
	if found := batch.times(&d.Plan); len(found) > 0 {
		return found[0]
	}
	if err := d.ofJob(); err != nil {
		return err
	}
	switch {
	case len(d.Memory) != len(d.Stages):
		return fmt.Errorf("memory: of %d stages: want %d", len(d.Memory), len(d.Stages))
	case !(d.Bound >= 0) || math.IsInf(float64(d.Bound), 1) || recommend.Beaten(d.Bound, d.Time):
		return fmt.Errorf("lower_bound_s: %v: want a time of at most step_s, %v", d.Bound, d.Time)
	}
	if want := recommend.Gap(d.Time, d.Bound); !recommend.Agree(d.Gap, want) {
		return fmt.Errorf("gap: %v: step_s over lower_bound_s - 1 is %v", d.Gap, want)
	}
	for s, m := range d.Memory {
		if m.States < 0 || m.Activations < 0 || m.Capacity < 0 {
			return fmt.Errorf("memory[%d]: want bytes of 0 or more", s)
		}
		if m.Capacity > 0 && m.Peak() > m.Capacity {
			return fmt.Errorf("memory[%d]: %v: want at most what plans may fill, %v", s, m.Peak(), m.Capacity)
		}
	}
	t := recommend.Table{Strategy: d.Strategy, Time: d.Time, Bound: d.Bound, Taken: d.Taken}
	for i := range d.Compared {
		t.Candidates = append(t.Candidates, &d.Compared[i])
	}
	return t.Validate()
}

// Priced says whether the document holds the job that its prices are of.
func (d *Document) Priced() bool { return d.Job.SeqLen != 0 || d.Job.Model.Layers != 0 }

// ofJob says which part of the job, if it is there, is not the plan's.
func (d *Document) ofJob() error {
	if !d.Priced() {
		return nil
	}
	if err := d.Job.Validate(); err != nil {
		return fmt.Errorf("job.%w", err)
	}
	if n := d.Job.Model.Layers; n != d.Layers {
		return fmt.Errorf("job.model.layers: %d: layers is %d", n, d.Layers)
	}
	if longest := slices.Max(d.Lengths); d.Job.SeqLen != longest {
		return fmt.Errorf("job.seq_len_tokens: %d: want the longest of lengths_tokens, %d", int64(d.Job.SeqLen), int64(longest))
	}
	ranks := d.Job.Cluster.Ranks()
	if len(ranks) != len(d.Devices) {
		return fmt.Errorf("job.cluster: %s: devices lists %d", units.Count(len(ranks), "device"), len(d.Devices))
	}
	for r, x := range ranks {
		if x.Device != d.Devices[r] {
			return fmt.Errorf("job.cluster: its rank %d is %s: devices[%d] is %s", r, x.Device, r, d.Devices[r])
		}
	}
	return nil
}

// Types are the device types that the plan is on, by stage and rank.
func (d *Document) Types() (all []string) {
	for _, s := range d.Stages {
		for _, r := range s.Ranks {
			all = append(all, d.Devices[r])
		}
	}
	return all
}

// Chosen is the candidate whose plan the document holds; nil if Compared does not list it.
func (d *Document) Chosen() *recommend.Candidate { return recommend.ChosenOf(d.Compared) }

// Baseline is the fastest of the baselines' candidates; nil if no baseline has a plan.
func (d *Document) Baseline() *recommend.Candidate { return recommend.BaselineOf(d.Compared) }
