package costmodel

import "github.com/evenkeel/evenkeel/internal/units"

// taskKind says which of a ring's tasks is meant.
type taskKind int8

const (
	taskPre taskKind = iota
	taskStep
	taskKV
	taskGrad
	taskPost
)

// taskID names a task of a ring: its kind, position and step.
type taskID struct {
	kind taskKind
	i, t int
}

// criticalPath calls visit for the tasks of a chain that begins at time zero
// and ends when the ring ends, from the last to the first, each starting at the
// instant the one before it ends. Their times add up to the ring's length.
func (r *ring) criticalPath(visit func(taskID)) {
	last := 0
	for i := range r.n {
		if r.last[i].end > r.last[last].end {
			last = i
		}
	}
	for at := (taskID{taskPost, last, 0}); ; at = r.cause(at) {
		visit(at)
		if at.kind == taskPre {
			return
		}
	}
}

// cause finds the task whose end let the given one start.
func (r *ring) cause(at taskID) taskID {
	i, t := at.i, at.t
	switch at.kind {
	case taskPost:
		if r.back && r.n > 1 && r.gradArrived(i, r.n) == r.last[i].start {
			return taskID{taskGrad, r.before(i), r.n - 1}
		}
		return r.streamFree(i, r.n-1)
	case taskStep:
		if r.compute[i*r.n+t].start == r.arrived(i, t) {
			return r.arrival(i, t)
		}
		return r.streamFree(i, t-1)
	case taskKV:
		h := r.kvHop[i*r.n+t]
		switch h.start {
		case h.ready:
			return r.arrival(i, t)
		case h.buffer:
			return r.roomMade(r.after(i), t+1-r.buffers, h.start)
		}
		return r.portFreed(i, h)
	}
	h := r.gradHop[i*r.n+t]
	switch h.start {
	case h.ready:
		return r.streamFree(i, t)
	case h.buffer:
		return taskID{taskGrad, r.after(i), t + 1 - r.buffers}
	}
	return r.portFreed(i, h)
}

// arrival is what brought step t's block to position i.
func (r *ring) arrival(i, t int) taskID {
	if t == 0 {
		return taskID{taskPre, i, 0}
	}
	return taskID{taskKV, r.before(i), t - 1}
}

// streamFree is what ended step t at position i: its kernel or, backward, the
// arrival of the gradient it adds to.
func (r *ring) streamFree(i, t int) taskID {
	if r.compute[i*r.n+t].end == r.added[i*r.n+t] {
		return taskID{taskStep, i, t}
	}
	return taskID{taskGrad, r.before(i), t - 1}
}

func (r *ring) roomMade(i, t int, at units.Seconds) taskID {
	if r.compute[i*r.n+t].end == at {
		return taskID{taskStep, i, t}
	}
	return taskID{taskKV, i, t}
}

func (r *ring) portFreed(i int, h task) taskID {
	if t := int(h.behind); t >= r.n {
		return taskID{taskGrad, i, t - r.n}
	}
	return taskID{taskKV, i, int(h.behind)}
}

// exposed is how much of a wait of position i for a message, from one time to
// another, the message spent on a wire or queued for a port; the rest of the
// wait it spent with a rank that had not computed or had no room. hops are
// those of the message's kind, and the message is that of step t at i.
func (r *ring) exposed(hops []task, i, t int, from, to units.Seconds) units.Seconds {
	var sum units.Seconds
	for t > 0 {
		i, t = r.before(i), t-1
		h := hops[i*r.n+t]
		// On the wire from start to end, queued for the port from buffer to start.
		sum += max(0, min(to, h.end)-max(from, h.buffer))
		if h.ready <= from {
			break
		}
	}
	return sum
}

// waits is how long the stream of position i stood still inside the ring, and
// how much of that was exposed communication.
func (r *ring) waits(i int) (all, exposed units.Seconds) {
	free := r.pre[i]
	wait := func(hops []task, t int, to units.Seconds) {
		if to > free {
			all += to - free
			exposed += r.exposed(hops, i, t, free, to)
		}
	}
	for t := range r.n {
		c := r.compute[i*r.n+t]
		wait(r.kvHop, t, c.start)
		free = c.end
		wait(r.gradHop, t, r.added[i*r.n+t])
		free = r.added[i*r.n+t]
	}
	wait(r.gradHop, r.n, r.last[i].start)
	return all, exposed
}
