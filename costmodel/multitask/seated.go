package multitask

import (
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
)

// Seated is the same prices under other names of the devices: rank r is the one that c calls
// at[r]. A cluster lists devices of a type together; who runs a plan may not, and which samples
// a rank has goes by the order of names.
func (c *Costs) Seated(at []int) *Costs {
	out := &Costs{
		Tasks: c.Tasks, Needs: c.Needs, from: seated{c.from, at}, rates: c.rates, err: c.err,
		passes: map[passKey]pass{}, exchanges: map[exchangeKey]units.Seconds{}, sends: map[sendKey]units.Seconds{},
	}
	for _, p := range c.Pools {
		out.Pools = append(out.Pools, Pool{Device: p.Device})
	}
	place := map[[2]int]int{} // by pool and node
	for r, was := range at {
		p, node := c.pool[was], c.node[was]
		to := &out.Pools[p]
		i, ok := place[[2]int{p, node}]
		if !ok {
			i = len(to.Ranks)
			place[[2]int{p, node}], to.Ranks = i, append(to.Ranks, nil)
		}
		to.Ranks[i] = append(to.Ranks[i], r)
		out.node, out.pool = append(out.node, node), append(out.pool, p)
	}
	return out
}

// seated asks for prices under the names that they are known by.
type seated struct {
	source
	at []int
}

// known are ranks by those names, rising.
func (s seated) known(ranks []int) []int {
	all := make([]int, len(ranks))
	for i, r := range ranks {
		all[i] = s.at[r]
	}
	slices.Sort(all)
	return all
}

func (s seated) exchange(module int, ranks []int) (units.Seconds, error) {
	return s.source.exchange(module, s.known(ranks))
}

func (s seated) send(from, to int, bytes units.Bytes) (units.Seconds, error) {
	return s.source.send(s.at[from], s.at[to], bytes)
}

func (s seated) brief(module, pool, samples int, ranks []int, layers int) (*costmodel.Step, error) {
	return s.source.brief(module, pool, samples, s.known(ranks), layers)
}
