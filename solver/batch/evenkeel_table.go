package batch

import (
	"cmp"
	"math"
	"slices"
)

// item is a sequence by its place among the batch's, longest first.
type item = int32

// table is a problem as the planner works on it: prices by class and item in
// plain arrays, and devices by pool.
type table struct {
	p      *Problem
	order  []int32     // by item, the problem's sequence
	tokens []int64     // by item, falling
	all    []item      // of the batch
	time   [][]float64 // by class and item
	base   []float64   // by class
	cap    []int64     // by class
	uses   [][]int     // by class and pool
	size   []int       // devices, by pool
	micro  float64     // what a micro-batch takes beside its groups
	hidden float64     // that a micro-batch takes at least, micro aside
	fixed  float64

	worth []float64 // share of the fleet that one device of a pool is, by pool
	value []float64 // share of the fleet that a group is, by class: Σ uses·worth
	nodes []nodeFit // by pool

	work []float64 // by item, share of the fleet's time where that is least

	places []item // by the problem's sequence

	useful []int // classes that the filler forms groups of

	anywhere bool // groups of one node always find one where devices are left
}

// cost is what a micro-batch under a roof takes of the step.
func (t *table) cost(roof float64) float64 { return max(roof, t.hidden) + t.micro }

// level scales roofs to take so much of the step together: of fillings under roofs that
// take much less or much more than the best plan few are any better.
func (t *table) level(roofs []float64, total float64) {
	sum := 0.0
	for _, roof := range roofs {
		sum += roof
	}
	to := total - float64(len(roofs))*t.micro
	if to <= 0 {
		return // nearly all of it is for the micro-batches themselves
	}
	for i := range roofs {
		roofs[i] *= to / sum
	}
}

// levelSpread is how widely what roofs take together is spread: few sequences, and
// groups of unlike devices, are less even.
func (t *table) levelSpread() float64 {
	if t.items() <= smallBatch || len(t.size) > 1 {
		return 0.02
	}
	return 0.01
}

func (t *table) items() int { return len(t.tokens) }

// load reads a problem, into the arrays there are.
func (t *table) load(p *Problem) {
	t.p, t.micro, t.hidden, t.fixed = p, float64(p.MicroBase), float64(p.Hidden), float64(p.Fixed)
	t.loadItems(p)
	t.loadClasses(p)
	t.loadPools(p)
	t.useful = t.useful[:0]
}

func (t *table) loadItems(p *Problem) {
	t.order = resize(t.order, len(p.Lengths))
	t.tokens = resize(t.tokens, len(p.Lengths))
	for i := range t.order {
		t.order[i] = int32(i)
	}
	slices.SortFunc(t.order, func(a, b int32) int {
		return cmp.Or(cmp.Compare(p.Lengths[b], p.Lengths[a]), cmp.Compare(a, b))
	})
	for i, k := range t.order {
		t.tokens[i] = int64(p.Lengths[k])
	}
	t.all = resize(t.all, len(t.tokens))
	for i := range t.all {
		t.all[i] = item(i)
	}
}

func (t *table) loadClasses(p *Problem) {
	n := len(p.Classes)
	t.time = resize(t.time, n)
	t.base = resize(t.base, n)
	t.cap = resize(t.cap, n)
	t.uses = resize(t.uses, n)
	for c, class := range p.Classes {
		t.base[c], t.cap[c], t.uses[c] = float64(class.Base), int64(class.Cap), class.Uses
		t.time[c] = resize(t.time[c], len(t.tokens))
		for i, s := range t.tokens {
			switch {
			case i > 0 && s == t.tokens[i-1]:
				t.time[c][i] = t.time[c][i-1]
			case s > t.cap[c]:
				t.time[c][i] = math.Inf(1)
			default:
				t.time[c][i] = float64(p.Costs.Time(c, p.Lengths[t.order[i]]))
			}
		}
	}
}

func (t *table) loadPools(p *Problem) {
	t.size = resize(t.size, len(p.Fleet))
	t.nodes = resize(t.nodes, len(p.Fleet))
	t.anywhere = true
	for i, pool := range p.Fleet {
		t.size[i] = pool.Count()
		t.nodes[i] = newNodeFit(p, i)
		t.anywhere = t.anywhere && t.nodes[i].chain
	}
	t.worth = resize(t.worth, len(p.Fleet))
	t.value = resize(t.value, len(p.Classes))
	t.setWorth()
}

// setValues takes over the worth of devices.
func (t *table) setValues() {
	for c, uses := range t.uses {
		t.value[c] = 0
		for i, u := range uses {
			t.value[c] += float64(u) * t.worth[i]
		}
	}
}

// resize is a slice of n elements in the array of s, if that holds them.
func resize[T any](s []T, n int) []T {
	if cap(s) < n {
		return append(s[:cap(s)], make([]T, n-cap(s))...)
	}
	return s[:n]
}
