package fit

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// sheet is the datasheet of a made-up GPU.
func sheet() op.Sheet {
	return op.Sheet{BF16PerS: 1e15, MemoryPerS: 3e12, L2: 5e7, LinkPerS: 4e11, NetPerS: 5e10, HostPerS: 6e10}
}

// measuredOnly has what a serving engine's tables give: one forward kernel under
// a causal mask, a forward product, and collectives without send_recv.
func measuredOnly(models ...string) *costmodel.Profile {
	p := &costmodel.Profile{}
	for _, m := range models {
		p.Devices = append(p.Devices,
			op.DeviceType{Name: m + "/engine", Fingerprint: "00", Parallel: 100, Memory: 80 * units.GiB, Sheet: sheet()},
			op.DeviceType{Name: m + "/net", Fingerprint: "00", Parallel: 100, Memory: 80 * units.GiB, Sheet: sheet()})
		linear := &costmodel.Linear{Parallel: 100, Launch: costmodel.Coef{Value: 5e-6}, PerFLOP: costmodel.Coef{Value: 1e-13, Hi: 1e-13}}
		linear.Launch.Hi = linear.Launch.Value
		p.Laws = append(p.Laws,
			costmodel.Law{Op: op.KindAttnFwd, Variant: op.Variant{Mask: op.Diag, HeadDim: 128, DType: op.BF16, Kernel: "fast"}, Device: m + "/engine", Linear: linear, Range: anywhere(op.KindAttnFwd), Spread: costmodel.Spread{Lo: 0.9, Hi: 1.1}},
			costmodel.Law{Op: op.KindGEMM, Variant: op.Variant{Pass: op.Forward, DType: op.BF16}, Device: m + "/engine", Linear: linear, Range: anywhere(op.KindGEMM), Spread: costmodel.Spread{Lo: 0.9, Hi: 1.1}})
		for _, n := range []int{2, 8} {
			g := op.NewGroupType([]op.Member{{Device: m + "/net", Count: n}}, 1, "nvlink")
			p.Groups = append(p.Groups, g)
			for _, k := range []op.Kind{op.KindAllReduce, op.KindAllGather, op.KindReduceScatter} {
				p.Laws = append(p.Laws, costmodel.Law{
					Op: k, Variant: op.Variant{DType: op.F16}, Group: g.Name, Curve: sheetLine(1e-5*float64(n), 3e11),
					Range: []costmodel.AxisRange{{Axis: "bytes", Min: 512, Max: 1 << 29}}, Spread: costmodel.Spread{Lo: 0.9, Hi: 1.1},
				})
			}
		}
	}
	return p
}

func laws(p *costmodel.Profile, k op.Kind) []costmodel.Law {
	return slices.DeleteFunc(slices.Clone(p.Laws), func(l costmodel.Law) bool { return l.Op != k })
}

// After assuming, every law a plan asks for is there, says why where it was
// not measured, and what was measured is as it was.
func TestAssumeFillsWhatAPlanNeeds(t *testing.T) {
	p := measuredOnly("gpu")
	before := slices.Clone(p.Laws)
	Assume(p)
	if err := p.Validate(); err != nil {
		t.Fatal(err)
	}
	for i, l := range p.Laws {
		switch {
		case i < len(before) && l.Assumed != "":
			t.Errorf("%s %s was measured and is called assumed", l.Op, l.Variant)
		case i >= len(before) && (l.Assumed == "" || l.Spread.Hi < 1.3):
			t.Errorf("%s %s: assumed %q with an interval up to %v", l.Op, l.Variant, l.Assumed, l.Spread.Hi)
		}
	}
	want := map[op.Kind]int{ // laws in all
		op.KindAttnFwd: 4, op.KindAttnBwd: 4, op.KindGEMM: 3, op.KindNorm: 1, op.KindRope: 1, op.KindSwiGLU: 1, op.KindGELU: 1,
		op.KindCEChunk: 1, op.KindLSEMerge: 1, op.KindAdamW: 1, op.KindH2D: 1, op.KindD2H: 1,
		op.KindSendRecv: 2, op.KindAllToAll: 2, op.KindAllToAllV: 2, op.KindAllReduce: 2,
	}
	for k, n := range want {
		if got := len(laws(p, k)); got != n {
			t.Errorf("%d laws of %s, want %d", got, k, n)
		}
	}
	again := len(p.Laws)
	if Assume(p); len(p.Laws) != again {
		t.Errorf("a second time added %d laws", len(p.Laws)-again)
	}
}

