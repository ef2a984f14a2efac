package comparison

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/costmodel/pipeline"
	"github.com/evenkeel/evenkeel/fit"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/replay"
)

// everyRelay compares all of them.
func everyRelay(t *testing.T, check func(t *testing.T, name string, w relay)) {
	for name, w := range relays() {
		t.Run(name, func(t *testing.T) { check(t, name, w) })
	}
}

// TestPipelineUndisturbed: a pipeline that runs as the profile says has no error anywhere.
func TestPipelineUndisturbed(t *testing.T) {
	everyRelay(t, func(t *testing.T, _ string, w relay) {
		r := w.report(t)
		x, run := &r.Plans[0], w.plans[0]
		if math.Abs(x.Log) > 1e-5 || x.ComputeError > 1e-3 || !x.Inside || r.Failed(true) || !x.Pipeline || x.Layers != run.Layers || x.Micro != len(run.Chunks) {
			t.Errorf("error %v, of computing %v; %+v", x.Log, x.ComputeError, r.Verdicts)
		}
		for _, p := range x.Parts {
			if math.Abs(float64(p.Difference)) > 1e-5*float64(x.Measured.Median) {
				t.Errorf("%+v of %v", p, x.Measured.Median)
			}
		}
		i := slices.IndexFunc(x.Classes, func(c Class) bool { return c.Op == costmodel.StageWait })
		if (i >= 0) != (len(run.Stages) > 1) || i >= 0 && (x.Classes[i].Predicted <= 0 || !(run.Layers == 3 && len(run.Stages) == 2) && x.Classes[i].MeanError > 1e-3) {
			t.Errorf("waits for other stages: %+v", x.Classes)
		}
		stage := map[int]bool{}
		for _, s := range run.Stages {
			for _, rank := range s.Ranks {
				stage[rank] = true
			}
		}
		for _, k := range x.Ranks {
			if d := math.Abs(float64(k.Computed - k.Computes)); d > 1e-5*float64(x.Measured.Median) || (k.Computes > 0) != stage[k.Rank] || k.Measured > k.Predicted+1e-8 {
				t.Errorf("%+v", k)
			}
		}
		if slices.ContainsFunc(r.Warnings, func(s string) bool { return strings.HasPrefix(s, "plan 0") }) {
			t.Errorf("%q", r.Warnings)
		}
	})
}

// TestPipelineStagesTakeTheirLaws: the prediction is that of the plan's prices, by the cluster
// that a person would name, whatever the ranks are called.
func TestPipelineStagesTakeTheirLaws(t *testing.T) {
	w, profile := relays()["pairs"], madeUp(t, linkRate)
	c := &making{rec: &Recording{Header: w.header()}, profile: profile, predictor: costmodel.NewPredictor(profile)}
	x, err := c.courseOf(0)
	if err != nil {
		t.Fatal(err)
	}
	j := jobOf(t, profile) // two fast ranks, then two slow ones
	costs, err := pipeline.FromLaws(costmodel.NewPredictor(profile), j, w.plans[0].Lengths)
	if err != nil {
		t.Fatal(err)
	}
	p := w.plans[0].Clone()
	p.Stages = stagesOf([]int{4, 2}, []int{0, 1}, []int{2, 3})
	want, err := costs.Replayed(p, pipeline.Replay{})
	if err != nil || x.step != want.Step || x.step.Mid <= 0 || len(x.tasks) != len(want.Tasks) {
		t.Errorf("%+v, want %+v; %v", x.step, want, err)
	}
	for r, of := range []int{0, 2, 1, 3} {
		end, computes := x.until(r)
		if k := want.Ranks[of]; end != k.End || computes != k.Compute {
			t.Errorf("rank %d is done at %v and computes for %v, want %+v", r, end, computes, k)
		}
	}
}

