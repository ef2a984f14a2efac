package hexiseq

import (
	"cmp"
	"math"
	"slices"

	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/internal/analytic"
	"github.com/evenkeel/evenkeel/solver/internal/strategy"
)

// policy is a rule of stage II: the weight of a group when the sequence is split
// across groups.
type policy struct {
	name   string
	weight func(t *capability, ranks []int) float64
}

// policies of stage II. The paper names "compute-proportional, sqrt-compute,
// etc."; uniform, over groups or over ranks, and memory-proportional are ours.
func policies() []policy {
	return []policy{
		{"compute-proportional", func(t *capability, ranks []int) float64 { return t.total(t.compute, ranks) }},
		{"sqrt-compute", func(t *capability, ranks []int) float64 { return math.Sqrt(t.total(t.compute, ranks)) }},
		{"uniform over groups", func(*capability, []int) float64 { return 1 }},
		{"uniform over ranks", func(_ *capability, ranks []int) float64 { return float64(len(ranks)) }},
		{"memory-proportional", func(t *capability, ranks []int) float64 { return t.total(t.memory, ranks) }},
	}
}

// capability is what device types can do, by their index in the model.
type capability struct {
	dev             []int // by rank
	compute, memory []float64
}

func (t *capability) total(of []float64, ranks []int) float64 {
	sum := 0.0
	for _, r := range ranks {
		sum += of[t.dev[r]]
	}
	return sum
}

// capabilityOf rates device types by the laws: tokens a second, of linear work and
// attention to the whole sequence together, at an equal share; and what memory
// is left beside the states.
func capabilityOf(p *strategy.Problem, m *analytic.Model) *capability {
	n := units.Tokens(len(p.Ranks))
	s := max(1, p.Job.SeqLen/n)
	md := p.Job.Model
	t := &capability{dev: m.TypeOf}
	for d := range m.Types {
		b := m.Block(analytic.Block{Type: d, Heads: md.QHeads, KVHeads: md.KVHeads, Q: s})
		seconds := m.LinearTime(d, s) + float64(n)*(m.Forwards*b.Forward+b.Backward)
		t.compute = append(t.compute, float64(s)/seconds)
		empty := m.Held.Of(memoryOfStates(int(n)), m.Memory[d])
		t.memory = append(t.memory, max(1, float64(strategy.Usable(empty.Capacity)-empty.States)))
	}
	return t
}

// splitGroups is stage II under one policy.
func (t *capability) splitGroups(p *strategy.Problem, x policy, groups [][]int) []units.Tokens {
	weights := make([]float64, len(groups))
	for g, ranks := range groups {
		weights[g] = x.weight(t, ranks)
	}
	return proportional(p.Job.SeqLen, p.Block, weights)
}

// proportional splits tokens in proportion to weights, in whole blocks by the
// largest remainder; the rest that is no block goes to the heaviest. Equal
// weights get equal shares to the token, and none gets nothing.
func proportional(total, block units.Tokens, weights []float64) []units.Tokens {
	lightest, heaviest := slices.Min(weights), slices.Max(weights)
	if heaviest-lightest <= 1e-12*heaviest {
		return strategy.EqualSplit(total, len(weights))
	}
	sum := 0.0
	for _, w := range weights {
		sum += w
	}
	split := make([]units.Tokens, len(weights))
	remainder := make([]float64, len(weights))
	left := total / block
	for i, w := range weights {
		ideal := w / sum * float64(total/block)
		split[i] = units.Tokens(ideal)
		remainder[i] = ideal - float64(split[i])
		left -= split[i]
	}
	order := make([]int, len(weights))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(remainder[b], remainder[a]) })
	for i := range split {
		if units.Tokens(i) < left {
			split[order[i]]++
		}
	}
	for i := range split {
		split[i] *= block
	}
	split[slices.Index(weights, heaviest)] += total % block
	fillEmpty(split)
	return split
}

// fillEmpty gives those that have nothing a token of whoever has most.
func fillEmpty(split []units.Tokens) {
	for i, n := range split {
		if n == 0 {
			most := slices.Index(split, slices.Max(split))
			if split[most] > 1 {
				split[most], split[i] = split[most]-1, 1
			}
		}
	}
}
