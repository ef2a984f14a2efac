package batch

import (
	"cmp"
	"math"
	"slices"
)

// item is a sequence's index among all of the batch, sorted longest first.
type item = int32

// table holds a problem in plain arrays, as the planner uses it. Times are in seconds.
type table struct {
	p         *Problem
	order     []int32     // by item: index of the sequence in Problem.Lengths
	tokens    []int64     // by item: length, falling
	all       []item      // all items
	time      [][]float64 // by class and item: Pricer.Time, +Inf where it does not fit
	base      []float64   // by class: Class.Base
	cap       []int64     // by class: Class.Cap, tokens
	uses      [][]int     // by class and pool: Class.Uses
	size      []int       // by pool: number of devices
	micro     float64     // Problem.MicroBase
	hidden    float64     // Problem.Hidden
	behind    float64     // Problem.Behind
	hides     float64     // Problem.hides
	hidesEach float64     // Problem.hidesEach
	fixed     float64     // Problem.Fixed
	rest      float64     // what micro-batches but the last take at least, where behind > 0: see quickSum

	// Devices of different pools are compared by their worth: the share of the whole fleet
	// that one device is (see setWorth).
	worth []float64 // by pool: of one device
	value []float64 // by class: of a group, Σ uses·worth
	nodes []nodeFit // by pool

	work []float64 // by item: least of value·time over all classes

	places []item // by sequence: its item

	useful []int // classes of which the filler forms groups

	anywhere bool // a group within one node always fits where enough devices are free
}

// cost is the time of a micro-batch whose slowest group takes roof, in seconds.
func (t *table) cost(roof float64) float64 {
	return max(roof, (1-t.hidesEach)*roof+t.hidden) + t.micro
}

// open is Problem.open of a plan whose highest roof is top: that of its last micro-batch.
func (t *table) open(top float64) float64 { return max(0, t.behind-t.hides*top) }

// level scales roofs so that their micro-batches take total seconds together. Of plans
// constructed under roofs whose sum is far from the best plan's time, few are any better.
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
	t.p, t.micro, t.hidden, t.behind, t.fixed = p, float64(p.MicroBase), float64(p.Hidden), float64(p.Behind), float64(p.Fixed)
	t.hides, t.hidesEach = float64(p.hides()), float64(p.hidesEach())
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

// setValues computes the classes' values from the worth of devices.
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
