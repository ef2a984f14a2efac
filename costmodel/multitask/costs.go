package multitask

import (
	"fmt"
	"math"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
)

// MostPools is how many device types a cluster may have.
const MostPools = 8

// Pool is the devices of one type.
type Pool struct {
	Device string
	Ranks  [][]int // by node, in the cluster's rank order
}

// Count is the number of devices.
func (p Pool) Count() int {
	n := 0
	for _, node := range p.Ranks {
		n += len(node)
	}
	return n
}

// Costs says what the modules of Tasks take on devices of a cluster. What is asked for is
// remembered; it is not safe for concurrent use.
type Costs struct {
	Tasks *Tasks
	Pools []Pool
	Needs [][]int // Tasks.Needs

	node, pool []int // by rank
	from       source
	rates      []units.BytesPerS // by node: Predictor.NodeRates; nil where no price depends on them
	passes     map[passKey]pass
	exchanges  map[exchangeKey]units.Seconds
	sends      map[sendKey]units.Seconds
	ordered    *ordered // once asked for
	err        error    // the first price that was missing
}

// source is where prices come from.
type source interface {
	// pass is what a layer takes on a device of a pool that has so many samples.
	pass(module, pool, samples int) (pass, error)
	// replayed is such a layer by the parts that a replay records.
	replayed(module, pool, samples int) (layerReplay, error)
	// exchange is what the gradients of a layer take among ranks.
	exchange(module int, ranks []int) (units.Seconds, error)
	// send is what bytes take from one rank to another.
	send(from, to int, bytes units.Bytes) (units.Seconds, error)
	// result is the bytes that leave a layer of a module for each sample: between two runs
	// of it and, where last, for the modules that need it.
	result(module int, last bool) units.Bytes
	// memory is what a rank holds of a layer of a module that runs on n of them, of which it
	// has so many samples.
	memory(module, n, samples int) layerMemory
	// capacity is what plans may use of a device's memory; 0 where nobody knows.
	capacity(pool int) units.Bytes
	// brief is the account of a run's layers on the device that is slowest; nil where there
	// are no laws.
	brief(module, pool, samples int, ranks []int, layers int) (*costmodel.Step, error)
	// warnings are those of the laws in use.
	warnings() []string
	// inOrder are the same prices on devices in an order of their own, and by rank there the rank
	// here; neither where that is the order of these.
	inOrder() (*Costs, []int)
}

// layerMemory is what a rank holds of a layer, in bytes: what it keeps for the backward pass,
// and what it holds while the layer is computed again, where it is.
type layerMemory struct{ states, kept, again units.Bytes }

// pass is a layer's forward and backward pass.
type pass struct{ forward, backward units.Seconds }

// layerReplay is a layer's passes by their parts, and whether the backward pass begins with the
// forward pass once more.
type layerReplay struct {
	forward, backward costmodel.LayerPass
	again             bool
}

type passKey struct{ module, pool, samples int }

// exchangeKey is what an exchange's price depends on. Over a network the slowest of the nodes
// sets the pace (Predictor.Across), and which these are does not follow from the pools: two
// devices of one may be in one node, or in two of which each has fewer network cards.
type exchangeKey struct {
	module  int
	crosses int // the node, or -1 for several
	uses    [MostPools]int
	slowest units.BytesPerS // of several nodes
}

// sendKey has no rates: what one rank sends to another goes through its own card.
type sendKey struct {
	crosses  int
	from, to int // pools
	bytes    units.Bytes
}

func newCosts(t *Tasks, ranks []costmodel.Rank, from source) (*Costs, error) {
	c := &Costs{
		Tasks: t, Needs: t.Needs(), from: from,
		passes: map[passKey]pass{}, exchanges: map[exchangeKey]units.Seconds{}, sends: map[sendKey]units.Seconds{},
	}
	for r, rank := range ranks {
		p := slices.IndexFunc(c.Pools, func(p Pool) bool { return p.Device == rank.Device })
		if p < 0 {
			p = len(c.Pools)
			c.Pools = append(c.Pools, Pool{Device: rank.Device})
		}
		to := &c.Pools[p]
		if last := len(to.Ranks) - 1; last < 0 || c.node[to.Ranks[last][0]] != rank.Node {
			to.Ranks = append(to.Ranks, nil)
		}
		last := len(to.Ranks) - 1
		to.Ranks[last] = append(to.Ranks[last], r)
		c.node, c.pool = append(c.node, rank.Node), append(c.pool, p)
	}
	if len(c.Pools) > MostPools {
		return nil, fmt.Errorf("the cluster has %d device types: want at most %d for tasks side by side", len(c.Pools), MostPools)
	}
	return c, nil
}

// Devices is the number of devices.
func (c *Costs) Devices() int { return len(c.pool) }

// PoolOf is a rank's pool.
func (c *Costs) PoolOf(rank int) int { return c.pool[rank] }

// Missing is the first price that was asked for and is not known, nil if there is none.
// Groups of devices without a price are never chosen: they take forever.
func (c *Costs) Missing() error {
	if c.ordered != nil {
		return first(c.ordered.err, c.err)
	}
	return c.err
}

