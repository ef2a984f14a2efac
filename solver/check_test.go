package solver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/internal/baseline"
	"github.com/evenkeel/evenkeel/solver/internal/evenkeel"
	"github.com/evenkeel/evenkeel/solver/internal/strategy"
	"github.com/evenkeel/evenkeel/solver/internal/world"
)

// free lists the fields that Check cannot judge, each with the reason. A field
// that is neither here nor noticed when it changes fails TestCheckNoticesEveryField.
func free() map[string]string {
	return map[string]string{
		"schema": "doc checks it", "tool": "free text", "created": "doc checks its form",
		"inputs[0].path": "free text", "inputs[0].sha256": "checked by whoever opens the file",
		"considered[0].why": "free text", "considered[1].why": "free text", "considered[2].why": "free text", "considered[3].why": "free text",
		"warnings[0]": "free text", "warnings[1]": "the reason is free text", "warnings[2]": "the reason is free text",
		"side_by_side.step_s": "of another kind of plan",
		"settings[0].why":     "free text", "settings[3].why": "free text",
		"settings[0].lower_bound_s": "of a plan that is not kept", "settings[3].lower_bound_s": "of a plan that is not kept",
		"settings[2].time.lo_s": "of a plan that is not kept", "settings[2].time.mid_s": "of a plan that is not kept", "settings[2].time.hi_s": "of a plan that is not kept",
		"settings[2].time.source": "of a plan that is not kept", "settings[2].baseline_s": "of a plan that is not kept", "settings[2].gain_error_s": "of a plan that is not kept",
		"settings[2].peak_memory_bytes": "of a plan that is not kept", "settings[2].lower_bound_s": "of a plan that is not kept",
		"job.model.name":            "free text",
		"job.cluster.nodes[2].link": "of a node with one device: never used",
		"job.cluster.nodes[1].nics": "every message passes node 0 too, which has as few",
		"job.cluster.nodes[2].nics": "of a node that has no work",
	}
}

// checkedPlan has groups of several ranks with unequal heads, a rank without
// work, network cards, inputs, a warning and a candidate of every kind but a
// tie, so that every list of the document has an entry.
func checkedPlan(t *testing.T) (*Plan, *costmodel.Profile) {
	t.Helper()
	job := world.Job(t, "2x(1 fast + 1 slow) + 1x1 slow", 8192)
	job.Cluster.Nodes[0].NICs, job.Cluster.Nodes[1].NICs = 1, 1
	job.Accumulate, job.OverlapZero, job.Zero = 2, true, costmodel.Zero3
	p := problemOf(t, world.Profile([]world.Device{world.Fast(), world.Slow()}, []world.Wire{world.Near(), world.Far()}), job)
	groups := []costmodel.Group{{{Rank: 0, QHeads: 5}, {Rank: 1, QHeads: 3}}, {{Rank: 2, QHeads: 8}, {Rank: 3, QHeads: 0}}}
	attempts := []strategy.Attempt{
		attemptOf(t, p, baseline.Ring{}, p.posed.EqualRing()),
		{Strategy: baseline.Ulysses{}, Illegal: "8 heads do not divide over 5 ranks"},
		attemptOf(t, p, baseline.USP{}, costmodel.Contiguous([]units.Tokens{0, 8192, 0, 0, 0}, []costmodel.Group{{{Rank: 1, QHeads: 8}}})),
		attemptOf(t, p, &evenkeel.Evenkeel{}, costmodel.ZigZag([]units.Tokens{3000, 1000, 3200, 992, 0}, groups)),
	}
	bound, err := LowerBound(p)
	if err != nil {
		t.Fatal(err)
	}
	late := []string{"strategy usp-subset: the time was up", "strategy hexiseq: the time was up"}
	plan, err := p.pick(attempts, late, bound)
	if err != nil {
		t.Fatal(err)
	}
	if plan.Strategy != "evenkeel" {
		t.Fatalf("the test wants evenkeel chosen: %+v", plan.Compared)
	}
	plan.Tool, plan.Created = "evenkeel test", "2026-01-31T12:00:00Z"
	plan.Inputs = []doc.Input{{Path: "x.profile.json", SHA256: strings.Repeat("ab", 32)}}
	plan.Warnings = append([]string{"a warning"}, plan.Warnings...)
	plan.SideBySide = &SideBySide{Time: plan.Step.Time.Mid / 2, MicroBatches: 2, Groups: 2}
	own := Setting{Zero: job.Zero, Recompute: job.Recompute, Verdict: Chosen, Bound: plan.Bound}
	own.of(plan)
	other := own
	other.Zero, other.Verdict, other.Time, other.GainError = costmodel.Zero2, Slower, own.Time.Times(2), own.Time.Mid/3
	plan.Settings = []Setting{{Zero: costmodel.Zero0, Recompute: job.Recompute, Verdict: Infeasible, Why: "too large"}, own, other, {Zero: costmodel.Zero3, Recompute: costmodel.RecomputeFull, Verdict: Untried, Why: "too slow", Bound: plan.Bound * 3}}
	if err := Check(plan, p.Profile); err != nil {
		t.Fatal(err)
	}
	return plan, p.Profile
}

