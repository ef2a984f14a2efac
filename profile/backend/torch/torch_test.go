package torch

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/evenkeel/evenkeel/costmodel/op"
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
	needTorch(t, err)
	return b
}

// needTorch fails the test for an error, or skips it if that says that there is no torch.
func needTorch(t testing.TB, err error) {
	t.Helper()
	var missing *NoTorchError
	if errors.As(err, &missing) && os.Getenv("EVENKEEL_NEED_TORCH") == "" {
		t.Skipf("%v (make test-torch installs it and makes this an error)", err)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// findPython asks once, since that starts a worker.
var findPython = sync.OnceValues(func() (string, error) {
	path, _, _, err := FindPython(context.Background(), "", nil)
	return path, err
})

// pythonWithTorch is an interpreter for a test that starts no worker by withTorch.
func pythonWithTorch(t *testing.T) string {
	t.Helper()
	path, err := findPython()
	needTorch(t, err)
	return path
}

// Every op and collective that the worker offers agrees with its float64
// reference, forward and backward, at shapes that kernels get wrong first.
func TestTorchNumerics(t *testing.T) {
	b := withTorch(t, Config{Cores: []Cores{{2, ""}}, GroupSizes: []int{2, 3, 4}})
	all, err := b.Numerics(t.Context(), func(profile.Numeric) {})
	if err != nil {
		t.Fatal(err)
	}
	worst := map[string]float64{}
	checked := map[op.Kind]bool{}
	narrow := narrowSums(t)
	for _, n := range all {
		if narrow && usesProducts(n) {
			continue
		}
		if !n.OK() || n.Skipped {
			t.Errorf("%s %s %v: %s %.2g, limit %g %s", n.On, n.Raw, n.Cuts, n.Output, n.Worst, n.Limit, n.Error)
		}
		key := fmt.Sprint(n.Op, " ", n.Shape.Variant().DType)
		if n.Cuts != nil {
			key += " ring"
		}
		worst[key] = max(worst[key], n.Worst)
		checked[n.Op] = true
	}
	for _, k := range b.ranks[0].greeting.Ops { // each in float32 at least
		if !checked[k] && !strings.HasPrefix(string(k), "mem_") && k != op.KindOverlap { // what is gauged has no output
			t.Errorf("%s was not compared", k)
		}
	}
	for _, k := range slices.Sorted(maps.Keys(worst)) {
		t.Logf("%-30s %.1e", k, worst[k])
	}
	if len(all) < 150 {
		t.Errorf("%d comparisons", len(all))
	}
}

// A kernel that is wrong is told from one that is right.
func TestTorchNumericsSeeAWrongKernel(t *testing.T) {
	t.Setenv("EVENKEEL_FAULT", "nan:gemm")
	b := withTorch(t, Config{Cores: []Cores{{1, ""}}, GroupSizes: []int{2}})
	all, err := b.Numerics(t.Context(), func(profile.Numeric) {})
	if err != nil {
		t.Fatal(err)
	}
	narrow := narrowSums(t)
	for _, n := range all {
		if narrow && usesProducts(n) && n.Op != op.KindGEMM {
			continue
		}
		if n.OK() != (n.Op != op.KindGEMM) {
			t.Errorf("%s: %+v", n.Op, n)
		}
	}
}

// narrowSums says that torch's own products add up in bfloat16, as those of old releases do on
// a processor without instructions for it. They are wrong then, as the numerics say.
func narrowSums(t *testing.T) bool {
	t.Helper()
	script := `import torch
a, b = torch.randn(257, 257).bfloat16(), torch.randn(257, 257).bfloat16()
want = a.double() @ b.double()
print(float(((a @ b).double() - want).norm() / want.norm()) > 5e-3)`
	out, err := exec.Command(pythonWithTorch(t), "-I", "-c", script).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out)) == "True"
}

// usesProducts says that a kernel's results rest on torch's products in bfloat16.
func usesProducts(n profile.Numeric) bool {
	return n.Shape.Variant().DType == op.BF16 && slices.Contains([]op.Kind{op.KindGEMM, op.KindLayerFwd, op.KindLayerBwd}, n.Op)
}

// watched is a journal that ends the calibration once it holds enough.
type watched struct {
	lines
	enough func(lines) bool
	stop   context.CancelFunc
}

func (w *watched) Append(line any) error {
	if w.lines = append(w.lines, line); w.enough(w.lines) {
		w.stop()
	}
	return nil
}

