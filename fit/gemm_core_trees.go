package fit

import (
	"math/bits"
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
	feature int16
	cut     uint8  // bins up to it go to the left
	left    uint16 // the right one is the next
	value   float64
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
		next := at.left
		if bins[at.feature] > at.cut {
			next++
		}
		at = &t[next]
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
		b.trees = append(b.trees, g.grow())
		for i, said := range g.said {
			left[i] -= said
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
	said  []float64 // what the last tree says of every row
	rng   *rand.Rand

	places []uint16 // [row, feature] of its bin among the sums of a leaf

	rows, others []int32 // those that the tree at hand sees, and does not
	columns      []int   // the features that it sees

	free []sums  // of earlier trees' leaves, to be used again
	rest []int32 // of part
}

func newGrower(b *boosted, rows [][]float64, size boostSize) *grower {
	g := &grower{size: size, pull: make([]float64, len(rows)), said: make([]float64, len(rows)), rng: rand.New(rand.NewPCG(1, size.seed))}
	for _, cuts := range b.cuts {
		g.width = append(g.width, len(cuts)+1)
	}
	for _, x := range rows {
		bins := b.bin(x)
		g.bins = append(g.bins, bins)
		for f, at := range bins {
			g.places = append(g.places, uint16(f*mostBins+int(at)))
		}
	}
	return g
}

// bin sums the pulls and counts the rows of a feature's bin.
type bin struct{ pull, count float64 }

// worth is what a leaf takes from the squared error, shrunk by one row's worth
// of doubt.
func (b bin) worth() float64 { return b.pull * b.pull / (b.count + 1) }

func (b bin) less(c bin) bin { return bin{b.pull - c.pull, b.count - c.count} }

// sums are what the rows of a leaf sum up to.
type sums struct {
	bins   []bin    // mostBins of every feature that the tree sees; of the others anything
	filled []uint64 // by feature, which of its bins have rows: most leaves are small
}

// leaf is the end of a growing tree, with the best way to split it.
type leaf struct {
	node int
	rows []int32
	sums
	total   bin
	gain    float64
	feature int
	cut     uint8
}

// draw picks the rows and columns of the next tree.
func (g *grower) draw() {
	g.rows, g.others = g.rows[:0], g.others[:0]
	for i := range g.pull {
		if g.rng.Float64() < g.size.rows {
			g.rows = append(g.rows, int32(i))
		} else {
			g.others = append(g.others, int32(i))
		}
	}
	features := len(g.width)
	g.columns = g.rng.Perm(features)[:max(1, int(g.size.columns*float64(features)))]
}

// grow splits the leaf that gains most until there are enough.
func (g *grower) grow() []branch {
	g.draw()
	tree := []branch{{feature: -1}}
	open := []*leaf{g.gather(g.rows)}
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
		if len(open) == g.size.leaves-1 {
			g.columns = g.columns[:1] // one tells what these two ask for, and none is split again
		}
		left, right := g.part(l)
		tree[l.node] = branch{int16(l.feature), l.cut, uint16(len(tree)), 0}
		left.node, right.node = len(tree), len(tree)+1
		tree = append(tree, branch{feature: -1}, branch{feature: -1})
		open[best] = left
		open = append(open, right)
	}
	for _, l := range open {
		value := g.size.rate * l.total.pull / (l.total.count + 1)
		tree[l.node].value = value
		for _, i := range l.rows { // to go down the tree again takes longer
			g.said[i] = value
		}
		g.free = append(g.free, l.sums)
	}
	for _, i := range g.others {
		g.said[i] = follow(tree, g.bins[i])
	}
	return tree
}

// part splits a leaf in two, in the place of its rows, whose order stays. The sums
// of the fuller one are what is left of the whole after the other.
func (g *grower) part(l *leaf) (left, right *leaf) {
	a := l.rows[:0]
	g.rest = g.rest[:0]
	features, most := len(g.width), uint16(l.feature*mostBins+int(l.cut))
	for _, i := range l.rows {
		if g.places[int(i)*features+l.feature] <= most {
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
	bins, filled, features := l.bins, l.filled, len(g.width)
	for _, i := range rows {
		places, pull := g.places[int(i)*features:][:features], g.pull[i]
		for _, f := range g.columns {
			place := places[f]
			b := &bins[place]
			b.pull += pull
			b.count++
			filled[f] |= 1 << (place % mostBins)
		}
	}
	g.split(l)
	return l
}

// noSums is room for the sums of a leaf, all zero where the tree looks.
func (g *grower) noSums() sums {
	if len(g.free) == 0 {
		return sums{make([]bin, len(g.width)*mostBins), make([]uint64, len(g.width))}
	}
	last := len(g.free) - 1
	s := g.free[last]
	g.free = g.free[:last]
	for _, f := range g.columns {
		clear(s.bins[f*mostBins:][:g.width[f]])
		s.filled[f] = 0
	}
	return s
}

// remain is the leaf of the rows that a part leaves of a whole, whose sums it
// takes over.
func (g *grower) remain(rows []int32, whole, part *leaf) *leaf {
	l := &leaf{rows: rows, sums: whole.sums}
	for _, f := range g.columns {
		to, from := l.bins[f*mostBins:][:mostBins], part.bins[f*mostBins:][:mostBins]
		for left := part.filled[f]; left != 0; left &= left - 1 {
			at := bits.TrailingZeros64(left)
			if to[at] = to[at].less(from[at]); to[at].count == 0 {
				l.filled[f] &^= 1 << at
			}
		}
	}
	g.split(l)
	return l
}

// split finds the cut that takes most from the squared error.
func (g *grower) split(l *leaf) {
	first := g.columns[0]
	for _, b := range l.bins[first*mostBins:][:g.width[first]] { // what is left of emptied ones too
		l.total.pull, l.total.count = l.total.pull+b.pull, l.total.count+b.count
	}
	whole, least := l.total.worth(), float64(g.size.least)
	if l.total.count < 2*least {
		return
	}
	for _, f := range g.columns {
		var left bin
		bins := l.bins[f*mostBins:][:mostBins]
		for rest := l.filled[f]; rest != 0; rest &= rest - 1 {
			at := bits.TrailingZeros64(rest)
			b := bins[at]
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
