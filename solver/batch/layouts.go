package batch

import (
	"fmt"
	"math"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
)

// GroupLayout returns the layout of one group of a micro-batch, and the lengths of its
// sequences. The sequences are packed one behind another in the order of the plan. Each is
// split over the ranks by itself, by the class's shares and as a zigzag (costmodel.ZigZag),
// so that each balances its causal attention; prices assume the same (costmodel.Packer).
// Ranks of the layout are indices into the group's ranks.
//
// A sequence with fewer tokens than the group has ranks leaves some without tokens. Such
// ranks keep their heads in an all-to-all. All-to-all groups without tokens, and ranks with
// neither tokens nor heads, are left out of the layout; if a single all-to-all group
// remains, OwnLast is false. A group without sequences has an empty layout.
//
// Errors: the class was made for a model with other heads, or its shares or groups do not
// cover tokens and heads exactly once. The document must be valid.
func GroupLayout(d *Document, micro, group, qHeads, kvHeads int) (costmodel.Layout, []units.Tokens, error) {
	g := &d.Micro[micro].Groups[group]
	c := Class(d.Classes[g.Class])
	said := func(err error) error { return fmt.Errorf("classes[%d] (%s).%w", g.Class, c.Name, err) }
	if qHeads < 1 || kvHeads < 1 || qHeads%kvHeads != 0 {
		return costmodel.Layout{}, nil, fmt.Errorf("heads: %d query heads on %d of keys and values: the latter must divide the former", qHeads, kvHeads)
	}
	shares, err := sharesOf(c)
	if err != nil {
		return costmodel.Layout{}, nil, said(err)
	}
	groups, err := allToAlls(c, qHeads)
	if err != nil {
		return costmodel.Layout{}, nil, said(err)
	}
	l := costmodel.Layout{Shards: make([]costmodel.Shard, c.Degree())}
	docs := make([]units.Tokens, 0, len(g.Sequences))
	at := units.Tokens(0)
	for _, k := range g.Sequences {
		n := d.Lengths[k]
		one := costmodel.ZigZag(costmodel.SplitByShares(n, shares), groups)
		for r, s := range one.Shards {
			l.Shards[r].Segments = appendShifted(l.Shards[r].Segments, s.Segments, at)
		}
		docs, at = append(docs, n), at+n
	}
	l.Groups = atWork(groups, l.Shards)
	l.Schedule = c.Among(len(l.Groups))
	return l, docs, nil
}

// sharesOf is the share of every sequence that each device of a group holds.
func sharesOf(c Class) ([]float64, error) {
	shares := make([]float64, 0, c.Degree())
	sum := 0.0
	for pool, n := range c.Uses {
		w := 1 / float64(c.Degree())
		if c.Shares != nil {
			w = c.Shares[pool]
		}
		if n > 0 && !(w >= 0 && w <= 1+shareError) {
			return nil, fmt.Errorf("shares[%d]: %v: want 0 to 1", pool, w)
		}
		for range n {
			shares = append(shares, w)
			sum += w
		}
	}
	if math.Abs(sum-1) > shareError {
		return nil, fmt.Errorf("shares: %v for %v devices: they add up to %v, want 1", c.Shares, c.Uses, sum)
	}
	return shares, nil
}

// shareError is how far from one the sum of shares may be: the rounding of
// documents written elsewhere, far less than a token of any sequence that is run.
const shareError = 1e-9

// allToAlls are a class's groups in the order of their ring: as it says, else
// neighbours that share heads, Heads of them; a ring of all devices where it says
// nothing, for that suits any number of heads.
func allToAlls(c Class, qHeads int) ([]costmodel.Group, error) {
	if c.Groups != nil {
		return c.Groups, validGroups(c, qHeads)
	}
	size := max(1, c.Heads)
	if c.Degree()%size != 0 {
		return nil, fmt.Errorf("head_ranks: %d: want a divisor of the group's %d devices", size, c.Degree())
	}
	groups, err := neighbours(c, qHeads, size)
	if err != nil {
		return nil, err
	}
	c.Groups = groups
	return groups, validGroups(c, qHeads)
}

// neighbours are all-to-alls of so many devices that come one after another.
func neighbours(c Class, qHeads, size int) ([]costmodel.Group, error) {
	heads, err := headsByPlace(c, qHeads, size)
	if err != nil {
		return nil, err
	}
	var groups []costmodel.Group
	for from := 0; from < len(heads); from += size {
		var g costmodel.Group
		for r := from; r < from+size; r++ {
			g = append(g, costmodel.HeadShare{Rank: r, QHeads: heads[r]})
		}
		groups = append(groups, g)
	}
	return groups, nil
}

// headsByPlace is the number of query heads of each device of a group.
func headsByPlace(c Class, qHeads, size int) ([]int, error) {
	if c.QHeads == nil && qHeads%size != 0 {
		return nil, fmt.Errorf("head_ranks: %d: the model's %d query heads cannot be dealt to as many devices evenly", size, qHeads)
	}
	if c.QHeads != nil && len(c.QHeads) != len(c.Uses) {
		return nil, fmt.Errorf("q_heads: %d numbers: the fleet has %d pools", len(c.QHeads), len(c.Uses))
	}
	var heads []int
	for pool, n := range c.Uses {
		each := qHeads / size
		if c.QHeads != nil {
			each = c.QHeads[pool]
		}
		for range n {
			heads = append(heads, each)
		}
	}
	return heads, nil
}

// validGroups checks that every place is in one all-to-all, and that each of
// these has the model's heads.
func validGroups(c Class, qHeads int) error {
	seen := make([]bool, c.Degree())
	for i, g := range c.Groups {
		sum := 0
		for k, m := range g {
			if m.Rank < 0 || m.Rank >= len(seen) || seen[m.Rank] {
				return fmt.Errorf("groups[%d][%d].rank: %d: want each place from 0 to %d once", i, k, m.Rank, len(seen)-1)
			}
			if m.QHeads < 0 || m.QHeads > qHeads {
				return fmt.Errorf("groups[%d][%d].q_heads: %d: want 0 to the model's %d", i, k, m.QHeads, qHeads)
			}
			seen[m.Rank] = true
			sum += m.QHeads
		}
		if sum != qHeads {
			return fmt.Errorf("groups[%d]: %d q_heads in all: the model has %d; is it the one that the batch was planned for?", i, sum, qHeads)
		}
	}
	for r, in := range seen {
		if !in {
			return fmt.Errorf("groups: place %d is in none of them", r)
		}
	}
	return nil
}

// appendShifted appends segments that lie `by` tokens further on; one that begins
// where the last ends is joined with it.
func appendShifted(to, more []costmodel.Segment, by units.Tokens) []costmodel.Segment {
	for _, s := range more {
		s.Start, s.End = s.Start+by, s.End+by
		if n := len(to); n > 0 && to[n-1].End == s.Start {
			to[n-1].End = s.End
			continue
		}
		to = append(to, s)
	}
	return to
}

// atWork is the groups without those and without the members that have nothing to
// do.
func atWork(groups []costmodel.Group, shards []costmodel.Shard) []costmodel.Group {
	var all []costmodel.Group
	for _, g := range groups {
		var kept costmodel.Group
		some := false
		for _, m := range g {
			has := len(shards[m.Rank].Segments) > 0
			some = some || has
			if has || m.QHeads > 0 {
				kept = append(kept, m)
			}
		}
		if some {
			all = append(all, kept)
		}
	}
	return all
}
