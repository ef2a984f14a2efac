package multitask

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/evenkeel/evenkeel/internal/units"
)

func TestEqualSharesDifferByOneSample(t *testing.T) {
	for batch := 1; batch <= 20; batch++ {
		c := proportional(t, [][]string{{"a"}}, module("m", 1, batch)).costs(t)
		for n := 1; n <= 24; n++ {
			shares := c.EqualShares(0, n)
			if len(shares) != n || sum(shares) != batch || slices.Max(shares)-slices.Min(shares) > 1 {
				t.Errorf("%d samples on %d: %v", batch, n, shares)
			}
		}
	}
}

// Who has most to do is relieved first of what is too much: of four samples on three equal
// devices none has nothing.
func TestSharesLeaveNobodyIdle(t *testing.T) {
	c := proportional(t, [][]string{{"a", "a", "a"}}, module("m", 1, 4)).costs(t)
	if got := c.Shares(0, []int{0, 1, 2}); !slices.Equal(got, []int{1, 1, 2}) {
		t.Error(got)
	}
}

func sum(shares []int) (total int) {
	for _, n := range shares {
		total += n
	}
	return total
}

// Three devices that take 1, 2 and 3 s a sample: 11 samples are done in 6 s as 6, 3 and 2,
// and one more takes a second longer on the first.
func TestSharesByHand(t *testing.T) {
	for batch, want := range map[int][]int{11: {6, 3, 2}, 12: {7, 3, 2}} {
		c := proportional(t, [][]string{{"a", "b", "c"}}, module("m", 1, batch)).costs(t)
		if got := c.Shares(0, []int{0, 1, 2}); !slices.Equal(got, want) {
			t.Errorf("%d samples: %v, want %v", batch, got, want)
		}
		most, time := c.Balance(0, []int{1, 1, 1})
		if !slices.Equal(most, want) || time != units.Seconds(want[0]) {
			t.Errorf("%d samples: at most %v in %v, want %v", batch, most, time, want)
		}
		// Without the first two, the third has all of them.
		if most, time := c.Balance(0, []int{0, 0, 1}); !slices.Equal(most, []int{0, 0, batch}) || time != units.Seconds(3*batch) {
			t.Errorf("%d samples: at most %v in %v on the slowest alone", batch, most, time)
		}
	}
}

// fewestSeconds is the time of the best of all ways to divide samples among ranks, some of
// which may have none.
func fewestSeconds(c *Costs, module int, ranks []int, samples int) units.Seconds {
	p := c.PoolOf(ranks[0])
	if len(ranks) == 1 {
		return c.Alone(module, p, samples)
	}
	best := forever
	for k := 0; k <= samples; k++ {
		best = min(best, max(c.Alone(module, p, k), fewestSeconds(c, module, ranks[1:], samples-k)))
	}
	return best
}

// No way to divide a batch is better than the balanced one, whatever types take, if more
// samples never take less.
func TestBalanceIsOptimal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		types := rapid.IntRange(1, 3).Draw(t, "types")
		w := &world{tasks: &Tasks{}, made: &made{}}
		var node []string
		var uses []int
		for p := range types {
			uses = append(uses, rapid.IntRange(1, 2).Draw(t, "devices"))
			node = append(node, slices.Repeat([]string{fmt.Sprint(p)}, uses[p])...)
		}
		batch := rapid.IntRange(1, 6).Draw(t, "batch")
		w.nodes, w.tasks.Modules = [][]string{node}, []Module{module("m", 1, batch)}
		var times [][]units.Seconds
		for range types {
			times = append(times, drawTimes(t, batch))
		}
		w.times = [][][]units.Seconds{times}
		c := w.costs(t)

		ranks := drawSubset(t, len(node), len(node))
		uses = make([]int, types)
		for _, r := range ranks {
			uses[c.PoolOf(r)]++
		}
		want := fewestSeconds(c, 0, ranks, batch)
		most, time := c.Balance(0, uses)
		if time != want {
			t.Fatalf("%v of %v: balanced in %v, the best of all ways takes %v", uses, times, time, want)
		}
		held := 0
		for p, n := range uses {
			held += n * most[p]
			if n > 0 && c.Alone(0, p, most[p]) > time || n == 0 && most[p] != 0 {
				t.Fatalf("%v of %v: %v take longer than %v", uses, times, most, time)
			}
		}
		if held < batch {
			t.Fatalf("%v of %v: %v hold %d of %d", uses, times, most, held, batch)
		}
		shares, slowest := c.Shares(0, ranks), units.Seconds(0)
		for i, r := range ranks {
			if shares[i] < 0 || shares[i] > most[c.PoolOf(r)] {
				t.Fatalf("%v of %v: shares %v, at most %v", uses, times, shares, most)
			}
			slowest = max(slowest, c.Alone(0, c.PoolOf(r), shares[i]))
		}
		if sum(shares) != batch || slowest != want {
			t.Fatalf("%v of %v: shares %v take %v, want %v", uses, times, shares, slowest, want)
		}
	})
}
