package evenkeel

import (
	"cmp"
	"encoding/binary"
	"math"
	"math/bits"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
)

// draft is a layout as the search sees it: kinds of groups and the ring of all
// groups. Equal groups are equally late, so what a search has to decide is a few
// numbers a kind, however many ranks there are.
type draft struct {
	kinds []groupKind
	ring  []slot
	// Schedule is how the layout is run, as far as its groups can be. It does not say whether
	// micro-batches go in twos, which the search decides for all drafts (estimator.twoBatch),
	// nor whether a tail is kept, which follows from the lead.
	costmodel.Schedule
	// lead is how many tokens of the group that has the end of the sequence come before
	// all others (see leading).
	lead units.Tokens
}

// slot is a group's place in the ring.
type slot struct{ kind, group int }

// groupKind is groups that are alike: of equal members in equal order, with the
// same heads and, but for rounding, the same tokens.
type groupKind struct {
	groups [][]int      // ranks, by group
	class  []int        // of each member
	heads  []int        // of each member
	weight []float64    // of each member's part of its group's tokens
	total  units.Tokens // of all groups together
	// Groups of a tier share a stretch of the sequence, those of higher ones hold what
	// comes after it (see costmodel.ZigZagTiers).
	tier int
}

// clone copies what moves change.
func (d *draft) clone() *draft {
	x := *d
	x.kinds = slices.Clone(d.kinds)
	return &x
}

// ranks counts the members of all groups.
func (d *draft) ranks() int {
	n := 0
	for i := range d.kinds {
		n += len(d.kinds[i].groups) * len(d.kinds[i].class)
	}
	return n
}

// each is the tokens of the kind's groups in whole blocks, as even as they
// allow; the first group has the rest.
func (k *groupKind) each(block units.Tokens) []units.Tokens {
	n := units.Tokens(len(k.groups))
	blocks := k.total / block
	all := make([]units.Tokens, n)
	for i := range all {
		all[i] = blocks / n * block
		// The groups with a block more lie evenly among the others.
		if x := units.Tokens(i); (x+1)*(blocks%n)/n > x*(blocks%n)/n {
			all[i] += block
		}
	}
	all[0] += k.total % block
	return all
}

// members splits a group's tokens by the weights.
func (k *groupKind) members(total, block units.Tokens) []units.Tokens {
	if len(k.weight) == 1 {
		return []units.Tokens{total}
	}
	return dealByWeight(total, block, k.weight)
}

// layout writes the draft out. Groups without tokens are left out, and members with
// nothing to do.
func (d *draft) layout(ranks int, block units.Tokens) costmodel.Layout {
	tokens := make([]units.Tokens, ranks)
	each := make([][]units.Tokens, len(d.kinds)) // by kind and group
	for i := range d.kinds {
		each[i] = d.kinds[i].each(block)
		d.kinds[i].deal(tokens, each[i], block)
	}
	groups := make([]costmodel.Group, 0, len(d.ring))
	tiers := make([]int, 0, len(d.ring))
	for _, at := range d.ring {
		if each[at.kind][at.group] != 0 {
			k := &d.kinds[at.kind]
			groups, tiers = append(groups, k.atWork(at.group, tokens)), append(tiers, k.tier)
		}
	}
	l := costmodel.ZigZagTiers(tokens, groups, tiers)
	l.Schedule = d.Among(len(groups))
	return leading(l, d.lead)
}

// deal gives the members of the kind's groups, which have so many tokens each, theirs.
func (k *groupKind) deal(tokens, each []units.Tokens, block units.Tokens) {
	known := map[units.Tokens][]units.Tokens{}
	for g, group := range k.groups {
		split, ok := known[each[g]]
		if !ok {
			split = k.members(each[g], block)
			known[each[g]] = split
		}
		for m, r := range group {
			tokens[r] = split[m]
		}
	}
}

// atWork is one of the kind's groups with the members that have tokens or heads.
func (k *groupKind) atWork(group int, tokens []units.Tokens) costmodel.Group {
	all := make(costmodel.Group, 0, len(k.heads))
	for m, r := range k.groups[group] {
		if tokens[r] > 0 || k.heads[m] > 0 {
			all = append(all, costmodel.HeadShare{Rank: r, QHeads: k.heads[m]})
		}
	}
	return all
}

// draftOf reads a layout back as a draft, its zigzag restored. Groups of equal
// classes and heads whose members' tokens differ by no more than two blocks are
// of one kind; apart keeps every group on its own.
func draftOf(l costmodel.Layout, class []int, block units.Tokens, apart bool) *draft {
	l, lead := following(l)
	tokens, tiers := l.Tokens(), tiersOf(l)
	d := &draft{Schedule: l.Schedule, lead: lead}
	d.TwoBatch, d.KeepTail = false, false
	var members [][]units.Tokens // of each kind's first group
	for at, g := range l.Groups {
		var k groupKind
		ranks, own := make([]int, len(g)), make([]units.Tokens, len(g))
		for i, h := range g {
			ranks[i], own[i] = h.Rank, tokens[h.Rank]
			k.class, k.heads, k.weight = append(k.class, class[h.Rank]), append(k.heads, h.QHeads), append(k.weight, float64(own[i]))
			k.total += own[i]
		}
		k.tier = tiers[at]
		same := func(x groupKind) bool {
			return slices.Equal(x.class, k.class) && slices.Equal(x.heads, k.heads) && x.tier == k.tier
		}
		at := -1
		if !apart {
			at = slices.IndexFunc(d.kinds, same)
			for at >= 0 && !alike(members[at], own, 2*block) {
				next := slices.IndexFunc(d.kinds[at+1:], same)
				if next < 0 {
					at = -1
					break
				}
				at += 1 + next
			}
		}
		if at < 0 {
			at = len(d.kinds)
			d.kinds, members = append(d.kinds, groupKind{class: k.class, heads: k.heads, weight: k.weight, tier: k.tier}), append(members, own)
		}
		x := &d.kinds[at]
		d.ring = append(d.ring, slot{at, len(x.groups)})
		x.groups = append(x.groups, ranks)
		x.total += k.total
	}
	return d
}

