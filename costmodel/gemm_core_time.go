package costmodel

import (
	"math"

	"github.com/evenkeel/evenkeel/costmodel/op"
)

// gemmShape is a product as the core sees it.
type gemmShape struct{ rows, cols, inner float64 }

func gemmShapeOf(g op.GEMM) gemmShape {
	r, c, i := g.Out()
	return gemmShape{r, c, i}
}

// sizes are the bytes of an element of the operands and of the result, and the
// elements of one step. Kernels of 8-bit operands write 16 bits.
func (c *GEMMCore) sizes() (in, out, step float64) {
	in = float64(c.DType.Size())
	return in, max(in, 2), gemmStepBytes / in
}

// fastest walks the menu.
func (c *GEMMCore) fastest(s gemmShape) (GEMMPlan, float64) {
	best, plan := math.Inf(1), GEMMPlan{}
	_, _, step := c.sizes()
	var steps, joins [len(gemmSplits{})]float64
	splits := allGEMMSplits()
	last := 0 // beyond one step a split has nothing left to share out
	for i, n := range splits {
		steps[i], last = math.Ceil(s.inner/(float64(n)*step)), i
		if n > 1 {
			joins[i] = c.join(s, float64(n))
		}
		if steps[i] == 1 {
			break
		}
	}
	each := 1 / float64(c.Parallel)
	for i := range c.Tiles {
		tile := &c.Tiles[i]
		tiles := math.Ceil(s.rows/tile.Rows) * math.Ceil(s.cols/tile.Cols) * each
		start, step := c.tile(tile)
		crowd := c.crowd(tile)
		for k := 0; k <= last; k++ {
			u := tiles * float64(splits[k])
			if k > 0 && u > gemmSplitFull {
				break // fewer entries for more tiles: time still rises with them
			}
			if t := c.waves(u, crowd)*(start+steps[k]*step) + joins[k]; t < best {
				best, plan = t, GEMMPlan{i, splits[k]}
			}
		}
	}
	return plan, best
}

// planned is the time of one entry of the menu, as fastest reckons it.
func (c *GEMMCore) planned(s gemmShape, p GEMMPlan) float64 {
	tile, split := &c.Tiles[p.Tile], float64(p.Split)
	_, _, step := c.sizes()
	tiles := math.Ceil(s.rows/tile.Rows) * math.Ceil(s.cols/tile.Cols)
	start, each := c.tile(tile)
	t := c.waves(tiles*(1/float64(c.Parallel))*split, c.crowd(tile)) * (start + math.Ceil(s.inner/(split*step))*each)
	if p.Split > 1 {
		t += c.join(s, split)
	}
	return t
}

// tile is the time of one tile on an SM: its start and end, and each step of
// its inner product.
func (c *GEMMCore) tile(t *GEMMTile) (start, each float64) {
	_, out, step := c.sizes()
	area := t.Rows * t.Cols
	each = 2*area*step*float64(c.Parallel)/c.PerS*t.Rate + (t.Rows+t.Cols)*gemmStepBytes*c.Load
	return c.Tile + area*out*c.Store, max(each, c.Step)
}

// waves is how often the busiest SM starts a tile, for u tiles an SM. Between
// the even share and whole waves: tiles that end early leave room in power and
// bandwidth, and some kernels share the last wave out (stream-K).
func (c *GEMMCore) waves(u, crowd float64) float64 {
	return max(1, (u+c.Whole*math.Ceil(u))/(1+c.Whole)) * (1 + u*crowd)
}

// crowd is what each wave adds to the cost of a tile. The menu's smaller tiles
// lose against its larger ones by more than their own time as waves grow: the
// libraries' own estimates turn away from them.
func (c *GEMMCore) crowd(t *GEMMTile) float64 {
	if t.Rows*t.Cols >= gemmLargeTile {
		return 0
	}
	return 1 / (c.Crowd * t.Crowd)
}

// join is what adding the partial results of a split costs.
func (c *GEMMCore) join(s gemmShape, split float64) float64 {
	return c.SplitS + (split+1)*gemmPartial*s.rows*s.cols*c.SplitByte
}

// bytes are those through memory, those that a cache holds counting for less.
// In a loop over one shape the input and the result are used again at once,
// the weights after Copies others.
func (c *GEMMCore) bytes(s gemmShape) float64 {
	in, out, _ := c.sizes()
	a, b, r := in*s.rows*s.inner, in*s.cols*s.inner, out*s.rows*s.cols
	streamed := b*c.missed(c.Copies*b+a+r) + (a+r)*c.missed(a+b+r)
	// Blocks of all SMs together read each operand once for every block of
	// side sqrt(SMs 256 128), once the operands outgrow the cache.
	side := math.Sqrt(float64(c.Parallel) * gemmLargeTile)
	over := (a + b) / c.L2
	return streamed + c.Reload*in*s.rows*s.cols*s.inner/side*over/(1+over)
}

// missed is the cost of a byte against one from memory, for a working set:
// all beyond the cache, c/(1+c) inside it.
func (c *GEMMCore) missed(set float64) float64 {
	z := set / c.L2
	z *= z
	z *= z
	hit := c.Cached / (1 + c.Cached)
	return (z + hit) / (1 + z)
}

// matrix is the time of a menu's entry before sustained power.
func (c *GEMMCore) matrix(s gemmShape, menu float64) float64 {
	return c.Launch + PNorm(menu, c.bytes(s)/c.MemPerS, 1+c.Sharp)
}

// vector is the time of the kernel for a single row, which only streams the
// weights.
func (c *GEMMCore) vector(s gemmShape) float64 { return c.VLaunch + c.bytes(s)/c.VPerS }

// finish adds what comes around the product.
func (c *GEMMCore) finish(s gemmShape, x float64) float64 {
	if c.DType == op.FP8 {
		x += gemmCastBytes * s.rows * s.inner * c.Cast
	}
	return x * (1 + min(c.Power, gemmMaxPower)*x/(x+c.PowerS))
}
