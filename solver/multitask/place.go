package multitask

import (
	"slices"

	"github.com/evenkeel/evenkeel/costmodel/multitask"
)

// free are the devices that nothing runs on, by pool and node.
type free struct {
	c     *multitask.Costs
	ranks [][][]int // rising
	count []int     // by pool
}

func newFree(c *multitask.Costs) *free {
	f := &free{c: c, ranks: make([][][]int, len(c.Pools)), count: make([]int, len(c.Pools))}
	for p, pool := range c.Pools {
		f.ranks[p] = make([][]int, len(pool.Ranks))
	}
	f.reset()
	return f
}

// reset makes all devices free.
func (f *free) reset() {
	for p, pool := range f.c.Pools {
		f.count[p] = pool.Count()
		for n, node := range pool.Ranks {
			f.ranks[p][n] = append(f.ranks[p][n][:0], node...)
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

// all says whether every one of the ranks is free.
func (f *free) all(ranks []int) bool {
	for _, r := range ranks {
		p, n := f.place(r)
		if _, found := slices.BinarySearch(f.ranks[p][n], r); !found {
			return false
		}
	}
	return true
}

// place is the pool and the node in it of a rank.
func (f *free) place(rank int) (pool, node int) {
	pool = f.c.PoolOf(rank)
	nodes := f.c.Pools[pool].Ranks
	node, found := slices.BinarySearchFunc(nodes, rank, func(node []int, r int) int { return node[0] - r })
	if !found {
		node--
	}
	return pool, node
}

// occupy takes free ranks.
func (f *free) occupy(ranks []int) {
	for _, r := range ranks {
		p, n := f.place(r)
		at, _ := slices.BinarySearch(f.ranks[p][n], r)
		f.ranks[p][n] = slices.Delete(f.ranks[p][n], at, at+1)
		f.count[p]--
	}
}

// release gives ranks back.
func (f *free) release(ranks []int) {
	for _, r := range ranks {
		p, n := f.place(r)
		at, _ := slices.BinarySearch(f.ranks[p][n], r)
		f.ranks[p][n] = slices.Insert(f.ranks[p][n], at, r)
		f.count[p]++
	}
}

// take occupies so many devices of every pool, of which there are enough, and returns their
// ranks, rising: those that are wanted if they are free and as many, otherwise of each pool
// those of the node with the fewest free devices that holds them or, if none does, of the
// nodes with most.
func (f *free) take(uses, wanted []int) []int {
	if len(wanted) > 0 && f.asMany(uses, wanted) && f.all(wanted) {
		f.occupy(wanted)
		return wanted
	}
	var ranks []int
	for p, n := range uses {
		for n > 0 {
			node := pick(f.ranks[p], n)
			k := min(n, len(f.ranks[p][node]))
			ranks = append(ranks, f.ranks[p][node][:k]...)
			f.ranks[p][node] = slices.Delete(f.ranks[p][node], 0, k)
			f.count[p] -= k
			n -= k
		}
	}
	slices.Sort(ranks)
	return ranks
}

// asMany says whether ranks are so many of every pool.
func (f *free) asMany(uses, ranks []int) bool {
	var count [multitask.MostPools]int
	for _, r := range ranks {
		count[f.c.PoolOf(r)]++
	}
	return slices.Equal(uses, count[:len(uses)])
}

// pick is the node with the fewest free ranks that holds n or, if none does, the one with
// the most.
func pick(nodes [][]int, n int) int {
	best, most := -1, 0
	for i, node := range nodes {
		if len(node) >= n && (best < 0 || len(node) < len(nodes[best])) {
			best = i
		}
		if len(node) > len(nodes[most]) {
			most = i
		}
	}
	if best < 0 {
		return most
	}
	return best
}

// any is so many devices of whichever types are free, those of one type if it has enough.
func (f *free) any(n int) []int {
	uses, best := make([]int, len(f.count)), -1
	for p, count := range f.count {
		if count >= n && (best < 0 || count < f.count[best]) {
			best = p
		}
	}
	if best >= 0 {
		uses[best] = n
		return uses
	}
	for p, count := range f.count {
		uses[p] = min(n, count)
		n -= uses[p]
	}
	return uses
}
