package results

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	costs "github.com/evenkeel/evenkeel/costmodel/multitask"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/multitask"
	"github.com/evenkeel/evenkeel/solver/recommend"
)

// taskExample has a module of two layers, one on three ranks and one on the last of them,
// and one beside it that waits for nothing.
func taskExample() *multitask.Document {
	curve := func(sample units.Seconds) *costs.Curve { return &costs.Curve{PerSample: sample} }
	return &multitask.Document{
		Name: "example", Prices: "made up",
		Modules: []costs.Module{
			{Name: "wide", Task: "see", Layers: 2, Batch: 7, Curve: curve(1)},
			{Name: "narrow", Task: "hear", Layers: 1, Batch: 2, Curve: curve(1)},
		},
		Devices:  []multitask.PoolEntry{{Device: "fast", Ranks: [][]int{{0, 1}}}, {Device: "slow", Ranks: [][]int{{2}, {3}}}},
		Strategy: "ours",
		Plan: costs.Plan{Time: 10, Runs: []costs.Run{
			{Module: 0, Layers: 1, Ranks: []int{0, 1, 2}, Samples: []int{3, 3, 1}, Start: 0, End: 3},
			{Module: 1, Layers: 1, Ranks: []int{3}, Samples: []int{2}, Start: 0, End: 2},
			{Module: 0, Layers: 1, Ranks: []int{2}, Samples: []int{7}, Start: 3, End: 10},
		}},
		Bound: 8, Gap: 0.25, Memory: make([]costs.Memory, 4),
		Compared: []recommend.Candidate{
			{Strategy: "today", Baseline: true, Verdict: recommend.Slower, Why: "what is run", Time: 12, Gap: 0.5, Speedup: 1},
			{Strategy: "none", Verdict: recommend.NotLegal, Why: "has too few devices"},
			{Strategy: "ours", Verdict: recommend.Chosen, Why: "what is ours", Time: 10, Gap: 0.25, Speedup: 1.2},
		},
		Notes: []string{"nothing else counts"},
	}
}

func TestTaskPlanShowsWhatRunsWhen(t *testing.T) {
	d := taskExample()
	if err := d.Validate(); err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := TaskPlan(&b, d); err != nil {
		t.Fatal(err)
	}
	// At work are 3 x 3 + 2 + 7 of 4 x 10 device-seconds. A character is a 72nd of the step:
	// 3 of 10 s are 22 of them, 2 s are 14.
	for _, want := range []string{
		"PREDICTED plan of example: 2 modules of 2 tasks on 2 fast + 2 slow",
		"step 10 s, by ours; no plan takes less than 8 s at these prices, so this one is at most 25 %",
		"above the best; devices\n  are at work for 45 % of it",
		"today (baseline)  12 s          baseline    1.000x       50 %         0 s  slower",
		"none                 -                 -         -          -         0 s  not legal: has too few devices",
		"chosen: ours. Why: what is ours",
		" 0 s   3 s  A  wide    see   1 of 2  2 fast + 1 slow  3 + 1",
		" 3 s  10 s  A  wide    see   1 of 2  1 slow           7",
		"the step: a character is 139 ms, a dot where a device waits",
		"\n0-1  |" + strings.Repeat("A", 22) + strings.Repeat(".", 50) + "|",
		"\n  2  |" + strings.Repeat("A", 72) + "|",
		"\n  3  |" + strings.Repeat("B", 14) + strings.Repeat(".", 58) + "|",
		"A wide, B narrow",
		"note: nothing else counts",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is not in\n%s", want, b.String())
		}
	}
}

func TestTaskTimelineHasEveryRunOfEveryRank(t *testing.T) {
	var b bytes.Buffer
	if err := TaskTimeline(&b, taskExample()); err != nil {
		t.Fatal(err)
	}
	var trace struct{ TraceEvents []event }
	if err := json.Unmarshal(b.Bytes(), &trace); err != nil {
		t.Fatal(err)
	}
	busy, processes := map[int]float64{}, map[int]bool{}
	for _, e := range trace.TraceEvents {
		if e.Ph == "X" {
			busy[e.TID] += e.Dur / 1e6
			processes[e.PID] = true
		}
	}
	if busy[0] != 3 || busy[1] != 3 || busy[2] != 10 || busy[3] != 2 || len(processes) != 3 {
		t.Errorf("seconds by rank %v in %d processes, want 3, 3, 10 and 2 in 3", busy, len(processes))
	}
}
