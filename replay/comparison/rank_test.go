package comparison

import (
	"math"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/fit"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/replay"
)

// candidates are layouts of one problem, from a good one to bad ones.
func candidates(t testing.TB) world {
	p := madeUp(t, linkRate)
	w := world{job: jobOf(t, p, 800, 800, 400, 400), blocks: 10}
	for _, tokens := range [][]units.Tokens{{800, 800, 400, 400}, {600, 600, 600, 600}, {1000, 1000, 200, 200}, {400, 400, 800, 800}} {
		w.layouts = append(w.layouts, ring(tokens...), pairs(tokens...))
	}
	return w
}

// TestRanking: the model's own world is ranked as it says, the first plan gains
// what is predicted, and its choice has no regret.
func TestRanking(t *testing.T) {
	w := candidates(t)
	w.drift = 0.05
	r := compared(t, &w)
	k := r.Ranking
	if k == nil || k.Plans != 8 || k.Pairs+k.Ties != 28 || k.TauB < 0.95 || k.Chosen != k.Best {
		t.Fatalf("%+v", k)
	}
	if k.Regret > 0.001 || k.RegretUpper > 0.001 || k.Blocks != 10 || verdictOf(r, "ranking: tau_b") != fit.Pass || verdictOf(r, "ranking: regret") != fit.Pass {
		t.Errorf("%+v, %+v", k, r.Verdicts)
	}
	if len(r.Gains) != 7 {
		t.Fatalf("%d gains", len(r.Gains))
	}
	for _, g := range r.Gains {
		want := 1 - float64(r.Plans[0].Predicted.Mid/r.Plans[g.Over].Predicted.Mid)
		if math.Abs(g.Predicted-want) > 1e-12 || g.Lo > g.Measured || g.Measured > g.Hi {
			t.Errorf("%+v, predicted %v", g, want)
		}
		// All ranks of a block are slowed alike but links are not.
		if g.Predicted > 0.2 && math.Abs(g.Share-1) > 0.2 {
			t.Errorf("%+v", g)
		}
	}
}

// TestWrongRanking: in a world where the slow devices are the fast ones the model
// chooses badly, and the gate says so.
func TestWrongRanking(t *testing.T) {
	w := candidates(t)
	w.slower = func(k costmodel.ReplayKey) float64 {
		if k.Rank < 2 {
			return 6
		}
		return 0.3
	}
	r := compared(t, &w)
	k := r.Ranking
	if k.Chosen == k.Best || k.TauB > 0.5 || k.Regret < 0.3 || k.Unsplit < 0.3 || !r.Failed(false) {
		t.Errorf("%+v", k)
	}
	for _, name := range []string{"plan 0: step", "plan 0: compute", "ranking: tau_b", "ranking: regret"} {
		if verdictOf(r, name) != fit.Fail {
			t.Errorf("%s: %q", name, verdictOf(r, name))
		}
	}
}

// TestFewBlocksAreInsufficient, and fail only on request.
func TestFewBlocksAreInsufficient(t *testing.T) {
	w := candidates(t)
	w.blocks = 5
	w.slower = func(costmodel.ReplayKey) float64 { return 3 }
	r := compared(t, &w)
	if r.Failed(false) || !r.Failed(true) {
		t.Errorf("%+v", r.Verdicts)
	}
	for _, v := range r.Verdicts {
		if v.Verdict != fit.Insufficient || !strings.Contains(v.Why, "5 blocks") {
			t.Errorf("%+v", v)
		}
	}
}

// TestTimesThatMeanNothing are not judged.
func TestTimesThatMeanNothing(t *testing.T) {
	w := candidates(t)
	w.slower = func(costmodel.ReplayKey) float64 { return 3 }
	w.change = func(h *replay.Header) { h.Oversubscribed = true }
	if r := compared(t, &w); r.Failed(true) || !strings.Contains(strings.Join(r.Warnings, "\n"), "more threads than the host has cores") {
		t.Errorf("%+v", r.Verdicts)
	}
	w.change = func(h *replay.Header) { h.Mode = replay.ModeOneGPU }
	if r := compared(t, &w); verdictOf(r, "plan 1: step") != fit.Ungated || verdictOf(r, "ranking: tau_b") != fit.Ungated || verdictOf(r, "plan 1: compute") != fit.Fail {
		t.Errorf("%+v", r.Verdicts)
	}
}

