package costmodel

import (
	"fmt"
	"math"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// Law maps the shapes of one op (of one variant, on one device type or group
// signature) to seconds. Exactly one of its bodies (Linear, Curve, Attention,
// GEMM) is set; a Correction multiplies what the body says.
type Law struct {
	Op      op.Kind    `json:"op"`
	Variant op.Variant `json:"variant,omitzero"`
	Device  string     `json:"device,omitempty"` // device type, for compute and bandwidth ops
	Group   string     `json:"group,omitempty"`  // group signature, for collectives

	Linear *Linear `json:"linear,omitempty"`
	Curve  *Curve  `json:"curve,omitempty"`
	// The bodies of a GPU's compute ops: waves of tiles over its SMs.
	Attention *AttentionCore `json:"attention,omitempty"`
	GEMM      *GEMMCore      `json:"gemm,omitempty"`
	// Scale multiplies the body's time; absent, it is 1.
	Scale float64 `json:"scale,omitzero"`
	// Correction is what the body's residuals taught.
	Correction *Field `json:"correction,omitempty"`

	Range  []AxisRange `json:"range"`  // the measured hull, axis by axis
	Spread Spread      `json:"spread"` // of measured over predicted, 90 %
	// Width is the half width of the 90 % interval, as log |log(measured/predicted)|,
	// where it is known shape by shape; Spread is then that of all shapes together.
	Width *Field `json:"width,omitempty"`
	// Widen is by what factor of itself the interval's half width grows with
	// every doubling beyond the range; absent, it is 1.
	Widen float64 `json:"widen_per_doubling,omitzero"`
	// Port bounds a collective's messages, where it is known: none is predicted to take
	// less time than its busiest rank needs to send its bytes.
	Port *op.Port `json:"port,omitempty"`
	// From is the device type that the law was borrowed from: its shape is that
	// one's, its scale the ratio of the datasheets, and of the points of its own
	// where there are some.
	From string `json:"transferred_from,omitempty"`
	// Assumed says, in one sentence, what the law rests on where nobody measured
	// the op: another op's law, or the datasheet.
	Assumed string `json:"assumed,omitempty"`
	// Doubts are the parts of its interval that other laws have as well; what they leave
	// is the law's own.
	Doubts []Doubt  `json:"doubts,omitempty"`
	Fit    FitError `json:"fit"`  // the points it was fitted to
	Held   FitError `json:"held"` // points set aside before the fit
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
	switch {
	case l.Linear != nil:
		return "linear" + l.corrected()
	case l.Attention != nil, l.GEMM != nil:
		return "tiles" + l.corrected()
	case l.Curve.Form == AlphaBeta && len(l.Curve.Pieces) > 1:
		return fmt.Sprintf("%d-piece alpha_beta", len(l.Curve.Pieces))
	}
	return string(l.Curve.Form)
}

func (l *Law) corrected() string {
	if l.Correction == nil {
		return ""
	}
	return " x field"
}

// Predict evaluates the law at a shape of its op. Outside the measured range
// the interval widens with every doubling beyond it and the source says
// extrapolated; that of a borrowed law says transferred, that of an assumed one
// assumed. It does not allocate.
func (l *Law) Predict(s op.Shape) Estimate {
	mid := float64(l.Seconds(s))
	beyond := l.Beyond(s)
	e := Estimate{Mid: units.Seconds(mid), Source: Interpolated}
	lo, hi := l.interval(s, beyond)
	e.Lo, e.Hi = max(units.Seconds(mid*lo), l.least(s)), units.Seconds(mid*hi)
	if beyond > rangeSlack {
		e.Source = Extrapolated
	}
	if l.From != "" {
		e.Source = e.Source.Worse(Transferred)
	}
	if l.Assumed != "" {
		e.Source = Assumed
	}
	return e
}

// widestLog bounds the half width of an interval, in log time.
const widestLog = 50

// interval gives the ends of the 90 % interval of measured over predicted at a
// shape so many doublings outside the range.
func (l *Law) interval(s op.Shape, beyond float64) (lo, hi float64) {
	if l.Curve != nil {
		if half, ok := l.Curve.HalfWidth(op.Volume(s)); ok { // holds beyond the range too
			return math.Exp(-half), math.Exp(half)
		}
	}
	widen := 1 + beyond
	if l.Widen > 0 {
		widen = 1 + l.Widen*beyond
	}
	if l.Width != nil {
		half := min(widen*math.Exp(l.Width.WidthLog(s)), widestLog)
		return math.Exp(-half), math.Exp(half)
	}
	lo, hi = math.Pow(l.Spread.Lo, widen), math.Pow(l.Spread.Hi, widen)
	if beyond > 0 && l.Curve != nil && l.Group != "" {
		hi = min(hi, l.Spread.Hi*max(1, l.steady(s)))
	}
	return lo, hi
}

// steady is how many times as long as predicted a message takes that is larger than the
// measured ones and moves at the rate of the largest: a larger one moves no slower, as its
// latency weighs less. +Inf for one that is not larger.
func (l *Law) steady(s op.Shape) float64 {
	at := s.(op.Located).Coords()
	more := at[0] / l.Range[0].Max
	if !(more > 1) {
		return math.Inf(1)
	}
	x := op.Volume(s)
	return float64(l.Curve.Seconds(units.Bytes(float64(x)/more))) * more / float64(l.Curve.Seconds(x))
}

// Seconds evaluates the law at a shape of its op, without interval or source.
func (l *Law) Seconds(s op.Shape) units.Seconds {
	t := l.body(s)
	if l.Scale != 0 {
		t *= l.Scale
	}
	if l.Correction != nil {
		t *= math.Exp(l.Correction.Log(s))
	}
	return max(units.Seconds(t), l.least(s))
}

// least is the time that the law's port bounds a shape by; 0 where it has none.
func (l *Law) least(s op.Shape) units.Seconds {
	if l.Port == nil {
		return 0
	}
	return l.Port.Least(s.Kind(), s.(op.Grouped).Ranks(), op.Volume(s))
}

// MessageSeconds is Seconds of a collective over a message, for who asks many times:
// a law that is a curve makes no shape of it.
func (l *Law) MessageSeconds(k op.Kind, m op.Message) units.Seconds {
	if l.Curve == nil || l.Correction != nil {
		return l.Seconds(op.OfMessage(k, m))
	}
	sent := op.MessageVolume(k, m)
	t := l.Curve.Seconds(sent)
	if l.Scale != 0 {
		t *= units.Seconds(l.Scale)
	}
	if l.Port != nil {
		t = max(t, l.Port.Least(k, m.Group, sent))
	}
	return t
}

// Slowed is the law with every time multiplied by a factor, the least ones too.
func (l Law) Slowed(by float64) Law {
	if l.Port != nil {
		l.Port = &op.Port{PerS: l.Port.PerS / units.BytesPerS(by), Sums: l.Port.Sums}
	}
	if l.Scale != 0 {
		by *= l.Scale
	}
	l.Scale = by
	return l
}

// body is the law without scale and correction.
func (l *Law) body(s op.Shape) float64 {
	switch {
	case l.Curve != nil:
		return float64(l.Curve.Seconds(op.Volume(s)))
	case l.Linear != nil:
		return l.Linear.seconds(s.(op.Featured))
	}
	// The simulator passes attention by pointer (see coster).
	switch v := s.(type) {
	case op.AttnFwd:
		return l.Attention.Seconds(v.Attention, false)
	case *op.AttnFwd:
		return l.Attention.Seconds(v.Attention, false)
	case op.AttnBwd:
		return l.Attention.Seconds(v.Attention, true)
	case *op.AttnBwd:
		return l.Attention.Seconds(v.Attention, true)
	case op.GEMM:
		return l.GEMM.Seconds(v)
	}
	panic("costmodel: a law of " + string(l.Op) + " was asked about " + string(s.Kind()))
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
