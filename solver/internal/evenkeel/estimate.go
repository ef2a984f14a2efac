package evenkeel

import (
	"math"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/internal/analytic"
	"github.com/evenkeel/evenkeel/solver/internal/strategy"
)

// estimator ranks groupings before any of them is simulated, and gives each the
// shares it should have. The phases of a layer are divided by the all-to-alls,
// so a group of several takes
//
//	t = max_d linear(s_d) + all-to-alls + max(max_d attention(h_d, S_g), wires)
//
// and the two maxima are balanced apart: tokens by the pace of linear work,
// heads by that of attention. Under the nested zigzag t is close to affine in
// the group's tokens S_g, so that water-filling S_g over the groups ends them
// all at the same time.
type estimator struct {
	p     *strategy.Problem
	m     *analytic.Model
	class []int       // by rank: its device type on its kind of node
	dev   []int       // by class, as the model numbers types
	cards []int       // by class: network cards of its kind of node
	size  []int       // by class: devices of its kind of node
	rings []ringTable // by device type and heads
	// lengths are those of the grid, so far.
	lengths []float64
	toAll   map[string]analytic.Link
	hops    []map[uint64]analytic.Times // by link, nodes' and then the network, and bits of the elements
	work    float64                     // see spend
	// Room that portions uses again.
	members  []portion
	nodes    []nodePortion
	twoBatch bool // micro-batches go in twos
}

func newEstimator(p *strategy.Problem) (*estimator, error) {
	m, err := analytic.New(p)
	if err != nil {
		return nil, err
	}
	e := &estimator{p: p, m: m, rings: make([]ringTable, len(m.Types)*(p.Job.Model.QHeads+1)), toAll: map[string]analytic.Link{}, hops: make([]map[uint64]analytic.Times, len(m.Inside)+1)}
	for i := range e.hops {
		e.hops[i] = map[uint64]analytic.Times{}
	}
	known := map[[2]int]int{}
	sizes := map[int]int{}
	for _, r := range p.Ranks {
		sizes[r.Node]++
	}
	for r, k := range p.Ranks {
		at := [2]int{m.TypeOf[r], m.NodeKind[k.Node]}
		c, ok := known[at]
		if !ok {
			c = len(e.dev)
			known[at] = c
			e.dev, e.cards, e.size = append(e.dev, m.TypeOf[r]), append(e.cards, p.Job.Cluster.Nodes[k.Node].NICs), append(e.size, sizes[k.Node])
		}
		e.class = append(e.class, c)
	}
	return e, nil
}

// lot is members of a group that are alike.
type lot struct {
	class, heads, count int
	weight              float64 // of one of them, all members' together 1
}

func (k *groupKind) lots() []lot {
	var lots []lot
	all := 0.0
	for _, w := range k.weight {
		all += w
	}
	for i, c := range k.class {
		x := lot{c, k.heads[i], 1, k.weight[i] / all}
		found := false
		for j := range lots {
			if l := &lots[j]; l.class == x.class && l.heads == x.heads && l.weight == x.weight {
				l.count++
				found = true
				break
			}
		}
		if !found {
			lots = append(lots, x)
		}
	}
	return lots
}

// kindTime is what a layer takes a group of s tokens among n groups.
type kindTime func(s float64) float64

// timeOf is the time of the groups of a kind, of n groups in all, whose all-to-alls
// carry v.
func (e *estimator) timeOf(k *groupKind, n int, wires wireTime, v volume) kindTime {
	lots := k.lots()
	var law analytic.Link
	if len(k.class) > 1 {
		law = e.toAllLaw(k)
	}
	total := float64(e.p.Job.SeqLen)
	return func(s float64) float64 {
		other := (total - s) / float64(max(1, n-1))
		linear, att := 0.0, analytic.Times{}
		on := e.spanOf(s, max(1, other))
		for i := range lots {
			l := &lots[i]
			linear = max(linear, e.m.LinearTime(e.dev[l.class], units.Tokens(math.Ceil(s*l.weight))))
			a := e.attentionOn(e.dev[l.class], l.heads, n, on)
			att.Forward, att.Backward = max(att.Forward, a.Forward), max(att.Backward, a.Backward)
		}
		t := linear + e.ringTime(att, wires, s, n)
		if len(k.class) > 1 {
			t += e.exchange(len(k.class), law, v, s)
		}
		return t
	}
}

// ringTime is how long a group of s tokens is in the ring, all passes together:
// it computes without a break, or waits for the last block and computes that;
// backward its gradient has a last hop to go then.
func (e *estimator) ringTime(att analytic.Times, w wireTime, s float64, n int) float64 {
	if n < 2 {
		return e.m.Forwards*att.Forward + att.Backward
	}
	even := float64(e.p.Job.SeqLen) / float64(n)
	passing := (float64(e.p.Job.SeqLen) - s) / (even * float64(n-1)) // against blocks of even length
	last := 1 / float64(n)
	forward := max(att.Forward, w.Forward*passing+att.Forward*last)
	backward := max(att.Backward, w.Backward*passing+att.Backward*last) + w.home*s/even
	return e.m.Forwards*forward + backward
}

