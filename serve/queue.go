package serve

import (
	"container/list"
	"context"
	"sync"

	"github.com/evenkeel/evenkeel/internal/units"
)

// key names a batch.
type key struct {
	job  string
	step int64
}

// entry is one batch on its way from submission to answer.
type entry struct {
	key
	digest   string         // of its lengths
	lengths  []units.Tokens // until it is planned
	deadline float64        // seconds of planning; 0: the server's
	state    State
	answer   []byte        // encoded, once planned
	ready    chan struct{} // closed with the answer; state and answer change no more
	at       *list.Element // in a queue, then among the kept; nil before and between
	urgent   bool          // a client waits for it

	// Of an unnamed one: the step that its client gave, and the client's request.
	asked  int64
	client context.Context
}

func newEntry(k key, b *Batch) *entry {
	return &entry{
		key: k, digest: digestOf(b.Lengths), lengths: b.Lengths, deadline: b.DeadlineS, state: Queued, ready: make(chan struct{}),
	}
}

// unnamed: a client waits for it and nobody else can ask for it.
func (e *entry) unnamed() bool { return e.job == "" }

// board is all batches of a server: bounded queues of those to plan and a bounded
// store of those planned, the oldest of which make room for new ones.
type board struct {
	mu      sync.Mutex
	entries map[key]*entry
	urgent  list.List // of *entry that clients wait for, who waits longest first
	queue   list.List // of *entry, the next one first when none is urgent
	kept    list.List // of *entry, the oldest first
	bytes   int       // of kept answers
	limits  Limits
	busy    int        // being planned
	change  *sync.Cond // of the queue or of ending
	ending  ending
}

// ending says whether planners go on.
type ending int

const (
	goesOn  ending = iota
	drains         // until the queue is empty
	stopped        // after the batch at hand
)

func newBoard(l Limits) *board {
	b := &board{entries: map[key]*entry{}, limits: l}
	b.change = sync.NewCond(&b.mu)
	return b
}

// end tells the planners to end.
func (b *board) end(how ending) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ending = max(b.ending, how)
	b.change.Broadcast()
}

// isEnding says whether batches are no longer taken.
func (b *board) isEnding() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ending != goesOn
}

// submit takes batches in, all or none. Batches that are known with the same lengths
// are left as they are. fresh are those that were not known, which are not yet in the
// queue: enqueue puts them there once they are on the disk.
func (b *board) submit(job string, batches []Batch) (fresh []*entry, refusal *Problem) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ending != goesOn {
		return nil, ended("takes no more batches; submit to the next one")
	}
	for i := range batches {
		e := newEntry(key{job, batches[i].Step}, &batches[i])
		switch old := b.entries[e.key]; {
		case old == nil:
			fresh = append(fresh, e)
		case old.digest != e.digest:
			return nil, conflict(e.key)
		}
	}
	switch {
	case len(fresh) == 0:
		return nil, nil
	case len(fresh) > b.limits.Queue:
		return nil, tooMany(len(fresh), b.limits.Queue)
	case b.waiting()+len(fresh) > b.limits.Queue:
		return nil, full(b.waiting(), b.limits.Queue)
	}
	for _, e := range fresh {
		b.entries[e.key] = e
	}
	return fresh, nil
}

// waiting counts what is known and not planned, in the queue or about to be in it.
func (b *board) waiting() int { return len(b.entries) - b.kept.Len() - b.busy }

// enqueue makes batches ready to be planned.
func (b *board) enqueue(entries []*entry) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range entries {
		e.at = b.lineOf(e).PushBack(e)
	}
	b.change.Broadcast()
}

func (b *board) lineOf(e *entry) *list.List {
	if e.urgent {
		return &b.urgent
	}
	return &b.queue
}

// forget takes back batches that could not be written to the journal.
func (b *board) forget(entries []*entry) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range entries {
		delete(b.entries, e.key)
		close(e.ready) // who waits for it learns that there is no answer
	}
	b.change.Broadcast()
}

// next waits for a batch to plan; nil tells a planner to end.
func (b *board) next() *entry {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.queue.Len()+b.urgent.Len() == 0 || b.ending == stopped {
		// Draining, a batch may be on its way to the journal and then into the queue.
		if b.ending == stopped || b.ending == drains && b.waiting() == 0 {
			return nil
		}
		b.change.Wait()
	}
	line := &b.urgent
	if line.Len() == 0 {
		line = &b.queue
	}
	e := line.Remove(line.Front()).(*entry)
	e.state, e.at = Planning, nil
	b.busy++
	return e
}

// finish stores an answer and drops the oldest ones beyond the limits. An unnamed
// batch is not kept: its client holds the entry, if it still waits.
func (b *board) finish(e *entry, state State, answer []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.busy--
	if e.unnamed() {
		delete(b.entries, e.key)
		e.state, e.answer = state, answer
		close(e.ready)
		return
	}
	b.keep(e, state, answer)
}

func (b *board) keep(e *entry, state State, answer []byte) {
	e.state, e.answer, e.lengths = state, answer, nil
	e.at = b.kept.PushBack(e)
	b.bytes += len(answer)
	close(e.ready)
	for b.kept.Len() > b.limits.Kept || b.bytes > b.limits.KeptBytes && b.kept.Len() > 1 {
		b.drop(b.kept.Front().Value.(*entry))
	}
}

func (b *board) drop(e *entry) {
	b.kept.Remove(e.at)
	b.bytes -= len(e.answer)
	delete(b.entries, e.key)
}

// find is the entry of a batch, nil if there is none. One that is waited for is
// planned before those that are not.
func (b *board) find(k key, wanted bool) (e *entry, state State, answer []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e = b.entries[k]
	if e == nil {
		return nil, "", nil
	}
	if wanted && e.state == Queued && !e.urgent {
		if e.at != nil {
			b.queue.Remove(e.at)
			e.at = b.urgent.PushBack(e)
		}
		e.urgent = true
	}
	return e, e.state, e.answer
}

// look is how far an entry is, be it still on the board or not.
func (b *board) look(e *entry) (State, []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return e.state, e.answer
}

// planned says whether a batch is there and planned.
func (b *board) planned(k key) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.entries[k]
	return e != nil && e.state != Queued && e.state != Planning
}

// remove drops a planned batch, if it is there, that its job needs no more.
func (b *board) remove(k key) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.entries[k]
	if e != nil && e.state != Queued && e.state != Planning {
		b.drop(e)
	}
}

// abandon drops an unnamed batch whose client has what it wanted or is gone. One that
// is being planned goes when its planner, whom the client's end stops, is done.
func (b *board) abandon(e *entry) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if e.state != Queued {
		return
	}
	b.lineOf(e).Remove(e.at)
	delete(b.entries, e.key)
	b.change.Broadcast()
}

// sizes are for the metrics.
func (b *board) sizes() (queued, busy, kept, bytes int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.waiting(), b.busy, b.kept.Len(), b.bytes
}
