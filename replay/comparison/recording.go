package comparison

import (
	"cmp"
	"fmt"
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
	spans [][]span        // by rank, as they are read; cut makes laps of them
	laps  [][]lap         // by micro-batch and rank
}

// lap is what a rank did in a micro-batch; all of a plan of one sequence, of a pipeline, of
// tasks or of a whole step is one.
type lap struct {
	start units.Seconds // after the rank's zero
	took  units.Seconds // until it was done
	meet  units.Seconds // from then on until all ranks were
	flops int64         // of attention
	spans []span        // in order of time, counted from the lap's start
}

// span is a stretch of a rank's time.
type span struct {
	costmodel.ReplayKey
	start, took units.Seconds
	local       bool  // an all-to-all of a group of one: it moves no byte
	flops       int64 // of attention
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
	for plan, blocks := range rec.runs {
		for b := range blocks {
			micro, met := 1, meets(header, plan)
			if met {
				micro = header.Plans[plan].Micro
			}
			if err := blocks[b].cut(met, micro); err != nil {
				return nil, fmt.Errorf("%s: plan %d, block %d: %w", name, plan, b, err)
			}
		}
	}
	return rec, nil
}

// cut deals spans out to micro-batches, puts them in their order and finds where
// micro-batches end.
func (r *run) cut(batch bool, micro int) error {
	if batch {
		for rank := range r.spans {
			if err := r.met(rank, micro); err != nil {
				return err
			}
		}
	}
	r.laps = make([][]lap, micro)
	for m := range r.laps {
		r.laps[m] = make([]lap, len(r.took))
	}
	for rank, spans := range r.spans {
		for _, s := range spans {
			l := &r.laps[0][rank]
			if batch {
				l = &r.laps[s.Micro][rank]
			}
			l.spans, l.flops = append(l.spans, s), l.flops+s.flops
		}
		r.order(rank, batch)
	}
	r.spans = nil
	return nil
}

// met says which micro-batch a rank did not meet the others after. It comes before
// anything is made for every micro-batch, of which a header may claim many.
func (r *run) met(rank, micro int) error {
	met := map[int]bool{}
	for _, s := range r.spans[rank] {
		if s.Op == costmodel.MeetOp {
			met[s.Micro] = true
		}
	}
	for m := range micro {
		if !met[m] {
			return fmt.Errorf("rank %d has no span of op %q in micro-batch %d: spans were lost, or it is from before ranks recorded it; make the trace again: evenkeel replay", rank, costmodel.MeetOp, m)
		}
	}
	return nil
}

// order sorts a rank's spans, and cuts a step of micro-batches at the meetings.
func (r *run) order(rank int, batch bool) {
	var at units.Seconds
	for m := range r.laps {
		l := &r.laps[m][rank]
		slices.SortStableFunc(l.spans, func(a, b span) int { return cmp.Compare(a.start, b.start) })
		if l.start = at; !batch {
			l.took = r.took[rank]
			continue
		}
		n := slices.IndexFunc(l.spans, func(s span) bool { return s.Op == costmodel.MeetOp })
		met := l.spans[n]
		l.spans = slices.Delete(l.spans, n, n+1)
		l.took, l.meet = max(0, met.start-at), met.took
		for i := range l.spans {
			l.spans[i].start -= at
		}
		at = met.start + met.took
	}
}

func (r *Recording) begin(h *replay.Header) error {
	r.Header, r.runs = h, make([][]run, len(h.Plans))
	return nil
}

// at finds a run, which may be of a block that begins.
func (r *Recording) at(plan, block int) *run {
	for len(r.runs[plan]) <= block {
		n := len(r.Header.Ranks)
		r.runs[plan] = append(r.runs[plan], run{took: make([]units.Seconds, n), spans: make([][]span, n)})
	}
	return &r.runs[plan][block]
}

func (r *Recording) span(s *replay.Span) error {
	k := costmodel.ReplayKey{Rank: s.Rank, Layer: s.Layer, Dir: string(s.Dir), Again: s.Again, Step: s.Step, Chunk: s.Chunk, Op: costmodel.ReplayOp(s.Op)}
	if r.Header.Plans[s.Plan].Micro > 0 { // else there is one
		k.Micro = s.MB
	}
	x := span{ReplayKey: joined(k), start: s.Start(), took: s.Dur()}
	x.local = (k.Op == costmodel.AllToAllIn || k.Op == costmodel.AllToAllOut) && s.In == 0 && s.Out == 0
	if s.Op == replay.Attn {
		x.flops = s.FLOPs
	}
	of := &r.at(s.Plan, s.Block).spans[s.Rank]
	*of = append(*of, x)
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

// step is how long the ranks of a run took together.
func (r *run) step() units.Seconds { return slices.Max(r.took) }

// critical is the rank that was done last with a micro-batch.
func (r *run) critical(micro int) int {
	last := 0
	for i, l := range r.laps[micro] {
		if l.took > r.laps[micro][last].took {
			last = i
		}
	}
	return last
}

// steps are a plan's steps by block.
func (r *Recording) steps(plan int) []float64 {
	var all []float64
	for i := range r.runs[plan] {
		all = append(all, float64(r.runs[plan][i].step()))
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

// Measured is the distribution of a plan's step time over the blocks.
type Measured struct {
	Median units.Seconds `json:"median_s"`
	Least  units.Seconds `json:"least_s"`
	Q3     units.Seconds `json:"third_quartile_s"`
	Most   units.Seconds `json:"most_s"`
	// Spread is the relative standard deviation, estimated from the median absolute
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
