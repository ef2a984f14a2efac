package bound

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/internal/baseline"
	"github.com/evenkeel/evenkeel/solver/internal/evenkeel"
	"github.com/evenkeel/evenkeel/solver/internal/strategy"
	"github.com/evenkeel/evenkeel/solver/internal/world"
)

// evenGroup is a group of some ranks in even shares of the heads.
func evenGroup(ranks []int, heads int) costmodel.Group {
	var g costmodel.Group
	for i, rank := range ranks {
		share := heads / len(ranks)
		if i < heads%len(ranks) {
			share++
		}
		g = append(g, costmodel.HeadShare{Rank: rank, QHeads: share})
	}
	return g
}

// evenly is one group of all ranks in even shares.
func evenly(p *strategy.Problem) costmodel.Layout {
	var ranks []int
	for r := range p.Ranks {
		ranks = append(ranks, r)
	}
	return costmodel.ZigZag(strategy.EqualSplit(p.Job.SeqLen, len(ranks)), []costmodel.Group{evenGroup(ranks, p.Job.Model.QHeads)})
}

// randomGroupOfAll is one group with random heads, and random or equal tokens.
func randomGroupOfAll(r *rand.Rand, p *strategy.Problem) costmodel.Layout {
	n := len(p.Ranks)
	tokens := world.RandomSplit(r, p.Job.SeqLen, n)
	if r.IntN(2) == 0 {
		tokens = strategy.EqualSplit(p.Job.SeqLen, n)
	}
	return world.Lay(r, tokens, []costmodel.Group{world.RandomGroup(r, r.Perm(n), tokens, p.Job.Model.QHeads)})
}

// twoGroups has equal tokens and even heads in two groups as unequal or as even as
// can be: the rings that come nearest to a single group.
func twoGroups(r *rand.Rand, p *strategy.Problem) costmodel.Layout {
	n, heads := len(p.Ranks), p.Job.Model.QHeads
	ranks := r.Perm(n)
	groups := []costmodel.Group{evenGroup(ranks, heads)}
	if n > 1 {
		cut := []int{1, n / 2, n - 1}[r.IntN(3)]
		groups = []costmodel.Group{evenGroup(ranks[:cut], heads), evenGroup(ranks[cut:], heads)}
	}
	return world.Lay(r, strategy.EqualSplit(p.Job.SeqLen, n), groups)
}

// inStretches has few groups, each with one stretch of the sequence, in random order:
// late tokens see more than a zigzag's.
func inStretches(r *rand.Rand, p *strategy.Problem) costmodel.Layout {
	n := len(p.Ranks)
	ranks := r.Perm(n)
	tokens := strategy.EqualSplit(p.Job.SeqLen, n)
	if r.IntN(2) == 0 {
		tokens = world.RandomSplit(r, p.Job.SeqLen, n)
	}
	l := costmodel.Layout{Shards: make([]costmodel.Shard, n)}
	at := units.Tokens(0)
	for _, rank := range ranks {
		if tokens[rank] > 0 {
			l.Shards[rank] = costmodel.Shard{Segments: []costmodel.Segment{{Start: at, End: at + tokens[rank]}}}
			at += tokens[rank]
		}
	}
	ranks = slices.DeleteFunc(ranks, func(rank int) bool { return tokens[rank] == 0 })
	if r.IntN(4) == 0 { // against the ring
		slices.Reverse(ranks)
	}
	for most := 1 + r.IntN(len(ranks)); len(ranks) > 0; {
		cut := min(len(ranks), 1+r.IntN(most))
		l.Groups = append(l.Groups, evenGroup(ranks[:cut], p.Job.Model.QHeads))
		ranks = ranks[cut:]
	}
	return l
}

// fitsAll says whether every rank's memory holds its part of a layout.
func fitsAll(p *strategy.Problem, l costmodel.Layout) bool {
	return !slices.ContainsFunc(p.Sim.Memory(l), func(m costmodel.Memory) bool { return !m.Fits() })
}

// groupFloor is the floor of a single group of as many ranks as a layout has.
func groupFloor(t *testing.T, p *strategy.Problem, l costmodel.Layout) float64 {
	t.Helper()
	f, err := newFloors(p.Profile, p.Predictor, p.Job)
	if err != nil {
		t.Fatal(err)
	}
	f.twoBatch = l.TwoBatch
	n, least := len(l.Groups[0]), math.Inf(1)
	for _, s := range f.scopes() {
		if s.least == 1 || n > s.size() {
			continue
		}
		s.most, s.fewest = n, n
		least = min(least, f.oneGroup(s, math.Inf(1)))
	}
	return least
}

