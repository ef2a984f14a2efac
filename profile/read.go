package profile

import (
	"bytes"
	"fmt"
	"io"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/go-json-experiment/json/jsontext"
)

// Visitor is told what a recording holds, in the order of its lines. A nil
// function skips its kind. An error from a function stops the reading and is
// returned with file and line.
type Visitor struct {
	Header   func(*Header) error
	Schedule func(*Schedule) error
	Point    func(*Point) error
	Again    func(*Point) error // a second visit of a point
	Canary   func(*Point) error
	Peer     func(*Point) error // a point at another place
	Resume   func(*Resume) error
	End      func(*End) error
}

// Tally counts what a recording held.
type Tally struct {
	Points   int
	Failed   int // of the points, without times
	Again    int
	Canaries int
	Peers    int
	Torn     bool // the last line was not finished; it does not count
}

// Read goes through a recording line by line, in memory that does not grow
// with its length, and validates every line before it is handed on.
//
// Errors are *doc.Error with file, line, field, value and the way out: an empty
// file, another document, another version, a line that is torn in the middle of
// the file, unknown or duplicate keys, values out of range, a device or group
// that the header does not list.
func Read(name string, r io.Reader, v Visitor) (Tally, error) {
	d := &reader{name: name, visit: v, places: map[[2]string]bool{}}
	torn, err := doc.ReadLines(name, r, doc.MaxLine, d.line)
	if err == nil && d.header == nil {
		err = &doc.Error{File: name, Msg: "holds no complete line", Hint: "a recording begins with a header line; was the file cut off?"}
	}
	d.tally.Torn = torn
	return d.tally, err
}

type reader struct {
	name   string
	visit  Visitor
	header *Header
	on     map[string]int // ranks of every device (1) and group
	places map[[2]string]bool
	joined *Schedule // all schedule lines so far
	tally  Tally
}

func (d *reader) line(n int, data []byte) error {
	if d.header == nil {
		return d.first(n, data)
	}
	var err error
	switch t := lineType(data); t {
	case linePoint, lineAgain, lineCanary, linePeer:
		err = d.point(n, data)
	case lineSchedule:
		err = decodeLine(d, n, data, d.schedule)
	case lineResume:
		err = decodeLine(d, n, data, d.visit.Resume)
	case lineEnd:
		err = decodeLine(d, n, data, d.visit.End)
	default:
		if _, err := doc.SchemaOf(data); err == nil {
			return d.fail(n, "", "", "another document begins here", "recordings are not joined by writing one behind the other: cut the file before this line and name both parts")
		}
		return d.fail(n, "t", fmt.Sprintf("%q", t), "want point, again, canary, peer, schedule, resume or end", "every line after the header begins with its \"t\" key; delete the line if it is not a recording's")
	}
	return err
}

func (d *reader) first(n int, data []byte) error {
	if string(bytes.TrimSpace(data)) == "{" { // as config.json is written; a decoder would call it cut short
		return d.fail(n, "", "", "a JSON document of several lines begins here, and a recording has an object in every line", "name a recording, as calibrate and import write them")
	}
	if err := doc.CheckSchema(d.name, data, RecordingSchema); err != nil {
		return err
	}
	var h Header
	if err := doc.DecodeStrict(d.name, n, data, &h); err != nil {
		return err
	}
	if err := h.Validate(); err != nil {
		return fmt.Errorf("%s:%d: %w; mend the line", d.name, n, err)
	}
	d.header = &h
	d.on = h.ranks()
	for _, p := range h.Places {
		d.places[[2]string{p.On, p.Name}] = true
	}
	if d.visit.Header == nil {
		return nil
	}
	// Who reads says the way out: without its header the rest is no recording.
	if err := d.visit.Header(&h); err != nil {
		return fmt.Errorf("%s:%d: %w", d.name, n, err)
	}
	return nil
}

func (d *reader) point(n int, data []byte) error {
	var p Point
	if err := doc.DecodeStrict(d.name, n, data, &p); err != nil {
		return err
	}
	if err := p.decode(); err != nil {
		return d.wrap(n, err)
	}
	if err := p.Validate(); err != nil {
		return d.wrap(n, err)
	}
	if p.Inner < 1 && len(p.Times) > 0 && !d.header.Imported() {
		return d.wrap(n, fmt.Errorf("inner: %d: want the number of calls that a sample is the mean of, 1 or more", p.Inner))
	}
	if err := d.placed(&p); err != nil {
		return d.wrap(n, err)
	}
	if err := d.keyed(n, &p); err != nil {
		return err
	}
	visit := d.count(&p)
	if visit == nil {
		return nil
	}
	return d.wrap(n, visit(&p))
}

