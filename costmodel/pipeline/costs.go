package pipeline

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
)

// Costs says what chunks of a batch take on stages of a cluster. What is asked for is
// remembered; it is not safe for concurrent use.
type Costs struct {
	Lengths []units.Tokens // of the sequences of the batch
	Layers  int            // of the model

	ranks    []costmodel.Rank
	from     source
	finishes map[finishKey]Finish
	passes   map[passKey]Work
	held     map[passKey]costmodel.ChunkBytes
	sends    map[sendKey]units.Seconds
	tied     map[pairKey]units.Seconds
	pairs    map[string]pairKey // by the ranks
	likes    map[string]int     // number of the ranks that are like one another, by what makes them so
	known    map[string]int     // the same by their ranks
	scratch  []byte
	ordered  *ordered // once asked for
	err      error    // the first price that was missing
}

// source is where prices come from.
type source interface {
	// like says what a stage's prices depend on: ranks with the same take as long.
	like(ranks []int) string
	// work is what a chunk takes on ranks.
	work(ranks []int, x costmodel.Chunk) (Work, error)
	// send is what a chunk's activations take from some ranks to others.
	send(from, to []int, tokens units.Tokens) (units.Seconds, error)
	// finish is what ranks take behind their last pass, to update their layers' parameters and
	// those of the embeddings, where first, and of the output projection, where last.
	finish(ranks []int, layers int, first, last bool) (Finish, error)
	// tied is what adding up the gradients of embeddings that are the output projection takes
	// between the ranks of the first stage and those of the last one, 0 where they are not.
	tied(first, last []int) (units.Seconds, error)
	// held is what the rank that has least room among some holds of a chunk.
	held(ranks []int, x costmodel.Chunk) costmodel.ChunkBytes
	// states is what a rank holds of its layers.
	states(ranks []int, layers int, first, last bool) units.Bytes
	// capacity is what plans may fill of the memory of each of some ranks; 0 where nobody
	// knows.
	capacity(ranks []int) units.Bytes
	// fits says whether ranks can be a stage; if not, the error says why.
	fits(ranks []int) error
	// brief is the account of a chunk on ranks; nil where there are no laws.
	brief(ranks []int, x costmodel.Chunk, times costmodel.ChunkTimes) (*costmodel.Step, error)
	// briefTied is the account of what tied says, where that is more than 0.
	briefTied(first, last []int) (*costmodel.Step, error)
	// replayed predicts a pass of a chunk as replay runs it on ranks.
	replayed(ranks []int, x costmodel.Chunk, w costmodel.ChunkReplay) (*costmodel.Replayed, error)
	// floor is a time that no chunks of sequences take less than, together, in one layer on a
	// stage of n devices of a type, and their loss, without all-to-alls.
	floor(device string, n int, lengths []units.Tokens) (layer, loss units.Seconds, err error)
	// moving is what a layer's all-to-alls take on ranks for so many tokens; ownCards leaves out
	// that ranks of a node may share its network cards.
	moving(ranks []int, tokens units.Tokens, ownCards bool) (units.Seconds, error)
	// warnings are those of the laws in use.
	warnings() []string
	// inOrder are the same prices on devices in an order of their own, and by rank there the rank
	// here; neither where that is the order of these.
	inOrder(lengths []units.Tokens) (*Costs, []int)
}

// Work is what one layer takes for a chunk on a stage: its forward pass, the same once more
// in the backward pass, and the backward pass; and the loss of the chunk on the last stage.
type Work struct{ Forward, Again, Backward, Loss units.Seconds }

// Finish is what a stage takes behind its last pass.
type Finish struct {
	// Gradients are the exchanges of gradients among the stage's ranks that are left to the end,
	// and what has no layer to hide behind.
	Gradients units.Seconds
	// Parameters are the optimizer, and the exchange of what it updated.
	Parameters units.Seconds
}

// Total is all of it.
func (f Finish) Total() units.Seconds { return f.Gradients + f.Parameters }

// passKey is a chunk on ranks like some: a hash would make two chunks one.
type passKey struct {
	like           int
	context, slice units.Tokens
	more           bool
	whole          string // lengths
}

