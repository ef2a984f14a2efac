package profile

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// Where the budget holds too few short calls for a law, longer ones are taken, but
// not any.
func TestASpaceOfLongCallsHasALaw(t *testing.T) {
	sp := Space{On: "d", Kind: op.KindGEMM, Dims: 1, Make: func(u []float64) op.Shape {
		return op.GEMM{Pass: op.Forward, M: units.Tokens(LogScale(u[0], 512, 4096)), N: 512, K: 512, DType: op.F32}
	}}
	least := sp.at(0)
	each := leastPointTime
	part := 10 * pointTime(least, 20e-3, Cost{}, each)
	for _, c := range []struct {
		call   units.Seconds // of the smallest shape
		spaces int
		want   int
	}{
		{1e-3, 1, 12},
		{30e-3, 1, fewest},
		{1, 1, 0},
		{100e-3, 1, 2}, // the whole budget is its part
		{100e-3, 12, fewest},
		{1, 12, 0},
	} {
		// One space of long calls, the others' are short.
		spaces, costs := slices.Repeat([]Space{sp}, c.spaces), make([]Cost, c.spaces)
		for i := range costs {
			costs[i].PerUnit = 1e-4 / units.Seconds(size(least))
		}
		costs[0].PerUnit = c.call / units.Seconds(size(least))
		budget := part * units.Seconds(c.spaces)
		all := fillAll(spaces, costs, slices.Repeat([]int{12}, c.spaces), each, budget, rand.New(rand.NewPCG(1, 0)))
		if n := len(all[0].shapes); n != c.want {
			t.Errorf("calls of %v and more, one of %d spaces: %d shapes up to %v, want %d", c.call, c.spaces, n, all[0].longest, c.want)
		}
		var first units.Seconds
		for i, f := range all {
			first += pointsTime(f.shapes[:min(fewest, len(f.shapes))], costs[i], each) / visitsAPoint
			if i > 0 && len(f.shapes) != 12 {
				t.Errorf("a space of short calls has %d shapes", len(f.shapes))
			}
		}
		if c.spaces > 1 && first > firstShare*budget || first > overdraw*budget {
			t.Errorf("calls of %v and more, one of %d spaces: first visits take %v of a budget of %v", c.call, c.spaces, first, budget)
		}
	}
}

// Where all calls are long, the ops of the shortest have laws, the others get what
// their part of the budget holds, and those that get nothing are named.
func TestWhatThereIsNoTimeForIsNamed(t *testing.T) {
	sp := Space{On: "d", Kind: op.KindGEMM, Dims: 1, Make: func(u []float64) op.Shape {
		return op.GEMM{Pass: op.Forward, M: units.Tokens(LogScale(u[0], 512, 4096)), N: 512, K: 512, DType: op.F32}
	}}
	const n = 8
	spaces, costs := slices.Repeat([]Space{sp}, n), make([]Cost, n)
	for i := range costs {
		spaces[i].On = fmt.Sprint("d", i)
		costs[i].PerUnit = units.Seconds(0.05*float64(1+i)) / units.Seconds(size(sp.at(0)))
	}
	spots, _, none := plan(spaces, costs, slices.Repeat([]int{12}, n), leastPointTime, 30, rand.New(rand.NewPCG(1, 0)))
	points := make([]int, n)
	for _, s := range spots {
		points[slices.IndexFunc(spaces, func(sp Space) bool { return sp.On == s.On })]++
	}
	if points[0] < fewest || !slices.IsSortedFunc(points, func(a, b int) int { return cmp.Compare(b, a) }) {
		t.Errorf("points of spaces of ever longer calls: %d", points)
	}
	var want, got []string
	for i, sp := range spaces {
		if points[i] == 0 {
			want = append(want, sp.On)
		}
	}
	for _, sp := range none {
		got = append(got, sp.On)
	}
	if len(want) == 0 || !slices.Equal(got, want) {
		t.Errorf("without points are %q, named %q", want, got)
	}
}

// Shapes of a recording may lie in one place, as packed documents do in whatever order: each
// is chosen once all the same.
func TestShapesInOnePlaceAreChosenOnce(t *testing.T) {
	sp := Space{On: "d", Kind: op.KindAttnVarlenFwd}
	for _, lens := range [][]units.Tokens{{100, 200, 300}, {300, 200, 100}, {200, 300, 100}, {100, 300, 200}, {64, 64}, {1000}} {
		sp.Shapes = append(sp.Shapes, op.AttnVarlenFwd{Varlen: op.Varlen{SeqLens: lens, QHeads: 4, KVHeads: 4, HeadDim: 64, DType: op.BF16}})
	}
	for n := 1; n <= len(sp.Shapes); n++ {
		seen := map[string]bool{}
		for _, s := range choose(sp, n, Cost{PerUnit: 1e-15}, 1, rand.New(rand.NewPCG(uint64(n), 0))) {
			seen[NewSpot(sp.On, s).Key("")] = true
		}
		if len(seen) != n {
			t.Errorf("%d shapes chosen, want %d", len(seen), n)
		}
	}
}

// Widths of matrix products are multiples of 64, as models' are: others run on other kernels.
func TestWidthsAreModels(t *testing.T) {
	e := Extent{MaxLen: 4096, MaxHeads: 8, MaxWidth: 16384, HeadDims: []int{64}, DType: op.BF16}
	r, widest := rand.New(rand.NewPCG(1, 1)), 0
	for range 1000 {
		g := gemmSpace("x", e, op.Forward).Make([]float64{r.Float64(), r.Float64(), r.Float64()}).(op.GEMM)
		if g.N%64 != 0 || g.K%64 != 0 || g.N < 64 || g.K < 64 || g.N > 16384 {
			t.Fatalf("%+v", g)
		}
		widest = max(widest, g.N)
	}
	if widest < 14000 {
		t.Errorf("the widest is %d of 16384", widest)
	}
}

// Attention by a kernel that another outpaces gets a part of its points; by one as fast, by
// the only one of its kind, and on another device, all.
func TestOutpacedKernelsGetFewerPoints(t *testing.T) {
	of := func(on, kernel string, mask op.Mask, perUnit float64) Piloted {
		return Piloted{On: on, Op: op.KindAttnFwd, Variant: op.Variant{Kernel: kernel, Mask: mask, HeadDim: 64}, PerUnit: perUnit}
	}
	families := []Piloted{
		of("a", "fast", op.Diag, 1), of("a", "near", op.Diag, 1.2), of("a", "slow", op.Diag, 1.3),
		of("a", "slow", op.Full, 1.3), of("b", "slow", op.Diag, 1.3),
		{On: "a", Op: op.KindGEMM, PerUnit: 9},
	}
	for i, want := range []float64{1, 1, 0.25, 1, 1, 1} {
		if got := pace(families, families[i]); got != want {
			t.Errorf("%+v: %v of its points, want %v", families[i], got, want)
		}
	}
}
