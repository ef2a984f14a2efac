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

// No shape of a box has a correction below the floor, and in some box one
// touches it.
func TestLeastIsAFloor(t *testing.T) {
	touched := false
	rapid.Check(t, func(t *rapid.T) {
		f := drawCorrection(t, 128, "q_len", "kv_len", "gqa")
		group := rapid.IntRange(1, 8).Draw(t, "group")
		lo, hi := rapid.IntRange(1, 5000).Draw(t, "lo"), rapid.IntRange(1, 5000).Draw(t, "hi")
		lo, hi = min(lo, hi), max(lo, hi)
		at := func(q, kv int) op.Shape {
			return op.AttnFwd{Attention: op.Attention{Mask: op.Full, QLen: units.Tokens(q), KVLen: units.Tokens(kv), QHeads: 8 * group, KVHeads: 8, HeadDim: 128, DType: op.BF16}}
		}
		floor := f.Least(at(lo, lo), at(hi, hi))
		for range 20 {
			q, kv := rapid.IntRange(lo, hi).Draw(t, "q"), rapid.IntRange(lo, hi).Draw(t, "kv")
			got := f.Log(at(q, kv))
			if got < floor-1e-9 {
				t.Fatalf("%d x %d: %v is below the floor %v of %d to %d", q, kv, got, floor, lo, hi)
			}
			touched = touched || got < floor+1e-6
		}
	})
	if !touched {
		t.Error("no shape comes near its floor, so the floor says nothing")
	}
}
