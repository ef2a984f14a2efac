package multitask

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel/multitask"
)

// canonical is the problem with its modules in an order that does not depend on how the file
// lists them: by what they are and, of equal ones, by name, which no two share. What is
// searched is searched there, so that the order of the file changes no plan.
type canonical struct {
	*Problem
	order []int // by module there: the module that it is
}

// canon is the canonical problem, made once: the problem itself where it is that already.
func (p *Problem) canon() *canonical {
	if p.sorted != nil {
		return p.sorted
	}
	modules := p.Tasks.Modules
	order := make([]int, len(modules))
	for m := range order {
		order[m] = m
	}
	slices.SortFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(work(modules[a]), work(modules[b])), cmp.Compare(modules[a].Name, modules[b].Name))
	})
	p.sorted = &canonical{p, order}
	unsorted := func(needs []int) bool { return !slices.IsSorted(needs) }
	if !slices.IsSorted(order) || slices.ContainsFunc(p.Needs, unsorted) {
		p.sorted.Problem = &Problem{Costs: p.Reordered(order)}
	}
	return p.sorted
}

// work is what a module is but for its name, in words that can be compared.
func work(m multitask.Module) string {
	m.Name, m.Task, m.After = "", "", slices.Repeat([]string{"needs"}, len(m.After))
	shape, curve := m.Shape, m.Curve
	m.Shape, m.Curve = nil, nil
	words := fmt.Sprintf("%+v", m)
	if shape != nil {
		return fmt.Sprintf("%+v %s", *shape, words)
	}
	return fmt.Sprintf("%+v %s", *curve, words)
}

// back names the modules of a canonical plan as the problem does.
func (c *canonical) back(plan *multitask.Plan) *multitask.Plan {
	for i := range plan.Runs {
		plan.Runs[i].Module = c.order[plan.Runs[i].Module]
	}
	return plan
}
