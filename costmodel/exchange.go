package costmodel

import (
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// exchanged is the time, in seconds, of the exchange of gradients and parameters: per
// layer, what may hide behind its forward pass, behind its backward pass in every
// micro-batch, and behind the last micro-batch's backward pass only; and open, per step,
// what nothing can hide.
type exchanged struct{ forward, backward, last, open units.Seconds }

// Exchange is a collective over the parameters or gradients of every layer.
type Exchange struct {
	Kind op.Kind
	When Moment
}

// Moment says when in a step an Exchange takes place.
type Moment int8

// The moments of an exchange. Zero is none of them.
const (
	InForward      Moment = iota + 1 // of every micro-batch
	InBackward                       // of every micro-batch
	InLastBackward                   // of the step
	AtTheEnd                         // of the step, behind nothing
)

// EachMicroBatch says whether the exchange takes place in every micro-batch, as opposed
// to once in a step.
func (m Moment) EachMicroBatch() bool { return m == InForward || m == InBackward }

// times is how often in a step of the job.
func (m Moment) times(j Job) float64 {
	if m.EachMicroBatch() {
		return j.microBatches()
	}
	return 1
}

// Exchanges lists the collectives of the job's ZeRO stage (Rajbhandari et al. 2020).
// ZeRO-0 all-reduces the gradients. ZeRO-1 and ZeRO-2 reduce-scatter the gradients and
// all-gather the new parameters. ZeRO-3 all-gathers parameters in both passes and
// reduce-scatters gradients. From ZeRO-2 on gradients are sharded, and since no rank has
// room to accumulate all of them, they are reduced in every micro-batch.
func (j Job) Exchanges() []Exchange {
	switch j.zero() {
	case Zero0:
		return []Exchange{{op.KindAllReduce, InLastBackward}}
	case Zero1:
		return []Exchange{{op.KindReduceScatter, InLastBackward}, {op.KindAllGather, AtTheEnd}}
	case Zero2:
		return []Exchange{{op.KindReduceScatter, InBackward}, {op.KindAllGather, AtTheEnd}}
	}
	return []Exchange{{op.KindAllGather, InForward}, {op.KindReduceScatter, InBackward}, {op.KindAllGather, InBackward}}
}

// Collective is a collective over parameters or gradients of the given bytes, and how
// often a step runs it.
type Collective struct {
	Kind  op.Kind
	Bytes units.Bytes
	Times float64 // per step
}

// Collectives lists the collectives of a step in which all ranks take part, whether or
// not computing hides them.
func (j Job) Collectives() []Collective {
	var all []Collective
	for _, x := range j.Exchanges() {
		times := x.When.times(j)
		all = append(all, Collective{x.Kind, j.LayerBytes(), times * float64(j.Model.Layers)}, Collective{x.Kind, j.RestBytes(), times})
	}
	return all
}

// LayerBytes is the size of one layer's parameters, or of their gradients, in an exchange.
func (j Job) LayerBytes() units.Bytes { return units.Bytes(j.Model.LayerParams()) * j.DType.Size() }

// RestBytes is that of the parameters in no layer.
func (j Job) RestBytes() units.Bytes {
	return units.Bytes(j.Model.Params()-int64(j.Model.Layers)*j.Model.LayerParams()) * j.DType.Size()
}

// exchange prices the exchange of gradients and parameters. What may hide
// behind layers does so if the job says so, but for the first layer that is
// gathered and the last that is reduced, which have nothing to hide behind, and
// for the parameters in no layer.
//
// A collective is charged to the slowest class it crosses: the network unless
// all ranks share a node.
func (s *sim) exchange() exchanged {
	if s.seated.whole != nil {
		return *s.seated.whole
	}
	var x exchanged
	if len(s.seats) < 2 {
		return x
	}
	node := s.oneNode()
	members := s.membersOf(0, len(s.seats))
	layers := units.Seconds(s.job.Model.Layers)
	for _, c := range s.exchanges() {
		one, rest := s.collective(c, node, members, nil)
		times := units.Seconds(c.When.times(s.job))
		x.open += times * rest
		if c.When == AtTheEnd || !s.job.OverlapZero {
			x.open += times * layers * one
			continue
		}
		x.open += times * one
		switch c.When {
		case InForward:
			x.forward += one
		case InBackward:
			x.backward += one
		case InLastBackward:
			x.last += one
		}
	}
	if s.err == nil {
		s.seated.whole = &x
	}
	return x
}

// exchanges are the job's, as the library has them.
func (s *sim) exchanges() []Exchange {
	all := s.job.Exchanges()
	for i := range all {
		if s.reduced.Whole && all[i].Kind == op.KindReduceScatter {
			all[i].Kind = op.KindAllReduce
		}
	}
	return all
}

// travels is how many bytes a collective has of those that parameters are in the job's precision.
func (s *sim) travels(kind op.Kind, b units.Bytes) units.Bytes {
	if kind == op.KindAllGather || s.reduced.DType == "" {
		return b
	}
	return b / s.job.DType.Size() * s.reduced.DType.Size()
}

// collective is the time of one layer's parameters and of the rest.
func (s *sim) collective(c Exchange, node int, members []op.Member, acc *account) (layer, rest units.Seconds) {
	n := len(s.seats)
	law := s.among(node, c.Kind, members)
	key := wholeKey{law, n}
	if known, ok := s.whole[key]; ok && acc == nil {
		return known[0], known[1]
	}
	layer = s.charge(law, op.OfMessage(c.Kind, op.Message{Group: n, Bytes: s.travels(c.Kind, s.job.LayerBytes())}), 1, acc)
	rest = s.charge(law, op.OfMessage(c.Kind, op.Message{Group: n, Bytes: s.travels(c.Kind, s.job.RestBytes())}), 1, acc)
	if s.err == nil {
		s.whole[key] = [2]units.Seconds{layer, rest}
	}
	return layer, rest
}

// addHidden books the part of a collective that a layer does not hide. The collective and
// the layer's messages use the same ports, so the busiest port is occupied for the sum of
// both.
func (s *sim) addHidden(times float64, length, busiest, collective units.Seconds) {
	if over := busiest + collective - length; times > 0 && collective > 0 && over > 0 {
		s.stages = append(s.stages, stage{what: gradientSync, times: times, length: min(over, collective)})
	}
}

// among finds the number of a collective's law among members that hold all seats: on a node,
// or on those of the seats.
func (s *sim) among(node int, kind op.Kind, members []op.Member) int {
	if node >= 0 {
		return s.over(s.linkOf(node), kind, members)
	}
	return s.across(kind, members, func(yield func(int) bool) {
		for i := range s.seats {
			if !yield(s.seats[i].node) {
				return
			}
		}
	})
}

// oneNode is the node that holds all seats, or -1.
func (s *sim) oneNode() int {
	node := s.seats[0].node
	for i := range s.seats {
		if s.seats[i].node != node {
			return -1
		}
	}
	return node
}

// countTraffic adds up what crosses each link class in a step. With thousands of ranks
// and of micro-batches that may be more than the largest size, which it then is.
func (s *sim) countTraffic() {
	layers := int64(s.job.Model.Layers) * int64(s.job.microBatches())
	forward := int64(1)
	if s.job.Recompute == RecomputeFull {
		forward = 2
	}
	for g := range s.groups {
		b := &s.groups[g]
		kv, grads := s.passed(g)
		for _, h := range b.out {
			link := s.linkOf(s.commonNode(h.from, h.to))
			s.addTraffic(link, layers, s.kvBytes(kv, h.kv).Times(forward+1).Plus(s.gradBytes(grads, h.kv)))
		}
		for _, h := range b.home {
			s.addTraffic(s.linkOf(s.commonNode(h.from, h.to)), layers, s.gradBytes(b.sent, h.kv))
		}
		for _, x := range []exchangeKind{tokensIn, outputOut} {
			s.addToAll(x, b, layers*forward)
		}
		for _, x := range []exchangeKind{outputIn, tokensOut} {
			s.addToAll(x, b, layers)
		}
	}
	s.addCollectives()
}

// passed is the tokens of all blocks that a group passes on to the next, and of
// those whose gradients it does.
func (s *sim) passed(g int) (kv, grads units.Tokens) {
	for k := range s.groups {
		block, gradients := s.passes(g, k)
		if block {
			kv += s.groups[k].sent
		}
		if gradients {
			grads += s.groups[k].sent
		}
	}
	return kv, grads
}

func (s *sim) commonNode(i, j int) int {
	if s.seats[i].node == s.seats[j].node {
		return s.seats[i].node
	}
	return -1
}

// addToAll books the bytes of one all-to-all of a group, those that stay in a
// node apart from those that leave it.
func (s *sim) addToAll(x exchangeKind, b *seatGroup, times int64) {
	by := s.rowsOf(x)
	members := s.seats[b.from:b.to]
	if len(members) < 2 {
		return
	}
	sends, receives := make([]float64, len(s.nodes)), make([]float64, len(s.nodes))
	var allSends, allReceives, inside float64
	within := make([]float64, len(s.nodes))
	for i := range members {
		a, r := by.send(&members[i]), by.receive(&members[i])
		n := members[i].node
		sends[n], receives[n] = sends[n]+a, receives[n]+r
		within[n] -= a * r
		allSends, allReceives = allSends+a, allReceives+r
	}
	for n := range s.nodes {
		if sends[n] > 0 || receives[n] > 0 {
			within[n] += sends[n] * receives[n]
			inside += sends[n] * receives[n]
			s.addTraffic(s.linkOf(n), times, units.BytesOf(within[n]))
		}
	}
	s.addTraffic(s.linkOf(-1), times, units.BytesOf(allSends*allReceives-inside))
}

// addCollectives books the exchange of gradients and parameters: all ranks together send
// n-1 copies of the buffer, in an all-reduce twice, round a ring of n hops, of which one
// leaves every node where there are several.
func (s *sim) addCollectives() {
	n := len(s.seats)
	if n < 2 {
		return
	}
	for _, c := range s.job.Collectives() {
		copies := int64(n - 1)
		if c.Kind == op.KindAllReduce {
			copies *= 2
		}
		all := c.Bytes.Times(copies)
		if node := s.oneNode(); node >= 0 {
			s.addTraffic(s.linkOf(node), int64(c.Times), all)
			continue
		}
		between := all
		for node := range s.nodes {
			if hops := units.Bytes(s.nodes[node].seats - 1); hops > 0 {
				inside := all/units.Bytes(n)*hops + all%units.Bytes(n)*hops/units.Bytes(n)
				s.addTraffic(s.linkOf(node), int64(c.Times), inside)
				between -= inside
			}
		}
		s.addTraffic(s.linkOf(-1), int64(c.Times), between)
	}
}

// addTraffic books some bytes that cross a link class so many times.
func (s *sim) addTraffic(link string, times int64, b units.Bytes) {
	if b = b.Times(times); b == 0 {
		return
	}
	for i := range s.traffic {
		if s.traffic[i].Link == link {
			s.traffic[i].Bytes = s.traffic[i].Bytes.Plus(b)
			return
		}
	}
	s.traffic = append(s.traffic, Traffic{link, b})
}