// A law of the op keeps any from being assumed, whatever its kernel's name.
func TestAssumeLeavesMeasuredOpsAlone(t *testing.T) {
	p := measuredOnly("gpu")
	full := p.Laws[0]
	full.Variant.Mask, full.Variant.Kernel = op.Full, "other"
	p.Laws = append(p.Laws, full)
	g := op.NewGroupType([]op.Member{{Device: "gpu/other-net", Count: 2}}, 1, "nvlink")
	p.Devices = append(p.Devices, op.DeviceType{Name: "gpu/other-net", Fingerprint: "00", Parallel: 1})
	p.Groups = append(p.Groups, g)
	p.Laws = append(p.Laws, costmodel.Law{Op: op.KindSendRecv, Group: g.Name, Curve: sheetLine(1e-5, 1e11), Range: anywhere(op.KindSendRecv), Spread: costmodel.Spread{Lo: 0.9, Hi: 1.1}})
	Assume(p)
	for _, l := range append(laws(p, op.KindSendRecv), laws(p, op.KindAttnFwd)...) {
		if l.Assumed != "" && l.Variant.HeadDim != 64 { // of which no mask was measured
			t.Errorf("%s %s on %s is assumed: %s", l.Op, l.Variant, l.On(), l.Assumed)
		}
	}
}

// Where both widths of heads were measured under one mask, those of the other mask are
// in that proportion, not in that of other GPU types.
func TestAssumedWidthIsInTheDevicesOwnProportion(t *testing.T) {
	p := measuredOnly("gpu")
	narrow := p.Laws[0]
	linear := *narrow.Linear
	linear.PerFLOP.Value, linear.PerFLOP.Hi = 1.3e-13, 1.3e-13 // 0.65 times as long for half the arithmetic
	narrow.Linear, narrow.Variant.HeadDim = &linear, 64
	for i := range narrow.Range { // shared with the wide one
		narrow.Range[i].Max = 16384
	}
	full := narrow
	full.Variant.Mask = op.Full
	p.Laws = append(p.Laws, narrow, full)
	Assume(p)
	q := costmodel.NewCallPredictor(p)
	a := op.Attention{Mask: op.Full, QLen: 8192, KVLen: 8192, QHeads: 32, KVHeads: 32, DType: op.BF16}
	var times [2]costmodel.Estimate
	for i, width := range []int{64, 128} {
		a.HeadDim = width
		e, err := q.Time("gpu/engine", op.AttnFwd{Attention: a})
		if err != nil {
			t.Fatal(err)
		}
		times[i] = e
	}
	if ratio := float64(times[1].Mid / times[0].Mid); math.Abs(ratio*0.65-1) > 0.01 {
		t.Errorf("heads of 128 take %v times those of 64, want 1/0.65", ratio)
	}
	if wide := float64(times[1].Hi / times[1].Mid); math.Abs(wide-aProportion) > 1e-9 {
		t.Errorf("interval up to %v times, want %v", wide, aProportion)
	}
	for _, l := range laws(p, op.KindAttnFwd) {
		if l.Variant.Mask == op.Full && l.Variant.HeadDim == 128 && !strings.Contains(l.Assumed, "heads of 128 elements were not measured on full blocks") {
			t.Error(l.Assumed)
		}
	}
}

// A guess is never surer than the law it came from, which may be a transferred one; and
// what it has wrong at every size it has so at long blocks too.
func TestAGuessIsNoSurerThanItsOrigin(t *testing.T) {
	p := measuredOnly("gpu")
	p.Laws[0].From, p.Laws[0].Spread = "donor/engine", costmodel.Spread{Lo: 1 / 2.1, Hi: 2.1}
	Assume(p)
	bwd := laws(p, op.KindAttnBwd)
	if len(bwd) == 0 {
		t.Fatal("no backward is assumed")
	}
	for _, l := range bwd {
		if want := math.Hypot(math.Log(2.1), math.Log(aBackward)); math.Log(l.Spread.Hi) < want-1e-9 {
			t.Errorf("%s %s: interval up to %v, want %v at least", l.Op, l.Variant, l.Spread.Hi, math.Exp(want))
		}
	}
	p = measuredOnly("gpu")
	for i := range p.Laws[0].Range {
		p.Laws[0].Range[i].Max = 4096
	}
	Assume(p)
	q := costmodel.NewCallPredictor(p)
	half := func(n units.Tokens) float64 {
		e, err := q.Time("gpu/engine", op.AttnBwd{Attention: op.Attention{Mask: op.Diag, QLen: n, KVLen: n, QHeads: 8, KVHeads: 8, HeadDim: 128, DType: op.BF16}})
		if err != nil {
			t.Fatal(err)
		}
		return math.Log(float64(e.Hi / e.Mid))
	}
	if near, far := half(4096), half(4096<<5); math.Abs(near-math.Log(aBackward)) > 1e-9 || far <= near || far > 1.6*near {
		t.Errorf("half width %v inside the range, %v five doublings outside", near, far)
	}
}

