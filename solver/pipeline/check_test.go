package pipeline

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	costs "github.com/evenkeel/evenkeel/costmodel/pipeline"
	"github.com/evenkeel/evenkeel/internal/units"
)

// soundPlan is a long sequence in two slices and two short ones, on two stages of nodes of real
// devices, of three layers; simulated.
func soundPlan(t testing.TB) (*Problem, *costs.Plan) {
	t.Helper()
	p := byLaws(t, "2x2 h100_sxm", 3, 3000, 10000, 2000)
	order := func() []costs.Op {
		return []costs.Op{{Chunk: 0}, {Chunk: 1}, {Chunk: 1, Backward: true}, {Chunk: 0, Backward: true}, {Chunk: 2}, {Chunk: 2, Backward: true}}
	}
	plan := &costs.Plan{
		Stages:    []costs.Stage{{Ranks: []int{0, 1}, Layers: 2}, {Ranks: []int{2, 3}, Layers: 1}},
		Chunks:    []costs.Chunk{{Sequence: 1, Slice: 6000}, {Sequence: 1, Context: 6000, Slice: 4000, Whole: []int{0}}, {Sequence: -1, Whole: []int{2}}},
		Recompute: [][]int{{2, 0, 1}, {0, 1, 0}},
		Orders:    [][]costs.Op{order(), order()},
	}
	if err := p.Simulate(plan); err != nil {
		t.Fatal(err)
	}
	return p, plan
}

func TestCheckAcceptsWhatWasSimulated(t *testing.T) {
	p, plan := soundPlan(t)
	if found := Check(p.Costs, plan); len(found) > 0 {
		t.Errorf("%v", found)
	}
}

// damage is one thing wrong with a plan, and what must be said of it.
type damage struct {
	want string
	do   func(*costs.Plan)
}

// moved puts a pass off.
func moved(o *costs.Op, by units.Seconds) { o.Start, o.End = o.Start+by, o.End+by }

