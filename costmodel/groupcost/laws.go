package groupcost

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// Options restrict the classes; the zero value asks for all.
type Options struct {
	SameType    bool // no groups of several device types
	NoRecompute bool // no recomputation, whatever it would let a group hold
	// Recompute leaves only classes that recompute.
	Recompute bool
	// Of, unless zero, says that only sequences of this one length and number will be asked
	// for. Classes that cannot hold one are left out, and no other length is priced, which
	// takes a fraction of the time. Groups of one sequence and of as many as fit are priced
	// as simulated, unless packing sequences takes longer than one by one: then one is priced
	// as dear as each of a full group.
	Of costmodel.Documents
}

// FromLaws makes costs from the laws of a predictor, for the cluster and model of a job.
// It ignores the job's SeqLen, Recompute and Accumulate.
//
// For each device type there is a class for every number of devices within a node and for
// every number of whole nodes. Several types together have the classes on the Pareto
// frontier of mixes (see mixes). Each class uses the fastest of ring attention,
// all-to-all, and a ring of all-to-alls (see choose), once with activations kept and once
// recomputed. States are sharded over the whole cluster.
//
// Groups larger than a node are priced on the nodes with the most room for them. A mix of
// types that share a node is priced within one node if it fits into it; a planner has to
// place it so.
//
// Errors: an invalid job; a device that the profile lacks; a missing law, as
// *costmodel.MissingLawError; *NoRoomError where no group can hold the states, or one
// sequence of Options.Of; ctx's error if it ends before all classes are priced.
func FromLaws(ctx context.Context, q *costmodel.Predictor, j costmodel.Job, o Options) (*Costs, error) {
	over, err := q.Overheads(j)
	if err != nil {
		return nil, err
	}
	b := newBuilder(q, j, o)
	if err := b.weighHeads(ctx); err != nil {
		return nil, err
	}
	c := &Costs{
		Pools: b.pools, MicroBase: over.MicroBatch, Fixed: over.Step, Hidden: over.Hidden, BothPasses: over.BothPasses, Behind: over.Behind, Update: over.Update, Layers: j.Model.Layers, Longest: longest(j.Model),
		from: &origin{builder: b, Exchange: Exchange(over.Accounts)},
	}
	kinds := b.singles()
	if !o.SameType {
		kinds = append(kinds, b.mixes()...)
	}
	if err := b.addAll(ctx, c, kinds); err != nil {
		return nil, err
	}
	if len(c.Classes) == 0 && o.Of.Tokens > 0 {
		return nil, &NoRoomError{fmt.Sprintf("a sequence of %s beside %s; recompute activations, or %s", units.Count(o.Of.Tokens, "token"), b.states(), b.moreRoom())}
	}
	if len(c.Classes) == 0 {
		return nil, &NoRoomError{b.states() + "; " + b.moreRoom()}
	}
	return c, nil
}

// NoRoomError says that no group holds what it must in its devices' memory.
type NoRoomError struct{ what string } // and the ways out

// Error says what has no room, and the ways out.
func (e *NoRoomError) Error() string { return "no group of the cluster has memory for " + e.what }

// states says what every device has of the model's.
func (b *builder) states() string {
	if b.job.Zero == costmodel.Zero0 {
		return "the model's states, which every device holds whole (zero0)"
	}
	return "its share of the model's states over " + units.Count(len(b.ranks), "device")
}

// moreRoom says what makes the states of a device less. More devices do nothing for what
// is not sharded.
func (b *builder) moreRoom() string {
	switch b.job.Zero {
	case costmodel.Zero0, costmodel.Zero1, costmodel.Zero2:
		return "shard more of them (zero3), and take more devices where that is not enough"
	}
	return "take more devices, or a smaller model"
}

func longest(m costmodel.Model) units.Tokens { return m.MaxLen }

// builder makes the classes of a cluster.
type builder struct {
	q     *costmodel.Predictor
	job   costmodel.Job
	o     Options
	ranks []costmodel.Rank
	pools []Pool
	nodes [][]int // of the cluster, by pool and node of the pool
	// perHead is how long a device of each pool takes over a head.
	perHead []float64
}

