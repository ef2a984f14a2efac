package op

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/evenkeel/evenkeel/internal/units"
)

func TestTableNamesAreUniqueAndDocumented(t *testing.T) {
	seen := map[Kind]bool{}
	for _, s := range Table() {
		if seen[s.Kind] {
			t.Errorf("%s: twice in the table", s.Kind)
		}
		seen[s.Kind] = true
		if s.Doc == "" || s.Class == "" || s.Measures == "" {
			t.Errorf("%s: incomplete: %+v", s.Kind, s)
		}
		if s.Example.Kind() != s.Kind {
			t.Errorf("%s: its example is of kind %s", s.Kind, s.Example.Kind())
		}
		if err := s.Example.Validate(); err != nil {
			t.Errorf("%s: its example is invalid: %v", s.Kind, err)
		}
		if _, featured := s.Example.(Featured); featured != (s.Class == Compute || s.Class == Bandwidth) {
			t.Errorf("%s: of class %s, featured: %v", s.Kind, s.Class, featured)
		}
		if _, grouped := s.Example.(Grouped); grouped != (s.Class == Collective) {
			t.Errorf("%s: of class %s, grouped: %v", s.Kind, s.Class, grouped)
		}
		if located, ok := s.Example.(Located); ok != (s.Measures == Time) {
			t.Errorf("%s measures %s, located: %v", s.Kind, s.Measures, ok)
		} else if ok {
			for i, v := range located.Coords() {
				if named := i < len(CoordNames(s.Kind)); named != (v > 0) {
					t.Errorf("%s: coordinate %d is %v, named: %v", s.Kind, i, v, named)
				}
			}
		}
		if _, compound := s.Example.(Compound); compound != (s.Class == Composed) {
			t.Errorf("%s: of class %s, compound: %v", s.Kind, s.Class, compound)
		}
		if s.Measures == Time && s.Class != Compute && Volume(s.Example) <= 0 {
			t.Errorf("%s: no volume for its law to follow", s.Kind)
		}
	}
}

func TestShapesSurviveEncoding(t *testing.T) {
	for _, s := range Table() {
		data, err := Encode(s.Example)
		if err != nil {
			t.Fatal(s.Kind, err)
		}
		got, err := Decode(s.Kind, data)
		if err != nil {
			t.Errorf("%s: %s: %v", s.Kind, data, err)
		}
		if d := cmp.Diff(s.Example, got); d != "" {
			t.Errorf("%s: %s", s.Kind, d)
		}
		var keys map[string]any
		if err := json.Unmarshal(data, &keys); err != nil {
			t.Fatal(err)
		}
		for _, axis := range Axes(s.Example) {
			optional := axis == "kernel" || axis == "batch" || axis == "window" || axis == "dtype" && s.Class == Collective
			if _, ok := keys[axis]; !ok && !optional {
				t.Errorf("%s: axis %s is not written", s.Kind, axis)
			}
			delete(keys, axis)
		}
		if len(keys) > 0 {
			t.Errorf("%s: writes %v, which Axes does not list", s.Kind, keys)
		}
	}
}

