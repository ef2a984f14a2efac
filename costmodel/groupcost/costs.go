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

// Class is a kind of group: the number of devices of each pool that train sequences
// together.
//
// A group of class c with the sequences s_1, s_2, ... takes Base + Σ Costs.Time(c, s_k)
// in a micro-batch, where Σ s_k ≤ Cap.
type Class struct {
	Name string        // for the user: "8", "4 h100_sxm + 4 a100_sxm, recompute"
	Uses []int         // number of devices, by pool
	One  bool          // all devices are of one pool and in one node
	Base units.Seconds // time of a group with at least one sequence, per micro-batch
	Cap  units.Tokens  // most tokens of a group in one micro-batch
	// Shares is, by pool, the share of every sequence that one device of the pool holds:
	// Σ Uses·Shares = 1. Nil where all devices hold the same.
	Shares []float64
	// Heads is the number of devices of an all-to-all group; the class is a ring of
	// Degree/Heads of them. 0 where the cost model does not say.
	Heads int
	// QHeads is, by pool, the number of query heads of one device, where the devices of an
	// all-to-all group have different numbers.
	QHeads []int
	// Groups are the all-to-all groups in the order of their ring. Their ranks count the
	// devices of the class pool by pool, in the order of the cluster within a pool. Nil where
	// the cost model does not say.
	Groups []costmodel.Group
	// Schedule is how the groups are run. They have own blocks last at most, and that only in
	// costs for sequences of one length (Options.Of).
	costmodel.Schedule
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
	// MicroBase is the time of a micro-batch outside its groups, Fixed that of a step outside
	// its micro-batches.
	MicroBase, Fixed units.Seconds
	// Hidden is the time of the exchange of parameters and gradients that overlaps with the
	// passes of a micro-batch: with both where BothPasses (zero3), else with the backward pass
	// alone (zero2). The micro-batch is longer by what these are too short for.
	Hidden     units.Seconds
	BothPasses bool
	// Behind is the time of the exchange once a step that overlaps with the backward pass of
	// the last micro-batch. The step is longer by what that pass is too short for.
	Behind units.Seconds
	// Update is the part of Fixed that is no exchange: the optimizer's; 0 of a published model.
	Update units.Seconds
	// Layers is how many the model has; 0 of a published model. Of Hidden and Behind each layer's
	// part but one travels beside a layer's pass.
	Layers int
	// Longest is the longest sequence that the model allows; 0 is no limit.
	Longest units.Tokens

	curves []curve // by class
	from   *origin // nil where published coefficients are all there is
}

// Time is the time in seconds that a sequence of s tokens adds to a group of a class:
// forward and backward through all layers, and the loss. It rises with s.
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
