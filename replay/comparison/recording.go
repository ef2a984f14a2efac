package comparison

import (
	"cmp"
	"io"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/stats"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/replay"
)

// Recording is a trace in memory, as far as it is compared.
type Recording struct {
	Header *replay.Header
	runs   [][]run // by plan and block
}

// run is one pass of one plan.
type run struct {
	took  []units.Seconds // by rank
	spans [][]span        // by rank, in order of time
}

// span is a stretch of a rank's time.
type span struct {
	costmodel.ReplayKey
	start, took units.Seconds
	local       bool // an all-to-all of a group of one: it moves no byte
}

// waits says that the rank stood still. What an all-to-all does in a group of one
// is copying, for which the cost model has no task: it is time in no span.
func (s *span) waits() bool { return s.Op.Waits() && !s.local }

// Read reads a trace. Errors are those of replay.ReadTrace.
func Read(name string, r io.Reader) (*Recording, error) {
	rec := new(Recording)
	header, err := replay.ReadTrace(name, r, replay.Visitor{Header: rec.begin, Span: rec.span, Step: rec.step})
	if err != nil {
		return nil, err
	}
	rec.Header = header
	for _, blocks := range rec.runs {
		for _, b := range blocks {
			for _, spans := range b.spans {
				slices.SortStableFunc(spans, func(a, b span) int { return cmp.Compare(a.start, b.start) })
			}
		}
	}
	return rec, nil
}

func (r *Recording) begin(h *replay.Header) error {
	r.Header, r.runs = h, make([][]run, len(h.Plans))
	return nil
}

// at finds a run, which may be of a block that begins.
func (r *Recording) at(plan, block int) *run {
	for len(r.runs[plan]) <= block {
		n := len(r.Header.Ranks)
		r.runs[plan] = append(r.runs[plan], run{make([]units.Seconds, n), make([][]span, n)})
	}
	return &r.runs[plan][block]
}

func (r *Recording) span(s *replay.Span) error {
	k := costmodel.ReplayKey{Rank: s.Rank, Layer: s.Layer, Dir: string(s.Dir), Again: s.Again, Step: s.Step, Op: costmodel.ReplayOp(s.Op)}
	of := &r.at(s.Plan, s.Block).spans[s.Rank]
	*of = append(*of, span{joined(k), s.Start(), s.Dur(), s.Op != replay.RingWait && k.Op.Waits() && s.In == 0 && s.Out == 0})
	return nil
}

func (r *Recording) step(s *replay.Step) error {
	r.at(s.Plan, s.Block).took[s.Rank] = s.Dur()
	return nil
}

// joined is the key that a recorded and a predicted stretch have in common: only
// the ring has steps.
func joined(k costmodel.ReplayKey) costmodel.ReplayKey {
	switch k.Op {
	case costmodel.RingWait, costmodel.AttentionOp, costmodel.MergeOp:
	default:
		k.Step = 0
	}
	return k
}

// step is how long the ranks of a run took together, and which took longest.
func (r *run) step() (took units.Seconds, critical int) {
	for i, t := range r.took {
		if t > r.took[critical] {
			critical = i
		}
	}
	return r.took[critical], critical
}

// steps are a plan's steps by block.
func (r *Recording) steps(plan int) []float64 {
	var all []float64
	for i := range r.runs[plan] {
		took, _ := r.runs[plan][i].step()
		all = append(all, float64(took))
	}
	return all
}

// middle is the block of the median step, or the two blocks whose mean it is.
func (r *Recording) middle(plan int) []int {
	steps := r.steps(plan)
	order := make([]int, len(steps))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(steps[a], steps[b]) })
	n := len(order)
	return order[(n-1)/2 : n/2+1]
}

// Measured is how long a plan's step took over the blocks.
type Measured struct {
	Median units.Seconds `json:"median_s"`
	Least  units.Seconds `json:"least_s"`
	Q3     units.Seconds `json:"third_quartile_s"`
	Most   units.Seconds `json:"most_s"`
	// Spread estimates the relative standard deviation, from the median absolute
	// deviation.
	Spread float64 `json:"spread"`
}

func measuredOf(steps []float64) Measured {
	_, median, q3 := stats.Quartiles(steps)
	m := Measured{
		Median: units.Seconds(median), Least: units.Seconds(slices.Min(steps)),
		Q3: units.Seconds(q3), Most: units.Seconds(slices.Max(steps)),
	}
	if median > 0 {
		m.Spread = stats.MAD(steps) / median
	}
	return m
}
