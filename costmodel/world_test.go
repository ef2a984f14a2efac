package costmodel

import (
	"math"
	"sort"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// speeds describe a made-up device type.
type speeds struct {
	attention, gemm float64 // FLOP/s; 0 is free
	memory          float64 // B/s; 0 is free
}

// wire describes a made-up link class.
type wire struct {
	alpha float64 // seconds
	rate  float64 // B/s; 0 is free
}

// free stands for a cost of nothing, which a valid law may not have: so small
// that even the 10^15 FLOPs of a test vanish beside a nanosecond.
const free = 1e-30

func per(rate float64) float64 {
	if rate == 0 {
		return free
	}
	return 1 / rate
}

// wide is a measured range nothing is outside of.
func wide(k op.Kind) []AxisRange {
	var out []AxisRange
	for _, axis := range op.CoordNames(k) {
		out = append(out, AxisRange{axis, 1, 1e18})
	}
	return out
}

var tenPercent = Spread{Lo: 0.9, Hi: 1.1}

func coef(v float64) Coef { return Coef{Value: v, Lo: v, Hi: v} }

// madeUp builds a valid profile with every law of the given devices, in f32
// and with head_dim 64, and of every collective over the given links.
func madeUp(t testing.TB, devices map[string]speeds, links map[string]wire) *Profile {
	t.Helper()
	p := &Profile{}
	for _, name := range sortedKeys(devices) {
		d := devices[name]
		p.Devices = append(p.Devices, op.DeviceType{Name: name, Fingerprint: "f", Parallel: 1, Memory: 1 << 40})
		linear := func(k op.Kind, v op.Variant, rate float64) {
			p.Laws = append(p.Laws, Law{
				Op: k, Variant: v, Device: name, Linear: &Linear{Parallel: 1, PerFLOP: coef(per(rate))}, Range: wide(k), Spread: tenPercent,
			})
		}
		for _, mask := range []op.Mask{op.Full, op.Diag} {
			for _, k := range []op.Kind{op.KindAttnFwd, op.KindAttnBwd} {
				linear(k, op.Variant{Mask: mask, HeadDim: 64, DType: op.F32}, d.attention)
			}
		}
		for _, pass := range []op.Pass{op.Forward, op.DGrad, op.WGrad} {
			linear(op.KindGEMM, op.Variant{Pass: pass, DType: op.F32}, d.gemm)
		}
		for _, k := range []op.Kind{op.KindNorm, op.KindRope, op.KindSwiGLU, op.KindCEChunk, op.KindAdamW, op.KindLSEMerge} {
			p.Laws = append(p.Laws, Law{
				Op: k, Variant: op.Variant{DType: op.F32}, Device: name, Curve: line(0, d.memory), Range: wide(k), Spread: tenPercent,
			})
		}
	}
	for _, name := range sortedKeys(links) {
		g := op.NewGroupType([]op.Member{{Device: "any", Count: 4}}, 1, name)
		p.Groups = append(p.Groups, g)
		for _, k := range []op.Kind{op.KindSendRecv, op.KindAllToAll, op.KindAllGather, op.KindReduceScatter, op.KindAllReduce} {
			p.Laws = append(p.Laws, Law{Op: k, Group: g.Name, Curve: line(links[name].alpha, links[name].rate), Range: wide(k), Spread: tenPercent})
		}
	}
	if err := p.Validate(); err != nil {
		t.Fatal(err)
	}
	return p
}

func line(alpha, rate float64) *Curve {
	return &Curve{Form: AlphaBeta, Pieces: []Piece{{Alpha: coef(alpha), Beta: coef(per(rate))}}}
}

func sortedKeys[V any](m map[string]V) []string {
	var keys []string
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}

func cluster(t testing.TB, shorthand string, p *Profile, link, network string) Cluster {
	t.Helper()
	c, err := ParseCluster(shorthand)
	if err != nil {
		t.Fatal(err)
	}
	if c, err = c.Resolve(p, link, network); err != nil {
		t.Fatal(err)
	}
	return c
}

// smallModel has 6 layers of 4 query and 2 key heads of 64.
func smallModel() Model {
	return Model{Name: "test", Layers: 6, Hidden: 256, FFN: 688, QHeads: 4, KVHeads: 2, HeadDim: 64, Vocab: 1000, GatedMLP: true}
}

func testJob(c Cluster, tokens []units.Tokens) Job {
	return Job{
		Model: smallModel(), Cluster: c, SeqLen: sumTokens(tokens), DType: op.F32,
		Recompute: RecomputeNone, RingBuffers: 2, LossChunk: 300,
	}
}

func mustSimulate(t testing.TB, p *Profile, j Job, l Layout) *Step {
	t.Helper()
	s, err := Simulate(NewPredictor(p), j, l, SimOptions{Timeline: true})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// ringOf is ring attention of the small model under the nested zigzag.
func ringOf(tokens []units.Tokens) Layout { return ZigZag(tokens, Singles(tokens, 4)) }

// atWork lists the ranks that have a place in a layout, in ring order.
func atWork(l Layout) []int {
	var ranks []int
	for _, g := range l.Groups {
		for _, m := range g {
			ranks = append(ranks, m.Rank)
		}
	}
	return ranks
}

func near(got, want units.Seconds, tolerance float64) bool {
	return math.Abs(float64(got-want)) <= tolerance*math.Abs(float64(want))
}

// usual is a pair of device types with ordinary rates over an ordinary link.
func usual(t testing.TB) *Profile {
	return madeUp(t, map[string]speeds{"fast": {3e12, 4e12, 2e12}, "slow": {1e12, 1.5e12, 1e12}},
		map[string]wire{"bus": {2e-6, 5e10}, "net": {1e-5, 1e10}})
}
