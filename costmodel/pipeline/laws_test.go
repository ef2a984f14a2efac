package pipeline

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/reference"
	"github.com/evenkeel/evenkeel/internal/units"
)

// world is a job on real GPUs by the reference laws, and what tells prices by hand.
type world struct {
	t   testing.TB
	q   *costmodel.Predictor
	job costmodel.Job
}

// onGPUs is a model of eight billion parameters and four layers.
func onGPUs(t testing.TB, cluster string) world {
	t.Helper()
	profile, job := reference.Job(t, reference.Llama(4), cluster, 1)
	job.Zero = costmodel.Zero1 // which moves nothing while chunks compute
	return world{t, costmodel.NewPredictor(profile), job}
}

func (w world) costs(lengths ...units.Tokens) *Costs {
	w.t.Helper()
	c, err := FromLaws(w.q, w.job, lengths)
	if err != nil {
		w.t.Fatal(err)
	}
	return c
}

// alone is what a chunk takes on all devices of a cluster of its own.
func (w world) alone(c costmodel.Cluster, x costmodel.Chunk) costmodel.ChunkPasses {
	w.t.Helper()
	j := w.job
	j.Cluster, j.SeqLen = c, 1
	p, err := costmodel.NewPacker(w.q, j)
	if err != nil {
		w.t.Fatal(err)
	}
	n := len(c.Ranks())
	var g costmodel.Group
	for r := range n {
		g = append(g, costmodel.HeadShare{Rank: r, QHeads: 32 / n})
	}
	out, err := p.Chunk(g, slices.Repeat([]float64{1 / float64(n)}, n), x)
	if err != nil {
		w.t.Fatal(err)
	}
	return out
}

// of is a part of the job's cluster: nodes with so many devices of each, and network cards.
func (w world) of(node []int, devices [][]op.Member, cards int) costmodel.Cluster {
	c := w.job.Cluster
	c.Nodes = nil
	for i, n := range node {
		x := w.job.Cluster.Nodes[n]
		x.Devices, x.NICs = nil, cards
		for _, d := range devices[i] {
			x.Devices = append(x.Devices, op.Member{Device: w.named(d.Device), Count: d.Count})
		}
		c.Nodes = append(c.Nodes, x)
	}
	return c
}

func (w world) layers() *costmodel.Layers {
	w.t.Helper()
	l, err := costmodel.NewLayers(w.q, w.job)
	if err != nil {
		w.t.Fatal(err)
	}
	return l
}

// exchanged is what a collective over a layer's gradients takes, or over so many bytes.
func (w world) exchanged(kind op.Kind, ranks []int, bytes units.Bytes) units.Seconds {
	w.t.Helper()
	if bytes == 0 {
		bytes = w.job.LayerBytes()
	}
	t, err := w.layers().ExchangeOf(kind, ranks, bytes)
	if err != nil {
		w.t.Fatal(err)
	}
	return t
}

func (w world) updated(device string, params int64) units.Seconds {
	w.t.Helper()
	t, err := w.layers().Update(w.named(device), params)
	if err != nil {
		w.t.Fatal(err)
	}
	return t
}

func members(device string, n int) []op.Member { return []op.Member{{Device: device, Count: n}} }

// named is a device type of the job's cluster by the beginning of its name, which goes on with
// what measured it.
func (w world) named(device string) string {
	for _, r := range w.job.Cluster.Ranks() {
		if strings.HasPrefix(r.Device, device) {
			return r.Device
		}
	}
	w.t.Fatalf("no %s in %s", device, w.job.Cluster)
	return ""
}

// upTo are ranks from one on up to another.
func upTo(from, to int) (all []int) {
	for r := from; r < to; r++ {
		all = append(all, r)
	}
	return all
}

// sliceOf is a slice of 4,000 tokens behind 12,000 of a sequence of 20,000, with one of 900
// beside it.
func sliceOf() (Chunk, costmodel.Chunk) {
	return Chunk{Context: 12000, Slice: 4000, Whole: []int{1}}, costmodel.Chunk{Context: 12000, Slice: 4000, More: true, Whole: []costmodel.Documents{{Tokens: 900, Count: 1}}}
}

