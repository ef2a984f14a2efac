package fit

import (
	"cmp"
	"math"
	"slices"

	"github.com/evenkeel/evenkeel/internal/stats"
)

// The bootstrap of every bound: the number of draws and their seed, fixed so
// that one report always has the same bounds.
const (
	bootstrapDraws = 1000
	bootstrapSeed  = 1
)

// statistics are what is reported of a set of log ratios.
type statistics struct{ median, mean, p90, p95, bias float64 }

// errorsOf summarises log ratios in ascending order; bias is their median, with
// its sign, and the others are of their magnitudes.
func errorsOf(logs []float64) statistics {
	errs := make([]float64, len(logs))
	sum := 0.0
	for i, l := range logs {
		errs[i] = math.Abs(l)
		sum += errs[i]
	}
	return statistics{
		median: stats.Median(errs), mean: sum / float64(len(errs)), p90: stats.Quantile(errs, 0.9), p95: stats.Quantile(errs, 0.95),
		bias: stats.Median(logs),
	}
}

// upperBounds bootstraps the upper 95 % bounds of the statistics of log ratios
// in ascending order; that of the bias is of its magnitude.
//
// All come from one set of draws. A draw counts how often each ratio is in it,
// and quantiles are read off the counts in order, so that a draw is linear in
// the number of points where sorting it would not be. Drawing by rank makes the
// bounds independent of the order of points, and monotone: where every error
// grows and none changes its side, so do the bounds of mean and quantiles.
func upperBounds(logs []float64) statistics {
	r := newResampler(logs)
	stats.BootstrapIndices(len(logs), r.draw, bootstrapDraws, bootstrapSeed)
	upper := func(of func(statistics) float64) float64 {
		replicates := make([]float64, len(r.seen))
		for i, s := range r.seen {
			replicates[i] = of(s)
		}
		slices.Sort(replicates)
		return stats.UpperBound(replicates, 0.95)
	}
	return statistics{
		median: upper(func(s statistics) float64 { return s.median }),
		mean:   upper(func(s statistics) float64 { return s.mean }),
		p90:    upper(func(s statistics) float64 { return s.p90 }),
		p95:    upper(func(s statistics) float64 { return s.p95 }),
		bias:   upper(func(s statistics) float64 { return math.Abs(s.bias) }),
	}
}

// resampler keeps the statistics of every draw.
type resampler struct {
	logs, errs   []float64
	byLog, byErr []int // ranks of logs by their value and by their magnitude
	counts       []int
	around       []orderStatistics // median, P90, P95
	seen         []statistics
}

func newResampler(logs []float64) *resampler {
	n := len(logs)
	r := &resampler{logs: logs, errs: make([]float64, n), byLog: make([]int, n), byErr: make([]int, n), counts: make([]int, n)}
	for i, l := range logs {
		r.errs[i], r.byLog[i], r.byErr[i] = math.Abs(l), i, i
	}
	slices.SortStableFunc(r.byErr, func(a, b int) int { return cmp.Compare(r.errs[a], r.errs[b]) })
	for _, p := range []float64{0.5, 0.9, 0.95} {
		r.around = append(r.around, newOrderStatistics(n, p))
	}
	return r
}

// draw takes the statistics of one draw; its mean is only what the bootstrap
// asks for.
func (r *resampler) draw(index []int) float64 {
	clear(r.counts)
	sum := 0.0
	for _, i := range index {
		r.counts[i]++
		sum += r.errs[i]
	}
	q := r.around
	r.read(r.byErr, r.errs, q)
	s := statistics{mean: sum / float64(len(index))}
	s.median, s.p90, s.p95 = q[0].value(), q[1].value(), q[2].value()
	r.read(r.byLog, r.logs, q[:1])
	s.bias = q[0].value()
	r.seen = append(r.seen, s)
	return s.mean
}

// read finds the order statistics around quantiles, which rise, in a draw: the
// values in ascending order come as often as they are counted.
func (r *resampler) read(order []int, values []float64, around []orderStatistics) {
	k, have := 0, 0
	for _, i := range order {
		have += r.counts[i]
		for k < len(around) && have > around[k].rank {
			if !around[k].found {
				around[k].lo, around[k].found = values[i], true
			}
			if have <= around[k].next {
				break // the upper one is still to come
			}
			around[k].hi, around[k].found = values[i], false
			k++
		}
		if k == len(around) {
			return
		}
	}
}

// orderStatistics are the two values that a quantile lies between, by the rule
// of stats.Quantile: a straight line around rank (n-1)p, counted from 0.
type orderStatistics struct {
	rank, next int
	share      float64 // of the way from lo to hi
	lo, hi     float64
	found      bool // lo is known, hi is not
}

func newOrderStatistics(n int, p float64) orderStatistics {
	h := float64(n-1) * p
	rank := int(h)
	return orderStatistics{rank: rank, next: min(rank+1, n-1), share: h - float64(rank)}
}

func (o orderStatistics) value() float64 { return o.lo + o.share*(o.hi-o.lo) }
