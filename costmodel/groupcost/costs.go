package groupcost

import (
	"fmt"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
)

// Pool is the devices of a cluster that are alike: one device type in nodes of
// one kind.
type Pool struct {
	Device string  // device type
	Ranks  [][]int // by node, in the cluster's rank order
}

// Count is the number of devices of the pool.
func (p Pool) Count() int {
	n := 0
	for _, node := range p.Ranks {
		n += len(node)
	}
	return n
}

// Class is a kind of group: how many devices of each pool train sequences together.
//
// The time of a group of class c with the sequences s_1, s_2, ... in a micro-batch is
// Base + Σ Costs.Time(c, s_k); of its tokens, Σ s_k ≤ Cap.
type Class struct {
	Name string        // as people say it: "8", "4 h100_sxm + 4 a100_sxm, recompute"
	Uses []int         // devices, by pool
	One  bool          // all of them in one node; of one pool, then
	Base units.Seconds // of a group with at least one sequence, once a micro-batch
	Cap  units.Tokens  // of one micro-batch
	// Shares is the share of each sequence that one device of the pool holds, by
	// pool: Σ Uses·Shares = 1. Nil where all devices hold the same.
	Shares []float64
	// Heads is the number of devices that share heads by all-to-all; the group is
	// a ring of Degree/Heads such. 0 where the cost model does not say.
	Heads int
	// QHeads is the number of query heads of one device, by pool, where the
	// devices of an all-to-all have unequal numbers.
	QHeads []int
	// Groups are the all-to-alls in the order of their ring, as of a layout whose
	// ranks are the devices pool by pool, of each pool in the order of the cluster.
	// Nil where the cost model does not say.
	Groups []costmodel.Group
	// OwnLast is that of costmodel.Layout, where several of Groups have tokens: backward each
	// computes its own block last. Only of costs for sequences of one length (Options.Of).
	OwnLast   bool
	Recompute bool // every layer's forward runs again in the backward pass
}

// Degree is the number of devices of a group of the class.
func (c Class) Degree() int {
	n := 0
	for _, u := range c.Uses {
		n += u
	}
	return n
}

// Costs is what a planner of batches needs to know of a cluster and a model.
type Costs struct {
	Pools   []Pool
	Classes []Class
	// MicroBase is what every micro-batch takes beside its groups, Fixed what the
	// step takes beside its micro-batches.
	MicroBase, Fixed units.Seconds
	// Hidden is what of the exchange of parameters and gradients hides behind the
	// layers of a micro-batch that takes at least as long.
	Hidden units.Seconds
	// Longest is the longest sequence that the model can train on, 0 without limit.
	Longest units.Tokens

	curves []curve // by class
	from   *origin // nil where published coefficients are all there is
}

// Time is what a sequence of s tokens adds to a group of a class: forward and
// backward of all layers and the loss. It rises with s.
func (c *Costs) Time(class int, s units.Tokens) units.Seconds { return c.curves[class].at(s) }

// name says what devices a group has: "8" where all are alike.
func (c *Costs) name(uses []int) string {
	var parts []string
	for i, u := range uses {
		switch {
		case u > 0 && len(uses) > 1:
			parts = append(parts, fmt.Sprintf("%d %s", u, costmodel.ModelOf(c.Pools[i].Device)))
		case u > 0:
			parts = append(parts, fmt.Sprint(u))
		}
	}
	return strings.Join(parts, " + ")
}
