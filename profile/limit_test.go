package profile_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/profile"
	"github.com/evenkeel/evenkeel/profile/backend/sim"
)

// waiting is a simulated cluster whose calls really take their time, by the clock of the
// bubble that the test is in, and whose workers hang, die and start as a test says.
type waiting struct {
	*sim.Backend
	strikes func(m moment) fault
	starts  func(nth int) time.Duration  // how long the nth start takes
	hot     func(nth int) bool           // whether the nth batch was throttled
	takes   func(m moment) units.Seconds // how long each call takes; 0: as simulated
	peers   time.Duration
	count   moment // of visits and batches so far
	started int
}

// moment is where in a calibration a worker is asked something.
type moment struct {
	on    string
	place string // of a peer
	shape op.Shape
	visit int // the how manyth of the run
	batch int // of the visit: 0 while it prepares, 1 for the first call
}

type fault int

const (
	none fault = iota
	hangs
	dies
)

// bubble is the clock of the test's bubble.
type bubble struct{}

func (bubble) Now() time.Time { return time.Now() }
func (bubble) Sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (b *waiting) Clock() profile.Clock { return bubble{} }

func (b *waiting) Discover(ctx context.Context) (*profile.Inventory, error) {
	inv, err := b.Backend.Discover(ctx)
	inv.PeersWait = b.peers
	return inv, err
}

func (b *waiting) Open(ctx context.Context, on, place string) (profile.Executor, error) {
	x, err := b.Backend.Open(ctx, on, place)
	return &waitingExecutor{Executor: x, b: b, on: on, name: place}, err
}

type waitingExecutor struct {
	profile.Executor
	b    *waiting
	on   string
	name string
	runs bool
	at   moment
}

func (x *waitingExecutor) Ready(ctx context.Context) error {
	if x.runs || x.b.starts == nil {
		return nil
	}
	x.runs = true
	x.b.started++
	return bubble{}.Sleep(ctx, x.b.starts(x.b.started))
}

func (x *waitingExecutor) Prepare(ctx context.Context, s op.Shape, seed uint64) error {
	x.b.count.visit++
	x.at = moment{on: x.on, place: x.name, shape: s, visit: x.b.count.visit}
	if err := x.strike(ctx); err != nil {
		return err
	}
	time.Sleep(20 * time.Millisecond) // of any shape
	return x.Executor.Prepare(ctx, s, seed)
}

func (x *waitingExecutor) strike(ctx context.Context) error {
	if x.b.strikes == nil {
		return nil
	}
	switch x.b.strikes(x.at) {
	case hangs:
		<-ctx.Done()
		return &profile.OpError{Class: profile.Hung, Lost: true, Err: errors.New("no answer before the deadline")}
	case dies:
		return &profile.OpError{Class: profile.Crashed, Lost: true, Err: errors.New("it died")}
	}
	return nil
}

func (x *waitingExecutor) Run(ctx context.Context, inner, n int) (profile.Batch, error) {
	x.at.batch++
	x.b.count.batch++
	if err := x.strike(ctx); err != nil {
		return profile.Batch{}, err
	}
	b, err := x.Executor.Run(ctx, inner, n)
	if x.b.takes != nil && x.b.takes(x.at) != 0 {
		for i := range b.Ranks[0] {
			b.Ranks[0][i] = x.b.takes(x.at)
		}
	}
	var total float64
	for _, t := range b.Slowest() {
		total += float64(t) * float64(inner)
	}
	if err == nil && (bubble{}).Sleep(ctx, time.Duration(total*1e9)) != nil {
		err = &profile.OpError{Class: profile.Hung, Lost: true, Err: errors.New("no answer before the deadline")}
	}
	b.Guard.Throttled = x.b.hot != nil && x.b.hot(x.b.count.batch)
	return b, err
}

