package torch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/profile"
	"github.com/evenkeel/evenkeel/profile/backend/nvml"
)

// gpu is the backend that the tests on a GPU share, nil before the first: every
// start of its workers takes many seconds of a machine that is lent by the minute.
var gpu *Backend

// onGPU is a backend on this machine's first GPU. These tests are items of
// docs/gpu-checklist.md and print what they see; they run where EVENKEEL_GPU
// is set, also as a binary made elsewhere (go test -c).
func onGPU(t *testing.T) (*Backend, *rank) {
	t.Helper()
	if gpu == nil {
		gpu = greeted(t, Config{Device: "cuda"})
	}
	return gpu, gpu.ranks[0]
}

// leaveGPU ends the workers of the tests that share a GPU.
func leaveGPU() error {
	if gpu == nil {
		return nil
	}
	err := gpu.Close()
	gpu = nil
	return err
}

// greeted is a backend whose workers have answered. They import torch from a cold
// disk, start CUDA and try every kernel: only the test binary's own limit bounds it.
func greeted(t *testing.T, c Config) *Backend {
	t.Helper()
	if os.Getenv("EVENKEEL_GPU") == "" {
		t.Skip("runs on a GPU, when EVENKEEL_GPU is set (docs/gpu-checklist.md)")
	}
	c.Machine = thisMachine()
	c.AllowShared = os.Getenv("EVENKEEL_GPU") == "shared"
	b, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	inv, err := b.Discover(t.Context())
	if err != nil {
		t.Fatal(errors.Join(err, b.Close()))
	}
	for _, note := range inv.Notes {
		t.Log(note)
	}
	return b
}

func thisMachine() profile.Machine {
	m := profile.Machine{Host: "gpu", CPU: "host", Cores: 1}
	nvml.Describe(&m)
	return m
}

// unequal are two parts of the first GPU, one twice as large as the other, of which
// a driver can set both apart: it takes multiples of 8 multiprocessors from Hopper on,
// of 2 before. Where NVML hides what the GPU has they are those of an H100.
func unequal(m profile.Machine) []Partition {
	large := 80
	if len(m.NVIDIA) > 0 && m.NVIDIA[0].SMs > 0 {
		large = m.NVIDIA[0].SMs * 5 / 8 / 16 * 16
	}
	return []Partition{{0, large}, {0, large / 2}}
}

func TestUnequalPartsFitTheirGPU(t *testing.T) {
	for sms, want := range map[int]string{0: "0@sm80 0@sm40", 132: "0@sm80 0@sm40", 114: "0@sm64 0@sm32", 108: "0@sm64 0@sm32", 58: "0@sm32 0@sm16"} {
		got := unequal(profile.Machine{NVIDIA: []profile.NVIDIADevice{{SMs: sms}}})
		if fmt.Sprintf("%s %s", got[0], got[1]) != want {
			t.Errorf("of %d multiprocessors: %v, want %s", sms, got, want)
		}
	}
}

// A GEMM that fills the card takes about as much longer as a partition has fewer
// multiprocessors; what is bound by memory does not, for bandwidth is shared.
func TestGPUPartitions(t *testing.T) {
	if err := leaveGPU(); err != nil { // its worker would be somebody else on the GPU
		t.Error(err)
	}
	list := unequal(thisMachine())
	b := greeted(t, Config{Partitions: list, GroupSizes: []int{2}})
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	shapes := map[string]op.Shape{
		"GEMM": op.GEMM{Pass: op.Forward, M: 8192, N: 8192, K: 8192, DType: op.BF16},
		"norm": op.Norm{Rowwise: op.Rowwise{Tokens: 65536, Width: 8192, DType: op.BF16}},
	}
	for name, shape := range shapes {
		var times []units.Seconds
		for _, r := range b.ranks {
			x, err := b.Open(t.Context(), r.device.Name, r.place)
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(x.Ready(t.Context()), x.Prepare(t.Context(), shape, 1)); err != nil {
				t.Fatalf("%s on %s: %v", name, r.device.Name, err)
			}
			took, _ := median(t, x, 1, 20)
			times = append(times, took)
		}
		ratio := float64(times[1] / times[0])
		t.Logf("%s: %s on %s, %s on %s: %.2f times as long", name, times[0], list[0], times[1], list[1], ratio)
		if name == "GEMM" && (ratio < 1.6 || ratio > 2.4) {
			t.Errorf("half as many multiprocessors take %.2f times as long for a GEMM, want 1.6 to 2.4", ratio)
		}
	}
}

// prepared readies a shape on the GPU.
func prepared(t *testing.T, b *Backend, s op.Shape) profile.Executor {
	t.Helper()
	x, err := b.Open(t.Context(), b.ranks[0].device.Name, "")
	if err != nil {
		t.Fatal(err)
	}
	if err := x.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := x.Prepare(t.Context(), s, 1); err != nil {
		t.Fatalf("%+v: %v", s, err)
	}
	return x
}

func median(t *testing.T, x profile.Executor, inner, n int) (units.Seconds, profile.Batch) {
	t.Helper()
	b, err := x.Run(t.Context(), inner, n)
	if err != nil {
		t.Fatal(err)
	}
	return middle(b.Slowest()), b
}

func middle(times []units.Seconds) units.Seconds {
	least := append([]units.Seconds(nil), times...)
	for i := range least { // a handful
		for j := range i {
			if least[j] > least[i] {
				least[i], least[j] = least[j], least[i]
			}
		}
	}
	return least[len(least)/2]
}

