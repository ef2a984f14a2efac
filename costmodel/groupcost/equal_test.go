package groupcost_test

import (
	"math"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/groupcost"
	"github.com/evenkeel/evenkeel/internal/units"
)

// What travels beside passes does so beside those of equal devices.
func TestAsEqualHasTheExchange(t *testing.T) {
	for zero, both := range map[costmodel.ZeRO]bool{costmodel.Zero2: false, costmodel.Zero3: true} {
		q, j := referenceJob(t, "1x2 h100_sxm + 1x2 a100_sxm", nil)
		j.Zero, j.OverlapZero = zero, true
		c, err := groupcost.FromLaws(t.Context(), q, j, groupcost.Options{EqualShares: true})
		if err != nil {
			t.Fatal(err)
		}
		if e := c.AsEqual(); c.BothPasses != both || e.BothPasses != both || e.Hidden != c.Hidden || e.Hidden == 0 || e.Layers != c.Layers {
			t.Errorf("%s: beside passes %v (both: %v), of equal devices %v (%v)", zero, c.Hidden, c.BothPasses, e.Hidden, e.BothPasses)
		}
	}
}

// Taken for equal, a cluster of two types runs at the pace of the slower one and
// holds what the tighter one does.
func TestAsEqual(t *testing.T) {
	q, j := referenceJob(t, "2x8 h100_sxm + 2x8 a100_sxm", nil)
	j.Zero, j.OverlapZero = costmodel.Zero1, true
	c, err := groupcost.FromLaws(t.Context(), q, j, groupcost.Options{EqualShares: true})
	if err != nil {
		t.Fatal(err)
	}
	e := c.AsEqual()
	if c.Behind == 0 || e.Behind != c.Behind || e.Hidden != c.Hidden || e.Fixed != c.Fixed || e.MicroBase != c.MicroBase {
		t.Errorf("beside groups %v, %v, %v, %v; of equal devices %v, %v, %v, %v", c.Fixed, c.MicroBase, c.Hidden, c.Behind, e.Fixed, e.MicroBase, e.Hidden, e.Behind)
	}
	if len(e.Pools) != 1 || e.Pools[0].Count() != 32 || len(e.Pools[0].Ranks) != 4 {
		t.Fatalf("%+v", e.Pools)
	}
	degrees := map[int]bool{}
	for i, k := range e.Classes {
		degrees[k.Degree()] = true
		for of, real := range c.Classes {
			if real.Degree() != k.Degree() || real.Recompute != k.Recompute || k.One && !real.One {
				continue
			}
			for _, s := range []units.Tokens{1000, 30000, 200000} {
				if e.Time(i, s) < c.Time(of, s) || k.Cap > real.Cap || k.Base < real.Base {
					t.Errorf("any %s: %v for %d tokens, %s take %v", k.Name, e.Time(i, s), s, real.Name, c.Time(of, s))
				}
			}
		}
		if k.One != (k.Degree() <= 8) {
			t.Errorf("%+v", k)
		}
	}
	for _, d := range []int{1, 2, 3, 4, 5, 6, 7, 8, 16, 32} {
		if !degrees[d] {
			t.Errorf("no class of %d devices", d)
		}
	}
}

// Equal shares are never faster than shares by speed on the same devices.
func TestEqualSharesAreSlower(t *testing.T) {
	q, j := referenceJob(t, "2x8 h100_sxm + 2x8 a100_sxm", nil)
	even, err := groupcost.FromLaws(t.Context(), q, j, groupcost.Options{EqualShares: true, NoRecompute: true})
	if err != nil {
		t.Fatal(err)
	}
	uneven, err := groupcost.FromLaws(t.Context(), q, j, groupcost.Options{NoRecompute: true})
	if err != nil {
		t.Fatal(err)
	}
	// A mix may come in several forms, one of which is the fastest at a length.
	fastest := func(c *groupcost.Costs, mix string) units.Seconds {
		least := units.Seconds(math.Inf(1))
		for i, k := range c.Classes {
			if of, _, _ := strings.Cut(k.Name, " as "); of == mix && k.Cap >= 65536 {
				least = min(least, c.Time(i, 65536))
			}
		}
		return least
	}
	compared := map[string]bool{}
	for _, k := range uneven.Classes {
		mix, _, _ := strings.Cut(k.Name, " as ")
		even := fastest(even, mix)
		if k.Shares == nil || compared[mix] || math.IsInf(float64(even), 1) {
			continue
		}
		compared[mix] = true
		if took := fastest(uneven, mix); took > 0.95*even {
			t.Errorf("%s: %v by speed, %v in equal shares", mix, took, even)
		}
	}
	if len(compared) < 7 {
		t.Errorf("%d mixes compared", len(compared))
	}
}
