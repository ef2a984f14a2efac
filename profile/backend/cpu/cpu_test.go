package cpu_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/profile"
	"github.com/evenkeel/evenkeel/profile/backend/cpu"
)

// The test binary is its own worker, and a faulty one on request.
const (
	workerVariable = "EVENKEEL_TEST_WORKER"
	faultVariable  = "EVENKEEL_TEST_FAULT"
)

func TestMain(m *testing.M) {
	if os.Getenv(workerVariable) == "" {
		os.Exit(m.Run())
	}
	c, err := cpu.ParseWorkerArgs(os.Args[1:])
	if err == nil {
		err = serve(c)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func serve(c cpu.WorkerConfig) error {
	switch fault := os.Getenv(faultVariable); {
	case fault == "" || c.Size > 1 && c.Rank == 0: // only one rank of a group is faulty
		return cpu.Work(context.Background(), c, os.Stdin, os.Stdout)
	case fault == "exit":
		return errors.New("worker gives up")
	case fault == "hang":
		time.Sleep(time.Hour)
	case fault == "panic":
		panic("worker panics")
	case fault == "segv":
		_ = syscall.Kill(os.Getpid(), syscall.SIGSEGV)
		time.Sleep(time.Hour)
	case fault == "garbage":
		fmt.Println("this is no frame")
		time.Sleep(time.Hour)
	}
	return nil
}

func backend(t *testing.T, fault string, c cpu.Config) *cpu.Backend {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c.Worker = func(args []string) *exec.Cmd { return exec.Command(exe, args...) }
	t.Setenv(workerVariable, "1")
	t.Setenv(faultVariable, fault)
	if c.Machine.Cores == 0 {
		c.Machine = profile.Machine{CPU: "test", Cores: 2, L2: units.MiB, Memory: 8 * units.GiB}
	}
	b, err := cpu.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Every op that the backend offers runs, is verified, and yields sane samples
// for a shape of each of its families.
func TestEveryFamilyRuns(t *testing.T) {
	b := backend(t, "", cpu.Config{GroupSizes: []int{2, 3}})
	inv, err := b.Discover(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	open := map[string]profile.Executor{}
	defer func() {
		for _, x := range open {
			if err := x.Close(); err != nil {
				t.Error(err)
			}
		}
	}()
	for _, sp := range inv.Spaces {
		x := open[sp.On]
		if x == nil {
			if x, err = b.Open(t.Context(), sp.On, ""); err != nil {
				t.Fatal(err)
			}
			open[sp.On] = x
		}
		s := sp.Make(slices.Repeat([]float64{0.2}, sp.Dims))
		if err := x.Prepare(t.Context(), s, 1); err != nil {
			t.Errorf("%s on %s: %v", s.Kind(), sp.On, err)
			continue
		}
		batch, err := x.Run(t.Context(), 2, 3)
		if err != nil {
			t.Errorf("%s on %s: %v", s.Kind(), sp.On, err)
			continue
		}
		ranks := 1
		if g, ok := s.(op.Grouped); ok {
			ranks = g.Ranks()
		}
		if len(batch.Ranks) != ranks || len(batch.Slowest()) != 3 || slices.Min(batch.Slowest()) <= 0 {
			t.Errorf("%s on %s: %+v", s.Kind(), sp.On, batch)
		}
	}
}

func TestUnsupportedAndTooLargeShapesAreRefusedNotRun(t *testing.T) {
	b := backend(t, "", cpu.Config{})
	x, err := b.Open(t.Context(), "cpu:1", "")
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	for _, c := range []struct {
		shape op.Shape
		class profile.Class
	}{
		{op.H2D{Copy: op.Copy{Bytes: 4}}, profile.Unsupported},
		{op.GEMM{Pass: op.Forward, M: 1 << 20, N: 1 << 16, K: 64, DType: op.F32}, profile.OutOfMemory},
		{op.Rope{Rowwise: op.Rowwise{Tokens: 8, Width: 100, DType: op.F32}}, profile.Unsupported},
	} {
		var e *profile.OpError
		if err := x.Prepare(t.Context(), c.shape, 1); !errors.As(err, &e) || e.Class != c.class || e.Lost {
			t.Errorf("%s: %v", c.shape.Kind(), err)
		}
	}
	// The worker lives on.
	if err := x.Prepare(t.Context(), op.AdamW{Params: 1000}, 1); err != nil {
		t.Error(err)
	}
}

func TestFaultsOfAWorkerAreNamed(t *testing.T) {
	for fault, want := range map[string]struct {
		class profile.Class
		text  string
	}{
		"exit":    {profile.Crashed, "worker gives up"},
		"panic":   {profile.Crashed, "panic: worker panics"},
		"segv":    {profile.Crashed, "SIGSEGV"},
		"garbage": {profile.Crashed, "no frame of the protocol"},
		"hang":    {profile.Hung, "no answer before the deadline"},
	} {
		for _, on := range []string{"cpu:1", "2 cpu:1 over unix_socket"} {
			t.Run(fault+" "+on, func(t *testing.T) {
				b := backend(t, fault, cpu.Config{})
				x, err := b.Open(t.Context(), on, "")
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
				defer cancel()
				var s op.Shape = op.AdamW{Params: 1000}
				if strings.HasPrefix(on, "2") {
					s = op.AllReduce{Message: op.Message{Group: 2, Bytes: 4096}}
				}
				err = x.Prepare(ctx, s, 1)
				var e *profile.OpError
				if !errors.As(err, &e) || !e.Lost {
					t.Fatalf("got %v", err)
				}
				if on == "cpu:1" && (e.Class != want.class || !strings.Contains(err.Error(), want.text)) {
					t.Errorf("got %v, want %s: %s", err, want.class, want.text)
				}
				if err := x.Close(); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

func TestNewRefusesWhatTheMachineHasNot(t *testing.T) {
	m := profile.Machine{CPU: "test", Cores: 2}
	for want, c := range map[string]cpu.Config{
		"cpu:3: this machine has 2 cores: name 1 to 2 threads": {Machine: m, Threads: []int{3}},
		"--group-sizes 1: want 2 to 64 ranks":                  {Machine: m, GroupSizes: []int{1}},
		"--group-sizes 2: is there twice; name it once":        {Machine: m, GroupSizes: []int{2, 4, 2}},
		"cpu:1: is there twice: a device type is measured once, and --group-sizes says how many ranks exchange messages; name it once": {
			Machine: m, Threads: []int{1, 2, 1},
		},
		"head_dim 4: want 8 to 512": {Machine: m, HeadDims: []int{4}},
	} {
		if _, err := cpu.New(c); err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}
