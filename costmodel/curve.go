package costmodel

import (
	"fmt"
	"math"
	"sort"

	"github.com/evenkeel/evenkeel/internal/units"
)

// CurveForm says how a Curve interpolates between its numbers.
type CurveForm string

// The forms of a curve.
const (
	AlphaBeta CurveForm = "alpha_beta" // one or more pieces alpha + beta x
	LogLog    CurveForm = "log_log"    // straight lines between knots in log-log
)

// Curve is the law of ops that follow one size (op.Volume): the bytes on the
// busiest port of a collective, or a bandwidth op's memory traffic where the
// caches bend it more than a straight line allows. It never falls
// inside a piece; between alpha-beta pieces it may step, as protocols do.
//
// A document holds it in lists, see curveWire.
type Curve struct {
	Form   CurveForm
	Pieces []Piece // alpha_beta, by rising From
	Knots  []Knot  // log_log, by rising Bytes
	// HalfWidths are half the widths of the 90 % interval at the knots, in
	// |log(measured/predicted)|: wide where nothing was measured nearby. Absent,
	// the law's Spread holds everywhere.
	HalfWidths []float64
}

// Piece is alpha + beta x from a size on, to the next piece.
type Piece struct {
	From  units.Bytes `json:"from_bytes"`
	Alpha Coef        `json:"alpha_s"`
	Beta  Coef        `json:"s_per_byte"`
}

// maxHalfWidth bounds the interval at a knot: a factor of e^7, a thousand.
const maxHalfWidth = 7

// Knot is a point of a log-log curve.
type Knot struct {
	Bytes   units.Bytes   `json:"bytes"`
	Seconds units.Seconds `json:"time_s"`
}

// Seconds evaluates the curve at x bytes.
//
// Outside its knots a log-log curve is constant below (latency) and keeps the
// rate of its last stretch above, never a rate better than its last knot's
// marginal one.
func (c *Curve) Seconds(x units.Bytes) units.Seconds {
	if c.Form == AlphaBeta {
		p := c.piece(x)
		return units.Seconds(p.Alpha.Value + p.Beta.Value*float64(x))
	}
	n := len(c.Knots)
	i := sort.Search(n, func(i int) bool { return c.Knots[i].Bytes >= x })
	switch {
	case i == 0:
		return c.Knots[0].Seconds
	case i == n && n == 1:
		return c.Knots[0].Seconds * units.Seconds(float64(x)/float64(c.Knots[0].Bytes))
	case i == n:
		a, b := c.Knots[n-2], c.Knots[n-1]
		slope := float64(b.Seconds-a.Seconds) / float64(b.Bytes-a.Bytes)
		return b.Seconds + units.Seconds(slope*float64(x-b.Bytes))
	}
	a, b := c.Knots[i-1], c.Knots[i]
	u := math.Log(float64(x)/float64(a.Bytes)) / math.Log(float64(b.Bytes)/float64(a.Bytes))
	return units.Seconds(float64(a.Seconds) * math.Pow(float64(b.Seconds)/float64(a.Seconds), u))
}

// HalfWidth is half the width of the 90 % interval at x bytes, in
// |log(measured/predicted)|, including what it widens by beyond the measured sizes;
// outside the knots it is that of the nearest knot. It is false for a curve without
// widths by size, whose law has one Spread for all. It does not allocate.
func (c *Curve) HalfWidth(x units.Bytes) (float64, bool) {
	n := len(c.Knots)
	if len(c.HalfWidths) == 0 {
		return 0, false
	}
	i := sort.Search(n, func(i int) bool { return c.Knots[i].Bytes >= x })
	switch i {
	case 0:
		return c.HalfWidths[0], true
	case n:
		return c.HalfWidths[n-1], true
	}
	a, b := c.Knots[i-1], c.Knots[i]
	u := math.Log(float64(x)/float64(a.Bytes)) / math.Log(float64(b.Bytes)/float64(a.Bytes))
	return c.HalfWidths[i-1] + u*(c.HalfWidths[i]-c.HalfWidths[i-1]), true
}

func (c *Curve) piece(x units.Bytes) Piece {
	i := sort.Search(len(c.Pieces), func(i int) bool { return c.Pieces[i].From > x })
	return c.Pieces[max(0, i-1)]
}

// FloorPerByte is the least time per byte, in s/B, that the curve charges for any size up
// to most bytes. Lower bounds rely on it.
func (c *Curve) FloorPerByte(most units.Bytes) units.Seconds {
	best := c.Seconds(most) / units.Seconds(most)
	try := func(x units.Bytes) {
		if x > 0 && x < most {
			best = min(best, c.Seconds(x)/units.Seconds(x))
		}
	}
	// Within an alpha-beta piece the cost a byte falls, so its right end is
	// the least; between two knots it is monotone, so an end is.
	for _, p := range c.Pieces {
		try(p.From - 1)
	}
	for _, k := range c.Knots {
		try(k.Bytes)
	}
	return best
}

func (c *Curve) validate() error {
	switch {
	case c.Form == AlphaBeta && len(c.Pieces) > 0 && len(c.Knots) == 0 && len(c.HalfWidths) == 0:
		return c.validatePieces()
	case c.Form == LogLog && len(c.Knots) > 0 && len(c.Pieces) == 0:
		return c.validateKnots()
	}
	return fmt.Errorf("curve.form: %q with %d pieces and %d bytes: want alpha_beta with pieces or log_log with bytes", c.Form, len(c.Pieces), len(c.Knots))
}

func (c *Curve) validatePieces() error {
	for i, p := range c.Pieces {
		if p.From < 0 || (i > 0 && p.From <= c.Pieces[i-1].From) {
			return fmt.Errorf("curve.pieces[%d].from_bytes: %d: must rise", i, int64(p.From))
		}
		if err := p.Alpha.validate(); err != nil {
			return fmt.Errorf("curve.pieces[%d].alpha_s: %w", i, err)
		}
		if err := p.Beta.validate(); err != nil {
			return fmt.Errorf("curve.pieces[%d].s_per_byte: %w", i, err)
		}
		if p.Alpha.Value+p.Beta.Value <= 0 {
			return fmt.Errorf("curve.pieces[%d]: costs nothing", i)
		}
	}
	return nil
}

// validateKnots names the lists that a document has for the knots.
func (c *Curve) validateKnots() error {
	last := Knot{}
	for i, k := range c.Knots {
		switch {
		case k.Bytes <= last.Bytes:
			return fmt.Errorf("curve.bytes[%d]: %d: must rise from 1 on", i, int64(k.Bytes))
		case !(k.Seconds > 0) || math.IsInf(float64(k.Seconds), 0):
			return fmt.Errorf("curve.time_s[%d]: %v: must be positive", i, float64(k.Seconds))
		case k.Seconds < last.Seconds:
			return fmt.Errorf("curve.time_s[%d]: %v after %v: must not fall", i, float64(k.Seconds), float64(last.Seconds))
		}
		last = k
	}
	return c.validateWidths()
}

func (c *Curve) validateWidths() error {
	if n := len(c.HalfWidths); n > 0 && n != len(c.Knots) {
		return fmt.Errorf("curve.half_widths: %d for %d bytes: want one each, or none", n, len(c.Knots))
	}
	for i, h := range c.HalfWidths {
		if !(h > 0 && h < maxHalfWidth) {
			return fmt.Errorf("curve.half_widths[%d]: %v: want above 0 and below %d", i, h, maxHalfWidth)
		}
	}
	return nil
}