func TestDecodeNamesTheAxis(t *testing.T) {
	good := `{"mask":"full","q_len":16,"kv_len":32,"q_heads":4,"kv_heads":2,"head_dim":64,"dtype":"f32"}`
	change := func(old, new string) string { return strings.Replace(good, old, new, 1) }
	for _, c := range []struct {
		kind Kind
		data string
		want string
	}{
		{"attn", good, `unknown op "attn"; the ops are attn_fwd, attn_bwd`},
		{KindAttnFwd, change(`"q_len":16`, `"q_len":0`), "shape.q_len: 0: must be at least 1"},
		{KindAttnFwd, change(`"q_len":16`, `"q_len":-4`), "shape.q_len: -4: must be at least 1"},
		{KindAttnFwd, change(`"q_len":16`, `"q_len":"16"`), `shape.q_len: a string: want a whole number`},
		{KindAttnFwd, change(`"q_len":16`, `"q_len":1.5`), "shape.q_len: 1.5: want a whole number"},
		{KindAttnFwd, change(`"q_len":16`, `"q_len":1e40`), "shape.q_len: 1e40: want a whole number"},
		{KindAttnFwd, change(`"q_len":16`, `"q_len":4000000000`), "shape.q_len: 4000000000: must be at most 2147483648"},
		{KindAttnFwd, change(`"q_len":16,`, ``), "shape.q_len: 0: must be at least 1"},
		{KindAttnFwd, change(`"q_len"`, `"qlen"`), "shape.qlen: attn_fwd has no such axis; it has mask, q_len, kv_len, q_heads, kv_heads, head_dim, dtype"},
		{KindAttnFwd, change(`"full"`, `"diag"`), "shape.kv_len: 32: a diag block is square, q_len is 16"},
		{KindAttnFwd, change(`"full"`, `"causal"`), `shape.mask: "causal": want full or diag`},
		{KindAttnFwd, change(`"kv_heads":2`, `"kv_heads":8`), "shape.kv_heads: 8: more than q_heads 4"},
		{KindAttnFwd, change(`"f32"`, `"fp64"`), `shape.dtype: "fp64": want f32, bf16, f16 or fp8`},
		{KindAttnFwd, change(`"f32"`, `"f32","kernel":"FA-3"`), `shape.kernel: "FA-3": want at most 48 letters a-z, digits and _`},
		{KindAttnFwd, change(`"f32"`, `"f32","batch":1`), `shape.batch: 1: want 2 to 65536, or leave a batch of one out`},
		{KindAttnFwd, change(`"f32"`, `"f32","window":8`), `shape.window: 8: a window is a positive number of tokens and narrows a diag block only`},
		{KindAttnFwd, change(`"f32"`, `"i8"`), `shape.dtype: "i8": want f32, bf16, f16 or fp8`},
		{KindAttnFwd, change(`"f32"`, `"f32","kernel":"`+strings.Repeat("a", 49)+`"`), `a": want at most 48 letters a-z, digits and _`},
		{KindAttnVarlenFwd, `{"seq_lens":[],"q_heads":4,"kv_heads":2,"head_dim":64,"dtype":"f32"}`, "shape.seq_lens: 0 documents: want 1 to 64"},
		{KindAttnVarlenFwd, `{"seq_lens":[3,0],"q_heads":4,"kv_heads":2,"head_dim":64,"dtype":"f32"}`, "shape.seq_lens[1]: 0: must be at least 1"},
		{KindAttnVarlenBwd, `{"seq_lens":[2147483648,1],"q_heads":4,"kv_heads":2,"head_dim":64,"dtype":"f32"}`, "shape.seq_lens: 2147483649: must be at most"},
		{KindAttnVarlenBwd, `{"seq_lens":[7],"q_heads":4,"kv_heads":5,"head_dim":64,"dtype":"f32"}`, "shape.kv_heads: 5: more than q_heads 4"},
		{KindSendRecvPairs, `{"group":5,"pairs":3,"bytes":4}`, "shape.pairs: 3: want 1 to 2 in a group of 5"},
		{KindSendRecvPairs, `{"group":4,"bytes":4}`, "shape.pairs: 0: want 1 to 2 in a group of 4"},
		{KindLayerFwd, `{"tokens":8,"hidden":64,"ffn":0,"q_heads":4,"kv_heads":2,"head_dim":16,"dtype":"f32"}`, "shape.ffn: 0: must be at least 1"},
		{KindLayerBwd, `{"tokens":8,"hidden":64,"ffn":64,"q_heads":2,"kv_heads":4,"head_dim":16,"dtype":"f32"}`, "shape.kv_heads: 4: more than q_heads 2"},
		{KindMemLayer, `{"tokens":8,"hidden":64,"ffn":64,"q_heads":4096,"kv_heads":4096,"head_dim":4096,"dtype":"f32"}`, "shape.head_dim: 4096: (q_heads + 2 kv_heads) head_dim is 50331648, which must be at most 16777216"},
		{KindAttnFwd, change(`"q_heads":4`, `"q_heads":4,"q_heads":4`), "duplicate"},
		{KindAttnFwd, `{"mask":`, "unexpected EOF"},
		{KindAllReduce, `{"group":1,"bytes":4}`, "shape.group: 1: a collective needs at least 2 ranks"},
		{KindAllToAllV, `{"matrix_bytes":[[0,1],[2]]}`, "shape.matrix_bytes[1]: 1 entries: want 2, one a rank"},
		{KindAllToAllV, `{"matrix_bytes":[[0,-1],[2,0]]}`, "shape.matrix_bytes[0][1]: -1: want 0 to"},
		{KindAllToAllV, `{"matrix_bytes":[[5,0],[0,5]]}`, "nothing travels"},
		{KindGEMM, `{"pass":"bwd","m":1,"n":1,"k":1,"dtype":"f32"}`, `shape.pass: "bwd": want fwd, dgrad or wgrad`},
	} {
		_, err := Decode(c.kind, []byte(c.data))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %s:\n got %v\nwant %s", c.kind, c.data, err, c.want)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, s := range Table() {
		data, _ := Encode(s.Example)
		f.Add(string(s.Kind), data)
	}
	f.Add("attn_fwd", []byte(`{"q_len":NaN}`))
	f.Fuzz(func(t *testing.T, kind string, data []byte) {
		s, err := Decode(Kind(kind), data)
		if err != nil {
			return
		}
		w := s.Work()
		if w.FLOPs < 0 || w.Read < 0 || w.Write < 0 || w.Wire < 0 {
			t.Errorf("%s %s: negative work %+v", kind, data, w)
		}
	})
}

