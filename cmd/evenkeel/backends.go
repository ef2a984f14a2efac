package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/profile"
	"github.com/evenkeel/evenkeel/profile/backend/cpu"
	"github.com/evenkeel/evenkeel/profile/backend/host"
	"github.com/evenkeel/evenkeel/profile/backend/nvml"
	"github.com/evenkeel/evenkeel/profile/backend/recorded"
	"github.com/evenkeel/evenkeel/profile/backend/sim"
	"github.com/evenkeel/evenkeel/profile/backend/torch"
	"github.com/evenkeel/evenkeel/profile/backend/torch/launch"
	"github.com/evenkeel/evenkeel/profile/importer"
	"github.com/spf13/cobra"
)

// chosen is the backend that the flags and the machine ask for.
type chosen struct {
	profile.Backend
	// follower is set instead in a task of a job that another task leads.
	follower *torch.Backend
}

// close ends what the backend started; it may be called again.
func (c chosen) close() {
	closer, ok := c.Backend.(io.Closer)
	if c.follower != nil {
		closer, ok = c.follower, true
	}
	if ok {
		_ = closer.Close() // what is left behind is a temporary folder
	}
}

// newBackend picks and configures the backend.
func (a *app) newBackend(ctx context.Context, o calibration) (chosen, error) {
	if err := o.backendTakes(); err != nil {
		return chosen{}, err
	}
	if spec, ok := strings.CutPrefix(o.backend, "sim:"); ok {
		c, err := sim.Parse(spec)
		if err != nil {
			return chosen{}, usageError{err}
		}
		return chosen{Backend: sim.New(c)}, nil
	}
	if files, ok := strings.CutPrefix(o.backend, "recorded:"); ok {
		return replayOf(strings.Split(files, ","))
	}
	world, err := launch.Detect(os.LookupEnv)
	if err != nil {
		return chosen{}, err
	}
	machine, _ := host.Discover()
	nvml.Describe(&machine)
	switch o.backend {
	case "cpu":
		return o.cpuBackend(machine)
	case "torch":
		return o.torchBackend(machine, world)
	case "auto":
		return a.autoBackend(ctx, o, machine, world)
	}
	return chosen{}, usagef("--backend %q: want auto, cpu, torch, recorded:... or sim:...", o.backend)
}

// backendTakes refuses flags that the backend would pass over: what was measured
// would not be what was asked for.
func (o calibration) backendTakes() error {
	kind, _, made := strings.Cut(o.backend, ":")
	for _, f := range []struct {
		name  string
		set   bool
		given string // what of a made-up or recorded backend it would choose; "" for torch's own flags
	}{
		{"--group-sizes", len(o.groupSizes) > 0, "groups"},
		{"--devices", len(o.devices) > 0, "devices"},
		{"--model", o.model != "", "shapes"},
		{"--dtype", o.dtype != "", ""},
		{"--python", o.python != "", ""},
		{"--allow-shared", o.allowShared, ""},
	} {
		switch {
		case !f.set:
		case made && f.given != "":
			return usagef("%s: the %s of %s are given: leave it out", f.name, f.given, kind)
		case (made || kind == "cpu") && f.given == "":
			return usagef("%s: says how torch measures, and the backend is %s: leave it out, or take --backend torch", f.name, kind)
		}
	}
	return nil
}

// replayOf is a backend that answers from recordings, each of which counts once.
func replayOf(paths []string) (chosen, error) {
	if slices.Contains(paths, "") {
		return chosen{}, usagef("--backend recorded: names no recording; want recorded:x.rec.jsonl, several separated by commas")
	}
	if err := notTwice(paths); err != nil {
		return chosen{}, err
	}
	for _, path := range paths {
		if err := notAnother(path); err != nil {
			return chosen{}, err
		}
	}
	b, err := recorded.Open(paths)
	if err != nil {
		return chosen{}, openError(err)
	}
	return chosen{Backend: b}, nil
}

// autoBackend takes torch where there is a GPU or a job of several tasks, and
// falls back to the cores where a lone machine's torch does not work, saying why.
func (a *app) autoBackend(ctx context.Context, o calibration, machine profile.Machine, world *launch.World) (chosen, error) {
	several := world != nil && world.Tasks > 1
	if len(machine.NVIDIA) == 0 && !several {
		return o.coresInstead(machine)
	}
	b, err := o.torchBackend(machine, world)
	if err != nil || several {
		return b, err
	}
	_, err = b.Discover(ctx)
	var missing *torch.NoTorchError
	if errors.As(err, &missing) {
		a.note("the GPUs cannot be measured (%v); measuring the cores instead", err)
		b.close()
		return o.coresInstead(machine)
	}
	return b, err
}

