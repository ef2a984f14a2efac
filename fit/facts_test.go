package fit

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/keyed"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/profile"
)

// lines is a recording of one device "d" and one group, with the given lines.
func lines(t *testing.T, more ...string) *Data {
	t.Helper()
	header := `{"schema":"evenkeel.recording/v1","tool":"t","created":"2026-01-01T00:00:00Z","backend":"b","simulated":false,"fingerprint":"f","seed":1,` +
		`"machine":{},"devices":[{"name":"d","model":"m","stack":"s","fingerprint":"f","parallel":4,"memory_bytes":80000000000}],` +
		`"groups":[{"name":"2 d over bus","members":[{"device":"d","count":2}],"nodes":1,"link":"bus"}],` +
		`"places":[{"on":"d","name":"g0","ranks":["g0"]},{"on":"d","name":"g1","ranks":["g1"]},{"on":"2 d over bus","name":"g0+g1","ranks":["g0","g1"]}],` +
		`"protocol":{"min_samples":1,"min_samples_long":1,"long_s":1,"max_samples":1,"noise":0.01,"min_sample_s":0,"point_time_s":1,"wait_limit":0.1,"max_discards":1}}`
	d := NewData()
	if err := d.Add("x.rec.jsonl", strings.NewReader(header+"\n"+strings.Join(more, "\n")+"\n")); err != nil {
		t.Fatal(err)
	}
	return d
}

// point is a line of a kind about a shape on device d, with its result in JSON.
func point(kind string, shape op.Shape, result string) string {
	data, err := op.Encode(shape)
	if err != nil {
		panic(err)
	}
	return keyed.Line("f", fmt.Sprintf(`{"t":%q,"key":"k","on":"d","op":%q,"shape":%s,%s,"at":"2026-01-01T00:00:00Z","elapsed_s":1}`, kind, shape.Kind(), data, result))
}

func layerOf(tokens units.Tokens) op.Layer {
	return op.Layer{Tokens: tokens, Hidden: 512, FFN: 1024, QHeads: 8, KVHeads: 2, HeadDim: 64, DType: op.BF16}
}

// What is no time goes into the profile as it was measured: the least capacity,
// the largest reserve, the slope between two lengths, an overlap's range.
func TestMemoryAndOverlapsReachTheProfile(t *testing.T) {
	size := func(s op.Shape, n int) string { return point("point", s, fmt.Sprintf(`"size_bytes":%d`, n)) }
	ratio := func(s op.Shape, r float64) string { return point("point", s, fmt.Sprintf(`"ratio":%v`, r)) }
	pair := func(slowed op.Slowed, tokens units.Tokens) op.Shape {
		return op.OverlapPair{Compute: op.KindGEMM, Comm: op.KindH2D, Slowed: slowed, Tokens: tokens, Bytes: 1 << 20}
	}
	other := layerOf(64)
	other.FFN = 2048
	d := lines(t,
		size(op.MemCapacity{}, 79_000_000_000), point("again", op.MemCapacity{}, `"size_bytes":78000000000`),
		size(op.MemReserve{}, 500_000_000),
		size(op.MemLayer{Layer: layerOf(1024)}, 1000+8744*1024), size(op.MemLayer{Layer: layerOf(3072)}, 1000+8744*3072),
		size(op.MemLayer{Layer: other}, 5),
		ratio(pair(op.SlowedCompute, 512), 1.04), ratio(pair(op.SlowedCompute, 1024), 1.1), ratio(pair(op.SlowedCompute, 2048), 1.06),
		ratio(pair(op.SlowedComm, 512), 1.5),
	)
	p := &costmodel.Profile{Devices: d.Devices, Groups: d.Groups}
	d.facts(p)
	if err := p.Validate(); err != nil {
		t.Fatal(err)
	}
	want := []costmodel.MemoryFacts{{
		Device: "d", Capacity: 78_000_000_000, Reserve: 500_000_000,
		Layers: []costmodel.LayerMemory{{
			Hidden: 512, FFN: 1024, QHeads: 8, KVHeads: 2, HeadDim: 64, DType: op.BF16,
			PerToken: 8744, Base: 1000, MinTokens: 1024, MaxTokens: 3072, Points: 2,
		}},
	}}
	if diff := cmp.Diff(want, p.Memory, cmp.Comparer(func(a, b float64) bool { return math.Abs(a-b) < 1e-6 })); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]costmodel.OverlapFact{
		{On: "d", Compute: op.KindGEMM, Comm: op.KindH2D, Slowed: op.SlowedCompute, Ratio: 1.06, Lo: 1.04, Hi: 1.1, Points: 3},
		{On: "d", Compute: op.KindGEMM, Comm: op.KindH2D, Slowed: op.SlowedComm, Ratio: 1.5, Lo: 1.5, Hi: 1.5, Points: 1},
	}, p.Overlaps); diff != "" {
		t.Error(diff)
	}
	if len(p.Warnings) != 1 || !strings.Contains(p.Warnings[0], "measured at 64 tokens only, and a slope takes two lengths") {
		t.Errorf("%q", p.Warnings)
	}
	if len(d.Points) != 0 || len(d.Strata()) != 0 {
		t.Errorf("%d points and %d laws of ops that measure no time", len(d.Points), len(d.Strata()))
	}
}

