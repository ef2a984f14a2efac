package emit

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/solver"
	"github.com/evenkeel/evenkeel/solver/internal/world"
)

// What is sharded, overlapped and computed in which precision is said to the framework, and
// priced as it does it.
func TestSettings(t *testing.T) {
	profile, job := world.GPUJob(t, "1x4 h100_sxm", 64<<10)
	lines := func(text string) []string { return strings.Split(text, "\n") }
	for _, c := range []struct {
		framework string
		zero      costmodel.ZeRO
		overlap   bool
		has, not  []string
		verdicts  map[string]Verdict
	}{
		{"megatron", costmodel.Zero0, true, []string{"--overlap-grad-reduce", "--bf16"}, []string{"--use-distributed-optimizer", "--overlap-param-gather", "--use-megatron-fsdp"}, map[string]Verdict{fieldZero: Exact, fieldOverlap: Exact}},
		{"megatron", costmodel.Zero0, false, []string{"--bf16"}, []string{"--overlap-grad-reduce", "--use-distributed-optimizer"}, map[string]Verdict{fieldOverlap: Exact}},
		{"megatron", costmodel.Zero1, true, []string{"--use-distributed-optimizer", "--overlap-grad-reduce", "--overlap-param-gather"}, []string{"--use-megatron-fsdp"}, nil},
		{"megatron", costmodel.Zero2, true, []string{"--use-megatron-fsdp", "--data-parallel-sharding-strategy optim_grads"}, nil, nil},
		{"megatron", costmodel.Zero3, true, []string{"--use-megatron-fsdp", "--data-parallel-sharding-strategy optim_grads_params"}, nil, nil},
		{"accelerate", costmodel.Zero1, true, nil, nil, map[string]Verdict{fieldDType: Exact}},
	} {
		job.Zero, job.OverlapZero = c.zero, c.overlap
		f, _ := Lookup(c.framework)
		e, err := emitted(t, f, solved(t, profile, job, ""), profile)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range c.has {
			if !slices.Contains(lines(e.Text), want) {
				t.Errorf("%s, %s: %q is missing: %s", c.framework, c.zero, want, e.Text)
			}
		}
		for _, no := range c.not {
			if slices.Contains(lines(e.Text), no) {
				t.Errorf("%s, %s: %q: %s", c.framework, c.zero, no, e.Text)
			}
		}
		for _, x := range e.Fields {
			if want := c.verdicts[x.Name]; want != "" && x.Verdict != want {
				t.Errorf("%s, %s: %+v, want %s", c.framework, c.zero, x, want)
			}
		}
	}
	job.Zero, job.OverlapZero, job.Accumulate = costmodel.Zero1, false, 2
	plan := solved(t, profile, job, "")
	all, err := accelerate{}.variants(askedOf(plan, profile), upTo(0, 4))
	if err != nil {
		t.Fatal(err)
	}
	want := map[bool]map[string]Verdict{ // by whether it is Ulysses
		false: {fieldRecompute: Exact, fieldZero: Rounded, fieldOverlap: Rounded, fieldAccumulate: Dropped, fieldBuffers: Exact, fieldLoss: Rounded},
		true:  {fieldRecompute: Dropped, fieldZero: Exact, fieldOverlap: Dropped, fieldAccumulate: Exact, fieldBuffers: Exact, fieldLoss: Rounded},
	}
	for _, v := range all {
		for _, x := range settings(accelerate{}, job, &v) {
			if w := want[v.hp > 1][x.Name]; w != "" && x.Verdict != w {
				t.Errorf("Ulysses %v: %+v, want %s", v.hp > 1, x, w)
			}
		}
		if v.hp == 1 && (v.job.Zero != costmodel.Zero2 || !v.job.OverlapZero) {
			t.Errorf("FSDP is priced with %s, overlap %v", v.job.Zero, v.job.OverlapZero)
		}
	}
}

func TestScheduleNames(t *testing.T) {
	for want, s := range map[string]costmodel.Schedule{
		"plain": {}, "own blocks last, kept tail": {OwnLast: true, KeepTail: true}, "3 head chunks": {HeadChunks: 3},
		"micro-batches in twos, backward rings in turn": {TwoBatch: true, WeaveBackward: true},
	} {
		if got := scheduleName(s); got != want {
			t.Errorf("%+v: %q, want %q", s, got, want)
		}
	}
}

