package comparison

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/multitask"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/fit"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/replay"
)

// encoders are an encoder of images, one of text, and what is made of both.
func encoders() []multitask.Module {
	shape := func(tokens units.Tokens, causal bool) *multitask.Shape {
		return &multitask.Shape{SeqLen: tokens, Hidden: 256, FFN: 688, QHeads: 4, KVHeads: 2, HeadDim: 64, Causal: causal, GatedMLP: true}
	}
	return []multitask.Module{
		{Name: "image", Task: "a", Layers: 2, Batch: 6, Shape: shape(100, false)},
		{Name: "text", Task: "b", Layers: 3, Batch: 4, Shape: shape(300, true)},
		{Name: "both", Task: "b", Layers: 2, Batch: 8, After: []string{"image", "text"}, Shape: shape(250, true)},
	}
}

// crew runs them.
func crew(runs ...multitask.Run) replay.TasksRun {
	return replay.TasksRun{Modules: encoders(), Options: multitask.Options{DType: op.F32, Recompute: costmodel.RecomputeNone}, Plan: multitask.Plan{Runs: runs}}
}

// of is a run of a module's layers.
func of(module, layers int, ranks, samples []int) multitask.Run {
	return multitask.Run{Module: module, Layers: layers, Ranks: ranks, Samples: samples}
}

// crews are plans of tasks that every disturbance is tried on. Ranks 0 and 2 are fast.
func crews() map[string]relay {
	one := func(x replay.TasksRun) relay { return relay{tasks: []replay.TasksRun{x}} }
	all := []int{0, 1, 2, 3}
	beside := []multitask.Run{
		of(0, 2, []int{0, 1}, []int{4, 2}), of(1, 3, []int{2, 3}, []int{3, 1}),
		of(2, 1, []int{1, 2}, []int{2, 6}), of(2, 1, all, []int{3, 1, 3, 1}),
	}
	again := crew(beside...)
	again.Recompute = costmodel.RecomputeFull
	return map[string]relay{
		"beside":   one(crew(beside...)),
		"again":    one(again),
		"wide":     one(crew(of(0, 2, all, []int{2, 1, 2, 1}), of(1, 3, all, []int{1, 1, 1, 1}), of(2, 2, all, []int{3, 1, 3, 1}))),
		"singles":  one(crew(of(0, 2, all[3:], []int{6}), of(1, 3, all[:1], []int{4}), of(2, 1, all[2:3], []int{8}), of(2, 1, all[1:2], []int{8}))),
		"one rank": one(crew(of(0, 2, all[2:3], []int{6}), of(1, 3, all[2:3], []int{4}), of(2, 2, all[2:3], []int{8}))),
	}
}

// everyCrew compares all of them.
func everyCrew(t *testing.T, check func(t *testing.T, name string, w relay)) {
	for name, w := range crews() {
		t.Run(name, func(t *testing.T) { check(t, name, w) })
	}
}

// taskFLOPs are those that a rank counts in a layer: two products forward and five backward, of
// each pair of a query with a key that it sees, of each of the rank's samples.
func taskFLOPs(x *replay.TasksRun, s *replay.Span) int64 {
	run := x.Runs[s.MB]
	shape := x.Modules[run.Module].Shape
	pairs := int64(0)
	for at := range int64(shape.SeqLen) {
		if shape.Causal {
			pairs += at + 1
		} else {
			pairs += int64(shape.SeqLen)
		}
	}
	products := int64(2)
	if s.Dir == replay.Backward {
		products = 5
	}
	return 2 * products * pairs * 64 * 4 * int64(run.Samples[slices.Index(run.Ranks, s.Rank)])
}

