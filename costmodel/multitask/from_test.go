package multitask

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/reference"
	"github.com/evenkeel/evenkeel/internal/units"
)

// onGPUs are modules of shapes on real GPUs' laws, in bf16.
func onGPUs(t testing.TB, cluster string, o Options, modules ...Module) (*Costs, *costmodel.Predictor, costmodel.Job) {
	t.Helper()
	tasks := &Tasks{Name: "test", Modules: modules}
	if err := tasks.Validate(); err != nil {
		t.Fatal(err)
	}
	profile, job := reference.Job(t, reference.Llama(1), cluster, 1)
	q := costmodel.NewPredictor(profile)
	o.DType = op.BF16
	c, err := FromLaws(q, tasks, job.Cluster, o)
	if err != nil {
		t.Fatal(err)
	}
	return c, q, job
}

// llama is a decoder of 8 billion parameters; clip an encoder of images.
func llama(layers int, tokens units.Tokens, batch int, after ...string) Module {
	return Module{Name: "llama", Task: "t", Layers: layers, Batch: batch, After: after, Shape: &Shape{SeqLen: tokens, Hidden: 4096, FFN: 14336, QHeads: 32, KVHeads: 8, Causal: true, GatedMLP: true}}
}

func clip(layers, batch int) Module {
	return Module{Name: "clip", Task: "t", Layers: layers, Batch: batch, Shape: &Shape{SeqLen: 257, Hidden: 1024, FFN: 4096, QHeads: 16}}
}

// A module alone on a device takes what a job of its model takes there in its layers.
func TestLayersTakeWhatTheSimulatorSays(t *testing.T) {
	for _, device := range []string{"h100_sxm", "a100_sxm", "rtx_pro_6000_server"} {
		for _, recompute := range []costmodel.Recompute{costmodel.RecomputeNone, costmodel.RecomputeFull} {
			for _, tokens := range []units.Tokens{500, 4096, 30000} {
				const layers = 5
				c, q, job := onGPUs(t, "1x1 "+device, Options{Recompute: recompute}, llama(layers, tokens, 1))
				job.Model, job.SeqLen, job.Recompute = reference.Llama(layers), tokens, recompute
				all := []units.Tokens{tokens}
				step, err := costmodel.Simulate(q, job, costmodel.ZigZag(all, costmodel.Singles(all, job.Model.QHeads)), costmodel.SimOptions{})
				if err != nil {
					t.Fatal(err)
				}
				var forward, backward units.Seconds
				for _, p := range step.Parts {
					switch p.Name {
					case "linear forward", "attention forward":
						forward += p.Time.Mid
					case "linear backward", "attention backward", "recompute":
						backward += p.Time.Mid
					}
				}
				f, b := c.Passes(0, 0, 1)
				if !close(layers*f, forward) || !close(layers*b, backward) {
					t.Errorf("%s, %s, %d tokens: %v and %v, simulated %v and %v", device, recompute, int64(tokens), layers*f, layers*b, forward, backward)
				}
			}
		}
	}
}

// An encoder's queries see twice as many keys as a decoder's. Four samples of 20,000 tokens
// fill a device as one does, and take four times as long but for a tenth.
func TestLawsSeeMaskAndSamples(t *testing.T) {
	decoder := llama(1, 20000, 4)
	encoder := decoder
	encoder.Name, encoder.Shape = "encoder", &Shape{}
	*encoder.Shape = *decoder.Shape
	encoder.Shape.Causal = false
	c, _, _ := onGPUs(t, "1x1 h100_sxm", Options{}, decoder, encoder)
	for _, samples := range []int{1, 4} {
		if one, two := c.Alone(0, 0, samples), c.Alone(1, 0, samples); two < 1.2*one || two > 2*one {
			t.Errorf("%d samples: %v of a decoder, %v of an encoder", samples, one, two)
		}
	}
	for m := range 2 {
		if one, four := c.Alone(m, 0, 1), c.Alone(m, 0, 4); four < 3.6*one || four > 4.4*one {
			t.Errorf("%v of one sample, %v of four", one, four)
		}
	}
}

// Two layers of clip in bf16: 4 x 1024 x 1024 for the attention, 2 x 1024 x 4096 of an MLP
// without a gate, and gain and bias of two norms.
func TestMemoryOfLawsByHand(t *testing.T) {
	const params = 4*1024*1024 + 2*1024*4096 + 2*2*1024
	// Of each token the layer's input and the residual, both norms' outputs; what goes into
	// and comes out of the MLP's activation; queries, keys, values and what comes out of the
	// attention; all in bf16. In float32 mean and root of both norms and a number a head.
	const token = 2*(4*1024+2*4096+4*1024) + 4*(2*2+16)
	for _, x := range []struct {
		recompute costmodel.Recompute
		reserve   float64
		token     units.Bytes // of each layer
		again     units.Bytes // of one that is computed again
	}{{costmodel.RecomputeNone, 0, token, 0}, {costmodel.RecomputeFull, 0.25, 2 * 1024, token}} {
		c, q, job := onGPUs(t, "1x3 h100_sxm", Options{Recompute: x.recompute, MemoryReserve: x.reserve}, clip(2, 12))
		p := &Plan{Runs: []Run{{Layers: 2, Ranks: []int{0, 2}, Samples: []int{7, 5}}}}
		room := units.BytesOf(costmodel.Usable * (1 - x.reserve) * float64(q.DeviceMemory(job, c.Pools[0].Device).Capacity))
		want := []Memory{
			{States: 2 * (4*params + 12*params/2), Activations: 7 * 257 * (2*x.token + x.again), Capacity: room},
			{Capacity: room},
			{States: 2 * (4*params + 12*params/2), Activations: 5 * 257 * (2*x.token + x.again), Capacity: room},
		}
		if diff := cmp.Diff(want, c.Memory(p)); diff != "" || room == 0 {
			t.Errorf("%s (-want +got)\n%s", x.recompute, diff)
		}
	}
}

