package costmodel

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/evenkeel/evenkeel/internal/units"
)

// Layout says which rank owns which tokens and computes which heads. Shards[r] are the
// tokens of rank r. Groups are the all-to-all groups (head parallelism), in the order of
// their ring (context parallelism): Groups[i] sends keys and values to Groups[i+1] and
// the last one to the first, each block only as far as some group needs it. Ranks in no
// group take no part in the step. Schedule says in which order all that is run.
//
// Groups of one rank each are ring attention; one group of all ranks is Ulysses; groups
// of equal size with equal shares are USP.
type Layout struct {
	Shards []Shard `json:"shards"`
	Groups []Group `json:"groups"`
	Schedule
}

// Group lists the ranks of one all-to-all group. Inside the attention every member holds
// all tokens of the group for its own query heads: the first member the first QHeads of
// them, the next member those that follow. The members' counts add up to the model's
// query heads.
type Group []HeadShare

// HeadShare is the number of query heads that a rank computes. A rank may have heads
// without tokens, or tokens without heads.
type HeadShare struct {
	Rank   int `json:"rank"`
	QHeads int `json:"q_heads"`
}

// Shard is the tokens of one rank, as half-open intervals of global positions
// in rising order.
type Shard struct {
	Segments []Segment `json:"segments"`
}

// Segment is the tokens Start <= position < End.
type Segment struct {
	Start units.Tokens `json:"start_tokens"`
	End   units.Tokens `json:"end_tokens"`
}

// Len is the number of tokens of a segment.
func (s Segment) Len() units.Tokens { return s.End - s.Start }

// Tokens is the number of tokens of a shard.
func (s Shard) Tokens() units.Tokens {
	var n units.Tokens
	for _, g := range s.Segments {
		n += g.Len()
	}
	return n
}

// Singles makes a group of each rank that has tokens, in rank order, with all qHeads
// query heads: ring attention.
func Singles(tokens []units.Tokens, qHeads int) []Group {
	var groups []Group
	for r, n := range tokens {
		if n > 0 {
			groups = append(groups, Group{{r, qHeads}})
		}
	}
	return groups
}

// Relabelled is the layout with its ranks called otherwise: to[r] is the new number of rank r.
func (l Layout) Relabelled(to []int) Layout {
	x := l
	x.Shards, x.Groups = make([]Shard, len(l.Shards)), make([]Group, len(l.Groups))
	for r, s := range l.Shards {
		x.Shards[to[r]] = s
	}
	for g, members := range l.Groups {
		x.Groups[g] = slices.Clone(members)
		for i := range members {
			x.Groups[g][i].Rank = to[members[i].Rank]
		}
	}
	return x
}

// Tokens is the number of tokens of every rank.
func (l Layout) Tokens() []units.Tokens {
	n := make([]units.Tokens, len(l.Shards))
	for r, s := range l.Shards {
		n[r] = s.Tokens()
	}
	return n
}

// GroupShard is the union of the tokens of a group's members, with adjacent segments
// joined: what every member holds inside the attention.
func (l Layout) GroupShard(g int) Shard {
	all := make([]Segment, 0, 2*len(l.Groups[g])) // of a zigzag no more
	for _, m := range l.Groups[g] {
		all = append(all, l.Shards[m.Rank].Segments...)
	}
	slices.SortFunc(all, func(a, b Segment) int { return cmp.Compare(a.Start, b.Start) })
	joined := all[:0]
	for _, s := range all {
		if n := len(joined); n > 0 && joined[n-1].End == s.Start {
			joined[n-1].End = s.End
			continue
		}
		joined = append(joined, s)
	}
	return Shard{joined}
}

// Reaches says, for each group, over how many hops of the ring its keys and values are
// passed on: as far as the last group that needs them, 0 if no other group does.
func (l Layout) Reaches() []int {
	shards, all := make([]Shard, len(l.Groups)), make([]int, len(l.Groups))
	for g := range shards {
		shards[g] = l.GroupShard(g)
	}
	for g := range all {
		_, all[g] = neededFrom(g, len(shards), func(k int) Shard { return shards[k] })
	}
	return all
}

// neededFrom says at what distance in a ring of n groups the first and the last group are
// that need group g's keys: those with a query behind the first of them.
func neededFrom(g, n int, shard func(g int) Shard) (near, last int) {
	begin := shard(g).Segments[0].Start
	needs := func(d int) bool {
		of := shard((g + d) % n).Segments
		return of[len(of)-1].End-1 > begin
	}
	for last = n - 1; last > 0 && !needs(last); last-- {
	}
	for near = min(1, last); near < last && !needs(near); near++ {
	}
	return near, last
}

// sent is the number of tokens that each group sends around the ring if it sends any,
// given the tokens that the groups hold.
func (l Layout) sent(tokens []units.Tokens) []units.Tokens {
	if !l.KeepTail {
		return tokens
	}
	shards, sent := make([]Shard, len(tokens)), make([]units.Tokens, len(tokens))
	for g := range shards {
		shards[g] = l.GroupShard(g)
	}
	for g := range sent {
		sent[g] = neededOf(g, shards)
	}
	return sent
}

// Tail is the group that keeps tokens instead of sending them because it holds the end of
// the sequence, and how many; 0 tokens where no group does or KeepTail is not set.
func (l Layout) Tail() (group int, kept units.Tokens) {
	if len(l.Groups) < 2 {
		return 0, 0
	}
	all := make([]units.Tokens, len(l.Groups))
	for g, members := range l.Groups {
		for _, m := range members {
			all[g] += l.Shards[m.Rank].Tokens()
		}
	}
	for g, n := range l.sent(all) {
		if n < all[g] {
			return g, all[g] - n
		}
	}
	return 0, 0
}

