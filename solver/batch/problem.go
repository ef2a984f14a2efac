package batch

import (
	"fmt"
	"math"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/groupcost"
	"github.com/evenkeel/evenkeel/internal/units"
)

// Problem is one global batch, the devices to train it on, and the prices.
type Problem struct {
	Lengths []units.Tokens // of the sequences, padded as they will be trained
	Fleet   []Pool         // all devices
	Classes []Class        // the kinds of groups that may be formed
	Costs   Pricer         // the time of a sequence in a group of each class
	// MicroBase is the time that every micro-batch takes in addition to its groups, Fixed
	// the time that a step takes in addition to its micro-batches (the exchange of
	// gradients, the optimizer).
	MicroBase units.Seconds
	Fixed     units.Seconds
	// Hidden is the time of the exchange of parameters and gradients that overlaps with the
	// passes of a micro-batch: with both where BothPasses, else with the backward pass alone. The
	// micro-batch is longer by what these are too short for.
	Hidden     units.Seconds
	BothPasses bool
	// Behind is the time of the exchange once a step that overlaps with the backward pass of
	// the last micro-batch. The step is longer by what that pass is too short for.
	Behind units.Seconds
	// Update is the part of Fixed that is no exchange: the optimizer's.
	Update units.Seconds
	// Layers is how many the model has: Hidden and Behind travel beside the passes of all but
	// one. 0 is so many that it does not matter.
	Layers int
}

// backwardShare is the share of a micro-batch's time that its backward pass takes, behind
// which gradients may travel, near its least. Of matrix products it is two thirds (gradients
// of inputs and of weights, for one product forward), of attention five sevenths; but norms take as long forward, and nothing travels behind the
// loss. By the laws of four types of GPUs, for a Llama of 8B on one and on eight of them, it
// is 0.60 to 0.67 of the whole (0.58 where the vocabulary is 128k on the slowest type), and
// 0.69 to 0.75 with recomputation, which is a part of it.
const backwardShare = 0.6

// forwardShare is likewise that of its forward pass, behind which parameters may travel: 0.29
// to 0.34 of the whole by the same laws, 0.22 to 0.25 with recomputation.
const forwardShare = 0.3

// cost is the time of a micro-batch whose slowest group takes so long: that, the part of Hidden
// that its passes are too short for, and MicroBase. Both passes are taken together: a third of
// what travels does so in the forward pass, which takes about a third of the time. With
// recomputation it takes less, and a micro-batch up to 7 % more than its cost.
func (p *Problem) cost(slowest units.Seconds) units.Seconds {
	return max(slowest, (1-p.hidesEach())*slowest+p.Hidden) + p.MicroBase
}

// open is what a step takes in addition to its micro-batches and Fixed: the part of Behind
// that the last micro-batch's backward pass is too short for, where its slowest group takes
// so long.
func (p *Problem) open(last units.Seconds) units.Seconds {
	return max(0, p.Behind-p.hides()*last)
}

// Open is the part of an evaluated plan's time in which nothing but the exchange of parameters and
// gradients goes on. It is of prices by laws: published ones do not say what Fixed and MicroBase are.
func (p *Problem) Open(plan *Plan) units.Seconds {
	open := plan.Time - p.Update
	for _, m := range plan.Micro {
		slowest := units.Seconds(0)
		for _, g := range m.Groups {
			slowest = max(slowest, g.Time)
		}
		open -= slowest
	}
	return max(0, open)
}

// hides is the share of a group's time beside which Behind travels, hidesEach that of Hidden.
func (p *Problem) hides() units.Seconds { return p.ofLayers(backwardShare) }

func (p *Problem) hidesEach() units.Seconds {
	if p.BothPasses {
		return p.ofLayers(forwardShare + backwardShare)
	}
	return p.ofLayers(backwardShare)
}

// ofLayers is a share of a group's time without that of one layer.
func (p *Problem) ofLayers(share units.Seconds) units.Seconds {
	if p.Layers == 0 {
		return share
	}
	return share * units.Seconds(p.Layers-1) / units.Seconds(p.Layers)
}

// A Pool is a set of equal devices and a Class a kind of group. Class.Uses has one number
// for each of the problem's pools; Costs and plans name a class by its index in
// Problem.Classes.
type (
	Pool  = groupcost.Pool
	Class = groupcost.Class
)

// ring is the number of all-to-alls of a group of a class.
func ring(c Class) int {
	if c.Groups != nil {
		return len(c.Groups)
	}
	return c.Degree() / max(1, c.Heads)
}

// Pricer prices sequences. It must be a pure function that does not fall as s grows.
type Pricer interface {
	// Time is what a sequence of s tokens adds to the time of a group of the class, in
	// seconds: its forward and backward pass, without Class.Base.
	Time(class int, s units.Tokens) units.Seconds
}

// maxSequences, maxRanks and maxTokens are limits beyond any batch and cluster.
const (
	maxSequences = 1 << 20
	maxRanks     = 1 << 17
	maxTokens    = units.Tokens(1) << 31
)

