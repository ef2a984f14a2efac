package batch

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/evenkeel/evenkeel/internal/units"
)

// equalProblem draws a few equal sequences on two or three pools of a node each, whose
// devices train together in many ways, none of them much better than others.
func equalProblem(rng *rand.Rand) *Problem {
	p, first := &Problem{MicroBase: units.Seconds(0.3 * rng.Float64()), Fixed: 1}, 0
	for i := range 2 + rng.IntN(2) {
		var node []int
		for range 2 + rng.IntN(4) {
			node = append(node, first)
			first++
		}
		p.Fleet = append(p.Fleet, Pool{Device: fmt.Sprint("type ", i), Ranks: [][]int{node}})
	}
	var q quadratic
	add := func(uses []int) {
		speed, degree := 0.0, 0
		for pool, u := range uses {
			speed += float64(u) / float64(1+pool)
			degree += u
		}
		if degree == 0 {
			return
		}
		p.Classes = append(p.Classes, Class{Name: fmt.Sprint(uses), Uses: uses, Base: units.Seconds(0.3 * rng.Float64()), Cap: units.Tokens((1000 + rng.IntN(7000)) * degree)})
		q.speed = append(q.speed, math.Pow(speed, 0.9)*(0.8+0.4*rng.Float64()))
	}
	for pool, f := range p.Fleet {
		alone := make([]int, len(p.Fleet))
		alone[pool] = f.Count()
		add(alone)
	}
	for range 12 {
		uses := make([]int, len(p.Fleet))
		for pool, f := range p.Fleet {
			uses[pool] = rng.IntN(f.Count() + 1)
		}
		add(uses)
	}
	q.b = 1e-3
	length := units.Tokens(2000 + rng.IntN(6000))
	for i, c := range p.Classes { // what holds no sequence is no class
		p.Classes[i].Cap = max(c.Cap, length)
	}
	p.Costs, p.Lengths = q, slices.Repeat([]units.Tokens{length}, 3+rng.IntN(6))
	return p
}

// Of few equal sequences the plan is the best there is, to within the time that halving
// leaves.
func TestEqualSequencesAgainstExactSearch(t *testing.T) {
	if testing.Short() {
		t.Skip("long; goroutines have shorter tests")
	}
	rng := rand.New(rand.NewPCG(4, 1))
	optimal, worst, n := 0, 0.0, 60
	for i := range n {
		p := equalProblem(rng)
		if i%3 == 2 {
			p.Hidden = units.Seconds(4 * rng.Float64()) // longer or shorter than groups' passes
			p.BothPasses, p.Layers = i%2 == 0, i%4
		}
		if err := p.Validate(); err != nil {
			t.Fatal(err)
		}
		if i%3 == 1 {
			p.Behind = units.Seconds(1 + i%5*4) // less than a group's backward pass takes, and more
		}
		best, plan := exact(p), newKnapsack(p).plan(t.Context(), math.Inf(1))
		over := float64(plan.Time)/best - 1
		if over < -1e-9 {
			t.Fatalf("problem %d: %v is less than the least, %v", i, plan.Time, best)
		}
		if over < 1e-4 {
			optimal++
		}
		worst = max(worst, over)
	}
	t.Logf("optimal on %d of %d, worst %.2f %% above", optimal, n, 100*worst)
	if optimal*100 < n*95 || worst > 0.02 {
		t.Errorf("optimal on %d of %d, worst %.2f %% above", optimal, n, 100*worst)
	}
}

// A knapsack is of few equal sequences on devices of few kinds, and finds nothing that
// takes as long as what there is.
func TestWhatAKnapsackIsOf(t *testing.T) {
	p := equalProblem(rand.New(rand.NewPCG(4, 2)))
	best := newKnapsack(p).plan(t.Context(), math.Inf(1))
	if found := Check(p, placed(t, p, best)); len(found) > 0 {
		t.Fatal(found)
	}
	if again := newKnapsack(p).plan(t.Context(), float64(best.Time)); again != nil {
		t.Errorf("%v is no less than %v", again.Time, best.Time)
	}
	if slower := newKnapsack(p).plan(t.Context(), float64(best.Time)*1.5); slower == nil || float64(slower.Time) > float64(best.Time)*1.001 {
		t.Errorf("%+v, %v without a limit", slower, best.Time)
	}
	for _, behind := range []units.Seconds{1, 3, 9, 27} { // the last micro-batch of a step takes longer then
		p := equalProblem(rand.New(rand.NewPCG(4, uint64(behind))))
		p.Behind = behind
		if found, least := newKnapsack(p).plan(t.Context(), math.Inf(1)), exact(p); float64(found.Time) > least*1.001 {
			t.Errorf("%v behind: %v, the least is %v", behind, found.Time, least)
		}
	}
	more, unequal, many := *p, *p, *p
	more.Lengths = slices.Repeat(p.Lengths[:1], alikeSequences+1)
	unequal.Lengths = append(slices.Clone(p.Lengths), p.Lengths[0]+1)
	many.Fleet = slices.Repeat(p.Fleet, 6)
	for name, x := range map[string]*Problem{"many sequences": &more, "unequal ones": &unequal, "many kinds of devices": &many} {
		if newKnapsack(x) != nil {
			t.Errorf("a knapsack of %s", name)
		}
	}
}

// placed gives a plan's groups their ranks.
func placed(t *testing.T, p *Problem, plan *Plan) *Plan {
	t.Helper()
	if plan == nil {
		t.Fatal("no plan")
	}
	for i := range plan.Micro {
		if err := Place(p, plan.Micro[i].Groups); err != nil {
			t.Fatal(err)
		}
	}
	return plan
}
