package costmodel

import (
	"fmt"
	"math"

	"github.com/evenkeel/evenkeel/costmodel/op"
)

// AttentionCore is the physical part of the law of an attention kernel on a GPU: how
// tiles of query rows and keys fill the parallel units, what memory traffic and launches
// cost, and how sustained load slows the clock. A call of one block takes the time t in
// seconds, and one over packed documents the same but for its tail (PackedSeconds):
//
//	w = tile_s W + task_s ceil(Q/P) + stream_ratio m(own) + tail_ratio (1 - P/Q)+ (start_s + alone_ratio tile_s L 32/(32 + L))
//	l = alone_ratio tile_s L + start_s
//	x = launch_s + |(|(w, l)|_overlap_norm, traffic_ratio m(all))|_memory_norm + (split ? merge_s : 0)
//	  + |(side_launch_s, m(side_kv_ratio kv + side_q_ratio q), side_token_s n min(width, 512)/512 / P)|_3
//	t = x + slow_ratio (tile_s W)^2/x s/(1+s),  s = (x/slow_at_s)^slow_norm
//
// P is the number of units, W the tiles per unit on average, Q the number of tasks, L the
// tiles of the longest task, n the tokens of the side kernel, and m(b) the time to move b
// bytes. |.|_p is the p-norm, a smooth maximum that grows with each of its arguments. w
// is the time of all units' work and l that of the longest task: the two bounds of list
// scheduling (Graham 1969). (1 - P/Q)+ is 0 for Q < P.
//
// Coefficients are in seconds (_s), in seconds per byte, or without unit (_ratio, _norm).
type AttentionCore struct {
	Parallel int  `json:"parallel"`   // units (SMs or threads), each of which runs one task at a time
	TileRows int  `json:"tile_rows"`  // query rows per task; key rows in the backward pass
	TileKeys int  `json:"tile_keys"`  // keys per step of a task
	Packed   bool `json:"gqa_packed"` // packed GQA: query heads that share a KV head are in the same tasks
	SplitKV  bool `json:"split_kv"`   // calls of few tasks are split along the keys, and the parts merged
	Waves    bool `json:"waves"`      // equal tasks run in whole waves

	Tile  float64 `json:"tile_s"`      // one tile on a unit that runs other tasks too
	Task  float64 `json:"task_s"`      // start and end of a task on such a unit
	Alone float64 `json:"alone_ratio"` // time of a tile of a task that has a unit to itself, over tile_s
	Start float64 `json:"start_s"`     // start of the longest task
	Tail  float64 `json:"tail_ratio"`  // share of a task that runs after the other units are done

	Launch  float64 `json:"launch_s"`
	Merge   float64 `json:"merge_s"` // merging the parts of a split
	Overlap float64 `json:"overlap_norm"`

	Byte    float64 `json:"s_per_byte"`    // to or from device memory
	Cached  float64 `json:"cached_ratio"`  // time of a byte in the last-level cache, over s_per_byte
	Cache   float64 `json:"cache_bytes"`   // operands of this size miss the cache half of the time
	Traffic float64 `json:"traffic_ratio"` // bytes moved over bytes of the operands; overlaps with the tiles
	Stream  float64 `json:"stream_ratio"`  // the same for a task's own rows, which no tile overlaps
	Memory  float64 `json:"memory_norm"`

	// The side kernel runs before or after the attention kernel: it writes keys and values
	// to a cache, rotates them (RoPE), or sums and casts the gradients.
	SideLaunch float64 `json:"side_launch_s"`
	SideKV     float64 `json:"side_kv_ratio"` // bytes moved over bytes of keys and values
	SideQ      float64 `json:"side_q_ratio"`  // bytes moved over bytes of queries
	SideToken  float64 `json:"side_token_s"`  // one token of full width (512 key elements or more) on one unit

	Slow     float64 `json:"slow_ratio"` // share of the time that sustained full load adds
	SlowAt   float64 `json:"slow_at_s"`  // duration at which half of that is reached
	SlowNorm float64 `json:"slow_norm"`  // steepness of that transition
}

// Seconds is the time of one call, forward or backward. It does not allocate
// and, at an unchanged Split, never falls when tokens, heads or batch grow. The
// exception is a packed kernel on a diagonal block: with more query heads a KV
// head its tasks cover fewer tokens and end closer to the diagonal, which can
// save more tiles than the added rows cost where they only fill up the last task.
func (c *AttentionCore) Seconds(a op.Attention, backward bool) float64 {
	return c.At(c.Geometry(a, backward))
}

// At is the time in seconds of a call of known geometry. A fit computes the geometry of a
// point once and evaluates it for many coefficients.
func (c *AttentionCore) At(g AttentionGeometry) float64 { return c.AtWith(&g, &AttentionNorms{}) }