// TestTies: plans that measuring cannot tell apart are no order, and of different
// problems none are compared.
func TestTies(t *testing.T) {
	p := madeUp(t, linkRate)
	same := ring(800, 800, 400, 400)
	w := world{job: jobOf(t, p, 800, 800, 400, 400), layouts: []costmodel.Layout{same, same, same}, blocks: 8, noise: 0.01}
	r := compared(t, &w)
	if r.Ranking.Ties != 3 || verdictOf(r, "ranking: tau_b") != fit.Insufficient || verdictOf(r, "ranking: regret") != fit.Pass {
		t.Errorf("%+v %+v", r.Ranking, r.Verdicts)
	}
	w.change = func(h *replay.Header) { h.Plans[1].Job.Recompute = costmodel.RecomputeFull }
	if r := compared(t, &w); r.Ranking != nil || r.Gains != nil || !strings.Contains(strings.Join(r.Warnings, "\n"), "different problems") {
		t.Errorf("%+v %+v", r.Ranking, r.Warnings)
	}
}

func TestTied(t *testing.T) {
	m := func(least, median, q3 units.Seconds) Measured { return Measured{Least: least, Median: median, Q3: q3} }
	for _, c := range []struct {
		a, b Measured
		want bool
	}{
		{m(99, 100, 102), m(100, 101, 103), true},
		{m(99, 100, 100.5), m(100.6, 101, 103), false}, // intervals apart
		{m(90, 100, 110), m(91, 102.1, 111), false},    // centres apart
		{m(90, 100, 110), m(91, 101.9, 111), true},
	} {
		if tied(c.a, c.b) != c.want || tied(c.b, c.a) != c.want {
			t.Errorf("%+v and %+v: want %v", c.a, c.b, c.want)
		}
	}
}

// TestNoisyRegretIsUnsure: a bound that only noise lifts above the limit is no
// failure, one of a bad choice is.
func TestNoisyRegretIsUnsure(t *testing.T) {
	for _, c := range []struct {
		r    Ranking
		want string
	}{
		{Ranking{Regret: 0.01, RegretUpper: 0.07, Unsplit: 0.02, Noise: 0.02, Blocks: 10}, "--repeats 16"},
		{Ranking{Regret: 0.01, RegretUpper: 0.07, Unsplit: 0.02, Noise: 0.05, Blocks: 40}, "too noisy"},
		{Ranking{Regret: 0.01, RegretUpper: 0.07, Unsplit: 0.02, Noise: 0.02, Blocks: 16}, ""},
		{Ranking{Regret: 0.01, RegretUpper: 0.07, Unsplit: 0.02, Noise: 0.009, Blocks: 6}, ""},
		{Ranking{Regret: 0.06, RegretUpper: 0.07, Unsplit: 0.02, Noise: 0.02, Blocks: 10}, ""},
		{Ranking{Regret: 0.01, RegretUpper: 0.04, Unsplit: 0.02, Noise: 0.02, Blocks: 10}, ""},
	} {
		if got := c.r.unsure(0.05); (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%+v: %q, want %q", c.r, got, c.want)
		}
	}
}

// TestSameTraceSameReport, to the last bit.
func TestSameTraceSameReport(t *testing.T) {
	w := candidates(t)
	w.noise = 0.02
	path := w.play(t)
	var reports []*Report
	for range 2 {
		r, err := New(read(t, path), madeUp(t, linkRate), fit.DefaultLimits(), Links{})
		if err != nil {
			t.Fatal(err)
		}
		reports = append(reports, r)
	}
	if !reflect.DeepEqual(reports[0], reports[1]) {
		t.Error("two reports of one trace differ")
	}
}

func TestNewRefuses(t *testing.T) {
	w := worlds(t)["ring"]
	path := w.play(t)
	p := madeUp(t, linkRate)
	p.Devices[0].Name = "other"
	if _, err := New(read(t, path), p, fit.DefaultLimits(), Links{}); err == nil || !strings.Contains(err.Error(), "a.plan.json") {
		t.Errorf("another device: %v", err)
	}
	p = madeUp(t, linkRate)
	for i := range p.Laws {
		if p.Laws[i].Op == op.KindAttnFwd {
			p.Laws[i].Op = op.KindAttnBwd
		}
	}
	if _, err := New(read(t, path), p, fit.DefaultLimits(), Links{}); err == nil || !strings.Contains(err.Error(), "attn_fwd") {
		t.Errorf("no law: %v", err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Read("torn", strings.NewReader(string(data[:len(data)/2]))); err == nil {
		t.Error("a torn trace is read")
	}
}
