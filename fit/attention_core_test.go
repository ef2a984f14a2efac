package fit

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// coreDevice is a GPU of plain numbers.
func coreDevice() op.DeviceType {
	return op.DeviceType{Name: "gpu", Fingerprint: "gpu", Parallel: 100, Sheet: op.Sheet{BF16PerS: 4e14, MemoryPerS: 2e12, L2: 40 << 20}}
}

// trueCore is the core that the tests' times are made from.
func trueCore() *costmodel.AttentionCore {
	c := costmodel.AttentionCore{
		Parallel: 100, TileRows: 64, TileKeys: 128, Packed: true,
		Tile: 1.6e-6, Task: 1e-6, Alone: 0.9, Start: 3e-6, Tail: 0.3, Launch: 5e-6, Merge: 3e-6, Overlap: 4,
		Byte: 6e-13, Cached: 0.3, Cache: 3e7, Traffic: 1.1, Stream: 0.8, Memory: 3,
		SideLaunch: 1e-6, SideKV: 3, SideQ: 0.2, SideToken: 2e-7, Slow: 0.1, SlowAt: 3e-3, SlowNorm: 3,
	}
	return &c
}

// corePoints makes n calls of the given pass with 2 % of noise, up to `longest` tokens.
func corePoints(n int, seed uint64, longest float64, backward bool) []Point {
	rng := rand.New(rand.NewPCG(seed, 1))
	var points []Point
	for i := range n {
		kv := 1 << rng.IntN(5)
		a := op.Attention{Mask: op.Diag, QLen: units.Tokens(math.Exp2(4 + rng.Float64()*(math.Log2(longest)-4))), QHeads: kv * (1 + rng.IntN(8)), KVHeads: kv, HeadDim: 128, DType: op.BF16}
		a.KVLen = a.QLen
		if b := 1 << rng.IntN(5); b > 1 {
			a.Batch = b
		}
		s := op.Shape(op.AttnFwd{Attention: a})
		if backward {
			s = op.AttnBwd{Attention: a}
		}
		points = append(points, Point{Shape: s, Seconds: trueCore().Seconds(a, backward) * math.Exp(0.02*rng.NormFloat64()), rank: uint64(i)})
	}
	return points
}

// medianOff is the median error of a core on noisy points, in percent.
func medianOff(c *costmodel.AttentionCore, backward bool, points []Point) float64 {
	return scoreOf(func(s op.Shape) float64 {
		a, _ := blockOf(s)
		return c.Seconds(a, backward)
	}, points).median
}

// sequential leaves a test that starts no goroutine, as LearningCurve does, out under
// the race detector: it has nothing to find there, and takes ten times as long.
func sequential(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("nothing in it runs beside anything else")
	}
}

// The fit comes back to a core that made the times, inside and at eight times
// the length, forward and backward.
func TestFitAttentionCoreFindsTheCore(t *testing.T) {
	if testing.Short() {
		t.Skip("long; goroutines have shorter tests")
	}
	for _, backward := range []bool{false, true} {
		c, err := fitAttentionCore(coreDevice(), backward, corePoints(600, 1, 8192, backward), nil)
		if err != nil {
			t.Fatal(err)
		}
		if e := medianOff(c, backward, corePoints(300, 2, 8192, backward)); e > 2.5 {
			t.Errorf("backward %v: %.1f %% inside the range", backward, e)
		}
		var long []Point
		for _, p := range corePoints(2000, 3, 65536, backward) {
			if a, _ := blockOf(p.Shape); a.QLen > 16384 {
				long = append(long, p)
			}
		}
		if e := medianOff(c, backward, long); e > 4 {
			t.Errorf("backward %v: %.1f %% beyond the range", backward, e)
		}
	}
}

