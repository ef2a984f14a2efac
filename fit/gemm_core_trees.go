package fit

import (
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
)

// boostSize is how many regression trees of how many leaves are added up, and
// what keeps them from following the noise.
type boostSize struct {
	forests       int // sums of so many trees, of which the mean is taken
	trees, leaves int
	rate          float64 // share of a tree's advice that is taken
	clip          float64 // residuals beyond it count as it (Huber 1964)
	least         int     // points in a leaf
	columns, rows float64 // share of them that a tree sees
	seed          uint64  // of which ones it sees
	// doubt is what keeps the lines of leaves level, in rows' worth of an octave; 0 if
	// leaves are level.
	doubt float64
	// shifted says that the bins of each seed lie elsewhere: then the mean of forests
	// tells values apart that each of them puts into one.
	shifted bool
}

// boosted is a sum of regression trees: gradient boosting (Friedman 2001),
// grown leaf by leaf on binned features, each tree on a share of rows and
// columns (Friedman 2002).
type boosted struct {
	cuts  [][]float64 // of every feature, rising
	trees []tree
}

// tree is its nodes, and the lines of those leaves that are not level.
type tree struct {
	nodes []branch
	lines []leafLine
}

// branch is a node of a tree: a leaf where feature < 0. It is kept small, since
// most of a fit's time is spent going down trees.
type branch struct {
	feature int16
	cut     uint8  // bins up to it go to the left
	left    uint16 // the right one is the next; of a leaf, the number of its line or 0
	value   float64
}

// all are the sums of the trees at many places: tree by tree, so that each stays
// in the cache.
func (b *boosted) all(rows [][]float64) []float64 {
	bins, sums := make([][]uint8, len(rows)), make([]float64, len(rows))
	for i, x := range rows {
		bins[i] = b.bin(x)
	}
	at := placesInLeaves(rows)
	for _, t := range b.trees {
		for i := range sums {
			sums[i] += t.says(bins[i], at[i])
		}
	}
	return sums
}

// forests are sums of trees of different seeds.
type forests []*boosted

