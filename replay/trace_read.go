package replay

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/go-json-experiment/json/jsontext"
)

// maxLine is the longest line of a trace, in bytes: a header holds who has which
// tokens of every sequence, some 100 bytes a rank and sequence of each plan.
const maxLine = 1 << 26

// Visitor is told what a trace holds, in the order of its lines: blocks rise. A
// nil function skips its kind. What it is given is overwritten by the next line.
// An error from a function stops the reading and is returned with file and line.
type Visitor struct {
	Header func(*Header) error
	Span   func(*Span) error
	Step   func(*Step) error
}

// ReadTrace goes through a trace line by line, in memory that does not grow with
// its length, and validates every line before it is handed on. It returns the
// header once all of the trace is read: every step of every plan on every rank
// once in each block, and an end that counts them right.
//
// Errors name file, line, field, value and the way out: another document or
// version, unknown or repeated keys, values out of range, a plan, rank or block
// that the header does not have, a trace that was cut off.
func ReadTrace(name string, r io.Reader, v Visitor) (*Header, error) {
	d := &reader{name: name, visit: v}
	torn, err := doc.LineReader{MaxLine: maxLine}.Read(name, r, d.line)
	switch {
	case err != nil:
		return nil, err
	case d.header == nil:
		return nil, &doc.Error{File: name, Msg: "holds no complete line", Hint: "a trace begins with a header line; was the file cut off? Make it again: evenkeel replay"}
	case torn || !d.ended:
		return nil, &doc.Error{File: name, Line: d.last, Msg: "it was cut off: the line \"end\" is missing", Hint: "copy the file again, or make it again: evenkeel replay"}
	}
	return d.header, nil
}

type reader struct {
	name   string
	visit  Visitor
	header *Header
	block  tally // of the current block
	spans  int64
	steps  int64
	last   int // line
	ended  bool
	span   Span
	step   Step
}

func (d *reader) line(n int, data []byte) error {
	d.last = n
	if d.header == nil {
		return d.first(n, data)
	}
	if d.ended {
		return &doc.Error{File: d.name, Line: n, Msg: "a line after the end", Hint: "are these two traces in one file? Make the trace again: evenkeel replay"}
	}
	switch t := lineType(data); t {
	case lineSpan:
		return decodeLine(d, n, data, &d.span, d.onSpan)
	case lineStep:
		return decodeLine(d, n, data, &d.step, d.onStep)
	case lineEnd:
		return decodeLine(d, n, data, &End{}, d.onEnd)
	default:
		return &doc.Error{
			File: d.name, Line: n, Field: "t", Value: fmt.Sprintf("%.40q", t), Msg: "want span, step or end",
			Hint: "every line after the header begins with its \"t\" key; make the trace again: evenkeel replay",
		}
	}
}

func (d *reader) first(n int, data []byte) error {
	h := &Header{}
	if err := doc.Decode(d.name, data, h); err != nil {
		return err
	}
	d.header = h
	d.block = tally{plans: len(h.Plans), ranks: len(h.Ranks)}
	if d.visit.Header == nil {
		return nil
	}
	return d.wrap(n, d.visit.Header(h))
}

func decodeLine[T any](d *reader, n int, data []byte, v *T, on func(*T) error) error {
	if err := doc.DecodeStrict(d.name, n, data, v); err != nil {
		return err
	}
	return d.wrap(n, on(v))
}

func (d *reader) wrap(n int, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s:%d: %w; make the trace again: evenkeel replay", d.name, n, err)
}

func (d *reader) onSpan(s *Span) error {
	if err := d.header.validSpan(s); err != nil {
		return err
	}
	if err := d.block.reach(s.Block); err != nil {
		return err
	}
	d.spans++
	if d.visit.Span == nil {
		return nil
	}
	return d.visit.Span(s)
}

func (d *reader) onStep(s *Step) error {
	if err := d.header.where(s.Block, s.Plan, s.Rank, s.DurNS); err != nil {
		return err
	}
	if err := d.block.reach(s.Block); err != nil {
		return err
	}
	if err := d.block.add(s); err != nil {
		return err
	}
	d.steps++
	if d.visit.Step == nil {
		return nil
	}
	return d.visit.Step(s)
}

