package multitask

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/internal/spelling"
	"github.com/evenkeel/evenkeel/internal/units"
)

// Schema is the schema of a description of tasks.
const Schema = "evenkeel.tasks/v1"

// Limits of a description, far above what is trained together.
const (
	MaxModules = 1000
	maxBatch   = 1 << 16
	maxLayers  = 1 << 12 // as of a costmodel.Model
	maxSample  = 1 << 24 // tokens
)

// Tasks is what is trained in a step.
type Tasks struct {
	doc.Header
	Name    string   `json:"name"`
	Modules []Module `json:"modules"`
}

// Module is a stretch of identical layers of one task: an encoder, or a part of one.
type Module struct {
	Name   string `json:"name"`
	Task   string `json:"task"`
	Layers int    `json:"layers"`
	// Batch is the number of samples that go through the module in a step.
	Batch int `json:"batch_samples"`
	// After names the modules whose results this one needs.
	After []string `json:"after,omitempty"`
	// Shape is that of a layer; nil where Curve says what a layer takes.
	Shape *Shape `json:"shape,omitempty"`
	Curve *Curve `json:"curve,omitempty"`
}

// Shape is that of a transformer layer and of the samples that go through it.
type Shape struct {
	SeqLen  units.Tokens `json:"seq_len_tokens"` // of a sample
	Hidden  int          `json:"hidden"`
	FFN     int          `json:"ffn"`
	QHeads  int          `json:"q_heads"`
	KVHeads int          `json:"kv_heads,omitzero"` // 0 is as many as query heads
	HeadDim int          `json:"head_dim,omitzero"` // 0 is hidden / q_heads
	// Causal is true of decoders; encoders see the whole sample.
	Causal bool `json:"causal,omitzero"`
	// GatedMLP is true of layers as Llama has them: with a gate in the MLP, RMSNorm and
	// rotary positions. Others have LayerNorm and learned positions.
	GatedMLP bool `json:"gated_mlp,omitzero"`
}

// Curve is what a layer takes, forward and backward together, on n equal devices:
//
//	T(n) = fixed_s + [n > 1] sync_s + sample_s ceil(batch / n)
//
// It is the form that Spindle's scaling curves have for data parallelism, and of the made-up
// instances that its planner is tested on.
type Curve struct {
	Fixed     units.Seconds `json:"fixed_s"`
	Sync      units.Seconds `json:"sync_s"`
	PerSample units.Seconds `json:"sample_s"`
}

// Time is that of a layer on n devices, each with at most so many samples.
func (c Curve) Time(n, samples int) units.Seconds {
	t := c.Fixed + c.PerSample*units.Seconds(samples)
	if n > 1 {
		t += c.Sync
	}
	return t
}

// Head implements doc.Document.
func (t *Tasks) Head() *doc.Header { return &t.Header }

// SchemaName implements doc.Document.
func (*Tasks) SchemaName() string { return Schema }

// Validate implements doc.Document.
func (t *Tasks) Validate() error {
	if len(t.Modules) < 1 || len(t.Modules) > MaxModules {
		return fmt.Errorf("modules: %d: want 1 to %d", len(t.Modules), MaxModules)
	}
	curves := t.Modules[0].Curve != nil
	for i, m := range t.Modules {
		if err := m.validate(); err != nil {
			return fmt.Errorf("modules[%d] (%s).%w", i, m.Name, err)
		}
		if at := t.index(m.Name); at != i {
			return fmt.Errorf("modules[%d].name: %q: is modules[%d]'s too", i, m.Name, at)
		}
		if (m.Curve != nil) != curves {
			return fmt.Errorf("modules[%d] (%s): modules[0] has a %s and this one not; either all have curves or all have shapes", i, m.Name, map[bool]string{true: "curve", false: "shape"}[curves])
		}
	}
	return t.acyclic()
}

func (m Module) validate() error {
	switch {
	case m.Name == "":
		return fmt.Errorf("name: empty")
	case m.Task == "":
		return fmt.Errorf("task: empty: name the task that the module is part of")
	case m.Layers < 1 || m.Layers > maxLayers:
		return fmt.Errorf("layers: %s: want 1 to %d", given(m.Layers), maxLayers)
	case m.Batch < 1 || m.Batch > maxBatch:
		return fmt.Errorf("batch_samples: %s: want 1 to %d", given(m.Batch), maxBatch)
	case (m.Shape == nil) == (m.Curve == nil):
		return fmt.Errorf("shape, curve: want exactly one of the two")
	case m.Curve != nil:
		return m.Curve.validate()
	}
	s := m.Shape
	if s.SeqLen < 1 || s.SeqLen > maxSample {
		return fmt.Errorf("shape.seq_len_tokens: %s: want 1 to %d", given(s.SeqLen), maxSample)
	}
	if s.HeadDim == 0 && (s.QHeads < 1 || s.Hidden%s.QHeads != 0) {
		return fmt.Errorf("shape.q_heads: %d: want a divisor of hidden, %d, or state head_dim", s.QHeads, s.Hidden)
	}
	if err := m.Model().Validate(); err != nil {
		return fmt.Errorf("shape.%w", err)
	}
	return nil
}

