package fit

import (
	"math"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// field folds the solved fields and the trees' advice into the first lattice
// and bends its nodes so that the corrected time never falls along an axis on
// which it must rise.
func (l *correction) field(advice *advice) *costmodel.Field {
	g, first := l.k.grids[0], l.shape.lattices[0]
	values := append([]float64(nil), l.k.buffers[0]...)
	shapes, core := make([]op.Shape, g.size), make([]float64, g.size)
	for i := range values {
		shapes[i] = shapeAt(l.points[0].Shape, first.axes, g.at(i))
		core[i] = math.Log(l.core(shapes[i]))
		for n, lat := range l.shape.lattices[1:] {
			c := l.k.grids[n+1].around(l.shape.place(lat.axes, shapes[i]))
			for j, at := range c.at {
				values[i] += c.weight[j] * l.k.buffers[n+1][at]
			}
		}
	}
	values = advice.blend(values, shapes, func(i int) bool { return l.outside(g.at(i)) })
	for i, s := range shapes {
		values[i] += l.prior.Log(s)
		if l.outside(g.at(i)) {
			values[i] *= trustOutside
		}
	}
	r := &rising{g: g, values: values, steps: make([][]float64, len(g.axes))}
	weight := l.support()
	var stated []costmodel.Switch
	places := make([][]place, len(g.axes))
	for a, must := range first.rises {
		if must && len(g.axes[a]) > 1 {
			r.steps[a] = l.steps(a, core)
			switches, told := l.changes(a, values, r.steps[a])
			stated = append(stated, switches...)
			l.hold(a, r.steps[a])
			places[a] = l.places(a, told)
		}
	}
	unbent := slices.Clone(r.values)
	r.project(weight)
	for range tightenings {
		if !r.tighten(places, l.most) {
			break
		}
		copy(r.values, unbent)
		r.project(weight)
	}
	f := quantise(l.shape.tile, l.shape.decay, first.axes, g.axes, values)
	r.lift(f.Values)
	f.Switches = stated
	return f
}

// hold allows no fall from a node that lies an octave or more beyond what was
// measured to the next: what is said there is the trees' guess, and a fall of it
// would be one of time wherever the core is flat.
func (l *correction) hold(axis int, fall []float64) {
	g := l.k.grids[0]
	for i := range fall {
		if l.shape.held && g.at(i)[axis] > l.ends[axis]+0.5 {
			fall[i] = 0
		}
	}
}

// trustOutside is the share of a correction that is kept where the lattice
// reaches beyond what was measured: on others' matrix products of more rows
// than any fitted, 0.5 to 1 do about equally well.
const trustOutside = 0.75

// outside says whether a place lies beyond the end of what was measured.
func (l *correction) outside(x []float64) bool {
	for a, end := range l.ends {
		if x[a] > end+1e-9 {
			return true
		}
	}
	return false
}

// support is how much the points say about every node.
func (l *correction) support() []float64 {
	w := make([]float64, l.k.grids[0].size)
	for i := range w {
		w[i] = 0.02
	}
	for j, at := range l.k.places[0].at {
		w[at] += l.k.places[0].weight[j]
	}
	return w
}

// at is the place of a node, in octaves.
func (g *grid) at(node int) []float64 {
	x := make([]float64, len(g.axes))
	for a, nodes := range g.axes {
		x[a] = nodes[node/g.stride[a]%len(nodes)]
	}
	return x
}

// betweenNodes is into how many pieces an edge of the lattice is cut to see
// where the core rises least.
const betweenNodes = 4

// amid is the number of places in a cell, apart from its sides, that are looked at: with 12 as
// many laws fall as with 4. Of a lattice of more than cellsLookedAt some cells are left out; those of
// others' tables have up to 35,000.
const (
	amid          = 4
	cellsLookedAt = 1 << 16
)

// evenShares spread the places amid three sides of a cell evenly: powers of the root of x^4 = x + 1.
var evenShares = [...]float64{0.8191725133961645, 0.6710436067037893, 0.5497004779019703}

// steps says, for every node, by how much the correction may fall to the next
// node along an axis: a safe share of what the core rises where it rises least
// in between. Its log times at the nodes are known.
func (l *correction) steps(axis int, core []float64) []float64 {
	g := l.k.grids[0]
	nodes := g.axes[axis]
	fall := make([]float64, g.size)
	for i := range fall {
		if n := i / g.stride[axis] % len(nodes); n < len(nodes)-1 {
			fall[i] = l.mayFall(axis, g.at(i), nodes[n+1], core[i], core[i+g.stride[axis]])
		}
	}
	return fall
}

// mayFall is what the correction may fall by from a place to the coordinate `to` of an axis,
// where the core's log time is first and last at the ends.
func (l *correction) mayFall(axis int, x []float64, to, first, last float64) float64 {
	const safe = 0.98
	return safe * max(0, l.leastRise(axis, x, to, first, last))
}

// place is where a correction is looked at between its nodes: it falls there along an
// axis as the edges around it do, weighted.
type place struct {
	x     []float64 // at a node of the axis
	edges corners   // the nodes that they begin at
	most  float64   // that it may fall by; NaN before that was asked
}

// places are those to look at beside the edges of an axis, but where a change of kernel is
// stated.
func (l *correction) places(axis int, told []bool) (all []place) {
	g, names := l.k.grids[0], l.shape.lattices[0].axes
	nodes := g.axes[axis]
	for i := range g.size {
		n := i / g.stride[axis] % len(nodes)
		if n == len(nodes)-1 || told[n] || !oneIn(i, 1+(g.size-1)/cellsLookedAt) {
			continue
		}
		for _, x := range l.beside(axis, i) {
			at := l.shape.place(names, shapeAt(l.points[0].Shape, names, x))
			at[axis] = nodes[n]
			all = append(all, place{x, g.around(at), math.NaN()})
		}
	}
	return all
}

// most is what the correction may fall by at a place.
func (l *correction) most(axis int, x []float64) float64 {
	nodes, from := l.k.grids[0].axes[axis], x[axis]
	n, _ := slices.BinarySearch(nodes, from)
	first, to := l.logAt(x), nodes[n+1]
	x[axis] = to
	last := l.logAt(x)
	x[axis] = from
	return l.mayFall(axis, x, to, first, last)
}

// oneIn says whether a node is one of those kept, one in so many, scattered over all axes.
func oneIn(node, one int) bool { return uint32(node)*2654435761>>16%uint32(one) == 0 }

// What a correction falls too much by at a place, in log time, to be bent for it, and how
// often at most it is bent again.
const (
	noticedFall = 0.0002
	tightenings = 5
)

// tighten takes from what edges may fall by, axis by axis, what they fall too much by at a
// place, and says whether they do at any. Few places fall at all, so that only there is
// looked at the core: with all looked at a fit took 21 % longer, and takes 12.
func (r *rising) tighten(places [][]place, most func(axis int, x []float64) float64) (fell bool) {
	for a, of := range places {
		for k := range of {
			p, stride, falls := &of[k], r.g.stride[a], 0.0
			for j, e := range p.edges.at {
				falls += p.edges.weight[j] * (r.values[e] - r.values[int(e)+stride])
			}
			if falls < noticedFall {
				continue
			}
			if math.IsNaN(p.most) {
				p.most = most(a, p.x)
			}
			over := falls - p.most
			if over < noticedFall {
				continue
			}
			fell = true
			for _, e := range p.edges.at {
				r.steps[a][e] = max(0, min(r.steps[a][e], r.values[e]-r.values[int(e)+stride]-over))
			}
		}
	}
	return fell
}

// logAt is the core's log time at a place of the first lattice.
func (l *correction) logAt(x []float64) float64 {
	return math.Log(l.core(shapeAt(l.points[0].Shape, l.shape.lattices[0].axes, x)))
}

// beside are places in the cells that begin at a node, apart from the edge along an axis:
// between the ends of each side, and some amid them all.
func (l *correction) beside(axis, node int) (all [][]float64) {
	g, names := l.k.grids[0], l.shape.lattices[0].axes
	at := g.at(node)
	var sides []int
	for b, nodes := range g.axes {
		k := node / g.stride[b] % len(nodes)
		if b == axis || k == len(nodes)-1 {
			continue
		}
		sides = append(sides, b)
		for _, v := range l.inside(names[b], nodes[k], nodes[k+1]) {
			x := slices.Clone(at)
			x[b] = v
			all = append(all, x)
		}
	}
	for n := 1; n <= amid && len(sides) > 1; n++ {
		x := slices.Clone(at)
		for j, b := range sides {
			k := node / g.stride[b] % len(g.axes[b])
			_, u := math.Modf(float64(n) * evenShares[j])
			x[b] += u * (g.axes[b][k+1] - g.axes[b][k])
		}
		all = append(all, x)
	}
	return all
}

// inside are places between two nodes of an axis that a shape can have: beside either, where the
// core may step up at the node itself, and halfway.
func (l *correction) inside(name string, from, to float64) (all []float64) {
	first, last := math.Round(math.Exp2(from)), math.Round(math.Exp2(to))
	before := last - 1
	if l.shape.tile > 0 && costmodel.InTiles(name) {
		before = last - float64(l.shape.tile) + 1 // the first in the tile that the node ends
	}
	for _, v := range []float64{first + 1, math.Round(math.Exp2((from + to) / 2)), before} {
		if v > first && v < last && !slices.Contains(all, math.Log2(v)) {
			all = append(all, math.Log2(v))
		}
	}
	return all
}

// leastRise is by how much the core rises, in log time, from a place to the
// coordinate `to` of an axis, were it to rise everywhere as it does on the piece
// of the way on which it rises least. It is first and last at the ends.
func (l *correction) leastRise(axis int, x []float64, to, first, last float64) float64 {
	from := x[axis]
	least, before, at := math.Inf(1), first, from
	for _, next := range append(l.onTheWay(axis, x, to), to) {
		now := last
		if next < to {
			x[axis] = next
			now = l.logAt(x)
		}
		least = min(least, (now-before)/(next-at))
		before, at = now, next
	}
	x[axis] = from
	if least < 0 {
		// The core itself falls in between, where it splits keys among
		// more units: the ends are all there is to hold on to.
		return last - first
	}
	return least * (to - from)
}

// onTheWay are the places on the way from x along an axis at which the core is looked at: in
// even pieces; of heads where query heads divide among the KV heads.
func (l *correction) onTheWay(axis int, x []float64, to float64) (all []float64) {
	names, from := l.shape.lattices[0].axes, x[axis]
	heads := func(name string) (int, bool) {
		if b := slices.Index(names, name); b >= 0 {
			return int(math.Round(math.Exp2(x[b]))), true
		}
		return 0, false
	}
	kv, apart := heads("kv_heads")
	q, _ := heads("q_heads")
	for k := 1; k < betweenNodes; k++ {
		next := l.shape.whole(names[axis], from+(to-from)*float64(k)/betweenNodes)
		switch v := int(math.Round(math.Exp2(next))); {
		case apart && names[axis] == "q_heads" && v%kv != 0, apart && names[axis] == "kv_heads" && q%v != 0:
			continue
		}
		if next > from && next < to && (len(all) == 0 || next > all[len(all)-1]) {
			all = append(all, next)
		}
	}
	return all
}

// changes finds the edges along an axis on which the learnt time falls,
// between the nodes or from one to the next, by more than noise would let it,
// lets it fall there, and says so: told has for every node of the axis whether a
// switch begins there.
func (l *correction) changes(axis int, values, fall []float64) (stated []costmodel.Switch, told []bool) {
	g := l.k.grids[0]
	nodes := g.axes[axis]
	told = make([]bool, len(nodes))
	if l.shape.switches == 0 {
		return nil, told
	}
	most, lines := make([]float64, len(nodes)), make([]int, len(nodes))
	for i := range values {
		n := i / g.stride[axis] % len(nodes)
		if n == len(nodes)-1 {
			continue
		}
		falls := values[i] - values[i+g.stride[axis]]
		if over := falls - fall[i]; over > l.shape.switches {
			fall[i], most[n], told[n] = falls, max(most[n], over), true
			lines[n]++
		}
	}
	for n, over := range most {
		if told[n] {
			share := float64(lines[n]) * float64(len(nodes)) / float64(g.size)
			stated = append(stated, costmodel.Switch{Axis: l.shape.lattices[0].axes[axis], From: natural(nodes[n]), To: natural(nodes[n+1]), Fall: roundedUp(over, 1e3), Share: roundedUp(share, 1e4)})
		}
	}
	return stated, told
}

// roundedUp is the least whole part, 1/parts, that is no less.
func roundedUp(x, parts float64) float64 { return math.Ceil(x*parts-1e-9) / parts }

// whole is the nearest place on an axis, in octaves, that a shape can have:
// what comes in tiles is beyond one in whole ones, everything else is a whole number.
func (f fieldShape) whole(axis string, x float64) float64 {
	v := math.Round(math.Exp2(x))
	if tile := float64(f.tile); tile > 0 && v > tile && costmodel.InTiles(axis) {
		v = math.Round(v/tile) * tile
	}
	return math.Log2(v)
}

// rising bends the nodes of a lattice so that they fall from node to node by
// no more than steps allow.
type rising struct {
	g      *grid
	values []float64
	steps  [][]float64 // [axis][node], nil where they may fall
}

// project finds the nearest values that rise as they must, weighted by the
// support of each node: Dykstra's alternating projections (1983), each of which
// is an isotonic regression along the lines of one axis.
func (r *rising) project(weight []float64) {
	const rounds = 24
	kept := r.nothingKept()
	for range rounds {
		r.turn(weight, kept)
	}
}

// nothingKept is what Dykstra's projections hold back before the first: nothing.
func (r *rising) nothingKept() [][]float64 {
	kept := make([][]float64, len(r.steps))
	for a := range kept {
		kept[a] = make([]float64, len(r.values))
	}
	return kept
}

// turn projects once along every axis. It gives back what the last projection
// along the axis took, and keeps what this one takes.
func (r *rising) turn(weight []float64, kept [][]float64) {
	for a, steps := range r.steps {
		if steps == nil {
			continue
		}
		for i := range r.values {
			r.values[i] += kept[a][i]
			kept[a][i] = r.values[i]
		}
		r.straighten(a, weight)
		for i := range r.values {
			kept[a][i] -= r.values[i]
		}
	}
}

// straighten makes every line along an axis rise but for what it may fall: an
// isotonic regression of the values with the allowance up to each node added.
func (r *rising) straighten(axis int, weight []float64) {
	line, w, blocks := make([]float64, 0, 64), make([]float64, 0, 64), make([]block, 0, 64)
	steps := r.steps[axis]
	r.eachLine(axis, func(at func(int) int, n int) {
		line, w = line[:0], w[:0]
		allowed := 0.0
		for k := range n {
			line, w = append(line, r.values[at(k)]+allowed), append(w, weight[at(k)])
			allowed += steps[at(k)]
		}
		isotonic(line, w, blocks)
		allowed = 0
		for k := range n {
			r.values[at(k)] = line[k] - allowed
			allowed += steps[at(k)]
		}
	})
}

// eachLine calls f for every line of nodes along an axis.
func (r *rising) eachLine(axis int, f func(at func(int) int, n int)) {
	n, stride := len(r.g.axes[axis]), r.g.stride[axis]
	for base := 0; base < r.g.size; base += n * stride {
		for off := range stride {
			f(func(k int) int { return base + off + k*stride }, n)
		}
	}
}

// lift makes stored counts rise exactly: each is at least what every node
// before it allows. Nodes come after all that precede them on any axis, so one
// sweep is enough.
func (r *rising) lift(counts costmodel.NodeValues) {
	for i := range counts {
		for a, steps := range r.steps {
			if steps == nil || i/r.g.stride[a]%len(r.g.axes[a]) == 0 {
				continue
			}
			before := i - r.g.stride[a]
			counts[i] = int16(max(int(counts[i]), int(counts[before])-int(min(30000, math.Floor(steps[before]/fieldStep)))))
		}
	}
}

// block is the values in a row that share their mean.
type block struct {
	mean, weight float64
	n            int
}

// isotonic replaces values by the nearest that never fall, by pooling adjacent
// violators (Ayer et al. 1955). It works in blocks.
func isotonic(v, weight []float64, blocks []block) {
	blocks = blocks[:0]
	for i, x := range v {
		blocks = append(blocks, block{x, weight[i], 1})
		for k := len(blocks) - 1; k > 0 && blocks[k-1].mean > blocks[k].mean; k-- {
			a, b := blocks[k-1], blocks[k]
			w := a.weight + b.weight
			blocks[k-1] = block{(a.mean*a.weight + b.mean*b.weight) / w, w, a.n + b.n}
			blocks = blocks[:k]
		}
	}
	i := 0
	for _, b := range blocks {
		for range b.n {
			v[i] = b.mean
			i++
		}
	}
}

// shapeAt is a shape like the given one at a place in octaves, with whole
// numbers, and with no more KV heads than query heads.
func shapeAt(like op.Shape, axes []string, x []float64) op.Shape {
	at := wholes{axes, x}
	switch v := like.(type) {
	case op.AttnFwd:
		return op.AttnFwd{Attention: attentionAt(v.Attention, at)}
	case op.AttnBwd:
		return op.AttnBwd{Attention: attentionAt(v.Attention, at)}
	case op.GEMM:
		v.M, v.N, v.K = units.Tokens(at.number("m")), int(at.number("n")), int(at.number("k"))
		return v
	}
	return like
}

// wholes is a place in octaves, read as whole numbers.
type wholes struct {
	axes []string
	x    []float64
}

// on is the number on an axis, if there is that axis.
func (w wholes) on(axis string) (v float64, ok bool) {
	i := slices.Index(w.axes, axis)
	if i < 0 {
		return 0, false
	}
	return max(1, math.Round(math.Exp2(w.x[i]))), true
}

// number is on of an axis that may be missing: 0.
func (w wholes) number(axis string) float64 {
	v, _ := w.on(axis)
	return v
}

func attentionAt(a op.Attention, at wholes) op.Attention {
	a.QLen = units.Tokens(at.number("q_len"))
	a.KVLen = a.QLen
	if kv, ok := at.on("kv_len"); ok {
		a.KVLen = units.Tokens(kv)
	}
	if blocks, ok := at.on("blocks"); ok {
		a.Batch, a.QHeads = 0, int(blocks)
		a.KVHeads = max(1, int(math.Round(blocks/at.number("gqa"))))
		return a
	}
	heads := at.number("q_heads")
	kv, ok := at.on("kv_heads")
	if !ok { // an axis of theirs would hold nothing: they follow the query heads
		kv = math.Round(heads * float64(a.KVHeads) / float64(a.QHeads))
	}
	a.QHeads = int(heads)
	a.KVHeads = max(1, min(a.QHeads, int(kv)))
	a.Batch = 0
	if b := int(at.number("batch")); b > 1 {
		a.Batch = b
	}
	return a
}
