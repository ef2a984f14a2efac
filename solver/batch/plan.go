package batch

import (
	"slices"

	"github.com/evenkeel/evenkeel/internal/units"
)

// Plan says how one global batch is trained.
type Plan struct {
	Micro []MicroBatch  `json:"micro_batches"` // in order of execution, one after another
	Time  units.Seconds `json:"step_s"`        // of the whole step
}

// MicroBatch is a set of groups that train at the same time and wait for one another at
// the end.
type MicroBatch struct {
	Groups []Group       `json:"groups"`
	Time   units.Seconds `json:"time_s"` // of its slowest group, what that does not hide, and the time that every micro-batch adds
}

// Group is a set of devices that train sequences together in one micro-batch.
type Group struct {
	Class     int           `json:"class"`         // index into the problem's classes
	Sequences []int         `json:"sequences"`     // indices into the problem's lengths
	Ranks     []int         `json:"ranks"`         // of its devices: pool by pool, rising within a pool
	Tokens    units.Tokens  `json:"length_tokens"` // of all its sequences together
	Time      units.Seconds `json:"time_s"`
}

// Evaluate computes the tokens and times of a plan from its classes and sequences, by the
// formula in the package's documentation. All strategies are judged by it. A group without
// sequences takes no time. Where exchange overlaps with the last micro-batch (Problem.Behind)
// it moves the longest one to the end: no order takes less.
func Evaluate(p *Problem, plan *Plan) {
	plan.Time = p.Fixed
	for i := range plan.Micro {
		m := &plan.Micro[i]
		for j := range m.Groups {
			g := &m.Groups[j]
			g.Tokens, g.Time = 0, 0
			for _, k := range g.Sequences {
				g.Tokens += p.Lengths[k]
				g.Time += p.Costs.Time(g.Class, p.Lengths[k])
			}
			if len(g.Sequences) > 0 {
				g.Time += p.Classes[g.Class].Base
			}
		}
		m.Time = p.cost(m.slowest())
		plan.Time += m.Time
	}
	if p.Behind > 0 {
		plan.Time += p.open(plan.longestLast())
	}
}

// longestLast puts the longest micro-batch behind the others, which stay in their order, and
// returns the time of its slowest group. Of several as long it is the last.
func (plan *Plan) longestLast() (longest units.Seconds) {
	at := -1
	for i := range plan.Micro {
		if t := plan.Micro[i].slowest(); t >= longest {
			at, longest = i, t
		}
	}
	if at >= 0 {
		m := plan.Micro[at]
		plan.Micro = append(slices.Delete(plan.Micro, at, at+1), m)
	}
	return longest
}

// slowest is the time of the slowest group.
func (m *MicroBatch) slowest() (longest units.Seconds) {
	for _, g := range m.Groups {
		longest = max(longest, g.Time)
	}
	return longest
}
