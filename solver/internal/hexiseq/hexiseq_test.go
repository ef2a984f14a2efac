package hexiseq

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/internal/analytic"
	"github.com/evenkeel/evenkeel/solver/internal/baseline"
	"github.com/evenkeel/evenkeel/solver/internal/strategy"
	"github.com/evenkeel/evenkeel/solver/internal/world"
)

func testModelOf(t testing.TB, p *strategy.Problem) *analytic.Model {
	t.Helper()
	m, err := analytic.New(p)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// solved is what hexiseq finds after the baselines.
func solved(t testing.TB, p *strategy.Problem) strategy.Result {
	t.Helper()
	return world.Solve(t, p, HexiSeq{}, baseline.Strategies())
}

func TestHexiSeqIsNeverSlowerThanABaseline(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 14))
	for range 25 {
		p := world.Random(t, r)
		p.Seeds = nil
		res := solved(t, p)
		got := world.Time(t, p, res.Layout)
		for _, s := range baseline.Strategies() {
			if base, ok := world.FittingTime(t, p, s); ok && got > base {
				t.Errorf("%s: hexiseq %v, %s %v", p.Job.Cluster, got, s.Name(), base)
			}
		}
	}
}

// Solved after the baselines or on its own, and twice, hexiseq has one answer.
func TestHexiSeqIsDeterministic(t *testing.T) {
	for _, cluster := range []string{"1x4 fast + 1x4 slow", "2x(2 fast + 2 slow)", "1x(3 fast + 1 slow)"} {
		first := solved(t, world.Problem(t, cluster, 30000))
		p := world.Problem(t, cluster, 30000)
		if _, _, err := strategy.SolveEach(context.Background(), p, baseline.Strategies(), nil); err != nil {
			t.Fatal(err)
		}
		if len(p.Seeds) == 0 {
			t.Errorf("%s: no seeds", cluster)
		}
		for range 2 {
			if again := solved(t, p); !reflect.DeepEqual(again.Layout, first.Layout) {
				t.Errorf("%s: %+v, before %+v", cluster, again.Layout, first.Layout)
			}
		}
	}
}

func TestHexiSeqSaysWhatItChose(t *testing.T) {
	res := solved(t, world.Problem(t, "1x4 fast + 1x4 slow", 131072))
	for _, want := range []string{" groups, ", "tokens across groups ", "of ", "candidates fit memory by the analytic model"} {
		if !strings.Contains(res.Why, want) {
			t.Errorf("why: %q lacks %q", res.Why, want)
		}
	}
}

