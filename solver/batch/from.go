package batch

import (
	"fmt"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel/groupcost"
	"github.com/evenkeel/evenkeel/internal/units"
)

// NewProblem makes the problem of planning sequences of these lengths, in tokens, at costs
// from the fitted laws of a cluster (groupcost.FromLaws) or from a published cost model
// (groupcost.Document). The costs are shared, not copied, so make them once and use them
// for every batch.
//
// Errors: *BeyondModelError.
func NewProblem(c *groupcost.Costs, lengths []units.Tokens) (*Problem, error) {
	if c.Longest > 0 {
		for i, s := range lengths {
			if s > c.Longest {
				return nil, &BeyondModelError{Sequence: i, Tokens: s, Most: c.Longest}
			}
		}
	}
	return &Problem{
		Lengths: lengths, Fleet: slices.Clone(c.Pools), Classes: slices.Clone(c.Classes), Costs: c,
		MicroBase: c.MicroBase, Fixed: c.Fixed, Hidden: c.Hidden, BothPasses: c.BothPasses, Behind: c.Behind, Update: c.Update, Layers: c.Layers,
	}, nil
}

// BeyondModelError says that a sequence is longer than the costs are of: than the model's sliding window or
// table of learned positions, or a context that was stated.
type BeyondModelError struct {
	Sequence int          // its index in Problem.Lengths
	Tokens   units.Tokens // its length
	Most     units.Tokens // groupcost.Costs.Longest
}

// Error names the sequence, the limit and the ways out.
func (e *BeyondModelError) Error() string {
	return fmt.Sprintf("lengths_tokens[%d]: %d: longer than the %d tokens that the model is planned up to; truncate or drop longer ones", e.Sequence, int64(e.Tokens), int64(e.Most))
}