// causal attention of 16 heads in groups of four, where the kernel takes groups.
func causal(r *rank, kernel string, n units.Tokens) op.Shape {
	kv := 16
	if kernel == "" || r.greeting.Kernels[kernel].Grouped {
		kv = 4
	}
	return op.AttnFwd{Attention: op.Attention{Mask: op.Diag, QLen: n, KVLen: n, QHeads: 16, KVHeads: kv, HeadDim: 128, DType: op.BF16, Kernel: kernel}}
}

// Item: the launch of a short call must not be in its time. A call of a few
// microseconds, timed alone and in batches, must come to about the same once
// the queue is filled before the clock starts.
func TestGPULaunchGap(t *testing.T) {
	b, _ := onGPU(t)
	for _, tokens := range []units.Tokens{64, 1024, 8192} {
		x := prepared(t, b, op.Norm{Rowwise: op.Rowwise{Tokens: tokens, Width: 1024, DType: op.BF16}})
		alone, _ := median(t, x, 1, 32)
		batch, _ := median(t, x, 64, 32)
		t.Logf("norm of %d rows: %v alone and cold, %v each in batches of 64", tokens, alone, batch)
		if alone > batch+50e-6 {
			t.Errorf("norm of %d rows: alone it takes %v s more: the host's launch is in the time", tokens, alone-batch)
		}
	}
}

// Item: cold (the cache zeroed before each call) against hot.
func TestGPUColdAndHot(t *testing.T) {
	b, r := onGPU(t)
	for _, n := range []units.Tokens{1024, 4096, 16384} {
		for _, kernel := range kernels(r.greeting) {
			if !r.offers(kernel, op.KindAttnFwd) {
				continue
			}
			x := prepared(t, b, causal(r, kernel, n))
			cold, _ := median(t, x, 1, 16)
			hot, _ := median(t, x, 8, 16)
			t.Logf("%s, %d tokens: cold %.3g s, hot %.3g s, cold/hot %.3f", kernel, n, float64(cold), float64(hot), float64(cold/hot))
		}
	}
}

// Item: a burst after a pause against a sustained load.
func TestGPUBurstAndSustained(t *testing.T) {
	b, r := onGPU(t)
	for _, kernel := range kernels(r.greeting) {
		if !r.offers(kernel, op.KindAttnFwd) {
			continue
		}
		x := prepared(t, b, causal(r, kernel, 32768))
		time.Sleep(2 * time.Second)
		burst, before := median(t, x, 1, 5)
		for start := time.Now(); time.Since(start) < 3*time.Second; {
			median(t, x, 1, 16)
		}
		sustained, after := median(t, x, 1, 16)
		t.Logf("%s: burst %.4g s %+v, sustained %.4g s %+v, ratio %.3f", kernel, float64(burst), before.Guard.GPU, float64(sustained), after.Guard.GPU, float64(sustained/burst))
	}
}

// Item: what does not fit is a stored fact, and the same worker goes on.
func TestGPUOutOfMemoryThenAGoodPoint(t *testing.T) {
	b, r := onGPU(t)
	x := prepared(t, b, op.Norm{Rowwise: op.Rowwise{Tokens: 64, Width: 1024, DType: op.BF16}})
	pid := r.client
	tokens := units.Tokens(r.device.Memory / 1024) // 2 KiB a row and operand: twice the device
	err := x.Prepare(t.Context(), op.Norm{Rowwise: op.Rowwise{Tokens: tokens, Width: 1024, DType: op.BF16}}, 1)
	var e *profile.OpError
	if !errors.As(err, &e) || e.Class != profile.OutOfMemory || e.Lost {
		t.Fatalf("%v", err)
	}
	t.Logf("%v", err)
	if err := x.Prepare(t.Context(), causal(r, "", 2048), 1); err != nil {
		t.Fatal(err)
	}
	if _, err := x.Run(t.Context(), 1, 3); err != nil || r.client != pid {
		t.Errorf("%v; the same worker: %v", err, r.client == pid)
	}
}

// Item: which guards can be read; what cannot must be unknown, never a failure.
func TestGPUGuards(t *testing.T) {
	b, r := onGPU(t)
	x := prepared(t, b, op.GEMM{Pass: op.Forward, M: 8192, N: 8192, K: 8192, DType: op.BF16})
	_, batch := median(t, x, 1, 16)
	if batch.Guard.GPU == nil {
		t.Fatal("no guard at all")
	}
	t.Logf("nvml %v %s: %+v; peak %s", r.greeting.NVML, r.greeting.NVMLWhy, *batch.Guard.GPU, batch.Peak)
	if r.greeting.NVML && batch.Guard.GPU.MaxSMClock == 0 {
		t.Error("NVML is there, but no clock was read")
	}
}

// Item: every quantity that is no time.
func TestGPUGauges(t *testing.T) {
	b, r := onGPU(t)
	for _, spot := range b.once(r) {
		x := prepared(t, b, spot.Shape)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		v, err := x.(profile.Gauge).Gauge(ctx)
		cancel()
		if err != nil || !(v > 0) {
			t.Errorf("%s %s: %v, %v", spot.Op, spot.Raw, v, err)
		}
		t.Logf("%s %s: %.6g", spot.Op, spot.Raw, v)
	}
}
