package profile_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/profile"
	"github.com/evenkeel/evenkeel/profile/backend/sim"
)

// cheapest is a chooser that takes what costs least, and remembers what it was told.
type cheapest struct{ rounds *[]profile.Round }

func (c cheapest) Next(r profile.Round) []int {
	*c.rounds = append(*c.rounds, r)
	order := make([]int, len(r.Pool))
	for i := range order {
		order[i] = i
	}
	cost := func(i int) units.Seconds { return r.Cost(r.Pool[i], r.Call(r.Pool[i])) }
	slices.SortStableFunc(order, func(a, b int) int {
		if cost(a) < cost(b) {
			return -1
		}
		return 1
	})
	left, n := r.Left, 0
	for n < len(order) && n < r.Want && left >= cost(order[n]) {
		left -= cost(order[n])
		n++
	}
	return order[:n]
}

func inRounds(budget time.Duration, points int) (profile.Config, *[]profile.Round) {
	var seen []profile.Round
	cfg := config(budget)
	cfg.Chooser, cfg.Points = cheapest{&seen}, points
	return cfg, &seen
}

// Every family gets its points in rounds, within the limit and the budget, each
// with what the rounds before measured.
func TestPointsAreChosenInRounds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x")
	cfg, seen := inRounds(3*time.Minute, 24)
	if err := calibrate(t, t.Context(), path, "1xbig", cfg, silent); err != nil {
		t.Fatal(err)
	}
	c := read(t, path)
	if c.end != profile.EndDone || c.Failed > 0 {
		t.Errorf("%+v, end %q", c.Tally, c.end)
	}
	if c.Again != c.Points || c.Points != len(c.schedule.Points) {
		t.Errorf("%d scheduled, %d measured, %d of them twice", len(c.schedule.Points), c.Points, c.Again)
	}
	families := map[string]int{}
	for _, p := range c.points {
		families[fmt.Sprint(p.On, p.Op, p.Shape.Variant())]++
	}
	if len(families) != 18 {
		t.Errorf("%d families", len(families))
	}
	for name, n := range families {
		if n != 24 {
			t.Errorf("%s: %d points, want 24", name, n)
		}
	}
	// 16, then 4 and 4, and a last look that finds nothing wanted.
	first, last := (*seen)[0], (*seen)[len(*seen)-1]
	if len(first.Done) != 0 || first.Want != 16 || len(last.Done) != 24 || last.Want != 0 {
		t.Errorf("first round: %d done, %d wanted; last: %d, %d", len(first.Done), first.Want, len(last.Done), last.Want)
	}
	if first.Device.Name != "sim_big" {
		t.Errorf("the round is of device %q", first.Device.Name)
	}
	for _, m := range last.Done {
		if m.Seconds <= 0 {
			t.Errorf("%v took %v", m.Shape, m.Seconds)
		}
	}
}

// A budget is kept: both visits of all points fit into it.
func TestRoundsEndWithTheBudget(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x")
	cfg, _ := inRounds(20*time.Second, 0)
	if err := calibrate(t, t.Context(), path, "1xbig", cfg, silent); err != nil {
		t.Fatal(err)
	}
	c := read(t, path)
	if share := float64(c.Again) / float64(c.Points); share < 0.9 {
		t.Errorf("%d of %d points were visited twice", c.Again, c.Points)
	}
	if c.Points < 150 {
		t.Errorf("only %d points in 20 s", c.Points)
	}
}

// A run that is cut off between or within rounds goes on as if it had not been.
func TestRoundsAreResumed(t *testing.T) {
	dir := t.TempDir()
	whole := filepath.Join(dir, "whole")
	cfg, _ := inRounds(2*time.Minute, 24)
	cfg.Only = []op.Kind{op.KindGEMM, op.KindNorm}
	if err := calibrate(t, t.Context(), whole, "1xbig,noise=0", cfg, silent); err != nil {
		t.Fatal(err)
	}
	want := scheduled(read(t, whole))
	for _, stop := range []int{1, 40, 64, 70, 96, 110} {
		path := filepath.Join(dir, fmt.Sprint(stop))
		ctx, cancel := context.WithCancel(t.Context())
		points := 0
		err := calibrate(t, ctx, path, "1xbig,noise=0", cfg, func(p profile.Progress) {
			if p.Point != nil {
				if points++; points == stop {
					cancel()
				}
			}
		})
		cancel()
		if !errors.Is(err, context.Canceled) {
			t.Fatalf("after %d points: %v", stop, err)
		}
		if err := calibrate(t, t.Context(), path, "1xbig,noise=0", cfg, silent); err != nil {
			t.Fatalf("after %d points: %v", stop, err)
		}
		c := read(t, path)
		if got := scheduled(c); !slices.Equal(got, want) {
			t.Errorf("stopped after %d points: other points were chosen", stop)
		}
		if c.end != profile.EndDone || c.Points != len(want) || c.Again != len(want) {
			t.Errorf("stopped after %d points: %+v, end %q", stop, c.Tally, c.end)
		}
	}
}

func scheduled(c content) []string {
	var keys []string
	for _, s := range c.schedule.Points {
		keys = append(keys, s.Key(""))
	}
	slices.Sort(keys)
	return keys
}