// pairKey is what some ranks take to send to others.
type pairKey struct {
	from, to int
	links    string // of what kinds links are
}

type sendKey struct {
	pairKey
	tokens units.Tokens
}

type finishKey struct {
	like, layers int
	first, last  bool
}

var forever = units.Seconds(math.Inf(1))

func newCosts(lengths []units.Tokens, layers int, ranks []costmodel.Rank, from source) (*Costs, error) {
	if len(lengths) == 0 {
		return nil, fmt.Errorf("lengths: none")
	}
	for i, n := range lengths {
		if n < 1 {
			return nil, fmt.Errorf("lengths[%d]: %d: want at least one token", i, int64(n))
		}
	}
	return &Costs{
		Lengths: lengths, Layers: layers, ranks: ranks, from: from, finishes: map[finishKey]Finish{},
		passes: map[passKey]Work{}, held: map[passKey]costmodel.ChunkBytes{}, sends: map[sendKey]units.Seconds{}, tied: map[pairKey]units.Seconds{}, pairs: map[string]pairKey{},
		likes: map[string]int{}, known: map[string]int{},
	}, nil
}

// Devices is the number of devices.
func (c *Costs) Devices() int { return len(c.ranks) }

// Device is a rank's device type.
func (c *Costs) Device(rank int) string { return c.ranks[rank].Device }

// ordered are prices on devices in order.
type ordered struct {
	*Costs
	listed []int
}

// InOrder are the same prices of the same devices in an order which does not depend on how the
// cluster lists them (costmodel.Cluster.Ordered), and, by rank there, the rank that it is here;
// no ranks where these are in that order. A stage takes as long under either numbers.
func (c *Costs) InOrder() (*Costs, []int) {
	if c.ordered == nil {
		same, listed := c.from.inOrder(c.Lengths)
		if listed == nil {
			same = c
		}
		c.ordered = &ordered{same, listed}
	}
	return c.ordered.Costs, c.ordered.listed
}

// Missing is the first price that was asked for and is not known, nil if there is none. What
// has no price takes forever.
func (c *Costs) Missing() error {
	if c.ordered != nil {
		return first(c.ordered.err, c.err)
	}
	return c.err
}

// Fits says whether ranks can be a stage; if not, the error says why.
func (c *Costs) Fits(ranks []int) error { return c.from.fits(ranks) }

// Like numbers ranks so that those which take as long have one number.
func (c *Costs) Like(ranks []int) int {
	c.scratch = c.scratch[:0]
	for _, r := range ranks {
		c.scratch = binary.LittleEndian.AppendUint32(c.scratch, uint32(r))
	}
	if n, ok := c.known[string(c.scratch)]; ok {
		return n
	}
	what := c.from.like(ranks)
	n, ok := c.likes[what]
	if !ok {
		n = len(c.likes)
		c.likes[what] = n
	}
	c.known[string(c.scratch)] = n
	return n
}

// key is what a chunk's price on ranks depends on.
func (c *Costs) key(ranks []int, x *Chunk) passKey {
	k := passKey{like: c.Like(ranks), context: x.Context, slice: x.Slice, more: c.more(x)}
	if len(x.Whole) > 0 {
		lengths := make([]units.Tokens, len(x.Whole))
		for i, w := range x.Whole {
			lengths[i] = c.Lengths[w]
		}
		slices.Sort(lengths)
		c.scratch = c.scratch[:0]
		for _, n := range lengths {
			c.scratch = binary.AppendUvarint(c.scratch, uint64(n))
		}
		k.whole = string(c.scratch)
	}
	return k
}

// priced is a chunk as prices are asked for.
func (c *Costs) priced(x *Chunk) costmodel.Chunk {
	out := costmodel.Chunk{Context: x.Context, Slice: x.Slice, More: c.more(x)}
	for _, w := range x.Whole {
		out.Whole = append(out.Whole, costmodel.Documents{Tokens: c.Lengths[w], Count: 1})
	}
	return out
}

