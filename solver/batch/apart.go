package batch

import (
	"context"
	"math"

	"github.com/evenkeel/evenkeel/internal/units"
)

// apart gives every pool its share of the batch and plans it by itself, by a planner
// that is used again: what one does who will not mix types of devices in a group. The
// pools train side by side, each its longest micro-batch beside the others' longest.
//
// All meet at the end of every micro-batch, as in every plan: the states are
// sharded over the whole fleet, so that no pool can run a layer without the
// others' parameters.
type apart struct {
	planner *Planner
	shares  [][]int   // by pool, sequences
	work    []float64 // by pool, of its share
}

func newApart(o Options) *apart { return &apart{planner: NewPlanner(o)} }

// plan is the pools' plans side by side, not placed or evaluated.
//
// Errors: *IllegalError where a share does not fit its pool.
func (a *apart) plan(ctx context.Context, p *Problem) (*Plan, error) {
	if err := a.share(p); err != nil {
		return nil, err
	}
	out := &Plan{}
	for pool, sequences := range a.shares {
		if len(sequences) == 0 {
			continue
		}
		own, classes := p.ofPool(pool, sequences)
		plan, err := a.planner.Plan(ctx, own)
		if err != nil {
			return nil, err
		}
		for i, m := range plan.Micro { // longest first
			if i == len(out.Micro) {
				out.Micro = append(out.Micro, MicroBatch{})
			}
			for _, g := range m.Groups {
				whole := Group{Class: classes[g.Class]}
				for _, k := range g.Sequences {
					whole.Sequences = append(whole.Sequences, sequences[k])
				}
				out.Micro[i].Groups = append(out.Micro[i].Groups, whole)
			}
		}
	}
	return out, nil
}

// share deals the sequences, longest first, each to the pool that has the least
// work with it.
func (a *apart) share(p *Problem) error {
	var t table
	t.loadItems(p)
	a.shares, a.work = resize(a.shares, len(p.Fleet)), resize(a.work, len(p.Fleet))
	for pool := range a.shares {
		a.shares[pool], a.work[pool] = a.shares[pool][:0], 0
	}
	for _, k := range t.order {
		best, least := -1, math.Inf(1)
		for pool := range a.shares {
			if w := a.work[pool] + p.workOf(pool, p.Lengths[k]); w < least {
				best, least = pool, w
			}
		}
		if best < 0 {
			return &IllegalError{Why: "no pool by itself holds the longest sequence"}
		}
		a.shares[best], a.work[best] = append(a.shares[best], int(k)), least
	}
	return nil
}

// workOf is the least time of a pool that a sequence takes of it, infinite where it
// does not fit.
func (p *Problem) workOf(pool int, s units.Tokens) float64 {
	least := math.Inf(1)
	for c := range p.Classes {
		class := &p.Classes[c]
		if n := class.Uses[pool]; n > 0 && n == class.Degree() && class.Cap >= s {
			least = min(least, float64(p.Costs.Time(c, s))*float64(n)/float64(p.Fleet[pool].Count()))
		}
	}
	return least
}

// ofPool is the problem of some sequences on one pool, and its classes among those
// of the whole. What the last micro-batch hides is the whole plan's, and is not in it.
func (p *Problem) ofPool(pool int, sequences []int) (*Problem, []int) {
	own := &Problem{Fleet: p.Fleet[pool : pool+1], MicroBase: p.MicroBase, Hidden: p.Hidden, BothPasses: p.BothPasses, Fixed: p.Fixed, Layers: p.Layers}
	for _, k := range sequences {
		own.Lengths = append(own.Lengths, p.Lengths[k])
	}
	var classes []int
	for i, c := range p.Classes {
		if c.Uses[pool] == 0 || c.Uses[pool] != c.Degree() {
			continue
		}
		c.Uses = c.Uses[pool : pool+1]
		if c.Shares != nil {
			c.Shares = c.Shares[pool : pool+1]
		}
		own.Classes, classes = append(own.Classes, c), append(classes, i)
	}
	own.Costs = ofClasses{p.Costs, classes}
	return own, classes
}

// ofClasses are the prices of some classes.
type ofClasses struct {
	Pricer
	classes []int
}

// Time implements Pricer.
func (o ofClasses) Time(class int, s units.Tokens) units.Seconds {
	return o.Pricer.Time(o.classes[class], s)
}

// tryApart goes on from the pools' own plans.
func (pl *Planner) tryApart(ctx context.Context, e effort, enough float64) {
	t := &pl.t
	if len(t.size) < 2 || ctx.Err() != nil {
		return
	}
	if pl.apart == nil {
		o := pl.options
		if o.Effort == Thorough { // a pool by itself gains nothing by it
			o.Effort = Online
		}
		pl.apart = newApart(o)
	}
	plan, err := pl.apart.plan(ctx, t.p)
	if err != nil {
		return // a pool does not hold its share
	}
	t.take(plan, &pl.found)
	if pl.found.total < pl.best.total*nearlyAsGood {
		pl.improve(ctx, &pl.found, e, enough)
	}
	pl.keep(&pl.found)
}

// take writes a plan as a state.
func (t *table) take(plan *Plan, s *state) {
	t.places = resize(t.places, len(t.order))
	for i, k := range t.order {
		t.places[k] = item(i)
	}
	s.bins, s.free = s.bins[:0], resize(s.free, len(plan.Micro))
	for m := range plan.Micro {
		s.free[m] = append(s.free[m][:0], t.size...)
		for _, g := range plan.Micro[m].Groups {
			b := &s.bins[s.add(t, m, g.Class)]
			for _, k := range g.Sequences {
				b.items = insert(b.items, t.places[k])
			}
			t.weigh(b)
		}
	}
	s.settle(t)
}
