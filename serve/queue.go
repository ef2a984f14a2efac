package serve

import (
	"container/list"
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
	ready    chan struct{} // closed with the answer
	at       *list.Element // in the queue, then among the kept
}

// unnamed: a client waits for it and nobody else can ask for it.
func (e *entry) unnamed() bool { return e.job == "" }

// board is all batches of a server: a bounded queue of those to plan and a bounded
// store of those planned, the oldest of which make room for new ones.
type board struct {
	mu      sync.Mutex
	entries map[key]*entry
	queue   list.List // of *entry, the next one first
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
	b.ending = how
	b.change.Broadcast()
}

// submit takes batches in, all or none. Batches that are known with the same lengths
// are left as they are. fresh are those that were not known, which are not yet in the
// queue: enqueue puts them there once they are on the disk.
func (b *board) submit(job string, batches []Batch) (fresh []*entry, refusal *Problem) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range batches {
		k := key{job, batches[i].Step}
		digest := digestOf(batches[i].Lengths)
		if old := b.entries[k]; old != nil {
			if old.digest != digest {
				return nil, conflict(k)
			}
			continue
		}
		fresh = append(fresh, &entry{
			key: k, digest: digest, lengths: batches[i].Lengths, deadline: batches[i].DeadlineS, state: Queued, ready: make(chan struct{}),
		})
	}
	if b.waiting()+len(fresh) > b.limits.Queue {
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
		e.at = b.queue.PushBack(e)
	}
	b.change.Broadcast()
}

// forget takes back batches that could not be written to the journal.
func (b *board) forget(entries []*entry) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range entries {
		delete(b.entries, e.key)
	}
}

// next waits for a batch to plan; nil tells a planner to end.
func (b *board) next() *entry {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.queue.Len() == 0 || b.ending == stopped {
		if b.ending != goesOn {
			return nil
		}
		b.change.Wait()
	}
	e := b.queue.Remove(b.queue.Front()).(*entry)
	e.state, e.at = Planning, nil
	b.busy++
	return e
}

// finish stores an answer and drops the oldest ones beyond the limits.
func (b *board) finish(e *entry, state State, answer []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.busy--
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
	if wanted && e.state == Queued && e.at != nil {
		b.queue.MoveToFront(e.at)
	}
	return e, e.state, e.answer
}

// remove drops a planned batch that its job needs no more, and says whether it was
// there and planned.
func (b *board) remove(k key) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.entries[k]
	if e == nil || e.state == Queued || e.state == Planning {
		return false
	}
	b.drop(e)
	return true
}

// abandon drops an unnamed batch whose client has what it wanted or is gone.
func (b *board) abandon(e *entry) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.entries[e.key] != e || e.state == Planning:
	case e.state == Queued:
		b.queue.Remove(e.at)
		delete(b.entries, e.key)
	default:
		b.drop(e)
	}
}

// sizes are for the metrics.
func (b *board) sizes() (queued, busy, kept, bytes int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.waiting(), b.busy, b.kept.Len(), b.bytes
}
