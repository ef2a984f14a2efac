package fit

import (
	"math"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/stats"
)

// widths learns how large the errors of a corrected law are over two axes: the
// half width, as |log|, of an interval that holds a share of the points. Where
// the errors at head counts and lengths, or rows of products, that were not measured are
// known they have widths of their own.
func (f fieldShape) widths(points []Point, unseen unseenErrors, share float64) *costmodel.Field {
	places := make([][]float64, len(points))
	for i, p := range points {
		places[i] = f.place(f.width, p.Shape)
	}
	g := newGrid(nodesOf(places, []float64{1, 1}), []float64{1, 1}, 1)
	w := f.widthsOver(g, places, unseen.logs, share)
	if f.counts != "" {
		w.Unmeasured = append(w.Unmeasured, f.unmeasured(g, points, places, unseen.on(f.counts), w.Values, share))
	}
	for _, axis := range f.sides {
		logs, untold := unseen.on(axis), f.untoldBetween(axis, g, points, share)
		if !toldApart(logs) && untold == nil {
			continue
		}
		u := f.elsewhere(g, axis, points, places, logs, w.Values, share)
		for i, v := range untold {
			u.Values[i] = besides(u.Values[i], math.Exp(float64(v)*fieldStep))
		}
		w.Unmeasured = append(w.Unmeasured, u)
	}
	return w
}

const (
	// fewestElsewhere is the number of points below which the errors at unmeasured
	// counts have no widths of their own.
	fewestElsewhere = 50
	// Kernels treat head counts that are powers of two and others unlike, by up to
	// a tenth where a query sees few keys and by next to nothing where it sees many.
	// A law that saw powers of two alone cannot know: these are the half widths
	// that make its intervals hold on the others, at shownKeys keys and fewer.
	untoldCausal = 0.085
	untoldFull   = 0.04
	shownKeys    = 2048
	// untoldCount is the same where both kinds were measured, besides what the
	// measured ones say of each other.
	untoldCount = 0.015
	// olderKernels is what kernels of the older kind leave untold of counts and
	// of calls beyond the range, as a share of what the newer ones do.
	olderKernels = 0.5
	// untoldBeyond is by how much a law may be off a doubling beyond the range
	// however exact it is within: long calls are slowed by power and heat that
	// shorter ones do not show.
	untoldBeyond = 0.02
	// mostGrowth bounds what that makes of a law without errors.
	mostGrowth = 50
)

// on fits what points do not tell to the kernels that a device runs. Those with a
// scheduler of their own on the device, which deals tiles to units that stay (sm90
// and sm100 and what follows them), are the less regular ones; an unknown device is
// taken for such. Ampere's and Ada's, and sm120's, which run the same, launch a
// block a tile.
func (f fieldShape) on(dev op.DeviceType) fieldShape {
	switch dev.Sheet.Arch {
	case "sm80", "sm86", "sm87", "sm89", "sm120", "sm121":
		f.untold *= olderKernels
		f.widen *= olderKernels
	}
	return f
}

// growth is by what share of itself a width grows a doubling beyond the range:
// by as much as usual of its kind and, of attention, untoldBeyond, of independent
// causes. Those of products are wide enough without.
func (f fieldShape) growth(points []Point, width *costmodel.Field) float64 {
	if f.counts == "" {
		return f.widen
	}
	far := beyondShare(points, 0.25)
	var edge []float64
	for _, p := range points {
		if far(p) {
			edge = append(edge, math.Exp(width.WidthLog(p.Shape)))
		}
	}
	return min(math.Hypot(1+f.widen, untoldBeyond/stats.Median(edge))-1, mostGrowth)
}

// unmeasured are the widths at head counts that were not measured: elsewhere's, and what
// counts leave untold besides.
func (f fieldShape) unmeasured(g *grid, points []Point, places [][]float64, logs []float64, least costmodel.NodeValues, share float64) costmodel.Unmeasured {
	u := f.elsewhere(g, f.counts, points, places, logs, least, share)
	untold := f.untoldAt(g, points)
	if toldApart(logs) && slices.ContainsFunc(u.Known, func(n float64) bool { return oddPart(n) > 1 }) {
		untold = func(int) float64 { return untoldCount }
	}
	for i, v := range u.Values {
		u.Values[i] = besides(v, untold(i))
	}
	return u
}

// besides is a width at a node, stored as its log, with another that is independent of it.
func besides(width int16, other float64) int16 {
	return int16(math.Round(math.Log(math.Hypot(math.Exp(float64(width)*fieldStep), other)) / fieldStep))
}

// toldApart says whether there are errors enough at held-out places of an axis for widths
// of their own; NaN where there is none.
func toldApart(logs []float64) bool {
	n := 0
	for _, e := range logs {
		if !math.IsNaN(e) {
			n++
		}
	}
	return n >= fewestElsewhere
}

