package bound

import (
	"cmp"
	"math"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// exchanged is what of the exchange of gradients and parameters hides behind a
// layer's forward pass, its backward pass in every micro-batch or in the last,
// and behind nothing.
type exchanged struct{ forward, backward, last, open float64 }

// use is a collective over every layer's parameters.
type use struct {
	kind  op.Kind
	hides *float64 // where it may hide; nil for nowhere
	times float64  // in a step
}

// uses lists the collectives of the job's ZeRO stage and where in x each may hide.
func (f *floors) uses(x *exchanged) []use {
	_, micro, _ := f.counts()
	hides := map[costmodel.Moment]*float64{costmodel.InForward: &x.forward, costmodel.InBackward: &x.backward, costmodel.InLastBackward: &x.last}
	var all []use
	for _, e := range f.job.Exchanges() {
		u := use{e.Kind, hides[e.When], 1}
		if e.When.EachMicroBatch() {
			u.times = micro
		}
		all = append(all, u)
	}
	return all
}

// exchange is the least of the exchange of as many ranks as a scope allows, as
// the simulator prices it.
func (f *floors) exchange(s scope) exchanged {
	var x exchanged
	if s.most < 2 {
		return x
	}
	j := f.job
	for _, u := range f.uses(&x) {
		one := f.cheapest(s, u.kind, j.LayerBytes())
		x.open += u.times * f.cheapest(s, u.kind, j.RestBytes())
		if u.hides == nil || !j.OverlapZero {
			x.open += u.times * float64(j.Model.Layers) * one
			continue
		}
		x.open += u.times * one
		*u.hides += one
	}
	return x
}

// cheapest is the least that a collective takes among as many ranks.
func (f *floors) cheapest(s scope, k op.Kind, b units.Bytes) float64 {
	link := f.linkOf(s)
	of := func(n int) op.Shape { return op.OfMessage(k, op.Message{Group: n, Bytes: b}) }
	least := math.Inf(1)
	if s.most > eachCount {
		// A port carries no less among more ranks.
		for _, l := range f.lawsOver(link, k) {
			each := l.Factor() * float64(l.Curve.FloorPerByte(op.Volume(of(s.most))))
			least = min(least, each*float64(op.Volume(of(s.fewest))))
		}
	} else {
		for n := s.fewest; n <= s.most; n++ {
			for _, l := range f.ringLaws(s, k, n, f.lawsAmong(s, link, k, n)) {
				least = min(least, float64(costmodel.Transfer(l.law, l.factor, of(n)).Mid))
			}
		}
	}
	if math.IsInf(least, 1) {
		return 0
	}
	return least
}

// ringLaws are the laws that the predictor may answer with for a collective in one ring of n
// ranks of a scope (Predictor.Across), of those that it would without their nodes: for an
// assumed one between nodes, all as slow as the slowest of the fastest nodes that hold so many.
func (f *floors) ringLaws(s scope, k op.Kind, n int, laws []lawUse) []lawUse {
	assumed := func(u lawUse) bool { return u.law.Assumed != "" }
	if s.node >= 0 || !slices.ContainsFunc(laws, assumed) {
		return laws
	}
	rings := f.predictor.RingLaws(f.job.Cluster.Network, k, f.fastest(s, n))
	if len(rings) == 0 {
		return laws
	}
	laws = slices.DeleteFunc(slices.Clone(laws), assumed)
	for _, l := range rings {
		laws = append(laws, lawUse{l, 1})
	}
	return laws
}

// fastest is the most that the slowest of the nodes sends in one ring which hold n ranks of a
// scope, on two nodes at least.
func (f *floors) fastest(s scope, n int) units.BytesPerS {
	if f.rates == nil {
		f.rates = f.predictor.NodeRates(f.job.Cluster)
		f.byRate = make([]int, len(f.rates))
		for i := range f.byRate {
			f.byRate[i] = i
		}
		slices.SortStableFunc(f.byRate, func(a, b int) int { return cmp.Compare(f.rates[b], f.rates[a]) })
	}
	held, nodes := 0, 0
	for _, i := range f.byRate {
		if ranks := s.within(f.job.Cluster.Nodes[i]); ranks > 0 {
			held, nodes = held+ranks, nodes+1
		}
		if held >= n && nodes > 1 {
			return f.rates[i]
		}
	}
	return units.BytesPerS(math.Inf(1))
}

// eachCount is from where on laws are not asked for every number of ranks.
const eachCount = 256
