package torch

import (
	"context"
	"fmt"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/profile"
)

// executor implements profile.Gauge on one rank or on the ranks of a group.
// Workers belong to the ranks and are shared: the executors of a device and of
// the groups it is in use the same one.
type executor struct {
	backend *Backend
	ranks   []*rank
	group   string // as the workers name it; "" for a device
	op      op.Kind
	pair    *pair // while an overlap of the device with messages is prepared
}

var _ profile.Gauge = (*executor)(nil)

// Ready implements profile.Executor: the workers run and, of a group, are in
// one world.
func (x *executor) Ready(ctx context.Context) error {
	if x.group != "" {
		return x.backend.world(ctx)
	}
	return x.ranks[0].ready(ctx)
}

func (x *executor) ask(ctx context.Context, q request) ([]frame, error) {
	ranks := x.ranks
	if x.pair != nil {
		ranks = x.pair.ranks
	}
	return askAll(ctx, ranks, func(int) request { return q })
}

// Prepare implements profile.Executor.
func (x *executor) Prepare(ctx context.Context, s op.Shape, seed uint64) error {
	data, err := op.Encode(s)
	if err != nil {
		return err
	}
	x.op = s.Kind()
	group := x.group
	if x.pair = x.backend.pairFor(x.ranks[0], s); x.pair != nil {
		if err := x.backend.world(ctx); err != nil {
			return err
		}
		group = x.pair.group
	}
	// Readers of JSON keep 53 bits of a number.
	_, err = x.ask(ctx, request{T: "prepare", Op: x.op, Shape: data, Seed: seed & (1<<53 - 1), Group: group})
	return err
}

// Run implements profile.Executor.
func (x *executor) Run(ctx context.Context, inner, n int) (profile.Batch, error) {
	var b profile.Batch
	frames, err := x.ask(ctx, request{T: "run", Op: x.op, Inner: inner, N: n})
	if err != nil {
		return b, err
	}
	for r, f := range frames {
		if len(f.SamplesNS) != n {
			return b, lost(profile.Crashed, fmt.Errorf("%s returned %d samples, was asked for %d", x.ranks[r].place, len(f.SamplesNS), n))
		}
		times := make([]units.Seconds, n)
		for i, t := range f.SamplesNS {
			times[i] = units.Seconds(float64(t) / 1e9 / float64(inner))
		}
		b.Ranks = append(b.Ranks, times)
		b.Peak = max(b.Peak, f.PeakBytes)
		b.Guard = b.Guard.With(x.ranks[r].guard(f, x.op, times, inner))
	}
	return b, nil
}

// Gauge implements profile.Gauge.
func (x *executor) Gauge(ctx context.Context) (float64, error) {
	frames, err := x.ask(ctx, request{T: "gauge", Op: x.op})
	if err != nil {
		return 0, err
	}
	own := frames[0]
	if x.pair != nil {
		own = frames[x.pair.own]
	}
	if own.SizeBytes > 0 {
		return float64(own.SizeBytes), nil
	}
	return own.Ratio, nil
}

// Close implements profile.Executor: the next use of these ranks finds fresh
// workers.
func (x *executor) Close() error {
	for _, r := range x.ranks {
		r.stop()
	}
	return nil
}
