package costmodel

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// sumOfOps adds up, from the list of ops of a training step, what a rank computes.
func sumOfOps(t *testing.T, p *Profile, j Job, l Layout, r int) units.Seconds {
	q, m := NewPredictor(p), j.Model
	device := j.Cluster.Ranks()[r].Device
	var sum units.Seconds
	add := func(times float64, s op.Shape) {
		e, err := q.Time(device, s)
		if err != nil {
			t.Fatal(err)
		}
		sum += e.Mid * units.Seconds(times)
	}
	n, layers := l.Shards[r].Tokens(), float64(m.Layers)
	row := func(n units.Tokens, width int) op.Rowwise {
		return op.Rowwise{Tokens: n, Width: width, DType: op.F32}
	}
	forwards := layers
	if j.Recompute == RecomputeFull {
		forwards *= 2
	}
	// Attention, and the adding of what each rectangle makes: outputs; gradients of
	// queries, keys and values.
	for _, k := range atWork(l) {
		for _, b := range appendBlocks(nil, l.Shards[r], l.Shards[k]) {
			a := op.Attention{Mask: b.Mask, QLen: b.QLen, KVLen: b.KVLen, QHeads: 4, KVHeads: 2, HeadDim: 64, DType: op.F32}
			add(forwards, op.AttnFwd{Attention: a})
			add(layers, op.AttnBwd{Attention: a})
			if b.Mask == op.Full {
				add(forwards+layers, op.LSEMerge{Tokens: b.QLen, QHeads: 4, HeadDim: 64})
				add(layers, op.LSEMerge{Tokens: 2 * b.KVLen, QHeads: 2, HeadDim: 64})
			}
		}
	}
	// Norm twice, rope on q (256) and k (128), swiglu: backward costs two forwards.
	elementwise := forwards + 2*layers
	add(2*elementwise, op.Norm{Rowwise: row(n, 256)})
	add(elementwise, op.Rope{Rowwise: row(n, 256)})
	add(elementwise, op.Rope{Rowwise: row(n, 128)})
	add(elementwise, op.SwiGLU{Rowwise: row(n, 688)})
	// Projections: q, k and v; output; gate and up; down.
	for _, nk := range [][2]int{{512, 256}, {256, 256}, {1376, 256}, {256, 688}} {
		add(forwards, op.GEMM{Pass: op.Forward, M: n, N: nk[0], K: nk[1], DType: op.F32})
		add(layers, op.GEMM{Pass: op.DGrad, M: n, N: nk[0], K: nk[1], DType: op.F32})
		add(layers, op.GEMM{Pass: op.WGrad, M: n, N: nk[0], K: nk[1], DType: op.F32})
	}
	for done := units.Tokens(0); done < n; done += j.LossChunk {
		chunk := min(j.LossChunk, n-done)
		add(1, op.CEChunk{Rowwise: row(chunk, 1000)})
		for _, pass := range []op.Pass{op.Forward, op.DGrad, op.WGrad} {
			add(1, op.GEMM{Pass: pass, M: chunk, N: 1000, K: 256, DType: op.F32})
		}
	}
	add(3, op.Norm{Rowwise: row(n, 256)})
	params := m.Params()
	if j.Zero != Zero0 {
		params = (params + int64(len(atWork(l))) - 1) / int64(len(atWork(l)))
	}
	add(1, op.AdamW{Params: params})
	return sum
}

// TestRanksComputeTheirOps: a rank is busy for the sum of its ops, and a lone
// rank for the whole step.
func TestRanksComputeTheirOps(t *testing.T) {
	manySteps(t, func(j Job, l Layout, s *Step) {
		for _, r := range atWork(l) {
			want := sumOfOps(t, usual(t), j, l, r)
			if got := s.Ranks[r]; !near(got.Busy, want, 1e-12) {
				t.Errorf("%v, rank %d: busy %v, its ops take %v", j.Cluster, r, got.Busy, want)
			}
			if len(atWork(l)) == 1 && (!near(s.Time.Mid, want, 1e-12) || len(s.Traffic) != 0) {
				t.Errorf("%v alone: %v, want %v; traffic %v", j.Cluster, s.Time.Mid, want, s.Traffic)
			}
		}
	})
}

