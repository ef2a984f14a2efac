package bound

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/internal/strategy"
	"github.com/evenkeel/evenkeel/solver/internal/world"
)

// randomLinear switches coefficients on and off, so that each feature is
// sometimes the only one.
func randomLinear(r *rand.Rand) *costmodel.Law {
	draw := func() costmodel.Coef { return world.Coef(r.Float64() * float64(r.IntN(2))) }
	return &costmodel.Law{Linear: &costmodel.Linear{
		Parallel: 1 + r.IntN(8), Launch: world.Coef(1e-9 + 1e6*draw().Value), PerFLOP: draw(), PerRow: draw(), PerByte: draw(), PerTail: world.Coef(10 * draw().Value),
	}, Spread: costmodel.Spread{Lo: 1, Hi: 1}}
}

func randomCurve(r *rand.Rand) *costmodel.Curve {
	if r.IntN(2) == 0 {
		c := &costmodel.Curve{Form: costmodel.AlphaBeta}
		from := units.Bytes(0)
		for range 1 + r.IntN(3) {
			c.Pieces = append(c.Pieces, costmodel.Piece{From: from, Alpha: world.Coef(r.Float64()), Beta: world.Coef(1e-6 + 1e-4*r.Float64())})
			from += 1 + units.Bytes(r.IntN(1<<18))
		}
		return c
	}
	c := &costmodel.Curve{Form: costmodel.LogLog}
	at, s := units.Bytes(1+r.IntN(1000)), r.Float64()
	for range 1 + r.IntN(4) {
		s += r.Float64()
		c.Knots = append(c.Knots, costmodel.Knot{Bytes: at, Seconds: units.Seconds(s)})
		at *= 1 + units.Bytes(1+r.IntN(50))
	}
	return c
}

// kernelOf makes a kernel of the largest model and length that a test asks for.
func kernelOf(law *costmodel.Law, a op.Attention, backward bool, seq units.Tokens, heads int, each int) *kernel {
	return &kernel{law: law, a: a, backward: backward, seq: float64(seq), queries: float64(seq), heads: float64(heads), each: float64(each)}
}

// checkFloor compares the floor of all blocks up to some pairs with random ones.
func checkFloor(t *testing.T, r *rand.Rand, k *kernel, draws int) {
	t.Helper()
	most := 1 + math.Exp(r.Float64()*math.Log(k.seq*k.seq*k.heads))
	floor := k.floorOf([]float64{most}, nil)[0]
	for range draws {
		q := 1 + units.Tokens(math.Exp(r.Float64()*math.Log(k.seq)))
		kv := 1 + units.Tokens(math.Exp(r.Float64()*math.Log(k.seq)))
		q, kv = min(q, units.Tokens(k.queries)), min(kv, units.Tokens(k.seq))
		switch {
		case k.a.Mask == op.Diag:
			kv = q
		case q+kv > units.Tokens(k.seq):
			kv = max(1, units.Tokens(k.seq)-q)
			q = min(q, units.Tokens(k.seq)-kv)
		}
		heads := 1 + r.IntN(int(k.heads))
		groups := min(heads, int(math.Ceil(float64(heads)/k.each))+r.IntN(2))
		for heads%groups != 0 {
			groups++
		}
		shape := k.of(q, kv, heads, groups)
		a := k.a
		a.QLen, a.KVLen = q, kv
		pairs := a.Pairs() * float64(heads)
		if got := float64(k.law.Seconds(shape)) / pairs; pairs <= most && got < floor*(1-1e-9) {
			t.Fatalf("%+v by %s: %v a pair and head, below the floor of %v for up to %v", shape, k.law.Form(), got, floor, most)
		}
	}
}

func TestAttentionFloorHoldsForEveryBlock(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 1))
	for range 300 {
		each := 1 + r.IntN(4)
		a := op.Attention{Mask: []op.Mask{op.Full, op.Diag}[r.IntN(2)], QLen: 1, KVLen: 1, QHeads: 1, KVHeads: 1, HeadDim: 1 + r.IntN(128), DType: op.BF16}
		k := kernelOf(randomLinear(r), a, r.IntN(2) == 0, units.Tokens(2+r.IntN(1<<(1+r.IntN(14)))), each*(1+r.IntN(4)), each)
		checkFloor(t, r, k, 60)
	}
}