// Groupings are partitions of all ranks, none twice, of at most as many members
// as heads, with every mesh among them.
func TestGroupingsArePartitions(t *testing.T) {
	third := world.Slow()
	third.Name = "third"
	for _, c := range []struct {
		cluster string
		heads   int
		want    string // a grouping that must be among them
	}{
		{"1x1 fast", 8, "[[0]]"},
		{"1x7 fast", 8, "[[0] [1] [2] [3] [4] [5] [6]]"},
		{"1x7 fast", 7, "[[0 1 2 3 4 5 6]]"},
		{"1x2 fast + 1x4 slow", 8, "[[0] [1] [2 3] [4 5]]"},                                     // a size for each type
		{"2x(2 fast + 2 slow)", 8, "[[0 1] [2 3] [4 5] [6 7]]"},                                 // by type in mixed nodes
		{"2x(2 fast + 2 slow)", 8, "[[0 2] [1 3] [4 6] [5 7]]"},                                 // mixed
		{"2x2 fast + 2x1 slow", 8, "[[0 1 2 3] [4 5]]"},                                         // super-nodes of like nodes
		{"2x2 fast + 2x1 slow", 8, "[[0 1 4] [2 3 5]]"},                                         // super-nodes of every kind
		{"1x2 fast + 1x2 slow + 1x2 third", 2, "[[0 1] [2 3] [4 5]]"},                           // no more members than heads
		{"1x3 fast + 1x5 slow", 8, "[[0 1 2] [3 4 5 6 7]]"},                                     // primes
		{"1x2 fast + 1x2 slow + 1x2 third", 8, "[[0 1 2 3 4 5]]"},                               // all in one
		{"2x4 fast + 1x4 slow", 8, "[[0 1 2 3] [4 5 6 7] [8] [9] [10] [11]]"},                   // unequal sizes
		{"3x4 fast", 8, "[[0 3 6 9] [1 4 7 10] [2 5 8 11]]"},                                    // a mesh
		{"1x(4 fast + 2 slow) + 1x(2 fast + 4 slow)", 8, "[[0 1 2 3] [4 5] [6 7] [8 9 10 11]]"}, // divisors by node
	} {
		job := world.Job(t, c.cluster, 8192)
		job.Model.QHeads, job.Model.KVHeads = c.heads, 1
		p := world.ProblemOf(t, world.Profile([]world.Device{world.Fast(), world.Slow(), third}, []world.Wire{world.Near(), world.Far()}), job)
		seen := map[string]bool{}
		for _, x := range groupings(p) {
			key := fmt.Sprint(x.groups)
			if seen[key] {
				t.Errorf("%s: %s comes twice", c.cluster, key)
			}
			seen[key] = true
			if all := slices.Sorted(slices.Values(slices.Concat(x.groups...))); !slices.Equal(all, p.AllRanks()) {
				t.Errorf("%s: %s, %s: no partition", c.cluster, x.name, key)
			}
			for _, g := range x.groups {
				if len(g) > c.heads {
					t.Errorf("%s: %s: group %v is larger than %d heads", c.cluster, x.name, g, c.heads)
				}
			}
		}
		if !seen[c.want] {
			t.Errorf("%s, %d heads: %s is not among the groupings", c.cluster, c.heads, c.want)
		}
	}
}

func TestGroupingsStayFew(t *testing.T) {
	types := []world.Device{world.Fast(), world.Slow(), world.Slow(), world.Slow()}
	types[2].Name, types[3].Name = "third", "fourth"
	for _, cluster := range []string{
		"2x8 fast + 4x8 slow + 5x8 third + 5x8 fourth",
		"32x8 fast + 32x8 slow + 32x8 third + 32x8 fourth",
		"1x(2 fast + 2 slow + 2 third + 2 fourth)",
	} {
		p := world.Problem(t, cluster, 1<<20, types...)
		if n := len(groupings(p)); n < 8 || n > 150 {
			t.Errorf("%s: %d groupings", cluster, n)
		}
	}
}

func TestProportionalSplits(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 2))
	for range 2000 {
		n := 1 + r.IntN(12)
		weights, sum := make([]float64, n), 0.0
		for i := range weights {
			weights[i] = float64(1+r.IntN(4)) * (0.01 + r.Float64()*float64(r.IntN(2)))
			sum += weights[i]
		}
		block := units.Tokens(1 << r.IntN(8))
		total := units.Tokens(n) + units.Tokens(r.IntN(100_000))
		split := proportional(total, block, weights)
		got := units.Tokens(0)
		for i, s := range split {
			got += s
			if off := float64(s) - weights[i]/sum*float64(total); s < 1 || off > 2*float64(block)+float64(n) || off < -2*float64(block)-float64(n) {
				t.Fatalf("%d in blocks of %d by %v: %v, number %d is off by %v", total, block, weights, split, i, off)
			}
		}
		if got != total {
			t.Fatalf("%d by %v: %v sums to %d", total, weights, split, got)
		}
	}
	if got := proportional(10, 4, []float64{1, 1, 1}); !slices.Equal(got, []units.Tokens{4, 3, 3}) {
		t.Errorf("equal weights: %v", got)
	}
}

