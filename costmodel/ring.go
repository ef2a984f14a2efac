package costmodel

import (
	"math"

	"github.com/evenkeel/evenkeel/internal/units"
)

// ring simulates one attention ring, event by event. Positions 0 to n-1 are
// places in the ring; position i sends to i+1 mod n. At its step t position i
// works with block (i-t) mod n, the keys and values of the position t places
// before it; step 0 is its own.
//
//   - The compute stream takes the steps in order, each when its block has
//     arrived. Transfers never wait for the stream, only for buffers.
//   - A block is sent on as soon as it has fully arrived, the egress port is
//     free and the next position has a buffer; a buffer is free again when its
//     position has both computed with the block and sent it on.
//   - Backward, the float32 gradient of a block follows it. Position i adds its
//     share when step t has computed and the gradient has arrived from i-1 (the
//     stream waits for it, as ring attention's public implementations do), then
//     sends it on; after n hops it is home, where it has a place of its own.
//     Both kinds of message share the egress port, first come first served,
//     keys and values first if they come together.
//
// Egress of i and ingress of i+1 are only ever used together, so one port
// stands for both.
type ring struct {
	n       int
	buffers int
	back    bool            // gradients travel
	pre     []units.Seconds // [i]: work before the ring
	post    []units.Seconds // [i]: work after it
	work    []units.Seconds // [i*n+t]: computing step t
	kv      []units.Seconds // [i*n+t]: sending step t's block from i to i+1; t < n-1
	grad    []units.Seconds // [i*n+t]: sending its gradient; t < n

	ringTimes
}

// ringTimes is what a run finds out.
type ringTimes struct {
	length  units.Seconds // when the last position is done
	compute []task        // [i*n+t]
	added   []units.Seconds
	kvHop   []task
	gradHop []task
	last    []task // [i]: the work after the ring
}

// task is one use of a resource. ready is when its data were there, buffer when
// there was also room for them, start when the resource was free as well.
type task struct {
	ready, buffer, start, end units.Seconds
	// behind is the message that had the port before this one: its step, plus n
	// if it was a gradient, or -1.
	behind int32
}

// never marks what has not happened yet.
var never = units.Seconds(math.Inf(1))

// position is the state of one place of the ring during a run.
type position struct {
	step      int  // the compute step in progress or next
	computing bool // the stream is in a kernel
	adding    bool // the kernel is done, its gradient's arrival is not
	finishing bool
	sending   bool
	nextKV    int
	nextGrad  int
	sent      int32 // the last message, as task.behind
}

type eventKind int8

const (
	preDone eventKind = iota
	stepDone
	kvDone
	gradDone
	postDone
)

type event struct {
	at   units.Seconds
	pos  int32
	step int32
	kind eventKind
}

// run fills ringTimes. Its decisions depend on nothing but times and places, so
// renaming ranks changes nothing: all events of one instant are applied before
// anything starts at it.
func (r *ring) run() {
	s := ringRun{ring: r, pos: make([]position, r.n), touched: make([]bool, r.n)}
	r.reset()
	for i := range r.n {
		s.push(event{at: r.pre[i], pos: int32(i), kind: preDone})
		s.pos[i].step, s.pos[i].sent = -1, -1
	}
	for len(s.queue) > 0 {
		now := s.queue[0].at
		for len(s.queue) > 0 && s.queue[0].at == now {
			s.apply(s.pop())
		}
		for _, i := range s.awake {
			s.touched[i] = false
			s.startCompute(i, now)
			s.startSend(i, now)
		}
		s.awake = s.awake[:0]
	}
	for i := range r.n {
		if r.last[i].end == never {
			panic("costmodel: the ring has come to a standstill") // unreachable with two buffers
		}
		r.length = max(r.length, r.last[i].end)
	}
}

func (r *ring) reset() {
	cells := r.n * r.n
	r.length = 0
	r.compute, r.kvHop, r.gradHop = clearTasks(r.compute, cells), clearTasks(r.kvHop, cells), clearTasks(r.gradHop, cells)
	r.last = clearTasks(r.last, r.n)
	if len(r.added) != cells {
		r.added = make([]units.Seconds, cells)
	}
	for c := range r.added {
		r.added[c] = never
	}
}

func clearTasks(t []task, n int) []task {
	if len(t) != n {
		t = make([]task, n)
	}
	for i := range t {
		t[i] = task{never, never, never, never, -1}
	}
	return t
}

// before and after are the neighbours of position i.
func (r *ring) before(i int) int { return (i + r.n - 1) % r.n }
func (r *ring) after(i int) int  { return (i + 1) % r.n }

// arrived is when step t's block is complete at position i.
func (r *ring) arrived(i, t int) units.Seconds {
	if t == 0 {
		return r.pre[i]
	}
	return r.kvHop[r.before(i)*r.n+t-1].end
}

// gradArrived is when the gradient that step t adds to is complete at i. Step n
// is the finished gradient of the position's own block.
func (r *ring) gradArrived(i, t int) units.Seconds {
	if t == 0 || !r.back || r.n == 1 {
		return 0
	}
	return r.gradHop[r.before(i)*r.n+t-1].end
}

