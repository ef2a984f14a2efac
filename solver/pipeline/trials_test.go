package pipeline

import (
	"math/rand/v2"
	"testing"
	"time"

	costs "github.com/evenkeel/evenkeel/costmodel/pipeline"
	"github.com/evenkeel/evenkeel/internal/units"
)

// triedAll are plans of all stages with all chunks, none of which is left out.
func triedAll(t *testing.T, p *Problem, shapes [][]costs.Stage, chunks func([]costs.Stage) []*chunking, plan func(trial) (*costs.Plan, error)) units.Seconds {
	t.Helper()
	var best chosen
	for _, stages := range shapes {
		for _, c := range chunks(stages) {
			now, err := plan(trial{stages: stages, with: c})
			best.take(p, now, err)
		}
	}
	return best.time()
}

// What is left out, since one stage alone takes longer than the best plan, would be slower: plans
// take as long as if all stages were tried with all chunks, with room for all and for less.
func TestNothingFasterIsLeftOut(t *testing.T) {
	left := 0
	for seed := range uint64(6) {
		r := rand.New(rand.NewPCG(seed, 30))
		p := byLaws(t, []string{"1x2 a100_sxm + 1x2 h100_sxm", "1x2 a100_sxm + 1x4 b200_sxm + 1x2 h100_sxm"}[seed%2], 4, append(drawnLengths(r, 10), 30000)...)
		if seed%3 == 0 {
			m := small(r)
			lengths := drawnLengths(r, 12)
			least, most := roomOf(t, m, lengths)
			m.Capacity = max(1, least+units.BytesOf(r.Float64()*float64(most-least)))
			p = batchOf(t, m, lengths...)
		}
		p.MIPTime = time.Millisecond
		shapes, err := p.shapes()
		if err != nil {
			t.Fatal(err)
		}
		for _, chunked := range []func(units.Tokens) [][]costs.Chunk{p.packed, p.sliced} {
			want := triedAll(t, p, shapes, p.fixedSizes(chunked), func(x trial) (*costs.Plan, error) {
				plan := planOf(x.stages, []*flight{newFlight(x.with.sequences)}, nil)
				if err := p.Run(plan); err != nil {
					return nil, err
				}
				if p.slower(x, plan.Time) {
					t.Errorf("seed %d: %v is slower than %v, which it takes", seed, x.stages, plan.Time)
				}
				if p.slower(x, plan.Time/2) {
					left++
				}
				return plan, p.alike(plan)
			})
			got := forever
			if plan, err := p.even(t.Context(), shapes, chunked); err == nil {
				got = plan.Time
			}
			if got != want {
				t.Errorf("seed %d: %v, of all %v", seed, got, want)
			}
		}
		want := triedAll(t, p, shapes, p.balancedWays(), func(x trial) (*costs.Plan, error) {
			return p.infinipipe(t.Context(), x.stages, p.fitted(x.stages[0].Ranks), x.with.sequences, forever)
		})
		got := forever
		if plan, err := (InfiniPipe{}).Solve(t.Context(), p); err == nil {
			got = plan.Time
		}
		if got > want {
			t.Errorf("seed %d: infinipipe takes %v, of all %v", seed, got, want)
		}
	}
	if left < 50 {
		t.Errorf("%d of all plans are seen to be slower than half of what they take", left)
	}
}
