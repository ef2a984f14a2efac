package multitask

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
)

func TestPoolsAreOfOneTypeByNode(t *testing.T) {
	c := proportional(t, [][]string{{"a", "a", "b"}, {"b"}, {"a"}}, module("m", 1, 1)).costs(t)
	want := []Pool{{"a", [][]int{{0, 1}, {4}}}, {"b", [][]int{{2}, {3}}}}
	if diff := cmp.Diff(want, c.Pools); diff != "" || c.Devices() != 5 || c.Pools[0].Count() != 3 || c.Pools[1].Count() != 2 {
		t.Errorf("%d devices (-want +got)\n%s", c.Devices(), diff)
	}
	for r, want := range [][2]int{{0, 0}, {0, 0}, {0, 1}, {1, 1}, {2, 0}} {
		if c.node[r] != want[0] || c.PoolOf(r) != want[1] {
			t.Errorf("rank %d: node %d, pool %d; want %v", r, c.node[r], c.PoolOf(r), want)
		}
	}
}

func TestTooManyDeviceTypesAreRefused(t *testing.T) {
	var ranks []costmodel.Rank
	for i := range MostPools + 1 {
		c, err := newCosts(&Tasks{Modules: []Module{module("m", 1, 1)}}, ranks, &made{})
		if err != nil || len(c.Pools) != i {
			t.Fatalf("%d types: %v", i, err)
		}
		ranks = append(ranks, costmodel.Rank{Device: fmt.Sprint(i)})
	}
	if _, err := newCosts(&Tasks{Modules: []Module{module("m", 1, 1)}}, ranks, &made{}); err == nil || !strings.Contains(err.Error(), "9 device types: want at most 8") {
		t.Error(err)
	}
}

// A sample takes 3 s on a and 6 s on b, a third of it forward; gradients take 9 s inside a
// node and 90 s across nodes.
func TestALayerTakesItsSlowestAndTheExposedExchange(t *testing.T) {
	w := proportional(t, [][]string{{"a", "a"}, {"b"}}, module("m", 1, 9))
	for p, of := range w.times[0] {
		for k := range of {
			of[k] = units.Seconds(3 * (p + 1) * k)
		}
	}
	w.gradients[0] = 9
	c := w.costs(t)
	for _, x := range []struct {
		ranks, samples []int
		want           units.Seconds
	}{
		{[]int{0}, []int{9}, 27},             // no gradients to exchange
		{[]int{2}, []int{9}, 54},             //
		{[]int{0, 1}, []int{4, 5}, 15},       // 9 s behind a backward pass of 10 s
		{[]int{0, 1}, []int{3, 3}, 9 + 3},    // behind 6 s
		{[]int{0, 2}, []int{1, 1}, 6 + 86},   // 90 s behind 4 s
		{[]int{0, 1, 2}, []int{5, 2, 2}, 95}, // 15 s on the first, 90 s behind 10 s
		{[]int{1, 2}, []int{8, 1}, 24 + 74},  // 90 s behind 16 s
	} {
		if got := c.Layer(0, x.ranks, x.samples); got != x.want {
			t.Errorf("%v samples on %v: %v, want %v", x.samples, x.ranks, got, x.want)
		}
	}
	if f, b := c.Passes(0, 1, 2); f != 4 || b != 8 || c.Alone(0, 1, 2) != 12 || c.Alone(0, 0, 0) != 0 {
		t.Errorf("two samples on b: %v and %v, together %v", f, b, c.Alone(0, 1, 2))
	}
}

// on is a run of a module of made-up prices.
func on(ranks, samples []int) *Run { return &Run{Layers: 1, Ranks: ranks, Samples: samples} }

// Results of 8 samples of a megabyte, and as much of gradients back, divided among the fewer
// of the ranks that send and receive them, at a nanosecond a byte inside a node and ten
// across nodes.
func TestMoveByHand(t *testing.T) {
	w := proportional(t, [][]string{{"a", "a", "a", "a"}, {"a", "a"}}, module("m", 2, 8))
	w.bytes[0] = 1e6
	c := w.costs(t)
	for _, x := range []struct {
		from, to *Run
		last     bool
		want     units.Seconds
	}{
		{on([]int{0}, []int{8}), on([]int{0}, []int{8}), false, 0},
		{on([]int{0, 1}, []int{5, 3}), on([]int{0, 1}, []int{5, 3}), false, 0},
		{on([]int{0, 1}, []int{5, 3}), on([]int{0, 1}, []int{4, 4}), true, 0}, // another module's batch
		{on([]int{0, 1}, []int{5, 3}), on([]int{0, 1}, []int{4, 4}), false, 2 * 4e-3},
		{on([]int{0}, []int{8}), on([]int{1}, []int{8}), false, 2 * 8e-3},
		{on([]int{0}, []int{8}), on([]int{1}, []int{8}), true, 2 * 16e-3}, // made prices: twice as many
		{on([]int{0}, []int{8}), on([]int{0, 1, 2, 3}, []int{2, 2, 2, 2}), false, 2 * 8e-3},
		{on([]int{0, 1, 2}, []int{2, 2, 4}), on([]int{0, 3}, []int{4, 4}), false, 2 * 4e-3},
		{on([]int{4}, []int{8}), on([]int{4, 5}, []int{4, 4}), false, 2 * 8e-3},
		{on([]int{0}, []int{8}), on([]int{4}, []int{8}), false, 2 * 80e-3},
		{on([]int{3, 4}, []int{4, 4}), on([]int{3}, []int{8}), false, 2 * 80e-3},
		{on([]int{3, 4}, []int{4, 4}), on([]int{3, 4}, []int{5, 3}), false, 2 * 40e-3},
		{on([]int{0, 1}, []int{4, 4}), on([]int{0, 1, 5}, []int{3, 3, 2}), false, 2 * 40e-3},
	} {
		for _, way := range [][2]*Run{{x.from, x.to}, {x.to, x.from}} {
			if got := c.Move(0, way[0], way[1], x.last); !close(got, x.want) {
				t.Errorf("from %v %v to %v %v: %v, want %v", way[0].Ranks, way[0].Samples, way[1].Ranks, way[1].Samples, got, x.want)
			}
		}
	}
	// 7 bytes among three are 3 for one of them.
	w.tasks.Modules[0].Batch, w.bytes[0] = 7, 1
	if got := c.Move(0, on([]int{0, 1, 2}, []int{3, 2, 2}), on([]int{0, 1, 3}, []int{3, 2, 2}), false); !close(got, 2*3e-9) {
		t.Errorf("7 bytes among three take %v", got)
	}
	// More bytes than there are sizes are the largest one.
	w.bytes[0] = math.MaxInt64 / 2
	if got := w.costs(t).Move(0, on([]int{0}, []int{7}), on([]int{1}, []int{7}), false); !close(got, 2*math.MaxInt64*1e-9) {
		t.Errorf("7 times half of the largest size take %v", got)
	}
}

