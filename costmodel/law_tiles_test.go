package costmodel

import (
	"math"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// fallingTiles is a law whose correction falls from the first tile of queries to the second, and of
// keys where it has an axis of them, by less than the core rises up to the end of these.
func fallingTiles(t *testing.T, axes ...string) *Law {
	core := exampleCore()
	core.SplitKV = false
	f := &Field{Tile: core.TileRows, Decay: 3, Step: 0.001, Values: NodeValues{100}}
	for _, name := range axes {
		f.Axes = append(f.Axes, FieldAxis{name, []float64{16, 128, 256, 4096}})
		var values NodeValues
		for _, v := range f.Values {
			fall := int16(60 / len(axes))
			values = append(values, v, v, v-fall, v-fall)
		}
		f.Values = values
	}
	law := &Law{Op: op.KindAttnFwd, Variant: block(1, 1, 1, 1).Variant(), Device: "gpu", Attention: &core, Scale: 1.3, Correction: f, Range: wide(op.KindAttnFwd), Spread: tenPercent}
	if err := law.validate(); err != nil {
		t.Fatal(err)
	}
	return law
}

// One more token never takes less time, though the correction falls at a tile's first token and
// the core, which packs query heads into tiles, hardly rises there; whole tiles take what core and
// correction say.
func TestOneMoreTokenTakesNoLess(t *testing.T) {
	for _, axes := range [][]string{{"q_len"}, {"q_len", "kv_len"}} {
		law := fallingTiles(t, axes...)
		plain := func(s op.AttnFwd) units.Seconds {
			return units.Seconds(1.3 * law.Attention.Seconds(s.Attention, false) * math.Exp(law.Correction.Log(s)))
		}
		lifted := 0
		see := func(more, s op.AttnFwd) {
			t.Helper()
			took := law.Seconds(more)
			if took < law.Seconds(s)*(1-1e-9) {
				t.Errorf("%v: %d queries and %d keys take %v, %d and %d %v", axes, more.QLen, more.KVLen, took, s.QLen, s.KVLen, law.Seconds(s))
			}
			if took > plain(more) {
				lifted++
			}
			if whole := more.QLen%128 == 0 && more.KVLen%128 == 0; took < plain(more) || whole && took != plain(more) {
				t.Errorf("%v: %d queries and %d keys take %v, by core and correction %v", axes, more.QLen, more.KVLen, took, plain(more))
			}
		}
		for _, heads := range []int{1, 8, 32} {
			for q := 1; q < 900 && len(axes) == 1; q++ { // squares
				see(block(q+1, 4, heads, 1), block(q, 4, heads, 1))
			}
			for q := 100; q < 300; q += 7 {
				for kv := q; kv < 400; kv++ {
					x := block(q, 4, heads, 1)
					x.Mask = op.Full
					x.KVLen = units.Tokens(kv)
					more := x
					more.KVLen++
					see(more, x)
					if more = x; len(axes) > 1 && q < kv || q+1 < kv { // a square grows as one where keys have no axis
						more.QLen++
						see(more, x)
					}
				}
			}
		}
		if lifted < 100 {
			t.Errorf("%v: only %d shapes take more than core and correction say", axes, lifted)
		}
		if pointer := block(130, 4, 8, 1); law.Seconds(&pointer) != law.Seconds(pointer) {
			t.Errorf("%v by pointer, %v", law.Seconds(&pointer), law.Seconds(pointer))
		}
	}
}
