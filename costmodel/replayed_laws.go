package costmodel

import (
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// passLaws are what the laws say of a pass, the slow-downs by messages included. Merging
// is kept apart from attention, for a replay tells them apart.
type passLaws struct {
	passTimes
	merges [][]units.Seconds // as attention
}

// newPassLaws has room for so many steps of the ring or chunks of heads.
func (r *replaying) newPassLaws(steps int) passLaws {
	n := len(r.seats)
	p := passLaws{merges: tableOf[units.Seconds](nil, steps, n)}
	p.before, p.after, p.attention = make([]units.Seconds, n), make([]units.Seconds, n), tableOf[units.Seconds](nil, steps, n)
	return p
}

// price asks the laws for all that the seats compute in a pass: of two micro-batches that
// go together, else the same twice.
func (r *replaying) price(back bool) [2]passLaws {
	if r.layout.TwoBatch {
		return r.priceTwos(back)
	}
	ask := r.priceRing
	if r.layout.chunks() > 1 {
		ask = r.priceChunks
	}
	laws := ask(back)
	return [2]passLaws{laws, laws}
}

func (r *replaying) priceRing(back bool) passLaws {
	p, besides := r.newPassLaws(len(r.groups)), r.besides(back)
	for i := range r.seats {
		r.priceLinear(&p, back, i)
		r.priceSteps(&p, back, i, besides[i], beside{})
	}
	return p
}

func (r *replaying) priceLinear(p *passLaws, back bool, i int) {
	before, after := preForward, postForward
	if back {
		before, after = preBackward, postBackward
	}
	p.before[i] = r.linearCost(&r.seats[i], before, nil)
	p.after[i] = r.linearCost(&r.seats[i], after, nil)
}

// priceSteps asks for a seat's steps of the ring, as slowed: by apart the one beside which
// layerRun takes no messages of the ring to move, by the other all others.
func (r *replaying) priceSteps(p *passLaws, back bool, i int, by, apart beside) {
	a, n := &r.seats[i], len(r.groups)
	alone := n - 1
	if back && n > 1 && r.layout.OwnLast {
		alone = 1
	}
	for t := range n {
		of, slow := &r.groups[(a.group-t+n)%n], by
		if t == alone {
			slow = apart
		}
		both, slowed := r.attentionCost(back, a, of, nil), units.Seconds(1)
		if both > 0 {
			slowed = slow.stretch(both) / both
		}
		p.merges[t][i] = slowed * r.mergeCost(back, a, of)
		p.attention[t][i] = slowed*both - p.merges[t][i]
	}
}

// priceChunks is priceRing of a group that computes its heads in chunks. It has all tokens,
// so that its blocks are squares and there is nothing to merge.
func (r *replaying) priceChunks(back bool) passLaws {
	p := r.newPassLaws(r.layout.chunks())
	in, out := r.chunkMessages(back)
	by := r.chunkBesides(back, in, out)
	for i := range r.seats {
		r.priceLinear(&p, back, i)
	}
	for c := range p.attention {
		r.seatChunk(c)
		for i := range r.seats {
			p.attention[c][i] = by[i].stretch(r.attentionCost(back, &r.seats[i], &r.groups[0], nil))
		}
	}
	r.seatWhole()
	return p
}

// priceTwos is price of two micro-batches that go through the layers together.
func (r *replaying) priceTwos(back bool) (p [2]passLaws) {
	run := &r.run
	r.slowTwos()
	run.reset(r.sim, back, false)
	w := run.priceTwos()
	both := r.newPassLaws(len(r.groups))
	for i := range r.seats {
		r.priceSteps(&both, back, i, run.beside[i], run.apart[i])
	}
	for b := range p {
		p[b] = both
		p[b].before, p[b].after = w.before[b], w.after[b]
	}
	return p
}

// mergeCost is what of a seat's work on a group's block is adding up: see
// coster.attention.
func (s *sim) mergeCost(back bool, a *seat, of *seatGroup) units.Seconds {
	var total units.Seconds
	if a.heads == 0 {
		return 0
	}
	laws := s.kernelsOf(a.device)
	queries, keys := s.blockOf(a, of)
	for _, b := range appendPacked(nil, queries, keys, s.packed) {
		if b.Mask != op.Full {
			continue
		}
		total += s.accumulate(laws, b.QLen, a.heads, nil)
		if back {
			total += s.accumulate(laws, 2*b.KVLen, a.kv, nil)
		}
	}
	return total
}

// lawsOf are what the laws say of a pass.
func (r *replaying) lawsOf(g stageOf) *passLaws { return &r.laws[g.dir()][g.micro&1] }

// timesIn are what the seats take in a pass: as supposed or, where nobody supposes
// anything, as the laws say.
func (r *replaying) timesIn(g stageOf) passTimes {
	laws, n := r.lawsOf(g), len(r.seats)
	first, last := g.linear()
	t := passTimes{make([]units.Seconds, n), make([]units.Seconds, n), tableOf[units.Seconds](nil, len(laws.attention), n)}
	for i := range r.seats {
		rank := r.seats[i].rank
		t.before[i] = r.supposed(g.key(rank, 0, first), laws.before[i])
		t.after[i] = r.supposed(g.key(rank, 0, last), laws.after[i])
		for step := range t.attention {
			key := g.key(rank, step, AttentionOp)
			if r.layout.chunks() > 1 {
				key.Step, key.Chunk = 0, step
			}
			t.attention[step][i] = r.supposed(key, laws.attention[step][i]+laws.merges[step][i])
		}
	}
	return t
}

func (r *replaying) supposed(k ReplayKey, law units.Seconds) units.Seconds {
	if r.took != nil {
		if t, ok := r.took(k); ok {
			return t
		}
	}
	return law
}