// The published times of flash attention on one A100 (zhuzilin/ring-flash-attention,
// 8,192 tokens, head dimension 128): forward alone and with its backward. What is
// assumed of a backward must hold both within its interval.
func TestAssumedBackwardHoldsThePublishedRatios(t *testing.T) {
	p := measuredOnly("gpu")
	Assume(p)
	q := costmodel.NewCallPredictor(p)
	for _, row := range []struct {
		heads, kv     int
		forward, both float64 // calls a second
	}{{32, 8, 373.4, 94.7}, {5, 5, 1545.9, 470.6}} {
		a := op.Attention{Mask: op.Diag, QLen: 8192, KVLen: 8192, QHeads: row.heads, KVHeads: row.kv, HeadDim: 128, DType: op.BF16}
		fwd, err := q.Time("gpu/engine", op.AttnFwd{Attention: a})
		if err != nil {
			t.Fatal(err)
		}
		bwd, err := q.Time("gpu/engine", op.AttnBwd{Attention: a})
		if err != nil {
			t.Fatal(err)
		}
		ratio := float64(fwd.Mid) * (row.forward/row.both - 1)
		if ratio < float64(bwd.Lo) || ratio > float64(bwd.Hi) || bwd.Source != costmodel.Assumed {
			t.Errorf("%d heads: a backward of %v forwards, assumed %v to %v", row.heads, row.forward/row.both-1, bwd.Lo/fwd.Mid, bwd.Hi/fwd.Mid)
		}
	}
}

// A send_recv of as many bytes as an all_gather of two sends takes as long.
func TestAssumedSendRecvFollowsThePort(t *testing.T) {
	p := measuredOnly("gpu")
	Assume(p)
	q := costmodel.NewCallPredictor(p)
	members := []op.Member{{Device: "gpu/engine", Count: 2}}
	at := func(k op.Kind, bytes units.Bytes) float64 {
		l, factor, err := q.Over("nvlink", k, members)
		if err != nil || factor != 1 {
			t.Fatal(k, factor, err)
		}
		return float64(l.Predict(op.OfMessage(k, op.Message{Group: 2, Bytes: bytes})).Mid)
	}
	for _, b := range []units.Bytes{1 << 12, 1 << 24} {
		if send, gather := at(op.KindSendRecv, b), at(op.KindAllGather, 2*b); math.Abs(send/gather-1) > 1e-9 {
			t.Errorf("%v: send_recv %v s, all_gather of twice that %v s", b, send, gather)
		}
	}
}

// assumedLinks is a cluster whose links are assumed, with their laws in a profile that is
// still valid.
func assumedLinks(t *testing.T, p *costmodel.Profile, text string) costmodel.Cluster {
	t.Helper()
	c, err := costmodel.ParseCluster(text)
	if err != nil {
		t.Fatal(err)
	}
	if c, err = c.Named(p); err != nil {
		t.Fatal(err)
	}
	if c, err = AssumeLinks(p, &costmodel.Profile{}, c); err != nil {
		t.Fatal(err)
	}
	if err := p.Validate(); err != nil {
		t.Fatal(err)
	}
	return c
}

// eachSheet changes the datasheets of all devices, by their models.
func eachSheet(p *costmodel.Profile, change func(model string, s *op.Sheet)) {
	for i := range p.Devices {
		model, _, _ := strings.Cut(p.Devices[i].Name, "/")
		change(model, &p.Devices[i].Sheet)
	}
}

