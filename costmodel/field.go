package costmodel

import (
	"fmt"
	"math"
	"slices"
	"sort"

	"github.com/evenkeel/evenkeel/costmodel/op"
)

// Field is a smooth correction of a law over the logarithms of a shape's axes: the time
// of the physical core is multiplied by exp of the field's value at the shape. Between
// the nodes of a lattice the field is multilinear. Beyond the ends of an axis it keeps
// the value at the edge and decays towards 0 with every octave, so that far outside the
// measured shapes the core alone decides.
type Field struct {
	Axes []FieldAxis
	// Tile is a tile's length in tokens. Lengths above it on axes that are processed in
	// tiles (see InTiles) are rounded up to whole tiles, as the core does it, so that the
	// correction never falls where the core stays the same. 0 is no rounding.
	Tile int
	// Decay is the number of octaves beyond the lattice over which the correction
	// falls to 1/e of its value at the edge.
	Decay  float64
	Step   float64    // log ratio that one count of Values stands for
	Values NodeValues // at all nodes, the last axis fastest
	// Unmeasured replace Values at counts (of heads, say) that were never measured. Only
	// a field of interval widths has them (Law.Width); a correction has none.
	Unmeasured []Unmeasured
	// Switches list the stretches where the corrected time may fall as an axis rises.
	// At all other nodes it is monotone in tokens, heads and batch, and nearly so between them,
	// where a step of the core may lie between the places that the fit looks at: of pairs of
	// shapes amid the 61 tables of others' attention on no axis more than one in 3,000 falls
	// by more than half a per cent, and none by more than 4.
	Switches []Switch
}

// Unmeasured holds a field's values for shapes whose count on an axis was never measured:
// how far off a law is there cannot be told from how far off it is at the counts that it
// was fitted to. Of lengths and of a product's sides these are places between measured ones:
// beyond them all an interval widens by what a law says of that.
type Unmeasured struct {
	Axis   string
	Known  []float64  // the counts that were measured, rising
	Values NodeValues // of the field's nodes, elsewhere
}

// leavesOut says whether a shape's count on the axis was not measured.
func (u *Unmeasured) leavesOut(s op.Shape) bool {
	x := AxisOf(u.Axis, s)
	i := sort.SearchFloat64s(u.Known, x)
	if i < len(u.Known) && u.Known[i] == x {
		return false
	}
	beyond := i == 0 || i == len(u.Known)
	return !beyond || !InTiles(u.Axis) && s.Kind() != op.KindGEMM
}

// Switch is a stretch of an axis within which a library changes to a faster kernel for at
// least some shapes. There a law may predict less time for more work.
type Switch struct {
	Axis string  `json:"axis"`
	From float64 `json:"from"`
	To   float64 `json:"to"`
	Fall float64 `json:"fall"` // at most, as log ratio
	// Share is the part of the lattice's lines along the axis on which the time falls there,
	// 0 to 1; 0 where that is not known.
	Share float64 `json:"share,omitzero"`
}

// FieldAxis is one axis of a lattice with its nodes, rising.
type FieldAxis struct {
	Name  string    `json:"axis"`
	Nodes []float64 `json:"nodes"`
}

// maxFieldAxes keeps an evaluation short: it looks at two nodes an axis.
const maxFieldAxes = 4

// maxFieldLog bounds what a field says, so that exp of it stays finite.
const maxFieldLog = 40

// Log is the logarithm of the correction at a shape. It does not allocate.
func (f *Field) Log(s op.Shape) float64 {
	if f == nil {
		return 0
	}
	return f.logOf(f.Values, s)
}

// WidthLog is Log of a field of widths, which tells measured counts from others. Where those of
// several axes were not measured, each adds to the square of the width what it alone would.
func (f *Field) WidthLog(s op.Shape) float64 {
	apart, last := 0, 0
	for i := range f.Unmeasured {
		if f.Unmeasured[i].leavesOut(s) {
			apart, last = apart+1, i
		}
	}
	switch apart {
	case 0:
		return f.logOf(f.Values, s)
	case 1:
		return f.logOf(f.Unmeasured[last].Values, s)
	}
	known := math.Exp(2 * f.logOf(f.Values, s))
	sum := known
	for i := range f.Unmeasured {
		if u := &f.Unmeasured[i]; u.leavesOut(s) {
			sum += max(0, math.Exp(2*f.logOf(u.Values, s))-known)
		}
	}
	return math.Log(sum) / 2
}

