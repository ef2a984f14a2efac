package evenkeel

import (
	"math/rand/v2"
	"testing"

	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/internal/baseline"
	"github.com/evenkeel/evenkeel/solver/internal/strategy"
	"github.com/evenkeel/evenkeel/solver/internal/world"
)

// A draft of several stretches is read back from its layout as it is, but for rounding
// where groups that are alike get the same tokens again.
func TestLateDraftsReadBack(t *testing.T) {
	r := rand.New(rand.NewPCG(21, 11))
	p := world.Problem(t, "1x4 fast + 1x4 slow", 8192, world.Fast(), world.Slow())
	e, err := newEstimator(p)
	if err != nil {
		t.Fatal(err)
	}
	moved := 0
	for _, d := range e.groupings(countTo(8), 100) {
		e.setShares(d, len(d.ring), 1, false)
		e.solve(d, nil)
		for k := range d.kinds {
			d.kinds[k].tier = r.IntN(3)
		}
		d.OwnLast = r.IntN(2) == 0
		l := d.layout(8, p.Block)
		if stretches(l) != "" {
			moved++
		}
		if got := draftOf(l, e.class, p.Block, true).layout(8, p.Block); !strategy.SameLayout(got, l) {
			t.Fatalf("late %v: %+v, read back as %+v", d.kinds, l, got)
		}
		if got := draftOf(l, e.class, p.Block, false).layout(8, p.Block); stretches(got) != stretches(l) {
			t.Fatalf("late %v: %+v, read back as %+v", d.kinds, l, got)
		}
	}
	if moved < 20 {
		t.Errorf("only %d layouts of several stretches", moved)
	}
}

// Moving a kind to the end loses no token and takes none that is not there.
func TestLaterKeepsAllTokens(t *testing.T) {
	r := rand.New(rand.NewPCG(22, 11))
	tried := 0
	for range 500 {
		d := &draft{}
		var total units.Tokens
		for range 2 + r.IntN(4) {
			k := groupKind{total: units.Tokens(r.IntN(40) * (1 + r.IntN(50)))}
			total += k.total
			d.kinds = append(d.kinds, k)
		}
		kind := r.IntN(len(d.kinds))
		for _, m := range d.tierMoves(kind) {
			x := d.later(kind, m.tier, m.part, 8)
			if x == nil {
				continue
			}
			tried++
			var now units.Tokens
			for i, k := range x.kinds {
				now += k.total
				if k.total < 0 || (k.tier == 1) != (i == kind) {
					t.Errorf("kind %d of %v by %v: %v", kind, d.kinds, m, x.kinds)
				}
			}
			if now != total {
				t.Errorf("%d of %d tokens: %v, then %v", now, total, d.kinds, x.kinds)
			}
		}
	}
	if tried < 1000 {
		t.Errorf("only %d tried", tried)
	}
}

// Where memory allows all ranks about as many tokens, the faster one has the last
// of them, which see the most keys.
func TestFullFastRanksHoldTheEnd(t *testing.T) {
	f, s := world.Fast(), world.Slow()
	roomy := world.Problem(t, "1x3 slow + 1x1 fast", 1<<16, f, s)
	need := units.Bytes(0)
	for _, m := range roomy.Sim.Memory(roomy.EqualRing()) {
		need = max(need, m.Peak())
	}
	f.Memory, s.Memory = need*108/100, need*108/100
	p := world.Problem(t, "1x3 slow + 1x1 fast", 1<<16, f, s)
	res, err := world.After(t.Context(), p, &Evenkeel{}, baseline.Strategies())
	if err != nil {
		t.Fatal(err)
	}
	e, err := newEstimator(p)
	if err != nil {
		t.Fatal(err)
	}
	if stretches(res.Layout) == "" {
		t.Fatalf("%s: no group holds the end of the sequence", res.Why)
	}
	d := draftOf(res.Layout, e.class, p.Block, false)
	for k := range d.kinds {
		d.kinds[k].tier = 0
	}
	ours, nested := world.Seconds(t, p, res.Layout), world.Seconds(t, p, d.layout(len(p.Ranks), p.Block))
	if ours > nested*0.95 {
		t.Errorf("%s: takes %v, and %v as a zigzag of all", res.Why, ours, nested)
	}
	t.Logf("%s: %.3f of the zigzag's time", res.Why, float64(ours/nested))
}