// calibrateReal calibrates one op beside another with a fault until enough is measured, or
// the budget is used up.
func calibrateReal(t *testing.T, b *Backend, past *profile.Past, budget, deadline time.Duration, enough func(lines) bool, only ...op.Kind) (lines, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	j := watched{enough: enough, stop: cancel}
	err := profile.Calibrate(ctx, b, profile.Config{
		Tool: "test", Budget: budget, Seed: 1, PointTimeout: deadline, Wall: time.Now, Only: only,
	}, past, &j, func(profile.Progress) {})
	if errors.Is(err, context.Canceled) && enough(j.lines) {
		err = nil
	}
	return j.lines, err
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
	python := pythonWithTorch(t)
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
		struck := filepath.Join(t.TempDir(), "struck")
		spec := fault + "@12,once-file=" + struck
		if !strings.Contains(fault, ":gemm") || strings.HasPrefix(fault, "nan") {
			spec, struck = fault, "." // from the beginning
		}
		faulty := pythonThat(t, fmt.Sprintf("EVENKEEL_FAULT='%s' exec '%s' \"$@\"", spec, python))
		t.Run(fault, func(t *testing.T) {
			t.Parallel() // all that computes is one thread
			b := withTorch(t, Config{Python: faulty, Cores: []Cores{{1, ""}}, GroupSizes: []int{2}})
			past, _ := profile.NewPast()
			deadline := 10 * time.Second // of a point on a busy machine
			if want.class == profile.Hung {
				deadline = 6 * time.Second
			}
			// The order of points is drawn: what else fails may come before the fault strikes.
			isFault := func(p *profile.Point) bool { return p.Op == op.KindGEMM && p.Class == want.class }
			// A longer budget would be spent on longer calls, which are nearer to the deadline.
			j, err := calibrateReal(t, b, past, 15*time.Second, deadline, func(j lines) bool {
				ok, failed := pointsOf(j)
				_, err := os.Stat(struck)
				return err == nil && ok >= 20 && (want.class == "" || slices.ContainsFunc(failed, isFault))
			}, op.KindGEMM, op.KindNorm)
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
			case want.class != "" && !slices.ContainsFunc(failed, isFault):
				t.Errorf("of %d failures none is gemm's of class %s", len(failed), want.class)
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

// pythonThat is an interpreter that a line of shell starts, such as one with an
// environment of its own, which tests that run beside it do not see. It is written before
// those start processes: a program cannot be run while a fork holds it open.
func pythonThat(t *testing.T, line string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "python3")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+line+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// leavesNothing fails the test if a process of a closed backend lives on.
func leavesNothing(t *testing.T, b *Backend) {
	t.Helper()
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	deadline := time.Now().Add(5 * time.Second)
	for {
		alive := processesNaming(b.parent.Path)
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
			b := withTorch(t, Config{GroupSizes: []int{2}, CollectiveTimeout: 2500 * time.Millisecond})
			past, visitor := profile.NewPast()
			before := -1 // points of the world with the fault
			enough := func(j lines) bool {
				ok, failed := pointsOf(j)
				if before < 0 && b.epoch >= 2 && (want == "" || len(failed) > 0) {
					before = ok
				}
				return before >= 0 && ok >= max(3, before+2)
			}
			j, err := calibrateReal(t, b, past, 30*time.Second, 3*time.Second, enough, op.KindAllReduce)
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
			rest, err := calibrateReal(t, again, past, 30*time.Second, 3*time.Second, func(j lines) bool { ok, _ := pointsOf(j); return ok >= 3 }, op.KindAllReduce)
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
	// -S hides the packages of the distribution, torch among them.
	script := pythonThat(t, `exec /usr/bin/python3 -S "$@"`)
	t.Setenv("PATH", filepath.Dir(script)+":"+os.Getenv("PATH"))
	t.Setenv("EVENKEEL_PYTHON", "") // it would be taken first
	b := withTorch(t, Config{})
	if b.python != "/usr/bin/python3" || !strings.Contains(strings.Join(b.found.Notes, "\n"), script+": no module torch in /usr/bin/python3") {
		t.Errorf("%s, %q", b.python, b.found.Notes)
	}
}

// BenchmarkTorchRoundTrip is what a request costs besides its work: here one that is
// refused at once.
func BenchmarkTorchRoundTrip(b *testing.B) {
	backend := withTorch(b, Config{Cores: []Cores{{1, ""}}, GroupSizes: []int{2}})
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
	backend := withTorch(b, Config{Cores: []Cores{{1, ""}}, GroupSizes: []int{2}})
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

// The worker's own tests, in Python, one process a file.
func TestTorchWorkersOwnTests(t *testing.T) {
	python := pythonWithTorch(t)
	files, err := filepath.Glob("worker/test_*.py")
	if err != nil || len(files) < 5 {
		t.Fatal(files, err)
	}
	for _, f := range files {
		t.Run(filepath.Base(f), func(t *testing.T) {
			t.Parallel() // they wait for workers to start, most of the time
			out, err := exec.Command(python, "-I", "-B", f).CombinedOutput()
			if err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}