// kernelsOf are the kernels of attention of a problem's first device, without the adding
// of their results.
func kernelsOf(t *testing.T, p *strategy.Problem) []*kernel {
	t.Helper()
	var all []*kernel
	for _, mask := range []op.Mask{op.Full, op.Diag} {
		for _, kind := range []op.Kind{op.KindAttnFwd, op.KindAttnBwd} {
			k, err := (&floors{profile: p.Profile, predictor: p.Predictor, job: p.Job, size: len(p.Ranks)}).kernel(p.Ranks[0].Device, mask, kind)
			if err != nil {
				t.Fatal(err)
			}
			k.merge = 0
			all = append(all, k)
		}
	}
	return all
}

// The laws of real kernels: tiles, waves, split keys, corrections.
func TestAttentionFloorHoldsOnReferences(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 1))
	for _, cluster := range []string{"1x1 h100_sxm", "1x1 a100_sxm", "1x1 b60", "1x1 b200_sxm", "1x1 rtx_pro_6000_server"} {
		p := world.GPUs(t, cluster, 1<<18)
		for _, k := range kernelsOf(t, p) {
			for range 6 {
				checkFloor(t, r, k, 400)
			}
		}
	}
}

// The blocks of a rank with many pairs are of many heads, however they are cut: all of
// one rank are of as many, and no head has more pairs than the sequence.
func TestAttentionFloorKnowsOfHeads(t *testing.T) {
	world.Sequential(t)
	r := rand.New(rand.NewPCG(61, 1))
	p := world.GPUs(t, "1x8 h100_sxm", 1<<15)
	f := &floors{profile: p.Profile, predictor: p.Predictor, job: p.Job, size: len(p.Ranks)}
	pairs, raised := f.pairSteps(), 0
	for _, k := range kernelsOf(t, p) {
		for range 8 {
			k.queries = math.Floor(k.seq / (1 + 3*r.Float64()))
			rates := k.floorOf(pairs, nil)
			for i := range rates {
				if rates[i] > k.floorOf(pairs[i:i+1], nil)[0]*1.01 {
					raised++
				}
			}
			ofHead := k.seq * (k.seq + 1) / 2
			for range 400 {
				heads := 1 + r.IntN(int(k.heads))
				at, _ := slices.BinarySearch(pairs, float64(heads)*ofHead*r.Float64())
				a := k.a
				a.QLen = 1 + units.Tokens(r.Float64()*k.queries)
				a.KVLen = 1 + units.Tokens(r.Float64()*(k.seq-float64(a.QLen)))
				if k.a.Mask == op.Diag {
					a.KVLen = a.QLen
				}
				n := a.Pairs() * float64(heads)
				kv := p.Job.Model.KVHeadsOf(0, heads)
				if got := float64(k.law.Seconds(k.of(a.QLen, a.KVLen, heads, kv))) / n; n <= pairs[at] && got < rates[at]*(1-1e-9) {
					t.Fatalf("%s of %d by %d and %d heads: %v a pair and head, below the floor of %v for a rank with up to %v", k.a.Mask, a.QLen, a.KVLen, heads, got, rates[at], pairs[at])
				}
			}
		}
	}
	if raised == 0 {
		t.Error("no floor is higher for the heads that there must be")
	}
	// A rank alone may compute its heads in chunks.
	for _, kind := range []op.Kind{op.KindAttnFwd, op.KindAttnBwd} {
		k, err := f.kernel(p.Ranks[0].Device, op.Diag, kind)
		if err != nil {
			t.Fatal(err)
		}
		heads, last := int(k.heads)/costmodel.MaxHeadChunks, len(pairs)-1
		if few := k.fewestHeads(pairs, last); int(few) > heads || k.fewestHeads(pairs, last-1) <= few {
			t.Errorf("%s: %v heads at least of a rank that may be alone, of one with less %v", kind, few, k.fewestHeads(pairs, last-1))
		}
		whole := k.leastOf(p.Job.SeqLen, heads) / (k.seq * (k.seq + 1) / 2 * float64(heads))
		if floor := k.floorOf(pairs, nil)[last]; whole < floor {
			t.Errorf("%s in chunks: %v a pair and head, below %v", kind, whole, floor)
		}
	}
}

