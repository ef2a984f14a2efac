package replay

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/profile/backend/child"
	"github.com/evenkeel/evenkeel/profile/backend/torch/launch"
	"github.com/evenkeel/evenkeel/python"
)

// Config of a run.
type Config struct {
	Plans   []*Plan
	Inputs  []doc.Input // the plans, as the trace shall name them
	Out     string      // the trace to write
	Tool    string      // that writes it
	Created string      // RFC 3339, UTC

	Parts        string       // PartsLayer, PartsLoss, PartsStep or PartsAttention
	LossChunk    units.Tokens // whose logits exist at a time, where the loss is run; else 0
	Layers       int          // of a step, or UsualLayers
	Repeats      int
	Warmup       int
	Seed         uint64
	Backend      string // gloo or nccl; "": what the devices are for
	Kernel       string // of attention; "": the fastest
	Docs         []units.Tokens
	SampledAbove units.Tokens // the longest sequence that is compared whole; 0: 8192
	// Timeout is how long a rank may stand still; comparing with one device may
	// take ten times as long.
	Timeout       time.Duration
	Oversubscribe bool // allow more threads than cores
	Machine       Machine
	Python        string        // the interpreter
	World         *launch.World // this task's place in a job, nil for a job of one

	// Progress is told of every new phase or block of the first rank here; nil: nobody.
	Progress func(phase string, block int)

	// Command makes the command of a rank instead of Python's, for tests.
	Command func() *exec.Cmd
	// These are shorter in tests.
	greet, silence, grace time.Duration

	crowded bool // there are more threads than cores
}

// UsualLayers stands for 1 layer or, of pipelines or tasks alone and of whole steps, for all that they have.
const UsualLayers = -1

const (
	// greetTimeout is for a rank's first word: importing torch from a slow
	// network disk takes its time, and holds the beats back.
	greetTimeout = 120 * time.Second
	// silence is how long a rank may say nothing: it beats every second, from a
	// thread of its own.
	silence = 10 * time.Second
	// grace is how long the other ranks get to say what they saw once one failed.
	grace = 2 * time.Second
)

// maxReference is the longest sequence that is by default compared with one
// device whole: in float64, scores of one head then take half a gigabyte.
const maxReference = 8192

// Run runs the plans and writes the trace. It returns when no process of it is
// left: with the trace in place, or with an error and without one. The error
// names the rank that was the cause, and where it was. In a job of several tasks
// each runs its own rank, and the task of rank 0 writes the trace.
func Run(ctx context.Context, c Config) error {
	first, seats, backend, mode, err := c.seated()
	if err != nil {
		return err
	}
	if c.World == nil || c.World.Task == 0 {
		if err := doc.Probe(filepath.Dir(c.Out)); err != nil {
			return err
		}
	}
	folder, err := child.NewFolder()
	if err != nil {
		return err
	}
	defer folder.Remove() //nolint:errcheck // the next run sweeps it away
	if err := unpack(folder.Path); err != nil {
		return err
	}
	r := newRun(&c, seats, backend, mode, folder.Path)
	if err := r.do(ctx); err != nil {
		return err
	}
	if first > 0 {
		return nil
	}
	return r.collect()
}

// Check refuses what cannot be run, before anything is started, in the fields of
// plans. Run does the same.
func (c Config) Check() error {
	_, _, _, _, err := c.seated()
	return err
}

// seated decides where this task's ranks run; first is the first of them.
func (c *Config) seated() (first int, seats []seat, backend, mode string, err error) {
	if err = c.validate(); err != nil {
		return
	}
	first, n, err := c.share()
	if err == nil {
		seats, backend, mode, err = c.place(first, n)
	}
	if err == nil {
		err = c.computes(mode)
	}
	return first, seats, backend, mode, err
}

// computes refuses a kernel of attention that the ranks' devices cannot run.
func (c *Config) computes(mode string) error {
	switch cpu := mode == ModeCPU; {
	case cpu && !slices.Contains([]string{"auto", "math", "sdpa_cpu"}, c.Kernel):
		return optionError("kernel", strconv.Quote(c.Kernel), "auto, math or sdpa_cpu: it needs GPUs, and the ranks of "+c.Plans[0].Path+" are processors")
	case !cpu && c.Kernel == "sdpa_cpu":
		return optionError("kernel", strconv.Quote(c.Kernel), "a kernel for GPUs, which the ranks of "+c.Plans[0].Path+" are: it is for processors")
	}
	return nil
}

