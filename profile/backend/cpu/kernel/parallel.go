package kernel

import "sync/atomic"

// drain runs tasks 0..tasks-1 on a team whose threads take the next number from a shared counter, so tasks *start* in
// order (longest first if the caller numbers them so) and no thread idles while one is left. newWorker is called once a
// worker and returns its task function, which owns the worker's scratch memory. The caller's goroutine is the last worker.
func drain(tasks int, team *Team, newWorker func() func(task int)) {
	var next atomic.Int64
	work := func() {
		do := newWorker()
		for t := next.Add(1) - 1; t < int64(tasks); t = next.Add(1) - 1 {
			do(int(t))
		}
	}
	team.run(func(int) { work() })
}

// overRows calls do on one contiguous part of [0, rows) a thread, part t of n being [t*rows/n, (t+1)*rows/n). Static
// parts, not a queue: rows of the bandwidth-bound ops cost the same, and one long stream a thread suits the prefetchers.
func overRows(rows int, team *Team, do func(lo, hi int)) {
	team.run(func(t int) {
		if lo, hi := t*rows/team.size, (t+1)*rows/team.size; lo < hi {
			do(lo, hi)
		}
	})
}
