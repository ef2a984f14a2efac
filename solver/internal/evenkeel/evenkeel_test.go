package evenkeel

import (
	"context"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/internal/baseline"
	"github.com/evenkeel/evenkeel/solver/internal/hexiseq"
	"github.com/evenkeel/evenkeel/solver/internal/strategy"
	"github.com/evenkeel/evenkeel/solver/internal/world"
)

// others are the strategies that are solved before.
func others() []strategy.Strategy {
	return append(baseline.Strategies(), hexiseq.HexiSeq{})
}

// solvedAlone is what evenkeel finds after the baselines.
func solvedAlone(t testing.TB, p *strategy.Problem) strategy.Result {
	t.Helper()
	return world.Solve(t, p, &Evenkeel{}, baseline.Strategies())
}

// seeded solves all other strategies first, as Solve does.
func seeded(t testing.TB, p *strategy.Problem) map[string]units.Seconds {
	t.Helper()
	times := map[string]units.Seconds{}
	for _, s := range others() {
		res, err := s.Solve(context.Background(), p, nil)
		if err != nil {
			continue // does not fit or does not exist
		}
		times[s.Name()] = world.Seconds(t, p, res.Layout)
		p.Seeds = append(p.Seeds, res)
	}
	return times
}

// searchOf is a search that starts from the plans before it, or those of the baselines.
func searchOf(t testing.TB, p *strategy.Problem) *search {
	t.Helper()
	if p.Seeds == nil {
		if _, _, err := strategy.SolveEach(t.Context(), p, baseline.Strategies(), nil); err != nil {
			t.Fatal(err)
		}
	}
	s := newSearch(t.Context(), p, Name, nil)
	if err := s.seed(); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestEvenKeelIsNeverSlowerThanItsSeeds(t *testing.T) {
	world.Sequential(t)
	r := rand.New(rand.NewPCG(21, 1))
	for range 15 {
		p := world.Random(t, r)
		times := seeded(t, p)
		ours := world.Seconds(t, p, solvedAlone(t, p).Layout)
		for name, other := range times {
			if ours > other*(1+1e-12) {
				t.Errorf("%s: evenkeel %v, %s %v", p.Job.Cluster, ours, name, other)
			}
		}
	}
}

// On unequal GPUs the search finds what hexiseq does not, without its layouts.
func TestEvenKeelBeatsHexiSeqOnItsOwn(t *testing.T) {
	world.Sequential(t)
	for _, tc := range []struct {
		cluster string
		seq     units.Tokens
	}{
		{"1x8 h100_sxm + 1x8 a100_sxm", 1 << 18},
		{"1x(4 h100_sxm + 4 a100_sxm)", 1 << 17},
		{"1x3 h100_sxm + 1x5 a100_sxm", 1 << 17},
	} {
		p := world.GPUs(t, tc.cluster, tc.seq)
		hexi := world.Seconds(t, p, world.Solve(t, p, hexiseq.HexiSeq{}, baseline.Strategies()).Layout)
		res := solvedAlone(t, p)
		ours := world.Seconds(t, p, res.Layout)
		if ours >= hexi {
			t.Errorf("%s: evenkeel %v, hexiseq %v", tc.cluster, ours, hexi)
		}
		t.Logf("%s, %d tokens: hexiseq takes %.3f times as long; %s", tc.cluster, tc.seq, float64(hexi/ours), res.Why)
	}
}

func TestEvenKeelFillsMemory(t *testing.T) {
	// At these lengths only uneven shares fit, by tokens and by heads.
	p := world.GPUs(t, "1x(4 h100_sxm + 4 a100_sxm)", 1<<20)
	p = world.Changed(t, p, func(j *costmodel.Job) { j.Model.Layers, j.Recompute = 32, costmodel.RecomputeFull })
	res, err := world.After(context.Background(), p, &Evenkeel{}, baseline.Strategies())
	if err != nil {
		t.Fatal(err)
	}
	for r, m := range p.Sim.Memory(res.Layout) {
		if !m.Fits() {
			t.Errorf("rank %d: %v of %v", r, m.Peak(), m.Capacity)
		}
	}
}

func TestSameSearchTwice(t *testing.T) {
	world.Sequential(t)
	a := solvedAlone(t, world.GPUs(t, "1x2 h100_sxm + 1x3 a100_sxm", 1<<16))
	b := solvedAlone(t, world.GPUs(t, "1x2 h100_sxm + 1x3 a100_sxm", 1<<16))
	if !strategy.SameLayout(a.Layout, b.Layout) || a.Evaluated != b.Evaluated || a.Why != b.Why {
		t.Errorf("%q and %q", a.Why, b.Why)
	}
}

// Whenever time runs out there is a plan that fits, and more time never makes it
// slower.
func TestSearchStopsAnywhere(t *testing.T) {
	last := units.Seconds(math.Inf(1))
	for _, after := range []int{0, 1, 5, 40, 400} {
		p := world.GPUs(t, "1x2 h100_sxm + 1x3 a100_sxm", 1<<16)
		p.Seeds = append(p.Seeds, world.Solve(t, p, baseline.Ring{}, nil))
		ctx, cancel := context.WithCancel(context.Background())
		reports := 0
		if after == 0 {
			cancel()
		}
		res, err := (&Evenkeel{}).Solve(ctx, p, func(g strategy.Progress) {
			if reports++; g.Evaluated >= after {
				cancel()
			}
		})
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		now := world.Seconds(t, p, res.Layout)
		if now > last {
			t.Errorf("after %d layouts %v, before %v", after, now, last)
		}
		last = now
	}
}

// Every grouping has every rank of its pool in one group, and none comes twice.
func TestEvenKeelGroupingsArePartitions(t *testing.T) {
	for _, cluster := range []string{"1x8 h100_sxm + 1x8 a100_sxm", "1x(2 h100_sxm + 3 a100_sxm) + 2x3 h100_sxm", "1x2 h100_sxm + 1x3 a100_sxm", "16x8 h100_sxm + 8x8 a100_sxm"} {
		p := world.GPUs(t, cluster, 1<<18)
		e, err := newEstimator(p)
		if err != nil {
			t.Fatal(err)
		}
		for _, pool := range e.pools() {
			seen := map[string]bool{}
			for _, d := range e.groupings(pool.ranks, 200) {
				var all []int
				for _, at := range d.ring {
					all = append(all, d.members(at)...)
				}
				slices.Sort(all)
				if !slices.Equal(all, pool.ranks) {
					t.Fatalf("%s: ranks %v of %v", cluster, all, pool.ranks)
				}
				var groups [][]int
				for _, at := range d.ring {
					groups = append(groups, d.members(at))
				}
				key := draftKey(e.sorted(groups))
				if seen[key] {
					t.Fatalf("%s: twice %v", cluster, d.kinds)
				}
				seen[key] = true
			}
			if len(seen) == 0 {
				t.Errorf("%s: no grouping of %v", cluster, pool.ranks)
			}
		}
	}
}

// The estimate of a lone group, in which nothing overlaps, is the simulation but
// for what lies between lengths of its grid; of rings of equal groups it is near.
func TestEstimateIsNearTheSimulation(t *testing.T) {
	for _, tc := range []struct {
		cluster string
		size    int // of the groups
		nics    int // of a node; 0 is one a device
		zero    bool
		within  float64
	}{
		{"1x8 h100_sxm", 8, 0, false, 0.02},
		{"1x(4 h100_sxm + 4 a100_sxm)", 8, 0, false, 0.02},
		{"1x8 a100_sxm", 4, 0, false, 0.08},
		{"1x8 h100_sxm", 1, 0, false, 0.10},
		{"1x2 h100_sxm + 1x6 a100_sxm", 8, 0, false, 0.02},
		{"1x2 h100_sxm + 1x6 a100_sxm", 8, 2, false, 0.02},
		{"4x2 h100_sxm", 8, 1, false, 0.02},
		{"4x2 h100_sxm", 8, 1, true, 0.08},
	} {
		p := world.GPUs(t, tc.cluster, 100_000)
		p = world.Changed(t, p, func(j *costmodel.Job) {
			j.OverlapZero = tc.zero
			for i := range j.Cluster.Nodes {
				j.Cluster.Nodes[i].NICs = min(tc.nics, 2)
			}
		})
		s := newSearch(context.Background(), p, "test", nil)
		var err error
		if s.est, err = newEstimator(p); err != nil {
			t.Fatal(err)
		}
		var groups [][]int
		for r := 0; r < 8; r += tc.size {
			groups = append(groups, countTo(8)[r:r+tc.size])
		}
		d := s.est.draft(groups)
		tax, hidden, err := s.est.tax(countTo(8))
		if err != nil {
			t.Fatal(err)
		}
		estimate := s.est.shown(d, s.estimate(d), hidden) + tax
		real := float64(world.Seconds(t, p, d.layout(8, p.Block)))
		if math.Abs(estimate/real-1) > tc.within {
			t.Errorf("%s in groups of %d: estimate %v, simulated %v", tc.cluster, tc.size, estimate, real)
		}
	}
}

// A layout in whole blocks survives being read as a draft.
func TestDraftOfLayoutRoundTrips(t *testing.T) {
	r := rand.New(rand.NewPCG(22, 1))
	class := []int{0, 0, 1, 1, 0, 1}
	for range 200 {
		const block = 16
		tokens := make([]units.Tokens, len(class))
		for i := range tokens {
			tokens[i] = units.Tokens(1+r.IntN(50)) * block
		}
		var groups []costmodel.Group
		for ranks := r.Perm(len(class)); len(ranks) > 0; {
			n := 1 + r.IntN(len(ranks))
			var g costmodel.Group
			for i, x := range ranks[:n] {
				heads := 1
				if i == 0 {
					heads = 9 - n
				}
				g = append(g, costmodel.HeadShare{Rank: x, QHeads: heads})
			}
			groups, ranks = append(groups, g), ranks[n:]
		}
		l := costmodel.ZigZag(tokens, groups)
		if got := draftOf(l, class, block, true).layout(len(class), block); !strategy.SameLayout(got, l) {
			t.Fatalf("%v became %v", l, got)
		}
		merged := draftOf(l, class, block, false).layout(len(class), block)
		if err := merged.Validate(world.Sum(tokens), len(class), 8); err != nil {
			t.Fatal(err)
		}
	}
}

// What some ranks are said to be too small for, no layout on them holds.
func TestTooSmallIsNeverWrong(t *testing.T) {
	world.Sequential(t)
	r := rand.New(rand.NewPCG(23, 1))
	fitted := 0
	for range 40 {
		f, s := world.Fast(), world.Slow()
		f.Memory, s.Memory = units.Bytes(float64(units.GiB)*(0.1+0.5*r.Float64())), units.Bytes(float64(units.GiB)*(0.1+0.5*r.Float64()))
		p := world.Problem(t, "1x(2 fast + 2 slow)", units.Tokens(2000+r.IntN(30000)), f, s)
		e, err := newEstimator(p)
		if err != nil {
			t.Fatal(err)
		}
		res, err := world.After(context.Background(), p, &Evenkeel{}, baseline.Strategies())
		if err != nil {
			continue
		}
		fitted++
		var used []int
		for _, g := range res.Layout.Groups {
			for _, h := range g {
				used = append(used, h.Rank)
			}
		}
		slices.Sort(used)
		if e.tooSmall(used) {
			t.Errorf("%v hold %d tokens", used, p.Job.SeqLen)
		}
	}
	if fitted < 5 {
		t.Errorf("only %d worlds have a plan: the test says little", fitted)
	}
}

// More effort never makes a plan slower, and the same makes the same.
func TestEffortOnlyGains(t *testing.T) {
	world.Sequential(t)
	faster := 0
	for _, cluster := range []string{"1x8 h100_sxm + 2x2 a100_sxm", "1x2 rtx_pro_6000_server + 1x4 a100_sxm + 1x2 h100_sxm + 1x4 h100_sxm + 1x8 a100_sxm"} {
		p := oneCard(t, cluster, 40, 384<<10)
		once := solvedAlone(t, p)
		p.Effort = 4
		more, again := solvedAlone(t, p), solvedAlone(t, p)
		if more.Step.Time.Mid > once.Step.Time.Mid {
			t.Errorf("%s: %v with four times the effort, %v without", cluster, more.Step.Time.Mid, once.Step.Time.Mid)
		}
		if !reflect.DeepEqual(more.Layout, again.Layout) {
			t.Errorf("%s: two plans of the same effort differ", cluster)
		}
		if more.Step.Time.Mid < once.Step.Time.Mid*(1-minGain) {
			faster++
		}
		p.Effort = 1
		if same := solvedAlone(t, p); !reflect.DeepEqual(same.Layout, once.Layout) {
			t.Errorf("%s: an effort of 1 and none are not the same", cluster)
		}
	}
	if faster == 0 {
		t.Error("more effort gained nothing anywhere")
	}
}

// A search that used its budget up says how to go on; one that had more than it wanted does not, though
// the usual look before it had less.
func TestALimitIsThatOfTheLastLook(t *testing.T) {
	const limit = "the limit of the search"
	p := world.GPUs(t, "1x2 h100_sxm + 1x2 a100_sxm", 1<<16)
	if why := world.Solve(t, p, &Evenkeel{}, baseline.Strategies()).Why; !strings.Contains(why, limit+"; --effort 4 goes on") {
		t.Errorf("with the usual budget: %s", why)
	}
	p.Effort = strategy.MostEffort
	if why := world.Solve(t, p, &Evenkeel{}, baseline.Strategies()).Why; strings.Contains(why, limit) {
		t.Errorf("with %v times as much: %s", strategy.MostEffort, why)
	}
}