// TestTheLossTakesItsLaw: behind the forward pass of each chunk the last stage's ranks have the
// loss of their tokens, by its law, and nothing else is predicted otherwise than without it.
func TestTheLossTakesItsLaw(t *testing.T) {
	w, profile := relays()["loss"], madeUp(t, linkRate)
	courseOf := func(h *replay.Header) *course {
		x, err := (&making{rec: &Recording{Header: h}, profile: profile, predictor: costmodel.NewPredictor(profile)}).courseOf(0)
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	h := w.header()
	with := courseOf(h)
	bare := w
	bare.change = nil
	without := map[costmodel.ReplayKey]units.Seconds{}
	for _, k := range courseOf(bare.header()).tasks {
		without[k.ReplayKey] = k.Time
	}
	j := jobOf(t, profile)
	j.LossChunk = 512
	layers, err := costmodel.NewLayers(costmodel.NewPredictor(profile), j)
	if err != nil {
		t.Fatal(err)
	}
	lost := map[int]units.Tokens{}
	for _, k := range with.tasks {
		if k.Op == costmodel.StageWait {
			continue // the loss is waited for
		}
		if k.Op != costmodel.LossOp {
			if math.Abs(float64(k.Time-without[k.ReplayKey])) > 1e-12 {
				t.Errorf("%+v without the loss takes %v", k, without[k.ReplayKey])
			}
			continue
		}
		x := w.plans[0].Chunks[k.Micro]
		tokens := x.Slice
		for _, i := range x.Whole {
			tokens += w.plans[0].Lengths[i]
		}
		want, err := layers.Loss(h.Ranks[k.Rank].Device, tokens/2) // both ranks have half
		if err != nil || k.Rank%2 != 1 || k.Layer != 2 || k.Dir != costmodel.ForwardPass || k.Again || math.Abs(float64(k.Time/want)-1) > 1e-9 {
			t.Errorf("%+v of %d tokens, want %v; %v", k, tokens, want, err)
		}
		lost[k.Rank] += tokens
	}
	if len(lost) != 2 || lost[1] != 4476 || lost[3] != 4476 {
		t.Errorf("losses of %v tokens", lost)
	}
}

// TestPipelineSlowerRank: where the longest rank computes more slowly the difference is its
// computing, or waiting for it of one that ends after it.
func TestPipelineSlowerRank(t *testing.T) {
	everyRelay(t, func(t *testing.T, _ string, w relay) {
		base := w.report(t).Plans[0]
		for rank := range 4 {
			if base.Ranks[rank].Computes == 0 {
				continue
			}
			w.slower = func(k costmodel.ReplayKey) float64 {
				if k.Rank == rank {
					return 1.5
				}
				return 1
			}
			x := &w.report(t).Plans[0]
			if x.ComputeError < 0.02 {
				t.Errorf("rank %d: error of computing %v", rank, x.ComputeError)
			}
			if x.Difference < 1e-3*x.Measured.Median {
				continue // it only waits less
			}
			// The longest rank waits for fewer messages where it comes late, and for more where
			// another stage does: that a message takes its time shows once it is waited for.
			if sum := share(x, ComputePart) + share(x, SkewPart); sum < 0.7 || math.Abs(share(x, GapsPart)) > 1e-3 {
				t.Errorf("rank %d of %v: %v: %+v", rank, x.Critical, x.Difference, x.Parts)
			}
			own := x.Parts[0].Difference
			if (x.Critical[0] == rank) != (own > 1e-3*x.Difference) {
				t.Errorf("rank %d of %v: %+v", rank, x.Critical, x.Parts)
			}
		}
	})
}

// TestPipelineLateStageIsSkew: what one stage takes longer for one chunk, the other waits for
// another stage, and no message.
func TestPipelineLateStageIsSkew(t *testing.T) {
	w := relays()["pairs"]
	base := w.report(t).Plans[0]
	// The first stage is done last; the second one is late with the first gradients.
	w.slower = func(k costmodel.ReplayKey) float64 {
		if k.Rank%2 == 1 && k.Micro == 3 && k.Dir == costmodel.BackwardPass {
			return 8
		}
		return 1
	}
	x := w.report(t).Plans[0]
	if base.Critical[0]%2 != 0 || x.Critical[0]%2 != 0 || x.Difference <= 0 || share(&x, SkewPart) < 0.95 || math.Abs(share(&x, GapsPart)) > 1e-3 {
		t.Errorf("critical %v, before %v; %v: %+v", x.Critical, base.Critical, x.Difference, x.Parts)
	}
}

// TestPipelineSlowerLinks: messages that take longer, between ranks of a stage or between
// stages, are communication.
func TestPipelineSlowerLinks(t *testing.T) {
	everyRelay(t, func(t *testing.T, name string, w relay) {
		w.rate = linkRate / 8
		x := w.report(t).Plans[0]
		if name == "one rank" {
			if math.Abs(x.Log) > 1e-5 {
				t.Errorf("%v: %+v", x.Difference, x.Parts)
			}
			return
		}
		if x.Difference <= 0 || share(&x, CommunicationPart) < 0.9 || x.ComputeError > 1e-3 {
			t.Errorf("%v: %+v", x.Difference, x.Parts)
		}
	})
}

// TestPipelineGaps: time in no span on the longest rank is a gap; on another stage's it is what
// the longest one waits for, wherever it is, behind a wait too.
func TestPipelineGaps(t *testing.T) {
	everyRelay(t, func(t *testing.T, _ string, w relay) {
		base := w.report(t).Plans[0]
		last := base.Critical[0]
		w.gap = func(k costmodel.ReplayKey) units.Seconds {
			if k.Rank == last {
				return 2e-5
			}
			return 0
		}
		if x := w.report(t).Plans[0]; x.Critical[0] != last || x.Difference <= 0 || x.Parts[3].Difference <= 0 || x.Parts[3].Difference < 0.8*x.Difference {
			t.Errorf("critical %v, before %v; %v: %+v", x.Critical, base.Critical, x.Difference, x.Parts)
		}
	})
	w := relays()["pairs"]
	w.gap = func(k costmodel.ReplayKey) units.Seconds {
		if k.Rank%2 == 1 && k.Micro == 3 {
			return 1e-3
		}
		return 0
	}
	if x := w.report(t).Plans[0]; x.Critical[0]%2 != 0 || share(&x, SkewPart) < 0.95 {
		t.Errorf("critical %v, %v: %+v", x.Critical, x.Difference, x.Parts)
	}
}

// TestGapsBehindAWaitAreOfItsPass: a rank that stands still between a message's arrival and
// what it computes next is late with that pass, not with the one before.
func TestGapsBehindAWaitAreOfItsPass(t *testing.T) {
	key := func(mb, layer int, dir string, again bool, o costmodel.ReplayOp) costmodel.ReplayKey {
		return costmodel.ReplayKey{Rank: 0, Micro: mb, Layer: layer, Dir: dir, Again: again, Op: o}
	}
	f, b := costmodel.ForwardPass, costmodel.BackwardPass
	laps := []lap{{took: 40, spans: []span{
		{ReplayKey: key(0, 2, f, false, costmodel.StageWait), start: 1, took: 2},
		{ReplayKey: key(0, 2, f, false, costmodel.LinearIn), start: 4, took: 3},
		{ReplayKey: key(1, 3, b, false, costmodel.StageWait), start: 9, took: 1},
		{ReplayKey: key(1, 3, f, true, costmodel.AllToAllIn), start: 15, took: 1},
		{ReplayKey: key(1, 3, f, true, costmodel.AttentionOp), start: 17, took: 2},
		{ReplayKey: key(1, 3, b, false, costmodel.StageWait), start: 20, took: 1},
		{ReplayKey: key(1, 3, b, false, costmodel.AllToAllIn), start: 27, took: 1},
	}}}
	got := busy(laps, rings(1), false, false)
	for k, want := range map[costmodel.ReplayKey]units.Seconds{
		key(0, 2, f, false, costmodel.LinearIn):   1 + 3 + 2, // the second before the first wait delays nothing
		key(1, 3, f, true, costmodel.LinearIn):    5 + 0,
		key(1, 3, f, true, costmodel.AttentionOp): 1 + 2 + 1,
		key(1, 3, b, false, costmodel.LinearOut):  6 + 12,
	} {
		if got[k] != want {
			t.Errorf("%+v: %v, want %v", k, got[k], want)
		}
	}
}

// TestAnyPipelineTraceAddsUp: whatever is recorded, the parts are the difference.
func TestAnyPipelineTraceAddsUp(t *testing.T) {
	everyRelay(t, func(t *testing.T, _ string, w relay) {
		for seed := range uint64(6) {
			rng := rand.New(rand.NewPCG(seed, 9))
			w.rate, w.noise = linkRate*math.Exp(2*rng.NormFloat64()), 0.3
			w.slower = func(costmodel.ReplayKey) float64 { return math.Exp(rng.NormFloat64()) }
			w.gap = func(costmodel.ReplayKey) units.Seconds { return units.Seconds(1e-6 * rng.Float64()) }
			w.drop = func(s *replay.Span) bool { return s.Op != replay.Attn && rng.IntN(20) == 0 }
			for _, part := range w.report(t).Plans[0].Parts[1:3] {
				if part.Measured < 0 {
					t.Errorf("seed %d: %+v", seed, part)
				}
			}
		}
	})
}

// TestPipelinesAreRanked among one another, and with plans of batches where these run as many
// layers of the same sequences.
func TestPipelinesAreRanked(t *testing.T) {
	w := relay{noise: 0.01}
	for _, stages := range [][]pipeline.Stage{
		stagesOf([]int{4, 2}, []int{0, 2}, []int{1, 3}), stagesOf([]int{1, 5}, []int{0, 2}, []int{1, 3}),
		stagesOf([]int{3, 3}, []int{0, 1}, []int{2, 3}), stagesOf([]int{6}, []int{0, 1, 2, 3}),
	} {
		w.plans = append(w.plans, sliced(stages))
	}
	r := w.report(t)
	if r.Ranking == nil || r.Ranking.TauB < 0.99 || r.Ranking.Plans != 4 || len(r.Gains) != 3 || r.Failed(false) {
		t.Errorf("%+v, %+v", r.Ranking, r.Verdicts)
	}
	beside := func(layers int, docs ...units.Tokens) *Report {
		y := relay{plans: w.plans[:2]}
		y.change = func(h *replay.Header) {
			h.Layers = layers
			h.Plans = append(h.Plans, replay.PlanRun{Path: "b.batchplan.json", SHA256: strings.Repeat("ab", 32), Strategy: "evenkeel", Batch: true, Micro: 1, Model: h.Plans[0].Model, DType: op.F32, Groups: [][]replay.GroupRun{{ringOfAll(docs...)}}})
		}
		return y.report(t)
	}
	differ := func(s string) bool { return strings.Contains(s, "different problems") }
	if r := beside(6, 16, 400, 3000, 900, 160); r.Ranking == nil || slices.ContainsFunc(r.Warnings, differ) || r.Plans[2].Layers != 6 || r.Plans[2].Pipeline {
		t.Errorf("%+v: %q", r.Ranking, r.Warnings)
	}
	for _, r := range []*Report{beside(1, 16, 400, 3000, 900, 160), beside(6, 17, 400, 3000, 900, 160)} {
		if r.Ranking != nil || !slices.ContainsFunc(r.Warnings, differ) {
			t.Errorf("%+v: %q", r.Ranking, r.Warnings)
		}
	}
}

// TestPipelineReportsRepeat to the last byte.
func TestPipelineReportsRepeat(t *testing.T) {
	w := relays()["turns"]
	w.noise = 0.1
	path := w.play(t)
	var first []byte
	for range 3 {
		r, err := New(read(t, path), madeUp(t, linkRate), fit.DefaultLimits(), Links{})
		if err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = text
		}
		if string(text) != string(first) {
			t.Fatal("the same trace has two reports")
		}
	}
}