// A handful of points gives a core that is usable, and a sibling's core makes
// it better.
func TestFitAttentionCoreFromFewPoints(t *testing.T) {
	test := corePoints(300, 4, 16384, false)
	sibling := trueCore()
	for _, k := range sibling.Coefficients() {
		*k.Value = k.Least + (*k.Value-k.Least)*1.1
	}
	sibling.Cached = 0.3
	var alone, helped []float64
	for seed := range uint64(5) {
		few := corePoints(fewestToFit, 10+seed, 16384, false)
		c, err := fitAttentionCore(coreDevice(), false, few, nil)
		if err != nil {
			t.Fatal(err)
		}
		alone = append(alone, medianOff(c, false, test))
		if c, err = fitAttentionCore(coreDevice(), false, few, sibling); err != nil {
			t.Fatal(err)
		}
		helped = append(helped, medianOff(c, false, test))
	}
	t.Logf("errors from %d points: %.1f; with a sibling 10 %% off: %.1f", fewestToFit, alone, helped)
	slices.Sort(alone)
	slices.Sort(helped)
	if alone[2] > 25 || helped[2] > 6 || helped[2] > alone[2] {
		t.Errorf("median errors %.1f %% alone, %.1f %% with a sibling", alone[2], helped[2])
	}
}

// The order of the points does not matter, and outliers do little.
func TestFitAttentionCoreIsRobust(t *testing.T) {
	if testing.Short() {
		t.Skip("long; goroutines have shorter tests")
	}
	points := corePoints(400, 5, 8192, false)
	c, err := fitAttentionCore(coreDevice(), false, points, nil)
	if err != nil {
		t.Fatal(err)
	}
	turned := slices.Clone(points)
	slices.Reverse(turned)
	if again, err := fitAttentionCore(coreDevice(), false, turned, nil); err != nil || *again != *c {
		t.Errorf("another order gives %+v, %v; before %+v", again, err, c)
	}
	for i := 0; i < len(points); i += 20 {
		points[i].Seconds *= 5
	}
	if c, err = fitAttentionCore(coreDevice(), false, points, nil); err != nil {
		t.Fatal(err)
	}
	if e := medianOff(c, false, corePoints(300, 6, 8192, false)); e > 4 {
		t.Errorf("%.1f %% after a twentieth of the times was made five times as long", e)
	}
}

// A single time that was read a hundred times too short would reach the highest rate by far,
// and all others would count as overhead beside it.
func TestLoadWeightsAreOfRatesThatOthersReach(t *testing.T) {
	points := corePoints(30, 3, 1<<15, false)
	want := loadWeights(points)
	for i := range points {
		wrong := slices.Clone(points)
		wrong[i].Seconds /= 100
		got := loadWeights(wrong)
		if most := 3 * max(1, want[i]); got[i] > most {
			t.Errorf("point %d, too fast: weight %.2f, %.2f of its own time", i, got[i], want[i])
		}
		for k := range got {
			if k != i && (got[k] < want[k]/2 || got[k] > want[k]*2) {
				t.Errorf("point %d, beside %d which is too fast: weight %.2f, %.2f without", k, i, got[k], want[k])
			}
		}
	}
}

// A device without datasheet is fitted from its points alone.
func TestFitAttentionCoreWithoutDatasheet(t *testing.T) {
	sequential(t)
	dev := coreDevice()
	dev.Sheet = op.Sheet{}
	c, err := fitAttentionCore(dev, false, corePoints(300, 7, 8192, false), nil)
	if err != nil {
		t.Fatal(err)
	}
	if e := medianOff(c, false, corePoints(300, 8, 8192, false)); e > 4 {
		t.Errorf("%.1f %%", e)
	}
}

func TestFitAttentionCoreRefuses(t *testing.T) {
	points := corePoints(10, 1, 1024, false)
	if _, err := fitAttentionCore(coreDevice(), false, points[:fewestForCore-1], nil); err == nil {
		t.Error("fits five points")
	}
	points[3].Seconds = 0
	if _, err := fitAttentionCore(coreDevice(), false, points, nil); err == nil {
		t.Error("fits a time of zero")
	}
	points[3] = Point{Shape: op.GEMM{Pass: op.Forward, M: 1, N: 1, K: 1, DType: op.BF16}, Seconds: 1}
	if _, err := fitAttentionCore(coreDevice(), false, points, nil); err == nil {
		t.Error("fits a matrix product")
	}
}

func BenchmarkFitAttentionCore(b *testing.B) {
	points := corePoints(4000, 1, 16384, false)
	for b.Loop() {
		if _, err := fitAttentionCore(coreDevice(), false, points, nil); err != nil {
			b.Fatal(err)
		}
	}
}
