package serve

import (
	"cmp"
	"container/list"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/internal/units"
)

// journal is what a server keeps on disk: a line for each submission that was accepted, one
// for the answer of each batch and one for each plan that its job dropped. A batch is
// acknowledged once its line is on the disk, so after a crash every acknowledged batch
// is there, with its answer or to be planned again; planning is deterministic, so the
// answer is the same.
type journal struct {
	mu   sync.Mutex
	path string
	of   planning
	j    *doc.Journal // nil when it could not be opened again, or after close
	live int64        // size after the last rewriting

	closed bool // the server has ended
}

// rewriteAt is the size from which a journal that has doubled is rewritten without
// what the server no longer keeps.
const rewriteAt = 16 << 20

// CheckJournal says of a journal that is there, before minutes are spent on what to plan
// with, whether New could go on with it: that it can be written, that no other server has it,
// and that it is one. note tells what was dropped. Whose plans it holds only New knows.
func CheckJournal(path string) (note string, err error) {
	if _, err := os.Stat(path); err != nil {
		return "", nil // New makes it
	}
	j, err := doc.OpenJournal(path)
	if err != nil {
		return "", err
	}
	if n := j.Dropped(); n > 0 {
		note = torn(path, n)
	}
	err = j.Read(func(line int, data []byte) error {
		_, err := decoded(path, line, data)
		return err
	})
	return note, errors.Join(err, j.Close())
}

func torn(path string, bytes int64) string {
	return fmt.Sprintf("%s: a last line of %d bytes was torn and is cut off: if it was an answer, its batch is planned again, and if an acceptance, its batches were not acknowledged", path, bytes)
}

// decoded is what a line says, by its kind.
func decoded(path string, line int, data []byte) (any, error) {
	var kind struct {
		T string `json:"t"`
	}
	if err := json.Unmarshal(data, &kind); err != nil {
		var members map[string]jsontext.Value // strictly, for what is wrong with the line in words
		return nil, damaged(cmp.Or(doc.DecodeStrict(path, line, data, &members), error(&doc.Error{File: path, Line: line, Field: "t", Msg: "no such kind of line"})))
	}
	var says any
	switch kind.T {
	case "for":
		says = new(planning)
	case "accept":
		says = new(accepted)
	case "drop":
		says = new(dropped)
	case "result":
		says = new(planned)
	default:
		return nil, &doc.Error{File: path, Line: line, Field: "t", Value: kind.T, Msg: "no such kind of line", Hint: "another version wrote it? move the journal away to start without it"}
	}
	if err := doc.DecodeStrict(path, line, data, says); err != nil {
		return nil, damaged(err)
	}
	return says, nil
}

// damaged is a line that a server did not write like this. Nobody can say of all of them what it
// held, but what becomes of it without.
func damaged(err error) error {
	if e, ok := errors.AsType[*doc.Error](err); ok {
		e.Hint = "delete the line, and of what it held answers are planned again and accepted batches lost, or move the journal away to start without it"
	}
	return err
}

// openLog opens the journal and puts on the board what it holds. notes tell what was
// dropped.
//
// A journal of other devices or kinds of groups is refused: its plans name theirs.
func openLog(path string, b *board, of planning) (l *journal, notes []string, err error) {
	j, err := doc.OpenJournal(path)
	if err != nil {
		return nil, nil, err
	}
	l = &journal{path: path, j: j, of: of}
	if n := j.Dropped(); n > 0 {
		notes = append(notes, torn(path, n))
	}
	wrong, err := l.restore(b)
	if err != nil {
		_ = j.Close() // err is the news
		return nil, nil, err
	}
	if err := l.rewrite(b); err != nil {
		return nil, nil, errors.Join(err, l.close())
	}
	return l, append(notes, wrong...), nil
}

// restore reads the journal in order. notes tell of answers that are not handed out.
func (l *journal) restore(b *board) (notes []string, err error) {
	r := restoring{log: l, board: b, open: map[key]*entry{}}
	if err := l.j.Read(r.line); err != nil {
		return nil, err
	}
	b.reopen(r.order, r.open)
	return r.notes, nil
}

// unlike says what a journal's plans and this server's are for. Both may be the same in words: these name a model by its type
// and a profile by its path.
func unlike(journal, server string) string {
	if journal == server {
		return journal + ", like this server's, but of another model or profile of that name, or by another evenkeel"
	}
	return journal + "; this server's: " + server
}

// restoring is a journal that is being read.
type restoring struct {
	log   *journal
	board *board
	order []*entry       // accepted, in the order of their lines
	open  map[key]*entry // of these, the ones without an answer so far
	notes []string
}

