package torch

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/profile"
)

func TestParsePartition(t *testing.T) {
	for _, p := range []Partition{{0, 80}, {3, 1}, {12, 132}} {
		if got, err := ParsePartition(p.String()); err != nil || got != p {
			t.Errorf("%s: %v %v", p, got, err)
		}
	}
	for _, s := range []string{"", "0", "@sm8", "0@sm", "0@sm0", "-1@sm8", "0@sm08", "0@sm8 ", "00@sm8", "0@8", "0@sm8@sm8", "0@sm1e3"} {
		if p, err := ParsePartition(s); err == nil || !strings.Contains(err.Error(), "such as 0@sm80") {
			t.Errorf("%q: %v %v", s, p, err)
		}
	}
}

func TestMultiprocessorsOfATypesName(t *testing.T) {
	for name, want := range map[string]int{
		"h200@sm80": 80, "h200_mig_1g@sm16": 16, "h200@sm80_2": 80, "h200": 0, "torch_cpu:1@sse4": 0, "torch_cpu:1": 0, "x@sm": 0, "x@smart": 0, "x@sm-8": 0, "@sm8": 8,
	} {
		if got := Multiprocessors(name); got != want {
			t.Errorf("%s: %d, want %d", name, got, want)
		}
	}
}

// gpus is a backend of fakes on GPUs of 100 multiprocessors.
func gpus(t *testing.T, list []Partition, env ...string) *Backend {
	t.Helper()
	t.Setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b")
	return fakeBackend(t, "none", Config{Partitions: list, GroupSizes: []int{2}}, append(env, "EVENKEEL_FAKE_GPU=NVIDIA H200")...)
}

func TestPartitionsAreTypesOfTheirOwn(t *testing.T) {
	inv := discover(t, gpus(t, []Partition{{0, 64}, {0, 32}, {1, 64}}))
	var got []string
	for _, d := range inv.Devices {
		got = append(got, fmt.Sprintf("%s %d %d %s", d.Name, d.Parallel, d.Memory>>30, d.Model))
		if err := d.Validate(); err != nil {
			t.Error(err)
		}
	}
	want := []string{
		"h200@sm64 64 32 NVIDIA H200, 64 of 100 multiprocessors", "h200@sm32 32 32 NVIDIA H200, 32 of 100 multiprocessors",
		"h200@sm64_2 64 64 NVIDIA H200, 64 of 100 multiprocessors", // alone on its GPU, it has other memory
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	if i := slices.IndexFunc(inv.Groups, func(g op.GroupType) bool { return g.Name == "1 h200@sm32 + 1 h200@sm64 over gloo_tcp" }); i < 0 {
		t.Errorf("ranks on one GPU talk through gloo: %+v", inv.Groups)
	}
	notes := strings.Join(inv.Notes, "\n")
	for _, want := range []string{"n0/g0 has 64 of 100, n0/g1 has 32 of 100", "while the others idle", "collectives run through gloo"} {
		if !strings.Contains(notes, want) {
			t.Errorf("no %q in %s", want, notes)
		}
	}
}

func TestAWholeGPUKeepsItsName(t *testing.T) {
	inv := discover(t, gpus(t, nil))
	if d := inv.Devices[0]; d.Name != "h200" || d.Parallel != 100 || d.Memory != 64*units.GiB || !slices.Contains(inv.Notes, "collectives run through nccl") {
		t.Errorf("%+v %q", d, inv.Notes)
	}
}

func TestPartitionsThatCannotBeMeasuredAreRefused(t *testing.T) {
	for _, c := range []struct {
		list []Partition
		env  string
		want string
	}{
		{[]Partition{{0, 64}}, "EVENKEEL_FAKE_STUBBORN=1", "gpu:0@sm64: @sm64: the worker has 100 of 100 multiprocessors"},
		{[]Partition{{2, 64}}, "", "gpu:2@sm64: this process may use 2 GPUs: name 0 to 1"},
		{[]Partition{{0, 64}, {1, 64}, {0, 40}}, "", "gpu:0@sm40: with it the ranks of this GPU have 104 multiprocessors, of which it has 100"},
		{[]Partition{{0, 64}}, "EVENKEEL_FAKE_BUSY=1", "other processes compute on it"},
	} {
		_, err := gpus(t, c.list, c.env).Discover(t.Context())
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v, want %s", c.list, err, c.want)
		}
	}
	if _, err := New(Config{Partitions: []Partition{{0, 8}}, Cores: []Cores{{1, ""}}, Machine: profile.Machine{Cores: 4}}); err == nil || !strings.Contains(err.Error(), "measure them apart") {
		t.Error(err)
	}
}

func FuzzParsePartition(f *testing.F) {
	f.Add("0@sm80")
	f.Add("1@sm@sm8")
	f.Fuzz(func(t *testing.T, s string) {
		if p, err := ParsePartition(s); err == nil && (p.String() != s || Multiprocessors("x@sm"+s[strings.LastIndex(s, "m")+1:]) != p.SMs) {
			t.Errorf("%q: %+v", s, p)
		}
	})
}
