package torch

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/op"
)

func TestCoresAreReadAndWritten(t *testing.T) {
	for text, want := range map[string]Cores{"1": {1, ""}, "12": {12, ""}, "1@avx2": {1, AVX2}, "64@sse4": {64, SSE4}} {
		got, err := ParseCores(text)
		if err != nil || got != want || got.String() != text {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
	for text, want := range map[string]string{
		"":       "want a number of threads",
		"0":      "want a number of threads",
		"-1":     "want a number of threads",
		"01":     "want a number of threads",
		"@avx2":  "want a number of threads",
		"1@":     `called "": want avx2 or sse4`,
		"1@avx":  `called "avx": want avx2 or sse4`,
		"1@AVX2": `called "AVX2"`,
	} {
		if _, err := ParseCores(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func FuzzParseCores(f *testing.F) {
	for _, s := range []string{"1", "2@avx2", "1@sse4", "@", "1@", "99999999999999999999"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		c, err := ParseCores(s)
		if err == nil && c.String() != s {
			t.Errorf("%q is read as %+v and written as %q", s, c, c)
		}
		threads, env, ok := Processor(typePrefix + s)
		if ok != (err == nil) || ok && (threads != c.Threads || len(env) == 0) {
			t.Errorf("%q: %d %q %v", s, threads, env, ok)
		}
	})
}

func TestADeviceTypeSaysWhatItsRanksHaveInTheirEnvironment(t *testing.T) {
	for name, want := range map[string]struct {
		threads int
		has     []string
	}{
		"torch_cpu:2":      {2, []string{"OMP_NUM_THREADS=2", "OPENBLAS_NUM_THREADS=2", "MKL_NUM_THREADS=2", "OMP_WAIT_POLICY=PASSIVE"}},
		"torch_cpu:1@avx2": {1, []string{"OMP_NUM_THREADS=1", "OPENBLAS_CORETYPE=Haswell", "ATEN_CPU_CAPABILITY=avx2", "MKL_ENABLE_INSTRUCTIONS=AVX2", "ONEDNN_MAX_CPU_ISA=AVX2"}},
		"torch_cpu:1@sse4": {1, []string{"OPENBLAS_CORETYPE=Nehalem", "ATEN_CPU_CAPABILITY=default", "MKL_ENABLE_INSTRUCTIONS=SSE4_2", "ONEDNN_MAX_CPU_ISA=SSE41"}},
	} {
		threads, env, ok := Processor(name)
		if !ok || threads != want.threads {
			t.Errorf("%s: %d %v", name, threads, ok)
		}
		for _, v := range want.has {
			if !slices.Contains(env, v) {
				t.Errorf("%s: no %s in %q", name, v, env)
			}
		}
		if limited := slices.ContainsFunc(env, func(s string) bool { return strings.HasPrefix(s, "ATEN") }); limited != strings.Contains(name, "@") {
			t.Errorf("%s: %q", name, env)
		}
	}
	for _, name := range []string{"h100", "cpu:1", "torch_cpu:", "torch_cpu:0", "torch_cpu:1@neon", "torch_cpu:1_2"} {
		if _, _, ok := Processor(name); ok {
			t.Errorf("%s counts as ranks on processors", name)
		}
	}
}

// A limit above what the processor has would be none.
func TestALimitThatTheProcessorLacksIsRefused(t *testing.T) {
	const old, arm = "processor\t: 0\nflags\t\t: fpu sse4_1 sse4_2 avx\n", "processor\t: 0\nFeatures\t: fp asimd\n"
	for _, c := range []struct {
		isa           ISA
		cpuinfo, want string
	}{
		{"", arm, ""},
		{SSE4, old, ""},
		{AVX2, old, "@avx2: this processor has no avx2"},
		{SSE4, arm, "@sse4: this processor has no sse4_1"},
		{AVX2, "", "@avx2: this processor has no avx2"},
		{AVX2, "flags : avx2 fma", ""},
	} {
		err := lacks(c.isa, c.cpuinfo)
		if got := fmt.Sprint(err); (err == nil) != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%q on %q: %v", c.isa, c.cpuinfo, err)
		}
	}
}

// limited is a backend of two fakes of one thread, the second with narrower
// vector units.
func limited(t *testing.T, torch string) *Backend {
	t.Helper()
	if err := lacks(SSE4, cpuinfo()); err != nil {
		t.Skip(err)
	}
	return fakeBackend(t, "none", Config{Cores: []Cores{{1, ""}, {1, SSE4}}}, "EVENKEEL_FAKE_VECTORS="+torch, "ATEN_CPU_CAPABILITY=", "OPENBLAS_CORETYPE=")
}

func TestNarrowerVectorUnitsAreATypeOfTheirOwn(t *testing.T) {
	b := limited(t, "obedient")
	b.config.GroupSizes = []int{2}
	inv := discover(t, b)
	var got []string
	for _, d := range inv.Devices {
		got = append(got, fmt.Sprint(d.Name, " ", d.Parallel))
		if err := d.Validate(); err != nil {
			t.Error(err)
		}
	}
	if !slices.Equal(got, []string{"torch_cpu:1 1", "torch_cpu:1@sse4 1"}) || inv.Devices[0].Fingerprint == inv.Devices[1].Fingerprint {
		t.Errorf("%q", got)
	}
	if s := inv.Devices[1].Stack; !strings.Contains(s, "ATen DEFAULT, OpenBLAS Nehalem") {
		t.Errorf("stack %q", s)
	}
	if len(inv.Groups) != 1 || inv.Groups[0].Name != "1 torch_cpu:1 + 1 torch_cpu:1@sse4 over gloo_tcp" {
		t.Errorf("%+v", inv.Groups)
	}
	if !slices.Equal(b.ranks[0].own, []int{0}) || !slices.Equal(b.ranks[1].own, []int{1}) {
		t.Errorf("cores %v and %v", b.ranks[0].own, b.ranks[1].own)
	}
}

func TestAStackThatTakesNoNoticeOfItsLimitIsRefused(t *testing.T) {
	_, err := limited(t, "stubborn").Discover(t.Context())
	if err == nil || !strings.Contains(err.Error(), `torch_cpu:1@sse4: @sse4: torch takes no notice of ATEN_CPU_CAPABILITY, it uses "AVX512"`) {
		t.Error(err)
	}
	if err := (Vectors{ATen: "AVX2", BLAS: "SkylakeX"}).obey(AVX2); err == nil || !strings.Contains(err.Error(), "OPENBLAS_CORETYPE") {
		t.Error(err)
	}
	for _, v := range []Vectors{{ATen: "AVX2"}, {ATen: "AVX2", BLAS: "Haswell"}} {
		if err := v.obey(AVX2); err != nil {
			t.Error(err)
		}
	}
}

// What attention and messages do to each other is asked of both ranks of a pair
// at once and is each type's own.
func TestAttentionBesideMessagesIsMeasuredInAPair(t *testing.T) {
	b := limited(t, "obedient")
	b.config.GroupSizes = []int{2}
	inv := discover(t, b)
	n := 0
	for _, s := range inv.Once {
		if s.Op == op.KindOverlap {
			n++
		}
	}
	if n != 8 { // forward and backward, either side, two types
		t.Errorf("%d overlaps in %v", n, inv.Once)
	}
	for i, on := range []string{"torch_cpu:1", "torch_cpu:1@sse4"} {
		x, err := b.Open(t.Context(), on, "")
		if err != nil {
			t.Fatal(err)
		}
		if err := x.Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
		for s, want := range map[op.Shape]float64{besideMessages()[0]: float64(2 + i), op.MemCapacity{}: 1 << 30} {
			if err := x.Prepare(t.Context(), s, 1); err != nil {
				t.Fatal(err)
			}
			if got, err := x.(*executor).Gauge(t.Context()); err != nil || got != want {
				t.Errorf("%s on %s: %v, want %v: %v", s.Kind(), on, got, want, err)
			}
		}
	}
}

// Ranks have cores of their own where there are enough of them for all.
func TestRanksHaveCoresOfTheirOwnWhereThereAreEnough(t *testing.T) {
	for _, c := range []struct {
		cores int
		asked []Cores
		sizes []int
		want  [][]int
		free  []int // cores that the worker says it may use
	}{
		{1, nil, nil, [][]int{{0}}, nil},
		{2, nil, nil, [][]int{{0}, {1}}, nil},
		{8, nil, nil, [][]int{{0}, {1}, {2}, {3}}, nil},
		{3, []Cores{{2, ""}, {1, ""}}, nil, [][]int{{0, 1}, {2}}, nil},
		{4, []Cores{{2, ""}, {1, ""}}, nil, [][]int{{0, 1}, {2}}, nil}, // no third of two threads
		{2, []Cores{{2, ""}}, nil, [][]int{nil, nil}, nil},
		{2, nil, []int{2, 4}, [][]int{nil, nil, nil, nil}, nil},
		{8, nil, []int{4}, [][]int{nil, nil, nil, nil}, []int{2, 3}}, // by its affinity
		{8, nil, []int{2}, [][]int{{0}, {1}}, []int{2, 3}},
	} {
		b := fakeBackend(t, "none", Config{Cores: c.asked, GroupSizes: c.sizes})
		b.config.Machine.Cores = c.cores
		list, err := b.processors(t.Context(), greeting{Device: deviceFacts{Cores: c.free}})
		var got [][]int
		for _, l := range list {
			got = append(got, l.Own)
		}
		if err != nil || !slices.EqualFunc(got, c.want, slices.Equal[[]int]) {
			t.Errorf("%d cores, %v, %v: %v, want %v (%v)", c.cores, c.asked, c.sizes, got, c.want, err)
		}
	}
}

func TestAReferenceBLASIsNoted(t *testing.T) {
	slow, fast := &rank{place: "n0/c0"}, &rank{place: "n0/c1"}
	slow.greeting.Device = deviceFacts{Kind: "cpu", Vectors: Vectors{Reference: "/lib/libblas.so.3"}}
	fast.greeting.Device = deviceFacts{Kind: "cpu", Vectors: Vectors{BLAS: "Zen"}}
	if notes := strings.Join(processorNotes([]*rank{fast, slow}), "\n"); !strings.Contains(notes, "n0/c0: torch multiplies matrices with the reference BLAS (/lib/libblas.so.3)") {
		t.Error(notes)
	}
	if notes := strings.Join(processorNotes([]*rank{fast}), "\n"); strings.Contains(notes, "BLAS") {
		t.Error(notes)
	}
}

// The limits are obeyed by the real libraries, and attention beside messages is
// gauged on a narrowed rank.
func TestTorchNarrowerVectorUnits(t *testing.T) {
	if err := lacks(SSE4, cpuinfo()); err != nil {
		t.Skip(err)
	}
	b := withTorch(t, Config{Cores: []Cores{{1, ""}, {1, SSE4}}, GroupSizes: []int{2}})
	wide, narrow := b.ranks[0].greeting.Device.Vectors, b.ranks[1].greeting.Device.Vectors
	if wide.ATen == narrow.ATen || narrow.Limits["OPENBLAS_CORETYPE"] != "Nehalem" {
		t.Errorf("%+v, %+v", wide, narrow)
	}
	least := [2]float64{math.Inf(1), math.Inf(1)}
	for range 5 { // in turns, since others on the machine come and go
		for i, on := range []string{"torch_cpu:1", "torch_cpu:1@sse4"} {
			batch, err := run(t.Context(), b, on, op.GEMM{Pass: op.Forward, M: 512, N: 512, K: 512, DType: op.F32})
			if err != nil {
				t.Fatal(err)
			}
			least[i] = min(least[i], float64(slices.Min(batch.Slowest())))
		}
	}
	if least[1] < 1.2*least[0] {
		t.Errorf("a GEMM takes %.2g s, with narrower units %.2g s", least[0], least[1])
	}
	for _, s := range besideMessages() {
		x, err := b.Open(t.Context(), "torch_cpu:1@sse4", "")
		if err != nil {
			t.Fatal(err)
		}
		if err := x.Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
		o := s.(op.OverlapPair)
		o.Tokens, o.Bytes = 64, 1<<20 // short, since this is no measurement
		if err := x.Prepare(t.Context(), o, 1); err != nil {
			t.Fatal(err)
		}
		ratio, err := x.(*executor).Gauge(t.Context())
		// How large it is says nothing on a machine that others use.
		if err != nil || !(ratio > 0) || math.IsInf(ratio, 1) {
			t.Errorf("%v: %v, %v", s, ratio, err)
		}
	}
}
