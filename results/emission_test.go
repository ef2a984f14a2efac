package results

import (
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/solver"
	"github.com/evenkeel/evenkeel/solver/emit"
)

func TestEmission(t *testing.T) {
	plan := &solver.Plan{Job: costmodel.Job{SeqLen: 4096}, Step: costmodel.Step{Time: costmodel.Estimate{Mid: 2}}}
	e := &emit.Emission{
		To: "megatron", Text: "--a 1\n--b 2\n", Use: "run it", Time: 3, Planned: 2, Notes: []string{"a note"},
		Fields: []emit.Field{
			{Name: "zero", Plan: "zero3", Emitted: "zero3", Verdict: emit.Exact},
			{Name: "groups", Plan: "2 of 3 ranks", Emitted: "3 of 2 ranks", Verdict: emit.Rounded, Why: "one size"},
		},
	}
	shown := func(file string) string {
		var b strings.Builder
		if err := Emission(&b, plan, e, file); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	whole := `4k tokens for megatron: a step takes 3 s as emitted, 2 s as planned (+50.0 %; both predicted)

field   plan          emitted       verdict  why
zero    zero3         zero3         exact
groups  2 of 3 ranks  3 of 2 ranks  rounded  one size

--a 1
--b 2

FILE is the lines above (-o writes them): run it

(1) a note
`
	if got := shown(""); got != whole {
		t.Errorf("%s\nwant\n%s", got, whole)
	}
	if got := shown("m.args"); strings.Contains(got, "--a 1") || !strings.Contains(got, "m.args: run it") {
		t.Error(got)
	}
	plan.Step.Time.Mid = 2.5
	if got := shown(""); !strings.Contains(got, "these are not the laws that the plan was made with: it says 2.50 s of its step") {
		t.Error(got)
	}
}
