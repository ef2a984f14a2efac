package solver

import (
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/internal/world"
)

func given(t *testing.T, shares, heads string) Given {
	t.Helper()
	g, err := ParseGiven(shares, heads)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func TestAGivenLayoutIsPricedAndStandsUpToTheChecker(t *testing.T) {
	for _, c := range []struct {
		shares, heads string
		tokens        []units.Tokens
		groups        []costmodel.Group
	}{
		{"5:3", "", []units.Tokens{2560, 1536}, []costmodel.Group{{{Rank: 0, QHeads: 8}}, {{Rank: 1, QHeads: 8}}}},
		{"1:1", "", []units.Tokens{2048, 2048}, []costmodel.Group{{{Rank: 0, QHeads: 8}}, {{Rank: 1, QHeads: 8}}}},
		{"3:1", "6:2", []units.Tokens{3072, 1024}, []costmodel.Group{{{Rank: 0, QHeads: 6}, {Rank: 1, QHeads: 2}}}},
		{"1:0", "", []units.Tokens{4096, 0}, []costmodel.Group{{{Rank: 0, QHeads: 8}}}},
		{"1:0", "5:3", []units.Tokens{4096, 0}, []costmodel.Group{{{Rank: 0, QHeads: 5}, {Rank: 1, QHeads: 3}}}},
	} {
		p := testProblem(t, "1x(1 fast + 1 slow)", 4096)
		plan, err := SolveGiven(t.Context(), p, given(t, c.shares, c.heads), nil)
		if err != nil {
			t.Fatal(err)
		}
		plan.Schema, plan.Tool = PlanSchema, "test"
		if err := Check(plan, p.Profile); err != nil {
			t.Errorf("%s %s: %v", c.shares, c.heads, err)
		}
		if got := plan.Layout().Tokens(); !slices.Equal(got, c.tokens) {
			t.Errorf("%s: tokens %v, want %v", c.shares, got, c.tokens)
		}
		if !slices.EqualFunc(plan.Groups, c.groups, func(a, b costmodel.Group) bool { return slices.Equal(a, b) }) {
			t.Errorf("%s %s: groups %v, want %v", c.shares, c.heads, plan.Groups, c.groups)
		}
		if own := last(plan); plan.Strategy != "given" || own.Strategy != "given" || !strings.Contains(own.Why, "as asked for: shares "+c.shares) {
			t.Errorf("%s: %q", plan.Strategy, own.Why)
		}
		if want := world.Seconds(t, p.posed, plan.Layout()); !near(float64(plan.Step.Time.Mid), float64(want)) {
			t.Errorf("%s %s: %v, the simulator says %v", c.shares, c.heads, plan.Step.Time.Mid, want)
		}
	}
}

// A layout that does not fit where others do is no proof of anything else, and what helps is
// another one.
func TestAGivenLayoutThatDoesNotFitSaysSo(t *testing.T) {
	p := testProblem(t, "1x2 fast", 65536)
	small := world.Fast()
	small.Memory = p.posed.Sim.Memory(p.posed.EqualRing())[0].Peak() * 5 / 4
	_, err := SolveGiven(t.Context(), testProblem(t, "1x2 fast", 65536, small), given(t, "3:1", ""), nil)
	var no *InfeasibleError
	if !errors.As(err, &no) || no.Proven || !strings.HasPrefix(err.Error(), "the plan of given was asked for: rank 0 (fast on n0) would need ") || !strings.HasSuffix(err.Error(), "; way out: other shares, or leave the choice to solve") {
		t.Errorf("%v", err)
	}
}

// Whatever shares and heads are asked for, every token has one owner, every head
// is computed, and no rank is a block away from its share.
func TestGivenSharesAreKeptToTheBlock(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 5))
	for range 300 {
		total, block := units.Tokens(1+r.IntN(100_000)), units.Tokens(1)<<r.IntN(8)
		shares := make([]int, 1+r.IntN(6))
		for i := range shares {
			shares[i] = r.IntN(4) * r.IntN(50)
		}
		shares[r.IntN(len(shares))]++
		sum, all := 0, units.Tokens(0)
		for _, s := range shares {
			sum += s
		}
		for i, n := range dealShares(total, block, shares) {
			all += n
			ideal := float64(total) * float64(shares[i]) / float64(sum)
			if off := float64(n) - ideal; n < 0 || shares[i] == 0 && n != 0 || off > float64(block) || off < -float64(block) {
				t.Fatalf("%d tokens in blocks of %d over %v: rank %d gets %d, its share is %.1f", total, block, shares, i, n, ideal)
			}
		}
		if all != total {
			t.Fatalf("%d tokens over %v: %d dealt", total, shares, all)
		}
	}
}

