package costmodel

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// slowPair is the slow simulator of a layer that two micro-batches go through together.
type slowPair struct {
	s    *slowSim
	memo map[pairTask]float64
	prev map[pairTask][]pairTask // the last before it on each port of a message or an all-to-all
}

// pairTask is a task of the first micro-batch of the two or of the second.
type pairTask struct {
	second bool
	slowTask
}

// slowPort is one of the two ports of a rank.
type slowPort struct {
	rank int
	in   bool
}

// slowRound is how often micro-batches go through the layers together, and what a layer
// then takes; backward is with what is recomputed.
type slowRound struct{ times, batches, forward, fPort, backward, bPort float64 }

// twos is how many pairs of micro-batches there are, and how many go alone.
func (s *slowSim) twos() (pairs, singles int) {
	n := max(1, s.j.Accumulate)
	if !s.l.TwoBatch {
		return 0, n
	}
	return n / 2, n % 2
}

// rounds lists the passes of a step, the single one last.
func (s *slowSim) rounds() []slowRound {
	var all []slowRound
	add := func(times, batches int, layer func(back bool) (float64, float64)) {
		if times == 0 {
			return
		}
		x := slowRound{times: float64(times), batches: float64(batches)}
		x.forward, x.fPort = layer(false)
		x.backward, x.bPort = layer(true)
		if s.j.Recompute == RecomputeFull {
			x.backward, x.bPort = x.backward+x.forward, x.bPort+x.fPort
		}
		all = append(all, x)
	}
	pairs, singles := s.twos()
	add(pairs, 2, (&slowPair{s: s}).layer)
	add(singles, 1, s.layer)
	return all
}

// layer is the length of a pair's layer, and how long its busiest egress port is in use.
func (p *slowPair) layer(back bool) (length, busiest float64) {
	p.s.back, p.memo = back, map[pairTask]float64{}
	p.program()
	for _, r := range p.s.working {
		length = max(length, p.end(pairTask{true, slowTask{"post", 0, r, 0}}))
		port := 2 * (p.toAll(p.s.members[r].group, true) + p.toAll(p.s.members[r].group, false))
		for _, x := range p.s.wire {
			if x.i == r {
				port += 2 * p.s.hop(x)
			}
		}
		busiest = max(busiest, port)
	}
	return length, busiest
}

// busy is what a rank computes in a pair's layer.
func (p *slowPair) busy(r int) float64 {
	sum := 0.0
	for _, second := range []bool{false, true} {
		for t := range p.s.l.Groups {
			sum += p.takes(pairTask{second, slowTask{"compute", t, r, 0}})
		}
		sum += p.takes(pairTask{second, slowTask{"pre", 0, r, 0}}) + p.takes(pairTask{second, slowTask{"post", 0, r, 0}})
	}
	return sum
}

// program notes what every port does before a message or an all-to-all.
func (p *slowPair) program() {
	p.s.program()
	var atOnce, ring, in, out []slowTask
	for _, x := range p.s.wire {
		if p.s.leavesAtOnce(x) {
			atOnce = append(atOnce, x)
		} else {
			ring = append(ring, x)
		}
	}
	for g, members := range p.s.l.Groups {
		if len(members) > 1 {
			in, out = append(in, slowTask{"in", 0, g, 0}), append(out, slowTask{"out", 0, g, 0})
		}
	}
	p.prev = map[pairTask][]pairTask{}
	last := map[slowPort]pairTask{}
	parts := []pairPart{{false, atOnce}, {false, in}, {true, in}, {false, ring}, {true, atOnce}, {false, out}, {true, ring}, {true, out}}
	if p.woven() {
		parts = []pairPart{{false, atOnce}, {false, in}, {true, in}, {true, atOnce}}
		for round := -1; round < len(p.s.l.Groups); round++ {
			// Keys and values leave a round before the gradients of their step.
			var some []slowTask
			for _, x := range ring {
				if x.kind == "kv" && x.t-1 == round || x.kind != "kv" && x.t == round {
					some = append(some, x)
				}
			}
			parts = append(parts, pairPart{false, some}, pairPart{true, some})
		}
		parts = append(parts, pairPart{false, out}, pairPart{true, out})
	}
	for _, part := range parts {
		for _, x := range part.tasks {
			y := pairTask{part.second, x}
			for _, port := range p.ports(x) {
				if before, ok := last[port]; ok {
					p.prev[y] = append(p.prev[y], before)
				}
				last[port] = y
			}
		}
	}
}

// pairPart is what ports do of one of two micro-batches before they turn to the other.
type pairPart struct {
	second bool
	tasks  []slowTask
}

// woven says whether rings take turns in the pass.
func (p *slowPair) woven() bool {
	return len(p.s.l.Groups) > 1 && (p.s.back && p.s.l.WeaveBackward || !p.s.back && p.s.l.WeaveForward)
}

// turns lists what a task of woven rings waits for of the other micro-batch.
func (p *slowPair) turns(x pairTask) []pairTask {
	order := p.s.order()
	other := func(kind string, t int) pairTask { return pairTask{!x.second, slowTask{kind, t, x.i, 0}} }
	at := slices.Index(order, x.t)
	switch {
	case x.kind == "compute" && x.second:
		return []pairTask{other("compute", x.t)}
	case x.kind == "compute" && at > 0:
		return []pairTask{other("compute", order[at-1])}
	case x.kind == "compute":
		return []pairTask{other("pre", 0)}
	case p.s.back && x.second:
		return []pairTask{other("home", 0)}
	case p.s.back:
		return []pairTask{other("compute", order[len(order)-1])}
	}
	return nil
}

