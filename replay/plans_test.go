package replay

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/profile/backend/torch/launch"
	"github.com/evenkeel/evenkeel/python"
	"github.com/evenkeel/evenkeel/solver"
)

// A plan that is wrong is refused when it is read, with the field.
func TestWrongPlansAreRefusedWithTheField(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*solver.Plan)
		want   string
	}{
		"hole":           {func(p *solver.Plan) { p.Ranks[1].Segments[0].Start++; p.Ranks[1].Tokens-- }, "ranks[1].segments[0].start_tokens: nobody has tokens 64 to 65"},
		"overlap":        {func(p *solver.Plan) { p.Ranks[1].Segments[0].Start--; p.Ranks[1].Tokens++ }, "ranks[1].segments[0].start_tokens: token 63 is also in ranks[0].segments[0]"},
		"beyond the end": {func(p *solver.Plan) { p.Ranks[0].Segments[1].End++; p.Ranks[0].Tokens++ }, "ranks[0].segments[1].end_tokens: 257: beyond the sequence's 256 tokens"},
		"heads twice":    {func(p *solver.Plan) { p.Groups[0][0].QHeads = 8 }, "groups[0][0].q_heads: 8: must not be negative, nor above the model's 4"},
		"heads missing":  {func(p *solver.Plan) { p.Groups[0][0].QHeads = 3; p.Ranks[0].QHeads = 3 }, "groups[0]: 3 q_heads: want 4"},
		"unknown rank":   {func(p *solver.Plan) { p.Groups[1][0].Rank = 7 }, "groups[1][0].rank: 7: no rank of this plan"},
		"rank twice":     {func(p *solver.Plan) { p.Groups[1][0].Rank = 0 }, "groups[1][0].rank: 0: in a group before"},
		"other device":   {func(p *solver.Plan) { p.Ranks[1].Device = "h100" }, `ranks[1].device: "h100": the cluster has "torch_cpu:1" there`},
		"rank left out":  {func(p *solver.Plan) { p.Ranks = p.Ranks[:1] }, "ranks: 1 of them: the cluster has 2 devices"},
		"another schema": {func(p *solver.Plan) { p.Schema = "evenkeel.plan/v3" }, "evenkeel.plan/v3 was written by evenkeel"},
		"an old schema":  {func(p *solver.Plan) { p.Schema = "evenkeel.plan/v1" }, `schema: "evenkeel.plan/v1": a plan from before all-to-all groups`},
		"no plan at all": {func(p *solver.Plan) { p.Schema = "evenkeel.profile/v1" }, "is an evenkeel.profile, expected evenkeel.plan"},
	} {
		path := planFile(t, "x.plan.json", "ring", c.change)
		plans, err := LoadPlans([]string{path})
		if err == nil || plans != nil || !strings.HasPrefix(err.Error(), path+": ") || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s:\ngot  %v\nwant %s", name, err, c.want)
		}
	}
	for _, paths := range [][]string{nil, {filepath.Join(t.TempDir(), "none.plan.json")}} {
		if _, err := LoadPlans(paths); err == nil || !strings.Contains(err.Error(), "evenkeel solve wrote") {
			t.Error(err)
		}
	}
}

