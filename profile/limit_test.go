package profile_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/profile"
	"github.com/evenkeel/evenkeel/profile/backend/sim"
)

// waiting is a simulated device whose calls really take their time, by the clock of the
// bubble that the test is in, and whose workers hang at the tries of one op that it is told.
type waiting struct {
	*sim.Backend
	hangs   op.Kind
	after   int           // the first so many tries are sound
	starts  time.Duration // how long a worker takes to start
	tries   int
	started int
}

type wallClock struct{}

func (wallClock) Now() time.Time { return time.Now() }
func (wallClock) Sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (b *waiting) Clock() profile.Clock { return wallClock{} }

func (b *waiting) Open(ctx context.Context, on, place string) (profile.Executor, error) {
	x, err := b.Backend.Open(ctx, on, place)
	b.started++
	return &waitingExecutor{Executor: x, b: b}, err
}

type waitingExecutor struct {
	profile.Executor
	b    *waiting
	runs bool
}

func (x *waitingExecutor) Ready(ctx context.Context) error {
	if x.runs {
		return nil
	}
	x.runs = true
	return wallClock{}.Sleep(ctx, x.b.starts)
}

func (x *waitingExecutor) Prepare(ctx context.Context, s op.Shape, seed uint64) error {
	if s.Kind() == x.b.hangs {
		if x.b.tries++; x.b.tries > x.b.after {
			<-ctx.Done()
			return &profile.OpError{Class: profile.Hung, Lost: true, Err: errors.New("no answer before the deadline")}
		}
	}
	return x.Executor.Prepare(ctx, s, seed)
}

func (x *waitingExecutor) Run(ctx context.Context, inner, n int) (profile.Batch, error) {
	b, err := x.Executor.Run(ctx, inner, n)
	var total float64
	for _, t := range b.Slowest() {
		total += float64(t) * float64(inner)
	}
	if err == nil {
		err = wallClock{}.Sleep(ctx, time.Duration(total*1e9))
	}
	return b, err
}

// measured calibrates a device into a file, in a bubble's time, and says how long that took.
func (b *waiting) measured(t *testing.T, path string, cfg profile.Config) time.Duration {
	t.Helper()
	j, err := doc.OpenJournal(path)
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	past, visitor := profile.NewPast()
	if len(data) > 0 {
		if _, err := profile.Read(path, bytes.NewReader(data), visitor); err != nil {
			t.Fatal(err)
		}
	}
	start := time.Now()
	if err := profile.Calibrate(t.Context(), b, cfg, past, j, silent); err != nil {
		t.Fatal(err)
	}
	return time.Since(start)
}

// wait makes a device with a worker that hangs, whose inventory differs in nothing from that
// of one whose workers do not.
func wait(t *testing.T, hangs op.Kind, after int) *waiting {
	t.Helper()
	c, err := sim.Parse("1xbig")
	if err != nil {
		t.Fatal(err)
	}
	return &waiting{Backend: sim.New(c), hangs: hangs, after: after, starts: 2 * time.Second}
}

// A worker that hangs takes two minutes to be found out, as calibrate has it, unless the
// budget has less: it ends with it, and the points of the others are measured.
func TestAWorkerThatHangsDoesNotOverrunTheBudget(t *testing.T) {
	for name, c := range map[string]struct {
		budget time.Duration
		after  int // tries of norm that are sound: its pilot makes three
		fewest int
	}{
		"a pilot of a minute":      {time.Minute, 0, 100},
		"a pilot of ten seconds":   {10 * time.Second, 0, 20},
		"early in a minute":        {time.Minute, 4, 20},
		"in the midst of a minute": {time.Minute, 20, 100},
		"early in ten seconds":     {10 * time.Second, 4, 1},
		"late in ten seconds":      {10 * time.Second, 20, 20},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cfg := config(c.budget)
				cfg.PointTimeout = 2 * time.Minute
				cfg.Only = []op.Kind{op.KindNorm, op.KindGEMM, op.KindSwiGLU}
				path := filepath.Join(t.TempDir(), "x")
				took := wait(t, op.KindNorm, c.after).measured(t, path, cfg)
				if limit := c.budget + profile.Tolerance(c.budget); took > limit {
					t.Errorf("took %v, the budget of %v and its tolerance are %v", took, c.budget, limit)
				}
				got := read(t, path)
				if got.Points-got.Failed < c.fewest || got.end != profile.EndBudget {
					t.Errorf("%+v, ended %q; want %d points and an end of the budget", got.Tally, got.end, c.fewest)
				}
				for _, p := range got.points {
					if p.Class == profile.TooLong && p.Elapsed == 0 { // not tried, after a pilot that hung
						continue
					}
					if !p.OK() && (p.Op != op.KindNorm || p.Class != profile.TooLong || p.Elapsed < 1) {
						t.Errorf("%s %s: class %q after %v s: %s", p.Op, p.Raw, p.Class, p.Elapsed, p.Error)
					}
				}
			})
		})
	}
}

