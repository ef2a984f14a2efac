package solver

import (
	"fmt"
	"math"
	"math/bits"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/internal/strategy"
)

// perfModel is the analytic performance model that hexiseq scores candidates
// by. The paper calibrates one on measurements and prints no formula, so this is
// a reconstruction: the phases of a layer, divided by the all-to-alls, add up,
//
//	T = max_d linear(s_d) + all-to-all in + max_d ring_d + all-to-all out
//
// within a group, and the slowest group counts. A rank's ring is its own block
// and then, block by block, the longer of computing it and receiving it: blocks
// are forwarded on arrival, so no group waits for another's computing. Every term
// is priced by the laws that the simulator uses. Left out are queues at ports,
// buffers, borders that cut key-value heads, computing beside messages, and what
// all candidates have in common.
type perfModel struct {
	p       *strategy.Problem
	forward float64  // times the forward pass happens
	types   []string // device types
	dev     []int    // index into types, by rank
	memory  []costmodel.DeviceMemory
	held    *costmodel.MemoryModel
	linear  []linearTable  // by type
	lengths []units.Tokens // of the grid, so far
	blocks  map[blockKey]blockTime
	inside  []linkLaw // of messages in a node, by node
	network linkLaw   // of messages between nodes
	laws    map[lawOf]*costmodel.Law
	kernels []kernelLaws // by type
	fwd     op.AttnFwd   // passed by pointer, for thousands of blocks are priced
	bwd     op.AttnBwd
	merge   op.LSEMerge
	// nodeKind is equal for nodes of equal devices, links and cards.
	nodeKind []int
}

// linkLaw is a collective's law with what Over slows it by.
type linkLaw struct {
	law    *costmodel.Law
	factor float64
	ranks  int
}

func (l linkLaw) seconds(kind op.Kind, bytes float64) float64 {
	if bytes == 0 || l.law == nil {
		return 0
	}
	m := op.Message{Group: l.ranks, Bytes: units.Bytes(math.Ceil(bytes))}
	return l.factor * float64(l.law.MessageSeconds(kind, m))
}

type lawOf struct {
	on      string
	kind    op.Kind
	variant op.Variant
}

// kernelLaws are a device type's laws of attention, once they were asked for.
type kernelLaws struct {
	forward, backward [2]*costmodel.Law // FULL, DIAG
	merge             *costmodel.Law
}

func newPerfModel(p *strategy.Problem) (*perfModel, error) {
	m := &perfModel{p: p, forward: 1, blocks: map[blockKey]blockTime{}, laws: map[lawOf]*costmodel.Law{}, held: costmodel.NewMemoryModel(p.Job)}
	if p.Job.Recompute == costmodel.RecomputeFull {
		m.forward = 2
	}
	index := map[string]int{}
	for i, t := range p.DeviceTypes() {
		index[t] = i
		m.types = append(m.types, t)
		m.memory = append(m.memory, p.Predictor.DeviceMemory(p.Job, t))
		m.linear, m.kernels = append(m.linear, nil), append(m.kernels, kernelLaws{})
	}
	for _, r := range p.Ranks {
		m.dev = append(m.dev, index[r.Device])
	}
	return m, m.messages()
}

// messages finds the laws of passing blocks on.
func (m *perfModel) messages() error {
	nodes := m.p.NodeRanks()
	kinds := map[string]int{}
	var laws []linkLaw // by kind
	for i, ranks := range nodes {
		node := m.p.Job.Cluster.Nodes[i]
		key := fmt.Sprint(node.Link, node.NICs, node.Devices)
		k, seen := kinds[key]
		if !seen {
			k = len(laws)
			kinds[key] = k
			var l linkLaw
			var err error
			if len(ranks) > 1 {
				if l, err = m.over(node.Link, op.KindSendRecv, ranks); err != nil {
					return err
				}
			}
			laws = append(laws, l)
		}
		m.nodeKind, m.inside = append(m.nodeKind, k), append(m.inside, laws[k])
	}
	if len(nodes) < 2 {
		return nil
	}
	var err error
	m.network, err = m.over(m.p.Job.Cluster.Network, op.KindSendRecv, m.p.AllRanks())
	return err
}