// checkGroups holds single groups against their floor, and counts those that fit.
func checkGroups(t *testing.T, r *rand.Rand, p *strategy.Problem) (held int) {
	t.Helper()
	all := []costmodel.Layout{evenly(p)}
	for range 5 {
		all = append(all, randomGroupOfAll(r, p))
	}
	for _, l := range all {
		if len(l.Groups[0]) < 2 || !fitsAll(p, l) {
			continue
		}
		held++
		if took, floor := leastInChunks(t, p, l), groupFloor(t, p, l); floor > took*(1+1e-9) {
			t.Fatalf("floor %v above %v of %+v on %s, %+v", floor, took, l, p.Job.Cluster, p.Job)
		}
		if l.TwoBatch = p.Job.Accumulate > 1; l.TwoBatch {
			if took, floor := float64(world.Seconds(t, p, l)), groupFloor(t, p, l); floor > took*(1+1e-9) && fitsAll(p, l) {
				t.Fatalf("floor %v above %v in twos of %+v on %s, %+v", floor, took, l, p.Job.Cluster, p.Job)
			}
		}
	}
	return held
}

// leastInChunks is the least that a group takes, in however many chunks.
func leastInChunks(t *testing.T, p *strategy.Problem, l costmodel.Layout) float64 {
	t.Helper()
	least := float64(world.Seconds(t, p, l))
	for l.HeadChunks = 2; l.HeadChunks <= costmodel.MaxHeadChunks; l.HeadChunks++ {
		least = min(least, float64(world.Seconds(t, p, l)))
	}
	return least
}

// No single group of several ranks beats the floor of those.
func TestGroupFloorIsBelowEveryGroup(t *testing.T) {
	if testing.Short() {
		t.Skip("long; goroutines have shorter tests")
	}
	r := rand.New(rand.NewPCG(31, 1))
	held := 0
	for range 30 {
		p := world.Random(t, r)
		held += checkGroups(t, r, world.ProblemOf(t, p.Profile, varied(r, p.Job)))
	}
	for _, cluster := range []string{"1x4 h100_sxm", "1x4 h100_sxm + 1x4 a100_sxm"} {
		for range 3 {
			p := world.GPUs(t, cluster, units.Tokens(math.Exp2(10+8*r.Float64())))
			held += checkGroups(t, r, world.ProblemOf(t, p.Profile, varied(r, p.Job)))
		}
	}
	if held < 60 {
		t.Errorf("%d groups fit: the test says little", held)
	}
}

// Equal ranks in one group, as even as their heads can be, are what the floor says
// but for a little: it knows the square, whole heads and the all-to-alls, of which it
// does not know how much hides.
func TestGroupFloorOfEqualRanksIsTight(t *testing.T) {
	world.Sequential(t)
	held := 0
	for _, cluster := range []string{"1x2 h100_sxm", "1x8 h100_sxm", "1x8 a100_sxm"} {
		for _, seq := range []units.Tokens{1 << 13, 1 << 15, 1 << 17} {
			p := world.GPUs(t, cluster, seq)
			l := evenly(p)
			if !fitsAll(p, l) {
				continue
			}
			held++
			took, floor := leastInChunks(t, p, l), groupFloor(t, p, l)
			if gap := took/floor - 1; gap < 0 || gap > 0.03 {
				t.Errorf("%s, %d tokens: floor %v, takes %v: gap %.2f %%", cluster, int64(seq), floor, took, 100*gap)
			}
		}
	}
	if held < 6 {
		t.Errorf("%d groups fit: the test says little", held)
	}
}

// What a member of a group of all holds is never more than the floors of memory
// leave room for on a device of just that size.
func TestGroupMemoryHoldsForEveryGroup(t *testing.T) {
	world.Sequential(t)
	r := rand.New(rand.NewPCG(32, 1))
	for range 60 {
		p := world.Random(t, r)
		p = world.ProblemOf(t, p.Profile, varied(r, p.Job))
		f, err := newFloors(p.Profile, p.Predictor, p.Job)
		if err != nil {
			t.Fatal(err)
		}
		l := randomGroupOfAll(r, p)
		if n := len(l.Groups[0]); n > 1 {
			holdsWithin(t, p, l, func(device string) memoryFloor { return f.groupMemory(device, n) }, func(h costmodel.HeadShare) float64 { return float64(h.QHeads) })
		}
	}
}

