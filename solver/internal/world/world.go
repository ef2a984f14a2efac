package world

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/internal/strategy"
)

// Device is a made-up device type of a test.
type Device struct {
	Name   string
	FLOPS  float64 // FLOP/s
	Bytes  float64 // memory B/s
	Launch float64 // seconds
	Row    float64 // seconds an element of per-row work
	Tail   float64 // seconds a FLOP of the longest task
	Memory units.Bytes
}

// Wire is a made-up link class.
type Wire struct {
	Name        string
	Alpha, Beta float64
	Nodes       int    // that its group of twice as many ranks is on; 0 is 1, of two ranks
	Assumed     string // where it is
}

// Link is a link class of so many seconds a message and a byte.
func Link(name string, alpha, beta float64) Wire { return Wire{Name: name, Alpha: alpha, Beta: beta} }

// Fast is a device type.
func Fast() Device {
	return Device{Name: "fast", FLOPS: 4e12, Bytes: 4e11, Memory: 64 * units.GiB}
}

// Slow is a quarter as fast as Fast.
func Slow() Device {
	return Device{Name: "slow", FLOPS: 1e12, Bytes: 1e11, Memory: 64 * units.GiB}
}

// Near is the link class inside nodes.
func Near() Wire { return Link("near", 1e-6, 1e-11) }

// Far is the link class between nodes, ten times slower.
func Far() Wire { return Link("far", 1e-5, 1e-10) }

// Coef is a coefficient without an interval.
func Coef(v float64) costmodel.Coef { return costmodel.Coef{Value: v, Lo: v, Hi: v} }

// AnyRange is a law's range of validity that holds every shape.
func AnyRange(k op.Kind) []costmodel.AxisRange {
	var r []costmodel.AxisRange
	for _, a := range op.CoordNames(k) {
		r = append(r, costmodel.AxisRange{Axis: a, Min: 1, Max: 1e15})
	}
	return r
}

// Profile has every law of the devices and links, with 2 % spread.
func Profile(devices []Device, wires []Wire) *costmodel.Profile {
	p := &costmodel.Profile{Simulated: true}
	add := func(l costmodel.Law) {
		l.Range, l.Spread = AnyRange(l.Op), costmodel.Spread{Lo: 0.98, Hi: 1.02}
		p.Laws = append(p.Laws, l)
	}
	for _, d := range devices {
		p.Devices = append(p.Devices, op.DeviceType{Name: d.Name, Model: "made up", Fingerprint: "00", Parallel: 4, Memory: d.Memory})
		for _, c := range ComputeVariants() {
			add(costmodel.Law{Op: c.Kind(), Variant: c.Variant(), Device: d.Name, Linear: &costmodel.Linear{
				Parallel: 4, Launch: Coef(d.Launch), PerFLOP: Coef(4 / d.FLOPS), PerRow: Coef(d.Row), PerByte: Coef(1 / d.Bytes), PerTail: Coef(d.Tail),
			}})
		}
		for _, v := range bandwidthKinds() {
			add(costmodel.Law{Op: v.kind, Variant: op.Variant{DType: v.dtype}, Device: d.Name, Linear: &costmodel.Linear{
				Parallel: 4, Launch: Coef(d.Launch), PerRow: Coef(d.Row), PerByte: Coef(1 / d.Bytes),
			}})
		}
	}
	for _, w := range wires {
		nodes := max(1, w.Nodes)
		g := op.NewGroupType([]op.Member{{Device: devices[0].Name, Count: 2 * nodes}}, nodes, w.Name)
		p.Groups = append(p.Groups, g)
		for _, k := range []op.Kind{op.KindSendRecv, op.KindReduceScatter, op.KindAllGather, op.KindAllReduce, op.KindAllToAll} {
			add(costmodel.Law{Op: k, Group: g.Name, Curve: Line(w.Alpha, w.Beta), Assumed: w.Assumed})
		}
	}
	return p
}

// ComputeVariants are the ops of compute that a plan needs, one shape of each variant.
func ComputeVariants() []op.Shape {
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

// Line is a law of so many seconds a message and a byte.
func Line(alpha, beta float64) *costmodel.Curve {
	return &costmodel.Curve{Form: costmodel.AlphaBeta, Pieces: []costmodel.Piece{{Alpha: Coef(alpha), Beta: Coef(beta)}}}
}

// Model is a small model of grouped attention heads.
func Model() costmodel.Model {
	return costmodel.Model{Name: "llama", Layers: 4, Hidden: 512, FFN: 1408, QHeads: 8, KVHeads: 2, HeadDim: 64, Vocab: 4096, GatedMLP: true}
}

// Job is a small model on a cluster in shorthand; nodes talk over "near"
// inside and over "far" between.
func Job(t testing.TB, cluster string, seq units.Tokens) costmodel.Job {
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
		Model: Model(), Cluster: c, SeqLen: seq, DType: op.BF16, Recompute: costmodel.RecomputeNone,
		RingBuffers: 2, LossChunk: 1024,
	}
}

// Problem is Job on devices of these types, Fast and Slow if there are none.
func Problem(t testing.TB, cluster string, seq units.Tokens, devices ...Device) *strategy.Problem {
	t.Helper()
	if len(devices) == 0 {
		devices = []Device{Fast(), Slow()}
	}
	return ProblemOf(t, Profile(devices, []Wire{Near(), Far()}), Job(t, cluster, seq))
}

