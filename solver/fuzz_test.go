package solver

import (
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/solver/internal/world"
)

// Whatever plan is accepted can be looked at: its layout, its baseline.
func FuzzPlan(f *testing.F) {
	p := testProblem(f, "1x(1 fast + 1 slow)", 4096, world.Fast(), world.Slow())
	plan, err := Solve(f.Context(), p, nil, nil)
	if err != nil {
		f.Fatal(err)
	}
	data, err := doc.Encode(plan)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add([]byte(`{"schema":"evenkeel.plan/v2","ranks":[],"groups":[[{"rank":0,"q_heads":1}]]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var p Plan
		if doc.Decode("x", data, &p) != nil {
			return
		}
		total := p.Job.SeqLen
		for _, s := range p.Layout().Shards {
			total -= s.Tokens()
		}
		if total != 0 || p.Job.DType == op.DType("") {
			t.Errorf("an accepted plan leaves %d tokens over", total)
		}
		p.Baseline()
	})
}
