package multitask

import (
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
)

// Reordered is the same prices of the same modules in another order: module m is the one that
// c has at order[m]. What a module needs is listed in that order, too, so that who searches
// finds the same whatever the order of the file.
func (c *Costs) Reordered(order []int) *Costs {
	tasks := *c.Tasks
	tasks.Modules = nil
	for _, was := range order {
		tasks.Modules = append(tasks.Modules, c.Tasks.Modules[was])
	}
	out := &Costs{
		Tasks: &tasks, Needs: tasks.Needs(), Pools: c.Pools, node: c.node, pool: c.pool, from: reordered{c.from, order}, rates: c.rates, err: c.err,
		passes: map[passKey]pass{}, exchanges: map[exchangeKey]units.Seconds{}, sends: map[sendKey]units.Seconds{},
	}
	for _, needs := range out.Needs {
		slices.Sort(needs)
	}
	return out
}

// reordered asks for prices of modules by the places that they are known at.
type reordered struct {
	source
	order []int
}

func (r reordered) pass(module, pool, samples int) (pass, error) {
	return r.source.pass(r.order[module], pool, samples)
}

func (r reordered) replayed(module, pool, samples int) (layerReplay, error) {
	return r.source.replayed(r.order[module], pool, samples)
}

func (r reordered) exchange(module int, ranks []int) (units.Seconds, error) {
	return r.source.exchange(r.order[module], ranks)
}

func (r reordered) result(module int, last bool) units.Bytes {
	return r.source.result(r.order[module], last)
}

func (r reordered) memory(module, n, samples int) layerMemory {
	return r.source.memory(r.order[module], n, samples)
}

func (r reordered) brief(module, pool, samples int, ranks []int, layers int) (*costmodel.Step, error) {
	return r.source.brief(r.order[module], pool, samples, ranks, layers)
}
