package solver

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
		if c.least == 1 || c.whatever.proves(best, f.oneGroup) {
			continue
		}
		if t := f.oneGroup(c.scope, best); t < best {
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
		if c.rough < best && !c.whatever.proves(best, f.ofRing) {
			best = min(best, c.whatever.orAbout(f.ofRing(c.scope, best)))
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

// anyTypes are ranks of several nodes of whatever types: what holds of them need not
// be found for each choice of types.
type anyTypes struct {
	scope
	asked bool
	floor float64
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
	for _, s := range (scope{counts: f.ranks, least: 2, node: -1}).ranges(len(f.p.ranks)) {
		whatever = append(whatever, &anyTypes{scope: s})
	}
	var all []ranksAtWork
	for _, s := range scopes {
		for _, r := range s.ranges(len(f.p.ranks)) {
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
