package pipeline

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/evenkeel/evenkeel/costmodel/pipeline"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/recommend"
)

var forever = units.Seconds(math.Inf(1))

// Problem is what is to be planned.
type Problem struct {
	*pipeline.Costs
	// Stages, unless 0, is the number of stages that plans have.
	Stages int
	// Fixed, unless nil, are the stages that plans have, ranks and layers, of which Stages is
	// the number then: see OnStagesOf.
	Fixed []pipeline.Stage
	// MIPTime is the processor time that infinipipe's solver has for each of its programmes;
	// 0 is 10 s.
	MIPTime time.Duration
	// Effort is how many times as long as usual to search; 0 is 1.
	Effort float64

	solved map[string]outcome // by strategy
	own    []outcome          // of our own search, by turn
	fits   map[int]formula    // by what ranks are like
	speeds map[int]float64    // likewise, layers a second
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
	recommend.Strategy
	// Solve returns the best plan that it finds, simulated, or the best so far when ctx
	// ends. The same problem gives the same plan unless ctx ends, or the limit of processor
	// time of a programme.
	//
	// Errors: *IllegalError where the strategy has no plan for such a problem,
	// *pipeline.NoRoomError where none fits, a missing law.
	Solve(ctx context.Context, p *Problem) (*pipeline.Plan, error)
}

// What strategies are, and why there is no plan: of one, or of all.
type (
	Claims          = recommend.Claims
	IllegalError    = recommend.IllegalError
	InfeasibleError = recommend.InfeasibleError
)

// all are all ranks.
func (p *Problem) all() []int {
	ranks := make([]int, p.Devices())
	for r := range ranks {
		ranks[r] = r
	}
	return ranks
}

// cut makes n stages of ranks in their order, of as many devices each as the model allows,
// which may leave some out, and of as many layers each, or one more; the last one has so many
// fewer, for the loss.
//
// Errors: *IllegalError.
func (p *Problem) cut(ranks []int, n, fewer int) ([]pipeline.Stage, error) {
	width := len(ranks) / n
	var why error
	for ; width > 0; width-- {
		if why = p.Fits(ranks[:width]); why == nil {
			break
		}
	}
	if width == 0 || n > p.Layers || fewer > 0 && fewer >= p.Layers/n {
		return nil, &IllegalError{Why: fmt.Sprintf("%s and %s do not give %s", units.Count(len(ranks), "device"), units.Count(p.Layers, "layer"), units.Count(n, "equal stage"))}
	}
	stages := make([]pipeline.Stage, n)
	for s := range stages {
		stages[s] = pipeline.Stage{Ranks: slices.Sorted(slices.Values(ranks[s*width : (s+1)*width])), Layers: (s+1)*p.Layers/n - s*p.Layers/n}
		if s < n-1 { // the others share what the last one is spared
			stages[s].Layers += (s+1)*fewer/(n-1) - s*fewer/(n-1)
		} else {
			stages[s].Layers -= fewer
		}
	}
	return stages, nil
}

// mostStages bounds how many stages are tried, mostFewer how many layers the last one of equal
// stages is spared, and mostSets of how many types all sets are tried.
const (
	mostStages = 64
	mostFewer  = 2
	mostSets   = 4
)

// shapes are the equal stages that plans may have: of all devices, or of those of some types;
// or the stages that are fixed.
//
// Errors: *IllegalError where there are none.
func (p *Problem) shapes() ([][]pipeline.Stage, error) {
	if p.Fixed != nil {
		return [][]pipeline.Stage{p.Fixed}, nil
	}
	var all [][]pipeline.Stage
	var why error
	seen := map[string]bool{}
	for _, ranks := range p.sets() {
		for n := 1; n <= min(mostStages, len(ranks)); n++ {
			if p.Stages > 0 && n != p.Stages || p.Stages == 0 && len(ranks)%n != 0 {
				continue
			}
			for fewer := range mostFewer + 1 {
				stages, err := p.cut(ranks, n, fewer)
				switch {
				case err == nil && (fewer == 0 || n > 1):
					if key := fmt.Sprint(fewer, keyOf(stages)); !seen[key] {
						seen[key], all = true, append(all, stages)
					}
				case why == nil && fewer == 0:
					why = err
				}
			}
		}
	}
	if len(all) > 0 {
		return all, nil
	}
	if why == nil {
		why = &IllegalError{Why: fmt.Sprintf("%s do not give %s, of which at most %d are tried", units.Count(p.Devices(), "device"), units.Count(p.Stages, "stage"), mostStages)}
	}
	return nil, why
}

// sets are the ranks that equal stages are made of: all, and those of every set of device
// types or, where these are many, of every type; each in several orders.
func (p *Problem) sets() [][]int {
	types := map[string]int{}
	for r := range p.Devices() {
		if _, ok := types[p.Device(r)]; !ok {
			types[p.Device(r)] = len(types)
		}
	}
	sets := p.orders(p.all())
	add := func(in func(kind int) bool) {
		var ranks []int
		for r := range p.Devices() {
			if in(types[p.Device(r)]) {
				ranks = append(ranks, r)
			}
		}
		sets = append(sets, p.orders(ranks)...)
	}
	switch {
	case len(types) == 1:
	case len(types) > mostSets:
		for only := range len(types) {
			add(func(kind int) bool { return kind == only })
		}
	default:
		for set := 1; set < 1<<len(types)-1; set++ {
			add(func(kind int) bool { return set>>kind&1 == 1 })
		}
	}
	return sets
}

// orders are ranks as they are, and with those of another type first and the others behind it in
// turn, in either direction: of three types all orders. First stages hold most activations and
// the last one has the loss, so that which type is best first no rule tells. Nodes stay whole,
// with the type of their first rank.
func (p *Problem) orders(ranks []int) (all [][]int) {
	type block struct {
		device string
		ranks  []int
	}
	var blocks []block
	for _, node := range p.Nodes() {
		own := slices.DeleteFunc(slices.Clone(node), func(r int) bool { return !slices.Contains(ranks, r) })
		if last := len(blocks) - 1; last < 0 || blocks[last].device != p.Device(node[0]) {
			blocks = append(blocks, block{device: p.Device(node[0])})
		}
		last := len(blocks) - 1
		blocks[last].ranks = append(blocks[last].ranks, own...)
	}
	blocks = slices.DeleteFunc(blocks, func(b block) bool { return len(b.ranks) == 0 })
	for range 2 {
		for i := range blocks {
			var order []int
			for k := range blocks {
				order = append(order, blocks[(i+k)%len(blocks)].ranks...)
			}
			if !slices.ContainsFunc(all, func(x []int) bool { return slices.Equal(x, order) }) {
				all = append(all, order)
			}
		}
		slices.Reverse(blocks)
	}
	return all
}
