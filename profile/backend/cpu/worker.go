package cpu

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/profile/backend/cpu/collective"
	"github.com/evenkeel/evenkeel/profile/backend/host"
	"github.com/go-json-experiment/json"
	"golang.org/x/sys/unix"
)

// WorkerConfig is what a worker process is told at its start.
type WorkerConfig struct {
	L2   units.Bytes
	Rank int
	Size int    // 1: a device; more: a rank of a group
	Dir  string // of the group's sockets
}

// Args are the command-line arguments that ParseWorkerArgs reads back.
func (c WorkerConfig) Args() []string {
	return []string{strconv.FormatInt(int64(c.L2), 10), strconv.Itoa(c.Rank), strconv.Itoa(c.Size), c.Dir}
}

// ParseWorkerArgs reads what Args wrote.
func ParseWorkerArgs(args []string) (WorkerConfig, error) {
	if len(args) != 4 {
		return WorkerConfig{}, fmt.Errorf("a worker takes 4 arguments (L2 bytes, rank, size, directory), got %d: it is started by evenkeel itself", len(args))
	}
	var numbers [3]int64
	for i := range numbers {
		n, err := strconv.ParseInt(args[i], 10, 64)
		if err != nil || n < 0 {
			return WorkerConfig{}, fmt.Errorf("worker argument %d: %q: want a number", i+1, args[i])
		}
		numbers[i] = n
	}
	return WorkerConfig{L2: units.Bytes(numbers[0]), Rank: int(numbers[1]), Size: int(numbers[2]), Dir: args[3]}, nil
}

// runner is what a worker does with its requests.
type runner interface {
	prepare(ctx context.Context, s op.Shape, seed uint64) error
	sample(ctx context.Context, inner int) (time.Duration, error)
	// computes says that the op keeps its threads busy, so that waiting for a
	// core is somebody else's doing. A rank that waits for its peers is woken
	// again and again, and every wake-up counts as waiting for a core.
	computes() bool
}

// Work serves requests until in ends. It is the main function of a worker
// process, whose GOMAXPROCS is its number of threads.
//
// The garbage collector runs between points only: a collection inside a sample
// would be measured.
func Work(ctx context.Context, c WorkerConfig, in io.Reader, out io.Writer) error {
	debug.SetGCPercent(-1)
	var r runner = device{newWorkload(runtime.GOMAXPROCS(0), c.L2)}
	if c.Size > 1 {
		m, err := collective.Dial(ctx, c.Dir, c.Rank, c.Size)
		if err != nil {
			return err
		}
		defer m.Close()
		pin(c.Rank)
		r = member{newRankWork(m)}
	}
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, maxFrame)
	for lines.Scan() {
		data, err := json.Marshal(answer(ctx, r, lines.Bytes()))
		if err != nil {
			return err
		}
		if _, err := out.Write(append(data, '\n')); err != nil {
			return err
		}
	}
	return lines.Err()
}

// pin keeps this process on the rank's own core. Ranks look for data instead of
// sleeping, and the scheduler takes a while to notice that two of them share a
// core; such a point took 20 times its time. Where cores are fewer than ranks,
// or pinning is refused, the scheduler has its way.
func pin(rank int) {
	var allowed unix.CPUSet
	if unix.SchedGetaffinity(0, &allowed) != nil || rank >= allowed.Count() {
		return
	}
	core := -1
	for left := rank; left >= 0; {
		if core++; allowed.IsSet(core) {
			left--
		}
	}
	var own unix.CPUSet
	own.Set(core)
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return
	}
	for _, t := range threads {
		if id, err := strconv.Atoi(t.Name()); err == nil {
			_ = unix.SchedSetaffinity(id, &own) // a thread may have ended; new ones inherit
		}
	}
}

// maxFrame is the longest line of the protocol; the largest is a byte matrix.
const maxFrame = 16 << 20

func answer(ctx context.Context, r runner, line []byte) response {
	var q request
	if err := json.Unmarshal(line, &q, json.RejectUnknownMembers(true)); err != nil {
		return failed(fmt.Errorf("request: %w", err))
	}
	switch q.Do {
	case doPrepare:
		s, err := op.Decode(q.Op, q.Shape)
		if err == nil {
			err = r.prepare(ctx, s, q.Seed)
		}
		runtime.GC()
		if err != nil {
			return failed(err)
		}
		return response{}
	case doRun:
		return run(ctx, r, q)
	}
	return failed(fmt.Errorf("request: unknown verb %q", q.Do))
}

// run takes the samples of one batch and reads the guards around it.
func run(ctx context.Context, r runner, q request) response {
	var res response
	self := os.DirFS("/")
	throttled, known := host.ThrottleCount(self)
	waited, waitKnown := host.RunDelay(self)
	start := time.Now()
	for range q.N {
		t, err := r.sample(ctx, q.Inner)
		if err != nil {
			return failed(err)
		}
		res.Times = append(res.Times, t.Seconds()/float64(q.Inner))
	}
	wall := time.Since(start)
	if now, ok := host.ThrottleCount(self); known && ok {
		res.Throttled = now != throttled
	}
	if now, ok := host.RunDelay(self); waitKnown && ok && r.computes() {
		// The sum falls when a thread ends and takes its share along.
		threads := time.Duration(runtime.GOMAXPROCS(0))
		res.WaitShare = max(0, float64(now-waited)/float64(wall*threads))
	}
	return res
}

// device runs kernels.
type device struct{ *workload }

func (d device) prepare(_ context.Context, s op.Shape, seed uint64) error {
	return d.workload.prepare(s, seed)
}

func (d device) sample(_ context.Context, inner int) (time.Duration, error) {
	start := time.Now()
	for range inner {
		d.call()
	}
	return time.Since(start), nil
}

func (d device) computes() bool { return true }

// member runs its rank's part of collectives; a barrier, outside the time,
// lets all ranks start together.
type member struct{ *rankWork }

func (m member) prepare(ctx context.Context, s op.Shape, seed uint64) error {
	return m.rankWork.prepare(ctx, s, seed+uint64(m.mesh.Rank()))
}

func (m member) sample(ctx context.Context, inner int) (time.Duration, error) {
	if err := m.mesh.Barrier(ctx); err != nil {
		return 0, err
	}
	start := time.Now()
	for range inner {
		if err := m.op(ctx); err != nil {
			return 0, err
		}
	}
	return time.Since(start), nil
}

func (m member) computes() bool { return false }