// A stage takes what its devices do by themselves, as nodes of their own with their share of
// the network cards: in a node, over two, and of two types of devices.
func TestStagesAreClustersOfTheirOwn(t *testing.T) {
	of, x := sliceOf()
	h, a := "h100_sxm", "a100_sxm"
	for _, c := range []struct {
		cluster string
		cards   int // of each node
		ranks   []int
		nodes   []int
		devices [][]op.Member
		share   int // of the cards
	}{
		{"2x8 h100_sxm", 0, upTo(0, 8), []int{0}, [][]op.Member{members(h, 8)}, 0},
		{"2x8 h100_sxm", 0, upTo(9, 13), []int{1}, [][]op.Member{members(h, 4)}, 0},
		{"2x8 h100_sxm", 0, []int{3}, []int{0}, [][]op.Member{members(h, 1)}, 0},
		{"2x8 h100_sxm", 0, upTo(0, 16), []int{0, 1}, [][]op.Member{members(h, 8), members(h, 8)}, 0},
		{"2x8 h100_sxm", 4, upTo(4, 12), []int{0, 1}, [][]op.Member{members(h, 4), members(h, 4)}, 2},
		{"2x8 h100_sxm", 4, upTo(7, 9), []int{0, 1}, [][]op.Member{members(h, 1), members(h, 1)}, 1},
		{"1x(4 h100_sxm + 4 a100_sxm)", 0, upTo(2, 6), []int{0}, [][]op.Member{{{Device: h, Count: 2}, {Device: a, Count: 2}}}, 0},
		{"1x8 h100_sxm + 1x8 a100_sxm", 0, upTo(6, 10), []int{0, 1}, [][]op.Member{members(h, 2), members(a, 2)}, 0},
	} {
		w := onGPUs(t, c.cluster)
		for i := range w.job.Cluster.Nodes {
			w.job.Cluster.Nodes[i].NICs = c.cards
		}
		costs := w.costs(20000, 900)
		got, want := costs.Work(c.ranks, of), w.alone(w.of(c.nodes, c.devices, c.share), x)
		if got.Forward != want.Forward || got.Backward != want.Backward || got.Again != want.Forward || got.Loss != want.Loss || costs.Missing() != nil {
			t.Errorf("%v of %s: %+v, by themselves %+v; %v", c.ranks, c.cluster, got, want, costs.Missing())
		}
	}
}

// Of two types of devices in a stage the slower one decides: beside the all-to-alls, over the
// host's bus, a stage of both takes what one of the slower does.
func TestTheSlowerDeviceDecides(t *testing.T) {
	for _, slowFirst := range []bool{false, true} {
		theSlowerDecides(t, slowFirst)
	}
}

func theSlowerDecides(t *testing.T, slowFirst bool) {
	of, x := sliceOf()
	cluster, fasts, slows, mixed := "1x(4 h200_sxm + 4 a100_sxm)", upTo(0, 4), upTo(4, 8), []op.Member{{Device: "h200_sxm", Count: 2}, {Device: "a100_sxm", Count: 2}}
	if slowFirst {
		cluster, fasts, slows = "1x(4 a100_sxm + 4 h200_sxm)", slows, fasts
		slices.Reverse(mixed)
	}
	w := onGPUs(t, cluster)
	c := w.costs(20000, 900)
	part := func(ranks []int, devices []op.Member) (forward, backward units.Seconds) {
		p, moved := c.Work(ranks, of), w.alone(w.of([]int{0}, [][]op.Member{devices}, 0), x)
		return p.Forward - moved.ForwardMoving, p.Backward - moved.BackwardMoving
	}
	fast, fastBack := part(fasts, members("h200_sxm", 4))
	slow, slowBack := part(slows, members("a100_sxm", 4))
	both, bothBack := part(upTo(2, 6), mixed)
	if !(fast < slow && fastBack < slowBack) || both < 0.99*slow || both > 1.01*slow || bothBack < 0.99*slowBack || bothBack > 1.01*slowBack {
		t.Errorf("forward %v and %v, both %v; backward %v and %v, both %v", fast, slow, both, fastBack, slowBack, bothBack)
	}
	// The memory of a stage is that of the device with least room.
	least, most := w.q.DeviceMemory(w.job, w.named("a100_sxm")).Capacity, w.q.DeviceMemory(w.job, w.named("h200_sxm")).Capacity
	if got := c.Capacity(upTo(2, 6)); got != units.BytesOf(0.97*float64(least)) || least == 0 || least >= most {
		t.Errorf("a stage of both may fill %v, a device has %v", got, least)
	}
	// Each updates its share, and the slower one is done last.
	p := &Plan{Stages: []Stage{{Ranks: upTo(2, 6), Layers: 4}}}
	params := (4*w.job.Model.LayerParams() + 2*w.job.Model.TableParams() + 3) / 4
	if h, a := w.updated("h200_sxm", params), w.updated("a100_sxm", params); h >= a {
		t.Errorf("updates of %v and %v", h, a)
	}
	w.job.Zero = costmodel.Zero3
	tables := units.Bytes(2*w.job.Model.TableParams()) * 2
	want := w.updated("a100_sxm", params) + w.exchanged(op.KindReduceScatter, upTo(2, 6), tables) + w.exchanged(op.KindAllGather, upTo(2, 6), tables)
	if got := w.costs(20000).Finish(p, 0).Total(); !near(got, want) {
		t.Errorf("an update takes %v, want %v", got, want)
	}
}

