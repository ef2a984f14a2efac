// Package profile measures: it chooses points inside a time budget, samples
// each until it can be trusted, guards against disturbances, and appends what
// was measured to a journal that survives a kill. It knows nothing of
// predicting. Files, clocks and processes belong to its backends.
package profile

import (
	"context"
	"errors"
	"time"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// Backend does the work that is timed, on one kind of hardware.
type Backend interface {
	// Discover says what machine this is and what can be measured on it.
	Discover(ctx context.Context) (*Inventory, error)
	// Open readies a device type or group of the inventory to run points. Opened
	// executors idle without disturbing each other; one at a time is run.
	Open(ctx context.Context, on string) (Executor, error)
	// Clock is the clock that budgets and pauses go by.
	Clock() Clock
}

// Executor runs points on one device, or on all ranks of one group.
type Executor interface {
	// Prepare makes the inputs of a point, seeded and random, and verifies the
	// numerics of its kernel against a reference the first time it is used.
	Prepare(ctx context.Context, s op.Shape, seed uint64) error
	// Run takes `n` samples of the prepared point, each of `inner` calls back to back.
	Run(ctx context.Context, inner, n int) (Batch, error)
	// Close ends the processes behind the executor.
	Close() error
}

// Clock is the time as a backend sees it; a simulated backend's does not wait.
type Clock interface {
	Now() time.Time
	Sleep(ctx context.Context, d time.Duration) error
}

// Batch is the samples of one Run.
type Batch struct {
	// Ranks[r][i] is what one call took on rank r in sample i (the mean over the
	// inner calls of that sample). A device is one rank.
	Ranks [][]units.Seconds
	Guard Guard
}

// Slowest is the time of each sample on its slowest rank, which is what a
// training step waits for.
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

// Guard is what a backend noticed while a batch ran. Signals that cannot be
// read on a machine stay zero; the inventory's notes name them, and canaries
// take over.
type Guard struct {
	// Throttled: the hardware slowed itself down. Such samples are discarded.
	Throttled bool `json:"throttled,omitzero"`
	// WaitShare is the share of the batch that runnable threads spent waiting for
	// a core that somebody else held.
	WaitShare float64 `json:"wait_share"`
}

// Class says how a point failed.
type Class string

// The classes of failure.
const (
	OutOfMemory Class = "oom"
	Unsupported Class = "unsupported" // this backend cannot run it; never retried
	Wrong       Class = "wrong"       // its numerics disagree with the reference; never timed
	Crashed     Class = "crashed"     // the worker died
	Hung        Class = "hung"        // the worker missed its deadline and was killed
	Throttled   Class = "throttled"   // every sample was taken while the hardware slowed itself down
)

// OpError is a failure of one point. Lost says that the executor died with it
// and must be opened again.
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
	Devices   []op.DeviceType
	Groups    []op.GroupType
	Spaces    []Space
	Notes     []string // what is not there and why, in plain words
}

// Machine is the host as discovery found it.
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
	Missing string         `json:"missing,omitempty"` // why there is no NVIDIA inventory
}

// NVIDIADevice is one GPU as NVML names it.
type NVIDIADevice struct {
	Name   string      `json:"name"`
	UUID   string      `json:"uuid"`
	Memory units.Bytes `json:"memory_bytes"`
	Driver string      `json:"driver"`
}

// Space is a family of shapes of one op and variant on one device or group,
// from which points are chosen.
type Space struct {
	On    string
	Kind  op.Kind
	Dims  int     // number of free axes
	Share float64 // of the points, relative to other spaces
	// Make maps a place in the unit cube to a shape: 0 is the smallest end of an
	// axis and 1 the largest, on a logarithmic scale.
	Make func(u []float64) op.Shape
}
