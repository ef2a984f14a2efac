package costmodel

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// slowSim is a second, slow simulator, which shares nothing with the first but
// laws and blocks. Every task is a node of a graph whose start is the latest end
// of the tasks it is listed to wait for; ends are found by recursion.
type slowSim struct {
	t       testing.TB
	q       *Predictor
	j       Job
	l       Layout
	ranks   []Rank
	members []slowMember       // by rank
	shards  []Shard            // by group
	first   []int              // by group, how far behind it the first other one needs its block
	reach   []int              // and the last
	sent    []units.Tokens     // by group, how many of its tokens travel
	border  []bool             // query head h begins a segment of the common refinement
	working []int              // ranks of all groups
	w       map[[2]int]int     // key-value heads that ranks of different groups have in common
	sends   map[groupPass]bool // whether a group ever sends another anything in the ring
	// Of the direction at hand.
	back bool
	memo map[slowTask]float64
	hops map[slowHop]float64
	wire []slowTask              // messages in program order
	prev map[slowTask][]slowTask // messages before it on its ports
}

type slowMember struct {
	group int
	heads []int // query heads it computes
	kv    int   // distinct key-value heads of these
	s     units.Tokens
}

// slowTask is a task of one layer: rank i computes step t, or sends hop t to j.
type slowTask struct {
	kind    string
	t, i, j int
}

func newSlowSim(t testing.TB, p *Profile, x plan) *slowSim {
	s := &slowSim{t: t, q: NewPredictor(p), j: x.job, l: x.layout, ranks: x.job.Cluster.Ranks()}
	s.members = make([]slowMember, len(s.ranks))
	border := make([]bool, x.job.Model.QHeads+1)
	for g, group := range x.layout.Groups {
		first := 0
		for _, m := range group {
			a := slowMember{group: g, s: x.layout.Shards[m.Rank].Tokens()}
			for h := first; h < first+m.QHeads; h++ {
				a.heads = append(a.heads, h)
			}
			a.kv = s.kvOf(a.heads)
			border[first] = true
			first += m.QHeads
			s.members[m.Rank] = a
			s.working = append(s.working, m.Rank)
		}
		s.shards = append(s.shards, s.groupTokens(group))
	}
	for g := range x.layout.Groups {
		all := s.needed(g)
		s.sent = append(s.sent, s.travelling(g))
		s.first, s.reach = append(s.first, all[min(1, len(all)-1)]), append(s.reach, all[len(all)-1])
	}
	s.border = border
	s.w, s.hops, s.sends = map[[2]int]int{}, map[slowHop]float64{}, map[groupPass]bool{}
	for _, i := range s.working {
		for _, j := range s.working {
			if s.members[i].group != s.members[j].group {
				s.w[[2]int{i, j}] = s.kvBetween(i, j)
			}
		}
	}
	return s
}

// kvOf counts the key-value heads that query heads need.
func (s *slowSim) kvOf(heads []int) int {
	each := s.j.Model.QHeads / s.j.Model.KVHeads
	set := map[int]bool{}
	for _, h := range heads {
		set[h/each] = true
	}
	return len(set)
}

// kvBetween adds up, segment by segment of the common refinement, the key-value
// heads of the query heads that i and j share.
func (s *slowSim) kvBetween(i, j int) int {
	total := 0
	var segment []int
	for h := range s.j.Model.QHeads {
		if s.border[h] {
			total, segment = total+s.kvOf(segment), nil
		}
		if slices.Contains(s.members[i].heads, h) && slices.Contains(s.members[j].heads, h) {
			segment = append(segment, h)
		}
	}
	return total + s.kvOf(segment)
}

// groupTokens marks every token of a group and reads the runs off.
func (s *slowSim) groupTokens(g Group) Shard {
	in := make([]bool, s.j.SeqLen+1)
	for _, m := range g {
		for _, p := range s.l.Shards[m.Rank].positions() {
			in[p] = true
		}
	}
	var shard Shard
	start := -1
	for p, on := range in {
		if on && start < 0 {
			start = p
		}
		if !on && start >= 0 {
			shard.Segments = append(shard.Segments, Segment{units.Tokens(start), units.Tokens(p)})
			start = -1
		}
	}
	return shard
}

// op is the sum of ops on a rank's device.
func (s *slowSim) op(r int, shapes ...op.Shape) float64 {
	sum := 0.0
	for _, x := range shapes {
		e, err := s.q.Time(s.ranks[r].Device, x)
		if err != nil {
			s.t.Fatal(err)
		}
		sum += float64(e.Mid)
	}
	return sum
}

