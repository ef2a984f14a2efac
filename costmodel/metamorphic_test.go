package costmodel

import (
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// manyPlans simulates a variety of small plans.
func manyPlans(t *testing.T, check func(plan, *Profile, *Step)) {
	for seed := range uint64(150) {
		rng := rand.New(rand.NewPCG(seed, 21))
		p, x := world(t, rng, faster{}), randomPlan(rng)
		if seed%4 == 3 {
			x = inTwos(rng, x)
		}
		check(x, p, mustSimulate(t, p, x.job, x.layout))
	}
}

// TestFasterIsNotSlower: every time is a maximum of sums of task times in an
// order that does not depend on them, so nothing that gets faster, and no
// further buffer, can make a step longer.
func TestFasterIsNotSlower(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 22))
		x := randomPlan(rng)
		if seed%3 == 2 {
			x = inTwos(rng, x)
		}
		time := func(by faster, buffers int) units.Seconds {
			j := x.job
			j.RingBuffers += buffers
			p := world(t, rand.New(rand.NewPCG(seed, 23)), by)
			s, err := Simulate(NewPredictor(p), j, x.layout, SimOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return s.Time.Mid
		}
		base, k := time(faster{}, 0), 1+float64(seed%7)/3
		for name, got := range map[string]units.Seconds{
			"fast device": time(faster{fast: k}, 0), "slow device": time(faster{slow: k}, 0),
			"bus": time(faster{bus: k}, 0), "network": time(faster{net: k}, 0), "buffer": time(faster{}, 1),
		} {
			if float64(got) > float64(base)*(1+1e-12) {
				t.Errorf("seed %d: with a better %s %v, before %v; %v, %+v", seed, name, float64(got), float64(base), x.job.Cluster, x.layout.Groups)
			}
		}
	}
}

// relabelled permutes the nodes of a plan with their ranks; to[r] is the new
// number of rank r.
func relabelled(rng *rand.Rand, x plan) (y plan, to []int) {
	order := rng.Perm(len(x.job.Cluster.Nodes))
	y, to = x, make([]int, len(x.layout.Shards))
	y.job.Cluster.Nodes = nil
	next := 0
	for _, n := range order {
		y.job.Cluster.Nodes = append(y.job.Cluster.Nodes, x.job.Cluster.Nodes[n])
		for r, rank := range x.job.Cluster.Ranks() {
			if rank.Node == n {
				to[r], next = next, next+1
			}
		}
	}
	y.layout = x.layout.Relabelled(to)
	return y, to
}

// TestRelabelling: calling nodes and ranks otherwise changes nothing at all.
func TestRelabelling(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 24))
	manyPlans(t, func(x plan, p *Profile, want *Step) {
		y, to := relabelled(rng, x)
		got := mustSimulate(t, p, y.job, y.layout)
		if diff := cmp.Diff(want.Parts, got.Parts); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
		if want.Time != got.Time || !cmp.Equal(want.Traffic, got.Traffic) {
			t.Errorf("%+v became %+v", want, got)
		}
		if diff := cmp.Diff(want.Relabelled(to).Ranks, got.Ranks); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
	})
}

// addRings adds what ranks send of parameters and gradients: n - 1 copies of each buffer, or
// twice as many of one that is all-reduced, round a ring through one node after the other.
func addRings(sum map[string]units.Bytes, j Job, working []int) {
	n, micro := len(working), units.Bytes(max(1, j.Accumulate))
	if n < 2 {
		return
	}
	byNode := map[int]units.Bytes{}
	for _, r := range working {
		byNode[j.Cluster.Ranks()[r].Node]++
	}
	copies, times := units.Bytes(n-1), map[ZeRO]units.Bytes{Zero0: 1, Zero1: 2, Zero2: micro + 1, Zero3: 3 * micro, "": 3 * micro}[j.Zero]
	if j.Zero == Zero0 {
		copies *= 2
	}
	layer, layers := 4*units.Bytes(j.Model.LayerParams()), units.Bytes(j.Model.Layers)
	for buffer, each := range map[units.Bytes]units.Bytes{layer: layers * times, 4*units.Bytes(j.Model.Params()) - layers*layer: times} {
		for node, ranks := range byNode {
			hops := ranks - 1
			if len(byNode) == 1 {
				hops = ranks
			}
			inside := copies * buffer * hops / units.Bytes(n)
			if inside > 0 {
				sum[j.Cluster.Nodes[node].Link] += each * inside
			}
			if len(byNode) > 1 {
				sum[j.Cluster.Network] -= each * inside
			}
		}
		if len(byNode) > 1 {
			sum[j.Cluster.Network] += each * copies * buffer
		}
	}
}

