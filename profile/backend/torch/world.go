package torch

import (
	"context"
	"sync"
)

// world makes all ranks of the job members of one torch.distributed world with
// all its groups. A world that lost a worker is never mended: what a dead peer
// leaves behind in NCCL is not defined, and starting anew takes two seconds.
func (b *Backend) world(ctx context.Context) error {
	whole := b.epoch > 0
	for _, r := range b.ranks {
		whole = whole && r.client != nil && r.client.gone == nil && r.world == b.epoch
	}
	if whole {
		return nil
	}
	for _, r := range b.ranks {
		if r.world != 0 {
			r.stop()
		}
	}
	if err := b.readyAll(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, b.config.greetTimeout())
	defer cancel()
	b.epoch++
	served, err := askAll(ctx, b.ranks[:1], func(int) request { return request{T: "serve", Host: b.host} })
	if err != nil {
		return err
	}
	joined, err := askAll(ctx, b.ranks, func(i int) request {
		return request{
			T: "join", Host: b.host, Port: served[0].Port, Rank: i, Size: len(b.ranks), Comm: b.comm,
			Limit: max(1, int(b.config.collectiveTimeout().Seconds())), Groups: b.members(),
		}
	})
	if err != nil {
		return err
	}
	for i, r := range b.ranks {
		r.world = b.epoch
		b.warn(joined[i].Warnings)
	}
	return nil
}

// readyAll starts the workers that do not run, side by side.
func (b *Backend) readyAll(ctx context.Context) error {
	errs := make([]error, len(b.ranks))
	var wait sync.WaitGroup
	for i, r := range b.ranks {
		wait.Go(func() { errs[i] = r.ready(ctx) })
	}
	wait.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// members are the global ranks of every set of devices that collectives run on,
// by the name the workers know it by.
func (b *Backend) members() map[string][]int {
	m := map[string][]int{}
	for _, g := range b.groups {
		for i, set := range g.sets {
			m[g.set(i)] = set
		}
	}
	return m
}