func (f *Field) logOf(values NodeValues, s op.Shape) float64 {
	var x [maxFieldAxes]float64
	for i := range f.Axes {
		x[i] = f.coord(i, s)
	}
	return f.logAt(values, &x)
}

// attentionLog is Log of attention, of which no shape has to be made.
func (f *Field) attentionLog(a *op.Attention) float64 {
	var x [maxFieldAxes]float64
	for i := range f.Axes {
		x[i] = f.inTiles(i, attentionAxis(f.Axes[i].Name, a))
	}
	return f.logAt(f.Values, &x)
}

// logAt is the logarithm at a place, of values at the nodes.
func (f *Field) logAt(values NodeValues, x *[maxFieldAxes]float64) float64 {
	var place [maxFieldAxes]cell
	beyond := 0.0
	for i := range f.Axes {
		var out float64
		place[i], out = f.Axes[i].locate(x[i])
		beyond = max(beyond, out)
	}
	v := f.blendOf(values, place[:len(f.Axes)], 0, 0)
	if beyond > 0 {
		v *= math.Exp(-beyond / f.Decay)
	}
	return v * f.Step
}

// cell is the node below a coordinate and the way to the next, 0 to 1.
type cell struct {
	node int
	way  float64
}

// locate finds a coordinate among the nodes, and how many octaves it lies
// beyond them.
func (a *FieldAxis) locate(x float64) (c cell, beyond float64) {
	last := len(a.Nodes) - 1
	switch {
	case x <= a.Nodes[0]:
		return cell{0, 0}, math.Log2(a.Nodes[0] / x)
	case x >= a.Nodes[last]:
		return cell{last, 0}, math.Log2(x / a.Nodes[last])
	}
	i := sort.SearchFloat64s(a.Nodes, x)
	if a.Nodes[i] == x {
		return cell{i, 0}, 0
	}
	lo, hi := a.Nodes[i-1], a.Nodes[i]
	return cell{i - 1, math.Log2(x/lo) / math.Log2(hi/lo)}, 0
}

// blend interpolates over the axes from `axis` on, with the nodes of the axes
// before it fixed at index `base`.
func (f *Field) blend(place []cell, axis, base int) float64 {
	return f.blendOf(f.Values, place, axis, base)
}

func (f *Field) blendOf(values NodeValues, place []cell, axis, base int) float64 {
	if axis == len(place) {
		return float64(values[base])
	}
	c, n := place[axis], len(f.Axes[axis].Nodes)
	v := f.blendOf(values, place, axis+1, base*n+c.node)
	if c.way > 0 {
		v += c.way * (f.blendOf(values, place, axis+1, base*n+c.node+1) - v)
	}
	return v
}

// coord is the place of a shape on an axis.
func (f *Field) coord(axis int, s op.Shape) float64 {
	return f.inTiles(axis, AxisOf(f.Axes[axis].Name, s))
}

// inTiles is a value on an axis, rounded up to whole tiles where it is processed in these.
func (f *Field) inTiles(axis int, x float64) float64 {
	if tile := float64(f.Tile); tile > 0 && x > tile && InTiles(f.Axes[axis].Name) {
		x = math.Ceil(x/tile) * tile
	}
	return x
}

// InTiles says whether the values of an axis are processed in tiles: sequence lengths,
// and the rows of a GEMM.
func InTiles(axis string) bool { return axis == "q_len" || axis == "kv_len" || axis == "m" }

// AxisOf returns the value of a named axis of a shape. Of attention and GEMM it is one of
// the coordinates, or one derived from them: of attention, blocks (query heads times
// batch), tokens (queries times batch) and gqa (query heads per KV head), and of a GEMM
// weights (n times k) and tiles (64 x 64 tiles of the result). Other ops have VolumeAxis
// alone. It is NaN for an unknown name.
func AxisOf(name string, s op.Shape) float64 {
	switch v := s.(type) {
	case op.AttnFwd:
		return attentionAxis(name, &v.Attention)
	case *op.AttnFwd:
		return attentionAxis(name, &v.Attention)
	case op.AttnBwd:
		return attentionAxis(name, &v.Attention)
	case *op.AttnBwd:
		return attentionAxis(name, &v.Attention)
	case op.GEMM:
		switch name {
		case "m":
			return float64(v.M)
		case "n":
			return float64(v.N)
		case "k":
			return float64(v.K)
		case "tiles":
			return math.Ceil(float64(v.M)/64) * math.Ceil(float64(v.N)/64)
		case "weights":
			return float64(v.N) * float64(v.K)
		}
	default:
		if name == VolumeAxis {
			return float64(op.Volume(s))
		}
	}
	return math.NaN()
}

