package bound

import (
	"cmp"
	"math"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
)

// class is the equal devices of a problem.
type class struct {
	device   string
	count    int
	rank     *border // of one of them
	linear   *linearFloor
	forward  *attentionFloor
	backward *attentionFloor
	grouped  []grouped  // in groups of fewer and fewer tokens
	heads    *headTimes // nil in a cluster of one rank
	memory   memoryFloor
}

// leastWork is a floor of the weighted sum of stages, the weights those of the
// slowest rank in each: theta such that no shares s_d of the tokens and p_d of
// the pairs have
//
//	lin_d(s_d) + att_d(p_d) <= theta for all d,  sum s_d = tokens,  sum p_d = pairs
//
// with lin_d and att_d the weighted floors of device d. For any price r >= 0 of a
// token in pairs, theta is too small if
//
//	sum over d of max over s of (att_d^-1(theta - lin_d(s)) + r s)  <  pairs + r tokens
//
// since the left side is at least the right one for shares that keep to theta.
// lin_d is known by cells, of which the cost is the least and the tokens are the
// most of all their numbers, so that the left side is taken too large at worst.
// The least theta that passes rises with r as long as the best shares have too
// few tokens, so that bisection finds the best r; then the cells in use are cut
// finer.
type leastWork struct {
	classes       []class
	attention     []*attentionFloor // by class; nil for none
	levels        [][]groupLevel    // the same in groups of up to some tokens
	weights       [stageCount]float64
	tokens, pairs float64
	ranks         int     // that may have a share
	beside        float64 // seconds that ports have other bytes to send
	price         float64 // that proved the last theta
	looks         []look  // by class
	singles       bool    // all groups are of one rank
	twoBatch      bool    // micro-batches go in twos, so that ranks compute while all-to-alls move
}

// linearWork leaves attention out.
func linearWork(j costmodel.Job, classes []class, weights [stageCount]float64) *leastWork {
	return &leastWork{classes: classes, weights: weights, tokens: float64(j.SeqLen), price: 1, looks: make([]look, len(classes))}
}

func newLeastWork(j costmodel.Job, classes []class, weights [stageCount]float64) *leastWork {
	w := linearWork(j, classes, weights)
	if weights[forwardLayer]+weights[backwardLayer] == 0 {
		return w
	}
	s := w.tokens
	w.share(s * (s + 1) / 2 * float64(j.Model.QHeads))
	for _, c := range classes {
		w.attention = append(w.attention, sumOf(weights[forwardLayer], c.forward, weights[backwardLayer], c.backward))
		w.levels = append(w.levels, w.levelsOf(&c))
	}
	return w
}

// share adds pairs to what is shared out.
func (w *leastWork) share(pairs float64) {
	w.pairs, w.price = pairs, pairs/w.tokens
}

// excess is what the left side has over the right one, and the tokens of its
// best shares.
func (w *leastWork) excess(theta, price float64) (excess, tokens float64) {
	values, dealt := make([]float64, len(w.classes)), make([]float64, len(w.classes))
	for c := range w.classes {
		if v, at := w.best(c, theta, price); at >= 0 {
			values[c], dealt[c] = v, float64(w.classes[c].linear.cells[at].hi)
		}
	}
	sum, tokens := w.sumOf(values, dealt)
	return sum - w.pairs - price*w.tokens, tokens
}

// sumOf adds up the best shares of as many ranks as may have one.
func (w *leastWork) sumOf(values, tokens []float64) (sum, dealt float64) {
	adds := make([]added, 0, 8)
	for c, v := range values {
		adds = append(adds, added{v, tokens[c], w.classes[c].count})
	}
	slices.SortStableFunc(adds, func(a, b added) int { return cmp.Compare(b.value, a.value) })
	left := w.ranks
	for _, a := range adds {
		n := min(left, a.count)
		sum += float64(n) * a.value
		dealt += float64(n) * a.tokens
		left -= n
	}
	return sum, dealt
}

// added is what each device of a class adds to the left side.
type added struct {
	value, tokens float64
	count         int
}

// tooSmall looks for a price that proves theta too small, first the last one that
// did and then, in growing steps until it is passed, towards the least excess. The
// excess is convex in the price, with the tokens that the best shares have too many for
// slope.
func (w *leastWork) tooSmall(theta float64) bool {
	e, tokens := w.excess(theta, w.price)
	if e < 0 {
		return true
	}
	if w.pairs == 0 {
		return false
	}
	scale, at := math.Log(w.pairs/w.tokens), math.Log(w.price)
	lo, hi := scale-priceSpan, scale+priceSpan
	for least, most, step := lo, hi, 4*priceStep; ; step *= 4 {
		if tokens < w.tokens {
			lo, at = at, at+step
		} else {
			hi, at = at, at-step
		}
		if hi-lo <= priceStep {
			w.price = math.Exp((lo + hi) / 2)
			return false
		}
		if at >= hi || at <= lo || lo > least && hi < most {
			at = (lo + hi) / 2
		}
		if e, tokens = w.excess(theta, math.Exp(at)); e < 0 {
			w.price = math.Exp(at)
			return true
		}
	}
}

// priceSpan is how far from the mean price of a token prices are tried, and
// priceStep how closely, both as logarithms.
const (
	priceSpan = 10
	priceStep = 0.01
)

// raise is the largest theta that it can prove too small, from one on that is.
func (w *leastWork) raise(theta, precision float64) float64 {
	lo, hi := theta, max(theta*(1+precision), 1e-12)
	for step := hi * precision; w.tooSmall(hi); step *= 4 {
		if lo, hi = hi, hi+step; hi > 1e30 {
			return math.Inf(1)
		}
	}
	for hi-lo > precision*hi {
		if mid := (lo + hi) / 2; w.tooSmall(mid) {
			lo = mid
		} else {
			hi = mid
		}
	}
	return lo
}

// rough and exact are the precision of times before and after cells are cut.
const (
	rough = 1e-3
	exact = 1e-4
)

// solve is the floor.
func (w *leastWork) solve() float64 { return w.from(0, rough, exact) }

// about is less than the floor by no more than it is worth to find that.
func (w *leastWork) about() float64 { return w.from(0, rough) }

// from is the floor, with rising precision, where theta is known to be one. A round
// that gains nothing may come before one that does, for what is cut then are the cells
// next to be used.
func (w *leastWork) from(theta float64, precisions ...float64) float64 {
	for _, precision := range precisions {
		for range maxSplits {
			theta = w.raise(theta, precision)
			if math.IsInf(theta, 1) || !w.refine(theta*(1+precision)) {
				break
			}
		}
	}
	return theta
}

// maxSplits bounds how often cells are cut, each time into splitParts; splitUntil
// is the relative width at which they are fine enough.
const (
	maxSplits  = 12
	splitParts = 6
	splitUntil = 1.0 / 512
)

// refine cuts the cells that the best shares are in and says whether it cut any.
func (w *leastWork) refine(theta float64) bool {
	todo := make([][]int, len(w.classes))
	for _, shift := range []float64{1 / 1.02, 1.02} {
		for c := range w.classes {
			if _, at := w.best(c, theta, w.price*shift); at >= 0 && !slices.Contains(todo[c], at) {
				todo[c] = append(todo[c], at)
			}
		}
	}
	cut := false
	for c := range w.classes {
		l := w.classes[c].linear
		slices.Sort(todo[c])
		for _, at := range slices.Backward(todo[c]) {
			if cell := l.cells[at]; float64(cell.hi-cell.lo) > splitUntil*float64(cell.hi) {
				l.split(at, splitParts)
				cut = true
			}
		}
	}
	return cut
}
