package solver

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// device is a made-up device type of a test.
type device struct {
	name   string
	flops  float64 // FLOP/s
	bytes  float64 // memory B/s
	launch float64 // seconds
	row    float64 // seconds an element of per-row work
	tail   float64 // seconds a FLOP of the longest task
	memory units.Bytes
}

// wire is a made-up link class.
type wire struct {
	name        string
	alpha, beta float64
}

func fast() device {
	return device{name: "fast", flops: 4e12, bytes: 4e11, memory: 64 * units.GiB}
}

func slow() device {
	return device{name: "slow", flops: 1e12, bytes: 1e11, memory: 64 * units.GiB}
}

func nearLink() wire { return wire{"near", 1e-6, 1e-11} }
func farLink() wire  { return wire{"far", 1e-5, 1e-10} }

func coef(v float64) costmodel.Coef { return costmodel.Coef{Value: v, Lo: v, Hi: v} }

func anyRange(k op.Kind) []costmodel.AxisRange {
	var r []costmodel.AxisRange
	for _, a := range op.CoordNames(k) {
		r = append(r, costmodel.AxisRange{Axis: a, Min: 1, Max: 1e15})
	}
	return r
}

// testProfile has every law of the devices and links, with 2 % spread.
func testProfile(devices []device, wires []wire) *costmodel.Profile {
	p := &costmodel.Profile{Simulated: true}
	add := func(l costmodel.Law) {
		l.Range, l.Spread = anyRange(l.Op), costmodel.Spread{Lo: 0.98, Hi: 1.02}
		p.Laws = append(p.Laws, l)
	}
	for _, d := range devices {
		p.Devices = append(p.Devices, op.DeviceType{Name: d.name, Model: "made up", Fingerprint: "00", Parallel: 4, Memory: d.memory})
		for _, c := range computeVariants() {
			add(costmodel.Law{Op: c.Kind(), Variant: c.Variant(), Device: d.name, Linear: &costmodel.Linear{
				Parallel: 4, Launch: coef(d.launch), PerFLOP: coef(4 / d.flops), PerRow: coef(d.row), PerByte: coef(1 / d.bytes), PerTail: coef(d.tail),
			}})
		}
		for _, v := range bandwidthKinds() {
			add(costmodel.Law{Op: v.kind, Variant: op.Variant{DType: v.dtype}, Device: d.name, Linear: &costmodel.Linear{
				Parallel: 4, Launch: coef(d.launch), PerRow: coef(d.row), PerByte: coef(1 / d.bytes),
			}})
		}
	}
	for _, w := range wires {
		g := op.NewGroupType([]op.Member{{Device: devices[0].name, Count: 2}}, 1, w.name)
		p.Groups = append(p.Groups, g)
		for _, k := range []op.Kind{op.KindSendRecv, op.KindReduceScatter, op.KindAllGather, op.KindAllReduce, op.KindAllToAll} {
			add(costmodel.Law{Op: k, Group: g.Name, Curve: line(w.alpha, w.beta)})
		}
	}
	return p
}

func computeVariants() []op.Shape {
	var all []op.Shape
	for _, m := range []op.Mask{op.Full, op.Diag} {
		a := op.Attention{Mask: m, HeadDim: 64, DType: op.BF16}
		all = append(all, op.AttnFwd{Attention: a}, op.AttnBwd{Attention: a})
	}
	for _, p := range []op.Pass{op.Forward, op.DGrad, op.WGrad} {
		all = append(all, op.GEMM{Pass: p, DType: op.BF16})
	}
	return all
}

type bandwidthKind struct {
	kind  op.Kind
	dtype op.DType
}

func bandwidthKinds() []bandwidthKind {
	return []bandwidthKind{
		{op.KindNorm, op.BF16},
		{op.KindRope, op.BF16},
		{op.KindSwiGLU, op.BF16},
		{op.KindCEChunk, op.F32},
		{op.KindLSEMerge, op.F32},
		{op.KindAdamW, op.F32},
	}
}

func line(alpha, beta float64) *costmodel.Curve {
	return &costmodel.Curve{Form: costmodel.AlphaBeta, Pieces: []costmodel.Piece{{Alpha: coef(alpha), Beta: coef(beta)}}}
}

func testModel() costmodel.Model {
	return costmodel.Model{Name: "llama", Layers: 4, Hidden: 512, FFN: 1408, QHeads: 8, KVHeads: 2, HeadDim: 64, Vocab: 4096, GatedMLP: true}
}

// testJob is a small model on a cluster in shorthand; nodes talk over "near"
// inside and over "far" between.
func testJob(t testing.TB, cluster string, seq units.Tokens) costmodel.Job {
	t.Helper()
	c, err := costmodel.ParseCluster(cluster)
	if err != nil {
		t.Fatal(err)
	}
	for i := range c.Nodes {
		c.Nodes[i].Link = "near"
	}
	c.Network = "far"
	return costmodel.Job{
		Model: testModel(), Cluster: c, SeqLen: seq, DType: op.BF16, Recompute: costmodel.RecomputeNone,
		RingBuffers: 2, LossChunk: 1024,
	}
}

func testProblem(t testing.TB, cluster string, seq units.Tokens, devices ...device) *Problem {
	t.Helper()
	if len(devices) == 0 {
		devices = []device{fast(), slow()}
	}
	return problemOf(t, testProfile(devices, []wire{nearLink(), farLink()}), testJob(t, cluster, seq))
}