func TestLeastBetweenHoldsForEveryLength(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 1))
	for range 400 {
		hi := units.Tokens(1 + r.IntN(1<<(1+r.IntN(14))))
		lo := 1 + units.Tokens(r.IntN(int(hi)))
		n, k, pass := 1+r.IntN(300), 1+r.IntN(300), []op.Pass{op.Forward, op.DGrad, op.WGrad}[r.IntN(3)]
		product := func(m units.Tokens) op.Shape {
			return op.GEMM{Pass: pass, M: m, N: n, K: k, DType: op.BF16}
		}
		rows := func(m units.Tokens) op.Shape {
			return op.Norm{Rowwise: op.Rowwise{Tokens: m, Width: k, DType: op.BF16}}
		}
		checkLeast(t, r, randomLinear(r), product, lo, hi)
		checkLeast(t, r, randomLinear(r), rows, lo, hi)
		checkLeast(t, r, &costmodel.Law{Spread: costmodel.Spread{Lo: 1, Hi: 1}, Curve: randomCurve(r)}, rows, lo, hi)
	}
}

func checkLeast(t *testing.T, r *rand.Rand, law *costmodel.Law, at func(units.Tokens) op.Shape, lo, hi units.Tokens) {
	t.Helper()
	least := leastBetween(law, at, lo, hi)
	for range 40 {
		m := lo + units.Tokens(r.IntN(int(hi-lo)+1))
		if got := float64(law.Seconds(at(m))); got < least*(1-1e-12) {
			t.Fatalf("%+v of %s: %v, below the floor of %v from %d to %d", at(m), law.Form(), got, least, lo, hi)
		}
	}
}

// What the simulator charges of linear work is never below its floor, and cells
// of a single number are it.
func TestLinearFloorsHoldOnReferences(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 1))
	for _, cluster := range []string{"1x1 h100_sxm", "1x1 a100_sxm", "1x1 b60"} {
		p := world.GPUs(t, cluster, 1<<15)
		f := &floors{profile: p.Profile, predictor: p.Predictor, job: p.Job, size: len(p.Ranks)}
		l, err := f.linear(p.Ranks[0].Device)
		if err != nil {
			t.Fatal(err)
		}
		for range 60 {
			lo := 1 + units.Tokens(r.IntN(1<<15))
			hi := lo + units.Tokens(r.IntN(1<<r.IntN(14)))
			m := lo + units.Tokens(r.IntN(int(hi-lo)+1))
			floor, one := l.cell(lo, hi), l.cell(m, m)
			for s := range floor.cost {
				if one.cost[s] < floor.cost[s]*(1-1e-12) {
					t.Errorf("%s, stage %d: %d tokens cost %v, below the floor of %v from %d to %d", cluster, s, m, one.cost[s], floor.cost[s], lo, hi)
				}
			}
		}
	}
}

// varied varies what the bound depends on beside the world.
func varied(r *rand.Rand, job costmodel.Job) costmodel.Job {
	job.OverlapZero = r.IntN(2) == 0
	job.Accumulate = r.IntN(4)
	job.RingBuffers = 2 + r.IntN(2)
	job.LossChunk = []units.Tokens{1, 128, 1024}[r.IntN(3)] * units.Tokens(1+r.IntN(2))
	job.Model.KVHeads = []int{1, 2, 4, 8}[r.IntN(4)]
	job.Model.SharedNorm = r.IntN(4) == 0
	for i := range job.Cluster.Nodes {
		n := 0
		for _, m := range job.Cluster.Nodes[i].Devices {
			n += m.Count
		}
		job.Cluster.Nodes[i].NICs = r.IntN(n + 1)
	}
	return job
}

// checkBound holds random layouts, with groups, zero heads and zero tokens, and
// the better ones of the simplest kinds against the bound.
func checkBound(t *testing.T, r *rand.Rand, p *strategy.Problem, layouts int) {
	t.Helper()
	bound := lower(t, p)
	n := len(p.Ranks)
	all := []costmodel.Layout{p.EqualRing()}
	for range layouts {
		all = append(all, world.RandomGrouped(r, p), randomGroupOfAll(r, p), twoGroups(r, p), inStretches(r, p))
		if p.Job.Model.QHeads == world.Model().QHeads {
			all = append(all, world.RandomLayout(r, p.Job.SeqLen, n))
		}
	}
	fits := func(l costmodel.Layout) bool {
		for _, m := range p.Sim.Memory(l) {
			if !m.Fits() {
				return false
			}
		}
		return true
	}
	for _, l := range all {
		if l.OwnLast = r.IntN(2) == 0; len(l.Groups) == 1 {
			l.HeadChunks = []int{0, 2, 3, 4}[r.IntN(4)]
		}
		l.KeepTail = len(l.Groups) > 1 && r.IntN(2) == 0
		if l.TwoBatch = p.Job.Accumulate > 1 && r.IntN(2) == 0; l.TwoBatch {
			l.HeadChunks = 0
			l.WeaveForward, l.WeaveBackward = len(l.Groups) > 1 && r.IntN(2) == 0, len(l.Groups) > 1 && r.IntN(2) == 0
		}
		took, err := p.Sim.Time(l)
		if err != nil {
			t.Fatal(err)
		}
		if bound > took*(1+1e-9) && fits(l) {
			t.Fatalf("bound %v above %v of %+v on %s, %+v", bound, took, l, p.Job.Cluster, p.Job)
		}
	}
}

