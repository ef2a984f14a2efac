package costmodel

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// manyUpdates replays whole steps of a variety of plans.
func manyUpdates(t *testing.T, check func(x plan, s *Simulator, w ReplayWork, r *Replayed)) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 71))
		x := randomPlan(rng)
		x.job.Accumulate = 0
		s, err := NewSimulator(NewPredictor(world(t, rng, faster{})), x.job)
		if err != nil {
			t.Fatal(err)
		}
		w := ReplayWork{Layout: x.layout, Layers: x.job.Model.Layers, Update: true}
		if seed%3 == 0 { // as some libraries do it
			w.Reduced = Reduction{Whole: seed%2 == 0, DType: op.F32}
		}
		r, err := s.Replayed(w)
		if err != nil {
			t.Fatal(err)
		}
		if check(x, s, w, r); t.Failed() {
			t.Fatalf("seed %d: %s, overlap %v, recompute %s, %d layers of %+v", seed, x.job.zero(), x.job.OverlapZero, x.job.Recompute, w.Layers, x.layout)
		}
	}
}

// A whole step whose ranks meet is the one that Simulate predicts, but that what is in no layer
// is gathered once.
func TestUpdatedMeetsAsStepsDo(t *testing.T) {
	manyUpdates(t, func(x plan, s *Simulator, w ReplayWork, r *Replayed) {
		want, err := s.Time(x.layout)
		if len(s.fast.seats) > 1 && x.job.zero() == Zero3 {
			_, rest := s.fast.collective(Exchange{Kind: op.KindAllGather}, s.fast.oneNode(), s.fast.membersOf(0, len(s.fast.seats)), nil)
			want -= rest
		}
		// All_reduce in the place of reduce_scatter takes longer, and nothing else is otherwise.
		if err != nil || !w.Reduced.Whole && !near(r.Meeting, want, 1e-9) || r.Meeting < want*(1-1e-9) {
			t.Errorf("meeting %v, the step takes %v: %v", r.Meeting, want, err)
		}
		if r.Step.Mid > r.Meeting*(1+1e-9) || r.Step.Mid < r.Meeting/5 {
			t.Errorf("%v without meeting, %v with", r.Step.Mid, r.Meeting)
		}
		if !(r.Step.Lo < r.Step.Mid && r.Step.Mid < r.Step.Hi) {
			t.Errorf("interval %+v", r.Step)
		}
	})
}

// fillsTheStep checks that every rank's tasks follow each other until its end and add up to its
// account, and returns how long it computed by the stretches that may be supposed.
func fillsTheStep(t *testing.T, r *Replayed) map[ReplayKey]units.Seconds {
	t.Helper()
	at, compute := make([]units.Seconds, len(r.Ranks)), make([]units.Seconds, len(r.Ranks))
	took := map[ReplayKey]units.Seconds{}
	for _, k := range r.Tasks {
		if !near(k.Start, at[k.Rank], 1e-9) || k.Time < -1e-12 {
			t.Errorf("%+v begins at %v, the rank is done at %v", k, k.Start, at[k.Rank])
		}
		if at[k.Rank] = k.Start + k.Time; k.Op.Waits() {
			continue
		}
		compute[k.Rank] += k.Time
		if k.Op == MergeOp {
			k.Op = AttentionOp
		}
		took[k.ReplayKey] += k.Time
	}
	for i, k := range r.Ranks {
		if !near(at[i], k.End, 1e-9) || !near(compute[i], k.Compute, 1e-9) || !near(k.Compute+k.Exposed+k.Skew, k.End, 1e-6) {
			t.Errorf("rank %d: %+v, tasks end at %v and compute %v", i, k, at[i], compute[i])
		}
	}
	return took
}

// A rank's tasks fill its step and add up to its account, and what the laws say may as well be
// supposed.
func TestUpdatedTasksFillTheStep(t *testing.T) {
	manyUpdates(t, func(_ plan, s *Simulator, w ReplayWork, r *Replayed) {
		took := fillsTheStep(t, r)
		same, err := s.Supposing(w, func(k ReplayKey) (units.Seconds, bool) { return took[k], true })
		if err != nil || !near(same.Step.Mid, r.Step.Mid, 1e-9) || len(same.Tasks) != len(r.Tasks) {
			t.Errorf("%v supposed, %v predicted: %v", same.Step.Mid, r.Step.Mid, err)
		}
		// Looking tokens up has no law, and may be supposed to take time all the same.
		late, err := s.Supposing(w, func(k ReplayKey) (units.Seconds, bool) {
			if k.Op == EmbedOp {
				return 1, true
			}
			return took[k], true
		})
		if err != nil || late.Step.Mid < r.Step.Mid+1 {
			t.Errorf("with a second of it %v, %v without: %v", late.Step.Mid, r.Step.Mid, err)
		}
	})
}