// attemptOf is what a strategy would have found.
func attemptOf(t *testing.T, p *Problem, s strategy.Strategy, l costmodel.Layout) strategy.Attempt {
	t.Helper()
	step, err := p.posed.Simulate(context.Background(), l)
	if err != nil {
		t.Fatal(err)
	}
	return strategy.Attempt{Result: strategy.Result{Layout: l, Step: step, Evaluated: 1, Why: "by hand"}, Strategy: s, MemErr: p.posed.Overfull(l)}
}

// leaves calls f with the path of every leaf of the document.
func leaves(field string, v reflect.Value, f func(string, reflect.Value)) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			leaves(field, v.Elem(), f)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			sf := v.Type().Field(i)
			name, _, _ := strings.Cut(sf.Tag.Get("json"), ",")
			switch {
			case name == "-" || !sf.IsExported() && !sf.Anonymous:
			case sf.Anonymous:
				leaves(field, v.Field(i), f)
			default:
				leaves(strings.TrimPrefix(field+"."+name, "."), v.Field(i), f)
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			leaves(fmt.Sprintf("%s[%d]", field, i), v.Index(i), f)
		}
	default:
		f(field, v)
	}
}

// spoil changes a leaf.
func spoil(t *testing.T, v reflect.Value) {
	t.Helper()
	switch v.Kind() {
	case reflect.String:
		v.SetString(v.String() + "x")
	case reflect.Bool:
		v.SetBool(!v.Bool())
	case reflect.Int, reflect.Int64:
		v.SetInt(v.Int() + 1)
	case reflect.Float64:
		v.SetFloat(v.Float()*1.001 + 1e-6)
	default:
		t.Fatalf("a leaf of kind %v: teach the test to spoil it", v.Kind())
	}
}

func TestCheckNoticesEveryField(t *testing.T) {
	if testing.Short() {
		t.Skip("checks hundreds of plans; runs without -short")
	}
	var fields []string
	plan, profile := checkedPlan(t)
	leaves("", reflect.ValueOf(plan).Elem(), func(field string, _ reflect.Value) { fields = append(fields, field) })
	used := map[string]bool{}
	data, err := doc.Encode(plan)
	if err != nil {
		t.Fatal(err)
	}
	for _, field := range fields {
		plan := new(Plan)
		if err := doc.Decode("plan", data, plan); err != nil {
			t.Fatal(err)
		}
		leaves("", reflect.ValueOf(plan).Elem(), func(at string, v reflect.Value) {
			if at == field {
				spoil(t, v)
			}
		})
		err := Check(plan, profile)
		if _, ok := free()[field]; ok {
			used[field] = true
			if err != nil {
				t.Errorf("%s is listed as free, but Check notices it: %v", field, err)
			}
			continue
		}
		if err == nil {
			t.Errorf("%s: changed, and Check says nothing", field)
			continue
		}
		if !strings.HasPrefix(field, "job.") && !names(err, field) {
			t.Errorf("%s: not named by %v", field, err)
		}
	}
	for field := range free() {
		if !used[field] {
			t.Errorf("%s is listed as free, but is no field", field)
		}
	}
	t.Logf("%d fields", len(fields))
}

