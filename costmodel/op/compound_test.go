package op

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/evenkeel/evenkeel/internal/units"
)

// The FLOPs of a block counted by hand: every linear layer's 2mnk (twice that
// backward) and attention's under the mask.
func TestALayerIsTheSumOfItsParts(t *testing.T) {
	const tokens, hidden, ffn, q, kv, dim = 96, 128, 320, 8, 2, 16
	l := Layer{Tokens: tokens, Hidden: hidden, FFN: ffn, QHeads: q, KVHeads: kv, HeadDim: dim, DType: BF16}
	linear := 2.0 * tokens * (hidden*(q+2*kv)*dim + q*dim*hidden + hidden*2*ffn + ffn*hidden)
	attention := 4.0 * q * dim * tokens * (tokens + 1) / 2
	for _, c := range []struct {
		shape  Compound
		linear float64 // times the forward's
		attn   float64
		calls  int
	}{{LayerFwd{l}, 1, 1, 10}, {LayerBwd{l}, 2, 2.5, 19}} {
		var heavy, light units.FLOPs
		var all Work
		for _, p := range c.shape.Parts() {
			if err := p.Validate(); err != nil {
				t.Errorf("%s: part %s: %v", c.shape.Kind(), p.Kind(), err)
			}
			w := p.Work()
			all = Work{all.FLOPs + w.FLOPs, all.Read + w.Read, all.Write + w.Write, 0}
			if _, row := p.(interface{ matrix() units.Bytes }); row {
				light += w.FLOPs
			} else {
				heavy += w.FLOPs
			}
		}
		if want := c.linear*linear + c.attn*attention; float64(heavy) != want {
			t.Errorf("%s: %v FLOPs in attention and products, counted %v", c.shape.Kind(), heavy, want)
		}
		if all != c.shape.Work() || light == 0 || len(c.shape.Parts()) != c.calls {
			t.Errorf("%s: work %+v of %d parts, its parts' %+v", c.shape.Kind(), c.shape.Work(), len(c.shape.Parts()), all)
		}
	}
}

// The largest layer that validates neither overflows nor has an invalid part.
func TestTheLargestLayerStaysInsideInt64(t *testing.T) {
	l := Layer{Tokens: maxTokens, Hidden: maxWidth, FFN: maxWidth / 2, QHeads: 2048, KVHeads: 1024, HeadDim: 4096, DType: F32}
	for _, s := range []Compound{LayerFwd{l}, LayerBwd{l}} {
		if err := s.Validate(); err != nil {
			t.Fatal(err)
		}
		sum := 0.0
		for _, p := range s.Parts() {
			if err := p.Validate(); err != nil {
				t.Errorf("%s: %v", s.Kind(), err)
			}
			sum += float64(p.Work().Read) + float64(p.Work().Write)
		}
		if got := float64(s.Work().Bytes()); math.Abs(got-sum) > 1e-9*sum {
			t.Errorf("%s: %v bytes, want %v", s.Kind(), got, sum)
		}
	}
}

// One document is the DIAG block it is; several are the sum of theirs, and
// without tails their features are, too.
func TestVarlenIsTheSumOfItsDocuments(t *testing.T) {
	v := Varlen{SeqLens: []units.Tokens{200}, QHeads: 6, KVHeads: 3, HeadDim: 32, DType: F32}
	one := v.block(200)
	for _, parallel := range []int{1, 4, 64} {
		if d := cmp.Diff(AttnFwd{one}.Features(parallel), AttnVarlenFwd{v}.Features(parallel)); d != "" {
			t.Error("forward of one document: ", d)
		}
		if d := cmp.Diff(AttnBwd{one}.Features(parallel), AttnVarlenBwd{v}.Features(parallel)); d != "" {
			t.Error("backward of one document: ", d)
		}
	}
	v.SeqLens = []units.Tokens{70, 1, 300}
	var work Work
	var rows, pairs float64
	for _, n := range v.SeqLens {
		w := AttnBwd{v.block(n)}.Work()
		work = Work{work.FLOPs + w.FLOPs, work.Read + w.Read, work.Write + w.Write, 0}
		rows += AttnBwd{v.block(n)}.Features(1).Rows
		pairs += v.block(n).Pairs()
	}
	f := AttnVarlenBwd{v}.Features(1)
	if got := (AttnVarlenBwd{v}).Work(); got != work || v.Pairs() != pairs {
		t.Errorf("work %+v, want %+v; %v pairs, want %v", got, work, v.Pairs(), pairs)
	}
	if f.Rows != rows || f.FLOPs != float64(work.FLOPs) || f.Bytes != float64(work.Bytes()) {
		t.Errorf("features %+v, want %v rows of %+v", f, rows, work)
	}
}

