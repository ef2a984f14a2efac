package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/evenkeel/evenkeel/profile"
	"github.com/evenkeel/evenkeel/profile/backend/sim"
	"github.com/vbauerster/mpb/v8"
)

// forgetful is a journal that keeps nothing.
type forgetful struct{}

func (forgetful) Append(any) error { return nil }

// reported is what a calibration of a made-up device reports.
func reported(t *testing.T, p *progress) {
	t.Helper()
	c, err := sim.Parse("1xbig")
	if err != nil {
		t.Fatal(err)
	}
	past, _ := profile.NewPast()
	cfg := profile.Config{Tool: "test", Budget: 20 * time.Second, Seed: 1, PointTimeout: time.Minute, Wall: time.Now}
	step := func(r profile.Progress) { p.last = time.Time{}; p.step(r) }
	if err := profile.Calibrate(t.Context(), sim.New(c), cfg, past, forgetful{}, step); err != nil {
		t.Fatal(err)
	}
}

func TestAReportFitsNoLongerThanItsShareOfTheTime(t *testing.T) {
	for _, c := range []struct {
		took time.Duration
		fits bool
	}{{time.Nanosecond, true}, {time.Hour, false}} {
		var out bytes.Buffer
		p := newProgress(&out, false, &profile.Inventory{})
		p.learnt, p.took, p.fitted = time.Now(), c.took, 100
		reported(t, p)
		if got := strings.Contains(out.String(), "median error so far"); got != c.fits {
			t.Errorf("the last fit took %s: fitted again: %t", c.took, got)
		}
		if !strings.Contains(out.String(), "s left") {
			t.Error("the time left is not told")
		}
	}
}

// A fit of 500 points took 4 s, the next one, of 2,600 with 9 s left, 49.
func TestAReportIsNotFittedAtTheEnd(t *testing.T) {
	now := time.Now()
	p := &progress{learnt: now.Add(-time.Hour), took: 4 * time.Second, fitted: 500}
	for _, c := range []struct {
		done int
		left time.Duration
		may  bool
	}{{2600, 9 * time.Second, false}, {600, 9 * time.Second, false}, {600, 10 * time.Minute, true}, {2600, 10 * time.Minute, false}, {2600, time.Hour, true}} {
		if p.done = c.done; p.mayLearn(now, c.left) != c.may {
			t.Errorf("%d points, %s left: may be fitted: %t", c.done, c.left, !c.may)
		}
	}
}

func TestTheTimeLeftOfABudgetThatNobodyAskedForIsNotTold(t *testing.T) {
	var out bytes.Buffer
	p := newProgress(&out, false, &profile.Inventory{})
	p.untimed = true
	reported(t, p)
	if !strings.Contains(out.String(), "measuring 1/") || strings.Contains(out.String(), "left") {
		t.Errorf("%.500s", out.String())
	}
}

// On a terminal the line beside the bar has the count, and the bar none of its own.
func TestABarShowsItsCountOnce(t *testing.T) {
	var out bytes.Buffer
	p := newProgress(&out, false, &profile.Inventory{})
	p.bars = mpb.New(mpb.WithOutput(&out), mpb.WithAutoRefresh(), mpb.WithWidth(40))
	p.step(profile.Progress{Phase: "measuring", Done: 29, Total: 80})
	p.bar.Abort(false) // draws it for the last time, and leaves it there
	p.bars.Wait()
	if line, _, _ := strings.Cut(out.String(), "\n"); strings.Count(line, "29/80") != 1 || !strings.Contains(line, "measuring 29/80") {
		t.Errorf("%q", out.String())
	}
}
