package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/profile"
	"github.com/evenkeel/evenkeel/profile/backend/torch"
	"github.com/evenkeel/evenkeel/results"
)

// numerics compares the kernels of a backend with their references. The cpu
// backend verifies each kernel before it is first timed and offers no more.
func (a *app) numerics(ctx context.Context, b chosen) error {
	t, ok := b.Backend.(*torch.Backend)
	if !ok {
		return usagef("--numerics: only the torch backend compares kernels on demand: add --backend torch")
	}
	done, last := 0, time.Now()
	all, err := t.Numerics(ctx, func(n profile.Numeric) {
		done++
		if time.Since(last) >= plainEvery {
			last = time.Now()
			a.note("%s made; now %s on %s", units.Count(done, "comparison"), n.Op, n.On)
		}
	})
	if errors.Is(err, context.Canceled) {
		return fmt.Errorf("interrupted: %s made, not all; they are kept nowhere, and the same command begins again", units.Count(done, "comparison"))
	}
	if err != nil {
		return err
	}
	if err := a.print(all, func(w io.Writer) error { return results.Numerics(w, all) }); err != nil {
		return err
	}
	bad := 0
	for _, n := range all {
		if !n.OK() {
			bad++
		}
	}
	if bad > 0 {
		return fmt.Errorf("%d of %d comparisons are off; the table names them, and calibrate will not time those kernels", bad, len(all))
	}
	return nil
}
