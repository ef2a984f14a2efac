package results

import (
	"bytes"
	"fmt"
	"image/color"
	"io"
	"math"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/evenkeel/evenkeel/fit"
	"github.com/evenkeel/evenkeel/internal/units"
)

// Figure is a plot with its legend and its caption, at the size at which it is
// meant to be seen.
type Figure struct {
	plot          *plot.Plot
	legend        plot.Legend
	inside        bool   // the legend stands inside the plot, at its top left, not beside it
	title         string // with its stamp
	caption       string // the sentence under it: its counts and errors
	pairs         []fit.Pair
	width, height vg.Length
}

// WriteSVG writes the figure as SVG. The same figure gives the same bytes.
func WriteSVG(w io.Writer, f *Figure) error {
	c := &svgCanvas{Canvas: vgsvg.New(f.width, f.height)}
	f.draw(draw.New(c))
	var buf bytes.Buffer
	if _, err := c.WriteTo(&buf); err != nil {
		return err
	}
	_, err := w.Write(c.anyFont(buf.Bytes()))
	return err
}

// svgCanvas remembers how wide each text is that it is given.
type svgCanvas struct {
	*vgsvg.Canvas
	widths []vg.Length
}

func (c *svgCanvas) FillString(face font.Face, at vg.Point, text string) {
	c.widths = append(c.widths, face.Width(text))
	c.Canvas.FillString(face, at, text)
}

// anyFont has the texts of an SVG keep their places where Liberation Sans is missing.
// Embedded it would take 400 kB a figure, so that others stand in, of the same widths where
// there is one; of any other each text is set as wide as it was meant to be.
func (c *svgCanvas) anyFont(svg []byte) []byte {
	svg = bytes.ReplaceAll(svg, []byte("font-family:Liberation Sans;"), []byte("font-family:'Liberation Sans',Arimo,Arial,Helvetica,sans-serif;"))
	begin := []byte("<text ")
	parts := bytes.Split(svg, begin)
	out := bytes.NewBuffer(parts[0])
	for i, part := range parts[1:] {
		fmt.Fprintf(out, `%stextLength="%.5g" lengthAdjust="spacingAndGlyphs" %s`, begin, c.widths[i].Points(), part)
	}
	return out.Bytes()
}

// WritePNG writes the figure as PNG at 150 dots an inch. The same figure gives
// the same bytes.
func WritePNG(w io.Writer, f *Figure) error {
	c := vgimg.NewWith(vgimg.UseWH(f.width, f.height), vgimg.UseDPI(150))
	f.draw(draw.New(c))
	_, err := vgimg.PngCanvas{Canvas: c}.WriteTo(w)
	return err
}

// draw places the title at the top, the caption at the bottom, and the plot
// and its legend between them.
func (f *Figure) draw(c draw.Canvas) {
	c.SetColor(color.White)
	c.Fill(c.Rectangle.Path())
	c = draw.Crop(c, vg.Points(10), -vg.Points(10), vg.Points(8), -vg.Points(8))
	title := sans(12, ink())
	title.Font.Weight, title.YAlign = bold, draw.YTop
	above := write(c, title, f.title)
	caption := sans(8, ink())
	caption.YAlign = draw.YTop
	below := vg.Length(len(lines(c, caption, f.caption))) * 1.25 * caption.Font.Size
	write(draw.Crop(c, 0, 0, 0, below-(c.Max.Y-c.Min.Y)), caption, f.caption)
	c = draw.Crop(c, 0, 0, below+vg.Points(7), -above-vg.Points(9))
	if f.inside {
		f.plot.Draw(c)
		data := f.plot.DataCanvas(c)
		f.legend.Draw(draw.Crop(data, vg.Points(8), 0, 0, -vg.Points(6)))
		return
	}
	beside := f.legend.Rectangle(c).Size().X + vg.Points(24)
	f.plot.Draw(draw.Crop(c, 0, -beside, 0, 0))
	f.legend.Draw(draw.Crop(c, c.Max.X-c.Min.X-beside+vg.Points(12), 0, 0, 0))
}

// lines breaks text to the width of the canvas, by what it measures in its font.
func lines(c draw.Canvas, s text.Style, t string) []string {
	average := s.Width(t) / vg.Length(max(1, len(t)))
	// A line may have more than its share of wide letters: 6 % are kept back.
	return wrap(t, int(0.94*(c.Max.X-c.Min.X)/max(average, 1)))
}