// TestProportionalSplitIsEven: with rates 3:1, only attention to compute and
// free links, a proportional split reaches the ideal but for the s/2 of its
// squares; an equal split takes twice as long.
func TestProportionalSplitIsEven(t *testing.T) {
	p := madeUp(t, map[string]speeds{"fast": {attention: 3e12}, "slow": {attention: 1e12}}, map[string]wire{"bus": {}})
	const s = 16384
	ideal := 0.0
	for _, times := range []float64{1, 2.5} { // forward and backward
		pairs := float64(s) * (s + 1) / 2
		ideal += 6 * times * 4 * 4 * 64 * pairs / (4*3e12 + 4*1e12)
	}
	for _, shorthand := range []string{"1x4 fast + 1x4 slow", "1x(1 fast + 3 slow) + 1x(3 fast + 1 slow)"} {
		c := cluster(t, shorthand, p, "", "")
		equal, fair := make([]units.Tokens, 8), make([]units.Tokens, 8)
		for r, rank := range c.Ranks() {
			equal[r], fair[r] = s/8, s/16
			if rank.Device == "fast" {
				fair[r] = 3 * s / 16
			}
		}
		for _, x := range []struct {
			tokens []units.Tokens
			want   float64
		}{{equal, 2}, {fair, 1}} {
			got := mustSimulate(t, p, testJob(c, x.tokens), ringOf(x.tokens))
			if ratio := float64(got.Time.Mid) / ideal; math.Abs(ratio-x.want) > 1e-3 {
				t.Errorf("%s, %v: %v times the ideal, want %v", shorthand, x.tokens, ratio, x.want)
			}
		}
	}
}

// TestCommunicationOnly: an equal ring of four with free compute takes n-1 hops
// of keys and values a layer forward; backward the same, and on the same port as
// many hops of gradients: the ports never rest, so the times add up.
func TestCommunicationOnly(t *testing.T) {
	p := madeUp(t, map[string]speeds{"d": {}}, map[string]wire{"bus": {1e-6, 1e9}})
	tokens := []units.Tokens{512, 512, 512, 512}
	j := testJob(cluster(t, "1x4 d", p, "", ""), tokens)
	j.Zero = Zero0
	got := mustSimulate(t, p, j, ringOf(tokens))
	const bytes = 2 * 512 * 128 * 4
	// The only group measured has other members: its law is slowed by 15 %.
	hop := 1.15 * (1e-6 + bytes/1e9)
	layer := 6 * (3*hop + 3*hop + 3*hop)
	sync := 0.0
	params := j.Model.Params()
	perLayer := j.Model.LayerParams()
	for range 6 {
		sync += 1.15 * (1e-6 + 2*0.75*4*float64(perLayer)/1e9)
	}
	sync += 1.15 * (1e-6 + 2*0.75*4*float64(params-6*perLayer)/1e9)
	if want := units.Seconds(layer + sync); !near(got.Time.Mid, want, 1e-9) {
		t.Errorf("%v, want %v\n%+v", got.Time.Mid, want, got.Parts)
	}
	for r, step := range got.Ranks {
		if !near(step.Exposed, got.Time.Mid, 1e-9) {
			t.Errorf("rank %d: only %v of %v exposed", r, step.Exposed, got.Time.Mid)
		}
	}
	if got.Time.Source != Transferred || !strings.Contains(strings.Join(got.Warnings, "\n"), "send_recv among 4 d over bus was not measured") {
		t.Errorf("source %s, warnings %q", got.Time.Source, got.Warnings)
	}
}

func randomTokens(rng *rand.Rand, n int) []units.Tokens {
	tokens := make([]units.Tokens, n)
	for i := range tokens {
		tokens[i] = units.Tokens(rng.IntN(400))
		switch rng.IntN(5) {
		case 0:
			tokens[i] = 0
		case 1:
			tokens[i] = 1
		}
	}
	tokens[rng.IntN(n)]++
	return tokens
}

