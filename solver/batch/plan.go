package batch

import (
	"github.com/evenkeel/evenkeel/internal/units"
)

// Plan is the micro-batches of one global batch, in order.
type Plan struct {
	Micro []MicroBatch  `json:"micro_batches"`
	Time  units.Seconds `json:"step_s"` // of all micro-batches, one after the other
}

// MicroBatch is groups that run side by side and meet at its end.
type MicroBatch struct {
	Groups []Group       `json:"groups"`
	Time   units.Seconds `json:"time_s"` // of its slowest group, and what it takes beside
}

// Group is devices that train sequences together in one micro-batch.
type Group struct {
	Class     int           `json:"class"`     // index into the problem's classes
	Sequences []int         `json:"sequences"` // indices into the problem's lengths
	Ranks     []int         `json:"ranks"`     // pool by pool, rising
	Tokens    units.Tokens  `json:"length_tokens"`
	Time      units.Seconds `json:"time_s"`
}

// Evaluate fills in the tokens and times of a plan from its classes and
// sequences: the one judge of all strategies. A group without sequences takes
// no time. A micro-batch takes as long as its slowest group, or as the exchange
// that hides behind its groups where that is longer.
func Evaluate(p *Problem, plan *Plan) {
	plan.Time = p.Fixed
	for i := range plan.Micro {
		m := &plan.Micro[i]
		m.Time = p.Hidden
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
			m.Time = max(m.Time, g.Time)
		}
		m.Time += p.MicroBase
		plan.Time += m.Time
	}
}
