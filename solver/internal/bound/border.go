package bound

import "math"

// border is what has to pass between a rank and all others, in the stages of a
// weighted sum, in layouts of several groups.
//
// Take a rank with s of S tokens and h of H query heads, w = kv_heads/q_heads, whose
// group has s+e tokens. Its queries are the group's; the keys that they see are the
// group's own or come round the ring, as blocks of I tokens in all. Nobody sees a key
// that is not there, so that the last query is at most the (s+e+I)-th token, and
//
//	pairs <= h ((s+e) I + (s+e)(s+e+1)/2) <= h (s I + s (s+1)/2 + e (S+1))
//
// for s + e + I <= S. What comes in by the ring is 2w rows a token and head, forward
// and backward, which may hide behind anything; backward their gradients go out, in
// float32, for each block that came leaves again. The e tokens come in by all-to-all,
// as 1+2w rows, and go home as 1; backward the other way round: 2+2w in the two
// all-to-alls of a pass, in which nobody computes. Where micro-batches go in twos
// somebody may for a part of it (see left), and all-to-alls and blocks share the ports.
type border struct {
	perRow  float64 // seconds a row of all heads takes in an all-to-all
	perHop  float64 // the same in a ring
	kvShare float64 // w
	wide    float64 // bytes of a float32 over those of the job's type
	tokens  float64 // of the sequence
	heads   float64 // query heads
}

// reach is what a rank can reach by some time: pairs without an all-to-all, and how
// many more a second of all-to-alls brings; +Inf where these cost nothing.
type reach struct {
	free, perSecond float64
	most            float64 // pairs, by what its ports carry
	// theta is that time where micro-batches go in twos, or 0.
	theta float64
}

// reach is that of a rank with up to hi tokens by theta, whose port has other bytes to
// send for some of that.
func (b *border) reach(w *leastWork, hi, theta, beside float64) reach {
	f, back := w.weights[forwardLayer], w.weights[backwardLayer]
	come := max(0, b.tokens-hi)
	row := 2 * b.kvShare * b.perHop
	if in := (f + back) * row; in > 0 {
		come = min(come, max(0, theta)/in)
	}
	if out := back * b.wide * row; out > 0 {
		come = min(come, max(0, theta-beside)/out)
	}
	x := reach{free: b.heads * (hi*come + hi*(hi+1)/2), perSecond: math.Inf(1), most: math.Inf(1)}
	if exchange := (f + back) * (2 + 2*b.kvShare) * b.perRow; exchange > 0 {
		x.perSecond = b.heads * (b.tokens + 1) / exchange
	}
	if w.twoBatch && !math.IsInf(x.perSecond, 1) {
		x.theta = max(0, theta)
		x.most = x.byPorts(x.theta, hi*come*b.heads, come*(f+back)*row)
	}
	return x
}

// byPorts is what a rank can reach with its ports alone, which have so many seconds for
// all-to-alls and for blocks that bring `ring` of the free pairs and take so long.
func (x reach) byPorts(seconds, ring, took float64) float64 {
	free := x.free - ring
	if by := x.perSecond * took; by < ring { // blocks bring more
		return free + ring + x.perSecond*max(0, seconds-took)
	}
	return free + x.perSecond*seconds
}

// left is what all-to-alls leave for attention of what linear work leaves. Micro-batches
// one by one compute nothing meanwhile. Of two the first one's attention waits for all of
// its all-to-all in, and the second's linear work behind it for all of its all-to-all
// out, while other linear work is done, so that two take no less than
//
//	linear work of one + the all-to-alls of one + attention of two
//
// nor than their linear work and attention. By theta, of which slack is not linear work,
// that leaves each the lesser of slack and (slack + theta - all-to-alls) / 2.
func (x reach) left(slack, toAlls float64) float64 { return leftBy(x.theta, slack, toAlls) }

// leftBy is left of micro-batches in twos by theta, or one by one where that is 0.
func leftBy(theta, slack, toAlls float64) float64 {
	if theta > 0 {
		return min(slack, (slack+theta-toAlls)/2)
	}
	return slack - toAlls
}

// pairs is no less than the most pairs that a rank has which has `slack` left beside
// linear work, for all-to-alls and for attention; `at` takes what is left for that to
// pairs. It is the most of 64 bounds, one for each part of the time that all-to-alls may
// take, and so never falls with slack or with what is free.
func (x reach) pairs(slack float64, at func(slack float64) float64) float64 {
	most := min(x.most, at(slack))
	if most <= x.free || math.IsInf(x.perSecond, 1) {
		return most
	}
	if x.perSecond == 0 {
		return min(most, x.free)
	}
	lo, hi := 0.0, slack // seconds of all-to-alls: too few and enough
	if x.theta > 0 {
		hi = 2 * x.theta
	}
	for range 6 {
		if mid := (lo + hi) / 2; at(max(0, x.left(slack, mid))) > x.free+x.perSecond*mid {
			lo = mid
		} else {
			hi = mid
		}
	}
	return min(most, x.free+x.perSecond*hi, at(x.left(slack, lo)))
}

// borderOf is the border of a rank whose links take so many seconds a byte.
func (f *floors) borderOf(perRow, perHop float64) *border {
	m := f.job.Model
	row := float64(m.QHeads*m.HeadDim) * float64(f.job.DType.Size())
	return &border{
		perRow: row * perRow, perHop: row * perHop, heads: float64(m.QHeads),
		kvShare: float64(m.KVHeads) / float64(m.QHeads), wide: 4 / float64(f.job.DType.Size()), tokens: float64(f.job.SeqLen),
	}
}