func TestLayoutsThatCannotBeAreRefused(t *testing.T) {
	for _, c := range []struct{ shares, heads, want string }{
		{"", "", `shares "": "": want a number`},
		{"5:", "", "want a number from 0"},
		{"5:-3", "", `"-3": want a number`},
		{"5:3", "8", ""},
		{"0:0", "", "nobody gets a token"},
		{"5:3", "a:b", `q-heads "a:b"`},
		{"99999999999999:1", "", "want a number from 0"},
	} {
		if _, err := ParseGiven(c.shares, c.heads); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q %q: %v", c.shares, c.heads, err)
		}
	}
	p := testProblem(t, "1x(1 fast + 1 slow)", 4096)
	for _, c := range []struct{ shares, heads, want string }{
		{"5", "", "the cluster has 2 ranks"},
		{"5:3:1", "", "the cluster has 2 ranks"},
		{"5:3", "8", "the cluster has 2 ranks"},
		{"5:3", "4:3", "7 q_heads in all: the model has 8"},
		{"5:3", "9:0", "want 0 to 8"},
	} {
		if _, err := SolveGiven(t.Context(), p, given(t, c.shares, c.heads), nil); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %s: %v", c.shares, c.heads, err)
		}
	}
}

// A layout that does not fit is no plan, though others would be.
func TestAGivenLayoutThatDoesNotFitIsRefused(t *testing.T) {
	small := world.Slow()
	small.Memory = units.GiB
	p := testProblem(t, "1x(1 fast + 1 slow)", 64<<10, world.Fast(), small)
	_, err := SolveGiven(t.Context(), p, given(t, "1:30", ""), nil)
	if err == nil || !strings.Contains(err.Error(), "rank 1 (slow on n0)") {
		t.Error(err)
	}
}

func FuzzParseGiven(f *testing.F) {
	f.Add("5:3", "10:6")
	f.Add("1", "")
	f.Add(":", "0")
	f.Fuzz(func(t *testing.T, shares, heads string) {
		g, err := ParseGiven(shares, heads)
		if err != nil {
			return
		}
		again, err := ParseGiven(colons(g.Shares), colons(g.QHeads))
		if err != nil || !slices.Equal(again.Shares, g.Shares) || !slices.Equal(again.QHeads, g.QHeads) {
			t.Errorf("%q %q: %+v, then %+v: %v", shares, heads, g, again, err)
		}
	})
}

// TestAGivenGroupInChunks: heads in chunks are kept in the plan, which the checker
// recomputes, and are for a single group.
func TestAGivenGroupInChunks(t *testing.T) {
	p := testProblem(t, "1x(1 fast + 1 slow)", 4096)
	g := given(t, "3:1", "6:2")
	g.HeadChunks = 2
	plan, err := SolveGiven(t.Context(), p, g, nil)
	if err != nil {
		t.Fatal(err)
	}
	plan.Schema, plan.Tool = PlanSchema, "test"
	if err := Check(plan, p.Profile); err != nil || plan.HeadChunks != 2 || plan.Layout().HeadChunks != 2 {
		t.Errorf("%d chunks, %d in the layout: %v", plan.HeadChunks, plan.Layout().HeadChunks, err)
	}
	if own := last(plan); !strings.Contains(own.Why, "heads 6:2 in 2 chunks") {
		t.Error(own.Why)
	}
	whole := plan.Layout()
	whole.HeadChunks = 0
	if in, all := world.Seconds(t, p.posed, plan.Layout()), world.Seconds(t, p.posed, whole); !near(float64(plan.Step.Time.Mid), float64(in)) || in == all {
		t.Errorf("%v in the plan, %v in chunks, %v at once", plan.Step.Time.Mid, in, all)
	}
	// As what ulysses does but for the chunks, and not taken for it.
	even := given(t, "1:1", "4:4")
	even.HeadChunks = 2
	if plan, err = SolveGiven(t.Context(), p, even, nil); err != nil {
		t.Fatal(err)
	}
	if in := world.Seconds(t, p.posed, plan.Layout()); plan.HeadChunks != 2 || !near(float64(plan.Step.Time.Mid), float64(in)) {
		t.Errorf("%d chunks, %v in the plan, %v by the simulator", plan.HeadChunks, plan.Step.Time.Mid, in)
	}
	ring := given(t, "3:1", "")
	for _, c := range []struct {
		of     Given
		chunks int
		want   string
	}{{g, 5, "head_chunks: 5: want 2 to 4"}, {g, 1, "head_chunks: 1: want 2 to 4"}, {ring, 2, "with 2 groups"}} {
		c.of.HeadChunks = c.chunks
		if err := c.of.Suits(p); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v in %d chunks: %v", c.of, c.chunks, err)
		}
	}
}

