package pipeline

import (
	"fmt"
	"slices"

	"github.com/evenkeel/evenkeel/internal/units"
)

// Stage is devices with consecutive layers of the model.
type Stage struct {
	Ranks  []int `json:"ranks"` // rising
	Layers int   `json:"layers"`
}

// Chunk is what goes through the stages at once.
type Chunk struct {
	// Sequence is the one that the slice is of; -1 where there is no slice.
	Sequence int          `json:"sequence"`
	Context  units.Tokens `json:"context_tokens,omitzero"` // of the sequence before the slice
	Slice    units.Tokens `json:"slice_tokens,omitzero"`
	Whole    []int        `json:"whole,omitempty"` // sequences that are whole in it
}

// Op is a chunk's forward or backward pass on a stage.
type Op struct {
	Chunk    int  `json:"chunk"`
	Backward bool `json:"backward,omitzero"`
	// Start and End are seconds since the step began.
	Start units.Seconds `json:"start_s"`
	End   units.Seconds `json:"end_s"`
}

// Plan is what is computed where, in which order.
type Plan struct {
	Stages []Stage `json:"stages"` // in the order of the model's layers
	Chunks []Chunk `json:"chunks"`
	// Recompute is, by stage and chunk, of how many of the stage's layers the forward pass is
	// computed again in the backward pass.
	Recompute [][]int `json:"recomputed_layers"`
	// Orders is, by stage, its passes in the order in which it computes them.
	Orders [][]Op `json:"orders"`
	// Time is the seconds until every stage has updated its parameters.
	Time units.Seconds `json:"step_s"`
}

// Clone copies a plan, but for the sequences in chunks, which nothing changes.
func (p *Plan) Clone() *Plan {
	out := *p
	out.Stages, out.Chunks = slices.Clone(p.Stages), slices.Clone(p.Chunks)
	out.Recompute, out.Orders = make([][]int, len(p.Recompute)), make([][]Op, len(p.Orders))
	for i := range p.Recompute {
		out.Recompute[i] = slices.Clone(p.Recompute[i])
	}
	for i := range p.Orders {
		out.Orders[i] = slices.Clone(p.Orders[i])
	}
	return &out
}

// slicesOf are, by chunk, the chunks with the slices of its sequence next before and next
// behind it, -1 where there are none.
func slicesOf(chunks []Chunk) (before, behind []int) {
	before, behind = make([]int, len(chunks)), make([]int, len(chunks))
	last := map[int]int{} // by sequence
	for k, x := range chunks {
		before[k], behind[k] = -1, -1
		if x.Slice == 0 {
			continue
		}
		if b, ok := last[x.Sequence]; ok {
			before[k], behind[b] = b, k
		}
		last[x.Sequence] = k
	}
	return before, behind
}

// Validate says what of a plan cannot be, whatever it takes, of sequences of some lengths, a
// model's layers and so many devices: of its stages, chunks and orders, by themselves and
// where stages wait for each other for ever.
func (p *Plan) Validate(lengths []units.Tokens, layers, devices int) error {
	if err := validStages(p.Stages, layers, devices); err != nil {
		return err
	}
	if err := validChunks(p.Chunks, lengths); err != nil {
		return err
	}
	if len(p.Recompute) != len(p.Stages) || len(p.Orders) != len(p.Stages) {
		return fmt.Errorf("recomputed_layers, orders: of %d and %d stages: want %d", len(p.Recompute), len(p.Orders), len(p.Stages))
	}
	for s := range p.Stages {
		if len(p.Recompute[s]) != len(p.Chunks) {
			return fmt.Errorf("recomputed_layers[%d]: of %d chunks: want %d", s, len(p.Recompute[s]), len(p.Chunks))
		}
		for k, n := range p.Recompute[s] {
			if n < 0 || n > p.Stages[s].Layers {
				return fmt.Errorf("recomputed_layers[%d][%d]: %d: want 0 to the stage's %d", s, k, n, p.Stages[s].Layers)
			}
		}
		if err := validOrder(p.Chunks, p.Orders[s]); err != nil {
			return fmt.Errorf("orders[%d]%w", s, err)
		}
	}
	return p.validWaits()
}

func validStages(stages []Stage, layers, devices int) error {
	have, taken := 0, make([]bool, devices)
	for s, x := range stages {
		if x.Layers < 1 || x.Layers > layers-have {
			return fmt.Errorf("stages[%d].layers: %d: want 1 to %d, which no stage before has", s, x.Layers, layers-have)
		}
		have += x.Layers
		if len(x.Ranks) == 0 {
			return fmt.Errorf("stages[%d].ranks: none", s)
		}
		for i, r := range x.Ranks {
			if r < 0 || r >= devices || i > 0 && r <= x.Ranks[i-1] || taken[r] {
				return fmt.Errorf("stages[%d].ranks[%d]: %d: want rising ranks of 0 to %d, each in one stage", s, i, r, devices-1)
			}
			taken[r] = true
		}
	}
	if have != layers {
		return fmt.Errorf("stages: have %d layers: want the model's %d", have, layers)
	}
	return nil
}

