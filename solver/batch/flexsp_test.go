package batch

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/evenkeel/evenkeel/internal/units"
)

func randomLengths(r *rand.Rand, n int, most units.Tokens) []units.Tokens {
	all := make([]units.Tokens, n)
	for i := range all {
		all[i] = min(most, units.Tokens(math.Exp(7+1.7*r.NormFloat64()))/128*128+128)
	}
	return all
}

// No other way to cut the sequences has a smaller largest part.
func TestChunksExhaustive(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for range 300 {
		n := 1 + r.IntN(9)
		lengths := make([]units.Tokens, n)
		for i := range lengths {
			lengths[i] = units.Tokens(1 + r.IntN(20))
		}
		order := r.Perm(n)
		m := 1 + r.IntN(n)
		// DP[k][i] of equation (23): the least largest part of the first k in i parts.
		least := make([][]units.Tokens, n+1)
		for k := range least {
			least[k] = slices.Repeat([]units.Tokens{1 << 30}, m+1)
		}
		least[0][0] = 0
		for k := 1; k <= n; k++ {
			for i := 1; i <= m; i++ {
				for j := range k {
					least[k][i] = min(least[k][i], max(least[j][i-1], tokensOf(lengths, order[j:k])))
				}
			}
		}
		parts := chunks(lengths, order, m)
		var largest units.Tokens
		for _, part := range parts {
			largest = max(largest, tokensOf(lengths, part))
		}
		if len(parts) != m || largest != least[n][m] || !slices.Equal(slices.Concat(parts...), order) {
			t.Fatalf("%v in %d: %v, largest %d: want %d", lengths, m, parts, largest, least[n][m])
		}
	}
	if chunks([]units.Tokens{1}, []int{0}, 2) != nil {
		t.Error("one sequence is cut in two parts")
	}
}

// No other buckets of consecutive sequences add fewer tokens.
func TestBucketsExhaustive(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 2))
	for range 300 {
		n, want := 2+r.IntN(10), 1+r.IntN(4)
		lengths := make([]units.Tokens, n)
		for i := range lengths {
			lengths[i] = units.Tokens(1 + r.IntN(15))
		}
		order := descending(lengths)
		got := buckets(lengths, order, want, 1<<40)
		err := make([][]units.Tokens, n+1) // least tokens added to the k longest by q buckets
		for k := range err {
			err[k] = slices.Repeat([]units.Tokens{1 << 30}, want+1)
		}
		err[0][0] = 0
		for k := 1; k <= n; k++ {
			for q := 1; q <= want; q++ {
				for j := range k {
					added := lengths[order[j]]*units.Tokens(k-j) - tokensOf(lengths, order[j:k])
					err[k][q] = min(err[k][q], err[j][q-1]+added)
				}
			}
		}
		var added units.Tokens
		var members []int
		for i, b := range got {
			added += b.bound*units.Tokens(len(b.members)) - tokensOf(lengths, b.members)
			members = append(members, b.members...)
			if i > 0 && b.bound < got[i-1].bound || lengths[b.members[0]] != b.bound {
				t.Fatalf("bucket %d: %+v", i, b)
			}
		}
		slices.Sort(members)
		if n <= want {
			if len(got) != n || added != 0 {
				t.Fatalf("%d sequences in %d buckets, %d wanted, %d tokens added", n, len(got), want, added)
			}
		} else if least := slices.Min(err[n][1:]); len(got) > want || added != least {
			t.Fatalf("%v: %d buckets add %d tokens: %d of them need %d", lengths, len(got), added, want, least)
		}
		for i, k := range members {
			if i != k {
				t.Fatalf("members %v of %d sequences", members, n)
			}
		}
	}
}

