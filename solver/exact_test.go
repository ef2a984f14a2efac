package solver

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
)

// The search on random instances small enough to try everything: all ways to
// leave ranks out, to form groups, to order them in the ring, to split blocks
// over ranks and heads over the members of groups (in rank order).
func TestAgainstExactSearch(t *testing.T) {
	if testing.Short() {
		t.Skip("long; goroutines have shorter tests")
	}
	instances := 200
	r := rand.New(rand.NewPCG(11, 1))
	var gaps []float64
	for i := range instances {
		p, blocks := smallWorld(t, r)
		best := exactSearch(t, p, blocks)
		ours := float64(secondsOf(t, p, solveWith(t, p, &evenKeel{}).Layout))
		gaps = append(gaps, ours/best-1)
		if gaps[i] > 0.02 {
			t.Errorf("instance %d: %s, %d blocks of %d, %d heads: %v above the best", i, p.Job.Cluster, blocks, p.Block, p.Job.Model.QHeads, gaps[i])
		}
	}
	slices.Sort(gaps)
	if m := gaps[len(gaps)/2]; m > 1e-9 {
		t.Errorf("median gap %v", m)
	}
	over := 0
	for _, g := range gaps {
		if g > 1e-9 {
			over++
		}
	}
	t.Logf("%d instances: median %.4f %%, worst %.3f %%, %d not exact", len(gaps), 100*gaps[len(gaps)/2], 100*gaps[len(gaps)-1], over)
}

// secondsOf is the simulated time of a layout.
func secondsOf(t testing.TB, p *Problem, l costmodel.Layout) units.Seconds {
	t.Helper()
	x, err := p.sim.Time(l)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// smallWorld draws a cluster of 2 to 4 ranks, devices, links and a job of a few
// blocks and heads.
func smallWorld(t testing.TB, r *rand.Rand) (p *Problem, blocks int) {
	devices := []device{fast(), slow()}
	for i := range devices {
		d := &devices[i]
		d.flops *= 0.3 + 3*r.Float64()
		d.bytes *= 0.3 + 3*r.Float64()
		d.launch = 1e-5 * r.Float64() * float64(r.IntN(2))
		d.tail = 1e-13 * r.Float64() * float64(r.IntN(2))
	}
	heavy := math.Pow(10, float64(r.IntN(3))-1)
	wires := []wire{
		{"near", 1e-6 + 1e-5*r.Float64(), heavy * (1e-12 + 3e-11*r.Float64())},
		{"far", 1e-6 + 1e-4*r.Float64(), heavy * (1e-11 + 3e-10*r.Float64())},
	}
	clusters := []string{
		"1x(1 fast + 1 slow)", "1x1 fast + 1x1 slow", "2x1 fast", "1x(2 fast + 1 slow)", "1x(1 fast + 2 slow)",
		"1x2 fast + 1x1 slow", "1x1 fast + 1x2 slow", "1x(1 fast + 1 slow) + 1x1 slow", "1x(2 fast + 2 slow)", "1x2 fast + 1x2 slow",
	}
	cluster := clusters[r.IntN(len(clusters))]
	blocks = 12
	c, err := costmodel.ParseCluster(cluster)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(c.Ranks()); n > 2 {
		blocks = []int{9, 6}[n-3]
	}
	block := units.Tokens(64 << r.IntN(5))
	job := testJob(t, cluster, block*units.Tokens(blocks))
	heads := []int{4, 6}[r.IntN(2)]
	if len(c.Ranks()) == 4 {
		heads = 4
	}
	job.Model.QHeads, job.Model.KVHeads = heads, []int{1, 2, heads}[r.IntN(3)]
	job.Model.Hidden = 64 * heads
	job.Recompute = []costmodel.Recompute{costmodel.RecomputeNone, costmodel.RecomputeFull}[r.IntN(2)]
	job.OverlapZero, job.Accumulate = r.IntN(2) == 0, r.IntN(4)
	p = problemOf(t, testProfile(devices, wires), job)
	p.Block = block
	return p, blocks
}

// exactSearch is the least time of all layouts in whole blocks.
func exactSearch(t testing.TB, p *Problem, blocks int) float64 {
	best := math.Inf(1)
	n := len(p.ranks)
	alike := !slices.ContainsFunc(p.ranks, func(r costmodel.Rank) bool { return r.Device != p.ranks[0].Device }) // they keep the layout that is known
	tokens := make([]units.Tokens, n)
	everyOrderedPartition(n, func(groups [][]int) {
		everyHeads(groups, p.Job.Model.QHeads, func(heads [][]int) {
			everySplit(blocks, n, func(split []int) {
				for i, b := range split {
					tokens[i] = units.Tokens(b) * p.Block
				}
				l, ok := exactLayout(tokens, groups, heads)
				if !ok {
					return
				}
				best = min(best, float64(secondsOf(t, p, l)))
				if alike {
					return
				}
				for k := 2; len(groups) == 1 && k <= costmodel.MaxHeadChunks; k++ {
					l.HeadChunks = k
					best = min(best, float64(secondsOf(t, p, l)))
				}
				if l.HeadChunks = 0; p.Job.Accumulate > 1 {
					l.TwoBatch = true
					best = min(best, float64(secondsOf(t, p, l)))
				}
			})
		})
	})
	return best
}

// exactLayout is false where a rank has tokens and no group, a member has
// nothing, or a group has no tokens.
func exactLayout(tokens []units.Tokens, groups, heads [][]int) (costmodel.Layout, bool) {
	in := make([]bool, len(tokens))
	var all []costmodel.Group
	for g, ranks := range groups {
		var group costmodel.Group
		some := false
		for i, r := range ranks {
			if tokens[r] == 0 && heads[g][i] == 0 {
				return costmodel.Layout{}, false
			}
			in[r] = true
			some = some || tokens[r] > 0
			group = append(group, costmodel.HeadShare{Rank: r, QHeads: heads[g][i]})
		}
		if !some {
			return costmodel.Layout{}, false
		}
		all = append(all, group)
	}
	for r, n := range tokens {
		if n > 0 && !in[r] {
			return costmodel.Layout{}, false
		}
	}
	return costmodel.ZigZag(tokens, all), true
}

// everyOrderedPartition calls f with all ordered partitions of all non-empty
// sets of n ranks.
func everyOrderedPartition(n int, f func([][]int)) {
	var place func(r int, groups [][]int)
	place = func(r int, groups [][]int) {
		if r == n {
			if len(groups) > 0 {
				for _, order := range ordersOf(len(groups)) {
					ring := make([][]int, len(groups))
					for i, g := range order {
						ring[i] = groups[g]
					}
					f(ring)
				}
			}
			return
		}
		place(r+1, groups) // left out
		for i := range groups {
			more := slices.Clone(groups)
			more[i] = append(slices.Clone(groups[i]), r)
			place(r+1, more)
		}
		place(r+1, append(slices.Clone(groups), []int{r}))
	}
	place(0, nil)
}

// everyHeads calls f with all ways to split the heads within each group.
func everyHeads(groups [][]int, heads int, f func([][]int)) {
	split := make([][]int, len(groups))
	var fill func(g int)
	fill = func(g int) {
		if g == len(groups) {
			f(split)
			return
		}
		everySplit(heads, len(groups[g]), func(s []int) {
			split[g] = slices.Clone(s)
			fill(g + 1)
		})
	}
	fill(0)
}