// VolumeAxis is the axis of ops whose time follows one size: op.Volume, in bytes.
const VolumeAxis = "volume_bytes"

func attentionAxis(name string, a *op.Attention) float64 {
	switch name {
	case "q_len":
		return float64(a.QLen)
	case "kv_len":
		return float64(a.KVLen)
	case "q_heads":
		return float64(a.QHeads)
	case "kv_heads":
		return float64(a.KVHeads)
	case "batch":
		return float64(a.Blocks())
	case "blocks":
		return float64(a.Blocks() * a.QHeads)
	case "tokens":
		return float64(a.Blocks()) * float64(a.QLen)
	case "gqa":
		return float64(a.QHeads) / float64(a.KVHeads)
	}
	return math.NaN()
}

func (f *Field) validate(example op.Shape) error {
	if len(f.Axes) < 1 || len(f.Axes) > maxFieldAxes {
		return fmt.Errorf("axes: %d: want 1 to %d", len(f.Axes), maxFieldAxes)
	}
	size := 1
	for i, a := range f.Axes {
		if math.IsNaN(AxisOf(a.Name, example)) {
			return fmt.Errorf("axes[%d].axis: %q: %s has no such axis", i, a.Name, example.Kind())
		}
		if slices.ContainsFunc(f.Axes[:i], func(b FieldAxis) bool { return b.Name == a.Name }) {
			return fmt.Errorf("axes[%d].axis: %q: listed twice", i, a.Name)
		}
		for j, x := range a.Nodes {
			if !(x > 0) || math.IsInf(x, 0) || j > 0 && x <= a.Nodes[j-1] {
				return fmt.Errorf("axes[%d].nodes[%d]: %v: want positive numbers that rise", i, j, x)
			}
		}
		size *= len(a.Nodes)
	}
	for i, w := range f.Switches {
		if !(w.From > 0 && w.To > w.From && w.Fall > 0 && w.Fall < 100) {
			return fmt.Errorf("switches[%d]: from %v to %v, fall %v: want positive numbers that rise", i, w.From, w.To, w.Fall)
		}
		if !(w.Share >= 0 && w.Share <= 1) {
			return fmt.Errorf("switches[%d].share: %v: want 0 to 1", i, w.Share)
		}
	}
	largest := f.Values.largest()
	for _, u := range f.Unmeasured {
		largest = max(largest, u.Values.largest())
	}
	switch {
	case largest*f.Step > maxFieldLog:
		return fmt.Errorf("values: %v counts of step %v: want a log ratio of at most %v", largest, f.Step, maxFieldLog)
	case size == 0 || size != len(f.Values):
		return fmt.Errorf("values: %d: the axes have %d nodes", len(f.Values), size)
	case !(f.Step > 0 && f.Step < 1) || !(f.Decay > 0 && f.Decay <= 100) || f.Tile < 0:
		return fmt.Errorf("step: %v, decay_octaves %v, tile_tokens %d: want 0 < step < 1, 0 < decay <= 100, tile >= 0", f.Step, f.Decay, f.Tile)
	}
	seen := map[string]bool{}
	for i := range f.Unmeasured {
		u := &f.Unmeasured[i]
		if err := u.validate(example, size); err != nil {
			return fmt.Errorf("unmeasured[%d].%w", i, err)
		}
		if seen[u.Axis] {
			return fmt.Errorf("unmeasured[%d].axis: %q: listed twice", i, u.Axis)
		}
		seen[u.Axis] = true
	}
	return nil
}

func (u *Unmeasured) validate(example op.Shape, size int) error {
	if math.IsNaN(AxisOf(u.Axis, example)) {
		return fmt.Errorf("axis: %q: %s has no such axis", u.Axis, example.Kind())
	}
	for i, x := range u.Known {
		if !(x > 0) || math.IsInf(x, 0) || i > 0 && x <= u.Known[i-1] {
			return fmt.Errorf("known[%d]: %v: want positive numbers that rise", i, x)
		}
	}
	if size != len(u.Values) {
		return fmt.Errorf("values: %d: the axes have %d nodes", len(u.Values), size)
	}
	return nil
}

// NodeValues are the values at the nodes of a lattice, as counts of Field.Step.
type NodeValues []int16

// largest is the largest count without its sign.
func (v NodeValues) largest() float64 {
	most := 0.0
	for _, x := range v {
		most = max(most, math.Abs(float64(x)))
	}
	return most
}
