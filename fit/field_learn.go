package fit

import (
	"errors"
	"math"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
)

// lattice says on which axes a correction is learnt. The first lattice is the
// one that is kept; the others are random fields of their own whose sum with it
// is what the points show, folded into it at its nodes. They let shapes that
// differ on one axis but agree in a product of axes learn from each other.
type lattice struct {
	axes    []string
	lengths []float64 // correlation lengths, octaves
	amp     float64   // standard deviation of the field, in log time
	rises   []bool    // axes of the first lattice along which time must not fall
	// reaches are the axes of the first lattice that planners ask about beyond
	// what was measured: it goes on for two octaves there.
	reaches []bool
}

// ends are the largest nodes of every axis.
func ends(axes [][]float64) []float64 {
	all := make([]float64, len(axes))
	for a, nodes := range axes {
		all[a] = nodes[len(nodes)-1]
	}
	return all
}

// fieldShape is how the correction of a kind of op is learnt.
type fieldShape struct {
	lattices []lattice
	width    []string // axes over which the size of the errors is told apart
	tile     int      // see costmodel.Field
	thin     float64  // least distance of two nodes, octaves
	noise    float64  // standard deviation of a point's log time
	struck   float64  // log times farther from their neighbours' than this count less
	decay    float64  // octaves beyond the hull over which the correction fades
	// switches is by how much the learnt time must fall from a node to the next,
	// in log time, to be taken for a change of kernel and stated instead of bent
	// away; 0 bends every fall away.
	switches float64
	// features are what trees may tell shapes apart by, and trees how many and
	// how large they are.
	features func(op.Shape) []float64
	trees    boostSize
}

// attentionField is the shape of the correction of attention; rectangles that
// are not square need both lengths, and then batch and heads share an axis.
func attentionField(points []Point, tile int) fieldShape {
	s := fieldShape{width: []string{"q_len", "blocks"}, tile: tile, thin: 0.3, noise: 0.01, struck: 0.02, decay: 3}
	yes := []bool{true, true, true, true}
	if len(points) < fewToRefit {
		s.noise = 0.03 // few points say more about trends than about each other
	}
	if slices.ContainsFunc(points, func(p Point) bool { return costmodel.AxisOf("q_len", p.Shape) != costmodel.AxisOf("kv_len", p.Shape) }) {
		s.lattices = []lattice{{[]string{"q_len", "kv_len", "blocks", "gqa"}, []float64{6, 6, 6, 12}, 0.1, []bool{true, true, true, false}, []bool{true, true, false, false}}}
		return s
	}
	s.lattices = []lattice{
		{[]string{"q_len", "batch", "q_heads", "kv_heads"}, []float64{6, 12, 12, 12}, 0.1, yes, []bool{true, false, false, false}},
		{[]string{"q_len", "blocks", "gqa"}, []float64{6, 6, 12}, 0.1, nil, nil},
		{[]string{"tokens", "q_heads", "kv_heads"}, []float64{6, 6, 12}, 0.1, nil, nil},
	}
	return s
}

// gemmField is the shape of the correction of GEMM.
func gemmField() fieldShape {
	return fieldShape{
		lattices: []lattice{
			{[]string{"m", "n", "k"}, []float64{6, 6, 6}, 0.1, []bool{true, false, false}, []bool{true, true, true}},
			{[]string{"tiles", "k"}, []float64{2, 6}, 0.1, nil, nil},
		},
		width: []string{"m", "weights"}, thin: 0, noise: 0.01, struck: 0.1, decay: 3, switches: 0.03,
	}
}

// correction is the state of learning a correction from one set of points.
type correction struct {
	shape  fieldShape
	points []Point
	core   func(op.Shape) float64
	prior  *costmodel.Field // what is expected of the correction; nil: nothing
	y      []float64        // log(measured/core), less the prior
	noise  []float64        // variances
	k      *kriging
	alpha  []float64
	ends   []float64 // of what was measured, on the axes of the first lattice
}