// setShares gives every group of a draft its members' heads and weights.
// Heads come in multiples of `unit`; of a kind of several classes the fastest one
// may have them all, and the others work on tokens alone.
func (e *estimator) setShares(d *draft, n, unit int, fastest bool) {
	s := float64(e.p.Job.SeqLen) / float64(n)
	q := e.p.Job.Model.QHeads
	for i := range d.kinds {
		k := &d.kinds[i]
		if len(k.class) == 1 {
			k.heads, k.weight = []int{q}, []float64{1}
			continue
		}
		own := e.pacesOf(k, n, s)
		if least := slices.Min(own.perHead); fastest {
			for m := range own.perHead {
				if own.perHead[m] > least {
					own.perHead[m] = math.Inf(1)
				}
			}
		}
		k.heads, k.weight = dealHeads(q, unit, own.perHead), own.rate
	}
}

// memberPaces are what a head takes each member of a kind, and the tokens a second of its
// linear work.
type memberPaces struct{ perHead, rate []float64 }

// pacesOf is those of a kind in groups of s tokens among n.
func (e *estimator) pacesOf(k *groupKind, n int, s float64) memberPaces {
	h := max(1, (e.p.Job.Model.QHeads+len(k.class)-1)/len(k.class))
	own := memberPaces{make([]float64, len(k.class)), make([]float64, len(k.class))}
	for m, c := range k.class {
		if m > 0 && c == k.class[m-1] {
			own.perHead[m], own.rate[m] = own.perHead[m-1], own.rate[m-1]
			continue
		}
		a := e.attention(e.dev[c], h, n, s, s)
		own.perHead[m] = (e.m.Forwards*a.Forward + a.Backward) / float64(h)
		tokens := units.Tokens(math.Ceil(s / float64(len(k.class))))
		own.rate[m] = float64(tokens) / e.m.LinearTime(e.dev[c], tokens)
	}
	return own
}

// dealHeads gives heads, `unit` at a time, to the member that is then done
// first: of all ways the one that ends earliest. Whatever unit leaves over goes
// the same way one by one.
func dealHeads(heads, unit int, perHead []float64) []int {
	got := make([]int, len(perHead))
	for heads > 0 {
		n, first := min(unit, heads), 0
		end := math.Inf(1)
		for i, t := range perHead {
			if done := float64(got[i]+n) * t; done < end*(1-1e-12) {
				first, end = i, done
			}
		}
		got[first] += n
		heads -= n
	}
	return got
}

// solve fills a draft's shares in and returns the layers' estimated seconds, or
// +Inf where its groups cannot hold the sequence. caps are the most tokens a
// group of each kind may have; nil is no limit.
func (e *estimator) solve(d *draft, caps []float64) float64 {
	return e.solveWithin(d, caps, math.Inf(1))
}

// solveWithin is solve for who has no use for drafts that take longer than a limit:
// those that do by a round's paces, and a hundredth more, are +Inf. The first round's, of equal
// groups, say little.
func (e *estimator) solveWithin(d *draft, caps []float64, limit float64) float64 {
	n := 0
	for i := range d.kinds {
		n += len(d.kinds[i].groups)
	}
	wires, cards := e.wires(d, n), e.cardsOf(d)
	times, counts := make([]kindTime, len(d.kinds)), make([]float64, len(d.kinds))
	for i := range d.kinds {
		times[i], counts[i] = e.timeOf(&d.kinds[i], n, wires, e.exchanged(&d.kinds[i], i, cards)), float64(len(d.kinds[i].groups))
	}
	total := float64(e.p.Job.SeqLen)
	each, paces := make([]float64, len(d.kinds)), make([]pace, len(d.kinds))
	for i := range each {
		each[i] = total / float64(n)
	}
	steps := float64(e.p.Job.Model.Layers) * float64(max(1, e.p.Job.Accumulate))
	for round := range levelRounds {
		for i := range each {
			paces[i] = affine(times[i], max(each[i], total/float64(8*n)))
		}
		var theta float64
		if each, theta = level(total, paces, counts, caps); each == nil || round > 0 && theta*steps > limit*(1+roundError) {
			return math.Inf(1)
		}
	}
	e.round(d, each, paces, caps)
	worst := 0.0
	for i := range each {
		if d.kinds[i].total > 0 {
			worst = max(worst, times[i](each[i]))
		}
	}
	return worst * steps
}

// roundError is how far a round's paces are taken to be from what comes of the last one at most.
const roundError = 0.01

// levelRounds of drawing the groups' paces where their tokens are and filling
// them anew; the third changes little.
const levelRounds = 3

// affine draws a pace through the times at a tenth less and a tenth more than s.
func affine(t kindTime, s float64) pace {
	lo, hi := t(0.9*s), t(1.1*s)
	slope := (hi - lo) / (0.2 * s)
	fixed := lo - slope*0.9*s
	// Where the wires set the time it hardly grows with tokens, or falls; then
	// keep a bit of proportion, for other groups wait less for shorter blocks.
	if least := hi / (1.1 * s) / 8; slope < least {
		slope, fixed = least, hi-least*1.1*s
	}
	if fixed < 0 { // a group alone: attention grows with the square
		slope, fixed = (lo+hi)/(2*s), 0
	}
	return pace{fixed, slope}
}