// TestTasksUndisturbed: tasks that run as the profile says have no error anywhere.
func TestTasksUndisturbed(t *testing.T) {
	everyCrew(t, func(t *testing.T, name string, w relay) {
		r := w.report(t)
		x, run := &r.Plans[0], w.tasks[0]
		if math.Abs(x.Log) > 1e-5 || x.ComputeError > 1e-3 || !x.Inside || r.Failed(true) || x.Pipeline || x.Batch || x.Micro != len(run.Runs) || x.Layers != 3 || len(x.Runs) != len(run.Runs) || x.Runs[len(x.Runs)-1] != "both" {
			t.Errorf("error %v, of computing %v; %+v, %+v", x.Log, x.ComputeError, x.Runs, r.Verdicts)
		}
		for _, p := range x.Parts {
			if math.Abs(float64(p.Difference)) > 1e-5*float64(x.Measured.Median) {
				t.Errorf("%+v of %v", p, x.Measured.Median)
			}
		}
		ops, grad := map[costmodel.ReplayOp]bool{}, len(x.Classes)-1
		for i, c := range x.Classes {
			ops[c.Op] = true
			if c.Op == costmodel.GradWait && c.Dir == costmodel.BackwardPass {
				grad = i
			}
			if c.MeanError > 1e-2 || c.Again != (c.Again && name == "again") {
				t.Errorf("%+v", c)
			}
		}
		if grad != len(x.Classes)-1 {
			t.Errorf("gradients are waited for last: %+v", x.Classes)
		}
		if wide := name != "singles" && name != "one rank"; ops[costmodel.GradWait] != wide || ops[costmodel.StageWait] != (name != "one rank") {
			t.Errorf("%v", ops)
		}
		ran := map[int]bool{}
		for _, s := range run.Runs {
			for _, rank := range s.Ranks {
				ran[rank] = true
			}
		}
		for _, k := range x.Ranks {
			if d := math.Abs(float64(k.Computed - k.Computes)); d > 1e-5*float64(x.Measured.Median) || (k.Computes > 0) != ran[k.Rank] || math.Abs(float64(k.Measured-k.Predicted)) > 1e-8 {
				t.Errorf("%+v", k)
			}
		}
		last := len(r.Warnings) - 1
		if last < 0 || !strings.Contains(r.Warnings[last], "layers and the exchange of their gradients are run: no embedding, loss or optimizer") || (last == 2) != (name != "one rank" && name != "wide") {
			t.Errorf("%q", r.Warnings)
		}
	})
}

// TestTasksThatRanOtherwiseThanTheyArePlannedAreNamed: waves, and gradients in another type.
func TestTasksThatRanOtherwiseThanTheyArePlannedAreNamed(t *testing.T) {
	w := crews()["one rank"]
	h := w.header()
	h.Plans[0].Tasks.Waves = true
	h.Numerics[0].Exchange = &replay.ExchangeNumerics{Limit: 1e-2, DType: op.BF16}
	said := (&making{rec: &Recording{Header: h}}).tasksWarnings()
	if len(said) != 4 || !strings.HasPrefix(said[0], "waves are not run: ") || said[1] != "plan 0: gradients travelled in bf16, for the library does not add up f32, and are predicted in that" {
		t.Errorf("%q", said)
	}
}

// TestTasksTakeTheirLaws: the prediction is that of the plan's prices, by the cluster that a
// person would name, whatever the ranks are called.
func TestTasksTakeTheirLaws(t *testing.T) {
	profile := madeUp(t, linkRate)
	// The run's ranks 0 and 3 are the cluster's 0 and 1, and 1 and 2 its 2 and 3.
	w := relay{tasks: []replay.TasksRun{crew(of(0, 2, []int{0, 3}, []int{5, 1}), of(1, 3, []int{1, 2}, []int{1, 3}), of(2, 2, []int{1, 2}, []int{3, 5}))}}
	w.change = func(h *replay.Header) {
		for r, device := range []string{"fast", "slow", "slow", "fast"} {
			h.Ranks[r].Device = device
		}
	}
	c := &making{rec: &Recording{Header: w.header()}, profile: profile, predictor: costmodel.NewPredictor(profile)}
	x, err := c.courseOf(0)
	if err != nil {
		t.Fatal(err)
	}
	costs, err := multitask.FromLaws(costmodel.NewPredictor(profile), &multitask.Tasks{Modules: encoders()}, jobOf(t, profile).Cluster, multitask.Options{DType: op.F32, Recompute: costmodel.RecomputeNone})
	if err != nil {
		t.Fatal(err)
	}
	p := crew(of(0, 2, []int{0, 1}, []int{5, 1}), of(1, 3, []int{2, 3}, []int{1, 3}), of(2, 2, []int{2, 3}, []int{3, 5})).Plan
	want, err := costs.Replayed(&p, nil)
	if err != nil || x.step != want.Step || x.step.Mid <= 0 || x.meeting != want.Meeting || len(x.tasks) != len(want.Tasks) {
		t.Errorf("%+v, want %+v; %v", x.step, want, err)
	}
	if got := x.micro[0].of[3].members(); !slices.Equal(got, []int{0, 1, 2, 3}) {
		t.Errorf("%v take part", got)
	}
	for r, of := range []int{0, 2, 3, 1} {
		end, computes := x.until(r)
		if k := want.Ranks[of]; end != k.End || computes != k.Compute {
			t.Errorf("rank %d is done at %v and computes for %v, want %+v", r, end, computes, k)
		}
	}
}

