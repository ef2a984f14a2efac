package pipeline

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
)

// slowly is when passes begin and end by what holds of them all at once: from moments that
// are too early, whatever begins before something that it needs has ended is put off, until
// nothing is. The result is by stage and place in its order, and the plan's time.
func slowly(c *Costs, p *Plan) (ops [][]Op, time units.Seconds) {
	for _, order := range p.Orders {
		ops = append(ops, slices.Clone(order))
		for i := range ops[len(ops)-1] {
			ops[len(ops)-1][i].Start, ops[len(ops)-1][i].End = 0, 0
		}
	}
	took := func(s int, o Op) units.Seconds {
		w := c.Work(p.Stages[s].Ranks, p.Chunks[o.Chunk])
		layers, again := units.Seconds(p.Stages[s].Layers), units.Seconds(p.Recompute[s][o.Chunk])
		if o.Backward {
			return layers*w.Backward + again*w.Again
		}
		if s == len(p.Stages)-1 {
			return layers*w.Forward + w.Loss
		}
		return layers * w.Forward
	}
	for changed := true; changed; {
		changed = false
		for s := range ops {
			for i := range ops[s] {
				o := &ops[s][i]
				begin := units.Seconds(0)
				if i > 0 {
					begin = ops[s][i-1].End
				}
				for _, need := range neededBy(p, s, o.Chunk, o.Backward) {
					j := slices.IndexFunc(ops[need[0]], func(x Op) bool { return x.Chunk == need[1] && x.Backward == (need[2] == 1) })
					there := ops[need[0]][j].End
					if need[0] != s {
						there += c.Send(p.Stages[min(s, need[0])].Ranks, p.Stages[max(s, need[0])].Ranks, c.Tokens(p.Chunks[o.Chunk]))
					}
					begin = max(begin, there)
				}
				if end := begin + took(s, *o); begin != o.Start || end != o.End {
					o.Start, o.End, changed = begin, end, true
				}
			}
		}
	}
	// A table that the first stage and the last one both have is added up when all they have to add
	// up among themselves is, and before either updates anything.
	added := func(s int) units.Seconds { return ops[s][len(ops[s])-1].End + c.Finish(p, s).Gradients }
	for s := range ops {
		from := added(s)
		if s == 0 || s == len(ops)-1 {
			if tied := c.Tied(p); tied > 0 {
				from = max(added(0), added(len(ops)-1)) + tied
			}
		}
		time = max(time, from+c.Finish(p, s).Parameters)
	}
	return ops, time
}

func near(a, b units.Seconds) bool {
	return math.Abs(float64(a-b)) <= 1e-9*math.Max(math.Abs(float64(a)), math.Abs(float64(b)))
}

func TestSimulateAgreesWithASlowSimulator(t *testing.T) {
	deep, sliced, beside := 0, 0, 0
	for seed := range uint64(400) {
		r := rand.New(rand.NewPCG(seed, 1))
		c := costsOf(t, drawnLengths(r, 7), 1+r.IntN(9), 1+r.IntN(70), &made{salt: seed})
		p := drawnPlan(r, c)
		if err := c.Simulate(p); err != nil {
			t.Fatalf("seed %d: %v of %+v", seed, err, p)
		}
		want, time := slowly(c, p)
		if !near(p.Time, time) {
			t.Errorf("seed %d: %v, want %v", seed, p.Time, time)
		}
		for s := range want {
			for i, o := range p.Orders[s] {
				if w := want[s][i]; !near(o.Start, w.Start) || !near(o.End, w.End) || o.Chunk != w.Chunk || o.Backward != w.Backward {
					t.Fatalf("seed %d: orders[%d][%d]: %+v, want %+v", seed, s, i, o, w)
				}
			}
		}
		if len(p.Stages) > 2 {
			deep++
		}
		for k, x := range p.Chunks {
			if split(p.Chunks)[k] {
				sliced++
				if len(x.Whole) > 0 {
					beside++
				}
			}
		}
	}
	if deep < 50 || sliced < 100 || beside < 50 {
		t.Errorf("%d plans of three stages or more, %d slices among others, %d of them with sequences beside", deep, sliced, beside)
	}
}