func TestALayerWhoseMemoryDoesNotGrowIsRefused(t *testing.T) {
	d := NewData()
	d.Devices = []op.DeviceType{{Name: "d"}}
	for _, n := range []units.Tokens{1024, 2048} {
		d.Gauged = append(d.Gauged, Gauged{On: "d", Shape: op.MemLayer{Layer: layerOf(n)}, Size: 1 << 20})
	}
	if m, warnings := d.memory("d"); len(m.Layers) != 0 || len(warnings) != 1 || !strings.Contains(warnings[0], "does not grow with the tokens") {
		t.Errorf("%+v, %q", m, warnings)
	}
}

// A peer's line is compared, never fitted.
func TestPeersAreReadAndNotFitted(t *testing.T) {
	var all []string
	for i := range 4 {
		s := op.AdamW{Params: int64(1000 << i)}
		all = append(all, point("point", s, `"times_s":[1],"inner":1`), point("peer", s, `"place":"g1","times_s":[1.3],"inner":1`))
	}
	d := lines(t, all...)
	if len(d.Points) != 4 {
		t.Errorf("%d points, want 4", len(d.Points))
	}
	want := []costmodel.Outlier{{On: "d", Place: "g1", Scale: 1.3, Points: 4}}
	if diff := cmp.Diff(want, Outliers(d), cmp.Comparer(func(a, b float64) bool { return math.Abs(a-b) < 1e-9 })); diff != "" {
		t.Error(diff)
	}
}

// made measures a shape of a device with known truth and noise.
type made struct {
	d *Data
	r *rand.Rand
}

func (m made) add(s op.Shape, seconds float64) {
	m.d.Observe(&profile.Point{Spot: profile.Spot{On: "d", Op: s.Kind(), Shape: s}, Times: []float64{seconds * math.Exp(0.01*m.r.NormFloat64())}})
}

func (m made) size(lo, hi float64) float64 { return math.Round(lo * math.Pow(hi/lo, m.r.Float64())) }

func newMade() made {
	m := made{NewData(), rand.New(rand.NewPCG(21, 0))}
	m.d.Devices = []op.DeviceType{{Name: "d", Fingerprint: "f", Parallel: 4}}
	return m
}

// Copies get a latency and a rate, pinned and pageable ones apart.
func TestTransfersGetALatencyAndARate(t *testing.T) {
	sequential(t)
	m := newMade()
	for range 25 {
		b := m.size(1e3, 1e9)
		m.add(op.H2D{Copy: op.Copy{Bytes: units.Bytes(b), Pinned: true}}, 5e-6+b/50e9)
		m.add(op.H2D{Copy: op.Copy{Bytes: units.Bytes(b)}}, 9e-6+b/10e9)
		m.add(op.D2H{Copy: op.Copy{Bytes: units.Bytes(b), Pinned: true}}, 7e-6+b/40e9)
	}
	p, err := Fit(m.d, Defaults())
	if err != nil {
		t.Fatal(err)
	}
	truth := map[string][2]float64{"h2d ": {5e-6, 50e9}, "h2d pageable": {9e-6, 10e9}, "d2h ": {7e-6, 40e9}}
	for _, l := range p.Laws {
		want, ok := truth[fmt.Sprintf("%s %s", l.Op, l.Variant)]
		if !ok || l.Form() != "alpha_beta" || l.Device != "d" || len(l.Rivals) != 3 {
			t.Errorf("%s %s: %s on %q with %d rivals", l.Op, l.Variant, l.Form(), l.Device, len(l.Rivals))
			continue
		}
		a, b := l.Curve.Pieces[0].Alpha.Value, 1/l.Curve.Pieces[0].Beta.Value
		if math.Abs(a/want[0]-1) > 0.03 || math.Abs(b/want[1]-1) > 0.03 {
			t.Errorf("%s %s: %.3g s and %.3g B/s, the truth is %.3g and %.3g", l.Op, l.Variant, a, b, want[0], want[1])
		}
	}
	if len(p.Laws) != len(truth) || FamilyOf(op.KindH2D) != FamilyBandwidth {
		t.Errorf("%d laws", len(p.Laws))
	}
}

