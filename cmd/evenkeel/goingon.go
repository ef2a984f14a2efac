package main

import (
	"fmt"
	"sync"
	"time"

	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver"
)

// goingOn says every few seconds how far a search is: of thousands of devices it takes
// minutes, and one layout alone seconds.
type goingOn struct {
	a     *app
	mutex sync.Mutex
	last  solver.Progress
	stop  chan struct{}
	done  sync.WaitGroup
}

func (a *app) goingOn() *goingOn {
	g := &goingOn{a: a, stop: make(chan struct{})}
	begin, tick := time.Now(), time.NewTicker(plainEvery)
	g.done.Go(func() {
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				a.note("%s", g.line(time.Since(begin)))
			case <-g.stop:
				return
			}
		}
	})
	return g
}

// report takes what a strategy found.
func (g *goingOn) report(p solver.Progress) {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	g.last = p
}

// line is how far the search is after some time.
func (g *goingOn) line(after time.Duration) string {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	text := fmt.Sprintf("planning for %v", after.Round(time.Second))
	if g.last.Best > 0 {
		text += fmt.Sprintf("; %s came to %v after %s; Ctrl-C takes the best so far", g.last.Strategy, g.last.Best, units.Count(g.last.Evaluated, "layout"))
	}
	return text
}

// end says no more.
func (g *goingOn) end() {
	close(g.stop)
	g.done.Wait()
}