// measured calibrates into a file, going on with what it holds, and says how long that took.
func (b *waiting) measured(t *testing.T, path string, cfg profile.Config) time.Duration {
	t.Helper()
	took, err := b.tried(t, path, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return took
}

func (b *waiting) tried(t *testing.T, path string, cfg profile.Config) (time.Duration, error) {
	t.Helper()
	j, past := journalOf(t, path)
	defer j.Close()
	start := time.Now()
	err := profile.Calibrate(t.Context(), b, cfg, past, j, silent)
	return time.Since(start), err
}

func waitingFor(t *testing.T, spec string) *waiting {
	t.Helper()
	c, err := sim.Parse(spec)
	if err != nil {
		t.Fatal(err)
	}
	return &waiting{Backend: sim.New(c)}
}

// small is a budget with calibrate's time for a point.
func small(budget time.Duration, only ...op.Kind) profile.Config {
	cfg := config(budget)
	cfg.PointTimeout, cfg.Only = 2*time.Minute, only
	return cfg
}

func failedOf(c content) []*profile.Point {
	return slices.DeleteFunc(slices.Clone(c.points), func(p *profile.Point) bool { return p.OK() })
}

// A worker that hangs is not waited for until the end of a point's time, which is twice what
// most budgets are: 30 s where nothing is known of the answer, 10 s where others of the family tell, and further calls.
func TestAHangOverrunsASmallBudgetByLittle(t *testing.T) {
	for name, c := range map[string]struct {
		budget  time.Duration
		visit   int // from which on norm hangs, once; 1 to 3 are its first pilots
		batch   int
		class   profile.Class
		overrun time.Duration
	}{
		"a pilot prepares":        {10 * time.Second, 1, 0, profile.Cut, 30 * time.Second},
		"a pilot calls":           {10 * time.Second, 1, 1, profile.Cut, 30 * time.Second},
		"a pilot calls on":        {10 * time.Second, 1, 2, profile.Hung, 10 * time.Second},
		"a point prepares":        {10 * time.Second, 40, 0, profile.Cut, 10 * time.Second},
		"a point calls":           {10 * time.Second, 40, 1, profile.Cut, 10 * time.Second},
		"a point is sampled":      {10 * time.Second, 40, 3, profile.Hung, 10 * time.Second},
		"in a minute, a pilot":    {time.Minute, 1, 0, profile.Cut, 30 * time.Second},
		"in a minute, a sample":   {time.Minute, 60, 3, profile.Hung, 10 * time.Second},
		"in ten minutes, a pilot": {10 * time.Minute, 1, 0, profile.Hung, 2 * time.Minute}, // as long as a point may take
		"in ten minutes, a call":  {10 * time.Minute, 60, 1, profile.Cut, 40 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := waitingFor(t, "1xbig")
				struck := false
				b.strikes = func(m moment) fault {
					if m.shape.Kind() != op.KindNorm || m.visit < c.visit || m.batch != c.batch || struck {
						return none
					}
					struck = true
					return hangs
				}
				path := filepath.Join(t.TempDir(), "x")
				cfg := small(c.budget, op.KindNorm, op.KindGEMM, op.KindSwiGLU)
				if c.budget > time.Minute {
					cfg.Points = 60
				}
				took := b.measured(t, path, cfg)
				if limit := c.budget + c.overrun + 2*time.Second; took > limit {
					t.Errorf("took %v, want %v at most", took, limit)
				}
				got := read(t, path)
				if got.Points-got.Failed < 20 {
					t.Errorf("%+v", got.Tally)
				}
				failed := failedOf(got)
				if len(failed) != 1 || failed[0].Op != op.KindNorm || failed[0].Class != c.class {
					t.Fatalf("failed: %+v", failed)
				}
				if late := fmt.Sprintf("ended after %s without an answer, for which a budget of %s has no more time", c.overrun, c.budget); c.class == profile.Cut && !strings.Contains(failed[0].Error, late) {
					t.Errorf("%q", failed[0].Error)
				}
			})
		})
	}
}

// Who asks for points of less than half a minute is told of hangs after that time, as ever; a
// start, which is none of a point's time, has half a minute all the same.
func TestAShortPointTimeoutEndsInHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := waitingFor(t, "1xbig")
		b.starts = func(nth int) time.Duration { return time.Duration(nth-1) * 20 * time.Second } // the first was there
		b.strikes = hangsAt(1)
		path := filepath.Join(t.TempDir(), "x")
		cfg := small(20*time.Second, op.KindNorm, op.KindGEMM)
		cfg.PointTimeout = 15 * time.Second
		b.measured(t, path, cfg)
		if failed := failedOf(read(t, path)); len(failed) != 1 || failed[0].Class != profile.Hung || b.started != 2 {
			t.Errorf("%d starts, failed: %+v", b.started, failed)
		}
	})
}

