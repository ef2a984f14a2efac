package serve

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/pipeline"
	"github.com/evenkeel/evenkeel/internal/units"
)

// onStages plans a batch as two chunks: half of the longest sequence, then the rest of it and
// all others.
type onStages struct{}

func (onStages) Plan(_ context.Context, lengths []units.Tokens) (Planned, error) {
	if !slices.IsSortedFunc(lengths, func(a, b units.Tokens) int { return int(b - a) }) {
		return Planned{}, fmt.Errorf("lengths %v are not sorted", lengths)
	}
	p := &Pipeline{Schema: "s", Devices: []string{"a", "b"}, Lengths: lengths, Layers: 3}
	p.Stages = []pipeline.Stage{{Ranks: []int{0}, Layers: 1}, {Ranks: []int{1}, Layers: 2}}
	rest := pipeline.Chunk{Context: lengths[0] / 2, Slice: lengths[0] - lengths[0]/2}
	for k := 1; k < len(lengths); k++ {
		rest.Whole = append(rest.Whole, k)
	}
	p.Chunks = []pipeline.Chunk{{Slice: lengths[0] / 2}, rest}
	p.Recompute = [][]int{{0, 1}, {2, 0}}
	order := []pipeline.Op{{End: 1}, {Chunk: 1, Start: 1, End: 2}, {Chunk: 1, Backward: true, Start: 2, End: 3}, {Backward: true, Start: 3, End: 4}}
	p.Orders, p.Time = [][]pipeline.Op{order, order}, 6
	return Planned{Pipeline: p, Bound: 4, Interval: within(6)}, nil
}

// A pipeline is answered in terms of the batch as it came, whatever order batches of the same
// lengths have, with all that it takes to run it.
func TestPipelinesAreOfTheBatchAsItCame(t *testing.T) {
	r := start(t, func(c *Config) { c.Planners = []Planner{onStages{}} })
	if code, body := r.ask("POST", "/v1/jobs/a/batches", `{"batches":[{"step":0,"lengths_tokens":[3,9,5]},{"step":1,"lengths_tokens":[9,5,3]}]}`); code != 202 {
		t.Fatalf("%d %s", code, body)
	}
	for step, want := range []struct {
		lengths []units.Tokens
		longest int
		whole   []int
	}{{[]units.Tokens{3, 9, 5}, 1, []int{2, 0}}, {[]units.Tokens{9, 5, 3}, 0, []int{1, 2}}} {
		a := r.answer(fmt.Sprintf("/v1/jobs/a/plans/%d?wait_s=5", step))
		p := a.Pipeline
		if a.State != Done || a.Plan != nil || p == nil || a.Gap != 0.5 || a.Interval != within(6) {
			t.Fatalf("%+v", a)
		}
		if err := p.Validate(p.Lengths, p.Layers, len(p.Devices)); err != nil || !slices.Equal(p.Lengths, want.lengths) {
			t.Errorf("lengths %v: %v", p.Lengths, err)
		}
		if x := p.Chunks; x[0].Sequence != want.longest || x[1].Sequence != want.longest || !slices.Equal(x[1].Whole, want.whole) || p.Schema != "s" || p.Time != 6 || len(p.Orders[1]) != 4 {
			t.Errorf("%+v", p)
		}
	}
	if a := r.answer("/v1/jobs/a/plans/1"); !a.Cached {
		t.Error("lengths in another order were planned again")
	}
	// A chunk without a slice is of no sequence, whatever comes first.
	none := &Pipeline{Lengths: []units.Tokens{5, 4}, Plan: pipeline.Plan{Chunks: []pipeline.Chunk{{Sequence: -1, Whole: []int{0, 1}}}}}
	if got := restage(none, []int{1, 0}).Chunks[0]; got.Sequence != -1 || !slices.Equal(got.Whole, []int{1, 0}) || none.Chunks[0].Whole[0] != 0 {
		t.Errorf("%+v of %+v", got, none.Chunks[0])
	}
}

// Plans on other stages are not for this server's job; a setup without stages has the digest
// that it had before there were any.
func TestAJournalIsOfItsStages(t *testing.T) {
	stages := []pipeline.Stage{{Ranks: []int{0}, Layers: 2}, {Ranks: []int{1}, Layers: 2}}
	moved := []pipeline.Stage{{Ranks: []int{0}, Layers: 1}, {Ranks: []int{1}, Layers: 3}}
	digest := func(s []pipeline.Stage) string { return (&Setup{Stages: s}).planning().Groups }
	if digest(stages) == digest(moved) || digest(stages) == digest(nil) {
		t.Error("setups of different stages have one digest")
	}
	// Of "[null,null]".
	if got := digest(nil); got != "95cb9b4f84ceff132cc7a875d8c192bf" {
		t.Errorf("digest %s", got)
	}
}
