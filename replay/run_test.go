package replay

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/profile/backend/torch/launch"
)

// fakeConfig runs two plans on two fake ranks.
func fakeConfig(t *testing.T, behaviour string) (Config, string) {
	t.Helper()
	plans, err := LoadPlans([]string{planFile(t, "a.plan.json", "ring", nil), planFile(t, "b.plan.json", "ulysses", nil)})
	if err != nil {
		t.Fatal(err)
	}
	pids := t.TempDir()
	return Config{
		Plans: plans, Out: filepath.Join(t.TempDir(), "x.trace.jsonl"), Tool: "evenkeel test", Created: "2026-01-31T12:00:00Z",
		Parts: PartsLayer, Layers: 1, Repeats: 3, Warmup: 1, Seed: 7, Timeout: 2 * time.Second,
		Machine: Machine{Cores: 1}, Oversubscribe: true,
		greet: 5 * time.Second, silence: time.Second, grace: 300 * time.Millisecond,
		Command: func() *exec.Cmd {
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), "EVENKEEL_FAKE="+behaviour, "EVENKEEL_FAKE_PIDS="+pids, "GORACE=atexit_sleep_ms=0")
			return cmd
		},
	}, pids
}

// nobodyLives fails if a rank, or what it started, is alive.
func nobodyLives(t *testing.T, pids string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(pids, "*"))
	if err != nil || len(files) == 0 {
		t.Fatal("no rank was started", err)
	}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, pid := range strings.Fields(string(data)) {
			// What has ended may stay a zombie where nobody reaps it.
			// Nor is it gone the moment it is killed.
			for patience := 100; ; patience-- {
				stat, err := os.ReadFile("/proc/" + pid + "/stat")
				if err != nil || bytes.Contains(stat, []byte(") Z ")) {
					break
				}
				if patience == 0 {
					t.Errorf("process %s lives on: %.60s", pid, stat)
					break
				}
				time.Sleep(20 * time.Millisecond)
			}
		}
	}
}

func nothingWritten(t *testing.T, path string) {
	t.Helper()
	left, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// Every way a rank can fail stops all ranks within the deadline, leaves no
// process and no file, and is told with the rank and the place.
func TestEveryFailureOfARankIsNamedAndLeavesNothing(t *testing.T) {
	for behaviour, want := range map[string]string{
		"silent-start:1": "rank 1 (torch_cpu:1) did not say hello within 5s, at the start of its process; all ranks were stopped",
		"no-hello:0":     "rank 0 (torch_cpu:1) gave a result and did not say hello before, at block ",
		"no-hello:1":     "rank 1 (torch_cpu:1) gave a result and did not say hello before, at block ",
		"kill:1":         "rank 1 (torch_cpu:1) was killed (signal: killed) at block 1, plan 1, fwd layer 0 step 1; all ranks were stopped and no trace was written",
		"kill:0":         "rank 0 (torch_cpu:1) was killed (signal: killed) at block 1, plan 1, ",
		"exit:1":         "rank 1 (torch_cpu:1) ended (exit status 9: the last words) at block 1, plan 1, ",
		"leave:1":        "rank 1 (torch_cpu:1) failed: it ended without being asked to at block 1, plan 1, ",
		"stop:1":         "rank 1 (torch_cpu:1) said nothing for ",
		"hang:0":         "rank 0 (torch_cpu:1) stood still for ", // or nearly so long, if the other one's patience ended first
		"peers:1":        "rank 1 (torch_cpu:1) stood still at block 1, plan 1, fwd layer 0 step 1 while its peers gave up (rank 0 (torch_cpu:1) reports: Connection closed by peer, at block 1, plan 1, ring)",
		"garbage:1":      `rank 1 (torch_cpu:1) says what is no frame of the protocol: "this is no frame" at block 1, plan 1, `,
		"strange:1":      `rank 1 (torch_cpu:1) says a frame of unknown type "boast" at block 1, plan 1, `,
		"flood:1":        "rank 1 (torch_cpu:1) failed: sent a line of more than 1048576 bytes at block 1, plan 1, ",
		"versions":       "rank 0 (torch_cpu:1) reports an error of versions: requested versions, at block 1, plan 1, fwd step 2 ring",
		"numerics:1":     "rank 1 (torch_cpu:1) reports an error of numerics: requested numerics, at block 1, plan 1, fwd step 2 ring",
		"bytes:1":        "rank 1 (torch_cpu:1) reports an error of bytes: requested bytes, at block 1",
		"internal:1":     "rank 1 (torch_cpu:1) reports: requested internal, at block 1",
		"fewer-spans:0":  "rank 0 wrote 12 spans and 12 steps and says they are 13 and 13",
		"no-file:0":      "rank 0 (torch_cpu:1) gave a result but no spans",
	} {
		t.Run(behaviour, func(t *testing.T) {
			t.Parallel()
			c, pids := fakeConfig(t, behaviour)
			begun := time.Now()
			err := Run(t.Context(), c)
			if took := time.Since(begun); took > c.Timeout+10*time.Second {
				t.Errorf("took %s", took)
			}
			if err == nil || !strings.Contains(err.Error(), want) && !(behaviour == "versions" && strings.Contains(err.Error(), strings.Replace(want, "rank 0", "rank 1", 1))) {
				t.Errorf("got  %v\nwant %s", err, want)
			}
			nobodyLives(t, pids)
			nothingWritten(t, c.Out)
		})
	}
}

// Where nobody knows of a GPU the first rank looks for all of them; the others start once it
// has one, and at once where there are some.
func TestOneRankFindsOutThatThereIsNoGPU(t *testing.T) {
	for _, x := range []struct {
		behaviour     string
		gpus, started int
		want          string
	}{
		{"no-gpu", 0, 1, "rank 0 (h100): torch 9.9.9 sees no accelerator; all ranks were stopped"},
		{"no-gpu", 2, 2, "(h100): torch 9.9.9 sees no accelerator; all ranks were stopped"},
		{"well", 0, 2, ""},
	} {
		c, pids := fakeConfig(t, x.behaviour)
		c.Machine.GPUs = x.gpus
		for _, p := range c.Plans {
			for r := range p.Ranks {
				p.Ranks[r].Device = "h100"
			}
		}
		err := Run(t.Context(), c)
		if x.want == "" != (err == nil) || err != nil && !strings.Contains(err.Error(), x.want) {
			t.Errorf("%s, %d GPUs: %v", x.behaviour, x.gpus, err)
		}
		if ranks, _ := filepath.Glob(filepath.Join(pids, "*")); len(ranks) != x.started {
			t.Errorf("%s, %d GPUs: %d ranks were started, want %d", x.behaviour, x.gpus, len(ranks), x.started)
		}
		nobodyLives(t, pids)
	}
}

func TestCancellingStopsAllRanks(t *testing.T) {
	c, pids := fakeConfig(t, "hang:1")
	c.Timeout = time.Minute
	ctx, cancel := context.WithCancel(t.Context())
	c.Progress = func(phase string, block int) {
		if phase == phaseBlock && block == 1 {
			cancel()
		}
	}
	err := Run(ctx, c)
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "interrupted; all ranks were stopped and no trace was written") {
		t.Error(err)
	}
	nobodyLives(t, pids)
	nothingWritten(t, c.Out)
}

