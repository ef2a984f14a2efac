package results

import (
	"errors"
	"fmt"
	"image/color"
	"io"
	"math"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/evenkeel/evenkeel/fit"
	"github.com/evenkeel/evenkeel/internal/units"
)

// LearningCurve prints how the held-out error of every family falls with the
// number of points that its laws are fitted to, what the last doubling of the
// points brought, and whether a longer calibration would pay.
func LearningCurve(w io.Writer, c *fit.Curve) error {
	p, n := &printer{w: w, further: c.Calibration}, &notes{}
	p.para("", fmt.Sprintf("%s learning curve: the error on points set aside before the fit, against the number of points that every law is fitted to%s",
		stamp(c.Simulated), simulatedOnly(c.Simulated)))
	p.para("", fmt.Sprintf("held out: %s of the points of every law (seed %d); the others drawn at random %s a size",
		units.Percent(c.Share), c.Seed, plural(c.Repeats, "time")))
	p.printf("\n")
	learningTable(p, n, c)
	p.para("", "errors are |log(measured / predicted)|, the middle repeat's with the least and the largest of all repeats; near the last size the draws are nearly the same, so its range is too narrow")
	p.printf("\n")
	for _, f := range c.Families {
		p.para(fmt.Sprintf("%-11s ", f.Family), outlook(f))
	}
	n.add(unstamped(c.Warnings)...)
	n.render(p)
	return p.err
}

func learningTable(p *printer, n *notes, c *fit.Curve) {
	t := newTable(column{title: "points\nfitted", number: true}, column{title: "median error\n(of all repeats)", number: true},
		column{title: "p90 error\n(of all repeats)", number: true}, column{title: "beyond the\ndrawn range", number: true})
	for _, f := range c.Families {
		if len(f.Steps) == 0 {
			continue
		}
		t.section(fmt.Sprintf("%s: %s, %s held out%s", f.Family, plural(f.Laws, "law"), plural(f.Held, "point"), unlearned(n, f)))
		for _, s := range f.Steps {
			beyond := units.Percent(s.Outside)
			if s.Outside > 0 {
				beyond += n.mark("share of the predictions beyond the range of the points drawn; they are in the errors, because every size is judged on the same points: fewer points also reach less far")
			}
			t.row(strconv.Itoa(s.Points), scattered(s.Median), scattered(s.P90), beyond)
		}
	}
	t.render(p)
}

// mostNamed is how many laws a footnote names before it counts the others.
const mostNamed = 3

// unlearned marks a family with the laws that are not in its curve.
func unlearned(n *notes, f fit.FamilyCurve) string {
	if len(f.LeftOut) == 0 {
		return ""
	}
	return n.mark(fmt.Sprintf("%s of %s not in the curve: %s", plural(len(f.LeftOut), "law"), f.Family, someOf(f.LeftOut)))
}

func someOf(all []string) string {
	if more := len(all) - mostNamed; more > 0 {
		return fmt.Sprintf("%s; and %d more", strings.Join(all[:mostNamed], "; "), more)
	}
	return strings.Join(all, "; ")
}

func scattered(s fit.Scatter) string {
	lo, hi := units.Percent(s.Lo), units.Percent(s.Hi)
	if lo == hi {
		return units.Percent(s.Mid)
	}
	return fmt.Sprintf("%s (%s to %s)", units.Percent(s.Mid), strings.TrimSuffix(lo, " %"), hi)
}

// outlook says in a sentence whether a family's laws would gain from more points.
func outlook(f fit.FamilyCurve) string {
	if len(f.Steps) == 0 {
		return fmt.Sprintf("no curve: %s; %s", someOf(f.LeftOut), furtherPoints(f.Imported, "measure more: "+toMeasure))
	}
	last := f.Steps[len(f.Steps)-1]
	if f.Change == nil {
		return fmt.Sprintf("median error %s at %s, the only size", units.Percent(last.Median.Mid), plural(last.Points, "point"))
	}
	s := fmt.Sprintf("%d to %d points: median error %s (%s to %s over the repeats, 95 %% bound %s), p90 error %s: ", f.Change.From, f.Change.To, signed(f.Change.Median.Mid-1),
		strings.TrimSuffix(signed(f.Change.Median.Lo-1), " %"), signed(f.Change.Median.Hi-1), signed(f.Change.MedianUpper-1), signed(f.Change.P90.Mid-1))
	switch f.Trend {
	case fit.Falling:
		return s + "still falling, " + furtherPoints(f.Imported, "a longer calibration would pay: "+longer(last.Points))
	case fit.Flat:
		return s + "flat, more points alone would bring little"
	default:
		return s + "too few points fitted or held out to tell it from chance; " + furtherPoints(f.Imported, "measure more: "+longer(last.Points))
	}
}

// longer is the command that measures more points of a law than there are. Ten
// minutes are good for some fifty.
func longer(points int) string {
	if points < 48 {
		return toMeasure
	}
	return "evenkeel calibrate --fresh --budget 1h"
}

// errNoCurve is a learning curve none of whose families has a step.
var errNoCurve = errors.New("nothing to plot: no family has points enough for a learning curve; measure more: evenkeel calibrate --fresh --budget 10m")

