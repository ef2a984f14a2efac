package costmodel

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

func readModel(t testing.TB, config string) Model {
	t.Helper()
	m, err := ReadModel("config.json", []byte(config))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// llamaJob is Llama-8B in bf16.
func llamaJob(t testing.TB) Job {
	return Job{Model: readModel(t, llama3), DType: op.BF16, Recompute: RecomputeNone, RingBuffers: 2, LossChunk: 16384}
}

// alone is the share of a rank that is a group of its own.
func alone(j Job, tokens, widest units.Tokens, ranks int) MemoryShare {
	m := j.Model
	return MemoryShare{Tokens: tokens, GroupTokens: tokens, Widest: widest, QHeads: m.QHeads, KVHeads: m.KVHeads, Ranks: ranks, Others: min(int(widest), ranks-1)}
}

// TestMemoryOfLlama8B compares with hand calculations: a token's activations
// in one layer are 8h + 4hq + 4hkv + 6f + 4Hq + 8 = 139,400 bytes, in all 32
// 4.46 MB; under full recomputation 2hL of them stay and one live layer.
func TestMemoryOfLlama8B(t *testing.T) {
	const million = 1_000_000
	j := llamaJob(t)
	if got := j.LayerActivations(); got != 139_400 {
		t.Errorf("%d bytes a token and layer, want 139,400", got)
	}
	kept := j.MemoryOf(alone(j, million, 0, 1), DeviceMemory{Capacity: 80 * units.GiB})
	if want := units.Bytes(32 * 139_400 * million); kept.Activations != want {
		t.Errorf("activations %d, want %d", kept.Activations, want)
	}
	j.Recompute = RecomputeFull
	full := j.MemoryOf(alone(j, million, 0, 1), DeviceMemory{})
	if want := units.Bytes((2*4096*32 + 139_400) * million); full.Activations != want {
		t.Errorf("recomputed: %d, want %d", full.Activations, want)
	}
	// 16,384 tokens of 128,256 logits at 2 + 4 + 4 bytes.
	if want := units.Bytes(16384 * 128256 * 10); full.Logits != want {
		t.Errorf("logits %d, want %d", full.Logits, want)
	}
	if got, want := j.MemoryOf(alone(j, 100, 1, 2), DeviceMemory{}).Logits, units.Bytes(100*128256*10); got != want {
		t.Errorf("a shard of less than a chunk: logits %d, want %d", got, want)
	}
	if kept.Capacity != 80*units.GiB || kept.Fits() {
		t.Errorf("%+v should not fit", kept)
	}
	if got := kept.Peak(); got != kept.States+kept.Activations+kept.Transient+kept.Logits {
		t.Errorf("peak %d of %+v", got, kept)
	}
}

// TestStateBytes: 16 bytes a parameter, of which ZeRO-1 shards 12, ZeRO-2 14,
// ZeRO-3 all with a window of the parameters that are gathered: for Llama-8B
// the 128256 x 4096 output projection, which is more than two layers.
func TestStateBytes(t *testing.T) {
	const p, n, window = 8_030_261_248, 8, 2 * 128256 * 4096
	for zero, want := range map[ZeRO]units.Bytes{
		Zero0: 16 * p, Zero1: 4*p + 12*p/n, Zero2: 2*p + 14*p/n, Zero3: 16*p/n + window, "": 16*p/n + window,
	} {
		for _, d := range []op.DType{op.BF16, op.F32} {
			j := llamaJob(t)
			j.Zero, j.DType = zero, d
			want := want
			if d == op.F32 { // 4 + 4 + 8: no master copy
				want = map[ZeRO]units.Bytes{Zero0: 16 * p, Zero1: 8*p + 8*p/n, Zero2: 4*p + 12*p/n}[zero]
				if want == 0 {
					want = 16*p/n + 2*window
				}
			}
			if got := j.MemoryOf(alone(j, 1, 1, n), DeviceMemory{}).States; got != want {
				t.Errorf("%q %s: %d bytes, want %d", zero, d, got, want)
			}
		}
	}
}

// TestTransientBytes: of Llama-8B the MLP's backward pass is the fullest, by 2h + 4f bytes a
// token, until blocks of many tokens pass by: then the attention's is, by when the MLP's 6f
// bytes are free. It has the output's gradient and those of queries (2 + 4 bytes), of the own
// block of 1,024 keys and as many values in float32 twice, two blocks of the others' 131,072
// tokens, as many float32 gradients and one more of the rank's own share, and of one block the
// kernel's gradients, expanded to 4,096 query columns.
func TestTransientBytes(t *testing.T) {
	const own, widest, kv, q = 65536, 131072, 2 * 1024, 4096
	j := llamaJob(t)
	if got, want := j.MemoryOf(alone(j, own, 0, 1), DeviceMemory{}).Transient, units.Bytes(own*(2*4096+4*14336)); got != want {
		t.Errorf("alone: %d bytes, want %d", got, want)
	}
	share := alone(j, own, widest, 3)
	ring := units.Bytes(own*q*(2+4+2) + own*kv*(4+4) + widest*kv*(2*(2+4)+4) + 2*widest*kv + 4*widest*q)
	if got := j.MemoryOf(share, DeviceMemory{}).Transient; got != ring-own*6*14336 {
		t.Errorf("%d bytes, want %d", got, ring-own*6*14336)
	}
	share.Others, share.Tokens = 1, 0 // the second buffers stay empty
	if got, want := j.MemoryOf(share, DeviceMemory{}).Transient, ring-widest*kv*(2+4+4); got != want {
		t.Errorf("one other: %d bytes, want %d", got, want)
	}
	share.Others, share.Tokens, j.RingBuffers = 7, own, 3
	if got, want := j.MemoryOf(share, DeviceMemory{}).Transient, ring+widest*kv*(2+4+4+4)-own*6*14336; got != want {
		t.Errorf("three buffers of each: %d bytes, want %d", got, want)
	}
	j.RingBuffers = 2
	j.Model.KVHeads, j.Model.GatedMLP = j.Model.QHeads, false // nothing is expanded, and 4f bytes are free
	share = alone(j, own, widest, 3)
	ring = units.Bytes(own*q*(2+4+2) + own*2*q*(4+4) + widest*2*q*(2*(2+4)+4) + 2*widest*2*q)
	if got, want := j.MemoryOf(share, DeviceMemory{}).Transient, ring-own*4*14336; got != want {
		t.Errorf("no GQA: %d bytes, want %d", got, want)
	}
	// A rank of a group that has all heads of many tokens and few of its own: what the ring
	// leaves in float32, and once more in one piece.
	one := MemoryShare{Tokens: 1000, GroupTokens: own, QHeads: 32, KVHeads: 32, Ranks: 2}
	if got, want := j.MemoryOf(one, DeviceMemory{}).Transient, units.Bytes(2*4*own*3*q-1000*4*14336); got != want {
		t.Errorf("all heads: %d bytes, want %d", got, want)
	}
	// Of nine pieces of eight KV heads two are added up, all in new tensors.
	one.KVHeads, one.Cuts = 8, 1
	if got, want := NewMemoryModel(j).gradientsTransient(&one), float64(4*own*(2*q+2*9*128+2*2*8*128)); got != want {
		t.Errorf("a KV head cut: %v bytes, want %v", got, want)
	}
}

// groupPlan is Llama-8B on five ranks in two groups: {0, 1, 2} with 6, 26 and no
// heads, of which the second cuts a key-value head, and {3, 4} with 16 each.
func groupPlan(t *testing.T) plan {
	j := llamaJob(t)
	j.Cluster = Cluster{Nodes: []Node{node("n", op.Member{Device: "d", Count: 6})}}
	tokens := []units.Tokens{1000, 0, 3000, 500, 1500, 0}
	j.SeqLen = sumTokens(tokens)
	return plan{j, ZigZag(tokens, []Group{{{0, 6}, {1, 26}, {2, 0}}, {{3, 16}, {4, 16}}})}
}

// TestMemoryOfGroups follows memory.md's split of A by hand: 118,792 bytes (8h +
// 6f + 8 with h = 4096, f = 14336) for each token of its own, 516 bytes for each
// query head and 512 for each key-value head and token of its group (4 D + 4 and
// 4 D with D = 128), and the attention output a second time, by tokens (2 hq).
func TestMemoryOfGroups(t *testing.T) {
	x := groupPlan(t)
	q := NewPredictor(&Profile{Devices: []op.DeviceType{{Name: "d", Memory: 80 * units.GiB}}})
	got := q.MemoryIn(x.job, x.layout)
	const group0, group1, d = 4000, 2000, 128
	for r, want := range []struct {
		own, ofGroup  units.Tokens
		q, kv         units.Bytes // heads
		twice         units.Bytes // of kv, those that a border of the other group cuts
		widest, chunk units.Bytes // of the other group; of the loss
	}{
		{1000, group0, 6, 2, 0, group1, 1000}, // heads 0 to 5 need KV heads 0 and 1
		{0, group0, 26, 7, 0, group1, 0},      // 6 to 31 need 1 to 7: head 1 is needed by two
		{3000, group0, 0, 0, 0, group1, 3000},
		{500, group1, 16, 4, 1, group0, 500}, // heads 4 and 5 of KV head 1 go to one rank, 6 and 7 to another
		{1500, group1, 16, 4, 0, group0, 1500},
	} {
		own, ofGroup := units.Bytes(want.own), units.Bytes(want.ofGroup)
		kept := 32 * (own*118_792 + ofGroup*(516*want.q+512*(want.kv+want.twice)) + own*2*4096)
		if got[r].Activations != kept {
			t.Errorf("rank %d: activations %d, want %d", r, got[r].Activations, kept)
		}
		// The MLP's backward pass, the ring's, with one block of keys and values, its
		// gradients that travel, and gradients expanded to query heads, and what follows that.
		held, block := want.kv+want.twice, max(ofGroup, want.widest)
		ring := ofGroup*want.q*d*(2+4+2) + ofGroup*2*held*d*(4+4) + want.widest*2*held*d*(2+4) + block*2*want.kv*d*2
		if want.kv < want.q {
			ring += 2 * 2 * block * want.q * d
		}
		after := 4*d*ofGroup*(2*want.q+2*held) + 4*d*ofGroup*2*want.kv
		if want.twice > 0 { // once for a kernel; added up before it is put together
			ring += block * 2 * want.kv * d * 2
			after += 4 * d * ofGroup * 2 * want.kv
		}
		if transient := max(own*(2*4096+4*14336), max(ring, after)-own*6*14336); got[r].Transient != transient {
			t.Errorf("rank %d: transient %d, want %d", r, got[r].Transient, transient)
		}
		if got[r].Logits != want.chunk*128256*10 {
			t.Errorf("rank %d: logits %d", r, got[r].Logits)
		}
		if states := (16*units.Bytes(8_030_261_248)+4)/5 + 2*128256*4096; got[r].States != states {
			t.Errorf("rank %d: states %d, want a fifth and the window, %d", r, got[r].States, states)
		}
	}
	if got[5] != (Memory{Capacity: 80 * units.GiB}) {
		t.Errorf("a rank without a place holds %+v", got[5])
	}
}

// TestMeasuredSlopeOfGroups: a layer measured to take a tenth more than the
// formula takes that more in every share.
func TestMeasuredSlopeOfGroups(t *testing.T) {
	x := groupPlan(t)
	x.job.Recompute = RecomputeFull
	for _, s := range x.layout.memoryShares(x.job.Model)[:5] {
		formula := x.job.MemoryOf(s, DeviceMemory{}).Activations - 32*units.Bytes(s.Tokens)*4096*2
		got := x.job.MemoryOf(s, DeviceMemory{LayerToken: 153_340}).Activations - 32*units.Bytes(s.Tokens)*4096*2
		if want := (formula*11 + 9) / 10; got != want { // 153,340 = 1.1 x 139,400
			t.Errorf("%+v: a live layer of %d, want %d", s, got, want)
		}
	}
}

// A memory model asked about one rank after the other says of each what a new one
// says.
func TestMemoryModelForgetsNothing(t *testing.T) {
	r := rand.New(rand.NewPCG(31, 4))
	j := llamaJob(t)
	x := NewMemoryModel(j)
	for range 2000 {
		s := MemoryShare{Tokens: units.Tokens(r.IntN(1 << 20)), GroupTokens: units.Tokens(r.IntN(1 << 20)), Widest: units.Tokens(r.IntN(1 << 18)), Others: r.IntN(9), QHeads: r.IntN(33), KVHeads: r.IntN(9), Cuts: r.IntN(3), Ranks: 1 + r.IntN(4)}
		dev := DeviceMemory{Capacity: units.Bytes(r.IntN(80)) * units.GiB, LayerToken: units.Bytes(r.IntN(2) * 150_000)}
		if got, want := x.Of(s, dev), j.MemoryOf(s, dev); got != want {
			t.Fatalf("%+v: %+v, want %+v", s, got, want)
		}
	}
}

// A rank has room for as many tokens as MostTokens says, and for no more, whichever phase of
// the backward pass is the fullest.
func TestMostTokensFillMemory(t *testing.T) {
	r := rand.New(rand.NewPCG(36, 2))
	some, none, ringBinds := 0, 0, 0
	for range 3000 {
		j := llamaJob(t)
		if r.IntN(2) == 0 {
			j.Recompute = RecomputeFull
		}
		if r.IntN(2) == 0 {
			j.Model.KVHeads, j.Model.GatedMLP = j.Model.QHeads, false
		}
		j.LossChunk = []units.Tokens{256, 16384, 1 << 20}[r.IntN(3)]
		x := NewMemoryModel(j)
		s := MemoryShare{
			GroupTokens: units.Tokens(r.IntN(1 << 17)), Widest: units.Tokens(r.IntN(1 << 15)), Others: r.IntN(4), Copied: units.Tokens(r.IntN(2) * 1000),
			QHeads: r.IntN(33), KVHeads: r.IntN(9), Cuts: r.IntN(2), Ranks: 1 + r.IntN(64), TwoBatch: r.IntN(2) == 0,
		}
		s.Woven = s.TwoBatch && r.IntN(2) == 0
		dev := DeviceMemory{Capacity: units.Bytes(20+r.IntN(180)) * units.GiB, LayerToken: units.Bytes(r.IntN(2) * (120_000 + r.IntN(90_000)))}
		most := x.MostTokens(s, dev)
		fits := func(tokens float64) bool {
			s.Tokens = units.Tokens(max(0, tokens))
			return x.Of(s, dev).Fits()
		}
		if most < 2 {
			if none++; fits(3) {
				t.Fatalf("%+v on %+v: no room, but 3 tokens fit", s, dev)
			}
			continue
		}
		if some++; !fits(most*(1-1e-6)-1) || fits(most*(1+1e-6)+2) {
			t.Fatalf("%+v on %+v: room for %v tokens, of which fit %v, and of a few more %v", s, dev, most, fits(most*(1-1e-6)-1), fits(most*(1+1e-6)+2))
		}
		s.Tokens = units.Tokens(most)
		if max(x.ringTransient(&s), x.gradientsTransient(&s))-x.freedByMLP(&s) > x.mlpTransient(&s) {
			ringBinds++
		}
	}
	if some < 500 || none < 100 || ringBinds < 100 || ringBinds > some-100 {
		t.Errorf("%d with room, %d without, the attention the fullest in %d: the test says little", some, none, ringBinds)
	}
}

// TestTailsTakeNoBuffers: where the tail stays at home the others have room for what
// travels alone, and its own group for a copy of that.
func TestTailsTakeNoBuffers(t *testing.T) {
	tokens := []units.Tokens{900, 124}
	j := testJob(Cluster{Network: "net", Nodes: []Node{{Name: "a", Link: "bus", Devices: []op.Member{{Device: "fast", Count: 2}}}}}, tokens)
	l := Layout{Groups: Singles(tokens, j.Model.QHeads), Shards: []Shard{{[]Segment{{0, 100}, {224, 1024}}}, {[]Segment{{100, 224}}}}}
	of := func(keep bool) []Memory {
		l.KeepTail = keep
		return j.MemoryWith(l, func(int) DeviceMemory { return DeviceMemory{} })
	}
	share := func(own, widest, copied units.Tokens) MemoryShare {
		s := alone(j, own, widest, 2)
		s.Copied = copied
		return s
	}
	for name, tc := range map[string]struct {
		got  []Memory
		want []MemoryShare
	}{
		"whole":   {of(false), []MemoryShare{share(900, 124, 0), share(124, 900, 0)}},
		"at home": {of(true), []MemoryShare{share(900, 124, 100), share(124, 100, 0)}},
	} {
		for r, s := range tc.want {
			if want := j.MemoryOf(s, DeviceMemory{}); tc.got[r] != want {
				t.Errorf("%s, rank %d: %+v, want %+v", name, r, tc.got[r], want)
			}
		}
	}
	if m := of(true); m[0].Transient == 0 || len(l.Groups) != 2 {
		t.Errorf("%+v", m)
	}
	d, e := units.Bytes(j.Model.HeadDim), j.DType.Size()
	x, parts, none := NewMemoryModel(j), share(900, 124, 100), share(900, 124, 0)
	want := 2 * 100 * units.Bytes(j.Model.KVHeads) * d * e
	if got := x.ringTransient(&parts) - x.ringTransient(&none); got != float64(want) {
		t.Errorf("a copy of 100 tokens takes %v bytes, want %d", got, want)
	}
}

// TestWhoIsNotAloneMerges: where no other group sends anything, as the tail that stays at home,
// there is still one to merge with; a group alone has none.
func TestWhoIsNotAloneMerges(t *testing.T) {
	l := Layout{Schedule: Schedule{KeepTail: true}, Groups: []Group{{{0, 4}}, {{1, 4}}}, Shards: []Shard{{[]Segment{{0, 100}}}, {[]Segment{{100, 224}}}}}
	if s := l.memoryShares(smallModel()); s[0].Widest != 1 || s[1].Widest != 100 {
		t.Errorf("beside a group that sends nothing %d, beside one that sends 100 tokens %d", s[0].Widest, s[1].Widest)
	}
	l = Layout{Schedule: Schedule{KeepTail: true}, Groups: []Group{{{0, 4}}}, Shards: []Shard{{[]Segment{{0, 100}}}}}
	if s := l.memoryShares(smallModel()); s[0].Widest != 0 {
		t.Errorf("alone %d", s[0].Widest)
	}
}

// TestTwoMicroBatchesAtOnce keep what the layers keep twice, and the gradient of the other's
// output beside the fullest phase; by the attention's backward both MLPs are through.
func TestTwoMicroBatchesAtOnce(t *testing.T) {
	j := testJob(Cluster{Network: "net", Nodes: []Node{{Name: "a", Link: "bus", Devices: []op.Member{{Device: "fast", Count: 4}}}}}, []units.Tokens{100, 200, 300, 424})
	m, e := j.Model, j.DType.Size()
	mlp, waits := units.Bytes(m.Hidden+2*m.FFN)*e, units.Bytes(m.Hidden)*e
	for _, recompute := range []Recompute{RecomputeNone, RecomputeFull} {
		j.Recompute = recompute
		for _, tokens := range []units.Tokens{0, 1, 200} {
			s := MemoryShare{Tokens: tokens, GroupTokens: 300, Widest: 724, Others: 2, QHeads: 1, KVHeads: 1, Ranks: 4}
			one := j.MemoryOf(s, DeviceMemory{})
			attention := units.Bytes(NewMemoryModel(j).attentionTransient(&s))
			s.TwoBatch = true
			two := j.MemoryOf(s, DeviceMemory{})
			n := units.Bytes(tokens)
			want := max(n*mlp, attention-2*n*j.MLPActivations()) + n*waits
			if two.Activations != 2*one.Activations || two.Transient != want {
				t.Errorf("recompute %s: %d and %d bytes of %d tokens, one alone %d and %d; want %d", recompute, two.Activations, two.Transient, n, one.Activations, one.Transient, want)
			}
			s.Woven = true
			x := NewMemoryModel(j)
			ring, kernel, gradients := x.ringTransient(&s), x.kernelTransient(&s), x.gradientsTransient(&s)
			want = max(n*mlp, units.Bytes(2*ring+max(kernel, gradients))-2*n*j.MLPActivations()) + n*waits
			if got := j.MemoryOf(s, DeviceMemory{}); got.Transient != want || got.Activations != two.Activations {
				t.Errorf("rings in turn: %d and %d bytes of %d tokens, want %d and %d", got.Activations, got.Transient, n, two.Activations, want)
			}
			if two.States != one.States || two.Logits != one.Logits {
				t.Errorf("recompute %s: states %d, logits %d, one alone %d and %d", recompute, two.States, two.Logits, one.States, one.Logits)
			}
		}
	}
}

// TestMemoryBeyondAnInt64DoesNotFit: a model that ReadModel takes keeps 4,096 layers x
// 2^24 elements x 8 bytes (both norms' inputs and outputs in bf16) of every
// token, 5.5e11 bytes: of 10 million 5.5e18, of 20 million more than 2^63, which once
// wrapped around to -7.45e18 and fitted.
func TestMemoryBeyondAnInt64DoesNotFit(t *testing.T) {
	j := Job{
		Model: readModel(t, `{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "hidden_size": 16777216,
			"intermediate_size": 1, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 2, "num_hidden_layers": 4096, "vocab_size": 1}`),
		DType: op.BF16, Recompute: RecomputeNone, RingBuffers: 2, LossChunk: 16384,
	}
	before := units.Bytes(0)
	for _, tokens := range []units.Tokens{10_000_000, 20_000_000, 40_000_000, maxSeqLen} {
		for _, twos := range []bool{false, true} {
			for _, measured := range []units.Bytes{0, 1 << 62} {
				s := alone(j, tokens, tokens, 1)
				s.TwoBatch = twos
				m := j.MemoryOf(s, DeviceMemory{Capacity: 80 * units.GiB, LayerToken: measured})
				if m.Fits() || m.Activations < 5e18 || m.Transient < 0 || m.Peak() < m.Activations {
					t.Errorf("%d tokens, in twos %v: %+v, in all %d", int64(tokens), twos, m, int64(m.Peak()))
				}
				before = max(before, m.Activations)
			}
		}
	}
	if before != math.MaxInt64 {
		t.Errorf("at most %d bytes of activations, want the largest size", int64(before))
	}
}

// TestTwoMicroBatchesTakeTwo: one alone has no other to go with, and heads in chunks hide
// all-to-alls already.
func TestTwoMicroBatchesTakeTwo(t *testing.T) {
	p := madeUp(t, map[string]speeds{"fast": {3e12, 4e12, 2e12}}, map[string]wire{"bus": {1e-6, 1e9}})
	tokens := []units.Tokens{512, 512}
	j := testJob(cluster(t, "1x2 fast", p, "bus", ""), tokens)
	l := ZigZag(tokens, []Group{{{0, j.Model.QHeads / 2}, {1, j.Model.QHeads / 2}}})
	l.TwoBatch = true
	if _, err := Simulate(NewPredictor(p), j, l, SimOptions{}); err == nil || !strings.Contains(err.Error(), "two_batch_overlap: with 1 micro-batch") {
		t.Error(err)
	}
	j.Accumulate, l.HeadChunks = 2, 2
	if _, err := Simulate(NewPredictor(p), j, l, SimOptions{}); err == nil || !strings.Contains(err.Error(), "two_batch_overlap: with head_chunks 2") {
		t.Error(err)
	}
	if l.HeadChunks = 0; mustSimulate(t, p, j, l).Time.Mid <= 0 {
		t.Error("no time")
	}
}

// TestRingsInTurnHoldTwo: two backward rings that take turns hold the buffers of both.
func TestRingsInTurnHoldTwo(t *testing.T) {
	p := madeUp(t, map[string]speeds{"fast": {3e12, 4e12, 2e12}}, map[string]wire{"bus": {1e-6, 1e9}})
	tokens := []units.Tokens{5120, 5120}
	j := testJob(cluster(t, "1x2 fast", p, "bus", ""), tokens)
	j.Accumulate, j.Model.FFN = 2, 16 // so that the attention is the fullest
	l := ZigZag(tokens, Singles(tokens, j.Model.QHeads))
	l.TwoBatch = true
	took := func() units.Bytes { return mustSimulate(t, p, j, l).Ranks[0].Memory.Transient }
	after := took()
	if l.WeaveForward = true; took() != after {
		t.Errorf("forward in turn: %d bytes, one after the other %d", took(), after)
	}
	if l.WeaveBackward = true; took() <= after {
		t.Errorf("backward in turn: %d bytes, one after the other %d", took(), after)
	}
}
