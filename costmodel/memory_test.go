package costmodel

import (
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

// TestMemoryOfLlama8B compares with hand calculations: a token's activations
// in one layer are 8h + 4hq + 4hkv + 6f + 4Hq + 8 = 139,400 bytes, in all 32
// 4.46 MB; under full recomputation 2hL of them stay and one live layer.
func TestMemoryOfLlama8B(t *testing.T) {
	const million = 1_000_000
	j := llamaJob(t)
	if got := j.LayerActivations(); got != 139_400 {
		t.Errorf("%d bytes a token and layer, want 139,400", got)
	}
	alone := j.Memory([]units.Tokens{million}, 0, op.DeviceType{Memory: 80 * units.GiB})
	if want := units.Bytes(32 * 139_400 * million); alone.Activations != want {
		t.Errorf("activations %d, want %d", alone.Activations, want)
	}
	j.Recompute = RecomputeFull
	full := j.Memory([]units.Tokens{million}, 0, op.DeviceType{})
	if want := units.Bytes((2*4096*32 + 139_400) * million); full.Activations != want {
		t.Errorf("recomputed: %d, want %d", full.Activations, want)
	}
	// 16,384 tokens of 128,256 logits at 2 + 4 + 4 bytes.
	if want := units.Bytes(16384 * 128256 * 10); full.Logits != want {
		t.Errorf("logits %d, want %d", full.Logits, want)
	}
	if got, want := j.Memory([]units.Tokens{100, 1}, 0, op.DeviceType{}).Logits, units.Bytes(100*128256*10); got != want {
		t.Errorf("a shard of less than a chunk: logits %d, want %d", got, want)
	}
	if alone.Capacity != 80*units.GiB || alone.Fits() {
		t.Errorf("%+v should not fit", alone)
	}
	if got := alone.Peak(); got != alone.States+alone.Activations+alone.Transient+alone.Logits {
		t.Errorf("peak %d of %+v", got, alone)
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
			if got := j.Memory([]units.Tokens{1, 1, 1, 1, 0, 1, 1, 1, 1}, 0, op.DeviceType{}).States; got != want {
				t.Errorf("%q %s: %d bytes, want %d", zero, d, got, want)
			}
		}
	}
}

// TestTransientBytes: backward needs two buffers of the other rank's 131,072
// tokens, 12 bytes an element of 1,024 keys and as many values with their
// gradients in float32, the query gradient, and the gradients expanded to
// 4,096 query columns.
func TestTransientBytes(t *testing.T) {
	j := llamaJob(t)
	shards := []units.Tokens{65536, 131072, 0}
	want := units.Bytes(2*131072*1024*12 + 4*65536*4096 + 2*131072*4096*2)
	if got := j.Memory(shards, 0, op.DeviceType{}).Transient; got != want {
		t.Errorf("%d bytes, want %d", got, want)
	}
	j.RingBuffers = 3
	if got := j.Memory(shards, 0, op.DeviceType{}).Transient; got != want+131072*1024*12 {
		t.Errorf("a third buffer: %d bytes", got)
	}
	if got := j.Memory(shards, 2, op.DeviceType{Memory: 5}); got != (Memory{Capacity: 5}) {
		t.Errorf("a rank without tokens holds %+v", got)
	}
	j.Model.KVHeads = j.Model.QHeads // without GQA nothing is expanded
	if got, want := j.Memory(shards, 0, op.DeviceType{}).Transient, units.Bytes(3*131072*4096*12+4*65536*4096); got != want {
		t.Errorf("no GQA: %d bytes, want %d", got, want)
	}
	// Forward's set is the smaller one, so it must not show.
	if f, b := j.forwardTransient(65536, 131072), j.backwardTransient(65536, 131072); f >= b {
		t.Errorf("forward %d, backward %d", f, b)
	}
}
