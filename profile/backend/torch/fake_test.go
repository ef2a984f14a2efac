package torch

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/profile"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// The fake worker is this test binary, started again with the behaviour wanted
// in its environment: every row of the table of failures is exercised without
// Python.
func TestMain(m *testing.M) {
	if os.Getenv("EVENKEEL_FAKE") != "" {
		os.Exit(fake(os.Getenv("EVENKEEL_FAKE")))
	}
	code := m.Run()
	if err := leaveGPU(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// fake answers like a worker whose every call takes a millisecond, and strikes
// as told: "what:op" with an optional ":rank" for group ops, once for each file
// named by EVENKEEL_FAKE_ONCE.
func fake(behaviour string) int {
	frames := os.NewFile(3, "frames")
	say := func(v any) {
		data, err := json.Marshal(v)
		if err != nil {
			panic(err)
		}
		fmt.Fprintf(frames, "%s\n", data)
	}
	what, on, _ := strings.Cut(behaviour, ":")
	on, rank, _ := strings.Cut(on, ":")
	if what == "silent-start" {
		time.Sleep(time.Hour)
	}
	if what == "no-torch" {
		say(map[string]any{"t": "error", "id": 1, "class": "unsupported", "msg": "no module torch"})
		return 3
	}
	if what == "other-proto" {
		say(map[string]any{"t": "hello", "id": 1, "proto": 99})
		time.Sleep(time.Hour)
	}
	fmt.Println("stray output of some library")
	me, prepared := "", op.Kind("")
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, maxFrame)
	for in.Scan() {
		var q request
		if err := json.Unmarshal(in.Bytes(), &q); err != nil {
			panic(err)
		}
		answer := map[string]any{"t": "result", "id": q.ID}
		if q.T == "prepare" {
			prepared = q.Op
		}
		if q.T == "join" {
			me = fmt.Sprint(q.Rank)
		}
		if (q.T == "run" || q.T == "prepare" && strings.HasPrefix(what, "prepare-")) && string(prepared) == on && (rank == "" || rank == me) && first() {
			if code, ends := strike(strings.TrimPrefix(what, "prepare-"), q, say, frames); ends {
				return code
			} else if code == answered {
				continue
			}
		}
		switch q.T {
		case "hello":
			answer = hello(q)
		case "run":
			ns := make([]int64, q.N)
			for i := range ns {
				ns[i] = int64(q.Inner) * 1e6
			}
			answer["samples_ns"] = ns
			answer["peak_bytes"] = 4096
			if reasons := os.Getenv("EVENKEEL_FAKE_REASONS"); reasons != "" {
				answer["gpu"] = map[string]any{"sm_mhz": []int{1980, 1980}, "reasons": jsontext.Value(reasons)}
			}
		case "gauge":
			if prepared == op.KindOverlap {
				answer["ratio"] = 2 + asRank(me) // so that a test sees whose it is
				break
			}
			answer["size_bytes"] = 1 << 30
		case "serve":
			answer["port"] = 12345
		case "bye":
			return 0
		}
		say(answer)
	}
	return 0
}

const answered = -1

// strike is one way to fail; it says whether the worker ends.
func strike(what string, q request, say func(any), frames *os.File) (code int, ends bool) {
	fail := func(class, msg string, fatal bool) {
		say(map[string]any{"t": "error", "id": q.ID, "class": class, "msg": msg, "fatal": fatal})
	}
	switch what {
	case "hang":
		for {
			say(map[string]any{"t": "beat", "id": q.ID})
			time.Sleep(50 * time.Millisecond)
		}
	case "stop":
		_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
		time.Sleep(time.Hour) // the signal may reach another thread first
	case "segv":
		_ = syscall.Kill(os.Getpid(), syscall.SIGSEGV)
		time.Sleep(time.Hour)
	case "exit":
		fmt.Fprintln(os.Stderr, "the last words")
		return 9, true
	case "oom", "unsupported", "wrong", "throttled", "internal":
		fail(what, "requested "+what, false)
		return answered, false
	case "cuda":
		fail("cuda_fatal", "an illegal memory access was encountered", true)
		return 70, true
	case "peer":
		fail("internal", "connection closed by peer", true)
		return 71, true
	case "torn":
		fmt.Fprint(frames, `{"t":"result","id`)
		return 0, true
	case "noise":
		fmt.Fprintln(frames, "this is no frame")
		time.Sleep(time.Hour)
	case "flood":
		fmt.Fprintln(frames, strings.Repeat("x", 2*maxFrame))
		time.Sleep(time.Hour)
	case "few":
		say(map[string]any{"t": "result", "id": q.ID, "samples_ns": []int{1}})
		return answered, false
	case "nan":
		fmt.Fprintf(frames, "{\"t\":\"result\",\"id\":%d,\"samples_ns\":[NaN]}\n", q.ID)
		time.Sleep(time.Hour)
	case "zero":
		say(map[string]any{"t": "result", "id": q.ID, "samples_ns": make([]int, q.N)})
		return answered, false
	}
	return 0, false
}

// first says whether a strike is due: always, or once where a file says so.
func first() bool {
	path := os.Getenv("EVENKEEL_FAKE_ONCE")
	if path == "" {
		return true
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL, 0o600)
	if err == nil {
		f.Close()
	}
	return err == nil
}

func hello(q request) map[string]any {
	if q.On == "cuda:0" && os.Getenv("EVENKEEL_FAKE_GPU") == "" {
		return map[string]any{"t": "error", "id": q.ID, "class": "unsupported", "msg": "no accelerator"}
	}
	h := map[string]any{
		"t": "hello", "id": q.ID, "proto": proto, "python": "3.11.2", "torch": "9.9.9", "host": "here",
		"device":  map[string]any{"kind": "cpu", "name": "a processor", "sms": 2, "mem_bytes": 1 << 34},
		"kernels": map[string]any{"cpu": map[string]any{"ok": true, "schema": "(q, k, v)", "ops": []string{"attn_fwd", "attn_bwd"}}, "fa9": map[string]any{"ok": false, "why": "no module fa9"}},
		"ops":     []string{"attn_fwd", "attn_bwd", "gemm", "norm", "adamw", "mem_capacity", "all_reduce", "send_recv"},
		"refused": map[string]string{"h2d": "no accelerator"},
		"comm":    map[string]any{"gloo": map[string]any{"ok": true}, "nccl": map[string]any{"ok": false, "why": "built without NCCL"}},
	}
	if os.Getenv("EVENKEEL_FAKE_VECTORS") != "" {
		h["device"].(map[string]any)["vectors"] = map[string]any{"aten": aten(), "blas": os.Getenv("OPENBLAS_CORETYPE"), "limits": map[string]string{}}
		h["device"].(map[string]any)["cores"] = q.Own
		h["ops"] = append(h["ops"].([]string), "overlap")
	}
	if gpu := os.Getenv("EVENKEEL_FAKE_GPU"); gpu != "" {
		sms := 100
		if q.SMs > 0 && os.Getenv("EVENKEEL_FAKE_STUBBORN") == "" {
			sms = q.SMs
		}
		h["device"] = map[string]any{"kind": "cuda", "name": gpu, "sms": sms, "card_sms": 100, "mem_bytes": 1 << 36 / max(1, q.Sharing), "uuid": os.Getenv("CUDA_VISIBLE_DEVICES")}
		h["comm"].(map[string]any)["nccl"] = map[string]any{"ok": true}
		if pid := os.Getenv("EVENKEEL_FAKE_BUSY"); pid != "" {
			h["busy"] = []int{4711}
		}
	}
	return h
}

// aten is the word of a torch that obeys its limit, or of one that does not.
func aten() string {
	word := map[string]string{"": "AVX512", "avx2": "AVX2", "default": "DEFAULT"}[os.Getenv("ATEN_CPU_CAPABILITY")]
	if os.Getenv("EVENKEEL_FAKE_VECTORS") == "stubborn" {
		word = "AVX512"
	}
	return word
}

func asRank(me string) int {
	n, err := strconv.Atoi(me)
	if err != nil {
		panic(err)
	}
	return n
}

// fakeBackend is a backend whose workers are fakes with the given behaviour.
func fakeBackend(t *testing.T, behaviour string, config Config, env ...string) *Backend {
	t.Helper()
	config.Machine = profile.Machine{Host: "here", CPU: "a processor", Cores: 16, NVIDIA: config.Machine.NVIDIA}
	config.Worker = func(string, ...string) *exec.Cmd {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), append(env, "EVENKEEL_FAKE="+behaviour, "GORACE=atexit_sleep_ms=0")...)
		return cmd
	}
	if config.Python == "" {
		config.Python = os.Args[0]
	}
	b, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

func discover(t *testing.T, b *Backend) *profile.Inventory {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	inv, err := b.Discover(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return inv
}

// once gives the environment of a strike that comes once.
func onceFile(t *testing.T) string {
	return "EVENKEEL_FAKE_ONCE=" + filepath.Join(t.TempDir(), "struck")
}