// neededOf is how many of a group's tokens lie in segments that begin before some other
// group's last token.
func neededOf(g int, shards []Shard) units.Tokens {
	last := units.Tokens(-1)
	for k, s := range shards {
		if k != g {
			last = max(last, s.Segments[len(s.Segments)-1].End-1)
		}
	}
	var needed units.Tokens
	for _, x := range shards[g].Segments {
		if x.Start < last {
			needed += x.Len()
		}
	}
	return needed
}

// Validate reports the first violation of the rules of a layout: shards cover the
// positions 0 to seqLen exactly once with rising segments, every rank with tokens is in
// exactly one group, each group's heads add up to qHeads, and the schedule is possible.
// ranks is the number of devices of the cluster.
func (l Layout) Validate(seqLen units.Tokens, ranks, qHeads int) error {
	if len(l.Shards) != ranks {
		return fmt.Errorf("shards: %d of them: the cluster has %d ranks, and each needs one, if empty", len(l.Shards), ranks)
	}
	if err := l.validateCover(seqLen); err != nil {
		return err
	}
	if err := l.validate(len(l.Groups)); err != nil {
		return err
	}
	seen := make([]bool, ranks)
	for i, g := range l.Groups {
		if err := l.validateGroup(g, qHeads, seen); err != nil {
			return fmt.Errorf("groups[%d]%w", i, err)
		}
	}
	for r, s := range l.Shards {
		if len(s.Segments) > 0 && !seen[r] {
			return fmt.Errorf("groups: rank %d has %d tokens but is in no group", r, int64(s.Tokens()))
		}
	}
	return nil
}

// validateGroup checks one group and marks its ranks as seen.
func (l Layout) validateGroup(g Group, qHeads int, seen []bool) error {
	heads, some := 0, false
	for k, m := range g {
		switch {
		case m.Rank < 0 || m.Rank >= len(seen):
			return fmt.Errorf("[%d].rank: %d: want a rank from 0 to %d", k, m.Rank, len(seen)-1)
		case seen[m.Rank]:
			return fmt.Errorf("[%d].rank: rank %d is in two groups or twice in one", k, m.Rank)
		case m.QHeads < 0 || m.QHeads > qHeads:
			return fmt.Errorf("[%d].q_heads: %d: want 0 to %d", k, m.QHeads, qHeads)
		case m.QHeads == 0 && len(l.Shards[m.Rank].Segments) == 0:
			return fmt.Errorf("[%d]: rank %d has neither tokens nor heads and no place in a group", k, m.Rank)
		}
		seen[m.Rank] = true
		heads += m.QHeads
		some = some || len(l.Shards[m.Rank].Segments) > 0
	}
	if heads != qHeads {
		return fmt.Errorf(": %d q_heads in all: the model has %d, and every group computes all of them", heads, qHeads)
	}
	if !some {
		return fmt.Errorf(": no member has tokens")
	}
	return nil
}

// validateCover checks that segments rise within a shard, stay inside the
// sequence, and that disjointness and a full count together make a cover.
func (l Layout) validateCover(seqLen units.Tokens) error {
	all := make([]Segment, 0, 2*len(l.Shards)) // of a zigzag no more
	var total units.Tokens
	for r, s := range l.Shards {
		for i, g := range s.Segments {
			switch {
			case g.Start < 0 || g.End > seqLen || g.Len() < 1:
				return fmt.Errorf("shards[%d].segments[%d]: [%d, %d): want a non-empty part of [0, %d)", r, i, int64(g.Start), int64(g.End), int64(seqLen))
			case i > 0 && g.Start < s.Segments[i-1].End:
				return fmt.Errorf("shards[%d].segments[%d]: starts at %d, before segment %d ends at %d: segments must rise", r, i, int64(g.Start), i-1, int64(s.Segments[i-1].End))
			}
			all = append(all, g)
			total += g.Len()
		}
	}
	slices.SortFunc(all, func(a, b Segment) int { return cmp.Compare(a.Start, b.Start) })
	for i := 1; i < len(all); i++ {
		if all[i].Start < all[i-1].End {
			return fmt.Errorf("shards: token %d belongs to two segments", int64(all[i].Start))
		}
	}
	if total != seqLen {
		return fmt.Errorf("shards: %d tokens in all: the sequence has %d", int64(total), int64(seqLen))
	}
	return nil
}

// cutsBefore[h] is the number of borders at most h, of any group's heads, that are inside a
// key-value head. None, where every query head has its own, is nil.
type cutsBefore []int

func (l Layout) cutsBefore(m Model) cutsBefore {
	each := m.QHeads / m.KVHeads
	if each == 1 {
		return nil
	}
	cuts := make(cutsBefore, m.QHeads+1)
	for _, group := range l.Groups {
		first := 0
		for _, h := range group {
			if first%each != 0 {
				cuts[first] = 1
			}
			first += h.QHeads
		}
	}
	for h := 1; h < len(cuts); h++ {
		cuts[h] += cuts[h-1]
	}
	return cuts
}

// inside is how many of them lie between the query heads first to first+n.
func (c cutsBefore) inside(first, n int) int {
	if c == nil || n == 0 {
		return 0
	}
	return c[first+n-1] - c[first]
}