// The largest tasks that are allowed need more bytes than there are sizes.
func TestMemoryOfTheLargestTasks(t *testing.T) {
	m := Module{Name: "m", Task: "t", Layers: 1, Batch: maxBatch, Shape: &Shape{SeqLen: maxSample, Hidden: 1 << 20, FFN: 1 << 20, QHeads: 1 << 10}}
	if err := m.validate(); err != nil {
		t.Fatal(err)
	}
	l := &laws{tasks: &Tasks{Modules: []Module{m}}, jobs: []costmodel.Job{{Model: m.Model(), DType: op.BF16}}, o: Options{DType: op.BF16}}
	if kept := l.memory(0, 1, maxBatch).kept; kept != math.MaxInt64 {
		t.Errorf("%d bytes of activations", int64(kept))
	}
}

// What leaves a layer is its activations: on the way to another node 257 x 1024 of two bytes
// of each of 12 samples, among two, and as much back.
func TestMovesOfLawsByHand(t *testing.T) {
	c, q, job := onGPUs(t, "2x2 h100_sxm", Options{}, clip(2, 12))
	l, err := costmodel.NewLayers(q, costmodel.Job{Model: clip(1, 1).Model(), Cluster: job.Cluster, DType: op.BF16})
	if err != nil {
		t.Fatal(err)
	}
	for _, to := range [][]int{{0, 2}, {2, 3}} {
		want, err := l.Send(0, 2, 257*1024*2*12/2)
		if err != nil {
			t.Fatal(err)
		}
		if got := c.Move(0, on([]int{0, 1}, []int{6, 6}), on(to, []int{6, 6}), false); !close(got, 2*want) {
			t.Errorf("to %v: %v, want twice %v", to, got, want)
		}
	}
	exchange, err := l.Exchange(op.KindAllReduce, []int{0, 3})
	if got := c.Exchange(0, []int{0, 3}); err != nil || got != exchange || got <= 0 {
		t.Errorf("gradients: %v, want %v: %v", got, exchange, err)
	}
}

// The account of a plan has the time of the plan, the errors of the laws and what the user
// has to know of them, once for modules of the same shape.
func TestAccountOfLaws(t *testing.T) {
	again := clip(2, 6)
	again.Name, again.After = "again", []string{"clip"}
	c, _, _ := onGPUs(t, "2x2 h100_sxm", Options{}, clip(2, 12), again)
	p := &Plan{Runs: []Run{
		{Module: 0, Layers: 2, Ranks: []int{0, 1, 2}, Samples: []int{4, 4, 4}},
		{Module: 1, Layers: 2, Ranks: []int{2, 3}, Samples: []int{3, 3}},
	}}
	if err := c.Simulate(p); err != nil {
		t.Fatal(err)
	}
	step, err := c.Account(p)
	if err != nil || step.Time.Mid != p.Time || !(step.Time.Lo < p.Time && p.Time < step.Time.Hi) {
		t.Errorf("%+v, %v; the plan takes %v", step, err, p.Time)
	}
	warned := slices.Clone(c.Warnings())
	slices.Sort(warned)
	if len(warned) == 0 || len(slices.Compact(slices.Clone(warned))) != len(warned) {
		t.Errorf("%q", warned)
	}
}

func TestLawsRefuseWhatTheyCannotPrice(t *testing.T) {
	profile, job := reference.Job(t, reference.Llama(1), "1x1 h100_sxm", 1)
	q := costmodel.NewPredictor(profile)
	if _, err := FromLaws(q, &Tasks{Modules: []Module{module("m", 1, 1)}}, job.Cluster, Options{DType: op.BF16}); err == nil || !strings.Contains(err.Error(), "module m: has a curve and no shape") {
		t.Error(err)
	}
	if _, err := FromLaws(q, &Tasks{Modules: []Module{clip(1, 1)}}, costmodel.Cluster{}, Options{DType: op.BF16}); err == nil || !strings.Contains(err.Error(), "cluster: nodes: none") {
		t.Error(err)
	}
	// Laws of one device are asked for before any plan is made.
	_, err := FromLaws(q, &Tasks{Modules: []Module{clip(1, 1)}}, job.Cluster, Options{DType: op.F32})
	if missing, ok := errors.AsType[*costmodel.MissingLawError](err); !ok || missing.Variant.DType != op.F32 {
		t.Errorf("in f32: %v", err)
	}
}

