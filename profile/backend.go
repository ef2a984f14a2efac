package profile

import (
	"context"
	"errors"
	"time"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// Backend runs the work that is timed, on one kind of hardware.
type Backend interface {
	// Discover finds out what machine this is and what can be measured on it.
	Discover(ctx context.Context) (*Inventory, error)
	// Open returns an executor for a device type or group of the inventory, at the place of
	// the given name, or at its first place if place is empty. Open executors do not disturb
	// each other while idle; the caller runs one at a time.
	Open(ctx context.Context, on, place string) (Executor, error)
	// Clock is the clock by which budgets and pauses are measured.
	Clock() Clock
}

// Executor runs points on one device, or on all ranks of one group.
type Executor interface {
	// Ready starts what is not running, such as workers that died with an earlier point.
	// The deadline of a point begins after it.
	Ready(ctx context.Context) error
	// Prepare makes the random inputs of a point from a seed. The first time that a kernel is
	// used it also verifies the kernel's output against a reference.
	Prepare(ctx context.Context, s op.Shape, seed uint64) error
	// Run takes n samples of the prepared point, each of inner calls back to back.
	Run(ctx context.Context, inner, n int) (Batch, error)
	// Close ends the processes behind the executor, or returns them to a backend that
	// shares them between executors.
	Close() error
}

// Gauge is an Executor that also measures ops whose quantity is not a time.
type Gauge interface {
	Executor
	// Gauge measures the prepared point once: bytes of a memory op, or the
	// slow-down of an overlap.
	Gauge(ctx context.Context) (float64, error)
}

// Clock is the time as a backend sees it. That of a simulated backend jumps instead of
// waiting.
type Clock interface {
	Now() time.Time
	Sleep(ctx context.Context, d time.Duration) error
}

// Batch is the samples of one Run.
type Batch struct {
	// Ranks[r][i] is the time of one call on rank r in sample i, in seconds: the mean over
	// the inner calls of the sample. A device is one rank.
	Ranks [][]units.Seconds
	Guard Guard
	// Peak is the peak device memory while the batch ran; 0 if the backend cannot tell.
	Peak units.Bytes
}

// Slowest is, for each sample, the time on its slowest rank: what a training step waits
// for.
func (b Batch) Slowest() []units.Seconds {
	if len(b.Ranks) == 0 {
		return nil
	}
	most := append([]units.Seconds(nil), b.Ranks[0]...)
	for _, rank := range b.Ranks[1:] {
		for i, t := range rank {
			most[i] = max(most[i], t)
		}
	}
	return most
}

// Class says how a point failed.
type Class string

// The classes of failure.
const (
	OutOfMemory Class = "oom"
	Unsupported Class = "unsupported" // this backend cannot run it
	Wrong       Class = "wrong"       // its numerics disagree with the reference; never timed
	Failed      Class = "failed"      // the op raised an error; the worker lives
	Crashed     Class = "crashed"     // the worker died
	Hung        Class = "hung"        // the worker missed its deadline and was killed
	Throttled   Class = "throttled"   // every sample was taken while the hardware slowed itself down
	TooLong     Class = "too_long"    // the budget has no time for the op's calls; never tried
	Cut         Class = "cut"         // the budget had no time to wait any longer for its worker, or to try after others were lost
)

// retried says whether a failure may be the worker's rather than the point's,
// so that a fresh worker is worth one try: what an earlier point left behind
// can use memory up or crash the next one.
func (c Class) retried() bool { return c == Crashed || c == OutOfMemory }

// final says whether a point that failed so is never run again in this
// environment. A hang costs its whole deadline each time, so it is among them.
func (c Class) final() bool {
	return c != "" && c != Crashed && c != Throttled && c != TooLong && c != Cut
}

// OpError is the failure of one point. Lost says that the executor died with it and must
// be opened again.
type OpError struct {
	Class Class
	Lost  bool
	Err   error
}

// Error is the class and the cause.
func (e *OpError) Error() string { return string(e.Class) + ": " + e.Err.Error() }

// Unwrap returns the cause.
func (e *OpError) Unwrap() error { return e.Err }

func asOpError(err error) *OpError {
	var e *OpError
	if errors.As(err, &e) {
		return e
	}
	return &OpError{Class: Crashed, Lost: true, Err: err}
}

// Inventory is what a backend found and what it can measure.
type Inventory struct {
	Backend   string
	Simulated bool
	Machine   Machine
	Others    []Machine // other nodes of the job
	Devices   []op.DeviceType
	Groups    []op.GroupType
	Places    []Place // of devices and groups of which there are several
	Spaces    []Space
	Once      []Spot   // measured once, without a choice of shapes: memory of a device, overlap of two ops
	Notes     []string // what cannot be measured here and why, for the user
	// PeersWait is how long ranks of a group wait for one that does not come before they give
	// up, which tells that it was that one; 0: they tell nothing.
	PeersWait time.Duration
	// Unguarded says that throttling cannot be noticed here, so that canaries are repeated
	// more often.
	Unguarded bool
}

// Place is one device of a device type, or one set of devices with a group's signature.
// Points are measured at the first place of each; the other places repeat some of them,
// so that slow devices and links show.
type Place struct {
	On    string   `json:"on"`    // the device type or group
	Name  string   `json:"name"`  // "n1/g3", "n0/g0+n1/g0"
	Ranks []string `json:"ranks"` // names of its devices, in the order of the group's ranks
}

// at gives the places of a device type or group.
func (inv *Inventory) at(on string) []Place {
	var places []Place
	for _, p := range inv.Places {
		if p.On == on {
			places = append(places, p)
		}
	}
	return places
}

// Machine is the host as discovered.
type Machine struct {
	Host    string         `json:"host"`
	OS      string         `json:"os"`
	CPU     string         `json:"cpu"`
	Cores   int            `json:"cores"`
	L1Data  units.Bytes    `json:"l1_data_bytes"`
	L2      units.Bytes    `json:"l2_bytes"`
	L3      units.Bytes    `json:"l3_bytes"`
	Memory  units.Bytes    `json:"memory_bytes"`
	NVIDIA  []NVIDIADevice `json:"nvidia,omitempty"`
	Missing string         `json:"missing,omitempty"` // what could not be read of the NVIDIA GPUs, and why
	// NVIDIALinks is the best path between each two GPUs; a pair whose path could not be read is left out.
	NVIDIALinks []NVIDIALink `json:"nvidia_links,omitempty"`
}

// Space is a family of shapes of one op and variant on one device or group,
// from which points are chosen.
type Space struct {
	On    string
	Kind  op.Kind
	Dims  int     // number of free axes
	Share float64 // of all points, relative to other spaces
	// Make maps a point u of the unit cube of Dims dimensions to a shape: 0 is the lower
	// end of an axis and 1 the upper, on a logarithmic scale.
	Make func(u []float64) op.Shape
	// Shapes, if not empty, are all shapes of the space, such as those of a recording. Dims
	// and Make are not used then.
	Shapes []op.Shape
}
