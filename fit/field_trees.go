package fit

import (
	"math"

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
	share  float64    // of the trees in the mixture
	trees  []*boosted // alike but for the rows and columns that each tree saw; their mean counts
	of     func(op.Shape) []float64
	unseen []float64 // at every point, from trees that did not see it
}

const (
	forests    = 3
	fieldFolds = 5
	treeFolds  = 4
	// fewToGrow is the number of points below which trees follow the noise.
	fewToGrow = 100
)

// grow grows trees on what the fields are fitted to, and finds the share at
// which they and the fields predict points best that neither saw. Few points
// get no trees.
func (l *correction) grow() *advice {
	a := &advice{of: l.shape.features}
	if a.of == nil || len(l.points) < fewToGrow {
		return a
	}
	rows := make([][]float64, len(l.points))
	for i, p := range l.points {
		rows[i] = a.of(p.Shape)
	}
	for seed := range uint64(forests) {
		size := l.shape.trees
		size.seed = seed
		a.trees = append(a.trees, boost(rows, l.y, size))
	}
	a.unseen = make([]float64, len(rows))
	fold := folds(l.points, treeFolds)
	for n := range treeFolds {
		var seen [][]float64
		var y []float64
		for i := range rows {
			if fold[i] != n {
				seen, y = append(seen, rows[i]), append(y, l.y[i])
			}
		}
		trees := boost(seen, y, l.shape.trees)
		for i := range rows {
			if fold[i] == n {
				a.unseen[i] = trees.at(rows[i])
			}
		}
	}
	return a
}

// settle chooses the share, from predictions of the fields at points that they
// did not see.
func (a *advice) settle(y, smooth []float64) {
	if a.trees == nil {
		return
	}
	least := math.Inf(1)
	for share := 0.0; share <= 1; share += 0.125 {
		loss := 0.0
		for i := range y {
			loss += math.Abs(y[i] - share*a.unseen[i] - (1-share)*smooth[i])
		}
		if loss < least {
			least, a.share = loss, share
		}
	}
}

// mix mixes a field's value with the trees' one at a point.
func (a *advice) mix(smooth float64, trees []float64, i int) float64 {
	if a.trees == nil {
		return smooth
	}
	return (1-a.share)*smooth + a.share*trees[i]
}

// blend mixes a field's value with the trees' at a shape.
func (a *advice) blend(smooth float64, s op.Shape) float64 {
	if a.trees == nil || a.share == 0 {
		return smooth
	}
	x, sum := a.of(s), 0.0
	for _, t := range a.trees {
		sum += t.at(x)
	}
	return (1-a.share)*smooth + a.share*sum/float64(len(a.trees))
}

// attentionTrees is the size that won on others' recordings.
func attentionTrees() boostSize {
	return boostSize{trees: 300, leaves: 16, rate: 0.1, clip: 0.1, least: 2, columns: 0.6, rows: 0.8}
}

// attentionFeatures is where a block lies for a kernel: its sizes, their
// products, the waves of tiles on the device, and the core's time.
func attentionFeatures(core *costmodel.Law, parallel int) func(op.Shape) []float64 {
	return func(s op.Shape) []float64 {
		at := func(name string) float64 { return costmodel.AxisOf(name, s) }
		q, kvLen, blocks, gqa := at("q_len"), at("kv_len"), at("blocks"), at("gqa")
		waves := blocks * math.Ceil(q/128) / float64(parallel)
		return []float64{
			q, kvLen, at("batch"), at("q_heads"), at("kv_heads"), gqa, blocks, blocks / gqa, at("tokens"), at("tokens") * at("q_heads"),
			waves, waves / math.Ceil(waves), float64(s.Work().FLOPs), float64(core.Seconds(s)),
		}
	}
}