// given is a number that is too small or too large, as it may have been given: 0 is also what
// reading leaves of a key that is not there.
func given[N ~int | ~int64](n N) string {
	if n == 0 {
		return "missing or 0"
	}
	return strconv.FormatInt(int64(n), 10)
}

func (c Curve) validate() error {
	for _, f := range []struct {
		name  string
		value units.Seconds
	}{{"fixed_s", c.Fixed}, {"sync_s", c.Sync}, {"sample_s", c.PerSample}} {
		if !(f.value >= 0 && f.value <= maxSeconds) {
			return fmt.Errorf("curve.%s: %v: want 0 to %v s", f.name, float64(f.value), float64(maxSeconds))
		}
	}
	if c.Fixed+c.PerSample == 0 {
		return fmt.Errorf("curve.sample_s: 0, and so is fixed_s: a layer takes some time")
	}
	return nil
}

// maxSeconds bounds a layer's time, so that sums stay finite.
const maxSeconds units.Seconds = 1e6

// Published says that the modules have curves instead of shapes.
func (t *Tasks) Published() bool { return t.Modules[0].Curve != nil }

// acyclic refuses modules that wait for one another, or for none that there is.
func (t *Tasks) acyclic() error {
	for i, m := range t.Modules {
		for j, name := range m.After {
			if t.index(name) < 0 {
				return fmt.Errorf("modules[%d] (%s).after[%d]: %q: no module is named so%s", i, m.Name, j, name, spelling.Hint(name, t.names()))
			}
			if slices.Contains(m.After[:j], name) {
				return fmt.Errorf("modules[%d] (%s).after[%d]: %q: named twice", i, m.Name, j, name)
			}
		}
	}
	if order := t.Order(); len(order) < len(t.Modules) {
		for i, m := range t.Modules {
			if !slices.Contains(order, i) {
				return fmt.Errorf("modules[%d] (%s).after: it waits for itself, by %q", i, m.Name, m.After)
			}
		}
	}
	return nil
}

func (t *Tasks) names() []string {
	var all []string
	for _, m := range t.Modules {
		all = append(all, m.Name)
	}
	return all
}

func (t *Tasks) index(name string) int {
	return slices.IndexFunc(t.Modules, func(m Module) bool { return m.Name == name })
}

// Needs are, by module, the indices of the modules whose results it needs.
func (t *Tasks) Needs() [][]int {
	needs := make([][]int, len(t.Modules))
	for i, m := range t.Modules {
		for _, name := range m.After {
			needs[i] = append(needs[i], t.index(name))
		}
	}
	return needs
}

// Order lists the modules so that each comes after those that it needs, otherwise as they
// are written; modules that wait for themselves are not in it.
func (t *Tasks) Order() []int {
	needs, done := t.Needs(), make([]bool, len(t.Modules))
	var order []int
	for more := true; more; {
		more = false
		for i := range t.Modules {
			if !done[i] && !slices.ContainsFunc(needs[i], func(n int) bool { return !done[n] }) {
				done[i], more = true, true
				order = append(order, i)
			}
		}
	}
	return order
}

// Same says whether two modules are the same work.
func (m Module) Same(o Module) bool {
	shape := m.Shape == o.Shape || m.Shape != nil && o.Shape != nil && *m.Shape == *o.Shape
	curve := m.Curve == o.Curve || m.Curve != nil && o.Curve != nil && *m.Curve == *o.Curve
	return m.Name == o.Name && m.Task == o.Task && m.Layers == o.Layers && m.Batch == o.Batch && slices.Equal(m.After, o.After) && shape && curve
}

// Model is the shape of a module's layers, for laws and memory.
func (m Module) Model() costmodel.Model {
	s := m.Shape
	out := costmodel.Model{
		Name: m.Name, Layers: m.Layers, Hidden: s.Hidden, FFN: s.FFN, QHeads: s.QHeads, KVHeads: s.KVHeads, HeadDim: s.HeadDim,
		Vocab: 64, TiedEmbeddings: true, GatedMLP: s.GatedMLP, LayerNorm: !s.GatedMLP,
	}
	if out.KVHeads == 0 {
		out.KVHeads = s.QHeads
	}
	if out.HeadDim == 0 {
		out.HeadDim = s.Hidden / s.QHeads
	}
	if !s.GatedMLP {
		out.PositionRows, out.MaxLen = int(s.SeqLen), s.SeqLen
	}
	return out
}

// Mask is what a query of the module's attention sees.
func (s Shape) Mask() op.Mask {
	if s.Causal {
		return op.Diag
	}
	return op.Full
}
