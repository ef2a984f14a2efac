package fit

import (
	"cmp"
	"math"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/profile"
)

const (
	// mostCandidates and mostTargets bound the work of a round to about 20 ms.
	mostCandidates = 600
	mostTargets    = 250
	// designNoise is the standard deviation of a measured point, in log time,
	// around what a smooth correction can say: waves and tiles more than noise.
	designNoise = 0.03
	// coefSD is that of the log of each of the law's coefficients before any point
	// is measured, and levelSD that of the whole law, of its share of launch and of
	// ten octaves of time: all that is known while there is no law.
	coefSD  = 0.5
	levelSD = 0.15
)

// design is the expected error of a family's law over its shapes.
type design struct {
	shape      fieldShape
	call       func(op.Shape) units.Seconds // by the pilot
	law        *costmodel.Law               // of the points so far; nil: there is none
	coefs      []*float64                   // of the law
	floor      float64                      // shortest call, s
	candidates []*site
	targets    []*site
	cov        [][]float64 // candidates x targets, given what was seen; nil until it is asked for
	ends       int         // so many candidates, the first ones, are the ends
	seen       []*site
}

// site is a shape in a design.
type site struct {
	index  int         // in the pool
	octave []float64   // where it lies on the axes of op.Coords
	at     [][]float64 // and on those of every lattice
	trend  []float64
	column []float64 // covariances with what was seen, orthogonalised
	vary   float64   // variance given what was seen
	cost   units.Seconds
	taken  bool
}

// expect is what a call is expected to take.
func (d *design) expect(s op.Shape) float64 {
	if d.law == nil {
		return float64(d.call(s))
	}
	return float64(d.law.Seconds(s))
}

func newDesign(r profile.Round) *design {
	d := &design{shape: designShape(r.Pool), call: r.Call, law: soFar(r), floor: math.Inf(1)}
	if d.law != nil {
		d.coefs = coefficients(d.law)
	}
	for _, s := range r.Pool {
		d.floor = min(d.floor, d.expect(s))
	}
	ends := d.endsOf(r.Pool)
	d.ends = len(ends)
	order := lots(r.Pool)
	for _, i := range slices.Concat(ends, order) {
		if len(d.candidates) < mostCandidates && !slices.ContainsFunc(d.candidates, func(c *site) bool { return c.index == i }) {
			c := d.site(r.Pool[i])
			c.index, c.cost = i, r.Cost(r.Pool[i], units.Seconds(d.expect(r.Pool[i])))
			d.candidates = append(d.candidates, c)
		}
	}
	slices.Reverse(order)
	for _, i := range order[:min(len(order), mostTargets)] {
		d.targets = append(d.targets, d.site(r.Pool[i]))
	}
	for _, m := range r.Done {
		d.see(d.site(m.Shape))
	}
	return d
}

// lots orders a pool at random, the same way every time.
func lots(pool []op.Shape) []int {
	order, lot := make([]int, len(pool)), make([]uint64, len(pool))
	for i, s := range pool {
		order[i], lot[i] = i, rank(0, profile.NewSpot("", s).Key(""))
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(lot[a], lot[b]) })
	return order
}

func (d *design) site(s op.Shape) *site {
	t := d.expect(s)
	x := &site{trend: []float64{levelSD, levelSD * d.floor / t, levelSD * math.Log2(t/d.floor) / 10}}
	if d.law != nil {
		for _, e := range elasticities(d.law, d.coefs, s) {
			x.trend = append(x.trend, coefSD*e)
		}
	}
	if located, ok := s.(op.Located); ok {
		at := located.Coords()
		for i := range op.CoordNames(s.Kind()) {
			x.octave = append(x.octave, math.Log2(max(1, at[i])))
		}
	}
	for _, lat := range d.shape.lattices {
		if lat.axes == nil {
			x.at = append(x.at, x.octave)
		} else {
			x.at = append(x.at, d.shape.place(lat.axes, s))
		}
	}
	x.vary = d.prior(x, x)
	return x
}

// prior is the covariance of the errors at two sites before any is measured.
func (d *design) prior(a, b *site) float64 {
	k := 0.0
	for i := range a.trend {
		k += a.trend[i] * b.trend[i]
	}
	for l, lat := range d.shape.lattices {
		far := 0.0
		for j, x := range a.at[l] {
			far += math.Abs(x-b.at[l][j]) / lat.lengths[j]
		}
		k += lat.amp * lat.amp * math.Exp(-far)
	}
	return k
}

