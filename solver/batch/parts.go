package batch

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel/groupcost"
	"github.com/evenkeel/evenkeel/internal/ended"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/recommend"
)

// Part is a problem on some nodes of the cluster, or on devices of some types where nodes have
// several, which train the batch without the others:
// these hold nothing of the model and take no part in the exchange of gradients and
// parameters. Its ranks are the whole cluster's. It is to a batch what usp-subset is to one
// sequence: what people do who see that a further node makes the step longer.
type Part struct {
	*Problem               // nil where ctx ended before its groups were priced
	Nodes    int           // how many it has devices in
	Least    units.Seconds // no plan of the part takes less
}

// divisible is a Pricer that may know what parts of its cluster take.
type divisible interface{ Parts() []groupcost.Part }

// OnParts has the strategies of attempts, which were made on all nodes, plan for the parts
// of the cluster too (groupcost.Costs.Parts) where that may be faster: an attempt becomes
// the one that takes least. It returns the parts that were priced, for TrySure and
// BoundOf. tell is told of a part before it is priced, which takes as long as it did for all
// nodes, if at most.
//
// A part is left out where no plan of it can be faster than the strongest baseline by what
// its exchange and its devices' work take: where the network is fast that is every one,
// within a millisecond. The most promising part comes first. When ctx ends, plans are the best
// so far, and strategies that search say so.
//
// Errors: those of a bound.
func OnParts(ctx context.Context, p *Problem, attempts []Attempt, clock func() units.Seconds, tell func(groupcost.Part)) ([]Part, error) {
	of, ok := p.Costs.(divisible)
	if !ok {
		return nil, nil
	}
	all := of.Parts()
	slices.SortStableFunc(all, func(x, y groupcost.Part) int { return cmp.Compare(p.floor(x), p.floor(y)) })
	var tried []Part
	for _, x := range all {
		floor := p.floor(x)
		if !worthTrying(floor, attempts) {
			break // nor are the others
		}
		if ctx.Err() == nil {
			tell(x)
		}
		part, err := p.part(ctx, x)
		if why := ended.Why(ctx); why != nil {
			tried = append(tried, Part{Nodes: x.Nodes, Least: floor})
			stop(attempts, why)
			continue
		}
		if err != nil {
			return nil, err
		}
		if part == nil || !worthTrying(part.Least, attempts) {
			continue
		}
		for i := range attempts {
			attempts[i].OnPart(ctx, part, clock)
		}
		tried = append(tried, *part)
	}
	return tried, nil
}

// stop notes of the strategies that search that a part was left out for ctx ended.
func stop(attempts []Attempt, why error) {
	for i := range attempts {
		if a := &attempts[i]; a.Plan != nil && !a.Strategy.Claims().Baseline {
			a.Stopped = why
		}
	}
}

// worthTrying says that a plan which takes a time at least may be faster than the strongest
// baseline's, or than any where there is none. Ours are hardly ever slower than that one.
func worthTrying(least units.Seconds, attempts []Attempt) bool {
	plans := make([]*recommend.Plan, len(attempts))
	for i := range attempts {
		plans[i] = attempts[i].plan()
	}
	best, base := recommend.Best(plans)
	if base >= 0 {
		best = base
	}
	return best >= 0 && slower(plans[best].Time, least)
}

// floor is what no plan of a part takes less than, by the prices of the whole: its exchange
// and, spread over its devices, the sequences' least work. Groups of a part have the whole's
// prices, but where they have less room for tokens, their devices holding more of the
// states: then they may share sequences in another way, which was slower there for a full
// group. sameWay allows for what it may be faster by for some lengths.
func (p *Problem) floor(x groupcost.Part) units.Seconds {
	work := units.Seconds(0)
	for _, s := range p.Lengths {
		least := units.Seconds(-1)
		for c, class := range p.Classes {
			if class.Cap < s || class.Degree() > x.Devices {
				continue
			}
			if w := p.Costs.Time(c, s) * units.Seconds(class.Degree()); least < 0 || w < least {
				least = w
			}
		}
		work += max(0, least)
	}
	beside, own := x.Fixed+x.MicroBase, *p
	own.MicroBase, own.Hidden = x.MicroBase, x.Hidden
	sum := x.Fixed + own.cost(sameWay*work/units.Seconds(x.Devices))
	return units.Seconds(withOpen(float64(sum), float64(beside), float64(x.Behind), float64(p.hides())))
}

const sameWay = 0.9

// divides says that the problem's cluster has parts.
func (p *Problem) divides() bool {
	of, ok := p.Costs.(divisible)
	return ok && len(of.Parts()) > 0
}

