package results

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	costs "github.com/evenkeel/evenkeel/costmodel/pipeline"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/pipeline"
	"github.com/evenkeel/evenkeel/solver/recommend"
)

// pipelineExample has two stages of unlike devices, of which one is left over, and a sequence
// in two slices, the second with two whole ones beside it. A chunk's layer takes a second
// forward and two backward; the second stage has one of the three layers, and computes it
// again for chunk 0, which takes a second more. Nothing is updated at the end.
func pipelineExample() *pipeline.Document {
	op := func(chunk int, backward bool, start, end units.Seconds) costs.Op {
		return costs.Op{Chunk: chunk, Backward: backward, Start: start, End: end}
	}
	return &pipeline.Document{
		Name: "example", Prices: "made up", Lengths: []units.Tokens{3072, 100, 200}, Layers: 3,
		Devices: []string{"fast", "fast", "slow", "spare"}, Strategy: "ours",
		Plan: costs.Plan{
			Stages: []costs.Stage{{Ranks: []int{0, 1}, Layers: 2}, {Ranks: []int{2}, Layers: 1}},
			Chunks: []costs.Chunk{
				{Sequence: 0, Slice: 2048},
				{Sequence: 0, Context: 2048, Slice: 1024, Whole: []int{1, 2}},
			},
			Recompute: [][]int{{0, 0}, {1, 0}},
			Orders: [][]costs.Op{
				{op(0, false, 0, 2), op(1, false, 2, 4), op(1, true, 7, 11), op(0, true, 11, 15)},
				{op(0, false, 2, 3), op(1, false, 4, 5), op(1, true, 5, 7), op(0, true, 7, 10)},
			},
			Time: 16,
		},
		Bound: 8, Gap: 1, Memory: []costs.Memory{
			{States: 2 * units.GiB, Activations: units.GiB, Capacity: 4 * units.GiB},
			{States: units.GiB, Activations: units.GiB, Capacity: 4 * units.GiB},
		},
		Compared: []recommend.Candidate{
			{Strategy: "today", Baseline: true, Verdict: recommend.Slower, Why: "what is run", Time: 24, Gap: 2, Speedup: 1},
			{Strategy: "none", Verdict: recommend.NotLegal, Why: "has too few devices"},
			{Strategy: "ours", Verdict: recommend.Chosen, Why: "what is ours", Time: 16, Gap: 1, Speedup: 1.5},
		},
		Notes: []string{"nothing else counts"},
	}
}

func TestPipelinePlanShowsStagesChunksAndTheStep(t *testing.T) {
	d := pipelineExample()
	if err := d.Validate(); err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := PipelinePlan(&b, d); err != nil {
		t.Fatal(err)
	}
	// The stages are at work for 12 of 16 and 7 of 16 s, on two devices and on one: they wait
	// for 1 - 31/48 of it. A second is 6 of the picture's 96 characters.
	at := func(s string) string {
		var line strings.Builder
		for _, c := range s {
			line.WriteString(strings.Repeat(string(c), 6))
		}
		return line.String()
	}
	for _, want := range []string{
		"PREDICTED plan of example as a pipeline: 3 sequences (3372 tokens, the longest 3k) on 2 fast + 1 slow + 1 spare",
		"step 16 s in 2 chunks through 2 stages, by ours; no plan takes less than 8 s at these prices, so this one is at most\n  100 % above the best; the devices of its stages wait for 35 % of it",
		"today (baseline)  24 s          baseline    1.000x      200 %         0 s  slower",
		"none                 -                 -         -          -         0 s  not legal: has too few devices",
		"chosen: ours. Why: what is ours",
		"stages, in the order of the model's 3 layers",
		"    0  0-1    2 fast        2                0     75 %       3.0 of 4.0 GiB",
		"    1  2      1 slow        1           0 to 1     44 %       2.0 of 4.0 GiB",
		"in no stage: ranks 3 (1 spare)",
		"    0      2k  0-2k of sequence 0 (3k)                 -             -  0, 1",
		"    1    1324  2k-3k of sequence 0 (3k)                2           300  0",
		"the step: a line is a stage, a character 167 ms;",
		"\n0  |" + at("aabb...BBBBAAAA.") + "|",
		"\n1  |" + at("..a.bBBAAA......") + "|",
		"a is chunk 0, b is chunk 1; at the end parameters are updated, which is drawn as waiting\n",
		"note: nothing else counts",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is not in\n%s", want, b.String())
		}
	}
}

// On an earlier plan's stages that is said, and of which plans the bound is.
func TestPipelinePlanOnStagesOfAnother(t *testing.T) {
	d := pipelineExample()
	d.StagesOf = "first.plan.json"
	var b strings.Builder
	if err := PipelinePlan(&b, d); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"\non the stages of first.plan.json, as all that was considered: chunks, their order and what is computed again are this\n",
		"by ours; no plan on these stages takes less than 8 s at these prices",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is not in\n%s", want, b.String())
		}
	}
}

// Without a bound nothing is said of it, and many chunks are cut short.
func TestPipelinePlanOfManyChunks(t *testing.T) {
	d := pipelineExample()
	d.Bound = 0
	d.Chunks = slices.Repeat([]costs.Chunk{{Sequence: -1, Whole: []int{1}}}, mostRows+1)
	d.Recompute = [][]int{slices.Repeat([]int{1}, mostRows+1), slices.Repeat([]int{1}, mostRows+1)}
	d.Orders[0][0].End = 0.1
	var b strings.Builder
	if err := PipelinePlan(&b, d); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"by ours; the devices of its stages wait for",
		"   31     100  -                    1           100  1 each\nand 1 chunk more; the file that solve writes with -o has all",
		"a is chunk 0, z is chunk 25, after which letters begin anew; at the end parameters are updated, which is drawn as\n  waiting; not every pass shorter than a character shows",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is not in\n%s", want, b.String())
		}
	}
}

func TestPipelineTimelineHasEveryPassOfEveryStage(t *testing.T) {
	var b bytes.Buffer
	if err := PipelineTimeline(&b, pipelineExample()); err != nil {
		t.Fatal(err)
	}
	var trace struct{ TraceEvents []event }
	if err := json.Unmarshal(b.Bytes(), &trace); err != nil {
		t.Fatal(err)
	}
	busy, names := map[int]float64{}, map[string]int{}
	for _, e := range trace.TraceEvents {
		switch e.Ph {
		case "X":
			busy[e.TID] += e.Dur / 1e6
			names[e.Name]++
		case "M":
			names[e.Args["name"].(string)]++
		}
	}
	if busy[0] != 12 || busy[1] != 7 {
		t.Errorf("seconds by stage %v, want 12 and 7", busy)
	}
	for name, want := range map[string]int{
		"stage 0: ranks 0-1, 2 fast, 2 layers": 1, "stage 1: ranks 2, 1 slow, 1 layer": 1,
		"forward 0: tokens 0-2k of sequence 0 (3k)": 2, "backward 1: tokens 2k-3k of sequence 0 (3k) + 2 whole": 2,
	} {
		if names[name] != want {
			t.Errorf("%q is there %d times, want %d: %v", name, names[name], want, names)
		}
	}
}
