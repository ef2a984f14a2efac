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
	counts   string   // axis of counts at which an unmeasured one is another kernel's case; or none
	untold   float64  // half width of what powers of two do not tell of other counts
	sides    []string // axes of sizes at which an unmeasured place is known less
	widen    float64  // by what share of itself a width grows a doubling beyond the range
	tile     int      // see costmodel.Field
	thin     float64  // least distance of two nodes of lengths, octaves
	sparse   float64  // the same of counts: of heads, sequences and of a product's sides
	noise    float64  // standard deviation of a point's log time
	struck   float64  // log times farther from their neighbours' than this count less
	decay    float64  // octaves beyond the hull over which the correction fades
	held     bool     // whether the correction may not fall more than an octave beyond it
	wary     bool     // whether trees are believed less beyond it
	// switches is by how much the learnt time must fall from a node to the next,
	// in log time, to be taken for a change of kernel and stated instead of bent
	// away; 0 bends every fall away.
	switches float64
	// alike are the law's core and those of other tiles that tell the points about as well,
	// from which it may differ between measured lengths; nil where tiles are not known.
	alike func() (own timeOfShape, others []timeOfShape)
	// features are what trees may tell shapes apart by, and trees how many and
	// how large they are.
	features func(op.Shape) []float64
	trees    boostSize
}

// What a width grows by with every doubling beyond the range. On others' tables,
// fitted up to a quarter of the longest calls, these bring most bands of sizes
// between 85 and 95 % (of 26 of causal attention 15, with 1 for all kinds 10).
// What a law's own longer points said, fitted to its shorter ones, told less:
// laws of calls up to 6,144 tokens asked for five times what they needed.
const (
	widenCausal = 0.7
	widenFull   = 0.35
	widenGEMM   = 0.7
)

// attentionField is the shape of the correction of attention; rectangles that
// are not square need both lengths, and then batch and heads share an axis.
// Head counts as near as 10 and 12 have nodes of their own: kernels treat them
// unlike, and without the second one errors between measured shapes were a
// seventh larger over others' tables of causal attention.
func attentionField(points []Point, tile int) fieldShape {
	s := fieldShape{width: []string{"q_len", "blocks"}, counts: "q_heads", sides: []string{"q_len"}, untold: untoldCausal, widen: widenCausal, tile: tile, thin: 0.15, sparse: 0.2, noise: 0.01, struck: 0.02, decay: 3, switches: 0.03}
	yes := []bool{true, true, true, true}
	if a, ok := blockOf(points[0].Shape); ok && (a.Mask == op.Full || a.Window > 0) {
		s.widen = widenFull
		if a.Mask == op.Full {
			s.untold = untoldFull
		}
	}
	if len(points) < fewToRefit {
		s.noise = 0.03 // few points say more about trends than about each other
	}
	if slices.ContainsFunc(points, func(p Point) bool { return costmodel.AxisOf("q_len", p.Shape) != costmodel.AxisOf("kv_len", p.Shape) }) {
		s.sides = []string{"q_len", "kv_len"}
		s.lattices = []lattice{{[]string{"q_len", "kv_len", "blocks", "gqa"}, []float64{6, 6, 6, 12}, 0.1, []bool{true, true, true, false}, []bool{true, true, false, false}}}
		return s
	}
	if oneGroup(points) {
		// KV heads follow the query heads: an axis of theirs would hold nothing. So it
		// is where images are read, whose lengths, such as 1296, 1500 and 1536, fill
		// no whole tiles: rounded up to tiles and with nodes farther apart, errors
		// between the measured shapes of others' 24 tables of bidirectional attention
		// were 2.6 instead of 2.5 % and on longer sequences 2.92 instead of 2.87 %.
		s.thin, s.tile = 0.02, 0
		s.lattices = []lattice{
			{[]string{"q_len", "batch", "q_heads"}, []float64{6, 12, 12}, 0.1, yes[:3], []bool{true, false, false}},
			{[]string{"q_len", "blocks"}, []float64{6, 6}, 0.1, nil, nil},
			{[]string{"tokens", "q_heads"}, []float64{6, 6}, 0.1, nil, nil},
		}
		return s
	}
	s.lattices = []lattice{
		{[]string{"q_len", "batch", "q_heads", "kv_heads"}, []float64{6, 12, 12, 12}, 0.1, yes, []bool{true, false, false, false}},
		{[]string{"q_len", "blocks", "gqa"}, []float64{6, 6, 12}, 0.1, nil, nil},
		{[]string{"tokens", "q_heads", "kv_heads"}, []float64{6, 6, 12}, 0.1, nil, nil},
	}
	return s
}