// write prints text from the top left corner down and returns its height.
func write(c draw.Canvas, s text.Style, t string) (height vg.Length) {
	for _, line := range lines(c, s, t) {
		c.FillText(s, vg.Point{X: c.Min.X, Y: c.Max.Y - height}, line)
		height += 1.25 * s.Font.Size
	}
	return height
}

// bold is the weight that x/image/font calls WeightBold.
const bold = 3

func ink() color.Color { return color.Gray{Y: 60} }

func sans(size vg.Length, c color.Color) text.Style {
	return text.Style{Color: c, Font: font.Font{Typeface: "Liberation", Variant: "Sans", Size: vg.Points(float64(size))}, Handler: plot.DefaultTextHandler}
}

func blankPlot() *plot.Plot {
	p := plot.New()
	for _, a := range []*plot.Axis{&p.X, &p.Y} {
		a.Label.TextStyle.Font, a.Label.TextStyle.Color = sans(10, ink()).Font, ink()
		a.Tick.Label.Font, a.Tick.Label.Color = sans(8.5, ink()).Font, ink()
		a.LineStyle.Color, a.Tick.LineStyle.Color = color.Gray{Y: 150}, color.Gray{Y: 150}
		a.Label.Padding = vg.Points(4)
		a.Padding = 0
	}
	return p
}

func blankLegend() plot.Legend {
	l := plot.NewLegend()
	l.TextStyle.Font, l.TextStyle.Color = sans(8.5, ink()).Font, ink()
	l.Top, l.Left = true, true
	l.Padding = vg.Points(4)
	l.ThumbnailWidth = vg.Points(14)
	return l
}

func grid() *plotter.Grid {
	thin := draw.LineStyle{Color: color.NRGBA{A: 22}, Width: vg.Points(0.6)}
	return &plotter.Grid{Vertical: thin, Horizontal: thin}
}

// polygon fills an area given by x, y, x, y, ...
func polygon(c color.Color, xy ...float64) *plotter.Polygon {
	var ring plotter.XYs
	for i := 0; i+1 < len(xy); i += 2 {
		ring = append(ring, plotter.XY{X: xy[i], Y: xy[i+1]})
	}
	return &plotter.Polygon{XYs: []plotter.XYs{ring}, Color: c}
}

func line(x0, y0, x1, y1 float64) *plotter.Line {
	return &plotter.Line{XYs: plotter.XYs{{X: x0, Y: y0}, {X: x1, Y: y1}}, LineStyle: draw.LineStyle{Color: color.Gray{Y: 90}, Width: vg.Points(0.9)}}
}

func logAxis(a *plot.Axis, label string, lo, hi float64) {
	a.Label.Text = label
	a.Scale = plot.LogScale{}
	a.Tick.Marker = plot.TickerFunc(timeTicks)
	a.Min, a.Max = lo, hi
}

// timeTicks labels the decades in human units, 1, 2 and 5 where there are
// fewer than three of them, and every second or third decade where there would
// be more than ten.
func timeTicks(lo, hi float64) []plot.Tick {
	first, last := int(math.Floor(math.Log10(lo))), int(math.Ceil(math.Log10(hi)))
	every := 1 + (last-first)/10
	fine := math.Log10(hi/lo) < 3
	var ticks []plot.Tick
	for e := first; e <= last; e++ {
		for digit := 1; digit <= 9; digit++ {
			v := float64(digit) * math.Pow10(e)
			if v < lo || v > hi {
				continue
			}
			label := ""
			if digit == 1 && (e-first)%every == 0 || fine && (digit == 2 || digit == 5) {
				label = units.Seconds(v).String()
			}
			ticks = append(ticks, plot.Tick{Value: v, Label: label})
		}
	}
	return ticks
}

// percentTicks are at most nine round percentages, zero among them.
func percentTicks(lo, hi float64) []plot.Tick {
	step := 0.05
	for i := 0; (hi-lo)/step > 9; i++ {
		// 5, 10, 20, 50, 100, ...
		step *= [3]float64{2, 2, 2.5}[i%3]
	}
	var ticks []plot.Tick
	for k := math.Ceil(lo / step); k*step <= hi; k++ {
		ticks = append(ticks, plot.Tick{Value: k * step, Label: tickPercent(k * step)})
	}
	return ticks
}

func tickPercent(v float64) string {
	if v == 0 {
		return "0 %"
	}
	return fmt.Sprintf("%+.0f %%", 100*v)
}