func close(a, b units.Seconds) bool { return max(a-b, b-a) <= 1e-9*max(a, b) }

// moved is what Move should be, looking at every pair of ranks.
func (w *world) moved(module int, from, to *Run, last bool) units.Seconds {
	if cmp.Equal(from.Ranks, to.Ranks) && (last || cmp.Equal(from.Samples, to.Samples)) {
		return 0
	}
	slowest := units.Seconds(0)
	for _, a := range from.Ranks {
		for _, b := range to.Ranks {
			if a != b {
				slowest = max(slowest, w.wire(a, b))
			}
		}
	}
	bytes := w.result(module, last) * units.Bytes(w.tasks.Modules[module].Batch)
	ranks := units.Bytes(min(len(from.Ranks), len(to.Ranks)))
	return 2 * slowest * units.Seconds((bytes+ranks-1)/ranks)
}

// Of all pairs between which results may travel the slowest counts, whichever ranks come
// first; and more bytes take longer, or as long where there is nothing to move.
func TestMoveTakesTheSlowestPair(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		c := w.costs(t)
		batch, last := w.tasks.Modules[0].Batch, rapid.Bool().Draw(t, "last")
		var runs [2]*Run
		for i := range runs {
			ranks := drawSubset(t, c.Devices(), min(c.Devices(), batch))
			runs[i] = on(ranks, drawShares(t, batch, len(ranks)))
		}
		got, want := c.Move(0, runs[0], runs[1], last), w.moved(0, runs[0], runs[1], last)
		if !close(got, want) {
			t.Fatalf("%v: %+v to %+v: %v, want %v", w.nodes, runs[0], runs[1], got, want)
		}
		before := w.bytes[0]
		w.bytes[0] += units.Bytes(1 + batch) // at least one more for each rank
		if more := w.costs(t).Move(0, runs[0], runs[1], last); more < got || got > 0 && more == got {
			t.Fatalf("%v: %+v to %+v: %v with %d bytes, %v with %d", w.nodes, runs[0], runs[1], got, before, more, w.bytes[0])
		}
	})
}

// A price that nobody knows is remembered as missing, and what needs it takes forever.
func TestGroupsWithoutAPriceTakeForever(t *testing.T) {
	w := proportional(t, [][]string{{"a", "a"}}, module("m", 2, 4))
	w.bytes[0], w.lacks = 1, errMissing
	c := w.costs(t)
	if got := c.Layer(0, []int{0}, []int{4}); got != 4 || c.Missing() != nil {
		t.Errorf("alone: %v, %v", got, c.Missing())
	}
	if got := c.Layer(0, []int{0, 1}, []int{2, 2}); got != forever || !errors.Is(c.Missing(), errMissing) {
		t.Errorf("on two: %v, %v", got, c.Missing())
	}
	c = w.costs(t)
	if got := c.Move(0, on([]int{0}, []int{4}), on([]int{1}, []int{4}), false); got != forever || !errors.Is(c.Missing(), errMissing) {
		t.Errorf("a move: %v, %v", got, c.Missing())
	}
	p := &Plan{Runs: []Run{*on([]int{0}, []int{4}), *on([]int{1}, []int{4})}}
	if err := c.Simulate(p); !errors.Is(err, errMissing) {
		t.Errorf("a plan that moves: %v", err)
	}
	// A plan that does without has its time.
	p = &Plan{Runs: []Run{{Layers: 2, Ranks: []int{1}, Samples: []int{4}}}}
	if err := c.Simulate(p); err != nil || p.Time != 8 {
		t.Errorf("a plan on one device: %v, %v", p.Time, err)
	}
}

func TestWarningsAreThoseOfThePrices(t *testing.T) {
	if got := proportional(t, [][]string{{"a"}}, module("m", 1, 1)).costs(t).Warnings(); !slices.Equal(got, []string{"made up"}) {
		t.Error(got)
	}
}
