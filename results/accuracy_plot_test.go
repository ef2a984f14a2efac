package results

import (
	"errors"
	"fmt"
	"image/color"
	"math"
	"slices"
	"strings"

	"gonum.org/v1/gonum/stat/distuv"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/evenkeel/evenkeel/fit"
)

// errNoLaws is a split that held nothing out of any law.
var errNoLaws = errors.New("nothing to plot: no law was studied in this way; see: evenkeel fit --study")

// ErrorsByForm plots, for every kind of law, the median over its laws of each
// form's mean error on what a split held out.
//
// Error: the split holds no law.
func ErrorsByForm(laws []StudiedLaw, split string) (*Figure, error) {
	laws = slices.DeleteFunc(slices.Clone(laws), func(l StudiedLaw) bool { return l.Split != split })
	if len(laws) == 0 {
		return nil, errNoLaws
	}
	kinds := slices.DeleteFunc(accuracyKinds(), func(k string) bool { return len(ofKind(laws, k)) == 0 })
	slices.Reverse(kinds) // the first on top
	f := &Figure{plot: blankPlot(), legend: blankLegend(), title: "Error on held-out points by form of law: " + split}
	f.caption = fmt.Sprintf("Median over the laws of a kind of each law's mean |predicted / measured - 1|; %s, %s that no form was fitted to.", plural(len(laws), "law"), plural(heldPoints(laws), "point"))
	lo, hi := math.Inf(1), 0.0
	for _, form := range formsOf(laws) {
		dots := &plotter.Scatter{GlyphStyle: formGlyph(formPlace(form))}
		for y, kind := range kinds {
			if m := overLaws(ofKind(laws, kind), form); m.laws > 0 {
				dots.XYs = append(dots.XYs, plotter.XY{X: m.MAPE(), Y: float64(y)})
				lo, hi = min(lo, m.MAPE()), max(hi, m.MAPE())
			}
		}
		f.add(formTitle(form), dots)
	}
	errorAxis(&f.plot.X, "mean error", lo/1.3, hi*1.3)
	f.plot.Y.Tick.Marker = names(kinds)
	f.plot.Y.Min, f.plot.Y.Max = -0.5, float64(len(kinds))-0.5
	f.plot.Add(grid())
	f.width, f.height = 9*vg.Inch, vg.Length(1.3+0.38*float64(len(kinds)))*vg.Inch
	return f, nil
}

func heldPoints(laws []StudiedLaw) int {
	n := 0
	for _, l := range laws {
		n += l.Held
	}
	return n
}

// LawDots plots the mean error of every law on held-out points against that of
// what planners use instead: tables, and rooflines or alpha + bytes / rate.
// Above the diagonal this tool's law is better.
//
// Error: no law was studied.
func LawDots(laws []StudiedLaw) (*Figure, error) {
	if len(laws) == 0 {
		return nil, errNoLaws
	}
	f := &Figure{plot: blankPlot(), legend: blankLegend(), title: "Every law against simpler forms, on points that neither saw"}
	lo, hi := math.Inf(1), 0.0
	better, all := 0, 0
	for _, form := range []string{"log-log table", "roofline", "alpha_beta"} {
		dots := &plotter.Scatter{GlyphStyle: formGlyph(formPlace(form))}
		dots.Radius *= 0.8
		for _, l := range laws {
			other, ok := l.Forms[form]
			if !ok || l.Held < fewestDrawn {
				continue
			}
			x, y := clampError(l.Forms[ours].MAPE()), clampError(other.MAPE())
			dots.XYs = append(dots.XYs, plotter.XY{X: x, Y: y})
			lo, hi = min(lo, x, y), max(hi, x, y)
			if all++; other.MAPE() > l.Forms[ours].MAPE() {
				better++
			}
		}
		f.add(formTitle(form), dots)
	}
	if all == 0 {
		return nil, errNoLaws
	}
	lo, hi = lo/1.2, hi*1.2
	errorAxis(&f.plot.X, "mean error of this tool's law", lo, hi)
	errorAxis(&f.plot.Y, "mean error of the simpler form", lo, hi)
	f.add("equal", line(lo, lo, hi, hi))
	f.plot.X.Min, f.plot.X.Max, f.plot.Y.Min, f.plot.Y.Max = lo, hi, lo, hi
	f.plot.Add(grid())
	f.caption = fmt.Sprintf("A dot a law with %d held-out points or more, a way of holding them out and a simpler form; above the diagonal this tool's law is the better one: %d of %d dots. Errors above %.0f %% are drawn there.", fewestDrawn, better, all, 100*mostDrawn)
	f.width, f.height = 8.2*vg.Inch, 6*vg.Inch
	return f, nil
}