// Each number of pairs has a curve of its own, and so has every kernel.
func TestVariantsOfNewOpsAreFittedApart(t *testing.T) {
	m := newMade()
	m.d.Groups = []op.GroupType{op.NewGroupType([]op.Member{{Device: "d", Count: 4}}, 1, "bus")}
	group := m.d.Groups[0].Name
	v := op.Varlen{QHeads: 4, KVHeads: 2, HeadDim: 64, DType: op.BF16}
	for i := range 20 {
		b := m.size(1e3, 1e8)
		for pairs := 1; pairs <= 2; pairs++ {
			s := op.Pairs{Group: 4, Pairs: pairs, Bytes: units.Bytes(b)}
			m.d.Observe(&profile.Point{Spot: profile.Spot{On: group, Op: s.Kind(), Shape: s}, Times: []float64{1e-5 + float64(pairs)*b/1e10}})
		}
		v.SeqLens = nil
		for range 1 + i%5 {
			v.SeqLens = append(v.SeqLens, units.Tokens(m.size(64, 4096)))
		}
		for kernel, rate := range map[string]float64{"fa2": 3e14, "fa3": 6e14} {
			v.Kernel = kernel
			s := op.AttnVarlenFwd{Varlen: v}
			m.add(s, 1e-5+s.Features(4).FLOPs*4/rate)
		}
	}
	p, err := Fit(m.d, Defaults())
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Validate(); err != nil {
		t.Fatal(err)
	}
	var titles []string
	for _, l := range p.Laws {
		titles = append(titles, strings.TrimSpace(fmt.Sprintf("%s %s", l.Op, l.Variant)))
		if l.Held.Median > 0.03 {
			t.Errorf("%s: median error %v", titles[len(titles)-1], l.Held.Median)
		}
	}
	slices.Sort(titles)
	want := []string{"attn_varlen_fwd d64 bf16 fa2", "attn_varlen_fwd d64 bf16 fa3", "send_recv_pairs 1 pairs", "send_recv_pairs 2 pairs"}
	if !slices.Equal(titles, want) {
		t.Errorf("laws %q", titles)
	}
	q := costmodel.NewCallPredictor(p)
	v.Kernel, v.SeqLens = "", []units.Tokens{2000, 2000}
	e, err := q.Time("d", op.AttnVarlenFwd{Varlen: v})
	v.Kernel = "fa3"
	fa3, _ := q.Time("d", op.AttnVarlenFwd{Varlen: v})
	if err != nil || e != fa3 {
		t.Errorf("without kernel %+v, %v; fa3 %+v", e, err, fa3)
	}
}

// layers calibrates every part of a layer and the layer itself, which takes
// `times` what its parts do together.
func layers(times float64) *Data {
	m := newMade()
	rate := map[op.Class]float64{op.Compute: 1e13, op.Bandwidth: 1e12}
	truth := func(s op.Shape) float64 {
		spec, _ := op.Lookup(s.Kind())
		if spec.Class == op.Compute {
			return 2e-6 + s.(op.Featured).Features(4).FLOPs*4/rate[op.Compute]
		}
		return 2e-6 + float64(op.Volume(s))/rate[op.Bandwidth]
	}
	for range 25 {
		l := layerOf(units.Tokens(m.size(128, 8192)))
		for _, c := range []op.Compound{op.LayerFwd{Layer: l}, op.LayerBwd{Layer: l}} {
			sum := 0.0
			seen := map[string]bool{}
			for _, s := range c.Parts() {
				sum += truth(s)
				if key := profile.NewSpot("d", s).Key(""); !seen[key] {
					seen[key] = true
					m.add(s, truth(s))
				}
			}
			m.add(c, times*sum)
		}
	}
	return m.d
}

// Whole layers are checked against the sum of their parts' laws, pass where
// that is the truth and fail where it is not; they are never fitted.
func TestWholeLayersCheckTheSumOfTheirParts(t *testing.T) {
	sequential(t)
	for times, want := range map[float64]Verdict{1: Pass, 1.2: Fail} {
		d := layers(times)
		p, err := Fit(d, Defaults())
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range p.Laws {
			if FamilyOf(l.Op) == FamilyLayer {
				t.Errorf("%s has a law", l.Op)
			}
		}
		r, err := Check(p, d, d.Held(p.Holdout.Seed, p.Holdout.Share), DefaultLimits())
		if err != nil {
			t.Fatal(err)
		}
		last := r.Rows[len(r.Rows)-1]
		if last.Family != FamilyLayer || last.Verdict != want || last.Points < 40 || math.Abs(last.Bias-math.Log(times)) > 0.03 {
			t.Errorf("layers of %v times their parts: %+v", times, last)
		}
		p.Laws = slices.DeleteFunc(p.Laws, func(l costmodel.Law) bool { return l.Op == op.KindRope })
		r, err = Check(p, d, d.Held(p.Holdout.Seed, p.Holdout.Share), DefaultLimits())
		if err != nil || !slices.Contains(r.Missing, "layer_bwd on d, whose parts need rope bf16") {
			t.Errorf("%v: missing %q", err, r.Missing)
		}
	}
}

func TestEveryTimedOpHasAFamily(t *testing.T) {
	limits := DefaultLimits()
	for _, s := range op.Table() {
		f := FamilyOf(s.Kind)
		if (f != "") != (s.Measures == op.Time) {
			t.Errorf("%s: family %q", s.Kind, f)
		}
		if f != "" && (limits.OfFamily(f).Median == 0 || !slices.Contains(Families(), f)) {
			t.Errorf("%s: family %q has no limit or no place", s.Kind, f)
		}
	}
	if FamilyOf("nothing") != "" || len(limits.Families) != len(Families()) {
		t.Error("families and limits do not match")
	}
}