// f1b are n equal chunks of one sequence each on equal stages of one device, each of one
// layer, one forward, one backward.
func f1b(stages, n int) *Plan {
	p := &Plan{}
	for s := range stages {
		p.Stages = append(p.Stages, Stage{Ranks: []int{s}, Layers: 1})
		p.Recompute = append(p.Recompute, make([]int, n))
		var order []Op
		ahead := min(n, stages-s)
		for k := range ahead {
			order = append(order, Op{Chunk: k})
		}
		for k := range n {
			order = append(order, Op{Chunk: k, Backward: true})
			if next := ahead + k; next < n {
				order = append(order, Op{Chunk: next})
			}
		}
		p.Orders = append(p.Orders, order)
	}
	for k := range n {
		p.Chunks = append(p.Chunks, Chunk{Sequence: -1, Whole: []int{k}})
	}
	return p
}

// Equal chunks on equal stages take a chunk's two passes as many times as there are chunks,
// and once more for each stage but one, in which the pipeline fills and drains.
func TestEqualChunksFillAndDrain(t *testing.T) {
	for _, stages := range []int{1, 2, 3, 4, 7} {
		for _, n := range []int{1, 2, 5, 7, 20} {
			lengths := slices.Repeat([]units.Tokens{1000}, n)
			m := Published{Devices: stages, PerNode: 8, Layers: stages, SquareToken: 1e-9, Token: 1e-6}
			c, err := m.Costs(lengths)
			if err != nil {
				t.Fatal(err)
			}
			p := f1b(stages, n)
			if err := c.Simulate(p); err != nil {
				t.Fatal(err)
			}
			chunk := units.Seconds(1e-9*1e6+1e-6*1e3) / units.Seconds(stages)
			if want := units.Seconds(n+stages-1) * chunk; !near(p.Time, want) {
				t.Errorf("%d chunks on %d stages: %v, want %v", n, stages, p.Time, want)
			}
		}
	}
}

// A stage whose passes take less time makes nothing later, and one where they take more
// nothing sooner.
func TestAFasterStageMakesNothingLater(t *testing.T) {
	sooner := 0
	for seed := range uint64(150) {
		r := rand.New(rand.NewPCG(seed, 2))
		m := &made{salt: seed}
		lengths, layers := drawnLengths(r, 6), 2+r.IntN(6)
		// Ranks of one half of 64 each, so that each stage has prices of its own.
		p := drawnPlan(r, costsOf(t, lengths, layers, 6, m))
		for s := range p.Stages {
			p.Stages[s].Ranks = []int{32 * s}
		}
		before, after := p.Clone(), p.Clone()
		if err := costsOf(t, lengths, layers, 200, m).Simulate(before); err != nil {
			t.Fatal(err)
		}
		faster := *m
		faster.slow = map[int]units.Seconds{32 * r.IntN(len(p.Stages)): units.Seconds(0.2 + 0.7*r.Float64())}
		if err := costsOf(t, lengths, layers, 200, &faster).Simulate(after); err != nil {
			t.Fatal(err)
		}
		if after.Time > before.Time {
			t.Errorf("seed %d: %v with a faster stage, %v without", seed, after.Time, before.Time)
		}
		if after.Time < before.Time {
			sooner++
		}
		for s := range p.Orders {
			for i := range p.Orders[s] {
				if after.Orders[s][i].End > before.Orders[s][i].End || after.Orders[s][i].Start > before.Orders[s][i].Start {
					t.Errorf("seed %d: orders[%d][%d]: %+v with a faster stage, %+v without", seed, s, i, after.Orders[s][i], before.Orders[s][i])
				}
			}
		}
	}
	if sooner < 100 {
		t.Errorf("a faster stage makes %d plans shorter", sooner)
	}
}

