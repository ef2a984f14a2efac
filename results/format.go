package results

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
)

// none stands where there is no number to show.
const none = "-"

// percent prints a share or relative error; a set of no points has none.
func percent(f float64, points int) string {
	if points == 0 {
		return none
	}
	return units.Percent(f)
}

// signed prints a relative difference with its sign: "+3.1 %".
func signed(f float64) string {
	s := units.Percent(f)
	switch {
	case s == none:
		return s
	case s == "-0.0 %":
		return "+0.0 %"
	case f >= 0:
		return "+" + s
	}
	return s
}

// shift is a log ratio of times, such as log(now / before), as the per cent that they changed
// by: of times that doubled, which is a log ratio of 0.69, +100 %.
func shift(log float64) string { return signed(math.Expm1(log)) }

func finite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }

// number prints three significant digits, with an exponent only where a plain
// number would be all zeros.
func number(v float64) string {
	switch a := math.Abs(v); {
	case !finite(v):
		return none
	case a != 0 && (a < 1e-3 || a >= 1e6):
		return strconv.FormatFloat(v, 'e', 2, 64)
	}
	// Above a hundred three digits are not all of them: 6046, not 6.05e+03.
	if math.Abs(v) >= 100 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}

// span prints a measured range, "64-2k", or the one value there was.
func span(r costmodel.AxisRange) string {
	show := func(v float64) string {
		switch {
		case !(math.Abs(v) <= 1<<53):
			return none
		case strings.HasSuffix(r.Axis, "bytes"):
			return units.Bytes(math.Round(v)).String()
		case r.Axis == "params":
			return strings.TrimSuffix(units.FLOPs(v).String(), "FLOP")
		}
		return length(v)
	}
	lo, hi := show(r.Min), show(r.Max)
	if lo == hi {
		return r.Axis + " " + lo
	}
	return fmt.Sprintf("%s %s-%s", r.Axis, strings.ReplaceAll(lo, " ", ""), strings.ReplaceAll(hi, " ", ""))
}

// length prints a number of tokens or elements as the field speaks of it, in
// multiples of 1024; from 8k on three digits are enough for the end of a range.
func length(v float64) string {
	switch t := units.Tokens(math.Round(v)); {
	case t < 8<<10 || t%1024 == 0:
		return t.String()
	case t < 1<<20:
		return number(v/(1<<10)) + "k"
	default:
		return number(v/(1<<20)) + "M"
	}
}

// interval prints the ends of a law's 90 % interval around its prediction.
func interval(s costmodel.Spread) string {
	return fmt.Sprintf("%s..%s", strings.TrimSuffix(signed(s.Lo-1), " %"), signed(s.Hi-1))
}

// estimate prints a time with half its 90 % interval, "3.42 s +- 4.0 %", or with both sides
// of one that is lopsided, "1.25 s -54..+217 %".
func estimate(e costmodel.Estimate) string {
	less, more := float64(e.Lo/e.Mid-1), float64(e.Hi/e.Mid-1)
	if d := more + less; (d > lopsided || d < -lopsided) && finite(d) {
		return fmt.Sprintf("%s %s", seconds(e.Mid), interval(costmodel.Spread{Lo: 1 + less, Hi: 1 + more}))
	}
	return fmt.Sprintf("%s +- %s", seconds(e.Mid), units.Percent(e.Spread()))
}

// lopsided is by how much of a time the sides of an interval may differ before half its width
// says too little of either.
const lopsided = 0.1

// seconds prints a time; one that is not a number has nothing to show.
func seconds(s units.Seconds) string {
	if !finite(float64(s)) {
		return none
	}
	return s.String()
}

// peak prints a rank's memory against its device: "61.2 of 80.0 GiB".
func peak(m costmodel.Memory) string {
	switch {
	case m.Capacity <= 0:
		return m.Peak().String()
	case m.Capacity < units.GiB:
		return fmt.Sprintf("%s of %s", m.Peak(), m.Capacity)
	}
	return fmt.Sprintf("%.1f of %.1f GiB", gib(m.Peak()), gib(m.Capacity))
}

func gib(b units.Bytes) float64 { return float64(b) / float64(units.GiB) }

// bar is a picture of a share of the width: "#####.....".
func bar(share float64, width int, full, rest byte) string {
	n := 0
	if share > 0 {
		n = int(math.Round(math.Min(share, 1) * float64(width)))
	}
	return strings.Repeat(string(full), n) + strings.Repeat(string(rest), width-n)
}

// inTokens prints a length with its unit: "256k tokens", "1 token".
func inTokens(n units.Tokens) string {
	if n == 1 {
		return "1 token"
	}
	return n.String() + " tokens"
}

// plural prints a count with its noun: "1 law", "3 laws".
func plural(n int, one string) string {
	return units.Count(n, one)
}
