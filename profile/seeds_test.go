package profile_test

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/profile"
	"github.com/evenkeel/evenkeel/profile/backend/sim"
)

// slowGauge is a backend with memory to look at, each look of which takes long, as where
// others use the cores.
type slowGauge struct {
	*sim.Backend
	looks int
	each  time.Duration
}

func (b slowGauge) Discover(ctx context.Context) (*profile.Inventory, error) {
	inv, err := b.Backend.Discover(ctx)
	for i := range b.looks {
		inv.Once = append(inv.Once, profile.NewSpot(inv.Devices[0].Name, op.MemLayer{Layer: profile.LayerOf(1<<(10+i), 4, profile.Extent{HeadDims: []int{64}, DType: op.F32})}))
	}
	return inv, err
}

func (b slowGauge) Open(ctx context.Context, on, place string) (profile.Executor, error) {
	x, err := b.Backend.Open(ctx, on, place)
	return gauging{x, b}, err
}

type gauging struct {
	profile.Executor
	backend slowGauge
}

func (g gauging) Prepare(ctx context.Context, s op.Shape, seed uint64) error {
	if s.Kind() == op.KindMemLayer {
		return nil
	}
	return g.Executor.Prepare(ctx, s, seed)
}

func (g gauging) Gauge(ctx context.Context) (float64, error) {
	return 1 << 20, g.backend.Clock().Sleep(ctx, g.backend.each)
}

func (b slowGauge) run(t *testing.T, path string, budget time.Duration) *profile.Past {
	t.Helper()
	j, err := doc.OpenJournal(path)
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	past, _ := profile.NewPast()
	if j.Size() > 0 {
		past = pastOf(t, path)
	}
	if err := profile.Calibrate(t.Context(), b, config(budget), past, j, onwards(t)); err != nil {
		t.Fatal(err)
	}
	return pastOf(t, path)
}

// onwards hears progress, which never goes back.
func onwards(t *testing.T) func(profile.Progress) {
	done := 0
	return func(p profile.Progress) {
		if p.Phase == "measuring" && p.Total > 0 {
			if p.Done < done {
				t.Errorf("%d of %d are done after %d were", p.Done, p.Total, done)
			}
			done = p.Done
		}
	}
}

func slowly(t *testing.T, looks int, each time.Duration) slowGauge {
	t.Helper()
	spec, err := sim.Parse("1xbig")
	if err != nil {
		t.Fatal(err)
	}
	return slowGauge{sim.New(spec), looks, each}
}

// What is measured once must not leave laws without points: of a budget of 20 s eight looks
// would take 32. It comes first as far as a quarter goes, and the rest behind the seeds.
func TestWhatIsMeasuredOnceLeavesTimeForLaws(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.rec.jsonl")
	past := slowly(t, 8, 4*time.Second).run(t, path, 20*time.Second)
	points, looks := map[string]int{}, 0
	for i, p := range read(t, path).points {
		if p.Op == op.KindMemLayer {
			if looks++; i > 2 && looks <= 2 {
				t.Errorf("look %d came after %d others", looks, i)
			}
			continue
		}
		points[string(p.Op)]++
	}
	for kind, n := range points {
		if n < 10 { // fewest
			t.Errorf("%s: %d points", kind, n)
		}
	}
	if looks < 2 || looks == 8 || len(points) < 10 || past.Starved() {
		t.Errorf("%d looks, points %v, starved %v", looks, points, past.Starved())
	}
}

// A budget that one look alone used up is no end: it says so, and the same budget goes on.
func TestABudgetSpentBeforeAnyLawIsNoEnd(t *testing.T) {
	const budget = 20 * time.Second
	path := filepath.Join(t.TempDir(), "x.rec.jsonl")
	b := slowly(t, 1, time.Minute)
	past := b.run(t, path, budget)
	if !past.Starved() || past.Complete(budget) || past.Ended != profile.EndBudget || past.Scheduled() != 0 {
		t.Fatalf("starved %v, complete %v, ended %q, %d points", past.Starved(), past.Complete(budget), past.Ended, past.Scheduled())
	}
	if s := past.Suffices(); s < 2*budget || s > 10*budget {
		t.Errorf("%s would suffice", s)
	}
	past = b.run(t, path, budget)
	if past.Starved() || past.Scheduled() < 100 {
		t.Errorf("gone on with: %d of %d points", past.Scheduled(), len(past.Schedule.Points))
	}
}