// TestTasksSlowerRank: where the longest rank computes more slowly the difference is its
// computing, or waiting for it of one that ends after it.
func TestTasksSlowerRank(t *testing.T) {
	everyCrew(t, func(t *testing.T, _ string, w relay) {
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
			// As in a pipeline: that a message takes its time shows once it is waited for.
			if sum := share(x, ComputePart) + share(x, SkewPart); sum < 0.65 || math.Abs(share(x, GapsPart)) > 1e-3 {
				t.Errorf("rank %d of %v: %v: %+v", rank, x.Critical, x.Difference, x.Parts)
			}
		}
	})
}

// TestTasksWithoutSpansOfARank: a rank that recorded nothing is taken to compute as predicted.
func TestTasksWithoutSpansOfARank(t *testing.T) {
	w := crews()["beside"]
	before := w.report(t).Plans[0]
	if before.Parts[2].Measured <= 0 {
		t.Fatalf("%+v: nobody is waited for", before.Parts)
	}
	for silent := range 4 {
		if silent == before.Critical[0] {
			continue
		}
		w.drop = func(s *replay.Span) bool {
			s.FLOPs = 0 // as in a trace that has no counts
			return s.Rank == silent
		}
		x := w.report(t).Plans[0]
		for i, part := range x.Parts {
			if was := before.Parts[i]; math.Abs(float64(part.Measured-was.Measured)) > 1e-5*float64(x.Measured.Median) {
				t.Errorf("without rank %d: %+v, with all spans %+v", silent, part, was)
			}
		}
	}
}

