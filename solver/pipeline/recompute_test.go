package pipeline

import (
	"math/rand/v2"
	"testing"
	"time"

	costs "github.com/evenkeel/evenkeel/costmodel/pipeline"
	"github.com/evenkeel/evenkeel/internal/units"
)

// tight is a flight on stages that have too little room for all that it keeps, and enough for
// what it cannot but keep.
func tight(t *testing.T, r *rand.Rand) (*Problem, *flight) {
	m := small(r)
	m.Layers, m.Devices = 3+r.IntN(10), []int{2, 4, 6}[r.IntN(3)]
	m.TokenBytes, m.LogitBytes, m.PerNode = float64(34*5120*m.Layers), 6*32000*r.Float64(), m.Devices
	lengths := drawnLengths(r, 12)
	size := units.Tokens(500 + r.IntN(20000))
	m.Capacity = 0
	p := batchOf(t, m, lengths...)
	f := newFlight(p.sliced(size))
	stages, err := p.equalStages(2)
	if err != nil {
		t.Fatal(err)
	}
	plan := planOf(stages, []*flight{f}, nil)
	peak := func() units.Bytes {
		most := units.Bytes(0)
		for _, x := range p.Memory(plan) {
			most = max(most, x.Peak())
		}
		return most
	}
	kept := peak()
	everything(plan)
	again := peak()
	m.Capacity = again + units.BytesOf(r.Float64()*float64(kept-again))
	return batchOf(t, m, lengths...), f
}

// What is rounded holds every row and fits as well as rows know; what is solved is no more,
// and nothing is below the bound.
func TestProgrammesAreSolved(t *testing.T) {
	solved, less := 0, 0
	for seed := range uint64(120) {
		r := rand.New(rand.NewPCG(seed, 6))
		p, f := tight(t, r)
		stages, err := p.equalStages(2)
		if err != nil {
			t.Fatal(err)
		}
		x := p.recomputation(stages, f, false)
		rounded, err := x.rounded(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		exact, err := x.exact(t.Context(), 5*time.Second)
		if err != nil || rounded == nil != (exact == nil) || rounded == nil && !x.hopeless {
			t.Fatalf("seed %d: rounded %+v, exact %+v, %v", seed, rounded, exact, err)
		}
		if rounded == nil {
			continue
		}
		for what, s := range map[string]*solution{"rounded": rounded, "exact": exact} {
			sum := 0
			for i, n := range s.layers {
				if sum += n; n < 0 || n > x.most {
					t.Errorf("seed %d: %s: C[%d] is %d of %d layers", seed, what, i, n, x.most)
				}
			}
			if sum != s.sum || float64(sum) < s.bound-1e-6 {
				t.Errorf("seed %d: %s: a sum of %d, says %d, bound %v", seed, what, sum, s.sum, s.bound)
			}
			for i, row := range x.rows {
				saved := 0.0
				for _, term := range row.Terms {
					saved += term.Value * float64(s.layers[term.Column])
				}
				if saved < row.Lower*(1-1e-6) {
					t.Errorf("seed %d: %s: row %d saves %v bytes, want %v", seed, what, i, saved, row.Lower)
				}
			}
			heldAtOnce(t, p, stages, f, x.of(s, stages))
			// By the rows a chunk's stages compute as many layers again along anti-diagonals.
			again := x.of(s, stages)
			for k := range f.chunks {
				if place := f.place()[k]; f.backward[place] != k || again[1][k] != min(stages[1].Layers, s.layers[place]) || again[0][k] != min(stages[0].Layers, s.layers[place+1]) {
					t.Errorf("seed %d: %s: chunk %d: %d and %d of %v at %d", seed, what, k, again[0][k], again[1][k], s.layers, place)
				}
			}
		}
		if exact.sum > rounded.sum || exact.bound < rounded.bound {
			t.Errorf("seed %d: solved %d above %v, rounded %d above %v", seed, exact.sum, exact.bound, rounded.sum, rounded.bound)
		}
		if rounded.sum > 0 {
			solved++
		}
		if exact.sum < rounded.sum {
			less++
		}
	}
	if solved < 40 || less == 0 {
		t.Errorf("%d programmes with something to solve, %d solved better", solved, less)
	}
}

// heldAtOnce says that by equations 5 to 10 a stage has room for what it holds before each
// backward pass of a flight: of each chunk what it keeps of the layers that are not computed
// again, what goes into those that are, gradients of keys and values, and logits.
func heldAtOnce(t *testing.T, p *Problem, stages []costs.Stage, f *flight, again [][]int) {
	t.Helper()
	plan := planOf(stages, []*flight{f}, [][][]int{again})
	for s, x := range stages {
		room, now := float64(p.Capacity(x.Ranks)-p.States(plan, s)), 0.0
		for i, o := range plan.Orders[s] {
			b, n, layers := p.Held(x.Ranks, plan.Chunks[o.Chunk]), float64(again[s][o.Chunk]), float64(x.Layers)
			of := (layers-n)*b.Kept + n*b.Again + layers*b.Gradients
			if s == len(stages)-1 {
				of += b.Logits
			}
			if !o.Backward {
				now += of
				continue
			}
			if now > room*(1+1e-6) {
				t.Errorf("orders[%d][%d]: %v bytes are held, and there is room for %v", s, i, now, room)
			}
			now -= of
		}
	}
}

// Programmes that leave room for the layer at work have plans with room.
func TestProgrammesWithRoomForTheLayerAtWork(t *testing.T) {
	fit := 0
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 13))
		p, f := tight(t, r)
		stages, err := p.equalStages(2)
		if err != nil {
			t.Fatal(err)
		}
		x := p.recomputation(stages, f, true)
		s, err := x.rounded(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if s == nil || s.sum == 0 {
			continue
		}
		fit++
		if err := p.Room(planOf(stages, []*flight{f}, [][][]int{x.of(s, stages)})); err != nil {
			t.Errorf("seed %d: %v", seed, err)
		}
	}
	if fit < 20 {
		t.Errorf("%d programmes have a solution", fit)
	}
}