// Nothing that gets faster makes a whole step longer, and gradients that travel beside layers
// none either.
func TestUpdatedFasterIsNotSlower(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 72))
		x := randomPlan(rng)
		x.job.Accumulate = 0
		time := func(by faster, overlap bool) units.Seconds {
			j := x.job
			j.OverlapZero = overlap
			s, err := NewSimulator(NewPredictor(world(t, rand.New(rand.NewPCG(seed, 73)), by)), j)
			if err != nil {
				t.Fatal(err)
			}
			r, err := s.Replayed(ReplayWork{Layout: x.layout, Layers: j.Model.Layers, Update: true})
			if err != nil {
				t.Fatal(err)
			}
			return r.Step.Mid
		}
		k := 1 + float64(seed%7)/3
		alone, beside := time(faster{}, false), time(faster{}, true)
		if beside > alone*(1+1e-9) {
			t.Errorf("seed %d, %s: beside layers %v, else %v", seed, x.job.zero(), beside, alone)
		}
		for name, by := range map[string]faster{"fast device": {fast: k}, "slow device": {slow: k}, "bus": {bus: k}, "network": {net: k}} {
			if got := time(by, false); got > alone*(1+1e-9) {
				t.Errorf("seed %d, %s: with a better %s %v, before %v", seed, x.job.zero(), name, got, alone)
			}
		}
	}
}

// Two equal ranks of one all-to-all group, whose layers need no time: what is left of a step
// has a closed form.
func TestUpdateByItself(t *testing.T) {
	p := madeUp(t, map[string]speeds{"any": {memory: 1e9}}, map[string]wire{"bus": {1, 1e6}})
	tokens := []units.Tokens{300, 300}
	j := testJob(cluster(t, "1x2 any", p, "bus", ""), tokens)
	// Of two ranks: twice half a buffer to all_reduce it, once else; by another group's law.
	takes := func(b units.Bytes, times float64) units.Seconds {
		return units.Seconds(1.15 * (1 + times*float64(b)/1e6))
	}
	layer, rest := takes(j.LayerBytes(), 0.5), takes(j.RestBytes(), 0.5)
	for zero, want := range map[ZeRO]units.Seconds{
		Zero0: 6*takes(j.LayerBytes(), 1) + takes(j.RestBytes(), 1), // gradients
		Zero1: 2 * (6*layer + rest),                                 // and parameters at the end
		Zero2: 2 * (6*layer + rest),                                 // of one micro-batch the same
		Zero3: 2*6*layer + rest + 6*layer + rest,                    // parameters for both passes, what is in no layer once, and gradients
	} {
		for _, overlap := range []bool{false, true} {
			j.Zero, j.OverlapZero = zero, overlap
			s, err := NewSimulator(NewPredictor(p), j)
			if err != nil {
				t.Fatal(err)
			}
			w := ReplayWork{Layout: ZigZag(tokens, []Group{{{0, 2}, {1, 2}}}), Layers: 6, Update: true}
			const update, lookup = 5, 1000 // seconds, the latter longer than a gather of a layer
			r, err := s.Supposing(w, func(k ReplayKey) (units.Seconds, bool) {
				switch {
				case k.Op == OptimizerOp:
					return update, true
				case k.Op == EmbedOp && k.Dir == ForwardPass:
					return lookup, true
				}
				return 0, true
			})
			if err != nil {
				t.Fatal(err)
			}
			var messages, waits units.Seconds
			ops := map[ReplayOp]int{}
			for _, k := range r.Tasks {
				if k.Rank == 0 && (k.Op == AllToAllIn || k.Op == AllToAllOut) {
					messages += k.Time
				}
				if k.Rank == 0 && (k.Op == ParamWait || k.Op == GradWait) {
					waits += k.Time
				}
				ops[k.Op]++
			}
			want := want
			if zero == Zero3 && overlap { // while tokens are looked up
				want -= layer
			}
			if all := messages + want + update + lookup; !near(r.Step.Mid, all, 1e-9) || !near(waits, want, 1e-9) {
				t.Errorf("%s, overlap %v: %v, with %v of messages want %v; waits %v, want %v", zero, overlap, r.Step.Mid, messages, all, waits, want)
			}
			if ops[EmbedOp] != 4 || ops[OptimizerOp] != 2 || ops[LossOp] != 2 {
				t.Errorf("%s: %v", zero, ops)
			}
		}
	}
}

