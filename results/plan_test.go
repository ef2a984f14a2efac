package results

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver"
)

func spread(mid, by float64, s costmodel.Source) costmodel.Estimate {
	return costmodel.Estimate{Lo: units.Seconds(mid * (1 - by)), Mid: units.Seconds(mid), Hi: units.Seconds(mid * (1 + by)), Source: s}
}

// testPlan is a plan for three slow and one fast rank, with a baseline, a tie
// and a candidate that does not fit. Times are made up; memory is the formula's.
func testPlan() *solver.Plan {
	job := costmodel.Job{
		Model:   costmodel.Model{Name: "llama", Layers: 4, Hidden: 512, FFN: 1408, QHeads: 8, KVHeads: 4, HeadDim: 64, Vocab: 32000, GatedMLP: true},
		Cluster: costmodel.Cluster{Nodes: []costmodel.Node{{Name: "n0", Link: "unix_socket", Devices: []op.Member{{Device: "cpu:1", Count: 3}, {Device: "cpu:2", Count: 1}}}}},
		SeqLen:  16384, DType: op.F32, Recompute: costmodel.RecomputeFull, RingBuffers: 2, LossChunk: 1024,
	}
	chosen := ringOf(3328, 3328, 3328, 6400)
	equal := ringOf(4096, 4096, 4096, 4096)
	d := &solver.Plan{
		Header:    doc.Header{Tool: "evenkeel 0.1.0", Inputs: []doc.Input{{Path: "cpu.profile.json", SHA256: "fedcba9876543210fedcba9876543210fedcba9876543210fedcba9876543210"}}},
		Simulated: true, Job: job, Strategy: "evenkeel", Groups: chosen.Groups, Bound: 2.6, Gap: 2.71/2.6 - 1,
		Warnings: []string{"strategy evenkeel was stopped after 120 layouts; this is its best until then"},
		Notes:    []string{"all layers are taken as alike and ranks meet at the end of each", "computing is not slowed while bytes move, nor moving while ranks compute"},
	}
	d.Step = costmodel.Step{
		Time:     spread(2.71, 0.04, costmodel.Extrapolated),
		Parts:    []costmodel.Part{{Name: "linear forward", Time: spread(0.6, 0.03, costmodel.Interpolated)}, {Name: "attention forward", Time: spread(2.01, 0.05, costmodel.Extrapolated)}, {Name: "ring wait (exposed communication)", Time: spread(0.1, 0.3, costmodel.Interpolated)}},
		Traffic:  []costmodel.Traffic{{Link: "unix_socket", Bytes: 3 << 30}},
		Warnings: []string{"attn_fwd (full d64 f32) on cpu:1 is used up to 1.0 doublings outside its measured range; a longer calibration reaches further: evenkeel calibrate --fresh --budget 10m"},
	}
	of := func(l costmodel.Layout) []costmodel.Memory {
		return job.MemoryWith(l, func(int) costmodel.DeviceMemory { return costmodel.DeviceMemory{Capacity: 2 * units.GiB} })
	}
	memory := func(l costmodel.Layout) (peak units.Bytes) {
		for _, m := range of(l) {
			peak = max(peak, m.Peak())
		}
		return peak
	}
	for r, rank := range job.Cluster.Ranks() {
		m := of(chosen)[r]
		n := chosen.Shards[r].Tokens()
		d.Ranks = append(d.Ranks, solver.PlanRank{Rank: r, Device: rank.Device, Node: rank.NodeName, Tokens: n, Segments: chosen.Shards[r].Segments, Group: r, QHeads: 8, KVHeads: 4})
		d.Step.Ranks = append(d.Step.Ranks, costmodel.RankStep{Device: rank.Device, Tokens: n, Busy: 2.5 - units.Seconds(r/3), Exposed: 0.15, Idle: 0.06 + units.Seconds(r/3), Memory: m})
	}
	d.Compared = []solver.Candidate{
		{Strategy: "evenkeel", Verdict: solver.Chosen, Why: "rank 3 gets 39 % of the tokens", Time: d.Step.Time, Gap: d.Gap, Peak: memory(chosen), Speedup: 3.42 / 2.71, GainError: 0.05, Busy: 2.25, Exposed: 0.15, Idle: 0.31},
		{Strategy: "nearly", Verdict: solver.Tie, Why: "another order; gains 10 ms +- 50 ms", Time: spread(3.41, 0.04, costmodel.Interpolated), Gap: 0.31, Peak: memory(equal), Speedup: 3.42 / 3.41, GainError: 0.05, Layout: &equal},
		{Strategy: "ring", Baseline: true, Verdict: solver.Slower, Why: "every rank gets the same", Time: spread(3.42, 0.04, costmodel.Interpolated), Gap: 0.32, Peak: memory(equal), Speedup: 1, Busy: 2.24, Exposed: 0.12, Idle: 1.06, Layout: &equal},
		{Strategy: "ulysses", Baseline: true, Verdict: solver.NotLegal, Why: "8 heads do not divide over 3 ranks"},
		{Strategy: "one", Verdict: solver.Infeasible, Why: "rank 3 needs 9.1 of 2 GiB", Time: spread(5, 0.04, costmodel.Interpolated), Gap: 1.1, Peak: 9 * units.GiB, Layout: &equal},
	}
	return d
}

