package multitask

import (
	"slices"

	"github.com/evenkeel/evenkeel/costmodel/multitask"
)

// free are the devices that nothing runs on.
type free struct {
	turns []turn    // in which devices are taken
	ranks [][][]int // by pool and node of the pool, in the order of turns
	home  []place   // by rank
	busy  []bool    // by rank
	nodes [][]int   // by pool and node of the pool: how many are free
	count []int     // by pool
}

// place is a pool and a node of it.
type place struct{ pool, node int }

func newFree(p *Problem) *free {
	pools, devices := len(p.Pools), p.Devices()
	f := &free{turns: p.inTurn(), ranks: make([][][]int, pools), home: make([]place, devices), busy: make([]bool, devices), nodes: make([][]int, pools), count: make([]int, pools)}
	for _, t := range f.turns {
		f.ranks[t.pool], f.nodes[t.pool] = t.nodes, make([]int, len(t.nodes))
		for n, node := range t.nodes {
			for _, r := range node {
				f.home[r] = place{t.pool, n}
			}
		}
	}
	f.reset()
	return f
}

// reset makes all devices free.
func (f *free) reset() {
	clear(f.busy)
	for p, nodes := range f.ranks {
		f.count[p] = 0
		for n, node := range nodes {
			f.nodes[p][n] = len(node)
			f.count[p] += len(node)
		}
	}
}

// has says whether there are so many devices of every pool.
func (f *free) has(uses []int) bool {
	for p, n := range uses {
		if n > f.count[p] {
			return false
		}
	}
	return true
}

// occupy takes a free rank.
func (f *free) occupy(rank int) {
	at := f.home[rank]
	f.busy[rank] = true
	f.nodes[at.pool][at.node]--
	f.count[at.pool]--
}

// release gives ranks back.
func (f *free) release(ranks []int) {
	for _, r := range ranks {
		at := f.home[r]
		f.busy[r] = false
		f.nodes[at.pool][at.node]++
		f.count[at.pool]++
	}
}

// take occupies so many devices of every pool, of which there are enough, and appends their
// ranks, rising, to a list: those that are wanted if they are free and as many, otherwise of
// each pool those of the node with the fewest free devices that holds them or, if none does,
// of the nodes with most.
func (f *free) take(to, uses, wanted []int) []int {
	begin := len(to)
	if len(wanted) > 0 && f.suits(uses, wanted) {
		to = append(to, wanted...)
		for _, r := range wanted {
			f.occupy(r)
		}
		return to
	}
	for p, n := range uses {
		for n > 0 {
			node := pick(f.nodes[p], n)
			for _, r := range f.ranks[p][node] {
				if n > 0 && !f.busy[r] {
					f.occupy(r)
					to = append(to, r)
					n--
				}
			}
		}
	}
	slices.Sort(to[begin:])
	return to
}

// suits says whether ranks are free, and so many of every pool.
func (f *free) suits(uses, ranks []int) bool {
	var count [multitask.MostPools]int
	for _, r := range ranks {
		if f.busy[r] {
			return false
		}
		count[f.home[r].pool]++
	}
	return slices.Equal(uses, count[:len(uses)])
}

// pick is the node with the fewest free devices that has n or, if none does, the one with
// the most.
func pick(nodes []int, n int) int {
	best, most := -1, 0
	for i, has := range nodes {
		if has >= n && (best < 0 || has < nodes[best]) {
			best = i
		}
		if has > nodes[most] {
			most = i
		}
	}
	if best < 0 {
		return most
	}
	return best
}

// any is so many devices of whichever types are free, those of one type if it has enough, and
// otherwise of those whose turn is first.
func (f *free) any(n int) []int {
	uses, best := make([]int, len(f.count)), -1
	for _, t := range f.turns {
		if count := f.count[t.pool]; count >= n && (best < 0 || count < f.count[best]) {
			best = t.pool
		}
	}
	if best >= 0 {
		uses[best] = n
		return uses
	}
	for _, t := range f.turns {
		uses[t.pool] = min(n, f.count[t.pool])
		n -= uses[t.pool]
	}
	return uses
}
