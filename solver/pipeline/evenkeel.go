package pipeline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sort"

	"github.com/evenkeel/evenkeel/costmodel/pipeline"
	"github.com/evenkeel/evenkeel/internal/units"
)

// Evenkeel is our planner. Where the problem has no stages, they are of one device type each, with
// as many devices and layers as let all be busy for as long, the loss counted; there are no flights, for a stage
// takes whichever pass can begin first, and a sequence begins as soon as there is room for
// it. It begins with several numbers of slices on the sets of stages that promise most, and
// improves the best of these by changing the order of sequences, layers, what is computed
// again, and which sequences are packed together (simulated annealing). It is never slower
// than any other strategy, for their plans are its own where nothing is better. A deadline that
// comes before there is any plan gets a single one, of whole sequences.
type Evenkeel struct{}

// Name implements Strategy.
func (Evenkeel) Name() string { return "evenkeel" }

// Claims implements Strategy.
func (Evenkeel) Claims() Claims {
	return Claims{Doc: "stages with devices and layers so that all are busy for as long, no wait between groups of sequences, order, recomputation and packing searched on the simulator"}
}

// Solve implements Strategy.
func (Evenkeel) Solve(ctx context.Context, p *Problem) (*pipeline.Plan, error) {
	plan, err := p.best(ctx, Published())
	if plan == nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		if first, none := p.soon(); none == nil {
			return first, nil
		}
	}
	return plan, err
}

// Online is our plan for who waits for it: like Evenkeel's, but for what infinipipe's
// programmes would find. A deadline that comes before there is any plan gets a single one, of
// whole sequences. Errors are those of Strategy.Solve.
func Online(ctx context.Context, p *Problem) (*pipeline.Plan, error) {
	plan, err := p.best(ctx, slices.DeleteFunc(Published(), func(s Strategy) bool { return s.Claims().Slow }))
	if plan == nil && ctx.Err() != nil {
		return p.soon()
	}
	return plan, err
}

// best is the best plan of our search and of others' strategies, and what a search from there
// finds; of all turns the best.
func (p *Problem) best(ctx context.Context, others []Strategy) (*pipeline.Plan, error) {
	var theirs chosen
	for _, s := range others {
		plan, err := p.of(ctx, s)
		theirs.take(p, plan, err)
	}
	all, own := theirs, p.search(ctx)
	for i, u := range p.turns() {
		best := theirs
		best.take(p, own[i].plan, own[i].err)
		if best.plan != nil && best.plan != own[i].plan {
			plan, err := p.improved(ctx, p.draftOf(best.plan), u)
			best.take(p, plan, err)
		}
		if best.plan != nil {
			plan := best.plan.Clone()
			p.relax(plan)
			best.take(p, plan, p.Run(plan))
		}
		all.take(p, best.plan, nil)
		all.why = nearer(all.why, best.why)
	}
	return all.result(ctx)
}

// turn is a search of so many times the usual effort; those of as much differ in the seed.
type turn struct {
	effort float64
	seed   uint64
}

// turns are the searches of all the effort that there is: one of the usual effort, and then as long
// as all before. More effort has the turns of less, so that its plan is no slower: for twice as
// much that is exact; a single longer search was slower in 4 of 12 cases, by up to 0.9 %.
func (p *Problem) turns() []turn {
	left, done := cmp.Or(p.Effort, 1), 0.0
	var all []turn
	for left > 0 {
		u := turn{min(left, max(1, done)), uint64(len(all))}
		all = append(all, u)
		left, done = left-u.effort, done+u.effort
	}
	return all
}

// relax has less computed again where there is room, in the plan's order.
func (p *Problem) relax(plan *pipeline.Plan) {
	for s := range plan.Stages {
		again := plan.Recompute[s]
		fits := func() bool {
			m := p.StageMemory(plan, s)
			return m.Capacity == 0 || m.Peak() <= m.Capacity
		}
		for k, most := range again {
			if again[k] = 0; most == 0 || fits() { // one layer needs more room than none, at work
				continue
			}
			again[k] = 1 + sort.Search(most-1, func(n int) bool {
				again[k] = 1 + n
				return fits()
			})
		}
	}
}

