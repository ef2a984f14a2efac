package replay

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/solver"
)

// The fake rank is this test binary, started again with the behaviour wanted in
// its environment: every way in which a rank can fail is exercised without
// Python. Fake ranks do not talk to each other.
func TestMain(m *testing.M) {
	if behaviour := os.Getenv("EVENKEEL_FAKE"); behaviour != "" {
		fake(behaviour)
		return
	}
	os.Exit(m.Run())
}

// fakeRank is one such process.
type fakeRank struct {
	frames *os.File
	q      request
	rank   int
	plans  int
}

func (k *fakeRank) say(v map[string]any) {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	fmt.Fprintf(k.frames, "%s\n", data)
}

func (k *fakeRank) at(phase string, block, plan int) {
	k.say(map[string]any{"t": "at", "rank": k.rank, "phase": phase, "block": block, "plan": plan, "dir": "fwd", "layer": 0, "step": k.rank})
}

// fake is a rank that goes through all blocks in no time, and strikes at block 1,
// plan 1 as told: "what:rank". The others then wait like ranks that lost a peer.
func fake(behaviour string) {
	rank, _ := strconv.Atoi(os.Getenv("RANK"))
	what, on, _ := strings.Cut(behaviour, ":")
	mine := on == "" || on == fmt.Sprint(rank)
	leaveTraces(rank)
	fmt.Println("stray output of some library")
	k := &fakeRank{frames: os.NewFile(3, "frames"), rank: rank}
	in := bufio.NewReader(os.Stdin)
	line, err := in.ReadBytes('\n')
	if err != nil || json.Unmarshal(line, &k.q) != nil {
		panic(fmt.Sprintf("the request: %v", err))
	}
	if what == "silent-start" && mine {
		time.Sleep(time.Hour)
	}
	if what == "no-gpu" {
		k.say(map[string]any{"t": "error", "class": "usage", "msg": "torch 9.9.9 sees no accelerator", "at": "start"})
		os.Exit(1)
	}
	hello := map[string]any{"t": "hello", "rank": rank, "pid": os.Getpid(), "host": "here", "python": "3.11.2", "torch": "9.9.9", "kernel": "math", "sms": k.q.SMs}
	if what == "wide" && mine {
		hello["sms"], hello["vectors"] = 0, map[string]any{"aten": "AVX512"}
	}
	if what != "no-hello" || !mine {
		k.say(hello)
	}
	k.at(phaseMeet, 0, 0)
	for what == "silent-start" {
		k.at(phaseMeet, 0, 0)
		time.Sleep(50 * time.Millisecond)
	}
	k.plans = len(k.q.Plans)
	for b := range k.q.Repeats {
		for p := range k.plans {
			k.at(phaseBlock, b, p)
			if b == 1 && p == 1 && !slices.Contains([]string{"well", "no-hello", "fewer-spans", "no-file"}, what) {
				k.strike(what, mine)
			}
		}
	}
	k.result(what)
	_, _ = in.ReadByte() // until the starter leaves
}

// leaveTraces notes the process's number, and starts a process that would
// outlive it.
func leaveTraces(rank int) {
	syscall.CloseOnExec(3) // its end must show when this process ends
	child := exec.Command("sleep", "600")
	if err := child.Start(); err != nil {
		panic(err)
	}
	path := filepath.Join(os.Getenv("EVENKEEL_FAKE_PIDS"), fmt.Sprint(rank))
	if err := os.WriteFile(path, fmt.Appendf(nil, "%d %d", os.Getpid(), child.Process.Pid), 0o600); err != nil {
		panic(err)
	}
}

