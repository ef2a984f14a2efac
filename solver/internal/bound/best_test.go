package bound

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/evenkeel/evenkeel/solver/internal/strategy"
	"github.com/evenkeel/evenkeel/solver/internal/world"
)

// scanned is what best is, found by looking at every cell in turn.
func (w *leastWork) scanned(c int, theta, price float64) (value float64, at int) {
	k := &w.classes[c]
	value, at = math.Inf(-1), -1
	for i := range k.linear.cells {
		cell := &k.linear.cells[i]
		slack := theta - w.linear(cell)
		if slack < 0 || float64(cell.lo) > k.memory.room() {
			continue
		}
		v := price * min(float64(cell.hi), k.memory.room())
		if w.attention != nil {
			pairs := min(w.attention[c].within(slack), k.memory.pairs(float64(cell.lo)))
			if k.rank != nil {
				pairs = min(pairs, k.rank.reach(w, float64(cell.hi), theta, w.beside).pairs(slack, w.attention[c].within))
				pairs = min(pairs, w.inGroups(stretch{c, float64(cell.lo), float64(cell.hi)}, theta, slack, pairs))
			}
			v += pairs
		}
		if v > value {
			value, at = v, i
		}
	}
	return value, at
}

// checkBest compares best with the scan around what the floor is, to the last bit.
func checkBest(t *testing.T, r *rand.Rand, p *strategy.Problem) {
	t.Helper()
	f, err := newFloors(p.Profile, p.Predictor, p.Job)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range f.scopes() {
		s.most, s.fewest = s.size(), s.least
		weights := [stageCount]float64{float64(r.IntN(3)), float64(r.IntN(3)), float64(r.IntN(2))}
		w := newLeastWork(p.Job, f.classes(s), weights)
		w.ranks, w.singles = s.most, s.most == 2
		theta := w.solve() // cuts cells
		if theta == 0 || math.IsInf(theta, 1) {
			theta = 1
		}
		w.beside = theta * r.Float64() * float64(r.IntN(2))
		scale := math.Log(float64(p.Job.SeqLen) * float64(p.Job.Model.QHeads))
		for range 200 {
			x, price := theta*math.Exp(r.NormFloat64()), math.Exp(scale*r.Float64())
			for c := range w.classes {
				value, at := w.best(c, x, price)
				if want, first := w.scanned(c, x, price); value != want || at != first {
					t.Fatalf("class %d, theta %v, price %v: %v of cell %d, and by looking at all of them %v of cell %d", c, x, price, value, at, want, first)
				}
			}
		}
	}
}

// Branch and bound finds the very cell and value that looking at all cells does.
func TestBestIsThatOfAllCells(t *testing.T) {
	if testing.Short() {
		t.Skip("long; goroutines have shorter tests")
	}
	r := rand.New(rand.NewPCG(13, 1))
	for range 40 {
		checkBest(t, r, world.Random(t, r))
	}
	for _, cluster := range []string{"1x4 h100_sxm", "2x8 a100_sxm", "2x8 h100_sxm + 2x8 a100_sxm"} {
		checkBest(t, r, world.GPUs(t, cluster, 1<<16))
	}
}

// The index of stretches finds the place that a search over all of them does.
func TestWithinFindsItsStretch(t *testing.T) {
	r := rand.New(rand.NewPCG(13, 2))
	for range 300 {
		f := &attentionFloor{}
		pairs, rate := math.Exp(10*r.Float64()), math.Exp(-30*r.Float64())
		for range 1 + r.IntN(40) {
			f.pairs, f.rate = append(f.pairs, pairs), append(f.rate, rate)
			pairs *= 1 + r.Float64()
			rate *= 1 - r.Float64()/float64(1+r.IntN(20))
		}
		f.ready()
		for _, seconds := range append(slices.Clone(f.from), math.Exp(-40*r.Float64()), math.Exp(8*r.Float64()), pairs*rate) {
			i := len(f.from) - 1
			for i > 0 && f.from[i] > seconds {
				i--
			}
			want := seconds / f.rate[i]
			if i < len(f.pairs)-1 {
				want = min(f.pairs[i], want)
			}
			if got := f.within(seconds); got != want {
				t.Fatalf("%v within %v s, in stretch %d of %v: %v", got, seconds, i, f.from, want)
			}
		}
	}
}
