package replay

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/batch"
)

// madeBatch is a plan of 2 micro-batches on 3 ranks: rank 2 and rank 0 in a group
// of unequal shares, the faster one first, beside rank 1 alone; then all three in
// a ring, with a sequence that only some of them have tokens of.
func madeBatch() *batch.Document {
	d := &batch.Document{
		Costs: "by hand", Strategy: "evenkeel",
		Lengths: []units.Tokens{60, 1, 40, 120, 2},
		Fleet:   []batch.PoolEntry{{Device: "torch_cpu:2", Ranks: [][]int{{2}}}, {Device: "torch_cpu:1", Ranks: [][]int{{0, 1}}}},
		Classes: []batch.ClassEntry{
			{Name: "mix", Uses: []int{1, 1}, Cap: 1000, Shares: []float64{0.75, 0.25}, Heads: 1, Recompute: true},
			{Name: "1", Uses: []int{0, 1}, Cap: 1000},
			{Name: "all", Uses: []int{1, 2}, Cap: 1000, Shares: []float64{0.5, 0.25}, Heads: 1, Schedule: costmodel.Schedule{OwnLast: true}},
		},
		Plan: batch.Plan{Time: 2, Micro: []batch.MicroBatch{
			{Time: 1, Groups: []batch.Group{
				{Class: 0, Sequences: []int{0, 1}, Ranks: []int{2, 0}, Tokens: 61, Time: 1},
				{Class: 1, Sequences: []int{2}, Ranks: []int{1}, Tokens: 40, Time: 1},
			}},
			{Time: 1, Groups: []batch.Group{{Class: 2, Sequences: []int{3, 4}, Ranks: []int{2, 0, 1}, Tokens: 122, Time: 1}}},
		}},
		Bound: 1, Gap: 1, Notes: []string{},
	}
	d.Schema, d.Tool, d.Created = batch.Schema, "evenkeel test", "2026-01-31T12:00:00Z"
	return d
}

func madeTrained() *Trained {
	return &Trained{Model: costmodel.Model{Name: "llama", Layers: 2, Hidden: 256, FFN: 512, QHeads: 4, KVHeads: 2, HeadDim: 64, Vocab: 128, GatedMLP: true}}
}