// over is a collective among ranks on a link class.
func (s *slowSim) over(link string, kind op.Kind, among []int, bytes float64) float64 {
	law, factor, err := s.q.Over(link, kind, s.membersOf(among))
	if err != nil {
		s.t.Fatal(err)
	}
	return float64(Transfer(law, factor, op.OfMessage(kind, op.Message{Group: len(among), Bytes: units.Bytes(math.Ceil(bytes))})).Mid)
}

// membersOf counts ranks by device type.
func (s *slowSim) membersOf(ranks []int) []op.Member {
	var members []op.Member
	for _, r := range ranks {
		k := slices.IndexFunc(members, func(m op.Member) bool { return m.Device == s.ranks[r].Device })
		if k < 0 {
			members, k = append(members, op.Member{Device: s.ranks[r].Device}), len(members)
		}
		members[k].Count++
	}
	return members
}

// link is the class between ranks: their node's, or the network.
func (s *slowSim) link(among []int) string {
	for _, r := range among {
		if s.ranks[r].Node != s.ranks[among[0]].Node {
			return s.j.Cluster.Network
		}
	}
	return s.j.Cluster.Nodes[s.ranks[among[0]].Node].Link
}

// linear is a rank's work before or after the ring.
func (s *slowSim) linear(r int, before bool) float64 {
	n, m := s.members[r].s, s.j.Model
	if n == 0 {
		return 0
	}
	rowwise := func(width int) op.Rowwise { return op.Rowwise{Tokens: n, Width: width, DType: op.F32} }
	gemms := func(out, in int) []op.Shape {
		g := op.GEMM{Pass: op.Forward, M: n, N: out, K: in, DType: op.F32}
		d, w := g, g
		d.Pass, w.Pass = op.DGrad, op.WGrad
		if s.back {
			return []op.Shape{d, w}
		}
		return []op.Shape{g}
	}
	light := func(shapes ...op.Shape) float64 {
		if s.back {
			return 2 * s.op(r, shapes...)
		}
		return s.op(r, shapes...)
	}
	q, kv := m.QHeads*m.HeadDim, m.KVHeads*m.HeadDim
	norm := op.Norm{Rowwise: rowwise(m.Hidden)}
	if before != s.back { // the half with the projection of q, k and v
		return light(norm, op.Rope{Rowwise: rowwise(q)}, op.Rope{Rowwise: rowwise(kv)}) + s.op(r, gemms(q+2*kv, m.Hidden)...)
	}
	return light(norm, op.SwiGLU{Rowwise: rowwise(m.FFN)}) +
		s.op(r, gemms(m.Hidden, q)...) + s.op(r, gemms(2*m.FFN, m.Hidden)...) + s.op(r, gemms(m.Hidden, m.FFN)...)
}

// work is what rank r computes with the block of group k.
func (s *slowSim) work(r, k int) float64 {
	a, m := s.members[r], s.j.Model
	if len(a.heads) == 0 {
		return 0
	}
	kv := a.kv
	for len(a.heads)%kv != 0 {
		kv++
	}
	sum := 0.0
	for _, b := range appendBlocks(nil, s.shards[a.group], s.shards[k]) {
		at := op.Attention{Mask: b.Mask, QLen: b.QLen, KVLen: b.KVLen, QHeads: len(a.heads), KVHeads: kv, HeadDim: m.HeadDim, DType: op.F32}
		// What a FULL block makes is added to what the blocks before it made: the
		// output, or backward the gradients of queries, keys and values.
		sums := []op.Shape{op.LSEMerge{Tokens: b.QLen, QHeads: len(a.heads), HeadDim: m.HeadDim}}
		if s.back {
			sum += s.op(r, op.AttnBwd{Attention: at})
			sums = append(sums, op.LSEMerge{Tokens: 2 * b.KVLen, QHeads: a.kv, HeadDim: m.HeadDim})
		} else {
			sum += s.op(r, op.AttnFwd{Attention: at})
		}
		if b.Mask == op.Full {
			sum += s.op(r, sums...)
		}
	}
	return sum
}

// ratio is a measured slow-down of the world's slow device.
func (s *slowSim) ratio(r int, side op.Slowed, back bool) float64 {
	if s.ranks[r].Device != "slow" {
		return 1
	}
	if side == op.SlowedCompute {
		return map[bool]float64{false: 1.2, true: 1.1}[back]
	}
	return map[bool]float64{false: 1.3, true: 1.5}[back]
}

