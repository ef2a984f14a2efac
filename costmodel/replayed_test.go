package costmodel

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// manyReplays replays a variety of plans.
func manyReplays(t *testing.T, check func(x plan, s *Simulator, w ReplayWork, r *Replayed)) {
	for seed := range uint64(150) {
		rng := rand.New(rand.NewPCG(seed, 61))
		x := randomPlan(rng)
		if seed%3 == 2 {
			x = inTwos(rng, x)
		}
		s, err := NewSimulator(NewPredictor(world(t, rng, faster{})), x.job)
		if err != nil {
			t.Fatal(err)
		}
		work := ReplayWork{Layout: x.layout, Layers: 1 + rng.IntN(3)}
		if x.layout.TwoBatch {
			work.Micro = 2
		}
		r, err := s.Replayed(work)
		if err != nil {
			t.Fatal(err)
		}
		if check(x, s, work, r); t.Failed() {
			t.Fatalf("seed %d: %d layers of %+v", seed, work.Layers, x.layout)
		}
	}
}

// TestReplayedMeetsAsStepsDo: where ranks meet after every pass, a replayed step
// is made of the layers of a training step, and else it takes no longer.
func TestReplayedMeetsAsStepsDo(t *testing.T) {
	manyReplays(t, func(x plan, s *Simulator, w ReplayWork, r *Replayed) {
		if err := s.fast.run(x.layout, SimOptions{}); err != nil {
			t.Fatal(err)
		}
		of := s.fast.rounds()[0].layers
		forward, backward := of[0].length, of[1].length
		want := forward + backward
		if x.job.Recompute == RecomputeFull {
			want += forward
		}
		if want *= units.Seconds(w.Layers); !near(r.Meeting, want, 1e-9) {
			t.Errorf("meeting %v, layers take %v", r.Meeting, want)
		}
		if r.Step.Mid > r.Meeting*(1+1e-9) || r.Step.Mid < r.Meeting/4 {
			t.Errorf("%v without meeting, %v with", r.Step.Mid, r.Meeting)
		}
		if !(r.Step.Lo < r.Step.Mid && r.Step.Mid < r.Step.Hi) || r.Step.Source == "" {
			t.Errorf("interval %+v", r.Step)
		}
	})
}

// TestReplayedTasksFillTheStep: a rank's tasks follow one another from the
// barrier to its end, and add up to its account.
func TestReplayedTasksFillTheStep(t *testing.T) {
	manyReplays(t, func(_ plan, _ *Simulator, _ ReplayWork, r *Replayed) {
		at, compute := make([]units.Seconds, len(r.Ranks)), make([]units.Seconds, len(r.Ranks))
		seen := map[ReplayKey]bool{}
		for _, k := range r.Tasks {
			if !near(k.Start, at[k.Rank], 1e-9) || k.Time < -1e-12 || seen[k.ReplayKey] {
				t.Errorf("%+v begins at %v, the rank is done at %v", k, k.Start, at[k.Rank])
			}
			if at[k.Rank], seen[k.ReplayKey] = k.Start+k.Time, true; !k.Op.Waits() {
				compute[k.Rank] += k.Time
			}
		}
		var last units.Seconds
		for i, k := range r.Ranks {
			last = max(last, k.End)
			if !near(at[i], k.End, 1e-9) || !near(compute[i], k.Compute, 1e-9) || !near(k.Compute+k.Exposed+k.Skew, k.End, 1e-6) {
				t.Errorf("rank %d: %+v, tasks end at %v and compute %v", i, k, at[i], compute[i])
			}
		}
		if last != r.Step.Mid {
			t.Errorf("step %v, the last rank ends at %v", r.Step.Mid, last)
		}
	})
}

