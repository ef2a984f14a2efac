package costmodel

import (
	"math"

	"github.com/evenkeel/evenkeel/costmodel/op"
)

// AttentionGeometry counts how one attention call is divided into tiles and tasks on a
// device's parallel units (SMs or threads). The counts are exact: they depend on the
// structure of an AttentionCore (tile sizes, packing, splits) and not on its fitted
// coefficients.
type AttentionGeometry struct {
	Tiles   float64 // per unit, on average over units
	Tasks   float64 // on the busiest unit
	Longest float64 // tiles of the longest task
	Waiting float64 // share of the tasks that have to wait for a unit, 1 - units/tasks
	Split   float64 // tasks that each row of tiles is cut into (split KV)

	// Late is of packed documents alone, and none for blocks: see lateFactors.
	Late [len(lateFactors)]float64

	Bytes, OwnBytes float64 // of all operands; of those that belong to one task alone
	QBytes, KVBytes float64 // of the queries; of keys and values
	Tokens, Width   float64 // of the side kernel: tokens, and key elements per token
}

// Geometry counts the tiles and tasks of a call.
//
// A forward task is a tile of query rows against all keys that they see. With packed GQA
// the rows of all query heads of a KV head are in one tile, token by token. A backward
// task is a tile of keys against all queries that see them: the same causal triangle from
// the other side.
func (c *AttentionCore) Geometry(a op.Attention, backward bool) AttentionGeometry {
	group, heads := int64(1), int64(a.QHeads)
	if c.Packed && !backward {
		group, heads = ceilDiv(int64(a.QHeads), int64(a.KVHeads)), int64(a.KVHeads)
	}
	rows, keys := int64(a.QLen), int64(a.KVLen)
	if backward {
		rows, keys = keys, rows
	}
	perHead := ceilDiv(rows*group, int64(c.TileRows))
	steps := ceilDiv(keys, int64(c.TileKeys))
	tiles, longest := c.headTiles(a, group, perHead, steps)
	blocks := float64(heads) * float64(a.Blocks())
	g := AttentionGeometry{Split: 1}
	if c.SplitKV && !backward {
		g.Split = splits(blocks*float64(perHead), float64(longest), float64(c.Parallel))
	}
	c.spread(&g, blocks, float64(perHead), float64(tiles), float64(longest))
	if c.Waves && a.Mask == op.Full {
		g.Tiles = g.Longest * g.Tasks
	}
	g.operands(a, backward)
	return g
}

// spread lays the tasks of all heads over the units.
func (c *AttentionCore) spread(g *AttentionGeometry, blocks, perHead, tiles, longest float64) {
	units := float64(c.Parallel)
	tasks := blocks * perHead * g.Split
	g.Tiles = blocks * tiles / units
	g.Tasks = math.Ceil(tasks / units)
	g.Longest = longest / g.Split
	g.Waiting = max(0, 1-units/tasks)
}

// operands counts bytes: forward reads q, k, v and writes out; backward reads
// q, k, v, out, dout and writes dq, dk, dv.
func (g *AttentionGeometry) operands(a op.Attention, backward bool) {
	element := float64(a.HeadDim) * float64(a.DType.Size())
	g.Tokens = float64(a.KVLen) * float64(a.Blocks())
	g.Width = float64(a.KVHeads) * float64(a.HeadDim)
	g.QBytes = float64(a.QLen) * float64(a.Blocks()) * float64(a.QHeads) * element
	g.KVBytes = 2 * g.Tokens * float64(a.KVHeads) * element
	g.OwnBytes = 2 * g.QBytes
	g.Bytes = g.OwnBytes + g.KVBytes
	if backward {
		g.OwnBytes = 2 * g.KVBytes
		g.Bytes = 4*g.QBytes + g.OwnBytes
	}
}