func (c *Config) validate() error {
	if c.silence == 0 {
		c.greet, c.silence, c.grace = greetTimeout, silence, grace
	}
	if c.SampledAbove == 0 {
		c.SampledAbove = maxReference
	}
	if c.Kernel == "" {
		c.Kernel = "auto"
	}
	usual := c.Layers == UsualLayers
	if usual {
		c.Layers = c.usualLayers()
	}
	switch {
	case !slices.Contains(allParts(), c.Parts):
		return optionError("parts", strconv.Quote(c.Parts), strings.Join(allParts(), ", "))
	case !WithLoss(c.Parts) && c.LossChunk != 0:
		return optionError("loss-chunk", int64(c.LossChunk), "none, for no loss is run: it goes with parts "+PartsLoss+" and "+PartsStep)
	case WithLoss(c.Parts) && (c.LossChunk < 1 || c.LossChunk > maxTokens):
		return optionError("loss-chunk", int64(c.LossChunk), fmt.Sprintf("1 to %d tokens", int64(maxTokens)))
	case !slices.Contains(Kernels(), c.Kernel):
		return optionError("kernel", strconv.Quote(c.Kernel), strings.Join(Kernels(), ", "))
	case !slices.Contains([]string{"", "gloo", "nccl"}, c.Backend):
		return optionError("comm", strconv.Quote(c.Backend), "gloo or nccl")
	case c.Layers < 1 || c.Layers > maxLayers:
		return optionError("layers", c.Layers, fmt.Sprintf("1 to %d", maxLayers))
	case c.Repeats < 1 || c.Repeats > maxRepeats:
		return optionError("repeats", c.Repeats, fmt.Sprintf("1 to %d", maxRepeats))
	case c.Warmup < 0 || c.Warmup > maxRepeats:
		return optionError("warmup", c.Warmup, fmt.Sprintf("0 to %d", maxRepeats))
	case c.Timeout < time.Second:
		return optionError("timeout", c.Timeout, "at least a second")
	case c.Seed > math.MaxInt64:
		return optionError("seed", c.Seed, fmt.Sprintf("at most %d", int64(math.MaxInt64)))
	}
	for _, p := range c.Plans {
		if err := p.runnable(c.Parts, c.Docs); err != nil {
			return err
		}
		if n := p.Job.Model.Layers; usual && c.Parts == PartsStep && n != c.Layers {
			return optionError("layers", "none", fmt.Sprintf("how many to run: the model of %s has %d, that of %s has %d", c.Plans[0].Path, c.Layers, p.Path, n))
		}
	}
	return c.asMany()
}

// usualLayers is how many layers are run unless it is said.
func (c *Config) usualLayers() int {
	switch first := c.Plans[0]; {
	case c.Parts == PartsStep && first.Job.Model.Layers > 0:
		return first.Job.Model.Layers
	case first.Tasks(): // then all are
		return first.tasks.Layers()
	case slices.ContainsFunc(c.Plans, func(p *Plan) bool { return p.stages == nil }):
		return 1
	default:
		return first.stages.Layers
	}
}

// asMany refuses to run fewer layers than a pipeline has, or more, also of plans beside it: their
// steps would not compare.
func (c *Config) asMany() error {
	for _, p := range c.Plans {
		if c.Parts == PartsStep && c.Layers > p.Job.Model.Layers {
			return optionError("layers", c.Layers, fmt.Sprintf("at most the %d of the model of %s", p.Job.Model.Layers, p.Path))
		}
		if p.Tasks() && c.Layers != p.tasks.Layers() {
			return optionError("layers", c.Layers, fmt.Sprintf("%d, the most that a module of %s has, for all layers of all modules are run", p.tasks.Layers(), p.Path))
		}
		if p.stages != nil && c.Layers != p.stages.Layers {
			return optionError("layers", c.Layers, fmt.Sprintf("%d, for %s is of a pipeline, which runs all its layers, and plans beside it are to run as many", p.stages.Layers, p.Path))
		}
	}
	return nil
}

// OptionError is an option that no run can have, or none of these plans.
type OptionError struct {
	Option string // as the command line calls it
	Value  string
	Want   string
}

// Error names the option, its value and what it may be.
func (e *OptionError) Error() string {
	return fmt.Sprintf("%s: %s: want %s", e.Option, e.Value, e.Want)
}

func optionError(option string, value any, want string) error {
	return &OptionError{option, fmt.Sprint(value), want}
}

