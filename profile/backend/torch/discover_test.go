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
	"github.com/evenkeel/evenkeel/profile"
	"github.com/evenkeel/evenkeel/profile/backend/torch/launch"
)

// scripted is a wire to a worker that does all it is asked to, but for `run`,
// to which it gives one answer.
type scripted struct {
	out    chan event
	answer string
}

func (s *scripted) send(line []byte) error {
	id := 0
	if _, err := fmt.Sscanf(string(line[strings.Index(string(line), `"id":`):]), `"id":%d`, &id); err != nil {
		return err
	}
	answer := `{"t":"result","id":%d}`
	if strings.Contains(string(line), `"t":"run"`) {
		answer = s.answer
	}
	s.out <- event{line: fmt.Appendf(nil, answer, id)}
	return nil
}
func (s *scripted) events() <-chan event { return s.out }
func (s *scripted) kill()                { close(s.out) }
func (s *scripted) bye()                 {}

func TestDiscoveryListsWhatCanAndWhatCannotBeMeasured(t *testing.T) {
	b := fakeBackend(t, "none", Config{GroupSizes: []int{2, 4}, Cores: []Cores{{1, ""}, {1, ""}, {1, ""}, {2, ""}}})
	inv := discover(t, b)
	var names []string
	for _, d := range inv.Devices {
		names = append(names, d.Name)
		if err := d.Validate(); err != nil {
			t.Error(err)
		}
	}
	if !slices.Equal(names, []string{"torch_cpu:1", "torch_cpu:2"}) {
		t.Errorf("devices %v", names)
	}
	var groups []string
	for _, g := range inv.Groups {
		groups = append(groups, g.Name)
	}
	want := []string{"2 torch_cpu:1 over gloo_tcp", "1 torch_cpu:1 + 1 torch_cpu:2 over gloo_tcp", "3 torch_cpu:1 + 1 torch_cpu:2 over gloo_tcp"}
	if !slices.Equal(groups, want) {
		t.Errorf("groups %q", groups)
	}
	kinds := map[op.Kind]bool{}
	for _, s := range inv.Spaces {
		kinds[s.Kind] = true
	}
	for _, k := range []op.Kind{op.KindAttnFwd, op.KindAttnBwd, op.KindGEMM, op.KindNorm, op.KindAdamW, op.KindAllReduce, op.KindSendRecv} {
		if !kinds[k] {
			t.Errorf("no family of %s", k)
		}
	}
	if kinds[op.KindAllGather] || kinds[op.KindRope] || len(kinds) != 7 {
		t.Errorf("families of ops that the worker does not offer: %v", kinds)
	}
	notes := strings.Join(inv.Notes, "\n")
	for _, want := range []string{"attention kernel fa9: no module fa9", "attention kernel cpu works: (q, k, v)", "h2d: no accelerator", "torch 9.9.9", "collectives run through gloo"} {
		if !strings.Contains(notes, want) {
			t.Errorf("no note with %q in\n%s", want, notes)
		}
	}
	if len(inv.Once) != 2 || inv.Once[0].Op != op.KindMemCapacity {
		t.Errorf("measured once: %v", inv.Once)
	}
	again, err := b.Discover(t.Context())
	if err != nil || again != inv {
		t.Errorf("discovering again: %v", err)
	}
}