// headTiles counts the tiles of one head and those of its longest task.
//
// Task i of a diag block (i from 1) ends at row i*tile_rows/group and steps
// through ceil(i tile_rows / (group tile_keys)) tiles; the last one through all
// of them. A window skips the tiles in front of what its task's first row sees.
func (c *AttentionCore) headTiles(a op.Attention, group, perHead, steps int64) (tiles, longest int64) {
	if a.Mask == op.Full {
		return perHead * steps, steps
	}
	rows, keys := int64(c.TileRows), int64(c.TileKeys)
	d := group * keys
	tiles = floorSum(perHead, d, rows, d-1) + steps
	if a.Window <= 0 || a.Window >= a.QLen {
		return tiles, steps
	}
	behind := (int64(a.Window) - 1) * group
	if first := ceilDiv(behind, rows); first < perHead {
		tiles -= floorSum(perHead-first, d, rows, first*rows-behind)
	}
	return tiles, c.longestInWindow(a, group, perHead, steps)
}

// longestInWindow is the tiles of the longest task under a window. Tasks grow
// until the first that does not see the first key, and from there on are alike:
// with a whole one of those among them it is their bound, for how their keys
// fall into tiles differs; without, one of the last two is counted.
func (c *AttentionCore) longestInWindow(a op.Attention, group, perHead, steps int64) int64 {
	rows, keys, window := int64(c.TileRows), int64(c.TileKeys), int64(a.Window)
	if last := perHead - 1; (window*group-1)/rows+1 < last {
		return min(steps, ceilDiv(window-1+ceilDiv(rows, group), keys)+1)
	}
	task := func(i int64) int64 {
		begin := max(0, i*rows/group-window+1)
		end := min(int64(a.QLen), ceilDiv((i+1)*rows, group))
		return ceilDiv(end, keys) - begin/keys
	}
	return max(task(max(0, perHead-2)), task(perHead-1))
}

func ceilDiv(a, b int64) int64 { return (a + b - 1) / b }

// floorSum is the sum over i = 0..n-1 of floor((a i + b)/m) for a, b >= 0, by
// the steps of Euclid's algorithm (Graham, Knuth and Patashnik 1994, 3.5): a
// count of lattice points in logarithmic time instead of a loop over tiles.
func floorSum(n, m, a, b int64) int64 {
	sum := int64(0)
	for {
		sum += n*(n-1)/2*(a/m) + n*(b/m)
		a, b = a%m, b%m
		top := a*n + b
		if top < m {
			return sum
		}
		n, b = top/m, top%m
		m, a = a, m
	}
}

const (
	// enoughWaves is the share of a wave from which on nothing is split.
	enoughWaves = 0.8
	// fewestSteps is the most steps a row may have and not be split.
	fewestSteps = 4
	// mostSplits bounds the pieces of a row.
	mostSplits = 128
	// nearBest is the share of the best efficiency that the smallest count of
	// splits must reach.
	nearBest = 0.85
)

// Split is the number of pieces that each row of tiles is cut into, 1 for none:
// where it changes between two shapes, the larger may take less time.
func (c *AttentionCore) Split(a op.Attention) int { return int(c.Geometry(a, false).Split) }

// splits is the smallest count whose waves are nearly as full as the fullest's,
// the rule of split-KV kernels (Dao 2023, FlashAttention-2 and its decoding
// variant): tasks n over units, over that rounded up. Within w waves the fullest
// count is floor(w units / tasks), so that only one count a wave is looked at.
func splits(tasks, steps, units float64) float64 {
	if tasks >= enoughWaves*units || steps <= fewestSteps {
		return 1
	}
	most := min(mostSplits, units, steps)
	best := 0.0
	for w := 1.0; best < 0.99; w++ {
		n := min(most, math.Floor(w*units/tasks))
		best = max(best, n*tasks/units/math.Ceil(n*tasks/units))
		if n == most {
			break
		}
	}
	for w := 1.0; ; w++ {
		last := min(most, math.Floor(w*units/tasks))
		first := max(math.Floor((w-1)*units/tasks)+1, math.Ceil(nearBest*best*w*units/tasks))
		if first <= last || last == most {
			return min(first, most)
		}
	}
}