// withoutPrices are damages that a document shows by itself.
func withoutPrices() []damage {
	inf, nan := units.Seconds(math.Inf(1)), units.Seconds(math.NaN())
	return []damage{
		{"stages[0].layers: 0: want 1 to 3", func(p *costs.Plan) { p.Stages[0].Layers = 0 }},
		{"stages[1].layers: -1: want 1 to 3", func(p *costs.Plan) { p.Stages[1].Layers = -1 }},
		{"stages[0].layers: 4: want 1 to 3", func(p *costs.Plan) { p.Stages[0].Layers = 4 }},
		{"stages: have 4 layers: the model has 3", func(p *costs.Plan) { p.Stages[1].Layers = 2 }},
		{"stages: have 2 layers: the model has 3", func(p *costs.Plan) { p.Stages[0].Layers = 1 }},
		{"stages: have 0 layers: the model has 3", func(p *costs.Plan) { p.Stages = nil }},
		{"stages[1].ranks: none", func(p *costs.Plan) { p.Stages[1].Ranks = nil }},
		{"stages[1].ranks: 4: there are 4 devices", func(p *costs.Plan) { p.Stages[1].Ranks[1] = 4 }},
		{"stages[0].ranks: -1: there are 4 devices", func(p *costs.Plan) { p.Stages[0].Ranks[0] = -1 }},
		{"stages[1].ranks: 1 is in stage 0 already", func(p *costs.Plan) { p.Stages[1].Ranks[0] = 1 }},
		{"stages[0].ranks: 1 after 1: want rising ranks", func(p *costs.Plan) { p.Stages[0].Ranks[0] = 1 }},
		{"stages[0].ranks: 0 after 1: want rising ranks", func(p *costs.Plan) { p.Stages[0].Ranks = []int{1, 0} }},
		{"recomputed_layers, orders: of 1 and 2 stages: there are 2", func(p *costs.Plan) { p.Recompute = p.Recompute[1:] }},
		{"recomputed_layers, orders: of 2 and 3 stages: there are 2", func(p *costs.Plan) { p.Orders = append(p.Orders, nil) }},
		{"recomputed_layers[1]: of 2 chunks: there are 3", func(p *costs.Plan) { p.Recompute[1] = p.Recompute[1][:2] }},
		{"recomputed_layers[1][1]: 2: stage 1 has 1 layers", func(p *costs.Plan) { p.Recompute[1][1] = 2 }},
		{"recomputed_layers[0][2]: -1: stage 0 has 2 layers", func(p *costs.Plan) { p.Recompute[0][2] = -1 }},

		{"chunks[0]: has no tokens, or no slice and sequence 1 behind 0 tokens: want -1 and 0", func(p *costs.Plan) { p.Chunks[0].Slice = 0 }},
		{"chunks[0]: has no tokens, or no slice and sequence 1 behind 0 tokens: want -1 and 0", func(p *costs.Plan) { p.Chunks[0].Slice = -1 }},
		{"chunks[2]: has no tokens, or no slice and sequence -1 behind 0 tokens: want -1 and 0", func(p *costs.Plan) { p.Chunks[2].Whole = nil }},
		{"chunks[2]: has no tokens, or no slice and sequence 2 behind 0 tokens: want -1 and 0", func(p *costs.Plan) { p.Chunks[2].Sequence = 2 }},
		{"chunks[2]: has no tokens, or no slice and sequence -1 behind 1 tokens: want -1 and 0", func(p *costs.Plan) { p.Chunks[2].Context = 1 }},
		{"chunks[0]: sequence 3: there are 3", func(p *costs.Plan) { p.Chunks[0].Sequence = 3 }},
		{"chunks[0]: sequence -1: there are 3", func(p *costs.Plan) { p.Chunks[0].Sequence = -1 }},
		{"chunks[1]: sequence 3: there are 3", func(p *costs.Plan) { p.Chunks[1].Whole[0] = 3 }},
		{"chunks[1]: sequence -1: there are 3", func(p *costs.Plan) { p.Chunks[1].Whole[0] = -1 }},
		{"chunks[1]: has tokens 5999 to 9999 of sequence 1, which has 10000, and chunks before have up to 6000", func(p *costs.Plan) { p.Chunks[1].Context = 5999 }},
		{"chunks[0]: has tokens 1 to 6001 of sequence 1, which has 10000, and chunks before have up to 0", func(p *costs.Plan) { p.Chunks[0].Context = 1 }},
		{"chunks[0]: has tokens -1 to 5999 of sequence 1, which has 10000, and chunks before have up to 0", func(p *costs.Plan) { p.Chunks[0].Context = -1 }},
		{"chunks[1]: has tokens 6000 to 10001 of sequence 1, which has 10000, and chunks before have up to 6000", func(p *costs.Plan) { p.Chunks[1].Slice = 4001 }},
		{"chunks: have 9999 of the 10000 tokens of sequence 1", func(p *costs.Plan) { p.Chunks[1].Slice = 3999 }},
		{"chunks: have 0 of the 3000 tokens of sequence 0", func(p *costs.Plan) { p.Chunks[1].Whole = nil }},
		{"chunks: have 0 of the 3000 tokens of sequence 0", func(p *costs.Plan) { p.Chunks = nil }},
		{"chunks[2]: has tokens 0 to 3000 of sequence 0, which has 3000, and chunks before have up to 3000", func(p *costs.Plan) { p.Chunks[2].Whole = []int{2, 0} }},
		{"chunks[2]: has tokens 0 to 10000 of sequence 1, which has 10000, and chunks before have up to 10000", func(p *costs.Plan) { p.Chunks[2].Whole = []int{2, 1} }},
		{"chunks[0]: has tokens 6000 to 10000 of sequence 1, which has 10000, and chunks before have up to 0", func(p *costs.Plan) { p.Chunks[0], p.Chunks[1] = p.Chunks[1], p.Chunks[0] }},
		// What wraps around adds up as well.
		{"chunks[1]: has tokens 6000 to -", func(p *costs.Plan) { p.Chunks[1].Slice = math.MaxInt64 }},
		{"stages[0].layers: 9223372036854775807: want 1 to 3", func(p *costs.Plan) { p.Stages[0].Layers = math.MaxInt64 }},

		{"step_s: 0 s: want a time above 0", func(p *costs.Plan) { p.Time = 0 }},
		{"step_s: -1 s: want a time above 0", func(p *costs.Plan) { p.Time = -1 }},
		{"step_s: NaN", func(p *costs.Plan) { p.Time = nan }},
		{"step_s: +Inf", func(p *costs.Plan) { p.Time = inf }},
		{"orders[1]: has 5 passes: want a forward and a backward one of 3 chunks", func(p *costs.Plan) { p.Orders[1] = p.Orders[1][:5] }},
		{"orders[1]: has 7 passes: want a forward and a backward one of 3 chunks", func(p *costs.Plan) { p.Orders[1] = append(p.Orders[1], p.Orders[1][0]) }},
		{"orders[0][3].chunk: 3: there are 3", func(p *costs.Plan) { p.Orders[0][3].Chunk = 3 }},
		{"orders[0][3].chunk: -1: there are 3", func(p *costs.Plan) { p.Orders[0][3].Chunk = -1 }},
		{"orders[0]: want a forward and a backward pass of chunk 1", func(p *costs.Plan) { p.Orders[0][1].Chunk = 0 }},
		{"orders[1]: want a forward and a backward pass of chunk 0", func(p *costs.Plan) { p.Orders[1][3].Backward = false }},
		{"orders[1][0]: from -1 s to ", func(p *costs.Plan) { p.Orders[1][0].Start = -1 }},
		{"orders[1][5]: from NaN", func(p *costs.Plan) { p.Orders[1][5].Start = nan }},
		{"orders[0][5]: from ", func(p *costs.Plan) { p.Orders[0][5].End = inf }},
		{"orders[0][5]: from ", func(p *costs.Plan) { p.Orders[0][5].End = nan }},
		{"orders[0][2]: from ", func(p *costs.Plan) { p.Orders[0][2].End = p.Orders[0][2].Start * 0.99 }},
		{"orders[0][5]: from ", func(p *costs.Plan) { moved(&p.Orders[0][5], p.Time) }},
		{"orders[0][1].start_s: ", func(p *costs.Plan) { p.Orders[0][1].Start *= 0.99 }},
		{"orders[1][2].start_s: ", func(p *costs.Plan) { p.Orders[1][1].End *= 1.001 }},
		{"orders[0][3].start_s: ", func(p *costs.Plan) { p.Orders[0][2], p.Orders[0][3] = p.Orders[0][3], p.Orders[0][2] }},
		{"orders[1]: chunk 2 goes backward at ", func(p *costs.Plan) {
			p.Orders[1][4].Backward, p.Orders[1][5].Backward = true, false
		}},
		{"orders[1]: chunk 1 is not behind chunk 0 of the same sequence forward, and before it backward", func(p *costs.Plan) {
			p.Orders[1][0].Chunk, p.Orders[1][1].Chunk = 1, 0
		}},
		{"orders[0]: chunk 1 is not behind chunk 0 of the same sequence forward, and before it backward", func(p *costs.Plan) {
			p.Orders[0][2].Chunk, p.Orders[0][3].Chunk = 0, 1
		}},
	}
}

