package costmodel

import (
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// LayerPass is a layer's forward or backward pass on one device, by the parts that a replay
// records. Those of the backward pass have the names of the forward parts that they
// differentiate.
type LayerPass struct {
	LinearIn, Attention, LinearOut units.Seconds
	// Whole is all of it, with the interval of its laws.
	Whole Estimate
}

// Replayed are the two passes of Passes by their parts. The backward pass is without what is
// computed again: under full recomputation that is the forward pass once more.
//
// Errors: as of Passes.
func (l *Layers) Replayed(device string, mask op.Mask, of Documents) (forward, backward LayerPass, err error) {
	if forward, err = l.replayed(device, mask, of, false); err == nil {
		backward, err = l.replayed(device, mask, of, true)
	}
	return forward, backward, err
}

func (l *Layers) replayed(device string, mask op.Mask, of Documents, back bool) (LayerPass, error) {
	var acc account
	l.begin(false)
	p := l.parts(device, mask, of, back, &acc)
	p.Whole = like(p.LinearIn+p.Attention+p.LinearOut, acc.total())
	return p, l.c.err
}

// parts are a pass's, without what is computed again, in the order in which it runs them.
func (l *Layers) parts(device string, mask op.Mask, of Documents, back bool, acc *account) (p LayerPass) {
	tokens := of.Tokens * units.Tokens(of.Count)
	if back {
		p.LinearOut = l.c.backToAttention(device, tokens, acc)
		p.Attention = l.alone(device, mask, of, true, acc)
		p.LinearIn = l.c.backFromAttention(device, tokens, acc)
		return p
	}
	p.LinearIn = l.c.beforeAttention(device, tokens, acc)
	p.Attention = l.alone(device, mask, of, false, acc)
	p.LinearOut = l.c.afterAttention(device, tokens, acc)
	return p
}