// More buckets are taken where rounding up would cost the chunk its place.
func TestBucketsAreRaised(t *testing.T) {
	lengths := randomLengths(rand.New(rand.NewPCG(3, 3)), 400, 30000)
	order := descending(lengths)
	tokens := tokensOf(lengths, order)
	capacity := tokens + tokens/400
	all := buckets(lengths, order, 16, capacity)
	var bucketed units.Tokens
	for _, b := range all {
		bucketed += b.bound * units.Tokens(len(b.members))
	}
	if len(all) <= 16 || bucketed > (tokens+capacity)/2 {
		t.Errorf("%d buckets of %d tokens for %d, %d fit", len(all), bucketed, tokens, capacity)
	}
	if n := len(buckets(lengths, order, 16, 1<<40)); n != 16 {
		t.Errorf("%d buckets where there is room: want 16", n)
	}
}

// flexspExhaustive is the least time of one micro-batch with any groups of powers
// of two and any assignment.
func flexspExhaustive(p *Problem) units.Seconds {
	best := never
	groups := []share{}
	a := &alike{p: p, devices: p.Devices(), levels: levels(p, false, func(int) bool { return true })}
	var try func(k, left int)
	try = func(k, left int) {
		if k == len(p.Lengths) {
			if m, ok := a.realise(groups); ok {
				best = min(best, m.Time)
			}
			return
		}
		for i := range groups {
			groups[i].sequences = append(groups[i].sequences, k)
			try(k+1, left)
			groups[i].sequences = groups[i].sequences[:len(groups[i].sequences)-1]
		}
		for l, v := range a.levels {
			if v.degree <= left {
				groups = append(groups, share{l, []int{k}})
				try(k+1, left-v.degree)
				groups = groups[:len(groups)-1]
			}
		}
	}
	try(0, a.devices)
	return best
}

