package milp

import (
	goruntime "runtime"
	"time"

	"golang.org/x/sys/unix"
)

// The number of a thread's clock of processor time is made of the thread's own: its
// complement, followed by three bits that say "of one thread" and "of its schedule"
// (Linux, include/linux/posix-timers.h).
const (
	clockBits   = 3
	ofOneThread = 4
	ofSchedule  = 2
)

// threadSpent keeps the goroutine on its thread until release, and says what
// processor time that thread has had since; any thread may ask. Where the system
// keeps no such clock, it is the time on the wall.
func threadSpent() (spent func() time.Duration, release func()) {
	goruntime.LockOSThread()
	id := int32(^unix.Gettid()<<clockBits | ofOneThread | ofSchedule)
	read := func() (time.Duration, bool) {
		var t unix.Timespec
		err := unix.ClockGettime(id, &t)
		return time.Duration(t.Nano()), err == nil
	}
	begin, ok := read()
	if !ok {
		return wallSpent(), goruntime.UnlockOSThread
	}
	return func() time.Duration {
		now, _ := read() // as long as the thread lives
		return now - begin
	}, goruntime.UnlockOSThread
}