// names says whether a finding is about the field: itself, what it is in, or
// (for a segment, whose damage may show at its neighbour) in the message. In which
// order blocks, heads and micro-batches are computed is as good either way: it shows in the
// times or the memory of the plan or of the candidate.
func names(err error, field string) bool {
	var check *CheckError
	if !errors.As(err, &check) {
		return false
	}
	shows, holds := field, field
	for _, order := range []string{"own_last", "keep_tail", "head_chunks", "two_batch_overlap"} {
		shows = strings.Replace(strings.Replace(shows, "layout."+order, "time.mid_s", 1), order, "step.time.mid_s", 1)
		holds = strings.Replace(holds, "layout."+order, "peak_memory_bytes", 1)
	}
	switch { // fewer bytes travel, though nobody may have waited for them for long
	case field == "keep_tail":
		holds = "step.traffic[0].bytes"
	case strings.HasSuffix(field, "layout.keep_tail"):
		holds = strings.Replace(field, "layout.keep_tail", "exposed_s", 1)
	}
	outer := regexp.MustCompile(`\[\d+\]$`).ReplaceAllString(field, "")
	return slices.ContainsFunc(check.Findings, func(f Finding) bool {
		return f.Field == field || f.Field == shows || f.Field == holds || f.Field == outer || strings.HasPrefix(field, f.Field+".") || strings.Contains(f.Msg, field)
	})
}

