package fit

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/profile"
)

// fieldNoise is the scatter of invented times: twice what others' repeats show.
const fieldNoise = 0.03

// pointOf is a point as a recording would give it.
func pointOf(dev op.DeviceType, s op.Shape, seconds float64) Point {
	key := profile.NewSpot(dev.Name, s).Key("")
	return Point{On: dev.Name, Shape: s, Key: key, Seconds: seconds, visits: []float64{seconds}, rank: hashOf(key)}
}

// waves is a plain law of tiles that no core has the form of: whole waves of
// 128-row tasks over the units, the bytes, a launch, and a library's taste for
// lengths of whole powers.
func waves(dev op.DeviceType, a op.Attention) float64 {
	tasks := float64(a.Blocks()*a.QHeads) * math.Ceil(float64(a.QLen)/128)
	work := op.AttnFwd{Attention: a}.Work()
	t := 6e-6 + math.Ceil(tasks/float64(dev.Parallel))*2e-6 + float64(work.FLOPs)/(0.6*dev.Sheet.BF16PerS) + float64(work.Bytes())/(0.8*dev.Sheet.MemoryPerS)
	return t * (1 + 0.05*math.Sin(2*math.Log2(float64(a.QLen))))
}

// attentionShape is a causal call.
func attentionShape(qLen, batch, qHeads, kvHeads int) op.AttnFwd {
	return resized(op.Attention{Mask: op.Diag, HeadDim: 128, DType: op.BF16}, qLen, batch, qHeads, kvHeads)
}

// resized is a call like another, of its own size.
func resized(a op.Attention, qLen, batch, qHeads, kvHeads int) op.AttnFwd {
	a.QLen, a.KVLen, a.QHeads, a.KVHeads, a.Batch = units.Tokens(qLen), units.Tokens(qLen), qHeads, kvHeads, 0
	if batch > 1 {
		a.Batch = batch
	}
	return op.AttnFwd{Attention: a}
}

// inventedAttention makes n distinct causal calls with 3 % of noise.
func inventedAttention(dev op.DeviceType, n int, seed uint64) []Point {
	rng := rand.New(rand.NewPCG(seed, 11))
	var points []Point
	known := map[op.AttnFwd]bool{}
	for len(points) < n {
		kv := 1 << rng.IntN(4)
		s := attentionShape(32*(1<<rng.IntN(9))*(2+rng.IntN(2))/2, 1<<rng.IntN(6), kv*(1<<rng.IntN(4)), kv)
		if known[s] {
			continue
		}
		known[s] = true
		points = append(points, pointOf(dev, s, waves(dev, s.Attention)*math.Exp(fieldNoise*rng.NormFloat64())))
	}
	return points
}

// inventedGEMM makes n distinct products with 3 % of noise; beyond 1,024 rows
// the library changes to a kernel that is a fifth faster.
func inventedGEMM(dev op.DeviceType, n int, seed uint64) []Point {
	rng := rand.New(rand.NewPCG(seed, 12))
	var points []Point
	known := map[op.GEMM]bool{}
	sides := []int{128, 256, 512, 1024, 1536, 2048, 2560, 3584, 4096, 5120, 7168, 8192, 10240, 12288, 16384}
	for len(points) < n {
		g := op.GEMM{Pass: op.Forward, M: units.Tokens(1 << rng.IntN(15)), N: sides[rng.IntN(len(sides))], K: sides[rng.IntN(len(sides))], DType: op.BF16}
		if g.M > 32 && rng.IntN(2) == 0 {
			g.M += g.M / 2
		}
		if known[g] {
			continue
		}
		known[g] = true
		tiles := math.Ceil(float64(g.M)/128) * math.Ceil(float64(g.N)/128)
		rate := 0.6 * dev.Sheet.BF16PerS
		if g.M > 1024 {
			rate *= 1.25
		}
		t := 4e-6 + math.Ceil(tiles/float64(dev.Parallel))*float64(dev.Parallel)*2*128*128*float64(g.K)/rate + float64(g.Work().Bytes())/(0.8*dev.Sheet.MemoryPerS)
		points = append(points, pointOf(dev, g, t*math.Exp(fieldNoise*rng.NormFloat64())))
	}
	return points
}

