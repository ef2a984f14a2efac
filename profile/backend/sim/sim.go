// Package sim is a backend that simulates a cluster whose true costs are known, with
// seeded noise and, on request, throttling, failures and hangs, on a clock that does not
// wait. It is for tests and demonstrations of measuring and fitting only; everything made
// from it is marked as simulated.
package sim

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/profile"
)

// Backend implements profile.Backend.
type Backend struct {
	config Config
	clock  *profile.SteppedClock
	random *rand.Rand
}

// New makes a simulated cluster.
func New(c Config) *Backend {
	return &Backend{
		config: c, clock: profile.NewSteppedClock(),
		random: rand.New(rand.NewPCG(c.Seed, 1)),
	}
}

// Clock implements profile.Backend.
func (b *Backend) Clock() profile.Clock { return b.clock }

// Discover implements profile.Backend.
func (b *Backend) Discover(context.Context) (*profile.Inventory, error) {
	inv := &profile.Inventory{
		Backend: "sim", Simulated: true,
		Machine: profile.Machine{Host: "simulated", OS: "none", CPU: "none", Cores: 1},
		Places:  b.config.places(),
		Notes:   []string{"SIMULATED: no hardware was measured"},
	}
	for _, d := range b.config.Devices {
		inv.Devices = append(inv.Devices, op.DeviceType{
			Name: d.Name, Model: "simulated", Stack: "sim/1", Fingerprint: fmt.Sprintf("sim %+v noise %v", d.Truth, b.config.Noise),
			Parallel: d.Truth.Parallel, Memory: d.Truth.Memory,
		})
		inv.Spaces = append(inv.Spaces, profile.ComputeSpaces(d.Name, profile.Extent{
			MaxLen: 65536, MaxHeads: 64, MaxWidth: 16384, HeadDims: []int{64, 128}, DType: op.BF16,
		})...)
	}
	if g := b.config.group(); g.Ranks() > 1 {
		inv.Groups = append(inv.Groups, g)
		inv.Spaces = append(inv.Spaces, profile.GroupSpaces(g, units.GiB)...)
	}
	return inv, nil
}

// Open implements profile.Backend.
func (b *Backend) Open(_ context.Context, on, place string) (profile.Executor, error) {
	for _, d := range b.config.Devices {
		if d.Name == on {
			return &executor{backend: b, truth: d.Truth, ranks: 1, factor: b.factor(on, place)}, nil
		}
	}
	if g := b.config.group(); g.Name == on {
		return &executor{backend: b, ranks: g.Ranks(), factor: 1}, nil
	}
	return nil, fmt.Errorf("sim: no device or group %q", on)
}

// factor is how much slower than its type the device at a place is; without a
// place, that is the first of its type.
func (b *Backend) factor(on, place string) float64 {
	for _, p := range b.config.places() {
		if p.On == on && (place == "" || p.Name == place) {
			place = p.Name
			break
		}
	}
	if place == b.config.Slow && b.config.SlowBy > 0 {
		return b.config.SlowBy
	}
	return 1
}

type executor struct {
	backend *Backend
	factor  float64
	truth   Truth
	ranks   int
	shape   op.Shape
	hang    bool
}

// Ready implements profile.Executor.
func (x *executor) Ready(context.Context) error { return nil }

// Prepare implements profile.Executor: this is where requested faults strike.
func (x *executor) Prepare(_ context.Context, s op.Shape, _ uint64) error {
	b := x.backend
	x.shape, x.hang = s, b.random.Float64() < b.config.Hang
	if s.Kind() == b.config.Wrong {
		return &profile.OpError{Class: profile.Wrong, Err: errors.New("relative error 0.5 against the reference (requested)")}
	}
	if b.random.Float64() < b.config.Fail {
		return &profile.OpError{Class: profile.Crashed, Lost: true, Err: errors.New("worker crashed (requested)")}
	}
	return nil
}

// Run implements profile.Executor.
func (x *executor) Run(ctx context.Context, inner, n int) (profile.Batch, error) {
	b := x.backend
	if x.hang {
		return profile.Batch{}, &profile.OpError{Class: profile.Hung, Lost: true, Err: errors.New("no sample before the deadline (requested)")}
	}
	batch := profile.Batch{Ranks: make([][]units.Seconds, x.ranks)}
	batch.Guard.Throttled = b.random.Float64() < b.config.Throttle
	truth := b.config.True(x.truth, x.shape) * units.Seconds(x.factor)
	if batch.Guard.Throttled {
		truth *= 3
	}
	var total units.Seconds
	for range n {
		// The ranks of a group share the noise of a sample: they wait for each other.
		t := truth * units.Seconds(math.Exp(b.config.Noise*b.random.NormFloat64()))
		total += t * units.Seconds(inner)
		for r := range batch.Ranks {
			batch.Ranks[r] = append(batch.Ranks[r], t)
		}
	}
	return batch, b.clock.Sleep(ctx, time.Duration(float64(total)*1e9))
}

// Close implements profile.Executor.
func (x *executor) Close() error { return nil }

// group is all devices together; its signature needs at least two of them.
func (c Config) group() op.GroupType {
	var members []op.Member
	for _, d := range c.Devices {
		members = append(members, op.Member{Device: d.Name, Count: d.Count})
	}
	return op.NewGroupType(members, 1, "sim_link")
}
