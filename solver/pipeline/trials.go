package pipeline

import (
	"cmp"
	"context"
	"iter"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel/pipeline"
	"github.com/evenkeel/evenkeel/internal/units"
)

// chunking is a batch cut and packed into chunks, to be tried on many stages.
type chunking struct {
	sequences [][]pipeline.Chunk
	chunks    []pipeline.Chunk // of all sequences
	terms     formula          // what each factor of a formula is multiplied by for all chunks
	layers    map[int]layerSum // by what ranks are like
}

// layerSum is what all chunks take in a layer, and the loss of all.
type layerSum struct{ passes, loss units.Seconds }

func (p *Problem) chunkingOf(sequences [][]pipeline.Chunk) *chunking {
	c := &chunking{sequences: sequences, chunks: slices.Concat(sequences...), layers: map[int]layerSum{}}
	for _, x := range c.chunks {
		c.terms.each++
		c.terms.square += squares(x.Context, x.Slice)
		c.terms.token += float64(x.Slice)
		for _, w := range x.Whole {
			c.terms.square += squares(0, p.Lengths[w])
			c.terms.token += float64(p.Lengths[w])
		}
	}
	return c
}

// trial is stages with chunks, and about how many seconds a step of them takes.
type trial struct {
	stages []pipeline.Stage
	with   *chunking
	about  float64
}

// trials are stages, each with the chunks that it may have, until ctx ends. Those come first that
// promise to be fastest, so that most others are seen to be slower than the best from one of their
// stages, and are left out: most of the time goes into prices, and infinipipe's programmes.
func (p *Problem) trials(ctx context.Context, shapes [][]pipeline.Stage, chunks func(stages []pipeline.Stage) []*chunking, best *chosen) iter.Seq[trial] {
	var all []trial
	for _, stages := range shapes {
		if ctx.Err() != nil {
			break
		}
		for _, c := range chunks(stages) {
			all = append(all, trial{stages, c, p.about(stages, c)})
		}
	}
	slices.SortStableFunc(all, func(a, b trial) int { return cmp.Compare(a.about, b.about) })
	return func(yield func(trial) bool) {
		for _, t := range all {
			if ctx.Err() != nil || !p.slower(t, best.time()) && !yield(t) {
				return
			}
		}
	}
}

// about is how long a step takes by the stages' formulas: as long as the busiest of them, and a
// chunk to fill and drain all.
func (p *Problem) about(stages []pipeline.Stage, c *chunking) float64 {
	busiest, through := 0.0, 0.0
	for _, x := range stages {
		f := p.fitted(x.Ranks)
		busy := float64(x.Layers) * (f.square*c.terms.square + f.token*c.terms.token + f.each*c.terms.each)
		busiest, through = max(busiest, busy), through+busy/c.terms.each
	}
	return busiest + through
}

// slower says that a trial takes longer than some time since one of its stages alone does, whatever
// is computed again. Stages whose chunks have prices are asked first.
func (p *Problem) slower(t trial, than units.Seconds) bool {
	const rounding = 1e-9 // of sums in another order
	for _, priced := range []bool{true, false} {
		for s, x := range t.stages {
			like := p.Like(x.Ranks)
			sum, ok := t.with.layers[like]
			if ok != priced {
				continue
			}
			if !ok {
				sum = p.layerSum(x.Ranks, t.with.chunks)
				t.with.layers[like] = sum
			}
			busy := units.Seconds(x.Layers) * sum.passes
			if s == len(t.stages)-1 {
				busy += sum.loss
			}
			if busy*(1-rounding) > than {
				return true
			}
		}
	}
	return false
}

func (p *Problem) layerSum(ranks []int, chunks []pipeline.Chunk) (sum layerSum) {
	for _, x := range chunks {
		w := p.Work(ranks, x)
		sum.passes += w.Forward + w.Backward
		sum.loss += w.Loss
	}
	return sum
}