// elsewhere are the widths where an axis was not measured, no smaller than those where it
// was: from the errors that neighbours make of measured places, where there are some.
func (f fieldShape) elsewhere(g *grid, axis string, points []Point, places [][]float64, logs []float64, least costmodel.NodeValues, share float64) costmodel.Unmeasured {
	u := costmodel.Unmeasured{Axis: axis, Known: countsOf(axis, points), Values: slices.Clone(least)}
	if !toldApart(logs) {
		return u
	}
	var at [][]float64
	var errs []float64
	for i, e := range logs {
		if !math.IsNaN(e) {
			at, errs = append(at, places[i]), append(errs, e)
		}
	}
	for i, v := range f.widthsOver(g, at, errs, share).Values {
		u.Values[i] = max(u.Values[i], v)
	}
	return u
}

// untoldAt is what powers of two leave untold of other counts at a node: the more
// keys a query sees, which a window bounds, the less of a call is the scheduling
// of its tiles. Keys are taken as many as queries, as in the tables that the shares
// were read from.
func (f fieldShape) untoldAt(g *grid, points []Point) func(node int) float64 {
	a, _ := blockOf(points[0].Shape)
	lengths := slices.Index(f.width, "q_len")
	return func(node int) float64 {
		keys := math.Exp2(g.at(node)[lengths])
		if a.Window > 0 {
			keys = min(keys, float64(a.Window))
		}
		return f.untold * min(1, shownKeys/keys)
	}
}

// widthsOver is the half width that holds a share of the errors near every node: the local
// mean of the errors, times the local quantile of the errors over that mean, for where
// errors have longer tails than elsewhere the same multiple of their mean holds fewer of
// them. All is scaled so that the share holds over all points (normalised split-conformal
// intervals, Lei et al. 2018; localised ones, Guan 2023).
func (f fieldShape) widthsOver(g *grid, places [][]float64, logs []float64, share float64) *costmodel.Field {
	e := errorsOver{g: g, near: make([]corners, len(places)), errs: make([]float64, len(places))}
	for i, x := range places {
		e.near[i], e.errs[i] = g.around(x), math.Abs(logs[i])
	}
	e.weight = e.smoothed(func(int) float64 { return 1 })
	values := e.means()
	for i, v := range e.quantiles(e.over(values), share) {
		values[i] += v
	}
	ratios := e.over(values)
	slices.Sort(ratios)
	rank := min(len(ratios), int(math.Ceil(share*float64(len(ratios)+1))))
	shift := math.Log(ratios[rank-1])
	for i := range values {
		values[i] += shift
	}
	return quantise(f.tile, 100, f.width, g.axes, values)
}

// errorsOver are the errors of points, |log|, over a lattice.
type errorsOver struct {
	g      *grid
	near   []corners // nodes around each point
	errs   []float64
	weight []float64 // points around each node
}

// priorMean and priorTail are how many points' worth of the overall mean, and of the
// overall distribution about the local one, a node has before its own. On others' tables
// of attention and GEMM with tails of each node's own 47 of 51 bands of sizes had 85 to
// 95 % of the points held out inside the range (45 without), and 24 of 41 of those longer
// than all fitted (19).
const (
	priorMean = 3
	priorTail = 10
)

// smoothed is the sum of something of the points around each node.
func (e *errorsOver) smoothed(of func(point int) float64) []float64 {
	sum := make([]float64, e.g.size)
	for i, c := range e.near {
		v := of(i)
		for k, at := range c.at {
			sum[at] += c.weight[k] * v
		}
	}
	e.g.smooth(sum, make([]float64, e.g.size))
	return sum
}

// means are the logs of the mean error around each node.
func (e *errorsOver) means() []float64 {
	mean := 0.0
	for _, v := range e.errs {
		mean += v / float64(len(e.errs))
	}
	mean = max(mean, leastError)
	means := e.smoothed(func(i int) float64 { return min(e.errs[i], 1) })
	for n, sum := range means {
		means[n] = math.Log((sum + priorMean*mean) / (e.weight[n] + priorMean))
	}
	return means
}

// over are the errors over what a lattice of logs says there.
func (e *errorsOver) over(logs []float64) []float64 {
	ratios := make([]float64, len(e.errs))
	for i, c := range e.near {
		v := 0.0
		for k, at := range c.at {
			v += c.weight[k] * logs[at]
		}
		ratios[i] = e.errs[i] / math.Exp(v)
	}
	return ratios
}