// TestPipelineSpansOfAnotherPlanAreRefused: ranks count the FLOPs of the whole plan, with those
// of layers that are run again.
func TestPipelineSpansOfAnotherPlanAreRefused(t *testing.T) {
	w := relays()["pairs"]
	file := w.play(t)
	for what, change := range map[string]func(*replay.PipelineRun){
		"a layer less again": func(p *replay.PipelineRun) { p.Recompute[1][0]-- },
		"other stages":       func(p *replay.PipelineRun) { p.Stages[0].Ranks[1], p.Stages[1].Ranks[0] = 1, 2 },
		"another slice": func(p *replay.PipelineRun) {
			p.Chunks[0].Slice, p.Chunks[2].Context, p.Chunks[2].Slice = 1201, 1201, 999
		},
		"another sequence": func(p *replay.PipelineRun) { p.Lengths[4] = 17 },
	} {
		rec := read(t, file)
		change(rec.Header.Plans[0].Pipeline)
		if _, err := New(rec, madeUp(t, linkRate), fit.DefaultLimits(), Links{}); err == nil || !strings.Contains(err.Error(), "of attention in all: the plan has") || !strings.Contains(err.Error(), "block 0, rank ") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestPipelineRefuses(t *testing.T) {
	w := relays()["pairs"]
	file := w.play(t)
	for want, change := range map[string]func(*replay.Header, *Links){
		`link class "rail" is not in the profile`: func(_ *replay.Header, l *Links) { l.Inside = "rail" },
		`"slo"`: func(h *replay.Header, _ *Links) { h.Ranks[3].Device = "slo" },
		"plan 0 (a.plan.json): orders[1]: 7 passes: want 2 of each":  func(h *replay.Header, _ *Links) { h.Plans[0].Pipeline.Orders[1] = h.Plans[0].Pipeline.Orders[1][1:] },
		"stages[0]: a stage of 2 devices: the model's 3 query heads": func(h *replay.Header, _ *Links) { h.Plans[0].Model.QHeads, h.Plans[0].Model.KVHeads = 3, 3 },
	} {
		rec, links := read(t, file), Links{}
		change(rec.Header, &links)
		if _, err := New(rec, madeUp(t, linkRate), fit.DefaultLimits(), links); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// TestPipelineTimeline has what is predicted and recorded at the same place, waits of stages
// among it.
func TestPipelineTimeline(t *testing.T) {
	w := relays()["singles"]
	x, err := NewTimeline(read(t, w.play(t)), madeUp(t, linkRate), 0, Links{})
	if err != nil {
		t.Fatal(err)
	}
	recorded := map[costmodel.ReplayKey]costmodel.ReplayTask{}
	for _, k := range x.Recorded {
		recorded[k.ReplayKey] = k
	}
	waits, dirs := 0, map[string]bool{}
	for _, k := range x.Predicted {
		if k.Time <= 0 {
			continue
		}
		if k.Op == costmodel.StageWait {
			waits++
			dirs[k.Dir] = true
		}
		k.ReplayKey = joined(k.ReplayKey)
		if of := recorded[k.ReplayKey]; math.Abs(float64(of.Start-k.Start)) > 2e-9 || math.Abs(float64(of.Time-k.Time)) > 2e-9 {
			t.Fatalf("%+v, recorded %+v", k, of)
		}
	}
	if waits < 10 || len(dirs) != 2 {
		t.Errorf("%d waits, in %v", waits, dirs)
	}
}
