package costmodel

import (
	"fmt"
	"math"
	"sort"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// Law maps the shapes of one op (of one variant, on one device type or group
// signature) to seconds. Exactly one of Linear and Curve is set.
type Law struct {
	Op      op.Kind    `json:"op"`
	Variant op.Variant `json:"variant,omitzero"`
	Device  string     `json:"device,omitempty"` // device type, for compute and bandwidth ops
	Group   string     `json:"group,omitempty"`  // group signature, for collectives

	Linear *Linear `json:"linear,omitempty"`
	Curve  *Curve  `json:"curve,omitempty"`

	Range  []AxisRange `json:"range"`  // the measured hull, axis by axis
	Spread Spread      `json:"spread"` // of measured over predicted, 90 %
	Fit    FitError    `json:"fit"`    // the points it was fitted to
	Held   FitError    `json:"held"`   // points set aside before the fit
	// Rivals are the simpler and the other forms that were tried on the same
	// points, with their cross-validated error, so that a reader sees what the
	// chosen form buys.
	Rivals []Rival `json:"rivals,omitempty"`
}

// Linear is the law of compute and most bandwidth ops: a sum of physical costs,
// every coefficient non-negative, for a device that runs Parallel tasks at a time.
//
//	t = launch + s_per_flop F + s_per_row R + s_per_byte B + s_per_tail_flop T
//
// with F, R, B, T the op.Features of the shape: F holds the tail T already, and
// the last coefficient is what unevenness costs beyond that.
type Linear struct {
	Parallel int  `json:"parallel"`
	Launch   Coef `json:"launch_s"`
	PerFLOP  Coef `json:"s_per_flop"`
	PerRow   Coef `json:"s_per_row"`
	PerByte  Coef `json:"s_per_byte"`
	PerTail  Coef `json:"s_per_tail_flop"`
}

// Coef is a fitted coefficient with its 95 % interval, in the unit that its
// key names. A coefficient that the points cannot tell from others has a wide
// interval.
type Coef struct {
	Value float64 `json:"value"`
	Lo    float64 `json:"lo95"`
	Hi    float64 `json:"hi95"`
}

// Coefs lists the coefficients in the order of LinearNames.
func (l *Linear) Coefs() [5]Coef { return [5]Coef{l.Launch, l.PerFLOP, l.PerRow, l.PerByte, l.PerTail} }

// LinearNames names the coefficients of Linear by their document keys.
func LinearNames() [5]string {
	return [5]string{"launch_s", "s_per_flop", "s_per_row", "s_per_byte", "s_per_tail_flop"}
}

func (l *Linear) seconds(s op.Featured) float64 {
	f := s.Features(l.Parallel)
	return l.Launch.Value + l.PerFLOP.Value*f.FLOPs + l.PerRow.Value*f.Rows + l.PerByte.Value*f.Bytes + l.PerTail.Value*f.Tail
}

// CurveForm is how a Curve runs between its numbers.
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
type Curve struct {
	Form   CurveForm `json:"form"`
	Pieces []Piece   `json:"pieces,omitempty"` // alpha_beta, by rising From
	Knots  []Knot    `json:"knots,omitempty"`  // log_log, by rising Bytes
}

// Piece is alpha + beta x from a size on, to the next piece.
type Piece struct {
	From  units.Bytes `json:"from_bytes"`
	Alpha Coef        `json:"alpha_s"`
	Beta  Coef        `json:"s_per_byte"`
}

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

func (c *Curve) piece(x units.Bytes) Piece {
	i := sort.Search(len(c.Pieces), func(i int) bool { return c.Pieces[i].From > x })
	return c.Pieces[max(0, i-1)]
}

// FloorPerByte is the least seconds a byte that the curve charges anywhere up
// to `most` bytes: what a lower bound may count on.
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

// AxisRange is the measured range of one axis of op.Coords.
type AxisRange struct {
	Axis string  `json:"axis"`
	Min  float64 `json:"min"`
	Max  float64 `json:"max"`
}

// Spread holds the ends of the 90 % interval of measured over predicted time,
// estimated by cross-validation on the fitted points.
type Spread struct {
	Lo float64 `json:"lo"` // 0 < lo <= 1
	Hi float64 `json:"hi"` // >= 1
}

// FitError summarises |log(measured/predicted)| over a set of points; 0.05
// reads as 5 %.
type FitError struct {
	Points   int     `json:"points"`
	Outside  int     `json:"outside"` // of these, outside the fitted range; not in the numbers below
	Median   float64 `json:"median"`
	P90      float64 `json:"p90"`
	P95      float64 `json:"p95"`
	Bias     float64 `json:"bias"`     // median of log(measured/predicted); positive: too optimistic
	Coverage float64 `json:"coverage"` // share inside the 90 % interval
}

// Rival is another form tried on the same points.
type Rival struct {
	Form   string  `json:"form"`
	Median float64 `json:"median"` // cross-validated
	Chosen bool    `json:"chosen,omitzero"`
}

// On names where the law holds: the device type or the group signature.
func (l *Law) On() string { return l.Device + l.Group }

// Form names the form in use.
func (l *Law) Form() string {
	if l.Linear != nil {
		return "linear"
	}
	if l.Curve.Form == AlphaBeta && len(l.Curve.Pieces) > 1 {
		return fmt.Sprintf("%d-piece alpha_beta", len(l.Curve.Pieces))
	}
	return string(l.Curve.Form)
}

// Predict evaluates the law at a shape of its op. Outside the measured range
// the interval widens with every doubling beyond it and the source says
// extrapolated. It does not allocate.
func (l *Law) Predict(s op.Shape) Estimate {
	mid := float64(l.Seconds(s))
	beyond := l.Beyond(s)
	e := Estimate{Mid: units.Seconds(mid), Source: Interpolated}
	widen := 1 + beyond
	e.Lo = units.Seconds(mid * math.Pow(l.Spread.Lo, widen))
	e.Hi = units.Seconds(mid * math.Pow(l.Spread.Hi, widen))
	if beyond > rangeSlack {
		e.Source = Extrapolated
	}
	return e
}

// Seconds evaluates the law at a shape of its op, without interval or source.
func (l *Law) Seconds(s op.Shape) units.Seconds {
	if l.Linear != nil {
		return units.Seconds(l.Linear.seconds(s.(op.Featured)))
	}
	return l.Curve.Seconds(op.Volume(s))
}

// rangeSlack, in doublings, is how far outside its range a law still counts as
// interpolating: grids are sparse and their corners are rarely measured.
const rangeSlack = 0.25

// batchAxis is the place of the batch among the axes of attention.
const batchAxis = 4

// Beyond is how many doublings a shape lies outside the measured range, on its
// worst axis; 0 inside.
func (l *Law) Beyond(s op.Shape) float64 {
	located, ok := s.(op.Located)
	if !ok {
		return 0
	}
	at := located.Coords()
	worst := 1.0
	for i, r := range l.Range {
		worst = max(worst, r.Min/at[i], at[i]/r.Max)
	}
	if len(l.Range) == batchAxis { // of one block a call
		worst = max(worst, at[batchAxis])
	}
	if worst == 1 {
		return 0 // the usual case, without a logarithm an axis
	}
	return math.Log2(worst)
}