// strike is one way to fail, or to wait for the rank that does.
func (k *fakeRank) strike(what string, mine bool) {
	beating := func() {
		for {
			k.at(phaseBlock, 1, 1)
			time.Sleep(50 * time.Millisecond)
		}
	}
	if !mine {
		if what == "kill" || what == "peers" {
			time.Sleep(100 * time.Millisecond)
			k.say(map[string]any{"t": "error", "class": "peer", "msg": "Connection closed by peer\nTraceback", "at": "block 1, plan 1, ring"})
			os.Exit(1)
		}
		beating()
	}
	fail := func(class, msg string) {
		k.say(map[string]any{"t": "error", "class": class, "msg": msg, "at": "block 1, plan 1, fwd step 2 ring"})
		os.Exit(1)
	}
	switch what {
	case "kill":
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	case "exit":
		fmt.Fprintln(os.Stderr, "the last words")
		os.Exit(9)
	case "leave":
		os.Exit(0)
	case "stop":
		_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
	case "hang", "peers":
		beating()
	case "garbage":
		fmt.Fprintln(k.frames, "this is no frame")
	case "strange":
		k.say(map[string]any{"t": "boast"})
	case "flood":
		fmt.Fprintln(k.frames, strings.Repeat("x", 2*maxFrame))
	case "versions", "numerics", "bytes", "internal":
		fail(what, "requested "+what)
	}
	time.Sleep(time.Hour) // a signal may reach another thread first
}

func (k *fakeRank) result(what string) {
	numerics, exact := []any{}, []any{}
	for p := range k.plans {
		numerics = append(numerics, map[string]any{"plan": p, "out": 2e-7, "dq": 3e-7, "dk": 0, "dv": 1e-7, "limit": 1e-5, "reference": "dense", "rows": 0})
		exact = append(exact, map[string]any{"plan": p, "messages": 4, "bytes": 1024, "flops": 1 << 20})
	}
	steps := 0
	if k.rank == 0 && what != "no-file" {
		steps = k.write()
	}
	if what == "fewer-spans" {
		steps++
	}
	k.say(map[string]any{"t": "result", "rank": k.rank, "numerics": numerics, "exact": exact, "steps": steps, "spans": steps})
}

// write is what rank 0 gathered: one span and one step of every rank and plan in
// every block.
func (k *fakeRank) write() (steps int) {
	f, err := os.Create(k.q.Trace)
	if err != nil {
		panic(err)
	}
	defer f.Close()
	size, _ := strconv.Atoi(os.Getenv("WORLD_SIZE"))
	for b := range k.q.Repeats {
		for p := range k.plans {
			for r := range size {
				fmt.Fprintf(f, `{"t":"span","block":%d,"plan":%d,"rank":%d,"layer":0,"mb":0,"dir":"fwd","step":0,"op":"attn","t0_ns":10,"dur_ns":%d,"bytes_out":0,"bytes_in":0,"flops":5,"shape":{"q_len":7}}`+"\n", b, p, r, 1000*(r+1))
				fmt.Fprintf(f, `{"t":"step","block":%d,"plan":%d,"rank":%d,"dur_ns":%d}`+"\n", b, p, r, 2000*(r+1)+b)
				steps++
			}
		}
	}
	return steps
}

// planFile makes a plan of 2 ranks with the laws of the recorded profile.
func planFile(t *testing.T, name, strategy string, change func(*solver.Plan)) string {
	t.Helper()
	var profile costmodel.Profile
	if err := doc.Load("../results/evidence/torch/calibration.profile.json", &profile); err != nil {
		t.Fatal(err)
	}
	cluster, err := costmodel.ParseCluster("1x2 torch_cpu:1")
	if err != nil {
		t.Fatal(err)
	}
	cluster.Nodes[0].Link = "gloo_tcp_oversubscribed"
	problem, err := solver.NewProblem(&profile, costmodel.Job{
		Model:   costmodel.Model{Name: "llama", Layers: 2, Hidden: 256, FFN: 512, QHeads: 4, KVHeads: 2, HeadDim: 64, Vocab: 128, GatedMLP: true},
		Cluster: cluster, SeqLen: 256, DType: "f32", Recompute: costmodel.RecomputeNone, RingBuffers: 2, LossChunk: 256, Zero: costmodel.Zero3, Accumulate: 1,
	})
	if err != nil {
		t.Fatal(err)
	}
	problem.Take = strategy
	p, err := solver.Solve(t.Context(), problem, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), name)
	if err := doc.Save(path, p); err != nil {
		t.Fatal(err)
	}
	if change == nil {
		return path
	}
	change(p)
	data, err := json.Marshal(p) // Save would refuse what is wrong
	if err == nil {
		err = os.WriteFile(path, data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}
