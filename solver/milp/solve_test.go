package milp

import (
	"context"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"
)

var inf = math.Inf(1)

// random is a small programme of integers from 0 to 3.
func random(r *rand.Rand) *Model {
	m := &Model{}
	for range 1 + r.IntN(5) {
		m.Columns = append(m.Columns, Column{Cost: float64(r.IntN(21) - 10), Upper: float64(1 + r.IntN(3)), Integer: true})
	}
	for range r.IntN(5) {
		row := Row{Lower: math.Inf(-1), Upper: inf}
		for c := range m.Columns {
			if v := r.IntN(11) - 5; v != 0 {
				row.Terms = append(row.Terms, Term{c, float64(v)})
			}
		}
		switch r.IntN(3) {
		case 0:
			row.Upper = float64(r.IntN(15) - 3)
		case 1:
			row.Lower = float64(r.IntN(15) - 8)
		default:
			row.Lower = float64(r.IntN(10) - 4)
			row.Upper = row.Lower
		}
		m.Rows = append(m.Rows, row)
	}
	return m
}

// bruteForce is the least cost; infinite if there is no solution.
func bruteForce(m *Model) float64 {
	best := inf
	x := make([]float64, len(m.Columns))
	var try func(i int)
	try = func(i int) {
		if i == len(x) {
			if m.Feasible(x, 0) {
				best = min(best, m.Value(x))
			}
			return
		}
		for v := 0.0; v <= m.Columns[i].Upper; v++ {
			x[i] = v
			try(i + 1)
		}
	}
	try(0)
	return best
}

func TestSolveFindsWhatBruteForceFinds(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	infeasible := 0
	for i := range 200 {
		m := random(r)
		want := bruteForce(m)
		s, err := Solve(t.Context(), m, Options{})
		if err != nil {
			t.Fatalf("model %d: %v", i, err)
		}
		if math.IsInf(want, 1) {
			infeasible++
			if s.Status != Infeasible || s.X != nil {
				t.Fatalf("model %d: %+v: there is no solution", i, s)
			}
			continue
		}
		if s.Status != Optimal || math.Abs(s.Objective-want) > 1e-9 || !m.Feasible(s.X, 1e-9) || s.Bound > want+1e-6 {
			t.Fatalf("model %d: %+v: the best is %v", i, s, want)
		}
	}
	if infeasible == 0 || infeasible == 200 {
		t.Errorf("%d of 200 models without a solution: the test says little", infeasible)
	}
}

func TestUnboundedAndContinuous(t *testing.T) {
	for name, c := range map[string]struct {
		m    Model
		want Status
		x    float64
	}{
		"integer to infinity":    {Model{Columns: []Column{{Cost: -1, Upper: inf, Integer: true}}}, Unbounded, 0},
		"continuous to infinity": {Model{Columns: []Column{{Cost: 1, Lower: -inf, Upper: inf}}}, Unbounded, 0},
		"continuous": {
			Model{Columns: []Column{{Cost: -1, Upper: inf}}, Rows: []Row{{Lower: -inf, Upper: 3, Terms: []Term{{0, 2}}}}},
			Optimal, 1.5,
		},
		"crossed bounds":      {Model{Columns: []Column{{Lower: 2, Upper: 1, Integer: true}}}, Infeasible, 0},
		"no whole number":     {Model{Columns: []Column{{Lower: 0.2, Upper: 0.8, Integer: true}}}, Infeasible, 0},
		"a row without terms": {Model{Columns: []Column{{Cost: 1, Upper: 1}}, Rows: []Row{{Lower: 1, Upper: 1}}}, Infeasible, 0},
	} {
		s, err := Solve(t.Context(), &c.m, Options{})
		if err != nil || s.Status != c.want || c.want == Optimal && math.Abs(s.X[0]-c.x) > 1e-9 {
			t.Errorf("%s: %+v, %v: want %v %v", name, s, err, c.want, c.x)
		}
	}
}