// kvRoom is when position i has a buffer for the block of its step t >= 1.
func (r *ring) kvRoom(i, t int) units.Seconds {
	u := t - r.buffers // the step whose buffer it gets
	if u < 1 {
		return 0
	}
	room := r.compute[i*r.n+u].end
	if u < r.n-1 {
		room = max(room, r.kvHop[i*r.n+u].end)
	}
	return room
}

// gradRoom is when position i has a buffer for the gradient of its step t >= 1.
func (r *ring) gradRoom(i, t int) units.Seconds {
	u := t - r.buffers
	if u < 1 || t == r.n {
		return 0
	}
	return r.gradHop[i*r.n+u].end
}

// ringRun is the state of a run.
type ringRun struct {
	*ring
	pos     []position
	queue   []event // a binary heap by time
	awake   []int   // positions that may be able to start something, once each
	touched []bool  // whether a position is among them
}

// touch wakes position i and its neighbours: what frees a buffer here lets the
// position before send, and what arrives next door lets that one go on.
func (s *ringRun) touch(i int) {
	for _, j := range [3]int{i, s.before(i), s.after(i)} {
		if !s.touched[j] {
			s.touched[j] = true
			s.awake = append(s.awake, j)
		}
	}
}

func (s *ringRun) apply(e event) {
	i := int(e.pos)
	p := &s.pos[i]
	switch e.kind {
	case preDone:
		p.step = 0
	case stepDone:
		p.computing, p.adding = false, true
	case kvDone, gradDone:
		p.sending = false
	case postDone:
		p.finishing = false
	}
	s.touch(i)
}

// startCompute advances the stream of position i as far as it goes at time now.
func (s *ringRun) startCompute(i int, now units.Seconds) {
	p := &s.pos[i]
	if p.step < 0 || p.computing || p.finishing {
		return
	}
	if p.adding {
		if s.gradArrived(i, p.step) > now {
			return
		}
		s.added[i*s.n+p.step] = now
		p.adding = false
		p.step++
	}
	switch {
	case p.step < s.n && s.arrived(i, p.step) <= now:
		c := i*s.n + p.step
		s.compute[c] = task{s.arrived(i, p.step), now, now, now + s.work[c], -1}
		p.computing = true
		s.push(event{s.compute[c].end, int32(i), int32(p.step), stepDone})
	case p.step == s.n && s.gradArrived(i, s.n) <= now:
		s.last[i] = task{now, now, now, now + s.post[i], -1}
		p.finishing = true
		p.step++
		s.push(event{s.last[i].end, int32(i), 0, postDone})
	}
}

// startSend gives the egress port of position i to the message that has been
// able to go the longest, if there is one.
func (s *ringRun) startSend(i int, now units.Seconds) {
	p := &s.pos[i]
	if p.sending || s.n == 1 {
		return
	}
	kv, grad := s.kvReady(i), s.gradReady(i)
	switch {
	case kv.buffer <= now && kv.buffer <= grad.buffer:
		c := i*s.n + p.nextKV
		s.kvHop[c] = task{kv.ready, kv.buffer, now, now + s.kv[c], p.sent}
		s.push(event{s.kvHop[c].end, int32(i), int32(p.nextKV), kvDone})
		p.sent = int32(p.nextKV)
		p.nextKV++
	case grad.buffer <= now:
		c := i*s.n + p.nextGrad
		s.gradHop[c] = task{grad.ready, grad.buffer, now, now + s.grad[c], p.sent}
		s.push(event{s.gradHop[c].end, int32(i), int32(p.nextGrad), gradDone})
		p.sent = int32(s.n + p.nextGrad)
		p.nextGrad++
	default:
		return
	}
	p.sending = true
}

func (s *ringRun) kvReady(i int) task {
	t := s.pos[i].nextKV
	if t >= s.n-1 {
		return task{ready: never, buffer: never}
	}
	ready := s.arrived(i, t)
	return task{ready: ready, buffer: max(ready, s.kvRoom(s.after(i), t+1))}
}

func (s *ringRun) gradReady(i int) task {
	t := s.pos[i].nextGrad
	if !s.back || t >= s.n {
		return task{ready: never, buffer: never}
	}
	ready := s.added[i*s.n+t]
	return task{ready: ready, buffer: max(ready, s.gradRoom(s.after(i), t+1))}
}

func (s *ringRun) push(e event) {
	s.queue = append(s.queue, e)
	for c := len(s.queue) - 1; c > 0; {
		up := (c - 1) / 2
		if s.queue[up].at <= s.queue[c].at {
			break
		}
		s.queue[up], s.queue[c] = s.queue[c], s.queue[up]
		c = up
	}
}

func (s *ringRun) pop() event {
	top := s.queue[0]
	end := len(s.queue) - 1
	s.queue[0] = s.queue[end]
	s.queue = s.queue[:end]
	for c := 0; ; {
		least := c
		for _, d := range [2]int{2*c + 1, 2*c + 2} {
			if d < end && s.queue[d].at < s.queue[least].at {
				least = d
			}
		}
		if least == c {
			return top
		}
		s.queue[c], s.queue[least] = s.queue[least], s.queue[c]
		c = least
	}
}
