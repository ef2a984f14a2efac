package serve

import (
	"context"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/pipeline"
	"github.com/evenkeel/evenkeel/internal/units"
)

// changed starts a server on the journal of another after changes of its text, and returns
// what it says.
func (r *running) changed(change func(string) string) (*running, string) {
	r.t.Helper()
	data, err := os.ReadFile(r.config.Journal)
	if err != nil {
		r.t.Fatal(err)
	}
	text := change(string(data))
	if text == string(data) {
		r.t.Fatal("nothing was changed")
	}
	path := filepath.Join(r.t.TempDir(), "j")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		r.t.Fatal(err)
	}
	var mu sync.Mutex
	var told []string
	next := start(r.t, func(c *Config) {
		c.Journal, c.Planners = path, r.config.Planners
		c.Log = func(s string) {
			mu.Lock()
			defer mu.Unlock()
			told = append(told, s)
		}
	})
	mu.Lock()
	defer mu.Unlock()
	return next, strings.Join(told, "\n")
}

// replaced is a change of a text.
func replaced(pairs ...string) func(string) string {
	return func(s string) string { return strings.NewReplacer(pairs...).Replace(s) }
}

// unsummed is a journal as versions wrote it that knew no sums.
func unsummed(s string) string {
	return regexp.MustCompile(`"sum":"[0-9a-f]+",`).ReplaceAllString(s, "")
}

// An answer that somebody changed in the journal loses a sequence and doubles another: the
// batch is planned again, or, where the journal has only the answer, is to be submitted again.
func TestAChangedAnswerIsNotHandedOut(t *testing.T) {
	r := journalled(t)
	if code, body := r.ask("POST", "/v1/jobs/a/batches", `{"batches":[{"step":1,"lengths_tokens":[3,9,5]}]}`); code != 202 {
		t.Fatalf("%d %s", code, body)
	}
	want := r.answer("/v1/jobs/a/plans/1?wait_s=5")
	doubled := replaced(`"sequences":[1,2,0]`, `"sequences":[1,1,0]`)
	for name, change := range map[string]func(string) string{
		"doubled": doubled, "doubled, without sums": func(s string) string { return unsummed(doubled(s)) },
		"of another rank": replaced(`"ranks":[0]`, `"ranks":[1]`),
		"lost":            func(s string) string { return unsummed(replaced(`"sequences":[1,2,0]`, `"sequences":[1,0]`)(s)) },
		"beyond":          func(s string) string { return unsummed(replaced(`"sequences":[1,2,0]`, `"sequences":[1,2,3]`)(s)) },
		"tokens":          func(s string) string { return unsummed(replaced(`"length_tokens":17`, `"length_tokens":18`)(s)) },
		"step": func(s string) string {
			return unsummed(replaced(`"answer":{"job":"a","step":1`, `"answer":{"job":"a","step":2`)(s))
		},
		"none":        func(s string) string { return unsummed(replaced(`"plan":`, `"plain":`)(s)) },
		"other batch": func(s string) string { return strings.Replace(s, `[3,9,5]`, `[3,9,6]`, 1) },
	} {
		second, told := r.changed(change)
		got := second.answer("/v1/jobs/a/plans/1?wait_s=5")
		if got.Took = want.Took; name != "other batch" && !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
		if name == "other batch" && got.Plan.Time != 18 {
			t.Errorf("%s: %+v", name, got)
		}
		if !strings.Contains(told, `the answer of job "a", step 1, is not handed out, and its batch is planned again: `) {
			t.Errorf("%s: %q", name, told)
		}
	}
	second, told := r.changed(unsummed) // as a version of before left it
	if got := second.answer("/v1/jobs/a/plans/1?wait_s=5"); told != "" || !reflect.DeepEqual(got, want) {
		t.Errorf("of before: %+v, %q", got, told)
	}
	// The second server rewrote its journal, and what was accepted is not in it any more.
	for name, change := range map[string]func(string) string{"sum": doubled, "no sum": func(s string) string { return unsummed(doubled(s)) }} {
		third, told := second.changed(change)
		if code, body := third.ask("GET", "/v1/jobs/a/plans/1", ""); code != 404 || !strings.Contains(told, "its batch is not in the journal: submit it again") {
			t.Errorf("%s: %d %s; %q", name, code, body, told)
		}
	}
	if got := second.crashed(nil).answer("/v1/jobs/a/plans/1?wait_s=5"); !reflect.DeepEqual(got, want) {
		t.Errorf("rewritten twice: %+v", got)
	}
}

// onOneStage plans every batch as a pipeline of a slice and whole sequences.
type onOneStage struct{}

func (onOneStage) Plan(_ context.Context, lengths []units.Tokens) (Planned, error) {
	p := &Pipeline{Schema: PipelineSchema, Devices: []string{"d"}, Lengths: lengths, Layers: 1}
	p.Time = 1
	p.Chunks = []pipeline.Chunk{{Sequence: 0, Slice: 1}, {Sequence: 0, Context: 1, Slice: lengths[0] - 1}}
	for k := 1; k < len(lengths); k++ {
		p.Chunks[1].Whole = append(p.Chunks[1].Whole, k)
	}
	return Planned{Pipeline: p}, nil
}

// The same of plans on stages, which hold the lengths.
func TestAChangedPipelineIsNotHandedOut(t *testing.T) {
	path := filepath.Join(t.TempDir(), "j")
	r := start(t, func(c *Config) { c.Journal, c.Planners = path, []Planner{onOneStage{}} })
	if code, body := r.ask("POST", "/v1/jobs/a/batches", `{"batches":[{"step":1,"lengths_tokens":[3,9,5]}]}`); code != 202 {
		t.Fatalf("%d %s", code, body)
	}
	want := r.answer("/v1/jobs/a/plans/1?wait_s=5")
	for name, pairs := range map[string][2]string{
		"whole": {`"whole":[2,0]`, `"whole":[2,2]`}, "lost": {`"whole":[2,0]`, `"whole":[2]`}, "beyond": {`"whole":[2,0]`, `"whole":[2,3]`},
		"slice": {`"slice_tokens":8`, `"slice_tokens":7`}, "context": {`"context_tokens":1`, `"context_tokens":2`}, "lengths": {`"devices":["d"],"lengths_tokens":[3,9,5]`, `"devices":["d"],"lengths_tokens":[3,9,4]`},
	} {
		second, told := r.changed(func(s string) string {
			s = unsummed(s)
			if !strings.Contains(s, pairs[0]) {
				t.Fatalf("%s: no %s in %s", name, pairs[0], s)
			}
			return strings.ReplaceAll(s, pairs[0], pairs[1])
		})
		got := second.answer("/v1/jobs/a/plans/1?wait_s=5")
		if got.Took = want.Took; !reflect.DeepEqual(got, want) || !strings.Contains(told, "its batch is planned again") {
			t.Errorf("%s: %+v, want %+v; %q", name, got, want, told)
		}
	}
	if second, told := r.changed(unsummed); told != "" || second.answer("/v1/jobs/a/plans/1?wait_s=5").State != Done {
		t.Error(told)
	}
}