// ringOf is ring attention in zigzag order with 8 query heads.
func ringOf(tokens ...units.Tokens) costmodel.Layout {
	return costmodel.ZigZag(tokens, costmodel.Singles(tokens, 8))
}

func printPlan(t *testing.T, d *solver.Plan) string {
	t.Helper()
	var buf bytes.Buffer
	for _, print := range []func(io.Writer, *solver.Plan) error{Plan, Explain} {
		if err := print(&buf, d); err != nil {
			t.Fatal(err)
		}
	}
	return buf.String()
}

// TestPlanFirstLineTellsWhatNumbersRestOn: a plan is a prediction, from
// simulated, measured or borrowed laws.
func TestPlanFirstLineTellsWhatNumbersRestOn(t *testing.T) {
	for _, c := range []struct {
		simulated bool
		source    costmodel.Source
		want      string
	}{
		{true, costmodel.Interpolated, "SIMULATED plan"},
		{true, costmodel.Transferred, "SIMULATED plan"},
		{false, costmodel.Extrapolated, "PREDICTED from MEASURED laws: plan for 16k tokens"},
		{false, costmodel.Transferred, "HYPOTHETICAL plan"},
	} {
		d := testPlan()
		d.Simulated, d.Step.Time.Source = c.simulated, c.source
		if out := printPlan(t, d); !strings.HasPrefix(out, c.want) || strings.Contains(out, "SIMULATED") != c.simulated {
			t.Errorf("%+v: %.200s", c, out)
		}
	}
}

// Plans on devices that nobody measured do not claim to rest on measured laws; one that a
// plan uses and somebody measured suffices for some.
func TestPlanOfBorrowedDevicesIsNotFromMeasuredLaws(t *testing.T) {
	d := testPlan()
	d.Simulated, d.Step.Time.Source = false, costmodel.Assumed
	last := len(d.Ranks) - 1
	for r := range d.Ranks {
		if out := printPlan(t, d); !strings.Contains(out, "\npredicted from MEASURED laws, but some of them are assumed") || strings.Contains(out, "BORROWED") {
			t.Errorf("%d borrowed: %.300s", r, out)
		}
		d.Ranks[r].Device = "l40s/borrowed"
	}
	for range 2 {
		if out := printPlan(t, d); strings.Contains(out, "MEASURED") || !strings.Contains(out, "\npredicted from BORROWED laws, some of them assumed: nobody measured these devices") {
			t.Errorf("all borrowed: %.300s", out)
		}
		d.Ranks[last].Device, d.Ranks[last].Group = "measured", -1 // without work
	}
}

