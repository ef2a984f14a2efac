package results

import (
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/batch"
	"github.com/evenkeel/evenkeel/solver/recommend"
)

// doubtfulBatch is a plan of one sequence by a baseline: a faster one is in doubt, and one
// more takes longer.
func doubtfulBatch() *batch.Document {
	at := func(t units.Seconds) costmodel.Estimate {
		return costmodel.Estimate{Lo: 0.9 * t, Mid: t, Hi: 1.1 * t, Source: costmodel.Measured}
	}
	plan := batch.Plan{Time: 2, Micro: []batch.MicroBatch{{Time: 2, Groups: []batch.Group{{Sequences: []int{0}, Ranks: []int{0}, Tokens: 100, Time: 2}}}}}
	return &batch.Document{
		Costs: "made up", Lengths: []units.Tokens{100}, Fleet: []batch.PoolEntry{{Device: "d", Ranks: [][]int{{0}}}},
		Classes:  []batch.ClassEntry{{Name: "1", Uses: []int{1}, Cap: 100}},
		Strategy: "today", Plan: plan, Bound: 1, Gap: 1,
		Compared: []batch.Candidate{
			{Micro: 1, Candidate: recommend.Candidate{Strategy: "today", Baseline: true, Verdict: batch.Chosen, Why: "what is run", Time: 2, Interval: at(2), Gap: 1, Speedup: 1}},
			{Micro: 1, Candidate: recommend.Candidate{Strategy: "slow", Verdict: batch.Slower, Why: "what is slow", Time: 3, Interval: at(3), Gap: 2, Speedup: 2.0 / 3, GainError: 0.1}},
			{Micro: 1, Candidate: recommend.Candidate{Strategy: "ours", Verdict: batch.Tie, Why: "what is ours; gains 500 ms +- 600 ms", Time: 1.5, Interval: at(1.5), Gap: 0.5, Speedup: 4.0 / 3, GainError: 0.6, Doubt: "a law"}},
		},
	}
}

func shownBatch(t *testing.T, d *batch.Document) string {
	t.Helper()
	if err := d.Validate(); err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := BatchPlan(&b, d); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// A batch's choice is explained in the words of one sequence's.
func TestABatchPlanSaysWhyTheFastestIsNotChosen(t *testing.T) {
	text := shownBatch(t, doubtfulBatch())
	for _, want := range []string{
		"by today;", "\nchosen: today. Why: what is run\n  ours (~, no difference beyond the model's error): what is ours; gains 500 ms +- 600 ms\n",
		"~ -25 % +- 30 %", "leaves open whether",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("want %q in\n%s", want, text)
		}
	}
	if strings.Contains(text, "what is slow") || strings.Contains(text, "what that may be wrong by") {
		t.Errorf("the slow one needs no reason, the baseline gains nothing:\n%s", text)
	}
}

// A plan by laws that were assumed is no more than a hypothesis, of a batch as of a sequence.
func TestABatchPlanSaysWhatItRestsOn(t *testing.T) {
	for source, want := range map[costmodel.Source]string{
		costmodel.Measured: "PREDICTED plan of 1 sequence", costmodel.Extrapolated: "PREDICTED plan",
		costmodel.Transferred: "HYPOTHETICAL plan", costmodel.Assumed: "HYPOTHETICAL plan",
	} {
		d := doubtfulBatch()
		d.Compared[0].Interval.Source = source
		if text := shownBatch(t, d); !strings.HasPrefix(text, want) || !strings.Contains(text, "\nhow long each device works: a line is a micro-batch, a character a rank\n") {
			t.Errorf("%s: want %q first in\n%s", source, want, text)
		}
		if d.Simulated = true; !strings.HasPrefix(shownBatch(t, d), "SIMULATED plan") {
			t.Errorf("%s, simulated: not said first", source)
		}
	}
}

// A plan on some of the nodes says which ranks are left out, and who else plans on how many.
func TestABatchPlanSaysWhoIsLeftOut(t *testing.T) {
	d := doubtfulBatch()
	d.Fleet[0].Ranks = [][]int{{0}, {1, 2}, {3}, {5}, {4}}
	d.LeftOut, d.Compared[0].Nodes = []int{1, 2, 3, 5}, 2
	text := shownBatch(t, d)
	for _, want := range []string{"it takes 2 nodes alone: ranks 1 to 3, 5 are left out", " nodes ", " all "} {
		if !strings.Contains(strings.Join(strings.Fields(text), " "), strings.TrimSpace(want)) {
			t.Errorf("want %q in\n%s", want, text)
		}
	}
	d = doubtfulBatch() // of a node with several types, one of them
	d.Fleet = append(d.Fleet, batch.PoolEntry{Device: "e", Ranks: [][]int{{1, 2}}})
	d.Classes[0].Uses = []int{1, 0}
	d.LeftOut, d.Compared[0].Nodes = []int{1, 2}, 1
	if text := strings.Join(strings.Fields(shownBatch(t, d)), " "); !strings.Contains(text, "it takes 1 d in 1 node alone: ranks 1 to 2 are left out") {
		t.Error(text)
	}
	if text := shownBatch(t, doubtfulBatch()); strings.Contains(text, "nodes") || strings.Contains(text, "left out") {
		t.Errorf("nothing is left out:\n%s", text)
	}
}

// Where the slower plan was asked for, the faster is called so.
func TestABatchPlanThatWasAskedForSaysSo(t *testing.T) {
	d := doubtfulBatch()
	d.Compared[2].GainError, d.Compared[2].Verdict, d.Taken = 0.1, batch.Slower, true
	text := shownBatch(t, d)
	for _, want := range []string{"\ntaken as asked: today. Why: what is run\n", "  faster\n", "  slower\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("want %q in\n%s", want, text)
		}
	}
}