// fewestDrawn is how many held-out points a law must have to be a dot: a mean of
// three sizes of a message says little.
const fewestDrawn = 10

// mostDrawn is the largest error that a plot of laws has room for.
const mostDrawn = 3.0

func clampError(x float64) float64 { return max(1e-3, min(x, mostDrawn)) }

// fewestCovered is how many held-out points make a stratum whose coverage says
// something: the standard deviation of a true 90 % among 50 is 4 %.
const fewestCovered = 50

// covered is the held-out points of one op on one device in one band of sizes.
type covered struct {
	split, kind string
	held, in    int
}

func (c covered) share() float64 { return float64(c.in) / float64(c.held) }

// chance is how likely 85 to 95 % of so many independent points are in an interval that
// holds each with a probability of 90 %.
func (c covered) chance() float64 {
	b := distuv.Binomial{N: float64(c.held), P: 0.9}
	return b.CDF(math.Floor(mostCoverage*b.N)) - b.CDF(math.Ceil(leastCoverage*b.N)-1)
}

// coveredStrata pools the bands of the laws of an op on a device or group.
func coveredStrata(laws []StudiedLaw) []covered {
	at := map[string]int{}
	var all []covered
	for _, l := range laws {
		for _, b := range fit.BandsOf(l.Op) {
			if l.Bands[b.Name][0] == 0 {
				continue
			}
			key := strings.Join([]string{l.Split, l.On, string(l.Op), l.Kind(), b.Name}, "|")
			i, ok := at[key]
			if !ok {
				i = len(all)
				at[key] = i
				all = append(all, covered{split: l.Split, kind: l.Kind()})
			}
			all[i].held += l.Bands[b.Name][0]
			all[i].in += l.Bands[b.Name][1]
		}
	}
	return slices.DeleteFunc(all, func(c covered) bool { return c.held < fewestCovered })
}

// Coverage plots the share of held-out points inside the 90 % interval, a dot a
// stratum of 50 or more: an op on a device in one band of sizes.
//
// Error: no stratum has as many.
func Coverage(laws []StudiedLaw) (*Figure, error) {
	strata := coveredStrata(laws)
	if len(strata) == 0 {
		return nil, errNoLaws
	}
	f := &Figure{plot: blankPlot(), legend: blankLegend(), title: "Coverage of the 90 % interval, stratum by stratum"}
	most, least, good := 0.0, 0.8, 0
	for _, c := range strata {
		most, least = max(most, float64(c.held)), min(least, c.share()-0.02)
		if c.share() >= leastCoverage && c.share() <= mostCoverage {
			good++
		}
	}
	from, to := float64(fewestCovered)/1.1, most*1.2
	f.add("85 to 95 %", polygon(color.NRGBA{R: 207, G: 219, B: 233, A: 255}, from, leastCoverage, to, leastCoverage, to, mostCoverage, from, mostCoverage))
	f.plot.Add(grid())
	for i, s := range fit.Splits() {
		dots := &plotter.Scatter{GlyphStyle: formGlyph(i)}
		dots.Radius *= 0.8
		for _, c := range strata {
			if c.split == s.Name {
				dots.XYs = append(dots.XYs, plotter.XY{X: float64(c.held), Y: c.share()})
			}
		}
		if len(dots.XYs) > 0 {
			f.add(s.Name, dots)
		}
	}
	f.plot.X.Label.Text, f.plot.X.Scale, f.plot.X.Tick.Marker = "held-out points of the stratum", plot.LogScale{}, plot.TickerFunc(heldTicks)
	f.plot.Y.Label.Text, f.plot.Y.Tick.Marker = "inside the interval", plot.TickerFunc(shareTicks)
	f.plot.X.Min, f.plot.X.Max, f.plot.Y.Min, f.plot.Y.Max = from, to, max(0, least), 1.005
	f.caption = fmt.Sprintf("A stratum is an op on a device in one band of sizes, with %d held-out points or more: %d of %d lie between 85 and 95 %%.", fewestCovered, good, len(strata))
	f.width, f.height = 8.6*vg.Inch, 5*vg.Inch
	return f, nil
}