// batchFile writes that plan, with a change.
func batchFile(t *testing.T, change func(*batch.Document)) string {
	t.Helper()
	d := madeBatch()
	if change != nil {
		change(d)
	}
	data, err := json.Marshal(d) // doc.Save would refuse what is wrong
	path := filepath.Join(t.TempDir(), "x.batch.json")
	if err == nil {
		err = os.WriteFile(path, data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func loadBatch(t *testing.T, change func(*batch.Document)) *Plan {
	t.Helper()
	plans, err := LoadPlansOf([]string{batchFile(t, change)}, madeTrained())
	if err != nil {
		t.Fatal(err)
	}
	return plans[0]
}

// Every group is a plan over its ranks in rising order, whatever their order in
// the document, and the first of the document has its share and its documents.
func TestAPlanOfBatchesIsHandedToRanksByGroups(t *testing.T) {
	p := loadBatch(t, nil)
	if !p.Batch() || len(p.micro) != 2 || len(p.micro[0]) != 2 || len(p.micro[1]) != 1 || len(p.SHA256) != 64 {
		t.Fatalf("%+v", p)
	}
	k := p.micro[0][0]
	if !slices.Equal(k.Ranks, []int{0, 2}) || !slices.Equal(k.Docs, []units.Tokens{60, 1}) || k.Plan.Job.SeqLen != 61 || k.Plan.Job.Recompute != costmodel.RecomputeFull {
		t.Errorf("%+v", k)
	}
	if r := k.Plan.Ranks; r[0].Device != "torch_cpu:1" || r[1].Device != "torch_cpu:2" || held(r[0]) != 15 || held(r[1]) != 46 {
		t.Errorf("rank 2 has three quarters of 60 tokens, and the one token: %+v", r)
	}
	if g := k.Plan.Groups; len(g) != 2 || g[0][0] != (costmodel.HeadShare{Rank: 1, QHeads: 4}) || g[1][0].Rank != 0 {
		t.Errorf("the ring begins with rank 2, place 1: %v", g)
	}
	if last := p.micro[1][0]; held(last.Plan.Ranks[2]) != 61 || last.Plan.Job.Recompute != costmodel.RecomputeNone || !last.Plan.OwnLast || k.Plan.OwnLast {
		t.Errorf("%+v", last)
	}
	if p.Ranks[2].Device != "torch_cpu:2" || p.Job.DType != op.F32 {
		t.Errorf("%+v %s", p.Ranks, p.Job.DType)
	}
	for _, side := range p.micro {
		for _, k := range side {
			l := costmodel.Layout{Groups: k.Plan.Groups}
			for _, r := range k.Plan.Ranks {
				l.Shards = append(l.Shards, costmodel.Shard{Segments: r.Segments})
			}
			if err := l.Validate(k.Plan.Job.SeqLen, len(k.Ranks), 4); err != nil {
				t.Error(err)
			}
		}
	}
}

func held(r partRank) units.Tokens { return costmodel.Shard{Segments: r.Segments}.Tokens() }

// What a rank is asked names micro-batches only where there are some.
func TestRequestsHoldTheMicroBatchesOfEachPlan(t *testing.T) {
	one, err := LoadPlans([]string{planFile(t, "a.plan.json", "ring", nil)})
	if err != nil {
		t.Fatal(err)
	}
	of := func(plans ...*Plan) string {
		data, err := json.Marshal((&run{config: &Config{Plans: plans}}).request(seat{}).Batches)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	if got := of(one[0]); got != "null" {
		t.Error(got)
	}
	if got := of(one[0], loadBatch(t, nil)); !strings.HasPrefix(got, `[null,[[{"plan":{"schema":"evenkeel.plan/v2","job":{"model":{`) || !strings.Contains(got, `"ranks":[0,2],"docs_tokens":[60,1]`) {
		t.Error(got)
	}
}

// A group without sequences has nothing to run, nor has its micro-batch.
func TestGroupsWithoutSequencesAreLeftOut(t *testing.T) {
	p := loadBatch(t, func(d *batch.Document) {
		idle := batch.Group{Class: 1, Ranks: []int{1}}
		d.Micro = append(d.Micro, batch.MicroBatch{Groups: []batch.Group{idle}})
	})
	if len(p.micro) != 3 || p.micro[2] == nil || len(p.micro[2]) != 0 {
		t.Errorf("%v", p.micro)
	}
}

func TestWrongPlansOfBatchesAreRefusedWithTheField(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*batch.Document)
		of     func(*Trained)
		want   string
	}{
		"ranks with gap": {func(d *batch.Document) {
			d.Fleet[1].Ranks[0][1], d.Micro[0].Groups[1].Ranks[0], d.Micro[1].Groups[0].Ranks[2] = 7, 7, 7
		}, nil, "fleet[1] (torch_cpu:1): rank 7: the ranks of a run are 0 to 2"},
		"twice":        {func(d *batch.Document) { d.Micro[0].Groups[1].Sequences, d.Micro[0].Groups[1].Tokens = []int{0}, 60 }, nil, "is trained 2 times"},
		"rank twice":   {func(d *batch.Document) { d.Micro[0].Groups[1].Ranks = []int{0} }, nil, "rank 0 is also in groups[0]"},
		"shares":       {func(d *batch.Document) { d.Classes[0].Shares[0] = 0.5 }, nil, "micro_batches[0].groups[0]: classes[0] (mix).shares: "},
		"uneven heads": {func(d *batch.Document) { d.Classes[2].Heads, d.Classes[2].OwnLast = 3, false }, nil, "micro_batches[1].groups[0]: classes[2] (all).head_ranks: 3: the model's 4 query heads"},
		"model":        {nil, func(of *Trained) { of.Model.HeadDim = 0 }, "the model: head_dim"},
		"window":       {nil, func(of *Trained) { of.Model.MaxLen = 100 }, "lengths_tokens[3]: 120: the model attends fully up to 100 tokens"},
		"dtype":        {nil, func(of *Trained) { of.DType = "i8" }, `the dtype: "i8"`},
		"fp8":          {nil, func(of *Trained) { of.DType = op.FP8 }, `the dtype: "fp8": want f32, bf16 or f16`},
		"version":      {func(d *batch.Document) { d.Schema = "evenkeel.batchplan/v9" }, nil, "evenkeel.batchplan/v9 was written by evenkeel"},
	} {
		path, of := batchFile(t, c.change), madeTrained()
		if c.of != nil {
			c.of(of)
		}
		_, err := LoadPlansOf([]string{path}, of)
		if err == nil || !strings.HasPrefix(err.Error(), path+": ") || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s:\ngot  %v\nwant %s", name, err, c.want)
		}
	}
	path := batchFile(t, nil)
	if _, err := LoadPlans([]string{path}); err == nil || !strings.Contains(err.Error(), path+`: schema: "evenkeel.batchplan/v1": such a plan does not hold the model that it trains; name its config.json: --model`) {
		t.Error(err)
	}
	p := loadBatch(t, nil)
	if err := p.runnable(PartsLayer, []units.Tokens{5}); err == nil || !strings.Contains(err.Error(), "docs: 5: want none, for ") {
		t.Error(err)
	}
	if err := p.runnable(PartsLayer, nil); err != nil {
		t.Error(err)
	}
	if one, err := LoadPlans([]string{planFile(t, "a.plan.json", "ring", nil)}); err != nil || alike(one[0], p) == nil {
		t.Error("plans of 2 and of 3 ranks are alike", err)
	}
}

// batchHeader is of one plan of batches on two ranks.
func batchHeader() *Header {
	h := madeHeader()
	h.Docs, h.Repeats, h.Numerics, h.Exact = nil, 1, h.Numerics[:1], h.Exact[:1]
	h.Plans = []PlanRun{{Path: "x.batch.json", SHA256: h.Plans[0].SHA256, Strategy: "evenkeel", Batch: true, Micro: 3, Model: &madeTrained().Model, DType: op.F32}}
	h.Plans[0].Groups = [][]GroupRun{{madeGroup(1), madeGroup(0)}, {madeGroup(0, 1)}, {}}
	return h
}

// madeGroup is a ring of ranks, of two sequences that lie in one piece each.
func madeGroup(ranks ...int) GroupRun {
	g := GroupRun{Ranks: ranks, Docs: []units.Tokens{3, units.Tokens(len(ranks))}, Recompute: costmodel.RecomputeFull, RingBuffers: 2}
	for i := range ranks {
		from := []units.Tokens{0, 4}[i]
		g.Layout.Shards = append(g.Layout.Shards, costmodel.Shard{Segments: []costmodel.Segment{{Start: from, End: []units.Tokens{4, 5}[i]}}})
		g.Layout.Groups = append(g.Layout.Groups, costmodel.Group{{Rank: i, QHeads: 4}})
	}
	return g
}

// first changes the first group of a header's plan.
func first(change func(*GroupRun)) func(*Header, *Span) {
	return func(h *Header, _ *Span) { change(&h.Plans[0].Groups[0][0]) }
}

func TestATraceOfBatchesReadsBackAndKeepsToItsMicroBatches(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Header, *Span)
		want   string
	}{
		"good":        {func(*Header, *Span) {}, ""},
		"mb":          {func(_ *Header, s *Span) { s.MB = 3 }, "mb: 3: want 0 to 2"},
		"step":        {func(_ *Header, s *Span) { s.Step = 3 }, "step: 3: want 0 to 2"},
		"no mb":       {func(h *Header, _ *Span) { h.Plans[0].Micro = 0 }, "plans[0].micro_batches: 0"},
		"no model":    {func(h *Header, _ *Span) { h.Plans[0].Model = nil }, "plans[0].model: missing"},
		"bad model":   {func(h *Header, _ *Span) { h.Plans[0].Model.KVHeads = 3 }, "plans[0].model."},
		"dtype":       {func(h *Header, _ *Span) { h.Plans[0].DType = "" }, `plans[0].dtype: ""`},
		"a job":       {func(h *Header, _ *Span) { h.Plans[0].Job.SeqLen = 5 }, "plans[0].job, layout: only of a plan of one sequence"},
		"docs":        {func(h *Header, _ *Span) { h.Docs = []units.Tokens{5} }, "docs_tokens[0]: 5"},
		"not a batch": {func(h *Header, _ *Span) { h.Plans[0].Batch = false }, "plans[0].model, dtype, groups: only of a plan of batches or a pipeline"},
		"old":         {func(h *Header, _ *Span) { h.Plans[0].Groups = nil }, ""},
		"meet":        {func(_ *Header, s *Span) { s.Dir, s.Again, s.Op = Backward, false, Meet }, ""},
		"few groups":  {func(h *Header, _ *Span) { h.Plans[0].Groups = h.Plans[0].Groups[1:] }, "plans[0].groups: of 2 micro-batches: want 3"},
		"a rank":      {first(func(g *GroupRun) { g.Ranks = []int{2} }), "groups[0][0].ranks[0]: 2: want rising ranks from 0 to 1"},
		"twice":       {first(func(g *GroupRun) { g.Ranks = []int{0} }), "groups[0][1].ranks[0]: 0: want"},
		"no ranks":    {first(func(g *GroupRun) { g.Ranks = nil }), "groups[0][0].ranks, docs_tokens: 0 and 2"},
		"no document": {first(func(g *GroupRun) { g.Docs[1] = 0 }), "groups[0][0].docs_tokens[1]: 0: want 1"},
		"a hole":      {first(func(g *GroupRun) { g.Docs[1] = 2 }), "groups[0][0].layout.shards: 4 tokens in all: the sequence has 5"},
		"heads":       {first(func(g *GroupRun) { g.Layout.Groups[0][0].QHeads = 3 }), "groups[0][0].layout.groups[0]"},
		"recompute":   {first(func(g *GroupRun) { g.Recompute = "half" }), `groups[0][0].recompute: "half"`},
		"buffers":     {first(func(g *GroupRun) { g.RingBuffers = 1 }), "groups[0][0].ring_buffers: 1"},
		"own last":    {first(func(g *GroupRun) { g.Layout.OwnLast = true }), "groups[0][0].layout.own_last: true, but the group is one all-to-all"},
	} {
		path, h := filepath.Join(t.TempDir(), "x.trace.jsonl"), batchHeader()
		s := Span{Rank: 1, MB: 2, Dir: Forward, Again: true, Step: 2, Op: RingWait, T0NS: 5, DurNS: 9}
		c.change(h, &s)
		err := WriteTrace(path, h, func(span func(*Span) error, step func(*Step) error) error {
			return errors.Join(step(&Step{DurNS: 90}), span(&s), step(&Step{Rank: 1, DurNS: 90}))
		})
		if c.want != "" {
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: got %v, want %s", name, err, c.want)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		back, err := ReadTrace(path, bytes.NewReader(data), Visitor{})
		if err != nil || !back.Plans[0].Batch || back.Plans[0].Micro != 3 || back.Plans[0].Model.QHeads != 4 {
			t.Errorf("%+v, %v", back, err)
		}
		if !bytes.Contains(data, []byte(`"batch":true,"micro_batches":3,"model":{`)) || bytes.Contains(data, []byte(`"job"`)) {
			t.Errorf("%.700s", data)
		}
	}
}