// Ranks that are like one another have one price, and those that differ in anything have not.
func TestRanksThatAreAlikeSharePrices(t *testing.T) {
	w := onGPUs(t, "2x8 h100_sxm + 1x8 a100_sxm")
	w.job.Cluster.Nodes[1].NICs = 2
	c := w.costs(20000, 900)
	l := c.from.(*laws)
	for i, same := range [][][]int{
		{upTo(0, 4), upTo(4, 8), {0, 2, 5, 7}},
		{upTo(8, 12), upTo(12, 16)},
		{upTo(16, 20), upTo(20, 24)},
		{upTo(6, 10), {0, 1, 14, 15}},
		{upTo(0, 2), upTo(3, 5)},
		{upTo(14, 18), {8, 9, 22, 23}},
		{upTo(7, 10)},
		{{6, 7, 8}},
	} {
		for _, ranks := range same {
			if got := c.Like(ranks); got != i {
				t.Errorf("%v is of kind %d, want %d", ranks, got, i)
			}
		}
	}
	of, _ := sliceOf()
	for _, ranks := range [][]int{upTo(0, 4), upTo(4, 8), {0, 2, 5, 7}} {
		c.Work(ranks, of)
	}
	if len(l.packers) != 1 || len(c.passes) != 1 {
		t.Errorf("%d packers, %d prices of stages that are alike", len(l.packers), len(c.passes))
	}
}

func TestStagesThatHeadsDoNotDivide(t *testing.T) {
	c := onGPUs(t, "2x8 h100_sxm").costs(1000)
	for n, want := range map[int]string{1: "", 2: "", 8: "", 16: "", 3: "a stage of 3 devices: the model's 32 query heads are not divisible by that", 12: "a stage of 12 devices: the model's 32 query heads are not divisible by that"} {
		err := c.Fits(upTo(0, n))
		if err == nil != (want == "") || err != nil && err.Error() != want {
			t.Errorf("%d devices: %v", n, err)
		}
	}
}

// Held is what the job says of the rank that has most of it, and states are by stage.
func TestMemoryOfLaws(t *testing.T) {
	of, x := sliceOf()
	w := onGPUs(t, "1x(8 h100_sxm + 8 a100_sxm)")
	c := w.costs(20000, 900)
	for _, ranks := range [][]int{upTo(0, 1), upTo(0, 8), upTo(4, 12), upTo(0, 16)} {
		n := len(ranks)
		var want costmodel.ChunkBytes
		for i, r := range ranks {
			dev := w.q.DeviceMemory(w.job, w.job.Cluster.Ranks()[r].Device)
			b := w.job.ChunkMemory(x, 1/float64(n), i*32/n, 32/n, n, dev)
			want.Kept, want.Again, want.Gradients = max(want.Kept, b.Kept), max(want.Again, b.Again), max(want.Gradients, b.Gradients)
			want.Transient, want.Logits = max(want.Transient, b.Transient), max(want.Logits, b.Logits)
		}
		if got := c.Held(ranks, of); got != want || got.Gradients == 0 {
			t.Errorf("%v: %+v, want %+v", ranks, got, want)
		}
	}
	p := &Plan{Stages: []Stage{{Ranks: upTo(0, 4), Layers: 1}, {Ranks: upTo(4, 8), Layers: 2}, {Ranks: upTo(8, 10), Layers: 1}}}
	for s, want := range []units.Bytes{w.job.StageStates(1, 4, 1), w.job.StageStates(2, 4, 0), w.job.StageStates(1, 2, 1)} {
		if got := c.States(p, s); got != want {
			t.Errorf("stage %d: states of %d bytes, want %d", s, int64(got), int64(want))
		}
	}
	p.Stages = p.Stages[:1]
	if got, want := c.States(p, 0), w.job.StageStates(1, 4, 2); got != want {
		t.Errorf("the only stage: states of %d bytes, want %d", int64(got), int64(want))
	}
}

