package kernel

import (
	"sync"
	"sync/atomic"
)

// drain runs tasks 0..tasks-1 on `threads` workers that take the next number from a shared counter, so tasks *start* in
// order (longest first if the caller numbers them so) and no thread idles while one is left. newWorker is called once a
// worker and returns its task function, which owns the worker's scratch memory. The caller's goroutine is the last worker.
func drain(tasks, threads int, newWorker func() func(task int)) {
	var next atomic.Int64
	work := func() {
		do := newWorker()
		for t := next.Add(1) - 1; t < int64(tasks); t = next.Add(1) - 1 {
			do(int(t))
		}
	}
	onThreads(threads, func(int) { work() })
}

// overRows calls do on `threads` contiguous parts of [0, rows), part t being [t*rows/threads, (t+1)*rows/threads). Static
// parts, not a queue: rows of the bandwidth-bound ops cost the same, and one long stream a thread suits the prefetchers.
func overRows(rows, threads int, do func(lo, hi int)) {
	onThreads(threads, func(t int) {
		if lo, hi := t*rows/threads, (t+1)*rows/threads; lo < hi {
			do(lo, hi)
		}
	})
}

func onThreads(threads int, do func(thread int)) {
	if threads < 1 {
		panic("kernel: threads must be at least 1")
	}
	var others sync.WaitGroup
	for t := range threads - 1 {
		others.Go(func() { do(t) })
	}
	do(threads - 1)
	others.Wait()
}
