package batch

import (
	"fmt"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel/workload"
	"github.com/evenkeel/evenkeel/internal/units"
)

// Layout divides all devices, in the order of their ranks, into groups of equal size.
type Layout struct {
	Degree    int  `json:"degree"`    // devices of each group
	Recompute bool `json:"recompute"` // full activation recomputation
}

// String names the layout: "degree 8".
func (y Layout) String() string {
	if y.Recompute {
		return fmt.Sprintf("degree %d, recompute", y.Degree)
	}
	return fmt.Sprintf("degree %d", y.Degree)
}

// layouts are those of a problem: the degrees that divide its devices, rising,
// first without recomputation and then with it, where there are such classes.
func (l *lineup) layouts() []Layout {
	kinds := map[bool]bool{}
	for i := range l.p.Classes {
		kinds[l.p.Classes[i].Recompute] = true
	}
	var all []Layout
	for _, recompute := range []bool{false, true} {
		for d := 1; kinds[recompute] && d <= len(l.seats); d++ {
			if len(l.seats)%d == 0 {
				all = append(all, Layout{d, recompute})
			}
		}
	}
	return all
}

// equalGroups is a layout on a line-up.
type equalGroups struct {
	line  *lineup
	spans []span
	cap   units.Tokens // of the group that holds least
}

func (l *lineup) equal(y Layout) (*equalGroups, error) {
	n := len(l.seats)
	if y.Degree < 1 || n%y.Degree != 0 {
		return nil, &IllegalError{Why: fmt.Sprintf("%d devices are not cut into groups of %d", n, y.Degree)}
	}
	e := &equalGroups{line: l}
	for from := 0; from < n; from += y.Degree {
		s, err := l.span(from, y.Degree, y.Recompute)
		if err != nil {
			return nil, err
		}
		if c := l.cap(s); from == 0 || c < e.cap {
			e.cap = c
		}
		e.spans = append(e.spans, s)
	}
	return e, nil
}

// packShare is the share of a group's tokens (cap) to which packing fills bins at first.
// The rest is kept free, so that the last sequences need no bins of their own.
const packShare = 0.9

// pack is the baselines' packing (Hetu-Galvatron's FlexSP solver, b466689): best
// fit decreasing over the whole batch into bins of nine tenths of a group's
// memory, but of the longest sequence at least; consecutive bins are the groups
// of a micro-batch, and in the last one, groups left empty take every other
// sequence of the group that has most.
func (e *equalGroups) pack() (*Plan, error) {
	p := e.line.p
	k, longest := longestOf(p)
	if longest > e.cap {
		return nil, &TooLongError{k, longest, e.cap, "groups of one size, each for any sequence,"}
	}
	bins, err := workload.Pack(p.Lengths, max(units.Tokens(packShare*float64(e.cap)), longest))
	if err != nil {
		return nil, err
	}
	plan := &Plan{}
	for micro := range slices.Chunk(bins, len(e.spans)) {
		groups := make([][]int, len(e.spans))
		for i, b := range micro {
			groups[i] = b.Sequences
		}
		fillEmpty(groups)
		m := MicroBatch{}
		for i, sequences := range groups {
			if len(sequences) > 0 {
				m.Groups = append(m.Groups, e.line.group(e.spans[i], sequences))
			}
		}
		plan.Micro = append(plan.Micro, m)
	}
	Evaluate(p, plan)
	return plan, nil
}

// fillEmpty gives each group without sequences every other one of those of the group
// that has most, which stand longest first.
func fillEmpty(groups [][]int) {
	for i := range groups {
		if len(groups[i]) > 0 {
			continue
		}
		most := 0
		for j := range groups {
			if len(groups[j]) > len(groups[most]) {
				most = j
			}
		}
		var stay []int
		for n, k := range groups[most] {
			if n%2 == 0 {
				stay = append(stay, k)
			} else {
				groups[i] = append(groups[i], k)
			}
		}
		groups[most] = stay
	}
}
