package multitask

import (
	"sort"

	"github.com/evenkeel/evenkeel/internal/units"
)

// EqualShares are as many samples of a module's batch on every one of n devices as on the
// others, or one less.
func (c *Costs) EqualShares(module, n int) []int {
	batch, shares := c.Tasks.Modules[module].Batch, make([]int, n)
	for i := range shares {
		shares[i] = (batch*(i+1))/n - (batch*i)/n
	}
	return shares
}

// Shares are the samples of a module's batch on ranks so that the slowest is done as soon as
// can be.
func (c *Costs) Shares(module int, ranks []int) []int {
	var uses [MostPools]int
	for _, r := range ranks {
		uses[c.pool[r]]++
	}
	most, _ := c.Balance(module, uses[:len(c.Pools)])
	shares, over := make([]int, len(ranks)), -c.Tasks.Modules[module].Batch
	for i, r := range ranks {
		shares[i] = most[c.pool[r]]
		over += shares[i]
	}
	for over > 0 { // who has most to do has a sample less
		at := -1
		for i, r := range ranks {
			if shares[i] > 0 && (at < 0 || c.Alone(module, c.pool[r], shares[i]) > c.Alone(module, c.pool[ranks[at]], shares[at])) {
				at = i
			}
		}
		shares[at]--
		over--
	}
	return shares
}

// Balance is, by pool, the most samples of a module's batch that each of so many devices has
// where the slowest is done as soon as can be, and the seconds that a layer takes then,
// without the exchange of gradients. Together they may hold a few more than the batch.
func (c *Costs) Balance(module int, uses []int) (samples []int, time units.Seconds) {
	batch := c.Tasks.Modules[module].Batch
	time = forever
	for p, n := range uses {
		if n == 0 {
			continue
		}
		// The least share of this pool with which the others, in as much time, hold the rest.
		least := 1 + sort.Search(batch, func(k int) bool {
			return c.holds(module, uses, c.Alone(module, p, k+1)) >= batch
		})
		if t := c.Alone(module, p, least); least <= batch && t < time {
			time = t
		}
	}
	samples = make([]int, len(uses))
	for p, n := range uses {
		if n > 0 {
			samples[p] = c.most(module, p, time)
		}
	}
	return samples, time
}

// holds is how many samples devices get done in a layer of so many seconds.
func (c *Costs) holds(module int, uses []int, time units.Seconds) int {
	total := 0
	for p, n := range uses {
		if n > 0 {
			total += n * c.most(module, p, time)
		}
	}
	return total
}

// most is how many samples of the batch a device gets done in a layer of so many seconds.
func (c *Costs) most(module, pool int, time units.Seconds) int {
	return sort.Search(c.Tasks.Modules[module].Batch, func(k int) bool { return c.Alone(module, pool, k+1) > time })
}
