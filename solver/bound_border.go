package solver

import "math"

// border is what has to pass between a rank and all others, in the stages of a
// weighted sum. The lemma holds for any set of ranks.
//
// Take a query head x in one direction of a layer, with w = kv_heads/q_heads, S
// tokens, s of them on this side. In every group some member owns x. Rows of one
// head that must come in to this side and go out of it are, at least:
//
//	x is owned                   forward in, out           backward in, out
//	on this side by all groups   (1+2w)(S-s), S-s          S-s, (1+2w)(S-s)
//	on the other by all          s, (1+2w) s               (1+2w) s, s
//	by some on either            2w (S-s), 2w s            m (S-s), m s; together 2w S' more
//
// with m = min(2w, 1) and S' the float32 rows of gradients, of all S tokens. The
// first two are all-to-alls: q, k, v of tokens that live on the wrong side, and
// outputs that go home; backward, gradients of outputs and of q, k, v. In the
// third, somewhere along the ring a group g that owns x here follows one that
// owns it there, and is sent the keys and values of all tokens but its own; those
// of its own tokens that live there, S_g - s_g, came by all-to-all, as 1+2w rows
// (backward, 1). Both together are at least 2w (S-s_g) (m (S-s_g)), and s_g <= s.
// A hop brings the gradients of all tokens but those of the group it comes from,
// and somewhere else along the ring a hop takes those of all but another group's
// to the other side: both together at least those of all tokens. The other side
// likewise.
//
// Heads of the first two kinds are charged while nobody computes; the third may
// hide behind attention.
type border struct {
	perRow  float64 // seconds a row of all heads takes in an all-to-all
	perHop  float64 // the same in a ring
	least   float64 // the lesser of both
	kvShare float64 // w
	wide    float64 // bytes of a float32 over those of the job's type
	tokens  float64 // of the sequence
}

// flow is one direction across a border.
type flow int

const (
	inward flow = iota
	outward
	bothWays // the mean of both
	flowCount
)

// crossing is seconds on the port of a rank, were all heads of one kind.
type crossing struct{ here, there, mixed float64 }

// crossings of a rank with more than lo and up to hi tokens, in either direction.
func (c *border) crossings(w *leastWork, lo, hi float64) [flowCount]crossing {
	full := 1 + 2*c.kvShare
	away, own := c.tokens-hi, lo
	f, b := w.weights[forwardLayer], w.weights[backwardLayer]
	grads := b * 2 * c.kvShare * c.wide * c.tokens * c.perHop // in and out together
	ring := (f*2*c.kvShare + b*min(2*c.kvShare, 1)) * c.least
	in := crossing{(f*full + b) * away * c.perRow, (f + b*full) * own * c.perRow, ring * away}
	out := crossing{(f + b*full) * away * c.perRow, (f*full + b) * own * c.perRow, ring * own}
	mean := crossing{(in.here + out.here) / 2, (in.there + out.there) / 2, (in.mixed + out.mixed + grads) / 2}
	return [flowCount]crossing{in, out, mean}
}

// pairs is the most pairs that a side may have by theta when it has `slack` left
// beside linear work: heads may be mixed as far as their rows
// pass by theta, and the rest of them must be on one side; at takes the slack
// that is left beside all-to-alls to pairs.
//
// With shares of heads phi here, psi there, mu mixed, the rows of all must pass
// by theta; so much of mu as must be replaced is, by phi or psi or some of both.
// phi and psi cost slack, and psi has no pairs here.
func (x crossing) pairs(theta, slack, all float64, at func(slack float64) float64) float64 {
	if x.mixed <= theta {
		return min(all, at(slack))
	}
	phi, psi := x.need(theta, x.here), x.need(theta, x.there)
	if theta < 0 || min(phi, psi) > 1 {
		return math.Inf(-1)
	}
	if phi > 1 {
		return min(all*(1-psi), at(slack-psi*x.there))
	}
	if psi > 1 {
		psi = 0 // no pure share of psi will do: count it as free
	}
	return x.between(phi, psi, slack, all, at)
}

// need is the share of heads of one side that brings mixed heads down to theta.
func (x crossing) need(theta, other float64) float64 {
	if other >= x.mixed {
		return math.Inf(1)
	}
	return (x.mixed - theta) / (x.mixed - other)
}

// ceiling is no less than what pairs says of any crossing that costs no less than
// x, and no more than `there` for heads over there: need rises with both costs,
// and the cheaper of phi and psi takes the least slack.
func (x crossing) ceiling(there, theta, slack, all float64, at func(slack float64) float64) float64 {
	const over, under = 1 + 1e-9, 1 - 1e-9 // more than what rounding can do to need
	switch {
	case x.mixed > theta && (theta < 0 || min(x.here, x.there) > theta*over):
		return math.Inf(-1)
	case x.mixed <= theta || there > theta*under:
		return min(all, at(slack))
	}
	phi, psi := x.need(theta, x.here)*under, x.need(theta, x.there)*under
	if x.here > theta*over {
		return min(all*(1-psi), at(slack-psi*x.there))
	}
	return min(all, at(slack-min(phi*x.here, psi*x.there)))
}

// between looks for the best mixture of phi here and psi there: going from the
// first to the second, pairs by heads fall and pairs by slack rise, or both fall.
func (x crossing) between(phi, psi, slack, all float64, at func(slack float64) float64) float64 {
	byHeads := func(t float64) float64 { return all * (1 - t*psi) }
	bySlack := func(t float64) float64 { return at(slack - (1-t)*phi*x.here - t*psi*x.there) }
	if phi*x.here <= psi*x.there {
		return min(all, bySlack(0))
	}
	lo, hi := 0.0, 1.0
	for range 6 {
		if mid := (lo + hi) / 2; bySlack(mid) < byHeads(mid) {
			lo = mid
		} else {
			hi = mid
		}
	}
	return min(byHeads(lo), bySlack(hi))
}

// borderOf is the border of a rank whose links take so many seconds a byte.
func (f *floors) borderOf(perRow, perHop float64) *border {
	m := f.p.Job.Model
	row := float64(m.QHeads*m.HeadDim) * float64(f.p.Job.DType.Size())
	return &border{
		perRow: row * perRow, perHop: row * perHop, least: row * min(perRow, perHop),
		kvShare: float64(m.KVHeads) / float64(m.QHeads), wide: 4 / float64(f.p.Job.DType.Size()), tokens: float64(f.p.Job.SeqLen),
	}
}