// No layer can be taken from what was rounded: every one of it is needed by some row.
func TestRoundedIsNoMoreThanNeeded(t *testing.T) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 7))
		p, f := tight(t, r)
		stages, err := p.equalStages(2)
		if err != nil {
			t.Fatal(err)
		}
		x := p.recomputation(stages, f, false)
		s, err := x.rounded(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if s == nil {
			continue
		}
		for c, n := range s.layers {
			needed := n == 0
			for _, row := range x.rows {
				saved, mine := 0.0, 0.0
				for _, term := range row.Terms {
					saved += term.Value * float64(s.layers[term.Column])
					if term.Column == c {
						mine = term.Value
					}
				}
				needed = needed || saved-mine < row.Lower
			}
			if !needed {
				t.Errorf("seed %d: C[%d] = %d, and no row needs as many", seed, c, n)
			}
		}
	}
}

// Small programmes by trying all that there is.
func TestExactIsTheLeastOfAll(t *testing.T) {
	tried := 0
	for seed := range uint64(400) {
		r := rand.New(rand.NewPCG(seed, 8))
		p, f := tight(t, r)
		if len(f.chunks) > 4 {
			continue
		}
		stages, err := p.equalStages(2)
		if err != nil {
			t.Fatal(err)
		}
		x := p.recomputation(stages, f, false)
		if x.most > 4 || len(x.rows) == 0 {
			continue
		}
		tried++
		least, c := -1, make([]int, len(f.chunks)+1)
		for at := 0; at < len(c); {
			sum, holds := 0, true
			for _, n := range c {
				sum += n
			}
			for _, row := range x.rows {
				saved := 0.0
				for _, term := range row.Terms {
					saved += term.Value * float64(c[term.Column])
				}
				holds = holds && saved >= row.Lower
			}
			if holds && (least < 0 || sum < least) {
				least = sum
			}
			for at = 0; at < len(c); at++ {
				if c[at]++; c[at] <= x.most {
					break
				}
				c[at] = 0
			}
		}
		got, err := x.exact(t.Context(), 5*time.Second)
		if err != nil || got == nil != (least < 0) {
			t.Fatalf("seed %d: %+v, %v; the least of all is %d", seed, got, err, least)
		}
		if got != nil && (got.sum < least || float64(got.sum) > float64(least)*(1+programmeGap)+1e-9 || got.bound > float64(least)+1e-6) {
			t.Errorf("seed %d: %d above %v, the least of all is %d", seed, got.sum, got.bound, least)
		}
	}
	if tried < 20 {
		t.Errorf("%d programmes were small enough", tried)
	}
}
