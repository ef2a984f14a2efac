package solver

import (
	"cmp"
	"math"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// LowerBound is a time that no layout of the problem beats in the simulator:
// not with any split of tokens and of (query, key) pairs over the ranks, nor
// with any ring or any choice of ranks left out. Memory is ignored.
//
// With n ranks at work the simulator charges, one after another and each to
// its end: the layers with the loss, gradient exchange, optimizer. So
//
//	bound = min over n of  max(work(n), wire(n)) + exchange(n) + optimizer(n)
//
// work(n) is the optimum of the linear program
//
//	min theta   sum s_d = S,  sum p_d = P,  lin_d s_d + att_d p_d <= theta,  s, p >= 0
//
// over the best n devices, where S is the number of tokens, P = S(S+1)/2 that
// of pairs a head, and lin_d, att_d are the least seconds a token and a pair
// that device d can be charged by its laws (floors.go). Its dual is
//
//	max u S + v P   u <= lin_d w_d,  v <= att_d w_d,  sum w_d = 1,  w >= 0
//
// and with v = r u the weights must be at least u max(1/lin_d, r/att_d), so
//
//	theta = max over r >= 0 of  (S + r P) / sum_d max(1/lin_d, r/att_d)
//
// Between two breakpoints r = att_d/lin_d that is a quotient of affine
// functions and so monotone: the maximum is at a breakpoint, at 0 or at
// infinity. Every r gives a lower bound by weak duality, for a set of n devices
// also with the n largest terms in place of the set's own.
//
// Errors: *costmodel.MissingLawError.
func LowerBound(p *Problem) (units.Seconds, error) {
	f, err := newFloors(p)
	if err != nil {
		return 0, err
	}
	best := math.Inf(1)
	for n := 1; n <= len(p.ranks); n++ {
		best = min(best, max(f.work(n), f.wire(n))+f.exchange(n)+f.optimizer(n))
	}
	return units.Seconds(best), nil
}

// rate is the least seconds a device is charged a token and a pair.
type rate struct{ lin, att float64 }

// leastWork solves the linear program of LowerBound for the best n of the
// devices, exactly if n is all of them.
func leastWork(rates []rate, n int, tokens, pairs float64) float64 {
	best := pairs / sumLargest(rates, n, func(d rate) float64 { return 1 / d.att }) // r to infinity
	at := func(r float64) {
		w := sumLargest(rates, n, func(d rate) float64 { return max(1/d.lin, r/d.att) })
		best = max(best, (tokens+r*pairs)/w)
	}
	at(0)
	tried := map[rate]bool{}
	for _, d := range rates {
		if !tried[d] {
			tried[d] = true
			at(d.att / d.lin)
		}
	}
	return best
}

func sumLargest(rates []rate, n int, weight func(rate) float64) float64 {
	w := make([]float64, len(rates))
	for i, d := range rates {
		w[i] = weight(d)
	}
	slices.SortFunc(w, func(a, b float64) int { return cmp.Compare(b, a) })
	total := 0.0
	for _, x := range w[:n] {
		total += x
	}
	return total
}

// work is the least time that n ranks need for layers and loss.
func (f *floors) work(n int) float64 {
	s := float64(f.p.Job.SeqLen)
	return leastWork(f.rates, n, s, s*(s+1)/2)
}

// wire is the least time that the busiest port of a ring of n needs. In a
// direction the port into rank i carries every block but i's own, S - s_i rows;
// some rank has no more than S/n of them. If the ring spans nodes at least two
// of its ports are on the network, and one of their two receivers has no more
// than S/2. Gradients of all S rows cross every port.
func (f *floors) wire(n int) float64 {
	if n < 2 {
		return 0
	}
	j := f.p.Job
	kv := float64(2*j.Model.KVHeads*j.Model.HeadDim) * float64(j.DType.Size())
	grad := float64(2*j.Model.KVHeads*j.Model.HeadDim) * 4
	passes := 2.0
	if j.Recompute == costmodel.RecomputeFull {
		passes = 3
	}
	s, layers := float64(j.SeqLen), float64(j.Model.Layers)
	rows := func(share float64) float64 { return layers * s * (passes*kv*share + grad) }
	least := f.perByte(n, false) * rows(1-1/float64(n))
	if n > f.largestNode {
		least = max(least, f.perByte(n, true)*rows(0.5))
	}
	return least
}

// perByte is the least seconds a byte of a hop in a ring of n: of any link
// class of the cluster, or of the network.
func (f *floors) perByte(n int, network bool) float64 {
	j := f.p.Job
	most := 2 * units.Bytes(j.SeqLen) * units.Bytes(j.Model.KVHeads*j.Model.HeadDim) * max(4, j.DType.Size())
	least := math.Inf(1)
	for _, l := range append(f.made(op.KindSendRecv, n), f.hops...) {
		if !network || f.link(l) == j.Cluster.Network {
			least = min(least, l.Factor()*float64(l.Curve.FloorPerByte(most)))
		}
	}
	if math.IsInf(least, 1) {
		return 0
	}
	return least
}

// exchange is the least time of the collectives that a step of n ranks ends
// with. Which law the simulator asks depends on which ranks they are; the
// cheapest law of the link classes they could use is a floor.
func (f *floors) exchange(n int) float64 {
	if n < 2 {
		return 0
	}
	m := f.p.Job.Model
	layer := units.Bytes(m.LayerParams()) * f.p.Job.DType.Size()
	rest := units.Bytes(m.Params()-int64(m.Layers)*m.LayerParams()) * f.p.Job.DType.Size()
	total := 0.0
	for _, x := range f.exchanges {
		one := f.cheapest(x.kind, n, layer)
		total += x.times * (float64(m.Layers)*one + f.cheapest(x.kind, n, rest))
	}
	return total
}

func (f *floors) cheapest(k op.Kind, n int, b units.Bytes) float64 {
	least := math.Inf(1)
	for _, l := range append(f.made(k, n), f.collectives[k]...) {
		// Beyond the largest node only the network holds all ranks together.
		if n > f.largestNode && f.link(l) != f.p.Job.Cluster.Network {
			continue
		}
		least = min(least, float64(l.Predict(op.OfMessage(k, op.Message{Group: n, Bytes: b})).Mid))
	}
	if math.IsInf(least, 1) {
		return 0
	}
	return least
}

// optimizer is the least time of the update: n ranks are at work, so the
// slowest of them is at best the n-th fastest.
func (f *floors) optimizer(n int) float64 {
	params := f.p.Job.Model.Params()
	if f.p.Job.Zero != costmodel.Zero0 {
		params = (params + int64(n) - 1) / int64(n)
	}
	var t []float64
	for _, l := range f.adamw {
		t = append(t, float64(l.Predict(op.AdamW{Params: params}).Mid))
	}
	slices.Sort(t)
	return t[n-1]
}
