package evenkeel

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/internal/baseline"
	"github.com/evenkeel/evenkeel/solver/internal/world"
)

// The groups of a chain are done at about the same time but for those that are full, and
// hold the sequence between them.
func TestLevelChainEndsAtOnce(t *testing.T) {
	r := rand.New(rand.NewPCG(31, 1))
	full, none := 0, 0
	for range 500 {
		n := 1 + r.IntN(6)
		total := 1e4 * (1 + 9*r.Float64())
		times, caps := make([]stretchTime, n), make([]float64, n)
		room := 0.0
		for i := range times {
			linear, pair, wait := 1+r.Float64(), r.Float64()/1e5, r.Float64()/2
			times[i] = func(s, before, last float64) float64 { return s*linear + pair*s*(before+s/2) + last*wait }
			caps[i] = total * min(1, 3*r.Float64())
			room += caps[i]
		}
		each := levelChain(total, times, caps, 1)
		if each == nil {
			if none++; room > total*1.001 {
				t.Fatalf("no split of %v within %v", total, caps)
			}
			continue
		}
		sum, last, least, most := 0.0, 0.0, math.Inf(1), 0.0
		for i, s := range each {
			if s > caps[i] {
				t.Fatalf("%v of %v", each, caps)
			}
			took := times[i](s, sum, last)
			most = max(most, took)
			if s+total/100 < caps[i]*0.9 { // the last one has what is left
				least = min(least, took)
			} else {
				full++
			}
			sum, last = sum+s, s
		}
		if math.Abs(sum/total-1) > 1e-3 || least < most*0.75 && !math.IsInf(least, 1) {
			t.Fatalf("%v of %v: %v in all, done from %v to %v", each, caps, sum, least, most)
		}
	}
	if full < 50 || none < 10 {
		t.Errorf("%d groups were full, %d splits impossible", full, none)
	}
}

// Orders keep devices of a class together, the fastest last in the first one.
func TestChainOrders(t *testing.T) {
	p := world.Problem(t, "2x2 slow + 1x2 fast", 8192, world.Fast(), world.Slow())
	e, err := newEstimator(p)
	if err != nil {
		t.Fatal(err)
	}
	d, _ := e.sorted(e.nodeGroups(countTo(6), [2]int{1, 1}))
	e.setShares(d, 3, 1, false)
	d = d.apart()
	got := e.chainOrders(d)
	if len(got) != 2 || e.p.Ranks[d.kinds[got[0][2]].groups[0][0]].Device != "fast" || e.p.Ranks[d.kinds[got[1][0]].groups[0][0]].Device != "fast" {
		t.Errorf("%v of %+v", got, d.kinds)
	}
	if got := ordersOf(4); len(got) != 24 || !slices.Equal(got[0], []int{0, 1, 2, 3}) {
		t.Errorf("%v", got)
	}
}

// Between nodes of unequal devices that a slow link joins keys go one way for the most
// part: faster than the same groups in a zigzag, which needs all keys everywhere.
func TestSlowLinkMakesStretches(t *testing.T) {
	given := world.GPUs(t, "1x8 h100_sxm + 1x8 a100_sxm", 1<<16)
	for i := range given.Job.Cluster.Nodes {
		given.Job.Cluster.Nodes[i].NICs = 4
	}
	p := world.ProblemOf(t, given.Profile, given.Job)
	res, err := world.After(t.Context(), p, &Evenkeel{}, baseline.Strategies())
	if err != nil {
		t.Fatal(err)
	}
	if stretches(res.Layout) == "" {
		t.Fatalf("%s: no stretches", res.Why)
	}
	e, err := newEstimator(p)
	if err != nil {
		t.Fatal(err)
	}
	d := draftOf(res.Layout, e.class, p.Block, true)
	fast := func(k groupKind) bool { return p.Ranks[k.groups[0][0]].Device == p.Ranks[0].Device }
	d.lead = 0
	count := map[bool]units.Tokens{}
	for _, k := range d.kinds {
		count[fast(k)]++
	}
	if len(count) < 2 {
		t.Fatalf("%s: want groups of both nodes", res.Why)
	}
	least := math.Inf(1)
	for part := units.Tokens(1); part < 64; part++ {
		all := map[bool]units.Tokens{true: p.Job.SeqLen * part / 64}
		all[false] = p.Job.SeqLen - all[true]
		left := p.Job.SeqLen
		for i := range d.kinds {
			k := &d.kinds[i]
			k.tier, k.total = 0, all[fast(*k)]/count[fast(*k)]
			left -= k.total
		}
		d.kinds[0].total += left
		for _, d.OwnLast = range []bool{false, true} {
			least = min(least, float64(world.Seconds(t, p, d.layout(len(p.Ranks), p.Block))))
		}
	}
	ours := float64(world.Seconds(t, p, res.Layout))
	if ours > least*0.97 {
		t.Errorf("%s: takes %v, a zigzag of its groups %v", res.Why, ours, least)
	}
	t.Logf("%s: %.3f of the zigzag's time", res.Why, ours/least)
}
