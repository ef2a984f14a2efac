package pipeline

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	costs "github.com/evenkeel/evenkeel/costmodel/pipeline"
	"github.com/evenkeel/evenkeel/internal/units"
)

// Whoever cuts and packs has every token once, and chunks of no more tokens than they may,
// but for a sequence that is longer by itself.
func TestChunksHaveEveryToken(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		p := batchOf(t, small(r), drawnLengths(r, 30)...)
		f := p.fitted([]int{0})
		size := units.Tokens(1 + r.IntN(70000))
		longest := slices.Max(p.Lengths)
		for what, sequences := range map[string][][]costs.Chunk{
			"balanced": together(p.balanced(f, cutting{1 + r.IntN(20), 1})), "packed": p.packed(size), "sliced": p.sliced(size),
		} {
			if wrong := whole(p, sequences); wrong != "" {
				t.Errorf("seed %d: %s: %s: %+v", seed, what, wrong, sequences)
			}
			for _, x := range slices.Concat(sequences...) {
				n := p.Tokens(x)
				switch {
				case what == "balanced" && n > max(longest, mostTokens), what == "packed" && n > size && len(x.Whole) > 1, what == "packed" && x.Slice > 0, what == "sliced" && n > size:
					t.Errorf("seed %d: %s: %d tokens in %+v, of %d", seed, what, int64(n), x, int64(size))
				}
			}
		}
	}
}

// Sequences go where there is least room for them, so that no two chunks would be one.
func TestPackingLeavesNoTwoHalves(t *testing.T) {
	p := batchOf(t, published(1, 0), 700, 600, 500, 400, 300, 200)
	want := [][]costs.Chunk{
		{{Sequence: -1, Whole: []int{0, 4}}}, {{Sequence: -1, Whole: []int{1, 3}}}, {{Sequence: -1, Whole: []int{2, 5}}},
	}
	got := p.packed(1000)
	if len(got) != 3 {
		t.Fatalf("%+v", got)
	}
	for i := range want {
		if !slices.Equal(got[i][0].Whole, want[i][0].Whole) {
			t.Errorf("chunk %d: %+v, want %+v", i, got[i], want[i])
		}
	}
	// 450 tokens: of 700 a slice and a tail of 250, of 600 one of 150, of 500 one of 50, and
	// 400 beside the last, 300 beside that of 600, 200 beside the first.
	cut := p.sliced(450)
	if len(cut) != 3 || !slices.Equal(cut[0][1].Whole, []int{5}) || !slices.Equal(cut[1][1].Whole, []int{4}) || !slices.Equal(cut[2][1].Whole, []int{3}) {
		t.Errorf("%+v", cut)
	}
}

// The mesh cuts the longest sequence into slices of as much time, but for what rounding to 64
// tokens takes or gives; and a batch's chunks take no longer than these by more than the
// factor, where short sequences go beside tails.
func TestBalancedChunksTakeAsLong(t *testing.T) {
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 2))
		m := published(8, 0)
		m.SquareToken *= 0.1 + 5*r.Float64()
		lengths := append(drawnLengths(r, 30), units.Tokens(40000+r.IntN(50000)))
		p := batchOf(t, m, lengths...)
		f, n := p.fitted([]int{0}), 2+r.IntN(10)
		longest := slices.Max(lengths)
		cuts, from := f.mesh(longest, n), units.Tokens(0)
		target := f.of(0, longest) / float64(n)
		for i, to := range append(cuts, longest) {
			if off := math.Abs(f.of(from, to-from) - target); off > f.of(to, grain) {
				t.Errorf("seed %d: slice %d takes %v, want %v within %v", seed, i, f.of(from, to-from), target, f.of(to, grain))
			}
			if i < len(cuts) && to%grain != 0 {
				t.Errorf("seed %d: cut at %d", seed, int64(to))
			}
			from = to
		}
		if len(cuts) != n-1 {
			t.Errorf("seed %d: %d cuts for %d slices", seed, len(cuts), n)
		}
		cut, rest := p.balanced(f, cutting{n, 1})
		for _, x := range slices.Concat(append(slices.Clone(cut), rest)...) {
			if took := p.time(f, x) - f.each; len(x.Whole) > 0 && took > loosened*target*(1+1e-9) {
				t.Errorf("seed %d: %+v takes %v, a slice %v", seed, x, took, target)
			}
		}
	}
}