// What the budget had no time for is no failure for good: where there is more, it has its
// turn, but after all others.
func TestWhatTheBudgetCutOffIsMeasuredWhenThereIsMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "x")
		cfg := config(10 * time.Second)
		cfg.PointTimeout = 2 * time.Minute
		cfg.Only = []op.Kind{op.KindNorm, op.KindGEMM, op.KindSwiGLU}
		wait(t, op.KindNorm, 4).measured(t, path, cfg)
		before := read(t, path)
		var cut *profile.Point
		for _, p := range before.points {
			if p.Class == profile.TooLong {
				cut = p
			}
		}
		if cut == nil {
			t.Fatal("nothing was cut off")
		}
		cfg.Budget = 2 * time.Minute
		sound := wait(t, "", 0)
		sound.measured(t, path, cfg)
		after := read(t, path)
		for i, p := range before.points {
			if after.points[i].Key != p.Key {
				t.Fatalf("point %d was lost", i)
			}
		}
		last := len(after.points) - 1
		if p := after.points[last]; p.Key != cut.Key || !p.OK() {
			t.Errorf("the last first visit is of %s %s, class %q; want %s %s measured", p.Op, p.Raw, p.Class, cut.Op, cut.Raw)
		}
		if len(after.schedule.Points)+1 != len(after.points) {
			t.Errorf("%d first visits of %d points; want one of each, and what was cut off", len(after.points), len(after.schedule.Points))
		}
	})
}

// A worker that takes longer to start again than the budget has left is not waited for.
func TestARestartDoesNotOverrunTheBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := wait(t, "", 0)
		cfg := config(10 * time.Second)
		cfg.Only = []op.Kind{op.KindNorm, op.KindGEMM}
		dying := &slowToStart{waiting: b}
		path := filepath.Join(t.TempDir(), "x")
		j, err := doc.OpenJournal(path)
		if err != nil {
			t.Fatal(err)
		}
		defer j.Close()
		past, _ := profile.NewPast()
		start := time.Now()
		if err := profile.Calibrate(t.Context(), dying, cfg, past, j, silent); err != nil {
			t.Fatal(err)
		}
		if took, limit := time.Since(start), cfg.Budget+profile.Tolerance(cfg.Budget); took > limit || b.started < 2 {
			t.Errorf("took %v with %d starts, the budget and its tolerance are %v", took, b.started, limit)
		}
		if got := read(t, path); got.Points-got.Failed < 20 || got.end != profile.EndBudget {
			t.Errorf("%+v, ended %q", got.Tally, got.end)
		}
	})
}

// slowToStart is a device whose worker dies once, in the midst, and whose next takes as long
// to start as a torch worker may.
type slowToStart struct{ *waiting }

func (b *slowToStart) Open(ctx context.Context, on, place string) (profile.Executor, error) {
	x, err := b.waiting.Open(ctx, on, place)
	return dyingExecutor{x, b}, err
}

type dyingExecutor struct {
	profile.Executor
	b *slowToStart
}

func (x dyingExecutor) Prepare(ctx context.Context, s op.Shape, seed uint64) error {
	if s.Kind() == op.KindNorm {
		if x.b.tries++; x.b.tries == 20 {
			x.b.starts = 2 * time.Minute
			return &profile.OpError{Class: profile.Crashed, Lost: true, Err: errors.New("it died")}
		}
	}
	return x.Executor.Prepare(ctx, s, seed)
}