// On n devices a layer of a curve takes fixed_s, from two devices on sync_s, and
// sample_s for each sample that one of them has at most.
func TestPublishedCurves(t *testing.T) {
	curve := Curve{Fixed: 3, Sync: 5, PerSample: 7}
	m := Module{Name: "m", Task: "t", Layers: 2, Batch: 10, Curve: &curve}
	tasks := &Tasks{Modules: []Module{m}}
	cluster, err := costmodel.ParseCluster("2x2 any")
	if err != nil {
		t.Fatal(err)
	}
	c, err := Published(tasks, cluster)
	if err != nil {
		t.Fatal(err)
	}
	for n, want := range map[int]units.Seconds{1: 3 + 70, 2: 3 + 5 + 35, 3: 3 + 5 + 28, 4: 3 + 5 + 21} {
		ranks := []int{0, 1, 2, 3}[:n]
		if got := c.Layer(0, ranks, c.EqualShares(0, n)); !close(got, want) || !close(got, curve.Time(n, (10+n-1)/n)) {
			t.Errorf("on %d: %v, want %v", n, got, want)
		}
	}
	// Nothing is known of messages, of memory and of errors.
	p := &Plan{Runs: []Run{{Layers: 1, Ranks: []int{0}, Samples: []int{10}}, {Layers: 1, Ranks: []int{3}, Samples: []int{10}}}}
	if err := c.Simulate(p); err != nil || p.Time != 146 {
		t.Errorf("%v, %v", p.Time, err)
	}
	if step, err := c.Account(p); step != nil || err != nil {
		t.Errorf("%v, %v", step, err)
	}
	if err := c.Fits(p); err != nil || c.Memory(p)[0] != (Memory{}) || len(c.Warnings()) > 0 {
		t.Errorf("%v, %v, %q", err, c.Memory(p), c.Warnings())
	}
}

func TestPublishedRefusesWhatCurvesCannotPrice(t *testing.T) {
	for _, c := range []struct {
		cluster string
		module  Module
		want    string
	}{
		{"1x2 any", clip(1, 1), "module clip: has a shape and no curve"},
		{"1x2 any + 1x2 other", module("m", 1, 1), "cluster: any and other: curves are of one device type"},
	} {
		cluster, err := costmodel.ParseCluster(c.cluster)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Published(&Tasks{Modules: []Module{c.module}}, cluster); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("want %q, got %v", c.want, err)
		}
	}
	if _, err := Published(&Tasks{Modules: []Module{module("m", 1, 1)}}, costmodel.Cluster{}); err == nil || !strings.Contains(err.Error(), "cluster: nodes: none") {
		t.Error(err)
	}
}

// What exchanges and messages take does not depend on what was asked before: the same devices
// have another pace in one node than in two, of which one sends more slowly.
func TestRememberedPricesAreThoseOfTheLaws(t *testing.T) {
	for _, cards := range []int{0, 1} { // of the first node
		profile, job := reference.Job(t, reference.Llama(1), "1x2 h100_sxm + 1x2 a100_sxm + 1x1 h100_sxm", 1)
		job.Cluster.Network, job.Cluster.Links = "net", []costmodel.Link{{Name: "net", Rate: 25e9}}
		job.Cluster.Nodes[0].NICs = cards
		q := costmodel.NewPredictor(costmodel.AssumeLinks(profile, job.Cluster))
		c, err := FromLaws(q, &Tasks{Name: "test", Modules: []Module{clip(2, 12)}}, job.Cluster, Options{DType: op.BF16})
		if err != nil {
			t.Fatal(err)
		}
		seated := c.Seated([]int{4, 3, 2, 1, 0}).Reordered([]int{0})
		prices := map[[MostPools]int]map[units.Seconds]bool{} // by devices of the pools
		for set := range 1 << c.Devices() {
			var ranks []int
			var uses [MostPools]int
			for r := range c.Devices() {
				if set>>r&1 == 1 {
					ranks = append(ranks, r)
					uses[c.PoolOf(r)]++
				}
			}
			if len(ranks) < 2 {
				continue
			}
			for _, x := range []*Costs{c, seated} {
				want, err := x.from.exchange(0, ranks)
				if got := x.Exchange(0, ranks); err != nil || got != want {
					t.Errorf("%d cards, %v: %v, and the laws say %v (%v)", cards, ranks, got, want, err)
				}
			}
			if prices[uses] == nil {
				prices[uses] = map[units.Seconds]bool{}
			}
			prices[uses][c.Exchange(0, ranks)] = true
		}
		if several := prices[[MostPools]int{2, 1}]; cards == 0 && len(several) < 2 {
			t.Errorf("two H100 and an A100 take %v wherever they are", several)
		}
		for from := range c.Devices() {
			for to := range c.Devices() {
				if want, err := c.from.send(from, to, 1e6); from != to && (err != nil || c.send(from, to, 1e6) != want) {
					t.Errorf("%d cards, from %d to %d: %v, and the laws say %v (%v)", cards, from, to, c.send(from, to, 1e6), want, err)
				}
			}
		}
	}
}