func (m *perfModel) over(link string, kind op.Kind, ranks []int) (linkLaw, error) {
	law, factor, err := m.p.Predictor.Over(link, kind, m.p.MembersOf(ranks))
	return linkLaw{law, factor, len(ranks)}, err
}

// price is a kernel's time by its law. The simulator has asked for all of them
// when the problem was made, but for what a lone group needs.
func (m *perfModel) price(dev int, s op.Shape) float64 {
	var l *costmodel.Law
	return m.priceBy(&l, dev, s)
}

// priceBy is price with a law that is kept where it was looked up once.
func (m *perfModel) priceBy(l **costmodel.Law, dev int, s op.Shape) float64 {
	if *l == nil {
		*l = m.law(dev, s)
	}
	if *l == nil {
		return 0
	}
	return float64((*l).Seconds(s))
}

func (m *perfModel) law(dev int, s op.Shape) *costmodel.Law {
	k := lawOf{m.types[dev], s.Kind(), s.Variant()}
	l, ok := m.laws[k]
	if !ok {
		l, _ = m.p.Predictor.Law(k.on, k.kind, k.variant)
		m.laws[k] = l
	}
	return l
}

// linearTable is the linear time of a layer at a few lengths, by the number of
// the length on the grid; 0 where it is not known yet.
type linearTable []float64

// gridStep is the number of lengths a doubling at which linear work is priced.
const gridStep = 4

// linearTime is the seconds a device takes over the linear work of a layer on s
// tokens, all passes together: straight between the grid's lengths.
func (m *perfModel) linearTime(dev int, s units.Tokens) float64 {
	if s == 0 {
		return 0
	}
	at := gridStep * (bits.Len64(uint64(s)) - 1)
	for at+gridStep >= len(m.lengths) {
		m.lengths = append(m.lengths, gridLength(len(m.lengths)))
	}
	for last := at + gridStep - 1; at < last && m.lengths[at+1] <= s; {
		at++
	}
	lo, hi := m.lengths[at], m.lengths[at+1]
	a, b := m.linearAt(dev, at), m.linearAt(dev, at+1)
	if hi == lo {
		return a
	}
	return a + (b-a)*float64(s-lo)/float64(hi-lo)
}

func gridLength(at int) units.Tokens {
	return units.Tokens(math.Ceil(math.Exp2(float64(at) / gridStep)))
}

func (m *perfModel) linearAt(dev, at int) float64 {
	for at >= len(m.linear[dev]) {
		m.linear[dev] = append(m.linear[dev], 0)
	}
	t := &m.linear[dev][at]
	if *t == 0 {
		*t = m.linearCost(dev, m.lengths[at])
	}
	return *t
}

// linearCost is the linear work of a layer by the laws, and the loss as far as a
// layer's share of it.
func (m *perfModel) linearCost(dev int, s units.Tokens) float64 {
	j := m.p.Job
	md := j.Model
	rows := func(width int) op.Rowwise { return op.Rowwise{Tokens: s, Width: width, DType: j.DType} }
	// Backward, element-wise ops move about twice the bytes.
	total := (m.forward + 2) * (float64(md.Norms())*m.price(dev, op.Norm{Rowwise: rows(md.Hidden)}) + m.price(dev, md.Activated(s, j.DType)))
	if q, k := md.HeadNorms(); q > 0 {
		total += (m.forward + 2) * (m.price(dev, op.Norm{Rowwise: rows(q)}) + m.price(dev, op.Norm{Rowwise: rows(k)}))
	}
	if q, k := md.Rotary(); q > 0 {
		total += (m.forward + 2) * (m.price(dev, op.Rope{Rowwise: rows(q)}) + m.price(dev, op.Rope{Rowwise: rows(k)}))
	}
	q, kv := md.QHeads*md.HeadDim, md.KVHeads*md.HeadDim
	for _, w := range [][2]int{{q + 2*kv, md.Hidden}, {md.Hidden, q}, {md.GateUp(), md.Hidden}, {md.Hidden, md.FFN}} {
		total += m.products(dev, s, w[0], w[1], m.forward)
	}
	chunk := min(s, j.LossChunk)
	loss := m.products(dev, chunk, md.Vocab, md.Hidden, 1) + m.price(dev, op.CEChunk{Rowwise: op.Rowwise{Tokens: chunk, Width: md.Vocab, DType: op.F32}})
	return total + loss*float64(s)/float64(chunk)/float64(md.Layers)
}