func TestCheckNoticesBrokenStructure(t *testing.T) {
	world.Sequential(t)
	whole, profile := checkedPlan(t)
	data, err := json.Marshal(whole)
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		spoil func(*Plan)
		want  string
	}{
		"a candidate's rank": {func(p *Plan) {
			l := *p.Compared[2].Layout
			l.Groups = append(slices.Clone(l.Groups), costmodel.Group{{Rank: 99, QHeads: 1}})
			p.Compared[2].Layout = &l
		}, "considered[2].layout: groups["},
		"a candidate without tokens": {func(p *Plan) {
			l := *p.Compared[2].Layout
			l.KeepTail, l.Groups = true, append(slices.Clone(l.Groups), costmodel.Group{})
			p.Compared[2].Layout = &l
		}, "considered[2].layout: groups["},
		"hole":    {func(p *Plan) { p.Ranks[0].Segments[0].End -= 8; p.Ranks[0].Tokens -= 8 }, "nobody has tokens"},
		"overlap": {func(p *Plan) { p.Ranks[0].Segments[0].End += 8; p.Ranks[0].Tokens += 8 }, "is also in ranks["},
		"short": {func(p *Plan) {
			last := &p.Ranks[0].Segments[1]
			last.End -= 5
			p.Ranks[0].Tokens -= 5
		}, "ranks[0].segments[1].end_tokens: nobody has tokens 8187 to 8192"},
		"fits after all": {func(p *Plan) {
			c := &p.Compared[2]
			c.Verdict, c.Speedup, c.GainError = Infeasible, 0, 0
		}, "considered[2].verdict: \"infeasible\": memory computed anew says that it fits is true"},
		"unsorted": {func(p *Plan) { slices.Reverse(p.Ranks[0].Segments) }, "segments of a rank must rise"},
		"beyond": {func(p *Plan) {
			last := &p.Ranks[0].Segments[1]
			last.End += 5
			p.Ranks[0].Tokens += 5
		}, "ranks[0].segments[1].end_tokens: 8197: beyond the sequence's 8192 tokens"},
		"negative":              {func(p *Plan) { p.Ranks[0].Segments[0].Start = -1 }, "before the sequence begins"},
		"empty":                 {func(p *Plan) { p.Ranks[0].Segments[0].End = p.Ranks[0].Segments[0].Start }, "is empty"},
		"lost rank":             {func(p *Plan) { p.Ranks = p.Ranks[:2] }, "the cluster has 5 devices"},
		"no groups":             {func(p *Plan) { p.Groups = p.Groups[:0] }, "groups: is empty: every rank with tokens has a place in one of the groups"},
		"group gone":            {func(p *Plan) { p.Groups = p.Groups[1:] }, "has tokens and is in none"},
		"rank twice":            {func(p *Plan) { p.Groups[1] = p.Groups[0] }, "in a group before"},
		"rank unknown":          {func(p *Plan) { p.Groups[0][0].Rank = 7 }, "no rank of this plan"},
		"rank negative":         {func(p *Plan) { p.Groups[0][0].Rank = -1 }, "no rank of this plan"},
		"two groups":            {func(p *Plan) { p.Groups[1][1].Rank = 0 }, "in a group before; see also groups[0][0].rank"},
		"head lost":             {func(p *Plan) { p.Groups[0][1].QHeads-- }, "groups[0]: 7 q_heads: want 8"},
		"head twice":            {func(p *Plan) { p.Groups[0][0].QHeads++ }, "groups[0]: 9 q_heads: want 8"},
		"heads below 0":         {func(p *Plan) { p.Groups[0][0].QHeads, p.Groups[0][1].QHeads = -1, 9 }, "groups[0][0].q_heads: -1: must not be negative, nor above the model's 8"},
		"no work":               {func(p *Plan) { p.Groups[1] = append(p.Groups[1], costmodel.HeadShare{Rank: 4}) }, "groups[1][2].rank: 4: has neither tokens nor heads"},
		"heads swapped":         {func(p *Plan) { g := p.Groups[0]; g[0], g[1] = g[1], g[0] }, "ranks[0].first_q_head: 0: by groups[0][1].q_heads it is 3"},
		"heads without a group": {func(p *Plan) { p.Ranks[4].QHeads = 1 }, "ranks[4].q_heads: 1: want 0"},
		"group without tokens": {func(p *Plan) {
			p.Groups = append(p.Groups, costmodel.Group{{Rank: 4, QHeads: 8}})
		}, "groups[2]: no member has tokens"},
		"heads moved": {func(p *Plan) {
			p.Groups[0][0].QHeads, p.Groups[0][1].QHeads = 4, 4
			a, b := &p.Ranks[0], &p.Ranks[1]
			a.QHeads, a.KVHeads, b.FirstQ, b.QHeads, b.KVHeads = 4, 1, 4, 4, 1
		}, "step.time.mid_s"},
		"not legal after all": {func(p *Plan) { p.Compared[2].Verdict = NotLegal }, "considered[2].time: there, but the strategy is not legal"},
		"legal after all":     {func(p *Plan) { p.Compared[1].Verdict = Slower }, "considered[1].layout: left out of the chosen candidate and of no other"},
		"no reason":           {func(p *Plan) { p.Compared[1].Why = "" }, "considered[1].why: empty"},
		"none chosen":         {func(p *Plan) { p.Compared = p.Compared[:3] }, "none is chosen"},
		"twice":               {func(p *Plan) { p.Compared = append(p.Compared, p.Compared[3]) }, "is chosen already"},
		"no ring":             {func(p *Plan) { p.Compared = p.Compared[1:] }, "considered: ring is not among them: it is solved for every plan, and no warning says that it was skipped"},
		"no illegal one":      {func(p *Plan) { p.Compared = slices.Delete(p.Compared, 1, 2) }, "considered: ulysses is not among them"},
		"no usp":              {func(p *Plan) { p.Compared = slices.Delete(p.Compared, 2, 3) }, "considered: usp is not among them"},
		"not skipped":         {func(p *Plan) { p.Warnings = p.Warnings[:2] }, "considered: hexiseq is not among them"},
		"sure of nothing":     {func(p *Plan) { p.Compared[3].Strategy = "evenkeel-sure" }, "considered: evenkeel is not among them"},
		"no memory":           {func(p *Plan) { p.Step.Ranks[0].Memory.Capacity = 1 }, "step.ranks[0].memory"},
		"no account":          {func(p *Plan) { p.Step.Ranks = p.Step.Ranks[:1] }, "step.ranks: 1 of them"},
		"bound beaten":        {func(p *Plan) { p.Bound = p.Step.Time.Mid * 2 }, "lower_bound_s"},
		"beside in no time":   {func(p *Plan) { p.SideBySide.Time = 0 }, "side_by_side.step_s: 0 s: want a time above 0"},
		"beside in no batch":  {func(p *Plan) { p.SideBySide.MicroBatches = 0 }, "side_by_side.micro_batches: 0: want 1 to the job's 2 sequences"},
		"beside in no group":  {func(p *Plan) { p.SideBySide.Groups = 0 }, "side_by_side.groups: 0: want 1 to 2"},
		"no setting chosen":   {func(p *Plan) { p.Settings = p.Settings[2:] }, "settings: 0 of them chosen, want one"},
		"setting of another":  {func(p *Plan) { p.Settings[1].Recompute = costmodel.RecomputeFull }, `settings[1].recompute: "full": chosen, but the job has "none"`},
		"faster setting":      {func(p *Plan) { p.Settings[2].Time.Mid /= 3 }, "settings[2].time: "},
		"setting below bound": {func(p *Plan) { p.Settings[2].Bound *= 100 }, "settings[2].lower_bound_s: "},
		"setting in no time":  {func(p *Plan) { p.Settings[2].Baseline = -1 }, "settings[2].baseline_s: -1 s: want a time of 0 or more"},
		"setting of no bytes": {func(p *Plan) { p.Settings[2].Peak = 0 }, "settings[2].peak_memory_bytes: 0: want at least 1"},
		"setting untold":      {func(p *Plan) { p.Settings[0].Why = "" }, `settings[0].why: "": there is a reason for what has no plan`},
		"bad job":             {func(p *Plan) { p.Job.SeqLen = 0 }, "job: seq_len_tokens: 0"},
	} {
		plan := &Plan{}
		if err := json.Unmarshal(data, plan); err != nil {
			t.Fatal(err)
		}
		tc.spoil(plan)
		if err := Check(plan, profile); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v: want %q", name, err, tc.want)
		}
	}
}