// Names of sequences are of no account, and with prices that are twice as high everything
// takes twice as long.
func TestSimulateOfOtherNamesAndPrices(t *testing.T) {
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 3))
		lengths, layers := drawnLengths(r, 7), 1+r.IntN(6)
		m := &made{salt: seed}
		c := costsOf(t, lengths, layers, 9, m)
		p := drawnPlan(r, c)
		if err := c.Simulate(p); err != nil {
			t.Fatal(err)
		}
		to := r.Perm(len(lengths))
		named := make([]units.Tokens, len(lengths))
		for i, n := range lengths {
			named[to[i]] = n
		}
		other := p.Clone()
		for k := range other.Chunks {
			x := &other.Chunks[k]
			if x.Slice > 0 {
				x.Sequence = to[x.Sequence]
			}
			x.Whole = slices.Clone(x.Whole)
			for i, w := range x.Whole {
				x.Whole[i] = to[w]
			}
		}
		if err := costsOf(t, named, layers, 9, m).Simulate(other); err != nil || other.Time != p.Time {
			t.Errorf("seed %d: %v, %v under other names, %v", seed, other.Time, err, p.Time)
		}
		twice := *m
		twice.rate = 3
		scaled := p.Clone()
		if err := costsOf(t, lengths, layers, 9, &twice).Simulate(scaled); err != nil || !near(scaled.Time, 3*p.Time) {
			t.Errorf("seed %d: %v, %v at three times the prices, %v", seed, scaled.Time, err, p.Time)
		}
		for s := range p.Orders {
			for i, o := range p.Orders[s] {
				if !near(scaled.Orders[s][i].Start, 3*o.Start) || other.Orders[s][i] != o {
					t.Fatalf("seed %d: orders[%d][%d]: %+v, under other names %+v, at three times the prices %+v", seed, s, i, o, other.Orders[s][i], scaled.Orders[s][i])
				}
			}
		}
	}
}

// Whole sequences of a chunk have one price, whatever their order in it.
func TestPricesAreAskedForOnce(t *testing.T) {
	m := &made{asked: map[string]int{}}
	c := costsOf(t, []units.Tokens{10, 20, 10, 300, 100}, 4, 100, m)
	x, y := Chunk{Sequence: -1, Whole: []int{0, 1}}, Chunk{Sequence: -1, Whole: []int{1, 2}}
	slice := Chunk{Sequence: 3, Slice: 100}
	for range 3 {
		if c.Work([]int{0, 1}, x) != c.Work([]int{4, 5}, y) || c.Held([]int{0, 1}, x) != c.Held([]int{4, 5}, y) {
			t.Error("chunks that are alike on ranks that are alike have different prices")
		}
		c.Work([]int{0, 1}, slice)
		c.Send([]int{0}, []int{1}, 7)
		c.Send([]int{2}, []int{3}, 7)
	}
	for what, times := range m.asked {
		if times != 1 {
			t.Errorf("%s: asked for %d times", what, times)
		}
	}
	// Keys and values of a slice are held for others that come, and of a whole sequence not.
	if more, last := c.Held([]int{0, 1}, slice), c.Held([]int{0, 1}, Chunk{Sequence: 4, Slice: 100}); more.Gradients == 0 || last.Gradients != 0 {
		t.Errorf("%+v of a slice, %+v of a sequence as long", more, last)
	}
	// What differs has a price of its own: tokens, context, whether more come, ranks.
	last := c.Work([]int{0, 1}, Chunk{Sequence: 3, Context: 200, Slice: 100})
	for _, other := range []Work{
		c.Work([]int{0, 1}, Chunk{Sequence: 3, Context: 100, Slice: 100}), c.Work([]int{0, 1}, Chunk{Sequence: -1, Whole: []int{0, 2}}),
		c.Work([]int{0, 1}, slice), c.Work([]int{40, 41}, slice), c.Work([]int{0}, slice), c.Work([]int{0, 1}, x),
		c.Work([]int{0, 1}, Chunk{Sequence: 3, Slice: 100, Whole: []int{0}}),
	} {
		if other == last {
			t.Errorf("%+v is the price of two chunks", last)
		}
		last = other
	}
}