// line takes one line in.
func (r *restoring) line(line int, data []byte) error {
	says, err := decoded(r.log.path, line, data)
	if err != nil {
		return err
	}
	switch x := says.(type) {
	case *planning:
		if x.Groups != r.log.of.Groups {
			return &doc.Error{File: r.log.path, Line: line, Msg: "its plans are for other devices or kinds of groups than this server's: " + unlike(x.Costs, r.log.of.Costs), Hint: "start with the flags that it was made with, choose another journal, or move this one away to start without its plans"}
		}
	case *accepted:
		r.accept(x)
	case *dropped:
		r.board.remove(key{x.Job, x.Step})
	case *planned:
		r.answered(line, x)
	}
	return nil
}

// answered takes an answer in, unless it is wrong: ranks that train by it would lose data. Its
// batch is planned again where the journal has it.
func (r *restoring) answered(line int, p *planned) {
	k := key{p.Job, p.Step}
	var lengths []units.Tokens
	accepted := r.open[k]
	if accepted != nil {
		lengths = accepted.lengths
	}
	err := p.sound(lengths)
	if err == nil && (accepted == nil || accepted.digest == p.Digest) {
		delete(r.open, k)
		r.board.restored(k, p)
		return
	}
	what := "its batch is planned again"
	if accepted == nil {
		what = "its batch is not in the journal: submit it again"
	}
	r.notes = append(r.notes, fmt.Sprintf("%s:%d: the answer of job %q, step %d, is not handed out, and %s: %v", r.log.path, line, p.Job, p.Step, what, cmp.Or(err, errors.New("it is of other lengths"))))
}

func (r *restoring) accept(a *accepted) {
	for i := range a.Batches {
		e := newEntry(key{a.Job, a.Batches[i].Step}, &a.Batches[i])
		// Accepted again after its answer: the answer was dropped meanwhile.
		r.board.remove(e.key)
		r.open[e.key] = e
		r.order = append(r.order, e)
	}
}

// commit writes a line and then does what it tells of, before the journal can be
// rewritten: a rewritten one would lack the line or what it tells of.
func (l *journal) commit(v any, then func()) error {
	if l == nil {
		then()
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.open(); err != nil {
		return err
	}
	if err := l.j.Append(v); err != nil {
		return err
	}
	then()
	return nil
}

// open opens the journal where that failed before.
func (l *journal) open() (err error) {
	if l.closed {
		return &doc.Error{File: l.path, Msg: "the server has ended"}
	}
	if l.j == nil {
		l.j, err = doc.OpenJournal(l.path)
	}
	return err
}

// trim rewrites a journal that has grown to more than twice what the server keeps.
func (l *journal) trim(b *board) error {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.j == nil || l.j.Size() < rewriteAt || l.j.Size() < 2*l.live {
		return nil
	}
	return l.renew(b)
}

// rewrite makes the journal anew from the board.
func (l *journal) rewrite(b *board) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.renew(b)
}

// renew is rewrite under the lock. Even when it fails, the new file may have taken the
// old one's name, and what is appended to the old one would be lost: either way the
// file of that name is opened, now or when the next line is written.
func (l *journal) renew(b *board) error {
	err := doc.WriteLines(l.path, func(write func(any) error) error {
		if err := write(l.of); err != nil {
			return err
		}
		return b.each(write)
	})
	old := l.j
	l.j = nil
	if old != nil {
		err = errors.Join(err, old.Close())
	}
	if failed := l.open(); failed != nil {
		return errors.Join(err, failed)
	}
	// After a failure too, so that it is not tried again with every line.
	l.live = l.j.Size()
	return err
}

func (l *journal) close() error {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	old := l.j
	l.j, l.closed = nil, true
	if old == nil {
		return nil
	}
	return old.Close()
}

// batch is an entry that is not planned, as it was submitted.
func (e *entry) batch() Batch { return Batch{Step: e.step, Lengths: e.lengths, DeadlineS: e.deadline} }

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

// beingPlanned lists the batches that a planner has, by job and step: the same board makes
// the same journal. One that is in no queue yet is not acknowledged: commit writes it
// afterwards.
func (b *board) beingPlanned() []*entry {
	var busy []*entry
	for _, e := range b.entries {
		if e.state == Planning {
			busy = append(busy, e)
		}
	}
	slices.SortFunc(busy, func(a, b *entry) int { return cmp.Or(cmp.Compare(a.job, b.job), cmp.Compare(a.step, b.step)) })
	return busy
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
		lines = append(lines, result(k, k.state == Failed, k.answer))
	}
	accept := func(k *entry) {
		if k.unnamed() {
			return
		}
		lines = append(lines, accepted{T: "accept", Job: k.job, Batches: []Batch{k.batch()}})
	}
	for _, k := range b.beingPlanned() {
		accept(k)
	}
	for _, line := range []*list.List{&b.urgent, &b.queue} {
		for e := line.Front(); e != nil; e = e.Next() {
			accept(e.Value.(*entry))
		}
	}
	b.mu.Unlock()
	for _, line := range lines {
		if err := write(line); err != nil {
			return err
		}
	}
	return nil
}