// share says which ranks this task runs.
func (c *Config) share() (first, n int, err error) {
	ranks := len(c.Plans[0].Ranks)
	w := c.World
	if w == nil || w.Tasks == 1 {
		return 0, ranks, nil
	}
	if w.Tasks != ranks {
		return 0, 0, fmt.Errorf("%s: ranks: %d of them, and the job has %d tasks (by %s): start one task a rank, or replay on one host without a launcher", c.Plans[0].Path, ranks, w.Tasks, w.Source)
	}
	if w.Host == "" {
		return 0, 0, errors.New("the launcher does not say where rank 0 is: set EVENKEEL_TASK, EVENKEEL_TASKS and EVENKEEL_MASTER=host:port for every task")
	}
	return w.Task, 1, nil
}

// unpack writes the rank program into a folder.
func unpack(folder string) error {
	modules := python.Modules()
	return fs.WalkDir(modules, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		to := filepath.Join(folder, filepath.FromSlash(path))
		if d.IsDir() {
			return os.MkdirAll(to, 0o700)
		}
		data, err := fs.ReadFile(modules, path)
		if err != nil {
			return err
		}
		return os.WriteFile(to, data, 0o600)
	})
}

// program starts the rank program from the folder that is its argument.
const program = "import sys; sys.path.insert(0, sys.argv[1]); from evenkeel.replay import main; main()"

// agentStore is what torchrun says by it: it keeps the store, and rank 0 need not.
const agentStore = "TORCHELASTIC_USE_AGENT_STORE"

// command makes the command of a rank: isolated from the user's own modules
// (-I), unbuffered (-u), writing no byte code (-B).
func (r *run) command(s seat) *exec.Cmd {
	var cmd *exec.Cmd
	if r.config.Command != nil {
		cmd = r.config.Command()
	} else {
		cmd = exec.Command(r.config.Python, "-I", "-u", "-B", "-c", program, r.folder)
		cmd.Dir = r.folder
	}
	cmd.Env = append(cmd.Environ(), s.env...)
	for key, value := range map[string]int{
		"RANK": s.rank, "WORLD_SIZE": len(r.config.Plans[0].Ranks), "LOCAL_RANK": r.gpu(s), "MASTER_PORT": r.port,
	} {
		cmd.Env = append(cmd.Env, key+"="+strconv.Itoa(value))
	}
	cmd.Env = append(cmd.Env, "MASTER_ADDR="+r.host)
	if w := r.config.World; w == nil || w.Tasks == 1 {
		// A torchrun around a job of one task keeps a store of its own, at another port.
		cmd.Env = append(cmd.Env, agentStore+"=False")
	}
	return cmd
}

// gpu is the number of a rank's GPU on its host. Ranks that take turns share one.
func (r *run) gpu(s seat) int {
	switch w := r.config.World; {
	case s.threads == 0 && r.backend == "gloo":
		return 0
	case w != nil && w.Tasks > 1:
		return w.LocalTask
	}
	return s.local
}

// meetingPoint is where rank 0 opens the store through which the ranks meet.
func (r *run) meetingPoint(ctx context.Context) error {
	if w := r.config.World; w != nil && w.Tasks > 1 {
		r.host, r.port = w.Host, w.Port
		if _, err := net.DefaultResolver.LookupHost(ctx, w.Host); err == nil {
			return nil
		} else if w.LaunchHost == "" {
			return fmt.Errorf("%s, where rank 0 runs by %s, has no address (%w): set MASTER_ADDR to one", w.Host, w.Source, err)
		}
		r.host = w.LaunchHost
		return nil
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	r.host, r.port = "127.0.0.1", l.Addr().(*net.TCPAddr).Port
	return l.Close()
}

func (r *run) request(s seat) request {
	c := r.config
	q := request{
		T: "run", Parts: c.Parts, LossChunk: c.LossChunk, Layers: c.Layers, Repeats: c.Repeats, Warmup: c.Warmup, Seed: c.Seed, Backend: r.backend, Kernel: c.Kernel,
		Docs: c.Docs, Threads: s.threads, Cores: s.cores, Timeout: c.Timeout.Seconds(), Trace: r.traceFile(s.rank), Check: true, SampledAbove: c.SampledAbove,
		Turns: r.mode == ModeOneGPU, SMs: s.sms,
	}
	for _, m := range r.ranks {
		q.AllSMs += m.sms
	}
	for _, p := range c.Plans {
		q.Plans, q.Batches = append(q.Plans, p.raw), append(q.Batches, p.micro)
	}
	if !slices.ContainsFunc(c.Plans, (*Plan).Batch) {
		q.Batches = nil
	}
	return q
}

func (r *run) traceFile(rank int) string {
	return filepath.Join(r.folder, fmt.Sprintf("trace.rank%d.jsonl", rank))
}