func TestAssumeLinks(t *testing.T) {
	p := measuredOnly("big", "small")
	eachSheet(p, func(model string, s *op.Sheet) {
		if model == "small" {
			s.NetPerS = 2.5e10
		}
	})
	Assume(p)
	c := assumedLinks(t, p, "1x4 big + 1x(2 big + 2 small)")
	if c.Nodes[0].Link != "nvlink" || c.Nodes[1].Link != HostBusLink || c.Network != NetworkLink {
		t.Errorf("links %s, %s, network %s", c.Nodes[0].Link, c.Nodes[1].Link, c.Network)
	}
	q := costmodel.NewCallPredictor(p)
	l, factor, err := q.Over(c.Network, op.KindSendRecv, []op.Member{{Device: "big/engine", Count: 6}, {Device: "small/engine", Count: 2}})
	if err != nil || factor != 1 {
		t.Fatal(factor, err)
	}
	e := l.Predict(op.SendRecv{Message: op.Message{Group: 8, Bytes: 1 << 30}})
	if rate := float64(1<<30) / float64(e.Mid); e.Source != costmodel.Assumed || math.Abs(rate/(sheetShare*2.5e10)-1) > 0.01 {
		t.Errorf("send_recv at %v B/s (%s), want the slower adapter's", rate, e.Source)
	}
	if _, err := c.Resolve(p, "", ""); err != nil {
		t.Error(err)
	}
}

// A group without the slowest adapters goes at its own rate, in nodes that have others
// too, and one with any of them at theirs.
func TestAssumedNetworkIsOfTheTypesInAGroup(t *testing.T) {
	const fast, mid, slow = 5e10, 2.5e10, 1.25e10
	p := measuredOnly("a", "b", "c", "d")
	eachSheet(p, func(model string, s *op.Sheet) {
		s.NetPerS = map[string]float64{"a": fast, "b": mid, "c": slow, "d": slow}[model]
	})
	Assume(p)
	c := assumedLinks(t, p, "1x(4 a + 4 b) + 2x4 a + 1x2 c + 1x1 d")
	q := costmodel.NewCallPredictor(p)
	rate := func(k op.Kind, members ...op.Member) float64 {
		for i := range members {
			members[i].Device += "/engine"
		}
		l, factor, err := q.Over(c.Network, k, members)
		if err != nil || factor != 1 {
			t.Fatal(factor, err)
		}
		return 1 / l.Curve.Pieces[0].Beta.Value / sheetShare
	}
	for _, x := range []struct {
		k       op.Kind
		members []op.Member
		want    float64
	}{
		{op.KindSendRecv, []op.Member{{Device: "a", Count: 12}}, fast},
		{op.KindSendRecv, []op.Member{{Device: "a", Count: 2}}, fast},
		{op.KindAllGather, []op.Member{{Device: "a", Count: 12}}, 4 * fast}, // through four adapters of each node
		{op.KindSendRecv, []op.Member{{Device: "a", Count: 1}, {Device: "b", Count: 1}}, mid},
		{op.KindSendRecv, []op.Member{{Device: "a", Count: 12}, {Device: "b", Count: 4}}, mid},
		{op.KindSendRecv, []op.Member{{Device: "b", Count: 1}, {Device: "c", Count: 1}}, slow},
		{op.KindSendRecv, []op.Member{{Device: "a", Count: 12}, {Device: "c", Count: 1}}, slow}, // not that of a, though as many
		{op.KindSendRecv, []op.Member{{Device: "a", Count: 12}, {Device: "b", Count: 4}, {Device: "c", Count: 2}, {Device: "d", Count: 1}}, slow},
	} {
		if got := rate(x.k, x.members...); math.Abs(got/x.want-1) > 1e-9 {
			t.Errorf("%s among %v: %v B/s, want %v", x.k, x.members, got, x.want)
		}
	}
}

// So it does where adapters are alike and the links inside its nodes alone are faster.
func TestAssumedNetworkGoesAsFarAsTheLinksInsideDo(t *testing.T) {
	p := measuredOnly("a", "e")
	eachSheet(p, func(model string, s *op.Sheet) {
		if model == "e" {
			s.LinkPerS = 1e11
		}
	})
	Assume(p)
	c := assumedLinks(t, p, "2x4 a + 1x4 e")
	q := costmodel.NewCallPredictor(p)
	for want, members := range map[float64][]op.Member{
		4 * sheet().NetPerS: {{Device: "a/engine", Count: 8}},
		1e11:                {{Device: "a/engine", Count: 8}, {Device: "e/engine", Count: 4}},
	} {
		l, _, err := q.Over(c.Network, op.KindAllGather, members)
		if err != nil {
			t.Fatal(err)
		}
		if got := 1 / l.Curve.Pieces[0].Beta.Value / sheetShare; math.Abs(got/want-1) > 1e-9 {
			t.Errorf("%v: %v B/s, want %v", members, got, want)
		}
	}
}