// improved is the plan of a draft after a search; nil where there is no room.
func (p *Problem) improved(ctx context.Context, d *draft, u turn) (*pipeline.Plan, error) {
	plan := newDispatcher(p).plan(improve(ctx, p, d, u, 1))
	if plan == nil {
		return nil, nil
	}
	return plan, p.Run(plan)
}

// draftOf is the draft of a plan, whose sequences begin in the order in which they do on the
// first stage.
func (p *Problem) draftOf(plan *pipeline.Plan) *draft {
	plan = plan.Clone()
	d := &draft{stages: plan.Stages, again: plan.Recompute}
	for _, c := range plan.Chunks {
		d.items = append(d.items, p.priced(d.stages, c))
	}
	at := map[int]int{} // by sequence: its place in the order
	for _, o := range plan.Orders[0] {
		if o.Backward {
			continue
		}
		c := plan.Chunks[o.Chunk]
		q, ok := at[c.Sequence]
		if !ok || c.Slice == 0 {
			q = len(d.order)
			d.order = append(d.order, nil)
		}
		if c.Slice > 0 {
			at[c.Sequence] = q
		}
		d.order[q] = append(d.order[q], o.Chunk)
	}
	return d
}

// search is the best plan of our own by turn, which are looked for once.
func (p *Problem) search(ctx context.Context) []outcome {
	if p.own != nil {
		return p.own
	}
	for _, u := range p.turns() {
		var best chosen
		for _, d := range p.begin(ctx, u) {
			plan, err := p.improved(ctx, d, u)
			best.take(p, plan, err)
		}
		p.own = append(p.own, outcome{best.plan, best.why})
	}
	return p.own
}

// mostPriced is how many drafts are simulated, mostTried how many of these are improved for a
// while, by a search of the share triedFor, and mostBegun how many of these to the end; mostOthers
// and mostMore are how many more on other stages are: see others.
const (
	mostPriced = 48
	mostTried  = 8
	mostOthers = 4
	triedFor   = 0.1
	mostBegun  = 4
	mostMore   = 2
)

// lead is a set of stages with chunks, and how long that takes, or may.
type lead struct {
	stages    []pipeline.Stage
	sequences [][]pipeline.Chunk
	of        *draft
	time      float64
}

// begin are the most promising drafts, the best first: those on stages of one size a type, and
// besides these the best on others where they are as good. Were all ranked together, those of
// one kind would leave no place for the other's by what is no more than the luck of a short
// search: plans of 4 in 9 problems of the evidence were slower, by 0.1 to 1.9 %.
func (p *Problem) begin(ctx context.Context, u turn) []*draft {
	x := newDispatcher(p)
	even := p.unequalShapes(false)
	first := slices.Clone(fastest(p.turned(ctx, x, p.priceAll(ctx, x, p.leads(ctx, even))), mostTried))
	more := p.others(ctx, x, first, even)
	more = slices.Clone(fastest(p.turned(ctx, x, more), len(more)))
	try := func(leads []lead) {
		for i := range leads {
			if l := &leads[i]; l.time < float64(forever) {
				l.of = improve(ctx, p, l.of, u, triedFor)
				x.settle(l.of)
				l.time = x.run(l.of, false)
			}
		}
	}
	try(first)
	try(more)
	first = fastest(first, mostBegun)
	worst := math.Inf(1)
	if len(first) == mostBegun {
		worst = first[mostBegun-1].time
	}
	for _, l := range fastest(more, mostMore) {
		if l.time < worst {
			first = append(first, l)
		}
	}
	var out []*draft
	for _, l := range fastest(first, len(first)) {
		if l.time < float64(forever) {
			out = append(out, l.of)
		}
	}
	return out
}

