package costmodel

import (
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// exampleCore has the coefficients of a kernel on a large GPU.
func exampleCore() AttentionCore {
	return AttentionCore{
		Parallel: 132, TileRows: 128, TileKeys: 96, Packed: true, SplitKV: true,
		Tile: 1.2e-6, Task: 2e-6, Alone: 1.1, Start: 8e-7, Tail: 0.4, Launch: 1e-5, Merge: 4e-6, Overlap: 8,
		Byte: 3.1e-13, Cached: 0.5, Cache: 2.4e7, Traffic: 1.2, Stream: 0.6, Memory: 1.7,
		SideLaunch: 5e-7, SideKV: 2, SideQ: 0.1, SideToken: 1.2e-7, Slow: 0.18, SlowAt: 4.5e-3, SlowNorm: 3,
	}
}

// drawCore draws a core from all that Validate lets through.
func drawCore(t *rapid.T) *AttentionCore {
	c := exampleCore()
	c.Parallel = rapid.IntRange(1, 300).Draw(t, "parallel")
	c.TileRows = rapid.SampledFrom([]int{16, 64, 128, 192, 256}).Draw(t, "rows")
	c.TileKeys = rapid.SampledFrom([]int{16, 64, 96, 128, 176, 256}).Draw(t, "keys")
	c.Packed, c.SplitKV, c.Waves = rapid.Bool().Draw(t, "packed"), rapid.Bool().Draw(t, "split"), rapid.Bool().Draw(t, "waves")
	for _, k := range c.Coefficients() {
		*k.Value = k.Least + (*k.Value-k.Least)*math.Exp(rapid.Float64Range(-4, 4).Draw(t, k.Name))
	}
	c.Cached, c.Slow = min(c.Cached, 1), min(c.Slow, 1)
	return &c
}

func drawAttention(t *rapid.T) op.Attention {
	length := func(name string) units.Tokens {
		return units.Tokens(math.Exp2(rapid.Float64Range(0, 17).Draw(t, name)))
	}
	kv := rapid.IntRange(1, 16).Draw(t, "kv_heads")
	a := op.Attention{Mask: op.Full, QLen: length("q_len"), KVLen: length("kv_len"), QHeads: kv * rapid.IntRange(1, 12).Draw(t, "group"), KVHeads: kv, HeadDim: 128, DType: op.BF16}
	if b := rapid.IntRange(1, 64).Draw(t, "batch"); b > 1 {
		a.Batch = b
	}
	if rapid.Bool().Draw(t, "diag") {
		a.Mask, a.KVLen = op.Diag, a.QLen
		if rapid.Bool().Draw(t, "windowed") {
			a.Window = length("window")
		}
	}
	return a
}

// More tokens, heads or blocks never take less time, unless the number of
// splits changes.
func TestAttentionCoreIsMonotone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c, a := drawCore(t), drawAttention(t)
		if err := c.Validate(); err != nil {
			t.Fatal(err)
		}
		backward := rapid.Bool().Draw(t, "backward")
		more := units.Tokens(rapid.IntRange(1, 300).Draw(t, "more"))
		bigger := map[string]func(*op.Attention){
			"heads": func(a *op.Attention) {
				if !c.Packed || backward || a.Mask == op.Full { // see Seconds
					a.QHeads += a.KVHeads
				}
			},
			"kv heads": func(a *op.Attention) { a.QHeads, a.KVHeads = a.QHeads/a.KVHeads*(a.KVHeads+1), a.KVHeads+1 },
			"batch":    func(a *op.Attention) { a.Batch = a.Blocks() + 1 },
			"queries": func(a *op.Attention) {
				a.QLen += more
				if a.Mask == op.Diag {
					a.KVLen = a.QLen
				}
			},
			"keys": func(a *op.Attention) {
				if a.Mask == op.Full {
					a.KVLen += more
				}
			},
		}
		for name, grow := range bigger {
			b := a
			grow(&b)
			less, greater := c.Seconds(a, backward), c.Seconds(b, backward)
			if c.Geometry(a, backward).Split == c.Geometry(b, backward).Split && greater < less*(1-1e-12) || !(less > 0) || math.IsInf(greater, 0) {
				t.Fatalf("more %s: %v s, then %v s: %+v", name, less, greater, a)
			}
		}
	})
}

// Norms that other coefficients left change nothing, to the bit.
func TestAttentionCoreAtWithIsAt(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := drawCore(t)
		g := c.Geometry(drawAttention(t), false)
		var left AttentionNorms
		drawCore(t).AtWith(&g, &left)
		if got, want := c.AtWith(&g, &left), c.At(g); got != want {
			t.Fatalf("%v after another core, %v before", got, want)
		}
		for _, k := range c.Coefficients() {
			was, n := *k.Value, left
			*k.Value *= 1.001
			if got, want := c.AtWith(&g, &n), c.At(g); got != want {
				t.Fatalf("%s moved: %v, want %v", k.Name, got, want)
			}
			*k.Value = was
		}
	})
}

