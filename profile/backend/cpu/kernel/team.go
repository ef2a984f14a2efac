package kernel

import (
	"runtime"
	"sync/atomic"
)

// Team is a number of threads that run kernels together: the caller's goroutine and `size-1` helpers. Between two kernels
// the helpers stay awake for a while, as OpenMP's do, because waking a parked thread takes 50 us on a virtual machine:
// longer than many of the calls that are timed, and a step of a training loop calls the next kernel at once. They park
// when nothing comes.
//
// One call at a time; Close ends the helpers.
type Team struct {
	size    int
	do      func(thread int)
	round   atomic.Int64 // counts calls; a helper that sees a new value runs do
	running atomic.Int64 // helpers still in the current call
	ended   atomic.Bool
	helpers []*helper
}

type helper struct {
	asleep atomic.Bool
	wake   chan struct{} // holds one token at most
}

// awake is how many times a helper looks for work before it parks: about a millisecond, of which it gives the processor
// away to any other goroutine at every 16th look.
const (
	awake  = 1 << 16
	yields = 1 << 4
)

// NewTeam starts a team of `size` threads, at least 1. The process should have GOMAXPROCS of at least size.
func NewTeam(size int) *Team {
	if size < 1 {
		panic("kernel: a team has at least 1 thread")
	}
	t := &Team{size: size}
	for i := range size - 1 {
		h := &helper{wake: make(chan struct{}, 1)}
		t.helpers = append(t.helpers, h)
		go t.help(i, h)
	}
	return t
}

// Close ends the helpers.
func (t *Team) Close() {
	t.ended.Store(true)
	t.round.Add(1)
	t.rouse()
}

func (t *Team) rouse() {
	for _, h := range t.helpers {
		if h.asleep.Load() {
			select {
			case h.wake <- struct{}{}:
			default:
			}
		}
	}
}

// run calls do(0..size-1), one a thread, and returns when all are done.
func (t *Team) run(do func(thread int)) {
	t.do = do
	t.running.Store(int64(len(t.helpers)))
	t.round.Add(1)
	t.rouse()
	do(t.size - 1)
	for i := 1; t.running.Load() > 0; i++ {
		if i%yields == 0 {
			runtime.Gosched()
		}
	}
	t.do = nil
}

func (t *Team) help(thread int, h *helper) {
	for seen := int64(0); ; {
		t.await(seen, h)
		if t.ended.Load() {
			return
		}
		seen++
		t.do(thread)
		t.running.Add(-1)
	}
}

// await returns when there has been a call since the round that was seen last.
func (t *Team) await(seen int64, h *helper) {
	for i := 1; t.round.Load() == seen; i++ {
		switch {
		case i%awake == 0:
			// A call may come between the last look and the nap: the flag is
			// raised first, and the round looked at again after it.
			h.asleep.Store(true)
			if t.round.Load() == seen {
				<-h.wake
			}
			h.asleep.Store(false)
		case i%yields == 0:
			runtime.Gosched()
		}
	}
}
