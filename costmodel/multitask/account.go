package multitask

import (
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
)

// Account is a simulated plan's time with its errors: those of the runs that nothing waits
// for shorter than, one after the other (the critical path), scaled to the plan's time. It
// is nil where prices have no laws.
//
// Errors: a missing law.
func (c *Costs) Account(p *Plan) (*costmodel.Step, error) {
	var steps []*costmodel.Step
	for i := p.lastToEnd(); i >= 0; i = c.before(p, i) {
		r := &p.Runs[i]
		at := 0 // the slowest rank
		for k, rank := range r.Ranks {
			if c.Alone(r.Module, c.pool[rank], r.Samples[k]) > c.Alone(r.Module, c.pool[r.Ranks[at]], r.Samples[at]) {
				at = k
			}
		}
		step, err := c.from.brief(r.Module, c.pool[r.Ranks[at]], r.Samples[at], r.Ranks, r.Layers)
		if step == nil || err != nil {
			return nil, err
		}
		steps = append(steps, step)
	}
	return costmodel.InTurn(steps...).Scaled(p.Time), nil
}

// lastToEnd is the run that ends last.
func (p *Plan) lastToEnd() int {
	last := 0
	for i := range p.Runs {
		if p.Runs[i].End > p.Runs[last].End {
			last = i
		}
	}
	return last
}

// before is the run that one waited for longest, what it moved counted; -1 where it did not
// wait.
func (c *Costs) before(p *Plan, of int) int {
	r, last, longest := &p.Runs[of], -1, units.Seconds(0)
	began := slices.ContainsFunc(p.Runs[:of], func(b Run) bool { return b.Module == r.Module })
	moved := map[int]bool{} // by module: its last run before, whose results are what is moved
	for i, b := range slices.Backward(p.Runs[:of]) {
		if b.End > r.Start || !c.holdsUp(p, &b, r) {
			continue
		}
		until := b.End
		switch {
		case moved[b.Module]:
		case b.Module == r.Module:
			until += c.Move(b.Module, &b, r, false)
		case !began && slices.Contains(c.Needs[r.Module], b.Module):
			until += c.Move(b.Module, &b, r, true)
		}
		moved[b.Module] = true
		if last < 0 || until > longest {
			last, longest = i, until
		}
	}
	return last
}

// holdsUp says whether a run may begin only when one before it has ended.
func (c *Costs) holdsUp(p *Plan, b, r *Run) bool {
	if b.Module == r.Module || p.Waves && b.Wave < r.Wave {
		return true
	}
	return slices.Contains(c.Needs[r.Module], b.Module) || share(b.Ranks, r.Ranks)
}

// share says whether two rising lists have a rank in common.
func share(a, b []int) bool {
	for i, j := 0, 0; i < len(a) && j < len(b); {
		switch {
		case a[i] == b[j]:
			return true
		case a[i] < b[j]:
			i++
		default:
			j++
		}
	}
	return false
}
