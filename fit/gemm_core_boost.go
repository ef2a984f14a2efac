package fit

import (
	"math"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
)

// gemmBoost is the size that won on recordings of others; more trees move the
// error by less than its own noise.
func gemmBoost() boostSize {
	return boostSize{trees: 400, leaves: 64, rate: 0.1, clip: 0.1, least: 2, columns: 0.6, rows: 0.8}
}

// gemmFeatures is where a shape lies for a library. Which kernel it picks changes
// abruptly with tokens, tiles and the length of the inner product, and it picks
// alike for shapes that agree in such numbers: its sizes, their products
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
