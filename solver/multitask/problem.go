package multitask

import (
	"context"
	"math"

	"github.com/evenkeel/evenkeel/costmodel/multitask"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/recommend"
)

// forever is what takes no end.
var forever = units.Seconds(math.Inf(1))

// Problem is what is to be planned.
type Problem struct {
	*multitask.Costs
	// Effort is how many times as long as usual to search, in whole numbers; 0 is 1. More of
	// it adds to what less finds, and never makes a plan slower.
	Effort float64

	widths [][]width // equalWidths of every module on all devices
	bound  *bounder  // with the prices at which it is highest
	prices []float64
	least  float64
	sorted *canonical

	turns   []turn     // in which devices are taken by those who take all for equal, once asked for
	inTurns []*Problem // ways, once asked for
}

// equal are the widths of every module on all devices.
func (p *Problem) equal() [][]width {
	if p.widths == nil {
		for m := range p.Tasks.Modules {
			p.widths = append(p.widths, p.equalWidths(m))
		}
	}
	return p.widths
}

// Strategy finds a plan for a problem.
type Strategy interface {
	recommend.Strategy
	// Solve returns the best plan that it finds, simulated, or the best so far when ctx
	// ends. The same problem gives the same plan unless ctx ends.
	//
	// Errors: *IllegalError where the strategy has no plan for such a problem, a missing law.
	Solve(ctx context.Context, p *Problem) (*multitask.Plan, error)
}

// What strategies are, and why there is no plan: of one, or of all.
type (
	Claims          = recommend.Claims
	IllegalError    = recommend.IllegalError
	InfeasibleError = recommend.InfeasibleError
)