// A recording whose points were spread before the first was measured is
// finished as it was begun, whatever is asked for now.
func TestASpreadRecordingIsFinishedAsItWasBegun(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x")
	if err := calibrate(t, t.Context(), path, "1xbig", config(20*time.Second), silent); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	cut := data[:bytes.LastIndexByte(data[:len(data)/2], '\n')+1]
	if err := os.WriteFile(path, cut, 0o644); err != nil {
		t.Fatal(err)
	}
	before := scheduled(read(t, path))
	cfg, seen := inRounds(20*time.Second, 0)
	if err := calibrate(t, t.Context(), path, "1xbig", cfg, silent); err != nil {
		t.Fatal(err)
	}
	if after := scheduled(read(t, path)); !slices.Equal(before, after) || len(*seen) > 0 {
		t.Errorf("%d points were scheduled, now %d; the chooser was asked %d times", len(before), len(after), len(*seen))
	}
}

// twoKernels is a simulated device with two attention kernels, of which "slow" takes twice
// as long as "fast".
type twoKernels struct{ *sim.Backend }

func (b twoKernels) Discover(ctx context.Context) (*profile.Inventory, error) {
	inv, err := b.Backend.Discover(ctx)
	if err == nil {
		inv.Spaces = profile.ComputeSpaces(inv.Devices[0].Name, profile.Extent{
			MaxLen: 8192, MaxHeads: 16, MaxWidth: 1024, HeadDims: []int{64}, DType: op.BF16, Kernels: []string{"fast", "slow"},
		})
	}
	return inv, err
}

func (b twoKernels) Open(ctx context.Context, on, place string) (profile.Executor, error) {
	x, err := b.Backend.Open(ctx, on, place)
	return &slowKernel{Executor: x}, err
}

type slowKernel struct {
	profile.Executor
	slow bool
}

func (x *slowKernel) Prepare(ctx context.Context, s op.Shape, seed uint64) error {
	x.slow = s.Variant().Kernel == "slow"
	return x.Executor.Prepare(ctx, s, seed)
}

func (x *slowKernel) Run(ctx context.Context, inner, n int) (profile.Batch, error) {
	b, err := x.Executor.Run(ctx, inner, n)
	for _, times := range b.Ranks {
		for i := range times {
			if x.slow {
				times[i] *= 2
			}
		}
	}
	return b, err
}

// Whichever way points are chosen, a kernel that another outpaces gets fewer.
func TestCalibrateSpendsItsPointsOnFastKernels(t *testing.T) {
	spec, err := sim.Parse("1xbig")
	if err != nil {
		t.Fatal(err)
	}
	for _, adaptive := range []bool{false, true} {
		path := filepath.Join(t.TempDir(), "x")
		cfg := config(time.Minute)
		if adaptive {
			cfg, _ = inRounds(time.Minute, 0)
		}
		cfg.Only = []op.Kind{op.KindAttnFwd, op.KindAttnBwd, op.KindGEMM}
		j, err := doc.OpenJournal(path)
		if err != nil {
			t.Fatal(err)
		}
		past, _ := profile.NewPast()
		err = profile.Calibrate(t.Context(), twoKernels{sim.New(spec)}, cfg, past, j, silent)
		if err = errors.Join(err, j.Close()); err != nil {
			t.Fatal(err)
		}
		points := map[string]int{}
		for _, p := range read(t, path).points {
			points[p.Shape.Variant().Kernel]++
		}
		t.Logf("adaptive %t: %v", adaptive, points)
		if points["slow"] == 0 || points["fast"] < 2*points["slow"] {
			t.Errorf("adaptive %t: points by kernel %v, want twice as many of the fast one", adaptive, points)
		}
	}
}

// preparing makes the inputs of a point by calls of the op itself, as a backward pass needs a
// forward one.
type preparing struct{ *sim.Backend }

func (b preparing) Discover(ctx context.Context) (*profile.Inventory, error) {
	return twoKernels(b).Discover(ctx)
}

func (b preparing) Open(ctx context.Context, on, place string) (profile.Executor, error) {
	x, err := b.Backend.Open(ctx, on, place)
	return preparingExecutor{x}, err
}

// prepared is by how many calls.
const prepared = 1000

type preparingExecutor struct{ profile.Executor }

func (x preparingExecutor) Prepare(ctx context.Context, s op.Shape, seed uint64) error {
	err := x.Executor.Prepare(ctx, s, seed)
	if err == nil {
		_, err = x.Run(ctx, prepared, 1)
	}
	return err
}

// What is prepared in proportion to a call is not taken for as long of small shapes.
func TestPilotsTellWhatIsPreparedByCalls(t *testing.T) {
	spec, err := sim.Parse("1xbig")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "x")
	cfg, _ := inRounds(time.Minute, 0)
	cfg.Only = []op.Kind{op.KindAttnBwd}
	j, err := doc.OpenJournal(path)
	if err != nil {
		t.Fatal(err)
	}
	past, _ := profile.NewPast()
	if err = errors.Join(profile.Calibrate(t.Context(), preparing{sim.New(spec)}, cfg, past, j, silent), j.Close()); err != nil {
		t.Fatal(err)
	}
	families := read(t, path).schedule.Families
	for _, f := range families {
		if f.PrepareCalls < prepared/2 || f.PrepareCalls > 2*prepared {
			t.Errorf("%+v: prepared by %v calls, want about %d", f, f.PrepareCalls, prepared)
		}
	}
	if len(families) == 0 {
		t.Error("no family was piloted")
	}
}