// A torchrun of one task has a store of its own; the ranks started in it meet at
// another port, where rank 0 must open theirs. In a job of several tasks they use
// torchrun's.
func TestRanksStartedHereMeetAtAStoreOfTheirOwn(t *testing.T) {
	t.Setenv(agentStore, "True")
	for want, world := range map[string]*launch.World{"False": {Tasks: 1}, "True": {Tasks: 2, Host: "h"}} {
		c, _ := fakeConfig(t, "well")
		c.World = world
		got := ""
		for _, pair := range newRun(&c, nil, "gloo", ModeCPU, t.TempDir()).command(seat{threads: 1}).Environ() {
			if value, ok := strings.CutPrefix(pair, agentStore+"="); ok {
				got = value
			}
		}
		if got != want {
			t.Errorf("%d tasks: ranks are told %q, want %q", world.Tasks, got, want)
		}
	}
}

func TestAWholeRunWritesATraceThatReadsBack(t *testing.T) {
	c, pids := fakeConfig(t, "well")
	for _, p := range c.Plans {
		c.Inputs = append(c.Inputs, doc.Input{Path: filepath.Base(p.Path), SHA256: p.SHA256})
	}
	if err := Run(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	nobodyLives(t, pids)
	f, err := os.Open(c.Out)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	spans, steps := 0, 0
	h, err := ReadTrace(c.Out, f, Visitor{
		Span: func(*Span) error { spans++; return nil },
		Step: func(*Step) error { steps++; return nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	if spans != 12 || steps != 12 {
		t.Errorf("%d spans and %d steps, want 12 of each: 3 blocks of 2 plans on 2 ranks", spans, steps)
	}
	if h.Mode != ModeCPU || h.Backend != "gloo" || h.Kernel != "math" || !h.Oversubscribed || h.Seed != 7 || len(h.Inputs) != 2 {
		t.Errorf("%+v", h)
	}
	if r := h.Ranks[1]; r.Torch != "9.9.9" || r.Host != "here" || r.Threads != 1 || r.Cores != nil {
		t.Errorf("%+v", r)
	}
	if p := h.Plans[1]; p.Path != "b.plan.json" || p.Strategy != "ulysses" || len(p.Layout.Groups) != 1 {
		t.Errorf("%+v", p)
	}
}