// keyed checks that a point's key is of its place and shape: a resumed calibration and
// comparisons of recordings go by keys, laws by shapes, and both must mean the same point.
func (d *reader) keyed(n int, p *Point) error {
	key := p.Spot.Key(d.header.Fingerprint)
	if p.Key == key {
		return nil
	}
	return d.fail(n, "key", fmt.Sprintf("%q", p.Key), fmt.Sprintf("%s of %s on %s has the key %q in this recording", p.Op, p.Raw, p.On, key),
		"the line was changed, or is of another recording: correct the file or make it again")
}

// count tallies a point by its kind and gives the visitor's function for it.
func (d *reader) count(p *Point) func(*Point) error {
	switch p.T {
	case lineCanary:
		d.tally.Canaries++
		return d.visit.Canary
	case lineAgain:
		d.tally.Again++
		return d.visit.Again
	case linePeer:
		d.tally.Peers++
		return d.visit.Peer
	}
	d.tally.Points++
	if !p.OK() {
		d.tally.Failed++
	}
	return d.visit.Point
}

// placed checks that a point sits on a device or group that suits its op.
func (d *reader) placed(p *Point) error {
	ranks, ok := d.on[p.On]
	if !ok {
		return fmt.Errorf("on: %q: the header lists no such device or group", p.On)
	}
	if p.Place != "" && !d.places[[2]string{p.On, p.Place}] {
		return fmt.Errorf("place: %q: the header lists no such place of %q", p.Place, p.On)
	}
	want := 1
	if g, ok := p.Shape.(op.Grouped); ok {
		want = g.Ranks()
	}
	if ranks != want {
		return fmt.Errorf("on: %q has %s, the shape has %d", p.On, units.Count(ranks, "rank"), want)
	}
	return nil
}

func (d *reader) schedule(s *Schedule) error {
	for i := range s.Points {
		if err := s.Points[i].decode(); err != nil {
			return fmt.Errorf("points[%d].%w", i, err)
		}
	}
	s = d.join(s)
	for i, c := range s.Canaries {
		if c < 0 || c >= len(s.Points) {
			return fmt.Errorf("canaries[%d]: %d: want an index into points", i, c)
		}
	}
	for i := range s.Once {
		if err := s.Once[i].decode(); err != nil {
			return fmt.Errorf("once[%d].%w", i, err)
		}
	}
	for i, p := range s.Peers {
		if p.Point < 0 || p.Point >= len(s.Points) {
			return fmt.Errorf("peers[%d].point: %d: want an index into points", i, p.Point)
		}
		if !d.places[[2]string{s.Points[p.Point].On, p.Place}] {
			return fmt.Errorf("peers[%d].place: %q: the header lists no such place of %q", i, p.Place, s.Points[p.Point].On)
		}
	}
	if d.visit.Schedule == nil {
		return nil
	}
	return d.visit.Schedule(s)
}

// join adds the points of a further round to those before.
func (d *reader) join(s *Schedule) *Schedule {
	if d.joined == nil {
		d.joined = s
		return s
	}
	all := *d.joined
	all.BudgetS = max(all.BudgetS, s.BudgetS)
	all.Points = append(slices.Clip(all.Points), s.Points...)
	d.joined = &all
	return &all
}

func decodeLine[T any](d *reader, n int, data []byte, visit func(*T) error) error {
	v := new(T)
	if err := doc.DecodeStrict(d.name, n, data, v); err != nil {
		return err
	}
	if visit == nil {
		return nil
	}
	return d.wrap(n, visit(v))
}

func (d *reader) fail(n int, field, value, msg, hint string) error {
	return &doc.Error{File: d.name, Line: n, Field: field, Value: value, Msg: msg, Hint: hint}
}

func (d *reader) wrap(n int, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s:%d: %w; mend the line or delete it", d.name, n, err)
}

// lineType reads the value of a line's first key if that is "t", without
// decoding the rest: a point line is decoded once.
func lineType(data []byte) string {
	dec := jsontext.NewDecoder(bytes.NewReader(data))
	var tokens [3]jsontext.Token
	for i := range tokens {
		t, err := dec.ReadToken()
		if err != nil {
			return ""
		}
		tokens[i] = t.Clone()
	}
	if tokens[0].Kind() != '{' || tokens[1].Kind() != '"' || tokens[1].String() != "t" || tokens[2].Kind() != '"' {
		return ""
	}
	return tokens[2].String()
}