// A GPU that is only throttled answers, and is let cool for 26 s: not even a point's time of
// less than that makes its worker a dead one.
func TestAThrottledDeviceIsNotDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := waitingFor(t, "1xbig")
		b.hot = func(nth int) bool { return nth > 60 }
		b.starts = func(int) time.Duration { return time.Second }
		path := filepath.Join(t.TempDir(), "x")
		cfg := small(10*time.Minute, op.KindNorm, op.KindGEMM)
		cfg.PointTimeout = 15 * time.Second
		_, err := b.tried(t, path, cfg)
		if err != nil && !strings.Contains(err.Error(), "throttled") {
			t.Error(err)
		}
		throttled := 0
		for _, p := range read(t, path).points {
			if p.Class == profile.Throttled {
				throttled++
			} else if !p.OK() {
				t.Errorf("%s: class %q: %s", p.Raw, p.Class, p.Error)
			}
		}
		if throttled < 10 || b.started != 1 {
			t.Errorf("%d points of class throttled, %d workers started; want many, and one", throttled, b.started)
		}
	})
}

// Calls of a throttled GPU, or of ranks that wait for a core, may take many times as long as
// the first: what is still answered is no hang.
func TestSlowCallsAreNoHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := waitingFor(t, "1xbig")
		slow := 0
		b.strikes = func(m moment) fault {
			if m.batch == 3 && slow < 20 {
				slow++
				time.Sleep(9 * time.Second) // of calls that take milliseconds
			}
			return none
		}
		path := filepath.Join(t.TempDir(), "x")
		b.measured(t, path, small(4*time.Minute, op.KindNorm, op.KindGEMM))
		if got := read(t, path); got.Failed > 0 || slow < 20 {
			t.Errorf("%+v after %d slow batches", got.Tally, slow)
		}
	})
}

// The first call's time is not believed, and may be no number: then nothing is known of further
// calls, which are waited for as long as the point has time.
func TestATimeThatIsNoNumberIsNoLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := waitingFor(t, "1xbig")
		b.takes = func(m moment) units.Seconds {
			switch {
			case m.visit == 20 && m.batch == 1:
				return units.Seconds(math.NaN())
			case m.visit == 20 && m.batch == 2:
				return 20 // two of them, longer than any whose time is known are waited for
			}
			return 0
		}
		path := filepath.Join(t.TempDir(), "x")
		cfg := small(5*time.Minute, op.KindNorm)
		cfg.Points = 30
		b.measured(t, path, cfg)
		if failed := failedOf(read(t, path)); len(failed) > 0 {
			t.Errorf("failed: %+v", failed)
		}
	})
}

// A point has its time in all, however soon each answer comes: three calls to warm up and one
// more, of 4 s each, are too many for 15 s.
func TestAPointHasItsTimeInAll(t *testing.T) {
	for call, want := range map[units.Seconds]profile.Class{4: profile.Hung, 3: ""} {
		synctest.Test(t, func(t *testing.T) {
			b := waitingFor(t, "1xbig")
			b.takes = func(m moment) units.Seconds {
				if m.visit == 20 {
					return call
				}
				return 0
			}
			path := filepath.Join(t.TempDir(), "x")
			cfg := small(5*time.Minute, op.KindNorm)
			cfg.PointTimeout, cfg.Points = 15*time.Second, 30
			b.measured(t, path, cfg)
			failed := failedOf(read(t, path))
			if (len(failed) == 1) != (want != "") || want != "" && failed[0].Class != want {
				t.Errorf("calls of %v s: %+v", call, failed)
			}
		})
	}
}