// AtWith returns exactly what At does, bit for bit, and caches powers in n: a power is
// recomputed only where its arguments differ from those that n remembers. A fit that
// moves one coefficient at a time spends most of its time on them.
func (c *AttentionCore) AtWith(g *AttentionGeometry, n *AttentionNorms) float64 {
	byteTime := c.byteTime(g.Bytes)
	longest := c.Alone * c.Tile * g.Longest
	busy := c.Tile*g.Tiles + c.Task*g.Tasks + c.Stream*byteTime*g.OwnBytes + c.tail(g, longest)
	tiles := n.tiles.by(PNorm, busy, longest+c.Start, c.Overlap)
	x := c.Launch + n.all.by(PNorm, tiles, c.Traffic*byteTime*g.Bytes, c.Memory)
	if g.Split > 1 {
		x += c.Merge
	}
	x += n.side.by(cubic, c.SideLaunch, c.sideBytes(g, byteTime), c.sideBlocks(g))
	return c.sustained(x, c.Tile*g.Tiles, n.slow.by(powerOf, x, c.SlowAt, c.SlowNorm))
}

// AttentionNorms caches the powers in the time of one call; see AttentionCore.AtWith.
type AttentionNorms struct{ tiles, all, side, slow norm }

// norm is a function of three numbers and what it was of the last ones.
type norm struct{ a, b, c, of float64 }

func (n *norm) by(f func(a, b, c float64) float64, a, b, c float64) float64 {
	if n.a != a || n.b != b || n.c != c || n.of == 0 {
		*n = norm{a, b, c, f(a, b, c)}
	}
	return n.of
}

func cubic(a, b, c float64) float64 { return math.Cbrt(cube(a) + cube(b) + cube(c)) }

func powerOf(x, at, p float64) float64 { return math.Pow(x/at, p) }

// tail is how much longer the busiest unit works than the average one when tasks queue.
// Short rows make few coarse tasks, which balance badly. Long rows make many tasks, of
// which the short ones start last and fill the gaps, so that the tail stops growing at
// about 32 tiles.
func (c *AttentionCore) tail(g *AttentionGeometry, longest float64) float64 {
	if g.Late[0] > 0 {
		return c.Tail*g.Waiting*c.Start + c.Tile*g.late(c.Tail*g.Waiting*c.Alone)
	}
	return c.Tail * g.Waiting * (c.Start + longest*fineTiles/(fineTiles+g.Longest))
}

// fineTiles is the length of a task, in tiles, at which half of the tail is
// evened out; 16 to 40 predict unseen lengths equally well.
const fineTiles = 32

// sideBytes and sideBlocks are what the side kernel takes for its bytes and for its
// blocks of threads. These and its launch bound it, whichever is slowest. A block has a
// token and as many threads as that has key elements, up to 512: fewer threads let more
// blocks share a unit. Of limits from 64 to none, 512 fitted best for one engine's
// recordings on five GPU types at head dimensions 64, 128, 256 and 512; at 192
// and on a sixth type another did, by little.
func (c *AttentionCore) sideBytes(g *AttentionGeometry, byteTime float64) float64 {
	return byteTime * (c.SideKV*g.KVBytes + c.SideQ*g.QBytes)
}

func (c *AttentionCore) sideBlocks(g *AttentionGeometry) float64 {
	return c.SideToken * g.Tokens * min(g.Width/sideThreads, 1) / float64(c.Parallel)
}

// sideThreads is the most threads a block of the side kernel has.
const sideThreads = 512

// sustained adds the slow-down under the device's power limit, where s is
// (x/slow_at_s)^slow_norm. dense is the time of dense arithmetic in x: its share of x,
// squared, tells how much power the call draws. Calls much shorter than slow_at_s end
// before the limit takes effect.
func (c *AttentionCore) sustained(x, dense, s float64) float64 {
	if s > 1e200 { // all of it; below, the product that follows stays finite
		return x + c.Slow*dense*dense/x
	}
	return x + c.Slow*dense*dense/x*s/(1+s)
}

// byteTime is the time of a byte when a call touches `bytes`: between a hit's
// and a miss's, with half of them missing at cache_bytes.
func (c *AttentionCore) byteTime(bytes float64) float64 {
	fill := bytes / c.Cache
	fill *= fill
	fill *= fill
	miss := 1.0
	if fill < 1e300 {
		miss = fill / (1 + fill)
	}
	return c.Byte * (miss + (1-miss)*c.Cached)
}

func cube(x float64) float64 { return x * x * x }