// The closed forms count what a loop over the tasks counts.
func TestAttentionGeometryCountsTiles(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c, a := drawCore(t), drawAttention(t)
		a.QLen = min(a.QLen, 4000)
		if a.Mask == op.Diag {
			a.KVLen = a.QLen
		}
		c.SplitKV, c.Waves = false, false
		group, heads := 1, a.QHeads
		if c.Packed {
			group, heads = a.QHeads/a.KVHeads, a.KVHeads
		}
		tiles, longest, tasks := 0, 0, 0
		for first := 0; first < int(a.QLen)*group; first += c.TileRows {
			last := min(first+c.TileRows, int(a.QLen)*group) - 1 // packed rows
			begin, end := 0, int(a.KVLen)                        // keys
			if a.Mask == op.Diag {
				end = last/group + 1
				if a.Window > 0 {
					begin = max(0, first/group-int(a.Window)+1)
				}
			}
			steps := (end+c.TileKeys-1)/c.TileKeys - begin/c.TileKeys
			tiles, longest, tasks = tiles+steps, max(longest, steps), tasks+1
		}
		g := c.Geometry(a, false)
		units := float64(c.Parallel)
		if want := float64(tiles*heads*a.Blocks()) / units; math.Abs(g.Tiles-want) > 1e-9*want {
			t.Fatalf("%v tiles a unit, counted %v: %+v", g.Tiles, want, a)
		}
		if want := math.Ceil(float64(tasks*heads*a.Blocks()) / units); g.Tasks != want {
			t.Fatalf("%v tasks a unit, counted %v", g.Tasks, want)
		}
		// A window's longest task is bounded, not counted.
		if d := g.Longest - float64(longest); a.Window == 0 && d != 0 || d < 0 || d > 2 {
			t.Fatalf("longest task of %v tiles, counted %d: %+v", g.Longest, longest, a)
		}
	})
}

