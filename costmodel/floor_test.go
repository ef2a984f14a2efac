package costmodel

import (
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// drawCorrection is a correction with a few nodes an axis, as steep as any learnt one.
func drawCorrection(t *rapid.T, tile int, axes ...string) *Field {
	f := &Field{Tile: tile, Decay: rapid.Float64Range(0.1, 5).Draw(t, "decay"), Step: 0.01}
	size := 1
	for _, name := range axes {
		a := FieldAxis{Name: name}
		x := math.Exp2(rapid.Float64Range(0, 6).Draw(t, "first "+name))
		for range rapid.IntRange(1, 5).Draw(t, "nodes of "+name) {
			a.Nodes = append(a.Nodes, x)
			x *= math.Exp2(rapid.Float64Range(0.2, 3).Draw(t, "step of "+name))
		}
		size *= len(a.Nodes)
		f.Axes = append(f.Axes, a)
	}
	for range size {
		f.Values = append(f.Values, int16(rapid.IntRange(-60, 60).Draw(t, "value")))
	}
	return f
}

// floorShape is a shape on the axes of the fields below.
func floorShape(q, kv, group int) op.Shape {
	return op.AttnFwd{Attention: op.Attention{Mask: op.Full, QLen: units.Tokens(q), KVLen: units.Tokens(kv), QHeads: 8 * group, KVHeads: 8, HeadDim: 128, DType: op.BF16}}
}

// No shape of a box has a correction below the floor.
func TestLeastIsAFloor(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := drawCorrection(t, 128, "q_len", "kv_len", "gqa")
		group := rapid.IntRange(1, 8).Draw(t, "group")
		lo, hi := rapid.IntRange(1, 5000).Draw(t, "lo"), rapid.IntRange(1, 5000).Draw(t, "hi")
		lo, hi = min(lo, hi), max(lo, hi)
		floor := f.Least(floorShape(lo, lo, group), floorShape(hi, hi, group))
		for range 20 {
			q, kv := rapid.IntRange(lo, hi).Draw(t, "q"), rapid.IntRange(lo, hi).Draw(t, "kv")
			if got := f.Log(floorShape(q, kv, group)); got < floor-1e-9 {
				t.Fatalf("%d x %d: %v is below the floor %v of %d to %d", q, kv, got, floor, lo, hi)
			}
		}
	})
}

// Of a box among the nodes the floor is no lower than it must be: a node or an
// end of the box has it.
func TestLeastIsReached(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := &Field{Decay: 1, Step: 0.01}
		box := make([][]int, 2) // of each axis the ends of the box, and the nodes between them
		size := 1
		for i, name := range []string{"q_len", "kv_len"} {
			node, nodes := rapid.IntRange(1, 64).Draw(t, "first "+name), []float64(nil)
			for range rapid.IntRange(2, 5).Draw(t, "nodes of "+name) {
				nodes = append(nodes, float64(node))
				node += rapid.IntRange(1, 2000).Draw(t, "step of "+name)
			}
			size *= len(nodes)
			f.Axes = append(f.Axes, FieldAxis{Name: name, Nodes: nodes})

			first, last := int(nodes[0]), int(nodes[len(nodes)-1])
			lo := rapid.IntRange(first, last).Draw(t, "lo of "+name)
			hi := rapid.IntRange(lo, last).Draw(t, "hi of "+name)
			box[i] = []int{lo, hi}
			for _, x := range nodes {
				if lo < int(x) && int(x) < hi {
					box[i] = append(box[i], int(x))
				}
			}
		}
		for range size {
			f.Values = append(f.Values, int16(rapid.IntRange(-60, 60).Draw(t, "value")))
		}
		least := math.Inf(1)
		for _, q := range box[0] {
			for _, kv := range box[1] {
				least = min(least, f.Log(floorShape(q, kv, 1)))
			}
		}
		lo, hi := floorShape(box[0][0], box[1][0], 1), floorShape(box[0][1], box[1][1], 1)
		if floor := f.Least(lo, hi); math.Abs(floor-least) > 1e-9 {
			t.Fatalf("floor %v, least %v of %v", floor, least, box)
		}
	})
}