// ports lists those that a message or an all-to-all of a group takes.
func (p *slowPair) ports(x slowTask) []slowPort {
	if x.kind != "in" && x.kind != "out" {
		return []slowPort{{x.i, false}, {x.j, true}}
	}
	var all []slowPort
	for _, m := range p.s.l.Groups[x.i] {
		all = append(all, slowPort{m.Rank, false}, slowPort{m.Rank, true})
	}
	return all
}

// end is when a task is done.
func (p *slowPair) end(x pairTask) float64 {
	if e, ok := p.memo[x]; ok {
		return e
	}
	start := 0.0
	for _, before := range p.after(x) {
		start = max(start, p.end(before))
	}
	p.memo[x] = start + p.takes(x)
	return p.memo[x]
}

// after lists what a task waits for: inside a ring the same as in a layer of its own, and
// at its ends what the other micro-batch has the stream or the ports do before.
func (p *slowPair) after(x pairTask) []pairTask {
	s, n := p.s, len(p.s.l.Groups)
	own := func(tasks ...slowTask) []pairTask {
		var all []pairTask
		for _, y := range tasks {
			all = append(all, pairTask{x.second, y})
		}
		return all
	}
	other := func(kind string) pairTask { return pairTask{!x.second, slowTask{kind, 0, x.i, 0}} }
	switch x.kind {
	case "pre":
		if x.second {
			return []pairTask{other("pre")}
		}
		return nil
	case "in":
		return append(own(s.all("pre", s.l.Groups[x.i])...), p.prev[x]...)
	case "compute":
		before := own(s.after(x.slowTask, n)...)
		switch {
		case p.woven():
			return append(before, p.turns(x)...)
		case x.second:
			return append(before, other("home"))
		}
		return append(before, other("pre"))
	case "home":
		before := own(s.after(x.slowTask, n)...)
		if p.woven() {
			before = append(before, p.turns(x)...)
		}
		return before
	case "kv", "grad", "homeward":
		return append(own(s.atBuffer(x.slowTask)...), p.prev[x]...)
	case "out":
		return append(own(s.all("home", s.l.Groups[x.i])...), p.prev[x]...)
	case "post":
		before := own(slowTask{"out", 0, s.members[x.i].group, 0})
		if x.second {
			return append(before, other("post"))
		}
		return append(before, other("home"))
	}
	return own(s.after(x.slowTask, n)...) // arrived, added, home
}

// takes is how long a task takes: beside an all-to-all, and an all-to-all beside
// computing, longer than alone.
func (p *slowPair) takes(x pairTask) float64 {
	s := p.s
	if x.kind == "in" || x.kind == "out" {
		return p.toAll(x.i, x.kind == "in")
	}
	g := s.members[x.i].group
	switch {
	case x.kind == "compute":
		moving := (p.toAll(g, true) + p.toAll(g, false)) / float64(2*len(s.l.Groups))
		return s.slowedBy(x.i, s.work(x.i, s.source(x.i, x.t)), s.beside(x.i, x.t)+moving)
	case x.kind == "pre" && x.second:
		return s.slowedBy(x.i, s.linear(x.i, true), p.toAll(g, true))
	case x.kind == "post" && !x.second:
		return s.slowedBy(x.i, s.linear(x.i, false), p.toAll(g, false))
	}
	return s.takes(x.slowTask)
}

// toAll is an all-to-all of a group beside computing; its slowest member slows it.
func (p *slowPair) toAll(g int, in bool) float64 {
	if len(p.s.l.Groups[g]) == 1 {
		return 0
	}
	slow := 1.0
	for _, m := range p.s.l.Groups[g] {
		slow = max(slow, p.s.ratio(m.Rank, op.SlowedComm, p.s.back))
	}
	return slow * p.s.toAll(g, in)
}

// inTwos makes the micro-batches of a plan go in twos.
func inTwos(rng *rand.Rand, x plan) plan {
	x.job.Accumulate = 2 + rng.IntN(4)
	x.layout.TwoBatch, x.layout.HeadChunks = true, 0
	if len(x.layout.Groups) > 1 {
		x.layout.OwnLast = rng.IntN(2) == 0
		x.layout.WeaveForward, x.layout.WeaveBackward = rng.IntN(2) == 0, rng.IntN(2) == 0
	}
	return x
}

func TestTwoBatchAgainstSlowReference(t *testing.T) {
	quicker := 0
	for seed := range uint64(1000) {
		rng := rand.New(rand.NewPCG(seed, 92))
		p := world(t, rng, faster{})
		x := inTwos(rng, randomPlan(rng))
		got := mustSimulate(t, p, x.job, x.layout)
		slow := newSlowSim(t, p, x)
		if want := units.Seconds(slow.step()); !near(got.Time.Mid, want, 1e-9) {
			t.Fatalf("seed %d: %v, reference %v\n%v, %+v\n%+v", seed, float64(got.Time.Mid), float64(want), x.job.Cluster, x.layout, got.Parts)
		}
		for _, r := range slow.working {
			if busy := units.Seconds(slow.busy(r)); !near(got.Ranks[r].Busy, busy, 1e-9) {
				t.Fatalf("seed %d, rank %d: busy %v, reference %v", seed, r, got.Ranks[r].Busy, busy)
			}
		}
		x.layout.TwoBatch, x.layout.WeaveForward, x.layout.WeaveBackward = false, false, false
		alone := mustSimulate(t, p, x.job, x.layout)
		if got.Time.Mid < alone.Time.Mid {
			quicker++
		}
		if !slices.Equal(got.Traffic, alone.Traffic) {
			t.Fatalf("seed %d: traffic %v in twos, %v one by one", seed, got.Traffic, alone.Traffic)
		}
	}
	t.Logf("%d of 1000 plans are quicker in twos", quicker)
	if quicker < 1000/3 {
		t.Errorf("only %d of 1000 plans are quicker in twos", quicker)
	}
}