// all are the means of the sums at many places.
func (f forests) all(rows [][]float64) []float64 {
	mean := make([]float64, len(rows))
	for _, b := range f {
		for i, v := range b.all(rows) {
			mean[i] += v / float64(len(f))
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

// says is what a tree says at a place.
func (t *tree) says(bins []uint8, x leafPlace) float64 {
	at := follow(t.nodes, bins)
	if at.left == 0 {
		return at.value
	}
	return at.value + t.lines[at.left-1].at(x)
}

// follow goes down a tree to its leaf.
func follow(t []branch, bins []uint8) *branch {
	at := &t[0]
	for at.feature >= 0 {
		next := at.left
		if bins[at.feature] > at.cut {
			next++
		}
		at = &t[next]
	}
	return at
}

// mostBins is the number of bins of a feature.
const mostBins = 64

// cutsOf lie half way between the values of a feature, at most mostBins - 1 of
// them, evenly over the values that occur: shifted by a share of a bin, from -1/2 to
// 1/2, where there are more values than bins.
func cutsOf(rows [][]float64, feature int, shift float64) []float64 {
	var values []float64
	for _, x := range rows {
		values = append(values, x[feature])
	}
	slices.Sort(values)
	values = slices.Compact(values)
	n := min(len(values), mostBins)
	if n == len(values) {
		shift = 0
	}
	var cuts []float64
	for i := 1; i < n; i++ {
		at := max(1, int((float64(i)+shift)*float64(len(values))/float64(n)))
		cuts = append(cuts, (values[at-1]+values[at])/2)
	}
	return slices.Compact(cuts)
}

// boost fits trees to targets. The same input gives the same trees.
func boost(rows [][]float64, targets []float64, size boostSize) *boosted {
	b, shifts := &boosted{}, rand.New(rand.NewPCG(2, size.seed))
	for f := range rows[0] {
		shift := 0.0
		if size.shifted {
			shift = shifts.Float64() - 0.5
		}
		b.cuts = append(b.cuts, cutsOf(rows, f, shift))
	}
	g := newGrower(b, rows, size)
	left := slices.Clone(targets)
	for range size.trees {
		for i, r := range left {
			g.ask(i, r)
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
	width []int       // bins of every feature
	bins  [][]uint8   // [row][feature]
	at    []leafPlace // [row]
	pull  []float64   // what every row asks for
	parts float64     // of a pull of one, in bins
	pulls []bin       // every row's
	said  []float64   // what the last tree says of every row
	rng   *rand.Rand

	places []uint16 // [row, feature] of its bin among the sums of a leaf

	rows, others []int32 // those that the tree at hand sees, and does not
	columns      []int   // the features that it sees

	free []sums  // of earlier trees' leaves, to be used again
	rest []int32 // of part
}

// ask notes what a row asks for.
func (g *grower) ask(i int, pull float64) {
	g.pull[i] = max(-g.size.clip, min(g.size.clip, pull))
	g.pulls[i] = binOf(g.pull[i], g.parts)
}

func newGrower(b *boosted, rows [][]float64, size boostSize) *grower {
	g := &grower{
		size: size, at: placesInLeaves(rows), rng: rand.New(rand.NewPCG(1, size.seed)),
		pull: make([]float64, len(rows)), said: make([]float64, len(rows)),
		parts: partsOf(len(rows), size.clip), pulls: make([]bin, len(rows)),
	}
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

// bin is the number of rows of a feature's bin, in its lowest countBits, and above them
// the sum of their pulls, in whole parts of what fits there: one addition adds both,
// which is what a fit spends most of its time on, and what is taken away again leaves
// nothing behind.
type bin int64

const countBits = 24

// partsOf is how many parts a pull of one has, so that the pulls of so many rows, each
// of clip at most, fit above the counts.
func partsOf(rows int, clip float64) float64 {
	_, most := math.Frexp(clip * float64(rows))
	return math.Ldexp(1, 62-countBits-most)
}

// binOf is that of one row.
func binOf(pull, parts float64) bin { return bin(math.Round(pull*parts))<<countBits + 1 }

// pull is in parts.
func (b bin) pull() float64 { return float64(b >> countBits) }

func (b bin) count() int { return int(b & (1<<countBits - 1)) }

// worth is what a leaf takes from the squared error, in squared parts, shrunk by one
// row's worth of doubt.
func (b bin) worth() float64 { return b.pull() * b.pull() / float64(b.count()+1) }

// sums are what the rows of a leaf sum up to.
type sums struct {
	bins   []bin    // mostBins of every feature that the tree sees; of the others anything
	filled []uint64 // by feature, which of its bins may have rows: most leaves are small
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
func (g *grower) grow() tree {
	g.draw()
	nodes := []branch{{feature: -1}}
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
		nodes[l.node] = branch{int16(l.feature), l.cut, uint16(len(nodes)), 0}
		left.node, right.node = len(nodes), len(nodes)+1
		nodes = append(nodes, branch{feature: -1}, branch{feature: -1})
		open[best] = left
		open = append(open, right)
	}
	t := tree{nodes: nodes}
	for _, l := range open {
		g.end(&t, l)
		g.free = append(g.free, l.sums)
	}
	for _, i := range g.others {
		g.said[i] = t.says(g.bins[i], g.at[i])
	}
	return t
}

// end gives a leaf what it says, and notes it at its rows: to go down the tree again
// takes longer.
func (g *grower) end(t *tree, l *leaf) {
	node := &t.nodes[l.node]
	node.value = g.size.rate * l.total.pull() / g.parts / float64(l.total.count()+1)
	for _, i := range l.rows {
		g.said[i] = node.value
	}
	if g.size.doubt == 0 || len(l.rows) < fewestInLine {
		return
	}
	line := g.line(l)
	t.lines = append(t.lines, line)
	node.left = uint16(len(t.lines))
	for _, i := range l.rows {
		g.said[i] += line.at(g.at[i])
	}
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
	few := len(rows) < mostBins
	for _, i := range rows {
		places, pull := g.places[int(i)*features:][:features], g.pulls[i]
		for _, f := range g.columns {
			bins[places[f]] += pull
		}
		if few {
			for _, f := range g.columns {
				filled[f] |= 1 << (places[f] % mostBins)
			}
		}
	}
	if !few {
		for _, f := range g.columns {
			filled[f] = math.MaxUint64 >> (mostBins - g.width[f])
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
			if to[at] -= from[at]; to[at].count() == 0 {
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
	for _, b := range l.bins[first*mostBins:][:g.width[first]] {
		l.total += b
	}
	whole, least := l.total.worth(), g.size.least
	nothing := 1e-12 * g.parts * g.parts // but rounding
	if l.total.count() < 2*least {
		return
	}
	for _, f := range g.columns {
		var left bin
		bins := l.bins[f*mostBins:][:mostBins]
		for rest := l.filled[f]; rest != 0; rest &= rest - 1 {
			at := bits.TrailingZeros64(rest)
			left += bins[at]
			right := l.total - left
			if right.count() < least {
				break
			}
			if left.count() < least {
				continue
			}
			if gain := left.worth() + right.worth() - whole; gain > l.gain+nothing {
				l.gain, l.feature, l.cut = gain, f, uint8(at)
			}
		}
	}
}
