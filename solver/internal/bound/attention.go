package bound

import (
	"math"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// attentionFloor is the least that a device type charges for attention: rate[i]
// seconds a pair and head at least, for a rank with at most pairs[i] of them in
// all. A (query, key) pair counts once for each query head.
//
// A rank's pairs come in blocks, none larger than all of them together, and all of the
// rank's heads, so that the least rate of the blocks up to a size, of so many heads, is
// a floor of the rate of every rank with as much to do: small work is dear, whatever it
// is cut into, and much work is of many heads (fewestHeads).
type attentionFloor struct {
	pairs []float64 // rising
	rate  []float64 // falling but where a rank needs more heads
	from  []float64 // seconds from which on more than pairs[i-1] are possible
	// start is where to look for the last i with from[i] <= seconds, by the stretch
	// of the seconds, of which there are four a doubling; the first is number first.
	start []int
	first int
}

// stretchOf is the number of the stretch of a time: its exponent and the two
// first bits of its fraction.
func stretchOf(seconds float64) int { return int(math.Float64bits(seconds) >> 50) }

// within is the most pairs that may take no more than so many seconds.
func (f *attentionFloor) within(seconds float64) float64 {
	if seconds <= 0 {
		return 0
	}
	i := f.start[min(max(stretchOf(seconds)-f.first, 0), len(f.start)-1)]
	for i+1 < len(f.from) && f.from[i+1] <= seconds {
		i++
	}
	if i == len(f.pairs)-1 {
		return seconds / f.rate[i]
	}
	return min(f.pairs[i], seconds/f.rate[i])
}

// ready fills in from which time on a rank may have more than pairs[i-1]: the
// floor may fall from one stretch to the next, so it is the least of all that follow.
func (f *attentionFloor) ready() *attentionFloor {
	f.from = make([]float64, len(f.pairs))
	for i := len(f.pairs) - 1; i > 0; i-- {
		f.from[i] = f.pairs[i-1] * f.rate[i]
		if i+1 < len(f.from) {
			f.from[i] = min(f.from[i], f.from[i+1])
		}
	}
	f.index()
	return f
}

// index fills in where to start looking: at the last i whose time begins no later
// than the stretch. Times before the first stretch start at 0.
func (f *attentionFloor) index() {
	last := stretchOf(f.from[len(f.from)-1])
	f.first = last
	if len(f.from) > 1 {
		f.first = stretchOf(f.from[1])
	}
	i := 0
	f.start = append(f.start[:0], 0)
	for n := f.first + 1; n <= last; n++ {
		for begin := math.Float64frombits(uint64(n) << 50); i+1 < len(f.from) && f.from[i+1] <= begin; {
			i++
		}
		f.start = append(f.start, i)
	}
}

// sumOf is the floor of both at once, of weight a of one and b of the other; both
// are of the same pairs.
func sumOf(a float64, f *attentionFloor, b float64, o *attentionFloor) *attentionFloor {
	sum := &attentionFloor{pairs: f.pairs, rate: make([]float64, len(f.rate))}
	for i := range f.rate {
		sum.rate[i] = a*f.rate[i] + b*o.rate[i]
	}
	return sum.ready()
}

// kernel is a law of attention as its floor sees it.
type kernel struct {
	law      *costmodel.Law
	a        op.Attention // of which lengths and heads vary
	backward bool
	each     float64 // query heads a key-value head
	seq      float64 // tokens: no block is longer
	queries  float64 // nor has more of these
	known    float64 // nor, of those whose floor is still to be found, so few
	heads    float64 // no block has more
	merge    float64 // seconds of adding a row of a FULL block's result to others'
	// corrected is less than any factor of the law's correction, which takes longer
	// to find for a box than all else.
	corrected float64
}

// leastFactor is less than any factor of a correction, by more than rounding can
// do: between nodes it is between theirs, beyond them nearer to none.
func leastFactor(c *costmodel.Field) float64 {
	least := 0.0
	if c != nil {
		for _, v := range c.Values {
			least = min(least, float64(v)*c.Step)
		}
	}
	return math.Exp(least) * (1 - 1e-9)
}

func (k *kernel) of(q, kv units.Tokens, heads, kvHeads int) op.Shape {
	a := k.a
	a.QLen, a.KVLen, a.QHeads, a.KVHeads = q, kv, heads, kvHeads
	if k.backward {
		return op.AttnBwd{Attention: a}
	}
	return op.AttnFwd{Attention: a}
}

// box is a set of blocks: of more than pairsLo and up to pairsHi pairs and heads,
// whose tasks step along lengths (keys; backward, queries) from stepLo to stepHi.
type box struct {
	pairsLo, pairsHi float64
	stepLo, stepHi   float64
	// Rows of all tasks: queries times heads; backward, keys times heads.
	rowsLo, rowsHi float64
	headsLo, heads float64 // of a square
	// other is the longest other side. The queries and keys of a rectangle are
	// different tokens, so that both sides together are no longer than the sequence.
	other float64
}

// fine is the ratio of a box's ends at which it is not cut any more: what falls
// with size is taken at one end and what rises at the other.
const fine = 1.08

// fineHeads is the same of numbers of heads, which matter less.
const fineHeads = 2

// floorOf finds the rates of blocks of a mask, or those of a list where these are
// less: of blocks with no more queries than k.known.
func (k *kernel) floorOf(pairs, known []float64) []float64 {
	rates := make([]float64, len(pairs))
	least, below, fewest := math.Inf(1), 0.0, 0.0
	for i, n := range pairs {
		if few := k.fewestHeads(pairs, i); few != fewest { // blocks of fewer count no longer
			least, below, fewest = math.Inf(1), 0, few
		}
		if known != nil {
			least = min(least, known[i])
		}
		least = k.least(box{pairsLo: below, pairsHi: n, stepLo: k.shortestStep(), stepHi: k.longestStep(), headsLo: fewest, heads: k.heads}, least)
		rates[i], below = least, n
	}
	return rates
}

// fewestHeads is of how many heads at least the blocks of a rank are that has more than
// pairs[i-1] in all: they are all of its heads, and one has no more pairs than the
// sequence. Only who is alone, and has all pairs, may compute its heads in chunks.
func (k *kernel) fewestHeads(pairs []float64, i int) float64 {
	if i == 0 {
		return 1
	}
	few := math.Ceil(pairs[i-1] * (1 - 1e-9) * 2 / (k.seq * (k.seq + 1)))
	if i == len(pairs)-1 {
		few = min(few, math.Floor(k.heads/costmodel.MaxHeadChunks))
	}
	return max(1, min(few, k.heads))
}

// longestStep is the most keys that a task steps along; backward, and in a square,
// these are queries.
func (k *kernel) longestStep() float64 {
	if k.backward || k.a.Mask == op.Diag {
		return k.queries
	}
	return k.seq
}

// shortestStep is what a task steps along more of than that, where these are queries.
func (k *kernel) shortestStep() float64 {
	if k.backward || k.a.Mask == op.Diag {
		return k.known
	}
	return 0
}

// least is the least rate of the blocks of a box, if it is below cut.
func (k *kernel) least(b box, cut float64) float64 {
	if rate := k.inBox(b, cut); rate < cut {
		return k.inside(b, rate, cut)
	}
	return cut
}

// inside is least of a box whose floor, below cut, is known: it cuts in two what
// may hold the least, and looks into the more promising half first.
func (k *kernel) inside(b box, rate, cut float64) float64 {
	one, two, ok := b.halves()
	if !ok {
		return rate
	}
	first, second := k.inBox(one, cut), k.inBox(two, cut)
	if second < first {
		one, two, first, second = two, one, second, first
	}
	if first < cut {
		cut = k.inside(one, first, cut)
	}
	if second < cut {
		cut = k.inside(two, second, cut)
	}
	return cut
}

// halves cuts the widest side of a box at the geometric middle, or one that begins
// at nothing near its end.
func (b box) halves() (lo, hi box, ok bool) {
	lo, hi = b, b
	pairs, step := b.pairsHi/b.pairsLo, b.stepHi/b.stepLo
	switch {
	case b.stepHi <= 1:
		step = 1
	case b.stepLo == 0:
		step = math.Inf(1)
	}
	if b.pairsHi <= 1 {
		pairs = 1
	}
	switch heads := b.heads / b.headsLo; {
	case heads > fineHeads && heads > max(pairs, step):
		at := math.Floor(math.Sqrt(b.headsLo * b.heads))
		lo.heads, hi.headsLo = at, at+1
		return lo, hi, true
	case max(pairs, step) <= fine:
		return lo, hi, false
	}
	if pairs > step {
		at := math.Sqrt(max(b.pairsLo, b.pairsHi/256) * b.pairsHi)
		lo.pairsHi, hi.pairsLo = at, at
		return lo, hi, true
	}
	at := math.Sqrt(max(b.stepLo, b.stepHi/256) * b.stepHi)
	lo.stepHi, hi.stepLo = at, at
	return lo, hi, true
}

// inBox is a floor of the rates in a box, infinite for an empty one, and for one
// that is easily seen to have none below cut.
func (k *kernel) inBox(b box, cut float64) float64 {
	if k.a.Mask == op.Diag {
		return k.square(b, cut)
	}
	b.other = k.seq - math.Floor(b.stepLo)
	b.rowsLo, b.rowsHi = b.pairsLo/b.stepHi, b.other*b.heads
	if !k.backward {
		b.other = min(b.other, k.queries)
		b.rowsLo, b.rowsHi = max(b.rowsLo, k.known*b.headsLo), b.other*b.heads
	}
	if b.stepLo > 0 {
		b.rowsHi = min(b.rowsHi, b.pairsHi/b.stepLo)
	}
	if b.rowsLo >= b.rowsHi || b.headsLo > b.rowsHi {
		return math.Inf(1)
	}
	b.rowsLo, b.other = max(b.rowsLo, b.headsLo), min(b.other, b.rowsHi/b.headsLo)
	return k.rectangle(b, cut)
}

// rectangle is a floor of the rates of FULL blocks.
func (k *kernel) rectangle(b box, cut float64) float64 {
	least := k.rate(b, 1)
	if least*k.corrected*k.law.Factor()+k.merged(b) >= cut {
		return math.Inf(1)
	}
	if c := k.law.Correction; c != nil {
		lo, hi := units.Tokens(max(1, b.stepLo)), units.Tokens(math.Ceil(b.stepHi))
		from, to := units.Tokens(max(1, b.rowsLo/b.heads)), units.Tokens(math.Ceil(b.other))
		heads, most := int(max(b.headsLo, math.Floor(b.rowsLo/k.seq))), int(b.heads)
		if k.backward {
			lo, hi, from, to = from, to, lo, hi
		}
		least *= math.Exp(c.Least(k.of(from, lo, heads, k.kv(heads)), k.of(to, hi, most, most)))
	}
	return least*k.law.Factor() + k.merged(b)
}

// merged is what adding a FULL block's result to what others began costs a pair
// and head: a row of outputs for each query, one pair in kv_len; backward, of the
// query's gradient, and two rows, of keys and of values, for each key and
// key-value head.
func (k *kernel) merged(b box) float64 {
	if !k.backward {
		return k.merge / b.stepHi
	}
	return k.merge * (1/b.other + 2/(k.each*b.stepHi))
}

// square is a floor of the rates of DIAG blocks: of n queries and keys, more than
// stepLo and up to stepHi, and as many heads as make the pairs.
func (k *kernel) square(b box, cut float64) float64 {
	n, m := math.Floor(b.stepLo)+1, math.Floor(b.stepHi)
	if n > m {
		return math.Inf(1)
	}
	b.headsLo = max(b.headsLo, math.Ceil(2*b.pairsLo/(m*(m+1))))
	b.heads = min(b.heads, math.Floor(2*b.pairsHi/(n*(n+1))))
	if b.headsLo > b.heads {
		return math.Inf(1)
	}
	b.pairsLo, b.pairsHi = max(b.pairsLo, b.headsLo*n*(n+1)/2), min(b.pairsHi, b.heads*m*(m+1)/2)
	b.stepLo, b.stepHi, b.rowsLo, b.rowsHi = n, m, n*b.headsLo, m*b.heads
	rate := k.rate(b, 2)
	if rate*k.corrected*k.law.Factor() >= cut {
		return math.Inf(1)
	}
	if c := k.law.Correction; c != nil {
		few, many := int(b.headsLo), int(b.heads)
		rate *= math.Exp(c.Least(k.of(units.Tokens(n), units.Tokens(n), few, k.kv(few)), k.of(units.Tokens(m), units.Tokens(m), many, many)))
	}
	return rate * k.law.Factor()
}

// kv is the fewest key-value heads of so many query heads.
func (k *kernel) kv(heads int) int { return max(1, int(float64(heads)/k.each)) }

// rate is a floor of the body's seconds a pair and head. A rectangle's tasks step
// along 1 length a pair, a square's along 2/(length+1): half their rectangle.
func (k *kernel) rate(b box, halves float64) float64 {
	var operands operandRates
	length := b.stepHi
	if halves == 2 {
		length++
	}
	operands.of(k, halves/length, b.other, halves)
	if k.law.Attention != nil {
		return coreRate(k, b, halves, &operands)
	}
	l := k.law.Linear
	flops := float64(k.of(1, 1, 1, 1).Work().FLOPs) / float64(l.Parallel)
	return l.Launch.Value/b.pairsHi + l.PerFLOP.Value*flops + l.PerRow.Value*operands.rows/float64(l.Parallel) + l.PerByte.Value*operands.all
}

// operandRates are floors of what the operands of a block have a pair and head:
// rows of queries, bytes of queries, of keys and values, of what a task alone
// holds, and of all.
type operandRates struct{ rows, q, kv, own, all float64 }

// of fills in the floors of a kernel whose tasks step along lengths of 1/step a
// pair, and whose other side is no longer than the longest there is.
func (o *operandRates) of(k *kernel, step, longest, halves float64) {
	element := float64(k.a.HeadDim) * float64(k.a.DType.Size())
	other := 1 / longest
	if halves == 2 {
		other = step
	}
	keys, queries := step, other // 1/keys, 1/queries of the longest block
	if k.backward {
		keys, queries = other, step
	}
	o.rows = keys
	o.q, o.kv = keys*element, 2*queries*element/k.each
	if k.backward {
		o.own = 2 * o.kv
		o.all = 4*o.q + o.own
		return
	}
	o.own = 2 * o.q
	o.all = o.own + o.kv
}

// coreRate bounds AttentionCore.At a pair and head from below, term by term. What
// falls with size (launches, tasks, bytes of operands) is that of the largest
// blocks of the box, what rises with it (waiting tasks, cache misses, sustained
// load) that of the smallest; counts of tiles and tasks are not rounded up, but
// where less than one is one.
//
// The soft maxima are homogeneous, so that they hold for rates as for times. The
// sustained time x + slow d^2/x s(x) rises with x and with d, for slow <= 1 and
// d <= x, so that it may be taken at floors of both.
func coreRate(k *kernel, b box, halves float64, o *operandRates) float64 {
	c := k.law.Attention
	parallel, rows, keys := float64(c.Parallel), float64(c.TileRows), float64(c.TileKeys)
	split := c.SplitKV && !k.backward
	tiles := c.Tile / (rows * keys * parallel)
	if halves == 2 {
		tiles *= k.triangle(b, rows)
	} else if c.Waves && !split {
		tiles = max(tiles, c.Tile/(keys*b.rowsHi))
	}
	tasks := c.Task * max(1/b.pairsHi, halves/(rows*parallel*b.stepHi+rows*parallel*(halves-1)))
	longest, start := 0.0, c.Start/b.pairsHi
	if !split {
		longest = c.Alone * c.Tile * halves / (keys * b.rowsHi)
		if halves == 2 {
			longest *= b.stepHi / (b.stepHi + 1)
		}
	}
	byteTime := byteTimeOf(c, o.all*b.pairsLo)
	busy := tiles + tasks + c.Stream*byteTime*o.own
	if waiting := 1 - parallel*rows/max(b.rowsLo, 1); waiting > 0 && !split {
		steps := b.stepLo / keys
		busy += c.Tail * waiting * (c.Start + c.Alone*c.Tile*steps*fineSteps/(fineSteps+steps)) / b.pairsHi
	}
	x := c.Launch/b.pairsHi + costmodel.PNorm(costmodel.PNorm(busy, longest+start, c.Overlap), c.Traffic*byteTime*o.all, c.Memory)
	x += math.Cbrt(cube(c.SideLaunch/b.pairsHi) + cube(byteTime*(c.SideKV*o.kv+c.SideQ*o.q)))
	s := math.Pow(b.pairsLo*x/c.SlowAt, c.SlowNorm)
	if s > 1e200 { // what follows would overflow, and is its limit
		return x + c.Slow*tiles*tiles/x
	}
	return x + c.Slow*tiles*tiles/x*s/(1+s)
}

// triangle is by how much the tiles of a square exceed its pairs: i tiles of
// rows have at least i(i-1)/2 rows/keys + n/keys steps.
func (k *kernel) triangle(b box, rows float64) float64 {
	more := rows
	if k.law.Attention.Packed && !k.backward {
		more /= k.each
	}
	at := func(n float64) float64 { return (n + more) / (n + 1) }
	return min(at(b.stepLo), at(b.stepHi))
}

// fineSteps is the length of a task at which a core evens half of the tail out.
const fineSteps = 32

func cube(x float64) float64 { return x * x * x }

// byteTimeOf is the time of a byte when a call touches at least so many.
func byteTimeOf(c *costmodel.AttentionCore, bytes float64) float64 {
	fill := cube(bytes/c.Cache) * bytes / c.Cache
	miss := 1.0
	if fill < 1e300 {
		miss = fill / (1 + fill)
	}
	return c.Byte * (miss + (1-miss)*c.Cached)
}

// attention finds the floors of a device type, forward and backward, for ranks
// with up to so many pairs, in groups with up to so many tokens: none of its
// blocks has more queries. Those of groups with fewer tokens, if known, are where
// the search begins.
func (f *floors) attention(device string, pairs []float64, tokens float64, fewer *grouped) (forward, backward *attentionFloor, err error) {
	forward, backward = &attentionFloor{pairs: pairs}, &attentionFloor{pairs: pairs}
	if fewer != nil {
		forward.rate, backward.rate = fewer.forward.rate, fewer.backward.rate
	}
	for _, x := range []struct {
		of   *attentionFloor
		kind op.Kind
	}{{forward, op.KindAttnFwd}, {backward, op.KindAttnBwd}} {
		for _, mask := range []op.Mask{op.Diag, op.Full} {
			k, err := f.kernel(device, mask, x.kind)
			if err != nil && mask == op.Full && f.size == 1 {
				continue // a rank alone need not cut its square
			}
			if err != nil {
				return nil, nil, err
			}
			if k.queries = tokens; fewer != nil {
				k.known = math.Floor(fewer.most)
			}
			x.of.rate = k.floorOf(pairs, x.of.rate)
		}
	}
	return forward.ready(), backward.ready(), nil
}

func (f *floors) kernel(device string, mask op.Mask, kind op.Kind) (*kernel, error) {
	j := f.job
	a := op.Attention{Mask: mask, QLen: 1, KVLen: 1, QHeads: 1, KVHeads: 1, HeadDim: j.Model.HeadDim, DType: j.DType}
	law, err := f.predictor.Law(device, kind, a.Variant())
	if err != nil {
		return nil, err
	}
	merge := 0.0
	if mask == op.Full {
		if merge, err = f.mergeRate(device); err != nil {
			return nil, err
		}
	}
	return &kernel{
		law: law, merge: merge, a: a, backward: kind == op.KindAttnBwd, seq: float64(j.SeqLen), queries: float64(j.SeqLen),
		heads: float64(j.Model.QHeads), each: float64(j.Model.QHeads) / float64(j.Model.KVHeads),
		corrected: leastFactor(law.Correction),
	}, nil
}

// mergeRate is the least seconds that adding a row costs.
func (f *floors) mergeRate(device string) (float64, error) {
	j := f.job
	all := op.LSEMerge{Tokens: 2 * j.SeqLen, QHeads: j.Model.QHeads, HeadDim: j.Model.HeadDim}
	law, err := f.predictor.Law(device, op.KindLSEMerge, all.Variant())
	if err != nil {
		return 0, err
	}
	rows := float64(all.Tokens) * float64(all.QHeads)
	if law.Linear != nil {
		return float64(law.Seconds(all)) / rows, nil // the launch falls with rows, all else follows them
	}
	most := op.Volume(all)
	return law.Factor() * float64(law.Curve.FloorPerByte(most)) * float64(most) / rows, nil
}