// manySteps simulates a variety of jobs, with empty and one-token shards among them.
func manySteps(t *testing.T, check func(Job, Layout, *Step)) {
	p := usual(t)
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 8))
		c := cluster(t, []string{"1x4 fast", "2x2 fast + 1x(2 slow + 1 fast)", "1x1 slow", "3x1 slow"}[seed%4], p, "bus", "net")
		if len(c.Nodes) < 2 {
			c.Network = ""
		}
		tokens := randomTokens(rng, len(c.Ranks()))
		j := testJob(c, tokens)
		j.Recompute = []Recompute{RecomputeNone, RecomputeFull}[rng.IntN(2)]
		j.Zero = []ZeRO{Zero0, Zero1, Zero2, Zero3}[rng.IntN(4)]
		j.RingBuffers += rng.IntN(3)
		j.LossChunk = units.Tokens(20 + rng.IntN(300))
		l := ringOf(tokens)
		rng.Shuffle(len(l.Groups), func(a, b int) { l.Groups[a], l.Groups[b] = l.Groups[b], l.Groups[a] })
		check(j, l, mustSimulate(t, p, j, l))
	}
}

func TestPartsAndRanksAddUp(t *testing.T) {
	manyPlans(t, func(x plan, _ *Profile, s *Step) {
		var sum units.Seconds
		for _, p := range s.Parts {
			sum += p.Time.Mid
			if !(p.Time.Lo <= p.Time.Mid && p.Time.Mid <= p.Time.Hi) || p.Time.Mid <= 0 {
				t.Errorf("part %+v", p)
			}
		}
		if !near(sum, s.Time.Mid, 1e-12) {
			t.Errorf("parts add up to %v, the step takes %v", sum, s.Time.Mid)
		}
		if !(s.Time.Lo < s.Time.Mid && s.Time.Mid < s.Time.Hi) {
			t.Errorf("interval %+v", s.Time)
		}
		for r, k := range s.Ranks {
			if !near(k.Busy+k.Exposed+k.Idle, s.Time.Mid, 1e-9) || k.Busy < 0 || k.Exposed < 0 || k.Idle < 0 {
				t.Errorf("rank %d: %+v of %v", r, k, s.Time.Mid)
			}
			if k.Tokens != x.layout.Shards[r].Tokens() || slices.Contains(atWork(x.layout), r) != (k.Busy > 0) {
				t.Errorf("rank %d: %+v", r, k)
			}
		}
	})
}

// TestCriticalRank: the parts are those of the rank that idles least, and
// recomputation is the forward pass once more.
func TestCriticalRank(t *testing.T) {
	manyPlans(t, func(x plan, _ *Profile, s *Step) {
		part := map[string]units.Seconds{}
		for _, p := range s.Parts {
			part[p.Name] = p.Time.Mid
		}
		least := s.Time.Mid
		for _, k := range s.Ranks {
			least = min(least, k.Idle)
		}
		if math.Abs(float64(part["idle"]-least)) > 1e-12*float64(s.Time.Mid) {
			t.Errorf("idle %v, least %v", part["idle"], least)
		}
		want := part["linear forward"] + part["attention forward"]
		if x.job.Recompute == RecomputeNone {
			want = 0
		}
		if !near(part["recompute"], want, 1e-12) {
			t.Errorf("recompute %v, forward %v", part["recompute"], want)
		}
	})
}