// forever is what a group of devices takes that has no price.
var forever = units.Seconds(math.Inf(1))

// on is a layer's passes on one device.
func (c *Costs) on(module, pool, samples int) pass {
	if samples == 0 {
		return pass{}
	}
	k := passKey{module, pool, samples}
	if p, ok := c.passes[k]; ok {
		return p
	}
	p, err := c.from.pass(module, pool, samples)
	if err != nil {
		c.err = first(c.err, err)
		p = pass{forever, 0}
	}
	c.passes[k] = p
	return p
}

// Passes is the seconds that a layer's forward and its backward pass take on one device of
// a pool that has so many samples of the batch.
func (c *Costs) Passes(module, pool, samples int) (forward, backward units.Seconds) {
	p := c.on(module, pool, samples)
	return p.forward, p.backward
}

// Alone is the seconds that a layer takes, forward and backward, on one device of a pool
// that has so many samples of the batch.
func (c *Costs) Alone(module, pool, samples int) units.Seconds {
	p := c.on(module, pool, samples)
	return p.forward + p.backward
}

// Layer is the seconds that one layer of a module takes, forward and backward, on ranks
// that each have so many samples of the batch: those of the slowest, or the longest forward
// pass and the exchange of gradients, which travel behind the backward passes.
func (c *Costs) Layer(module int, ranks, samples []int) units.Seconds {
	longest, forward := units.Seconds(0), units.Seconds(0)
	for i, r := range ranks {
		p := c.on(module, c.pool[r], samples[i])
		longest, forward = max(longest, p.forward+p.backward), max(forward, p.forward)
	}
	return max(longest, forward+c.Exchange(module, ranks))
}

// Exchange is the seconds that the gradients of a layer take among ranks.
func (c *Costs) Exchange(module int, ranks []int) units.Seconds {
	if len(ranks) < 2 {
		return 0
	}
	k := exchangeKey{module: module, crosses: c.node[ranks[0]]}
	for _, r := range ranks {
		k.uses[c.pool[r]]++
		if c.node[r] != k.crosses {
			k.crosses = -1
		}
	}
	if k.crosses < 0 {
		k.slowest = c.slowest(ranks)
	}
	if t, ok := c.exchanges[k]; ok {
		return t
	}
	t, err := c.from.exchange(module, ranks)
	if err != nil {
		c.err = first(c.err, err)
		t = forever
	}
	c.exchanges[k] = t
	return t
}

// slowest is the least of the rates of the ranks' nodes; 0 where no price depends on them.
func (c *Costs) slowest(ranks []int) units.BytesPerS {
	if c.rates == nil {
		return 0
	}
	least := c.rates[c.node[ranks[0]]]
	for _, r := range ranks[1:] {
		least = min(least, c.rates[c.node[r]])
	}
	return least
}

// Move is the seconds until the results of a module's layer are where the next run needs
// them, and its gradients back: nothing between runs on the same ranks in the same shares.
// Every device sends or receives its share at the same time as the others, over the slowest
// link between any two of them. last says that they are the module's, for another one.
func (c *Costs) Move(module int, from, to *Run, last bool) units.Seconds {
	if slices.Equal(from.Ranks, to.Ranks) && (last || slices.Equal(from.Samples, to.Samples)) {
		return 0
	}
	bytes := c.from.result(module, last).Times(int64(c.Tasks.Modules[module].Batch))
	if bytes == 0 {
		return 0
	}
	fewest := units.Bytes(min(len(from.Ranks), len(to.Ranks)))
	share, slowest := bytes.Plus(fewest-1)/fewest, units.Seconds(0)
	senders, n := c.ends(from.Ranks)
	receivers, m := c.ends(to.Ranks)
	for _, a := range senders[:n] {
		for _, b := range receivers[:m] {
			if a != b {
				slowest = max(slowest, c.send(a, b, share))
			}
		}
	}
	return 2 * slowest
}

// ends are n of some ranks that stand for all of them where messages are priced: of every
// pool the first and another one, on another node where any of them is.
func (c *Costs) ends(ranks []int) (of [2 * MostPools]int, n int) {
	var last [MostPools]int // of the pool: its place in of
	for _, r := range ranks {
		at := &last[c.pool[r]]
		if *at == 0 {
			of[n], of[n+1], *at = r, r, n+1
			n += 2
		}
		if c.node[r] != c.node[of[*at-1]] || of[*at] == of[*at-1] {
			of[*at] = r
		}
	}
	return of, n
}

func (c *Costs) send(from, to int, bytes units.Bytes) units.Seconds {
	k := sendKey{c.node[from], c.pool[from], c.pool[to], bytes}
	if c.node[to] != k.crosses {
		k.crosses = -1
	}
	if t, ok := c.sends[k]; ok {
		return t
	}
	t, err := c.from.send(from, to, bytes)
	if err != nil {
		c.err = first(c.err, err)
		t = forever
	}
	c.sends[k] = t
	return t
}

func first(known, err error) error {
	if known != nil {
		return known
	}
	return err
}
