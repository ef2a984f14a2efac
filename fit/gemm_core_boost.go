package fit

import (
	"math"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
)

// learnGEMMResidual learns what a core leaves unexplained, log(measured/core),
// from points, as a function of the shape. Which kernel a library picks changes
// abruptly with tokens, tiles and the length of the inner product, and picks it
// alike for shapes that agree in such numbers: boosted trees on them predict
// shapes held out better than smooth fields over tokens, outputs and inputs.
// Far from the points it keeps the value at their edge; whoever uses it there
// lets it fade.
func learnGEMMResidual(core *costmodel.GEMMCore, points []Point, size boostSize) func(op.GEMM) float64 {
	rows, targets := make([][]float64, len(points)), make([]float64, len(points))
	for i, p := range points {
		g := p.Shape.(op.GEMM)
		var seconds float64
		rows[i], seconds = gemmFeatures(core, g)
		targets[i] = math.Log(p.Seconds / seconds)
	}
	all := make([]*boosted, gemmBags)
	for bag := range all {
		size.seed = uint64(bag)
		all[bag] = boost(rows, targets, size)
	}
	return func(g op.GEMM) float64 {
		x, _ := gemmFeatures(core, g)
		sum := 0.0
		for _, t := range all {
			sum += t.at(x)
		}
		return sum / gemmBags
	}
}

// gemmBags is how many sums of trees, each on other rows and columns, are
// averaged.
const gemmBags = 4

// gemmBoost is the size that won on recordings of others; more trees move the
// error by less than its own noise.
func gemmBoost() boostSize {
	return boostSize{trees: 400, leaves: 64, rate: 0.1, clip: 0.1, least: 2, columns: 0.6, rows: 0.8}
}

// gemmFeatures is where a shape lies for a library: its sizes, their products
// (operands and result, hence caches and tiles), whole tiles, how full the
// last wave is, and the plan and time of the core.
func gemmFeatures(c *costmodel.GEMMCore, g op.GEMM) (x []float64, seconds float64) {
	rows, cols, inner := g.Out()
	plan, seconds := c.Plan(g)
	small := math.Ceil(rows/64) * math.Ceil(cols/64)
	tiles := math.Ceil(rows/128) * math.Ceil(cols/128)
	units := float64(c.Parallel)
	wide := math.Ceil(rows/128) * math.Ceil(cols/256) / units
	return []float64{
		rows, cols, inner, rows * cols, rows * inner, cols * inner, rows * cols * inner,
		small, tiles, tiles / units / math.Ceil(tiles/units), wide / math.Ceil(wide),
		float64(plan.Tile), float64(plan.Split), seconds,
	}, seconds
}