// Nor is what a rank of any layout holds, whose pairs of a head are at most the tokens of its
// group times those of the sequence.
func TestMemoryHoldsForEveryLayout(t *testing.T) {
	world.Sequential(t)
	r := rand.New(rand.NewPCG(35, 1))
	for range 300 {
		p := world.Random(t, r)
		p = world.ProblemOf(t, p.Profile, varied(r, p.Job))
		f, err := newFloors(p.Profile, p.Predictor, p.Job)
		if err != nil {
			t.Fatal(err)
		}
		l, n := world.RandomGrouped(r, p), 0
		pairs := map[int]float64{}
		for g, members := range l.Groups {
			n += len(members)
			for _, h := range members {
				pairs[h.Rank] = float64(h.QHeads) * float64(l.GroupShard(g).Tokens()) * float64(p.Job.SeqLen)
			}
		}
		holdsWithin(t, p, l, func(device string) memoryFloor { return f.memory(device, n) }, func(h costmodel.HeadShare) float64 { return pairs[h.Rank] })
	}
}

// holdsWithin checks a layout against floors of memory that leave of each device what the
// layout fills: no rank has more tokens than there is room for, nor more pairs beside them.
func holdsWithin(t *testing.T, p *strategy.Problem, l costmodel.Layout, of func(device string) memoryFloor, pairs func(costmodel.HeadShare) float64) {
	t.Helper()
	memory := p.Sim.Memory(l)
	for _, group := range l.Groups {
		for _, h := range group {
			floor := of(p.Ranks[h.Rank].Device)
			spare := memory[h.Rank].Room()
			for k := &floor; k != nil; k = k.also {
				k.left -= spare
			}
			tokens := float64(l.Shards[h.Rank].Tokens())
			if room := floor.room(); tokens > room*(1+1e-9)+1e-6 {
				t.Fatalf("%+v: %v tokens, room for %v", l, tokens, room)
			}
			if most := floor.pairs(tokens); pairs(h) > most*(1+1e-9)+1e-6 {
				t.Fatalf("%+v: rank %d has %v, and there is room for %v beside %v tokens", l, h.Rank, pairs(h), most, tokens)
			}
		}
	}
}

// The bound is below plans that were searched for, not only below random ones.
func TestBoundIsBelowGoodPlans(t *testing.T) {
	world.Sequential(t)
	r := rand.New(rand.NewPCG(33, 1))
	problems := []*strategy.Problem{
		world.GPUs(t, "1x4 h100_sxm + 1x4 a100_sxm", 1<<13), world.GPUs(t, "1x8 h100_sxm", 1<<14), world.GPUs(t, "1x3 h100_sxm", 1<<15),
	}
	for range 20 {
		p := world.Random(t, r)
		problems = append(problems, world.ProblemOf(t, p.Profile, varied(r, p.Job)))
	}
	for _, p := range problems {
		bound := lower(t, p)
		for _, l := range []costmodel.Layout{world.Solve(t, p, &evenkeel.Evenkeel{}, baseline.Strategies()).Layout, evenly(p), twoGroups(r, p), twoGroups(r, p)} {
			if took := world.Seconds(t, p, l); bound > took*(1+1e-9) && fitsAll(p, l) {
				t.Fatalf("bound %v above %v of %+v on %s, %+v", bound, took, l, p.Job.Cluster, p.Job)
			}
		}
	}
}

// The bound is below the best of all plans in whole blocks of small instances.
func TestBoundIsBelowExactSearch(t *testing.T) {
	world.Sequential(t)
	r := rand.New(rand.NewPCG(34, 1))
	var gaps []float64
	for range 16 {
		p, blocks := world.Small(t, r)
		best := world.Exact(t, p, blocks)
		bound := lower(t, p)
		gaps = append(gaps, best/float64(bound)-1)
		if gap := gaps[len(gaps)-1]; gap < -1e-9 {
			t.Fatalf("bound %v above the best, %v, on %s, %+v", bound, best, p.Job.Cluster, p.Job)
		}
	}
	slices.Sort(gaps)
	t.Logf("%d instances: the best is %.1f %% above the bound in the median", len(gaps), 100*gaps[len(gaps)/2])
}

