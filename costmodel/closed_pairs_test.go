package costmodel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/evenkeel/evenkeel/internal/units"
)

// stepper says how long a step takes.
type stepper func(t *testing.T, p *Profile, x plan) float64

func simulated(t *testing.T, p *Profile, x plan) float64 {
	return float64(mustSimulate(t, p, x.job, x.layout).Time.Mid)
}

func referred(t *testing.T, p *Profile, x plan) float64 { return newSlowSim(t, p, x).step() }

// halves are the times of a layer of two equal ranks in one direction, by themselves, and
// by how much computing and all-to-alls slow each other.
type halves struct{ pre, in, work, out, post, compute, comm float64 }

// inTwos is how long a pair takes in one group: at the ends its work is alone, and between
// them an all-to-all of one micro-batch is beside work of the other, of which the
// longer counts.
func (x halves) inTwos() float64 {
	in, out := x.comm*x.in, x.comm*x.out
	beside := func(w, moving float64) float64 { return min(w*x.compute, w+moving*(1-1/x.compute)) }
	work := beside(x.work, (in+out)/2)
	return x.pre + max(beside(x.pre, in), in) + max(work, in) + max(work, out) + max(beside(x.post, out), out) + x.post
}

// equalRanks compute attention and products at given rates, over a link without latency,
// in groups of one or two. A rank has 512 tokens, and in a group of two 2 heads and a
// key-value head of 64, in float32; the law of another group is slowed by 15 %.
type equalRanks struct {
	attention, gemm, link float64
	device                string // the slow one's computing and messages slow each other
}

func (e equalRanks) world(t *testing.T, tokens []units.Tokens) (*Profile, Job) {
	p := madeUp(t, map[string]speeds{e.device: {e.attention, e.gemm, 0}}, map[string]wire{"bus": {0, e.link}})
	p.Overlaps = world(t, rand.New(rand.NewPCG(0, 0)), faster{}).Overlaps
	j := testJob(cluster(t, fmt.Sprintf("1x%d %s", len(tokens), e.device), p, "bus", ""), tokens)
	j.Zero = Zero0
	return p, j
}

// group is a layer of one group of two ranks, forward and backward.
func (e equalRanks) group() [2]halves {
	projections, rest := 2*512*512*256/e.gemm, 2*512*(256+1376+688)*256/e.gemm
	work, head := 4*64*2*(1024*1025/2)/e.attention, 1.15*512*64*4/e.link
	forward := halves{projections, 4 * head, work, 2 * head, rest, 1, 1}
	backward := halves{2 * rest, 2 * head, 2.5 * work, 4 * head, 2 * projections, 1, 1} // products twice
	if e.device == "slow" {
		forward.compute, forward.comm = 1.2, 1.3
		backward.compute, backward.comm = 1.1, 1.5
	}
	return [2]halves{forward, backward}
}

// ofPair takes a pair's layer, forward and backward, out of steps of one and two pairs with
// and without recomputing, and that of a single one out of a third micro-batch.
func (e equalRanks) ofPair(t *testing.T, step stepper, ownLast bool, groups ...Group) (pair [2]float64, single float64) {
	tokens := slices.Repeat([]units.Tokens{512}, len(groups)*len(groups[0]))
	p, j := e.world(t, tokens)
	l := ZigZag(tokens, groups)
	l.TwoBatch, l.OwnLast = true, ownLast
	of := func(batches int, recompute Recompute) float64 { // all layers, without the loss
		j.Accumulate, j.Recompute = batches, recompute
		return step(t, p, plan{j, l}) - float64(batches)*6*512*1000*256/e.gemm
	}
	both := of(4, RecomputeNone) - of(2, RecomputeNone)
	pair[0] = (of(4, RecomputeFull) - of(2, RecomputeFull) - both) / 6
	pair[1] = both/6 - pair[0]
	return pair, (of(3, RecomputeNone) - of(2, RecomputeNone)) / 6
}

// closedPairs are two equal ranks in one group.
func closedPairs(t *testing.T, step stepper) {
	for name, e := range map[string]equalRanks{
		"messages hide":            {1e12, 1e12, 1e11, "fast"},
		"attention outlasts":       {1e11, 1e13, 5e9, "fast"},
		"products outlast":         {1e13, 1e12, 1.5e10, "fast"},
		"messages outlast all":     {1e13, 1e14, 1e9, "fast"},
		"slowed, messages hide":    {1e12, 1e12, 1e11, "slow"},
		"slowed, messages outlast": {1e13, 1e14, 1e9, "slow"},
		"slowed, some hide":        {2e12, 4e12, 1e10, "slow"},
	} {
		pair, single := e.ofPair(t, step, false, Group{{0, 2}, {1, 2}})
		alone := 0.0
		for back, x := range e.group() {
			want := x.inTwos()
			switch name {
			case "messages hide":
				want = 2 * (x.pre + x.work + x.post)
			case "messages outlast all":
				want = x.pre + 2*x.in + 2*x.out + x.post
			case "slowed, messages hide": // beside each of them the same share of its time is lost
				want = 2*(x.pre+x.work+x.post) + 2*x.comm*(x.in+x.out)*(1-1/x.compute)
			case "slowed, messages outlast":
				want = x.pre + x.comm*2*(x.in+x.out) + x.post
			}
			if math.Abs(pair[back]/want-1) > 1e-9 {
				t.Errorf("%s: a pair takes %v, want %v (backward: %d)", name, pair[back], want, back)
			}
			alone += x.pre + x.in + x.work + x.out + x.post
		}
		if math.Abs(single/alone-1) > 1e-9 {
			t.Errorf("%s: the odd one takes %v, want %v", name, single, alone)
		}
	}
}