// And a ring goes as fast as the adapters of the nodes in it, whichever others there are.
func TestAssumedRingsAreOfTheNodesInThem(t *testing.T) {
	p := measuredOnly("a")
	eachSheet(p, func(_ string, s *op.Sheet) { s.LinkPerS = 100 * s.NetPerS })
	Assume(p)
	c := assumedLinks(t, p, "2x4 a + 1x2 a + 1x1 a")
	q := costmodel.NewCallPredictor(p)
	rates := q.NodeRates(c)
	for _, x := range []struct{ nodes, ranks, cards int }{{2, 8, 4}, {2, 5, 4}, {3, 10, 2}, {3, 8, 2}, {4, 11, 1}, {4, 4, 1}} {
		slowest := slices.Min(rates[:x.nodes])
		l, factor, err := q.Across(c.Network, op.KindAllGather, []op.Member{{Device: "a/engine", Count: x.ranks}}, slowest)
		if err != nil || factor != 1 {
			t.Fatal(factor, err)
		}
		if got, want := 1/l.Curve.Pieces[0].Beta.Value/sheetShare, float64(x.cards)*sheet().NetPerS; math.Abs(got/want-1) > 1e-9 {
			t.Errorf("%d ranks on the first %d nodes: %v B/s, want %v", x.ranks, x.nodes, got, want)
		}
	}
}

// Without any collective measured, like devices of a node have their own link.
func TestAssumeLinksOfUnmeasuredDevices(t *testing.T) {
	p := measuredOnly("gpu")
	p.Groups, p.Laws = nil, slices.DeleteFunc(p.Laws, func(l costmodel.Law) bool { return l.Group != "" })
	c, err := costmodel.ParseCluster("1x8 gpu/engine")
	if err != nil {
		t.Fatal(err)
	}
	if c, err = AssumeLinks(p, &costmodel.Profile{}, c); err != nil || c.Nodes[0].Link != DeviceLink || c.Network != "" {
		t.Fatalf("%+v, %v", c, err)
	}
	l, factor, err := costmodel.NewCallPredictor(p).Over(DeviceLink, op.KindSendRecv, c.Nodes[0].Devices)
	if err != nil || factor != 1 || math.Abs(1/l.Curve.Pieces[0].Beta.Value/(sheetShare*sheet().LinkPerS)-1) > 1e-9 {
		t.Errorf("%+v x %v, %v", l, factor, err)
	}
}

// A group measured with one collective only lends from that; the range is that
// of as many bytes through a port.
func TestAssumeTakesWhatCollectiveThereIs(t *testing.T) {
	p := measuredOnly("gpu")
	p.Laws = slices.DeleteFunc(p.Laws, func(l costmodel.Law) bool { return l.Group != "" && l.Op != op.KindAllReduce })
	Assume(p)
	for _, l := range laws(p, op.KindSendRecv) {
		n := map[string]float64{"2 gpu/net over nvlink": 2, "8 gpu/net over nvlink": 8}[l.Group]
		if want := 512 * 2 * (n - 1) / n; math.Abs(l.Range[0].Min/want-1) > 1e-6 || !strings.Contains(l.Assumed, "all_reduce") {
			t.Errorf("%s: from %v bytes, want %v: %s", l.Group, l.Range[0].Min, want, l.Assumed)
		}
	}
	if n := len(laws(p, op.KindSendRecv)); n != 2 {
		t.Errorf("%d laws of send_recv, want 2", n)
	}
}

// What no datasheet names is an error with the flag that settles it, between nodes and inside
// one, and with an example of a class of that place.
func TestAssumeLinksRefusesSilentSheets(t *testing.T) {
	for cluster, x := range map[string]struct {
		silent func(*op.Sheet)
		want   string
	}{
		"2x2 gpu/engine": {func(s *op.Sheet) { s.NetPerS = 0 }, "such as --network net=25GB/s"},
		"1x2 gpu/engine": {func(s *op.Sheet) { s.LinkPerS, s.HostPerS = 0, 0 }, "such as --link bus=25GB/s"},
	} {
		p := measuredOnly("gpu")
		p.Groups = nil
		eachSheet(p, func(_ string, s *op.Sheet) { x.silent(s) })
		c, err := costmodel.ParseCluster(cluster)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := AssumeLinks(p, &costmodel.Profile{}, c); err == nil || !strings.Contains(err.Error(), "no link between gpu/engine and others") || !strings.HasSuffix(err.Error(), x.want) {
			t.Errorf("%s: error %v, want %q", cluster, err, x.want)
		}
	}
}