// coresInstead takes the cores where auto finds nothing for torch to measure, unless
// flags say how it should.
func (o calibration) coresInstead(machine profile.Machine) (chosen, error) {
	o.backend = "cpu"
	if err := o.backendTakes(); err != nil {
		return chosen{}, err
	}
	return o.cpuBackend(machine)
}

func (o calibration) cpuBackend(machine profile.Machine) (chosen, error) {
	exe, err := os.Executable()
	if err != nil {
		return chosen{}, err
	}
	c := cpu.Config{
		Machine: machine, GroupSizes: o.groupSizes,
		Worker: func(args []string) *exec.Cmd { return exec.Command(exe, append([]string{"worker", "--"}, args...)...) },
	}
	if c.Threads, err = o.threads(); err != nil {
		return chosen{}, err
	}
	if c.HeadDims, err = o.headDims(); err != nil {
		return chosen{}, err
	}
	b, err := cpu.New(c)
	if err != nil {
		return chosen{}, usageError{err}
	}
	return chosen{Backend: b}, nil
}

func (o calibration) torchBackend(machine profile.Machine, world *launch.World) (chosen, error) {
	c := torch.Config{
		Waiting: o.waiting, Machine: machine, Python: o.python, GroupSizes: o.groupSizes, DType: op.DType(o.dtype), AllowShared: o.allowShared,
		CollectiveTimeout: o.pointTimeout / 2, World: world, Known: knownGPU,
	}
	var err error
	cores, parts := o, o
	cores.devices, parts.devices = o.splitDevices()
	if c.Cores, err = cores.cores(); err != nil {
		return chosen{}, err
	}
	if c.Partitions, err = parts.partitions(); err != nil {
		return chosen{}, err
	}
	if c.Cores != nil {
		c.Device = "cpu"
	}
	if c.HeadDims, err = o.headDims(); err != nil {
		return chosen{}, err
	}
	if world != nil && world.Host == "" {
		c.Rendezvous = filepath.Join(o.out, ".rendezvous-"+world.RestartID)
	}
	b, err := torch.New(c)
	if err != nil {
		return chosen{}, usageError{err}
	}
	if world != nil && world.Task > 0 {
		return chosen{follower: b}, nil
	}
	return chosen{Backend: b}, nil
}

// knownGPU is what is known of a GPU model by the name that its driver gives it.
func knownGPU(product string) (torch.Known, bool) {
	m, ok := importer.ModelOf(product)
	return torch.Known{Name: m.Name, SMs: m.Parallel, Sheet: m.Sheet}, ok
}

// follow serves this task's devices to the task that leads the job.
func (a *app) follow(ctx context.Context, b *torch.Backend) error {
	a.note("a task of a job: its devices are measured by task 0, which writes the recording")
	err := b.Follow(ctx)
	if errors.Is(err, context.Canceled) {
		return errors.New("interrupted: task 0 keeps what was measured; start the job again to go on")
	}
	return err
}

// splitDevices tells the parts of GPUs of --devices from the others.
func (o calibration) splitDevices() (others, parts []string) {
	for _, d := range o.devices {
		if strings.HasPrefix(d, gpuPrefix) {
			parts = append(parts, d)
		} else {
			others = append(others, d)
		}
	}
	return others, parts
}

// gpuPrefix begins the names of GPUs in --devices.
const gpuPrefix = "gpu:"

// partitions are those of --devices gpu:0@sm80,gpu:0@sm40.
func (o calibration) partitions() ([]torch.Partition, error) {
	var list []torch.Partition
	for _, d := range o.devices {
		p, err := torch.ParsePartition(strings.TrimPrefix(d, gpuPrefix))
		if err != nil {
			return nil, usagef("--devices %s: %w", d, err)
		}
		list = append(list, p)
	}
	return list, nil
}

// cores are those of --devices cpu:1,cpu:1@avx2.
func (o calibration) cores() ([]torch.Cores, error) {
	var list []torch.Cores
	for _, d := range o.devices {
		name, ok := strings.CutPrefix(d, "cpu:")
		if !ok {
			return nil, usagef("--devices %q: want names such as cpu:1 (a number of threads), or gpu:0@sm80 (multiprocessors of a GPU) with --backend torch", d)
		}
		c, err := torch.ParseCores(name)
		if err != nil {
			return nil, usagef("--devices %s: %w", d, err)
		}
		list = append(list, c)
	}
	return list, nil
}

// threads are those of --devices cpu:1,cpu:2, which is all that the kernels of
// the cpu backend can be limited to.
func (o calibration) threads() ([]int, error) {
	all, err := o.cores()
	if err != nil {
		return nil, err
	}
	var list []int
	for _, c := range all {
		if c.ISA != "" {
			return nil, usagef("--devices cpu:%s: the kernels of the cpu backend are compiled in and have one set of vector instructions; torch's libraries choose when they are loaded: --backend torch", c)
		}
		list = append(list, c.Threads)
	}
	return list, nil
}

