package pipeline

import (
	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
)

// Account is a simulated plan's time with its errors: those of the stage that is at work for
// longest, and of what both ends have to add up, scaled to the plan's time. It is nil where
// prices have no laws.
//
// Errors: a missing law.
func (c *Costs) Account(p *Plan) (*costmodel.Step, error) {
	busiest, most := 0, units.Seconds(0)
	for s, order := range p.Orders {
		busy := units.Seconds(0)
		for _, o := range order {
			busy += o.End - o.Start
		}
		if busy > most {
			busiest, most = s, busy
		}
	}
	var steps []*costmodel.Step
	x := p.Stages[busiest]
	for k := range p.Chunks {
		times := costmodel.ChunkTimes{Forward: float64(x.Layers), Backward: float64(x.Layers), Again: float64(p.Recompute[busiest][k])}
		if busiest == len(p.Stages)-1 {
			times.Loss = 1
		}
		step, err := c.from.brief(x.Ranks, c.priced(&p.Chunks[k]), times)
		if step == nil || err != nil {
			return nil, err
		}
		steps = append(steps, step)
	}
	if c.Tied(p) > 0 {
		step, err := c.from.briefTied(p.Stages[0].Ranks, p.Stages[len(p.Stages)-1].Ranks)
		if err != nil {
			return nil, err
		}
		steps = append(steps, step)
	}
	return costmodel.InTurn(steps...).Scaled(p.Time), nil
}