// leads are sets of stages with chunks of all kinds, and how long these promise to take.
func (p *Problem) leads(ctx context.Context, shapes [][]pipeline.Stage) []lead {
	var leads []lead
	for _, stages := range shapes {
		formulas := make([]formula, len(stages))
		for s := range stages {
			formulas[s] = p.fitted(stages[s].Ranks)
		}
		f, chunks := mean(formulas), 0
		for _, by := range cuttings() {
			if ctx.Err() != nil {
				break
			}
			l := lead{stages: stages, sequences: together(p.balanced(f, by))}
			if all := slices.Concat(l.sequences...); len(all) != chunks { // more slices do not always cut more
				l.time, chunks = p.promise(stages, formulas, all), len(all)
				leads = append(leads, l)
			}
		}
	}
	return leads
}

// priceAll simulates the most promising leads, the fastest first.
func (p *Problem) priceAll(ctx context.Context, x *dispatcher, leads []lead) []lead {
	leads = fastest(leads, mostPriced)
	for i := range leads {
		leads[i].time = math.Inf(1)
		if ctx.Err() == nil {
			p.price(x, &leads[i])
		}
	}
	return fastest(leads, mostPriced)
}

// turned adds to the fastest leads those with their types in other orders. Which is best of three
// types or more is no promise's to tell, and two orders are all that there are among leads.
func (p *Problem) turned(ctx context.Context, x *dispatcher, leads []lead) []lead {
	key := func(l *lead) string { return fmt.Sprint(keyOf(l.stages), len(slices.Concat(l.sequences...))) }
	seen := map[string]bool{}
	for i := range leads {
		seen[key(&leads[i])] = true
	}
	for _, l := range slices.Clone(leads[:min(len(leads), mostTried)]) {
		for _, stages := range p.rounds(l.stages) {
			other := lead{stages: stages, sequences: l.sequences, time: math.Inf(1)}
			if k := key(&other); !seen[k] && l.of != nil && ctx.Err() == nil {
				seen[k] = true
				p.price(x, &other)
				leads = append(leads, other)
			}
		}
	}
	return leads
}

// price makes a lead's draft, and simulates it.
func (p *Problem) price(x *dispatcher, l *lead) {
	if l.of = p.drafted(x, l.stages, l.sequences); l.of != nil {
		l.time = x.run(l.of, false)
	}
}

// thin leaves out a lead's slowest stage, and the next, as long as that makes it faster: a stage
// more does not always spare the others a layer, and has to be filled and drained.
func (p *Problem) thin(ctx context.Context, x *dispatcher, l lead) lead {
	for p.Stages == 0 && p.Fixed == nil && len(l.stages) > 1 && ctx.Err() == nil {
		fewer := lead{stages: p.quickest(l.stages, len(l.stages)-1), sequences: l.sequences, time: math.Inf(1)}
		if p.price(x, &fewer); fewer.time >= l.time {
			break
		}
		l = fewer
	}
	return l
}

// others are the first thinned, where that makes them faster, and the fastest leads on stages that
// are not even, one of each kind: chunks of several kinds on the same stages are often as fast.
func (p *Problem) others(ctx context.Context, x *dispatcher, first []lead, even [][]pipeline.Stage) []lead {
	var out []lead
	seen := map[string]bool{}
	for _, stages := range even {
		seen[keyOf(stages)] = true
	}
	shapes := slices.DeleteFunc(p.unequalShapes(true), func(x []pipeline.Stage) bool { return seen[keyOf(x)] })
	for _, l := range first {
		if thin := p.thin(ctx, x, l); len(thin.stages) < len(l.stages) {
			out = append(out, thin)
		}
	}
	out = slices.Clone(fastest(out, 1))
	for _, l := range p.priceAll(ctx, x, p.leads(ctx, shapes)) {
		if key := keyOf(l.stages); len(out) < mostOthers && !seen[key] && l.of != nil {
			seen[key] = true
			out = append(out, p.thin(ctx, x, l))
		}
	}
	return out
}

// fastest are so many of the leads, the fastest first.
func fastest(leads []lead, most int) []lead {
	slices.SortStableFunc(leads, func(a, b lead) int { return cmp.Compare(a.time, b.time) })
	return leads[:min(len(leads), most)]
}

