package batch_test

import (
	"math"
	"slices"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/groupcost"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/batch"
)

// groupOfAll is n sequences of one length and the plan that trains one after the other on all
// devices.
func groupOfAll(t *testing.T, q *costmodel.Predictor, j costmodel.Job, n int) (*batch.Problem, *batch.Plan, batch.Class) {
	t.Helper()
	again := j.Recompute == costmodel.RecomputeFull
	costs := priced(t, q, j, groupcost.Options{Of: costmodel.Documents{Tokens: j.SeqLen, Count: 1}, NoRecompute: !again})
	p, err := batch.NewProblem(costs, slices.Repeat([]units.Tokens{j.SeqLen}, n))
	if err != nil {
		t.Fatal(err)
	}
	class := slices.IndexFunc(p.Classes, func(c batch.Class) bool { return c.Degree() == p.Devices() && c.Recompute == again })
	plan := &batch.Plan{}
	for k := range n {
		groups := []batch.Group{{Class: class, Sequences: []int{k}}}
		if err := batch.Place(p, groups); err != nil {
			t.Fatal(err)
		}
		plan.Micro = append(plan.Micro, batch.MicroBatch{Groups: groups})
	}
	batch.Evaluate(p, plan)
	return p, plan, p.Classes[class]
}

// simulatedOfAll is what a step of equal shares in a group of all devices takes.
func simulatedOfAll(t *testing.T, q *costmodel.Predictor, j costmodel.Job, class batch.Class) units.Seconds {
	t.Helper()
	shares := slices.Repeat([]float64{1 / float64(class.Degree())}, class.Degree())
	l := costmodel.ZigZag(costmodel.SplitByShares(j.SeqLen, shares), class.Groups)
	l.Schedule = class.Schedule
	step, err := costmodel.Simulate(q, j, l, costmodel.SimOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return step.Time.Mid
}

// A group of all devices takes what its step is simulated to take, within what prices are off,
// whether gradients travel behind its backward pass wholly or are exchanged for several times
// as long as that is. Between, where both take about as long, it may take longer by what the
// messages of the group, over the same network, hold the gradients up.
func TestAGroupOfAllTakesWhatItsStepDoes(t *testing.T) {
	// Of few layers one is more of all, and hides nothing.
	for _, layers := range []int{2, 3} {
		for _, s := range []units.Tokens{1024, 2048} {
			q, j := networkJob(t, "2x1 h100_sxm", fastNet, s)
			j.Zero, j.OverlapZero, j.Model.Layers = costmodel.Zero0, true, layers
			p, plan, class := groupOfAll(t, q, j, 1)
			step := simulatedOfAll(t, q, j, class)
			off := float64(plan.Time/step) - 1
			t.Logf("%d layers, %d tokens: %+.1f %%", layers, s, 100*off)
			if p.Layers != layers || math.Abs(off) > groupcost.PricesOff {
				t.Errorf("%d layers, %d tokens: priced at %v, simulated in %v", layers, s, plan.Time, step)
			}
		}
	}
	for _, zero := range []costmodel.ZeRO{costmodel.Zero0, costmodel.Zero1} {
		hidden, open := 0, 0
		for i, s := range []units.Tokens{1024, 2048, 8192, 16384, 32768, 65536} {
			q, j := networkJob(t, "2x1 h100_sxm", fastNet, s)
			j.Accumulate = 3 - i%3                                // micro-batches
			j.Zero, j.OverlapZero, j.Model.Layers = zero, true, 8 // the states of more have no room with zero0
			p, plan, class := groupOfAll(t, q, j, j.Accumulate)
			for _, err := range batch.Check(p, plan) {
				t.Error(err)
			}
			step := simulatedOfAll(t, q, j, class)
			off := float64(plan.Time/step) - 1
			if between := s == 8192 && zero == costmodel.Zero0; off > groupcost.PricesOff || off < -groupcost.PricesOff && !between || off < -0.1 {
				t.Errorf("%s, %d tokens: priced at %v, simulated in %v", zero, s, plan.Time, step)
			}
			switch beside := plan.Time - units.Seconds(j.Accumulate)*plan.Micro[0].Time - p.Fixed; {
			case beside < 1e-9:
				hidden++
			case beside > plan.Micro[0].Time/2:
				open++
			}
			t.Logf("%s, %d tokens: priced at %v, simulated in %v; the group takes %v, %v behind it", zero, s, plan.Time, step, plan.Micro[0].Time, p.Behind)
		}
		if hidden == 0 || open == 0 {
			t.Errorf("%s: hidden wholly for %d lengths, open for long for %d", zero, hidden, open)
		}
	}
}

// So it is with what travels in every micro-batch: gradients behind its backward pass, and with
// zero3 parameters behind both. The group's own messages, over the same network, hold it up a
// little, so that a step is priced no longer than it takes; but for recomputation, which adds to
// the backward pass alone.
func TestAGroupOfAllTakesWhatItsStepDoesWithShardedGradients(t *testing.T) {
	for _, of := range []struct {
		zero  costmodel.ZeRO
		again costmodel.Recompute
		most  float64 // that a price may be below
	}{
		{costmodel.Zero2, costmodel.RecomputeNone, groupcost.PricesOff},
		{costmodel.Zero3, costmodel.RecomputeNone, groupcost.PricesOff},
		{costmodel.Zero2, costmodel.RecomputeFull, groupcost.PricesOff},
		{costmodel.Zero3, costmodel.RecomputeFull, 0.07},
	} {
		hidden, open := 0, 0
		for _, s := range []units.Tokens{1024, 2048, 4096, 6144, 8192, 9216, 10240, 11264, 12288, 16384} {
			q, j := networkJob(t, "2x1 h100_sxm", fastNet, s)
			j.Accumulate, j.Recompute = 2, of.again
			j.Zero, j.OverlapZero, j.Model.Layers = of.zero, true, 24
			p, plan, class := groupOfAll(t, q, j, j.Accumulate)
			for _, err := range batch.Check(p, plan) {
				t.Error(err)
			}
			step := simulatedOfAll(t, q, j, class)
			off := float64(plan.Time/step) - 1
			if off > 0.02 || off < -of.most {
				t.Errorf("%+v, %d tokens: priced at %v, simulated in %v", of, s, plan.Time, step)
			}
			group := plan.Micro[0].Groups[0].Time
			switch beside := plan.Micro[0].Time - p.MicroBase - group; {
			case beside < 1e-9:
				hidden++
			case beside > group/4:
				open++
			}
			t.Logf("%+v, %d tokens: %+.1f %%; the group takes %v, %v travels beside it", of, s, 100*off, group, p.Hidden)
		}
		if hidden == 0 || open == 0 {
			t.Errorf("%+v: hidden wholly for %d lengths, open for long for %d", of, hidden, open)
		}
	}
}

// Where gradients take longer than the last micro-batch's backward pass, or little less, the
// account is of that time, and the error is of their laws too; and where they take much less,
// it is of the groups' laws.
func TestAccountsHaveTheExchangeBehindTheLast(t *testing.T) {
	for _, c := range []struct {
		tokens       units.Tokens
		microBatches int
		open         bool
	}{{256, 1, true}, {2048, 1, true}, {2048, 2, true}, {65536, 1, false}} {
		q, j := networkJob(t, "2x1 h100_sxm", fastNet, c.tokens)
		j.Zero, j.OverlapZero, j.Model.Layers = costmodel.Zero1, true, 8
		p, plan, _ := groupOfAll(t, q, j, c.microBatches)
		whole, err := batch.Interval(p, plan)
		if err != nil {
			t.Fatal(err)
		}
		if math.Abs(float64(whole.Mid/plan.Time)-1) > 1e-9 || !(whole.Lo < whole.Mid && whole.Mid < whole.Hi) {
			t.Errorf("%d tokens: account of %+v, the plan takes %v", c.tokens, whole, plan.Time)
		}
		free := *p
		free.Behind = 0
		batch.Evaluate(&free, plan)
		without, err := batch.Interval(&free, plan)
		if err != nil {
			t.Fatal(err)
		}
		if wider := whole.Hi-whole.Mid > 1.2*(without.Hi-without.Mid); wider != c.open {
			t.Errorf("%d tokens: %+v, without the exchange %+v", c.tokens, whole, without)
		}
	}
}

// Over a slow network a step that reduces gradients once takes no less than they do, and no
// longer than without overlap; and its nodes are left out where they make it longer.
func TestBatchesOverASlowNetwork(t *testing.T) {
	lengths := drawn(t, "lognormal:median=1000,sd=1.7,seed=12", 8)
	planned := func(cluster string, overlap bool) (*batch.Problem, *batch.Document) {
		q, j := networkJob(t, cluster, slowNet, 1)
		j.Zero, j.OverlapZero = costmodel.Zero1, overlap
		p, err := batch.NewProblem(priced(t, q, j, groupcost.Options{}), lengths)
		if err != nil {
			t.Fatal(err)
		}
		d, _, _ := contest(t, p)
		if err := d.Validate(); err != nil {
			t.Errorf("%s: %v", cluster, err)
		}
		return p, d
	}
	p, _ := planned("2x8 h100_sxm", true)
	a := batch.Try(t.Context(), batch.Evenkeel{}, p, stopped)
	without, _ := planned("2x8 h100_sxm", false)
	b := batch.Try(t.Context(), batch.Evenkeel{}, without, stopped)
	if a.Err != nil || b.Err != nil {
		t.Fatal(a.Err, b.Err)
	}
	if least := p.Fixed + p.Behind; a.Plan.Time < least || a.Plan.Time > b.Plan.Time || b.Plan.Time > 1.2*least {
		t.Errorf("on all nodes %v, without overlap %v: gradients and the update take %v", a.Plan.Time, b.Plan.Time, least)
	}
	_, all := planned("2x8 h100_sxm", true)
	_, one := planned("1x8 h100_sxm", true)
	if len(all.LeftOut) != 8 || all.Time != one.Time {
		t.Errorf("%v without ranks %v, a node alone takes %v", all.Time, all.LeftOut, one.Time)
	}
}
