package multitask

import (
	"fmt"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
)

// ordered are prices on devices in order.
type ordered struct {
	*Costs
	listed []int
}

// InOrder are the same prices of the same devices in an order which does not depend on how the
// cluster lists them (costmodel.Cluster.Ordered), and, by rank there, the rank that it is here; no
// ranks where these are in that order. It is of prices as they are made, not of those that are
// Reordered or Seated.
func (c *Costs) InOrder() (*Costs, []int) {
	if c.ordered == nil {
		same, listed := c.from.inOrder()
		if listed == nil {
			same = c
		}
		c.ordered = &ordered{same, listed}
	}
	return c.ordered.Costs, c.ordered.listed
}

// Warnings are what a user has to know of the laws that prices come from: where InOrder was asked
// for, those that were asked there.
func (c *Costs) Warnings() []string {
	if c.ordered != nil {
		return c.ordered.from.warnings()
	}
	return c.from.warnings()
}

// told is the size of the message by which links of nodes are told apart.
const told = 1 << 24

// inOrder goes by what all layers take on a device that has its share of the samples.
func (l *laws) inOrder() (*Costs, []int) {
	asks := l.again(l.cluster) // its warnings are of no plan
	paces := map[string]costmodel.DevicePace{}
	for p, pool := range asks.Pools {
		sum := units.Seconds(0)
		for m, x := range l.tasks.Modules {
			sum += units.Seconds(x.Layers) * asks.Alone(m, p, max(1, x.Batch/asks.Devices()))
		}
		paces[pool.Device] = costmodel.DevicePace{Linear: float64(sum), Memory: l.room[p]}
	}
	nodes := make([][]int, len(l.cluster.Nodes))
	for r, node := range asks.node {
		nodes[node] = append(nodes[node], r)
	}
	c, listed := l.cluster.Ordered(paces, func(node int) float64 {
		slowest := units.Seconds(0)
		of, n := asks.ends(nodes[node])
		for i, a := range of[:n] {
			for _, b := range of[:i] {
				if a != b {
					slowest = max(slowest, asks.send(a, b, told))
				}
			}
		}
		return float64(slowest)
	})
	if listed == nil {
		return nil, nil
	}
	return l.again(c), listed
}

// again are prices of the same devices.
func (l *laws) again(c costmodel.Cluster) *Costs {
	costs, err := FromLaws(l.q, l.tasks, c, l.o)
	if err != nil {
		panic(fmt.Sprintf("devices have no prices in another order: %v", err)) // which FromLaws had
	}
	return costs
}

func (c curves) inOrder() (*Costs, []int) {
	cluster, listed := c.cluster.Ordered(nil, func(int) float64 { return 0 })
	if listed == nil {
		return nil, nil
	}
	costs, err := Published(c.tasks, cluster)
	if err != nil {
		panic(fmt.Sprintf("devices have no prices in another order: %v", err)) // which Published had
	}
	return costs, listed
}