// given is the covariance of the errors at two sites, given what was seen.
func (d *design) given(a, b *site) float64 {
	k := d.prior(a, b)
	for i, v := range b.column {
		k -= a.column[i] * v
	}
	return k
}

// see conditions the design on a measured site: one more column of the Cholesky
// factor of the covariance of all that was seen.
func (d *design) see(p *site) {
	seen := &site{octave: p.octave, at: p.at, trend: p.trend}
	for _, q := range d.seen {
		seen.column = append(seen.column, d.against(seen, q))
	}
	vary := d.prior(seen, seen) + designNoise*designNoise
	for _, v := range seen.column {
		vary -= v * v
	}
	root := math.Sqrt(vary)
	seen.vary = root
	all := slices.Concat(d.candidates, d.targets)
	added := make([]float64, len(all))
	for i, x := range all {
		added[i] = d.given(x, seen) / root
	}
	for i, x := range all {
		x.column = append(x.column, added[i])
		x.vary -= added[i] * added[i]
	}
	d.seen = append(d.seen, seen)
	if d.cov == nil {
		return
	}
	n := len(d.candidates)
	for c, row := range d.cov {
		for t := range row {
			row[t] -= added[c] * added[n+t]
		}
	}
}

// against is the entry of a new site in the column of a seen one.
func (d *design) against(a, q *site) float64 {
	k := d.prior(a, q)
	for i, v := range q.column {
		k -= a.column[i] * v
	}
	return k / q.vary
}

// observe takes a candidate as measured.
func (d *design) observe(c int) {
	d.candidates[c].taken = true
	d.see(d.candidates[c])
}

// best is the candidate that takes most error out of the targets per second,
// of those that the time is enough for; -1 if there is none.
func (d *design) best(left units.Seconds) int {
	if d.cov == nil {
		for _, c := range d.candidates {
			row := make([]float64, len(d.targets))
			for t, x := range d.targets {
				row[t] = d.given(c, x)
			}
			d.cov = append(d.cov, row)
		}
	}
	best, most := -1, 0.0
	for i, c := range d.candidates {
		if c.taken || c.cost > left {
			continue
		}
		gain := 0.0
		for _, k := range d.cov[i] {
			gain += k * k
		}
		gain /= (c.vary + designNoise*designNoise) * float64(c.cost)
		if gain > most {
			best, most = i, gain
		}
	}
	return best
}

// farthest is the candidate that lies farthest from all that was seen, in
// shares of the family's range; -1 if the time is enough for none.
func (d *design) farthest(left units.Seconds) int {
	span := d.span()
	best, most := -1, -1.0
	for i, c := range d.candidates {
		if c.taken || c.cost > left {
			continue
		}
		near := math.Inf(1)
		for _, q := range d.seen {
			sum := 0.0
			for j, x := range c.octave {
				z := (x - q.octave[j]) / span[j]
				sum += z * z
			}
			near = min(near, sum)
		}
		if near > most {
			best, most = i, near
		}
	}
	return best
}

// any is a candidate at random, the same every time; -1 if the time is enough
// for none.
func (d *design) any(left units.Seconds) int {
	for i, c := range d.candidates {
		if i >= d.ends && !c.taken && c.cost <= left {
			return i
		}
	}
	return -1
}

// span is how many octaves the candidates cover, at least one, on every axis.
func (d *design) span() []float64 {
	lo, hi := slices.Clone(d.candidates[0].octave), slices.Clone(d.candidates[0].octave)
	for _, c := range d.candidates {
		for j, x := range c.octave {
			lo[j], hi[j] = min(lo[j], x), max(hi[j], x)
		}
	}
	for j := range hi {
		hi[j] = max(1, hi[j]-lo[j])
	}
	return hi
}

// endsOf are the two longest and the two shortest calls of a pool: a law's
// range, its launch and its lasting rate rest on them.
func (d *design) endsOf(pool []op.Shape) []int {
	order, at := make([]int, len(pool)), make([]float64, len(pool))
	for i, s := range pool {
		order[i], at[i] = i, d.expect(s)
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(at[a], at[b]) })
	n := len(order)
	var ends []int
	for _, i := range []int{n - 1, 0, n - 2, 1} {
		if i >= 0 && i < n && !slices.Contains(ends, order[i]) {
			ends = append(ends, order[i])
		}
	}
	return ends
}
