package batch

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/evenkeel/evenkeel/internal/units"
)

// twoPools is the problem of some sequences on four nodes of 8 fast devices and four of 8 slow
// ones with as much memory, as groups of one type.
func twoPools(lengths []units.Tokens) *Problem {
	p := &Problem{Lengths: lengths, MicroBase: 0.02, Fleet: []Pool{{Device: "fast"}, {Device: "slow"}}}
	q := quadratic{a: 1e-9, b: 1e-5}
	for pool, speed := range []float64{2, 1} {
		for node := range 4 {
			var ranks []int
			for r := range 8 {
				ranks = append(ranks, 32*pool+8*node+r)
			}
			p.Fleet[pool].Ranks = append(p.Fleet[pool].Ranks, ranks)
		}
		for d := 1; d <= 32; d *= 2 {
			uses := []int{0, 0}
			uses[pool] = d
			p.Classes = append(p.Classes, Class{Name: fmt.Sprintf("%d of pool %d", d, pool), Uses: uses, One: d <= 8, Base: units.Seconds(0.01 * math.Log2(float64(2*d))), Cap: units.Tokens(5000 * d)})
			q.speed = append(q.speed, speed*math.Pow(float64(d), 0.95))
		}
	}
	p.Costs = q
	return p
}

// Roofs that fall by a fixed ratio are worth a search on unlike devices: they lead to shorter
// plans now and then, and never to a longer one.
func TestTiltedRoofsShortenPlansOfUnlikePools(t *testing.T) {
	sequential(t)
	rng := rand.New(rand.NewPCG(5, 5))
	shorter := 0
	for i := range 24 {
		var lengths []units.Tokens
		for range 128 {
			lengths = append(lengths, units.Tokens(min(120_000, 100+3000*math.Exp(1.5*rng.NormFloat64()))))
		}
		p := twoPools(lengths)
		pl := NewPlanner(Options{})
		if err := pl.find(context.Background(), p); err != nil {
			t.Fatal(err)
		}
		before := pl.best.total
		pl.tryTilted(context.Background())
		if pl.best.total > before {
			t.Errorf("batch %d: %v s after, %v before", i, pl.best.total, before)
		}
		if pl.best.total < before*0.999 {
			shorter++
		}
		if plan := solvedBy(t, Evenkeel{}, p); float64(plan.Time) > pl.best.total*(1+1e-9) {
			t.Errorf("batch %d: planned %v, %v with roofs that fall", i, plan.Time, pl.best.total)
		}
	}
	if shorter < 2 {
		t.Errorf("%d of 24 plans became shorter", shorter)
	}
}
