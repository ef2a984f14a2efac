package pipeline

import (
	"github.com/evenkeel/evenkeel/costmodel/pipeline"
)

// flight is sequences that go through the stages together, one forward, one backward (1F1B):
// forward a sequence's chunks one after the other, backward the other way round, and
// sequences in one order both ways.
type flight struct {
	chunks   []pipeline.Chunk // in their forward order
	backward []int            // chunks in their backward order
	split    int              // chunks of the sequence that has most
}

// newFlight is of chunks by sequence.
func newFlight(sequences [][]pipeline.Chunk) *flight {
	f := &flight{}
	for _, chunks := range sequences {
		from := len(f.chunks)
		f.chunks = append(f.chunks, chunks...)
		for k := len(f.chunks) - 1; k >= from; k-- {
			f.backward = append(f.backward, k)
		}
		f.split = max(f.split, len(chunks))
	}
	return f
}

// ahead is how many chunks a stage, of n in all, sends forward before the first goes
// backward.
func (f *flight) ahead(stage, n int) int { return min(len(f.chunks), n-1-stage+f.split) }

// place is, by chunk, its place in the backward order.
func (f *flight) place() []int {
	at := make([]int, len(f.chunks))
	for i, k := range f.backward {
		at[k] = i
	}
	return at
}

// order appends a stage's passes, of chunks that are numbered from first on.
func (f *flight) order(ops []pipeline.Op, stage, n, first int) []pipeline.Op {
	w := f.ahead(stage, n)
	for k := range w {
		ops = append(ops, pipeline.Op{Chunk: first + k})
	}
	for i, k := range f.backward {
		ops = append(ops, pipeline.Op{Chunk: first + k, Backward: true})
		if next := w + i; next < len(f.chunks) {
			ops = append(ops, pipeline.Op{Chunk: first + next})
		}
	}
	return ops
}

// window calls do for what a stage holds at once: before each backward pass, the chunks that
// went forward and not yet backward.
func (f *flight) windows(stage, n int, do func(held []int)) {
	w := f.ahead(stage, n)
	held, at := make([]bool, len(f.chunks)), make([]int, 0, len(f.chunks))
	for k := range w {
		held[k] = true
	}
	for t := 0; ; t++ {
		at = at[:0]
		for k, is := range held {
			if is {
				at = append(at, k)
			}
		}
		do(at)
		if w+t >= len(f.chunks) {
			return
		}
		held[f.backward[t]], held[w+t] = false, true
	}
}

// planOf are flights one behind the other, on stages. again is, by flight, what is computed
// again: by stage and chunk; nil is nothing.
func planOf(stages []pipeline.Stage, flights []*flight, again [][][]int) *pipeline.Plan {
	p := &pipeline.Plan{Stages: stages, Recompute: make([][]int, len(stages)), Orders: make([][]pipeline.Op, len(stages))}
	for i, f := range flights {
		first := len(p.Chunks)
		p.Chunks = append(p.Chunks, f.chunks...)
		for s := range stages {
			p.Orders[s] = f.order(p.Orders[s], s, len(stages), first)
			if again == nil || again[i] == nil {
				p.Recompute[s] = append(p.Recompute[s], make([]int, len(f.chunks))...)
			} else {
				p.Recompute[s] = append(p.Recompute[s], again[i][s]...)
			}
		}
	}
	return p
}
