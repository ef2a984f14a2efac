package torch

import (
	"os/exec"
	"time"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/profile"
	"github.com/evenkeel/evenkeel/profile/backend/torch/launch"
)

// Config of the backend.
type Config struct {
	Machine profile.Machine
	Python  string // the interpreter; "": $EVENKEEL_PYTHON, python3 on PATH, /usr/bin/python3
	// Waiting is told of an interpreter that does not answer for some seconds; nil: nobody.
	Waiting func(python string, longest time.Duration)
	// Device is "cuda", "cpu", or "" for a GPU where there is one.
	Device string
	// Cores is what each rank on processors computes with; nil: one thread each.
	// Ranks with other numbers of threads or other vector units are devices of
	// other types.
	Cores []Cores
	// Partitions are the ranks on parts of GPUs; nil: one rank on each whole GPU.
	Partitions []Partition
	// GroupSizes are the sizes of the groups to measure collectives in; nil: all
	// up to four ranks, then powers of two and all ranks. On processors they
	// decide how many ranks there are.
	GroupSizes []int
	HeadDims   []int    // of attention; nil: 64 and 128
	DType      op.DType // of compute; "": bf16 on a GPU, f32 on a processor
	// Known finds a GPU model by the name that its driver gives it; nil knows none. Laws
	// of a device of which nothing is known have no tiles or waves, and nobody's shapes
	// can be lent to it.
	Known func(product string) (Known, bool)
	// AllowShared measures a GPU on which other processes compute.
	AllowShared bool
	// CollectiveTimeout is how long a rank waits for the others in a collective
	// before it gives up; 0: a minute. It must be shorter than the deadline of a
	// point, so that a rank that never came can be told from those that waited.
	CollectiveTimeout time.Duration
	// World says which task of a job this is, nil for a job of one.
	World *launch.World
	// Rendezvous is a file on a folder that all nodes share, for launchers that
	// do not say where task 0 is; it must not exist before the job.
	Rendezvous string

	// Worker makes the command of a worker instead of Python's, for tests.
	Worker func(python string, args ...string) *exec.Cmd
	// GreetTimeout is how long a worker may take to start; 0: two minutes.
	GreetTimeout time.Duration
}

// Known is what is known of a GPU model beforehand.
type Known struct {
	Name  string   // in profiles and clusters, such as h100_sxm
	SMs   int      // that the datasheet's peaks are of
	Sheet op.Sheet // of the whole GPU
}

func (c Config) greetTimeout() time.Duration {
	if c.GreetTimeout > 0 {
		return c.GreetTimeout
	}
	return greetTimeout
}

func (c Config) collectiveTimeout() time.Duration {
	if c.CollectiveTimeout > 0 {
		return c.CollectiveTimeout
	}
	return time.Minute
}

// kinds are the devices to try, in order.
func (c Config) kinds() []string {
	if len(c.Partitions) > 0 {
		return []string{"cuda:0"}
	}
	switch c.Device {
	case "cuda":
		return []string{"cuda:0"}
	case "cpu":
		return []string{"cpu"}
	}
	return []string{"cuda:0", "cpu"}
}