// oneGroup says whether all points share a KV head among equally many query heads.
func oneGroup(points []Point) bool {
	first := costmodel.AxisOf("gqa", points[0].Shape)
	return !slices.ContainsFunc(points, func(p Point) bool { return costmodel.AxisOf("gqa", p.Shape) != first })
}

// gemmField is the shape of the correction of GEMM.
func gemmField() fieldShape {
	return fieldShape{
		lattices: []lattice{
			{[]string{"m", "n", "k"}, []float64{6, 6, 6}, 0.1, []bool{true, false, false}, []bool{true, true, true}},
			{[]string{"tiles", "k"}, []float64{2, 6}, 0.1, nil, nil},
		},
		width: []string{"m", "weights"}, sides: []string{"m", "n", "k"}, widen: widenGEMM, thin: 0, noise: 0.01, struck: 0.1, decay: 3, held: true, wary: true, switches: 0.03,
	}
}

// rowsOfTile are the rows of a GEMM's result that most kernels' tiles have at least.
const rowsOfTile = 64

// gemmTile is the tile of such a correction: where more different numbers of rows were
// measured than there may be nodes, those of as many tiles share one.
func gemmTile(points []Point) int {
	if len(countsOf("m", points)) > mostNodesAnAxis {
		return rowsOfTile
	}
	return 0
}

// correction is the state of learning a correction from one set of points.
type correction struct {
	shape  fieldShape
	points []Point
	core   timeOfShape
	prior  *costmodel.Field // what is expected of the correction; nil: nothing
	y      []float64        // log(measured/core), less the prior
	noise  []float64        // variances
	k      *kriging
	alpha  []float64
	ends   []float64 // of what was measured, on the axes of the first lattice
}