// The FLOPs of attention are counted by walking every cell of the mask.
func TestAttentionFLOPsCountMaskCells(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 0))
	for range 200 {
		a := Attention{Mask: Full, QLen: units.Tokens(1 + r.IntN(40)), KVLen: units.Tokens(1 + r.IntN(40)), QHeads: 1 + r.IntN(6), KVHeads: 1, HeadDim: 1 + r.IntN(8), DType: F32}
		if r.IntN(2) == 0 {
			a.Mask, a.KVLen = Diag, a.QLen
		}
		var forward, backward float64
		for q := range a.QLen {
			for k := range a.KVLen {
				if a.Mask == Diag && k > q {
					continue
				}
				perCell := 2 * float64(a.HeadDim) * float64(a.QHeads) // one multiply-add an element and head
				forward += 2 * perCell                                // q·k, p·v
				backward += 5 * perCell                               // q·k again, dout·v, dv, dq, dk
			}
		}
		if got := float64(AttnFwd{a}.Work().FLOPs); got != forward {
			t.Errorf("%+v: forward %v, counted %v", a, got, forward)
		}
		if got := float64(AttnBwd{a}.Work().FLOPs); got != backward {
			t.Errorf("%+v: backward %v, counted %v", a, got, backward)
		}
	}
}

func TestGEMMWorkCountsElements(t *testing.T) {
	for _, pass := range []Pass{Forward, DGrad, WGrad} {
		g := GEMM{pass, 3, 5, 7, BF16}
		var flops float64
		for range int(g.M) * g.N * g.K {
			flops += 2
		}
		w := g.Work()
		if float64(w.FLOPs) != flops || w.Bytes() != 2*(3*5+5*7+3*7) {
			t.Errorf("%s: %+v", pass, w)
		}
		rows, cols, inner := g.out()
		if w.Write != units.Bytes(2*rows*cols) || 2*rows*cols*inner != flops {
			t.Errorf("%s: writes %d of a %vx%v result", pass, w.Write, rows, cols)
		}
	}
}

// toyWire plays a collective rank by rank, chunk by chunk, and counts what
// each rank sends. Chunk c of n of a buffer of b bytes ends at floor((c+1)b/n).
func toyWire(k Kind, b, n int) (most int) {
	chunk := func(c int) int { c = ((c % n) + n) % n; return (c+1)*b/n - c*b/n }
	sent := make([]int, n)
	switch k {
	case KindAllReduce, KindReduceScatter, KindAllGather:
		rounds := 1
		if k == KindAllReduce {
			rounds = 2
		}
		for range rounds {
			for step := range n - 1 {
				for r := range n {
					sent[r] += chunk(r - step)
				}
			}
		}
	case KindAllToAll:
		for r := range n {
			for p := range n {
				if p != r {
					sent[r] += chunk(p)
				}
			}
		}
	case KindSendRecv:
		for r := range n {
			sent[r] = b
		}
	}
	for _, s := range sent {
		most = max(most, s)
	}
	return most
}

func TestWireBytesMatchAToyRing(t *testing.T) {
	for n := 2; n <= 6; n++ {
		for b := n; b < 60; b++ {
			m := Message{Group: n, Bytes: units.Bytes(b)}
			for _, s := range []Shape{AllReduce{m}, AllGather{m}, ReduceScatter{m}, AllToAll{m}, SendRecv{m}} {
				got, want := int(s.Work().Wire), toyWire(s.Kind(), b, n)
				// An uneven ring all-reduce may keep different chunks in its two
				// rounds, so its busiest rank can send a byte a round less.
				if got != want && (s.Kind() != KindAllReduce || got-want > 1 || got < want) {
					t.Errorf("%s of %d bytes over %d ranks: %d on the wire, a toy ring sends %d", s.Kind(), b, n, got, want)
				}
			}
		}
	}
}

