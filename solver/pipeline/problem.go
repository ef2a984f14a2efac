package pipeline

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/evenkeel/evenkeel/costmodel/pipeline"
	"github.com/evenkeel/evenkeel/internal/units"
)

var forever = units.Seconds(math.Inf(1))

// Problem is what is to be planned.
type Problem struct {
	*pipeline.Costs
	// Stages, unless 0, is the number of stages that plans have.
	Stages int
	// MIPTime is the processor time that infinipipe's solver has for each of its programmes;
	// 0 is 10 s.
	MIPTime time.Duration
	// Effort is how many times as long as usual to search; 0 is 1.
	Effort float64

	solved map[string]outcome // by strategy
	own    *outcome           // of our own search
}

// outcome is what a strategy came to.
type outcome struct {
	plan *pipeline.Plan
	err  error
}

// of is a strategy's result, which is asked for once.
func (p *Problem) of(ctx context.Context, s Strategy) (*pipeline.Plan, error) {
	if o, ok := p.solved[s.Name()]; ok {
		return o.plan, o.err
	}
	plan, err := s.Solve(ctx, p)
	if p.solved == nil {
		p.solved = map[string]outcome{}
	}
	p.solved[s.Name()] = outcome{plan, err}
	return plan, err
}

// Strategy finds a plan for a problem.
type Strategy interface {
	// Name is the strategy's name in documents and on the command line.
	Name() string
	// Claims says what the strategy is and how it is shown.
	Claims() Claims
	// Solve returns the best plan that it finds, simulated, or the best so far when ctx
	// ends. The same problem gives the same plan unless ctx ends, or the limit of processor
	// time of a programme.
	//
	// Errors: *IllegalError where the strategy has no plan for such a problem,
	// *pipeline.NoRoomError where none fits, a missing law.
	Solve(ctx context.Context, p *Problem) (*pipeline.Plan, error)
}

// Claims says what a strategy is.
type Claims struct {
	Baseline  bool   // what people run today
	Published bool   // the algorithm of a paper
	Doc       string // one sentence for the user
}

// IllegalError says why a strategy has no plan for a problem.
type IllegalError struct{ Why string }

// Error gives the reason.
func (e *IllegalError) Error() string { return e.Why }

// equalStages are the cluster's ranks in their order, cut into n stages of as many each, with
// as many layers each or one more.
//
// Errors: *IllegalError.
func (p *Problem) equalStages(n int) ([]pipeline.Stage, error) {
	if p.Devices()%n != 0 || n > p.Layers {
		return nil, &IllegalError{fmt.Sprintf("%d devices and %d layers do not give %d equal stages", p.Devices(), p.Layers, n)}
	}
	width := p.Devices() / n
	stages := make([]pipeline.Stage, n)
	for s := range stages {
		x := pipeline.Stage{Layers: (s+1)*p.Layers/n - s*p.Layers/n}
		for r := range width {
			x.Ranks = append(x.Ranks, s*width+r)
		}
		if err := p.Fits(x.Ranks); err != nil {
			return nil, &IllegalError{err.Error()}
		}
		stages[s] = x
	}
	return stages, nil
}

// mostStages bounds how many stages are tried.
const mostStages = 64

// shapes are the equal stages that plans may have.
//
// Errors: *IllegalError where there are none.
func (p *Problem) shapes() ([][]pipeline.Stage, error) {
	var all [][]pipeline.Stage
	var why error
	for n := 1; n <= min(mostStages, p.Devices()); n++ {
		if p.Stages > 0 && n != p.Stages {
			continue
		}
		stages, err := p.equalStages(n)
		if err == nil {
			all = append(all, stages)
		} else if why == nil {
			why = err
		}
	}
	if len(all) == 0 {
		return nil, why
	}
	return all, nil
}
