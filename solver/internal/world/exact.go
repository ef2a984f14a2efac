package world

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/internal/strategy"
)

// Seconds is the simulated time of a layout.
func Seconds(t testing.TB, p *strategy.Problem, l costmodel.Layout) units.Seconds {
	t.Helper()
	x, err := p.Sim.Time(l)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// Small draws a cluster of 2 to 4 ranks, devices, links and a job of a few
// blocks and heads.
func Small(t testing.TB, r *rand.Rand) (p *strategy.Problem, blocks int) {
	devices := []Device{Fast(), Slow()}
	for i := range devices {
		d := &devices[i]
		d.FLOPS *= 0.3 + 3*r.Float64()
		d.Bytes *= 0.3 + 3*r.Float64()
		d.Launch = 1e-5 * r.Float64() * float64(r.IntN(2))
		d.Tail = 1e-13 * r.Float64() * float64(r.IntN(2))
	}
	heavy := math.Pow(10, float64(r.IntN(3))-1)
	wires := []Wire{
		Link("near", 1e-6+1e-5*r.Float64(), heavy*(1e-12+3e-11*r.Float64())),
		Link("far", 1e-6+1e-4*r.Float64(), heavy*(1e-11+3e-10*r.Float64())),
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
	job := Job(t, cluster, block*units.Tokens(blocks))
	heads := []int{4, 6}[r.IntN(2)]
	if len(c.Ranks()) == 4 {
		heads = 4
	}
	job.Model.QHeads, job.Model.KVHeads = heads, []int{1, 2, heads}[r.IntN(3)]
	job.Model.Hidden = 64 * heads
	job.Recompute = []costmodel.Recompute{costmodel.RecomputeNone, costmodel.RecomputeFull}[r.IntN(2)]
	job.OverlapZero, job.Accumulate = r.IntN(2) == 0, r.IntN(4)
	p = ProblemOf(t, Profile(devices, wires), job)
	p.Block = block
	return p, blocks
}

// Exact is the least time of all layouts in whole blocks.
func Exact(t testing.TB, p *strategy.Problem, blocks int) float64 {
	best := math.Inf(1)
	n := len(p.Ranks)
	alike := !slices.ContainsFunc(p.Ranks, func(r costmodel.Rank) bool { return r.Device != p.Ranks[0].Device }) // they keep the layout that is known
	tokens := make([]units.Tokens, n)
	EveryPartition(n, func(groups [][]int) {
		EveryHeads(groups, p.Job.Model.QHeads, func(heads [][]int) {
			EverySplit(blocks, n, func(split []int) {
				for i, b := range split {
					tokens[i] = units.Tokens(b) * p.Block
				}
				l, ok := ExactLayout(tokens, groups, heads)
				if !ok {
					return
				}
				best = min(best, float64(Seconds(t, p, l)))
				if alike {
					return
				}
				for k := 2; len(groups) == 1 && k <= costmodel.MaxHeadChunks; k++ {
					l.HeadChunks = k
					best = min(best, float64(Seconds(t, p, l)))
				}
				if l.HeadChunks = 0; p.Job.Accumulate > 1 {
					l.TwoBatch = true
					for _, weave := range [][2]bool{{}, {true, false}, {false, true}, {true, true}} {
						if l.WeaveForward, l.WeaveBackward = weave[0], weave[1]; weave == [2]bool{} || len(groups) > 1 {
							best = min(best, float64(Seconds(t, p, l)))
						}
					}
				}
			})
		})
	})
	return best
}

// ExactLayout is false where a rank has tokens and no group, a member has
// nothing, or a group has no tokens.
func ExactLayout(tokens []units.Tokens, groups, heads [][]int) (costmodel.Layout, bool) {
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

// EveryPartition calls f with all ordered partitions of all non-empty
// sets of n ranks.
func EveryPartition(n int, f func([][]int)) {
	var place func(r int, groups [][]int)
	place = func(r int, groups [][]int) {
		if r == n {
			if len(groups) > 0 {
				for _, order := range Orders(len(groups)) {
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

// EveryHeads calls f with all ways to split the heads within each group.
func EveryHeads(groups [][]int, heads int, f func([][]int)) {
	split := make([][]int, len(groups))
	var fill func(g int)
	fill = func(g int) {
		if g == len(groups) {
			f(split)
			return
		}
		EverySplit(heads, len(groups[g]), func(s []int) {
			split[g] = slices.Clone(s)
			fill(g + 1)
		})
	}
	fill(0)
}

// EverySplit calls f with all ways to give blocks to n ranks.
func EverySplit(blocks, n int, f func([]int)) {
	split := make([]int, n)
	var fill func(i, left int)
	fill = func(i, left int) {
		if i == n-1 {
			split[i] = left
			f(split)
			return
		}
		for k := 0; k <= left; k++ {
			split[i] = k
			fill(i+1, left-k)
		}
	}
	fill(0, blocks)
}

// Orders lists all orders of 0 to n-1.
func Orders(n int) [][]int {
	if n == 0 {
		return [][]int{nil}
	}
	var all [][]int
	for _, p := range Orders(n - 1) {
		for at := range n {
			all = append(all, slices.Insert(slices.Clone(p), at, n-1))
		}
	}
	return all
}