// more says that slices of a chunk's sequence come behind its own.
func (c *Costs) more(x *Chunk) bool {
	return x.Slice > 0 && x.Context+x.Slice < c.Lengths[x.Sequence]
}

// tokens is how many a chunk has.
func (c *Costs) tokens(x *Chunk) units.Tokens {
	n := x.Slice
	for _, w := range x.Whole {
		n += c.Lengths[w]
	}
	return n
}

// Tokens is how many a chunk has.
func (c *Costs) Tokens(x Chunk) units.Tokens { return c.tokens(&x) }

// Work is what a layer takes for a chunk on ranks.
func (c *Costs) Work(ranks []int, x Chunk) Work {
	k := c.key(ranks, &x)
	if w, ok := c.passes[k]; ok {
		return w
	}
	w, err := c.from.work(ranks, c.priced(&x))
	if err != nil {
		c.err = first(c.err, err)
		w = Work{forever, forever, forever, 0}
	}
	c.passes[k] = w
	return w
}

// Passes is the seconds that chunk k's forward and its backward pass take on stage s of a
// plan.
func (c *Costs) Passes(p *Plan, s, k int) (forward, backward units.Seconds) {
	w := c.Work(p.Stages[s].Ranks, p.Chunks[k])
	layers := units.Seconds(p.Stages[s].Layers)
	forward, backward = layers*w.Forward, layers*w.Backward
	if n := p.Recompute[s][k]; n > 0 {
		backward += units.Seconds(n) * w.Again
	}
	if s == len(p.Stages)-1 {
		forward += w.Loss
	}
	return forward, backward
}

// Send is the seconds that the activations of so many tokens, or their gradients, take from
// one stage to the next.
func (c *Costs) Send(from, to []int, tokens units.Tokens) units.Seconds {
	k := sendKey{c.pair(from, to), tokens}
	if t, ok := c.sends[k]; ok {
		return t
	}
	t, err := c.from.send(from, to, tokens)
	if err != nil {
		c.err = first(c.err, err)
		t = forever
	}
	c.sends[k] = t
	return t
}

func (c *Costs) pair(from, to []int) pairKey {
	c.scratch = c.scratch[:0]
	for _, ranks := range [][]int{from, to} {
		c.scratch = binary.LittleEndian.AppendUint32(c.scratch, uint32(len(ranks)))
		for _, r := range ranks {
			c.scratch = binary.LittleEndian.AppendUint32(c.scratch, uint32(r))
		}
	}
	k, ok := c.pairs[string(c.scratch)]
	if !ok {
		by := string(c.scratch)
		kind := func(rank int) int { return c.Like([]int{rank}) }
		node := func(rank int) int { return c.ranks[rank].Node }
		k = pairKey{from: c.Like(from), to: c.Like(to)}
		var kinds []string
		for _, x := range links(from, to, node, kind) {
			kinds = append(kinds, fmt.Sprint(kind(x[0]), kind(x[1]), node(x[0]) == node(x[1])))
		}
		slices.Sort(kinds)
		k.links = strings.Join(kinds, ",")
		c.pairs[by] = k
	}
	return k
}

// Tied is the seconds that the first stage and the last one of a plan take to add up the
// gradients of embeddings that are the output projection, too, of which each has its own; 0 of a
// single stage, and of other models. Both have gone through all chunks by then, and each has
// added up its gradients among its ranks.
func (c *Costs) Tied(p *Plan) units.Seconds {
	last := len(p.Stages) - 1
	if last < 1 {
		return 0
	}
	k := c.pair(p.Stages[0].Ranks, p.Stages[last].Ranks)
	if t, ok := c.tied[k]; ok {
		return t
	}
	t, err := c.from.tied(p.Stages[0].Ranks, p.Stages[last].Ranks)
	if err != nil {
		c.err = first(c.err, err)
		t = forever
	}
	c.tied[k] = t
	return t
}