// withPrices are damages that take prices to see.
func withPrices() []damage {
	return []damage{
		{"orders[0]: chunk 0 takes ", func(p *costs.Plan) { p.Orders[0][0].End *= 0.999 }},
		{"orders[1]: chunk 2 takes ", func(p *costs.Plan) { p.Orders[1][5].Start += 1e-6 * p.Time }},
		{"orders[0]: chunk 1 takes ", func(p *costs.Plan) { p.Recompute[0][1] = 1 }},
		{"orders[1]: chunk 1 takes ", func(p *costs.Plan) { p.Recompute[1][1] = 0 }},
		{"orders[0]: chunk 0 takes ", func(p *costs.Plan) { p.Stages[0].Layers, p.Stages[1].Layers, p.Recompute[0][0] = 1, 2, 1 }},
		{"orders[0]: chunk 0 takes ", func(p *costs.Plan) { p.Chunks[0].Slice, p.Chunks[1].Context, p.Chunks[1].Slice = 5000, 5000, 5000 }},
		{"orders[0]: chunk 2 takes ", func(p *costs.Plan) { p.Chunks[1].Whole, p.Chunks[2].Whole = nil, []int{2, 0} }},
		{"orders[0]: chunk 0 takes ", func(p *costs.Plan) { p.Stages[0].Ranks = []int{0} }},
		{"orders[1]: chunk 0 begins at ", func(p *costs.Plan) { moved(&p.Orders[1][0], -1e-6*p.Time) }},
		{"what it needs of stage 0 is there at ", func(p *costs.Plan) { moved(&p.Orders[1][0], -1e-6*p.Time) }},
		{"what it needs of stage 1 is there at ", func(p *costs.Plan) { moved(&p.Orders[0][2], -1e-6*p.Time) }},
		{"step_s: ", func(p *costs.Plan) { p.Time *= 1.0001 }},
		{"the last stage has updated its parameters at ", func(p *costs.Plan) {
			p.Time = max(p.Orders[0][5].End, p.Orders[1][5].End) // and has no time for that
		}},
	}
}