// LearningPlot plots the median held-out error of every family, in percent, over
// the number of points fitted, both on logarithmic scales, on which an error that
// falls as a power of the points is a straight line. Bands reach from the least
// to the largest repeat.
//
// Error: no family has a step with a positive error.
func LearningPlot(c *fit.Curve, title string) (*Figure, error) {
	f := &Figure{plot: blankPlot(), legend: blankLegend(), title: title, width: 8.6 * vg.Inch, height: 4.6 * vg.Inch}
	if c.Simulated {
		f.title = "SIMULATED: " + title
	}
	a := area{xLo: math.Inf(1), yLo: math.Inf(1)}
	for _, fam := range c.Families {
		for _, s := range drawable(fam) {
			a.reach(s)
		}
	}
	if math.IsInf(a.xLo, 1) {
		return nil, errNoCurve
	}
	f.plot.Add(grid())
	for _, fam := range c.Families {
		f.learning(fam)
	}
	a.axes(f.plot)
	f.caption = fmt.Sprintf("points held out before the fit: %s of every law's (seed %d), the same at every size; lines: the middle one of %s, bands: from the least to the largest, closing where all points are fitted",
		units.Percent(c.Share), c.Seed, plural(c.Repeats, "random draw"))
	f.caption += simulatedOnly(c.Simulated)
	return f, nil
}

// simulatedOnly ends a sentence about a curve that is of no hardware.
func simulatedOnly(simulated bool) string {
	if simulated {
		return "; simulated times, no hardware was measured"
	}
	return ""
}

// drawable are the steps that a logarithm exists for.
func drawable(f fit.FamilyCurve) []fit.CurveStep {
	var steps []fit.CurveStep
	for _, s := range f.Steps {
		if s.Median.Lo > 0 && finite(s.Median.Hi) {
			steps = append(steps, s)
		}
	}
	return steps
}

// area is what the axes of a learning curve must hold.
type area struct{ xLo, xHi, yLo, yHi float64 }

func (a *area) reach(s fit.CurveStep) {
	x := float64(s.Points)
	a.xLo, a.xHi = min(a.xLo, x), max(a.xHi, x)
	a.yLo, a.yHi = min(a.yLo, s.Median.Lo), max(a.yHi, s.Median.Hi)
}

func (a *area) axes(p *plot.Plot) {
	p.X.Label.Text, p.Y.Label.Text = "points fitted, of every law", "median error on held-out points"
	p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
	p.X.Tick.Marker, p.Y.Tick.Marker = plot.TickerFunc(countTicks), plot.TickerFunc(errorTicks)
	p.X.Min, p.X.Max = a.xLo/1.08, a.xHi*1.08
	// A factor of three holds one of 1, 2 and 5 at least, and makes no mountains of
	// differences that are none.
	pad := max(1.25, math.Sqrt(3*a.yLo/a.yHi))
	p.Y.Min, p.Y.Max = a.yLo/pad, a.yHi*pad
}

// learning draws the band, the line and the glyphs of a family, in its colour.
func (f *Figure) learning(fam fit.FamilyCurve) {
	steps := drawable(fam)
	if len(steps) == 0 {
		return
	}
	style := glyph(fam.Family, false)
	var mid plotter.XYs
	var lower, upper []float64
	for i, s := range steps {
		x, back := float64(s.Points), steps[len(steps)-1-i]
		mid = append(mid, plotter.XY{X: x, Y: s.Median.Mid})
		lower = append(lower, x, s.Median.Lo)
		upper = append(upper, float64(back.Points), back.Median.Hi)
	}
	f.plot.Add(polygon(faint(style.Color), append(lower, upper...)...))
	l := &plotter.Line{XYs: mid, LineStyle: draw.LineStyle{Color: style.Color, Width: vg.Points(1.2)}}
	points := &plotter.Scatter{XYs: mid, GlyphStyle: style}
	f.plot.Add(l, points)
	last := steps[len(steps)-1]
	f.legend.Add(fmt.Sprintf("%s (%s, n = %d,", fam.Family, plural(fam.Laws, "law"), fam.Held), l, points)
	f.legend.Add(fmt.Sprintf("%s at %d points)", units.Percent(last.Median.Mid), last.Points))
}

// faint is a colour through which the others and the grid are still seen.
func faint(c color.Color) color.Color {
	s := color.NRGBAModel.Convert(c).(color.NRGBA)
	s.A = 38
	return s
}

// countTicks labels the powers of two and the steps half way between them, which
// are the sizes of a learning curve.
func countTicks(lo, hi float64) []plot.Tick {
	var ticks []plot.Tick
	for n := 1.0; n <= hi; n *= 2 {
		for _, v := range []float64{n, 1.5 * n} {
			if v >= lo && v <= hi && v == math.Trunc(v) {
				ticks = append(ticks, plot.Tick{Value: v, Label: strconv.Itoa(int(v))})
			}
		}
	}
	return ticks
}

// errorTicks labels 1, 2 and 5 of every decade of percentages.
func errorTicks(lo, hi float64) []plot.Tick {
	var ticks []plot.Tick
	for e := math.Floor(math.Log10(lo)); e <= math.Log10(hi); e++ {
		for digit := 1; digit <= 9; digit++ {
			v := float64(digit) * math.Pow(10, e)
			if v < lo || v > hi {
				continue
			}
			label := ""
			if digit == 1 || digit == 2 || digit == 5 {
				label = strconv.FormatFloat(100*v, 'g', 3, 64) + " %"
			}
			ticks = append(ticks, plot.Tick{Value: v, Label: label})
		}
	}
	return ticks
}