// closedRings are two equal ranks in groups of their own, each with all 4 heads: a pair's
// rings follow one another on the stream and on the ports, but what leaves when the pass
// begins does not wait for the stream.
func closedRings(t *testing.T, step stepper) {
	for name, e := range map[string]equalRanks{
		"hops hide":      {1e12, 1e12, 1e11, "fast"},
		"hops outlast":   {1e13, 1e14, 1e9, "fast"},
		"some hops hide": {3e12, 4e12, 5e9, "fast"},
	} {
		lin := e.group()
		own, other := 4*64*4*512*513/2/e.attention, 4*64*4*512*512/2/e.attention
		hop := 1.15 * 2 * 512 * 2 * 64 * 4 / e.link
		pre, post := lin[0].pre, lin[0].post
		come := max(2*pre, pre+hop) + hop // the second one's hop follows the first one's
		done := max(2*pre+own, pre+hop) + other
		forward := max(done+own, come) + other + 2*post

		pre, post, own, other = lin[1].pre, lin[1].post, 2.5*own, 2.5*other
		// The second one's keys and values wait for the first one's gradients.
		done = max(2*pre+own, pre+hop) + other + hop
		backward := done + max(own, hop) + other + hop + 2*post
		// With own blocks last the other's come first, and their gradients go home beside
		// own blocks, after them the second one's keys and values.
		first := max(2*pre, hop) + other
		lastly := max(first+max(own, hop), first+2*hop) + other + max(own, hop) + 2*post

		for _, ownLast := range []bool{false, true} {
			want := [2]float64{forward, backward}
			if ownLast {
				want[1] = lastly
			}
			pair, _ := e.ofPair(t, step, ownLast, Group{{0, 4}}, Group{{1, 4}})
			for back := range want {
				if math.Abs(pair[back]/want[back]-1) > 1e-9 {
					t.Errorf("%s, own last %v: a pair takes %v, want %v (backward: %d)", name, ownLast, pair[back], want[back], back)
				}
			}
		}
	}
}

// closedGroups are two groups of two equal ranks each: the all-to-alls into the attention go
// before both rings, the first one's way out before the second one's ring.
func closedGroups(t *testing.T, step stepper) {
	for name, e := range map[string]equalRanks{
		"messages hide":    {1e12, 1e12, 1e11, "fast"},
		"messages outlast": {1e13, 1e14, 1e9, "fast"},
		"slow products":    {1e13, 1e11, 5e9, "fast"},
		"some hide":        {3e12, 4e12, 1e10, "fast"},
	} {
		own, other := 4*64*2*1024*1025/2/e.attention, 4*64*2*1024*1024/2/e.attention
		hop, lastly := 1.15*2*1024*64*4/e.link, 0.0
		var want [2]float64
		for back, x := range e.group() {
			own, other, home := own, other, 0.0
			if back == 1 {
				own, other, home = 2.5*own, 2.5*other, hop
			}
			end := max(x.post, x.out) + x.post
			ring := max(own, x.in+hop) + other + home + max(own, x.out+hop) + other + home
			want[back] = x.pre + max(x.pre, x.in) + ring + end

			// With own blocks last the first hop goes before the all-to-alls, and the
			// second one's as soon as the first one's gradients are home.
			begin := max(2*x.pre, max(x.pre, hop)+x.in)
			come := begin + max(other, x.in) + home + hop
			begin = max(begin+other+own, come)
			lastly = begin + max(other+own, max(other, x.out)+home) + end
		}
		for _, ownLast := range []bool{false, true} {
			if ownLast {
				want[1] = lastly
			}
			pair, _ := e.ofPair(t, step, ownLast, Group{{0, 2}, {1, 2}}, Group{{2, 2}, {3, 2}})
			for back := range want {
				if math.Abs(pair[back]/want[back]-1) > 1e-9 {
					t.Errorf("%s, own last %v: a pair takes %v, want %v (backward: %d)", name, ownLast, pair[back], want[back], back)
				}
			}
		}
	}
}

// lonePairs: a rank that is alone takes over two micro-batches what it takes over each.
func lonePairs(t *testing.T, step stepper) {
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 93))
		p := world(t, rng, faster{})
		x := randomPlan(rng)
		tokens := make([]units.Tokens, len(x.layout.Shards))
		at := rng.IntN(len(tokens))
		tokens[at] = x.job.SeqLen
		x.layout = ZigZag(tokens, Singles(tokens, x.job.Model.QHeads))
		x = inTwos(rng, x)
		twos := step(t, p, x)
		x.layout.TwoBatch = false
		if apart := step(t, p, x); math.Abs(twos/apart-1) > 1e-9 {
			t.Errorf("seed %d: %v in twos, %v one by one", seed, twos, apart)
		}
	}
}