// Two stages that begin each with what the other one has to do first.
func TestStagesThatWaitForEachOther(t *testing.T) {
	c := costsOf(t, []units.Tokens{10, 20}, 2, 2, &made{})
	p := f1b(2, 2)
	p.Orders[0] = []Op{{Chunk: 0}, {Chunk: 0, Backward: true}, {Chunk: 1}, {Chunk: 1, Backward: true}}
	p.Orders[1] = []Op{{Chunk: 0}, {Chunk: 1}, {Chunk: 0, Backward: true}, {Chunk: 1, Backward: true}}
	for _, err := range []error{c.Simulate(p), c.Run(p), p.Validate(c.Lengths, 2, 2)} {
		if err == nil || err.Error() != "orders: stages wait for each other: stage 0 for chunk 0" {
			t.Errorf("%v", err)
		}
	}
	p.Orders[0], p.Orders[1] = p.Orders[1], []Op{{Chunk: 1}, {Chunk: 0}, {Chunk: 1, Backward: true}, {Chunk: 0, Backward: true}}
	if err := c.Simulate(p); err != nil {
		t.Errorf("forward in different orders: %v", err)
	}
}

// What has no price takes forever, and is named.
func TestSimulateNamesWhatIsMissing(t *testing.T) {
	for _, what := range []string{"work", "send", "finish", "tied"} {
		c := costsOf(t, []units.Tokens{10, 20}, 2, 2, &made{lacks: what})
		if c.Missing() != nil {
			t.Errorf("%s: %v is missing before anyone asks", what, c.Missing())
		}
		p := f1b(2, 2)
		p.Recompute[1][0] = 1
		if err := c.Simulate(p); !errors.Is(err, errLacks) || !strings.HasPrefix(err.Error(), what+":") || c.Missing() != err {
			t.Errorf("%s: %v; missing: %v", what, err, c.Missing())
		}
		if !math.IsInf(float64(p.Time), 1) {
			t.Errorf("%s: takes %v", what, p.Time)
		}
	}
	// A plan that does without is of no matter.
	c := costsOf(t, []units.Tokens{10}, 1, 2, &made{lacks: "send"})
	c.Send([]int{0}, []int{1}, 10)
	if err := c.Simulate(f1b(1, 1)); err != nil || c.Missing() == nil {
		t.Errorf("%v; missing: %v", err, c.Missing())
	}
}

func TestBatchesThatAreNone(t *testing.T) {
	for want, lengths := range map[string][]units.Tokens{
		"lengths: none": nil, "lengths[1]: 0: want at least one token": {5, 0}, "lengths[0]: -7: want at least one token": {-7},
	} {
		if _, err := newCosts(lengths, 1, []costmodel.Rank{{}}, &made{}); err == nil || err.Error() != want {
			t.Errorf("%v: %v", lengths, err)
		}
	}
}

func TestNodes(t *testing.T) {
	c := costsOf(t, []units.Tokens{1}, 1, 6, &made{})
	if got := c.Nodes(); len(got) != 2 || !slices.Equal(got[0], []int{0, 1, 2, 3}) || !slices.Equal(got[1], []int{4, 5}) {
		t.Errorf("%v", got)
	}
}

// A copy of a plan has orders of its own, and so on.
func TestClonesAreApart(t *testing.T) {
	c := costsOf(t, []units.Tokens{10, 20}, 2, 2, &made{})
	p := f1b(2, 2)
	if err := c.Simulate(p); err != nil {
		t.Fatal(err)
	}
	q := p.Clone()
	q.Time, q.Orders[0][0].Start, q.Recompute[1][1], q.Chunks[0].Slice, q.Stages[0].Layers = 7, 7, 7, 7, 7
	if p.Time == 7 || p.Orders[0][0].Start == 7 || p.Recompute[1][1] == 7 || p.Chunks[0].Slice == 7 || p.Stages[0].Layers == 7 {
		t.Errorf("%+v", p)
	}
}
