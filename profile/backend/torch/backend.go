package torch

import (
	"context"
	"fmt"
	"os"
	"sync"

	"github.com/evenkeel/evenkeel/profile"
	"github.com/evenkeel/evenkeel/profile/backend/child"
	"github.com/evenkeel/evenkeel/profile/backend/host"
)

// Backend implements profile.Backend.
type Backend struct {
	config Config
	folder string // of the unpacked worker
	parent *child.Folder
	python string
	first  *client // the worker that answered the probe, until a rank takes it

	ranks  []*rank
	groups []group
	comm   string // "nccl" or "gloo"
	host   string // where rank 0 can be reached by the others
	epoch  int    // number of the newest world
	bus    *bus   // to the other tasks of the job; nil if there are none

	found    *profile.Inventory
	warned   map[string]bool
	warnings []string
}

// New checks a configuration. Close ends what the backend started.
func New(c Config) (*Backend, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	if c.HeadDims == nil {
		c.HeadDims = []int{64, 128}
	}
	return &Backend{config: c, host: "127.0.0.1", warned: map[string]bool{}}, nil
}

// validate reports the first field that is out of range or at odds with another.
func (c Config) validate() error {
	for _, x := range c.Cores {
		if x.Threads < 1 || x.Threads > c.Machine.Cores {
			return fmt.Errorf("cpu:%s: this machine has %d cores: name 1 to %d threads", x, c.Machine.Cores, c.Machine.Cores)
		}
		if err := lacks(x.ISA, cpuinfo()); err != nil {
			return fmt.Errorf("cpu:%s: %w", x, err)
		}
	}
	if len(c.Partitions) > 0 && (len(c.Cores) > 0 || c.Device == "cpu") {
		return fmt.Errorf("gpu:%s: partitions of GPUs and processors have no backend in common: measure them apart", c.Partitions[0])
	}
	for _, n := range c.GroupSizes {
		if n < 2 || n > 1<<12 {
			return fmt.Errorf("--group-sizes %d: want 2 to %d ranks", n, 1<<12)
		}
	}
	for _, d := range c.HeadDims {
		if d < 8 || d > 512 {
			return fmt.Errorf("head_dim %d: want 8 to 512", d)
		}
	}
	if c.DType != "" && !c.DType.Runs() {
		return fmt.Errorf("--dtype %q: want bf16, f16 or f32", string(c.DType))
	}
	return nil
}

// Open implements profile.Backend.
func (b *Backend) Open(_ context.Context, on, place string) (profile.Executor, error) {
	for _, g := range b.groups {
		if g.Name != on {
			continue
		}
		for i, set := range g.sets {
			if place == "" || place == b.placeOf(set) {
				x := &executor{backend: b, group: g.set(i)}
				for _, r := range set {
					x.ranks = append(x.ranks, b.ranks[r])
				}
				return x, nil
			}
		}
	}
	for _, r := range b.ranks {
		if r.device.Name == on && (place == "" || place == r.place) {
			return &executor{backend: b, ranks: []*rank{r}}, nil
		}
	}
	return nil, fmt.Errorf("torch: no device or group %q at %q", on, place)
}

// warn keeps what the ranks say about each other when they meet, such as
// protocols that a mix of GPUs cannot use.
func (b *Backend) warn(texts []string) {
	for _, t := range texts {
		if !b.warned[t] {
			b.warned[t] = true
			b.warnings = append(b.warnings, t)
		}
	}
}

// Close ends all workers, dismisses the other tasks and removes the unpacked worker.
func (b *Backend) Close() error {
	var wait sync.WaitGroup
	for _, r := range b.ranks {
		wait.Go(r.stop)
	}
	wait.Wait()
	if b.first != nil {
		b.first.close()
	}
	if b.bus != nil {
		b.bus.close()
	}
	if w := b.config.World; w != nil && w.Task == 0 && b.config.Rendezvous != "" {
		_ = os.Remove(b.config.Rendezvous) // it may never have been written
	}
	if b.parent == nil {
		return nil
	}
	return b.parent.Remove()
}

// Clock implements profile.Backend.
func (b *Backend) Clock() profile.Clock { return host.Clock{} }