func TestPlansOfOneRunMustShareTheirRanks(t *testing.T) {
	a, b := planFile(t, "a.plan.json", "ring", nil), planFile(t, "b.plan.json", "ulysses", nil)
	plans, err := LoadPlans([]string{a, b})
	if err != nil || len(plans) != 2 || plans[1].Path != b || len(plans[1].SHA256) != 64 || strings.Contains(string(plans[0].raw), "\n") {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func(p *Plan)
		want   string
	}{
		"ranks":  {func(p *Plan) { p.Ranks = p.Ranks[:1] }, "ranks: 1 of them"},
		"device": {func(p *Plan) { p.Ranks[1].Device = "torch_cpu:2" }, `ranks[1].device: "torch_cpu:2"`},
		"dtype":  {func(p *Plan) { p.Job.DType = "bf16" }, `job.dtype: "bf16"`},
		"heads":  {func(p *Plan) { p.Job.Model.KVHeads = 4 }, "job.model: a layer of 4 query and 4 key and value heads of 64"},
		"width":  {func(p *Plan) { p.Job.Model.Hidden = 512 }, "hidden 512"},
	} {
		other, err := LoadPlans([]string{b})
		if err != nil {
			t.Fatal(err)
		}
		c.change(other[0])
		if err := alike(plans[0], other[0]); err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), a) {
			t.Errorf("%s: got %v, want %s", name, err, c.want)
		}
	}
	longer, err := LoadPlans([]string{b})
	if err != nil {
		t.Fatal(err)
	}
	longer[0].Job.Model.Layers, longer[0].Job.Recompute = 80, "full"
	if err := alike(plans[0], longer[0]); err != nil {
		t.Errorf("neither the number of layers nor recomputation is of the ranks: %v", err)
	}
}

// TestStepsOfTwosHaveTwoMicroBatches, of all plans of a run, so that they compare; plans of
// batches have micro-batches of their own.
func TestStepsOfTwosHaveTwoMicroBatches(t *testing.T) {
	plans, err := LoadPlans([]string{planFile(t, "a.plan.json", "ring", nil), planFile(t, "b.plan.json", "ulysses", nil)})
	if err != nil {
		t.Fatal(err)
	}
	c := Config{Plans: plans}
	if n := c.micro(); n != 0 {
		t.Errorf("%d micro-batches", n)
	}
	plans[1].TwoBatch = true
	if n := c.micro(); n != 2 {
		t.Errorf("%d micro-batches of a run with a plan in twos", n)
	}
	batches := loadBatch(t, nil)
	batches.Ranks = plans[1].Ranks
	batches.Job.DType, batches.Job.Model = plans[1].Job.DType, plans[1].Job.Model
	if err := alike(plans[1], batches); err == nil || !strings.Contains(err.Error(), "two_batch_overlap: false") {
		t.Errorf("batches beside a plan in twos: %v", err)
	}
	if err := alike(plans[0], batches); err != nil {
		t.Errorf("batches beside a plan one by one: %v", err)
	}
}

