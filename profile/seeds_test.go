package profile_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
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

// journalOf opens a recording to go on with, and what it holds so far.
func journalOf(t *testing.T, path string) (*doc.Journal, *profile.Past) {
	t.Helper()
	j, err := doc.OpenJournal(path)
	if err != nil {
		t.Fatal(err)
	}
	past, _ := profile.NewPast()
	if j.Size() > 0 {
		past = pastOf(t, path)
	}
	return j, past
}

func (b slowGauge) run(t *testing.T, path string, cfg profile.Config) *profile.Past {
	t.Helper()
	j, past := journalOf(t, path)
	defer j.Close()
	if err := profile.Calibrate(t.Context(), b, cfg, past, j, onwards(t)); err != nil {
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
	past := slowly(t, 8, 4*time.Second).run(t, path, config(20*time.Second))
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
	past := b.run(t, path, config(budget))
	if !past.Starved() || past.Complete(budget) || past.Ended != profile.EndBudget || past.Scheduled() != 0 {
		t.Fatalf("starved %v, complete %v, ended %q, %d points", past.Starved(), past.Complete(budget), past.Ended, past.Scheduled())
	}
	if s := past.Suffices(); s < 2*budget || s > 10*budget {
		t.Errorf("%s would suffice", s)
	}
	past = b.run(t, path, config(budget))
	if past.Starved() || past.Scheduled() < 100 {
		t.Errorf("gone on with: %d of %d points", past.Scheduled(), len(past.Schedule.Points))
	}
}

// Checks on busy cores may leave rounds no time for a first choice: the same budget chooses
// then and measures, before the rest of what is measured once.
func TestABudgetWithoutAChoiceIsNoEnd(t *testing.T) {
	const budget = 20 * time.Second
	path := filepath.Join(t.TempDir(), "x.rec.jsonl")
	cfg, _ := inRounds(budget, 0)
	b := slowly(t, 8, 4*time.Second)
	b.run(t, path, cfg)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.SplitAfter(string(data), "\n")
	var s profile.Schedule
	if err := json.Unmarshal([]byte(lines[1]), &s); err != nil {
		t.Fatal(err)
	}
	s.Points, s.Canaries = []profile.Spot{}, []int{}
	none, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	for _, reason := range []profile.EndReason{profile.EndBudget, profile.EndDone} {
		text := fmt.Sprintf("%s%s\n{\"t\":\"end\",\"at\":\"2026-01-01T00:00:20Z\",\"reason\":%q,\"elapsed_s\":20}\n", lines[0], none, reason)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if past := pastOf(t, path); !past.Starved() || past.Complete(budget) || past.Suffices() < 2*budget {
			t.Errorf("%s: starved %v, complete %v, %s would suffice", reason, past.Starved(), past.Complete(budget), past.Suffices())
		}
		if past := b.run(t, path, cfg); past.Scheduled() < 100 {
			t.Errorf("%s: gone on with: %d points", reason, past.Scheduled())
		}
	}
}

// What earlier runs took of a budget is not given again.
func TestARunThatGoesOnHasWhatIsLeftOfTheBudget(t *testing.T) {
	const budget = 20 * time.Second
	path := filepath.Join(t.TempDir(), "x.rec.jsonl")
	b := slowly(t, 20, 2*time.Second)
	if past := b.run(t, path, config(budget)); past.Ended != profile.EndBudget {
		t.Fatalf("ended: %s", past.Ended)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.SplitAfter(string(data), "\n")
	if err := os.WriteFile(path, []byte(strings.Join(lines[:len(lines)/2], "")), 0o644); err != nil {
		t.Fatal(err)
	}
	begun := pastOf(t, path).Spent
	past := b.run(t, path, config(budget))
	if more := past.Spent - begun; begun < budget/4 || more < budget/4 || past.Spent > budget+2*time.Second {
		t.Errorf("of %s, %s at first and %s more", budget, begun, more)
	}
}
