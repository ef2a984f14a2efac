package batch

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/evenkeel/evenkeel/internal/units"
)

// No plan of any strategy is below the bound, and ours are near it.
func TestBoundIsBelowEveryPlan(t *testing.T) {
	if testing.Short() {
		t.Skip("long; goroutines have shorter tests")
	}
	rng := rand.New(rand.NewPCG(8, 8))
	for i := range 12 {
		p := *testFleets()[i%3]
		p.Lengths = drawBatch(rng, longestHeld(&p))
		p.MicroBase, p.Fixed, p.Hidden = 0.01, 0.2, units.Seconds(i%2)*0.15
		bound, err := LowerBound(context.Background(), &p)
		if err != nil {
			t.Fatal(err)
		}
		if quick, err := quickBound(&p); err != nil || bound < quick {
			t.Errorf("batch %d: the bound is %v, the quick one %v", i, bound, quick)
		}
		for _, s := range append(testBaselines(), Evenkeel{}) {
			plan, err := s.Solve(context.Background(), &p)
			if err == nil && plan.Time < bound {
				t.Errorf("batch %d (%v): %s takes %v, below the bound %v", i, p.Lengths, s.Name(), plan.Time, bound)
			}
		}
	}
}

// One sequence alone is trained by the fastest group that holds it: the bound is
// its time, but for the grid of roofs. And so for one that fills memory, many times.
func TestBoundOfOneSequence(t *testing.T) {
	for _, n := range []int{1, 3} {
		lengths := make([]units.Tokens, n)
		for i := range lengths {
			lengths[i] = 8000
		}
		p := twoNodes(lengths...)
		want := float64(n) * (0.1 + (0.08+0.064)/6)
		bound, err := LowerBound(context.Background(), p)
		if err != nil || float64(bound) > want || float64(bound) < 0.995*want {
			t.Errorf("%d: %v, %v: want %v", n, bound, err, want)
		}
	}
}

// quickBound is that of a problem which was not planned.
func quickBound(p *Problem) (units.Seconds, error) {
	if err := p.Feasible(); err != nil {
		return 0, err
	}
	var t table
	t.load(p)
	return units.Seconds(t.quickBound() * (1 - rounding)), nil
}

// One long sequence among short ones is the step: both end with it.
func TestQuickBoundOfALongSequence(t *testing.T) {
	p := twoNodes(8000, 100, 100, 100)
	quick, err := quickBound(p)
	plan := solvedBy(t, Evenkeel{}, p)
	if err != nil || plan.Time < quick || float64(quick) < 0.999*float64(plan.Time) {
		t.Errorf("bound %v (%v), plan %v", quick, err, plan.Time)
	}
}

// No plan is below the quick bound, whether exchanges hide behind groups or not; and
// a long sequence beside more short ones than memory holds makes it more than either
// alone.
func TestQuickBoundIsBelowEveryPlan(t *testing.T) {
	sequential(t)
	rng := rand.New(rand.NewPCG(9, 9))
	for i := range 200 {
		p := *testFleets()[i%3]
		p.Lengths = drawBatch(rng, longestHeld(&p))
		p.MicroBase, p.Fixed, p.Hidden = 0.01, 0.2, units.Seconds(i%3)*0.15
		bound, err := quickBound(&p)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range append(testBaselines(), Evenkeel{Options{Effort: Quick}}) {
			if plan, err := s.Solve(context.Background(), &p); err == nil && plan.Time < bound {
				t.Errorf("batch %d (%v): %s takes %v, below the bound %v", i, p.Lengths, s.Name(), plan.Time, bound)
			}
		}
	}
	long := []units.Tokens{8000}
	alone, err := quickBound(twoNodes(long...))
	if err != nil {
		t.Fatal(err)
	}
	for range 400 {
		long = append(long, 100)
	}
	short, err := quickBound(twoNodes(long[1:]...))
	if err != nil {
		t.Fatal(err)
	}
	if both, err := quickBound(twoNodes(long...)); err != nil || both <= max(alone, short) {
		t.Errorf("together %v (%v), the long one alone %v, the short ones %v", both, err, alone, short)
	}
}

// The published instance: any chunking takes at least 8,786 ms by the reference's
// work bound; this one must be above it and below the plan.
func TestBoundOfAPublishedBatch(t *testing.T) {
	if testing.Short() {
		t.Skip("long; goroutines have shorter tests")
	}
	p := flexspBatch(standInBatch(t, 0))
	if quick, err := quickBound(p); err != nil || math.Abs(float64(quick)-8.786) > 0.001 {
		t.Errorf("the work bound is %v (%v), the reference has 8.786", quick, err)
	}
	bound, err := LowerBound(context.Background(), p)
	plan := solvedBy(t, Evenkeel{}, p)
	gap := float64(plan.Time)/float64(bound) - 1
	t.Logf("bound %v, plan %v: gap %.1f %%", bound, plan.Time, 100*gap)
	if err != nil || float64(bound) < 8.9 || gap < 0 || gap > 0.06 {
		t.Errorf("bound %v, %v: the plan takes %v", bound, err, plan.Time)
	}
}

