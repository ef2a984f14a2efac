package results

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
)

// Coefficients prints the numbers inside every law of a profile: coefficients
// with their 95 % intervals and, where a coefficient is a cost, the rate it
// stands for; knots where the law is a curve through them.
func Coefficients(w io.Writer, d *costmodel.Profile) error {
	p := &printer{w: w}
	what, from := profileStamp(d)
	p.para("", fmt.Sprintf("%s coefficients of %s; %s", what, plural(len(d.Laws), "law"), from))
	t := newTable(column{title: "law"}, column{title: "coefficient"}, column{title: "value", number: true},
		column{title: "95 % interval", number: true}, column{title: "unit"}, column{title: "that is", number: true})
	eachSection(t, d.Laws, func(l *costmodel.Law) { coefRows(t, l) })
	p.printf("\n")
	t.render(p)
	p.printf("\n")
	p.para("", "linear laws: t = launch + s_per_flop F + s_per_row R + s_per_byte B + s_per_tail_flop T, with F, R and T on each of the device's parallel units and B through its memory; a coefficient of 0 was tried and not needed")
	p.para("", "alpha_beta laws: t = alpha + beta x, x being the bytes on the busiest port of a collective or through the memory of a bandwidth op; log_log laws: straight lines between knots in log-log")
	if slices.ContainsFunc(d.Laws, func(l costmodel.Law) bool { return l.Attention != nil || l.GEMM != nil }) {
		p.para("", "tiles laws: waves of tiles over the device's parallel units, whose coefficients were fitted together and have no intervals of their own; that of the time is in: evenkeel show, without --coefs")
	}
	if slices.ContainsFunc(d.Laws, func(l costmodel.Law) bool { return l.Scale != 0 || l.Correction != nil }) {
		p.para("", "scale and field: what the time of the coefficients above them is multiplied by; a field is a factor at every node between its axes, which --json lists")
	}
	if slices.ContainsFunc(d.Laws, func(l costmodel.Law) bool { return l.Port != nil }) {
		p.para("", "port: the rate that no rank exceeds; no message is predicted to take less than its busiest rank needs for its bytes at it, nor does an interval end below")
	}
	if slices.ContainsFunc(d.Laws, func(l costmodel.Law) bool { return l.Peak > 0 || l.MaxCells > 0 }) {
		p.para("", "peak: the rate of arithmetic that the device does not exceed; no call is predicted to take less than its FLOPs need at it. most cells: the largest m x n x k of a product, or pairs of queries and keys of attention, that was measured; beyond it a time is extrapolated")
	}
	return p.err
}

// coefRows lists one law, its title on its first row only.
func coefRows(t *table, l *costmodel.Law) {
	title := lawCell(l)
	add := func(name, value, interval, unit, means string) {
		t.row(title, name, value, interval, unit, means)
		title = ""
	}
	coef := func(name string, c costmodel.Coef, unit, means string) {
		add(name, number(c.Value), number(c.Lo)+" .. "+number(c.Hi), unit, means)
	}
	core := func(name string, value float64) {
		unit, means := unitOf(name, value)
		add(name, number(value), none, unit, means)
	}
	switch {
	case l.Linear != nil:
		linearRows(l.Linear, coef)
	case l.Curve != nil:
		curveRows(l.Curve, coef, add)
	case l.Attention != nil:
		for _, c := range l.Attention.Coefficients() {
			core(c.Name, *c.Value)
		}
	case l.GEMM != nil:
		for _, c := range l.GEMM.Coefs() {
			core(c.Name, *c.At)
		}
	}
	if l.Scale != 0 {
		add("scale", number(l.Scale), none, none, none)
	}
	if l.Port != nil {
		add("port", number(float64(l.Port.PerS)), none, "B/s", l.Port.PerS.String())
	}
	if l.Peak > 0 {
		add("peak", number(float64(l.Peak)), none, "FLOP/s", l.Peak.String())
	}
	if l.MaxCells > 0 {
		add("most cells", number(l.MaxCells), none, none, none)
	}
	if l.Correction != nil {
		var axes []string
		for _, a := range l.Correction.Axes {
			axes = append(axes, fmt.Sprintf("%s: %s", a.Name, plural(len(a.Nodes), "node")))
		}
		add("field over\n  "+strings.Join(axes, "\n  "), none, none, none, none)
	}
}

func curveRows(c *costmodel.Curve, coef func(name string, c costmodel.Coef, unit, means string), add func(name, value, interval, unit, means string)) {
	for _, piece := range c.Pieces {
		from := ""
		if len(c.Pieces) > 1 {
			from = "from " + piece.From.String() + ": "
		}
		coef(from+"alpha", piece.Alpha, "s", seconds(units.Seconds(piece.Alpha.Value)))
		coef(from+"beta", piece.Beta, "s/B", rate(piece.Beta.Value))
	}
	for _, k := range c.Knots {
		add("knot at "+k.Bytes.String(), number(float64(k.Seconds)), none, "s", seconds(k.Seconds))
	}
}

// unitOf reads the unit of a core's coefficient from its document key, which ends
// in it where there is one.
func unitOf(name string, value float64) (unit, means string) {
	switch {
	case strings.HasSuffix(name, "s_per_byte"):
		return "s/B", rate(value)
	case strings.HasSuffix(name, "flops_per_s"):
		return "FLOP/s", units.FLOPsPerS(value).String()
	case strings.HasSuffix(name, "bytes_per_s"):
		return "B/s", units.BytesPerS(value).String()
	case strings.HasSuffix(name, "_s"):
		return "s", seconds(units.Seconds(value))
	case strings.HasSuffix(name, "_bytes"):
		return "B", units.Bytes(value).String()
	}
	return none, none
}

func linearRows(l *costmodel.Linear, coef func(name string, c costmodel.Coef, unit, means string)) {
	unit := [5]string{"s", "s/FLOP", "s/row", "s/B", "s/FLOP"}
	for i, c := range l.Coefs() {
		means := none
		switch {
		case !(c.Value > 0) || math.IsInf(c.Value, 0):
		case unit[i] == "s/FLOP":
			means = fmt.Sprintf("%s x %d", units.FLOPsPerS(1/c.Value), l.Parallel)
		case unit[i] == "s/B":
			means = rate(c.Value)
		default:
			means = seconds(units.Seconds(c.Value))
		}
		coef(costmodel.LinearNames()[i], c, unit[i], means)
	}
}

// rate is the bandwidth that a cost a byte stands for.
func rate(perByte float64) string {
	if !(perByte > 0) || math.IsInf(perByte, 0) {
		return none
	}
	return units.BytesPerS(1 / perByte).String()
}