// "~" compares with the baseline and "slower" with the chosen plan, and the table says so;
// beside a slower plan that was taken as asked others are faster.
func TestVerdictsSayWhatTheyCompareWith(t *testing.T) {
	d := testPlan()
	out := strings.Join(strings.Fields(printPlan(t, d)), " ")
	if !strings.Contains(out, "slower and faster: than the chosen plan, by the predicted times alone") || strings.Contains(out, "faster (") {
		t.Error(out)
	}
	d = testPlan()
	d.Taken, d.Step.Time.Mid, d.Compared[2].Time.Mid = true, 3.45, 3.42
	out = printPlan(t, d)
	if strings.Count(out, "faster\n") != 1 || strings.Count(out, "ring (faster): ") != 2 {
		t.Error(out)
	}
}

// A plan of sequence after sequence says so of its bound, and whether the sequences would be
// done sooner side by side, by more than the prices of groups are off.
func TestPlanBesideSequencesSideBySide(t *testing.T) {
	d := testPlan()
	if s := printPlan(t, d); !strings.Contains(s, "; no layout of the sequence can be faster than") || strings.Contains(s, "SIDE BY SIDE") {
		t.Errorf("of one sequence:\n%s", s)
	}
	d.Job.Accumulate = 8
	for _, c := range []struct {
		time   float64
		groups int
		want   string // after "the step's 8 sequences", empty: nothing
	}{
		{0, 3, ""},
		{2.71 * 0.96, 3, ""},
		{3, 3, ""},
		{2.71 * 0.5, 3, "SIDE BY SIDE would take 1.35 s (-50 %): in 2 micro-batches of up to 3 groups of devices; the same command plans that with --lengths uniform:16384,16384 --batch-size 8 --take evenkeel in the place of --seq-len, --grad-accumulation and other flags of one sequence; without --take it may recommend another plan, where the gain is within the model's error"},
		{2.71 * 0.5, 1, "AS A BATCH would take 1.35 s (-50 %): in 2 micro-batches of one group of devices; the same"},
	} {
		d.SideBySide = nil
		if c.time > 0 {
			d.SideBySide = &solver.SideBySide{Time: units.Seconds(c.time), MicroBatches: 2, Groups: c.groups}
		}
		s := strings.Join(strings.Fields(printPlan(t, d)), " ")
		if !strings.Contains(s, "; no plan that trains sequence after sequence, or two in turns, can be faster than 2.60 s") {
			t.Errorf("whose bound it is:\n%s", s)
		}
		_, told, found := strings.Cut(s, "the step's 8 sequences ")
		if found != (c.want != "") || !strings.HasPrefix(told, c.want) {
			t.Errorf("%.3g s beside 2.71: %q, want %q", c.time, told[:min(len(told), 300)], c.want)
		}
	}
	// Of a batch the user says what is sharded, which the planner chose here.
	d.Settings = []solver.Setting{{Zero: costmodel.Zero0, Recompute: d.Job.Recompute}, {Zero: costmodel.Zero3, Recompute: d.Job.Recompute}}
	d.Job.Zero = costmodel.Zero3
	if s := strings.Join(strings.Fields(printPlan(t, d)), " "); !strings.Contains(s, "other flags of one sequence, and with --zero zero3 in that of --zero auto") {
		t.Errorf("after --zero auto:\n%s", s)
	}
	d.Settings = nil
	// What a plan in doubt takes as well, sequence after sequence, is not due to groups side by side.
	last := &d.Compared[len(d.Compared)-1]
	last.Verdict, last.Time.Mid = solver.Tie, 2.71*0.52
	if s := printPlan(t, d); strings.Contains(s, "AS A BATCH") {
		t.Errorf("beside a faster plan in doubt:\n%s", s)
	}
	last.Verdict = solver.Infeasible
	if s := printPlan(t, d); !strings.Contains(s, "AS A BATCH") {
		t.Errorf("beside a faster one that does not fit:\n%s", s)
	}
}

// A plan that somebody else wrote does not paint the terminal, nor name its window.
func TestControlCharactersAreNotPrinted(t *testing.T) {
	d := testPlan()
	d.Job.Model.Name = "a\x1b[2J"
	d.Compared[0].Why += "\x1b]0;title\x07 \u009b31m\r"
	d.Warnings = append(d.Warnings, "b\x7f")
	if out := printPlan(t, d); strings.ContainsAny(out, "\x1b\x07\r\x7f\u009b") || !strings.Contains(out, "a\ufffd[2J") {
		t.Errorf("%q", out)
	}
}

