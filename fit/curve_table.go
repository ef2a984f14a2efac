package fit

import (
	"cmp"
	"math"
	"slices"

	"gonum.org/v1/gonum/mat"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// left is what a point's prediction was off by when the point and those of the
// same collective, group and size were left out of the estimate.
type left struct {
	sighting
	log   float64 // log(measured/predicted)
	reach reach   // what the estimate expected of it
}

// leaveOut predicts every point from the others, the repeats of its size in
// other variants left out too: they are measured together and missed together.
// For a Gaussian process that takes no second fit: with K the covariance and B
// the block left out, the residuals are inv(inv(K)_BB) (inv(K) z)_B (Rasmussen
// and Williams 2006, section 5.4.2).
func (t *familyFit) leaveOut() []left {
	all := make([]left, len(t.seen))
	for _, block := range t.blocks() {
		part := mat.NewSymDense(len(block), nil)
		pull := mat.NewVecDense(len(block), nil)
		for i, a := range block {
			pull.SetVec(i, t.pull.AtVec(a))
			for j := i; j < len(block); j++ {
				part.SetSym(i, j, t.inverse.At(a, block[j]))
			}
		}
		var chol mat.Cholesky
		var spread mat.SymDense
		off := mat.NewVecDense(len(block), nil)
		if !chol.Factorize(part) || chol.InverseTo(&spread) != nil || chol.SolveVecTo(off, pull) != nil {
			continue // its points keep an expectation of 0 and say nothing
		}
		inBlock := map[int]bool{}
		for _, a := range block {
			inBlock[a] = true
		}
		for i, a := range block {
			// Left out, the point is predicted from the others with these weights.
			weight := func(j int) float64 {
				if inBlock[j] {
					return 0
				}
				w := 0.0
				for k, b := range block {
					w -= spread.At(i, k) * t.inverse.At(b, j)
				}
				return w
			}
			s := t.noiseAt(t.seen[a].u)
			// An outlier's weight made its noise look larger than any other's.
			all[a] = left{t.seen[a], off.AtVec(i), t.reachOf(t.seen[a].u, spread.At(i, i)-s*s/t.trust[a], weight)}
		}
	}
	return all
}

// blocks are the sightings of the same collective, group and size.
func (t *familyFit) blocks() [][]int {
	type place struct {
		kind  op.Kind
		ranks int
		u     float64
	}
	at := map[place]int{}
	var blocks [][]int
	for i, o := range t.seen {
		p := place{o.curve.kind, o.curve.ranks, o.u}
		k, ok := at[p]
		if !ok {
			k = len(blocks)
			at[p] = k
			blocks = append(blocks, nil)
		}
		blocks[k] = append(blocks[k], i)
	}
	return blocks
}

const (
	// nearSizes is how many points tell how wide the interval of a size must be.
	nearSizes = 48
	// otherKindApart is how many octaves a point of another collective counts as
	// farther off.
	otherKindApart = 2
	// leastFactor keeps a lucky family from promising too much.
	leastFactor = 1.0
	// untoldFactor is that of which points say nothing.
	untoldFactor = 3.0
)

// widening is by what factor of its standard deviation a prediction at 2^u
// bytes must be widened for nine tenths of the measurements to lie inside: the
// split-conformal quantile (Lei et al. 2018) of what points of similar size,
// left out, were off by. Small messages are noisier than large ones, and where
// protocols switch errors have long tails.
func widening(all []left, k op.Kind, u float64) float64 {
	apart := func(l left) float64 {
		d := math.Abs(l.u - u)
		if l.curve.kind != k {
			d += otherKindApart
		}
		return d
	}
	own := slices.Clone(all)
	slices.SortStableFunc(own, func(a, b left) int { return cmp.Compare(apart(a), apart(b)) })
	own = own[:min(len(own), nearSizes)]
	var ratios []float64
	for _, l := range own {
		if l.reach.untold > 0 {
			ratios = append(ratios, l.reach.ratio(l.log))
		}
	}
	if len(ratios) == 0 {
		return untoldFactor
	}
	slices.Sort(ratios)
	rank := min(len(ratios), int(math.Ceil(0.9*float64(len(ratios)+1))))
	return max(leastFactor, ratios[rank-1])
}

const (
	// octavesBeyond is how far beyond the measured sizes the table goes; further
	// on the last rate holds.
	octavesBeyond = 6
	// farFactor takes the place of widening an octave beyond the measured sizes,
	// where the physics' own uncertainty rules, of which left-out sizes say
	// nothing. It was found on families of NCCL and oneCCL, of all collectives; of
	// fewer than severalKinds loneFactor counts, which takes a standard deviation
	// to nine tenths: a library's collectives change protocols at much the same
	// sizes, and what one of them does beyond its own no other one tells. Of others'
	// messages up to eight times the measured ones 85 % lay in the interval without
	// (57 laws of the serving engines' all-reduce) and 72 % (19 of Vidur's nodes),
	// with it 92 and 79 %.
	farFactor, loneFactor = 1.15, 1.645
	severalKinds          = 3
	// belowLarge is the same below large messages alone, where the latency that was not
	// measured may also be that of another protocol, and belowSmall below others. Of others'
	// messages of NCCL and oneCCL smaller than all fitted ones, 0.87 to 0.98 lay in the
	// interval at any distance, from fits to 4 KiB, 16 KiB, 64 KiB and 128 KiB and more.
	belowLarge, belowSmall = 2.0, 1.5
	// straight is by how much, in log, a dropped knot may have been off the line,
	// or a third of the noise where that is more; halfStraight is the same for
	// half widths, as a share.
	straight     = 0.008
	halfStraight = 0.7
	// widest bounds an interval.
	widest = 2.0
)

// row is a knot before it is one.
type row struct{ u, log, half float64 }

// farFactor is by what factor the curves' intervals widen an octave beyond the measured sizes.
func (t *familyFit) farFactor() float64 {
	kinds := map[op.Kind]bool{}
	for _, c := range t.curves {
		kinds[c.kind] = true
	}
	if len(kinds) < severalKinds {
		return loneFactor
	}
	return farFactor
}

// belowFactor is farFactor of the messages of placesBelow, where those from 2^from bytes on were
// measured.
func (t *familyFit) belowFactor(from float64) float64 {
	if from >= largeOctave {
		return belowLarge
	}
	return max(t.farFactor(), belowSmall)
}

// table tabulates a curve from u to v with its half widths. It never falls.
func (t *familyFit) table(c *sizeCurve, from, to float64) *costmodel.Curve {
	theta := t.parameters(c)
	var rows []row
	for _, u := range append(placesBelow(theta, from), places(c, from, to)...) {
		mean, d := t.log(c, theta, u)
		factor := widening(t.off, c.kind, u)
		if beyond := max(from-u, u-to, 0); beyond > 0 {
			far := t.farFactor()
			if u < math.Floor(from) { // of placesBelow
				far = t.belowFactor(from)
			}
			factor += min(1, beyond) * (far - factor)
		}
		rows = append(rows, row{u, mean, min(widest, d.half(factor))})
	}
	rise(rows)
	return tabulated(thinned(rows, t.tolerance()), c.volume)
}

// latencyAlone is by what factor a message takes longer than one of no bytes where its latency
// is all there is.
const latencyAlone = 1.05

// placesBelow are the octaves below the measured sizes that a table goes on for, one at least:
// down to where latency is all there is, which nobody measured and which is as uncertain as the
// physics. Of others' messages of NCCL and oneCCL of 4 KiB and more, curves that stayed level
// below those were up to a tenth too high in the median, and of 16 KiB and more up to a fifth;
// 3 to 61 % of the smaller messages lay in the 90 % interval, that of the smallest fitted one.
func placesBelow(theta params, from float64) []float64 {
	over := func(u float64) float64 {
		log, _ := theta.log(u)
		return log - theta[logAlpha]
	}
	var at []float64
	for u := math.Floor(from) - 1; u >= 0; u-- {
		at = append(at, u)
		if over(u) < math.Log(latencyAlone) {
			break
		}
	}
	slices.Reverse(at)
	return at
}

// places are the sizes of a table: the measured ones, so that what was measured
// is answered without interpolating, and every octave between and beyond them.
// Twice as dense a grid made the documents half as large again and no better.
func places(c *sizeCurve, from, to float64) []float64 {
	at := slices.Clone(c.octaves)
	for u := math.Floor(from); u < to; u++ {
		at = append(at, u)
	}
	for range octavesBeyond {
		to = math.Floor(to) + 1
		at = append(at, to)
	}
	slices.Sort(at)
	const apart = 0.05
	kept := at[:1]
	for _, u := range at[1:] {
		if u > kept[len(kept)-1]+apart {
			kept = append(kept, u)
		}
	}
	return kept
}

// rise replaces stretches that fall by their means: the closest curve in the
// least-squares sense that never falls (pool adjacent violators, Ayer et al. 1955).
func rise(rows []row) {
	type block struct {
		sum float64
		n   int
	}
	var blocks []block
	for _, r := range rows {
		blocks = append(blocks, block{r.log, 1})
		for k := len(blocks) - 1; k > 0 && blocks[k-1].sum*float64(blocks[k].n) >= blocks[k].sum*float64(blocks[k-1].n); k-- {
			blocks[k-1].sum += blocks[k].sum
			blocks[k-1].n += blocks[k].n
			blocks = blocks[:k]
		}
	}
	i := 0
	for _, b := range blocks {
		for range b.n {
			rows[i].log = b.sum / float64(b.n)
			i++
		}
	}
}

// thinned drops rows that a straight line between their neighbours replaces
// (Douglas and Peucker 1973).
func thinned(rows []row, tolerance float64) []row {
	if len(rows) < 3 {
		return rows
	}
	a, b := rows[0], rows[len(rows)-1]
	far, at := 0.0, 0
	for i, r := range rows[1 : len(rows)-1] {
		w := (r.u - a.u) / (b.u - a.u)
		off := max(math.Abs(a.log+w*(b.log-a.log)-r.log)/tolerance, math.Abs(a.half+w*(b.half-a.half)-r.half)/(halfStraight*r.half))
		if off > far {
			far, at = off, i+1
		}
	}
	if far <= 1 {
		return []row{a, b}
	}
	head, tail := thinned(rows[:at+1], tolerance), thinned(rows[at:], tolerance)
	return append(slices.Clone(head), tail[1:]...)
}

// tolerance is by how much, in log, a table may be off the curve.
func (t *familyFit) tolerance() float64 { return max(straight, t.noise/3) }

// tabulated writes rows as knots, rounded to what they are worth.
func tabulated(rows []row, volume func(u float64) units.Bytes) *costmodel.Curve {
	c := &costmodel.Curve{Form: costmodel.LogLog}
	last := costmodel.Knot{}
	for _, r := range rows {
		k := costmodel.Knot{Bytes: max(1, volume(r.u)), Seconds: units.Seconds(rounded(math.Exp(r.log), 5))}
		if k.Bytes <= last.Bytes {
			continue
		}
		k.Seconds = max(k.Seconds, last.Seconds)
		c.Knots, last = append(c.Knots, k), k
		c.HalfWidths = append(c.HalfWidths, rounded(r.half, 3))
	}
	return c
}

// rounded keeps so many significant digits.
func rounded(x float64, digits int) float64 {
	if x == 0 {
		return 0
	}
	scale := math.Pow(10, float64(digits-1)-math.Floor(math.Log10(math.Abs(x))))
	return math.Round(x*scale) / scale
}