// On many units the last tile of the longest document binds, and packing short
// ones beside it does not change that.
func TestVarlenTailIsTheLongestTile(t *testing.T) {
	long := Varlen{SeqLens: []units.Tokens{640}, QHeads: 2, KVHeads: 2, HeadDim: 64, DType: F32}
	packed := long
	packed.SeqLens = []units.Tokens{64, 640, 64}
	alone, beside := AttnVarlenFwd{long}.Features(1000), AttnVarlenFwd{packed}.Features(1000)
	if alone.Tail <= 0 || math.Abs(alone.FLOPs-beside.FLOPs) > 1e-9*alone.FLOPs {
		t.Errorf("busiest unit does %v alone and %v beside short documents, tail %v", alone.FLOPs, beside.FLOPs, alone.Tail)
	}
	if got := beside.Tail; got >= alone.Tail {
		t.Errorf("tail %v with more work to share, %v with less", got, alone.Tail)
	}
}

func TestPairsCountTheirIdleRanks(t *testing.T) {
	for group := 2; group <= 9; group++ {
		for pairs := 1; pairs <= group/2; pairs++ {
			p := Pairs{Group: group, Pairs: pairs, Bytes: 8}
			if err := p.Validate(); err != nil {
				t.Fatal(err)
			}
			for i := range pairs {
				if p.Idle(i) || p.Idle(i+group/2) {
					t.Errorf("%+v: pair %d counts as idle", p, i)
				}
			}
			idle := 0
			for r := range group {
				if p.Idle(r) {
					idle++
				}
			}
			if idle != group-2*pairs {
				t.Errorf("%+v: %d ranks idle, want %d", p, idle, group-2*pairs)
			}
		}
	}
}

// Documents written before there were kernels stay as they were, byte by byte.
func TestKernelIsWrittenOnlyWhenNamed(t *testing.T) {
	a := Attention{Mask: Full, QLen: 16, KVLen: 32, QHeads: 4, KVHeads: 2, HeadDim: 64, DType: F32}
	plain, err := Encode(AttnFwd{a})
	if err != nil || string(plain) != `{"mask":"full","q_len":16,"kv_len":32,"q_heads":4,"kv_heads":2,"head_dim":64,"dtype":"f32"}` {
		t.Errorf("%s, %v", plain, err)
	}
	a.Kernel = "fa3"
	named, _ := Encode(AttnFwd{a})
	back, err := Decode(KindAttnFwd, named)
	if err != nil || back.Variant().Kernel != "fa3" || back.Variant().String() != "full d64 f32 fa3" {
		t.Errorf("%s: %+v, %v", named, back, err)
	}
	if v := (Pairs{4, 2, 8}).Variant(); v.String() != "2 pairs" {
		t.Errorf("%q", v)
	}
	for v, want := range map[Variant]string{
		{Mask: Full, HeadDim: 64, DType: F32}: `{"mask":"full","head_dim":64,"dtype":"f32"}`,
		{DType: BF16, Kernel: "fa2"}:          `{"dtype":"bf16","kernel":"fa2"}`,
		H2D{Copy{1, false}}.Variant():         `{"pageable":true}`,
		D2H{Copy{1, true}}.Variant():          `{}`,
		{Pairs: 3}:                            `{"pairs":3}`,
	} {
		if data, err := json.Marshal(v); err != nil || string(data) != want {
			t.Errorf("%s, want %s", data, want)
		}
	}
}

// The layer's sizes are written as the memory op always wrote them.
func TestMemLayerKeepsItsKeys(t *testing.T) {
	data, err := Encode(MemLayer{layerExample})
	want := `{"tokens":1024,"hidden":1024,"ffn":2816,"q_heads":16,"kv_heads":4,"head_dim":64,"dtype":"f32"}`
	if err != nil || string(data) != want {
		t.Errorf("%s, %v; want %s", data, err, want)
	}
}
