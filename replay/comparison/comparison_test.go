package comparison

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/fit"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/replay"
)

// compared plays a world and compares it with the made-up profile.
func compared(t testing.TB, w *world) *Report {
	t.Helper()
	r, err := New(read(t, w.play(t)), madeUp(t, linkRate), fit.DefaultLimits(), Links{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range r.Plans {
		addsUp(t, &r.Plans[i])
	}
	return r
}

// addsUp: the parts are the difference, exactly but for rounding.
func addsUp(t testing.TB, x *Plan) {
	t.Helper()
	var predicted, measured, difference units.Seconds
	for _, p := range x.Parts {
		predicted, measured, difference = predicted+p.Predicted, measured+p.Measured, difference+p.Difference
	}
	for what, d := range map[string]units.Seconds{"predicted": predicted - x.Predicted.Mid, "measured": measured - x.Measured.Median, "difference": difference - x.Difference} {
		if math.Abs(float64(d)) > 1e-12*float64(x.Measured.Median) {
			t.Errorf("plan %d: %s of the parts adds up to %v more", x.Plan, what, d)
		}
	}
	of := -x.Parts[0].Difference
	for _, p := range x.Compute {
		of += p.Difference
	}
	if math.Abs(float64(of)) > 1e-12*float64(x.Measured.Median) {
		t.Errorf("plan %d: attention and linear parts add up to %v more than computing", x.Plan, of)
	}
}

// worlds are the layouts that every disturbance is tried on.
func worlds(t testing.TB) map[string]world {
	p := madeUp(t, linkRate)
	full := jobOf(t, p, 800, 800, 400, 400)
	full.Recompute = costmodel.RecomputeFull
	return map[string]world{
		"ring":       {job: jobOf(t, p, 800, 800, 400, 400), layouts: []costmodel.Layout{ring(800, 800, 400, 400)}, blocks: 6},
		"equal":      {job: jobOf(t, p, 600, 600, 600, 600), layouts: []costmodel.Layout{ring(600, 600, 600, 600)}, blocks: 7, layers: 2},
		"pairs":      {job: full, layouts: []costmodel.Layout{pairs(800, 800, 400, 400)}, blocks: 6, layers: 2},
		"chunks":     {job: full, layouts: []costmodel.Layout{inChunks(800, 800, 400, 400)}, blocks: 6, layers: 2},
		"twos":       {job: full, layouts: []costmodel.Layout{inTwos(pairs(800, 800, 400, 400))}, blocks: 6, layers: 2, micro: 2},
		"own last":   {job: full, layouts: []costmodel.Layout{inTwos(ownLast(pairs(800, 800, 400, 400)))}, blocks: 6, attention: true, micro: 2},
		"beside":     {job: full, layouts: []costmodel.Layout{pairs(800, 800, 400, 400)}, blocks: 6, layers: 2, micro: 2},
		"loss":       {job: full, layouts: []costmodel.Layout{ring(800, 800, 400, 400)}, blocks: 6, layers: 2, loss: true},
		"zero3":      {job: zero(full, costmodel.Zero3), layouts: []costmodel.Layout{pairs(800, 800, 400, 400)}, blocks: 6, step: true},
		"zero1":      {job: zero(jobOf(t, p, 800, 800, 400, 400), costmodel.Zero1), layouts: []costmodel.Layout{ring(800, 800, 400, 400)}, blocks: 6, step: true},
		"step alone": {job: jobOf(t, p, 800, 0, 0, 0), layouts: []costmodel.Layout{ring(800, 0, 0, 0)}, blocks: 6, step: true},
		"attention":  {job: jobOf(t, p, 800, 800, 400, 400), layouts: []costmodel.Layout{pairs(800, 800, 400, 400)}, blocks: 6, attention: true},
		"packed":     {job: full, layouts: []costmodel.Layout{pairs(800, 800, 400, 400)}, blocks: 6, docs: []units.Tokens{1300, 100, 1000}},
		"alone":      {job: jobOf(t, p, 800, 0, 0, 0), layouts: []costmodel.Layout{ring(800, 0, 0, 0)}, blocks: 6},
	}
}

// zero is a job of a ZeRO stage, whose exchange is hidden as far as it can be.
func zero(j costmodel.Job, stage costmodel.ZeRO) costmodel.Job {
	j.Zero, j.OverlapZero = stage, true
	return j
}

// TestUndisturbed: a world as the profile says has no error anywhere.
func TestUndisturbed(t *testing.T) {
	for name, w := range worlds(t) {
		t.Run(name, func(t *testing.T) {
			r := compared(t, &w)
			x := &r.Plans[0]
			if math.Abs(x.Log) > 1e-5 || x.ComputeError > 1e-3 || !x.Inside || r.Failed(true) {
				t.Errorf("error %v, of computing %v; %+v", x.Log, x.ComputeError, r.Verdicts)
			}
			for _, p := range x.Parts {
				if math.Abs(float64(p.Difference)) > 1e-5*float64(x.Measured.Median) {
					t.Errorf("%+v of %v", p, x.Measured.Median)
				}
			}
			if len(x.Classes) == 0 || len(x.Ranks) != 4 || x.Stretches == 0 {
				t.Errorf("%d classes, %d ranks, %d stretches", len(x.Classes), len(x.Ranks), x.Stretches)
			}
		})
	}
}

// share is a part's difference as a share of the whole difference.
func share(x *Plan, name string) float64 {
	i := slices.IndexFunc(x.Parts, func(p Part) bool { return p.Name == name })
	return float64(x.Parts[i].Difference / x.Difference)
}

// TestSlowerRank: where the rank that is the longest computes more slowly, the
// difference is its computing, or the waiting of one that ends after it.
func TestSlowerRank(t *testing.T) {
	for name, w := range worlds(t) {
		t.Run(name, func(t *testing.T) {
			base := compared(t, &w)
			rank := base.Plans[0].Critical[0]
			w.slower = func(k costmodel.ReplayKey) float64 {
				if k.Rank == rank {
					return 1.5
				}
				return 1
			}
			r := compared(t, &w)
			x := &r.Plans[0]
			if math.Abs(float64(x.Difference)) < 1e-6*float64(x.Measured.Median) { // it only waits less
				if x.Parts[0].Difference <= 0 {
					t.Errorf("%+v", x.Parts)
				}
				return
			}
			of := ComputePart
			if x.Critical[0] != rank {
				of = SkewPart
			}
			if x.Difference <= 0 || share(x, of) < 0.8 || math.Abs(share(x, GapsPart)) > 1e-3 {
				t.Errorf("rank %d of %d, %v: %+v", x.Critical, rank, x.Difference, x.Parts)
			}
			if !strings.HasSuffix(name, "alone") && !(x.ComputeError > 0.02 && x.ComputeError < math.Log(1.5)) {
				t.Errorf("error of computing %v", x.ComputeError)
			}
		})
	}
}

// TestSlowerPeerIsSkew: a member of a group that comes late to its all-to-all
// makes the others wait, and waiting for it is skew, not communication.
func TestSlowerPeerIsSkew(t *testing.T) {
	w := worlds(t)["pairs"]
	w.job.Recompute = costmodel.RecomputeNone
	// Rank 3 is late to the backward pass's first all-to-all, and rank 1 of the same
	// group is made to end later than it.
	w.slower = func(k costmodel.ReplayKey) float64 {
		switch {
		case k.Rank == 3 && k.Op == costmodel.LinearOut && k.Dir == costmodel.BackwardPass:
			return 6
		case k.Rank == 1 && k.Op == costmodel.LinearIn && k.Dir == costmodel.BackwardPass && k.Layer == 0:
			return 8
		}
		return 1
	}
	r := compared(t, &w)
	x := &r.Plans[0]
	if x.Critical[0] != 1 || share(x, SkewPart) < 0.2 || share(x, CommunicationPart) > 0.03 || math.Abs(share(x, GapsPart)) > 1e-4 {
		t.Errorf("rank %d, %v: %+v", x.Critical, x.Difference, x.Parts)
	}
}

// TestSlowerLinkIsCommunication: where messages take longer than predicted, the
// difference is exposed communication.
func TestSlowerLinkIsCommunication(t *testing.T) {
	for name, w := range worlds(t) {
		if strings.HasSuffix(name, "alone") {
			continue
		}
		t.Run(name, func(t *testing.T) {
			w.rate = linkRate / 8
			x := &compared(t, &w).Plans[0]
			if x.Difference <= 0 || share(x, CommunicationPart) < 0.9 || x.ComputeError > 1e-3 {
				t.Errorf("%v: %+v", x.Difference, x.Parts)
			}
		})
	}
}

// TestGapsAreFound: time in no span is a gap, and peers' gaps are skew.
func TestGapsAreFound(t *testing.T) {
	for name, w := range worlds(t) {
		t.Run(name, func(t *testing.T) {
			w.gap = func(k costmodel.ReplayKey) units.Seconds { return 300e-6 }
			x := &compared(t, &w).Plans[0]
			if x.Difference <= 0 || share(x, GapsPart) < 0.7 || share(x, GapsPart)+share(x, SkewPart) < 0.85 || math.Abs(share(x, ComputePart)) > 1e-3 {
				t.Errorf("%v: %+v", x.Difference, x.Parts)
			}
		})
	}
}

// TestNoisyBlocks: parts add up block by block whatever the noise, and the
// median over blocks is near the truth.
func TestNoisyBlocks(t *testing.T) {
	for name, w := range worlds(t) {
		t.Run(name, func(t *testing.T) {
			w.noise, w.drift = 0.03, 0.02
			x := &compared(t, &w).Plans[0]
			if math.Abs(x.Log) > 0.06 || x.Measured.Spread == 0 || x.Upper < math.Abs(x.Log) || x.ComputeError == 0 || x.ComputeError > 0.06 {
				t.Errorf("log %v (bound %v), spread %v, computing %v", x.Log, x.Upper, x.Measured.Spread, x.ComputeError)
			}
		})
	}
}

// TestOpsMayBeMissing: the join takes what there is, and says what is not.
func TestOpsMayBeMissing(t *testing.T) {
	w := worlds(t)["pairs"]
	w.drop = func(s *replay.Span) bool {
		return s.Op == replay.LinearIn || s.Op == replay.RingWait || s.Rank == 2 && s.Op == replay.Attn || s.Rank == 3
	}
	r := compared(t, &w)
	x := &r.Plans[0]
	if !strings.Contains(strings.Join(r.Warnings, "\n"), "not in the trace: linear_in fwd") {
		t.Errorf("%q", r.Warnings)
	}
	for _, c := range x.Classes {
		if gone := c.Op == costmodel.LinearIn || c.Op == costmodel.RingWait; gone != (c.Measured == 0 && c.Compared == 0) {
			t.Errorf("%+v", c)
		}
	}
	if x.ComputeError > 0.4 || x.Parts[3].Difference <= 0 {
		t.Errorf("%v %+v", x.ComputeError, x.Parts)
	}
	w.drop = func(*replay.Span) bool { return true }
	if r = compared(t, &w); r.Plans[0].Stretches != 0 || verdictOf(r, "plan 0: compute") != fit.Insufficient || verdictOf(r, "plan 0: step") != fit.Pass {
		t.Errorf("without spans: %+v", r.Verdicts)
	}
}

func verdictOf(r *Report, name string) fit.Verdict {
	for _, c := range r.Verdicts {
		if c.Name == name {
			return c.Verdict
		}
	}
	return ""
}

func TestClassesAndWorst(t *testing.T) {
	w := worlds(t)["ring"]
	w.slower = func(k costmodel.ReplayKey) float64 {
		if k.Rank == 2 && k.Op == costmodel.AttentionOp && k.Dir == costmodel.BackwardPass && k.Step == 1 {
			return 3
		}
		return 1
	}
	x := &compared(t, &w).Plans[0]
	i := slices.IndexFunc(x.RankClasses, func(c Class) bool {
		return c.Rank == 2 && c.Op == costmodel.AttentionOp && c.Dir == costmodel.BackwardPass
	})
	c := x.RankClasses[i]
	if c.Stretches != 4 || c.Compared != 4 || c.Worst[0].Step != 1 || math.Abs(c.Worst[0].Log+math.Log(3)) > 1e-3 || math.Abs(c.MeanError-math.Log(3)/4) > 1e-3 || math.Abs(c.Bias) > 1e-3 {
		t.Errorf("%+v", c)
	}
	if n := len(x.RankClasses); n != 4*len(x.Classes) {
		t.Errorf("%d classes of ranks, %d of all", n, len(x.Classes))
	}
}

// TestAllToAllOfOneIsCopying: where it moves no byte it is neither waiting nor
// communication, and keeps the others waiting like any work.
func TestAllToAllOfOneIsCopying(t *testing.T) {
	var l lap
	at := units.Seconds(0)
	add := func(o costmodel.ReplayOp, took units.Seconds, local bool) {
		k := costmodel.ReplayKey{Dir: costmodel.ForwardPass, Op: o}
		l.spans = append(l.spans, span{ReplayKey: k, start: at, took: took, local: local})
		at += took
	}
	l.took = 10
	add(costmodel.LinearIn, 2, false)
	add(costmodel.AllToAllIn, 1, true)
	add(costmodel.RingWait, 0.5, false)
	add(costmodel.AttentionOp, 3, false)
	add(costmodel.MergeOp, 0.25, false)
	add(costmodel.AllToAllOut, 0.75, true)
	add(costmodel.LinearOut, 2, false)
	want := account{attention: 3.25, linear: 4, communication: 0.3, skew: 0.2, gaps: 2.25}
	if got := l.account(0.2); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	took := busy([]lap{l}, rings(1), false, false)
	for o, want := range map[costmodel.ReplayOp]units.Seconds{costmodel.LinearIn: 3, costmodel.AttentionOp: 3.25, costmodel.LinearOut: 3.25} {
		if got := took[costmodel.ReplayKey{Dir: costmodel.ForwardPass, Op: o}]; got != want {
			t.Errorf("%s is busy for %v, want %v", o, got, want)
		}
	}
}

// rings is of groups that all have rings of so many.
func rings(n int) func(rank, micro int) int { return func(int, int) int { return n } }

// TestRestBelongsToItsStep: a rank that rests where every pair of a step is
// masked does so in that step.
func TestRestBelongsToItsStep(t *testing.T) {
	wait := func(step int, at units.Seconds) span {
		return span{ReplayKey: costmodel.ReplayKey{Dir: costmodel.ForwardPass, Step: step, Op: costmodel.RingWait}, start: at, took: 1}
	}
	attention := costmodel.ReplayKey{Dir: costmodel.ForwardPass, Op: costmodel.AttentionOp}
	l := lap{took: 20, spans: []span{wait(0, 0), {ReplayKey: attention, start: 1, took: 2}, wait(1, 3), wait(2, 9)}}
	took := busy([]lap{l}, rings(2), false, false)
	masked := attention
	masked.Step = 1
	if took[attention] != 2 || took[masked] != 15 { // 5 until the last wait and 10 after it
		t.Errorf("%v", took)
	}
}

// TestAnyTraceAddsUp: whatever is recorded, the parts are the difference, and
// every number is one.
func TestAnyTraceAddsUp(t *testing.T) {
	p := madeUp(t, linkRate)
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 5))
		tokens := []units.Tokens{units.Tokens(rng.IntN(900)), units.Tokens(1 + rng.IntN(900)), units.Tokens(rng.IntN(900)), units.Tokens(1 + rng.IntN(900))}
		w := world{job: jobOf(t, p, tokens...), layouts: []costmodel.Layout{pairs(tokens...), ring(tokens...)}, blocks: 1 + rng.IntN(9), layers: 1 + rng.IntN(3), noise: rng.Float64(), drift: rng.Float64(), rate: linkRate * math.Exp(3*rng.NormFloat64())}
		w.job.Recompute = []costmodel.Recompute{costmodel.RecomputeNone, costmodel.RecomputeFull}[rng.IntN(2)]
		lost := rng.Float64() / 2
		w.drop = func(s *replay.Span) bool {
			s.T0NS, s.DurNS = s.T0NS+rng.Int64N(1e6), s.DurNS+rng.Int64N(1+int64(math.Exp(15*rng.Float64())))
			s.In, s.Out = rng.Int64N(2), rng.Int64N(2)
			return rng.Float64() < lost
		}
		r := compared(t, &w)
		data, err := json.Marshal(r)
		if err != nil {
			t.Errorf("seed %d: %v", seed, err)
		}
		var back Report
		if err := json.Unmarshal(data, &back); err != nil || len(back.Plans) != 2 {
			t.Errorf("seed %d: %v", seed, err)
		}
		for _, x := range r.Plans {
			for _, part := range x.Parts[1:3] {
				if part.Measured < 0 {
					t.Errorf("seed %d: %+v", seed, part)
				}
			}
		}
	}
}

