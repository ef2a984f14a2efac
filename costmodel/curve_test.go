package costmodel

import (
	"math"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/internal/units"
)

// widened is a curve whose interval is known size by size.
func widened() *Curve {
	return &Curve{Form: LogLog, Knots: []Knot{{100, 1}, {10000, 4}, {20000, 6}}, HalfWidths: []float64{0.1, 0.3, 0.2}}
}

func TestHalfWidth(t *testing.T) {
	c := widened()
	for _, want := range []struct {
		x    units.Bytes
		half float64
	}{{0, 0.1}, {100, 0.1}, {1000, 0.2}, {10000, 0.3}, {20000, 0.2}, {1 << 40, 0.2}} { // 1000 lies half way in logarithms
		if got, ok := c.HalfWidth(want.x); !ok || math.Abs(got-want.half) > 1e-12 {
			t.Errorf("at %d: %v, %v, want %v", want.x, got, ok, want.half)
		}
	}
	if _, ok := (&Curve{Form: LogLog, Knots: c.Knots}).HalfWidth(5); ok {
		t.Error("a curve without half widths knows its interval")
	}
}

func TestHalfWidthsAreValidated(t *testing.T) {
	for want, change := range map[string]func(*Curve){
		"half_widths: 2 for 3 bytes": func(c *Curve) { c.HalfWidths = c.HalfWidths[:2] },
		"half_widths[1]: 0":          func(c *Curve) { c.HalfWidths[1] = 0 },
		"half_widths[2]: NaN":        func(c *Curve) { c.HalfWidths[2] = math.NaN() },
		"half_widths[0]: 7":          func(c *Curve) { c.HalfWidths[0] = 7 },
		"curve.form": func(c *Curve) {
			c.Form, c.Pieces, c.Knots = AlphaBeta, []Piece{{0, coef(1), coef(1)}}, nil
		},
	} {
		c := widened()
		if err := c.validate(); err != nil {
			t.Fatal(err)
		}
		change(c)
		if err := c.validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// A prediction of 40 knots, as the solver asks for by the million.
func BenchmarkCurve(b *testing.B) {
	c := &Curve{Form: LogLog}
	for i := range 40 {
		c.add(math.Exp2(float64(i)/2+5), math.Exp2(float64(i)/3)*1e-6, 0.1)
	}
	b.ReportAllocs()
	x := units.Bytes(1)
	for b.Loop() {
		x = (x*5 + 3) % (1 << 26)
		half, _ := c.HalfWidth(x)
		if !(float64(c.Seconds(x))*half > 0) {
			b.Fatal("no time")
		}
	}
}