// What cannot be run is refused before a rank starts: the command must never be made.
func TestWhatCannotRunIsRefusedBeforeARankStarts(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Config)
		want   string
	}{
		"more ranks than cores": {func(c *Config) { c.Oversubscribe = false }, `a.plan.json: ranks[1].device: "torch_cpu:1": with it the ranks of this host have 2 threads or more, and may use 1 of its cores`},
		"another backend":       {func(c *Config) { c.Backend = "nccl" }, `ranks[0].device: "torch_cpu:1": runs over gloo, not nccl`},
		"of no torch":           {func(c *Config) { c.Plans[0].Ranks[1].Device = "cpu:1" }, `ranks[1].device: "cpu:1": replay runs torch`},
		"processors and GPUs":   {func(c *Config) { c.Plans[0].Ranks[1].Device = "h100" }, "ranks: 1 of 2 are processors"},
		"too few GPUs": {func(c *Config) {
			c.Plans[0].Ranks[0].Device, c.Plans[0].Ranks[1].Device, c.Machine.GPUs = "h100", "h100", 1
		}, `ranks[1].device: "h100": more ranks than this host's 1 GPUs; --comm gloo`},
		"documents":           {func(c *Config) { c.Docs = []units.Tokens{100, 100} }, "docs: 100,100: want lengths from 1 that sum up to the 256 tokens of "},
		"parts":               {func(c *Config) { c.Parts = "half" }, `parts: "half"`},
		"no loss":             {func(c *Config) { c.LossChunk = 8 }, "loss-chunk: 8: want none, for no loss is run"},
		"a chunk of nothing":  {func(c *Config) { c.Parts = PartsLoss }, "loss-chunk: 0: want 1 to "},
		"layers":              {func(c *Config) { c.Layers = 0 }, "layers: 0"},
		"repeats":             {func(c *Config) { c.Repeats = 0 }, "repeats: 0"},
		"warmup":              {func(c *Config) { c.Warmup = -1 }, "warmup: -1"},
		"timeout":             {func(c *Config) { c.Timeout = time.Millisecond }, "timeout: 1ms"},
		"activation":          {func(c *Config) { c.Plans[1].Job.Model.Activation = "relu" }, `b.plan.json: job.model.activation: "relu"`},
		"odd rotation":        {func(c *Config) { c.Plans[1].Job.Model.RotaryDim = 7 }, "b.plan.json: job.model.rotary_dim: 7"},
		"odd heads turned":    {func(c *Config) { c.Plans[1].Job.Model.HeadDim = 33 }, "b.plan.json: job.model.head_dim: 33"},
		"kernel":              {func(c *Config) { c.Kernel = "fa9" }, `kernel: "fa9": want auto, math, `},
		"kernel of GPUs":      {func(c *Config) { c.Kernel = "sdpa_cudnn" }, `kernel: "sdpa_cudnn": want auto, math or sdpa_cpu: it needs GPUs, and the ranks of `},
		"communication":       {func(c *Config) { c.Backend = "mpi" }, `comm: "mpi": want gloo or nccl`},
		"fp8":                 {func(c *Config) { c.Plans[0].Job.DType = "fp8" }, `a.plan.json: job.dtype: "fp8"`},
		"tasks":               {func(c *Config) { c.World = &launch.World{Tasks: 3, Source: "slurm", Host: "h", Port: 1} }, "ranks: 2 of them, and the job has 3 tasks (by slurm)"},
		"no master":           {func(c *Config) { c.World = &launch.World{Tasks: 2, Source: "openmpi"} }, "the launcher does not say where rank 0 is"},
		"folder of the trace": {func(c *Config) { c.Out = "/proc/x.trace.jsonl" }, "/proc: cannot write in this directory"},
	} {
		config, pids := fakeConfig(t, "well")
		c.change(&config)
		err := Run(t.Context(), config)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s:\ngot  %v\nwant %s", name, err, c.want)
		}
		if started, err := os.ReadDir(pids); err != nil || len(started) > 0 {
			t.Errorf("%s: a rank was started: %v", name, err)
		}
	}
}

func TestRanksGetCoresOfTheirOwn(t *testing.T) {
	c, _ := fakeConfig(t, "well")
	if len(allowedCores(64)) < 2 {
		t.Skip("one core: there is nothing to share out")
	}
	c.Machine.Cores = 2
	if err := c.validate(); err != nil {
		t.Fatal(err)
	}
	seats, backend, mode, err := c.place(0, 2)
	if err != nil || backend != "gloo" || mode != ModeCPU || c.crowded {
		t.Fatal(backend, mode, err)
	}
	if a, b := seats[0].cores, seats[1].cores; len(a) != 1 || len(b) != 1 || a[0] == b[0] {
		t.Errorf("%v and %v", a, b)
	}
	c.Plans[0].Ranks[0].Device, c.Plans[0].Ranks[1].Device = "h100", "h100"
	for _, want := range []struct {
		comm          string
		gpus          int
		backend, mode string
	}{{"", 2, "nccl", ModeNCCL}, {"nccl", 8, "nccl", ModeNCCL}, {"gloo", 1, "gloo", ModeOneGPU}, {"", 0, "nccl", ModeNCCL}} {
		c.Backend, c.Machine.GPUs = want.comm, want.gpus
		if _, backend, mode, err := c.place(0, 2); err != nil || backend != want.backend || mode != want.mode {
			t.Errorf("%+v: %s %s %v", want, backend, mode, err)
		}
	}
}

