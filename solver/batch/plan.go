package batch

import (
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
	Time   units.Seconds `json:"time_s"` // of its slowest group, and Problem.MicroBase
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
// sequences takes no time.
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