func TestAgainstBaseline(t *testing.T) {
	d := testPlan()
	for i, want := range []string{"-21 % +- 1.5 %", "~ -0.3 % +- 1.5 %", "baseline"} {
		if got := against(d.Compared[i], d.Baseline()); got != want {
			t.Errorf("%s: got %q, want %q", d.Compared[i].Strategy, got, want)
		}
	}
	if got := against(d.Compared[0], nil); got != none {
		t.Errorf("without a baseline: %q", got)
	}
}

// What rounding leaves of waiting is none.
func TestWaitingOfAHairIsNone(t *testing.T) {
	base := &solver.Candidate{Strategy: "ulysses", Time: spread(1.12, 0.1, costmodel.Assumed), Busy: 0.93, Exposed: 0.19, Idle: 9.5e-17}
	got := spendsBetter(&solver.Plan{}, solver.Candidate{Strategy: "given", Time: spread(1.07, 0.1, costmodel.Assumed), Busy: 0.96, Exposed: 0.11, Idle: 7.6e-17}, base)
	if want := "wait for slower ranks 0 s instead of 0 s, wait for bytes 110 ms instead of 190 ms"; !strings.Contains(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// Ranks that a plan leaves out wait for nobody: 8 of 16 work here, without a pause.
func TestWaitingIsOfRanksThatWork(t *testing.T) {
	d := testPlan()
	all := len(d.Ranks)
	whole := ringOf(slices.Repeat([]units.Tokens{16384 / units.Tokens(all)}, all)...)
	half := whole
	half.Groups = half.Groups[:all/2]
	base := &solver.Candidate{Strategy: "usp-subset", Time: spread(2, 0.1, costmodel.Assumed), Busy: 0.9, Exposed: 0.1, Idle: 1, Layout: &half}
	got := spendsBetter(d, solver.Candidate{Strategy: "given", Time: spread(1.5, 0.1, costmodel.Assumed), Busy: 1, Exposed: 0.25, Idle: 0.25, Layout: &whole}, base)
	want := fmt.Sprintf("the ranks that work (%d instead of %d, of %d) on average wait for slower ranks 250 ms instead of 0 s, wait for bytes 250 ms instead of 200 ms, compute 1 s instead of 1.80 s", all, all/2, all)
	if !strings.Contains(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if got := spendsBetter(d, solver.Candidate{Strategy: "given", Time: spread(1.5, 0.1, costmodel.Assumed), Busy: 0.7, Exposed: 0.05, Idle: 0.75, Layout: &half}, base); !strings.Contains(got, fmt.Sprintf("that work (%d of %d) on average wait for slower ranks 0 s instead of 0 s", all/2, all)) {
		t.Errorf("%q", got)
	}
}

// TestCandidateMemoryFindsTheCapacity: that of the rank whose peak it is.
func TestCandidateMemoryFindsTheCapacity(t *testing.T) {
	d := testPlan()
	d.Step.Ranks[3].Memory.Capacity = 7 * units.GiB
	if m := candidateMemory(d, d.Compared[0]); m.Peak() != d.Compared[0].Peak || m.Capacity != 7*units.GiB {
		t.Errorf("got %+v, want rank 3's 7 GiB", m)
	}
	if m := candidateMemory(d, d.Compared[4]); m.Peak() != 9*units.GiB || m.Capacity != 0 {
		t.Errorf("a peak that no rank has: %+v", m)
	}
}

// Equal shares need as much of every device; the fullest is the smallest, wherever its rank is.
func TestCandidateMemoryOfEqualSharesIsOfTheSmallestDevice(t *testing.T) {
	for small := range 4 {
		d := testPlan()
		even := ringOf(slices.Repeat([]units.Tokens{16384 / 4}, 4)...)
		for r := range d.Step.Ranks {
			d.Step.Ranks[r].Memory.Capacity = 80 * units.GiB
		}
		d.Step.Ranks[small].Memory.Capacity = 45 * units.GiB
		c := solver.Candidate{Layout: &even, Peak: d.Job.MemoryWith(even, func(int) costmodel.DeviceMemory { return costmodel.DeviceMemory{} })[0].Peak()}
		if m := candidateMemory(d, c); m.Peak() != c.Peak || m.Capacity != 45*units.GiB {
			t.Errorf("rank %d is the smallest, yet the fullest has %s", small, m.Capacity)
		}
	}
}

// A single token is one, wherever a plan counts tokens.
func TestPlanOfOneToken(t *testing.T) {
	d := testPlan()
	d.Job.SeqLen, d.Job.LossChunk = 1, 1
	d.Ranks, d.Step.Ranks, d.Groups = d.Ranks[:1], d.Step.Ranks[:1], d.Groups[:1]
	d.Ranks[0].Tokens, d.Ranks[0].Segments, d.Step.Ranks[0].Tokens = 1, []costmodel.Segment{{Start: 0, End: 1}}, 1
	d.Compared = d.Compared[:1]
	out := strings.Join(strings.Fields(printPlan(t, d)), " ")
	for _, want := range []string{"plan for 1 token through", "loss in chunks of 1 token", "a character is 1 token ", "1 token; computing"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in %s", want, out)
		}
	}
}

func TestEmptyPlan(t *testing.T) {
	if out := printPlan(t, &solver.Plan{}); !strings.HasPrefix(out, "PREDICTED") || strings.Contains(out, "NaN") {
		t.Error(out)
	}
}

func TestPlanNumbersThatAreNone(t *testing.T) {
	for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		d := testPlan()
		d.Gap, d.Compared[0].Gap, d.Compared[0].Speedup = bad, bad, bad
		d.Compared[1].Time.Mid, d.Compared[1].GainError = units.Seconds(bad), units.Seconds(bad)
		d.Step.Parts[0].Time = spread(bad, 0, costmodel.Interpolated)
		d.Step.Ranks[0].Busy = units.Seconds(bad)
		if out := printPlan(t, d); strings.Contains(out, "NaN") || strings.Contains(out, "Inf") {
			t.Errorf("%v was printed:\n%s", bad, out)
		}
		d.Step.Time = spread(bad, 0.1, costmodel.Interpolated)
		if out := printPlan(t, d); strings.Contains(out, "NaN") || strings.Contains(out, "Inf") {
			t.Errorf("%v was printed:\n%s", bad, out)
		}
	}
}

// TestManyRanksShareLines: 512 ranks of two kinds take two lines, and everything
// stays within the page.
func TestManyRanksShareLines(t *testing.T) {
	d := testPlan()
	const n = 512
	d.Job.SeqLen = n * 1024
	d.Ranks, d.Step.Ranks = nil, nil
	split := make([]units.Tokens, n)
	for r := range split {
		split[r] = 1024
	}
	layout := ringOf(split...)
	for r, s := range layout.Shards {
		node := fmt.Sprintf("n%d", r/256)
		d.Ranks = append(d.Ranks, solver.PlanRank{Rank: r, Device: "h100_sxm", Node: node, Tokens: 1024, Segments: s.Segments})
		d.Step.Ranks = append(d.Step.Ranks, costmodel.RankStep{Busy: 1, Exposed: 1, Memory: costmodel.Memory{States: 1, Capacity: 80 * units.GiB}})
	}
	d.Groups = layout.Groups
	var buf bytes.Buffer
	if err := Plan(&buf, d); err != nil {
		t.Fatal(err)
	}
	out := buf.String()
	if strings.Count(out, "h100_sxm on") != 2 || !strings.Contains(out, "\n  0-255  h100_sxm on n0") || !strings.Contains(out, "\n256-511  h100_sxm on n1") {
		t.Errorf("want two lines of ranks:\n%s", out)
	}
	for _, line := range strings.Split(out, "\n") {
		if len(line) > Width {
			t.Errorf("%d columns: %s", len(line), line)
		}
	}
}

func TestRankOverItsMemoryIsMarked(t *testing.T) {
	d := testPlan()
	d.Step.Ranks[1].Memory.Capacity = units.MiB
	if out := printPlan(t, d); !strings.Contains(out, "this rank runs out of memory") {
		t.Error(out)
	}
}

func TestRingPicture(t *testing.T) {
	for _, c := range []struct {
		tokens []units.Tokens
		width  int
		want   string
	}{
		// Rank 0 has [0,2) and [6,8), rank 1 [2,6).
		{[]units.Tokens{4, 4}, 8, "00111100"},
		{[]units.Tokens{4, 4}, 4, "0110"},
		{[]units.Tokens{4, 4}, 100, "00111100"},
		{[]units.Tokens{2, 0, 4, 2}, 8, "02233220"},
		{[]units.Tokens{8}, 3, "000"},
		{nil, 3, ""},
	} {
		seq := units.Tokens(0)
		for _, n := range c.tokens {
			seq += n
		}
		if got := RingPicture(ringOf(c.tokens...), seq, c.width); got != c.want {
			t.Errorf("%v in %d: got %q, want %q", c.tokens, c.width, got, c.want)
		}
	}
	if got := RingPicture(costmodel.Layout{}, 4, 4); got != "????" {
		t.Errorf("tokens of nobody: %q", got)
	}
}

// TestRingPictureAsksTheOwnerOfTheMiddle compares with a search for the owner
// of the token in the middle of each cell.
func TestRingPictureAsksTheOwnerOfTheMiddle(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		split := rapid.SliceOfN(rapid.Int64Range(0, 50), 1, 6).Draw(t, "split")
		seq := units.Tokens(0)
		var tokens []units.Tokens
		for _, n := range split {
			tokens, seq = append(tokens, units.Tokens(n)), seq+units.Tokens(n)
		}
		layout := ringOf(tokens...)
		pic := RingPicture(layout, seq, rapid.IntRange(1, 60).Draw(t, "width"))
		for i := range pic {
			// A middle between two tokens belongs to the later one.
			middle := units.Tokens((int64(2*i+1) * int64(seq) / int64(2*len(pic))))
			for r, s := range layout.Shards {
				for _, g := range s.Segments {
					if g.Start <= middle && middle < g.End && pic[i] != owners[r] {
						t.Fatalf("cell %d of %q: token %d is rank %d's", i, pic, middle, r)
					}
				}
			}
		}
	})
}