// round turns each group's tokens into whole blocks and deals what is left, a
// block at a time, to the group that is then done first.
func (e *estimator) round(d *draft, each []float64, paces []pace, caps []float64) {
	block, left := e.p.Block, e.p.Job.SeqLen
	base, extra := make([]units.Tokens, len(each)), make([]int, len(each))
	for i, s := range each {
		base[i] = units.Tokens(math.Floor(s/float64(block)+1e-9)) * block
		n := units.Tokens(len(d.kinds[i].groups))
		base[i] = min(base[i], left/n/block*block)
		d.kinds[i].total = base[i] * n
		left -= d.kinds[i].total
	}
	for left > 0 {
		n, first, end := min(block, left), -1, math.Inf(1)
		for i, c := range paces {
			if caps != nil && float64(base[i]+n) > caps[i] && each[i] > 0 {
				continue
			}
			if done := c.fixed + c.perToken*float64(base[i]+n); done < end {
				first, end = i, done
			}
		}
		if first < 0 {
			first = 0
		}
		d.kinds[first].total += n
		left -= n
		if extra[first]++; extra[first] == len(d.kinds[first].groups) {
			extra[first] = 0
			base[first] += block
		}
	}
}

// leastTime is about the least that the layers can take some ranks, whoever does what: of
// linear work and attention, in shares p and q of what they take the mean rank, a
// second of a rank does no more than the better of the two brings.
func (e *estimator) leastTime(ranks []int) float64 {
	s := e.p.Job.SeqLen
	linear, att, count := make([]float64, len(e.dev)), make([]float64, len(e.dev)), make([]float64, len(e.dev))
	p, q := 0.0, 0.0
	for _, r := range ranks {
		c := e.class[r]
		if count[c] == 0 {
			a := e.attention(e.dev[c], e.p.Job.Model.QHeads, 1, float64(s), 0)
			linear[c], att[c] = e.m.LinearTime(e.dev[c], s), e.m.Forwards*a.Forward+a.Backward
		}
		count[c]++
		p, q = p+linear[c], q+att[c]
	}
	speed := 0.0
	for c, n := range count {
		if n > 0 {
			speed += n * max(p/linear[c], q/att[c])
		}
	}
	return (p + q) / speed * float64(e.p.Job.Model.Layers) * float64(max(1, e.p.Job.Accumulate))
}

// tax is what a step of some ranks takes besides layers and loss: what stands
// alone, and what may hide behind the layers.
func (e *estimator) tax(ranks []int) (open, hidden float64, err error) {
	params := e.p.Job.Model.Params()
	if e.p.Job.Zero != costmodel.Zero0 {
		params = (params + int64(len(ranks)) - 1) / int64(len(ranks))
	}
	optimizer, seen := 0.0, map[int]bool{}
	for _, r := range ranks {
		if dev := e.m.TypeOf[r]; !seen[dev] {
			seen[dev] = true
			optimizer = max(optimizer, e.m.Price(dev, op.AdamW{Params: params}))
		}
	}
	if len(ranks) < 2 {
		return optimizer, 0, nil
	}
	if err := e.p.Alone(ranks); err != nil {
		return 0, 0, err
	}
	open = optimizer
	link := e.p.LinkAmong(ranks)
	for _, x := range e.p.Job.Collectives() {
		l, err := e.m.Over(link, x.Kind, ranks)
		if link == e.p.Job.Cluster.Network {
			l, err = e.m.Across(x.Kind, ranks)
		}
		if err != nil {
			return 0, 0, err
		}
		if t := x.Times * l.Seconds(x.Kind, float64(x.Bytes)); e.p.Job.OverlapZero && x.Bytes == e.p.Job.LayerBytes() {
			hidden += t
		} else {
			open += t
		}
	}
	return open, hidden, nil
}

// shown is how long a draft's layers take, t by themselves, beside messages of
// all ranks that hide behind them as long as the ports are free.
func (e *estimator) shown(d *draft, t, hidden float64) float64 {
	if hidden < leastHidden*t {
		return t
	}
	n, busy := len(d.ring), 0.0
	wires, cards := e.wires(d, n), e.cardsOf(d)
	each, _ := d.lengths()
	for i := range d.kinds {
		if k := &d.kinds[i]; len(k.class) > 1 && k.total > 0 {
			busy = max(busy, e.exchange(len(k.class), e.toAllLaw(k), e.exchanged(k, i, cards), each[i]))
		}
	}
	busy += e.m.Forwards*wires.Forward + wires.Backward
	busy *= float64(e.p.Job.Model.Layers) * float64(max(1, e.p.Job.Accumulate))
	return t + min(hidden, max(0, busy+hidden-t))
}

// leastHidden is the part of the layers' time below which nobody asks.
const leastHidden = 0.02

func tokensUp(s float64) units.Tokens { return units.Tokens(math.Ceil(s)) }
