package cpu

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/profile"
	"github.com/evenkeel/evenkeel/profile/backend/child"
	"github.com/evenkeel/evenkeel/profile/backend/host"
)

// kernels is the version of the kernels and of how they are driven. It is part
// of the device type: raise it with any change that moves times.
const kernels = "evenkeel-cpu/1"

// Link is the link class between workers on one machine.
const Link = "unix_socket"

// Config of the backend.
type Config struct {
	Machine profile.Machine
	Threads []int // device types to offer; nil: one thread, and all cores
	// GroupSizes are the sizes of the groups of one-thread ranks to offer; nil:
	// the powers of two up to the number of cores. Groups larger than that are
	// measured while ranks wait for cores, which is what their name then says.
	GroupSizes []int
	HeadDims   []int // of attention; nil: 64 and 128
	// Worker makes the command that calls Work with the given arguments.
	Worker func(args []string) *exec.Cmd
}

// Backend implements profile.Backend.
type Backend struct{ config Config }

// New checks a configuration and fills its defaults in.
func New(c Config) (*Backend, error) {
	cores := c.Machine.Cores
	if c.Threads == nil {
		c.Threads = slices.Compact([]int{1, cores})
	}
	for i, t := range c.Threads {
		if t < 1 || t > cores {
			return nil, fmt.Errorf("cpu:%d: this machine has %d cores: name 1 to %d threads", t, cores, cores)
		}
		if slices.Contains(c.Threads[:i], t) {
			return nil, fmt.Errorf("cpu:%d: is there twice: a device type is measured once, and --group-sizes says how many ranks exchange messages; name it once", t)
		}
	}
	if c.GroupSizes == nil {
		for n := 2; n <= cores; n *= 2 {
			c.GroupSizes = append(c.GroupSizes, n)
		}
	}
	for i, n := range c.GroupSizes {
		if n < 2 || n > 64 {
			return nil, fmt.Errorf("--group-sizes %d: want 2 to 64 ranks", n)
		}
		if slices.Contains(c.GroupSizes[:i], n) {
			return nil, fmt.Errorf("--group-sizes %d: is there twice; name it once", n)
		}
	}
	if c.HeadDims == nil {
		c.HeadDims = []int{64, 128}
	}
	for _, d := range c.HeadDims {
		if d < 8 || d > 512 {
			return nil, fmt.Errorf("head_dim %d: want 8 to 512", d)
		}
	}
	return &Backend{c}, nil
}

// Extent of the shapes: what a planner may ask of a rank. How far into it a
// calibration reaches is a matter of its budget.
const (
	maxLen   = 32 << 10
	maxHeads = 32
	maxWidth = 8 << 10
	maxWire  = 64 * units.MiB
)

// Discover implements profile.Backend.
func (b *Backend) Discover(context.Context) (*profile.Inventory, error) {
	inv := &profile.Inventory{Backend: "cpu", Machine: b.config.Machine, Notes: blindSpots()}
	if n := len(b.config.Machine.NVIDIA); n > 0 {
		inv.Notes = append(inv.Notes, fmt.Sprintf("%d NVIDIA devices are present and listed, but this version measures cores only", n))
	}
	for _, t := range b.config.Threads {
		d := b.device(t)
		inv.Devices = append(inv.Devices, d)
		inv.Spaces = append(inv.Spaces, profile.ComputeSpaces(d.Name, profile.Extent{
			MaxLen: maxLen, MaxHeads: maxHeads, MaxWidth: maxWidth, HeadDims: b.config.HeadDims, DType: op.F32,
		})...)
	}
	for _, n := range b.config.GroupSizes {
		g := b.group(n)
		inv.Groups = append(inv.Groups, g)
		inv.Spaces = append(inv.Spaces, profile.GroupSpaces(g, maxWire)...)
		if n > b.config.Machine.Cores {
			inv.Notes = append(inv.Notes, fmt.Sprintf("%s: %d ranks share %d cores: its times hold for nothing but such a machine", g.Name, n, b.config.Machine.Cores))
		}
	}
	if !slices.ContainsFunc(inv.Devices, func(d op.DeviceType) bool { return d.Parallel == 1 }) && len(inv.Groups) > 0 {
		inv.Devices = append(inv.Devices, b.device(1)) // what the groups consist of
	}
	return inv, nil
}

// blindSpots names the guards that this machine does not let anyone read.
func blindSpots() []string {
	var notes []string
	if _, ok := host.ThrottleCount(os.DirFS("/")); !ok {
		notes = append(notes, "thermal throttling cannot be read on this machine; repeated points (canaries) show drift instead")
	}
	if _, ok := host.RunDelay(os.DirFS("/")); !ok {
		notes = append(notes, "waiting for a core cannot be read on this machine; repeated points (canaries) show drift instead")
	}
	return notes
}

func (b *Backend) device(threads int) op.DeviceType {
	m := b.config.Machine
	d := op.DeviceType{
		Name: "cpu:" + strconv.Itoa(threads), Model: fmt.Sprintf("%s, %d of %d cores", m.CPU, threads, m.Cores),
		Stack: fmt.Sprintf("%s, gonum %s, %s %s", kernels, gonumVersion(), runtime.Version(), runtime.GOARCH), Parallel: threads,
		Memory: m.Memory * units.Bytes(threads) / units.Bytes(m.Cores),
	}
	h := sha256.New()
	fmt.Fprintln(h, d.Name, d.Model, d.Stack, m.L1Data, m.L2, m.L3)
	d.Fingerprint = fmt.Sprintf("%x", h.Sum(nil))
	return d
}

// group is n ranks of one thread each.
func (b *Backend) group(n int) op.GroupType {
	link := Link
	if n > b.config.Machine.Cores {
		link += op.Oversubscribed
	}
	return op.NewGroupType([]op.Member{{Device: "cpu:1", Count: n}}, 1, link)
}

func gonumVersion() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	for _, m := range info.Deps {
		if m.Path == "gonum.org/v1/gonum" {
			return m.Version
		}
	}
	return "unknown"
}

// Open implements profile.Backend.
func (b *Backend) Open(_ context.Context, on, _ string) (profile.Executor, error) {
	if t, ok := strings.CutPrefix(on, "cpu:"); ok {
		if threads, err := strconv.Atoi(t); err == nil {
			return b.open(1, threads)
		}
	}
	for _, n := range b.config.GroupSizes {
		if b.group(n).Name == on {
			return b.open(n, 1)
		}
	}
	return nil, fmt.Errorf("cpu: no device or group %q", on)
}

func (b *Backend) open(ranks, threads int) (profile.Executor, error) {
	x := &executor{}
	if ranks > 1 {
		var err error
		if x.folder, err = child.NewFolder(); err != nil {
			return nil, err
		}
	}
	for r := range ranks {
		p, err := start(b.config.Worker(WorkerConfig{L2: b.config.Machine.L2, Rank: r, Size: ranks, Dir: x.dir()}.Args()), threads)
		if err != nil {
			_ = x.Close()
			return nil, fmt.Errorf("worker: %w", err)
		}
		x.ranks = append(x.ranks, p)
	}
	return x, nil
}

// Clock implements profile.Backend.
func (b *Backend) Clock() profile.Clock { return host.Clock{} }