// Floors of groups of some tokens hold for blocks with as many queries.
func TestAttentionFloorHoldsInSmallGroups(t *testing.T) {
	r := rand.New(rand.NewPCG(35, 1))
	p := world.GPUs(t, "1x1 h100_sxm", 1<<16)
	for _, k := range kernelsOf(t, p) {
		for range 6 {
			k.queries = math.Floor(math.Exp(r.Float64() * math.Log(k.seq)))
			checkFloor(t, r, k, 400)
		}
	}
}

// Where links are slow, a group in chunks takes as long as its ports carry what they
// must, and with links neither slow nor fast little more than the floor.
func TestGroupFloorOfSlowLinksIsTight(t *testing.T) {
	for rate, most := range map[float64]float64{1e-11: 0.01, 1e-10: 0.02, 1e-9: 0.04} {
		job := world.Job(t, "1x4 fast", 1<<14)
		job.Model.QHeads, job.Model.KVHeads, job.Model.Hidden = 32, 32, 32*64
		p := world.ProblemOf(t, world.Profile([]world.Device{world.Fast()}, []world.Wire{world.Link("near", 1e-6, rate)}), job)
		l := evenly(p)
		took, floor := leastInChunks(t, p, l), groupFloor(t, p, l)
		if gap := took/floor - 1; gap < 0 || gap > most {
			t.Errorf("%g seconds a byte: floor %v, takes %v: gap %.2f %%", rate, floor, took, 100*gap)
		}
	}
}

// Of a group on two nodes only rows between these cross the network, and those inside move
// beside them: the floor knows either, whatever the links, and is near where the network is
// slow.
func TestGroupFloorOfTwoNodes(t *testing.T) {
	for _, x := range []struct{ near, far, most float64 }{{1e-12, 1e-10, 0.01}, {1e-12, 1e-9, 0.02}, {1e-12, 4e-9, 0.06}, {3e-10, 3e-10, 0.01}, {1e-9, 1e-10, 0.05}} {
		job := world.Job(t, "2x4 fast", 1<<14)
		job.Model.QHeads, job.Model.KVHeads, job.Model.Hidden = 32, 32, 32*64
		far := world.Link("far", 1e-6, x.far)
		far.Nodes, far.Assumed = 2, "a guess"
		p := world.ProblemOf(t, world.Profile([]world.Device{world.Fast()}, []world.Wire{world.Link("near", 1e-6, x.near), far}), job)
		l := evenly(p)
		took, floor := leastInChunks(t, p, l), groupFloor(t, p, l)
		if gap := took/floor - 1; gap < 0 || gap > x.most {
			t.Errorf("%g and %g seconds a byte: floor %v, takes %v: gap %.2f %%", x.near, x.far, floor, took, 100*gap)
		}
	}
}

// Where the exchange keeps the ports busy for whole passes, the all-to-alls of a group come
// on top. By themselves neither takes equal ranks to more than 93.2 % of their step.
func TestGroupFloorKnowsPortsAreShared(t *testing.T) {
	job := world.Job(t, "1x4 fast", 1<<14)
	job.Zero, job.OverlapZero, job.Accumulate = costmodel.Zero3, true, 2
	job.Model.Layers, job.Model.Hidden, job.Model.FFN = 32, 2048, 8192
	d := world.Fast()
	d.FLOPS *= 3
	p := world.ProblemOf(t, world.Profile([]world.Device{d}, []world.Wire{world.Link("near", 0, 5e-10)}), job)
	l := evenly(p)
	for _, l.TwoBatch = range []bool{false, true} {
		took, floor := float64(world.Seconds(t, p, l)), groupFloor(t, p, l)
		if !l.TwoBatch {
			took = leastInChunks(t, p, l)
		}
		if floor > took || floor < 0.97*took {
			t.Errorf("in twos %t: floor %v, takes %v", l.TwoBatch, floor, took)
		}
	}
}

