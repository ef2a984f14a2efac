package results

import (
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver"
	"github.com/evenkeel/evenkeel/solver/emit"
	"github.com/evenkeel/evenkeel/solver/pipeline"
)

func TestEmission(t *testing.T) {
	about := func(t units.Seconds) costmodel.Estimate {
		return costmodel.Estimate{Lo: 0.9 * t, Mid: t, Hi: 1.1 * t, Source: costmodel.Measured}
	}
	e := &emit.Emission{
		To: "megatron", Text: "--a 1\n--b 2\n", Use: "run it", Time: about(3), Planned: about(2), Error: 0.25, Notes: []string{"a note"},
		Fields: []emit.Field{
			{Name: "zero", Plan: "zero3", Emitted: "zero3", Verdict: emit.Exact},
			{Name: "groups", Plan: "2 of 3 ranks", Emitted: "3 of 2 ranks", Verdict: emit.Rounded, Why: "one size"},
		},
	}
	plan := &solver.Plan{Job: costmodel.Job{SeqLen: 4096}, Step: costmodel.Step{Time: about(2)}}
	shown := func(file string) string {
		var b strings.Builder
		if err := Emission(&b, plan, e, file); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	whole := `PREDICTED from MEASURED laws: plan for 4k tokens, as megatron runs it
predicted by the simulator of a training step from laws that were fitted to measured times; the step itself was not
  measured
a step takes 3 s +- 10 % (measured) as emitted, 2 s +- 10 % as planned: +50 % +- 12 %

field   plan          emitted       verdict  why
zero    zero3         zero3         exact
groups  2 of 3 ranks  3 of 2 ranks  rounded  one size

--a 1
--b 2

FILE is the lines above (-o writes them): run it

(1) a note
`
	if got := shown(""); strings.TrimSpace(got) != strings.TrimSpace(whole) {
		t.Errorf("%q\nwant\n%q", got, whole)
	}
	if got := shown("m.args"); strings.Contains(got, "--a 1") || !strings.Contains(got, "m.args: run it") {
		t.Error(got)
	}
	e.Error = 1.5
	if got := shown(""); !strings.Contains(got, "planned: ~ +50 % +- 75 %") {
		t.Error(got)
	}
	e.Time = e.Planned
	if got := shown(""); !strings.Contains(got, "as planned: as long\n") {
		t.Error(got)
	}
	e.Fields = e.Fields[:1]
	if got := shown(""); !strings.Contains(got, "as planned: nothing is lost\n") {
		t.Error(got)
	}
	plan.Simulated = true
	if got := shown(""); !strings.HasPrefix(got, "SIMULATED plan for 4k tokens, as megatron runs it\n") {
		t.Error(got)
	}
}

func TestPipelineEmission(t *testing.T) {
	about := costmodel.Estimate{Lo: 0.9, Mid: 1, Hi: 1.1, Source: costmodel.Measured}
	e := &emit.Emission{To: "megatron", Text: "{}\n", Use: "run it", Time: about, Planned: about, Fields: []emit.Field{{Name: "layers", Plan: "5, 3", Emitted: "5, 3", Verdict: emit.Exact}}}
	d := &pipeline.Document{Name: "llama", Prices: "laws of somebody", Simulated: true, Lengths: []units.Tokens{4096, 2048}}
	var b strings.Builder
	if err := PipelineEmission(&b, d, e, ""); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"SIMULATED plan of llama as a pipeline: 2 sequences (6k tokens), as megatron runs it\nprices: laws of somebody\n",
		"as planned: nothing is lost\n", "layers  5, 3  5, 3     exact\n", "\n{}\n", "FILE is the lines above",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q: %s", want, b.String())
		}
	}
}
