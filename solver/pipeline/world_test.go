package pipeline

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	costs "github.com/evenkeel/evenkeel/costmodel/pipeline"
	"github.com/evenkeel/evenkeel/internal/reference"
	"github.com/evenkeel/evenkeel/internal/units"
)

// batchOf is a problem of lengths by published prices.
func batchOf(t testing.TB, m costs.Published, lengths ...units.Tokens) *Problem {
	t.Helper()
	c, err := m.Costs(lengths)
	if err != nil {
		t.Fatal(err)
	}
	return &Problem{Costs: c}
}

// drawnLengths are up to so many sequences, most of them short.
func drawnLengths(r *rand.Rand, most int) []units.Tokens {
	lengths := make([]units.Tokens, 1+r.IntN(most))
	for i := range lengths {
		lengths[i] = units.Tokens(20 + r.IntN(1+r.IntN(1+r.IntN(60000))))
	}
	return lengths
}

// small is a model of few layers on few devices, of one node or two.
func small(r *rand.Rand) costs.Published {
	m := published([]int{1, 2, 4, 6, 8}[r.IntN(5)], 0)
	m.PerNode, m.Layers = []int{m.Devices, (m.Devices + 1) / 2}[r.IntN(2)], 1+r.IntN(9)
	m.Each, m.KVWidth, m.StateBytes, m.TokenBytes = units.Seconds(0.01*r.Float64()), 1024, 1e9, float64(34*5120*m.Layers)
	return m
}

// equalStages are the cluster's ranks in their order, cut into n stages of as many each, with
// as many layers each or one more.
//
// Errors: *IllegalError.
func (p *Problem) equalStages(n int) ([]costs.Stage, error) {
	return p.cut(p.all(), n, 0)
}

// roomOf is how much a rank holds at most of a batch in one chunk on all devices, kept whole
// and computed again: room that decides lies between.
func roomOf(t testing.TB, m costs.Published, lengths []units.Tokens) (again, kept units.Bytes) {
	t.Helper()
	m.Capacity = 0
	p := batchOf(t, m, lengths...)
	stages, err := p.equalStages(1)
	if err != nil {
		t.Fatal(err)
	}
	all := units.Tokens(0)
	for _, n := range lengths {
		all += n
	}
	plan := planOf(stages, []*flight{newFlight(p.packed(all))}, nil)
	kept = p.Memory(plan)[0].Peak()
	everything(plan)
	return p.Memory(plan)[0].Peak(), kept
}

// byLaws is a problem on real GPUs, by the reference laws.
func byLaws(t testing.TB, cluster string, layers int, lengths ...units.Tokens) *Problem {
	t.Helper()
	profile, job := reference.Job(t, reference.Llama(layers), cluster, 1)
	c, err := costs.FromLaws(costmodel.NewPredictor(profile), job, lengths)
	if err != nil {
		t.Fatal(err)
	}
	return &Problem{Costs: c}
}

// whole says that chunks by sequence have every token of every sequence once and in order,
// slices of one sequence in one list; if not, what is wrong.
func whole(p *Problem, sequences [][]costs.Chunk) string {
	done := make([]units.Tokens, len(p.Lengths))
	for _, chunks := range sequences {
		for k, x := range chunks {
			if x.Slice > 0 {
				if x.Context != done[x.Sequence] || x.Sequence != chunks[0].Sequence || k > 0 && x.Context == 0 {
					return "a slice out of order"
				}
				done[x.Sequence] += x.Slice
			} else if x.Sequence != -1 || len(x.Whole) == 0 || len(chunks) > 1 {
				return "a chunk without a slice that is no sequence's"
			}
			for _, w := range x.Whole {
				if done[w] > 0 {
					return "a sequence that is there before"
				}
				done[w] = p.Lengths[w]
			}
		}
	}
	if !slices.Equal(done, p.Lengths) {
		return "tokens are left"
	}
	return ""
}
