package results

import (
	"errors"
	"fmt"
	"image/color"
	"math"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/fit"
	"github.com/evenkeel/evenkeel/internal/stats"
	"github.com/evenkeel/evenkeel/internal/units"
)

// errNothingToPlot is a report none of whose points has two positive times.
var errNothingToPlot = errors.New("nothing to plot: no point has a positive measured and predicted time; check a recording with points that the profile has laws for: evenkeel check")

// MeasuredPredicted plots the measured against the predicted time of every
// point, both on a logarithmic scale, with the diagonal on which they are equal
// and bands where they differ by at most a tenth and a fifth. The title begins
// with SIMULATED when the report's times are.
//
// Error: no point of the report can be plotted.
func MeasuredPredicted(r *fit.Report, title string) (*Figure, error) {
	f, err := newFigure(r, title)
	if err != nil {
		return nil, err
	}
	lo, hi := math.Inf(1), 0.0
	for _, p := range f.pairs {
		lo, hi = min(lo, p.Measured, float64(p.Estimate.Mid)), max(hi, p.Measured, float64(p.Estimate.Mid))
	}
	lo, hi = lo/1.6, hi*1.6
	logAxis(&f.plot.X, "predicted time", lo, hi)
	logAxis(&f.plot.Y, "measured time", lo, hi)
	for _, b := range bands() {
		f.add(b.title, polygon(b.color, lo, lo/b.factor, hi, hi/b.factor, hi, hi*b.factor, lo, lo*b.factor))
	}
	f.plot.Add(grid())
	f.add("measured = predicted", line(lo, lo, hi, hi))
	f.points(func(p fit.Pair) (x, y float64) { return float64(p.Estimate.Mid), p.Measured })
	// Bands and diagonal run past the points; the axes must not.
	f.plot.X.Min, f.plot.X.Max, f.plot.Y.Min, f.plot.Y.Max = lo, hi, lo, hi
	f.width, f.height = 6.6*vg.Inch, 6.4*vg.Inch
	f.inside = true // above the diagonal there is room
	return f, nil
}

// Residuals plots how far the predicted time of every point is from the measured
// one, log(predicted/measured) in percent, over its measured time. As the biases of
// the tables, points above zero were predicted too long.
//
// Error: no point of the report can be plotted.
func Residuals(r *fit.Report, title string) (*Figure, error) {
	f, err := newFigure(r, title)
	if err != nil {
		return nil, err
	}
	lo, hi, most := math.Inf(1), 0.0, 0.25
	for _, p := range f.pairs {
		lo, hi, most = min(lo, p.Measured), max(hi, p.Measured), max(most, math.Abs(p.Log()))
	}
	lo, hi, most = lo/1.6, hi*1.6, most*1.08
	logAxis(&f.plot.X, "measured time", lo, hi)
	f.plot.Y.Label.Text = "log(predicted / measured): above 0 predicted too long"
	f.plot.Y.Tick.Marker = plot.TickerFunc(percentTicks)
	for _, b := range bands() {
		y := math.Log(b.factor)
		f.add(b.title, polygon(b.color, lo, -y, hi, -y, hi, y, lo, y))
	}
	f.plot.Add(grid())
	f.add("measured = predicted", line(lo, 0, hi, 0))
	f.points(residual)
	f.plot.X.Min, f.plot.X.Max, f.plot.Y.Min, f.plot.Y.Max = lo, hi, -most, most
	f.width, f.height = 8.6*vg.Inch, 4.6*vg.Inch
	return f, nil
}

// residual is where a point stands in the plot of residuals.
func residual(p fit.Pair) (x, y float64) { return p.Measured, -p.Log() }

// newFigure keeps the pairs that a logarithm exists for and writes the caption
// about them.
func newFigure(r *fit.Report, title string) (*Figure, error) {
	f := &Figure{plot: blankPlot(), legend: blankLegend()}
	for _, p := range r.Pairs {
		if finite(p.Log()) && p.Measured > 0 {
			f.pairs = append(f.pairs, p)
		}
	}
	if len(f.pairs) == 0 {
		return nil, errNothingToPlot
	}
	if f.title = title; r.Simulated {
		f.title = "SIMULATED: " + title
	}
	f.caption = caption(f.pairs, len(r.Pairs)-len(f.pairs), r.Simulated)
	return f, nil
}

func caption(pairs []fit.Pair, left int, simulated bool) string {
	var errs []float64
	inside, outside := 0, 0
	for _, p := range pairs {
		if p.Estimate.Source != costmodel.Interpolated {
			outside++
			continue
		}
		errs = append(errs, math.Abs(p.Log()))
		if p.Inside() {
			inside++
		}
	}
	s := fmt.Sprintf("n = %d", len(pairs))
	if len(errs) > 0 {
		s += fmt.Sprintf(", median error %s, p90 %s, %s inside the 90 %% interval", units.Percent(stats.Median(errs)),
			units.Percent(stats.Quantile(errs, 0.9)), units.Percent(float64(inside)/float64(len(errs))))
	}
	if outside > 0 {
		s += fmt.Sprintf("; hollow: %d outside the fitted range, not in these numbers", outside)
	}
	if left > 0 {
		s += fmt.Sprintf("; %d without positive times left out", left)
	}
	if simulated {
		s += "; simulated times, no hardware was measured"
	}
	return s
}