// freePairs: over links that cost nothing, two micro-batches in one group never take
// longer together than one after the other, and no less than the busiest rank computes.
func freePairs(t *testing.T, step stepper) {
	p := madeUp(t, map[string]speeds{"fast": {3e12, 4e12, 2e12}, "slow": {1e12, 1.5e12, 1e12}}, map[string]wire{"bus": {}, "net": {}})
	quicker := 0
	for seed := range uint64(100) {
		rng := rand.New(rand.NewPCG(seed, 94))
		x := inTwos(rng, inOneGroup(rng, randomPlan(rng)))
		slow := newSlowSim(t, p, x)
		twos, busiest := step(t, p, x), slow.slowest(slow.busy)
		x.layout.TwoBatch = false
		apart := step(t, p, x)
		if twos > apart*(1+1e-9) || twos < busiest*(1-1e-9) {
			t.Errorf("seed %d: %v in twos, %v one by one, and the busiest rank computes %v", seed, twos, apart, busiest)
		}
		if twos < apart*(1-1e-9) {
			quicker++
		}
	}
	if quicker < 20 {
		t.Errorf("%d of 100 plans wait less in twos", quicker)
	}
}

// exchangeOfPairs: every micro-batch has an exchange of its own, in twos as one by one.
func exchangeOfPairs(t *testing.T, step stepper) {
	e := equalRanks{1e12, 1e12, 1e10, "slow"}
	p, j := e.world(t, []units.Tokens{512, 512})
	j.OverlapZero = false
	l := ZigZag([]units.Tokens{512, 512}, []Group{{{0, 2}, {1, 2}}})
	exchanged := func(twos bool, batches int, zero ZeRO) float64 { // beyond what comes once a step
		l.TwoBatch, j.Accumulate, j.Zero = twos, batches, zero
		of := step(t, p, plan{j, l})
		j.Zero = Zero1
		return of - step(t, p, plan{j, l})
	}
	for _, zero := range []ZeRO{Zero2, Zero3} {
		for batches := 2; batches <= 5; batches++ {
			got, want := exchanged(true, batches, zero), exchanged(false, batches, zero)
			if !(want > 0) || math.Abs(got-want) > 1e-9*want {
				t.Errorf("%s, %d micro-batches: exchanges take %v more than zero1's, want %v", zero, batches, got, want)
			}
		}
	}
}

// TestTwoBatchClosedForms asks the simulator for what can be told without one.
func TestTwoBatchClosedForms(t *testing.T) { closedForms(t, simulated) }

// TestSlowTwoBatchClosedForms asks the slow reference for it, so that the two do not err
// alike.
func TestSlowTwoBatchClosedForms(t *testing.T) { closedForms(t, referred) }

func closedForms(t *testing.T, step stepper) {
	for _, check := range []struct {
		name string
		of   func(*testing.T, stepper)
	}{{"group", closedPairs}, {"ring", closedRings}, {"groups", closedGroups}, {"alone", lonePairs}, {"free links", freePairs}, {"exchange", exchangeOfPairs}} {
		t.Run(check.name, func(t *testing.T) { check.of(t, step) })
	}
}

// TestWaitingInTwosIsOfBytesOrOfRanks: equal ranks wait for bytes alone, whether these
// outlast computing or it them, and one that waits for a slower one over a quick link waits
// for that.
func TestWaitingInTwosIsOfBytesOrOfRanks(t *testing.T) {
	step := func(nodes string, link wire) *Step {
		p := madeUp(t, map[string]speeds{"fast": {3e12, 4e12, 2e12}, "slow": {1e11, 4e12, 2e12}}, map[string]wire{"bus": link})
		tokens := []units.Tokens{512, 512}
		j := testJob(cluster(t, nodes, p, "bus", ""), tokens)
		j.Accumulate = 2
		l := ZigZag(tokens, []Group{{{0, j.Model.QHeads / 2}, {1, j.Model.QHeads / 2}}})
		l.TwoBatch = true
		return mustSimulate(t, p, j, l)
	}
	quick, slow := wire{1e-6, 1e9}, wire{1e-5, 1e7}
	for _, link := range []wire{quick, slow} {
		for r, x := range step("1x2 fast", link).Ranks {
			if x.Idle > 1e-12 || x.Exposed <= 0 {
				t.Errorf("rank %d of equal ones waits for the other %v and for bytes %v", r, x.Idle, x.Exposed)
			}
		}
	}
	unlike := step("1x(1 fast + 1 slow)", quick)
	late := unlike.Ranks[1].Busy - unlike.Ranks[0].Busy
	if x := unlike.Ranks[0]; late <= 0 || x.Idle < late/4 {
		t.Errorf("the fast rank waits %v for one that computes %v more, and %v for bytes", x.Idle, late, x.Exposed)
	}
}
