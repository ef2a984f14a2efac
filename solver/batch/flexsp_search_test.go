package batch

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/milp"
)

// known is a chunk without an engine.
func known(time, floor units.Seconds) *chunk {
	return &chunk{best: MicroBatch{Time: time}, ok: time < never, floor: floor, engine: fresh}
}

// The try that may become the fastest comes first, in it the chunk farthest from its
// floor; tries that can no longer win are left, and chunks at their floor.
func TestSearchLeavesOut(t *testing.T) {
	a, b, c, d := known(5, 2), known(4, 3), known(8, 7), known(12, 11.5)
	shared := known(1, 1)
	s := &search{a: &alike{p: &Problem{}}, tries: []try{
		{part{chunk: a}, part{chunk: b}, part{chunk: shared}}, // 6 to 10
		{part{chunk: c}, part{chunk: shared}},                 // 8 to 9
		{part{chunk: d}},                                      // 11.5
	}}
	// After a the first try is 8 to 9, the second too, and the earlier one goes on:
	// 9. Then the second, of floor 8, comes to 8.9, and the third begins at 11.5.
	for i, step := range []struct {
		want *chunk
		time units.Seconds
	}{{a, 4}, {b, 4}, {c, 7.9}, {nil, 0}} {
		got := s.next()
		if got != step.want {
			t.Fatalf("step %d: %+v: want %+v", i, got, step.want)
		}
		if got != nil {
			own := *got
			own.best.Time = step.time
			s.done(got, &own, nil)
		}
	}
	if best := s.best(); best != 8.9 {
		t.Errorf("best %v: want 8.9", best)
	}
	s.all = true
	if got := []*chunk{s.next(), s.next(), s.next()}; !slices.Contains(got, shared) || !slices.Contains(got, d) || got[2] != nil {
		t.Errorf("all that is left: %v", got)
	}
}

// A try that takes longer in all may win where more of the exchange hides behind its last
// micro-batch: it is not left out for the others' sum.
func TestSearchKeepsWhatMayHideMore(t *testing.T) {
	for behind, wanted := range map[units.Seconds]bool{0: false, 3: false, 10: true} {
		half, whole := known(5, 5), known(12, 10.5)
		half.best.Groups, half.engine = []Group{{Time: 5}}, solved
		s := &search{a: &alike{p: &Problem{Behind: behind}}, tries: []try{{part{chunk: half}, part{chunk: half}}, {part{chunk: whole}}}}
		if got := s.next(); (got == whole) != wanted {
			t.Errorf("%v behind: %+v is solved", behind, got)
		}
	}
}

// A try without a plan is no plan, whatever its floor.
func TestSearchWithoutPlans(t *testing.T) {
	lost := known(never, 1)
	s := &search{a: &alike{p: &Problem{}}, tries: []try{{part{chunk: lost}}}}
	if got := s.next(); got != lost {
		t.Fatalf("%v: want the one chunk", got)
	}
	s.done(lost, &chunk{}, nil)
	if s.next() != nil || s.best() != never {
		t.Error("a chunk without a plan is solved twice, or is a plan")
	}
}

// Leaving programmes out changes no result, and leaves some out.
func TestPrunedIsUnpruned(t *testing.T) {
	needsEngine(t)
	r := rand.New(rand.NewPCG(8, 8))
	solvedAll, solvedSome := 0, 0
	for i := range 9 {
		p := flexspProblem(4, 48, randomLengths(r, 4+r.IntN(6), 12000))
		if i%3 == 2 {
			p = inTwoPools(p)
		}
		p.Behind = units.Seconds(i%2) * 4 // longer than any micro-batch
		f := FlexSP{Single: true, Limit: time.Minute, Workers: 1 + i%2}.withDefaults()
		a, err := newAlike(p, func(int) bool { return true })
		if err != nil {
			t.Fatal(err)
		}
		var times [2]units.Seconds
		var counts [2]int
		for j := range times {
			s := &search{a: a, limit: f.Limit, all: j == 1, tries: f.cuts(t.Context(), a)}
			if err := s.run(t.Context(), f.Workers); err != nil {
				t.Fatal(err)
			}
			plan := bestTry(p, s.tries)
			for _, e := range Check(p, plan) {
				t.Error(e)
			}
			times[j], counts[j] = plan.Time, s.solved()
		}
		if times[0] != times[1] || counts[0] > counts[1] {
			t.Errorf("%v: %v with %d programmes: %v with all %d", p.Lengths, times[0], counts[0], times[1], counts[1])
		}
		solvedSome += counts[0]
		solvedAll += counts[1]
	}
	if solvedSome >= solvedAll*3/4 {
		t.Errorf("%d programmes of %d are solved: the test says little", solvedSome, solvedAll)
	}
}

