package bound

import (
	"math"
	"slices"
)

// grouped is what a device type charges for attention in groups of more than
// `fewest` and up to `most` tokens.
type grouped struct {
	fewest, most      float64
	forward, backward *attentionFloor
}

// levelRatio is the ratio between the tokens of groups of one level and the next,
// of small clusters; of others it is the square, for levels take long to find.
const levelRatio = math.Sqrt2

// grouped finds the floors of a device type by the tokens of its group, from all
// of them down to half of what a rank has on average.
func (f *floors) grouped(device string, pairs []float64) ([]grouped, error) {
	seq := float64(f.job.SeqLen)
	all, ratio := []grouped{{most: seq}}, levelRatio
	if f.size > mostLevels {
		ratio *= levelRatio
	}
	least := max(1, seq/float64(2*min(f.size, mostLevels)))
	if n := f.size; n == 1 || n > ungroupedRanks {
		least = seq
	}
	for all[len(all)-1].most/ratio >= least {
		last := &all[len(all)-1]
		last.fewest = last.most / ratio
		all = append(all, grouped{most: last.fewest})
	}
	var fewer *grouped
	for i := range slices.Backward(all) {
		g := &all[i]
		var err error
		if g.forward, g.backward, err = f.attention(device, pairs, math.Floor(g.most), fewer); err != nil {
			return nil, err
		}
		fewer = g
	}
	return all, nil
}

// ungroupedRanks is from where on groups are not told apart: their shares of the
// sequence are so small that a few more tokens cost little.
const ungroupedRanks = 32

// mostLevels is the number of ranks beyond which there are no more levels.
const mostLevels = 8

// groupLevel is a grouped under the weights of a leastWork.
type groupLevel struct {
	fewest, most float64
	share        float64 // of all pairs of a head, the most that so many queries have
	attention    *attentionFloor
}

func (w *leastWork) levelsOf(c *class) []groupLevel {
	var all []groupLevel
	for _, g := range c.grouped {
		behind := max(0, 1-g.most/w.tokens)
		all = append(all, groupLevel{g.fewest, g.most, 1 - behind*behind, sumOf(w.weights[forwardLayer], g.forward, w.weights[backwardLayer], g.backward)})
	}
	return all
}

// stretch is a rank of a class with more than lo and up to hi tokens.
type stretch struct {
	class  int
	lo, hi float64
}

// inGroups is the most pairs, of no more than `most`, that a rank has beside its linear work,
// whatever its group.
//
// The blocks of a rank have no more queries than its group has tokens G, and few
// queries are dear. But the members of a group that a rank with s tokens and h of
// H heads shares have its rows to pass all to all: s for each head that is not
// its own, G - s for each that is, as 1+2w rows one way and 1 the other, in both
// all-to-alls of a pass together, in and out. The busier direction has the mean of
// both at least, which is (1+w) (s (H-h) + h (G-s)) rows, and nobody computes
// meanwhile. A rank with p pairs has no fewer heads than p over those of a head,
// of which G tokens have at most the share 1 - (1-G/S)^2: the last ones see most.
// A group of one has nothing to pass: G = s, h = H. Of two ranks in two groups
// both are alone. Where micro-batches go in twos, all-to-alls need less time of computing
// (see reach.left), and the ports' must do for them, which is theta.
func (w *leastWork) inGroups(of stretch, theta, slack, most float64) float64 {
	if len(w.levels) == 0 || w.ranks > ungroupedRanks {
		return most
	}
	if w.singles {
		return w.alone(of, slack, most)
	}
	best := 0.0
	k := &w.classes[of.class]
	row := (1 + k.rank.kvShare) * k.rank.perRow * (w.weights[forwardLayer] + w.weights[backwardLayer])
	for i := range w.levels[of.class] {
		l := &w.levels[of.class][i]
		if l.most < of.lo {
			break
		}
		others := max(0, l.fewest-of.hi)
		left := func(toAlls float64) float64 {
			switch {
			case !w.twoBatch:
				return leftBy(0, slack, toAlls)
			case toAlls > theta:
				return 0
			}
			return leftBy(theta, slack, toAlls)
		}
		if pairs := min(most, l.attention.within(left(row*min(of.lo, others)))); pairs > best {
			best = max(best, l.pairs(w.pairs, left, rows{row * of.lo, row * others}, best, pairs))
		}
		if best >= most {
			return most
		}
	}
	return best
}

// alone is inGroups of a rank whose group has no other member.
func (w *leastWork) alone(of stretch, slack, most float64) float64 {
	at := 0
	for i := range w.levels[of.class] {
		if w.levels[of.class][i].most >= of.hi {
			at = i
		}
	}
	return min(most, w.levels[of.class][at].attention.within(slack))
}

// rows is the seconds that all heads' rows take: a rank's own, were all heads others', and
// those of others, were all heads its own.
type rows struct{ own, others float64 }

// pairs is no less than the most pairs, up to `most`, with which a rank can pass
// its rows and compute, if these are more than `least`; left is what all-to-alls of so many
// seconds leave for attention.
func (l *groupLevel) pairs(all float64, left func(toAlls float64) float64, to rows, least, most float64) float64 {
	fits := func(pairs float64) bool {
		return pairs <= l.attention.within(left(to.own+min(1, pairs/(all*l.share))*(to.others-to.own)))
	}
	if to.others <= to.own || fits(most) { // most heads are the cheapest
		return most
	}
	lo, hi := least, most
	for range 6 {
		if mid := (lo + hi) / 2; fits(mid) {
			lo = mid
		} else {
			hi = mid
		}
	}
	return hi
}
