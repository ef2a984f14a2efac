package milp

import (
	"math"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"
)

// spin works for so long on the wall.
func spin(d time.Duration) {
	for begin := time.Now(); time.Since(begin) < d; {
	}
}

// A thread spends while it works, not while it waits; another thread may ask.
func TestThreadSpent(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the limit is time on the wall on " + runtime.GOOS)
	}
	spent, release := threadSpent()
	defer release()
	ask := func() time.Duration {
		answer := make(chan time.Duration)
		go func() { answer <- spent() }()
		return <-answer
	}
	time.Sleep(200 * time.Millisecond)
	if waited := ask(); waited > 100*time.Millisecond {
		t.Errorf("200ms of waiting count as %v", waited)
	}
	before := ask()
	begin := time.Now()
	for ask()-before < 50*time.Millisecond && time.Since(begin) < 30*time.Second {
		spin(5 * time.Millisecond)
	}
	worked := ask() - before
	if passed := time.Since(begin); worked < 50*time.Millisecond || worked > passed+10*time.Millisecond {
		t.Errorf("%v of work on the wall count as %v", passed, worked)
	}
}

// The watch waits for what is spent, however much time passes, and ends when told to.
func TestAfter(t *testing.T) {
	ticks := make(chan time.Duration)
	spent := func() time.Duration { return <-ticks }
	reached := make(chan struct{})
	stop := after(spent, 10*time.Millisecond, func() { close(reached) })
	for _, at := range []time.Duration{0, 0, 0, 9 * time.Millisecond} {
		ticks <- at
		select {
		case <-reached:
			t.Fatalf("reached after %v of 10ms", at)
		default:
		}
	}
	ticks <- 10 * time.Millisecond
	<-reached
	stop()
	stop = after(func() time.Duration { return 0 }, time.Hour, func() { t.Error("reached") })
	stop()
}

// A search ends at a cost that the caller says is enough, and is then the best.
func TestEnough(t *testing.T) {
	needEngine(t)
	m, best := knapsack(rand.New(rand.NewPCG(8, 8)), 60, 300)
	s, err := Solve(t.Context(), m, Options{Gap: 1e-9, Enough: best / 2})
	if err != nil || s.Status != Optimal || s.Objective > best/2 || !m.Feasible(s.X, 1e-9) {
		t.Errorf("%v of %v, %v: want a cost of %v or less", s.Status, s.Objective, err, best/2)
	}
	s, err = Solve(t.Context(), m, Options{Gap: 1e-9, Enough: 2 * best})
	if err != nil || s.Status != Optimal || math.Abs(s.Objective-best) > 1e-6 {
		t.Errorf("with a cost that none has: %v of %v, %v: want %v", s.Status, s.Objective, err, best)
	}
}
