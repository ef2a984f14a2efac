package pipeline

import (
	"math"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
)

// Floor is the seconds that no chunks of the batch take less than, together, in one layer on a
// stage of n devices of a type, forward and backward; and their loss. alone says that the
// devices are all of the stage, and on as few nodes as can be or on more: all-to-alls among
// them are counted then.
//
// Laws are asked for shapes on a grid, which is finer where prices vary more: it is a share of
// slack below what they say, for what prices vary between its points.
func (c *Costs) Floor(device string, n int, alone bool) (layer, loss units.Seconds) {
	layer, loss, err := c.from.floor(device, n, c.Lengths)
	if err != nil { // nobody can have a stage of such devices then
		return forever, forever
	}
	if alone && n > 1 {
		layer += c.leastMoving(device, n)
	}
	return slack * layer, slack * loss
}

// FloorOn is Floor on a stage of these ranks. All-to-alls among them are counted where they are
// of one type; of several the slowest decides.
func (c *Costs) FloorOn(ranks []int) (layer, loss units.Seconds) {
	var types []string
	for _, r := range ranks {
		if device := c.Device(r); !slices.Contains(types, device) {
			types = append(types, device)
		}
	}
	for _, device := range types {
		l, x, err := c.from.floor(device, len(ranks), c.Lengths)
		if err != nil {
			return forever, forever
		}
		layer, loss = max(layer, l), max(loss, x)
	}
	if len(types) == 1 && len(ranks) > 1 {
		if t := c.leastMovingOn(ranks, false); t < forever {
			layer += t
		}
	}
	return slack * layer, slack * loss
}

// slack is more than what was found between the points of the grids: 0.1 % at most.
const slack = 0.995

// leastMoving is what all-to-alls take at least for the batch in one layer, among n devices of a
// type that are spread evenly over as few nodes as can be, or over more; nothing where nodes
// differ in more than what is left over of them, for then nobody knows which are fastest. Every
// rank is taken to have a network card of its own: where they share them an even spread is not
// the one that moves least.
func (c *Costs) leastMoving(device string, n int) units.Seconds {
	var nodes [][]int // ranks of the type
	for _, node := range c.Nodes() {
		if of := slices.DeleteFunc(slices.Clone(node), func(r int) bool { return c.ranks[r].Device != device }); len(of) > 0 {
			nodes = append(nodes, of)
		}
	}
	for _, node := range nodes {
		if c.Like(node[:1]) != c.Like(nodes[0][:1]) {
			return 0
		}
	}
	least := forever
	for k := 1; k <= len(nodes); k++ { // spread over so many nodes
		var ranks []int
		for i, left := 0, n; i < k && left > 0; i++ {
			take := min(len(nodes[i]), (left+k-i-1)/(k-i))
			ranks, left = append(ranks, nodes[i][:take]...), left-take
		}
		if len(ranks) < n {
			continue
		}
		slices.Sort(ranks)
		least = min(least, c.leastMovingOn(ranks, true))
	}
	if least == forever {
		return 0
	}
	return least
}

// leastMovingOn is what all-to-alls take at least for the batch in one layer on ranks; forever
// where there is no price.
func (c *Costs) leastMovingOn(ranks []int, ownCards bool) units.Seconds {
	all, least := units.Tokens(0), forever
	for _, s := range c.Lengths {
		all += s
	}
	for tokens := all; tokens >= min(all, leastMoved); tokens /= 2 {
		if t, err := c.from.moving(ranks, tokens, ownCards); err == nil {
			least = min(least, t*units.Seconds(float64(all)/float64(tokens)))
		}
	}
	return least
}

// leastMoved is the fewest tokens for which all-to-alls are looked at: fewer take longer a
// token.
const leastMoved = 4096

func (l *laws) moving(ranks []int, tokens units.Tokens, ownCards bool) (units.Seconds, error) {
	p, err := l.packerOf(ranks, ownCards)
	if err != nil {
		return 0, err
	}
	group, shares := l.group(len(ranks))
	each := min(tokens, leastMoved)
	t, err := p.Chunk(group, shares, costmodel.Chunk{Whole: []costmodel.Documents{{Tokens: each, Count: int(tokens / each)}}})
	return t.ForwardMoving + t.BackwardMoving, err
}

// rates are the least seconds a token, or a pair of tokens, on a device type.
type rates struct {
	linear, loss float64
	heads        map[int]*attentionRates // by heads of a device
}

// attentionRates are those of a device that has some of the heads. Slices s_i of a sequence of n
// tokens take at least
//
//	full (n² - Σ s_i²)/2 + Σ diag(s_i) = full n²/2 + Σ ( diag(s_i) - full s_i²/2 )
//
// of which the sum is at least n times the least of (diag(s) - full s²/2)/s.
type attentionRates struct {
	full  float64
	steps []diagRate // by rising length
}