// exchanged is the bytes that i sends to j in an all-to-all of their group.
func (s *slowSim) exchanged(i, j int, in bool) float64 {
	a, b := s.members[i], s.members[j]
	words := 0
	switch {
	case in && !s.back: // q, k, v to who computes the head
		words = int(a.s) * (len(b.heads) + 2*b.kv)
	case in: // gradient of the output
		words = int(a.s) * len(b.heads)
	case !s.back: // output to who owns the token
		words = int(b.s) * len(a.heads)
	default: // gradients of q, k, v
		words = int(b.s) * (len(a.heads) + 2*a.kv)
	}
	return float64(words * s.j.Model.HeadDim * 4)
}

// bytes is the size of a message: float32 either way.
func (s *slowSim) bytes(x slowTask) float64 {
	tokens := s.sent[s.source(x.i, x.t)]
	return 2 * float64(tokens) * float64(s.j.Model.HeadDim*s.w[[2]int{x.i, x.j}]) * 4
}

// travelling counts the tokens of a group's block that go round the ring, run by run: where
// tails stay at home not those of which no other group has a token behind the first.
func (s *slowSim) travelling(k int) (n units.Tokens) {
	for _, run := range s.shards[k].Segments {
		needed := !s.l.KeepTail
		for _, i := range s.working {
			for _, p := range s.l.Shards[i].positions() {
				needed = needed || s.members[i].group != k && p > run.Start
			}
		}
		if needed {
			n += run.Len()
		}
	}
	return n
}

// hop is how long a message takes.
func (s *slowSim) hop(x slowTask) float64 {
	key := slowHop{x, s.back}
	if t, ok := s.hops[key]; ok {
		return t
	}
	t := s.hopTime(x)
	s.hops[key] = t
	return t
}

// slowHop is a message in a direction of the layer.
type slowHop struct {
	slowTask
	back bool
}

func (s *slowSim) hopTime(x slowTask) float64 {
	bytes := s.bytes(x)
	among := s.working
	if s.ranks[x.i].Node == s.ranks[x.j].Node {
		among = nil
		for _, r := range s.working {
			if s.ranks[r].Node == s.ranks[x.i].Node {
				among = append(among, r)
			}
		}
	} else {
		bytes *= max(s.crowd(x, s.ranks[x.i].Node, 0), s.crowd(x, s.ranks[x.j].Node, 1))
	}
	slow := s.ratio(x.i, op.SlowedComm, true)
	if x.kind == "kv" {
		slow = max(slow, s.ratio(x.i, op.SlowedComm, false))
	}
	return slow * s.over(s.link(among), op.KindSendRecv, among, bytes)
}

// needed lists how far behind group k the groups are with a token behind its first.
func (s *slowSim) needed(k int) []int {
	n, first := len(s.l.Groups), s.shards[k].positions()[0]
	all := []int{0}
	for d := 1; d < n; d++ {
		if own := s.shards[(k+d)%n].positions(); slices.Max(own) > first {
			all = append(all, d)
		}
	}
	return all
}

func (s *slowSim) source(rank, t int) int {
	n := len(s.l.Groups)
	return (s.members[rank].group - t + n) % n
}

// layer is the length of a layer in a direction, and how long its busiest
// egress port is in use.
func (s *slowSim) layer(back bool) (length, busiest float64) {
	s.back, s.memo = back, map[slowTask]float64{}
	s.program()
	port := map[int]float64{}
	for _, r := range s.working {
		length = max(length, s.end(slowTask{"post", 0, r, 0}))
		if g := s.members[r].group; len(s.l.Groups[g]) > 1 {
			for c := range s.l.chunks() {
				port[r] += s.takes(slowTask{"in", c, g, 0}) + s.takes(slowTask{"out", c, g, 0})
			}
		}
	}
	for _, x := range s.wire {
		port[x.i] += s.hop(x)
	}
	for _, b := range port {
		busiest = max(busiest, b)
	}
	return length, busiest
}

// loss is what a rank takes over the loss of a micro-batch.
func (s *slowSim) loss(r int) float64 {
	n, m, sum := s.members[r].s, s.j.Model, 0.0
	for done := units.Tokens(0); done < n; done += s.j.LossChunk {
		chunk := min(s.j.LossChunk, n-done)
		g := op.GEMM{Pass: op.Forward, M: chunk, N: m.Vocab, K: m.Hidden, DType: op.F32}
		d, w := g, g
		d.Pass, w.Pass = op.DGrad, op.WGrad
		sum += s.op(r, op.CEChunk{Rowwise: op.Rowwise{Tokens: chunk, Width: m.Vocab, DType: op.F32}}, g, d, w)
	}
	if n > 0 {
		sum += 3 * s.op(r, op.Norm{Rowwise: op.Rowwise{Tokens: n, Width: m.Hidden, DType: op.F32}})
	}
	return sum
}