// TestAccount: within a law widths add, between laws they add in quadrature.
func TestAccount(t *testing.T) {
	var a, b account
	x, y := &Law{Op: op.KindNorm, Device: "x"}, &Law{Op: op.KindNorm, Device: "y"}
	a.add(0, x, Estimate{8, 10, 13, Interpolated})
	a.add(2, y, Estimate{20, 24, 32, Extrapolated})
	b.add(0, x, Estimate{0.5, 1, 1, Interpolated})
	a.merge(b, 2)
	if got, want := a.total(), (Estimate{31, 36, 36 + units.Seconds(math.Hypot(3, 8)), Extrapolated}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// TestTrafficIsExact: keys and values of a shard go from rank to rank as far as the
// last one with a token behind the shard's first, and their gradients from the first
// one to there and home; a hop is on the class of the two ranks' node or of the
// network.
func TestTrafficIsExact(t *testing.T) {
	early := 0
	manySteps(t, func(j Job, l Layout, s *Step) {
		want := map[string]units.Bytes{}
		ring := atWork(l)
		n := len(ring)
		kvPasses := units.Bytes(2)
		if j.Recompute == RecomputeFull {
			kvPasses = 3
		}
		for i, r := range ring {
			own := l.Shards[r].Segments
			way, needed := []int{r}, false
			for d := n - 1; d > 0 && len(way) == 1; d-- {
				if last := l.Shards[ring[(i+d)%n]].Segments; last[len(last)-1].End-1 > own[0].Start {
					for k := 1; k <= d; k++ {
						way = append(way, ring[(i+k)%n])
					}
				}
			}
			if len(way) < n {
				early++
			}
			size := units.Bytes(l.Shards[r].Tokens()) * 2 * 128 * 4
			for k := 1; k < len(way); k++ {
				want[j.Cluster.linkBetween(way[k-1], way[k])] += 6 * kvPasses * size
				next := r // home
				if k+1 < len(way) {
					next = way[k+1]
				}
				of := l.Shards[way[k]].Segments
				if needed = needed || of[len(of)-1].End-1 > own[0].Start; needed {
					want[j.Cluster.linkBetween(way[k], next)] += 6 * size
				}
			}
		}
		addRings(want, j, ring)
		got := map[string]units.Bytes{}
		for _, x := range s.Traffic {
			got[x.Link] += x.Bytes
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%v, ring %v: (-want +got)\n%s", j.Cluster, ring, diff)
		}
	})
	if early == 0 {
		t.Error("no shard was needed by some ranks only")
	}
}

// TestTimelineIsConsistent: spans of one resource never overlap, and none ends
// after the step.
func TestTimelineIsConsistent(t *testing.T) {
	type resource struct {
		rank int
		name string
	}
	manyPlans(t, func(x plan, _ *Profile, s *Step) {
		by := map[resource][]Span{}
		for _, y := range s.Timeline {
			if y.End < y.Start || y.Start < 0 || float64(y.End) > float64(s.Time.Mid)*(1+1e-12) {
				t.Fatalf("span %+v of a step of %v", y, s.Time.Mid)
			}
			k := resource{y.Rank, y.Resource}
			by[k] = append(by[k], y)
		}
		for k, spans := range by {
			slices.SortFunc(spans, func(a, b Span) int {
				if a.Start != b.Start {
					return int(math.Copysign(1, float64(a.Start-b.Start)))
				}
				return int(math.Copysign(1, float64(a.End-b.End)))
			})
			for i := 1; i < len(spans); i++ {
				if over := spans[i-1].End - spans[i].Start; float64(over) > 1e-12*float64(s.Time.Mid) {
					t.Fatalf("%v: %+v overlaps %+v", k, spans[i-1], spans[i])
				}
			}
		}
		for _, r := range atWork(x.layout) {
			if len(by[resource{r, "compute"}]) == 0 {
				t.Errorf("rank %d computes nothing", r)
			}
			// Of one layer that stands for others, what these take is drawn too.
			for _, pass := range []string{"forward, like", "backward, like"} {
				drawn := units.Seconds(0)
				for _, y := range by[resource{r, "compute"}] {
					if strings.Contains(y.Name, " more layer") && strings.Contains(y.Name, pass) {
						drawn += y.End - y.Start
					}
				}
				if n := x.job.Model.Layers; n > 1 && drawn == 0 || n*max(1, x.job.Accumulate) == 1 && drawn > 0 {
					t.Errorf("rank %d, %d layers in %d micro-batches: %v of more layers %s", r, n, x.job.Accumulate, drawn, pass)
				}
			}
		}
	})
}

// TestIntervals: laws that all err by 10 % make a step that errs by less, for
// they err independently, but by no less than the quadrature of ten laws.
func TestIntervals(t *testing.T) {
	manySteps(t, func(_ Job, _ Layout, s *Step) {
		if got := s.Time.Spread(); got > 0.25 || got < 0.1/4 {
			t.Errorf("spread %v", got)
		}
	})
	p := madeUp(t, map[string]speeds{"d": {gemm: 1e12}}, nil)
	tokens := []units.Tokens{64}
	for i := range p.Laws {
		// Only the forward product errs; it is a third of the step.
		if l := &p.Laws[i]; l.Variant.Pass != op.Forward {
			l.Spread = Spread{1, 1}
		}
	}
	s := mustSimulate(t, p, testJob(cluster(t, "1x1 d", p, "", ""), tokens), ringOf(tokens))
	if got := s.Time.Spread(); math.Abs(got-0.1/3) > 1e-6 {
		t.Errorf("spread %v, want a third of 0.1", got)
	}
}

func TestExtrapolationIsTold(t *testing.T) {
	p := madeUp(t, map[string]speeds{"d": {1e12, 1e12, 1e12}}, nil)
	for i := range p.Laws {
		if p.Laws[i].Op == op.KindAttnFwd {
			p.Laws[i].Range[0].Max = 128 // q_len; two doublings below 512
		}
	}
	tokens := []units.Tokens{512}
	s := mustSimulate(t, p, testJob(cluster(t, "1x1 d", p, "", ""), tokens), ringOf(tokens))
	want := "attn_fwd (diag d64 f32) on d is used up to 2.0 doublings outside its measured range"
	if s.Time.Source != Extrapolated || !strings.Contains(strings.Join(s.Warnings, "\n"), want) {
		t.Errorf("source %s, warnings %q", s.Time.Source, s.Warnings)
	}
	// Several are told together, in the order of their use.
	for i := range p.Laws {
		if p.Laws[i].Op == op.KindNorm {
			p.Laws[i].Range[0].Max = 256 // tokens
		}
	}
	s = mustSimulate(t, p, testJob(cluster(t, "1x1 d", p, "", ""), tokens), ringOf(tokens))
	want = "laws are used outside their measured range, by up to so many doublings: norm (f32) 1.0, attn_fwd (diag d64 f32) 2.0 on d; a longer calibration reaches further: evenkeel calibrate --fresh --budget 10m"
	if !slices.Contains(s.Warnings, want) {
		t.Errorf("warnings %q", s.Warnings)
	}
}

// What is assumed for one reason is one sentence, however many device types it is of, and
// says of each which laws it is: a plan on four of them would have forty otherwise.
func TestAssumptionsOfOneReasonAreToldTogether(t *testing.T) {
	p := usual(t)
	for i := range p.Laws {
		switch l := &p.Laws[i]; {
		case l.Op == op.KindNorm, l.Op == op.KindRope && l.Device == "fast":
			l.Assumed = "nobody looked"
		case l.Op == op.KindSwiGLU, l.Op == op.KindGELU:
			l.Assumed = "by eye"
		}
	}
	tokens := []units.Tokens{256, 256, 256, 256}
	s := mustSimulate(t, p, testJob(cluster(t, "1x(2 fast + 2 slow)", p, "bus", ""), tokens), ringOf(tokens))
	var told []string
	for _, w := range s.Warnings {
		if strings.Contains(w, ": assumed; ") {
			told = append(told, w)
		}
	}
	want := []string{
		"norm (f32), rope (f32) on fast; norm (f32) on slow: assumed; nobody looked",
		"swiglu (f32) on fast, slow: assumed; by eye",
	}
	if !slices.Equal(told, want) {
		t.Errorf("%q, want %q", told, want)
	}
}

// Software is told of device types that the cluster has: what else a profile holds is no reason
// to measure anew.
func TestSoftwareIsToldOfTheClustersOwnDevices(t *testing.T) {
	p := usual(t)
	p.Devices[0].Stack, p.Devices[1].Stack = "torch-2.8 cuda", "trtllm-1.0" // of fast, slow
	tokens := []units.Tokens{512}
	for shorthand, want := range map[string]string{
		"1x1 fast":            "",
		"1x1 slow":            "",
		"1x(1 fast + 1 slow)": "device types were measured through different software: torch on fast; trtllm on slow; which",
	} {
		told := strings.Join(newCoster(NewPredictor(p), testJob(cluster(t, shorthand, p, "bus", "net"), tokens)).software(), "\n")
		if !strings.HasPrefix(told, want) || want == "" && told != "" {
			t.Errorf("%s: %q, want %q", shorthand, told, want)
		}
	}
}

func TestSimulateErrors(t *testing.T) {
	p := usual(t)
	tokens := []units.Tokens{100, 100}
	good := testJob(cluster(t, "1x2 fast", p, "bus", ""), tokens)
	for name, c := range map[string]struct {
		change func(*Job, *Layout)
		want   string
	}{
		"layout":    {func(_ *Job, l *Layout) { l.Groups = l.Groups[:1] }, "layout: groups: rank 1 has 100 tokens"},
		"length":    {func(j *Job, _ *Layout) { j.SeqLen = 0 }, "job: seq_len_tokens: 0: want 1 to"},
		"window":    {func(j *Job, _ *Layout) { j.Model.MaxLen = 100 }, "sliding window of 100 tokens"},
		"dtype":     {func(j *Job, _ *Layout) { j.DType = "" }, "job: dtype"},
		"recompute": {func(j *Job, _ *Layout) { j.Recompute = "some" }, `job: recompute: "some": want none or full`},
		"buffers":   {func(j *Job, _ *Layout) { j.RingBuffers = 1 }, "job: ring_buffers: 1: want at least 2"},
		"chunk":     {func(j *Job, _ *Layout) { j.LossChunk = 0 }, "job: loss_chunk_tokens: 0"},
		"zero":      {func(j *Job, _ *Layout) { j.Zero = "3" }, `job: zero: "3"`},
		"model":     {func(j *Job, _ *Layout) { j.Model.Layers = 0 }, "job: model.layers: 0: want 1 to"},
		"positions": {func(j *Job, _ *Layout) { j.Model.PositionRows, j.Model.MaxLen = 9, 9 }, "the model's table of learned positions ends after 9 tokens"},
		"device":    {func(j *Job, _ *Layout) { j.Cluster.Nodes = []Node{node("n", op.Member{Device: "gpu", Count: 2})} }, `device type "gpu" is not in the profile`},
		"no law":    {func(j *Job, _ *Layout) { j.DType = op.BF16 }, "no law for norm (bf16), gemm (fwd bf16), rope (bf16), attn_fwd (diag d64 bf16), attn_fwd (full d64 bf16), swiglu (bf16), gemm (dgrad bf16), gemm (wgrad bf16), attn_bwd (diag d64 bf16), attn_bwd (full d64 bf16) on fast in the profile"},
		"open link": {func(j *Job, _ *Layout) { j.Cluster.Nodes[0].Link = "" }, "cluster.nodes[0].link: empty"},
		"no link":   {func(j *Job, _ *Layout) { j.Cluster.Nodes[0].Link = "other" }, "no law for send_recv, all_gather, reduce_scatter on links of class other"},
	} {
		j, l := good, ringOf(tokens)
		j.Cluster.Nodes = slices.Clone(good.Cluster.Nodes)
		c.change(&j, &l)
		_, err := Simulate(NewPredictor(p), j, l, SimOptions{})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		var missing *MissingLawError
		if strings.HasPrefix(name, "no ") != errors.As(err, &missing) {
			t.Errorf("%s: %T", name, err)
		}
	}
}

// linkBetween names the link class between ranks a and b: their node's, or the network.
func (c Cluster) linkBetween(a, b int) string {
	ranks := c.Ranks()
	if node := ranks[a].Node; node == ranks[b].Node {
		return c.Nodes[node].Link
	}
	return c.Network
}