// PNorm is the p-norm (a^p + b^p)^(1/p) of two times, neither negative, for p >= 1: a
// smooth maximum, which is their sum at p = 1 and their maximum as p goes to infinity.
// Laws of attention and of matrix products use it for work that overlaps in part.
func PNorm(a, b, p float64) float64 {
	if a < b {
		a, b = b, a
	}
	if b <= 0 {
		return a
	}
	return a * math.Pow(1+math.Pow(b/a, p), 1/p)
}

// AttentionCoefficient is one fitted coefficient of an AttentionCore, with a pointer
// through which an estimator changes it.
type AttentionCoefficient struct {
	Name  string // JSON key
	Value *float64
	Least float64 // lower limit, exclusive: 1 for the exponents of norms, else 0
}

// Coefficients lists the fitted numbers; writing through them changes the core.
func (c *AttentionCore) Coefficients() []AttentionCoefficient {
	return []AttentionCoefficient{
		{"tile_s", &c.Tile, 0},
		{"task_s", &c.Task, 0},
		{"alone_ratio", &c.Alone, 0},
		{"start_s", &c.Start, 0},
		{"tail_ratio", &c.Tail, 0},
		{"launch_s", &c.Launch, 0},
		{"merge_s", &c.Merge, 0},
		{"overlap_norm", &c.Overlap, 1},
		{"s_per_byte", &c.Byte, 0},
		{"cached_ratio", &c.Cached, 0},
		{"cache_bytes", &c.Cache, 0},
		{"traffic_ratio", &c.Traffic, 0},
		{"stream_ratio", &c.Stream, 0},
		{"memory_norm", &c.Memory, 1},
		{"side_launch_s", &c.SideLaunch, 0},
		{"side_kv_ratio", &c.SideKV, 0},
		{"side_q_ratio", &c.SideQ, 0},
		{"side_token_s", &c.SideToken, 0},
		{"slow_ratio", &c.Slow, 0},
		{"slow_at_s", &c.SlowAt, 0},
		{"slow_norm", &c.SlowNorm, 0},
	}
}

// Validate reports the first field that is missing or out of range. Within the
// ranges the time is finite, positive and monotone as Seconds promises.
func (c *AttentionCore) Validate() error {
	for _, f := range []struct {
		name        string
		value, most int
	}{{"parallel", c.Parallel, 1 << 20}, {"tile_rows", c.TileRows, 1 << 16}, {"tile_keys", c.TileKeys, 1 << 16}} {
		if f.value < 1 || f.value > f.most {
			return fmt.Errorf("%s: %d: want 1 to %d", f.name, f.value, f.most)
		}
	}
	for _, k := range c.Coefficients() {
		if !(*k.Value > 0 && *k.Value >= k.Least && *k.Value < 1e18) {
			return fmt.Errorf("%s: %v: want a positive number, at least %v", k.Name, *k.Value, k.Least)
		}
	}
	switch {
	case c.Cached > 1:
		return fmt.Errorf("cached_ratio: %v: a hit costs no more than a miss, want at most 1", c.Cached)
	case c.Slow > 1:
		return fmt.Errorf("slow_ratio: %v: beyond 1 longer calls would take less time", c.Slow)
	case c.Overlap > 1e3 || c.Memory > 1e3 || c.SlowNorm > 1e3:
		return fmt.Errorf("overlap_norm, memory_norm, slow_norm: %v, %v, %v: want at most 1000", c.Overlap, c.Memory, c.SlowNorm)
	}
	return nil
}

// Scaled is the core of the same kernel on another device, by datasheet ratios:
// tiles by the peak rate a unit, bytes by the memory's, the cache by its size.
// The peaks are those of the kernel's precision where both sheets have them, else
// of bf16: a ratio of one precision's peak to another's says nothing of the units.
// What a datasheet leaves out keeps its value.
func (c *AttentionCore) Scaled(from, to op.DeviceType, d op.DType) *AttentionCore {
	s := *c
	s.Parallel = to.Parallel
	if d == op.FP8 && !(from.Sheet.FP8PerS > 0 && to.Sheet.FP8PerS > 0) {
		d = op.BF16
	}
	slower := over(from.Sheet.PeakPerS(d)/float64(from.Parallel), to.Sheet.PeakPerS(d)/float64(to.Parallel))
	s.Tile *= slower
	s.Task *= slower
	s.Byte *= over(from.Sheet.MemoryPerS, to.Sheet.MemoryPerS)
	s.Cache *= over(float64(to.Sheet.L2), float64(from.Sheet.L2))
	return &s
}

// over is a ratio of datasheet figures, 1 where one of them is unknown.
func over(a, b float64) float64 {
	if !(a > 0 && b > 0) {
		return 1
	}
	return a / b
}