// What nccl-tests printed of whole nodes over a network, in logs that vendors
// publish: four DGX A100 over HDR (NVIDIA deepops), two (Oracle) and eight nodes
// of H100, and two of H200 (Google). All of them lie inside the assumed interval.
func TestAssumedNetworkHoldsPublishedLogs(t *testing.T) {
	for _, row := range []struct {
		log      string
		nodes    int
		link     float64 // datasheet, B/s
		net      float64
		op       op.Kind
		bytes    units.Bytes
		measured float64
	}{
		{"a100 hdr", 4, 300e9, 25e9, op.KindAllReduce, 1 << 20, 135.3e-6},
		{"a100 hdr", 4, 300e9, 25e9, op.KindAllReduce, 1 << 32, 43557e-6},
		{"h100 roce", 2, 450e9, 50e9, op.KindAllReduce, 1 << 30, 4478.8e-6},
		{"h100 eight nodes", 8, 450e9, 50e9, op.KindAllReduce, 1 << 20, 117e-6},
		{"h100 eight nodes", 8, 450e9, 50e9, op.KindAllReduce, 1 << 32, 26438e-6},
		{"h200", 2, 450e9, 50e9, op.KindAllGather, 1 << 10, 54.07e-6},
		{"h200", 2, 450e9, 50e9, op.KindAllGather, 1 << 30, 3105.7e-6},
	} {
		p := measuredOnly("gpu")
		eachSheet(p, func(_ string, s *op.Sheet) { s.LinkPerS, s.NetPerS = row.link, row.net })
		c, err := costmodel.ParseCluster(fmt.Sprintf("%dx8 gpu/engine", row.nodes))
		if err != nil {
			t.Fatal(err)
		}
		if c, err = AssumeLinks(p, &costmodel.Profile{}, c); err != nil {
			t.Fatal(err)
		}
		members := []op.Member{{Device: "gpu/engine", Count: 8 * row.nodes}}
		l, _, err := costmodel.NewCallPredictor(p).Over(c.Network, row.op, members)
		if err != nil {
			t.Fatal(err)
		}
		e := l.Predict(op.OfMessage(row.op, op.Message{Group: 8 * row.nodes, Bytes: row.bytes}))
		if row.measured < float64(e.Lo) || row.measured > float64(e.Hi) {
			t.Errorf("%s, %s of %v: measured %v s, assumed %v to %v", row.log, row.op, row.bytes, row.measured, e.Lo, e.Hi)
		}
		t.Logf("%s, %s of %v: measured %v s, assumed %v", row.log, row.op, row.bytes, row.measured, e.Mid)
	}
}

// The guess that a backward kernel is one is the same on both masks and on all devices of
// a generation, and a law made from a guess has that one's doubts.
func TestGuessesShareWhatTheyRestOn(t *testing.T) {
	p := measuredOnly("gpu")
	p.Devices[0].Sheet.Arch = "sm90"
	Assume(p)
	of := func(k op.Kind, m op.Mask) costmodel.Law {
		for _, l := range laws(p, k) {
			if l.Variant.Mask == m && l.Variant.HeadDim == 128 {
				return l
			}
		}
		t.Fatalf("no law of %s on %s blocks", k, m)
		return costmodel.Law{}
	}
	full, diag, back, both := of(op.KindAttnFwd, op.Full), of(op.KindAttnFwd, op.Diag), of(op.KindAttnBwd, op.Diag), of(op.KindAttnBwd, op.Full)
	if len(diag.Doubts)+len(full.Doubts) != 0 {
		t.Errorf("of a measured kernel %+v, of its other mask %+v", diag.Doubts, full.Doubts)
	}
	kernel := costmodel.Doubt{Of: "attn_bwd on sm90", Ratio: costmodel.RemainingFactor(aBackward, aMask)}
	if len(back.Doubts) != 1 || back.Doubts[0] != kernel {
		t.Errorf("backward on causal blocks: %+v", back.Doubts)
	}
	if len(both.Doubts) != 2 || both.Doubts[0] != full.PassedOn()[0] || both.Doubts[1] != kernel {
		t.Errorf("backward on full blocks: %+v", both.Doubts)
	}
	if own := both.PassedOn()[2].Ratio; math.Abs(own-aMask) > 1e-9 {
		t.Errorf("%v of its own, want %v", own, aMask)
	}
}