func validChunks(chunks []Chunk, lengths []units.Tokens) error {
	done := make([]units.Tokens, len(lengths))
	has := func(k, sequence int, context, tokens units.Tokens) error {
		switch {
		case sequence < 0 || sequence >= len(lengths):
			return fmt.Errorf("chunks[%d]: sequence %d: want 0 to %d", k, sequence, len(lengths)-1)
		case context != done[sequence]:
			return fmt.Errorf("chunks[%d]: has sequence %d from token %d on: the chunks before end at %d", k, sequence, int64(context), int64(done[sequence]))
		case tokens < 1 || tokens > lengths[sequence]-context:
			return fmt.Errorf("chunks[%d]: has %d tokens of sequence %d: want 1 to %d, which no chunk before has", k, int64(tokens), sequence, int64(lengths[sequence]-context))
		}
		done[sequence] += tokens
		return nil
	}
	for k, x := range chunks {
		if x.Slice == 0 && (x.Sequence != -1 || x.Context != 0 || len(x.Whole) == 0) {
			return fmt.Errorf("chunks[%d]: without a slice: want sequence -1, no context and whole sequences", k)
		}
		if x.Slice != 0 {
			if err := has(k, x.Sequence, x.Context, x.Slice); err != nil {
				return err
			}
		}
		for _, w := range x.Whole {
			if w < 0 || w >= len(lengths) {
				return fmt.Errorf("chunks[%d].whole: %d: want 0 to %d", k, w, len(lengths)-1)
			}
			if err := has(k, w, 0, lengths[w]); err != nil {
				return err
			}
		}
	}
	for i, n := range done {
		if n != lengths[i] {
			return fmt.Errorf("chunks: %d of the %d tokens of sequence %d are in none", int64(lengths[i]-n), int64(lengths[i]), i)
		}
	}
	return nil
}

// validOrder says what of a stage's order cannot be: every chunk goes forward once, slices
// one after the other, and then backward once, slices the other way round.
func validOrder(chunks []Chunk, order []Op) error {
	before, behind := slicesOf(chunks)
	if len(order) != 2*len(chunks) {
		return fmt.Errorf(": %d passes: want 2 of each of %d chunks", len(order), len(chunks))
	}
	forward, backward := make([]bool, len(chunks)), make([]bool, len(chunks))
	for i, o := range order {
		k := o.Chunk
		switch {
		case k < 0 || k >= len(chunks):
			return fmt.Errorf("[%d].chunk: %d: want 0 to %d", i, k, len(chunks)-1)
		case !o.Backward && forward[k] || o.Backward && backward[k]:
			return fmt.Errorf("[%d].chunk: %d: is there before", i, k)
		case !o.Backward && before[k] >= 0 && !forward[before[k]]:
			return fmt.Errorf("[%d].chunk: %d goes forward before chunk %d, whose keys and values it needs", i, k, before[k])
		case o.Backward && !forward[k]:
			return fmt.Errorf("[%d].chunk: %d goes backward before it goes forward", i, k)
		case o.Backward && behind[k] >= 0 && !backward[behind[k]]:
			return fmt.Errorf("[%d].chunk: %d goes backward before chunk %d, whose gradients it needs", i, k, behind[k])
		}
		if o.Backward {
			backward[k] = true
		} else {
			forward[k] = true
		}
	}
	return nil
}

// validWaits goes through orders that are valid by themselves, each pass as soon as the stage
// that it waits for has had it: none may be left at the end.
func (p *Plan) validWaits() error {
	type pass struct {
		chunk    int
		backward bool
	}
	done := make([]map[pass]bool, len(p.Stages))
	for s := range done {
		done[s] = map[pass]bool{}
	}
	may := func(s int) bool {
		o := p.Orders[s][len(done[s])]
		of := s - 1
		if o.Backward {
			of = s + 1
		}
		return of < 0 || of == len(done) || done[of][pass{o.Chunk, o.Backward}]
	}
	for moved := true; moved; {
		moved = false
		for s, order := range p.Orders {
			for len(done[s]) < len(order) && may(s) {
				o := order[len(done[s])]
				done[s][pass{o.Chunk, o.Backward}], moved = true, true
			}
		}
	}
	for s, order := range p.Orders {
		if n := len(done[s]); n < len(order) {
			return fmt.Errorf("orders: stages wait for each other: stage %d for chunk %d", s, order[n].Chunk)
		}
	}
	return nil
}
