package batch

import (
	"cmp"
	"math"
	"slices"

	"github.com/evenkeel/evenkeel/internal/units"
)

// quickBound is a lower bound of every plan's time, in seconds.
func (t *table) quickBound() float64 { return t.withOpen(t.quickSum()) }

// quickSum is quickBound without what is open of the exchange. Whatever the devices are
// worth, the groups of a micro-batch are worth no more than the fleet. So its roof is at
// least the smallest base plus the mean, weighted by worth, of its groups' work; and one
// roof is at least the time of the longest sequence in the class that is fastest for it.
func (t *table) quickSum() float64 {
	t.setWork()
	if t.behind > 0 {
		t.rest = t.besideLast()
	}
	work := 0.0
	for _, w := range t.work {
		work += w
	}
	return t.fixed + max(t.spreadOver(t.leastMicro(), work), t.besideLongest())
}

// besideLast is what the micro-batches of a plan but the last one take at least: that holds no
// more than the devices do, and the others train what it does not.
func (t *table) besideLast() float64 {
	h := t.holding()
	left := t.sum() - h.most
	return t.spreadOver(h.micro(left), t.workOfRest(t.cheapest(), -1, left))
}

// leastOf is a time that no plan of a layout beats: its groups are worth no more than
// the fleet.
func (t *table) leastOf(y Layout) units.Seconds {
	least := math.Inf(1)
	for c := range t.p.Classes {
		class := &t.p.Classes[c]
		if class.Degree() != y.Degree || class.Recompute != y.Recompute {
			continue
		}
		work := 0.0
		for _, time := range t.time[c] {
			work += t.value[c] * time
		}
		least = min(least, work)
	}
	return units.Seconds(t.fixed + least)
}

// spreadOver is what so many micro-batches take at least of which the groups do so
// much work: as their cost is convex, what equal ones do. More micro-batches take no less. None
// is where the work is done in a micro-batch that there is anyway, which it makes longer.
func (t *table) spreadOver(micro int, work float64) float64 {
	if micro == 0 {
		return work
	}
	return float64(micro) * t.cost(slices.Min(t.base)+work/float64(micro))
}

// setWork works out what items take at least, with what the devices are worth now.
func (t *table) setWork() {
	t.work = t.work[:0]
	for k := range t.tokens {
		t.work = append(t.work, t.leastWork(k))
	}
}

// leastWork is the share of the fleet's time that an item takes where it takes
// least.
func (t *table) leastWork(k int) float64 {
	least := math.Inf(1)
	for c, times := range t.time {
		least = min(least, t.value[c]*times[k])
	}
	return least
}

// besideLongest is what a plan takes at least because of the sequence that takes
// longest: its own micro-batch, and what that cannot hold in the others. Its group
// is of some class; the devices left hold so many tokens and no more, and the
// sequences that go elsewhere are at best those with the least work for their
// tokens. (One that joins the group of the longest adds more to its time than it
// takes of another micro-batch's, where the group is a part of the fleet.)
func (t *table) besideLongest() float64 {
	longest := t.takesLongest()
	h, sum, order := t.holding(), t.sum(), t.cheapest()
	best := math.Inf(1)
	for c, times := range t.time {
		if math.IsInf(times[longest], 1) {
			continue
		}
		roof, in := t.base[c]+times[longest], float64(t.tokens[longest])
		if roof*t.hidesEach < t.hidden { // what joins the group costs less than it takes
			in = float64(t.cap[c])
		}
		left := sum - h.beside(c)
		best = min(best, t.cost(roof)+t.spreadOver(h.micro(left-float64(t.cap[c])), t.workOfRest(order, longest, left-in)))
	}
	return best
}

// takesLongest is the item that takes longest where it is quickest.
func (t *table) takesLongest() int {
	longest, at := -1.0, 0
	for k := range t.tokens {
		alone := math.Inf(1)
		for c, times := range t.time {
			alone = min(alone, t.base[c]+times[k])
		}
		if alone > longest {
			longest, at = alone, k
		}
	}
	return at
}

// sum is the tokens of all sequences.
func (t *table) sum() float64 {
	sum := 0.0
	for _, s := range t.tokens {
		sum += float64(s)
	}
	return sum
}

// cheapest is the items in the order of their work for their tokens.
func (t *table) cheapest() []int {
	order := make([]int, len(t.tokens))
	for i := range order {
		order[i] = len(order) - 1 - i // most are in order then
	}
	slices.SortFunc(order, func(a, b int) int {
		return cmp.Compare(t.work[a]*float64(t.tokens[b]), t.work[b]*float64(t.tokens[a]))
	})
	return order
}

// workOfRest is the least work of so many tokens of all items but one, where
// sequences may be cut.
func (t *table) workOfRest(cheapest []int, but int, tokens float64) float64 {
	work := 0.0
	for _, k := range cheapest {
		if tokens <= 0 {
			break
		}
		if s := float64(t.tokens[k]); k != but {
			work += t.work[k] * min(1, tokens/s)
			tokens -= s
		}
	}
	return work
}

// holding is what micro-batches hold at most: with any worth of the devices, the
// most tokens that a group holds for what its devices are worth.
type holding struct {
	most  float64   // tokens of a micro-batch
	share []float64 // of a micro-batch, by class: what its devices are worth
}

// holding weighs devices by what groups of their own pool hold.
func (t *table) holding() holding {
	worth := make([]float64, len(t.size))
	for c, uses := range t.uses {
		for i, u := range uses {
			if u == t.p.Classes[c].Degree() {
				worth[i] = max(worth[i], float64(t.cap[c])/float64(u))
			}
		}
	}
	total := 0.0
	for i, w := range worth {
		total += w * float64(t.size[i])
	}
	h := holding{most: math.Inf(1), share: make([]float64, len(t.uses))}
	if total == 0 {
		return h
	}
	h.most = 0
	for c, uses := range t.uses {
		for i, u := range uses {
			h.share[c] += float64(u) * worth[i] / total
		}
		h.most = max(h.most, float64(t.cap[c])/h.share[c])
	}
	return h
}

// beside is the most tokens that the devices hold which a group of a class leaves.
func (h holding) beside(class int) float64 {
	if math.IsInf(h.most, 1) {
		return h.most
	}
	return h.most * (1 - h.share[class])
}

// micro is how many micro-batches it takes at least to hold so many tokens.
func (h holding) micro(tokens float64) int {
	if tokens <= 0 {
		return 0
	}
	return int(math.Ceil(tokens/h.most - 1e-9))
}

// leastMicro is a number of micro-batches that memory makes every plan have.
func (t *table) leastMicro() int { return max(1, t.holding().micro(t.sum())) }
