package batch

import (
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/groupcost"
	"github.com/evenkeel/evenkeel/internal/units"
)

// accountant is a Pricer that may know the errors of its prices.
type accountant interface {
	// Account is the time of a group of a class with sequences, its base included.
	Account(class int, lengths []units.Tokens) (*costmodel.Step, error)
	// Exchange is what a step takes beside its groups; not ok where no error is known.
	Exchange() (x groupcost.Exchange, ok bool)
}

// laws are those that the prices come from, with what a step takes beside its groups; nil
// where there are none behind them.
func (p *Problem) laws() (accountant, groupcost.Exchange) {
	if of, knows := p.Costs.(accountant); knows {
		if beside, lawful := of.Exchange(); lawful {
			return of, beside
		}
	}
	return nil, groupcost.Exchange{}
}

// Interval is the time of an evaluated plan with its 90 % interval and source. It is empty
// where the prices have no laws behind them. It takes some milliseconds.
//
// Errors: a missing law.
func Interval(p *Problem, plan *Plan) (costmodel.Estimate, error) {
	step, err := accountOf(p, plan)
	if step == nil || err != nil {
		return costmodel.Estimate{}, err
	}
	return step.Time, nil
}

// accountOf is the time of an evaluated plan with its error by the laws that its prices come
// from; nil where the prices have no laws. In a micro-batch the slowest group of every class
// counts: one that has less to do has more to spare of the same laws. Passes go beside the
// exchange that overlaps with them, of every micro-batch or of the last one.
//
// Errors: a missing law.
func accountOf(p *Problem, plan *Plan) (*costmodel.Step, error) {
	of, beside := p.laws()
	if of == nil {
		return nil, nil
	}
	var all []*costmodel.Step
	for i, m := range plan.Micro {
		var groups []*costmodel.Step
		for _, g := range slowestOfClasses(m) {
			x, err := of.Account(g.Class, lengthsOf(p.Lengths, g.Sequences))
			if err != nil {
				return nil, err
			}
			groups = append(groups, x)
		}
		switch { // no ZeRO stage has both
		case p.Hidden > 0:
			all = append(all, costmodel.SideBySide(append(scaled(groups, p.hidesEach()), beside.Hidden)...))
			groups = scaled(groups, 1-p.hidesEach())
		case p.Behind > 0 && i == len(plan.Micro)-1:
			all = append(all, costmodel.SideBySide(append(scaled(groups, p.hides()), beside.Behind)...))
			groups = scaled(groups, 1-p.hides())
		}
		if len(groups) > 0 {
			all = append(all, costmodel.SideBySide(groups...))
		}
		all = append(all, beside.MicroBatch)
	}
	return costmodel.InTurn(append(all, beside.Step)...), nil
}

// scaled are the same shares of several times.
func scaled(all []*costmodel.Step, share units.Seconds) []*costmodel.Step {
	out := make([]*costmodel.Step, len(all))
	for i, x := range all {
		out[i] = x.Scaled(share * x.Time.Mid)
	}
	return out
}

// slowestOfClasses are of each class the group that takes longest, in the order of the classes.
func slowestOfClasses(m MicroBatch) []Group {
	slowest := map[int]Group{}
	var classes []int
	for _, g := range m.Groups {
		if len(g.Sequences) == 0 {
			continue
		}
		known, met := slowest[g.Class]
		if !met {
			classes = append(classes, g.Class)
		}
		if !met || g.Time > known.Time {
			slowest[g.Class] = g
		}
	}
	slices.Sort(classes)
	var groups []Group
	for _, c := range classes {
		groups = append(groups, slowest[c])
	}
	return groups
}