// newCorrection lays the lattices through the points.
func newCorrection(shape fieldShape, points []Point, core func(op.Shape) float64, prior *costmodel.Field) *correction {
	l := &correction{shape: shape, points: points, core: core, prior: prior, y: make([]float64, len(points)), noise: make([]float64, len(points)), alpha: make([]float64, len(points))}
	for i, p := range points {
		l.y[i] = math.Log(p.Seconds/core(p.Shape)) - prior.Log(p.Shape)
		// A point that was measured several times is known better.
		l.noise[i] = shape.noise * shape.noise / float64(max(1, len(p.visits)))
	}
	var grids []*grid
	var coords [][][]float64
	for n, lat := range shape.lattices {
		places := make([][]float64, len(points))
		for i, p := range points {
			places[i] = shape.place(lat.axes, p.Shape)
		}
		nodes := nodesOf(places, shape.thin)
		if n == 0 {
			l.ends = ends(nodes)
			for a, must := range lat.reaches {
				if last := l.ends[a]; must {
					nodes[a] = append(nodes[a], last+1, last+2)
				}
			}
		}
		grids = append(grids, newGrid(nodes, lat.lengths, lat.amp*lat.amp))
		coords = append(coords, places)
	}
	l.k = newKriging(grids, coords)
	return l
}

// place is where a shape lies on axes, in octaves.
func (f fieldShape) place(axes []string, s op.Shape) []float64 {
	x := make([]float64, len(axes))
	for i, name := range axes {
		v := costmodel.AxisOf(name, s)
		if tile := float64(f.tile); tile > 0 && v > tile && (name == "q_len" || name == "kv_len") {
			v = math.Ceil(v/tile) * tile
		}
		x[i] = math.Log2(v)
	}
	return x
}

// mostNodesAnAxis bounds the size of a lattice whatever shapes were measured.
const mostNodesAnAxis = 40

// nodesOf are the distinct coordinates of places, axis by axis, no two closer
// than thin, both ends kept; where that leaves too many, none closer than it
// takes.
func nodesOf(places [][]float64, thin float64) [][]float64 {
	axes := make([][]float64, len(places[0]))
	for a := range axes {
		var all []float64
		for _, x := range places {
			all = append(all, x[a])
		}
		slices.Sort(all)
		all = slices.Compact(all)
		axes[a] = spacedOut(all, thin)
		for least := max(thin, 0.005); len(axes[a]) > mostNodesAnAxis; least *= 1.3 {
			axes[a] = spacedOut(all, least)
		}
	}
	return axes
}

func spacedOut(sorted []float64, thin float64) []float64 {
	nodes, last := sorted[:1:1], sorted[len(sorted)-1]
	for _, x := range sorted[1:] {
		if x >= nodes[len(nodes)-1]+thin {
			nodes = append(nodes, x)
		}
	}
	if len(nodes) > 1 && last-nodes[len(nodes)-1] < thin {
		nodes = nodes[:len(nodes)-1]
	}
	if last > nodes[len(nodes)-1] {
		nodes = append(nodes, last)
	}
	return nodes
}

const (
	krigingRounds = 4   // of reweighting
	krigingSteps  = 400 // of conjugate gradients, at most
	krigingTol    = 1e-3
	leastField    = 12 // points; fewer say nothing that the core does not
)

// solve estimates the fields from all points. Points far from what the others
// say count less, as under Student's t; their noise is left as it was weighed.
func (l *correction) solve() error {
	given := slices.Clone(l.noise)
	for round := range krigingRounds {
		for i := range l.noise {
			if round > 0 {
				e := (l.y[i] - l.k.at(i)) / l.shape.struck
				l.noise[i] = given[i] * (1 + e*e)
			}
		}
		if err := l.k.solve(l.alpha, l.y, l.noise, krigingTol, krigingSteps); err != nil {
			return err
		}
	}
	return nil
}

// crossValidate predicts the correction at every point from the others, in
// folds. It comes after solve, whose weights it keeps, and leaves the fields as
// it found them.
func (l *correction) crossValidate(k int) ([]float64, error) {
	fold := folds(l.points, k)
	unseen, noise := make([]float64, len(l.y)), make([]float64, len(l.y))
	for n := range k {
		alpha := slices.Clone(l.alpha)
		for i := range noise {
			noise[i] = l.noise[i]
			if fold[i] == n {
				noise[i] = math.Inf(1)
			}
		}
		if err := l.k.solve(alpha, l.y, noise, krigingTol, krigingSteps); err != nil {
			return nil, err
		}
		for i := range unseen {
			if fold[i] == n {
				unseen[i] = l.k.at(i)
			}
		}
	}
	l.k.spreadOut(l.alpha)
	return unseen, nil
}

