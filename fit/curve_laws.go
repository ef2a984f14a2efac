package fit

import (
	"cmp"
	"math"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
)

// curveLaw is what the estimate of a family says about one of its laws.
type curveLaw struct {
	curve *costmodel.Curve
	logs  []float64 // log(measured/predicted) of every point when it was left out
	// tabled are logs, of what the curve's table says in place of the estimate. Laws are
	// chosen by the estimate: where a table is too coarse says nothing of larger messages.
	tabled []float64
	// beyond is, one to octavesOn octaves beyond the measured sizes, how far from the curve a form
	// may be, in log time, that says the same: the half width of a family of several collectives
	// with the noise that the estimate found. That noise may be larger says nothing of the curve.
	beyond [octavesOn]float64
}

// mostTogether bounds the points of one estimate: its time grows with their
// third power, and no family of collectives needs more to be told apart.
const mostTogether = 512

// curveLaws fits the laws of one library's collectives, one for every list of
// points, together.
func curveLaws(link func(best float64) fabric, laws [][]Point) ([]curveLaw, []*familyFit, error) {
	all := make([]curveLaw, len(laws))
	var fits []*familyFit
	for _, together := range companies(laws) {
		var curves []*sizeCurve
		for _, i := range together {
			curves = append(curves, newSizeCurve(laws[i]))
		}
		thin(curves)
		t, err := newFamily(curves, link).fit()
		if err != nil {
			return nil, nil, err
		}
		fits = append(fits, t)
		for k, i := range together {
			all[i] = t.law(curves[k], laws[i])
		}
	}
	return all, fits, nil
}

// law tabulates a curve and says what its points were off by when left out.
func (t *familyFit) law(c *sizeCurve, points []Point) curveLaw {
	l := curveLaw{curve: t.table(c, slices.Min(c.octaves), slices.Max(c.octaves))}
	theta := t.parameters(c)
	for k := range l.beyond {
		_, d := t.log(c, theta, slices.Max(c.octaves)+float64(k+1))
		l.beyond[k] = farFactor * math.Hypot(d.untold, d.found)
	}
	byOctave := map[float64][]float64{}
	for _, o := range t.off {
		if o.curve == c {
			byOctave[o.u] = append(byOctave[o.u], o.log)
		}
	}
	for _, p := range points {
		u := c.octave(p.Shape)
		tabled := math.Log(float64(l.curve.Seconds(op.Volume(p.Shape))))
		if logs := byOctave[u]; len(logs) > 0 {
			l.logs = append(l.logs, logs[0])
			l.tabled = append(l.tabled, logs[0]+t.mean(c, theta, u)-tabled)
			byOctave[u] = append(logs[1:], logs[0])
			continue
		}
		off := math.Log(p.Seconds) - tabled // thinned out
		l.logs, l.tabled = append(l.logs, off), append(l.tabled, off)
	}
	return l
}

// companies divides laws so that what is fitted together stays within
// mostTogether points where it can: all, or each kind of collective by itself.
func companies(laws [][]Point) [][]int {
	points := 0
	all := make([]int, len(laws))
	for i, l := range laws {
		all[i] = i
		points += len(l)
	}
	if points <= mostTogether {
		return [][]int{all}
	}
	slices.SortStableFunc(all, func(a, b int) int { return cmp.Compare(laws[a][0].Shape.Kind(), laws[b][0].Shape.Kind()) })
	var parts [][]int
	for k, i := range all {
		if k == 0 || laws[i][0].Shape.Kind() != laws[all[k-1]][0].Shape.Kind() {
			parts = append(parts, nil)
		}
		parts[len(parts)-1] = append(parts[len(parts)-1], i)
	}
	return parts
}

// thin drops points of curves that together have more than an estimate takes:
// of every curve those closest to its others in size.
func thin(curves []*sizeCurve) {
	points := 0
	for _, c := range curves {
		points += len(c.octaves)
	}
	if points <= mostTogether {
		return
	}
	each := max(8, mostTogether/len(curves))
	for _, c := range curves {
		c.keep(each)
	}
}

// keep leaves n points spread evenly over the sizes.
func (c *sizeCurve) keep(n int) {
	if len(c.octaves) <= n {
		return
	}
	order := make([]int, len(c.octaves))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(c.octaves[a], c.octaves[b]) })
	var octaves, logs []float64
	for k := range n {
		i := order[k*(len(order)-1)/(n-1)]
		octaves, logs = append(octaves, c.octaves[i]), append(logs, c.logs[i])
	}
	c.octaves, c.logs = octaves, logs
}