// optimizer is what a rank takes over its share of the parameters.
func (s *slowSim) optimizer(r int) float64 {
	params := s.j.Model.Params()
	if s.j.Zero != Zero0 {
		params = int64(math.Ceil(float64(params) / float64(len(s.working))))
	}
	return s.op(r, op.AdamW{Params: params})
}

// slowest is the longest time of any rank.
func (s *slowSim) slowest(of func(int) float64) float64 {
	most := 0.0
	for _, r := range s.working {
		most = max(most, of(r))
	}
	return most
}

// busy is what a rank computes in a step.
func (s *slowSim) busy(r int) float64 {
	pairs, singles := s.twos()
	sum := float64(2*pairs+singles) * s.loss(r)
	for _, back := range []bool{false, true} {
		s.back = back
		layer := s.linear(r, true) + s.linear(r, false)
		for t := range max(len(s.l.Groups), s.l.chunks()) {
			layer += s.takes(slowTask{"compute", t, r, 0})
		}
		layer *= float64(singles)
		if pairs > 0 {
			layer += float64(pairs) * (&slowPair{s: s}).busy(r)
		}
		if !back && s.j.Recompute == RecomputeFull {
			layer *= 2
		}
		sum += float64(s.j.Model.Layers) * layer
	}
	return sum + s.optimizer(r)
}

// step is the time of the whole step. A collective that may hide makes a layer
// as long as the busiest port needs for both.
func (s *slowSim) step() float64 {
	layers, micro := float64(s.j.Model.Layers), float64(max(1, s.j.Accumulate))
	total := s.slowest(s.optimizer) + micro*s.slowest(s.loss)
	rounds := s.rounds()
	for _, x := range rounds {
		total += layers * x.times * (x.forward + x.backward)
	}
	last := rounds[len(rounds)-1]
	behind := func(times, length, port, collective float64) float64 {
		return times * (max(length, port+collective) - length)
	}
	one := func(kind op.Kind) float64 { return s.collective(kind, 4*float64(s.j.Model.LayerParams())) }
	rest := func(kind op.Kind) float64 {
		return s.collective(kind, 4*float64(s.j.Model.Params()-int64(s.j.Model.Layers)*s.j.Model.LayerParams()))
	}
	inLayers := func(times, batches, length, port float64, kinds ...op.Kind) { // `times` passes of so many over all layers
		sum := 0.0
		for _, k := range kinds {
			sum += batches * one(k)
			total += times * batches * rest(k)
		}
		if !s.j.OverlapZero {
			total += times * layers * sum
			return
		}
		total += times*sum + behind(times*(layers-1), length, port, sum)
	}
	switch s.j.Zero {
	case Zero0:
		inLayers(1, 1, last.backward, last.bPort, op.KindAllReduce)
	case Zero1:
		inLayers(1, 1, last.backward, last.bPort, op.KindReduceScatter)
		total += layers*one(op.KindAllGather) + rest(op.KindAllGather)
	case Zero2:
		for _, x := range rounds {
			inLayers(x.times, x.batches, x.backward, x.bPort, op.KindReduceScatter)
		}
		total += layers*one(op.KindAllGather) + rest(op.KindAllGather)
	default:
		for _, x := range rounds {
			inLayers(x.times, x.batches, x.forward, x.fPort, op.KindAllGather)
			inLayers(x.times, x.batches, x.backward, x.bPort, op.KindAllGather, op.KindReduceScatter)
		}
	}
	return total
}

func (s *slowSim) collective(kind op.Kind, bytes float64) float64 {
	if len(s.working) < 2 {
		return 0
	}
	return s.over(s.link(s.working), kind, s.working, bytes)
}

func TestStepAgainstSlowReference(t *testing.T) {
	groups := map[int]int{}
	for seed := range uint64(400) {
		rng := rand.New(rand.NewPCG(seed, 20))
		p, x := world(t, rng, faster{}), randomPlan(rng)
		got, err := Simulate(NewPredictor(p), x.job, x.layout, SimOptions{})
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		slow := newSlowSim(t, p, x)
		if want := units.Seconds(slow.step()); !near(got.Time.Mid, want, 1e-9) {
			t.Fatalf("seed %d: %v, reference %v\n%v, %+v\n%+v", seed, float64(got.Time.Mid), float64(want), x.job.Cluster, x.layout.Groups, got.Parts)
		}
		for _, r := range slow.working {
			if busy := units.Seconds(slow.busy(r)); !near(got.Ranks[r].Busy, busy, 1e-9) {
				t.Fatalf("seed %d, rank %d: busy %v, reference %v", seed, r, got.Ranks[r].Busy, busy)
			}
		}
		groups[len(x.layout.Groups)]++
	}
	t.Logf("plans by number of groups: %v", groups)
}