// newBuilder sorts the cluster's devices into pools: of one type, in nodes that
// have the same link inside and as many network cards.
func newBuilder(q *costmodel.Predictor, j costmodel.Job, o Options) *builder {
	b := &builder{q: q, job: j, o: o, ranks: j.Cluster.Ranks()}
	type key struct {
		device, link string
		cards        int
	}
	index := map[key]int{}
	for r, rank := range b.ranks {
		n := j.Cluster.Nodes[rank.Node]
		k := key{rank.Device, n.Link, n.NICs}
		i, ok := index[k]
		if !ok {
			i = len(b.pools)
			index[k] = i
			b.pools, b.nodes = append(b.pools, Pool{Device: rank.Device}), append(b.nodes, nil)
		}
		p := &b.pools[i]
		if n := len(b.nodes[i]); n == 0 || b.nodes[i][n-1] != rank.Node {
			p.Ranks, b.nodes[i] = append(p.Ranks, nil), append(b.nodes[i], rank.Node)
		}
		last := len(p.Ranks) - 1
		p.Ranks[last] = append(p.Ranks[last], r)
	}
	return b
}

// kind is the devices of a class, placed in the cluster.
type kind struct {
	uses  []int // by pool
	one   bool
	parts []part // by node of the cluster, then in the order of the pools
}

// part is devices of a pool in one node.
type part struct{ pool, node, count int }

// place takes devices from the pools' fullest nodes.
func (b *builder) place(uses []int, one bool) kind {
	k := kind{uses: uses, one: one}
	for p, left := range uses {
		for _, n := range b.fullest(p) {
			take := min(left, len(b.pools[p].Ranks[n]))
			if take > 0 {
				k.parts = append(k.parts, part{p, b.nodes[p][n], take})
				left -= take
			}
		}
	}
	slices.SortStableFunc(k.parts, func(x, y part) int { return x.node - y.node })
	return k
}

// fullest lists the nodes of a pool by falling number of its devices.
func (b *builder) fullest(pool int) []int {
	order := make([]int, len(b.pools[pool].Ranks))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(x, y int) int { return len(b.pools[pool].Ranks[y]) - len(b.pools[pool].Ranks[x]) })
	return order
}

// whole lists how many devices 1, 2, ... of a pool's fullest nodes have.
func (b *builder) whole(pool int) []int {
	var sums []int
	sum := 0
	for _, n := range b.fullest(pool) {
		sum += len(b.pools[pool].Ranks[n])
		sums = append(sums, sum)
	}
	return sums
}

// singles lists the groups of one device type: any number within a node, whole
// nodes beyond (see worthNodes).
func (b *builder) singles() []kind {
	var all []kind
	for p := range b.pools {
		whole := b.whole(p)
		for d := 1; d <= whole[0]; d++ {
			all = append(all, b.place(b.only(p, d), true))
		}
		for n := 2; n <= len(whole); n++ {
			if worthNodes(n) || n == len(whole) {
				all = append(all, b.place(b.only(p, whole[n-1]), false))
			}
		}
	}
	return all
}

// worthNodes says whether a group of n whole nodes is one to have: up to 8 nodes
// any number, beyond only 12, 16, 24, 32, ..., for there a node more adds little.
func worthNodes(n int) bool {
	if n <= 8 {
		return true
	}
	for n%2 == 0 {
		n /= 2
	}
	return n == 1 || n == 3
}

func (b *builder) only(pool, devices int) []int {
	uses := make([]int, len(b.pools))
	uses[pool] = devices
	return uses
}

// cluster is the sub-cluster of a kind. Network cards that its nodes share are
// shared with the other groups of the node too, in proportion.
func (b *builder) cluster(k kind) costmodel.Cluster {
	c := costmodel.Cluster{Network: b.job.Cluster.Network, Links: b.job.Cluster.Links}
	for i, p := range k.parts {
		m := op.Member{Device: b.pools[p.pool].Device, Count: p.count}
		if i > 0 && k.parts[i-1].node == p.node {
			n := &c.Nodes[len(c.Nodes)-1]
			n.Devices = append(n.Devices, m)
			continue
		}
		n := b.job.Cluster.Nodes[p.node]
		n.Devices = []op.Member{m}
		c.Nodes = append(c.Nodes, n)
	}
	for i := range c.Nodes {
		n := &c.Nodes[i]
		of := slices.IndexFunc(b.job.Cluster.Nodes, func(o costmodel.Node) bool { return o.Name == n.Name })
		if n.NICs > 0 {
			n.NICs = max(1, n.NICs*n.Size()/b.job.Cluster.Nodes[of].Size())
		}
	}
	return c
}

