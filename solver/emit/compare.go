package emit

import (
	"fmt"
	"slices"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
)

// The fields of a layout.
const (
	fieldRanks    = "ranks"
	fieldGroups   = "groups"
	fieldTokens   = "tokens by rank"
	fieldHeads    = "q_heads by rank"
	fieldOrder    = "token order"
	fieldRing     = "ring order"
	fieldSchedule = "schedule"
)

// compare gives the verdict on every field of the plan's layout.
func (x *asked) compare(v *variant) []Field {
	was, is := x.plan.Layout(), v.layout
	fields := []Field{
		same(fieldRanks, rankNames(was.Groups, len(was.Shards)), rankNames(is.Groups, len(is.Shards))),
		same(fieldGroups, groupNames(was.Groups), groupNames(is.Groups)),
		same(fieldTokens, span(was.Tokens()), span(is.Tokens())),
		same(fieldHeads, span(heads(was)), span(heads(is))),
		same(fieldOrder, orderName(was), orderName(is)),
		same(fieldRing, ringName(was.Groups), ringName(is.Groups)),
		same(fieldSchedule, scheduleName(was.Schedule), scheduleName(is.Schedule)),
	}
	equal := map[string]bool{
		fieldRanks:    slices.Equal(rankList(was.Groups), rankList(is.Groups)),
		fieldGroups:   slices.EqualFunc(sets(was.Groups), sets(is.Groups), slices.Equal),
		fieldTokens:   slices.Equal(was.Tokens(), is.Tokens()),
		fieldHeads:    slices.Equal(heads(was), heads(is)),
		fieldOrder:    slices.EqualFunc(was.Shards, is.Shards, func(a, b costmodel.Shard) bool { return slices.Equal(a.Segments, b.Segments) }),
		fieldRing:     sameRing(was.Groups, is.Groups),
		fieldSchedule: was.Schedule == is.Schedule,
	}
	for i := range fields {
		f := &fields[i]
		switch {
		case equal[f.Name]:
			f.Verdict, f.Why, f.Emitted = Exact, "", f.Plan
		case f.Name == fieldRanks:
			f.Verdict, f.Why = Rounded, "the fastest choice of ranks for it"
		case f.Name == fieldRing || f.Name == fieldSchedule:
			f.Verdict, f.Why = Dropped, v.why[f.Name]
		default:
			f.Verdict, f.Why = Rounded, v.why[f.Name]
		}
	}
	return fields
}

func same(name, plan, emitted string) Field { return Field{Name: name, Plan: plan, Emitted: emitted} }

func rankList(groups []costmodel.Group) []int {
	return slices.Sorted(slices.Values(slices.Concat(sets(groups)...)))
}

// sets are the ranks of every group, those of the first rank first.
func sets(groups []costmodel.Group) [][]int {
	var all [][]int
	for _, g := range groups {
		var ranks []int
		for _, m := range g {
			ranks = append(ranks, m.Rank)
		}
		slices.Sort(ranks)
		all = append(all, ranks)
	}
	slices.SortFunc(all, slices.Compare)
	return all
}

// sameRing says whether groups follow each other the same way round, from wherever it begins.
func sameRing(a, b []costmodel.Group) bool {
	if len(a) != len(b) {
		return false
	}
	first := func(g costmodel.Group) int {
		least := g[0].Rank
		for _, m := range g {
			least = min(least, m.Rank)
		}
		return least
	}
	for turn := range b {
		all := true
		for i := range a {
			all = all && first(a[i]) == first(b[(i+turn)%len(b)])
		}
		if all {
			return true
		}
	}
	return false
}

func heads(l costmodel.Layout) []int {
	all := make([]int, len(l.Shards))
	for _, g := range l.Groups {
		for _, m := range g {
			all[m.Rank] = m.QHeads
		}
	}
	return all
}

func rankNames(groups []costmodel.Group, of int) string {
	ranks := rankList(groups)
	text := fmt.Sprintf("%d of %d", len(ranks), of)
	if len(ranks) == of {
		return text
	}
	return text + ": " + Stretches(ranks)
}

// Stretches are numbers in rising order as people write them: 0-3, 8.
func Stretches(ranks []int) string {
	var parts []string
	for i := 0; i < len(ranks); {
		j := i
		for j+1 < len(ranks) && ranks[j+1] == ranks[j]+1 {
			j++
		}
		switch {
		case j > i:
			parts = append(parts, fmt.Sprintf("%d-%d", ranks[i], ranks[j]))
		default:
			parts = append(parts, fmt.Sprint(ranks[i]))
		}
		i = j + 1
	}
	return strings.Join(parts, ", ")
}

func groupNames(groups []costmodel.Group) string {
	sizes := map[int]int{}
	for _, g := range groups {
		sizes[len(g)]++
	}
	var parts []string
	for size := len(rankList(groups)); size > 0; size-- {
		if n := sizes[size]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d of %s", n, units.Count(size, "rank")))
		}
	}
	return strings.Join(parts, ", ")
}

// span is the least and the most of some numbers, of those that are not 0.
func span[T int | units.Tokens](all []T) string {
	var some []T
	for _, n := range all {
		if n > 0 {
			some = append(some, n)
		}
	}
	if len(some) == 0 {
		return "none"
	}
	least, most := slices.Min(some), slices.Max(some)
	if least == most {
		return fmt.Sprintf("%d each", int64(least))
	}
	return fmt.Sprintf("%d to %d", int64(least), int64(most))
}

func orderName(l costmodel.Layout) string {
	pieces := 0
	for _, s := range l.Shards {
		pieces = max(pieces, len(s.Segments))
	}
	return "up to " + units.Count(pieces, "stretch") + " a rank"
}

func ringName(groups []costmodel.Group) string {
	if len(groups) < 2 {
		return "no ring"
	}
	return "of " + units.Count(len(groups), "group")
}

func scheduleName(s costmodel.Schedule) string {
	var parts []string
	for _, p := range []struct {
		on   bool
		name string
	}{
		{s.OwnLast, "own blocks last"},
		{s.KeepTail, "kept tail"},
		{s.HeadChunks > 1, fmt.Sprintf("%d head chunks", s.HeadChunks)},
		{s.TwoBatch, "micro-batches in twos"},
		{s.WeaveForward || s.WeaveBackward, "rings in turn"},
	} {
		if p.on {
			parts = append(parts, p.name)
		}
	}
	if len(parts) == 0 {
		return "plain"
	}
	return strings.Join(parts, ", ")
}
