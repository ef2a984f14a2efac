package fit

import (
	"math"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// mayBeAlike is by how much another structure's loss may be above the least for its tiles to
// be taken for possible: that of two points that come from 15 % off to exact.
const mayBeAlike = 2 * worthwhile

// alikeCores are cores with other tiles that tell the points about as well as the one that was
// chosen does: of lengths that are whole tiles of 64 and of 128 rows the times are the same
// but for what grows with the number of tiles.
func alikeCores(dev op.DeviceType, backward bool, points []Point, chosen *costmodel.AttentionCore) (own timeOfShape, others []timeOfShape) {
	s := &coreSearch{dev: dev, backward: backward, prior: chosen, points: wellSpread(points, coreTrial)}
	type tiles struct {
		core costmodel.AttentionCore
		loss float64
	}
	fit := func(rows, keys int) tiles {
		c := *chosen
		c.TileRows, c.TileKeys = rows, keys
		f := newCoreFit(s.start(c), backward, false, s.points)
		loss := f.solve(trialRounds)
		return tiles{f.core, loss}
	}
	first := fit(chosen.TileRows, chosen.TileKeys)
	tried, least := []tiles{first}, first.loss
	try := func(rows, keys int) bool {
		t := fit(rows, keys)
		tried, least = append(tried, t), min(least, t.loss)
		return t.loss <= least+mayBeAlike
	}
	var rows, keys []int
	for _, n := range []int{64, 128, 192, 256} {
		if n != chosen.TileRows && try(n, chosen.TileKeys) {
			rows = append(rows, n)
		}
	}
	for _, n := range []int{64, 96, 128, 192, 256} {
		if n != chosen.TileKeys && try(chosen.TileRows, n) {
			keys = append(keys, n)
		}
	}
	for _, r := range rows {
		for _, k := range keys {
			try(r, k)
		}
	}
	timeOf := func(c costmodel.AttentionCore) timeOfShape {
		return func(s op.Shape) float64 {
			a, _ := blockOf(s)
			return c.Seconds(a, backward)
		}
	}
	for _, t := range tried[1:] {
		if t.loss <= least+mayBeAlike {
			others = append(others, timeOf(t.core))
		}
	}
	return timeOf(*chosen), others
}

// untoldBetween are the widths, as a field over the lattice holds them, of what is not told of
// lengths between measured ones because cores of other tiles tell those as well; nil where
// nothing is. A law that took another core would learn another correction at what was
// measured: cores differ between by what their ratio differs from that of its neighbours.
// Of simulated kernels of four GPUs, measured at powers of two, intervals without these held
// 0.50 to 0.76 of the points between, and hold 0.84 to 0.96.
func (f fieldShape) untoldBetween(axis string, g *grid, points []Point, share float64) costmodel.NodeValues {
	known := countsOf(axis, points)
	if f.alike == nil || len(known) > mostNodesAnAxis {
		return nil
	}
	own, others := f.alike()
	if len(others) == 0 {
		return nil
	}
	b := betweenLengths{f, axis, known}
	var places [][]float64
	var logs []float64
	most := 0.0
	for i, p := range points {
		_, u := math.Modf(float64(i+1) * evenShares[0])
		before, at, behind, ok := b.around(p.Shape, u)
		if !ok {
			continue
		}
		way, off := b.way(before, at, behind), 0.0
		for _, other := range others {
			over := func(s op.Shape) float64 { return math.Log(other(s) / own(s)) }
			off = max(off, math.Abs(over(at)-(1-way)*over(before)-way*over(behind)))
		}
		places, logs = append(places, f.place(f.width, at)), append(logs, off)
		most = max(most, off)
	}
	if most < fieldStep {
		return nil
	}
	return f.widthsOver(g, places, logs, share).Values
}

// betweenLengths finds shapes between measured lengths.
type betweenLengths struct {
	f     fieldShape
	axis  string
	known []float64 // measured, rising
}

// around is a measured shape, the same at a share of the way to the next measured length, and
// at that; false where there is none.
func (b betweenLengths) around(s op.Shape, u float64) (before, at, behind op.Shape, ok bool) {
	n, _ := slices.BinarySearch(b.known, costmodel.AxisOf(b.axis, s))
	if n+1 >= len(b.known) {
		return nil, nil, nil, false
	}
	from, to := b.known[n], b.known[n+1]
	v := math.Round(from * math.Pow(to/from, u))
	if v <= from || v >= to {
		return nil, nil, nil, false
	}
	at, behind = b.of(s, v), b.of(s, to)
	a, isBlock := blockOf(behind)
	return s, at, behind, isBlock && !(a.Mask != op.Full && a.QLen > a.KVLen)
}

// of is a shape of another length, of queries and keys where these go together.
func (b betweenLengths) of(s op.Shape, length float64) op.Shape {
	set := func(a op.Attention) op.Attention {
		if b.axis == "q_len" {
			a.QLen = units.Tokens(length)
		}
		if b.axis == "kv_len" || !slices.Contains(b.f.sides, "kv_len") {
			a.KVLen = units.Tokens(length)
		}
		return a
	}
	switch v := s.(type) {
	case op.AttnFwd:
		return op.AttnFwd{Attention: set(v.Attention)}
	case op.AttnBwd:
		return op.AttnBwd{Attention: set(v.Attention)}
	}
	return s
}

// way is how far a shape lies on the way from one to another, where a correction is looked up.
func (b betweenLengths) way(before, at, behind op.Shape) float64 {
	x := func(s op.Shape) float64 { return b.f.place([]string{b.axis}, s)[0] }
	if x(behind) == x(before) {
		return 0
	}
	return (x(at) - x(before)) / (x(behind) - x(before))
}
