package fit

import (
	"errors"
	"math"
	"slices"
)

// grid is a lattice in log2 coordinates on which a random field lives: the
// covariance between two nodes is the product over the axes of exp(-d/length),
// which makes a matrix-vector product one sweep forth and one back an axis
// (Wilson and Nickisch 2015 interpolate from such lattices as here).
type grid struct {
	axes   [][]float64 // nodes of every axis, rising
	decays [][]float64 // correlation of every node of an axis with the one before it
	stride []int
	size   int
	amp    float64 // variance of the field
}

// newGrid places nodes and gives each axis its correlation length, in octaves.
func newGrid(axes [][]float64, lengths []float64, amp float64) *grid {
	g := &grid{axes: axes, size: 1, amp: amp, stride: make([]int, len(axes))}
	for a := len(axes) - 1; a >= 0; a-- {
		g.stride[a] = g.size
		g.size *= len(axes[a])
	}
	for a, nodes := range axes {
		decay := make([]float64, len(nodes))
		for i := 1; i < len(nodes); i++ {
			decay[i] = math.Exp(-(nodes[i] - nodes[i-1]) / lengths[a])
		}
		g.decays = append(g.decays, decay)
	}
	return g
}

// corners are the nodes around a place with their multilinear weights.
type corners struct {
	at     []int32
	weight []float64
}

// around finds the corners of the cell that a place lies in; beyond the ends
// the nearest cell's face.
func (g *grid) around(x []float64) corners {
	c := corners{at: []int32{0}, weight: []float64{1}}
	for a, nodes := range g.axes {
		i, u := locate(nodes, x[a])
		n := len(c.at)
		for k := range n {
			base, w := c.at[k], c.weight[k]
			c.at[k], c.weight[k] = base+int32(i*g.stride[a]), w*(1-u)
			if u > 0 {
				c.at = append(c.at, base+int32((i+1)*g.stride[a]))
				c.weight = append(c.weight, w*u)
			}
		}
	}
	return c
}

// locate finds the cell of a coordinate and the place within it, 0 to 1.
func locate(nodes []float64, x float64) (i int, u float64) {
	n := len(nodes)
	if n == 1 || x <= nodes[0] {
		return 0, 0
	}
	if x >= nodes[n-1] {
		return n - 1, 0
	}
	i, exact := slices.BinarySearch(nodes, x)
	if exact {
		return i, 0
	}
	return i - 1, (x - nodes[i-1]) / (nodes[i] - nodes[i-1])
}

// smooth multiplies a lattice vector by the covariance, in place, with scratch
// as long as it. Along an axis the product is what comes from before a node and
// what comes from behind it, and either is a share of that at the neighbour.
func (g *grid) smooth(v, scratch []float64) {
	for a, decay := range g.decays {
		n, stride := len(decay), g.stride[a]
		for base := 0; n > 1 && base < g.size; base += n * stride {
			sweep(v[base:base+n*stride], scratch[:n*stride], decay, stride)
		}
	}
	for i := range v {
		v[i] *= g.amp
	}
}

// sweep smooths the lines of one block of a lattice, which lie side by side.
func sweep(v, forth, decay []float64, stride int) {
	if stride == 1 {
		sweepLine(v, forth, decay)
		return
	}
	copy(forth, v)
	for i := 1; i < len(decay); i++ {
		add(forth[i*stride:(i+1)*stride], forth[(i-1)*stride:i*stride], decay[i])
	}
	for i := len(decay) - 2; i >= 0; i-- {
		behind := v[(i+1)*stride : (i+2)*stride]
		addToBoth(v[i*stride:(i+1)*stride], forth[i*stride:(i+1)*stride], behind, decay[i+1])
	}
	copy(v, forth)
}

// sweepLine is sweep of a single line. Those of the last axis are many and short:
// slices for every node took longer than the sums.
func sweepLine(v, forth, decay []float64) {
	last := len(decay) - 1
	v, forth = v[:last+1], forth[:last+1]
	before := v[0]
	forth[0] = before
	for i := 1; i <= last; i++ {
		before = v[i] + decay[i]*before
		forth[i] = before
	}
	behind := v[last]
	v[last] = forth[last]
	for i := last - 1; i >= 0; i-- {
		comes := decay[i+1] * behind
		behind = v[i] + comes
		v[i] = forth[i] + comes
	}
}

// add adds a multiple of one vector to another.
func add(to, from []float64, times float64) {
	for i, x := range from[:len(to)] {
		to[i] += times * x
	}
}

// addToBoth adds a multiple of one vector to two others.
func addToBoth(a, b, from []float64, times float64) {
	a, b = a[:len(from)], b[:len(from)]
	for i, x := range from {
		x *= times
		a[i] += x
		b[i] += x
	}
}

// sites are the corners around points, one point's after the other's: most have a
// single one, and to look for each costs more than what is done with it.
type sites struct {
	corners
	ends []int32 // [point] of its corners
}

func (p *sites) add(c corners) {
	p.at, p.weight = append(p.at, c.at...), append(p.weight, c.weight...)
	p.ends = append(p.ends, int32(len(p.at)))
}

// of are the corners around a point.
func (p *sites) of(point int) corners {
	first, end := int32(0), p.ends[point]
	if point > 0 {
		first = p.ends[point-1]
	}
	return corners{p.at[first:end], p.weight[first:end]}
}