// Validate reports the first field that is missing or out of range.
func (p *Problem) Validate() error {
	switch {
	case len(p.Lengths) == 0 || len(p.Lengths) > maxSequences:
		return fmt.Errorf("lengths_tokens: %d sequences: want 1 to %d", len(p.Lengths), maxSequences)
	case len(p.Fleet) == 0:
		return fmt.Errorf("fleet: no devices")
	case len(p.Classes) == 0:
		return fmt.Errorf("classes: none: no group of these devices can train anything")
	case p.Costs == nil:
		return fmt.Errorf("costs: missing")
	case !valid(p.MicroBase) || !valid(p.Fixed) || !valid(p.Hidden) || !valid(p.Behind):
		return fmt.Errorf("micro_base_s, fixed_s, hidden_s, behind_s: %v, %v, %v, %v: want times of 0 or more", p.MicroBase, p.Fixed, p.Hidden, p.Behind)
	}
	for i, s := range p.Lengths {
		if s < 1 || s > maxTokens {
			return fmt.Errorf("lengths_tokens[%d]: %d: want 1 to %d", i, int64(s), int64(maxTokens))
		}
	}
	if err := p.validFleet(); err != nil {
		return err
	}
	for i, c := range p.Classes {
		if err := p.validClass(c); err != nil {
			return fmt.Errorf("classes[%d] (%s).%w", i, c.Name, err)
		}
	}
	return nil
}

func (p *Problem) validFleet() error {
	seen := map[int]bool{}
	for i, pool := range p.Fleet {
		if pool.Count() == 0 {
			return fmt.Errorf("fleet[%d] (%s): no devices", i, pool.Device)
		}
		for _, node := range pool.Ranks {
			for _, r := range node {
				if r < 0 || r >= maxRanks || seen[r] {
					return fmt.Errorf("fleet[%d] (%s): rank %d: negative, beyond %d or listed twice", i, pool.Device, r, maxRanks-1)
				}
				seen[r] = true
			}
		}
	}
	return nil
}

func (p *Problem) validClass(c Class) error {
	switch {
	case len(c.Uses) != len(p.Fleet):
		return fmt.Errorf("devices: %d numbers: the fleet has %d pools", len(c.Uses), len(p.Fleet))
	case c.Degree() < 1:
		return fmt.Errorf("devices: %v: no devices", c.Uses)
	case c.Cap < 1:
		return fmt.Errorf("cap_tokens: %d: nothing fits", int64(c.Cap))
	case !valid(c.Base):
		return fmt.Errorf("base_s: %v: want a time of 0 or more", c.Base)
	case c.Shares != nil && len(c.Shares) != len(p.Fleet):
		return fmt.Errorf("shares: %d numbers: the fleet has %d pools", len(c.Shares), len(p.Fleet))
	case c.Schedule != costmodel.Schedule{OwnLast: c.OwnLast}:
		return fmt.Errorf("schedule: more than own_last: groups of a batch are priced with own blocks last at most: leave the rest out")
	case c.OwnLast && ring(c) < 2:
		return fmt.Errorf("own_last: true, but the group is one all-to-all, which has no other blocks: want false")
	}
	pools := 0
	for i, u := range c.Uses {
		if u > 0 {
			pools++
		}
		if c.One && pools > 1 {
			return fmt.Errorf("one_node: devices of %d pools in one node: make a pool of the node's pairs instead", pools)
		}
		if u < 0 || u > p.Fleet[i].Count() {
			return fmt.Errorf("devices[%d]: %d: the fleet has %d of %s", i, u, p.Fleet[i].Count(), p.Fleet[i].Device)
		}
		if most := largestNode(p.Fleet[i]); c.One && u > most {
			return fmt.Errorf("one_node: %d devices of %s in one node: the largest has %d", u, p.Fleet[i].Device, most)
		}
	}
	return nil
}

// largestNode is the number of devices of a pool's largest node.
func largestNode(p Pool) int {
	most := 0
	for _, node := range p.Ranks {
		most = max(most, len(node))
	}
	return most
}

func valid(t units.Seconds) bool { return t >= 0 && !math.IsInf(float64(t), 0) }

// Devices is the number of devices of the fleet.
func (p *Problem) Devices() int {
	n := 0
	for _, pool := range p.Fleet {
		n += pool.Count()
	}
	return n
}

// TooLongError says that no group can hold a sequence in its memory.
type TooLongError struct {
	Sequence int          // its index in Problem.Lengths
	Tokens   units.Tokens // its length
	Most     units.Tokens // the most that any class holds, or that any of Groups does
	// Groups are those of a strategy that does not form the largest that there are, such as
	// groups of one size; empty where the fleet has none that hold more.
	Groups string
}

// Error names the sequence, the limit and the ways out.
func (e *TooLongError) Error() string {
	if e.Groups != "" {
		return fmt.Sprintf("sequence %d: %s: of %s the largest holds %d", e.Sequence, units.Count(e.Tokens, "token"), e.Groups, int64(e.Most))
	}
	return fmt.Sprintf("sequence %d: %s: the largest group of this fleet holds %d; truncate or drop longer ones, recompute activations, or add devices",
		e.Sequence, units.Count(e.Tokens, "token"), int64(e.Most))
}

// Feasible returns a *TooLongError for the first sequence that no class can hold, or nil.
func (p *Problem) Feasible() error {
	var most units.Tokens
	for _, c := range p.Classes {
		most = max(most, c.Cap)
	}
	for i, s := range p.Lengths {
		if s > most {
			return &TooLongError{Sequence: i, Tokens: s, Most: most}
		}
	}
	return nil
}
