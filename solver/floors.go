package solver

import (
	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// floors is what LowerBound knows of a problem.
type floors struct {
	p           *Problem
	rates       []rate           // by rank
	adamw       []*costmodel.Law // by rank
	hops        []*costmodel.Law // send_recv laws of the cluster's link classes
	collectives map[op.Kind][]*costmodel.Law
	exchanges   []exchange
	links       map[string]string // link class by group signature
	used        map[string]bool   // link classes of the cluster
	largestNode int               // devices
}

type exchange struct {
	kind  op.Kind
	times float64
}

func newFloors(p *Problem) (*floors, error) {
	f := &floors{p: p, collectives: map[op.Kind][]*costmodel.Law{}, links: map[string]string{}}
	f.exchanges = []exchange{{op.KindReduceScatter, 1}, {op.KindAllGather, 2}}
	switch p.Job.Zero {
	case costmodel.Zero0:
		f.exchanges = []exchange{{op.KindAllReduce, 1}}
	case costmodel.Zero1, costmodel.Zero2:
		f.exchanges[1].times = 1
	}
	for _, node := range p.Job.Cluster.Nodes {
		n := 0
		for _, m := range node.Devices {
			n += m.Count
		}
		f.largestNode = max(f.largestNode, n)
	}
	f.groupLaws()
	return f, f.deviceLaws()
}

// groupLaws collects the laws of collectives on the cluster's link classes.
func (f *floors) groupLaws() {
	f.used = map[string]bool{f.p.Job.Cluster.Network: true}
	for _, node := range f.p.Job.Cluster.Nodes {
		f.used[node.Link] = true
	}
	for _, g := range f.p.Profile.Groups {
		f.links[g.Name] = g.Link
	}
	for i := range f.p.Profile.Laws {
		l := &f.p.Profile.Laws[i]
		switch {
		case l.Group == "" || !f.used[f.links[l.Group]]:
		case l.Op == op.KindSendRecv:
			f.hops = append(f.hops, l)
		default:
			f.collectives[l.Op] = append(f.collectives[l.Op], l)
		}
	}
}

func (f *floors) link(l *costmodel.Law) string { return f.links[l.Group] }

// made lists the laws that the predictor makes of a collective for groups of up
// to n equal devices that were not measured: those may lie below every law that
// was. Rings of unlike devices have none, and neither have measured groups.
func (f *floors) made(k op.Kind, n int) []*costmodel.Law {
	var all []*costmodel.Law
	most := map[string]int{}
	for _, d := range f.p.devices {
		most[d.Name]++
	}
	sizes := []int{n}
	if k == op.KindSendRecv { // asked of the ring's ranks on one node
		sizes = sizes[:0]
		for i := 2; i <= n; i++ {
			sizes = append(sizes, i)
		}
	}
	for link := range f.used {
		for name, count := range most {
			for _, size := range sizes {
				if size > count {
					continue
				}
				if l, _, err := f.p.Predictor.Over(link, k, []op.Member{{Device: name, Count: size}}); err == nil {
					f.links[l.Group] = link
					all = append(all, l)
				}
			}
		}
	}
	return all
}

// deviceLaws finds every rank's floors. Equal devices share one computation.
func (f *floors) deviceLaws() error {
	known := map[string]rate{}
	for _, d := range f.p.devices {
		if _, ok := known[d.Name]; !ok {
			lin, err := f.perToken(d.Name)
			if err != nil {
				return err
			}
			att, err := f.perPair(d.Name)
			if err != nil {
				return err
			}
			known[d.Name] = rate{lin, att}
		}
		f.rates = append(f.rates, known[d.Name])
		l, err := f.p.Predictor.Law(d.Name, op.KindAdamW, op.AdamW{}.Variant())
		if err != nil {
			return err
		}
		f.adamw = append(f.adamw, l)
	}
	return nil
}

// call is an op that a rank runs `times` over in a step with so many tokens.
type call struct {
	shape op.Shape
	times float64
}

// perToken is the least seconds a token that a device is charged for all but
// attention, in all layers and passes.
func (f *floors) perToken(device string) (float64, error) {
	total := 0.0
	for _, c := range append(f.layerCalls(f.p.Job.SeqLen), f.lossCalls()...) {
		law, err := f.p.Predictor.Law(device, c.shape.Kind(), c.shape.Variant())
		if err != nil {
			return 0, err
		}
		total += c.times * floorPerToken(law, c.shape)
	}
	return total, nil
}

// floorPerToken is the least seconds a token of a law over all shapes with at
// most the given one's tokens, its other axes fixed. Element-wise ops have rows
// and bytes in exact proportion to tokens, whichever form their law has, so that
// only the launch and the steps of a curve are left to fall.
func floorPerToken(law *costmodel.Law, largest op.Shape) float64 {
	if g, ok := largest.(op.GEMM); ok {
		return law.FloorPerToken(g)
	}
	tokens := tokensOf(largest)
	if law.Linear != nil {
		return float64(law.Seconds(largest)) / tokens
	}
	most := op.Volume(largest)
	return law.Factor() * float64(law.Curve.FloorPerByte(most)) * float64(most) / tokens
}

func tokensOf(s op.Shape) float64 {
	switch s := s.(type) {
	case op.Norm:
		return float64(s.Tokens)
	case op.Rope:
		return float64(s.Tokens)
	case op.SwiGLU:
		return float64(s.Tokens)
	case op.CEChunk:
		return float64(s.Tokens)
	}
	panic("solver: no token axis in " + string(s.Kind()))
}

// layerCalls lists the linear part of all layers, forward and backward.
// Element-wise ops count twice backward, as the simulator charges them.
func (f *floors) layerCalls(s units.Tokens) []call {
	j := f.p.Job
	m := j.Model
	q, kv := m.QHeads*m.HeadDim, m.KVHeads*m.HeadDim
	layers := float64(m.Layers)
	forward := layers
	if j.Recompute == costmodel.RecomputeFull {
		forward *= 2
	}
	rows := func(width int) op.Rowwise { return op.Rowwise{Tokens: s, Width: width, DType: j.DType} }
	both := forward + 2*layers
	calls := []call{
		{op.Norm{Rowwise: rows(m.Hidden)}, 2 * both},
		{op.Rope{Rowwise: rows(q)}, both},
		{op.Rope{Rowwise: rows(kv)}, both},
		{op.SwiGLU{Rowwise: rows(m.FFN)}, both},
	}
	for _, w := range [][2]int{{q + 2*kv, m.Hidden}, {m.Hidden, q}, {2 * m.FFN, m.Hidden}, {m.Hidden, m.FFN}} {
		calls = append(calls,
			call{op.GEMM{Pass: op.Forward, M: s, N: w[0], K: w[1], DType: j.DType}, forward},
			call{op.GEMM{Pass: op.DGrad, M: s, N: w[0], K: w[1], DType: j.DType}, layers},
			call{op.GEMM{Pass: op.WGrad, M: s, N: w[0], K: w[1], DType: j.DType}, layers})
	}
	return calls
}

// lossCalls lists the final norm and one full chunk of the loss; smaller chunks
// cost no less a token. The simulator takes losses in float32.
func (f *floors) lossCalls() []call {
	j := f.p.Job
	m := j.Model
	chunk := min(j.SeqLen, j.LossChunk)
	calls := []call{
		{op.Norm{Rowwise: op.Rowwise{Tokens: j.SeqLen, Width: m.Hidden, DType: j.DType}}, 3},
		{op.CEChunk{Rowwise: op.Rowwise{Tokens: chunk, Width: m.Vocab, DType: op.F32}}, 1},
	}
	for _, pass := range []op.Pass{op.Forward, op.DGrad, op.WGrad} {
		calls = append(calls, call{op.GEMM{Pass: pass, M: chunk, N: m.Vocab, K: m.Hidden, DType: j.DType}, 1})
	}
	return calls
}

// perPair is the least seconds a (query, key) pair, all heads of it, that a
// device is charged in all layers and passes. Merging partial results is left
// out: how often it happens depends on the layout.
func (f *floors) perPair(device string) (float64, error) {
	j := f.p.Job
	forward, backward := float64(j.Model.Layers), float64(j.Model.Layers)
	if j.Recompute == costmodel.RecomputeFull {
		forward *= 2
	}
	fwd, err := f.cheapestMask(device, func(a op.Attention) op.Featured { return op.AttnFwd{Attention: a} })
	if err != nil {
		return 0, err
	}
	bwd, err := f.cheapestMask(device, func(a op.Attention) op.Featured { return op.AttnBwd{Attention: a} })
	return forward*fwd + backward*bwd, err
}

// cheapestMask takes the cheaper of FULL and DIAG blocks. A ring of one rank
// has no FULL block, so without its law DIAG stands alone.
func (f *floors) cheapestMask(device string, as func(op.Attention) op.Featured) (float64, error) {
	j := f.p.Job
	a := op.Attention{Mask: op.Diag, QHeads: j.Model.QHeads, KVHeads: j.Model.KVHeads, HeadDim: j.Model.HeadDim, DType: j.DType}
	law, err := f.p.Predictor.Law(device, as(a).Kind(), a.Variant())
	if err != nil {
		return 0, err
	}
	least := law.FloorPerPair(a, j.SeqLen, as)
	if len(f.p.ranks) == 1 {
		return least, nil
	}
	a.Mask = op.Full
	if law, err = f.p.Predictor.Law(device, as(a).Kind(), a.Variant()); err != nil {
		return 0, err
	}
	return min(least, law.FloorPerPair(a, j.SeqLen, as)), nil
}