// Short sequences go beside tails, and never beside a full slice: of the longest sequence,
// another as long, or one that ends where all are cut.
func TestFullSlicesHaveNothingBeside(t *testing.T) {
	p := batchOf(t, published(8, 0), 40000, 64, 40000)
	f := p.fitted([]int{0})
	cuts := f.mesh(40000, 4)
	p = batchOf(t, published(8, 0), 40000, 64, 40000, cuts[1])
	cut, rest := p.balanced(f, cutting{4, 1})
	if len(cut) != 3 || len(cut[0]) != 4 || len(cut[1]) != 4 || len(cut[2]) != 2 || len(rest) != 1 || !slices.Equal(rest[0].Whole, []int{1}) {
		t.Errorf("%+v beside %+v", rest, cut)
	}
	p = batchOf(t, published(8, 0), 40000, 64, 40000, cuts[1]+64)
	cut, rest = p.balanced(f, cutting{4, 1})
	if len(cut) != 3 || len(cut[2]) != 3 || len(rest) != 0 || !slices.Equal(cut[2][2].Whole, []int{1}) {
		t.Errorf("%+v beside %+v", rest, cut)
	}
}

// A sequence that cannot be cut is in one piece: of a grain, or of one token.
func TestShortBatchesAreNotCut(t *testing.T) {
	for _, lengths := range [][]units.Tokens{{1}, {64}, {1, 1, 1}, {63, 5}} {
		p := batchOf(t, published(8, 0), lengths...)
		f := p.fitted([]int{0})
		if cut, rest := p.balanced(f, cutting{8, 1}); len(cut) > 0 || whole(p, together(cut, rest)) != "" {
			t.Errorf("%v: %+v, %+v", lengths, cut, rest)
		}
	}
}

// The fit finds the coefficients that prices come from: of all layers and devices, each per
// layer and chunk.
func TestTheFitFindsThePublishedFormula(t *testing.T) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 3))
		m := published(8, 0)
		m.SquareToken, m.Token, m.Each = m.SquareToken*(0.1+r.Float64()), m.Token*(0.1+r.Float64()), units.Seconds(0.1*r.Float64())
		if seed%2 == 0 {
			m.Each = 0 // which is told from less than nothing
		}
		p := batchOf(t, m, units.Tokens(5000+r.IntN(100000)), 700)
		width := 1 + r.IntN(8)
		ranks := make([]int, width)
		for i := range ranks {
			ranks[i] = i
		}
		f := p.fitted(ranks)
		per := float64(m.Layers * width)
		for _, c := range []struct {
			what      string
			got, want float64
		}{{"square", f.square, m.SquareToken / per}, {"token", f.token, m.Token / per}, {"each", f.each, float64(m.Each) / float64(m.Layers)}} {
			if math.Abs(c.got-c.want) > 1e-6*c.want+1e-12 || c.got < 0 {
				t.Errorf("seed %d: %s %v, want %v", seed, c.what, c.got, c.want)
			}
		}
		for range 5 {
			n := units.Tokens(1 + r.IntN(100000))
			if at := f.upTo(f.of(0, n)); math.Abs(at-float64(n)) > 1e-6*float64(n) {
				t.Errorf("seed %d: %v tokens take what %d do", seed, at, int64(n))
			}
			x := costs.Chunk{Sequence: 0, Context: 100, Slice: 3000, Whole: []int{1}}
			w := p.Work(ranks, x)
			if got, want := p.time(f, x), float64(w.Forward+w.Backward); math.Abs(got-want) > 1e-6*want {
				t.Errorf("seed %d: %v by the formula, %v", seed, got, want)
			}
		}
	}
	// Without squares, and too few lengths to tell.
	if f := (formula{token: 2}); f.upTo(f.of(0, 100)) != 100 {
		t.Errorf("%v tokens", f.upTo(f.of(0, 100)))
	}
	if f := batchOf(t, published(8, 0), 1).fitted([]int{0}); f != (formula{token: 1}) {
		t.Errorf("of one token: %+v", f)
	}
}
