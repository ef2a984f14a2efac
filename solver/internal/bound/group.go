package bound

import (
	"cmp"
	"math"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// headTimes is the least that a device type takes over whole heads of the one
// square of all tokens, by their number, forward and backward: what a member of
// a group computes that has no other group beside it, whose segments are joined.
type headTimes struct{ forward, backward []float64 }

// headTimes asks the laws for every number of heads. Which key-value heads these
// need depends on where they begin, and the kernel may be given a few more. Now and then
// a law has two calls for some of the heads each take less than one for all of them.
func (f *floors) headTimes(device string) (*headTimes, error) {
	j := f.job
	var t headTimes
	for _, x := range []struct {
		of   *[]float64
		kind op.Kind
	}{{&t.forward, op.KindAttnFwd}, {&t.backward, op.KindAttnBwd}} {
		k, err := f.kernel(device, op.Diag, x.kind)
		if err != nil {
			return nil, err
		}
		*x.of = []float64{0}
		for heads := 1; heads <= j.Model.QHeads; heads++ {
			*x.of = append(*x.of, k.leastOf(j.SeqLen, heads))
		}
		*x.of = leastInParts(*x.of, costmodel.MaxHeadChunks)
	}
	return &t, nil
}

// leastInParts is the least that each number takes in up to so many calls, of what it
// takes in one.
func leastInParts(once []float64, parts int) []float64 {
	least := once
	for range parts - 1 {
		next := slices.Clone(least)
		for n := range next {
			for one := 1; one < n; one++ {
				next[n] = min(next[n], once[one]+least[n-one])
			}
		}
		least = next
	}
	return least
}

// leastOf is the least time of a square for so many heads, which need the fewest
// key-value heads or, where they begin inside one, another, each repeated until
// they share them evenly.
func (k *kernel) leastOf(tokens units.Tokens, heads int) float64 {
	least, each := math.Inf(1), int(k.each)
	fewest := (heads + each - 1) / each
	for kv := fewest; kv <= min(heads, fewest+1); kv++ {
		even := kv
		for heads%even != 0 {
			even++
		}
		least = min(least, float64(k.law.Seconds(k.of(tokens, tokens, heads, even))))
	}
	return least
}

// orMore is the least for each number of heads or more, which now and then takes less.
func (t *headTimes) orMore(forward, backward float64) []float64 {
	by := make([]float64, len(t.forward))
	for h := range by {
		by[h] = forward*t.forward[h] + backward*t.backward[h]
	}
	for h := len(by) - 2; h >= 0; h-- {
		by[h] = min(by[h], by[h+1])
	}
	return by
}

// asFloor is the same as a floor of attention that counts heads for pairs.
func (t *headTimes) asFloor(forward, backward float64) *attentionFloor {
	f := &attentionFloor{from: t.orMore(forward, backward)}
	for h := range f.from {
		f.from[h] *= 1 - 1e-12 // more than rounding can do
		f.pairs = append(f.pairs, float64(h))
		f.rate = append(f.rate, f.from[h]/max(1, float64(h)))
	}
	f.rate[0] = f.rate[1]
	f.index()
	return f
}

// slowestOf is the least that the slowest of some ranks takes over its heads, of
// times with these weights.
func slowestOf(classes []class, ranks, heads int, forward, backward float64) float64 {
	var times []float64
	by := make([][]float64, len(classes))
	for c := range classes {
		by[c] = classes[c].heads.orMore(forward, backward)
		times = append(times, by[c]...)
	}
	slices.Sort(times)
	at, _ := slices.BinarySearchFunc(times, heads, func(t float64, want int) int {
		if headsWithin(classes, by, ranks, t) < want {
			return -1
		}
		return 1
	})
	if at == len(times) {
		return math.Inf(1)
	}
	return times[at]
}

// headsWithin is how many heads some ranks compute in a time at most.
func headsWithin(classes []class, by [][]float64, ranks int, t float64) int {
	type many struct{ heads, count int }
	all := make([]many, 0, 8)
	for c := range classes {
		n, _ := slices.BinarySearchFunc(by[c], t, func(x, t float64) int {
			if x <= t {
				return -1
			}
			return 1
		})
		fits := math.Floor(classes[c].memory.pairs(0) * (1 + 1e-9))
		all = append(all, many{max(0, int(min(float64(n-1), fits))), classes[c].count})
	}
	slices.SortFunc(all, func(a, b many) int { return cmp.Compare(b.heads, a.heads) })
	sum := 0
	for _, m := range all {
		n := min(ranks, m.count)
		sum += n * m.heads
		ranks -= n
	}
	return sum
}

// oneGroup is a floor of the layouts of a scope whose ranks form a single group:
// Ulysses, whatever its shares and chunks of heads. Its members wait for each other
// before the attention and after it, so that either pass takes no less than
//
//	slowest linear work before + slowest attention + slowest after
//
// and what a rank has less of the one it cannot make up for with the other; nor less
// than all of its all-to-alls between the linear work (see allToAlls). The exchange uses the
// same ports, so that a pass with what it has to hide takes no less than both together. It
// is more than enough where it proves that to be.
//
// Where micro-batches go in twos (see inTwos) they wait less.
func (f *floors) oneGroup(s scope, enough float64) float64 {
	classes := f.classes(s)
	for c := range classes {
		if !f.unlimited {
			classes[c].memory = f.groupMemory(classes[c].device, s.most)
		}
	}
	one := &lone{f, s, classes, f.twoBatch}
	layers, micro, again := f.counts()
	weights := [stageCount]float64{layers * micro * (1 + again), layers * micro, micro}
	attention := one.heads(weights)
	if math.IsInf(attention, 1) || attention > enough {
		return math.Inf(1)
	}
	x := f.exchange(s)
	rest := x.open + f.optimizer(s)
	linear := one.linear(weights)
	base := one.both(weights, linear, attention) + rest
	if math.IsInf(base, 1) || base > enough {
		return math.Inf(1)
	}
	pass := func(weights [stageCount]float64) float64 {
		return one.both(weights, one.linear(weights), one.heads(weights))
	}
	forward, backward := pass([stageCount]float64{1, 0, 0}), pass([stageCount]float64{again, 1, 0})
	bare := layers*micro*(forward+backward) + micro*one.linear([stageCount]float64{0, 0, 1}) + rest
	apart := func(toAlls passes) float64 {
		ahead, back := x.forward+toAlls.forward, x.backward+again*toAlls.forward+toAlls.backward
		hidden := micro*(max(0, ahead-forward)+max(0, back-backward)) + max(0, x.last-f.atOnce()*max(backward, back))
		return bare + (layers-1)*hidden
	}
	g := &groupWork{classes: classes, weights: weights, beside: attention + rest, base: max(base, apart(passes{})), apart: apart}
	if g.twoBatch = one.twoBatch; g.twoBatch {
		g.beside, g.attention = rest, attention
		return f.allToAlls(s, g, linear/2+rest)
	}
	return f.allToAlls(s, g, linear+rest)
}

// lone is the ranks of a scope that form a single group.
type lone struct {
	f        *floors
	s        scope
	classes  []class
	twoBatch bool // micro-batches may go in twos
}

// linear is the least of the slowest rank's linear work, and heads of its attention.
func (o *lone) linear(weights [stageCount]float64) float64 {
	w := linearWork(o.f.job, o.classes, weights)
	w.ranks = o.s.most
	return w.solve()
}

func (o *lone) heads(weights [stageCount]float64) float64 {
	return slowestOf(o.classes, o.s.most, o.f.job.Model.QHeads, weights[forwardLayer], weights[backwardLayer])
}

// both is the least of linear work and attention, of which the slowest takes so long.
//
// Where members wait for each other between them it is the sum. Of two micro-batches
// nobody takes less than all of its own work; and with the slowest linear work before the
// attention u, the slowest attention v and the slowest linear work after it w, two take
// no less than each of
//
//	u + 2v + w    2u + v + w    u + v + 2w
//
// for the first all-to-all waits for one u and the second for two, and each attention
// for its all-to-all; the other way round behind it. So one takes half of the linear work
// and all of the attention at least, or, of the mean of the last two, 3/4 and 1/2.
func (o *lone) both(weights [stageCount]float64, linear, attention float64) float64 {
	if !o.twoBatch || math.IsInf(linear+attention, 1) {
		return linear + attention
	}
	own := linearWork(o.f.job, slices.Clone(o.classes), weights)
	own.ranks = o.s.most
	own.share(float64(o.f.job.Model.QHeads))
	for c := range own.classes {
		own.classes[c].rank = nil // all-to-alls count apart
		own.attention = append(own.attention, own.classes[c].heads.asFloor(weights[forwardLayer], weights[backwardLayer]))
	}
	return max(own.solve(), linear/2+attention, linear*3/4+attention/2)
}

// groupWork is what is known of the ranks of one group beside their all-to-alls.
type groupWork struct {
	classes   []class
	weights   [stageCount]float64
	beside    float64 // seconds of a step that are no linear work
	attention float64 // of the slowest, of which half at least is no linear work of two micro-batches at once
	base      float64 // seconds of a step without all-to-alls
	twoBatch  bool    // micro-batches go in twos
	// apart is a step's seconds by its passes, of which each waits for the ports, with
	// all-to-alls that keep them busy for so long.
	apart func(toAlls passes) float64
	pairs []*attentionFloor // what a rank computes in a step, by class; of several groups
}

// linearBy is the most linear work of a rank in a step of so many seconds: see both.
func (g *groupWork) linearBy(theta float64) float64 {
	left := theta - g.beside
	if g.twoBatch {
		left = min(left, (left-g.attention/2)*4/3)
	}
	return left
}

// mostTokens is the most that a rank can have whose step takes no longer than
// theta: its linear work is none of the rest.
func (g *groupWork) mostTokens(theta float64) float64 {
	most := 0.0
	for c := range g.classes {
		k := &g.classes[c]
		w := leastWork{weights: g.weights}
		fits := func(x *cell) bool { return w.linear(x) <= g.linearBy(theta) }
		for range maxSplits {
			at := len(k.linear.cells) - 1
			for at > 0 && !fits(&k.linear.cells[at]) {
				at--
			}
			if x := &k.linear.cells[at]; float64(x.hi-x.lo) <= splitUntil*float64(x.hi) || float64(x.hi) <= most {
				break
			}
			k.linear.split(at, splitParts)
		}
		for at := range slices.Backward(k.linear.cells) {
			if fits(&k.linear.cells[at]) {
				most = max(most, min(float64(k.linear.cells[at].hi), k.memory.room()))
				break
			}
		}
	}
	return most
}

// allToAlls is the floor with the all-to-alls of a group of all its ranks; bare is that
// of its linear work and of what is no layer's.
//
// Of H heads and S tokens, member i has h_i and s_i. The rows that come in to all
// members, and go out of all, are the sum of h_i (S - s_i), in one of the two
// all-to-alls of a pass with keys and values: that is H S less the sum of
// h_i s_i, which is at most H times the most tokens of a rank. The busiest port
// carries the n-th part at least. A step that takes theta leaves no room for more
// tokens than it computes by then, so that theta is too small if the all-to-alls
// of ranks with as many take it beyond. Of a group on several nodes the same holds of nodes
// for members, since rows inside one do not cross the network.
//
// In however many chunks, the ports carry all of that after the linear work before the
// attention and before that after it. And nobody computes before the first chunk is in,
// which has one of k key-value heads of each member, or more. Of micro-batches in twos
// the ports carry all between the first's linear work before and the second's after it,
// which is half of what both take. Where the exchange hides behind layers, it waits for
// them too (see groupWork.apart).
func (f *floors) allToAlls(s scope, g *groupWork, bare float64) float64 {
	at := func(theta float64) float64 {
		part := max(0, 1-f.mostTogether(s, g, theta)/float64(f.job.SeqLen))
		pass := f.passOfToAlls(s, part)
		apart := max(bare+(g.weights[forwardLayer]+g.weights[backwardLayer])*pass, g.apart(passes{pass, pass}))
		if g.twoBatch {
			return max(g.base, apart)
		}
		return max(g.base+f.firstToAlls(s, part, g.weights), apart)
	}
	if s.most > eachCount {
		return g.base
	}
	return raised(g.base, at)
}

// mostTogether is the most tokens that a member of a group can have whose step takes no longer
// than theta or, where it is on several nodes, those on one of them together.
func (f *floors) mostTogether(s scope, g *groupWork, theta float64) float64 {
	if s.node >= 0 {
		return g.mostTokens(theta)
	}
	each := map[string]float64{}
	for i, c := range g.classes {
		one := *g
		one.classes = g.classes[i : i+1]
		each[c.device] = one.mostTokens(theta)
	}
	most := 0.0
	for _, n := range f.job.Cluster.Nodes {
		tokens := 0.0
		for _, m := range n.Devices {
			tokens += float64(min(m.Count, s.counts[m.Device])) * each[m.Device]
		}
		most = max(most, tokens)
	}
	return most
}

// rowBytes is the bytes of one row of every query head and token.
func (f *floors) rowBytes() float64 {
	m := f.job.Model
	return float64(f.job.SeqLen) * float64(m.QHeads*m.HeadDim) * float64(f.job.DType.Size())
}

// passOfToAlls is how long a pass's all-to-alls that carry so large a part of all rows
// keep the busiest port, in as many messages as may be.
func (f *floors) passOfToAlls(s scope, part float64) float64 {
	m := f.job.Model
	rows := 2 + 2*float64(m.KVHeads)/float64(m.QHeads) // of the two of a pass
	return rows * part * f.rowBytes() / float64(s.most) * f.perByteOver(f.linkOf(s), op.KindAllToAll)
}

// firstToAlls is the least of the first chunk's all-to-all in, which carries that part of
// all rows in keys and values forward and, if query heads share none of these, in
// queries, and backward in gradients of the output.
func (f *floors) firstToAlls(s scope, part float64, weights [stageCount]float64) float64 {
	m := f.job.Model
	forward, backward := 2*float64(m.KVHeads)/float64(m.QHeads), 0.0
	if m.KVHeads == m.QHeads {
		forward, backward = forward+1, backward+1
	}
	chunk := part * f.rowBytes() / costmodel.MaxHeadChunks
	if chunk <= 0 {
		return 0
	}
	link, least := f.linkOf(s), math.Inf(1)
	for n := s.fewest; n <= s.most; n++ {
		of := func(b units.Tokens) op.Shape {
			return op.OfMessage(op.KindAllToAll, op.Message{Group: n, Bytes: units.Bytes(b)})
		}
		for _, u := range f.lawsAmong(s, link, op.KindAllToAll, n) {
			if u.law.Curve == nil {
				return 0
			}
			one := func(rows float64) float64 {
				if rows == 0 {
					return 0
				}
				bytes := units.Tokens(chunk * rows * (1 - 1e-9) / float64(n-1))
				return u.factor * leastBetween(u.law, of, max(1, bytes), math.MaxInt64>>8)
			}
			least = min(least, weights[forwardLayer]*one(forward)+weights[backwardLayer]*one(backward))
		}
	}
	if math.IsInf(least, 1) {
		return 0
	}
	return least
}
