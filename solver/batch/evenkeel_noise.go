package batch

import (
	"context"
	"math/rand/v2"
)

// noiseMost is by how much a price is raised at most. With a third of it a search leads
// back to where the last was, with twice as much away from all good plans.
const noiseMost = 0.3

// Searches at noisy prices. Of 49 batches of 8 to 128 sequences on seven mixed clusters
// plans were 0.52 % longer than the best found on average without any, 3.8 % at worst;
// online with 2, 4 and 8 of them 0.31, 0.23 and 0.20 %, 2.8 % at worst; thorough with 4 and
// 12 of them 0.12 and 0.01 %, 0.2 % at worst.
const (
	onlineNoisy   = 4
	thoroughNoisy = 12
	// Quick searches of more sequences than onlineMost found nothing at other prices, and
	// one search of more than thoroughMost takes seconds.
	onlineMost   = 256
	thoroughMost = 512
)

// round is so many searches at noisy prices, each of one effort.
type round struct {
	searches int
	each     Effort
}

// noisy is the rounds that a batch of n sequences on so many pools is worth. Alike devices
// gain a tenth of a percent by them. A thorough search begins with the quick ones of an
// online search, and these with a quick search at the true prices: so that more effort ends
// with no longer a plan.
func (o Options) noisy(n, pools int) (rounds []round) {
	if o.Effort != Quick && pools > 1 && n <= onlineMost {
		rounds = append(rounds, round{onlineNoisy, Quick})
	}
	switch {
	case o.Effort == Thorough && n <= thoroughMost:
		rounds = append(rounds, round{thoroughNoisy, Online})
	case o.Effort == Thorough:
		rounds = append(rounds, round{thoroughNoisy / 3, Online})
	}
	if len(rounds) > 0 {
		last := &rounds[len(rounds)-1]
		last.searches = int(float64(last.searches) * max(1, o.Times))
	}
	return rounds
}

// tryNoisy searches again at perturbed prices, those of each class raised by a random share
// of noiseMost, and improves what it finds at the true prices: the noising method (Charon
// and Hudry, Oper. Res. Lett. 14, 1993). It helps where few groups of unlike devices share
// a batch. There every path from a plan to a better one leads past much worse ones, and a
// search with other random numbers ends at the same plan; at other prices other classes and
// other numbers of micro-batches look best.
func (pl *Planner) tryNoisy(ctx context.Context) {
	shares := make([]float64, len(pl.t.base))
	for _, r := range pl.options.noisy(pl.t.items(), len(pl.t.size)) {
		if pl.noisy == nil {
			pl.noisy = NewPlanner(Options{})
		}
		pl.noisy.options.Effort = r.each
		if clear(shares); r.each == Quick && !pl.tryAt(ctx, shares) {
			return
		}
		random := rand.New(rand.NewPCG(seed, 0))
		for range r.searches {
			for c := range shares {
				shares[c] = random.Float64()
			}
			if !pl.tryAt(ctx, shares) {
				return
			}
		}
	}
}

// tryAt is a search of tryNoisy at one set of prices, false where there is no need of another.
func (pl *Planner) tryAt(ctx context.Context, shares []float64) bool {
	t, e := &pl.t, pl.effort()
	enough := pl.bound * e.enough
	if pl.best.total <= enough || ctx.Err() != nil {
		return false
	}
	pl.noisy.read(t.p.raised(shares, noiseMost))
	if pl.noisy.search(ctx) != nil {
		return false // ctx is done: at the true prices there was a plan
	}
	pl.found.copyFrom(&pl.noisy.best)
	pl.found.reprice(t)
	if pl.found.total < pl.best.total*nearlyAsGood {
		pl.improve(ctx, &pl.found, e, enough)
	}
	pl.keep(&pl.found)
	return true
}