// TestSupposingWhatTheLawsSay changes nothing, and supposing one rank to be
// slower is as long as the slower rank makes it, if the others do nothing.
func TestSupposingWhatTheLawsSay(t *testing.T) {
	manyReplays(t, func(x plan, s *Simulator, w ReplayWork, r *Replayed) {
		took := map[ReplayKey]units.Seconds{}
		for _, k := range r.Tasks {
			if k.Op == MergeOp {
				k.Op = AttentionOp
			}
			if !k.Op.Waits() {
				took[k.ReplayKey] += k.Time
			}
		}
		same, err := s.Supposing(w, func(k ReplayKey) (units.Seconds, bool) {
			v, ok := took[k]
			return v, ok
		})
		if err != nil || !near(same.Step.Mid, r.Step.Mid, 1e-9) || len(same.Tasks) != len(r.Tasks) {
			t.Fatalf("%v supposed, %v predicted, %v", same.Step.Mid, r.Step.Mid, err)
		}
		for i, k := range same.Ranks {
			if !near(k.End, r.Ranks[i].End, 1e-9) || !near(k.Exposed, r.Ranks[i].Exposed, 1e-6) {
				t.Errorf("rank %d: %+v supposed, %+v predicted", i, k, r.Ranks[i])
			}
		}
		slow := x.layout.Groups[0][0].Rank
		late, err := s.Supposing(w, func(k ReplayKey) (units.Seconds, bool) {
			return 3 * took[k], k.Rank == slow
		})
		if err != nil || late.Step.Mid < r.Step.Mid*(1-1e-9) || !near(late.Ranks[slow].Compute, 3*r.Ranks[slow].Compute, 1e-9) {
			t.Errorf("with rank %d slower %v, else %v; %+v, %v", slow, late.Step.Mid, r.Step.Mid, late.Ranks[slow], err)
		}
	})
}