func says(found []error, want string) bool {
	return slices.ContainsFunc(found, func(err error) bool { return strings.Contains(err.Error(), want) })
}

func TestCheckNoticesEveryBreak(t *testing.T) {
	p, sound := soundPlan(t)
	for _, x := range slices.Concat(withoutPrices(), withPrices()) {
		plan := deep(sound)
		x.do(plan)
		if found := Check(p.Costs, plan); !says(found, x.want) {
			t.Errorf("want %q among %v", x.want, found)
		}
	}
	// What takes prices to see is no fault of the rules.
	for _, x := range withPrices() {
		plan := deep(sound)
		x.do(plan)
		b := batch{p.Lengths, p.Layers, p.Devices()}
		if found := slices.Concat(b.rules(plan), b.times(plan)); len(found) > 0 {
			t.Errorf("%q: without prices: %v", x.want, found)
		}
	}
}

// deep copies a plan with all that is in it.
func deep(p *costs.Plan) *costs.Plan {
	q := p.Clone()
	for s := range q.Stages {
		q.Stages[s].Ranks = slices.Clone(q.Stages[s].Ranks)
	}
	for k := range q.Chunks {
		q.Chunks[k].Whole = slices.Clone(q.Chunks[k].Whole)
	}
	return q
}

// However much is wrong, a hundred violations are enough.
func TestCheckStopsAtAHundred(t *testing.T) {
	p := batchOf(t, published(2, 0), slices.Repeat([]units.Tokens{100}, 300)...)
	stages, err := p.equalStages(2)
	if err != nil {
		t.Fatal(err)
	}
	plan := planOf(stages, []*flight{newFlight(p.packed(100))}, nil)
	if err := p.Run(plan); err != nil {
		t.Fatal(err)
	}
	for s := range plan.Orders {
		for i := range plan.Orders[s] {
			plan.Orders[s][i].Start = -1
		}
	}
	if found := Check(p.Costs, plan); len(found) != 100 {
		t.Errorf("%d violations", len(found))
	}
}

// Of whatever strategies plan, every pass begins as soon as it may: one that is said to begin
// sooner breaks some rule, and so does one that takes less.
func TestCheckFindsWhatBeginsTooSoon(t *testing.T) {
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 9))
		p, f := drawnFlight(t, r)
		n := 1
		if p.Devices()%2 == 0 && p.Layers > 1 {
			n = 2
		}
		stages, err := p.equalStages(n)
		if err != nil {
			t.Fatal(err)
		}
		plan := planOf(stages, []*flight{f}, nil)
		if err := p.Run(plan); err != nil {
			t.Fatal(err)
		}
		if found := Check(p.Costs, plan); len(found) > 0 {
			t.Fatalf("seed %d: %v", seed, found)
		}
		s := r.IntN(n)
		i := r.IntN(len(plan.Orders[s]))
		sooner, by := deep(plan), units.Seconds(0.001+0.9*r.Float64())*plan.Orders[s][i].Start
		moved(&sooner.Orders[s][i], -by)
		if by > 1e-6*plan.Time && len(Check(p.Costs, sooner)) == 0 {
			t.Errorf("seed %d: orders[%d][%d] begins %v sooner than it may", seed, s, i, by)
		}
		less := deep(plan)
		if o := &less.Orders[s][i]; o.End-o.Start > 1e-5*plan.Time {
			o.End -= (o.End - o.Start) / 2
			if !says(Check(p.Costs, less), "its layers take") {
				t.Errorf("seed %d: orders[%d][%d] takes half as long as it does", seed, s, i)
			}
		}
	}
}