// Whole sequences of one length are priced as those of many lengths are: each by itself, in
// whatever order they are.
func TestWholeSequencesTogether(t *testing.T) {
	w := onGPUs(t, "1x8 h100_sxm")
	r := rand.New(rand.NewPCG(2, 8))
	var lengths []units.Tokens
	var all []costmodel.Documents
	x := Chunk{Sequence: -1}
	for i := range 40 {
		n := units.Tokens(60 * math.Pow(100, r.Float64()))
		lengths, x.Whole = append(lengths, n, n), append(x.Whole, 2*i, 2*i+1)
		all = append(all, costmodel.Documents{Tokens: n, Count: 2})
	}
	want := w.alone(w.job.Cluster, costmodel.Chunk{Whole: all})
	for range 3 {
		r.Shuffle(len(x.Whole), func(i, j int) { x.Whole[i], x.Whole[j] = x.Whole[j], x.Whole[i] })
		got := w.costs(lengths...).Work(upTo(0, 8), x)
		for _, pair := range [][2]units.Seconds{{got.Forward, want.Forward}, {got.Backward, want.Backward}, {got.Loss, want.Loss}} {
			if math.Abs(float64(pair[0]/pair[1]-1)) > 1e-12 {
				t.Errorf("%v, want %v", pair[0], pair[1])
			}
		}
	}
}

// The account of a plan has the plan's time, errors on both sides, and no warning twice.
func TestAccountOfLaws(t *testing.T) {
	w := onGPUs(t, "2x8 h100_sxm")
	c := w.costs(20000, 900)
	p := &Plan{
		Stages:    []Stage{{Ranks: upTo(0, 8), Layers: 2}, {Ranks: upTo(8, 16), Layers: 2}},
		Chunks:    []Chunk{{Slice: 12000}, {Context: 12000, Slice: 8000, Whole: []int{1}}},
		Recompute: [][]int{{0, 2}, {1, 0}},
	}
	order := []Op{{Chunk: 0}, {Chunk: 1}, {Chunk: 1, Backward: true}, {Chunk: 0, Backward: true}}
	p.Orders = [][]Op{order, slices.Clone(order)}
	if err := c.Simulate(p); err != nil {
		t.Fatal(err)
	}
	step, err := c.Account(p)
	if err != nil || step.Time.Mid != p.Time || !(step.Time.Lo < p.Time && p.Time < step.Time.Hi) || step.Time.Source == costmodel.Measured {
		t.Errorf("%+v, %v; the plan takes %v", step, err, p.Time)
	}
	warned := c.Warnings()
	sorted := slices.Sorted(slices.Values(warned))
	if len(warned) == 0 || len(slices.Compact(sorted)) != len(warned) {
		t.Errorf("%q", warned)
	}
}

// What both ends of a pipeline have to add up is as much in doubt as the network, whose laws are
// assumed, and more than their passes.
func TestAccountHasWhatIsTied(t *testing.T) {
	w := onGPUs(t, "2x8 h100_sxm")
	var most [2]float64
	for tied := range most {
		w.job.Model.TiedEmbeddings = tied == 1
		c := w.costs(64)
		p := f1b(2, 1)
		p.Chunks[0], p.Stages = Chunk{Slice: 64}, []Stage{{Ranks: []int{0}, Layers: 1}, {Ranks: []int{8}, Layers: 3}}
		if err := c.Simulate(p); err != nil {
			t.Fatal(err)
		}
		step, err := c.Account(p)
		if err != nil || !near(step.Time.Mid, p.Time) {
			t.Fatalf("%+v, %v; the plan takes %v", step, err, p.Time)
		}
		most[tied] = float64(step.Time.Hi / p.Time)
		t.Logf("tied %v: %v of %v, up to %v times as long", tied == 1, c.Tied(p), p.Time, most[tied])
	}
	if most[1] < most[0]+0.05 {
		t.Errorf("up to %v times as long, without ties %v", most[1], most[0])
	}
}

