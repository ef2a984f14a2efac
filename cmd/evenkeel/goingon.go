package main

import (
	"fmt"
	"sync"
	"time"

	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver"
)

// ticking says a line every few seconds, until its end.
type ticking struct {
	stop chan struct{}
	done sync.WaitGroup
}

func (t *ticking) begin(a *app, line func(after time.Duration) string) {
	t.stop = make(chan struct{})
	begin, tick := time.Now(), time.NewTicker(plainEvery)
	t.done.Go(func() {
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				a.note("%s", line(time.Since(begin)))
			case <-t.stop:
				return
			}
		}
	})
}

// end says no more.
func (t *ticking) end() {
	close(t.stop)
	t.done.Wait()
}

// fittingOn says every few seconds how far a fit is: of hundreds of thousands of points one
// law takes minutes.
type fittingOn struct {
	ticking
	mutex             sync.Mutex
	points, done, all int
}

func (a *app) fittingOn(points int) *fittingOn {
	f := &fittingOn{points: points}
	f.begin(a, f.line)
	return f
}

// report takes how many laws are done.
func (f *fittingOn) report(done, all int) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	f.done, f.all = done, all
}

// line is how far the fit is after some time.
func (f *fittingOn) line(after time.Duration) string {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	return fmt.Sprintf("fitting for %v; %d of %s of %s done", after.Round(time.Second), f.done, units.Count(f.all, "law"), units.Count(f.points, "point"))
}

// goingOn says every few seconds how far a search is: of thousands of devices it takes
// minutes, and one layout alone seconds.
type goingOn struct {
	ticking
	mutex   sync.Mutex
	last    solver.Progress
	setting string // that is planned, of several
}

func (a *app) goingOn() *goingOn {
	g := &goingOn{}
	g.begin(a, g.line)
	return g
}

// report takes what a strategy found.
func (g *goingOn) report(p solver.Progress) {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	g.last = p
}

// with says in which setting is planned from now on.
func (g *goingOn) with(setting string) {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	g.last, g.setting = solver.Progress{}, setting
}

// line is how far the search is after some time.
func (g *goingOn) line(after time.Duration) string {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	text := fmt.Sprintf("planning for %v", after.Round(time.Second))
	if g.setting != "" {
		text += ", now with " + g.setting
	}
	if g.last.Best > 0 {
		text += fmt.Sprintf("; %s came to %v after %s; Ctrl-C takes the best so far", g.last.Strategy, g.last.Best, units.Count(g.last.Evaluated, "layout"))
	}
	return text
}