// solved is how many programmes were.
func (s *search) solved() int {
	seen := map[*chunk]bool{}
	for _, t := range s.tries {
		for _, c := range t {
			if c.engine == solved {
				seen[c.chunk] = true
			}
		}
	}
	return len(seen)
}

// No plan of one micro-batch beats its floor, on equal and on unequal devices, and
// the floor is not far below.
func TestFloorExhaustive(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 9))
	near, all := 0, 0
	for i := range 60 {
		p := flexspProblem(4, 48, randomLengths(r, 1+r.IntN(5), 12000))
		p.MicroBase = units.Seconds(i%2) * 0.1
		if i%3 == 2 {
			p = inTwoPools(p)
		}
		a, err := newAlike(p, func(int) bool { return true })
		if err != nil {
			t.Fatal(err)
		}
		best := flexspExhaustive(p)
		got := floorOf(a, p.Lengths)
		if best == never {
			continue
		}
		all++
		if got > best {
			t.Errorf("%v: floor %v above %v", p.Lengths, got, best)
		}
		if got > best*0.8 {
			near++
		}
	}
	if all < 20 || near < all/3 {
		t.Errorf("%d of %d floors within a fifth of the best", near, all)
	}
}

// No solution of a programme costs less than the floor that ends its search early.
func TestFloorOfAProgramme(t *testing.T) {
	needsEngine(t)
	r := rand.New(rand.NewPCG(10, 10))
	near := 0
	for i := range 8 {
		p := flexspProblem(4, 48, randomLengths(r, 3+r.IntN(5), 8000))
		a, err := newAlike(p, func(int) bool { return true })
		if err != nil {
			t.Fatal(err)
		}
		c := FlexSP{Buckets: 2 + i%3}.withDefaults().begin(a, descending(p.Lengths))
		s, err := milp.Solve(t.Context(), &newProgramme(a, c).model, milp.Options{})
		if err != nil || s.Status == milp.Infeasible {
			continue
		}
		least := float64(c.onBuckets(a)) * milli
		if s.Status != milp.Optimal || least > s.Objective {
			t.Errorf("%v: %v of %v ms: the floor is %v", p.Lengths, s.Status, s.Objective, least)
		}
		if least > 0.8*s.Objective {
			near++
		}
	}
	if near < 3 {
		t.Errorf("%d floors within a fifth of the best", near)
	}
}

// Parts of the same lengths are one programme, and each gets a plan of its own
// sequences.
func TestEqualPartsAreSolvedOnce(t *testing.T) {
	lengths := slices.Repeat([]units.Tokens{9000}, 24)
	p := flexspProblem(8, 24, lengths)
	a, err := newAlike(p, func(int) bool { return true })
	if err != nil {
		t.Fatal(err)
	}
	distinct, parts := map[*chunk]bool{}, 0
	tries := FlexSP{}.withDefaults().cuts(t.Context(), a)
	for _, y := range tries {
		for _, c := range y {
			distinct[c.chunk] = true
			parts++
		}
	}
	if len(distinct) > parts/2 {
		t.Errorf("%d chunks of %d parts", len(distinct), parts)
	}
	for _, e := range Check(p, bestTry(p, tries)) {
		t.Error(e)
	}
}