// quantiles are the logs of what a share of the ratios around each node lies below: the
// share above each of some limits, all over the lattice, falls from one limit to the
// next, and the quantile is between the two where it passes.
func (e *errorsOver) quantiles(ratios []float64, share float64) []float64 {
	quantiles, above := make([]float64, e.g.size), make([]float64, e.g.size)
	for i := range above {
		quantiles[i], above[i] = math.NaN(), 1
	}
	last := math.NaN()
	for _, limit := range limitsOf(ratios) {
		beyond, all := func(i int) float64 {
			if ratios[i] > limit {
				return 1
			}
			return 0
		}, 0.0
		for i := range ratios {
			all += beyond(i) / float64(len(ratios))
		}
		for n, sum := range e.smoothed(beyond) {
			now := (sum + priorTail*all) / (e.weight[n] + priorTail)
			if math.IsNaN(quantiles[n]) && now <= 1-share {
				quantiles[n] = math.Log(limit)
				if !math.IsNaN(last) {
					u := (above[n] - (1 - share)) / (above[n] - now)
					quantiles[n] = math.Log(last) + u*(math.Log(limit)-math.Log(last))
				}
			}
			above[n] = now
		}
		last = limit
	}
	for n, q := range quantiles {
		if math.IsNaN(q) {
			quantiles[n] = math.Log(last)
		}
	}
	return quantiles
}

// limitsOf are limits between which local quantiles lie: quantiles of all ratios.
func limitsOf(ratios []float64) []float64 {
	const least, most, steps = 0.6, 0.995, 24
	sorted := slices.Sorted(slices.Values(ratios))
	var limits []float64
	for k := range steps {
		q := least + (most-least)*float64(k)/(steps-1)
		limits = append(limits, max(sorted[min(len(sorted)-1, int(q*float64(len(sorted))))], leastError))
	}
	return slices.Compact(limits)
}

// countsOf are the distinct values of points on an axis, rising.
func countsOf(axis string, points []Point) []float64 {
	var all []float64
	for _, p := range points {
		all = append(all, costmodel.AxisOf(axis, p.Shape))
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// fewestCounts is how many counts it takes to hold inner ones out.
const fewestCounts = 4

// unseenCounts are the errors of the corrected law at inner head counts, each
// predicted from its neighbours. What a library does at a count shows in no error
// at the counts beside it. The trees' share at other counts is settled by them.
func (l *correction) unseenCounts(a *advice) ([]errorsApart, error) {
	known, smooth, trees, err := l.apartOn(l.shape.counts, a)
	if known == nil || err != nil {
		return nil, err
	}
	a.axis, a.known, a.apart = l.shape.counts, known, a.settle(l.y, smooth, trees)
	return []errorsApart{{l.shape.counts, l.off(smooth, trees, a.apart)}}, nil
}

// unseenSides are the same at inner rows, columns and inner lengths of a product, and lengths
// of attention, with the trees' share that the law has everywhere. Without a third of their
// lengths six of others' tables of attention had 0.76 to 0.89 of the points of those in
// intervals by all errors, and have 0.88 to 0.95 in ones by these. Errors at points that others of as many rows
// surround tell little of other rows, which fill other parts of a tile and of a wave: of
// others' seven tables of products without six of their 22 numbers of rows, intervals held 0.74
// and 0.76 of the points of those by all errors, and hold 0.87 by these. Powers of two alone
// fill whole tiles and tell less of 2^i + 1 rows: 0.63 and 0.69. Where more places were
// measured than there may be nodes, any others have some nearby.
func (l *correction) unseenSides(a *advice) ([]errorsApart, error) {
	var all []errorsApart
	for _, axis := range l.shape.sides {
		if len(countsOf(axis, l.points)) > mostNodesAnAxis {
			continue
		}
		known, smooth, trees, err := l.apartOn(axis, a)
		if err != nil {
			return nil, err
		}
		if known != nil {
			all = append(all, errorsApart{axis, l.off(smooth, trees, a.share)})
		}
	}
	return all, nil
}

// off are the errors of a mixture of a field and trees; NaN where the field says nothing.
func (l *correction) off(smooth, trees []float64, share float64) []float64 {
	logs := make([]float64, len(l.y))
	for i := range logs {
		logs[i] = l.y[i] - (1-share)*smooth[i] - share*trees[i]
	}
	return logs
}

// apartOn predicts the correction at inner places of an axis from the points elsewhere on
// it, every second place held out at a time: the places that were measured, nil where
// there are too few, and what fields and trees say there.
func (l *correction) apartOn(axis string, a *advice) (known, smooth, trees []float64, err error) {
	if axis == "" {
		return nil, nil, nil, nil
	}
	if known = countsOf(axis, l.points); len(known) < fewestCounts {
		return nil, nil, nil, nil
	}
	at := make([]int, len(l.points))
	for i, p := range l.points {
		at[i], _ = slices.BinarySearch(known, costmodel.AxisOf(axis, p.Shape))
	}
	held := func(i, turn int) bool { return at[i] > 0 && at[i] < len(known)-1 && at[i]%2 == turn }
	smooth, trees = make([]float64, len(l.points)), make([]float64, len(l.points))
	for i := range smooth {
		smooth[i] = math.NaN()
	}
	for turn := range 2 {
		now := func(i int) bool { return held(i, turn) }
		if err := l.without(now, l.y, smooth); err != nil {
			return nil, nil, nil, err
		}
		for i, v := range a.without(l, now, l.y) {
			if now(i) {
				trees[i] = v
			}
		}
	}
	l.k.spreadOut(l.alpha)
	return known, smooth, trees, nil
}