type diagRate struct {
	tokens units.Tokens
	whole  float64 // least seconds of a sequence of so many tokens
	rest   float64 // least of (diag(s) - full s²/2)/s up to here
}

// grids: by what factor lengths rise.
const (
	linearGrid = 1.005
	diagGrid   = 1.03
	fullGrid   = 1.4
)

func (l *laws) floor(device string, n int, lengths []units.Tokens) (layer, loss units.Seconds, err error) {
	r, err := l.ratesOf(device, lengths)
	if err != nil {
		return 0, 0, err
	}
	heads := l.job.Model.QHeads / n
	a, ok := r.heads[heads]
	if !ok {
		if a, err = l.attentionRatesOf(device, heads, n, lengths); err != nil {
			return 0, 0, err
		}
		r.heads[heads] = a
	}
	all, attention := 0.0, 0.0
	for _, s := range lengths {
		all += float64(s)
		attention += a.of(s)
	}
	return units.Seconds(r.linear*all/float64(n) + attention), units.Seconds(r.loss * all / float64(n)), nil
}

// of is the least seconds of a sequence.
func (a *attentionRates) of(n units.Tokens) float64 {
	at, found := slices.BinarySearchFunc(a.steps, n, func(d diagRate, n units.Tokens) int { return int(d.tokens - n) })
	if !found {
		at = max(0, at-1)
	}
	d := a.steps[at]
	return max(0, min(d.whole, a.full*float64(n)*float64(n)/2+float64(n)*d.rest))
}

func (l *laws) ratesOf(device string, lengths []units.Tokens) (*rates, error) {
	if r, ok := l.rates[device]; ok {
		return r, nil
	}
	r := &rates{linear: math.Inf(1), loss: math.Inf(1), heads: map[int]*attentionRates{}}
	all := units.Tokens(0)
	for _, s := range lengths {
		all += s
	}
	for at := 1.0; ; at *= linearGrid {
		tokens, next := units.Tokens(at), units.Tokens(at*linearGrid)
		next = max(next-1, tokens) // the most tokens that are not at the next point
		forward, backward, err := l.layers.Linear(device, tokens)
		if err != nil {
			return nil, err
		}
		loss, err := l.layers.Loss(device, tokens)
		if err != nil {
			return nil, err
		}
		r.linear = min(r.linear, float64(forward+backward)/float64(next))
		r.loss = min(r.loss, float64(loss)/float64(next))
		if tokens >= all {
			break
		}
	}
	l.rates[device] = r
	return r, nil
}

func (l *laws) attentionRatesOf(device string, heads, n int, lengths []units.Tokens) (*attentionRates, error) {
	kv := 1
	for i := range n {
		kv = max(kv, l.job.Model.KVHeadsOf(i*heads, heads))
	}
	var missing error
	seconds := func(context, slice units.Tokens, count int) float64 {
		forward, backward, err := l.layers.Attention(device, heads, kv, context, slice, count)
		if err != nil {
			missing = err
		}
		return float64(forward+backward) / float64(count)
	}
	longest := slices.Max(lengths)
	a := &attentionRates{full: math.Inf(1)}
	all := units.Tokens(0)
	for _, s := range lengths {
		all += s
	}
	least := float64(min(64, longest)) // shorter ones take no less a token
	for s := least; s < 2*float64(longest); s *= fullGrid {
		slice := min(units.Tokens(s), longest)
		for count := 1; count <= int(all/slice); count *= 2 { // as the packer prices them
			alone := seconds(0, slice, count)
			for x := least; x < 2*float64(longest); x *= fullGrid {
				context := min(units.Tokens(x), longest)
				a.full = min(a.full, (seconds(context, slice, count)-alone)/(float64(slice)*float64(context)))
			}
		}
	}
	rest := math.Inf(1)
	for s := 1.0; missing == nil; s *= diagGrid {
		tokens := min(units.Tokens(s), longest)
		whole := math.Inf(1)
		for count := 1; count <= int(all/tokens); count *= 2 {
			t := seconds(0, tokens, count)
			rest = min(rest, (t-a.full*float64(tokens)*float64(tokens)/2)/float64(tokens))
			whole = min(whole, t)
		}
		if len(a.steps) == 0 || a.steps[len(a.steps)-1].tokens < tokens {
			a.steps = append(a.steps, diagRate{tokens, whole, rest})
		} else {
			last := &a.steps[len(a.steps)-1]
			last.whole, last.rest = min(last.whole, whole), rest
		}
		if tokens == longest {
			break
		}
	}
	return a, missing
}