// knapsack of 0-1 items whose optimum a dynamic programme finds.
func knapsack(r *rand.Rand, n, room int) (*Model, float64) {
	m := &Model{}
	row := Row{Lower: math.Inf(-1), Upper: float64(room)}
	best := make([]float64, room+1)
	for i := range n {
		weight, value := 1+r.IntN(50), float64(1+r.IntN(100))
		m.Columns = append(m.Columns, Column{Cost: -value, Upper: 1, Integer: true})
		row.Terms = append(row.Terms, Term{i, float64(weight)})
		for w := room; w >= weight; w-- {
			best[w] = max(best[w], best[w-weight]+value)
		}
	}
	m.Rows = []Row{row}
	return m, -best[room]
}

func TestKnapsack(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 2))
	for range 5 {
		m, want := knapsack(r, 60, 300)
		s, err := Solve(t.Context(), m, Options{Gap: 1e-9})
		if err != nil || s.Status != Optimal || math.Abs(s.Objective-want) > 1e-6 {
			t.Errorf("%v of cost %v, %v: want %v", s.Status, s.Objective, err, want)
		}
	}
}

// hard is jobs of whole lengths on machines: a makespan that no search proves soon.
func hard(jobs, machines int) *Model {
	r := rand.New(rand.NewPCG(3, 3))
	m := &Model{Columns: []Column{{Cost: 1, Upper: inf}}}
	loads := make([]Row, machines)
	for i := range loads {
		loads[i] = Row{Lower: math.Inf(-1), Terms: []Term{{0, -1}}}
	}
	for range jobs {
		length := float64(1000 + r.IntN(9000))
		one := Row{Lower: 1, Upper: 1}
		for i := range loads {
			m.Columns = append(m.Columns, Column{Upper: 1, Integer: true})
			c := len(m.Columns) - 1
			one.Terms = append(one.Terms, Term{c, 1})
			loads[i].Terms = append(loads[i].Terms, Term{c, length})
		}
		m.Rows = append(m.Rows, one)
	}
	m.Rows = append(m.Rows, loads...)
	return m
}

// roundRobin is a solution of hard.
func roundRobin(m *Model, jobs, machines int) []float64 {
	x := make([]float64, len(m.Columns))
	for j := range jobs {
		x[1+j*machines+j%machines] = 1
	}
	for _, r := range m.Rows[jobs:] {
		load := 0.0
		for _, t := range r.Terms[1:] {
			load += t.Value * x[t.Column]
		}
		x[0] = max(x[0], load)
	}
	return x
}

func TestCPULimit(t *testing.T) {
	needEngine(t)
	m := hard(50, 8)
	spent, release := threadSpent()
	defer release()
	s, err := Solve(t.Context(), m, Options{CPULimit: time.Second, Gap: 1e-12})
	if err != nil || s.Status != Feasible && s.Status != Unknown {
		t.Errorf("%v, %v: want a limit reached after 1s", s.Status, err)
	}
	if own := spent(); own > 500*time.Millisecond {
		t.Errorf("the search took %v of the caller's thread: it has one of its own", own)
	}
	if s.Status == Feasible && (!m.Feasible(s.X, 1e-6) || s.Bound > s.Objective) {
		t.Errorf("solution of cost %v, bound %v: no solution", s.Objective, s.Bound)
	}
	if math.IsInf(s.Bound, -1) {
		t.Error("no bound: the engine was given up instead of stopping")
	}
}

func TestContextEnds(t *testing.T) {
	needEngine(t)
	m := hard(50, 8)
	begin := roundRobin(m, 50, 8)
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	start := time.Now()
	s, err := Solve(ctx, m, Options{Start: begin, Gap: 1e-12})
	if err != nil || s.Status != Feasible || time.Since(start) > 20*time.Second || s.Objective > begin[0] {
		t.Errorf("%v of %v after %v, %v: want at most %v soon after 0.5s", s.Status, s.Objective, time.Since(start), err, begin[0])
	}
	if math.IsInf(s.Bound, -1) {
		t.Error("no bound: the engine was given up instead of stopping")
	}
	if s, err := Solve(ctx, m, Options{}); err != nil || s.Status != Unknown || s.X != nil {
		t.Errorf("after the end: %+v, %v", s, err)
	}
	if s, err := Solve(ctx, m, Options{Start: begin}); err != nil || s.Objective != begin[0] || s.X == nil {
		t.Errorf("after the end, with a start: %v of %v, %v", s.Status, s.Objective, err)
	}
}