func TestBoundIsBelowEveryLayout(t *testing.T) {
	if testing.Short() {
		t.Skip("long; goroutines have shorter tests")
	}
	r := rand.New(rand.NewPCG(5, 1))
	for range 80 {
		p := world.Random(t, r)
		checkBound(t, r, world.ProblemOf(t, p.Profile, varied(r, p.Job)), 12)
	}
}

func TestBoundIsBelowEveryLayoutOnReferences(t *testing.T) {
	if testing.Short() {
		t.Skip("long; goroutines have shorter tests")
	}
	r := rand.New(rand.NewPCG(6, 1))
	for _, cluster := range []string{"2x4 h100_sxm", "1x4 h100_sxm + 2x4 a100_sxm", "1x(2 b60 + 1 rtx_pro_6000_server)"} {
		for range 6 {
			p := world.GPUs(t, cluster, units.Tokens(math.Exp2(9+9*r.Float64())))
			job := varied(r, p.Job)
			job.Recompute = []costmodel.Recompute{costmodel.RecomputeNone, costmodel.RecomputeFull}[r.IntN(2)]
			checkBound(t, r, world.ProblemOf(t, p.Profile, job), 25)
		}
	}
}

// A lone rank of a law of nothing but FLOPs has no choice: its pairs cost the
// same in every block, so that the bound is its time but for the least precision
// of a floor.
func TestBoundOfALoneRankIsItsTime(t *testing.T) {
	for _, again := range []costmodel.Recompute{costmodel.RecomputeNone, costmodel.RecomputeFull} {
		d := world.Fast()
		d.Bytes = math.Inf(1)
		profile := world.Profile([]world.Device{d}, []world.Wire{world.Near(), world.Far()})
		for i := range profile.Laws {
			if l := &profile.Laws[i]; l.Linear != nil && l.Linear.PerFLOP.Value == 0 {
				l.Linear.PerByte = world.Coef(1e-11)
			}
		}
		job := world.Job(t, "1x1 fast", 4096)
		job.Recompute = again
		p := world.ProblemOf(t, world.Vary(rand.New(rand.NewPCG(6, 1)), profile), job)
		bound := lower(t, p)
		took, err := p.Sim.Time(p.EqualRing())
		if err != nil {
			t.Fatal(err)
		}
		if ratio := float64(bound / took); ratio > 1 || ratio < 1-5e-3 {
			t.Errorf("recompute %s: bound %v, time %v", again, bound, took)
		}
	}
}

// Equal ranks over links that cost nothing: nothing but work is left, which can
// be shared out evenly.
func TestBoundOfEqualRanksWithoutWiresIsTight(t *testing.T) {
	d := world.Fast()
	d.Bytes = 1e15
	p := world.ProblemOf(t, world.Profile([]world.Device{d}, []world.Wire{world.Link("near", 0, 1e-18), world.Link("far", 0, 1e-18)}), world.Job(t, "1x4 fast", 1<<14))
	bound := lower(t, p)
	took, err := p.Sim.Time(p.EqualRing())
	if err != nil {
		t.Fatal(err)
	}
	if gap := float64(took/bound) - 1; gap < 0 || gap > 0.02 {
		t.Errorf("bound %v, an equal ring takes %v: gap %.2f %%", bound, took, 100*gap)
	}
}

