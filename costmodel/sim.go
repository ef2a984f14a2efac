package costmodel

import (
	"fmt"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// SimOptions asks for more than the account of a step.
type SimOptions struct {
	// Timeline fills Step.Timeline.
	Timeline bool
}

// Simulate predicts one training step of a job under a layout.
//
// The step is a chain of stages: every layer forward, the loss, every layer
// backward (after its forward once more under full recomputation), gradient
// and parameter exchange, optimizer. All layers are alike, so one is simulated
// event by event (see ring) and counted Layers times. Ranks meet at the end of
// every stage and of every layer: an upper model, since a rank that is done
// early could already begin the next layer. Inside a ring they meet only
// through the blocks they pass on.
//
// Left out, because no law covers them: residual additions, the embedding
// lookup, adding a block's gradient to the travelling one (taken as part of
// the kernel), and any slow-down of computing while bytes move. The exchange
// of gradients and parameters overlaps with nothing.
//
// Time and every part are the laws' most likely values; the interval of Time
// follows the critical path through the stages, law by law (see account).
// Errors: an invalid job or layout, a device that the profile lacks, or the
// first missing law as *MissingLawError.
func Simulate(q *Predictor, j Job, l Layout) (*Step, error) {
	return SimulateWith(q, j, l, SimOptions{})
}

// SimulateWith is Simulate with options.
func SimulateWith(q *Predictor, j Job, l Layout, opts SimOptions) (*Step, error) {
	if err := j.Validate(); err != nil {
		return nil, fmt.Errorf("job: %w", err)
	}
	ranks := j.Cluster.Ranks()
	if err := l.Validate(j.SeqLen, len(ranks)); err != nil {
		return nil, fmt.Errorf("layout: %w", err)
	}
	s := &sim{coster: newCoster(q, j), job: j, layout: l, ranks: ranks}
	for _, r := range ranks {
		if _, err := q.Device(r.Device); err != nil {
			return nil, err
		}
	}
	if err := s.seat(); err != nil {
		return nil, err
	}
	s.simulate(opts)
	if s.err != nil {
		return nil, s.err
	}
	return s.step(), nil
}

// sim is one simulation.
type sim struct {
	*coster
	job     Job
	layout  Layout
	ranks   []Rank // of the cluster
	seats   []seat // of the ring
	stages  []stage
	traffic []Traffic
	spans   []Span
}

// seat is a place in the ring: who sits there and how it sends to the next.
type seat struct {
	rank   int
	device string
	shard  Shard
	tokens units.Tokens
	link   string // class of the link to the next seat
	law    int    // of that link
	group  int    // size of the group the law is asked for
}

// part is a named share of a step, in order of execution.
type part int

const (
	linearForward part = iota
	attentionForward
	lossPart
	recompute
	linearBackward
	attentionBackward
	ringWait
	idle
	gradientSync
	optimizerPart
	partCount
)

func partNames() [partCount]string {
	return [partCount]string{
		"linear forward", "attention forward", "loss", "recompute", "linear backward", "attention backward",
		"ring wait (exposed communication)", "idle", "gradient sync", "optimizer",
	}
}

// stage is a stretch of the step at whose end all ranks meet.
type stage struct {
	what   part    // what its ranks do, of linear and attention parts the linear one
	times  float64 // how often it happens
	length units.Seconds
	shares []share // by seat
	path   account // of length
}

// share is how a seat spends a stage; what is left of the length is idle.
type share struct {
	busy    [partCount]units.Seconds
	exposed units.Seconds
}

func (h share) computing() units.Seconds {
	var sum units.Seconds
	for _, t := range h.busy {
		sum += t
	}
	return sum
}

// seat takes the ranks with tokens into the ring and finds the law of each hop:
// over a node's link for the group of the node's ranks in the ring, over the
// network for the whole ring. The error is a link class nobody resolved.
func (s *sim) seat() error {
	for _, r := range s.layout.Ring {
		shard := s.layout.Shards[r]
		s.seats = append(s.seats, seat{rank: r, device: s.ranks[r].Device, shard: shard, tokens: shard.Tokens()})
	}
	if len(s.seats) < 2 {
		return nil
	}
	for i := range s.seats {
		a := &s.seats[i]
		from, to := s.ranks[a.rank].Node, s.ranks[s.seats[(i+1)%len(s.seats)].rank].Node
		node := -1
		if a.link = s.job.Cluster.Network; from == to {
			node, a.link = from, s.job.Cluster.Nodes[from].Link
		}
		if a.link == "" && node >= 0 {
			return fmt.Errorf("cluster.nodes[%d].link: empty, but ranks of node %s exchange keys and values; see Cluster.Resolve", node, s.job.Cluster.Nodes[node].Name)
		}
		if a.link == "" {
			return fmt.Errorf("cluster.network: empty, but ranks of different nodes exchange keys and values; see Cluster.Resolve")
		}
		members := s.members(node)
		a.group = op.GroupType{Members: members}.Ranks()
		a.law = s.over(a.link, op.KindSendRecv, node, members)
	}
	return nil
}

// members counts the devices in the ring by type, of one node or (-1) of all,
// in order of their first rank.
func (s *sim) members(node int) []op.Member {
	var members []op.Member
	at := map[string]int{}
	for _, a := range s.seats {
		if node >= 0 && s.ranks[a.rank].Node != node {
			continue
		}
		i, ok := at[a.device]
		if !ok {
			i = len(members)
			at[a.device] = i
			members = append(members, op.Member{Device: a.device})
		}
		members[i].Count++
	}
	return members
}

// simulate fills the stages, in order of execution.
func (s *sim) simulate(opts SimOptions) {
	layers := float64(s.job.Model.Layers)
	forward := s.newRing(false)
	backward := s.newRing(true)
	if s.err != nil {
		return
	}
	forward.run()
	backward.run()
	s.addLayers(forward, layers, linearForward, attentionForward)
	s.addRingTraffic(false)
	s.addLoss()
	if s.job.Recompute == RecomputeFull {
		s.addLayers(forward, layers, recompute, recompute)
		s.addRingTraffic(false)
	}
	s.addLayers(backward, layers, linearBackward, attentionBackward)
	s.addRingTraffic(true)
	s.addSync()
	s.addOptimizer()
	if opts.Timeline && s.err == nil {
		s.drawTimeline(forward, backward)
	}
}

// newRing prices one layer in one direction.
func (s *sim) newRing(back bool) *ring {
	n := len(s.seats)
	r := &ring{
		n: n, buffers: s.job.RingBuffers, back: back,
		pre: make([]units.Seconds, n), post: make([]units.Seconds, n),
		work: make([]units.Seconds, n*n), kv: make([]units.Seconds, n*n), grad: make([]units.Seconds, n*n),
	}
	for i := range n {
		r.pre[i] = s.price(taskID{taskPre, i, 0}, back, nil)
		r.post[i] = s.price(taskID{taskPost, i, 0}, back, nil)
		for t := range n {
			r.work[i*n+t] = s.price(taskID{taskStep, i, t}, back, nil)
			if n > 1 && t < n-1 {
				r.kv[i*n+t] = s.price(taskID{taskKV, i, t}, back, nil)
			}
			if n > 1 && back {
				r.grad[i*n+t] = s.price(taskID{taskGrad, i, t}, back, nil)
			}
		}
	}
	return r
}

// price is the time of one task of a layer, booked in acc if there is one.
func (s *sim) price(id taskID, back bool, acc *account) units.Seconds {
	a := &s.seats[id.i]
	switch {
	case id.kind == taskPre && back:
		return s.backToAttention(a.device, a.tokens, acc)
	case id.kind == taskPre:
		return s.beforeAttention(a.device, a.tokens, acc)
	case id.kind == taskPost && back:
		return s.backFromAttention(a.device, a.tokens, acc)
	case id.kind == taskPost:
		return s.afterAttention(a.device, a.tokens, acc)
	}
	of := s.owner(id)
	switch id.kind {
	case taskKV:
		return s.send(a.law, a.group, s.kvBytes(of), acc)
	case taskGrad:
		return s.send(a.law, a.group, s.gradBytes(of), acc)
	}
	return s.attention(a.device, a.shard, of.shard, back, acc)
}

// owner is the seat whose block a task is about.
func (s *sim) owner(id taskID) *seat {
	n := len(s.seats)
	return &s.seats[(id.i+n-id.t)%n]
}

// kvBytes is a shard's keys and values in the job's precision.
func (s *sim) kvBytes(of *seat) units.Bytes {
	return 2 * units.Bytes(of.tokens) * units.Bytes(s.job.Model.kvWidth()) * s.job.DType.Size()
}

// gradBytes is their gradients, in float32 because n shares are added up.
func (s *sim) gradBytes(of *seat) units.Bytes {
	return 2 * units.Bytes(of.tokens) * units.Bytes(s.job.Model.kvWidth()) * 4
}

// addLayers books a simulated ring `times` over.
func (s *sim) addLayers(r *ring, times float64, linear, attention part) {
	g := stage{what: linear, times: times, length: r.length, shares: make([]share, r.n)}
	for i := range r.n {
		h := &g.shares[i]
		h.busy[linear] += r.pre[i] + r.post[i]
		for t := range r.n {
			h.busy[attention] += r.work[i*r.n+t]
		}
		_, h.exposed = r.waits(i)
	}
	r.criticalPath(func(id taskID) { s.price(id, r.back, &g.path) })
	s.stages = append(s.stages, g)
}

// addLoss: every rank has its own tokens' loss to compute.
func (s *sim) addLoss() {
	s.addLocal(lossPart, func(a *seat, acc *account) units.Seconds { return s.loss(a.device, a.tokens, acc) })
}

func (s *sim) addOptimizer() {
	s.addLocal(optimizerPart, func(a *seat, acc *account) units.Seconds {
		return s.optimizer(a.device, len(s.seats), acc)
	})
}

// addLocal books a stage in which ranks only compute.
func (s *sim) addLocal(p part, cost func(*seat, *account) units.Seconds) {
	g := stage{what: p, times: 1, shares: make([]share, len(s.seats))}
	slowest := 0
	for i := range s.seats {
		t := cost(&s.seats[i], nil)
		g.shares[i].busy[p] = t
		if t > g.length {
			g.length, slowest = t, i
		}
	}
	cost(&s.seats[slowest], &g.path)
	s.stages = append(s.stages, g)
}

// addSync exchanges gradients and parameters, layer by layer and then what is
// in no layer. A collective is charged to the slowest class it crosses: the
// network unless all ranks share a node.
func (s *sim) addSync() {
	n := len(s.seats)
	g := stage{what: gradientSync, times: 1, shares: make([]share, n)}
	if n > 1 {
		node, link := -1, s.job.Cluster.Network
		if one, ok := s.oneNode(); ok {
			node, link = one, s.job.Cluster.Nodes[one].Link
		}
		members := s.members(node)
		for _, x := range s.exchanges() {
			g.length += s.collective(x, node, link, members, &g.path)
		}
	}
	for i := range g.shares {
		g.shares[i].busy[gradientSync] = g.length
	}
	s.stages = append(s.stages, g)
}

// exchange is a collective that a step runs `times` over.
type exchange struct {
	kind  op.Kind
	times float64
}

// exchanges follow Rajbhandari et al. 2020: without sharding an all-reduce of
// the gradients; with it a reduce-scatter and a gather of the new parameters;
// with sharded parameters a gather in either pass.
func (s *sim) exchanges() []exchange {
	switch s.job.zero() {
	case Zero0:
		return []exchange{{op.KindAllReduce, 1}}
	case Zero3:
		return []exchange{{op.KindReduceScatter, 1}, {op.KindAllGather, 2}}
	}
	return []exchange{{op.KindReduceScatter, 1}, {op.KindAllGather, 1}}
}

func (s *sim) collective(x exchange, node int, link string, members []op.Member, acc *account) units.Seconds {
	m := s.job.Model
	n := len(s.seats)
	law := s.over(link, x.kind, node, members)
	layer := units.Bytes(m.LayerParams()) * s.job.DType.Size()
	rest := units.Bytes(m.Params()-int64(m.Layers)*m.LayerParams()) * s.job.DType.Size()
	t := s.charge(law, op.OfMessage(x.kind, op.Message{Group: n, Bytes: layer}), x.times*float64(m.Layers), acc)
	t += s.charge(law, op.OfMessage(x.kind, op.Message{Group: n, Bytes: rest}), x.times, acc)
	// All ranks together send n-1 copies of the buffer, in an all-reduce twice.
	sent := units.Bytes(n-1) * (units.Bytes(m.Layers)*layer + rest) * units.Bytes(x.times)
	if x.kind == op.KindAllReduce {
		sent *= 2
	}
	s.addTraffic(link, sent)
	return t
}

// oneNode is the node that holds the whole ring, if one does.
func (s *sim) oneNode() (node int, ok bool) {
	node = s.ranks[s.seats[0].rank].Node
	for _, a := range s.seats {
		if s.ranks[a.rank].Node != node {
			return 0, false
		}
	}
	return node, true
}

// addRingTraffic books all layers' hops in one direction.
func (s *sim) addRingTraffic(back bool) {
	n := len(s.seats)
	if n < 2 {
		return
	}
	for i := range s.seats {
		var sent units.Bytes
		for t := range n {
			of := s.owner(taskID{taskKV, i, t})
			if t < n-1 {
				sent += s.kvBytes(of)
			}
			if back {
				sent += s.gradBytes(of)
			}
		}
		s.addTraffic(s.seats[i].link, sent*units.Bytes(s.job.Model.Layers))
	}
}

func (s *sim) addTraffic(link string, b units.Bytes) {
	for i := range s.traffic {
		if s.traffic[i].Link == link {
			s.traffic[i].Bytes += b
			return
		}
	}
	s.traffic = append(s.traffic, Traffic{link, b})
}