// An engine that never looks at the clock is given up: what is left is the start.
func TestGivenUp(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	in, err := needEngine(t).start(context.WithValue(context.Background(), clockKey{}, clock{ctx, ctx}))
	if err == nil {
		m, _ := knapsack(rand.New(rand.NewPCG(4, 4)), 60, 300)
		in.load(m)
		in.call("Highs_run", in.model)
		err = in.err
	}
	if err == nil || !strings.Contains(err.Error(), "canceled") {
		t.Errorf("an instance that was given up ended with %v", err)
	}
}

func TestStart(t *testing.T) {
	m, best := knapsack(rand.New(rand.NewPCG(5, 5)), 40, 200)
	first, err := Solve(t.Context(), m, Options{Gap: 1e-9})
	if err != nil {
		t.Fatal(err)
	}
	s, err := Solve(t.Context(), m, Options{Start: first.X, Gap: 1e-9})
	if err != nil || s.Objective > best+1e-6 {
		t.Errorf("from the best there is: %v, %v: want %v", s.Objective, err, best)
	}
	bad := make([]float64, len(m.Columns))
	for i := range bad {
		bad[i] = 1
	}
	if _, err := Solve(t.Context(), m, Options{Start: bad}); err == nil || !strings.Contains(err.Error(), "start") {
		t.Errorf("a start with all items: %v", err)
	}
	if _, err := Solve(t.Context(), m, Options{Start: bad[:3]}); err == nil {
		t.Error("a start of three columns is taken")
	}
}

func TestValidate(t *testing.T) {
	nan := math.NaN()
	for want, m := range map[string]Model{
		"columns":                    {},
		"columns[1].cost":            {Columns: []Column{{}, {Cost: nan}}},
		"columns[0].lower":           {Columns: []Column{{Lower: nan}}},
		"columns[0].lower, upper":    {Columns: []Column{{Lower: inf, Upper: inf}}},
		"rows[0].lower":              {Columns: []Column{{}}, Rows: []Row{{Upper: nan}}},
		"rows[0].terms[0].column: 1": {Columns: []Column{{}}, Rows: []Row{{Terms: []Term{{1, 1}}}}},
		"rows[0].terms[1].column: 0": {Columns: []Column{{}}, Rows: []Row{{Terms: []Term{{0, 1}, {0, 1}}}}},
		"rows[1].terms[0].value":     {Columns: []Column{{}}, Rows: []Row{{}, {Terms: []Term{{0, inf}}}}},
	} {
		if _, err := Solve(t.Context(), &m, Options{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: want an error about %s", err, want)
		}
	}
}

// A call that goes wrong inside the engine harms its own instance alone.
func TestAFailedInstanceIsDiscarded(t *testing.T) {
	in, err := needEngine(t).start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if in.call("Highs_run", math.MaxUint32-64); in.err == nil {
		t.Error("an object outside of the memory runs")
	}
	before := in.err
	if in.alloc(8); in.err != before {
		t.Errorf("after a failure: %v", in.err)
	}
	m, best := knapsack(rand.New(rand.NewPCG(6, 6)), 20, 100)
	if s, err := Solve(t.Context(), m, Options{}); err != nil || math.Abs(s.Objective-best) > 1e-6 {
		t.Errorf("the next model: %v, %v: want %v", s.Objective, err, best)
	}
}

func TestSideBySide(t *testing.T) {
	var all sync.WaitGroup
	for seed := range uint64(8) {
		all.Go(func() {
			m, best := knapsack(rand.New(rand.NewPCG(seed, 7)), 30, 150)
			if s, err := Solve(t.Context(), m, Options{Gap: 1e-9}); err != nil || math.Abs(s.Objective-best) > 1e-6 {
				t.Errorf("seed %d: %v, %v: want %v", seed, s.Objective, err, best)
			}
		})
	}
	all.Wait()
}

// What a solve costs beside its search.
func BenchmarkSmallest(b *testing.B) {
	needEngine(b)
	m := &Model{Columns: []Column{{Cost: 1, Lower: 0.5, Upper: 9, Integer: true}}}
	for b.Loop() {
		if _, err := Solve(b.Context(), m, Options{}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkCompile(b *testing.B) {
	for b.Loop() {
		e, err := compile(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		e.runtime.Close(b.Context())
	}
}
