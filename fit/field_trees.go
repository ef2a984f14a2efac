package fit

import (
	"math"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
)

// advice is what boosted trees say about a correction. Which kernel a library
// picks, and into how many waves the tiles fall, changes at thresholds that a
// smooth field blurs and trees find; between and beyond the points the field is
// the better guide. Mixed, they predict shapes held out better than either:
// on others' tables of matrix products 3.8 % against 4.9 % of the field alone,
// on head counts that were never measured 3.2 % against 3.7 % of either.
type advice struct {
	share  float64 // of the trees in the mixture
	beyond float64 // the same beyond what was measured
	trees  forests // alike but for the rows and columns that each tree saw, and bins
	of     func(op.Shape) []float64
	rows   [][]float64 // of every point
	unseen []float64   // at every point, from trees that did not see it

	axis  string    // of counts of heads
	known []float64 // those that were measured; nil: no matter which
	apart float64   // share of the trees at others
}

const (
	fieldFolds = 5
	treeFolds  = 4
	// fewToGrow is the number of points below which trees follow the noise.
	fewToGrow = 100
	shareStep = 0.125
)

// grow grows trees on what the fields are fitted to, and finds the share at
// which they and the fields predict points best that neither saw. Few points
// get no trees.
func (l *correction) grow() *advice {
	a := &advice{of: l.shape.features}
	if a.of == nil || len(l.points) < fewToGrow {
		return a
	}
	a.sow(l)
	a.unseen = a.crossValidate(l, slices.Repeat([][]float64{l.y}, treeFolds))
	return a
}

// crossValidate is what trees say at every point that were grown without its fold, each
// fold's from y[fold].
func (a *advice) crossValidate(l *correction, y [][]float64) []float64 {
	fold, unseen := folds(l.points, len(y)), make([]float64, len(a.rows))
	for n := range y {
		held := func(i int) bool { return fold[i] == n }
		for i, v := range a.without(l, held, y[n]) {
			if held(i) {
				unseen[i] = v
			}
		}
	}
	return unseen
}

// sow grows the forests from all points.
func (a *advice) sow(l *correction) {
	a.rows = make([][]float64, len(l.points))
	for i, p := range l.points {
		a.rows[i] = a.of(p.Shape)
	}
	for seed := range l.shape.trees.forests {
		size := l.shape.trees
		size.seed = uint64(seed)
		a.trees = append(a.trees, boost(a.rows, l.y, size))
	}
}

// without is what trees that have not seen the points held say at those, grown from what
// the correction should be at the others, y.
func (a *advice) without(l *correction, held func(int) bool, y []float64) []float64 {
	if a.trees == nil {
		return nil
	}
	var seen, unseen [][]float64
	var told []float64
	for i, x := range a.rows {
		if held(i) {
			unseen = append(unseen, x)
		} else {
			seen, told = append(seen, x), append(told, y[i])
		}
	}
	said, at := boost(seen, told, l.shape.trees).all(unseen), make([]float64, len(a.rows))
	for i := range at {
		if held(i) {
			at[i], said = said[0], said[1:]
		}
	}
	return at
}

// settle chooses the share, from what fields and trees predict of points that
// neither saw; NaN where they do not.
func (a *advice) settle(y, smooth, trees []float64) float64 {
	best := 0.0
	if a.trees == nil {
		return best
	}
	least := math.Inf(1)
	for share := 0.0; share <= 1; share += shareStep {
		loss := 0.0
		for i := range y {
			if !math.IsNaN(smooth[i]) {
				loss += math.Abs(y[i] - share*trees[i] - (1-share)*smooth[i])
			}
		}
		if loss < least {
			least, best = loss, share
		}
	}
	return best
}

// mix mixes a field's values at the points with the trees' ones.
func (a *advice) mix(smooth, trees []float64) []float64 {
	mixed := slices.Clone(smooth)
	if a.trees == nil {
		return mixed
	}
	for i := range mixed {
		mixed[i] = (1-a.share)*smooth[i] + a.share*trees[i]
	}
	return mixed
}

// believe takes the share of the trees from what settle says, a step more of it: there
// a single forest of some of the points speaks for the mean of several of all of them.
// On others' tables, a quarter held out, that took 1 % of the errors of matrix products
// and 0.5 to 1 % of those of attention, and on longer sequences 1.5 to 2 %.
func (a *advice) believe(settled float64, wary bool) {
	if a.share = 0; settled > 0 {
		a.share = min(1, settled+shareStep)
	}
	if a.beyond = a.share; wary {
		a.beyond = settled
	}
}

// shareAt is the share of the trees at a shape, which may lie beyond what was measured.
func (a *advice) shareAt(s op.Shape, beyond bool) float64 {
	switch {
	case a.known != nil && !slices.Contains(a.known, costmodel.AxisOf(a.axis, s)):
		return a.apart
	case beyond:
		return a.beyond
	}
	return a.share
}

// blend mixes a field's values with what the trees say at shapes; beyond says of each
// whether it lies beyond what was measured, nil that none does.
func (a *advice) blend(smooth []float64, shapes []op.Shape, beyond func(i int) bool) []float64 {
	mixed := slices.Clone(smooth)
	if a.trees == nil {
		return mixed
	}
	var rows [][]float64
	var at []int
	var shares []float64
	for i, s := range shapes {
		if share := a.shareAt(s, beyond != nil && beyond(i)); share > 0 {
			rows, at, shares = append(rows, a.of(s)), append(at, i), append(shares, share)
		}
	}
	for k, said := range a.trees.all(rows) {
		mixed[at[k]] += shares[k] * (said - smooth[at[k]])
	}
	return mixed
}

// attentionTrees is the size that won on others' recordings.
func attentionTrees() boostSize {
	return boostSize{forests: 3, trees: 300, leaves: 16, rate: 0.1, clip: 0.05, least: 2, columns: 0.6, rows: 0.8}
}

// attentionFeatures is where a block lies for a kernel: its sizes, their
// products, the waves of tiles on the device and how full they are, the core's
// time, and what of the head counts is no power of two, which libraries divide by
// in another way.
func attentionFeatures(core *costmodel.Law, parallel int) func(op.Shape) []float64 {
	return func(s op.Shape) []float64 {
		at := func(name string) float64 { return costmodel.AxisOf(name, s) }
		q, kvLen, blocks, gqa := at("q_len"), at("kv_len"), at("blocks"), at("gqa")
		x := []float64{
			q, kvLen, at("batch"), at("q_heads"), at("kv_heads"), gqa, blocks, blocks / gqa, at("tokens"), at("tokens") * at("q_heads"),
			float64(s.Work().FLOPs), float64(core.Seconds(s)), oddPart(gqa), oddPart(at("q_heads")),
			full(q / 128), math.Mod(q, 8),
		}
		for _, rows := range []float64{64, 128, 256} {
			waves := blocks * math.Ceil(q/rows) / float64(parallel)
			x = append(x, waves, full(waves))
		}
		// The same with the query heads of a KV head packed into a tile.
		packed := blocks / gqa * math.Ceil(q*gqa/128) / float64(parallel)
		return append(x, packed, full(packed))
	}
}

// oddPart is what is left of a number when all factors of two are out.
func oddPart(v float64) float64 {
	for v >= 2 && math.Mod(v, 2) == 0 {
		v /= 2
	}
	return v
}

// full is the share of what is paid for that is used, where parts cost the whole.
func full(x float64) float64 { return x / math.Ceil(x) }