// Ranks of one GPU's multiprocessors share it in turns, whatever is asked for.
func TestRanksOnPartsOfAGPU(t *testing.T) {
	c, _ := fakeConfig(t, "well")
	devices := func(names ...string) {
		for i, name := range names {
			c.Plans[0].Ranks[i].Device = name
		}
	}
	devices("h200@sm80", "h200@sm40_2")
	seats, backend, mode, err := c.place(0, 2)
	if err != nil || backend != "gloo" || mode != ModeOneGPU || seats[0].sms != 80 || seats[1].sms != 40 {
		t.Fatal(seats, backend, mode, err)
	}
	r := newRun(&c, seats, backend, mode, t.TempDir())
	if q := r.request(seats[1]); !q.Turns || q.SMs != 40 || q.AllSMs != 120 {
		t.Errorf("%+v", q)
	}
	if gpu := r.gpu(seats[1]); gpu != 0 {
		t.Errorf("rank 1 is on GPU %d", gpu)
	}
	for want, set := range map[string]func(){
		"runs over gloo, not nccl":               func() { c.Backend = "nccl" },
		"1 of 2 are confined to multiprocessors": func() { c.Backend = ""; devices("h200@sm80", "h200") },
		"1 of 2 are processors":                  func() { c.Backend = ""; devices("h200@sm80", "torch_cpu:1") },
	} {
		devices("h200@sm80", "h200@sm40")
		set()
		if _, _, _, err := c.place(0, 2); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	c.Backend = ""
	devices("h200@sm80", "h200@sm40")
	if _, _, _, err := c.place(1, 1); err == nil || !strings.Contains(err.Error(), "replay without a launcher") {
		t.Error(err)
	}
}

// A rank that takes no notice of what limits it is another device.
func TestRanksThatIgnoreTheirLimitAreRefused(t *testing.T) {
	for device, want := range map[string]string{
		"h200@sm40":        "rank 1 (h200@sm40) is no device of its type: it computes on 0 multiprocessors (0: all), not on 40; at the meeting of the ranks",
		"torch_cpu:1@avx2": `rank 1 (torch_cpu:1@avx2) is no device of its type: @avx2: torch takes no notice of ATEN_CPU_CAPABILITY, it uses "AVX512"`,
	} {
		c, pids := fakeConfig(t, "wide:1")
		for _, p := range c.Plans {
			for i := range p.Ranks {
				p.Ranks[i].Device = device
			}
			if device != "h200@sm40" {
				p.Ranks[0].Device = "torch_cpu:1"
			}
		}
		if err := Run(t.Context(), c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got  %v\nwant %s", err, want)
		}
		nobodyLives(t, pids)
	}
}

// In a job of several tasks each runs its own rank, and the first writes the trace.
func TestTasksRunTheirOwnRank(t *testing.T) {
	for task := range 2 {
		c, pids := fakeConfig(t, "well")
		c.World = &launch.World{Source: "slurm", Task: task, Tasks: 2, Host: "127.0.0.1", Port: 29500}
		if err := Run(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		nobodyLives(t, pids)
		started, err := os.ReadDir(pids)
		if err != nil || len(started) != 1 || started[0].Name() != string(rune('0'+task)) {
			t.Errorf("task %d started %v, %v", task, started, err)
		}
		if _, err := os.Stat(c.Out); (err == nil) != (task == 0) {
			t.Errorf("task %d: trace: %v", task, err)
		}
	}
}

// What is refused here is what the rank program would refuse.
func TestKernelsAreThoseOfTheRankProgram(t *testing.T) {
	source, err := fs.ReadFile(python.Modules(), "evenkeel/request.py")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(source), "\nKERNELS")
	table, _, _ := strings.Cut(rest, "\n}")
	got := []string{"auto"}
	for _, m := range regexp.MustCompile(`"(\w+)":`).FindAllStringSubmatch(table, -1) {
		got = append(got, m[1])
	}
	if !slices.Equal(got, Kernels()) {
		t.Errorf("the rank program has %q, replay %q", got, Kernels())
	}
}
