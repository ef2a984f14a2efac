package torch

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/profile"
)

// withTorch is a backend with real workers. Without torch the test is skipped and
// says why, unless it was asked for: `make test-torch` asks.
func withTorch(t testing.TB, config Config) *Backend {
	t.Helper()
	if config.Machine.Cores == 0 {
		config.Machine = profile.Machine{Host: "here", CPU: "a processor", Cores: 8}
	}
	config.Device = "cpu"
	b, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	_, err = b.Discover(t.Context())
	var missing *NoTorchError
	if errors.As(err, &missing) && os.Getenv("EVENKEEL_NEED_TORCH") == "" {
		t.Skipf("%v (make test-torch installs it and makes this an error)", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// heads and lengths that are no powers of two, GQA 8:1, one KV head, and odd
// head counts, in both masks.
func attentionShapes(dtype op.DType) []op.Attention {
	var list []op.Attention
	for _, heads := range [][2]int{{8, 1}, {5, 5}, {6, 2}, {3, 1}, {7, 7}, {16, 2}} {
		for _, dim := range []int{64, 128} {
			a := op.Attention{QHeads: heads[0], KVHeads: heads[1], HeadDim: dim, DType: dtype, Kernel: "cpu"}
			a.Mask, a.QLen, a.KVLen = op.Full, 173, 311
			list = append(list, a)
			a.QLen, a.KVLen = 300, 65
			list = append(list, a)
			a.Mask, a.QLen, a.KVLen = op.Diag, 257, 257
			list = append(list, a)
		}
	}
	return list
}

func numericsShapes(dtype op.DType) []op.Shape {
	var list []op.Shape
	for _, a := range attentionShapes(dtype) {
		list = append(list, op.AttnFwd{Attention: a}, op.AttnBwd{Attention: a})
	}
	for _, heads := range [][2]int{{8, 1}, {5, 5}, {3, 1}} {
		v := op.Varlen{SeqLens: []units.Tokens{1, 130, 67, 200}, QHeads: heads[0], KVHeads: heads[1], HeadDim: 64, DType: dtype, Kernel: "cpu"}
		list = append(list, op.AttnVarlenFwd{Varlen: v}, op.AttnVarlenBwd{Varlen: v})
	}
	for _, pass := range []op.Pass{op.Forward, op.DGrad, op.WGrad} {
		list = append(list, op.GEMM{Pass: pass, M: 131, N: 67, K: 259, DType: dtype})
	}
	rows := op.Rowwise{Tokens: 77, Width: 320, DType: dtype}
	logits := rows
	logits.DType = op.F32
	layer := op.Layer{Tokens: 130, Hidden: 192, FFN: 448, QHeads: 3, KVHeads: 1, HeadDim: 64, DType: dtype}
	return append(list,
		op.Norm{Rowwise: rows}, op.Rope{Rowwise: rows}, op.SwiGLU{Rowwise: rows}, op.CEChunk{Rowwise: logits},
		op.LSEMerge{Tokens: 93, QHeads: 5, HeadDim: 64}, op.AdamW{Params: 4099},
		op.LayerFwd{Layer: layer}, op.LayerBwd{Layer: layer},
	)
}

// Every op that the worker offers agrees with its float64 reference, forward
// and backward, at shapes that kernels get wrong first.
func TestTorchNumericsOfEveryOp(t *testing.T) {
	b := withTorch(t, Config{Threads: []int{2}, GroupSizes: []int{2}})
	worst := map[string]float64{}
	offered := map[op.Kind]bool{}
	for _, k := range b.ranks[0].greeting.Ops {
		offered[k] = true
	}
	for dtype, limit := range map[op.DType]float64{op.F32: 1e-5, op.BF16: 1e-2} {
		for _, s := range numericsShapes(dtype) {
			if !offered[s.Kind()] {
				t.Errorf("%s is not offered", s.Kind())
				continue
			}
			errs, err := b.Verify(t.Context(), "torch_cpu:2", s)
			if err != nil {
				t.Errorf("%s %+v: %v", s.Kind(), s, err)
				continue
			}
			for name, e := range errs {
				key := fmt.Sprintf("%s %s %s", dtype, s.Kind(), name)
				worst[key] = max(worst[key], e)
				if !(e <= limit) {
					t.Errorf("%s of %+v: relative error %.2g, limit %g", key, s, e, limit)
				}
			}
		}
	}
	for _, k := range slices.Sorted(maps.Keys(worst)) {
		t.Logf("%-40s %.1e", k, worst[k])
	}
}

// The same of every collective, on two, three and four ranks.
func TestTorchNumericsOfEveryCollective(t *testing.T) {
	b := withTorch(t, Config{GroupSizes: []int{2, 3, 4}})
	for _, g := range b.groups {
		for _, s := range b.groupSpaces(g) {
			shape := s.Make(slices.Repeat([]float64{0.4}, s.Dims))
			errs, err := b.Verify(t.Context(), g.Name, shape)
			if err != nil || len(errs) == 0 {
				t.Errorf("%s on %s: %v %v", s.Kind, g.Name, errs, err)
			}
			for name, e := range errs {
				if e != 0 {
					t.Errorf("%s on %s: %s is off by %g; bytes that travel arrive as they were", s.Kind, g.Name, name, e)
				}
			}
		}
	}
}

// calibrateReal runs a short calibration of one op beside another with a fault.
func calibrateReal(t *testing.T, b *Backend, past *profile.Past, only ...op.Kind) (lines, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var j lines
	err := profile.Calibrate(ctx, b, profile.Config{
		Tool: "test", Budget: 7 * time.Second, Seed: 1, PointTimeout: 3 * time.Second, Only: only,
	}, past, &j, func(profile.Progress) {})
	return j, err
}

func pointsOf(j lines) (ok int, failed []*profile.Point) {
	for _, l := range j {
		p, is := l.(*profile.Point)
		switch {
		case is && p.OK():
			ok++
		case is:
			failed = append(failed, p)
		}
	}
	return ok, failed
}

// Every fault that a real worker can suffer ends in a stored fact or is made
// good on a fresh worker; the calibration goes on and leaves no process behind.
func TestTorchFaults(t *testing.T) {
	for fault, want := range map[string]struct {
		class profile.Class // of what is stored; "": the retry makes it good
		text  string
	}{
		"hang:gemm":    {profile.Hung, "no answer to run gemm before the deadline"},
		"stop:gemm":    {profile.Hung, ""},
		"segv:gemm":    {"", ""},
		"exit:gemm":    {"", ""},
		"torn:gemm":    {"", ""},
		"oom:gemm":     {"", ""},
		"print:gemm":   {"", ""},
		"nan:gemm":     {profile.Wrong, "gemm"},
		"slow-start:2": {"", ""},
	} {
		t.Run(fault, func(t *testing.T) {
			t.Setenv("EVENKEEL_FAULT", fault+"@12,once-file="+filepath.Join(t.TempDir(), "struck"))
			if !strings.Contains(fault, ":gemm") || strings.HasPrefix(fault, "nan") {
				t.Setenv("EVENKEEL_FAULT", fault)
			}
			b := withTorch(t, Config{Threads: []int{1}, GroupSizes: []int{2}})
			past, _ := profile.NewPast()
			j, err := calibrateReal(t, b, past, op.KindGEMM, op.KindNorm)
			if err != nil {
				t.Fatal(err)
			}
			ok, failed := pointsOf(j)
			if ok < 20 {
				t.Errorf("%d points were measured", ok)
			}
			switch {
			case want.class == "" && len(failed) > 0:
				t.Errorf("%s: %s", failed[0].Class, failed[0].Error)
			case want.class != "" && len(failed) == 0:
				t.Error("no failure was stored")
			}
			for _, p := range failed {
				if p.Class != want.class || !strings.Contains(p.Error, want.text) || p.Op != op.KindGEMM {
					t.Errorf("%s: %s %q", p.Op, p.Class, p.Error)
				}
			}
			leavesNothing(t, b)
		})
	}
}

// leavesNothing fails the test if a process of a closed backend lives on.
func leavesNothing(t *testing.T, b *Backend) {
	t.Helper()
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	deadline := time.Now().Add(5 * time.Second)
	for {
		alive := processesNaming(b.parent)
		if len(alive) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("processes %v live on", alive)
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// processesNaming lists processes with a text in their command line.
func processesNaming(text string) []string {
	var found []string
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range files {
		if data, err := os.ReadFile(f); err == nil && strings.Contains(string(data), text) {
			found = append(found, filepath.Base(filepath.Dir(f)))
		}
	}
	return found
}

// A rank that dies or hangs inside a collective: all ranks are stopped within
// the deadline, the rank is named, and the calibration measures on with a new
// world. The same command resumes afterwards.
func TestTorchCollectiveFaults(t *testing.T) {
	for fault, want := range map[string]string{
		"exit:all_reduce": "",
		"hang:all_reduce": "rank ",
	} {
		t.Run(fault, func(t *testing.T) {
			t.Setenv("EVENKEEL_FAULT", fault+"@6,once-file="+filepath.Join(t.TempDir(), "struck"))
			b := withTorch(t, Config{GroupSizes: []int{2}, CollectiveTimeout: 1500 * time.Millisecond})
			past, visitor := profile.NewPast()
			j, err := calibrateReal(t, b, past, op.KindAllReduce)
			if err != nil {
				t.Fatal(err)
			}
			ok, failed := pointsOf(j)
			if ok < 3 || b.epoch < 2 {
				t.Errorf("%d points, %d worlds", ok, b.epoch)
			}
			if want == "" && len(failed) > 0 || want != "" && len(failed) != 1 {
				t.Errorf("%d failures", len(failed))
			}
			for _, p := range failed {
				if p.Class != profile.Hung || !strings.Contains(p.Error, want) || !strings.Contains(p.Error, "all ranks were stopped") {
					t.Errorf("%s: %q", p.Class, p.Error)
				}
			}
			leavesNothing(t, b)
			for _, l := range j { // what a journal would give back
				switch l := l.(type) {
				case *profile.Point:
					err = map[string]func(*profile.Point) error{"point": visitor.Point, "again": visitor.Again, "peer": visitor.Peer, "canary": visitor.Canary}[l.T](l)
				case profile.Header:
					err = visitor.Header(&l)
				case *profile.Schedule:
					err = visitor.Schedule(l)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			again := withTorch(t, Config{GroupSizes: []int{2}})
			rest, err := calibrateReal(t, again, past, op.KindAllReduce)
			if err != nil {
				t.Fatal(err)
			}
			for _, l := range rest {
				if p, is := l.(*profile.Point); is && p.T == "point" && past.Done[p.Key] {
					t.Errorf("%s was measured twice", p.Raw)
				}
			}
		})
	}
}

// An interpreter without torch is refused by name, and the next one is taken.
func TestTorchInterpreterWithoutTorch(t *testing.T) {
	dir := t.TempDir()
	// -S hides the packages of the distribution, torch among them.
	script := filepath.Join(dir, "python3")
	if err := os.WriteFile(script, []byte("#!/bin/sh\nexec /usr/bin/python3 -S \"$@\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	b := withTorch(t, Config{})
	if b.python != "/usr/bin/python3" || !strings.Contains(strings.Join(b.found.Notes, "\n"), script+": no module torch in /usr/bin/python3") {
		t.Errorf("%s, %q", b.python, b.found.Notes)
	}
}

// BenchmarkTorchRoundTrip is what a request costs besides its work: here one that is
// refused at once.
func BenchmarkTorchRoundTrip(b *testing.B) {
	backend := withTorch(b, Config{Threads: []int{1}, GroupSizes: []int{2}})
	r := backend.ranks[0]
	if err := r.ready(b.Context()); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := r.client.ask(b.Context(), request{T: "gauge"}); err == nil {
			b.Fatal("nothing was prepared")
		}
	}
}

// BenchmarkTorchRestart kills a worker and waits until the next one has run a GEMM.
func BenchmarkTorchRestart(b *testing.B) {
	backend := withTorch(b, Config{Threads: []int{1}, GroupSizes: []int{2}})
	for b.Loop() {
		if r := backend.ranks[0]; r.client != nil {
			r.client.wire.kill()
			drain(r.client.wire)
			r.client = nil
		}
		if _, err := run(b.Context(), backend, "torch_cpu:1", gemm); err != nil {
			b.Fatal(err)
		}
	}
}
