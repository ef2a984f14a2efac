package fit

import (
	"math/rand/v2"
	"slices"
)

// boostSize is how many regression trees of how many leaves are added up, and
// what keeps them from following the noise.
type boostSize struct {
	trees, leaves int
	rate          float64 // share of a tree's advice that is taken
	clip          float64 // residuals beyond it count as it (Huber 1964)
	least         int     // points in a leaf
	columns, rows float64 // share of them that a tree sees
	seed          uint64  // of which ones it sees
}

// boosted is a sum of regression trees: gradient boosting (Friedman 2001),
// grown leaf by leaf on binned features, each tree on a share of rows and
// columns (Friedman 2002).
type boosted struct {
	cuts  [][]float64 // of every feature, rising
	trees [][]branch
}

// branch is a node of a tree: a leaf where feature < 0. It is kept small, since
// most of a fit's time is spent going down trees.
type branch struct {
	feature     int16
	cut         uint8 // bins up to it go to the left
	left, right uint16
	value       float64
}

// all are the sums of the trees at many places: tree by tree, so that each stays
// in the cache.
func (b *boosted) all(rows [][]float64) []float64 {
	bins, sums := make([][]uint8, len(rows)), make([]float64, len(rows))
	for i, x := range rows {
		bins[i] = b.bin(x)
	}
	for _, t := range b.trees {
		for i := range sums {
			sums[i] += follow(t, bins[i])
		}
	}
	return sums
}

// meanOf is the mean of sums of trees that share their cuts, as one sum.
func meanOf(all []*boosted) *boosted {
	mean := &boosted{cuts: all[0].cuts}
	for _, b := range all {
		for _, t := range b.trees {
			for n := range t {
				t[n].value /= float64(len(all))
			}
			mean.trees = append(mean.trees, t)
		}
	}
	return mean
}

func (b *boosted) bin(x []float64) []uint8 {
	bins := make([]uint8, len(x))
	for f, v := range x {
		at, _ := slices.BinarySearch(b.cuts[f], v)
		bins[f] = uint8(at)
	}
	return bins
}

// follow goes down a tree to its leaf's value.
func follow(t []branch, bins []uint8) float64 {
	at := &t[0]
	for at.feature >= 0 {
		if bins[at.feature] <= at.cut {
			at = &t[at.left]
		} else {
			at = &t[at.right]
		}
	}
	return at.value
}

// mostBins is the number of bins of a feature.
const mostBins = 64

// cutsOf lie half way between the values of a feature, at most mostBins - 1 of
// them, evenly over the values that occur.
func cutsOf(rows [][]float64, feature int) []float64 {
	var values []float64
	for _, x := range rows {
		values = append(values, x[feature])
	}
	slices.Sort(values)
	values = slices.Compact(values)
	n := min(len(values), mostBins)
	var cuts []float64
	for i := 1; i < n; i++ {
		at := i * len(values) / n
		cuts = append(cuts, (values[at-1]+values[at])/2)
	}
	return cuts
}

// boost fits trees to targets. The same input gives the same trees.
func boost(rows [][]float64, targets []float64, size boostSize) *boosted {
	b := &boosted{}
	for f := range rows[0] {
		b.cuts = append(b.cuts, cutsOf(rows, f))
	}
	g := newGrower(b, rows, size)
	left := slices.Clone(targets)
	for range size.trees {
		for i, r := range left {
			g.pull[i] = max(-size.clip, min(size.clip, r))
		}
		tree := g.grow()
		b.trees = append(b.trees, tree)
		for i := range left {
			left[i] -= follow(tree, g.bins[i])
		}
	}
	return b
}

// grower grows one tree after the other on the same rows.
type grower struct {
	size  boostSize
	width []int     // bins of every feature
	bins  [][]uint8 // [row][feature]
	pull  []float64 // what every row asks for
	rng   *rand.Rand

	columns []int // the features that the tree at hand sees
	starts  []int // of each one's bins among the sums of a leaf

	free [][]bin // sums of earlier trees' leaves, to be used again
	rest []int32 // of part
}

func newGrower(b *boosted, rows [][]float64, size boostSize) *grower {
	g := &grower{size: size, pull: make([]float64, len(rows)), rng: rand.New(rand.NewPCG(1, size.seed))}
	for _, cuts := range b.cuts {
		g.width = append(g.width, len(cuts)+1)
	}
	for _, x := range rows {
		g.bins = append(g.bins, b.bin(x))
	}
	return g
}

// bin sums the pulls and counts the rows of a feature's bin.
type bin struct{ pull, count float64 }

// worth is what a leaf takes from the squared error, shrunk by one row's worth
// of doubt.
func (b bin) worth() float64 { return b.pull * b.pull / (b.count + 1) }

