package batch

import (
	"context"
	"math"
)

// tilts are by what each roof is a share of the one before, in the searches of tryTilted.
var tilts = [...]float64{0.75, 0.6}

// tiltOff is how far above the bound a plan makes these searches worth their time.
const tiltOff = 1.03

// tryTilted climbs again on several pools, with as many micro-batches as the best beginning has,
// from roofs that fall by a fixed ratio. The starter's relaxation knows nothing of groups that
// must not be divided, and so nothing of long micro-batches for long sequences on the slower
// pools: where two of its roofs are alike, the climber stays near them.
//
// Of 54 batches of 512 sequences on 64 and 128 GPUs of two to four types, plans were 0.12 %
// shorter on average, 1.6 % at most.
func (pl *Planner) tryTilted(ctx context.Context) {
	t, e := &pl.t, pl.effort()
	if len(t.size) == 1 || len(pl.leads) == 0 || pl.leads[0].micro < 2 || e.spare == 0 {
		return
	}
	for i, ratio := range tilts {
		if pl.best.total <= pl.bound*tiltOff {
			return
		}
		pl.roofs = resize(pl.roofs, pl.leads[0].micro)
		for k := range pl.roofs {
			pl.roofs[k] = math.Pow(ratio, float64(k))
		}
		t.level(pl.roofs, pl.best.total-pl.best.open-t.fixed)
		pl.climb.begin(t, pl.roofs, tiltedStream+uint64(i))
		pl.climb.run(ctx, e.first+e.climb/2, pl.bound*e.enough)
		pl.finish(ctx, e, pl.bound*e.enough)
	}
}

// tiltedStream is none that a lead or tryAnew goes on with.
const tiltedStream = 2 * anotherStream