// promise is about how long a step takes by the stages' formulas, and the loss in proportion to
// tokens: as long as the busiest stage, and a chunk takes to fill and drain all of them.
func (p *Problem) promise(stages []pipeline.Stage, formulas []formula, chunks []pipeline.Chunk) float64 {
	each, extra, most := make([]float64, len(stages)), make([]float64, len(stages)), make([]int, len(stages))
	last := len(stages) - 1
	for s, f := range formulas {
		for _, x := range chunks {
			each[s] += p.time(f, x)
		}
		most[s] = p.Layers
	}
	loss, tokens := p.Work(stages[last].Ranks, chunks[0]).Loss, units.Tokens(0)
	for _, n := range p.Lengths {
		tokens += n
	}
	extra[last] = float64(loss) * float64(tokens) / float64(p.Tokens(chunks[0]))
	busiest, through := 0.0, 0.0
	for s, x := range p.layered(stages, each, extra, most) {
		busiest = max(busiest, float64(x.Layers)*each[s]+extra[s])
		through += float64(x.Layers) * each[s] / float64(len(chunks))
	}
	return busiest + through
}

// mean is what chunks take on average in a layer of several stages.
func mean(of []formula) formula {
	var out formula
	for _, f := range of {
		out.square += f.square / float64(len(of))
		out.token += f.token / float64(len(of))
		out.each += f.each / float64(len(of))
	}
	return out
}

// drafted gives stages layers, and chunks an order and what is computed again; nil where
// there is no room. The dispatcher is
// left settled for the draft.
func (p *Problem) drafted(x *dispatcher, stages []pipeline.Stage, sequences [][]pipeline.Chunk) *draft {
	d := &draft{stages: slices.Clone(stages)}
	for s := range d.stages {
		d.stages[s].Layers = 1
	}
	for _, chunks := range sequences {
		var of []int
		for _, c := range chunks {
			of = append(of, len(d.items))
			d.items = append(d.items, p.priced(stages, c))
		}
		d.order = append(d.order, of)
	}
	for range stages {
		d.again = append(d.again, make([]int, len(d.items)))
	}
	each, extra, most := make([]float64, len(stages)), make([]float64, len(stages)), make([]int, len(stages))
	for s := range stages {
		for _, it := range d.items {
			w := &it.on[s]
			each[s] += w.forward + w.backward
			if s == len(stages)-1 {
				extra[s] += w.loss
			}
		}
		most[s] = x.mostLayers(d, s)
	}
	if d.stages = p.layered(d.stages, each, extra, most); d.stages == nil {
		return nil
	}
	x.settle(d)
	x.makeRoom(d)
	return d
}

// mostLayers is how many layers a stage has room for if all are computed again.
func (x *dispatcher) mostLayers(d *draft, s int) int {
	plan := &pipeline.Plan{Stages: slices.Clone(d.stages)}
	room := float64(x.p.Capacity(d.stages[s].Ranks))
	if room == 0 {
		return x.p.Layers
	}
	held, beside := 0.0, 0.0 // of a layer
	for _, items := range d.order {
		sum := 0.0
		for _, k := range items {
			b := &d.items[k].on[s]
			sum += b.againBytes + b.gradients
			beside = max(beside, b.work+b.kept, b.logits)
		}
		held = max(held, sum)
	}
	n := 0
	for n < x.p.Layers {
		plan.Stages[s].Layers = n + 1
		if float64(n+1)*held+beside+float64(x.p.States(plan, s)) > room {
			break
		}
		n++
	}
	return n
}

// makeRoom has as few layers computed again as let every sequence, and as many more chunks
// as there are stages behind, have room on every stage; or all layers.
func (x *dispatcher) makeRoom(d *draft) {
	for s := range d.stages {
		average, beside := 0.0, 0.0
		for k, it := range d.items {
			held, _ := x.holds(d, s, k)
			average += held / float64(len(d.items))
			beside = max(beside, it.on[s].work+it.on[s].kept, it.on[s].logits)
		}
		behind := float64(len(d.stages)-1-s) * average
		for _, items := range d.order {
			for n := 0; n <= d.stages[s].Layers; n++ {
				for _, k := range items {
					d.again[s][k] = n
				}
				if x.hold(d, s, items)+behind+beside <= x.room[s] {
					break
				}
			}
		}
	}
}