// slowLinks is a problem of two micro-batches for four equal ranks whose link takes so
// many seconds a byte.
func slowLinks(t *testing.T, rate float64) *strategy.Problem {
	t.Helper()
	job := world.Job(t, "1x4 fast", 1<<14)
	job.Model.QHeads, job.Model.KVHeads, job.Model.Hidden = 32, 32, 32*64
	job.Accumulate, job.OverlapZero = 2, false
	return world.ProblemOf(t, world.Profile([]world.Device{world.Fast()}, []world.Wire{world.Link("near", 1e-6, rate)}), job)
}

// What all-to-alls leave for attention in twos is no less than what the simulator has of
// it, and not much more where they take longer than linear work.
func TestAllToAllsInTwosLeaveAttention(t *testing.T) {
	parts := func(p *strategy.Problem, l costmodel.Layout) (linear, attention, toAlls, all float64) {
		step, err := p.Simulate(context.Background(), l)
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range step.Parts {
			switch s := float64(x.Time.Mid); {
			case strings.HasPrefix(x.Name, "gradient") || x.Name == "optimizer":
				continue
			case strings.HasPrefix(x.Name, "attention"):
				attention += s
			case strings.HasPrefix(x.Name, "all-to-all"):
				toAlls += s
			case strings.HasPrefix(x.Name, "linear") || x.Name == "loss":
				linear += s
			}
			all += float64(x.Time.Mid)
		}
		return linear, attention, toAlls, all
	}
	tight := 0
	for _, rate := range []float64{1e-11, 1e-10, 1e-9, 1.5e-9, 2e-9, 2.5e-9, 3e-9} {
		p := slowLinks(t, rate)
		l := evenly(p)
		linear, attention, toAlls, all := parts(p, l)
		if math.Abs(linear+attention+toAlls-all) > 1e-9*all {
			t.Fatalf("%g seconds a byte: %v of linear work, %v of attention and %v of all-to-alls are not %v", rate, linear, attention, toAlls, all)
		}
		l.TwoBatch = true
		_, _, _, theta := parts(p, l)
		left := reach{theta: theta}.left(theta-linear, toAlls)
		if left < attention*(1-1e-9) {
			t.Errorf("%g seconds a byte: by %v they leave %v for attention, which takes %v", rate, theta, left, attention)
		}
		if toAlls > linear && left < 1.12*attention {
			tight++
		}
	}
	if tight < 2 {
		t.Errorf("only %d are tight", tight)
	}
}

// Of two ranks one is good at linear work alone and the other at attention: in twos either
// works while the other does, and the floor knows how far that goes.
func TestGroupFloorOfSpecialistsInTwos(t *testing.T) {
	world.Sequential(t)
	r := rand.New(rand.NewPCG(37, 1))
	least := math.Inf(1)
	for range 40 {
		job := world.Job(t, "1x(1 fast + 1 slow)", 4096)
		job.Accumulate = 2
		profile := world.Profile([]world.Device{world.Fast(), world.Slow()}, []world.Wire{world.Link("near", 1e-9, 1e-15), world.Far()})
		dear := math.Exp(6*r.Float64() - 4)
		for i := range profile.Laws {
			l := &profile.Laws[i]
			attends := l.Op == op.KindAttnFwd || l.Op == op.KindAttnBwd
			if l.Linear != nil && attends == (l.Device == "fast") {
				l.Linear.PerFLOP, l.Linear.PerByte = world.Coef(20*l.Linear.PerFLOP.Value), world.Coef(20*l.Linear.PerByte.Value)
			} else if l.Linear != nil && attends {
				l.Linear.PerFLOP = world.Coef(dear * l.Linear.PerFLOP.Value)
			}
		}
		p := world.ProblemOf(t, profile, job)
		l := costmodel.ZigZag([]units.Tokens{4096, 0}, []costmodel.Group{{{Rank: 0, QHeads: 0}, {Rank: 1, QHeads: p.Job.Model.QHeads}}})
		l.TwoBatch = true
		took, floor := float64(world.Seconds(t, p, l)), groupFloor(t, p, l)
		if floor > took*(1+1e-9) && fitsAll(p, l) {
			t.Fatalf("floor %v above %v in twos, attention %v times as dear", floor, took, dear)
		}
		least = min(least, took/floor)
	}
	if least > 1.2 {
		t.Errorf("the nearest is %.3f times its floor", least)
	}
	t.Logf("the nearest is %.3f times its floor", least)
}
