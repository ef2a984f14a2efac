package multitask_test

import (
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	costs "github.com/evenkeel/evenkeel/costmodel/multitask"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/reference"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/multitask"
)

// towers are two encoders and a module that needs both, on two nodes of two devices of a
// type each.
func towers(t testing.TB) *costs.Costs {
	t.Helper()
	shape := func(tokens units.Tokens) *costs.Shape {
		return &costs.Shape{SeqLen: tokens, Hidden: 1024, FFN: 4096, QHeads: 16}
	}
	tasks := &costs.Tasks{Modules: []costs.Module{
		{Name: "text", Task: "t", Layers: 2, Batch: 8, Shape: shape(77)},
		{Name: "vision", Task: "t", Layers: 3, Batch: 8, Shape: shape(257)},
		{Name: "both", Task: "t", Layers: 2, Batch: 6, After: []string{"text", "vision"}, Shape: shape(334)},
	}}
	profile, job := reference.Job(t, reference.Llama(1), "1x2 h100_sxm + 1x2 a100_sxm", 1)
	c, err := costs.FromLaws(costmodel.NewPredictor(profile), tasks, job.Cluster, costs.Options{DType: op.BF16, Recompute: costmodel.RecomputeNone})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// towersPlan trains them in four runs, in waves or without. The third takes results to other
// ranks, and so does the last.
func towersPlan(t testing.TB, c *costs.Costs, waves bool) *costs.Plan {
	t.Helper()
	p := &costs.Plan{Waves: waves, Runs: []costs.Run{
		{Module: 0, Layers: 2, Ranks: []int{0, 1}, Samples: []int{4, 4}},
		{Module: 1, Layers: 2, Ranks: []int{2, 3}, Samples: []int{4, 4}},
		{Module: 1, Layers: 1, Ranks: []int{1, 2}, Samples: []int{5, 3}},
		{Module: 2, Layers: 2, Ranks: []int{0, 3}, Samples: []int{4, 2}},
	}}
	if waves {
		p.Runs[2].Wave, p.Runs[3].Wave = 1, 2
	}
	if err := c.Simulate(p); err != nil {
		t.Fatal(err)
	}
	return p
}

func TestCheckAcceptsWhatWasSimulated(t *testing.T) {
	c := towers(t)
	for _, waves := range []bool{false, true} {
		if found := multitask.Check(c, towersPlan(t, c, waves)); len(found) > 0 {
			t.Errorf("waves %t: %v", waves, found)
		}
	}
}

// moveBy puts a run off.
func moveBy(r *costs.Run, by units.Seconds) { r.Start, r.End = r.Start+by, r.End+by }

// Each break is one thing wrong with a plan, and what Check must say of it.
func TestCheckNoticesEveryBreak(t *testing.T) {
	c := towers(t)
	inf, nan := units.Seconds(math.Inf(1)), units.Seconds(math.NaN())
	for want, damage := range map[string]func(*costs.Plan){
		"runs[0].module: 3: there are 3 modules":              func(p *costs.Plan) { p.Runs[0].Module = 3 },
		"runs[0].module: -1: there are 3 modules":             func(p *costs.Plan) { p.Runs[0].Module = -1 },
		"runs[0].layers: 0: want":                             func(p *costs.Plan) { p.Runs[0].Layers = 0 },
		"runs[1].layers: -2: want":                            func(p *costs.Plan) { p.Runs[1].Layers, p.Runs[2].Layers = -2, 5 },
		"runs: 3 layers of text: it has 2":                    func(p *costs.Plan) { p.Runs[0].Layers = 3 },
		"runs: 2 layers of vision: it has 3":                  func(p *costs.Plan) { p.Runs = slices.Delete(p.Runs, 2, 3) },
		"runs: 0 layers of both: it has 2":                    func(p *costs.Plan) { p.Runs = p.Runs[:3] },
		"runs[0].ranks: 4 after 0: want rising ranks of 0 to": func(p *costs.Plan) { p.Runs[0].Ranks = []int{0, 4} },
		"runs[0].ranks: -1 after -1":                          func(p *costs.Plan) { p.Runs[0].Ranks = []int{-1, 1} },
		"runs[0].ranks: 1 after 1":                            func(p *costs.Plan) { p.Runs[0].Ranks = []int{1, 1} },
		"runs[0].ranks: 0 after 1":                            func(p *costs.Plan) { p.Runs[0].Ranks = []int{1, 0} },
		"runs[0].samples: 0 on 0 of 0 ranks":                  func(p *costs.Plan) { p.Runs[0].Ranks, p.Runs[0].Samples = nil, nil },
		"runs[0].samples: 8 on 3 of 2 ranks":                  func(p *costs.Plan) { p.Runs[0].Samples = []int{4, 2, 2} },
		"runs[0].samples: 9 on 2 of 2 ranks":                  func(p *costs.Plan) { p.Runs[0].Samples = []int{4, 5} },
		"runs[0].samples: 0: want 1 to batch_samples of text": func(p *costs.Plan) { p.Runs[0].Samples = []int{8, 0} },
		"runs[0].samples: -1: want 1 to batch_samples":        func(p *costs.Plan) { p.Runs[0].Samples = []int{9, -1} },
		// What wraps around adds up as well.
		"runs[0].layers: 4611686018427387904: want 1 to 2": func(p *costs.Plan) {
			p.Runs = slices.Concat(slices.Repeat(p.Runs[:1], 4), p.Runs)
			for i := range 4 {
				p.Runs[i].Layers = 1 << 62
			}
		},
		"runs[0].samples: 9223372036854775807: want 1 to": func(p *costs.Plan) {
			p.Runs[0].Ranks, p.Runs[0].Samples = []int{0, 1, 2}, []int{math.MaxInt64, math.MaxInt64, 10}
		},

		// Times may be in order where the list is not.
		"runs[2].module: both is listed before the last layers of vision, which it needs": func(p *costs.Plan) {
			p.Runs[2], p.Runs[3] = p.Runs[3], p.Runs[2]
		},
		"runs[0].module: both is listed before the last layers of text, which it needs": func(p *costs.Plan) {
			p.Runs = slices.Concat(p.Runs[3:], p.Runs[:3])
		},

		"runs[0].end_s: -1 s after":                           func(p *costs.Plan) { p.Runs[0].End = -1 },
		"runs[0].end_s: 1 s after start_s -1 s":               func(p *costs.Plan) { p.Runs[0].Start, p.Runs[0].End = -1, 1 },
		"runs[3].end_s: +Inf":                                 func(p *costs.Plan) { p.Runs[3].End = inf },
		"runs[3].end_s: NaN":                                  func(p *costs.Plan) { p.Runs[3].End = nan },
		"runs[1].end_s: ":                                     func(p *costs.Plan) { p.Runs[1].Start = nan },
		"runs[0]: takes ":                                     func(p *costs.Plan) { p.Runs[0].End *= 0.9 },
		"runs[3]: takes ":                                     func(p *costs.Plan) { p.Runs[3].End, p.Time = p.Runs[3].End*1.1, p.Time*1.1 },
		"runs[2].start_s: 0 s: the layers of vision before e": func(p *costs.Plan) { moveBy(&p.Runs[2], -p.Runs[2].Start) },
		"runs[2].start_s: 0 s: rank 1 is busy with runs[0] u": func(p *costs.Plan) { moveBy(&p.Runs[2], -p.Runs[2].Start) },
		"runs: both begins at 0 s, and needs vision, which e": func(p *costs.Plan) { moveBy(&p.Runs[3], -p.Runs[3].Start) },
		"rank 0 is busy with runs[3] until":                   func(p *costs.Plan) { moveBy(&p.Runs[0], p.Runs[3].Start+1e-6) },
		"what it needs of vision is there at":                 func(p *costs.Plan) { moveBy(&p.Runs[2], p.Runs[1].End-p.Runs[2].Start) },
		"runs[3].start_s: ":                                   func(p *costs.Plan) { moveBy(&p.Runs[3], p.Runs[2].End-p.Runs[3].Start) },
		"runs[1].wave: 1: want 0":                             func(p *costs.Plan) { p.Runs[1].Wave = 1 },

		"step_s: 0 s: the last run ends at ":     func(p *costs.Plan) { p.Time = 0 },
		"step_s: -1 s: want a time of 0 or more": func(p *costs.Plan) { p.Time = -1 },
		"step_s: +Inf":                           func(p *costs.Plan) { p.Time = inf },
		"step_s: NaN":                            func(p *costs.Plan) { p.Time = nan },
		"step_s: ":                               func(p *costs.Plan) { p.Time *= 1.001 },
	} {
		t.Run(want, func(t *testing.T) { finds(t, c, towersPlan(t, c, false), damage, want) })
	}
	for want, damage := range map[string]func(*costs.Plan){
		"runs[2].wave: 2 after 0: want the same or the next": func(p *costs.Plan) { p.Runs[2].Wave = 2 },
		"runs[2].wave: -1 after 0":                           func(p *costs.Plan) { p.Runs[2].Wave = -1 },
		"runs[3].wave: 0 after 1":                            func(p *costs.Plan) { p.Runs[3].Wave = 0 },
		"runs[2].start_s: 0 s: the wave before it ends at ":  func(p *costs.Plan) { moveBy(&p.Runs[2], -p.Runs[2].Start) },
	} {
		t.Run(want, func(t *testing.T) { finds(t, c, towersPlan(t, c, true), damage, want) })
	}
}

// finds breaks a plan and looks for what Check must say of it.
func finds(t *testing.T, c *costs.Costs, p *costs.Plan, damage func(*costs.Plan), want string) {
	t.Helper()
	damage(p)
	found := multitask.Check(c, p)
	if !slices.ContainsFunc(found, func(err error) bool { return strings.Contains(err.Error(), want) }) {
		t.Errorf("want %q among %v", want, found)
	}
}

// However much is wrong, a hundred violations are enough.
func TestCheckStopsAtAHundred(t *testing.T) {
	c := towers(t)
	few, many := towersPlan(t, c, false), towersPlan(t, c, false)
	few.Runs[0].Samples = []int{1, 1}
	if found := multitask.Check(c, few); len(found) != 1 {
		t.Errorf("%v", found)
	}
	many.Runs[1].Layers, many.Runs[2].Layers = 1, 2
	c.Tasks.Modules[1].Layers = 302
	rest := many.Runs[2]
	rest.Layers, rest.Wave = 1, 7
	many.Runs = slices.Insert(many.Runs, 2, slices.Repeat([]costs.Run{rest}, 299)...)
	if found := multitask.Check(c, many); len(found) != 100 {
		t.Errorf("%d violations", len(found))
	}
}

// drawnPlan draws runs of all modules in the order of the list, with waves or without.
func drawnPlan(t *rapid.T, c *costs.Costs) *costs.Plan {
	p := &costs.Plan{Waves: rapid.Bool().Draw(t, "waves")}
	wave := 0
	for m, x := range c.Tasks.Modules {
		for left := x.Layers; left > 0; {
			r := costs.Run{Module: m, Layers: rapid.IntRange(1, left).Draw(t, "layers"), Wave: wave}
			for rank := range c.Devices() {
				if len(r.Ranks) < x.Batch && rapid.Bool().Draw(t, "takes part") {
					r.Ranks = append(r.Ranks, rank)
				}
			}
			if len(r.Ranks) == 0 {
				r.Ranks = []int{0}
			}
			r.Samples = slices.Repeat([]int{1}, len(r.Ranks))
			for range x.Batch - len(r.Ranks) {
				r.Samples[rapid.IntRange(0, len(r.Ranks)-1).Draw(t, "one more")]++
			}
			p.Runs, left = append(p.Runs, r), left-r.Layers
			if p.Waves && rapid.Bool().Draw(t, "next wave") {
				wave++
			}
		}
	}
	return p
}

// Every plan that was simulated is right; and as its runs begin as soon as they may, each
// that is said to begin sooner breaks some rule.
func TestCheckFindsWhatBeginsTooSoon(t *testing.T) {
	c := towers(t)
	rapid.Check(t, func(t *rapid.T) {
		p := drawnPlan(t, c)
		if err := c.Simulate(p); err != nil {
			t.Fatal(err)
		}
		if found := multitask.Check(c, p); len(found) > 0 {
			t.Fatalf("%v of %+v", found, p)
		}
		i := rapid.IntRange(0, len(p.Runs)-1).Draw(t, "run")
		sooner := p.Runs[i].Start
		for _, r := range p.Runs { // by more, it may begin in a gap before what its ranks run now
			sooner = min(sooner, r.End-r.Start)
		}
		sooner *= units.Seconds(rapid.Float64Range(0.001, 0.999).Draw(t, "sooner"))
		if sooner < 1e-6*p.Time { // what rounding may lose is far less
			return
		}
		moveBy(&p.Runs[i], -sooner)
		p.Time = 0
		for _, r := range p.Runs {
			p.Time = max(p.Time, r.End)
		}
		if found := multitask.Check(c, p); len(found) == 0 {
			t.Fatalf("runs[%d] begins %v sooner than it may: %+v", i, sooner, p)
		}
	})
}
