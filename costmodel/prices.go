package costmodel

import (
	"math"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// prices caches the times of a layer's tasks, in seconds, across the layouts of one job.
// Most ranks of a layout are alike, so the tasks of a ring of n groups have far fewer
// than n x n different prices. They are kept in tables: a row for what computes or sends
// (device type, heads, form of its shard), a column for the block it works on.
//
// Rows of attention exist once for each relation, which is how the two shards lie to one
// another.
type prices struct {
	shapeOf map[shapeKey]int
	workOf  map[workKey]int
	hopOf   map[hopKey]int
	linear  map[linearKey]units.Seconds
	toAll   map[toAllKey]units.Seconds
	whole   map[wholeKey][2]units.Seconds // exchange of gradients and parameters: of one layer, and of the parameters in no layer
	adam    map[adamKey]units.Seconds
	work    [2][relations]priceTable // forward, backward
	kv      priceTable
	grad    priceTable
	hops    []hopKey // by price row
	exact   int      // number of the layout whose shapes are no one else's
	wide    bool     // a shard of the layout has more than two segments
}

// priceTable holds the prices computed so far in tiles of rows and columns. A ring asks
// for a stretch of every row in turn, and a tile, which is one page of memory, keeps the
// stretches of neighbouring rows together.
type priceTable struct {
	tiles [][]*tile
	spare []tile
	slab  int // tiles that were last allocated at once
}

const (
	tileRows    = 16
	tileColumns = 32
)

type tile [tileRows][tileColumns]kept

// kept is a price in a table. The bits of fresh memory stand for none, for a search fills
// little of most of its thousands of tiles.
type kept uint64

// keep is a price as a table holds it.
func keep(t units.Seconds) kept { return kept(math.Float64bits(float64(t)) + 1) }

// price is what was kept, or NaN.
func (k kept) price() units.Seconds { return units.Seconds(math.Float64frombits(uint64(k) - 1)) }

// get is a price, or NaN.
func (p *priceTable) get(row, column int) units.Seconds {
	if r, c := row/tileRows, column/tileColumns; r < len(p.tiles) && c < len(p.tiles[r]) && p.tiles[r][c] != nil {
		return p.tiles[r][c][row%tileRows][column%tileColumns].price()
	}
	return units.Seconds(math.NaN())
}

// set keeps a price.
func (p *priceTable) set(row, column int, t units.Seconds) {
	p.line(row, column/tileColumns)[column%tileColumns] = keep(t)
}

// line is a row's prices in a column of tiles, the table grown if need be.
func (p *priceTable) line(row, column int) *[tileColumns]kept {
	r := row / tileRows
	for len(p.tiles) <= r {
		p.tiles = append(p.tiles, nil)
	}
	for len(p.tiles[r]) <= column {
		p.tiles[r] = append(p.tiles[r], nil)
	}
	x := p.tiles[r][column]
	if x == nil {
		x = p.newTile()
		p.tiles[r][column] = x
	}
	return &x[row%tileRows]
}

// mostSlab is how many tiles are allocated at once, at most: of pages one by one the
// allocator takes longer than all that is done with them.
const mostSlab = 16

func (p *priceTable) newTile() *tile {
	if len(p.spare) == 0 {
		p.slab = min(max(1, 2*p.slab), mostSlab)
		p.spare = make([]tile, p.slab)
	}
	x := &p.spare[0]
	p.spare = p.spare[1:]
	return x
}

func unknown(t units.Seconds) bool { return t != t }

// shapeKey is what a shard's blocks depend on, with the relation to the other
// shard: the lengths of its two segments, or of more segments the layout and
// group.
type shapeKey struct{ a, b, kept, exact, group units.Tokens }

type workKey struct {
	device           string
	heads, kv, shape int
}

type hopKey struct {
	law, group, kv int
	crowding       float64
	from           string // device type, whose slow-down beside computing counts
}

type linearKey struct {
	device string
	tokens units.Tokens
	what   linearPart
}

type toAllKey struct {
	law, group int
	bytes      float64
}

type wholeKey struct{ law, group int }

type adamKey struct {
	device string
	ranks  int
}

type linearPart int8

const (
	preForward linearPart = iota
	postForward
	preBackward
	postBackward
	lossOfTokens
)

func newPrices() prices {
	return prices{
		shapeOf: map[shapeKey]int{}, workOf: map[workKey]int{}, hopOf: map[hopKey]int{},
		linear: map[linearKey]units.Seconds{}, toAll: map[toAllKey]units.Seconds{},
		whole: map[wholeKey][2]units.Seconds{}, adam: map[adamKey]units.Seconds{},
	}
}

// relations is the number of ways in which two shards of at most two segments
// each can lie to one another: for either segment of the queries 0, 1 or 2
// segments of keys may begin before it. The last is a shard with itself.
const relations = 10

const itself = 9

// none is where the second segment of a shard of one begins.
const none = math.MaxInt64

// relation says how the keys of a shard lie to the queries of another.
func relation(q, keys *form) int {
	code := begun(keys, q.first)
	if q.second != none {
		code += 3 * begun(keys, q.second)
	}
	return code
}

// begun counts the segments that begin before a position, an only one twice:
// then the innermost shard of a nest, whose two have become one, lies to the
// others as its neighbours do.
func begun(keys *form, at units.Tokens) int {
	n := 0
	if keys.first < at {
		n++
	}
	if keys.last() < at {
		n++
	}
	return n
}

// last is where the last segment begins.
func (f *form) last() units.Tokens {
	if f.second == none {
		return f.first
	}
	return f.second
}

// shapes numbers the shards of the groups. Shards of at most two segments have
// the same blocks whenever lengths and relation are the same; with more, prices
// are kept for this one layout only.
func (s *sim) shapes(shards []Shard) {
	s.wide = false
	for _, k := range shards {
		s.wide = s.wide || len(k.Segments) > 2
	}
	if s.wide {
		s.exact++
	}
	for g := range s.groups {
		b := &s.groups[g]
		key := shapeKey{a: b.shard.Segments[0].Len()}
		if len(b.shard.Segments) > 1 {
			key.b = b.shard.Segments[1].Len()
		}
		key.kept = b.tokens - b.sent
		if s.wide {
			key = shapeKey{exact: units.Tokens(s.exact), group: units.Tokens(g)}
		}
		n, ok := s.shapeOf[key]
		if !ok {
			n = len(s.shapeOf)
			s.shapeOf[key] = n
		}
		b.form = form{shape: n, first: b.shard.Segments[0].Start, second: none, from: b.from, to: b.to}
		if len(b.shard.Segments) > 1 {
			b.form.second = b.shard.Segments[1].Start
		}
		for i := b.from; i < b.to; i++ {
			s.seats[i].work = s.workRow(i, n)
		}
	}
}

func (s *sim) workRow(i, shape int) int {
	a := &s.seats[i]
	if i > 0 { // as the seat before, mostly
		if x := &s.seats[i-1]; x.device == a.device && x.heads == a.heads && x.kv == a.kv && s.groups[x.group].form.shape == shape {
			return x.work
		}
	}
	key := workKey{a.device, a.heads, a.kv, shape}
	n, ok := s.workOf[key]
	if !ok {
		n = len(s.workOf)
		s.workOf[key] = n
	}
	return n
}

// attentionTime is what a seat takes over the block of a group that lies so to
// its own, as priced by the laws for the first time.
func (s *sim) attentionTime(dir, relation int, a *seat, k int) units.Seconds {
	of := &s.groups[k]
	t := s.attentionCost(dir == 1, a, of, nil)
	s.work[dir][relation].set(a.work, of.form.shape, t)
	return t
}

// attentionCost is the same by the laws, booked in acc.
func (s *sim) attentionCost(back bool, a *seat, of *seatGroup, acc *account) units.Seconds {
	if a.heads == 0 {
		return 0
	}
	queries, keys := s.blockOf(a, of)
	return s.attention(a.device, queries, keys, a.heads, a.kv, back, acc)
}

// blockOf is a seat's queries and the keys and values of a group. Behind a context, which one
// group has alone, positions are counted from the context's first token on.
func (s *sim) blockOf(a *seat, of *seatGroup) (queries, keys Shard) {
	if s.context == 0 {
		return s.groups[a.group].shard, of.shard
	}
	end := s.context + of.tokens
	return Shard{[]Segment{{s.context, end}}}, Shard{[]Segment{{0, end}}}
}

// relationOf is the relation of one group's queries to the keys of another or
// its own.
func (s *sim) relationOf(q, keys *form) int {
	switch {
	case q == keys:
		return itself
	case s.wide:
		return 0
	}
	return relation(q, keys)
}

// linearTime is what a device type takes over the work of so many tokens in
// one part of a layer.
func (s *sim) linearTime(a *seat, what linearPart) units.Seconds {
	key := linearKey{a.device, a.tokens, what}
	t, ok := s.linear[key]
	if !ok {
		if t = s.linearCost(a, what, nil); s.err == nil {
			s.linear[key] = t
		}
	}
	return t
}

func (s *sim) linearCost(a *seat, what linearPart, acc *account) units.Seconds {
	if a.tokens == 0 || s.attentionOnly && what != lossOfTokens {
		return 0
	}
	switch what {
	case preForward:
		return s.beforeAttention(a.device, a.tokens, acc)
	case postForward:
		return s.afterAttention(a.device, a.tokens, acc)
	case preBackward:
		return s.backToAttention(a.device, a.tokens, acc)
	case postBackward:
		return s.backFromAttention(a.device, a.tokens, acc)
	}
	return s.loss(a.device, a.tokens, acc)
}

func (s *sim) lossTime(a *seat) units.Seconds { return s.linearTime(a, lossOfTokens) }

// optimizerTime is what the optimizer takes a device type among so many ranks.
func (s *sim) optimizerTime(device string, ranks int) units.Seconds {
	key := adamKey{device, ranks}
	t, ok := s.adam[key]
	if !ok {
		if t = s.optimizer(device, ranks, nil); s.err == nil {
			s.adam[key] = t
		}
	}
	return t
}

// priceMessages gives every hop the row of its prices.
func (s *sim) priceMessages() {
	inside := make([]int, len(s.nodes)) // law of a node's link, plus one
	across := 0
	price := func(h *hop, sent, received int) {
		from, to := &s.seats[h.from], &s.seats[h.to]
		key := hopKey{kv: h.kv, crowding: 1, from: from.device}
		if from.node == to.node {
			n := &s.nodes[from.node]
			if inside[from.node] == 0 {
				inside[from.node] = 1 + s.over(s.linkOf(from.node), op.KindSendRecv, n.members)
			}
			key.law, key.group = inside[from.node]-1, n.seats
		} else {
			if across == 0 {
				across = 1 + s.over(s.linkOf(-1), op.KindSendRecv, s.membersOf(0, len(s.seats)))
			}
			key.law, key.group = across-1, len(s.seats)
			for dir := range h.price {
				key.crowding = s.crowding(dir, h, sent, received)
				h.price[dir] = s.hopRow(key)
			}
			return
		}
		h.price[0] = s.hopRow(key)
		h.price[1] = h.price[0]
	}
	for g := range s.groups {
		b := &s.groups[g]
		for _, hops := range [][]hop{b.out, b.home} {
			sent, received := s.abroad(hops)
			for i := range hops {
				price(&hops[i], sent[i], received[i])
			}
		}
	}
}

func (s *sim) hopRow(key hopKey) int {
	n, ok := s.hopOf[key]
	if !ok {
		n = len(s.hops)
		s.hopOf[key] = n
		s.hops = append(s.hops, key)
	}
	return n
}

// hopTime is what it takes to pass the block of a group on, or its gradients, as
// priced by the law for the first time.
func (s *sim) hopTime(grad bool, price, k int) units.Seconds {
	of, table := &s.groups[k], &s.kv
	if grad {
		table = &s.grad
	}
	t := s.hopCost(grad, price, of, nil)
	table.set(price, of.form.shape, t)
	return t
}

func (s *sim) hopCost(grad bool, price int, of *seatGroup, acc *account) units.Seconds {
	key := s.hops[price]
	bytes := s.kvBytes(of.sent, key.kv)
	if grad {
		bytes = s.gradBytes(of.sent, key.kv)
	}
	t := s.send(key.law, key.group, units.Bytes(math.Ceil(float64(bytes)*key.crowding)), acc)
	// Keys and values move in either pass, gradients in the backward one.
	slow := s.q.slowed(key.from, true, op.SlowedComm)
	if !grad {
		slow = max(slow, s.q.slowed(key.from, false, op.SlowedComm))
	}
	return t * units.Seconds(slow)
}

// kvBytes is the keys and values of so many tokens and heads in the job's
// precision.
func (s *sim) kvBytes(tokens units.Tokens, kv int) units.Bytes {
	return 2 * units.Bytes(tokens) * units.Bytes(kv*s.job.Model.HeadDim) * s.job.DType.Size()
}

// gradBytes is their gradients, in float32 because many shares are added up.
func (s *sim) gradBytes(tokens units.Tokens, kv int) units.Bytes {
	return 2 * units.Bytes(tokens) * units.Bytes(kv*s.job.Model.HeadDim) * 4
}

// exchangeKind is one of a layer's all-to-alls.
type exchangeKind int8

const (
	tokensIn      exchangeKind = iota // q, k, v of a member's tokens to who computes their heads
	outputOut                         // attention output back to the tokens' owners
	outputIn                          // its gradient
	tokensOut                         // gradients of q, k, v
	exchangeKinds                     // how many there are
)

// rows is how many bytes a member sends for each unit that its peer receives, in an
// all-to-all: what travels from i to j is a product of both.
type rows struct {
	of   exchangeKind
	head float64 // bytes of a head's row
}

func (s *sim) rowsOf(x exchangeKind) rows {
	return rows{x, float64(s.job.Model.HeadDim) * float64(s.job.DType.Size())}
}

func (x rows) send(a *seat) float64 {
	switch x.of {
	case outputOut:
		return x.head * float64(a.heads)
	case tokensOut:
		return x.head * float64(a.heads+2*a.kv)
	}
	return float64(a.tokens)
}

func (x rows) receive(a *seat) float64 {
	switch x.of {
	case tokensIn:
		return x.head * float64(a.heads+2*a.kv)
	case outputIn:
		return x.head * float64(a.heads)
	}
	return float64(a.tokens)
}

// toAllTime is what a group's all-to-all takes: as long as an even one with as
// many bytes on its busiest port.
func (s *sim) toAllTime(x exchangeKind, b *seatGroup, acc *account) units.Seconds {
	n := b.to - b.from
	if b.abroad == 0 {
		port := s.allToAllBytes(x, b)
		if b.node < 0 && s.fewCards {
			port = max(port, s.cardBytes(x, b))
		}
		return s.portTime(toAllKey{b.law, n, port}, acc)
	}
	longest := toAllKey{b.law, n, b.abroad * s.bytesOver(x, b)}
	t := s.portTime(longest, nil)
	for i := range b.wires {
		w := &b.wires[i]
		key := toAllKey{w.law, w.members, w.port}
		if inside := s.portTime(key, nil); inside > t {
			t, longest = inside, key
		}
	}
	if acc != nil {
		return s.portTime(longest, acc)
	}
	return t
}

// portTime is what an all-to-all takes of which the busiest port carries so many bytes.
func (s *sim) portTime(key toAllKey, acc *account) units.Seconds {
	if key.bytes == 0 {
		return 0
	}
	t, ok := s.toAll[key]
	if !ok || acc != nil {
		bytes := units.Bytes(math.Ceil(key.bytes * float64(key.group) / float64(key.group-1)))
		t = s.charge(key.law, op.OfMessage(op.KindAllToAll, op.Message{Group: key.group, Bytes: bytes}), 1, acc)
		if s.err == nil {
			s.toAll[key] = t
		}
	}
	return t
}
