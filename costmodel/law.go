package costmodel

import (
	"fmt"
	"math"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// Law predicts the time of one op, of one variant (data type, mask and so on), on one
// device type or in one group of devices. For a call of shape s it is
//
//	t(s) = max(Scale body(s) exp(Correction(s)), least(s), FLOPs(s)/Peak)   seconds
//
// where least(s) is what Port allows, and inside a tile of attention forward at least what it
// is at the end of the tile before (tilesBefore). The body is exactly one of Linear, Curve,
// Attention and GEMM. The true time lies within a 90 % interval around t: from t exp(-h) to
// t exp(h) where a half width h is known shape by shape (Width, or the half widths of Curve),
// otherwise from t times the low end of Spread to t times its high end.
type Law struct {
	Op      op.Kind    `json:"op"`
	Variant op.Variant `json:"variant,omitzero"`
	// Where the law holds: Device is a device type (compute and bandwidth ops), Group the
	// signature of a group of devices (collectives). The other one is empty.
	Device string `json:"device,omitempty"`
	Group  string `json:"group,omitempty"`

	// Linear is a sum of costs proportional to FLOPs, rows and bytes: the body of
	// bandwidth ops, and of compute ops on devices without a known datasheet (CPUs).
	Linear *Linear `json:"linear,omitempty"`
	// Curve gives the time by bytes alone: the body of collectives, and of bandwidth ops
	// that a straight line does not fit.
	Curve *Curve `json:"curve,omitempty"`
	// Attention and GEMM model how a GPU kernel's tiles fill its multiprocessors (SMs) in
	// waves: the bodies of compute ops on GPUs with a known datasheet. Of packed documents
	// Attention is the body where it predicts better than Linear.
	Attention *AttentionCore `json:"attention,omitempty"`
	GEMM      *GEMMCore      `json:"gemm,omitempty"`
	// Scale multiplies the body's time. It has no unit; 0 (absent) means 1.
	Scale float64 `json:"scale,omitzero"`
	// Correction is learnt from the body's residuals: log(measured/body) as a smooth
	// function of the shape. nil means no correction.
	Correction *Field `json:"correction,omitempty"`

	// Range is the least and the greatest value that was measured on each axis of the
	// shape, in the order of the axes. Outside it a prediction is marked
	// Extrapolated.
	Range []AxisRange `json:"range"`
	// MaxCells is the most Cells of a shape that was measured; 0 where that is not known, and of
	// linear laws, whose costs are the cells themselves. A shape of more is outside the range
	// even where it is inside it on every axis.
	MaxCells float64 `json:"range_max_cells,omitzero"`
	// Spread is the 90 % interval of measured/predicted over all shapes in the range.
	Spread Spread `json:"spread"`
	// Width, if not nil, gives the half width h of the interval shape by shape. The field's
	// value is log(h), where h bounds |log(measured/predicted)| in 90 % of cases. Beyond the
	// range it gives way to the half widths of a Curve that has some.
	Width *Field `json:"width,omitempty"`
	// Widen says how the interval grows outside the range: d doublings beyond it, half
	// widths (in log time) are multiplied by 1 + Widen d. 0 (absent) means 1.
	Widen float64 `json:"widen_per_doubling,omitzero"`
	// Port, if not nil, is the peak rate at which a rank of the group can send. It bounds
	// a collective's time from below by bytes over rate.
	Port *op.Port `json:"port,omitempty"`
	// Peak, if not 0, is a rate of arithmetic that the device does not exceed. It bounds a
	// compute op's time from below by its FLOPs over that.
	Peak units.FLOPsPerS `json:"peak_flops_per_s,omitzero"`
	// From names the device type (for collectives, the groups) whose law this one was
	// transferred from; it is empty for a law fitted to points of its own. Coefficients are
	// those of the other device's law, scaled by the ratios of the two datasheets' rates
	// and adjusted to this device's own points where there are some.
	From string `json:"transferred_from,omitempty"`
	// Assumed, if not empty, says in one sentence what the law was derived from because the
	// op was never measured: the law of another op, or the datasheet.
	Assumed string `json:"assumed,omitempty"`
	// Doubts are the components of the interval that other laws share, because they rest on
	// the same assumption. The rest of the interval is this law's own, independent error.
	Doubts []Doubt `json:"doubts,omitempty"`
	// InTraining has the ratio of whole training steps that is in the law's time, and how far it
	// may be off: of a Predictor's laws, not of a profile's. That interval widens nowhere.
	InTraining *TrainingFact `json:"-"`
	// Fit is the error on the points that the law was fitted to, Held the error on points
	// that were set aside before the fit.
	Fit  FitError `json:"fit"`
	Held FitError `json:"held"`
	// Rivals are all forms of law that were tried on the same points, with their
	// cross-validated errors, to show what the chosen form gains.
	Rivals []Rival `json:"rivals,omitempty"`
}

// Linear is a law that is a sum of physical costs with non-negative coefficients, for a
// device that runs Parallel tasks at a time:
//
//	t = launch_s + s_per_flop F + s_per_row R + s_per_byte B + s_per_tail_flop T
//
// F, R, B and T are the op.Features of the shape: FLOPs of the busiest parallel unit, rows
// per unit, bytes of memory traffic, and tail FLOPs. F includes T already;
// s_per_tail_flop is what an unfilled last wave costs on top of that.
type Linear struct {
	Parallel int  `json:"parallel"` // units (SMs or threads), each of which runs one task at a time
	Launch   Coef `json:"launch_s"`
	PerFLOP  Coef `json:"s_per_flop"`
	PerRow   Coef `json:"s_per_row"`
	PerByte  Coef `json:"s_per_byte"`
	PerTail  Coef `json:"s_per_tail_flop"`
}

// Coef is a fitted coefficient with its 95 % confidence interval, in the unit that its
// key in the document names (_s: seconds, s_per_byte: seconds per byte). The interval is
// wide where the points do not separate the coefficient's effect from that of others.
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

// AxisRange is the measured range of one axis of op.Coords, in the unit of the axis
// (tokens, heads, bytes and so on).
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

// FitError summarises a law's errors |log(measured/predicted)| over a set of points; 0.05
// is an error of about 5 %.
type FitError struct {
	Points   int     `json:"points"`
	Outside  int     `json:"outside,omitzero"` // points outside the fitted range, which Points and all numbers below leave out
	Median   float64 `json:"median"`
	P90      float64 `json:"p90"`      // 90th percentile
	P95      float64 `json:"p95"`      // 95th percentile
	Bias     float64 `json:"bias"`     // median of log(measured/predicted); positive where predictions are too low
	Coverage float64 `json:"coverage"` // share of points inside the 90 % interval, 0 to 1
}

// Rival is a form of law that was tried on a law's points.
type Rival struct {
	Form   string  `json:"form"`
	Median float64 `json:"median"`          // median of |log(measured/predicted)|, cross-validated
	Chosen bool    `json:"chosen,omitzero"` // the law has this form
}

// On is where the law holds: its device type or group signature.
func (l *Law) On() string { return l.Device + l.Group }

// Form names the law's form as reports show it, such as "linear", "tiles x field" or
// "2-piece alpha_beta".
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

// Predict is the time of a call of shape s, with its 90 % interval and its source. Outside
// the measured range the interval widens with every doubling beyond it (see Widen). The
// source is Interpolated inside the range, Extrapolated outside it, Transferred for a law
// or a ratio of whole steps of another device type (From, InTraining) and Assumed for one
// that was not measured at all. It does not allocate.
func (l *Law) Predict(s op.Shape) Estimate {
	mid := float64(l.Seconds(s))
	beyond := l.Beyond(s)
	e := Estimate{Mid: units.Seconds(mid), Source: Interpolated}
	lo, hi := l.interval(s, beyond)
	if t := l.InTraining; t != nil && t.Ratio > 1 {
		lo, hi = 1/CombineFactors(1/lo, t.Ratio), CombineFactors(hi, t.Ratio)
	}
	e.Lo, e.Hi = max(units.Seconds(mid*lo), l.least(s)), units.Seconds(mid*hi)
	if beyond > rangeSlack {
		e.Source = Extrapolated
	}
	if l.From != "" || l.InTraining != nil && l.InTraining.elsewhere() {
		e.Source = e.Source.Worse(Transferred)
	}
	if l.Assumed != "" {
		e.Source = Assumed
	}
	return e
}

// widestLog is the largest half width of an interval, in log time: exp of it is still
// finite.
const widestLog = 50

// interval gives the ends of the 90 % interval of measured/predicted at a shape that lies
// `beyond` doublings outside the range.
func (l *Law) interval(s op.Shape, beyond float64) (lo, hi float64) {
	if l.Curve != nil && (beyond > 0 || l.Width == nil) {
		if half, ok := l.Curve.HalfWidth(op.Volume(s)); ok {
			return math.Exp(-half), math.Exp(half)
		}
	}
	widen := 1 + beyond
	if l.Widen > 0 {
		widen = 1 + l.Widen*beyond
	}
	lo, hi = math.Pow(l.Spread.Lo, widen), math.Pow(l.Spread.Hi, widen)
	most := l.Spread.Hi
	if l.Width != nil {
		half := math.Exp(l.Width.WidthLog(s))
		most = math.Exp(half)
		half = min(widen*half, widestLog)
		lo, hi = math.Exp(-half), math.Exp(half)
	}
	if beyond > 0 && l.Curve != nil && l.Group != "" {
		hi = min(hi, most*max(1, l.steady(s)))
	}
	if beyond > 0 {
		if untold := l.untold(s); untold > 0 {
			lo, hi = 1/CombineFactors(1/lo, math.Exp(untold)), CombineFactors(hi, math.Exp(untold))
		}
	}
	return lo, hi
}

// steady bounds the time of a message that is larger than all measured ones: it takes no
// longer than at the rate (bytes per second) of the largest measured one, since latency is
// a smaller share of its time. The bound is given as a factor of the predicted time; it is
// +Inf for messages inside the measured range.
func (l *Law) steady(s op.Shape) float64 {
	at := s.(op.Located).Coords()
	more := at[0] / l.Range[0].Max
	if !(more > 1) {
		return math.Inf(1)
	}
	x := op.Volume(s)
	return float64(l.Curve.Seconds(units.Bytes(float64(x)/more))) * more / float64(l.Curve.Seconds(x))
}

// Seconds is the time of a call of shape s, Predict's Mid, without interval or source.
func (l *Law) Seconds(s op.Shape) units.Seconds {
	t := l.body(s)
	if l.Scale != 0 {
		t *= l.Scale
	}
	if l.Correction != nil {
		log := l.Correction.Log(s)
		t = max(t*math.Exp(log), l.tilesBefore(s, log))
	}
	return max(units.Seconds(t), l.least(s))
}

// least is the lower bound of a shape's time by the law's port or peak; 0 for a law without.
func (l *Law) least(s op.Shape) units.Seconds {
	switch {
	case l.Port != nil:
		return l.Port.Least(s.Kind(), s.(op.Grouped).Ranks(), op.Volume(s))
	case l.Peak > 0:
		return units.Seconds(float64(s.Work().FLOPs) / float64(l.Peak))
	}
	return 0
}

// MessageSeconds is Seconds for a collective k over the message m, and quicker for laws
// that are a plain curve: it does not build an op.Shape.
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

// Slowed is the law with all its times multiplied by a factor, lower bounds by the port
// included. The peak stays, which no kernel on the device exceeds.
func (l Law) Slowed(by float64) Law {
	if l.Port != nil {
		l.Port = &op.Port{PerS: l.Port.PerS / units.BytesPerS(by), InNetwork: l.Port.InNetwork}
	}
	if l.Scale != 0 {
		by *= l.Scale
	}
	l.Scale = by
	return l
}

// body is the time by the law's body alone, in seconds, before scale and correction.
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
	case op.AttnVarlenFwd:
		return l.Attention.PackedSeconds(&v.Varlen, false)
	case op.AttnVarlenBwd:
		return l.Attention.PackedSeconds(&v.Varlen, true)
	case op.GEMM:
		return l.GEMM.Seconds(v)
	}
	panic("costmodel: a law of " + string(l.Op) + " was asked about " + string(s.Kind()))
}