func (d *reader) onEnd(e *End) error {
	if e.Spans != d.spans {
		return fmt.Errorf("spans: %d: the trace holds %d", e.Spans, d.spans)
	}
	if e.Steps != d.steps {
		return fmt.Errorf("steps: %d: the trace holds %d", e.Steps, d.steps)
	}
	if err := d.block.complete(); err != nil {
		return err
	}
	if last := d.header.Repeats - 1; d.block.at != last {
		return fmt.Errorf("steps: block %d is the last, and the header has %d blocks", d.block.at, d.header.Repeats)
	}
	d.ended = true
	return nil
}

// tally is which steps of one block have been seen.
type tally struct {
	plans, ranks int
	at           int
	seen         []bool // by plan and rank; nil before the first step
	count        int
}

// reach goes on to a block, before which the one at hand must be complete.
func (t *tally) reach(block int) error {
	if block == t.at {
		return nil
	}
	if block < t.at {
		return fmt.Errorf("block: %d: after a line of block %d: blocks must rise", block, t.at)
	}
	if err := t.complete(); err != nil {
		return err
	}
	if block != t.at+1 {
		return fmt.Errorf("block: %d: after block %d: block %d is missing", block, t.at, t.at+1)
	}
	t.at, t.count = block, 0
	clear(t.seen)
	return nil
}

func (t *tally) add(s *Step) error {
	if t.seen == nil {
		t.seen = make([]bool, t.plans*t.ranks)
	}
	i := s.Plan*t.ranks + s.Rank
	if t.seen[i] {
		return fmt.Errorf("rank: %d: a second step of rank %d, plan %d in block %d", s.Rank, s.Rank, s.Plan, s.Block)
	}
	t.seen[i] = true
	t.count++
	return nil
}

func (t *tally) complete() error {
	if want := t.plans * t.ranks; t.count != want {
		return fmt.Errorf("block: %d: it has %d steps, want %d: each of %d plans on each of %d ranks", t.at, t.count, want, t.plans, t.ranks)
	}
	return nil
}

// lineType reads the value of a line's first key if that is "t", without
// decoding the rest.
func lineType(data []byte) string {
	dec := jsontext.NewDecoder(bytes.NewReader(data))
	var text string
	for i := range 3 {
		t, err := dec.ReadToken()
		if err != nil || (t.Kind() == '{') != (i == 0) || i > 0 && t.Kind() != '"' || i == 1 && t.String() != "t" {
			return ""
		}
		if i == 2 {
			text = t.String()
		}
	}
	return text
}

// WriteTrace makes a trace of a header and of the lines that fill hands to its
// arguments, in order of blocks, and gives it its name only when all of it is
// written. After an error there is no trace, and one that was there before is as
// it was. Nothing is written that [ReadTrace] would not read back.
func WriteTrace(path string, h *Header, fill func(span func(*Span) error, step func(*Step) error) error) error {
	if _, err := doc.Encode(h); err != nil { // sets the schema and checks
		return err
	}
	d := &reader{name: path, header: h, block: tally{plans: len(h.Plans), ranks: len(h.Ranks)}}
	return doc.WriteLines(path, func(write func(any) error) error {
		if err := write(h); err != nil {
			return err
		}
		err := fill(
			func(s *Span) error { s.T = lineSpan; return written(d.onSpan(s), write, s) },
			func(s *Step) error { s.T = lineStep; return written(d.onStep(s), write, s) })
		if err != nil {
			return err
		}
		end := &End{T: lineEnd, Steps: d.steps, Spans: d.spans}
		return written(d.onEnd(end), write, end)
	})
}

var errNotWritten = errors.New("the trace was not written")

func written(err error, write func(any) error, line any) error {
	if err != nil {
		return fmt.Errorf("%w: %w", errNotWritten, err)
	}
	return write(line)
}