// What a budget had no time to wait for counts for nothing in what ends a run, and where there
// is more it comes after all else, second visits and rounds too: it may hang again.
func TestWhatWasCutOffComesLast(t *testing.T) {
	inTurn := func(budget time.Duration) profile.Config { c, _ := inRounds(budget, 0); return c }
	few := func(budget time.Duration) profile.Config { c := config(budget); c.Points = 15; return c }
	for name, c := range map[string]struct {
		config func(time.Duration) profile.Config
		budget time.Duration
	}{
		"spread": {config, 4 * time.Minute}, "few, all done but those": {few, 4 * time.Minute}, "rounds are left": {inTurn, 40 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "x")
				cfg := c.config(c.budget)
				cfg.PointTimeout, cfg.Only = 2*time.Minute, []op.Kind{op.KindNorm, op.KindGEMM}
				b := waitingFor(t, "1xbig")
				cut := map[string]bool{}
				b.strikes = func(m moment) fault {
					if m.visit < 20 || m.batch > 0 || len(cut) == 3 {
						return none
					}
					cut[profile.NewSpot(m.on, m.shape).Key("")] = true // three in a row
					return hangs
				}
				b.measured(t, path, cfg)
				before := read(t, path)
				if before.Failed != 3 || before.end != profile.EndBudget {
					t.Fatalf("%+v, ended %q", before.Tally, before.end)
				}
				if past := pastOf(t, path); past.CutOff() != 3 || past.Scheduled() != before.Points-3 || past.Complete(2*c.budget) || !past.Complete(c.budget) {
					t.Errorf("%d of %d points count as visited", past.Scheduled(), before.Points)
				}
				sound := waitingFor(t, "1xbig")
				var asked []string
				sound.strikes = func(m moment) fault {
					if m.batch == 0 {
						asked = append(asked, profile.NewSpot(m.on, m.shape).Key(""))
					}
					return none
				}
				cfg.Budget = 30 * time.Minute
				sound.measured(t, path, cfg)
				after := read(t, path)
				for key := range cut {
					if i := slices.Index(asked, key); i < len(asked)-3-2 { // canaries may come between
						t.Errorf("a point that was cut off came %d visits before the end", len(asked)-i)
					}
				}
				if after.Points <= before.Points && cfg.Chooser != nil || after.Again < len(after.schedule.Points)-2 || after.end != profile.EndDone {
					t.Errorf("before %+v, after %+v, ended %q", before.Tally, after.Tally, after.end)
				}
				if past := pastOf(t, path); past.CutOff() != 0 || len(past.Cut) != 0 || past.Scheduled() != len(past.Schedule.Points) {
					t.Errorf("still cut off: %v", past.Cut)
				}
			})
		})
	}
}

// A worker in the place of one that died is waited for as long as those before suggest.
func TestARestartHasALimit(t *testing.T) {
	for name, c := range map[string]struct {
		first, next time.Duration
		cut         bool
	}{
		"a start that hangs":        {time.Second, 90 * time.Second, true},
		"one as slow as the others": {25 * time.Second, 90 * time.Second, false},
		"a first one":               {100 * time.Second, time.Second, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := waitingFor(t, "1xbig")
				b.starts = func(nth int) time.Duration {
					if nth == 2 {
						return c.next
					}
					return c.first
				}
				died := false
				b.strikes = func(m moment) fault {
					if m.visit < 40 || died {
						return none
					}
					died = true
					return dies
				}
				path := filepath.Join(t.TempDir(), "x")
				took := b.measured(t, path, small(10*time.Second, op.KindNorm, op.KindGEMM))
				got := read(t, path)
				cut := slices.ContainsFunc(got.points, func(p *profile.Point) bool { return p.Class == profile.Cut })
				if cut != c.cut || c.cut && (took > 45*time.Second || got.end != profile.EndBudget) {
					t.Errorf("cut off: %v, took %v, ended %q", cut, took, got.end)
				}
			})
		})
	}
}

// Ranks that wait for one that never comes tell which it was when they give up: they are
// waited for so long, at further calls too.
func TestPeersAreWaitedForUntilTheyGiveUp(t *testing.T) {
	for batch, want := range map[int]profile.Class{0: profile.Cut, 3: profile.Hung} {
		synctest.Test(t, func(t *testing.T) {
			b := waitingFor(t, "2xbig")
			b.peers = time.Minute
			struck := false
			b.strikes = func(m moment) fault {
				if m.shape.Kind() != op.KindAllReduce || m.batch != batch || struck {
					return none
				}
				struck = true
				return hangs
			}
			path := filepath.Join(t.TempDir(), "x")
			took := b.measured(t, path, small(10*time.Second, op.KindNorm, op.KindAllReduce))
			failed := failedOf(read(t, path))
			if len(failed) != 1 || failed[0].Class != want || took < 75*time.Second || took > 90*time.Second {
				t.Errorf("batch %d: took %v, failed %+v", batch, took, failed)
			}
			if late := "after 1m15s without an answer"; want == profile.Cut && !strings.Contains(failed[0].Error, late) {
				t.Errorf("%q", failed[0].Error)
			}
		})
	}
}