// products is a linear layer's matrix products: forward so many times, and the
// two of the backward pass.
func (m *perfModel) products(dev int, s units.Tokens, n, k int, forward float64) float64 {
	at := func(pass op.Pass) float64 {
		return m.price(dev, op.GEMM{Pass: pass, M: s, N: n, K: k, DType: m.p.Job.DType})
	}
	return forward*at(op.Forward) + at(op.DGrad) + at(op.WGrad)
}

// blockKey is an attention block: of a group with q tokens on keys and values of
// another with kv tokens, 0 for its own.
type blockKey struct {
	dev, heads, kvHeads int
	q, kv               units.Tokens
}

// blockTime is the seconds of a block in one forward and one backward pass.
type blockTime struct{ forward, backward float64 }

func (t blockTime) plus(o blockTime) blockTime {
	return blockTime{t.forward + o.forward, t.backward + o.backward}
}

// longer is the longer of two in either pass.
func (t blockTime) longer(o blockTime) blockTime {
	return blockTime{max(t.forward, o.forward), max(t.backward, o.backward)}
}

// block prices the attention of the heads of one rank under the nested zigzag.
// A group sees half the keys of the groups inside it with all its queries, and
// all keys of those outside with half of them; the mean of both is taken.
func (m *perfModel) block(k blockKey) blockTime {
	if k.heads == 0 {
		return blockTime{}
	}
	t, ok := m.blocks[k]
	if ok {
		return t
	}
	switch half := (k.q + 1) / 2; {
	case k.kv == 0 && k.q < 2:
		t = m.kernel(k, op.Diag, k.q, k.q)
	case k.kv == 0:
		d, f := m.kernel(k, op.Diag, half, half), m.kernel(k, op.Full, half, half)
		t = blockTime{2*d.forward + f.forward, 2*d.backward + f.backward}
	default:
		a, b := m.kernel(k, op.Full, k.q, (k.kv+1)/2), m.kernel(k, op.Full, half, k.kv)
		t = blockTime{(a.forward + b.forward) / 2, (a.backward + b.backward) / 2}
	}
	m.blocks[k] = t
	return t
}

// kernel is one call, with the adding of its result, or of its gradients of
// queries, keys and values, to what the blocks before it left.
func (m *perfModel) kernel(k blockKey, mask op.Mask, q, kv units.Tokens) blockTime {
	j := m.p.Job
	kvHeads := k.kvHeads // repeated until the query heads share them evenly, as the simulator has it
	for k.heads%kvHeads != 0 {
		kvHeads++
	}
	a := op.Attention{Mask: mask, QLen: q, KVLen: kv, QHeads: k.heads, KVHeads: kvHeads, HeadDim: j.Model.HeadDim, DType: j.DType}
	m.fwd.Attention, m.bwd.Attention = a, a
	laws, masked := &m.kernels[k.dev], 0
	if mask == op.Diag {
		masked = 1
	}
	t := blockTime{m.priceBy(&laws.forward[masked], k.dev, &m.fwd), m.priceBy(&laws.backward[masked], k.dev, &m.bwd)}
	if mask == op.Full {
		merge := m.mergeTime(k.dev, q, k.heads)
		t.forward += merge
		t.backward += merge + m.mergeTime(k.dev, 2*kv, k.kvHeads)
	}
	return t
}

// mergeTime is adding so many tokens and heads to what the blocks before left.
func (m *perfModel) mergeTime(dev int, tokens units.Tokens, heads int) float64 {
	m.merge = op.LSEMerge{Tokens: tokens, QHeads: heads, HeadDim: m.p.Job.Model.HeadDim}
	return m.priceBy(&m.kernels[dev].merge, dev, &m.merge)
}

// wholeBlock is the attention of a group alone: one causal square.
func (m *perfModel) wholeBlock(k blockKey) blockTime {
	if k.heads == 0 {
		return blockTime{}
	}
	return m.kernel(k, op.Diag, k.q, k.q)
}