// What leaves beside layers takes no time of its own where these take longer, but for the last
// that leaves; and a library without reduce_scatter sends twice as much.
func TestUpdateBesideLayers(t *testing.T) {
	p := madeUp(t, map[string]speeds{"any": {memory: 1e9}}, map[string]wire{"bus": {0, 1e6}})
	tokens := []units.Tokens{600}
	tokens = append(tokens, 0)
	j := testJob(cluster(t, "1x2 any", p, "bus", ""), tokens)
	j.OverlapZero = true
	layer, rest := units.Seconds(1.15*float64(j.LayerBytes())/1e6), units.Seconds(1.15*float64(j.RestBytes())/1e6)
	long := 10 * layer
	run := func(zero ZeRO, by Reduction) *Replayed {
		j.Zero = zero
		s, err := NewSimulator(NewPredictor(p), j)
		if err != nil {
			t.Fatal(err)
		}
		// The second rank has a head and no tokens: ranks that wait ask late.
		w := ReplayWork{Layout: Contiguous(tokens, []Group{{{0, 3}, {1, 1}}}), Layers: 6, Update: true, Reduced: by}
		r, err := s.Supposing(w, func(k ReplayKey) (units.Seconds, bool) {
			if k.Rank == 0 && k.Op == LinearOut {
				return long, true
			}
			return 0, true
		})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	waits := func(r *Replayed) (sum units.Seconds) {
		for _, k := range r.Tasks {
			if k.Rank == 1 && k.Op == EmbedOp {
				t.Errorf("%+v: a rank without tokens", k)
			}
			if k.Rank == 0 && (k.Op == ParamWait || k.Op == GradWait) {
				sum += k.Time
			}
		}
		return sum
	}
	if got, want := waits(run(Zero0, Reduction{})), layer+rest; !near(got, want, 1e-9) {
		t.Errorf("zero0 waits for %v, want the last layer's and the rest's %v", got, want)
	}
	layer, rest = layer/2, rest/2 // nothing is sent twice
	if got, want := waits(run(Zero1, Reduction{})), layer+rest+6*layer+rest; !near(got, want, 1e-9) {
		t.Errorf("zero1 waits for %v, want %v", got, want)
	}
	if got, want := waits(run(Zero3, Reduction{})), (rest+layer)+layer+(layer+rest); !near(got, want, 1e-9) {
		t.Errorf("zero3 waits for %v, want the first, the first backward and the last: %v", got, want)
	}
	j.OverlapZero = false
	for zero, want := range map[ZeRO]units.Seconds{Zero0: 2 * (6*layer + rest), Zero1: 2 * (6*layer + rest), Zero3: 3*6*layer + 2*rest} {
		if got := waits(run(zero, Reduction{})); !near(got, want, 1e-9) {
			t.Errorf("%s behind layers waits for %v, want %v", zero, got, want)
		}
	}
	j.OverlapZero = true
	p.Laws = slicesWithout(p.Laws, op.KindReduceScatter)
	if got, want := waits(run(Zero1, Reduction{Whole: true})), 2*(layer+rest)+6*layer+rest; !near(got, want, 1e-9) {
		t.Errorf("by all_reduce zero1 waits for %v, want %v", got, want)
	}
	j.DType = op.F32 // in which all of the made-up laws are: halves travel as twice as many bytes
	if got, want := waits(run(Zero0, Reduction{DType: op.BF16})), layer+rest; !near(got, want, 1e-9) {
		t.Errorf("in halves zero0 waits for %v, want %v", got, want)
	}
}

// What was not run has no part in how sure a step is: without a law of reduce_scatter, that of
// all_reduce stands in for another collective, and is no longer measured.
func TestUpdateIsAsSureAsWhatRan(t *testing.T) {
	p := usual(t)
	tokens := []units.Tokens{300, 200, 100, 200}
	p.Laws = slicesWithout(p.Laws, op.KindReduceScatter)
	group := op.NewGroupType([]op.Member{{Device: "fast", Count: 4}}, 1, "bus")
	for i := range p.Groups {
		if g := &p.Groups[i]; g.Link == "bus" {
			for k := range p.Laws {
				if p.Laws[k].Group == g.Name {
					p.Laws[k].Group = group.Name
				}
			}
			*g = group
		}
	}
	j := testJob(cluster(t, "1x4 fast", p, "bus", ""), tokens)
	j.Zero = Zero1
	s, err := NewSimulator(NewPredictor(p), j)
	if err != nil {
		t.Fatal(err)
	}
	source := func(by Reduction) Source {
		r, err := s.Replayed(ReplayWork{Layout: ringOf(tokens), Layers: 6, Update: true, Reduced: by})
		if err != nil {
			t.Fatal(err)
		}
		return r.Step.Source
	}
	if ran, stands := source(Reduction{Whole: true}), source(Reduction{}); ran != Interpolated || stands != Transferred {
		t.Errorf("%s by all_reduce, %s by what stands in for reduce_scatter", ran, stands)
	}
}

// Waiting for gradients is skew as long as another rank has not asked for them.
func TestUpdateWaitsForOthers(t *testing.T) {
	p := madeUp(t, map[string]speeds{"any": {memory: 1e9}}, map[string]wire{"bus": {0, 1e6}})
	tokens := []units.Tokens{300, 300}
	j := testJob(cluster(t, "1x2 any", p, "bus", ""), tokens)
	j.Zero = Zero0
	s, err := NewSimulator(NewPredictor(p), j)
	if err != nil {
		t.Fatal(err)
	}
	const late = 1000
	run := func(by units.Seconds) *Replayed {
		r, err := s.Supposing(ReplayWork{Layout: ringOf(tokens), Layers: 6, Update: true}, func(k ReplayKey) (units.Seconds, bool) {
			if k.Rank == 0 && k.Op == EmbedOp && k.Dir == BackwardPass {
				return by, true
			}
			return 0, true
		})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	before, after := run(0).Ranks[1], run(late).Ranks[1]
	if !near(after.Skew-before.Skew, late, 1e-9) || !near(after.Exposed, before.Exposed, 1e-9) || !near(after.End-before.End, late, 1e-9) {
		t.Errorf("%+v, where the other is late %+v", before, after)
	}
}

func TestUpdateRefuses(t *testing.T) {
	p := usual(t)
	tokens := []units.Tokens{300, 200}
	j := testJob(cluster(t, "1x2 fast", p, "bus", ""), tokens)
	for want, change := range map[string]func(*Job, *ReplayWork){
		"layers: 2: want all 6":                 func(_ *Job, w *ReplayWork) { w.Layers = 2 },
		"micro-batches: 3 in a whole step":      func(j *Job, _ *ReplayWork) { j.Accumulate = 3 },
		"micro-batches: 2 in a whole step":      func(_ *Job, w *ReplayWork) { w.Micro = 2 },
		"loss: of micro-batches that go togeth": func(_ *Job, w *ReplayWork) { w.Micro, w.Layout.TwoBatch = 2, true },
	} {
		j, w := j, ReplayWork{Layout: ringOf(tokens), Layers: 6, Update: true}
		change(&j, &w)
		s, err := NewSimulator(NewPredictor(p), j)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Replayed(w); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	one := []units.Tokens{300}
	s, err := NewSimulator(NewPredictor(p), testJob(cluster(t, "1x1 fast", p, "bus", ""), one))
	if err != nil {
		t.Fatal(err)
	}
	r, err := s.Replayed(ReplayWork{Layout: ringOf(one), Layers: 6, Update: true})
	if err != nil || r.Ranks[0].Exposed != 0 {
		t.Errorf("a device by itself: %+v, %v", r, err)
	}
}

// A step ends with the rank that is done last, also where that computes nothing and waits alone.
func TestReplayedEndsWithTheLastRank(t *testing.T) {
	manyUpdates(t, func(_ plan, s *Simulator, w ReplayWork, _ *Replayed) {
		for _, update := range []bool{false, true} {
			w.Update = update
			r, err := s.Supposing(w, func(ReplayKey) (units.Seconds, bool) { return 0, true })
			if err != nil {
				t.Fatal(err)
			}
			var last units.Seconds
			for _, k := range r.Ranks {
				last = max(last, k.End)
			}
			if r.Step.Mid != last {
				t.Errorf("%v, the last rank is done at %v", r.Step.Mid, last)
			}
		}
	})
}
