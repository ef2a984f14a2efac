package analytic

import (
	"fmt"
	"math"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/internal/strategy"
)

// Model is the analytic performance model that hexiseq scores candidates
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
type Model struct {
	Types    []string                 // device types
	TypeOf   []int                    // index into Types, by rank
	NodeKind []int                    // equal for nodes of equal devices, links and cards
	Forwards float64                  // times the forward pass happens
	Inside   []Link                   // of messages in a node, by node
	Network  Link                     // of messages between nodes
	Memory   []costmodel.DeviceMemory // by type
	Held     *costmodel.MemoryModel   // what shares need of it

	p       *strategy.Problem
	laws    map[lawOf]*costmodel.Law
	rates   []units.BytesPerS // by node: see Predictor.NodeRates
	inside  []Link            // of all-to-alls in a node, by node: see sides
	linear  []linearTable     // by type
	lengths []units.Tokens    // of the grid, so far
	blocks  map[Block]Times
	kernels []kernelLaws // by type
	fwd     op.AttnFwd   // passed by pointer, for thousands of blocks are priced
	bwd     op.AttnBwd
	merge   op.LSEMerge
}

// Link is a collective's law with what Over slows it by.
type Link struct {
	law    *costmodel.Law
	factor float64
	ranks  int
}

// Seconds is the time of a message or a collective that carries so many bytes a rank.
func (l Link) Seconds(kind op.Kind, bytes float64) float64 {
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

// New is the model of a problem. The error is a law that nobody measured.
func New(p *strategy.Problem) (*Model, error) {
	m := &Model{p: p, Forwards: 1, blocks: map[Block]Times{}, laws: map[lawOf]*costmodel.Law{}, Held: costmodel.NewMemoryModel(p.Job), rates: p.Predictor.NodeRates(p.Job.Cluster)}
	if p.Job.Recompute == costmodel.RecomputeFull {
		m.Forwards = 2
	}
	index := map[string]int{}
	for i, t := range p.DeviceTypes() {
		index[t] = i
		m.Types = append(m.Types, t)
		m.Memory = append(m.Memory, p.Predictor.DeviceMemory(p.Job, t))
		m.linear, m.kernels = append(m.linear, nil), append(m.kernels, kernelLaws{})
	}
	for _, r := range p.Ranks {
		m.TypeOf = append(m.TypeOf, index[r.Device])
	}
	return m, m.messages()
}

// messages finds the laws of passing blocks on.
func (m *Model) messages() error {
	nodes := m.p.NodeRanks()
	kinds := map[string]int{}
	var laws []Link // by kind
	for i, ranks := range nodes {
		node := m.p.Job.Cluster.Nodes[i]
		key := fmt.Sprint(node.Link, node.NICs, node.Devices)
		k, seen := kinds[key]
		if !seen {
			k = len(laws)
			kinds[key] = k
			var l Link
			var err error
			if len(ranks) > 1 {
				if l, err = m.Over(node.Link, op.KindSendRecv, ranks); err != nil {
					return err
				}
			}
			laws = append(laws, l)
		}
		m.NodeKind, m.Inside = append(m.NodeKind, k), append(m.Inside, laws[k])
	}
	if len(nodes) < 2 {
		return nil
	}
	m.inside = m.sides()
	var err error
	m.Network, err = m.Over(m.p.Job.Cluster.Network, op.KindSendRecv, m.p.AllRanks())
	return err
}

// Over is the law of a collective among ranks over a link class.
func (m *Model) Over(link string, kind op.Kind, ranks []int) (Link, error) {
	law, factor, err := m.p.Predictor.Over(link, kind, m.p.MembersOf(ranks))
	return Link{law, factor, len(ranks)}, err
}

// Across is Over of the network, in one ring through all of the ranks' nodes.
func (m *Model) Across(kind op.Kind, ranks []int) (Link, error) {
	slowest := units.BytesPerS(math.Inf(1))
	for _, r := range ranks {
		slowest = min(slowest, m.rates[m.p.Ranks[r].Node])
	}
	law, factor, err := m.p.Predictor.Across(m.p.Job.Cluster.Network, kind, m.p.MembersOf(ranks), slowest)
	return Link{law, factor, len(ranks)}, err
}

// Price is a kernel's time by its law. The simulator has asked for all of them
// when the problem was made, but for what a lone group needs.
func (m *Model) Price(dev int, s op.Shape) float64 {
	var l *costmodel.Law
	return m.priceBy(&l, dev, s)
}

// priceBy is price with a law that is kept where it was looked up once.
func (m *Model) priceBy(l **costmodel.Law, dev int, s op.Shape) float64 {
	if *l == nil {
		*l = m.law(dev, s)
	}
	if *l == nil {
		return 0
	}
	return float64((*l).Seconds(s))
}

func (m *Model) law(dev int, s op.Shape) *costmodel.Law {
	k := lawOf{m.Types[dev], s.Kind(), s.Variant()}
	l, ok := m.laws[k]
	if !ok {
		l, _ = m.p.Predictor.Law(k.on, k.kind, k.variant)
		m.laws[k] = l
	}
	return l
}

// Hopeless is how many times slower than the best the analytic model must find a
// layout for it not to be simulated. The model leaves out the queues at ports,
// which only make a layout slower, and is within this factor of the simulator on
// equal shares (TestModelOfEqualShares of package baseline).
const Hopeless = 1.2
