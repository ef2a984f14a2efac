package batch

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/evenkeel/evenkeel/internal/units"
)

// alike is a problem as FlexSP and FCP see it: the devices are all alike, so that
// a group is its degree. On a fleet of unlike devices the slowest and the smallest
// group of a degree stands for all, and a group gets its true class afterwards.
type alike struct {
	p       *Problem
	devices int
	levels  []level // by degree, rising
}

// level is the groups of one degree.
type level struct {
	degree  int
	classes []int         // that a group may have
	most    int           // groups side by side
	cap     units.Tokens  // least of the classes
	base    units.Seconds // most of the classes
}

// newAlike takes the classes whose degree is allowed, of those with and those
// without recomputation the ones that hold the longest sequence, without first:
// neither paper chooses.
func newAlike(p *Problem, allowed func(degree int) bool) (*alike, error) {
	longest := slices.Max(p.Lengths)
	for _, recompute := range []bool{false, true} {
		a := &alike{p: p, devices: p.Devices(), levels: levels(p, recompute, allowed)}
		if a.holds(longest) < len(a.levels) {
			return a, nil
		}
	}
	return nil, &IllegalError{Why: fmt.Sprintf("no group of a degree that the strategy forms holds the longest sequence, %d tokens, among devices taken as alike", int64(longest))}
}

// levels gathers the classes by degree. Of several classes of the same devices one
// counts: of those whose members hold equal shares, as those who take devices for
// alike give them, the one that trains the batch in the least time (a group may be a
// ring or an all-to-all, and the baselines have whichever is faster, too); without
// equal shares the first.
func levels(p *Problem, recompute bool, allowed func(degree int) bool) []level {
	var all []level
	for i, c := range p.Classes {
		if c.Recompute != recompute || !allowed(c.Degree()) {
			continue
		}
		k := slices.IndexFunc(all, func(l level) bool { return l.degree == c.Degree() })
		if k < 0 {
			all, k = append(all, level{degree: c.Degree()}), len(all)
		}
		same := slices.IndexFunc(all[k].classes, func(o int) bool { return slices.Equal(p.Classes[o].Uses, c.Uses) })
		switch {
		case same < 0:
			all[k].classes = append(all[k].classes, i)
		case equalShares(&c) && !(equalShares(&p.Classes[all[k].classes[same]]) && p.inTurn(all[k].classes[same]) <= p.inTurn(i)):
			all[k].classes[same] = i
		}
	}
	slices.SortFunc(all, func(a, b level) int { return cmp.Compare(a.degree, b.degree) })
	for i := range all {
		all[i].settle(p)
	}
	return all
}

// inTurn is what a group of a class takes for the batch's sequences, all that it holds.
func (p *Problem) inTurn(class int) units.Seconds {
	sum := p.Classes[class].Base
	for _, s := range p.Lengths {
		if s <= p.Classes[class].Cap {
			sum += p.Costs.Time(class, s)
		}
	}
	return sum
}

// settle works out what holds for any group of the level.
func (l *level) settle(p *Problem) {
	l.most, l.cap = mostGroups(p, l.classes), maxTokens
	for _, c := range l.classes {
		l.cap, l.base = min(l.cap, p.Classes[c].Cap), max(l.base, p.Classes[c].Base)
	}
}

// mostGroups is how many groups of the classes find place side by side, taken as
// first fit takes them.
func mostGroups(p *Problem, classes []int) int {
	left, n := pools(p), 0
	for _, c := range classes {
		for takePools(left, p.Classes[c].Uses) {
			n++
		}
	}
	return n
}

func pools(p *Problem) []int {
	left := make([]int, len(p.Fleet))
	for i, pool := range p.Fleet {
		left[i] = pool.Count()
	}
	return left
}

// takePools removes a group's devices from those left; false if they do not do.
func takePools(left, uses []int) bool {
	for i, u := range uses {
		if left[i] < u {
			return false
		}
	}
	for i, u := range uses {
		left[i] -= u
	}
	return true
}

// holds is the first level whose memory holds the tokens.
func (a *alike) holds(tokens units.Tokens) int {
	for i, l := range a.levels {
		if l.cap >= tokens {
			return i
		}
	}
	return len(a.levels)
}

// capacity is the tokens that all devices hold together.
func (a *alike) capacity() units.Tokens {
	var most units.Tokens
	for _, l := range a.levels {
		most = max(most, l.cap*units.Tokens(l.most))
	}
	return most
}

// time of a sequence in a group of a level.
func (a *alike) time(level int, s units.Tokens) units.Seconds {
	t := units.Seconds(0)
	for _, c := range a.levels[level].classes {
		t = max(t, a.p.Costs.Time(c, s))
	}
	return t
}

// share is the sequences of one group, before it has a class.
type share struct {
	level     int
	sequences []int
}

// realise gives groups their classes and devices, those of most devices first,
// each the first class that is left, and returns the micro-batch as it is judged.
// Groups without sequences fall away.
func (a *alike) realise(shares []share) (MicroBatch, bool) {
	order := slices.Clone(shares)
	order = slices.DeleteFunc(order, func(s share) bool { return len(s.sequences) == 0 })
	slices.SortStableFunc(order, func(x, y share) int { return cmp.Compare(y.level, x.level) })
	left := pools(a.p)
	var groups []Group
	for _, s := range order {
		class, ok := a.class(left, s)
		if !ok {
			return MicroBatch{}, false
		}
		groups = append(groups, Group{Class: class, Sequences: s.sequences})
	}
	if Place(a.p, groups) != nil {
		return MicroBatch{}, false
	}
	plan := Plan{Micro: []MicroBatch{{Groups: groups}}}
	Evaluate(a.p, &plan)
	return plan.Micro[0], true
}

// class is the first class of the share's level whose devices are left and whose
// memory holds its sequences.
func (a *alike) class(left []int, s share) (int, bool) {
	var tokens units.Tokens
	for _, k := range s.sequences {
		tokens += a.p.Lengths[k]
	}
	for _, c := range a.levels[s.level].classes {
		if tokens <= a.p.Classes[c].Cap && takePools(left, a.p.Classes[c].Uses) {
			return c, true
		}
	}
	return 0, false
}

// never is the time of what cannot be.
var never = units.Seconds(math.Inf(1))

// descending is the indices of the sequences, longest first.
func descending(lengths []units.Tokens) []int {
	order := make([]int, len(lengths))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Or(cmp.Compare(lengths[b], lengths[a]), cmp.Compare(a, b)) })
	return order
}