func problemOf(t testing.TB, profile *costmodel.Profile, job costmodel.Job) *Problem {
	t.Helper()
	if err := profile.Validate(); err != nil {
		t.Fatal(err)
	}
	p, err := NewProblem(profile, job)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// randomWorld draws devices, links, cluster and job.
func randomWorld(t testing.TB, r *rand.Rand) *Problem {
	t.Helper()
	devices := []device{fast(), slow(), slow()}
	devices[2].name = "third"
	for i := range devices {
		d := &devices[i]
		d.flops *= 0.3 + 3*r.Float64()
		d.bytes *= 0.3 + 3*r.Float64()
		d.launch = 1e-5 * r.Float64() * float64(r.IntN(2))
		d.row = 1e-11 * r.Float64() * float64(r.IntN(2))
		d.tail = 1e-13 * r.Float64() * float64(r.IntN(2))
	}
	wires := []wire{{"near", 1e-5 * r.Float64(), 3e-10 * r.Float64()}, {"far", 1e-4 * r.Float64(), 3e-9 * r.Float64()}}
	heavy := math.Pow(10, float64(3*r.IntN(2))) // sometimes all that counts
	for i := range wires {
		wires[i].beta = heavy * (wires[i].beta + 1e-13)
	}
	var terms []string
	for range 1 + r.IntN(2) {
		terms = append(terms, fmt.Sprintf("1x(%d fast + %d %s)", 1+r.IntN(2), 1+r.IntN(2), []string{"slow", "third"}[r.IntN(2)]))
	}
	job := testJob(t, strings.Join(terms, " + "), units.Tokens(64+r.IntN(6000)))
	job.Recompute = []costmodel.Recompute{costmodel.RecomputeNone, costmodel.RecomputeFull}[r.IntN(2)]
	job.Zero = []costmodel.ZeRO{"", costmodel.Zero0, costmodel.Zero1, costmodel.Zero2, costmodel.Zero3}[r.IntN(5)]
	return problemOf(t, vary(r, testProfile(devices, wires)), job)
}

// vary slows every law by a factor of its own up to 3, so that no two ops cost
// the same by accident.
func vary(r *rand.Rand, p *costmodel.Profile) *costmodel.Profile {
	for i := range p.Laws {
		spread := p.Laws[i].Spread
		p.Laws[i] = p.Laws[i].Slowed(1 + 2*r.Float64())
		p.Laws[i].Spread = spread
	}
	for i := range p.Laws { // a slower law has no interval yet
		if l := p.Laws[i].Linear; l != nil {
			for _, c := range []*costmodel.Coef{&l.Launch, &l.PerFLOP, &l.PerRow, &l.PerByte, &l.PerTail} {
				*c = coef(c.Value)
			}
			continue
		}
		for k := range p.Laws[i].Curve.Pieces {
			piece := &p.Laws[i].Curve.Pieces[k]
			piece.Alpha, piece.Beta = coef(piece.Alpha.Value), coef(piece.Beta.Value)
		}
	}
	return p
}

// randomSplit gives some ranks nothing.
func randomSplit(r *rand.Rand, total units.Tokens, n int) []units.Tokens {
	split := make([]units.Tokens, n)
	weights, all := make([]float64, n), 0.0
	for i := range weights {
		if r.IntN(4) > 0 {
			weights[i] = r.Float64()
		}
		all += weights[i]
	}
	left := total
	for i := range split {
		if all > 0 {
			split[i] = min(left, units.Tokens(weights[i]/all*float64(total)))
			left -= split[i]
		}
	}
	split[r.IntN(n)] += left
	return split
}

// randomLayout is a random zigzag or random contiguous pieces of the test model,
// in a random ring of single ranks.
func randomLayout(r *rand.Rand, total units.Tokens, n int) costmodel.Layout {
	tokens := randomSplit(r, total, n)
	groups := costmodel.Singles(tokens, testModel().QHeads)
	r.Shuffle(len(groups), func(a, b int) { groups[a], groups[b] = groups[b], groups[a] })
	return lay(r, tokens, groups)
}

// lay is a zigzag or contiguous pieces.
func lay(r *rand.Rand, tokens []units.Tokens, groups []costmodel.Group) costmodel.Layout {
	if r.IntN(2) == 0 {
		return costmodel.Contiguous(tokens, groups)
	}
	return costmodel.ZigZag(tokens, groups)
}

// randomGrouped is a layout with random all-to-all groups, tokens and heads, in
// which some ranks may have tokens and no heads or the other way round.
func randomGrouped(r *rand.Rand, p *Problem) costmodel.Layout {
	n, heads := len(p.ranks), p.Job.Model.QHeads
	tokens := randomSplit(r, p.Job.SeqLen, n)
	var groups []costmodel.Group
	for ranks := r.Perm(n); len(ranks) > 0; {
		k := 1 + r.IntN(len(ranks))
		if g := randomGroup(r, ranks[:k], tokens, heads); g != nil {
			groups = append(groups, g)
		}
		ranks = ranks[k:]
	}
	return lay(r, tokens, groups)
}

// randomGroup deals the heads to ranks, and leaves out those that get nothing.
// It is nil where no rank has tokens.
func randomGroup(r *rand.Rand, ranks []int, tokens []units.Tokens, heads int) costmodel.Group {
	dealt, some := make([]int, len(ranks)), false
	for range heads {
		dealt[r.IntN(len(ranks))]++
	}
	var g costmodel.Group
	for i, rank := range ranks {
		some = some || tokens[rank] > 0
		if tokens[rank] > 0 || dealt[i] > 0 {
			g = append(g, costmodel.HeadShare{Rank: rank, QHeads: dealt[i]})
		}
	}
	if !some {
		return nil
	}
	return g
}

func sum(n []units.Tokens) units.Tokens {
	var total units.Tokens
	for _, x := range n {
		total += x
	}
	return total
}
