package profile

import (
	"crypto/sha256"
	"fmt"
	"io"

	"github.com/evenkeel/evenkeel/internal/units"
)

// Copies reads recordings that are taken together, passing over lines that stand in them
// already: a part copied behind itself, or files that have a part in common, would count as
// further visits, and all that rests on them seem surer than it is. The zero value has read
// none.
//
// Of a measurement two lines with the same spot, start and times are one visit: no two begin
// at the same nanosecond and take the same times. Of what was imported nobody knows when it
// began, and by a coarse clock two calls may well take the same time. So within a file all of
// its lines count, and those of another file are copies only where too many of them are
// alike for chance, as after one log was imported into two recordings.
type Copies struct {
	Lines int // that were passed over

	visits   map[visitHash]bool
	imported []importedLines // of every recording so far
}

type visitHash [sha256.Size]byte

// importedLines counts the lines of an imported recording by what one law is fitted to.
type importedLines map[string]map[visitHash]int

// Read is Read for a further recording. Of an imported one the functions for points may be
// called after those for other lines.
func (c *Copies) Read(name string, r io.Reader, v Visitor) (Tally, error) {
	if c.visits == nil {
		c.visits = map[visitHash]bool{}
	}
	imported := false
	var own importedLines
	var waiting []waitingLine
	once := func(visit func(*Point) error) func(*Point) error {
		if visit == nil { // its lines are told of all the same, so that all readers tell of as many
			visit = func(*Point) error { return nil }
		}
		return func(p *Point) error {
			line := hashVisit(p)
			switch {
			case !imported && c.visits[line]:
				c.Lines++
				return nil
			case !imported:
				c.visits[line] = true
			case len(c.imported) > 0: // which is known when all of it has been read
				own.add(p, line)
				waiting = append(waiting, waitingLine{p, line, visit})
				return nil
			default:
				own.add(p, line)
			}
			return visit(p)
		}
	}
	header := v.Header
	v.Header = func(h *Header) error {
		if imported = h.Imported(); imported {
			own = importedLines{}
		}
		if header == nil {
			return nil
		}
		return header(h)
	}
	v.Point, v.Again, v.Canary, v.Peer = once(v.Point), once(v.Again), once(v.Canary), once(v.Peer)
	tally, err := Read(name, r, v)
	if err == nil {
		err = c.settle(own, waiting)
	}
	return tally, err
}

// waitingLine is a line of an imported recording with the function that it is for.
type waitingLine struct {
	point *Point
	line  visitHash
	visit func(*Point) error
}

// settle hands on the lines of an imported recording that are no copies.
func (c *Copies) settle(own importedLines, waiting []waitingLine) error {
	copies := own.copies(c.imported)
	if own != nil {
		c.imported = append(c.imported, own)
	}
	for _, w := range waiting {
		if copies[w.line] > 0 {
			copies[w.line]--
			c.Lines++
			continue
		}
		if err := w.visit(w.point); err != nil {
			return err
		}
	}
	return nil
}

// Warning tells of the lines of something that were passed over; "" says of none.
func (c *Copies) Warning(of string) string {
	if c.Lines == 0 {
		return ""
	}
	return fmt.Sprintf("%s of %s stood there already, with the same times of the same moment, and did not count again; was a part copied behind itself, or a file imported twice?", units.Count(c.Lines, "line"), of)
}

func hashVisit(p *Point) visitHash {
	return sha256.Sum256(fmt.Append(nil, p.T, p.On, p.Op, p.Raw, p.Place, p.At, p.Elapsed, p.Times, p.Size, p.Ratio))
}

func (l importedLines) add(p *Point, line visitHash) {
	law := fmt.Sprint(p.On, " ", p.Op, " ", p.Shape.Variant())
	if l[law] == nil {
		l[law] = map[visitHash]int{}
	}
	l[law][line]++
}

// copies are the lines that earlier recordings have as well, with how often, of the laws of
// which at least half the lines are alike in two recordings. Where every digit is written
// down, two runs agree in a few percent of their times at most.
func (l importedLines) copies(earlier []importedLines) map[visitHash]int {
	all := map[visitHash]int{}
	for law, own := range l {
		for _, e := range earlier {
			if 2*common(own, e[law]) < min(total(own), total(e[law])) {
				continue
			}
			for line, n := range own {
				all[line] = max(all[line], min(n, e[law][line]))
			}
		}
	}
	return all
}

func common(a, b map[visitHash]int) int {
	n := 0
	for line, times := range a {
		n += min(times, b[line])
	}
	return n
}

func total(lines map[visitHash]int) int {
	n := 0
	for _, times := range lines {
		n += times
	}
	return n
}