// Finish is what stage s takes behind its last pass, but for Tied.
func (c *Costs) Finish(p *Plan, s int) Finish {
	x := &p.Stages[s]
	k := finishKey{c.Like(x.Ranks), x.Layers, s == 0, s == len(p.Stages)-1}
	if t, ok := c.finishes[k]; ok {
		return t
	}
	t, err := c.from.finish(x.Ranks, k.layers, k.first, k.last)
	if err != nil {
		c.err = first(c.err, err)
		t = Finish{Gradients: forever}
	}
	c.finishes[k] = t
	return t
}

// links are pairs of ranks that stand for all over which something is sent, when what some ranks
// have equal shares of, in their order, goes to others that have equal shares of it: one of those
// of each kind and, where any of it leaves its node, between two nodes. All of a stage send at
// the same time, so that which nodes come first in a cluster changes nothing.
func links[K comparable](from, to []int, node func(rank int) int, kind func(rank int) K) [][2]int {
	type end struct {
		kind K
		node int
	}
	ends := func(ranks []int) (of []int) {
		seen := map[end]bool{}
		for _, r := range ranks {
			if e := (end{kind(r), node(r)}); !seen[e] {
				seen[e], of = true, append(of, r)
			}
		}
		return of
	}
	near, seen := stays(from, to, node), map[[2]K]bool{}
	var all [][2]int
	for _, a := range ends(from) {
		for _, b := range ends(to) {
			if by := [2]K{kind(a), kind(b)}; near == (node(a) == node(b)) && !seen[by] {
				seen[by], all = true, append(all, [2]int{a, b})
			}
		}
	}
	return all
}

// stays says that all that is sent so stays in its node.
func stays(from, to []int, node func(rank int) int) bool {
	for i, r := range from {
		for j := i * len(to) / len(from); j*len(from) < (i+1)*len(to); j++ {
			if node(r) != node(to[j]) {
				return false
			}
		}
	}
	return true
}

// Nodes are the ranks of every node.
func (c *Costs) Nodes() [][]int {
	var nodes [][]int
	for r, x := range c.ranks {
		if r == 0 || x.Node != c.ranks[r-1].Node {
			nodes = append(nodes, nil)
		}
		nodes[len(nodes)-1] = append(nodes[len(nodes)-1], r)
	}
	return nodes
}

// Type is the ranks of a device type, by node.
type Type struct {
	Device string
	Nodes  [][]int
}

// Types lists the device types in the order of their first ranks.
func (c *Costs) Types() []Type {
	var all []Type
	for _, node := range c.Nodes() {
		for _, r := range node {
			at := slices.IndexFunc(all, func(t Type) bool { return t.Device == c.Device(r) })
			if at < 0 {
				at, all = len(all), append(all, Type{Device: c.Device(r)})
			}
			t := &all[at]
			if last := len(t.Nodes) - 1; last < 0 || !slices.Contains(node, t.Nodes[last][0]) {
				t.Nodes = append(t.Nodes, nil)
			}
			last := len(t.Nodes) - 1
			t.Nodes[last] = append(t.Nodes[last], r)
		}
	}
	return all
}

// Held is what a rank of a stage holds of a chunk.
func (c *Costs) Held(ranks []int, x Chunk) costmodel.ChunkBytes {
	k := c.key(ranks, &x)
	b, ok := c.held[k]
	if !ok {
		b = c.from.held(ranks, c.priced(&x))
		c.held[k] = b
	}
	return b
}

// States is what each rank of stage s holds of its layers.
func (c *Costs) States(p *Plan, s int) units.Bytes {
	return c.from.states(p.Stages[s].Ranks, p.Stages[s].Layers, s == 0, s == len(p.Stages)-1)
}

// Capacity is what plans may fill of the memory of each of some ranks; 0 where nobody knows.
func (c *Costs) Capacity(ranks []int) units.Bytes { return c.from.capacity(ranks) }

// Warnings are what a user has to know of the laws that prices come from: where InOrder was asked
// for, those that were asked there.
func (c *Costs) Warnings() []string {
	if c.ordered != nil {
		return c.ordered.from.warnings()
	}
	return c.from.warnings()
}

func first(known, err error) error {
	if known != nil {
		return known
	}
	return err
}