func (b bin) less(c bin) bin { return bin{b.pull - c.pull, b.count - c.count} }

// leaf is the end of a growing tree, with the best way to split it.
type leaf struct {
	node    int
	rows    []int32
	sums    []bin // of every bin of every feature that the tree sees
	total   bin
	gain    float64
	feature int
	cut     uint8
}

// draw picks the rows and columns of the next tree.
func (g *grower) draw() []int32 {
	var rows []int32
	for i := range g.pull {
		if g.rng.Float64() < g.size.rows {
			rows = append(rows, int32(i))
		}
	}
	features := len(g.width)
	g.columns = g.rng.Perm(features)[:max(1, int(g.size.columns*float64(features)))]
	g.starts = g.starts[:0]
	total := 0
	for _, f := range g.columns {
		g.starts = append(g.starts, total)
		total += g.width[f]
	}
	g.starts = append(g.starts, total)
	return rows
}

// grow splits the leaf that gains most until there are enough.
func (g *grower) grow() []branch {
	tree := []branch{{feature: -1}}
	open := []*leaf{g.gather(g.draw())}
	for len(open) < g.size.leaves {
		best := 0
		for i, l := range open {
			if l.gain > open[best].gain {
				best = i
			}
		}
		l := open[best]
		if l.gain <= 0 {
			break
		}
		left, right := g.part(l)
		tree[l.node] = branch{int16(l.feature), l.cut, uint16(len(tree)), uint16(len(tree) + 1), 0}
		left.node, right.node = len(tree), len(tree)+1
		tree = append(tree, branch{feature: -1}, branch{feature: -1})
		open[best] = left
		open = append(open, right)
	}
	for _, l := range open {
		tree[l.node].value = g.size.rate * l.total.pull / (l.total.count + 1)
		g.free = append(g.free, l.sums)
	}
	return tree
}

// part splits a leaf in two, in the place of its rows, whose order stays. The sums
// of the fuller one are what is left of the whole after the other.
func (g *grower) part(l *leaf) (left, right *leaf) {
	a := l.rows[:0]
	g.rest = g.rest[:0]
	for _, i := range l.rows {
		if g.bins[i][l.feature] <= l.cut {
			a = append(a, i)
		} else {
			g.rest = append(g.rest, i)
		}
	}
	b := l.rows[len(a):]
	copy(b, g.rest)
	if len(a) < len(b) {
		left = g.gather(a)
		return left, g.remain(b, l, left)
	}
	right = g.gather(b)
	return g.remain(a, l, right), right
}

// gather is a leaf of rows. It goes row by row: column by column, an addition would
// often wait for the one before it, to the same bin.
func (g *grower) gather(rows []int32) *leaf {
	l := &leaf{rows: rows, sums: g.noSums()}
	starts := g.starts[:len(g.columns)]
	for _, i := range rows {
		bins, pull := g.bins[i], g.pull[i]
		for c, f := range g.columns[:len(starts)] {
			b := &l.sums[starts[c]+int(bins[f])]
			b.pull += pull
			b.count++
		}
	}
	g.split(l)
	return l
}

// noSums is room for the sums of a leaf, all zero.
func (g *grower) noSums() []bin {
	n := g.starts[len(g.columns)]
	if len(g.free) == 0 {
		all := 0
		for _, w := range g.width {
			all += w
		}
		return make([]bin, n, all)
	}
	last := len(g.free) - 1
	sums := g.free[last][:n]
	g.free = g.free[:last]
	clear(sums)
	return sums
}

// remain is the leaf of the rows that a part leaves of a whole, whose sums it
// takes over.
func (g *grower) remain(rows []int32, whole, part *leaf) *leaf {
	l := &leaf{rows: rows, sums: whole.sums}
	for b, p := range part.sums {
		l.sums[b] = l.sums[b].less(p)
	}
	g.split(l)
	return l
}

// split finds the cut that takes most from the squared error.
func (g *grower) split(l *leaf) {
	for _, b := range l.sums[:g.starts[1]] {
		l.total.pull, l.total.count = l.total.pull+b.pull, l.total.count+b.count
	}
	whole, least := l.total.worth(), float64(g.size.least)
	for c, f := range g.columns {
		var left bin
		for at, b := range l.sums[g.starts[c]:g.starts[c+1]] {
			if b.count == 0 {
				continue
			}
			left.pull, left.count = left.pull+b.pull, left.count+b.count
			right := l.total.less(left)
			if right.count < least {
				break
			}
			if left.count < least {
				continue
			}
			if gain := left.worth() + right.worth() - whole; gain > l.gain+1e-12 {
				l.gain, l.feature, l.cut = gain, f, uint8(at)
			}
		}
	}
}