// Two to one in strength, policies split two to one, by the root, evenly.
func TestPolicies(t *testing.T) {
	c := &capability{dev: []int{0, 0, 1, 1}, compute: []float64{4, 1}, memory: []float64{3, 3}}
	p := world.Problem(t, "1x2 fast + 1x2 slow", 12*1024)
	want := map[string][]units.Tokens{
		"compute-proportional": {9984, 2304}, // 9830.4 and 2457.6 in blocks of 32 and rest
		"sqrt-compute":         {8192, 4096},
		"uniform over groups":  {6144, 6144},
		"uniform over ranks":   {6144, 6144},
		"memory-proportional":  {6144, 6144},
	}
	for _, x := range policies() {
		got := c.splitGroups(p, x, [][]int{{0, 1}, {2, 3}})
		for i, w := range want[x.name] {
			if d := got[i] - w; d > 160 || d < -160 || len(got) != 2 {
				t.Errorf("%s: %v, want about %v", x.name, got, want[x.name])
			}
		}
	}
	if got := c.splitGroups(p, policies()[3], [][]int{{0, 1, 2}, {3}}); got[0] != 9216 || got[1] != 3072 {
		t.Errorf("uniform over ranks of unequal groups: %v", got)
	}
}

// oneCrew is the group of all ranks, with nothing passing by.
func oneCrew(t testing.TB, p *strategy.Problem) (*analytic.Model, *analytic.Crew) {
	t.Helper()
	m := testModelOf(t, p)
	all, err := m.Crews([][]int{p.AllRanks()})
	if err != nil {
		t.Fatal(err)
	}
	return m, all[0]
}

// Where descent ends no move of a block or a head helps any more, all tokens and
// heads are dealt, and the start was no better.
func TestDescentEndsInALocalOptimum(t *testing.T) {
	r := rand.New(rand.NewPCG(21, 4))
	for range 20 {
		p := world.Random(t, r)
		m, c := oneCrew(t, p)
		abilities := capabilityOf(p, m)
		s, got := descend(m.Pricer(c, nil, len(p.Ranks)), p, abilities, p.Job.SeqLen)
		heads := 0
		for _, h := range s.Heads {
			heads += h
		}
		if world.Sum(s.Tokens) != p.Job.SeqLen || heads != p.Job.Model.QHeads {
			t.Fatalf("%s: %+v", p.Job.Cluster, s)
		}
		d := &descent{p: p, price: m.Pricer(c, nil, len(p.Ranks)), left: 1000, now: s, cost: got}
		if d.mixed() && d.pass(p.Block) {
			t.Errorf("%s: %+v is no local optimum: %+v is better", p.Job.Cluster, s, d.now)
		}
		first := firstShare(p, c, abilities, p.Job.SeqLen)
		if start := m.Pricer(c, nil, len(p.Ranks)).Cost(first); start.Less(got) {
			t.Errorf("%s: the start %+v is better than %+v", p.Job.Cluster, start, got)
		}
	}
}

// A member with little memory ends up with what it can hold.
func TestDescentGivesWayToMemory(t *testing.T) {
	f, s := world.Fast(), world.Slow()
	f.Memory = 1200 * units.MiB
	p := world.Problem(t, "1x(2 fast + 2 slow)", 65536, f, s)
	m, c := oneCrew(t, p)
	abilities := capabilityOf(p, m)
	first := firstShare(p, c, abilities, p.Job.SeqLen)
	if start := m.Pricer(c, nil, 4).Cost(first); start.Over <= 1 {
		t.Fatalf("the start fits already: %+v", start)
	}
	share, got := descend(m.Pricer(c, nil, 4), p, abilities, p.Job.SeqLen)
	if got.Over > 1 || share.Tokens[0] >= first.Tokens[0] {
		t.Errorf("from %+v to %+v, over by %v", first, share, got.Over)
	}
}