// lower is the bound of a problem that has one.
func lower(t testing.TB, p *strategy.Problem) units.Seconds {
	t.Helper()
	b, err := Lower(p.Profile, p.Predictor, p.Job)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// A slow wire between two ranks is what the step takes where neither can hold much more than
// half of the sequence, and the bound knows.
func TestBoundKnowsASlowWire(t *testing.T) {
	for _, cluster := range []string{"1x2 fast", "2x1 fast"} {
		d := world.Fast()
		d.FLOPS, d.Bytes = 1e18, 1e18
		job := world.Job(t, cluster, 4096)
		job.LossChunk = 1
		links := []world.Wire{world.Link("near", 0, 1e-6), world.Link("far", 0, 1e-6)}
		p := world.ProblemOf(t, world.Profile([]world.Device{d}, links), job)
		d.Memory = units.Bytes(float64(p.Sim.Memory(p.EqualRing())[0].Peak())/costmodel.Usable) + 1
		p = world.ProblemOf(t, world.Profile([]world.Device{d}, links), job)
		if !fitsAll(p, p.EqualRing()) {
			t.Fatal("an equal ring does not fit")
		}
		bound := lower(t, p)
		took, err := p.Sim.Time(p.EqualRing())
		if err != nil {
			t.Fatal(err)
		}
		if bound > took || bound < took/2 {
			t.Errorf("%s: bound %v, an equal ring takes %v", cluster, bound, took)
		}
	}
}

// Nodes that exchange more slowly than others may be left out, and the bound knows.
func TestBoundKnowsThatSlowNodesMayBeLeftOut(t *testing.T) {
	for _, cluster := range []string{"2x8 h100_sxm", "2x8 h100_sxm + 1x1 h100_sxm", "1x2 h100_sxm + 2x8 h100_sxm", "2x8 h100_sxm + 1x8 h200_sxm + 1x1 h100_sxm"} {
		p := world.GPUs(t, cluster, 1<<14)
		from, heads := len(p.Ranks)-16, p.Job.Model.QHeads/16
		if p.Job.Cluster.Nodes[0].Size() == 8 {
			from = 0
		}
		shares, group := make([]units.Tokens, len(p.Ranks)), costmodel.Group{}
		for r := from; r < from+16; r++ {
			shares[r] = p.Job.SeqLen / 16
			group = append(group, costmodel.HeadShare{Rank: r, QHeads: heads})
		}
		step, err := p.Simulate(context.Background(), costmodel.ZigZag(shares, []costmodel.Group{group}))
		if err != nil {
			t.Fatal(err)
		}
		if bound := lower(t, p); bound > step.Time.Mid || bound < step.Time.Mid/2 {
			t.Errorf("%s: bound %v, an all-to-all of sixteen in the nodes of eight takes %v", cluster, bound, step.Time.Mid)
		}
	}
}

func BenchmarkLowerBound128(b *testing.B) { benchmarkBound(b, "8x8 h100_sxm + 8x8 a100_sxm", 1<<19) }

func BenchmarkLowerBound8192(b *testing.B) {
	benchmarkBound(b, "512x8 h100_sxm + 512x8 a100_sxm", 1<<20)
}

func benchmarkBound(b *testing.B, cluster string, seq units.Tokens) {
	p := world.GPUs(b, cluster, seq)
	for b.Loop() {
		if _, err := Lower(p.Profile, p.Predictor, p.Job); err != nil {
			b.Fatal(err)
		}
	}
}

// The bound holds on GPUs' laws for any layout, short sequences (where launches
// rule) and long ones, and leaves less than a quarter of an even cluster's step.
func TestBoundHoldsOnReferences(t *testing.T) {
	world.Sequential(t)
	r := rand.New(rand.NewPCG(7, 1))
	for _, cluster := range []string{"1x8 h100_sxm", "1x6 a100_sxm", "1x3 rtx_pro_6000_server", "1x4 h100_sxm + 1x4 a100_sxm", "2x4 gb200", "1x(2 b60 + 1 rtx_pro_6000_server)"} {
		for _, seq := range []units.Tokens{600, 7000, 1 << 17} {
			p := world.GPUs(t, cluster, seq)
			bound := lower(t, p)
			layouts := []costmodel.Layout{p.EqualRing()}
			for range 5 {
				layouts = append(layouts, world.RandomGrouped(r, p))
			}
			for i, l := range layouts {
				step, err := p.Simulate(context.Background(), l)
				if err != nil {
					t.Fatal(err)
				}
				if bound > step.Time.Mid*(1+1e-9) {
					t.Errorf("%s, %d tokens: bound %v above %v of %+v", cluster, seq, bound, step.Time.Mid, l)
				}
				if i == 0 && cluster == "1x8 h100_sxm" && seq > 1<<16 && bound < 0.75*step.Time.Mid {
					t.Errorf("%s, %d tokens: bound %v, an equal split takes %v", cluster, seq, bound, step.Time.Mid)
				}
			}
		}
	}
}
