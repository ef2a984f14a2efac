package pipeline

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	costs "github.com/evenkeel/evenkeel/costmodel/pipeline"
	"github.com/evenkeel/evenkeel/internal/units"
)

// drawnFlight is a flight of sequences cut and packed at random, and its problem.
func drawnFlight(t *testing.T, r *rand.Rand) (*Problem, *flight) {
	p := batchOf(t, small(r), drawnLengths(r, 12)...)
	sequences := p.sliced(units.Tokens(500 + r.IntN(20000)))
	r.Shuffle(len(sequences), func(i, j int) { sequences[i], sequences[j] = sequences[j], sequences[i] })
	return p, newFlight(sequences)
}

// A flight can be run on any stages, alone and behind others; a stage goes ahead by as many
// chunks as equation 8 has, and its windows are what it holds before each backward pass.
func TestFlightsCanBeRun(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 4))
		p, f := drawnFlight(t, r)
		n := 1 + r.IntN(5)
		for s := range n {
			order := f.order(nil, s, n, 0)
			ahead := slices.IndexFunc(order, func(o costs.Op) bool { return o.Backward })
			if want := min(len(f.chunks), n-1-s+f.split); ahead != want {
				t.Errorf("seed %d: stage %d of %d sends %d chunks ahead, want %d", seed, s, n, ahead, want)
			}
			held := map[int]bool{}
			var counted [][]int
			for _, o := range order {
				if o.Backward {
					var now []int
					for k := range f.chunks {
						if held[k] {
							now = append(now, k)
						}
					}
					counted = append(counted, now)
				}
				held[o.Chunk] = !o.Backward
			}
			var windows [][]int
			f.windows(s, n, func(held []int) { windows = append(windows, slices.Clone(held)) })
			// The last window has all chunks that are left, of which backward passes take away.
			if len(windows) != len(f.chunks)-ahead+1 {
				t.Fatalf("seed %d: %d windows of %d chunks, %d ahead", seed, len(windows), len(f.chunks), ahead)
			}
			for i, w := range windows {
				if !slices.Equal(w, counted[i]) {
					t.Errorf("seed %d: stage %d of %d holds %v before backward pass %d, want %v", seed, s, n, w, i, counted[i])
				}
			}
		}
		stages := 1
		for _, n := range []int{4, 3, 2} {
			if p.Devices() >= n && p.Layers >= n {
				stages = n
				break
			}
		}
		if p.Devices()%stages != 0 {
			stages = 1
		}
		on, err := p.equalStages(stages)
		if err != nil {
			t.Fatal(err)
		}
		plan := planOf(on, []*flight{f}, nil)
		if err := p.Simulate(plan); err != nil {
			t.Errorf("seed %d: %v", seed, err)
		}
	}
}

// Two flights run one behind the other, with what each computes again.
func TestFlightsRunOneBehindTheOther(t *testing.T) {
	p := batchOf(t, published(4, 0), 9000, 500, 8000)
	a := newFlight([][]costs.Chunk{{{Sequence: 0, Slice: 5000}, {Sequence: 0, Context: 5000, Slice: 4000}}})
	b := newFlight([][]costs.Chunk{{{Sequence: 2, Slice: 8000, Whole: []int{1}}}})
	stages, err := p.equalStages(2)
	if err != nil {
		t.Fatal(err)
	}
	plan := planOf(stages, []*flight{a, b}, [][][]int{{{1, 2}, {3, 4}}, nil})
	if err := p.Simulate(plan); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(plan.Recompute[0], []int{1, 2, 0}) || !slices.Equal(plan.Recompute[1], []int{3, 4, 0}) {
		t.Errorf("%v", plan.Recompute)
	}
	for s, order := range plan.Orders {
		for i, o := range order {
			if o.Chunk == 2 != (i >= 4) {
				t.Errorf("orders[%d][%d]: %+v", s, i, o)
			}
		}
	}
	if !slices.Equal(a.backward, []int{1, 0}) || a.split != 2 || b.split != 1 {
		t.Errorf("%+v, %+v", a, b)
	}
}

// The dynamic programme finds what trying all ways to part the numbers of chunks does.
func TestGroupsAreTheBestOfAll(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 5))
		var sequences [][]costs.Chunk
		counts := map[int]bool{}
		for i := range 1 + r.IntN(8) {
			n := 1 + r.IntN(5)
			counts[n] = true
			var chunks []costs.Chunk
			for k := range n {
				chunks = append(chunks, costs.Chunk{Sequence: i, Context: units.Tokens(10 * k), Slice: 10})
			}
			sequences = append(sequences, chunks)
		}
		const stages, mean, layer = 3, 1.5, 0.25
		// What a flight computes again follows from its chunks; some have no room.
		solve := func(f *flight) (*solution, error) {
			h := len(f.chunks)*31 + f.split*17 + int(seed)
			if h%5 == 0 {
				return nil, nil
			}
			return &solution{sum: h * h % 40}, nil
		}
		by := make([]int, 0, len(counts))
		for n := range counts {
			by = append(by, n)
		}
		slices.Sort(by)
		slices.Reverse(by)
		best := math.Inf(1)
		for cuts := range 1 << (len(by) - 1) {
			cost := 0.0
			for from := 0; from < len(by); {
				to := from + 1
				for to < len(by) && cuts>>(to-1)&1 == 0 {
					to++
				}
				var of [][]costs.Chunk
				for _, s := range sequences {
					if len(s) <= by[from] && len(s) >= by[to-1] {
						of = append(of, s)
					}
				}
				slices.SortStableFunc(of, func(a, b []costs.Chunk) int { return len(b) - len(a) })
				if s, _ := solve(newFlight(of)); s == nil {
					cost = math.Inf(1)
				} else {
					cost += (stages-1)*mean + layer*float64(s.sum)
				}
				from = to
			}
			best = min(best, cost)
		}
		got, err := group(sequences, stages, mean, layer, solve)
		if err != nil || got == nil != math.IsInf(best, 1) {
			t.Fatalf("seed %d: %+v, %v; the best of all costs %v", seed, got, err, best)
		}
		if got == nil {
			continue
		}
		cost, chunks, split := 0.0, 0, math.MaxInt
		for i, f := range got.flights {
			again, _ := solve(f)
			if again.sum != got.again[i].sum || f.split >= split {
				t.Errorf("seed %d: flight %d: %+v", seed, i, got.again[i])
			}
			cost, chunks, split = cost+(stages-1)*mean+layer*float64(again.sum), chunks+len(f.chunks), f.split
		}
		all := 0
		for _, s := range sequences {
			all += len(s)
		}
		if math.Abs(cost-best) > 1e-9 || chunks != all {
			t.Errorf("seed %d: %v with %d chunks, the best of all costs %v with %d", seed, cost, chunks, best, all)
		}
	}
}