// tiersOf is the tier of each group, counted from 0: one begins where all groups before
// it end.
func tiersOf(l costmodel.Layout) []int {
	type stretch struct {
		group      int
		begin, end units.Tokens
	}
	all := make([]stretch, len(l.Groups))
	for g, group := range l.Groups {
		x := stretch{g, math.MaxInt64, 0}
		for _, m := range group {
			if s := l.Shards[m.Rank].Segments; len(s) > 0 {
				x.begin, x.end = min(x.begin, s[0].Start), max(x.end, s[len(s)-1].End)
			}
		}
		all[g] = x
	}
	slices.SortFunc(all, func(a, b stretch) int { return cmp.Compare(a.begin, b.begin) })
	tiers, at, end := make([]int, len(all)), 0, units.Tokens(0)
	for i, x := range all {
		if i > 0 && x.begin >= end {
			at++
		}
		tiers[x.group], end = at, max(end, x.end)
	}
	return tiers
}

func alike(a, b []units.Tokens, within units.Tokens) bool {
	for i := range a {
		if max(a[i]-b[i], b[i]-a[i]) > within {
			return false
		}
	}
	return true
}

// layoutKey tells layouts apart.
func layoutKey(l costmodel.Layout) string {
	var b []byte
	for left := l.Bits(); left != 0; left &= left - 1 {
		b = append(b, 0, byte(bits.TrailingZeros64(left))) // no group is as small as 0
	}
	for _, g := range l.Groups {
		b = binary.AppendUvarint(b, uint64(len(g)))
		for _, h := range g {
			b = binary.AppendUvarint(b, uint64(h.Rank))
			b = binary.AppendUvarint(b, uint64(h.QHeads))
			for _, s := range l.Shards[h.Rank].Segments {
				b = binary.AppendUvarint(b, uint64(s.Start))
			}
			b = binary.AppendUvarint(b, uint64(l.Shards[h.Rank].Tokens()))
		}
	}
	return string(b)
}

// byRank is the ring in the order of the groups' first ranks, and so by node.
func (d *draft) byRank() []slot {
	n := 0
	for k := range d.kinds {
		n += len(d.kinds[k].groups)
	}
	type place struct {
		rank int
		slot
	}
	places := make([]place, 0, n)
	for k := range d.kinds {
		for g, ranks := range d.kinds[k].groups {
			places = append(places, place{ranks[0], slot{k, g}})
		}
	}
	slices.SortFunc(places, func(a, b place) int { return cmp.Compare(a.rank, b.rank) })
	ring := make([]slot, n)
	for i := range places {
		ring[i] = places[i].slot
	}
	return ring
}

// rings lists orders worth trying: by rank, in which the links inside nodes
// carry most hops; kinds spread evenly, for a group can run ahead of the next
// only by its buffers, so that a run of long blocks holds up whoever is behind
// it; the same inside every node; kind by kind; and the one at hand backwards.
func (d *draft) rings(node func(rank int) int) [][]slot {
	by := d.byRank()
	back := slices.Clone(d.ring)
	slices.Reverse(back)
	falling := slices.Clone(by)
	slices.SortStableFunc(falling, func(a, b slot) int {
		x, y := &d.kinds[a.kind], &d.kinds[b.kind]
		return cmp.Compare(float64(y.total)/float64(len(y.groups)), float64(x.total)/float64(len(x.groups)))
	})
	at := func(s slot) int { return node(d.kinds[s.kind].groups[s.group][0]) }
	return [][]slot{by, d.spreadRing(by, func(slot) int { return 0 }), d.spreadRing(by, at), falling, back}
}

// spreadRing spreads each kind evenly over the stretch of equal keys: the k-th
// of n groups of a kind (k from 0) has its place at (2k+1)/2n of the stretch.
func (d *draft) spreadRing(ring []slot, key func(slot) int) []slot {
	type stretch struct{ key, kind int }
	count, nth := map[stretch]int{}, map[stretch]int{}
	for _, s := range ring {
		count[stretch{key(s), s.kind}]++
	}
	place := map[slot]float64{}
	for _, s := range ring {
		at := stretch{key(s), s.kind}
		place[s] = float64(2*nth[at]+1) / float64(2*count[at])
		nth[at]++
	}
	out := slices.Clone(ring)
	slices.SortStableFunc(out, func(a, b slot) int {
		return cmp.Or(cmp.Compare(key(a), key(b)), cmp.Compare(place[a], place[b]))
	})
	return out
}