// hangsAt has the first answer of a visit's first batch never come.
func hangsAt(visit int) func(moment) fault {
	return func(m moment) fault {
		if m.visit == visit && m.batch == 0 {
			return hangs
		}
		return none
	}
}

// A hang after a family's first pilot says what the family costs less well, and is no failure
// of the shape: the points are left to tell.
func TestALaterPilotThatIsCutOffIsNoFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := waitingFor(t, "1xbig")
		b.strikes = hangsAt(2)
		path := filepath.Join(t.TempDir(), "x")
		b.measured(t, path, small(time.Minute, op.KindNorm))
		if got := read(t, path); got.Failed > 0 || got.Points < 20 {
			t.Errorf("%+v", got.Tally)
		}
	})
}

// A family whose pilot was cut off has no points that a longer budget could go on with.
func TestAPilotThatIsCutOffIsNoEndOfTheBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := waitingFor(t, "1xbig")
		b.strikes = hangsAt(1)
		path := filepath.Join(t.TempDir(), "x")
		cfg := small(2*time.Minute, op.KindNorm, op.KindGEMM)
		cfg.Points = 15
		b.measured(t, path, cfg)
		if got := read(t, path); got.Failed != 1 || got.end != profile.EndDone || pastOf(t, path).CutOff() != 0 {
			t.Errorf("%+v, ended %q", got.Tally, got.end)
		}
	})
}

// Where nothing but points that were cut off is there, the same budget goes on, with others.
func TestABudgetThatWasWaitedAwayIsNoEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "x")
		b := waitingFor(t, "1xbig")
		var cut op.Shape
		b.strikes = func(m moment) fault {
			if m.visit > 3 && m.batch == 0 { // after the pilots of the one family
				cut = m.shape
				return hangs
			}
			return none
		}
		cfg := small(10*time.Second, op.KindNorm)
		b.measured(t, path, cfg)
		past := pastOf(t, path)
		if !past.Starved() || past.Complete(cfg.Budget) || past.Scheduled() != 0 || past.Failed != 1 {
			t.Fatalf("starved %v, complete %v, %d visited, %d failed", past.Starved(), past.Complete(cfg.Budget), past.Scheduled(), past.Failed)
		}
		first := op.Shape(nil)
		sound := waitingFor(t, "1xbig")
		sound.strikes = func(m moment) fault {
			if first == nil {
				first = m.shape
			}
			return none
		}
		sound.measured(t, path, cfg)
		if past := pastOf(t, path); past.Starved() || past.Scheduled() < 20 || first == cut {
			t.Errorf("%d visited, the first %v, cut off was %v", past.Scheduled(), first, cut)
		}
	})
}

// Points of other devices of a type that were cut off have their turn, too, after the others.
func TestAPeerThatWasCutOffComesLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "x")
		b := waitingFor(t, "3xbig")
		struck := false
		b.strikes = func(m moment) fault {
			if m.place == "n0/g1" && m.batch == 0 && !struck {
				struck = true
				return hangs
			}
			return none
		}
		cfg := small(40*time.Second, op.KindNorm, op.KindGEMM)
		b.measured(t, path, cfg)
		if past := pastOf(t, path); len(past.Cut) != 1 || past.Ended != profile.EndBudget {
			t.Fatalf("cut off %v, ended %q", past.Cut, past.Ended)
		}
		cfg.Budget = 8 * time.Minute
		sound := waitingFor(t, "3xbig")
		asked, last := 0, 0
		sound.strikes = func(m moment) fault {
			if asked++; m.batch == 0 && m.place == "n0/g1" {
				last = asked
			}
			return none
		}
		sound.measured(t, path, cfg)
		if past := pastOf(t, path); len(past.Cut) != 0 || past.Ended != profile.EndDone || last < asked*9/10 || asked < 100 {
			t.Errorf("cut off %v, ended %q, asked the %dth of %d times", past.Cut, past.Ended, last, asked)
		}
	})
}