func TestPlacesOfATypeAndOfASignature(t *testing.T) {
	b := fakeBackend(t, "none", Config{GroupSizes: []int{2, 4}})
	inv := discover(t, b)
	var got []string
	for _, p := range inv.Places {
		got = append(got, p.On+" at "+p.Name)
	}
	want := []string{
		"torch_cpu:1 at n0/r0", "torch_cpu:1 at n0/r1", "torch_cpu:1 at n0/r2", "torch_cpu:1 at n0/r3",
		"2 torch_cpu:1 over gloo_tcp at n0/r0+n0/r1", "2 torch_cpu:1 over gloo_tcp at n0/r2+n0/r3",
		"4 torch_cpu:1 over gloo_tcp at n0/r0+n0/r1+n0/r2+n0/r3",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	x, err := b.Open(t.Context(), "2 torch_cpu:1 over gloo_tcp", "n0/r2+n0/r3")
	if err != nil || x.(*executor).ranks[0].place != "n0/r2" {
		t.Errorf("%+v %v", x, err)
	}
	if _, err := b.Open(t.Context(), "torch_cpu:1", "n7/r0"); err == nil || !strings.Contains(err.Error(), `"n7/r0"`) {
		t.Errorf("an unknown place: %v", err)
	}
}

// What is known of a GPU's model gives its type a name and a datasheet; a part of a GPU has
// its share of the rates of computing, and what the driver says goes before what is known.
func TestKnownGPUsHaveADatasheet(t *testing.T) {
	h100 := op.Sheet{BF16PerS: 1000e12, FP8PerS: 2000e12, MemoryPerS: 3e12, L2: 50, LinkPerS: 450e9, HostPerS: 64e9, Arch: "sm90"}
	b := &Backend{config: Config{Known: func(product string) (Known, bool) {
		return Known{Name: "h100_sxm", SMs: 100, Sheet: h100}, product == "NVIDIA H100"
	}}}
	half, own, other, bare := h100, h100, op.Sheet{L2: 60, Arch: "sm103"}, op.Sheet{L2: 8}
	half.BF16PerS, half.FP8PerS, own.L2 = 500e12, 1000e12, 60
	for _, c := range []struct {
		of   deviceFacts
		sms  int
		hip  string
		name string
		want op.Sheet
	}{
		{of: deviceFacts{Kind: "cuda", Name: "NVIDIA H100", SMs: 100, SM: [2]int{9, 0}, L2Bytes: 60}, name: "h100_sxm", want: own},
		{of: deviceFacts{Kind: "cuda", Name: "NVIDIA H100", SMs: 50, CardSMs: 100, SM: [2]int{9, 0}}, sms: 50, name: "h100_sxm@sm50", want: half},
		{of: deviceFacts{Kind: "cuda", Name: "NVIDIA X1", SMs: 10, SM: [2]int{10, 3}, L2Bytes: 60}, name: "x1", want: other},
		{of: deviceFacts{Kind: "cuda", Name: "AMD Instinct X", SMs: 10, SM: [2]int{9, 4}, L2Bytes: 8}, hip: "7.0", name: "amd_instinct_x", want: bare},
		{of: deviceFacts{Kind: "cpu", Name: "NVIDIA H100", SMs: 2, L2Bytes: 60}, name: "torch_cpu:1"},
	} {
		l := local{Cores: 1, SMs: c.sms, Greeting: greeting{Device: c.of, HIP: c.hip}}
		if d := b.deviceType(l, profile.Machine{}); d.Name != c.name || d.Sheet != c.want {
			t.Errorf("%+v: %s %+v, want %s %+v", c.of, d.Name, d.Sheet, c.name, c.want)
		}
	}
}

// A kernel without grouped heads is measured with as many KV heads as query heads: it
// refuses all other shapes.
func TestUngroupedKernels(t *testing.T) {
	offers := func(grouped bool) offer {
		return offer{OK: true, Ops: []op.Kind{op.KindAttnFwd}, Grouped: grouped}
	}
	r := &rank{greeting: greeting{Device: deviceFacts{Kind: "cuda"}, Ops: []op.Kind{op.KindAttnFwd}, Kernels: map[string]offer{"even": offers(false), "any": offers(true)}}}
	b := &Backend{config: Config{HeadDims: []int{64}}}
	grouped := map[string]bool{}
	for _, s := range b.computeSpaces(r) {
		for _, u := range [][]float64{{0.5, 0.9, 0.9, 0.5}, {0.2, 0.6, 1, 0.1}, {1, 1, 0, 1}} {
			a := s.Make(u[:s.Dims]).(op.AttnFwd)
			grouped[a.Kernel] = grouped[a.Kernel] || a.QHeads != a.KVHeads
		}
	}
	if len(grouped) != 2 || grouped["even"] || !grouped["any"] {
		t.Errorf("grouped heads: %v", grouped)
	}
}

// Every GPU is its own rank with its own worker, named after its product.
func TestGPUsOfOneMachine(t *testing.T) {
	t.Setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b,GPU-c,GPU-d")
	b := fakeBackend(t, "none", Config{}, "EVENKEEL_FAKE_GPU=NVIDIA H100 80GB HBM3")
	inv := discover(t, b)
	if len(inv.Devices) != 1 || inv.Devices[0].Name != "h100_80gb_hbm3" || inv.Devices[0].Parallel != 100 || len(b.ranks) != 4 {
		t.Fatalf("%+v, %d ranks", inv.Devices, len(b.ranks))
	}
	if b.ranks[3].place != "n0/g3" || len(inv.Groups) != 3 {
		t.Errorf("%s, %+v", b.ranks[3].place, inv.Groups)
	}
	if notes := strings.Join(inv.Notes, "\n"); !strings.Contains(notes, "n0/g2 is NVIDIA H100 80GB HBM3, GPU-c") {
		t.Errorf("no note which GPU is which:\n%s", notes)
	}
	if b.first != nil {
		t.Error("the worker of the probe, which sees all GPUs, is still there")
	}
	for _, s := range inv.Spaces {
		if v := s.Make(make([]float64, s.Dims)).Variant(); s.Kind == op.KindAttnFwd && (v.DType != op.BF16 || v.Kernel != "cpu") {
			t.Errorf("attention on a GPU: %v", v)
		}
	}
}

// A torch that cannot use the GPUs which the driver lists measures the processors,
// and nobody may take that for the GPUs.
func TestGPUsThatTorchDoesNotSeeAreSaidToBeLeftOut(t *testing.T) {
	machine := profile.Machine{NVIDIA: []profile.NVIDIADevice{{Name: "NVIDIA H100", UUID: "GPU-a"}}}
	notes := strings.Join(discover(t, fakeBackend(t, "none", Config{Machine: machine})).Notes, "\n")
	if !strings.Contains(notes, "the processors are measured, not 1 GPU of this machine: no accelerator") {
		t.Errorf("no word of the GPU:\n%s", notes)
	}
	notes = strings.Join(discover(t, fakeBackend(t, "none", Config{})).Notes, "\n")
	if strings.Contains(notes, "not 0 GPUs") {
		t.Errorf("a machine without GPUs:\n%s", notes)
	}
}

// How the GPUs of a set are linked is a matter of these alone: neither a card for displays
// nor the pairs that no bridge joins make NVLink something else.
func TestLinksAreThoseOfTheSet(t *testing.T) {
	b := gpus(t, nil)
	t.Setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b,GPU-c,GPU-d")
	m := &b.config.Machine
	for i, uuid := range []string{"GPU-t400", "GPU-a", "GPU-b", "GPU-c", "GPU-d"} {
		m.NVIDIA = append(m.NVIDIA, profile.NVIDIADevice{Index: i, UUID: uuid, Name: "NVIDIA H200"})
		for k := range i {
			word := "SYS"
			if k > 0 && (k-1)/2 == (i-1)/2 {
				word = "NV4"
			}
			m.NVIDIALinks = append(m.NVIDIALinks, profile.NVIDIALink{A: k, B: i, Link: word})
		}
	}
	b.config.GroupSizes = []int{2, 4}
	var names []string
	for _, g := range discover(t, b).Groups {
		names = append(names, g.Name)
	}
	if want := []string{"2 h200 over nvlink", "4 h200 over pcie"}; !slices.Equal(names, want) {
		t.Errorf("%q, want %q", names, want)
	}
}

func TestAGPUThatOthersUseIsRefused(t *testing.T) {
	t.Setenv("CUDA_VISIBLE_DEVICES", "0")
	b := fakeBackend(t, "none", Config{}, "EVENKEEL_FAKE_GPU=NVIDIA A100", "EVENKEEL_FAKE_BUSY=1")
	_, err := b.Discover(t.Context())
	if err == nil || !strings.Contains(err.Error(), "n0/g0 (a100): other processes compute on it (pids [4711])") || !strings.Contains(err.Error(), "--allow-shared") {
		t.Errorf("%v", err)
	}
	b = fakeBackend(t, "none", Config{AllowShared: true}, "EVENKEEL_FAKE_GPU=NVIDIA A100", "EVENKEEL_FAKE_BUSY=1")
	discover(t, b)
}

// Interpreters that cannot run the worker are refused with the reason.
func TestRefusedInterpreters(t *testing.T) {
	text := filepath.Join(t.TempDir(), "python3")
	if err := os.WriteFile(text, []byte("no program"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		python, behaviour, want string
		greet                   time.Duration
	}{
		"missing":        {"/nowhere/python3", "none", "/nowhere/python3: no such program", 0},
		"no torch":       {os.Args[0], "no-torch", "no module torch", 0},
		"other protocol": {os.Args[0], "other-proto", "its worker speaks protocol 99, this is 1", 0},
		"too slow":       {os.Args[0], "silent-start", "no answer to hello before the deadline", 500 * time.Millisecond},
	} {
		b := fakeBackend(t, c.behaviour, Config{Python: c.python, GreetTimeout: c.greet})
		_, err := b.Discover(t.Context())
		var e *NoTorchError
		if !errors.As(err, &e) || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "--python") {
			t.Errorf("%s: %v", name, err)
		}
	}
	// A program that is no Python at all: the real command line is used.
	for _, python := range []string{text, "/bin/true", "/bin/cat"} {
		b, err := New(Config{Python: python, Machine: profile.Machine{Cores: 1}, GreetTimeout: 2 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		_, err = b.Discover(t.Context())
		if err == nil || !strings.Contains(err.Error(), python+": ") {
			t.Errorf("%s: %v", python, err)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		if b.parent == nil {
			t.Fatal("the worker was not unpacked")
		}
		if _, err := os.Stat(b.parent.Path); !os.IsNotExist(err) {
			t.Errorf("%q stays behind", b.parent.Path)
		}
	}
}

func TestCandidatesAreTheOneAskedForOrTheUsualOnes(t *testing.T) {
	none := func(string) string { return "" }
	if got := candidates("/a/python", none); !slices.Equal(got, []string{"/a/python"}) {
		t.Error(got)
	}
	if got := candidates("", func(string) string { return "/b/python" }); !slices.Equal(got, []string{"/b/python"}) {
		t.Error(got)
	}
	if got := candidates("", none); got[len(got)-1] != "/usr/bin/python3" {
		t.Error(got)
	}
}

func TestBadConfigurationsAreRefused(t *testing.T) {
	m := profile.Machine{Cores: 2}
	for want, c := range map[string]Config{
		"cpu:3: this machine has 2 cores": {Machine: m, Cores: []Cores{{3, ""}}},
		"--group-sizes 1: want":           {Machine: m, GroupSizes: []int{1}},
		"head_dim 4":                      {Machine: m, HeadDims: []int{4}},
		`--dtype "f64": want`:             {Machine: m, DType: "f64"},
		`--dtype "fp8": want`:             {Machine: m, DType: op.FP8}, // which no worker runs
	} {
		if _, err := New(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
}

// Two devices of one name with another stack are never one type.
func TestTypesOfOneNameAndAnotherStackAreDistinct(t *testing.T) {
	l := local{Greeting: greeting{Torch: "1", Device: deviceFacts{Kind: "cuda", Name: "NVIDIA X"}}}
	m := l
	m.Greeting.Torch = "2"
	n := l
	n.Identity = "another power limit"
	b := fakeBackend(t, "none", Config{})
	b.place([]task{{Node: "a", Locals: []local{l, l}}, {Node: "b", Locals: []local{m, n}}})
	var got []string
	for _, r := range b.ranks {
		got = append(got, r.place+" "+r.device.Name)
	}
	if want := []string{"n0/g0 x", "n0/g1 x", "n1/g0 x_2", "n1/g1 x_3"}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

// The whole of a calibration against fakes that fail now and then.
func TestCalibrationGoesOnThroughFailures(t *testing.T) {
	b := fakeBackend(t, "segv:gemm", Config{GroupSizes: []int{2}, HeadDims: []int{64}}, onceFile(t))
	past, _ := profile.NewPast()
	var j lines
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err := profile.Calibrate(ctx, b, profile.Config{
		Tool: "test", Budget: 9 * time.Second, Seed: 1, PointTimeout: 10 * time.Second, Wall: time.Now,
		Only: []op.Kind{op.KindGEMM, op.KindAllReduce, op.KindMemCapacity},
	}, past, &j, func(profile.Progress) {})
	if err != nil {
		t.Fatal(err)
	}
	ok, peers, sizes := 0, 0, 0
	for _, l := range j {
		p, is := l.(*profile.Point)
		if !is {
			continue
		}
		if !p.OK() {
			t.Errorf("%s: %s %s", p.Op, p.Class, p.Error)
		}
		ok++
		if p.Place != "" {
			peers++
		}
		if p.Size == 1<<30 {
			sizes++
		}
	}
	if ok < 40 || peers == 0 || sizes != 1 {
		t.Errorf("%d points, %d peers, %d sizes", ok, peers, sizes)
	}
}

type lines []any

func (l *lines) Append(line any) error { *l = append(*l, line); return nil }

// A task of a launcher takes its own GPU: of several by its place on the node,
// the only one where the launcher shows no more.
func TestATaskTakesItsOwnGPU(t *testing.T) {
	for _, c := range []struct{ visible, want, err string }{
		{"GPU-a,GPU-b", "GPU-b", ""},
		{"GPU-z", "GPU-z", ""},
		{"GPU-a,GPU-b,GPU-c", "GPU-b", ""},
	} {
		t.Setenv("CUDA_VISIBLE_DEVICES", c.visible)
		b := fakeBackend(t, "none", Config{World: &launch.World{Task: 1, Tasks: 2, LocalTask: 1, LocalTasks: 2}}, "EVENKEEL_FAKE_GPU=NVIDIA X")
		b.config.Machine.NVIDIA = []profile.NVIDIADevice{{UUID: c.want, Name: "NVIDIA X", Driver: "550"}}
		mine, err := b.here(t.Context())
		if err != nil || len(mine.Locals) != 1 || mine.Locals[0].Visible != c.want || mine.Locals[0].Identity == "" {
			t.Errorf("%s: %+v, %v", c.visible, mine.Locals, err)
		}
	}
	t.Setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b,GPU-c")
	some := fakeBackend(t, "none", Config{World: &launch.World{Tasks: 2, LocalTasks: 1, Workers: 2}}, "EVENKEEL_FAKE_GPU=NVIDIA X")
	if mine, err := some.here(t.Context()); err != nil || len(mine.Locals) != 2 {
		t.Errorf("a job of two workers a node takes %+v, %v", mine.Locals, err)
	}
	t.Setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b")
	b := fakeBackend(t, "none", Config{World: &launch.World{Task: 2, Tasks: 3, LocalTask: 2, LocalTasks: 3}}, "EVENKEEL_FAKE_GPU=NVIDIA X")
	if _, err := b.here(t.Context()); err == nil || !strings.Contains(err.Error(), "this is task 2 of 3 on its node, which shows 2 GPUs") {
		t.Errorf("%v", err)
	}
}

// Ranks that share cores need one for their threads and one for gloo's event
// loop; ranks with cores of their own have it there, whatever the machine has.
func TestOversubscribedRanksAreSaidToBe(t *testing.T) {
	for cores, want := range map[int]string{2: "gloo_tcp_oversubscribed", 4: "gloo_tcp"} {
		b := fakeBackend(t, "none", Config{GroupSizes: []int{2, 4}})
		b.config.Machine.Cores = cores
		inv := discover(t, b)
		if inv.Groups[0].Link != want || inv.Groups[1].Link != want {
			t.Errorf("%d cores: %+v", cores, inv.Groups)
		}
		note := strings.Contains(strings.Join(inv.Notes, "\n"), "4 torch_cpu:1 over gloo_tcp_oversubscribed: fewer cores than threads")
		if note != (cores == 2) {
			t.Errorf("%d cores: %q", cores, inv.Notes)
		}
	}
}

// A layer's gradients pass more roundings than one kernel's.
func TestALayerMayBeOffByTwiceAKernels(t *testing.T) {
	r := &rank{greeting: greeting{DTypes: []op.DType{op.F32, op.BF16}, Ops: []op.Kind{op.KindGEMM, op.KindLayerBwd}}}
	got := map[string]float64{}
	for _, c := range r.numericCases() {
		got[fmt.Sprint(c.shape.Kind(), " ", c.shape.Variant().DType)] = c.limit
	}
	want := map[string]float64{"gemm f32": 1e-5, "gemm bf16": 1e-2, "layer_bwd f32": 2e-5, "layer_bwd bf16": 2e-2}
	if !maps.Equal(got, want) {
		t.Errorf("%v", got)
	}
}