// headDims is the head width of --model, nil without one.
func (o calibration) headDims() ([]int, error) {
	if o.model == "" {
		return nil, nil
	}
	m, err := readModel(o.model)
	return []int{m.HeadDim}, err
}

func readModel(path string) (costmodel.Model, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return costmodel.Model{}, openError(err)
	}
	return costmodel.ReadModel(path, data)
}

// ofConfig are the remarks on what the model's config.json states and no plan has.
func (o problem) ofConfig(lengths []units.Tokens) []string {
	return slices.Concat(o.beyondContext(lengths), o.quantized())
}

// quantized remarks that the model's weights are stated to be quantized, which none of a plan is.
func (o problem) quantized() []string {
	data, err := os.ReadFile(o.model)
	if err != nil {
		return nil
	}
	how := costmodel.ModelQuantized(data)
	if how == "" {
		return nil
	}
	return []string{fmt.Sprintf("%s states quantized weights (quantization_config: %s), and every weight is trained unquantized, in the plan's precision: adapters on quantized weights are not planned", o.model, how)}
}

// beyondContext remarks that sequences are longer than the context which the model's
// config.json states, where they are. It is no error: contexts are extended by training on
// longer sequences.
func (o problem) beyondContext(lengths []units.Tokens) []string {
	data, err := os.ReadFile(o.model)
	if err != nil || len(lengths) == 0 { // whoever needs the model says what is wrong with it
		return nil
	}
	longest, most := slices.Max(lengths), costmodel.ModelContext(data)
	if most == 0 || longest <= most {
		return nil
	}
	return []string{fmt.Sprintf("sequences of up to %s are longer than the %d that %s states as the model's longest context: to train on them its positions have to be extended", units.Count(longest, "token"), int64(most), o.model)}
}

// launchFlags collects the flags that a printed job hands on, and refuses those of a job
// that is not printed and those that it could not hand on.
func (o *calibration) launchFlags(c *cobra.Command) error {
	f := c.Flags()
	if o.dryRun && o.numerics {
		return usagef("--dry-run: lists what would be measured, and --numerics measures nothing: leave one out")
	}
	if o.printLaunch == "" {
		for _, name := range []string{"nodes", "gpus-per-node", "image"} {
			if f.Changed(name) {
				return usagef("--%s: is of a job that --print-launch prints: leave it out, or add that", name)
			}
		}
		return nil
	}
	json, _ := f.GetBool("json")
	switch {
	case json:
		return usagef("--print-launch: prints a job to run, which is no JSON: leave --json out")
	case o.dryRun || o.numerics:
		return usagef("--print-launch: only prints a job, which neither --dry-run nor --numerics is for: leave them out")
	case o.backend != "auto" && o.backend != "torch":
		return usagef("--print-launch: a job measures through torch, and the backend is %s: leave it out", o.backend)
	case f.Changed("image") && o.printLaunch != "k8s":
		return usagef("--image: is of a job of k8s: leave it out")
	}
	for _, name := range []string{"only", "dtype", "devices", "group-sizes", "model", "points", "choose", "seed", "fresh", "python", "allow-shared", "point-timeout"} {
		if !f.Changed(name) {
			continue
		}
		value := f.Lookup(name).Value
		text := value.String()
		if list, ok := value.(interface{ GetSlice() []string }); ok {
			text = strings.Join(list.GetSlice(), ",")
		}
		if value.Type() == "bool" {
			o.further = append(o.further, "--"+name+"="+text)
			continue
		}
		o.further = append(o.further, "--"+name, text)
	}
	return nil
}

// printLaunch prints a job that calibrates a cluster.
func (a *app) printLaunch(o calibration) error {
	if o.printLaunch == "k8s" && !o.given("out") {
		o.out = "/out" // where the volume is mounted: pods share no working folder
	}
	text, err := launch.Job(o.printLaunch, launch.JobOptions{
		Nodes: o.nodes, GPUsPerNode: o.gpus, Out: o.out, Budget: o.budget, Args: o.further, Image: o.image,
	})
	if bad, ok := errors.AsType[*launch.OptionError](err); ok {
		if flag, ok := map[string]string{"nodes": "nodes", "GPUs a node": "gpus-per-node", "budget": "budget", "out": "out", "image": "image"}[bad.Field]; ok {
			return usagef("--print-launch %s: --%s %s: want %s", o.printLaunch, flag, bad.Value, bad.Want)
		}
	}
	if err != nil {
		return usagef("--print-launch: %w", err)
	}
	_, err = io.WriteString(a.out, text)
	return err
}