// Where the framework's processes are to be started is said in the launcher's terms.
func TestLaunched(t *testing.T) {
	plan := &solver.Plan{}
	for r, node := range []string{"a", "a", "b", "b", "c", "d", "e", "e"} {
		plan.Ranks = append(plan.Ranks, solver.PlanRank{Rank: r, Node: node})
	}
	for want, ranks := range map[string][]int{
		"1 rank on node b (3 of the plan), with CUDA_VISIBLE_DEVICES=1 on b":                                                            {3},
		"2 nodes in the plan's order (b, e), node rank 0 the first, 1 rank each (3,7 of the plan), with CUDA_VISIBLE_DEVICES=1 on each": {3, 7},
		"2 ranks on node a (0-1 of the plan)":                                                                                           {0, 1},
		"2 nodes in the plan's order (a, b), node rank 0 the first, 2 ranks each (0-3 of the plan)":                                     {0, 1, 2, 3},
		"3 nodes in the plan's order (b, c, d), node rank 0 the first, 1 rank each (3-5 of the plan), with CUDA_VISIBLE_DEVICES=1 on b": {3, 4, 5},
		"5 nodes in the plan's order (a to e), node rank 0 the first, as many ranks on each as it has here (0-7 of the plan)":           upTo(0, 8),
	} {
		if got := launched(nodesOf(plan), ranks); got != want {
			t.Errorf("%v: %q, want %q", ranks, got, want)
		}
	}
}

func TestPrecisions(t *testing.T) {
	for d, want := range map[op.DType][2]string{
		op.BF16: {"--bf16", "bf16"}, op.F16: {"--fp16", "fp16"}, op.FP8: {"--bf16 --fp8-format hybrid", "fp8"}, op.F32: {"", "no"},
	} {
		if got := [2]string{strings.Join(megatron{}.precision(d), " "), accelerate{}.precision(d)}; got != want {
			t.Errorf("%s: %q, want %q", d, got, want)
		}
	}
}

// The degrees of a framework follow from heads and ranks.
func TestDegrees(t *testing.T) {
	for _, c := range []struct {
		framework string
		ranks     int
		q, kv     int
		want      string // all-to-all x ring
	}{
		{"megatron", 8, 32, 8, "1x8 2x4 4x2 8x1"},
		{"megatron", 8, 32, 2, "1x8 2x4"},
		{"megatron", 8, 12, 12, "1x8 2x4 4x2"},
		{"megatron", 6, 32, 1, "1x6"},
		{"usp", 8, 32, 8, "1x8 2x4 2x4' 4x2 4x2' 8x1"},
		{"usp", 8, 32, 2, "1x8 2x4 2x4'"},
		{"usp", 8, 10, 10, "1x8 2x4 2x4'"},
		{"accelerate", 8, 32, 8, "1x8 8x1"},
		{"accelerate", 8, 32, 4, "1x8 8x1"}, // held twice
		{"accelerate", 8, 32, 3, "1x8"},
		{"accelerate", 8, 12, 12, "1x8"},
		{"accelerate", 8, 12, 4, "1x8"},
		{"accelerate", 4, 32, 6, "1x4"},
	} {
		profile, job := world.GPUJob(t, fmt.Sprintf("1x%d h100_sxm", c.ranks), 48<<10)
		job.Model.QHeads, job.Model.KVHeads = c.q, c.kv
		plan := &solver.Plan{Job: job}
		for r := range c.ranks {
			plan.Ranks = append(plan.Ranks, solver.PlanRank{Rank: r, Node: "n0"})
		}
		f, _ := Lookup(c.framework)
		all, err := f.form.variants(askedOf(plan, profile), upTo(0, c.ranks))
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, v := range all {
			text := fmt.Sprintf("%dx%d", v.hp, v.cp)
			if v.hp > 1 && v.cp > 1 && !v.low {
				text += "'"
			}
			got = append(got, text)
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s, %d ranks, %d and %d heads: %v, want %s", c.framework, c.ranks, c.q, c.kv, got, c.want)
		}
	}
}

func TestApportioned(t *testing.T) {
	for _, c := range []struct {
		n       int
		weights []float64
		want    []int
	}{
		{10, []float64{1, 1}, []int{5, 5}},
		{11, []float64{1, 1}, []int{6, 5}},
		{10, []float64{3, 1}, []int{8, 2}}, // 7.5 and 2.5: equal remainders, the first first
		{4, []float64{1e9, 1, 1, 1}, []int{1, 1, 1, 1}},
		{6, []float64{1e9, 1, 1, 1}, []int{3, 1, 1, 1}},
	} {
		if got := apportioned(c.n, c.weights); !slices.Equal(got, c.want) {
			t.Errorf("%d by %v: %v, want %v", c.n, c.weights, got, c.want)
		}
	}
}