// part is the problem on a part; nil where its devices hold no plan or lack a law.
func (p *Problem) part(ctx context.Context, x groupcost.Part) (*Part, error) {
	costs, err := x.Costs(ctx)
	if err != nil {
		return nil, nil // no room, or no law: then there is nothing to compare; or ctx ended
	}
	own, err := NewProblem(costs, p.Lengths)
	if err != nil {
		return nil, err
	}
	if own.Feasible() != nil {
		return nil, nil
	}
	least, err := FastBound(ctx, own)
	return &Part{Problem: own, Nodes: x.Nodes, Least: least}, err
}

// OnPart has the attempt's strategy plan for a part as well, where that may be faster, and
// takes the plan if it is. An attempt without a strategy is of one that is asked later (see
// OnParts).
func (a *Attempt) OnPart(ctx context.Context, part *Part, clock func() units.Seconds) {
	if a.Strategy == nil || ctx.Err() != nil || a.Plan != nil && !slower(a.Plan.Time, part.Least) {
		return
	}
	x := Try(ctx, a.Strategy, part.Problem, clock)
	took := a.Took + x.Took
	if x.Plan != nil && (a.Plan == nil || slower(a.Plan.Time, x.Plan.Time)) {
		*a, a.On = x, part
	}
	a.Took = took
}

// Fastest is the part that the fastest plan is of; nil where that is all nodes, or there is
// no plan.
func Fastest(attempts []Attempt) *Part {
	best := -1
	for i := range attempts {
		if p := attempts[i].Plan; p != nil && (best < 0 || slower(attempts[best].Plan.Time, p.Time)) {
			best = i
		}
	}
	if best < 0 {
		return nil
	}
	return attempts[best].On
}

// TrySure is Sure on all nodes and on the parts that were priced, whichever gains most.
func TrySure(ctx context.Context, p *Problem, parts []Part, attempts []Attempt, o Options, clock func() units.Seconds) Attempt {
	sure := Try(ctx, Sure(attempts, o), p, clock)
	for i := range parts {
		sure.OnPart(ctx, &parts[i], clock)
	}
	return sure
}

// BoundOf is the least of what a lower bound says of all nodes and of parts.
//
// Errors: those of the bound.
func BoundOf(ctx context.Context, p *Problem, parts []Part, bound func(context.Context, *Problem) (units.Seconds, error)) (units.Seconds, error) {
	least, err := bound(ctx, p)
	if err != nil {
		return 0, err
	}
	for _, x := range parts {
		if x.Problem == nil || x.Least >= least {
			least = min(least, x.Least)
			continue
		}
		of, err := bound(ctx, x.Problem)
		if err != nil {
			return 0, err
		}
		least = min(least, max(of, x.Least))
	}
	return least, nil
}

// leftOut are the ranks of the fleet that a part has none of, rising.
func (p *Problem) leftOut(part *Part) []int {
	var ranks []int
	for _, pool := range p.Fleet {
		ranks = append(ranks, slices.Concat(pool.Ranks...)...)
	}
	kept := map[int]bool{}
	for _, pool := range part.Fleet {
		for _, r := range slices.Concat(pool.Ranks...) {
			kept[r] = true
		}
	}
	ranks = slices.DeleteFunc(ranks, func(r int) bool { return kept[r] })
	slices.Sort(ranks)
	return ranks
}

// inFleet gives classes of a part, which has some of the pools, those of the whole fleet.
func (p *Problem) inFleet(classes []ClassEntry, part *Part) {
	to := make([]int, len(part.Fleet))
	for i, own := range part.Fleet {
		first := slices.Concat(own.Ranks...)[0]
		to[i] = slices.IndexFunc(p.Fleet, func(f Pool) bool {
			return slices.ContainsFunc(f.Ranks, func(node []int) bool { return slices.Contains(node, first) })
		})
	}
	for i := range classes {
		c := &classes[i]
		c.Uses = spreadTo(c.Uses, to, len(p.Fleet))
		c.Shares = spreadTo(c.Shares, to, len(p.Fleet))
		c.QHeads = spreadTo(c.QHeads, to, len(p.Fleet))
	}
}

// spreadTo is what some of the pools have, those at to; nil where nothing is said of pools.
func spreadTo[T any](own []T, to []int, pools int) []T {
	if own == nil {
		return nil
	}
	all := make([]T, pools)
	for i, x := range own {
		all[to[i]] = x
	}
	return all
}

// alone says that a plan is of a part.
func (p *Problem) alone(part *Part) string {
	if len(p.Fleet) > 1 { // of which several may be in one node
		var devices []string
		for _, pool := range part.Fleet {
			if !slices.Contains(devices, pool.Device) {
				devices = append(devices, pool.Device)
			}
		}
		return fmt.Sprintf("on %s of %s alone", units.Count(part.Nodes, "node"), strings.Join(devices, " and "))
	}
	return fmt.Sprintf("on %d of the %s alone", part.Nodes, units.Count(len(p.Fleet[0].Ranks), "node"))
}