// band is where |log(measured/predicted)|, which is what every error here
// means, is at most the logarithm of a factor.
type band struct {
	title  string
	factor float64
	color  color.Color
}

// bands are listed from the widest, which is drawn first.
func bands() []band {
	return []band{
		{"within 20 %", math.Exp(0.2), color.NRGBA{R: 232, G: 238, B: 245, A: 255}},
		{"within 10 %", math.Exp(0.1), color.NRGBA{R: 207, G: 219, B: 233, A: 255}},
	}
}

// add draws something and explains it in the legend.
func (f *Figure) add(title string, what interface {
	plot.Plotter
	plot.Thumbnailer
},
) {
	f.plot.Add(what)
	f.legend.Add(title, what)
}

// points draws a family at a time, so that the legend tells them apart and what
// is drawn does not depend on the order of the pairs between families.
func (f *Figure) points(at func(fit.Pair) (x, y float64)) {
	for _, fam := range fit.Families() {
		inside, outside := &plotter.Scatter{}, &plotter.Scatter{}
		var errs []float64
		for _, p := range f.pairs {
			x, y := at(p)
			switch {
			case p.Family != fam:
			case p.Estimate.Source == costmodel.Interpolated:
				inside.XYs = append(inside.XYs, plotter.XY{X: x, Y: y})
				errs = append(errs, math.Abs(p.Log()))
			default:
				outside.XYs = append(outside.XYs, plotter.XY{X: x, Y: y})
			}
		}
		inside.GlyphStyle, outside.GlyphStyle = glyph(fam, false), glyph(fam, true)
		if len(f.pairs) > crowd {
			inside.Radius, outside.Radius = 0.7*inside.Radius, 0.7*outside.Radius
		}
		if len(errs) > 0 {
			f.add(fmt.Sprintf("%s (n = %d, median %s)", fam, len(errs), units.Percent(stats.Median(errs))), inside)
		}
		if len(outside.XYs) > 0 {
			f.add(fmt.Sprintf("%s, outside its range (n = %d)", fam, len(outside.XYs)), outside)
		}
	}
}

// crowd is how many points make smaller glyphs easier to tell apart.
const crowd = 500

// glyph tells a family by colour and by shape, so that neither colour blindness
// nor a grey printer loses it; the colours are Okabe and Ito's. Hollow ones are
// predictions outside the fitted range.
func glyph(f fit.Family, hollow bool) draw.GlyphStyle {
	s := draw.GlyphStyle{Radius: vg.Points(2.6)}
	filled, outline := draw.GlyphDrawer(draw.CircleGlyph{}), draw.GlyphDrawer(draw.RingGlyph{})
	switch f {
	case fit.FamilyAttention:
		s.Color = color.NRGBA{R: 0, G: 114, B: 178, A: 210}
	case fit.FamilyGEMM:
		s.Color = color.NRGBA{R: 213, G: 94, B: 0, A: 210}
		filled, outline = draw.PyramidGlyph{}, draw.TriangleGlyph{}
		s.Radius = vg.Points(3.2)
	case fit.FamilyBandwidth:
		s.Color = color.NRGBA{R: 0, G: 158, B: 115, A: 210}
		filled, outline = draw.BoxGlyph{}, draw.SquareGlyph{}
	case fit.FamilyLayer:
		s.Color = color.NRGBA{R: 230, G: 159, B: 0, A: 255}
		filled, outline = draw.CrossGlyph{}, draw.PlusGlyph{}
	default:
		s.Color = color.NRGBA{R: 170, G: 68, B: 140, A: 210}
		filled, outline = diamond{}, diamond{hollow: true}
		s.Radius = vg.Points(3.4)
	}
	if s.Shape = filled; hollow {
		s.Shape = outline
	}
	return s
}

// diamond is a square on its tip, which gonum's glyphs lack.
type diamond struct{ hollow bool }

// DrawGlyph implements draw.GlyphDrawer.
func (d diamond) DrawGlyph(c *draw.Canvas, s draw.GlyphStyle, at vg.Point) {
	r := s.Radius
	var p vg.Path
	p.Move(vg.Point{X: at.X, Y: at.Y + r})
	p.Line(vg.Point{X: at.X + r, Y: at.Y})
	p.Line(vg.Point{X: at.X, Y: at.Y - r})
	p.Line(vg.Point{X: at.X - r, Y: at.Y})
	p.Close()
	if d.hollow {
		c.SetLineStyle(draw.LineStyle{Color: s.Color, Width: vg.Points(0.5)})
		c.Stroke(p)
		return
	}
	c.Fill(p)
}