// With as many buckets as sequences and time enough, one micro-batch is planned as
// well as can be.
func TestFlexSPExhaustive(t *testing.T) {
	needsEngine(t)
	r := rand.New(rand.NewPCG(4, 4))
	planned := 0
	for range 15 {
		p := flexspProblem(4, 48, randomLengths(r, 1+r.IntN(4), 12000))
		want := flexspExhaustive(p)
		plan, err := FlexSP{Single: true, Tries: 1}.Solve(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range Check(p, plan) {
			t.Error(e)
		}
		if len(plan.Micro) > 1 {
			continue // memory does not hold all at once
		}
		planned++
		if math.Abs(float64(plan.Time/want)-1) > 2e-4 { // the engine's gap is 1e-4
			t.Errorf("%v: %v: the best is %v", p.Lengths, plan.Time, want)
		}
	}
	if planned < 5 {
		t.Errorf("only %d batches of one micro-batch", planned)
	}
}

// Random fleets, equal and unequal, with and without groups of one.
func TestFlexSPPlansAreRight(t *testing.T) {
	needsEngine(t)
	r := rand.New(rand.NewPCG(5, 5))
	for i := range 12 {
		p := flexspProblem([]int{8, 16, 32}[i%3], 40, nil)
		p.Lengths = randomLengths(r, 1+r.IntN(60), p.Classes[len(p.Classes)-1].Cap)
		if i%2 == 1 {
			p = inTwoPools(p)
		}
		for _, s := range []Strategy{
			FlexSP{Single: i%4 < 2, Limit: 100 * time.Millisecond, Tries: 2, Buckets: 4 + r.IntN(12)},
			FCP{},
		} {
			plan, err := s.Solve(t.Context(), p)
			if err != nil {
				t.Fatalf("%d, %s: %v", i, s.Name(), err)
			}
			for _, e := range Check(p, plan) {
				t.Errorf("%d, %s: %v", i, s.Name(), e)
			}
		}
	}
}

// inTwoPools makes the second half of the devices half as fast, with groups of
// either half and, of all devices, of both.
func inTwoPools(p *Problem) *Problem {
	half := p.Devices() / 2
	q := &Problem{Lengths: p.Lengths, MicroBase: p.MicroBase, Fixed: p.Fixed}
	q.Fleet = []Pool{{Device: "fast", Ranks: alikeRanks(half, half)}, {Device: "slow", Ranks: alikeRanks(half, half)}}
	for i := range q.Fleet[1].Ranks[0] {
		q.Fleet[1].Ranks[0][i] += half
	}
	costs := slowHalf{base: p.Costs}
	for i, c := range p.Classes {
		for pool, slow := range []float64{1, 2} {
			if c.Degree() > half && pool == 1 {
				continue
			}
			v := c
			v.One = false
			v.Uses = []int{half, half}
			if c.Degree() <= half {
				v.Uses = []int{0, 0}
				v.Uses[pool] = c.Degree()
			} else {
				slow = 2
			}
			q.Classes = append(q.Classes, v)
			costs.class, costs.slow = append(costs.class, i), append(costs.slow, slow)
		}
	}
	q.Costs = costs
	return q
}

type slowHalf struct {
	base  Pricer
	class []int
	slow  []float64
}

func (c slowHalf) Time(class int, s units.Tokens) units.Seconds {
	return c.base.Time(c.class[class], s) * units.Seconds(c.slow[class])
}

// The start that the engine gets is a solution of the programme, and leads back to
// the groups it came from.
func TestTheStartIsASolution(t *testing.T) {
	r := rand.New(rand.NewPCG(6, 6))
	starts := 0
	for range 20 {
		p := flexspProblem(16, 40, randomLengths(r, 1+r.IntN(100), 20000))
		a, err := newAlike(p, func(int) bool { return true })
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range chunks(p.Lengths, descending(p.Lengths), min(3, len(p.Lengths))) {
			c := FlexSP{}.withDefaults().begin(a, part)
			g := newProgramme(a, c)
			if err := g.model.Validate(); err != nil {
				t.Fatal(err)
			}
			x := g.start(a, c)
			if x == nil {
				continue
			}
			starts++
			m, ok := a.realise(g.shares(c, x))
			if !ok || float64(m.Time)*milli > x[0]*(1+1e-9) {
				t.Errorf("a start of %v ms leads to %v, %v", x[0], m.Time, ok)
			}
		}
	}
	if starts < 20 {
		t.Errorf("only %d starts", starts)
	}
}

func TestFlexSPWhenTheContextEnds(t *testing.T) {
	p := flexspProblem(64, 30, randomLengths(rand.New(rand.NewPCG(7, 7)), 512, 100000))
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	plan, err := FlexSP{Single: true}.Solve(ctx, p)
	if err != nil || len(Check(p, plan)) > 0 {
		t.Errorf("%v, %v", err, Check(p, plan))
	}
	if _, err := (FlexSP{}).Solve(ctx, p); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("after the end: %v", err)
	}
	if _, err := (FCP{}).Solve(ctx, p); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("fcp after the end: %v", err)
	}
}

func TestFlexSPErrors(t *testing.T) {
	p := flexspProblem(8, 40, []units.Tokens{1 << 30})
	var long *TooLongError
	if _, err := (FlexSP{}).Solve(t.Context(), p); !errors.As(err, &long) {
		t.Errorf("a sequence too long: %v", err)
	}
	p.Lengths[0] = 1000
	p.Classes[0].Uses[0] = 3
	p.Classes = p.Classes[:1]
	var illegal *IllegalError
	if _, err := (FlexSP{}).Solve(t.Context(), p); !errors.As(err, &illegal) {
		t.Errorf("groups of three only: %v", err)
	}
}

func TestFlexSPOnOneDevice(t *testing.T) {
	needsEngine(t)
	p := flexspProblem(1, 200, []units.Tokens{1000})
	if plan, err := (FlexSP{}).Solve(t.Context(), p); err != nil || len(plan.Micro) != 1 {
		t.Errorf("one device: %v", err)
	}
}

// needsEngine skips a test that compiles the MILP engine, which the race detector
// slows to 25 s of processor time; package milp's own tests do it there.
func needsEngine(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("compiles the MILP engine")
	}
}