// What an honest 90 % interval covers, give or take what 50 points leave open.
const (
	leastCoverage = 0.85
	mostCoverage  = 0.95
)

// formGlyph tells forms apart by colour and shape, in Okabe and Ito's colours.
func formGlyph(i int) draw.GlyphStyle {
	styles := []draw.GlyphStyle{
		{Color: color.NRGBA{R: 0, G: 114, B: 178, A: 230}, Radius: vg.Points(4), Shape: draw.CircleGlyph{}},
		{Color: color.NRGBA{R: 0, G: 158, B: 115, A: 230}, Radius: vg.Points(3.4), Shape: draw.BoxGlyph{}},
		{Color: color.NRGBA{R: 213, G: 94, B: 0, A: 230}, Radius: vg.Points(3.8), Shape: draw.TriangleGlyph{}},
		{Color: color.NRGBA{R: 170, G: 68, B: 140, A: 230}, Radius: vg.Points(3.8), Shape: diamond{}},
		{Color: color.NRGBA{R: 230, G: 159, B: 0, A: 255}, Radius: vg.Points(3.8), Shape: draw.CrossGlyph{}},
		{Color: color.Gray{Y: 90}, Radius: vg.Points(3.8), Shape: draw.PlusGlyph{}},
	}
	return styles[i%len(styles)]
}

// errorAxis is logarithmic: errors of a few percent and of a factor must both show.
func errorAxis(a *plot.Axis, label string, lo, hi float64) {
	a.Label.Text, a.Scale, a.Tick.Marker = label, plot.LogScale{}, plot.TickerFunc(lawErrorTicks)
	a.Min, a.Max = lo, hi
}

func lawErrorTicks(lo, hi float64) []plot.Tick {
	return decadeTicks(lo, hi, func(v float64) string { return fmt.Sprintf("%g %%", math.Round(1e4*v)/1e2) })
}

func heldTicks(lo, hi float64) []plot.Tick {
	return decadeTicks(lo, hi, func(v float64) string { return fmt.Sprintf("%g", v) })
}

// decadeTicks labels 1, 2 and 5 of every decade.
func decadeTicks(lo, hi float64, label func(float64) string) []plot.Tick {
	var ticks []plot.Tick
	for e := math.Floor(math.Log10(lo)); e <= math.Ceil(math.Log10(hi)); e++ {
		for digit := 1; digit <= 9; digit++ {
			v := float64(digit) * math.Pow10(int(e))
			if v < lo || v > hi {
				continue
			}
			t := plot.Tick{Value: v}
			if digit == 1 || digit == 2 || digit == 5 {
				t.Label = label(v)
			}
			ticks = append(ticks, t)
		}
	}
	return ticks
}

func shareTicks(lo, hi float64) []plot.Tick {
	step := 0.05
	if hi-lo > 0.5 {
		step = 0.1
	}
	var ticks []plot.Tick
	for k := math.Ceil(lo / step); k*step <= hi; k++ {
		ticks = append(ticks, plot.Tick{Value: k * step, Label: fmt.Sprintf("%.0f %%", 100*k*step)})
	}
	return ticks
}

// names labels the whole numbers from zero on.
func names(labels []string) plot.Ticker {
	var ticks plot.ConstantTicks
	for i, l := range labels {
		ticks = append(ticks, plot.Tick{Value: float64(i), Label: l})
	}
	return ticks
}
