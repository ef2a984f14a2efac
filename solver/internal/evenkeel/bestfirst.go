package evenkeel

import (
	"cmp"
	"math"
	"math/bits"
	"slices"
)

// bestFirst says which options to simulate next. Estimates err in ways that depend
// on the number of groups: of rings they leave out what waits for what, of large
// groups who shares which port. So options stand in a queue for each number of
// groups, the first of every queue goes first, and from then on a queue's
// estimates are corrected by what its simulations have come to.
type bestFirst struct {
	queues []queue
	taken  map[*draft]bool
	turn   int
}

// queue is the options of about so many groups: by rank, and by estimate, for
// where memory binds, what an overfull draft costs to mend is anyone's guess.
type queue struct {
	groups         int // see groupsAbout
	byRank, byTime []option
	off, learned   float64 // logarithms of simulated over estimated seconds, and how many
}

func newBestFirst(all []option) *bestFirst {
	l := &bestFirst{taken: map[*draft]bool{}}
	for _, c := range all {
		n := groupsAbout(len(c.d.ring))
		at := slices.IndexFunc(l.queues, func(q queue) bool { return q.groups == n })
		if at < 0 {
			at = len(l.queues)
			l.queues = append(l.queues, queue{groups: n})
		}
		l.queues[at].byRank = append(l.queues[at].byRank, c)
	}
	for i := range l.queues {
		q := &l.queues[i]
		slices.SortStableFunc(q.byRank, func(a, b option) int { return cmp.Compare(a.rank, b.rank) })
		q.byTime = slices.Clone(q.byRank)
		slices.SortStableFunc(q.byTime, func(a, b option) int { return cmp.Compare(a.t, b.t) })
	}
	return l
}

// groupsAbout is the same for numbers of groups that are about the same.
func groupsAbout(n int) int {
	if n <= 8 {
		return n
	}
	part := bits.Len(uint(n)) - 4 // eight a doubling
	return part<<4 | n>>part
}

// next is the option that promises most and the seconds it promises, first of
// each queue and then of all, every rankTurns-th by its estimate alone; nil if
// there is none left.
func (l *bestFirst) next() (best *option, promise float64) {
	promise = math.Inf(1)
	l.turn++
	for i := range l.queues {
		q := &l.queues[i]
		list, by := &q.byRank, func(c *option) float64 { return c.rank }
		if l.turn > len(l.queues) && l.turn%rankTurns == 0 {
			list, by = &q.byTime, func(c *option) float64 { return c.t }
		}
		c := l.first(list)
		switch {
		case c == nil || l.turn <= len(l.queues) && l.turn != i+1:
		case best == nil || by(c)*q.correction() < promise:
			best, promise = c, by(c)*q.correction()
		}
	}
	if best != nil {
		l.taken[best.d] = true
	}
	return best, promise
}

// One of rankTurns options is taken by its estimate alone, and what cannot be made
// to fit counts as misfitTax times as slow as its rank, so that others like it wait.
const (
	rankTurns = 4
	misfitTax = 1.5
)

// first drops what is taken from the front of a list and returns what is then
// the first.
func (l *bestFirst) first(list *[]option) *option {
	for len(*list) > 0 && l.taken[(*list)[0].d] {
		*list = (*list)[1:]
	}
	if len(*list) == 0 {
		return nil
	}
	return &(*list)[0]
}

// correction is how much longer simulations took than estimated, the mean of the
// logarithms; a few that took as long count from the start, for one may be far off.
func (q *queue) correction() float64 { return math.Exp(q.off / (q.learned + startCount)) }

// startCount is how many.
const startCount = 2

// learn enters the simulated seconds of an option, or of what was made of it.
func (l *bestFirst) learn(c *option, seconds float64) {
	n := groupsAbout(len(c.d.ring))
	at := slices.IndexFunc(l.queues, func(q queue) bool { return q.groups == n })
	l.queues[at].off += math.Log(seconds / c.rank)
	l.queues[at].learned++
}
