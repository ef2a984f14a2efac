// Package recorded is a backend that replays recordings. It answers only the points in
// the recordings, with their recorded times, on a clock that advances by what measuring
// them would have cost. Methods of choosing points can thus be compared on hardware that
// is not at hand.
package recorded

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/profile"
)

// Overhead is what a visit of a point is taken to cost besides its calls:
// inputs made, warmed up, written down. A worker on a GPU takes 20 to 40 ms.
const Overhead = 30 * time.Millisecond

// Backend implements profile.Backend.
type Backend struct {
	inventory profile.Inventory
	points    map[string]*point // by key without a fingerprint
	clock     *profile.SteppedClock
	copies    profile.Copies
}

// point is what the recordings hold of one spot.
type point struct {
	visits [][]units.Seconds   // [visit][sample] of the slowest rank
	ranks  [][][]units.Seconds // [visit][rank][sample]; nil where only the slowest is known
	gauge  float64             // of an op that measures no time
	failed *profile.OpError    // where no visit has times
	next   int                 // visit to replay
}

// Open reads recordings.
//
// Errors: those of reading, no recording at all, devices of one name that
// differ, simulated beside measured, and recordings without a single time.
func Open(paths []string) (*Backend, error) {
	b := &Backend{
		points: map[string]*point{},
		clock:  profile.NewSteppedClock(),
	}
	for i, path := range paths {
		f, err := os.Open(path)
		if err != nil {
			return nil, fmt.Errorf("recorded: %w", err)
		}
		err = b.add(path, f, i == 0)
		f.Close()
		if err != nil {
			return nil, err
		}
	}
	if len(b.inventory.Spaces) == 0 && len(b.inventory.Once) == 0 {
		return nil, fmt.Errorf("recorded: %s: no point was measured; name a recording that holds times", strings.Join(paths, ","))
	}
	b.inventory.Backend = "recorded"
	b.inventory.Notes = append(b.inventory.Notes, fmt.Sprintf("REPLAYED from %s: nothing was measured now; a visit is taken to cost its calls and %s", strings.Join(paths, ", "), Overhead))
	if copied := b.copies.Warning("the recordings"); copied != "" {
		b.inventory.Notes = append(b.inventory.Notes, copied)
	}
	return b, nil
}

// Clock implements profile.Backend.
func (b *Backend) Clock() profile.Clock { return b.clock }

// Discover implements profile.Backend: devices and groups are the recordings',
// and so are all the shapes there are.
func (b *Backend) Discover(context.Context) (*profile.Inventory, error) {
	inv := b.inventory
	inv.Spaces = slices.Clone(inv.Spaces)
	return &inv, nil
}

// Open implements profile.Backend.
func (b *Backend) Open(_ context.Context, on, place string) (profile.Executor, error) {
	if place != "" {
		return nil, fmt.Errorf("recorded: %q: only the first place of a device or group is replayed", place)
	}
	for _, d := range b.inventory.Devices {
		if d.Name == on {
			return &executor{backend: b, on: on, ranks: 1}, nil
		}
	}
	for _, g := range b.inventory.Groups {
		if g.Name == on {
			return &executor{backend: b, on: on, ranks: g.Ranks()}, nil
		}
	}
	return nil, fmt.Errorf("recorded: no device or group %q", on)
}

// executor replays the points of one device or group.
type executor struct {
	backend *Backend
	on      string
	ranks   int
	point   *point
	visit   int
	sample  int
}

// Ready implements profile.Executor.
func (x *executor) Ready(context.Context) error { return nil }

// Prepare implements profile.Executor. Every time that a point is prepared its
// next recorded visit is replayed, and after the last the first again.
func (x *executor) Prepare(ctx context.Context, s op.Shape, _ uint64) error {
	p, ok := x.backend.points[profile.NewSpot(x.on, s).Key("")]
	if !ok {
		return &profile.OpError{Class: profile.Unsupported, Err: fmt.Errorf("the recordings do not hold this shape on %s", x.on)}
	}
	if p.failed != nil {
		return p.failed
	}
	x.point, x.visit, x.sample = p, p.next, 0
	p.next = (p.next + 1) % max(1, len(p.visits))
	return x.backend.clock.Sleep(ctx, Overhead)
}

// Run implements profile.Executor: the samples of the visit in their order, and
// after the last the first again.
func (x *executor) Run(ctx context.Context, inner, n int) (profile.Batch, error) {
	batch := profile.Batch{Ranks: make([][]units.Seconds, x.ranks)}
	times := x.point.visits[x.visit]
	var total units.Seconds
	for range n {
		k := x.sample % len(times)
		x.sample++
		total += times[k] * units.Seconds(inner)
		for r := range batch.Ranks {
			t := times[k]
			if ranks := x.point.ranks[x.visit]; ranks != nil {
				t = ranks[r][k]
			}
			batch.Ranks[r] = append(batch.Ranks[r], t)
		}
	}
	return batch, x.backend.clock.Sleep(ctx, time.Duration(float64(total)*1e9))
}

// Gauge implements profile.Gauge.
func (x *executor) Gauge(context.Context) (float64, error) { return x.point.gauge, nil }

// Close implements profile.Executor.
func (x *executor) Close() error { return nil }