// A few tasks are split as far as fills the units, and only as far as needed.
func TestSplitsFillTheUnits(t *testing.T) {
	for _, c := range []struct{ tasks, steps, units, want float64 }{
		{132, 100, 132, 1},
		{106, 100, 132, 1},
		{64, 4, 132, 1},
		{1, 200, 132, 109},
		{66, 64, 132, 2},
		{48, 48, 132, 5},
		{10, 6, 132, 6},
		{100, 100, 132, 5},
	} {
		if got := splits(c.tasks, c.steps, c.units); got != c.want {
			t.Errorf("%v tasks of %v steps on %v units: %v splits, want %v", c.tasks, c.steps, c.units, got, c.want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		tasks, steps := float64(rapid.IntRange(1, 300).Draw(t, "tasks")), float64(rapid.IntRange(1, 2000).Draw(t, "steps"))
		units := float64(rapid.IntRange(1, 300).Draw(t, "units"))
		n := splits(tasks, steps, units)
		if n < 1 || n != math.Floor(n) || n > 1 && n > min(mostSplits, units, steps) {
			t.Fatalf("%v splits of %v tasks of %v steps on %v units", n, tasks, steps, units)
		}
		full := func(n float64) float64 { return n * tasks / units / math.Ceil(n*tasks/units) }
		best := 0.0
		for k := 1.0; k <= min(mostSplits, units, steps); k++ {
			best = max(best, full(k))
		}
		for k := 1.0; n > 1 && k < n; k++ {
			if full(k) >= nearBest*best {
				t.Fatalf("%v splits, but %v fill the units", n, k)
			}
		}
		// The search for the best stops within a hundredth of it.
		if n > 1 && full(n) < (nearBest-0.01)*best-1e-12 {
			t.Fatalf("%v splits fill %v, the best %v", n, full(n), best)
		}
	})
}

// Long calls approach the rate of the tiles alone and the sustained slow-down.
func TestAttentionCoreAtItsLimits(t *testing.T) {
	c := exampleCore()
	long := op.Attention{Mask: op.Full, QLen: 1 << 20, KVLen: 1 << 20, QHeads: 32, KVHeads: 32, HeadDim: 128, DType: op.BF16}
	g := c.Geometry(long, false)
	if got, want := c.Seconds(long, false), c.Tile*g.Tiles*(1+c.Slow); math.Abs(got/want-1) > 0.02 {
		t.Errorf("%v s, want about %v", got, want)
	}
	tiny := op.Attention{Mask: op.Diag, QLen: 1, KVLen: 1, QHeads: 1, KVHeads: 1, HeadDim: 128, DType: op.BF16}
	if got := c.Seconds(tiny, false); got < c.Launch || got > c.Launch+1e-5 {
		t.Errorf("%v s for one token, launch takes %v", got, c.Launch)
	}
	if n := c.Split(op.Attention{Mask: op.Full, QLen: 128, KVLen: 65536, QHeads: 1, KVHeads: 1, HeadDim: 128, DType: op.BF16}); n < 100 {
		t.Errorf("one task of 683 steps is split in %d", n)
	}
}

func TestAttentionCoreScales(t *testing.T) {
	c := exampleCore()
	from := op.DeviceType{Parallel: 132, Sheet: op.Sheet{BF16PerS: 1e15, MemoryPerS: 3e12, L2: 50 << 20}}
	to := op.DeviceType{Parallel: 66, Sheet: op.Sheet{BF16PerS: 1e15, MemoryPerS: 6e12, L2: 100 << 20}}
	want := c
	want.Parallel, want.Tile, want.Task, want.Byte, want.Cache = 66, c.Tile/2, c.Task/2, c.Byte/2, c.Cache*2
	if d := cmp.Diff(&want, c.Scaled(from, to, op.BF16)); d != "" {
		t.Error(d)
	}
	to.Sheet = op.Sheet{}
	want = c
	want.Parallel = 66
	if d := cmp.Diff(&want, c.Scaled(from, to, op.BF16)); d != "" {
		t.Error("without a datasheet: ", d)
	}
}

// An fp8 kernel's tiles follow the fp8 peaks, which are not twice the bf16 ones on every
// device; where a sheet lacks one, both are asked for bf16.
func TestAttentionCoreScalesByItsPrecision(t *testing.T) {
	c := exampleCore()
	sheet := func(bf16, fp8 float64) op.DeviceType {
		return op.DeviceType{Parallel: 100, Sheet: op.Sheet{BF16PerS: bf16, FP8PerS: fp8}}
	}
	for _, x := range []struct {
		from, to op.DeviceType
		dtype    op.DType
		want     float64 // times as long a tile takes
	}{
		{sheet(1e15, 2e15), sheet(1e15, 1e15), op.FP8, 2},
		{sheet(1e15, 2e15), sheet(1e15, 1e15), op.BF16, 1},
		{sheet(1e15, 2e15), sheet(5e14, 0), op.FP8, 2},
		{sheet(5e14, 0), sheet(1e15, 2e15), op.FP8, 0.5},
	} {
		if got := c.Scaled(x.from, x.to, x.dtype).Tile / c.Tile; got != x.want {
			t.Errorf("%s from %v to %v: a tile takes %v times as long, want %v", x.dtype, x.from.Sheet, x.to.Sheet, got, x.want)
		}
	}
}

func TestAttentionCoreNamesABadField(t *testing.T) {
	for key, bad := range map[string]func(*AttentionCore){
		"parallel": func(c *AttentionCore) { c.Parallel = 0 }, "tile_rows": func(c *AttentionCore) { c.TileRows = -1 },
		"tile_keys": func(c *AttentionCore) { c.TileKeys = 1 << 20 }, "tile_s": func(c *AttentionCore) { c.Tile = math.NaN() },
		"overlap_norm": func(c *AttentionCore) { c.Overlap = 0.9 }, "cached_ratio": func(c *AttentionCore) { c.Cached = 1.5 },
		"slow_ratio": func(c *AttentionCore) { c.Slow = 2 }, "side_token_s": func(c *AttentionCore) { c.SideToken = math.Inf(1) },
		"memory_norm": func(c *AttentionCore) { c.Memory = 1e6 },
	} {
		c := exampleCore()
		bad(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), key) {
			t.Errorf("%s: %v", key, err)
		}
	}
	c := exampleCore()
	if err := c.Validate(); err != nil {
		t.Error(err)
	}
}

// Every coefficient is a key of the document, and comes back as it went.
func TestAttentionCoreAsDocument(t *testing.T) {
	c := exampleCore()
	data, err := json.Marshal(&c)
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range c.Coefficients() {
		if !strings.Contains(string(data), `"`+k.Name+`":`) {
			t.Errorf("%s is no key of %s", k.Name, data)
		}
	}
	var back AttentionCore
	if err := json.Unmarshal(data, &back); err != nil || back != c {
		t.Errorf("%+v, %v", back, err)
	}
}

func BenchmarkAttentionCore(b *testing.B) {
	c := exampleCore()
	for name, a := range map[string]op.Attention{
		"diag":   {Mask: op.Diag, QLen: 12345, KVLen: 12345, QHeads: 40, KVHeads: 8, HeadDim: 128, DType: op.BF16, Batch: 3},
		"window": {Mask: op.Diag, QLen: 12345, KVLen: 12345, QHeads: 40, KVHeads: 8, HeadDim: 128, DType: op.BF16, Window: 1000},
		"split":  {Mask: op.Full, QLen: 1000, KVLen: 54321, QHeads: 8, KVHeads: 8, HeadDim: 128, DType: op.BF16},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				c.Seconds(a, false)
			}
		})
	}
}