// Equal members keep equal shares.
func TestDescentLeavesEqualMembersAlone(t *testing.T) {
	p := world.Problem(t, "1x4 fast", 16384)
	m, c := oneCrew(t, p)
	s, _ := descend(m.Pricer(c, nil, 4), p, capabilityOf(p, m), p.Job.SeqLen)
	if slices.Max(s.Tokens) != slices.Min(s.Tokens) || slices.Max(s.Heads) != slices.Min(s.Heads) {
		t.Errorf("%+v", s)
	}
}

// Random jobs with odd heads: every candidate is a valid layout, and one that
// fits by the model fits by the simulator.
func TestCandidatesAreLayouts(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 5))
	for range 30 {
		base := world.Random(t, r)
		job := base.Job
		job.Model.KVHeads = 1 + r.IntN(3)
		job.Model.QHeads = job.Model.KVHeads * (1 + r.IntN(5))
		p, err := strategy.New(base.Profile, job)
		if err != nil {
			t.Fatal(err)
		}
		all, err := candidates(context.Background(), p, testModelOf(t, p))
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range all {
			l := x.layout(p)
			world.Time(t, p, l)
			for rank, m := range p.Sim.Memory(l) {
				if x.cost.Over <= 1 && !m.Fits() {
					t.Errorf("%s: %s: rank %d does not fit: %+v", job.Cluster, x.why(), rank, m)
				}
			}
		}
	}
}

// hexiseq answers where baselines do not fit: memory-proportional shares do.
func TestHexiSeqFitsWhereEqualSharesDoNot(t *testing.T) {
	f, s := world.Fast(), world.Slow()
	f.Memory, s.Memory = 2100*units.MiB, 800*units.MiB
	p := world.Problem(t, "1x4 fast + 1x4 slow", 131072, f, s)
	for _, base := range baseline.Strategies() {
		_, err := base.Solve(context.Background(), p, nil)
		var bad *strategy.MemoryError
		var none *strategy.IllegalError
		if !errors.As(err, &bad) && !errors.As(err, &none) {
			t.Fatalf("%s fits: %v", base.Name(), err)
		}
	}
	res := solved(t, p)
	for _, m := range p.Sim.Memory(res.Layout) {
		if !m.Fits() {
			t.Errorf("%+v does not fit", m)
		}
	}
}

func BenchmarkHexiSeq(b *testing.B) {
	for _, cluster := range []string{"1x8 h100_sxm + 1x8 a100_sxm", "2x8 h100_sxm + 4x8 a100_sxm + 5x8 b60 + 5x8 rtx_pro_6000_server", "64x8 h100_sxm + 64x8 a100_sxm"} {
		b.Run(strings.ReplaceAll(cluster, " ", ""), func(b *testing.B) {
			for b.Loop() {
				p := world.GPUs(b, cluster, 1<<20)
				if _, err := world.After(context.Background(), p, HexiSeq{}, baseline.Strategies()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// Once time is up hexiseq has the fastest plan of before and forms no groups, which takes seconds
// of tens of thousands of ranks.
func TestNoGroupsAreFormedOnceTimeIsUp(t *testing.T) {
	late, cancel := context.WithDeadline(context.Background(), time.Unix(0, 0))
	defer cancel()
	p := world.Problem(t, "1x(2 fast + 2 slow)", 1<<15)
	slow := world.Solve(t, world.Problem(t, "1x(2 fast + 2 slow)", 1<<15), baseline.Ring{}, nil)
	fast := world.Solve(t, world.Problem(t, "1x(2 fast + 2 slow)", 1<<15), baseline.USPSubset{}, nil)
	if fast.Step.Time.Mid >= slow.Step.Time.Mid {
		t.Fatalf("usp-subset takes %v, ring %v", fast.Step.Time, slow.Step.Time)
	}
	p.Seeds = []strategy.Result{slow, fast}
	res, err := HexiSeq{}.Solve(late, p, nil)
	if err != nil || !res.Stopped || strings.Contains(res.Why, "candidates fit memory") || !strategy.SameLayout(res.Layout, fast.Layout) {
		t.Errorf("%+v: %v", res.Why, err)
	}
}
