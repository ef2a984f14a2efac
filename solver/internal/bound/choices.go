package bound

import (
	"cmp"
	"math"
	"slices"
)

// over is the least floor of some scopes: first of their single groups, for little
// else is less where these do well, which is soon seen. Of the others those go first
// that promise to be the least: on the node where a single group does best, if it
// does so on one, or else by what is soon known of them.
func (f *floors) over(scopes []scope, best float64) float64 {
	at := -1
	for _, c := range f.choices(scopes) {
		if c.least == 1 {
			continue
		}
		if t := c.closely(f.oneGroup, best); t < best {
			best, at = t, c.node
		}
	}
	all := f.choices(scopes) // anew: a floor of single groups proves nothing of rings
	for i := range all {
		all[i].rough = f.roughly(all[i].scope, best)
	}
	here := func(r ranksAtWork) int {
		if at >= 0 && r.node == at {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(all, func(a, b ranksAtWork) int {
		return cmp.Or(cmp.Compare(here(a), here(b)), cmp.Compare(a.rough, b.rough))
	})
	for _, c := range all {
		if c.rough < best {
			best = c.closely(f.ofRing, best)
		}
	}
	return best
}

// ranksAtWork is a range of a scope.
type ranksAtWork struct {
	scope
	rough    float64   // floor
	whatever *anyTypes // as many ranks; nil where the types are not told apart
}

// closely is the floor, or enough where it is no less. Ranks in a wide range compute
// as the most of them do and exchange as the fewest, so that its parts have higher
// floors; they are looked at where the whole is not enough.
func (r ranksAtWork) closely(floor func(scope, float64) float64, enough float64) float64 {
	if r.whatever.proves(enough, floor) {
		return enough
	}
	t := floor(r.scope, enough)
	switch {
	case t >= enough:
		return enough
	case float64(r.most) <= narrow*float64(r.fewest):
		return r.whatever.orAbout(t)
	}
	for _, part := range r.halves() {
		enough = part.closely(floor, enough)
	}
	return enough
}

// narrow is the ratio of the most ranks at work to the fewest of a range that is not
// cut any more.
const narrow = 1.15

// halves are the two parts of a range, many ranks first; of a choice of types those of
// the range of whatever types that it is in, or the one of these that it lies in.
func (r ranksAtWork) halves() []ranksAtWork {
	within := r.scope
	if r.whatever != nil {
		within = r.whatever.scope
	}
	mid := (within.fewest + within.most) / 2
	low, high := r, r
	low.most, high.fewest = min(r.most, mid), max(r.fewest, mid+1)
	if r.whatever != nil {
		low.whatever, high.whatever = r.whatever.halves()
	}
	return slices.DeleteFunc([]ranksAtWork{high, low}, func(r ranksAtWork) bool { return r.fewest > r.most })
}

// anyTypes are ranks of several nodes of whatever types: what holds of them need not
// be found for each choice of types.
type anyTypes struct {
	scope
	asked     bool
	floor     float64
	low, high *anyTypes // once asked for
}

// halves are the two parts of the range.
func (a *anyTypes) halves() (low, high *anyTypes) {
	if a.low == nil {
		a.low, a.high = &anyTypes{scope: a.scope}, &anyTypes{scope: a.scope}
		a.low.most = (a.fewest + a.most) / 2
		a.high.fewest = a.low.most + 1
	}
	return a.low, a.high
}

// proves says whether the floor is known to be no less than enough. It is asked for
// once, when there is something to compare it with.
func (a *anyTypes) proves(enough float64, floor func(scope, float64) float64) bool {
	if a == nil || math.IsInf(enough, 1) {
		return false
	}
	if !a.asked {
		a.asked, a.floor = true, floor(a.scope, enough)
	}
	return a.floor >= enough
}

// orAbout is the floor of a choice of types, or that of all of them where it is hardly
// less: then no other choice need be looked at.
func (a *anyTypes) orAbout(t float64) float64 {
	const hardly = 1e-3
	if a != nil && a.asked && t <= a.floor*(1+hardly) {
		return a.floor
	}
	return t
}

// choices are the ranges of some scopes.
func (f *floors) choices(scopes []scope) []ranksAtWork {
	var whatever []*anyTypes
	for _, s := range (scope{counts: f.ranks, least: 2, node: -1}).ranges(f.size) {
		whatever = append(whatever, &anyTypes{scope: s})
	}
	var all []ranksAtWork
	for _, s := range scopes {
		for _, r := range s.ranges(f.size) {
			c := ranksAtWork{scope: r}
			// Of two types there are so few choices that nothing is saved.
			if i := slices.IndexFunc(whatever, func(a *anyTypes) bool { return a.fewest <= r.fewest && r.most <= a.most }); i >= 0 && r.exact && len(f.names) > 2 {
				c.whatever = whatever[i]
			}
			all = append(all, c)
		}
	}
	return all
}

// roughly is a floor of a scope's layouts of several groups that is soon found, or
// enough where it proves that there is none below.
func (f *floors) roughly(s scope, enough float64) float64 {
	if math.IsInf(enough, 1) {
		return 0
	}
	r := f.ringOf(s)
	joint, lo, hi := r.joint(), r.rest, enough
	if lo >= enough || joint.tooSmall(enough-r.rest) {
		return enough
	}
	for range 5 {
		if mid := (lo + hi) / 2; joint.tooSmall(mid - r.rest) {
			lo = mid
		} else {
			hi = mid
		}
	}
	return lo
}
