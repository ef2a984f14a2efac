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
	for a, must := range first.rises {
		if must && len(g.axes[a]) > 1 {
			r.steps[a] = l.steps(a, core)
			stated = append(stated, l.changes(a, values, r.steps[a])...)
			l.hold(a, r.steps[a])
		}
	}
	r.project(weight)
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

// steps says, for every node, by how much the correction may fall to the next
// node along an axis: a safe share of what the core rises where it rises least
// in between. Its log times at the nodes are known.
func (l *correction) steps(axis int, core []float64) []float64 {
	const safe = 0.98
	g := l.k.grids[0]
	nodes := g.axes[axis]
	fall := make([]float64, g.size)
	for i := range fall {
		if n := i / g.stride[axis] % len(nodes); n < len(nodes)-1 {
			least := l.leastRise(axis, g.at(i), nodes[n+1], core[i], core[i+g.stride[axis]])
			for _, x := range l.beside(axis, i) {
				first := l.logAt(x)
				x[axis] = nodes[n+1]
				last := l.logAt(x)
				x[axis] = nodes[n]
				least = min(least, l.leastRise(axis, x, nodes[n+1], first, last))
			}
			fall[i] = safe * max(0, least)
		}
	}
	return fall
}

// logAt is the core's log time at a place of the first lattice.
func (l *correction) logAt(x []float64) float64 {
	return math.Log(l.core(shapeAt(l.points[0].Shape, l.shape.lattices[0].axes, x)))
}

// beside are the places besides its node from which an edge of the lattice is
// looked at: for KV heads, lengths just above the node and in the cells beside
// it, since a kernel that packs query heads into its tiles jumps there.
func (l *correction) beside(axis, node int) (all [][]float64) {
	g, names := l.k.grids[0], l.shape.lattices[0].axes
	if names[axis] != "kv_heads" || names[0] != "q_len" {
		return nil
	}
	lengths := g.axes[0]
	n := node / g.stride[0]
	look := func(q float64) {
		x := g.at(node)
		x[0] = q
		all = append(all, x)
	}
	look(math.Log2(math.Exp2(lengths[n]) + 1))
	if n > 0 {
		look(math.Log2(math.Exp2(lengths[n-1]) + 1))
		look((lengths[n-1] + lengths[n]) / 2)
	}
	if n+1 < len(lengths) {
		look((lengths[n] + lengths[n+1]) / 2)
	}
	return all
}

// leastRise is by how much the core rises, in log time, from a place to the
// coordinate `to` of an axis, were it to rise everywhere as it does on the piece
// of the way on which it rises least. It is first and last at the ends. It moves x.
func (l *correction) leastRise(axis int, x []float64, to, first, last float64) float64 {
	names := l.shape.lattices[0].axes
	from := x[axis]
	least, before, at := math.Inf(1), first, from
	pieces := betweenNodes
	if names[axis] == "q_heads" || names[axis] == "kv_heads" {
		pieces = 1 // in between, query heads do not divide among the KV heads
	}
	for k := 1; k <= pieces; k++ {
		next, now := to, last
		if k < pieces {
			next = l.shape.whole(names[axis], from+(to-from)*float64(k)/float64(pieces))
		}
		if next <= at || next > to {
			continue
		}
		if next < to {
			x[axis] = next
			now = l.logAt(x)
		}
		least = min(least, (now-before)/(next-at))
		before, at = now, next
	}
	if least < 0 {
		// The core itself falls in between, where it splits keys among
		// more units: the ends are all there is to hold on to.
		return last - first
	}
	return least * (to - from)
}

// changes finds the edges along an axis on which the learnt time falls,
// between the nodes or from one to the next, by more than noise would let it,
// lets it fall there, and says so.
func (l *correction) changes(axis int, values, fall []float64) []costmodel.Switch {
	if l.shape.switches == 0 {
		return nil
	}
	g := l.k.grids[0]
	nodes := g.axes[axis]
	most := make([]float64, len(nodes))
	for i := range values {
		n := i / g.stride[axis] % len(nodes)
		if n == len(nodes)-1 {
			continue
		}
		falls := values[i] - values[i+g.stride[axis]]
		if over := falls - fall[i]; over > l.shape.switches {
			fall[i], most[n] = falls, max(most[n], over)
		}
	}
	var stated []costmodel.Switch
	for n, over := range most {
		if over > 0 {
			stated = append(stated, costmodel.Switch{Axis: l.shape.lattices[0].axes[axis], From: natural(nodes[n]), To: natural(nodes[n+1]), Fall: over})
		}
	}
	return stated
}

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