// ProblemOf is a job on the devices of a profile.
func ProblemOf(t testing.TB, profile *costmodel.Profile, job costmodel.Job) *strategy.Problem {
	t.Helper()
	if err := profile.Validate(); err != nil {
		t.Fatal(err)
	}
	p, err := strategy.New(profile, job)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Random draws devices, links, cluster and job.
func Random(t testing.TB, r *rand.Rand) *strategy.Problem {
	t.Helper()
	devices := []Device{Fast(), Slow(), Slow()}
	devices[2].Name = "third"
	for i := range devices {
		d := &devices[i]
		d.FLOPS *= 0.3 + 3*r.Float64()
		d.Bytes *= 0.3 + 3*r.Float64()
		d.Launch = 1e-5 * r.Float64() * float64(r.IntN(2))
		d.Row = 1e-11 * r.Float64() * float64(r.IntN(2))
		d.Tail = 1e-13 * r.Float64() * float64(r.IntN(2))
	}
	wires := []Wire{Link("near", 1e-5*r.Float64(), 3e-10*r.Float64()), Link("far", 1e-4*r.Float64(), 3e-9*r.Float64())}
	heavy := math.Pow(10, float64(3*r.IntN(2))) // sometimes all that counts
	for i := range wires {
		wires[i].Beta = heavy * (wires[i].Beta + 1e-13)
	}
	// How the network was measured is drawn apart, so that all else stays as it is.
	if bits := math.Float64bits(wires[1].Beta); bits%3 > 0 {
		wires[1].Nodes, wires[1].Assumed = 2, []string{"", "a guess"}[bits%3-1]
	}
	var terms []string
	for range 1 + r.IntN(2) {
		terms = append(terms, fmt.Sprintf("1x(%d fast + %d %s)", 1+r.IntN(2), 1+r.IntN(2), []string{"slow", "third"}[r.IntN(2)]))
	}
	job := Job(t, strings.Join(terms, " + "), units.Tokens(64+r.IntN(6000)))
	job.Recompute = []costmodel.Recompute{costmodel.RecomputeNone, costmodel.RecomputeFull}[r.IntN(2)]
	job.Zero = []costmodel.ZeRO{"", costmodel.Zero0, costmodel.Zero1, costmodel.Zero2, costmodel.Zero3}[r.IntN(5)]
	return ProblemOf(t, Vary(r, Profile(devices, wires)), job)
}

// Vary slows every law by a factor of its own up to 3, so that no two ops cost
// the same by accident.
func Vary(r *rand.Rand, p *costmodel.Profile) *costmodel.Profile {
	for i := range p.Laws {
		spread := p.Laws[i].Spread
		p.Laws[i] = p.Laws[i].Slowed(1 + 2*r.Float64())
		p.Laws[i].Spread = spread
	}
	for i := range p.Laws { // a slower law has no interval yet
		if l := p.Laws[i].Linear; l != nil {
			for _, c := range []*costmodel.Coef{&l.Launch, &l.PerFLOP, &l.PerRow, &l.PerByte, &l.PerTail} {
				*c = Coef(c.Value)
			}
			continue
		}
		for k := range p.Laws[i].Curve.Pieces {
			piece := &p.Laws[i].Curve.Pieces[k]
			piece.Alpha, piece.Beta = Coef(piece.Alpha.Value), Coef(piece.Beta.Value)
		}
	}
	return p
}

// RandomSplit gives some ranks nothing.
func RandomSplit(r *rand.Rand, total units.Tokens, n int) []units.Tokens {
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

// RandomLayout is a random zigzag or random contiguous pieces of the test model,
// in a random ring of single ranks.
func RandomLayout(r *rand.Rand, total units.Tokens, n int) costmodel.Layout {
	tokens := RandomSplit(r, total, n)
	groups := costmodel.Singles(tokens, Model().QHeads)
	r.Shuffle(len(groups), func(a, b int) { groups[a], groups[b] = groups[b], groups[a] })
	return Lay(r, tokens, groups)
}

// Lay is a zigzag or contiguous pieces.
func Lay(r *rand.Rand, tokens []units.Tokens, groups []costmodel.Group) costmodel.Layout {
	if r.IntN(2) == 0 {
		return costmodel.Contiguous(tokens, groups)
	}
	return costmodel.ZigZag(tokens, groups)
}

// RandomGrouped is a layout with random all-to-all groups, tokens and heads, in
// which some ranks may have tokens and no heads or the other way round.
func RandomGrouped(r *rand.Rand, p *strategy.Problem) costmodel.Layout {
	n, heads := len(p.Ranks), p.Job.Model.QHeads
	tokens := RandomSplit(r, p.Job.SeqLen, n)
	var groups []costmodel.Group
	for ranks := r.Perm(n); len(ranks) > 0; {
		k := 1 + r.IntN(len(ranks))
		if g := RandomGroup(r, ranks[:k], tokens, heads); g != nil {
			groups = append(groups, g)
		}
		ranks = ranks[k:]
	}
	return Lay(r, tokens, groups)
}

// RandomGroup deals the heads to ranks, and leaves out those that get nothing.
// It is nil where no rank has tokens.
func RandomGroup(r *rand.Rand, ranks []int, tokens []units.Tokens, heads int) costmodel.Group {
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

// Sum is that of all.
func Sum(n []units.Tokens) units.Tokens {
	var total units.Tokens
	for _, x := range n {
		total += x
	}
	return total
}