// What no law has a price for is named when it is asked for, and a plan with it refused.
func TestLawsThatAreMissing(t *testing.T) {
	w := onGPUs(t, "2x8 h100_sxm")
	w.job.DType = op.F32
	c := w.costs(1000)
	if c.Missing() != nil {
		t.Errorf("before anyone asks: %v", c.Missing())
	}
	got := c.Work(upTo(0, 4), Chunk{Slice: 1000})
	missing, ok := errors.AsType[*costmodel.MissingLawError](c.Missing())
	if !ok || missing.Variant.DType != op.F32 || !math.IsInf(float64(got.Forward), 1) {
		t.Errorf("%+v; missing: %v", got, c.Missing())
	}
	p := &Plan{Stages: []Stage{{Ranks: upTo(0, 4), Layers: 4}}, Chunks: []Chunk{{Slice: 1000}}, Recompute: [][]int{{0}}, Orders: [][]Op{{{}, {Backward: true}}}}
	if err := c.Simulate(p); err == nil || err != c.Missing() {
		t.Errorf("%v; missing: %v", err, c.Missing())
	}

	w = onGPUs(t, "2x8 h100_sxm")
	w.job.Cluster.Network = ""
	c = w.costs(1000)
	c.Send(upTo(0, 4), upTo(4, 8), 10)
	if c.Missing() != nil {
		t.Errorf("within a node: %v", c.Missing())
	}
	if got := c.Send(upTo(0, 8), upTo(8, 16), 10); !math.IsInf(float64(got), 1) || c.Missing() == nil || !strings.Contains(c.Missing().Error(), "cluster.network: empty") {
		t.Errorf("%v; missing: %v", got, c.Missing())
	}
}

func TestLawsRefuseJobsThatAreNone(t *testing.T) {
	for want, x := range map[string]struct {
		damage  func(*costmodel.Job)
		lengths []units.Tokens
	}{
		"lengths: none":                          {func(*costmodel.Job) {}, nil},
		"lengths[1]: 0: want at least one token": {func(*costmodel.Job) {}, []units.Tokens{5, 0}},
		"seq_len_tokens: 0: want 1 to":           {func(*costmodel.Job) {}, []units.Tokens{0}},
		"seq_len_tokens: 5000: beyond the model": {func(j *costmodel.Job) { j.Model.MaxLen = 4096 }, []units.Tokens{100, 5000}},
		"model.layers: 0":                        {func(j *costmodel.Job) { j.Model.Layers = 0 }, []units.Tokens{1}},
		"zero: \"zero7\"":                        {func(j *costmodel.Job) { j.Zero = "zero7" }, []units.Tokens{1}},
		"nothing": {func(j *costmodel.Job) {
			j.Cluster.Nodes = slices.Clone(j.Cluster.Nodes)
			j.Cluster.Nodes[0].Devices = members("nothing", 8)
		}, []units.Tokens{1}},
	} {
		w := onGPUs(t, "2x8 h100_sxm")
		x.damage(&w.job)
		if _, err := FromLaws(w.q, w.job, x.lengths); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
	// What a job says of its own sequence and steps is of no account.
	w := onGPUs(t, "2x8 h100_sxm")
	other := w
	other.job.SeqLen, other.job.Recompute, other.job.Accumulate = 77, costmodel.RecomputeFull, 5
	of, _ := sliceOf()
	a, b := w.costs(20000, 900), other.costs(20000, 900)
	p := &Plan{Stages: []Stage{{Ranks: upTo(0, 8), Layers: 4}}}
	if a.Work(upTo(0, 8), of) != b.Work(upTo(0, 8), of) || a.Held(upTo(0, 8), of) != b.Held(upTo(0, 8), of) || a.Finish(p, 0) != b.Finish(p, 0) {
		t.Error("a job with recomputation and several micro-batches has other prices")
	}
}
