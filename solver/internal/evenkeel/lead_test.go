package evenkeel

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/internal/baseline"
	"github.com/evenkeel/evenkeel/solver/internal/strategy"
	"github.com/evenkeel/evenkeel/solver/internal/world"
)

// chainOfTwo is a draft of two groups, of four ranks each, in a chain.
func chainOfTwo(t *testing.T, e *estimator) *draft {
	d, _ := e.sorted(e.nodeGroups(countTo(8), [2]int{1, 1}))
	e.setShares(d, 2, 1, false)
	d = d.apart()
	for i := range d.kinds {
		d.kinds[i].tier, d.kinds[i].total = i, e.p.Job.SeqLen/2
	}
	return d
}

// A chain with a lead is read back from its layout as it is; its tail is what its last
// group has beside the lead, and every token is somewhere.
func TestLeadsReadBack(t *testing.T) {
	r := rand.New(rand.NewPCG(61, 1))
	p := world.Problem(t, "1x4 fast + 1x4 slow", 8192, world.Fast(), world.Slow())
	e, err := newEstimator(p)
	if err != nil {
		t.Fatal(err)
	}
	for range 200 {
		d := chainOfTwo(t, e)
		if x := d.deal(1, units.Tokens(r.IntN(9)-4)*p.Block, p.Block); x != nil {
			d = x
		}
		d.lead, d.OwnLast = units.Tokens(r.IntN(int(d.kinds[1].total)+200)), r.IntN(2) == 0
		l := d.layout(8, p.Block)
		if err := l.Validate(p.Job.SeqLen, 8, p.Job.Model.QHeads); err != nil {
			t.Fatal(err)
		}
		g, kept := l.Tail()
		if leads := d.lead > 0 && d.lead < d.kinds[1].total; l.KeepTail != leads || leads && (g != 1 || kept != d.kinds[1].total-d.lead) {
			t.Fatalf("lead %d of %d: keep tail %t, %d tokens of group %d", d.lead, d.kinds[1].total, l.KeepTail, kept, g)
		}
		if got := draftOf(l, e.class, p.Block, r.IntN(2) == 0).layout(8, p.Block); !strategy.SameLayout(got, l) {
			t.Fatalf("lead %d: %+v, read back as %+v", d.lead, l, got)
		}
	}
}

// Moves of a lead neither lose tokens nor take any that are not there.
func TestLeadMovesKeepAllTokens(t *testing.T) {
	p := world.Problem(t, "1x4 fast + 1x4 slow", 8192, world.Fast(), world.Slow())
	e, err := newEstimator(p)
	if err != nil {
		t.Fatal(err)
	}
	moves := 0
	for step := p.Block; step <= 8192; step *= 2 {
		for _, d := range chainOfTwo(t, e).leadMoves(step, p.Block) {
			moves++
			if err := d.layout(8, p.Block).Validate(p.Job.SeqLen, 8, p.Job.Model.QHeads); err != nil {
				t.Errorf("step %d: %v", step, err)
			}
		}
	}
	if moves < 40 {
		t.Errorf("only %d moves", moves)
	}
}

// Between two nodes with a network card each the slower one's tokens come behind the
// first of the faster one's: its ports and devices have time for these, where a chain
// leaves them idle.
func TestFewCardsMakeLeads(t *testing.T) {
	world.Sequential(t)
	given := world.GPUs(t, "1x4 h100_sxm + 1x4 a100_sxm", 1<<17)
	for i := range given.Job.Cluster.Nodes {
		given.Job.Cluster.Nodes[i].NICs = 1
	}
	given.Job.Model.KVHeads, given.Job.Recompute = 32, costmodel.RecomputeFull
	p := world.ProblemOf(t, given.Profile, given.Job)
	res, err := world.After(t.Context(), p, &Evenkeel{}, baseline.Strategies())
	if err != nil {
		t.Fatal(err)
	}
	e, err := newEstimator(p)
	if err != nil {
		t.Fatal(err)
	}
	d := draftOf(res.Layout, e.class, p.Block, true)
	if _, kept := res.Layout.Tail(); kept == 0 || d.lead == 0 || len(d.kinds) != 2 {
		t.Fatalf("%s: want two groups and a lead", res.Why)
	}
	d.lead = 0
	least, last := math.Inf(1), d.lastKind()
	for part := units.Tokens(1); part < 256; part++ {
		for i := range d.kinds {
			d.kinds[i].total = p.Job.SeqLen * part / 256
		}
		d.kinds[last].total = p.Job.SeqLen - d.kinds[1-last].total
		for _, d.OwnLast = range []bool{false, true} {
			least = min(least, float64(world.Seconds(t, p, d.layout(len(p.Ranks), p.Block))))
		}
	}
	if ours := float64(world.Seconds(t, p, res.Layout)); ours > least*0.92 {
		t.Errorf("%s: takes %v, a chain of its groups %v", res.Why, ours, least)
	} else {
		t.Logf("%s: %.3f of the chain's time", res.Why, ours/least)
	}
}