// lawFrom fits one law to points of a device, as fit does.
func lawFrom(t testing.TB, dev op.DeviceType, points []Point) *costmodel.Law {
	t.Helper()
	d := NewData()
	d.Devices = []op.DeviceType{dev}
	s := points[0].Shape
	law, err := lawOf(d, Stratum{On: dev.Name, Op: s.Kind(), Variant: s.Variant()}, points)
	if err != nil {
		t.Fatal(err)
	}
	return law
}

// mustCorrect is lawFrom for points that are enough to learn from.
func mustCorrect(t testing.TB, dev op.DeviceType, points []Point) *costmodel.Law {
	t.Helper()
	law := lawFrom(t, dev, points)
	if law.Correction == nil || law.Width == nil {
		t.Fatalf("%d points give no correction or no width", len(points))
	}
	return law
}

// grown is a shape with more of one axis.
type grown struct {
	axis  string
	shape op.Shape
	from  float64 // of the axis
	to    float64
}

// growths are shapes that do more than a call, one axis at a time: more tokens,
// more blocks, more heads. The KV heads stay where the query heads are multiplied,
// and go on dividing these where they are; where mostKV is none they are as many.
func growths(a op.Attention, rng *rand.Rand, longest, most, mostHeads, mostKV int) []grown {
	apart := mostKV > 0
	var all []grown
	q, b := int(a.QLen), a.Blocks()
	add := func(axis string, from, to int, s op.AttnFwd) {
		all = append(all, grown{axis, s, float64(from), float64(to)})
	}
	if more := q + 1 + rng.IntN(q); more <= longest {
		add("q_len", q, more, resized(a, more, b, a.QHeads, a.KVHeads))
	}
	if q < longest {
		add("q_len", q, q+1, resized(a, q+1, b, a.QHeads, a.KVHeads))
	}
	if more := b + 1 + rng.IntN(b); more <= most {
		add("batch", b, more, resized(a, q, more, a.QHeads, a.KVHeads))
	}
	if more := a.QHeads + 1 + rng.IntN(a.QHeads); !apart && more <= mostHeads {
		add("q_heads", a.QHeads, more, resized(a, q, b, more, more))
	}
	for _, times := range []int{2, 3} {
		if more := a.QHeads * times; apart && more <= mostHeads {
			add("q_heads", a.QHeads, more, resized(a, q, b, more, a.KVHeads))
		}
		if more := a.KVHeads * times; apart && more <= mostKV && a.QHeads%more == 0 {
			add("kv_heads", a.KVHeads, more, resized(a, q, b, a.QHeads, more))
		}
	}
	return all
}

// fallen counts how often, and by how much as log time, a law predicts less for more.
type fallen struct {
	tried, falls int
	most         float64
	worst        string
}

func (f *fallen) see(law *costmodel.Law, s op.Shape, more grown) {
	f.tried++
	fall := math.Log(float64(law.Seconds(s)) / float64(law.Seconds(more.shape)))
	if fall <= 1e-9 {
		return
	}
	f.falls++
	if fall > f.most {
		f.most, f.worst = fall, fmt.Sprintf("%s from %v to %v at %+v", more.axis, more.from, more.to, s)
	}
}

// String tells a test's log what was found.
func (f *fallen) String() string {
	return fmt.Sprintf("%d of %d pairs fall, at most by %.2g %s", f.falls, f.tried, f.most, f.worst)
}

// stated says whether the law states a change of kernel between two places on an axis.
func stated(law *costmodel.Law, axis string, from, to float64) bool {
	return slices.ContainsFunc(law.Correction.Switches, func(s costmodel.Switch) bool { return s.Axis == axis && from < s.To && to > s.From })
}

