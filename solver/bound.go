package solver

import (
	"cmp"
	"math"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// lowerBound is a time in seconds that no layout which fits the devices can beat in the
// simulator, whatever its split of tokens and heads, its groups and their ring, its
// choice of ranks, and its segments.
//
// The ranks that take part are one alone, several of one node, or some of several nodes
// and of certain device types; and their number lies in a certain range (see scope). The
// bound is the least over all these cases. In each case let F and B be the time of a
// layer's forward and backward pass, including what they do not hide of the exchange of
// gradients and parameters. The step then takes
//
//	micro layers (F + [recomputed] F + B) + micro loss + open exchange + optimizer
//
// where micro is the number of micro-batches. F, B and the loss each last until the
// slowest rank is done. Two floors follow, of which the larger counts: that of the
// slowest rank in each stage by itself, and that of a single rank over all stages, which
// cannot exceed the sum of the slowest. With two or more micro-batches these may go
// through the layers in pairs (costmodel.Layout.TwoBatch): all-to-alls then occupy ports
// but no rank's computing, and members of a group wait less for each other. F and B are
// then half the time of a pair.
//
// Each floor is the optimum of a small program over shares of tokens and of (query, key,
// head) triples (leastWork), with lower bounds
//
//   - on linear work: what the laws charge for the tokens (linearFloor);
//   - on attention: the best rate of the kernels on blocks no larger, and with no more
//     heads, than the rank has in all, including the merging of results (attentionFloor);
//   - on communication: what has to pass the ports of a rank, exposed or hidden behind
//     attention (border), and what all ports together carry besides gradients and
//     parameters (ports);
//   - on memory: what tokens and heads need at least (memoryFloor).
//
// Ranks that form a single group have a floor of their own (oneGroup): the causal square
// of all tokens by whole heads, and all-to-alls at their price. It is within about a
// percent of the time of equal ranks.
//
// Not bounded, so that plans of several groups stay further above: that a rank has both
// squares on the diagonal and rectangles, of which one may run at a lower rate; waiting
// for the first and the last block of a ring; which links are inside a node, except for
// collectives and single groups; sharing of network cards.
//
// Errors: *costmodel.MissingLawError.
func lowerBound(profile *costmodel.Profile, predictor *costmodel.Predictor, job costmodel.Job) (units.Seconds, error) {
	f, err := newFloors(profile, predictor, job)
	if err != nil {
		return 0, err
	}
	least := f.eitherWay()
	if math.IsInf(least, 1) {
		// Nothing fits; what does not is still bounded by work and wires.
		f.unlimited = true
		least = f.eitherWay()
	}
	return units.Seconds(least), nil
}

// eitherWay is the floor over layouts whose micro-batches run one by one and, if there
// are several, in pairs. Pairs need more memory and mostly have the lower floor.
func (f *floors) eitherWay() float64 {
	least, scopes := math.Inf(1), f.scopes()
	if f.twoBatch = f.job.Accumulate > 1; f.twoBatch {
		least = f.over(scopes, least)
		tight := func(s scope) bool { return !f.roomForAll(s) }
		scopes = slices.DeleteFunc(slices.Clone(scopes), func(s scope) bool { return !slices.ContainsFunc(s.ranges(f.size), tight) })
		f.twoBatch = false
	}
	return f.over(scopes, least)
}

// roomForAll says that memory limits no rank of a scope's layouts: not even one with all
// tokens and heads. Then layouts whose micro-batches go in twos have the lower floors.
func (f *floors) roomForAll(s scope) bool {
	if f.unlimited {
		return true
	}
	all, m := float64(f.job.SeqLen), f.job.Model
	return !slices.ContainsFunc(f.names, func(name string) bool {
		ring, group := f.memory(name, s.most), f.groupMemory(name, s.most)
		fits := ring.room() >= all && ring.pairs(all) >= all*(all+1)/2*float64(m.QHeads) && group.room() >= all && group.pairs(all) >= float64(m.QHeads)
		return s.counts[name] > 0 && !fits
	})
}

// ranges cuts a scope by the number of ranks at work: few have less to exchange
// and more to compute. Small numbers are looked at by themselves, of others those
// between one and its double, the same for all scopes of a cluster.
func (s scope) ranges(ranks int) []scope {
	var all []scope
	for most := s.size(); most >= s.least; most = s.fewest - 1 {
		s.most, s.fewest = most, max(s.least, most)
		if most > eachRank {
			from := ranks
			for from >= most {
				from = (from - 1) / 2
			}
			s.fewest = max(s.least, from+1)
		}
		all = append(all, s)
	}
	return all
}

// eachRank is up to how many ranks at work each number is looked at by itself.
const eachRank = 16

// scope is a set of ranks of which a layout may use some, with bounds on how many.
type scope struct {
	counts map[string]int // ranks to choose from, by device type
	least  int            // fewest ranks that take part
	fewest int            // fewest and most in the range under consideration, see ranges
	most   int
	node   int  // index of the node that holds all of them, or -1
	exact  bool // at least one rank of each device type takes part
}

// scopes lists what the ranks at work may be: one alone, several on one node, or
// some of more than one node, by their device types.
func (f *floors) scopes() []scope {
	var all []scope
	add := func(s scope) {
		if !slices.ContainsFunc(all, func(o scope) bool { return f.same(s, o) }) {
			all = append(all, s)
		}
	}
	c := f.job.Cluster
	whole := map[string]int{}
	for i, n := range c.Nodes {
		of := map[string]int{}
		for _, m := range n.Devices {
			of[m.Device] += m.Count
			whole[m.Device] += m.Count
			add(scope{counts: map[string]int{m.Device: 1}, least: 1, node: i})
		}
		if inside := (scope{counts: of, least: 2, node: i}); inside.size() > 1 {
			add(inside)
		}
	}
	if len(c.Nodes) > 1 {
		for _, s := range f.byTypes(whole) {
			add(s)
		}
	}
	slices.SortStableFunc(all, func(a, b scope) int { return cmp.Compare(b.size(), a.size()) })
	return all
}

// byTypes lists the scopes of several nodes: what the ranks exchange is priced by
// the device types at work, so that each choice of these is one; of many types, all
// choices together.
func (f *floors) byTypes(whole map[string]int) []scope {
	if len(f.names) > mostTypes {
		return []scope{{counts: whole, least: 2, node: -1}}
	}
	var all []scope
	for bits := 1; bits < 1<<len(f.names); bits++ {
		s := scope{counts: map[string]int{}, node: -1, exact: true}
		for i, name := range f.names {
			if bits>>i&1 == 1 {
				s.counts[name] = whole[name]
			}
		}
		nodes := 0
		for _, n := range f.job.Cluster.Nodes {
			if s.within(n) > 0 {
				nodes++
			}
		}
		if s.least = max(2, len(s.counts)); nodes > 1 {
			all = append(all, s)
		}
	}
	return all
}

// mostTypes bounds the device types whose choices are told apart.
const mostTypes = 4

// size is the number of ranks to choose from.
func (s scope) size() int {
	n := 0
	for _, k := range s.counts {
		n += k
	}
	return n
}

// same says whether two scopes have the same floors.
func (f *floors) same(a, b scope) bool {
	if a.least != b.least || len(a.counts) != len(b.counts) || (a.node < 0) != (b.node < 0) {
		return false
	}
	for d, n := range a.counts {
		if b.counts[d] != n {
			return false
		}
	}
	return a.least == 1 || a.node < 0 || f.job.Cluster.Nodes[a.node].Link == f.job.Cluster.Nodes[b.node].Link
}

// linkOf is the link class that all collectives among a scope's ranks cross.
func (f *floors) linkOf(s scope) string {
	if s.node < 0 {
		return f.job.Cluster.Network
	}
	return f.job.Cluster.Nodes[s.node].Link
}

// ringWork is what the floors of a scope's layouts of several groups, or of a lone
// rank, are made of.
type ringWork struct {
	f       *floors
	scope   scope
	x       exchanged
	classes []class
	rest    float64 // seconds of a step outside its layers and the loss
}

func (f *floors) ringOf(s scope) *ringWork {
	x := f.exchange(s)
	return &ringWork{f, s, x, f.classes(s), x.open + f.optimizer(s)}
}

// inLevels is a floor of a weighted sum of stages by the tokens of groups, which take
// long, and count most where they count often.
func (r *ringWork) inLevels(forward, backward, loss, beside float64) *leastWork {
	w := newLeastWork(r.f.job, r.classes, [stageCount]float64{forward, backward, loss})
	w.ranks, w.beside, w.singles, w.twoBatch = r.scope.most, beside, r.scope.most == 2, r.f.twoBatch
	return w
}

// work is one whatever the groups.
func (r *ringWork) work(forward, backward, loss, beside float64) *leastWork {
	w := r.inLevels(forward, backward, loss, beside)
	w.levels = nil
	return w
}

// joint is one rank's sum of all stages of a step.
func (r *ringWork) joint() *leastWork {
	layers, micro, again := r.f.counts()
	return r.work(layers*micro*(1+again), layers*micro, micro, (layers-1)*micro*(r.x.forward+r.x.backward))
}

// ofRing is the floor of the layouts of several groups, or of a lone rank, or more
// than enough where it proves that to be.
func (f *floors) ofRing(s scope, enough float64) float64 {
	r := f.ringOf(s)
	x, rest, joint := r.x, r.rest, r.joint()
	layers, micro, again := f.counts()
	if !math.IsInf(enough, 1) && (rest > enough || joint.tooSmall(enough-rest)) {
		return math.Inf(1)
	}
	// A layer with nothing to hide is soon known, and well enough: there is one of it.
	bare, loss := passes{r.work(1, 0, 0, 0).about(), r.work(again, 1, 0, 0).about()}, r.work(0, 0, 1, 0).about()
	layersOf := func(alone, more passes) float64 {
		hidden := max(alone.forward, x.forward+more.forward) + max(alone.backward, x.backward+again*more.forward+more.backward)
		return micro*(bare.forward+bare.backward+(layers-1)*hidden+loss) + (layers-1)*max(0, x.last-f.atOnce()*alone.backward) + rest
	}
	if !math.IsInf(enough, 1) && layersOf(bare, passes{}) > enough {
		return math.Inf(1)
	}
	together := joint.solve()
	if math.IsInf(together, 1) {
		return together
	}
	alone := passes{r.inLevels(1, 0, 0, x.forward).from(bare.forward, exact), r.inLevels(again, 1, 0, x.backward).from(bare.backward, exact)}
	apart := func(more passes) float64 { return layersOf(alone, more) }
	base := max(together+rest, apart(passes{}))
	if s.least == 1 || base > enough {
		return base
	}
	weights := [stageCount]float64{layers * micro * (1 + again), layers * micro, micro}
	return f.byPorts(s, &groupWork{classes: r.classes, weights: weights, beside: rest, base: base}, apart)
}

// atOnce is how many micro-batches go through a layer together.
func (f *floors) atOnce() float64 {
	if f.twoBatch {
		return 2
	}
	return 1
}

// counts are the layers, the micro-batches and how often a layer's forward pass
// is computed again.
func (f *floors) counts() (layers, micro, again float64) {
	if f.job.Recompute == costmodel.RecomputeFull {
		again = 1
	}
	return float64(f.job.Model.Layers), float64(max(1, f.job.Accumulate)), again
}

// classes are the devices of a scope.
func (f *floors) classes(s scope) []class {
	var all []class
	for _, name := range f.names {
		n := s.counts[name]
		if n == 0 {
			continue
		}
		c := f.types[name]
		c.count = n
		if !f.unlimited {
			c.memory = f.memory(name, s.most)
		}
		if s.least > 1 {
			row, hop := f.perByteOf(name, op.KindAllToAll, s), f.perByteOf(name, op.KindSendRecv, s)
			c.rank = f.borderOf(row, hop)
		}
		all = append(all, c)
	}
	return all
}

// optimizer is the least time of the update: of n ranks at work the slowest is
// at best the n-th fastest, and none has less than its share among the most.
func (f *floors) optimizer(s scope) float64 {
	params := f.job.Model.Params()
	if f.job.Zero != costmodel.Zero0 {
		params = (params + int64(s.most) - 1) / int64(s.most)
	}
	var t []float64
	for _, name := range f.names {
		for range min(s.fewest, s.counts[name]) {
			t = append(t, float64(f.adamw[name].Seconds(op.AdamW{Params: params})))
		}
	}
	slices.Sort(t)
	return t[s.fewest-1]
}