// Groups side by side have a sequence and a device each.
func TestCheckNoticesGroupsOfNothing(t *testing.T) {
	for _, tc := range []struct {
		groups, sequences, ranks, most int
	}{{0, 2, 5, 2}, {2, 2, 5, 0}, {3, 2, 5, 2}, {5, 9, 5, 0}, {6, 9, 5, 5}, {6, 5, 5, 5}} {
		var f findings
		f.sideBySide(&Plan{Job: costmodel.Job{Accumulate: tc.sequences}, Ranks: make([]PlanRank, tc.ranks), SideBySide: &SideBySide{Time: 1, MicroBatches: 1, Groups: tc.groups}})
		switch want := fmt.Sprintf("side_by_side.groups: %d: want 1 to %d, ", tc.groups, tc.most); {
		case tc.most == 0 && len(f) > 0:
			t.Errorf("%+v: %v", tc, f)
		case tc.most > 0 && (len(f) != 1 || !strings.HasPrefix(f[0].Error(), want)):
			t.Errorf("%+v: %v, want %s", tc, f, want)
		}
	}
}

// Other plans than the one at hand may not have been compared truthfully.
func TestCheckNoticesAWrongChoice(t *testing.T) {
	plan, profile := checkedPlan(t)
	ours := &plan.Compared[3]
	ours.GainError = 10 * units.Seconds(1)
	if err := Check(plan, profile); err == nil || !strings.Contains(err.Error(), "chosen, but it gains no more") {
		t.Error(err)
	}
}

func TestCheckAgainstAnotherProfile(t *testing.T) {
	plan, _ := checkedPlan(t)
	quick := world.Fast()
	quick.FLOPS *= 1.1
	err := Check(plan, world.Profile([]world.Device{quick, world.Slow()}, []world.Wire{world.Near(), world.Far()}))
	if err == nil || !strings.Contains(err.Error(), "step.ranks[0].busy_s") {
		t.Error(err)
	}
}