// learnField learns the correction of a core from points and returns it with
// the cross-validated errors of the corrected law, log(measured/predicted).
// What the points do not tell is left to the prior, such as the correction of
// the same kernel at another head width.
//
// Errors: too few points, or equations that cannot be solved.
func learnField(shape fieldShape, points []Point, core func(op.Shape) float64, prior *costmodel.Field) (*costmodel.Field, []float64, error) {
	if len(points) < leastField {
		return nil, nil, errors.New("too few points for a correction")
	}
	l := newCorrection(shape, points, core, prior)
	if err := l.solve(); err != nil {
		return nil, nil, err
	}
	smooth := make([]float64, len(points))
	for i := range smooth {
		smooth[i] = l.k.at(i)
	}
	unseen, err := l.crossValidate(fieldFolds)
	if err != nil {
		return nil, nil, err
	}
	advice := l.grow()
	advice.settle(l.y, unseen)
	field := l.field(advice)
	logs := make([]float64, len(points))
	for i, p := range points {
		// What bending and storing the field moved at a point is an error too.
		whole := advice.blend(smooth[i], p.Shape) + prior.Log(p.Shape)
		logs[i] = l.y[i] - advice.mix(unseen[i], advice.unseen, i) + whole - field.Log(p.Shape)
	}
	return field, logs, nil
}

// widths learns how large the errors of a corrected law are over two axes: the
// half width, as |log|, of an interval that holds a share of the points. It is
// the local mean of the errors, scaled so that the share holds over all of them
// (normalised split-conformal intervals, Lei et al. 2018).
func (f fieldShape) widths(points []Point, logs []float64, share float64) *costmodel.Field {
	places := make([][]float64, len(points))
	for i, p := range points {
		places[i] = f.place(f.width, p.Shape)
	}
	g := newGrid(nodesOf(places, 1), []float64{1, 1}, 1)
	sum, weight := make([]float64, g.size), make([]float64, g.size)
	mean := 0.0
	for i, x := range places {
		mean += math.Abs(logs[i]) / float64(len(logs))
		c := g.around(x)
		for j, at := range c.at {
			sum[at] += c.weight[j] * min(math.Abs(logs[i]), 1)
			weight[at] += c.weight[j]
		}
	}
	scratch := make([]float64, g.size)
	g.smooth(sum, scratch)
	g.smooth(weight, scratch)
	const prior = 3 // points' worth of the overall mean
	for i := range sum {
		sum[i] = math.Log((sum[i] + prior*mean) / (weight[i] + prior))
	}
	w := quantise(f.tile, 100, f.width, g.axes, sum)
	ratios := make([]float64, len(points))
	for i, p := range points {
		ratios[i] = math.Abs(logs[i]) / math.Exp(w.Log(p.Shape))
	}
	slices.Sort(ratios)
	rank := min(len(ratios), int(math.Ceil(share*float64(len(ratios)+1))))
	shift := math.Log(ratios[rank-1])
	for i := range sum {
		sum[i] += shift
	}
	return quantise(f.tile, 100, f.width, g.axes, sum)
}

// fieldStep is one count of a stored correction, in log time.
const fieldStep = 0.001

func quantise(tile int, decay float64, names []string, nodes [][]float64, values []float64) *costmodel.Field {
	f := &costmodel.Field{Tile: tile, Decay: decay, Step: fieldStep, Values: make(costmodel.NodeValues, len(values))}
	for a, name := range names {
		axis := costmodel.FieldAxis{Name: name}
		for _, x := range nodes[a] {
			axis.Nodes = append(axis.Nodes, natural(x))
		}
		f.Axes = append(f.Axes, axis)
	}
	for i, v := range values {
		f.Values[i] = int16(math.Round(min(30, max(-30, v)) / fieldStep))
	}
	return f
}

// natural turns octaves back into the number they came from, whole where it was.
func natural(x float64) float64 {
	v := math.Exp2(x)
	if r := math.Round(v); math.Abs(v-r) < 1e-6*v {
		return r
	}
	return v
}
