package fit

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// rows are calls of one op of 1 to n tokens, each of a time of its own.
func rows(n int) []Point {
	var points []Point
	for i := range n {
		points = append(points, Point{
			On: "d", Key: fmt.Sprint(i), Seconds: 1e-6 + 1e-9*float64(i+1),
			Shape: op.Norm{Rowwise: op.Rowwise{Tokens: units.Tokens(i + 1), Width: 64, DType: op.F32}},
		})
	}
	return points
}

// A law of more points than it is fitted to says so; it keeps the ends of its range, and
// its errors are of all that were set aside.
func TestALawOfManyPointsIsFittedToSome(t *testing.T) {
	if testing.Short() {
		t.Skip("fits too much for the race detector")
	}
	const n = 2 * mostFitted
	d := NewData()
	d.Devices, d.Points = []op.DeviceType{{Name: "d", Fingerprint: "f", Parallel: 1}}, rows(n)
	p, err := Fit(d, Defaults())
	if err != nil {
		t.Fatal(err)
	}
	l := p.Laws[0]
	if l.Fit.Points+l.Fit.Outside != mostFitted || l.Held.Points+l.Held.Outside != n/5 {
		t.Errorf("%d + %d points fitted, %d + %d held out", l.Fit.Points, l.Fit.Outside, l.Held.Points, l.Held.Outside)
	}
	if r := l.Range[0]; r.Min != 1 || r.Max != n {
		t.Errorf("the range is %v", l.Range)
	}
	want := fmt.Sprintf("fitted to %d of %d points", mostFitted, n-n/5)
	if !slices.ContainsFunc(p.Warnings, func(w string) bool { return strings.Contains(w, want) }) {
		t.Errorf("no warning of %q: %q", want, p.Warnings)
	}
}

// Of points of which many reach an end of an axis one is kept all the same, and as many
// points as are wanted.
func TestFewerPointsReachAsFar(t *testing.T) {
	points := rows(100)
	for i := range 3 { // the ends, which come first and are the first to go
		points[i].Shape = points[99].Shape
		points[3+i].Shape = points[6].Shape
	}
	few := fewer(op.KindNorm, points, 10)
	if got, want := hull(op.KindNorm, few), hull(op.KindNorm, points); len(few) != 10 || !slices.Equal(got, want) {
		t.Errorf("%d points in %v, want 10 in %v", len(few), got, want)
	}
	if got := fewer(op.KindNorm, points, 10); !slices.EqualFunc(got, few, func(a, b Point) bool { return a.Key == b.Key }) {
		t.Error("twice the same is not the same")
	}
}
