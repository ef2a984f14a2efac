package costmodel

import (
	"fmt"

	"github.com/evenkeel/evenkeel/internal/units"
)

// ChunkReplay is one pass of a chunk through the layers of a pipeline's stage, as replay runs
// it.
type ChunkReplay struct {
	Layers int
	Back   bool // the backward pass, from the last layer to the first
	// Again is of how many of the first layers the backward pass runs the forward pass again.
	Again int
	// Loss is true of a forward pass behind which the chunk's loss is computed, each rank's of
	// its tokens.
	Loss bool
	// Took gives computing times as in Simulator.Supposing; nil leaves all to the laws. Its
	// keys have a place in the group as rank, a layer of the stage, and no micro-batch.
	Took func(ReplayKey) (units.Seconds, bool)
}

// passes are those of the layers in order of execution.
func (w *ChunkReplay) passes() []stageOf {
	var all []stageOf
	for i := range w.Layers {
		if !w.Back {
			all = append(all, stageOf{layer: i})
			continue
		}
		layer := w.Layers - 1 - i
		if layer < w.Again {
			all = append(all, stageOf{layer: layer, again: true})
		}
		all = append(all, stageOf{layer: layer, back: true})
	}
	return all
}

// ReplayedChunk predicts one pass of a chunk as replay runs it on all ranks of the job's
// cluster, which begin together: each has the share shares[r] of the chunk's tokens, in the
// order slice, whole sequences. The slice has a call of its own on itself and one on its
// context, and every whole sequence one, where Chunk takes sequences to be computed side by
// side.
//
// Errors: those of Chunk; no layers, or more that are run again than there are; a loss behind a backward pass.
func (p *Packer) ReplayedChunk(group Group, shares []float64, x Chunk, w ChunkReplay) (*Replayed, error) {
	if err := x.validate(); err != nil {
		return nil, err
	}
	if w.Layers < 1 || w.Again < 0 || w.Again > w.Layers || w.Again > 0 && !w.Back {
		return nil, fmt.Errorf("%d layers, %d of them run again: want at least one, and from 0 to all of them again, in a backward pass", w.Layers, w.Again)
	}
	if w.Loss && w.Back {
		return nil, fmt.Errorf("loss: of a backward pass: want it behind a forward pass, whose gradient it makes")
	}
	// One of its own: what the packer has priced is priced otherwise.
	bare, err := newSim(p.sim.q, p.sim.job)
	if err != nil {
		return nil, err
	}
	// Only now, for the model's longest sequence bounds no chunk.
	bare.job.SeqLen = x.Tokens()
	bare.context, bare.packed = x.Context, x.sequences()
	r := &replaying{sim: bare, took: w.Took, out: new(Replayed), micro: 1}
	if w.Loss {
		r.loss = w.Layers
	}
	if err := r.prepare(Contiguous(SplitByShares(x.Tokens(), shares), []Group{group})); err != nil {
		return nil, err
	}
	passes := w.passes()
	for _, g := range passes {
		r.meetAfter(g, 1)
	}
	r.meetLoss(1)
	r.chain(passes)
	return r.finish()
}

// sequences are where those of a chunk lie, the slice's with its context.
func (x *Chunk) sequences() []Segment {
	var all []Segment
	at := x.Context + x.Slice
	if at > 0 {
		all = append(all, Segment{0, at})
	}
	for _, d := range x.Whole {
		for range d.Count {
			all = append(all, Segment{at, at + d.Tokens})
			at += d.Tokens
		}
	}
	return all
}