// TestReplayedSlowerRankIsSkew: of two equal ranks on free links the one that
// waits does so for the other, which never waits.
func TestReplayedSlowerRankIsSkew(t *testing.T) {
	p := madeUp(t, map[string]speeds{"fast": {attention: 4e12}, "slow": {attention: 1e12}}, map[string]wire{"bus": {}})
	tokens := []units.Tokens{512, 512}
	j := testJob(cluster(t, "1x(1 fast + 1 slow)", p, "bus", ""), tokens)
	s, err := NewSimulator(NewPredictor(p), j)
	if err != nil {
		t.Fatal(err)
	}
	r, err := s.Replayed(ReplayWork{Layout: ZigZag(tokens, []Group{{{0, 2}, {1, 2}}}), Layers: 2, AttentionOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	fast, slow := r.Ranks[0], r.Ranks[1]
	if !near(slow.Compute, 4*fast.Compute, 1e-9) || slow.Skew > 1e-12 || !near(fast.Skew, 3*fast.Compute, 1e-6) || fast.Exposed > 1e-12 {
		t.Errorf("fast %+v, slow %+v", fast, slow)
	}
}

// TestReplayedLeavesOut: the attention alone takes what Attention says, merging
// has its own tasks, and neither loss nor exchange needs a law.
func TestReplayedLeavesOut(t *testing.T) {
	manyReplays(t, func(x plan, s *Simulator, _ ReplayWork, _ *Replayed) {
		forward, backward, err := s.Attention(x.layout)
		if err != nil {
			t.Fatal(err)
		}
		if x.job.Recompute == RecomputeFull {
			backward += forward
		}
		r, err := s.Replayed(ReplayWork{Layout: x.layout, Layers: 1, AttentionOnly: true})
		if err != nil || !near(r.Meeting, forward+backward, 1e-9) {
			t.Errorf("%v, want %v: %v", r.Meeting, forward+backward, err)
		}
	})
	p := usual(t)
	x := plan{job: testJob(cluster(t, "1x2 fast", p, "bus", ""), []units.Tokens{300, 200}), layout: ringOf([]units.Tokens{300, 200})}
	var laws []Law
	for _, l := range p.Laws {
		if l.Op != op.KindAdamW && l.Op != op.KindAllGather && l.Op != op.KindCEChunk {
			laws = append(laws, l)
		}
	}
	p.Laws = laws
	s, err := NewSimulator(NewPredictor(p), x.job)
	if err != nil {
		t.Fatal(err)
	}
	r, err := s.Replayed(ReplayWork{Layout: x.layout, Layers: 1})
	if err != nil {
		t.Fatal(err)
	}
	var merged units.Seconds
	for _, k := range r.Tasks {
		if k.Op == MergeOp {
			merged += k.Time
		}
	}
	if merged <= 0 || r.Step.Source != Interpolated && r.Step.Source != Transferred {
		t.Errorf("merging takes %v, the step rests on %q", merged, r.Step.Source)
	}
}

// Each micro-batch's loss comes between its layers' forward and backward passes and takes what
// its law says; nothing else takes other times for it, and ranks that meet wait for the longest.
func TestReplayedLossesLieBetweenThePasses(t *testing.T) {
	p := usual(t)
	j := testJob(cluster(t, "1x(2 fast + 1 slow)", p, "bus", ""), []units.Tokens{700, 200, 300})
	j.Recompute, j.LossChunk = RecomputeFull, 256
	s, err := NewSimulator(NewPredictor(p), j)
	if err != nil {
		t.Fatal(err)
	}
	layers, err := NewLayers(NewPredictor(p), j)
	if err != nil {
		t.Fatal(err)
	}
	w := ReplayWork{Layout: ringOf([]units.Tokens{700, 200, 300}), Layers: 2, Micro: 3}
	bare, err := s.Replayed(w)
	if err != nil {
		t.Fatal(err)
	}
	w.Loss = true
	with, err := s.Replayed(w)
	if err != nil {
		t.Fatal(err)
	}
	of, n, longest := map[ReplayKey]units.Seconds{}, 0, units.Seconds(0)
	for _, k := range bare.Tasks {
		of[k.ReplayKey] = k.Time
	}
	for i, k := range with.Tasks {
		if k.Op != LossOp {
			if !k.Op.Waits() && !near(k.Time, of[k.ReplayKey], 1e-9) {
				t.Errorf("%+v without the loss takes %v", k, of[k.ReplayKey])
			}
			continue
		}
		n++
		want, err := layers.Loss([]string{"fast", "fast", "slow"}[k.Rank], []units.Tokens{700, 200, 300}[k.Rank])
		before, behind := with.Tasks[i-1], with.Tasks[i+1]
		if err != nil || !near(k.Time, want, 1e-9) || k.Layer != 1 || before.Op != LinearOut || before.Again || before.Dir != ForwardPass || !behind.Again || behind.Micro != k.Micro || before.Micro != k.Micro {
			t.Errorf("%+v, want %v; %v; between %+v and %+v", k, want, err, before, behind)
		}
		longest = max(longest, want)
	}
	if n != 9 || !near(with.Meeting-bare.Meeting, 3*longest, 1e-9) {
		t.Errorf("%d losses; meeting %v, without them %v, the longest takes %v", n, with.Meeting, bare.Meeting, longest)
	}
	supposed, err := s.Supposing(w, func(k ReplayKey) (units.Seconds, bool) { return 7, k.Op == LossOp })
	if err != nil || !near(supposed.Meeting-bare.Meeting, 21, 1e-9) {
		t.Errorf("7 s supposed: meeting %v; %v", supposed.Meeting, err)
	}
	w.Layout.TwoBatch, w.Micro = true, 2
	if _, err := s.Replayed(w); err == nil || !strings.Contains(err.Error(), "loss: of micro-batches that go together") {
		t.Error(err)
	}
}

func TestReplayedRefuses(t *testing.T) {
	p := usual(t)
	j := testJob(cluster(t, "1x2 fast", p, "bus", ""), []units.Tokens{300, 200})
	s, err := NewSimulator(NewPredictor(p), j)
	if err != nil {
		t.Fatal(err)
	}
	good := ringOf([]units.Tokens{300, 200})
	if _, err := s.Replayed(ReplayWork{Layout: good, Layers: 0}); err == nil {
		t.Error("no layers are accepted")
	}
	if _, err := s.Replayed(ReplayWork{Layout: ringOf([]units.Tokens{300, 199}), Layers: 1}); err == nil {
		t.Error("a hole in the layout is accepted")
	}
	p.Laws = slicesWithout(p.Laws, op.KindAttnBwd)
	if s, err = NewSimulator(NewPredictor(p), j); err != nil {
		t.Fatal(err)
	}
	_, err = s.Replayed(ReplayWork{Layout: good, Layers: 1})
	var missing *MissingLawError
	if !errors.As(err, &missing) || missing.Op != op.KindAttnBwd {
		t.Errorf("a missing law gives %v", err)
	}
}

// TestReplayedMessagesWaitForTheirReceiver: a rank that comes late to a layer is
// not sent the layer's keys and values before.
func TestReplayedMessagesWaitForTheirReceiver(t *testing.T) {
	p := madeUp(t, map[string]speeds{"any": {attention: 1e15, gemm: 1e15}}, map[string]wire{"bus": {0, 1e9}})
	tokens := []units.Tokens{500, 500}
	s, err := NewSimulator(NewPredictor(p), testJob(cluster(t, "1x2 any", p, "bus", ""), tokens))
	if err != nil {
		t.Fatal(err)
	}
	const late = 5.0
	r, err := s.Supposing(ReplayWork{Layout: ringOf(tokens), Layers: 2}, func(k ReplayKey) (units.Seconds, bool) {
		if k.Rank == 1 && k.Layer == 0 && k.Dir == ForwardPass && k.Op == LinearOut {
			return late, true
		}
		return 0, true
	})
	if err != nil {
		t.Fatal(err)
	}
	message := units.Seconds(1.15 * 2 * 500 * 2 * 64 * 4 / 1e9) // of another group's law
	for _, k := range r.Tasks {
		if k.Layer == 1 && k.Rank == 1 && k.Dir == ForwardPass && k.Op == RingWait && k.Step == 1 && !near(k.Time, message, 1e-3) {
			t.Errorf("waits for %v, a message takes %v", k.Time, message)
		}
	}
}

// TestReplayedMicroBatches: one after the other two take twice as long as one where ranks
// meet, and both are there with all they do; in twos it takes two of them.
func TestReplayedMicroBatches(t *testing.T) {
	manyReplays(t, func(_ plan, s *Simulator, w ReplayWork, _ *Replayed) {
		w.Micro, w.Layout.Schedule = 0, w.Layout.OneByOne()
		one, err := s.Replayed(w)
		if err != nil {
			t.Fatal(err)
		}
		w.Layout.TwoBatch = w.Layout.HeadChunks == 0 // without effect
		if again, err := s.Replayed(w); err != nil || again.Step != one.Step || len(again.Tasks) != len(one.Tasks) {
			t.Errorf("one micro-batch in twos: %v, alone %v: %v", again.Step, one.Step, err)
		}
		w.Micro, w.Layout.Schedule = 2, w.Layout.OneByOne()
		two, err := s.Replayed(w)
		if err != nil {
			t.Fatal(err)
		}
		if !near(two.Meeting, 2*one.Meeting, 1e-12) || two.Step.Mid > 2*one.Step.Mid*(1+1e-9) || two.Step.Mid < one.Step.Mid {
			t.Errorf("%v and %v where ranks meet, one takes %v and %v", two.Step.Mid, two.Meeting, one.Step.Mid, one.Meeting)
		}
		count := map[ReplayKey]int{}
		for _, k := range two.Tasks {
			k.Micro--
			if k.Micro < 0 {
				k.Micro = 0
			}
			count[k.ReplayKey]++
		}
		for _, k := range one.Tasks {
			if count[k.ReplayKey] != 2 {
				t.Fatalf("%+v is there %d times", k.ReplayKey, count[k.ReplayKey])
			}
		}
	})
}

// TestMeetingIsOfWhatIsSupposed: where ranks meet a step is no shorter, whichever layer or
// micro-batch is supposed to take long, and as long as its passes where all are equal.
func TestMeetingIsOfWhatIsSupposed(t *testing.T) {
	manyReplays(t, func(_ plan, s *Simulator, w ReplayWork, _ *Replayed) {
		w.Micro, w.Layers = 2, 2
		for _, slow := range []ReplayKey{{Layer: 1}, {Micro: 1}} {
			r, err := s.Supposing(w, func(k ReplayKey) (units.Seconds, bool) {
				if k.Layer >= slow.Layer && k.Micro >= slow.Micro {
					return 1, true
				}
				return 1e-6, true
			})
			if err != nil {
				t.Fatal(err)
			}
			if r.Meeting < r.Step.Mid*(1-1e-9) || r.Meeting > 4*r.Step.Mid {
				t.Errorf("%+v: %v where ranks meet, %v where they do not", slow, r.Meeting, r.Step.Mid)
			}
		}
	})
}

// TestEitherOfTwosIsSupposedByItself: what one micro-batch is supposed to take is not what
// the other does, though both are at work in one layer.
func TestEitherOfTwosIsSupposedByItself(t *testing.T) {
	manyReplays(t, func(_ plan, s *Simulator, w ReplayWork, _ *Replayed) {
		if !w.Layout.TwoBatch {
			return
		}
		took := func(k ReplayKey) units.Seconds { return units.Seconds(1+2*k.Micro) * 1e-3 }
		r, err := s.Supposing(w, func(k ReplayKey) (units.Seconds, bool) { return took(k), true })
		if err != nil {
			t.Fatal(err)
		}
		sums := map[ReplayKey]units.Seconds{}
		for _, k := range r.Tasks {
			if k.Op == MergeOp {
				k.Op = AttentionOp
			}
			if !k.Op.Waits() {
				sums[k.ReplayKey] += k.Time
			}
		}
		for k, got := range sums {
			if !near(got, took(k), 1e-9) {
				t.Fatalf("%+v takes %v, supposed %v", k, got, took(k))
			}
		}
	})
}
