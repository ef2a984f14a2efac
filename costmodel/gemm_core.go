package costmodel

import (
	"fmt"
	"math"

	"github.com/evenkeel/evenkeel/costmodel/op"
)

// GEMMCore is the physical part of the law of a matrix product on one device
// type: the fastest way, of a menu of tile sizes and splits of the inner
// product, to work the result off in waves of tiles, against the time of its
// bytes through cache and memory. With R rows, C columns and inner length I:
//
//	step(tile)  = max(step_s, 2 tm tn ks SMs/flops_per_s rate + (tm+tn) kb load_s_per_byte)
//	tiles       = ceil(R/tm) ceil(C/tn) split
//	u           = tiles / SMs
//	waves       = max(1, (u + whole ceil(u))/(1 + whole))
//	menu        = waves (tile_s + tm tn eo store_s_per_byte + ceil(I/(split ks)) step) (1 + u/crowd)
//	              + [split > 1] (split_s + (split+1) 4 R C split_s_per_byte)
//	memory      = bytes / memory_bytes_per_s
//	x           = launch_s + (min(menu)^p + memory^p)^(1/p)
//	t           = x (1 + power x/(x + power_s))
//
// ks is the elements and kb the bytes of one step of the inner product (128
// bytes, what one swizzled line of shared memory holds), eo the bytes of an element of
// the result. Every term grows with R, C and I and the menu only shrinks, so
// more tokens, outputs or inputs never predict less time.
//
// Form and terms follow how tensor core libraries work (tiles, waves and
// stream-K: Osama et al. 2023, "Stream-K: Work-centric Parallel Decomposition
// for Dense Matrix-Matrix Multiplication on the GPU"); the traffic of a
// blocked product beyond a cache is that of Hong and Kung 1981.
type GEMMCore struct {
	DType    op.DType `json:"dtype"`
	Parallel int      `json:"parallel"`    // SMs
	L2       float64  `json:"l2_bytes"`    // the part of the L2 cache that acts as a single cache
	PerS     float64  `json:"flops_per_s"` // arithmetic rate of all SMs on tiles without overhead
	MemPerS  float64  `json:"memory_bytes_per_s"`

	Launch    float64 `json:"launch_s"`
	Step      float64 `json:"step_s"`           // least time of one step of the inner product: latency
	Load      float64 `json:"load_s_per_byte"`  // loading the operands of a tile into its SM
	Tile      float64 `json:"tile_s"`           // start and end of a tile
	Store     float64 `json:"store_s_per_byte"` // storing the result of a tile
	Whole     float64 `json:"whole_odds"`       // odds w: w/(1+w) of the idle SMs in the last wave are charged like busy ones
	Crowd     float64 `json:"crowd_waves"`      // number of waves at which the time of small tiles doubles
	SplitS    float64 `json:"split_s"`          // of splitting the inner product: a second kernel or a barrier
	SplitByte float64 `json:"split_s_per_byte"` // writing and reading partial results

	Sharp   float64 `json:"sharpness"`       // p - 1, with p the exponent that joins arithmetic and memory
	Cached  float64 `json:"cached_odds"`     // odds c: a byte from the cache costs c/(1+c) of one from memory
	Copies  float64 `json:"weight_copies"`   // number of weights that are used in turn before one is used again
	Reload  float64 `json:"reload"`          // share of the reloading that a blocked product larger than the cache needs
	Cast    float64 `json:"cast_s_per_byte"` // converting the input to 8 bits, for kernels that take 8 bits
	Power   float64 `json:"power"`           // largest share by which the power limit slows a long kernel down
	PowerS  float64 `json:"power_s"`         // duration at which half of that is reached
	VLaunch float64 `json:"vector_launch_s"` // of the kernel for a single row (matrix times vector)
	VPerS   float64 `json:"vector_bytes_per_s"`

	Tiles []GEMMTile `json:"tiles"`
}

// GEMMTile is an entry of the menu of tile sizes: the block of the result that one SM
// computes.
type GEMMTile struct {
	Rows  float64 `json:"rows"`
	Cols  float64 `json:"cols"`
	Rate  float64 `json:"rate"`  // time of its arithmetic over that at PerS
	Crowd float64 `json:"crowd"` // factor on crowd_waves
}

// GEMMPlan is the tile and split that the core assumes a library chooses for a shape.
type GEMMPlan struct {
	Tile  int // index into GEMMCore.Tiles; -1 is the kernel for a single row
	Split int // number of parts that the inner product is cut into
}

const (
	gemmStepBytes = 128 // of one operand row, one step of the inner product
	gemmPartial   = 4   // bytes of an element of a partial result: float32
	gemmSplitFull = 2   // waves of tiles beyond which nothing is split
	gemmMaxPower  = 0.35
	gemmLargeTile = 256 * 128 // from here on a tile is never crowded out
)

// gemmSplits are the splits of the inner product on the menu.
type gemmSplits [10]int

func allGEMMSplits() gemmSplits { return gemmSplits{1, 2, 3, 4, 6, 8, 12, 16, 24, 32} }