// A bound that is cut short is lower, and still one.
func TestBoundThatIsCutShort(t *testing.T) {
	sequential(t)
	done, cancel := context.WithCancel(context.Background())
	cancel()
	p := flexspBatch(standInBatch(t, 0))
	bound, err := LowerBound(done, p)
	if err != nil || bound <= 0 || float64(bound) > 9.3 {
		t.Errorf("%v, %v", bound, err)
	}
	var b bounder
	b.t.load(p)
	if b.bound(done); b.looked > 0 {
		t.Errorf("with no time left %g prices were looked at", b.looked)
	}
	var tooLong *TooLongError
	if _, err := LowerBound(context.Background(), twoNodes(9000)); !errors.As(err, &tooLong) {
		t.Error(err)
	}
}

// A bound that may do so much work and no more is lower as well, does little beyond it, and
// is that of all the work where that is not more.
func TestBoundOfLittleWork(t *testing.T) {
	p := flexspBatch(standInBatch(t, 0))
	quick, err := quickBound(p)
	if err != nil {
		t.Fatal(err)
	}
	b := bounder{most: 1e6}
	b.t.load(p)
	if little := b.bound(context.Background()); little < float64(quick)*(1-1e-6) || little > 9.3 {
		t.Errorf("of little work %v, without a search %v", little, quick)
	}
	if b.looked > 5e7 { // some rounds at every roof that there is
		t.Errorf("%g prices were looked at", b.looked)
	}
	small := twoNodes(append(slices.Repeat([]units.Tokens{900}, fewSequences), 4000, 3000, 200, 100)...)
	whole, err := LowerBound(context.Background(), small)
	if fast, other := FastBound(context.Background(), small); err != nil || other != nil || fast != whole {
		t.Errorf("fast %v (%v), else %v (%v)", fast, other, whole, err)
	}
}

// The programme behind the bound: prices and solution of random ones agree in
// value, the prices are legal, and the solution covers what it must.
func TestCoverProgramme(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 9))
	for range 200 {
		rows, cols := 1+rng.IntN(8), 1+rng.IntN(30)
		need, dummy := make([]float64, rows), make([]float64, rows)
		for i := range need {
			need[i], dummy[i] = rng.Float64()*10, 5+rng.Float64()
		}
		var c cover
		c.start(need, dummy)
		for j := range cols {
			col := make([]float64, rows)
			for i := range col {
				if rng.IntN(3) == 0 {
					col[i] = rng.Float64()
				}
			}
			c.add(col, 0.1+rng.Float64())
			if j%5 == 0 {
				c.solve(1000)
			}
		}
		c.solve(1000)
		dual := 0.0
		for i, p := range c.price {
			if p < -1e-8 || p > dummy[i]+1e-8 {
				t.Fatalf("price %v of a row whose dummy costs %v", p, dummy[i])
			}
			dual += p * need[i]
		}
		for j, col := range c.cols {
			worth := 0.0
			for i, a := range col {
				worth += a * c.price[i]
			}
			if worth > c.costs[j]+1e-7 {
				t.Fatalf("a column of cost %v is worth %v", c.costs[j], worth)
			}
		}
		if math.Abs(dual-c.value()) > 1e-6*(1+dual) {
			t.Fatalf("prices say %v, the solution %v", dual, c.value())
		}
	}
}

func BenchmarkBound(b *testing.B) {
	p := flexspBatch(standInBatch(b, 0))
	for b.Loop() {
		if _, err := LowerBound(context.Background(), p); err != nil {
			b.Fatal(err)
		}
	}
}

// A sequence that takes longer than all others together bounds the step by itself,
// also where groups have no base and there is work for few devices only.
func TestBoundOfALongSequence(t *testing.T) {
	sequential(t)
	p := twoNodes(8000, 10, 10, 10)
	for c := range p.Classes {
		p.Classes[c].Base = 0
	}
	want := (0.08 + 0.064) / 6
	if alone := float64(p.longestAlone()); alone > want || alone < want*(1-1e-9) {
		t.Errorf("alone %v, want %v", alone, want)
	}
	if bound, err := LowerBound(context.Background(), p); err != nil || float64(bound) < want*(1-1e-9) {
		t.Errorf("%v, %v: want %v", bound, err, want)
	}
}