// TestTasksSlowerLinks: messages and exchanges that take longer are communication.
func TestTasksSlowerLinks(t *testing.T) {
	everyCrew(t, func(t *testing.T, name string, w relay) {
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

// TestTasksGaps: time in no span on the longest rank is a gap.
func TestTasksGaps(t *testing.T) {
	everyCrew(t, func(t *testing.T, _ string, w relay) {
		base := w.report(t).Plans[0]
		last := base.Critical[0]
		w.gap = func(k costmodel.ReplayKey) units.Seconds {
			if k.Rank == last {
				return 2e-5
			}
			return 0
		}
		if x := w.report(t).Plans[0]; x.Difference <= 0 || x.Critical[0] == last && x.Parts[3].Difference < 0.6*x.Difference {
			t.Errorf("critical %v, before %v; %v: %+v", x.Critical, base.Critical, x.Difference, x.Parts)
		}
	})
}

// TestGapsAmongGradientsHoldNobodyUp: what a rank does once it waits for gradients delays none
// of its passes.
func TestGapsAmongGradientsHoldNobodyUp(t *testing.T) {
	key := func(layer int, o costmodel.ReplayOp) costmodel.ReplayKey {
		return costmodel.ReplayKey{Layer: layer, Dir: costmodel.BackwardPass, Op: o}
	}
	got := busy([]lap{{took: 40, spans: []span{
		{ReplayKey: key(1, costmodel.LinearIn), start: 1, took: 3},
		{ReplayKey: key(1, costmodel.GradWait), start: 6, took: 2},
		{ReplayKey: key(0, costmodel.GradWait), start: 20, took: 2},
	}}}, rings(1), false, false)
	// Before the first it hands the gradients over.
	if got[key(1, costmodel.LinearIn)] != 1+3+2 || len(got) != 1 {
		t.Errorf("%v", got)
	}
}

// TestAnyTasksTraceAddsUp: whatever is recorded, the parts are the difference.
func TestAnyTasksTraceAddsUp(t *testing.T) {
	everyCrew(t, func(t *testing.T, _ string, w relay) {
		for seed := range uint64(4) {
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

// TestTasksAreRanked among one another where they are the same.
func TestTasksAreRanked(t *testing.T) {
	w := relay{noise: 0.01}
	for _, name := range []string{"beside", "wide", "one rank"} {
		w.tasks = append(w.tasks, crews()[name].tasks...)
	}
	r := w.report(t)
	if r.Ranking == nil || r.Ranking.TauB < 0.99 || r.Ranking.Plans != 3 || len(r.Gains) != 2 || r.Failed(false) {
		t.Errorf("%+v, %+v", r.Ranking, r.Verdicts)
	}
	differ := func(s string) bool { return strings.Contains(s, "different problems") }
	for what, change := range map[string]func(*replay.TasksRun){
		"recomputation": func(x *replay.TasksRun) { x.Recompute = costmodel.RecomputeFull },
		"a shape":       func(x *replay.TasksRun) { x.Modules[1].Shape.SeqLen = 301 },
		"needs":         func(x *replay.TasksRun) { x.Modules[2].After = []string{"image"} },
		"a name":        func(x *replay.TasksRun) { x.Modules[0].Name, x.Modules[2].After[0] = "picture", "picture" },
	} {
		w.tasks[1] = crews()["wide"].tasks[0]
		change(&w.tasks[1])
		if r := w.report(t); r.Ranking != nil || !slices.ContainsFunc(r.Warnings, differ) {
			t.Errorf("%s: %+v: %q", what, r.Ranking, r.Warnings)
		}
	}
}

// TestTasksSpansOfAnotherPlanAreRefused: ranks count the FLOPs of all their samples.
func TestTasksSpansOfAnotherPlanAreRefused(t *testing.T) {
	w := crews()["beside"]
	file := w.play(t)
	for what, change := range map[string]func(*replay.TasksRun){
		"other shares":  func(x *replay.TasksRun) { x.Runs[0].Samples = []int{3, 3} },
		"other ranks":   func(x *replay.TasksRun) { x.Runs[0].Ranks = []int{0, 3} },
		"another mask":  func(x *replay.TasksRun) { x.Modules[1].Shape.Causal = false },
		"recomputation": func(x *replay.TasksRun) { x.Recompute = costmodel.RecomputeFull },
	} {
		rec := read(t, file)
		change(rec.Header.Plans[0].Tasks)
		if _, err := New(rec, madeUp(t, linkRate), fit.DefaultLimits(), Links{}); err == nil || !strings.Contains(err.Error(), "of attention in all: the plan has") || !strings.Contains(err.Error(), "block 0, rank ") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestTasksNeedLinksWhereTheyTalk: on one rank there is nothing to send.
func TestTasksNeedLinksWhereTheyTalk(t *testing.T) {
	everyCrew(t, func(t *testing.T, name string, w relay) {
		rec := read(t, w.play(t))
		_, err := New(rec, madeUp(t, linkRate), fit.DefaultLimits(), Links{Inside: "rail"})
		if name == "one rank" && err != nil || name != "one rank" && (err == nil || !strings.Contains(err.Error(), `link class "rail" is not in the profile`)) {
			t.Error(err)
		}
	})
}

// TestTasksTimeline has what is predicted and recorded at the same place, waits for other ranks
// and for gradients among it.
func TestTasksTimeline(t *testing.T) {
	w := crews()["beside"]
	x, err := NewTimeline(read(t, w.play(t)), madeUp(t, linkRate), 0, Links{})
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"image", "text", "both", "both"}; !slices.Equal(x.Runs, want) || x.Pipeline {
		t.Errorf("%v, want %v", x.Runs, want)
	}
	recorded := map[costmodel.ReplayKey]costmodel.ReplayTask{}
	for _, k := range x.Recorded {
		recorded[k.ReplayKey] = k
	}
	waits := map[string]int{}
	for _, k := range x.Predicted {
		if k.Op.Waits() {
			waits[string(k.Op)+k.Dir]++
		}
		if of := recorded[k.ReplayKey]; math.Abs(float64(of.Start-k.Start)) > 2e-9 || math.Abs(float64(of.Time-k.Time)) > 2e-9 {
			t.Fatalf("%+v, recorded %+v", k, of)
		}
	}
	if waits["stage_waitfwd"] == 0 || waits["stage_waitbwd"] == 0 || waits["grad_waitbwd"] == 0 {
		t.Errorf("%v", waits)
	}
}
