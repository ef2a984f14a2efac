package serve

import (
	"fmt"
	"sync"

	"github.com/go-json-experiment/json"

	"github.com/evenkeel/evenkeel/internal/doc"
)

// log is the journal of a server: a line for each batch that was accepted and one
// for its answer. A batch is acknowledged once its line is on the disk, so after a
// crash every acknowledged batch is there, with its answer or to be planned again;
// planning is deterministic, so the answer is the same.
type log struct {
	mu   sync.Mutex
	path string
	j    *doc.Journal
	live int64 // size after the last rewriting
}

// rewriteAt is the size from which a journal that has doubled is rewritten without
// what the server no longer keeps.
const rewriteAt = 16 << 20

// openLog opens the journal and puts on the board what it holds. notes tell what was
// dropped.
func openLog(path string, b *board) (l *log, notes []string, err error) {
	j, err := doc.OpenJournal(path)
	if err != nil {
		return nil, nil, err
	}
	l = &log{path: path, j: j}
	if n := j.Dropped(); n > 0 {
		notes = append(notes, fmt.Sprintf("%s: a last line of %d bytes was torn and is cut off: its batch was not acknowledged", path, n))
	}
	if err := l.restore(b); err != nil {
		_ = j.Close() // err is the news
		return nil, nil, err
	}
	if err := l.rewrite(b); err != nil {
		_ = l.j.Close()
		return nil, nil, err
	}
	return l, notes, nil
}

// restore reads the journal in order.
func (l *log) restore(b *board) error {
	open := map[key]*entry{}
	var order []*entry
	err := l.j.Read(func(line int, data []byte) error {
		var kind struct {
			T string `json:"t"`
		}
		if err := json.Unmarshal(data, &kind); err != nil {
			return &doc.Error{File: l.path, Line: line, Msg: err.Error(), Hint: "move the journal away to start without it"}
		}
		switch kind.T {
		case "accept":
			var a accepted
			if err := doc.DecodeStrict(l.path, line, data, &a); err != nil {
				return err
			}
			e := &entry{
				key: key{a.Job, a.Step}, digest: digestOf(a.Lengths), lengths: a.Lengths, deadline: a.DeadlineS, state: Queued, ready: make(chan struct{}),
			}
			// Accepted again after its answer: the answer was dropped meanwhile.
			b.remove(e.key)
			open[e.key] = e
			order = append(order, e)
		case "result":
			var r planned
			if err := doc.DecodeStrict(l.path, line, data, &r); err != nil {
				return err
			}
			k := key{r.Job, r.Step}
			delete(open, k)
			b.restored(k, &r)
		default:
			return &doc.Error{File: l.path, Line: line, Field: "t", Value: kind.T, Msg: "no such kind of line", Hint: "another version wrote it? move the journal away to start without it"}
		}
		return nil
	})
	if err != nil {
		return err
	}
	b.reopen(order, open)
	return nil
}

// append writes a line. When the journal has grown large it is rewritten.
func (l *log) append(v any) error {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.j.Append(v)
}

// trim rewrites a journal that has grown to more than twice what the server keeps.
func (l *log) trim(b *board) error {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	size, live := l.j.Size(), l.live
	l.mu.Unlock()
	if size < rewriteAt || size < 2*live {
		return nil
	}
	return l.rewrite(b)
}

// rewrite makes the journal anew from the board.
func (l *log) rewrite(b *board) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	err := doc.WriteLines(l.path, func(write func(any) error) error { return b.each(write) })
	if err != nil {
		return err
	}
	old := l.j
	if l.j, err = doc.OpenJournal(l.path); err != nil {
		l.j = old
		return err
	}
	l.live = l.j.Size()
	return old.Close()
}

func (l *log) close() error {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.j.Close()
}

// restored puts an answer of the journal among the kept.
func (b *board) restored(k key, r *planned) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.entries[k] != nil {
		return
	}
	e := &entry{key: k, digest: r.Digest, ready: make(chan struct{})}
	b.entries[k] = e
	state := Done
	if r.Failed {
		state = Failed
	}
	b.keep(e, state, r.Answer)
}

// reopen queues what was accepted and not answered.
func (b *board) reopen(order []*entry, open map[key]*entry) {
	b.mu.Lock()
	var again []*entry
	for _, e := range order {
		if open[e.key] == e && b.entries[e.key] == nil {
			b.entries[e.key] = e
			again = append(again, e)
		}
	}
	b.mu.Unlock()
	b.enqueue(again)
}

// each hands over the lines that a journal of the board's content has.
func (b *board) each(write func(any) error) error {
	b.mu.Lock()
	var lines []any
	for e := b.kept.Front(); e != nil; e = e.Next() {
		k := e.Value.(*entry)
		if k.unnamed() {
			continue
		}
		lines = append(lines, planned{T: "result", Job: k.job, Step: k.step, Digest: k.digest, Failed: k.state == Failed, Answer: k.answer})
	}
	accept := func(k *entry) {
		if k.unnamed() {
			return
		}
		lines = append(lines, accepted{T: "accept", Job: k.job, Batch: Batch{Step: k.step, Lengths: k.lengths, DeadlineS: k.deadline}})
	}
	for _, k := range b.entries {
		if k.at == nil { // being planned, or not yet in the queue
			accept(k)
		}
	}
	for e := b.queue.Front(); e != nil; e = e.Next() {
		accept(e.Value.(*entry))
	}
	b.mu.Unlock()
	for _, line := range lines {
		if err := write(line); err != nil {
			return err
		}
	}
	return nil
}