// attentionFalls tries pairs of random shapes in the hull, all like one, of a tile's last token and
// the next one's first, and of nodes of the correction, outside the stretches on which the law states
// a change of kernel. Where the core changes its KV splits it may fall too.
func attentionFalls(law *costmodel.Law, like op.Attention, n int, seed uint64) (between, edges, nodes fallen) {
	rng := rand.New(rand.NewPCG(seed, 13))
	core := law.Attention
	split := func(s op.Shape) int { return core.Split(s.(op.AttnFwd).Attention) }
	axes := law.Correction.Axes
	apart := len(axes) == 4 // KV heads have an axis of their own
	end := func(a int) int { return int(axes[a].Nodes[len(axes[a].Nodes)-1]) }
	first, fewest, mostHeads, mostKV := axes[0].Nodes[0], int(axes[2].Nodes[0]), min(64, end(2)), 0
	if apart {
		mostKV = min(8, end(3))
	}
	for range n {
		heads := fewest + rng.IntN(mostHeads-fewest+1)
		kv := heads
		if apart {
			kv = 1 + rng.IntN(mostKV)
			heads = min(mostHeads, kv*(1+rng.IntN(8)))
		}
		s := resized(like, int(first*math.Exp2(rng.Float64()*math.Log2(float64(end(0))/first))), 1+rng.IntN(end(1)), heads, kv)
		for _, g := range growths(s.Attention, rng, end(0), end(1), mostHeads, mostKV) {
			if split(s) == split(g.shape) && !stated(law, g.axis, g.from, g.to) {
				between.see(law, s, g)
			}
		}
		// At a tile's first token the correction changes at once.
		if tile := law.Correction.Tile; tile > 0 && s.QLen > units.Tokens(tile) {
			whole := int(s.QLen) / tile * tile
			last, first := resized(like, whole, s.Blocks(), s.QHeads, s.KVHeads), resized(like, whole+1, s.Blocks(), s.QHeads, s.KVHeads)
			if split(last) == split(first) && !stated(law, "q_len", float64(whole), float64(whole+1)) {
				edges.see(law, last, grown{"q_len", first, float64(whole), float64(whole + 1)})
			}
		}
	}
	at := func(k []int) op.AttnFwd {
		x := make([]int, len(k))
		for a := range x {
			x[a] = int(axes[a].Nodes[k[a]])
		}
		return resized(like, x[0], x[1], x[2], x[len(x)-1]) // the last are KV heads, or as many
	}
	for range n {
		k := make([]int, len(axes))
		for a := range k {
			k[a] = rng.IntN(len(axes[a].Nodes))
		}
		s := at(k)
		for a := range k {
			if k[a]+1 == len(axes[a].Nodes) {
				continue
			}
			k[a]++
			more := at(k)
			k[a]--
			whole := s.QHeads%s.KVHeads == 0 && more.QHeads%more.KVHeads == 0 && more.KVHeads%s.KVHeads == 0
			step := grown{axes[a].Name, more, axes[a].Nodes[k[a]], axes[a].Nodes[k[a]+1]}
			if (whole || !apart) && split(s) == split(more) && !stated(law, step.axis, step.from, step.to) {
				nodes.see(law, s, step)
			}
		}
	}
	return between, edges, nodes
}

// gemmFalls tries pairs of products that differ in their rows, outside the
// stretches on which the law states a change of kernel.
func gemmFalls(law *costmodel.Law, n int, seed uint64) (between, nodes fallen) {
	rng := rand.New(rand.NewPCG(seed, 14))
	axes := law.Correction.Axes
	in := func(a int) float64 {
		first, last := axes[a].Nodes[0], axes[a].Nodes[len(axes[a].Nodes)-1]
		return math.Floor(first * math.Exp2(rng.Float64()*math.Log2(last/first)))
	}
	see := func(f *fallen, m, n, k, more float64) {
		s := op.GEMM{Pass: op.Forward, M: units.Tokens(m), N: int(n), K: int(k), DType: law.GEMM.DType}
		g := s
		g.M = units.Tokens(more)
		if !stated(law, "m", m, more) {
			f.see(law, s, grown{"m", g, m, more})
		}
	}
	rows := axes[0].Nodes
	for range n {
		m := in(0)
		see(&between, m, in(1), in(2), min(rows[len(rows)-1], m+1+float64(rng.IntN(int(m)))))
		see(&between, m, in(1), in(2), min(rows[len(rows)-1], m+1))
		if i := rng.IntN(len(rows)); i+1 < len(rows) {
			see(&nodes, rows[i], axes[1].Nodes[rng.IntN(len(axes[1].Nodes))], axes[2].Nodes[rng.IntN(len(axes[2].Nodes))], rows[i+1])
		}
	}
	return between, nodes
}