// TestMicroBatchesCount: a step of two computes twice what one does, so that spans of one are
// not taken for it.
func TestMicroBatchesCount(t *testing.T) {
	k := &packed{what: costmodel.ReplayWork{Layout: pairs(800, 800, 400, 400), Layers: 2}, ranks: []int{0, 1, 2, 3}, headDim: 64}
	one := k.flops()
	k.what.Micro = 2
	for rank, n := range k.flops() {
		if n != 2*one[rank] || n == 0 {
			t.Errorf("rank %d: %d FLOPs of two micro-batches, %d of one", rank, n, one[rank])
		}
	}
}

// TestReplaysTakeTheRatiosOfWholeSteps: what ranks compute is predicted as whole training steps
// took, and so is what waits for it.
func TestReplaysTakeTheRatiosOfWholeSteps(t *testing.T) {
	w, p := worlds(t)["ring"], madeUp(t, linkRate)
	played := w.play(t)
	of := func() *Plan {
		r, err := New(read(t, played), p, fit.DefaultLimits(), Links{})
		if err != nil {
			t.Fatal(err)
		}
		return &r.Plans[0]
	}
	alone := of()
	for _, d := range p.Devices {
		p.Training = append(p.Training, costmodel.TrainingFact{Device: d.Name, Layers: 2, Loss: 1, Optimizer: 1, Steps: 3, Ratio: 1.05})
	}
	in := of()
	for i, x := range in.Compute {
		if ratio := float64(x.Predicted / alone.Compute[i].Predicted); math.Abs(ratio-2) > 1e-9 {
			t.Errorf("%s is predicted %v times as long", x.Name, ratio)
		}
	}
	if in.Predicted.Mid <= alone.Predicted.Mid || in.Measured != alone.Measured {
		t.Errorf("%+v, measured %+v; alone %+v, measured %+v", in.Predicted, in.Measured, alone.Predicted, alone.Measured)
	}
}