// kriging is a sum of random fields observed at points with noise.
type kriging struct {
	grids   []*grid
	places  []sites // [grid]
	buffers [][]float64
	scratch []float64
}

func newKriging(grids []*grid, coords [][][]float64) *kriging {
	k := &kriging{grids: grids}
	most := 0
	for g, gr := range grids {
		var all sites
		for _, x := range coords[g] {
			all.add(gr.around(x))
		}
		k.places = append(k.places, all)
		k.buffers = append(k.buffers, make([]float64, gr.size))
		most = max(most, gr.size)
	}
	k.scratch = make([]float64, most)
	return k
}

// spreadOut gives every grid's field, at its nodes, for weights at the points.
func (k *kriging) spreadOut(alpha []float64) {
	for g, gr := range k.grids {
		b := k.buffers[g]
		clear(b)
		p, j := &k.places[g], int32(0)
		for i, end := range p.ends {
			weight := p.weight[j:end]
			for n, at := range p.at[j:end][:len(weight)] {
				b[at] += weight[n] * alpha[i]
			}
			j = end
		}
		gr.smooth(b, k.scratch)
	}
}

// at is the sum of the fields at a point.
func (k *kriging) at(i int) float64 {
	sum := 0.0
	for g := range k.grids {
		c := k.places[g].of(i)
		for j, at := range c.at {
			sum += c.weight[j] * k.buffers[g][at]
		}
	}
	return sum
}

// solve finds alpha with (K + diag(noise)) alpha = y over the points of finite noise, and
// leaves the fields that it gives in the buffers. It starts from alpha; that of points
// whose noise is infinite, which say nothing, is 0.
func (k *kriging) solve(alpha, y, noise []float64, tol float64, rounds int) error {
	var told []int
	for i, v := range noise {
		if !math.IsInf(v, 1) {
			told = append(told, i)
		}
	}
	if len(told) == len(noise) {
		return k.solveAll(alpha, y, noise, tol, rounds)
	}
	some := chosen(alpha, told)
	err := k.only(told).solveAll(some, chosen(y, told), chosen(noise, told), tol, rounds)
	clear(alpha)
	for n, i := range told {
		alpha[i] = some[n]
	}
	return err
}

// only is the same fields, in the same buffers, observed at some of the points.
func (k *kriging) only(points []int) *kriging {
	some := &kriging{grids: k.grids, buffers: k.buffers, scratch: k.scratch}
	for g := range k.places {
		var seen sites
		for _, i := range points {
			seen.add(k.places[g].of(i))
		}
		some.places = append(some.places, seen)
	}
	return some
}

// chosen are the elements at some indices.
func chosen[T any](all []T, at []int) []T {
	some := make([]T, len(at))
	for n, i := range at {
		some[n] = all[i]
	}
	return some
}

// solveAll is solve for points of finite noise: by conjugate gradients, preconditioned by
// about the diagonal (Hestenes and Stiefel 1952), until the residual's norm in that metric
// is tol times that of y, or so many rounds are over.
func (k *kriging) solveAll(alpha, y, noise []float64, tol float64, rounds int) error {
	n := len(y)
	r, p, q, pre := make([]float64, n), make([]float64, n), make([]float64, n), make([]float64, n)
	norm, rz := 0.0, 0.0
	k.times(alpha, noise, q)
	for i, diagonal := range k.diagonal(noise) {
		pre[i] = 1 / diagonal
		norm += y[i] * y[i] * pre[i]
		r[i] = y[i] - q[i]
		p[i] = pre[i] * r[i]
		rz += r[i] * p[i]
	}
	for range rounds {
		if rz <= tol*tol*norm || rz == 0 {
			break
		}
		k.times(p, noise, q)
		pq := 0.0
		for i := range n {
			pq += p[i] * q[i]
		}
		if !(pq > 0) {
			return errors.New("the correction's equations are not positive")
		}
		step, next := rz/pq, 0.0
		for i := range n {
			alpha[i] += step * p[i]
			r[i] -= step * q[i]
			next += r[i] * r[i] * pre[i]
		}
		for i := range n {
			p[i] = pre[i]*r[i] + next/rz*p[i]
		}
		rz = next
	}
	k.spreadOut(alpha)
	return nil
}

// times multiplies a vector by K + diag(noise).
func (k *kriging) times(v, noise, out []float64) {
	k.spreadOut(v)
	clear(out)
	for g, b := range k.buffers { // at, point by point: grid by grid the places lie in a row
		p, j := &k.places[g], int32(0)
		for i, end := range p.ends {
			sum, weight := out[i], p.weight[j:end]
			for n, at := range p.at[j:end][:len(weight)] {
				sum += weight[n] * b[at]
			}
			out[i], j = sum, end
		}
	}
	for i := range out {
		out[i] += noise[i] * v[i]
	}
}

// diagonal is what the preconditioner takes for that of K + diag(noise): the noise and a
// tenth of the fields' variances.
func (k *kriging) diagonal(noise []float64) []float64 {
	total := 0.0
	for _, g := range k.grids {
		total += g.amp
	}
	all := make([]float64, len(noise))
	for i, v := range noise {
		all[i] = v + 0.1*total
	}
	return all
}