// newCorrection lays the lattices through the points.
func newCorrection(shape fieldShape, points []Point, core timeOfShape, prior *costmodel.Field) *correction {
	l := &correction{shape: shape, points: points, core: core, prior: prior, noise: make([]float64, len(points)), alpha: make([]float64, len(points))}
	l.y = l.over(core)
	for i, p := range points {
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
		nodes := latticeOf(places, shape.thinning(lat.axes), prior)
		if n == 0 {
			l.splitAtJumps(nodes, lat.axes, places)
			l.ends = ends(nodes)
			if a := slices.Index(lat.axes, shape.counts); a >= 0 && shape.features != nil && len(points) >= fewToGrow {
				nodes[a] = between(nodes[a])
			}
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

// over is what a core leaves at every point, beside the prior.
func (l *correction) over(core timeOfShape) []float64 {
	y := make([]float64, len(l.points))
	for i, p := range l.points {
		y[i] = math.Log(p.Seconds/core(p.Shape)) - l.prior.Log(p.Shape)
	}
	return y
}

// place is where a shape lies on axes, in octaves.
func (f fieldShape) place(axes []string, s op.Shape) []float64 {
	x := make([]float64, len(axes))
	for i, name := range axes {
		v := costmodel.AxisOf(name, s)
		if tile := float64(f.tile); tile > 0 && v > tile && costmodel.InTiles(name) {
			v = math.Ceil(v/tile) * tile
		}
		x[i] = math.Log2(v)
	}
	return x
}

// between adds nodes at head counts of models that were not measured, 3 2^k and
// 5 2^k, so that trees can say there what they say of their like.
func between(nodes []float64) []float64 {
	const near = 0.15 // octaves
	all, last := slices.Clone(nodes), nodes[len(nodes)-1]
	for _, odd := range []float64{3, 5} {
		for x := math.Log2(odd); x < last; x++ {
			beside := func(y float64) bool { return math.Abs(x-y) < near }
			if x > nodes[0] && len(all) < mostNodesAnAxis && !slices.ContainsFunc(all, beside) {
				all = append(all, x)
			}
		}
	}
	slices.Sort(all)
	return all
}

// thinning is the least distance of two nodes on each axis.
func (f fieldShape) thinning(axes []string) []float64 {
	least := make([]float64, len(axes))
	for a, name := range axes {
		least[a] = f.sparse
		if name == "q_len" || name == "kv_len" || name == "tokens" {
			least[a] = f.thin
		}
	}
	return least
}

// latticeOf is nodesOf, with nodes farther apart where there would be many to a point: of
// points at random places, as calibrations have them, no two share a coordinate. There may be
// as many as a prior has, which is stored with what the points say.
func latticeOf(places [][]float64, thin []float64, prior *costmodel.Field) [][]float64 {
	nodes, most := nodesOf(places, thin), max(fewNodes, len(places)*len(places)/8)
	if prior != nil {
		most = max(most, len(prior.Values))
	}
	for apart := 0.125; sizeOf(nodes) > most; apart *= math.Sqrt2 {
		wider := slices.Clone(thin)
		for a := range wider {
			wider[a] = max(wider[a], apart)
		}
		nodes = nodesOf(places, wider)
	}
	return nodes
}

func sizeOf(axes [][]float64) int {
	n := 1
	for _, nodes := range axes {
		n *= len(nodes)
	}
	return n
}

// fewNodes nearly suffice for few random points: 36 laws of attention and three of products,
// of 63 to 84 points each that were measured on an H200, have mean errors of 6.5 and 7.3 %
// with 600 nodes, 6.3 and 7.5 with 5,000 to 30,000; a profile of all 48 laws is 199 kB with
// these, and 1,180 without a bound. Tables of some hundred points, most of which lie on the
// corners of grids, lose where nodes go: one of products had a median error of 2.8 instead
// of 2.2 % with 16 nodes for each of 1,188 points.
const fewNodes = 1200

// mostNodesAnAxis bounds the size of a lattice whatever shapes were measured.
const mostNodesAnAxis = 64

// nodesOf are the distinct coordinates of places, axis by axis, no two closer
// than thin[axis], both ends kept; where that leaves too many, those that tell most.
func nodesOf(places [][]float64, thin []float64) [][]float64 {
	axes := make([][]float64, len(places[0]))
	for a := range axes {
		all := make([]float64, len(places))
		for i, x := range places {
			all[i] = x[a]
		}
		slices.Sort(all)
		distinct := slices.Compact(slices.Clone(all))
		if axes[a] = spacedOut(distinct, thin[a]); len(axes[a]) > mostNodesAnAxis {
			axes[a] = telling(all, spacedOut(distinct, max(thin[a], leastApart)), mostNodesAnAxis)
		}
	}
	return axes
}

// leastApart is the least distance of two nodes, in octaves, where some have to go.
const leastApart = 0.005

// telling keeps so many nodes, both ends among them, for points in rising order: one
// after the other goes whose points its neighbours tell best. A line between these
// is off at a node by what grows with the ways to both, and counts for every point
// there. Evenly spaced nodes left errors a twentieth larger on others' table of matrix
// products of 400 different lengths.
func telling(all, nodes []float64, most int) []float64 {
	nodes, points := slices.Clone(nodes), pointsAt(all, nodes)
	for len(nodes) > most {
		at, least := 0, math.Inf(1)
		for i := 1; i < len(nodes)-1; i++ {
			before, behind := nodes[i]-nodes[i-1], nodes[i+1]-nodes[i]
			if lost := points[i] * before * behind / (before + behind); lost < least {
				at, least = i, lost
			}
		}
		heir := at + 1
		if nodes[at]-nodes[at-1] < nodes[at+1]-nodes[at] {
			heir = at - 1
		}
		points[heir] += points[at]
		nodes, points = slices.Delete(nodes, at, at+1), slices.Delete(points, at, at+1)
	}
	return nodes
}

// pointsAt counts the coordinates up to each node and beyond the one before it.
func pointsAt(all, nodes []float64) []float64 {
	counts := make([]float64, len(nodes))
	for _, x := range all {
		i, _ := slices.BinarySearch(nodes, x)
		counts[min(i, len(nodes)-1)]++
	}
	return counts
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

// crossValidate predicts the correction at every point from the others, each fold
// from y[fold]. It comes after solve, whose weights it keeps, and leaves the fields
// as it found them.
func (l *correction) crossValidate(y [][]float64) ([]float64, error) {
	fold, unseen := folds(l.points, len(y)), make([]float64, len(l.y))
	for n := range y {
		if err := l.without(func(i int) bool { return fold[i] == n }, y[n], unseen); err != nil {
			return nil, err
		}
	}
	l.k.spreadOut(l.alpha)
	return unseen, nil
}

// without predicts the correction at the points that are held from what it should be
// at the others, y, and leaves the fields that those give.
func (l *correction) without(held func(int) bool, y, unseen []float64) error {
	alpha, noise := slices.Clone(l.alpha), slices.Clone(l.noise)
	for i := range noise {
		if held(i) {
			noise[i] = math.Inf(1)
		}
	}
	if err := l.k.solve(alpha, y, noise, krigingTol, krigingSteps); err != nil {
		return err
	}
	for i := range unseen {
		if held(i) {
			unseen[i] = l.k.at(i)
		}
	}
	return nil
}

// unseenErrors are the errors of a law, log(measured/predicted), on points that
// it has not seen.
type unseenErrors struct {
	logs []float64 // at every point, from a law of the others
	// fair are the same but for what bending took back of a point's own say, where
	// something was bent: by them laws are compared. Widths are of all that was moved,
	// for with less three strata of causal attention cover less than 85 % and not one.
	fair []float64
	// apart are the same from points of other head counts or lengths, or of other rows, columns
	// or inner lengths of a product.
	apart []errorsApart
	// afresh gives what logs would be if the core had not seen the points either, from
	// cores without each of the folds; nil where there is no correction.
	afresh func(apart []timeOfShape) ([]float64, error)
}

// errorsApart are a law's errors, log(measured/predicted), at every point from points elsewhere
// on an axis; NaN at the least and the largest place, and empty where there are too few.
type errorsApart struct {
	axis string
	logs []float64
}

// on are the errors at places of an axis from points elsewhere on it; none where they are
// not known.
func (u unseenErrors) on(axis string) []float64 {
	for _, e := range u.apart {
		if e.axis == axis {
			return e.logs
		}
	}
	return nil
}

// compared are the errors by which the law is compared with others.
func (u unseenErrors) compared() []float64 {
	if u.fair != nil {
		return u.fair
	}
	return u.logs
}

// promised are the errors that the law's interval is made of. A core follows its points
// where they are few: by logs, whose core has seen all, intervals from 30 points held
// 0.84 of the others of causal attention and 0.76 of those of products, before lattices
// were bounded, and 0.85 of the first since. Laws are compared
// by logs all the same: chosen by these errors, those of causal attention from 60 points
// were off by 4.15 instead of 3.8 %.
//
// apart are the law's cores without each of the folds; nil where the one stands for all.
func (u unseenErrors) promised(apart []timeOfShape) ([]float64, error) {
	if u.afresh == nil || apart == nil {
		return u.logs, nil
	}
	return u.afresh(apart)
}

// learnField learns the correction of a core from points and returns it with
// the cross-validated errors of the corrected law.
// What the points do not tell is left to the prior, such as the correction of
// the same kernel at another head width. than are errors that a correction is compared with,
// or nil: one that is no better before its nodes are bent is left there, for bending a lattice
// as large as a reference profile's takes most of the time and makes no errors smaller.
//
// Errors: too few points, equations that cannot be solved, or errBeaten.
func learnField(shape fieldShape, points []Point, core timeOfShape, prior *costmodel.Field, than []float64) (*costmodel.Field, unseenErrors, error) {
	var none unseenErrors
	if len(points) < leastField {
		return nil, none, errors.New("too few points for a correction")
	}
	l := newCorrection(shape, points, core, prior)
	if err := l.solve(); err != nil {
		return nil, none, err
	}
	smooth, shapes := make([]float64, len(points)), make([]op.Shape, len(points))
	for i, p := range points {
		smooth[i], shapes[i] = l.k.at(i), p.Shape
	}
	unseen, err := l.crossValidate(slices.Repeat([][]float64{l.y}, fieldFolds))
	if err != nil {
		return nil, none, err
	}
	advice := l.grow()
	advice.believe(advice.settle(l.y, unseen, advice.unseen), shape.wary)
	apart, err := l.unseenCounts(advice)
	if err != nil {
		return nil, none, err
	}
	sides, err := l.unseenSides(advice)
	if err != nil {
		return nil, none, err
	}
	said := advice.mix(unseen, advice.unseen)
	if than != nil && excess(less(l.y, said), than).mean >= 0 {
		return nil, none, errBeaten
	}
	field := l.field(advice)
	whole, now := advice.blend(smooth, shapes, nil), make([]float64, len(points))
	fair := make([]float64, len(points))
	for i, p := range points {
		now[i] = field.Log(p.Shape) - prior.Log(p.Shape)
		fair[i] = l.y[i] - bent(said[i], whole[i], now[i])
	}
	afresh := func(apart []timeOfShape) ([]float64, error) {
		y, said, err := l.afresh(advice, apart)
		return stored(y, said, whole, now), err
	}
	return field, unseenErrors{stored(l.y, said, whole, now), fair, append(apart, sides...), afresh}, nil
}

// errBeaten says that a correction is no better than what it was compared with.
var errBeaten = errors.New("no better without a correction, or with another one")

// less is what is left of y where so much of it is said.
func less(y, said []float64) []float64 {
	left := make([]float64, len(y))
	for i := range y {
		left[i] = y[i] - said[i]
	}
	return left
}

// afresh is cross-validation in which the core has not seen the held points either, but
// is one of those apart: what the correction should be at every point, and what the
// others say that it is.
func (l *correction) afresh(a *advice, apart []timeOfShape) (y, said []float64, err error) {
	of, fold := make([][]float64, len(apart)), folds(l.points, len(apart))
	for n, core := range apart {
		of[n] = l.over(core)
	}
	smooth, err := l.crossValidate(of)
	if err != nil {
		return nil, nil, err
	}
	for i, n := range fold {
		y = append(y, of[n][i])
	}
	return y, a.mix(smooth, a.crossValidate(l, of)), nil
}

// stored are the errors of a field as it was bent and stored, where y is what it should
// say, said what the others do of each point, whole what all do and now what is left of
// that.
func stored(y, said, whole, now []float64) []float64 {
	logs := make([]float64, len(y))
	for i := range y {
		logs[i] = y[i] - said[i] + whole[i] - now[i]
	}
	return logs
}

// bent is what a prediction at a point becomes by bending and storing the field, where
// others say what the other points do, all what it does itself as well, and now is what is
// left of that. Whatever bending took back of a point's own say is no error of a law that
// has not seen it; what it moved beyond is.
func bent(others, all, now float64) float64 {
	return others + now - min(max(now, min(others, all)), max(others, all))
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