// mostGEMMTiles is four times the menu of GEMMTiles, which is what fits write. Predictions
// take as long as their menu: one of 60,000 entries takes milliseconds, and plans ask for
// millions.
const mostGEMMTiles = 64

// GEMMTiles is the menu of tile sizes that tensor core libraries ship for thread blocks
// of 128 to 384 threads, each with Rate and Crowd 1.
func GEMMTiles() []GEMMTile {
	var menu []GEMMTile
	for _, t := range [][2]float64{
		{256, 128},
		{128, 256},
		{256, 256},
		{128, 128},
		{128, 64},
		{64, 128},
		{64, 256},
		{256, 64},
		{64, 64},
		{32, 128},
		{32, 64},
		{16, 64},
		{16, 128},
		{128, 32},
		{256, 32},
		{64, 32},
	} {
		menu = append(menu, GEMMTile{Rows: t[0], Cols: t[1], Rate: 1, Crowd: 1})
	}
	return menu
}

// Seconds predicts the time of a matrix product in seconds. It does not allocate.
func (c *GEMMCore) Seconds(g op.GEMM) float64 {
	_, t := c.Plan(g)
	return t
}

// Plan returns the fastest entry of the menu for a shape, and its time in seconds.
func (c *GEMMCore) Plan(g op.GEMM) (GEMMPlan, float64) {
	s := gemmShapeOf(g)
	plan, menu := c.fastest(s)
	x := c.matrix(s, menu)
	if s.rows == 1 && c.vector(s) < x {
		plan, x = vectorPlan(), c.vector(s)
	}
	return plan, c.finish(s, x)
}

// SecondsAs is the time of a product by a plan, be it the fastest or not: what
// an estimate of the coefficients differentiates.
func (c *GEMMCore) SecondsAs(g op.GEMM, p GEMMPlan) float64 {
	s := gemmShapeOf(g)
	if p == vectorPlan() {
		return c.finish(s, c.vector(s))
	}
	return c.finish(s, c.matrix(s, c.planned(s, p)))
}

// gemmCastBytes is what converting an element to 8 bits moves: two read, one written.
const gemmCastBytes = 3

func vectorPlan() GEMMPlan { return GEMMPlan{Tile: -1, Split: 1} }

// GEMMCoef is a coefficient of a core: its document key and its place.
type GEMMCoef struct {
	Name string
	At   *float64
}

// Coefs lists the core's coefficients, all positive.
func (c *GEMMCore) Coefs() []GEMMCoef {
	all := []GEMMCoef{
		{"l2_bytes", &c.L2},
		{"flops_per_s", &c.PerS},
		{"memory_bytes_per_s", &c.MemPerS},
		{"launch_s", &c.Launch},
		{"step_s", &c.Step},
		{"load_s_per_byte", &c.Load},
		{"tile_s", &c.Tile},
		{"store_s_per_byte", &c.Store},
		{"crowd_waves", &c.Crowd},
		{"split_s", &c.SplitS},
		{"split_s_per_byte", &c.SplitByte},
		{"sharpness", &c.Sharp},
		{"cached_odds", &c.Cached},
		{"weight_copies", &c.Copies},
		{"reload", &c.Reload},
		{"cast_s_per_byte", &c.Cast},
		{"power", &c.Power},
		{"power_s", &c.PowerS},
		{"vector_launch_s", &c.VLaunch},
		{"vector_bytes_per_s", &c.VPerS},
		{"whole_odds", &c.Whole},
	}
	for i := range c.Tiles {
		t := &c.Tiles[i]
		all = append(all, GEMMCoef{fmt.Sprintf("tiles[%d].rate", i), &t.Rate}, GEMMCoef{fmt.Sprintf("tiles[%d].crowd", i), &t.Crowd})
	}
	return all
}

// Validate reports the first coefficient that is not positive and finite, or a
// menu without tiles.
func (c *GEMMCore) Validate() error {
	switch {
	case !c.DType.Computes():
		return fmt.Errorf("dtype: %q: want f32, bf16, f16 or fp8", string(c.DType))
	case c.Parallel < 1:
		return fmt.Errorf("parallel: %d: must be at least 1", c.Parallel)
	case len(c.Tiles) == 0:
		return fmt.Errorf("tiles: none: a menu has at least one")
	case len(c.Tiles) > mostGEMMTiles:
		return fmt.Errorf("tiles: %d: a menu has at most %d: every prediction tries them all", len(c.Tiles), mostGEMMTiles)
	}
	for _, f := range c.Coefs() {
		if !(*f.At > 0) || math.IsInf(*f.At, 0) {
			return fmt.Errorf("%s: %v: must be positive and finite", f.Name, *f.At)
		}
	}
	for i, t := range c.Tiles {
		if !(t.Rows >= 1) || !(t.Cols >= 1) || math.IsInf(t.Rows*t.Cols, 0) {
			return fmt.Errorf("tiles[%d].rows, cols: %v x %v: want at least 1 x 1", i, t.Rows, t.Cols)
		}
	}
	return nil
}