// TestAGivenLayoutInTwos: that micro-batches go in twos is kept in the plan, which the
// checker recomputes, and takes two of them.
func TestAGivenLayoutInTwos(t *testing.T) {
	p := testProblem(t, "1x(1 fast + 1 slow)", 4096)
	g := given(t, "3:1", "6:2")
	g.TwoBatch = true
	if err := g.Suits(p); err == nil || !strings.Contains(err.Error(), "with 1 micro-batch in a step") {
		t.Errorf("one micro-batch: %v", err)
	}
	job := p.Job
	job.Accumulate = 3
	p = problemOf(t, p.Profile, job)
	plan, err := SolveGiven(t.Context(), p, g, nil)
	if err != nil {
		t.Fatal(err)
	}
	plan.Schema, plan.Tool = PlanSchema, "test"
	if err := Check(plan, p.Profile); err != nil || !plan.TwoBatch || !plan.Layout().TwoBatch {
		t.Errorf("in twos %v, the layout %v: %v", plan.TwoBatch, plan.Layout().TwoBatch, err)
	}
	if own := last(plan); !strings.Contains(own.Why, "heads 6:2, two micro-batches at once") {
		t.Error(own.Why)
	}
	alone := plan.Layout()
	alone.TwoBatch = false
	if in, one := world.Seconds(t, p.posed, plan.Layout()), world.Seconds(t, p.posed, alone); !near(float64(plan.Step.Time.Mid), float64(in)) || in == one {
		t.Errorf("%v in the plan, %v in twos, %v one by one", plan.Step.Time.Mid, in, one)
	}
	g.HeadChunks = 2
	if err := g.Suits(p); err == nil || !strings.Contains(err.Error(), "two_batch_overlap: with head_chunks 2") {
		t.Errorf("in chunks: %v", err)
	}
	g.HeadChunks, g.WeaveForward, g.WeaveBackward = 0, true, true
	if err := g.Suits(p); err == nil || !strings.Contains(err.Error(), "weave_forward: with a single group") {
		t.Errorf("one group in turn: %v", err)
	}
}

// TestAGivenRingInTurn: that rings take turns is kept in the plan as well.
func TestAGivenRingInTurn(t *testing.T) {
	p := testProblem(t, "1x1 fast + 1x1 slow", 256)
	job := p.Job
	job.Accumulate = 2
	p = problemOf(t, p.Profile, job)
	g := given(t, "3:1", "")
	g.WeaveForward, g.WeaveBackward = true, true
	if err := g.Suits(p); err == nil || !strings.Contains(err.Error(), "weave_forward: without two_batch_overlap") {
		t.Errorf("one by one: %v", err)
	}
	g.TwoBatch = true
	plan, err := SolveGiven(t.Context(), p, g, nil)
	if err != nil {
		t.Fatal(err)
	}
	plan.Schema, plan.Tool = PlanSchema, "test"
	l := plan.Layout()
	if err := Check(plan, p.Profile); err != nil || !l.WeaveForward || !l.WeaveBackward {
		t.Errorf("%+v: %v", l, err)
	}
	if own := last(plan); !strings.Contains(own.Why, "two micro-batches at once, their rings in turn") {
		t.Error(own.Why)
	}
	l.WeaveForward, l.WeaveBackward = false, false
	if in, one := world.Seconds(t, p.posed, plan.Layout()), world.Seconds(t, p.posed, l); !near(float64(plan.Step.Time.Mid), float64(in)) || in == one {
		t.Errorf("%v in the plan, %v in turn, %v one after the other", plan.Step.Time.Mid, in, one)
	}
	for field, change := range map[string]func(*Plan){
		"two_batch_overlap": func(p *Plan) { p.TwoBatch = false },
		"single group":      func(p *Plan) { p.Groups = []costmodel.Group{{{Rank: 0, QHeads: 8}, {Rank: 1, QHeads: 0}}} },
	} {
		wrong := *plan
		change(&wrong)
		for _, pass := range []string{"weave_forward", "weave_backward"} {
			wrong.WeaveForward, wrong.WeaveBackward = pass == "weave_forward", pass == "weave_backward"
			if err := wrong.Validate(); err == nil || !strings.Contains(err.Error(), pass+": true: with") || !strings.Contains(err.Error(), field) {
				t.Errorf("%s, %s: %v", pass, field, err)
			}
			l := wrong.Layout()
			if err := l.Validate(job.SeqLen, len(l.Shards), job.Model.QHeads); err == nil || !strings.Contains(err.Error(), pass+": with") {
				t.Errorf("%s, %s: the layout: %v", pass, field, err)
			}
		}
	}
}