func TestAllToAllVWireIsTheBusiestPort(t *testing.T) {
	a := AllToAllV{[][]units.Bytes{{9, 1, 2}, {4, 9, 0}, {8, 3, 9}}}
	// sent: 3, 4, 11; received: 12, 4, 2; the diagonal does not travel
	if got := a.Work().Wire; got != 12 {
		t.Errorf("got %d, want 12", got)
	}
	even := AllToAllV{[][]units.Bytes{{5, 5}, {5, 5}}}
	if even.Work().Wire != (AllToAll{Message{Group: 2, Bytes: 10}}).Work().Wire {
		t.Error("an even matrix must cost what the even op costs")
	}
}

// Features must add up: with more parallel units the even share falls, the
// longest task does not, and nothing is negative.
func TestFeaturesScaleWithParallelUnits(t *testing.T) {
	for _, s := range Table() {
		f, ok := s.Example.(Featured)
		if !ok {
			continue
		}
		one, four := f.Features(1), f.Features(4)
		if s.Class == Bandwidth {
			if one.FLOPs != 0 || one.Tail != 0 || one.Bytes != float64(f.Work().Bytes()) || one.Rows < four.Rows {
				t.Errorf("%s: %+v, %+v", s.Kind, one, four)
			}
			continue
		}
		if one.FLOPs != float64(f.Work().FLOPs) || (four.FLOPs-four.Tail)*4 != one.FLOPs || one.Tail != 0 || one.Bytes != float64(f.Work().Bytes()) {
			t.Errorf("%s: %+v, %+v", s.Kind, one, four)
		}
	}
}

// The tail of a FULL block against handing its tiles out one by one.
func TestTailIsWhatTheBusiestUnitDoesTooMuch(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 0))
	for range 500 {
		a := AttnFwd{Attention{Mask: Full, QLen: units.Tokens(1 + r.IntN(400)), KVLen: units.Tokens(1 + r.IntN(300)), QHeads: 1 + r.IntN(6), KVHeads: 1, HeadDim: 64, DType: F32}}
		parallel := 2 + r.IntN(5)
		busy := make([]float64, parallel)
		perRow := 4 * 64 * float64(a.KVLen)
		hand := func(rows units.Tokens) { // to whoever is free first
			least := 0
			for u := range busy {
				if busy[u] < busy[least] {
					least = u
				}
			}
			busy[least] += perRow * float64(rows)
		}
		for range a.QHeads {
			for range a.QLen / rowTile {
				hand(rowTile)
			}
		}
		if rest := a.QLen % rowTile; rest > 0 {
			for range a.QHeads {
				hand(rest)
			}
		}
		f := a.Features(parallel)
		if got, want := f.FLOPs, slices.Max(busy); math.Abs(got-want) > 1e-9*want {
			t.Errorf("%+v on %d units: busiest does %v, counted %v", a, parallel, got, want)
		}
	}
	// Two tiles of which one is a quarter: two units do no better than the full one.
	two := AttnFwd{Attention{Mask: Full, QLen: 80, KVLen: 1000, QHeads: 1, KVHeads: 1, HeadDim: 64, DType: F32}}.Features(2)
	if got, want := two.Tail/(two.FLOPs-two.Tail), 64.0/40-1; math.Abs(got-want) > 1e-12 {
		t.Errorf("tail %v of the even share, want %v", got, want)
	}
}

// A window hides the keys that lie that many behind a query, counted one by
// one; a batch is so many blocks.
func TestWindowsAndBatchesAreCounted(t *testing.T) {
	for n := 1; n <= 20; n++ {
		for window := 0; window <= 22; window++ {
			a := Attention{Mask: Diag, QLen: units.Tokens(n), KVLen: units.Tokens(n), QHeads: 3, KVHeads: 1, HeadDim: 8, DType: F32, Window: units.Tokens(window)}
			seen := 0
			for q := range n {
				for k := range q + 1 {
					if window == 0 || q-k < window {
						seen++
					}
				}
			}
			if a.Pairs() != float64(seen) {
				t.Errorf("%d queries, window %d: %v pairs, counted %d", n, window, a.Pairs(), seen)
			}
			one := AttnFwd{a}.Work()
			a.Batch = 5
			if many := (AttnFwd{a}).Work(); many.FLOPs != 5*one.FLOPs || many.Read != 5*one.Read || many.Write != 5*one.Write {
				t.Errorf("%d queries, window %d: a batch of 5 is %+v, one %+v", n, window, many, one)
			}
		}
	}
}
