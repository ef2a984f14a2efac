package fit

import (
	"math"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
)

// gemmBoost is the size that won on recordings of others; more trees move the error
// by less than its own noise. With a quarter of seven tables held out, lines in the
// leaves of a single forest made its errors 1 % smaller (geometric mean of the tables'),
// bins of its own 0.3 % more, and half as many leaves 1 % larger. The mean of two such
// forests took 1.6 %; of level ones, eight took half a percent more than three. Forests
// of what a roofline leaves, or that know what the smooth field says or random products
// of the sizes, were worse than these by 2 to 5 %, and in the mean with them no better.
func gemmBoost() boostSize {
	return boostSize{forests: 6, trees: 400, leaves: 64, rate: 0.1, clip: 0.1, least: 2, columns: 0.6, rows: 0.8, doubt: 2, shifted: true}
}

// gemmFeatures is where a shape lies for a library. Which kernel it picks changes
// abruptly with tokens, tiles and the length of the inner product, and it picks
// alike for shapes that agree in such numbers: its sizes, their products
// (operands and result, hence caches and tiles), their ratios, what of the outputs
// and inputs is no power of two, how full whole tiles and the last wave of each
// usual size are, and the plan, time and rates of the core.
func gemmFeatures(c *costmodel.GEMMCore, g op.GEMM) (x []float64, seconds float64) {
	rows, cols, inner := g.Out()
	plan, seconds := c.Plan(g)
	moved := rows*cols + rows*inner + cols*inner
	x = []float64{
		rows, cols, inner, rows * cols, rows * inner, cols * inner, rows * cols * inner,
		moved, rows / cols, cols / inner, rows / inner, oddPart(cols), oddPart(inner),
		float64(plan.Tile), float64(plan.Split), seconds, rows * cols * inner / seconds, moved / seconds,
	}
	for _, side := range gemmSides() {
		x = append(x, full(rows/side), full(cols/side))
	}
	for n, t := range gemmWaves() {
		waves := math.Ceil(rows/t.Rows) * math.Ceil(cols/t.Cols) / float64(c.Parallel)
		if x = append(x, full(waves)); n < countedWaves {
			x = append(x, waves)
		}
	}
	return x, seconds
}

// gemmSides are the usual sides of a tile, gemmWaves the usual tiles, of which the
// first few also say how many waves there are: the others' are close to theirs.
func gemmSides() []float64 { return []float64{64, 128, 256} }

const countedWaves = 6

func gemmWaves() []costmodel.GEMMTile {
	return []costmodel.GEMMTile{
		{Rows: 128, Cols: 256},
		{Rows: 256, Cols: 128},
		{Rows: 128, Cols: 128},
		{Rows: 64, Cols: 64},
		{Rows: 256, Cols: 64},
		{Rows: 64, Cols: 256},
		{Rows: 256, Cols: 256},
		{Rows: 128, Cols: 192},
		{Rows: 192, Cols: 128},
		{Rows: 256, Cols: 192},
		{Rows: 32, Cols: 128},
		{Rows: 16, Cols: 128},
		{Rows: 128, Cols: 32},
	}
}