// A run of a plan of batches has the header of one.
func TestARunOfBatchesSaysSo(t *testing.T) {
	c, pids := fakeConfig(t, "well")
	p := loadBatch(t, nil)
	c.Plans = []*Plan{p}
	c.Inputs = []doc.Input{{Path: "x.batch.json", SHA256: p.SHA256}, {Path: "config.json", SHA256: p.SHA256}}
	if err := Run(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	nobodyLives(t, pids)
	f, err := os.Open(c.Out)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	h, err := ReadTrace(c.Out, f, Visitor{})
	if err != nil {
		t.Fatal(err)
	}
	if x := h.Plans[0]; len(x.Groups) != 2 || len(x.Groups[0]) != 2 || x.Groups[0][0].Recompute != costmodel.RecomputeFull || x.Groups[1][0].Tokens() != 122 || x.Groups[1][0].Layout.Shards[2].Tokens() != 61 || !x.Groups[1][0].Layout.OwnLast || x.Groups[0][0].Layout.OwnLast || !x.Batch || x.Micro != 2 || x.SHA256 != p.SHA256 || x.Path != "x.batch.json" || x.Strategy != "evenkeel" || len(h.Ranks) != 3 || h.Ranks[2].Threads != 2 {
		t.Errorf("%+v %+v", x, h.Ranks)
	}
}

// FuzzBatchPlan: what is taken lays out every token of every sequence once.
func FuzzBatchPlan(f *testing.F) {
	data, err := json.Marshal(madeBatch())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Fuzz(func(t *testing.T, data []byte) {
		p := &Plan{Path: "x"}
		if p.readBatch(data, madeTrained()) != nil {
			return
		}
		for _, side := range p.micro {
			for _, k := range side {
				l := costmodel.Layout{Groups: k.Plan.Groups}
				for _, r := range k.Plan.Ranks {
					l.Shards = append(l.Shards, costmodel.Shard{Segments: r.Segments})
				}
				if err := l.Validate(k.Plan.Job.SeqLen, len(k.Ranks), 4); err != nil {
					t.Error(err)
				}
			}
		}
	})
}
