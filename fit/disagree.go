package fit

import (
	"fmt"
	"slices"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// repeats are the times of an imported point that has several, and the recordings that they
// are in.
type repeats struct {
	files []string
	times []float64
}

// farApart is the factor from which on two times of a point are no repeats of one thing. Of
// 1,599 imported points of others' tables, traces and logs that have several times 15 do not
// agree to it, 13 of them in one log of a shared network; of two times of the others the most
// that they differ by is 1.95. Single calls do: of 608 of a kernel of 25 us the slowest took
// 2.55 times the fastest.
const farApart = 2

// repeated takes in further times of a point that was imported. Those of a measurement need
// no telling: of visits that disagree the faster stands, see settle.
func (d *Data) repeated(q *Point, times []float64) {
	if !d.foreign {
		return
	}
	r := d.repeats[q.Key]
	if r == nil {
		r = &repeats{files: []string{q.source}, times: slices.Clone(q.visits)}
		d.repeats[q.Key] = r
	}
	r.times = append(r.times, times...)
	if !slices.Contains(r.files, d.reading) {
		r.files = append(r.files, d.reading)
	}
}

// agree says whether more than half of some times lie within farApart of each other. The
// median is then among these, whatever the others are.
func agree(times []float64) bool {
	sorted := slices.Sorted(slices.Values(times))
	half := len(sorted) / 2
	for i := range len(sorted) - half {
		if sorted[i+half] < farApart*sorted[i] {
			return true
		}
	}
	return false
}

// disagreeing warns of imported points whose times do not agree, but not again of
// recordings that contradict each other at most of their points; "" for none.
func (d *Data) disagreeing(contradicted bool) string {
	var first *Point
	var files []string
	n := 0
	for i, p := range d.Points {
		r := d.repeats[p.Key]
		if r == nil || agree(r.times) || contradicted && len(r.files) > 1 {
			continue
		}
		if n++; n == 1 {
			first = &d.Points[i]
		}
		for _, f := range r.files {
			if !slices.Contains(files, f) {
				files = append(files, f)
			}
		}
	}
	if n == 0 {
		return ""
	}
	of, which := d.repeats[first.Key].times, ", such as"
	if n == 1 {
		which = ":"
	}
	return fmt.Sprintf("%s: %s took %d times as long and more at one time than at another%s %s (%s and %s); laws take the median, of two times their mean, which nobody measured: see what differs, and import what holds alone",
		strings.Join(files, ", "), units.Count(n, "point"), farApart, which, pointNamed(*first), units.Seconds(slices.Min(of)), units.Seconds(slices.Max(of)))
}

// pointNamed is a point in words: its stratum, and where it lies there.
func pointNamed(p Point) string {
	located, ok := p.Shape.(op.Located)
	if !ok {
		return stratumOf(p).String()
	}
	var at []string
	coords := located.Coords()
	for i, name := range op.CoordNames(p.Shape.Kind()) {
		at = append(at, fmt.Sprintf("%s %.10g", name, coords[i]))
	}
	return fmt.Sprintf("%s at %s", stratumOf(p), strings.Join(at, ", "))
}