// bytesByLink adds up message by message what crosses each link class.
func bytesByLink(s *slowSim) map[string]units.Bytes {
	j, sum := s.j, map[string]units.Bytes{}
	layers := float64(j.Model.Layers) * float64(max(1, j.Accumulate))
	for _, back := range []bool{false, true} {
		s.back = back
		s.program()
		times := layers
		if !back && j.Recompute == RecomputeFull {
			times *= 2
		}
		for _, x := range s.wire {
			sum[j.Cluster.linkBetween(x.i, x.j)] += units.Bytes(times * s.bytes(x))
		}
		for _, a := range s.working {
			for _, b := range s.working {
				if a != b && s.members[a].group == s.members[b].group {
					sum[j.Cluster.linkBetween(a, b)] += units.Bytes(times * (s.exchanged(a, b, true) + s.exchanged(a, b, false)))
				}
			}
		}
	}
	addRings(sum, j, s.working)
	for link, b := range sum {
		if b == 0 {
			delete(sum, link)
		}
	}
	return sum
}

// TestTrafficEndsAtTheLargestSize: with sharded parameters every micro-batch sends as
// much, so that a step of a million, which a job may have, sends a million times what one
// of one does; where that passes 2^63 bytes it once wrapped around to a number like any
// other.
func TestTrafficEndsAtTheLargestSize(t *testing.T) {
	p := madeUp(t, map[string]speeds{"fast": {3e12, 4e12, 2e12}}, map[string]wire{"bus": {1e-6, 1e9}, "net": {1e-5, 1e8}})
	tokens := slices.Repeat([]units.Tokens{1 << 20}, 4)
	j := testJob(cluster(t, "2x2 fast", p, "bus", "net"), tokens)
	j.Model.Layers, j.Model.Hidden, j.Model.FFN = 1024, 1<<14, 1<<16
	for _, groups := range [][]Group{Singles(tokens, 4), {{{0, 2}, {1, 2}}, {{2, 2}, {3, 2}}}, {{{0, 1}, {1, 1}, {2, 1}, {3, 1}}}} {
		l := ZigZag(tokens, groups)
		j.Accumulate = 1
		one := mustSimulate(t, p, j, l).Traffic
		for _, micro := range []int{1 << 10, 1 << 19, maxAccumulate} {
			j.Accumulate = micro
			many := mustSimulate(t, p, j, l).Traffic
			for i, x := range many {
				want := new(big.Int).Mul(big.NewInt(int64(one[i].Bytes)), big.NewInt(int64(micro)))
				if !want.IsInt64() {
					want.SetInt64(math.MaxInt64)
				}
				if x.Link != one[i].Link || big.NewInt(int64(x.Bytes)).Cmp(want) != 0 {
					t.Errorf("%v: %d micro-batches: %d bytes on %s, want %v", groups, micro, int64(x.Bytes), x.Link, want)
				}
			}
			if micro == maxAccumulate && len(many) == 2 && (many[0].Bytes != math.MaxInt64 || many[1].Bytes != math.MaxInt64) {
				t.Errorf("%v: no more than the largest size is at stake: %v", groups, many)
			}
		}
	}
}

// TestTrafficIsTheSumOfMessages, to the byte.
func TestTrafficIsTheSumOfMessages(t *testing.T) {
	manyPlans(t, func(x plan, p *Profile, s *Step) {
		got := map[string]units.Bytes{}
		for _, y := range s.Traffic {
			got[y.Link] += y.Bytes
		}
		if diff := cmp.Diff(bytesByLink(newSlowSim(t, p, x)), got); diff != "" {
			t.Errorf("%v, %+v: (-want +got)\n%s", x.job.Cluster, x.layout.Groups, diff)
		}
	})
}

// TestTimeIsThatOfTheStep: the quick way adds the same stages up.
func TestTimeIsThatOfTheStep(t *testing.T) {
	manyPlans(t, func(x plan, p *Profile, want *Step) {
		s, err := NewSimulator(NewPredictor(p), x.job)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := s.Time(x.layout); err != nil || !near(got, want.Time.Mid, 1e-12) {
			t.Errorf("%v, %v; the step takes %v", got, err, want.Time.Mid)
		}
	})
}

