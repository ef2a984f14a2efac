package batch

import (
	"fmt"
	"slices"

	"github.com/evenkeel/evenkeel/internal/units"
)

// lineup is the devices in the order of their ranks, as launchers and frameworks
// see them: a group of d devices is d neighbours, whatever type they are. The
// baselines form their groups on it, as if all devices were equal, and Evaluate
// prices what they get: the class of the devices that are really there.
type lineup struct {
	p       *Problem
	seats   []seat
	classes map[string][]int // by devices of each pool
}

type seat struct{ rank, pool, node int }

func lineUp(p *Problem) *lineup {
	l := &lineup{p: p, classes: map[string][]int{}}
	for i, pool := range p.Fleet {
		for n, node := range pool.Ranks {
			for _, r := range node {
				l.seats = append(l.seats, seat{r, i, n})
			}
		}
	}
	slices.SortFunc(l.seats, func(a, b seat) int { return a.rank - b.rank })
	for i, c := range p.Classes {
		key := fmt.Sprint(c.Uses)
		l.classes[key] = append(l.classes[key], i)
	}
	return l
}

// span is neighbours in the line, with the classes that such a group may be of.
type span struct {
	from, degree int
	classes      []int
}

// span finds the classes of a group of `degree` neighbours: those with just its
// devices, with equal shares where there are such, since nobody who takes
// devices as equal gives them unequal shares.
func (l *lineup) span(from, degree int, recompute bool) (span, error) {
	s := span{from: from, degree: degree}
	uses := make([]int, len(l.p.Fleet))
	one := true
	for _, at := range l.seats[from : from+degree] {
		uses[at.pool]++
		one = one && at.pool == l.seats[from].pool && at.node == l.seats[from].node
	}
	equal := false
	for _, i := range l.classes[fmt.Sprint(uses)] {
		c := &l.p.Classes[i]
		if c.One && !one || c.Recompute != recompute {
			continue
		}
		if even := equalShares(c); even != equal {
			if !even {
				continue
			}
			equal, s.classes = true, nil
		}
		s.classes = append(s.classes, i)
	}
	if len(s.classes) == 0 {
		return s, &IllegalError{Why: fmt.Sprintf("no class of groups has the devices of ranks %d to %d (%v by pool)", l.seats[from].rank, l.seats[from+degree-1].rank, uses)}
	}
	return s, nil
}

// equalShares reports whether all devices of a group hold the same.
func equalShares(c *Class) bool {
	first := -1.0
	for i, share := range c.Shares {
		if c.Uses[i] == 0 {
			continue
		}
		if first >= 0 && share != first {
			return false
		}
		first = share
	}
	return true
}

// cap is the most tokens that a group of the span holds.
func (l *lineup) cap(s span) units.Tokens {
	var most units.Tokens
	for _, i := range s.classes {
		most = max(most, l.p.Classes[i].Cap)
	}
	return most
}

// group makes a group of the span: of the fastest class that holds the sequences.
func (l *lineup) group(s span, sequences []int) Group {
	g := Group{Class: -1, Sequences: sequences}
	var tokens units.Tokens
	for _, k := range sequences {
		tokens += l.p.Lengths[k]
	}
	var best units.Seconds
	for _, i := range s.classes {
		if l.p.Classes[i].Cap < tokens {
			continue
		}
		t := l.p.Classes[i].Base
		for _, k := range sequences {
			t += l.p.Costs.Time(i, l.p.Lengths[k])
		}
		if g.Class < 0 || t < best {
			g.Class, best = i, t
		}
	}
	at := slices.Clone(l.seats[s.from : s.from+s.degree])
	slices.SortStableFunc(at, func(a, b seat) int { return a.pool - b.pool })
	for _, a := range at {
		g.Ranks = append(g.Ranks, a.rank)
	}
	return g
}

// longestOf is the longest sequence of the problem.
func longestOf(p *Problem) (sequence int, tokens units.Tokens) {
	for i, s := range p.Lengths {
		if s > tokens {
			sequence, tokens = i, s
		}
	}
	return sequence, tokens
}