// weighHeads asks the laws how long each pool takes over a head of one typical
// sequence.
func (b *builder) weighHeads(ctx context.Context) error {
	b.perHead = make([]float64, len(b.pools))
	for p := range b.pools {
		if err := ctx.Err(); err != nil {
			return err
		}
		j := b.job
		j.Cluster = b.cluster(b.place(b.only(p, 1), true))
		packer, err := costmodel.NewPacker(b.q, j)
		if err != nil {
			return err
		}
		alone := []costmodel.Group{{{Rank: 0, QHeads: j.Model.QHeads}}}
		x, err := packer.Passes(alone, []float64{1}, []costmodel.Documents{{Tokens: typicalTokens, Count: 1}})
		if err != nil {
			return err
		}
		b.perHead[p] = float64(x.Attention[0]) / float64(j.Model.QHeads)
	}
	return nil
}

// addAll adds the classes of all kinds, several at a time, in order.
func (b *builder) addAll(ctx context.Context, c *Costs, kinds []kind) error {
	type result struct {
		priced []priced
		err    error
	}
	results := make([]result, len(kinds))
	next := make(chan int)
	var all sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		all.Go(func() {
			for i := range next {
				r := &results[i]
				r.priced, r.err = b.classes(ctx, c, kinds[i])
			}
		})
	}
	for i := 0; i < len(kinds) && ctx.Err() == nil; i++ {
		next <- i
	}
	close(next)
	all.Wait()
	if err := ctx.Err(); err != nil {
		return err
	}
	for _, r := range results {
		if r.err != nil {
			return r.err
		}
		for _, x := range r.priced {
			c.Classes, c.curves = append(c.Classes, x.class), append(c.curves, x.curve)
			c.from.groups = append(c.from.groups, x.by)
		}
	}
	return nil
}

// priced is a class with its costs and what they are of.
type priced struct {
	class Class
	curve curve
	by    way
}

// classes are a kind's: none if its memory does not even hold the states.
func (b *builder) classes(ctx context.Context, c *Costs, k kind) ([]priced, error) {
	g, err := b.groupOf(k)
	if err != nil {
		return nil, err
	}
	ways, err := g.choose(ctx)
	if err != nil {
		return nil, err
	}
	var all []priced
	for _, m := range ways {
		kept, again, err := g.measure(ctx, m)
		if err != nil {
			return nil, err
		}
		name := c.name(k.uses)
		if len(ways) > 1 {
			name += " as " + m.String()
		}
		for _, of := range []*measured{kept, again} {
			if of == nil {
				continue
			}
			class := Class{
				Name: name, Uses: k.uses, One: k.one, Base: of.base, Cap: of.tokens,
				Shares: m.shares(g), Heads: m.heads, QHeads: m.qHeads, Groups: g.byPool(m), Schedule: m.Schedule, Recompute: of.recompute,
			}
			if of.recompute {
				class.Name += ", recompute"
			}
			all = append(all, priced{class, of.curve, way{k, m}})
		}
	}
	return all, nil
}

// groupOf is a kind on its own sub-cluster, of which nothing was simulated.
func (b *builder) groupOf(k kind) (*group, error) {
	j := b.job
	j.Cluster = b.cluster(k)
	packer, err := costmodel.NewPacker(b.q, j)
	if err != nil {
		return nil, err
	}
	return &group{b: b, kind: k, job: j, packer: packer}, nil
}

// isMissing says that a mechanism has no law on these devices.
func isMissing(err error) bool {
	var missing *costmodel.MissingLawError
	return errors.As(err, &missing)
}