// TestIdleIsThatOfTheStep: and finds the same waiting, before and after a search.
func TestIdleIsThatOfTheStep(t *testing.T) {
	manyPlans(t, func(x plan, p *Profile, want *Step) {
		s, err := NewSimulator(NewPredictor(p), x.job)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			idle, err := s.Idle(x.layout)
			if err != nil {
				t.Fatal(err)
			}
			for r, got := range idle {
				if math.Abs(float64(got-want.Ranks[r].Idle)) > 1e-12*float64(want.Time.Mid) {
					t.Errorf("rank %d idles for %v, in the step for %v", r, float64(got), float64(want.Ranks[r].Idle))
				}
			}
			if took, err := s.Time(x.layout); err != nil || !near(took, want.Time.Mid, 1e-12) {
				t.Errorf("then %v, %v; the step takes %v", float64(took), err, float64(want.Time.Mid))
			}
		}
	})
}

// TestRememberingChangesNothing: whatever layouts came before, in whatever
// order, a layout's time is the same to the bit.
func TestRememberingChangesNothing(t *testing.T) {
	for seed := range uint64(12) {
		rng := rand.New(rand.NewPCG(seed, 25))
		p, x := world(t, rng, faster{}), randomPlan(rng)
		q := NewPredictor(p)
		layouts := alike(rng, x, 30)
		fresh := make([]units.Seconds, len(layouts))
		for i, l := range layouts {
			fresh[i] = timeAfter(t, q, x.job, l)
		}
		for range 3 {
			s, err := NewSimulator(q, x.job)
			if err != nil {
				t.Fatal(err)
			}
			for _, i := range rng.Perm(len(layouts)) {
				if got, err := s.Time(layouts[i]); err != nil || got != fresh[i] {
					t.Fatalf("seed %d, layout %d: %v, %v; alone %v", seed, i, float64(got), err, float64(fresh[i]))
				}
			}
		}
	}
}

// alike makes layouts of one job's sequence with few lengths, so that they have
// shards in common: lengths are multiples of 64 and whatever remains.
func alike(rng *rand.Rand, x plan, n int) []Layout {
	var layouts []Layout
	for len(layouts) < n {
		l := randomLayout(rng, len(x.layout.Shards), x.job.Model.QHeads)
		tokens, left := l.Tokens(), x.job.SeqLen
		for r := range tokens {
			tokens[r] = min(left, tokens[r]/64*64)
			left -= tokens[r]
		}
		tokens[l.Groups[0][0].Rank] += left
		if rng.IntN(3) == 0 {
			l = scattered(rng, tokens, l.Groups)
		} else {
			l = ZigZag(tokens, l.Groups)
		}
		if l.Validate(x.job.SeqLen, len(tokens), x.job.Model.QHeads) == nil {
			layouts = append(layouts, l)
		}
	}
	return layouts
}

// timeAfter is the time of a layout after those given, if any.
func timeAfter(t *testing.T, q *Predictor, j Job, l Layout) units.Seconds {
	s, err := NewSimulator(q, j)
	if err != nil {
		t.Fatal(err)
	}
	got, err := s.Time(l)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// TestALayoutWithoutLawsHarmsNoOther: an all-to-all that was never measured rules
// out groups of several, and nothing else.
func TestALayoutWithoutLawsHarmsNoOther(t *testing.T) {
	p := usual(t)
	tokens := []units.Tokens{128, 128}
	j := testJob(cluster(t, "1x2 fast", p, "bus", "net"), tokens)
	p.Laws = slicesWithout(p.Laws, op.KindAllToAll)
	s, err := NewSimulator(NewPredictor(p), j)
	if err != nil {
		t.Fatal(err)
	}
	ring, ulysses := ringOf(tokens), ZigZag(tokens, []Group{{{0, 2}, {1, 2}}})
	want := timeAfter(t, NewPredictor(p), j, ring)
	for i := range 3 {
		if got, err := s.Time(ulysses); err == nil {
			t.Errorf("round %d: an all-to-all that nobody measured takes %v", i, got)
		}
		if got, err := s.Time(ring); err != nil || got != want {
			t.Errorf("round %d: %v, %v; alone %v", i, got, err, want)
		}
	}
}

// TestCriticalPathIsAChain of tasks, each of which begins when the one before
// ends, through either pass of a layer.
func TestCriticalPathIsAChain(t *testing.T) {
	manyPlans(t, func(x plan, p *Profile, s *Step) {
		forward, backward := layersOf(t, p, x.job, x.layout)
		for pass, length := range map[string]float64{"forward": forward, "backward": backward} {
			at := units.Seconds(0)
			for _, h := range s.Path {
				if h.Pass == pass {
					if h.Start != at || h.End <= h.Start || !slices.Contains(atWork(x.layout), h.Rank) {
						t.Fatalf("%s: %+v after %v", pass, h, at)
					}
					at = h.End
				}
			}
			if !near(at, units.Seconds(length), 1e-12) {
				t.Fatalf("%s: the path ends at %v, the layer at %v; %+v", pass, at, length, s.Path)
			}
		}
	})
}