func TestRingOrder(t *testing.T) {
	for want, ring := range map[string][]int{
		"-":                             nil,
		"rank 2 alone, nothing travels": {2},
		"0 -> 1 -> 0":                   {0, 1},
		"0 .. 3 -> 0":                   {0, 1, 2, 3},
		"3 -> 0 -> 1 -> 5 .. 7 -> 3":    {3, 0, 1, 5, 6, 7},
	} {
		if got := ringOrder(ring); got != want {
			t.Errorf("%v: got %q, want %q", ring, got, want)
		}
	}
}

func TestTimeBar(t *testing.T) {
	for _, c := range []struct {
		busy, exposed float64
		want          string
	}{{0.5, 0.25, "########!!!!...."}, {1, 0, "################"}, {0, 0, "................"}, {0, 1, "!!!!!!!!!!!!!!!!"}} {
		if got := timeBar(c.busy, c.exposed); got != c.want {
			t.Errorf("%v: got %q, want %q", c, got, c.want)
		}
	}
}

// TestIntervalsOfTimes: half the width where the sides are alike, each side where they are not.
func TestIntervalsOfTimes(t *testing.T) {
	for want, e := range map[string]costmodel.Estimate{
		"2 s +- 10 %":        {Lo: 1.8, Mid: 2, Hi: 2.2},
		"2 s +- 20 %":        {Lo: 1.69, Mid: 2, Hi: 2.49},
		"2 s -15..+26 %":     {Lo: 1.7, Mid: 2, Hi: 2.52},
		"2 s -26..+15 %":     {Lo: 1.48, Mid: 2, Hi: 2.3},
		"1.25 s -54..+217 %": {Lo: 0.575, Mid: 1.25, Hi: 3.96},
		"0 s +- 0.0 %":       {},
		"2 s -50..+>10x":     {Lo: 1, Mid: 2, Hi: 30},
	} {
		if got := estimate(e); got != want {
			t.Errorf("%v: %q, want %q", e, got, want)
		}
	}
}
