package emit

import (
	"cmp"
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
	fieldTokens   = "tokens"
	fieldHeads    = "q_heads"
	fieldOrder    = "token_order"
	fieldRing     = "ring_order"
	fieldSchedule = "schedule"
)

// The settings of a job that a plan decides or presumes.
const (
	fieldRecompute  = "recompute"
	fieldZero       = "zero"
	fieldOverlap    = "overlap_zero"
	fieldAccumulate = "grad_accumulation"
	fieldBuffers    = "ring_buffers"
	fieldLoss       = "loss_chunk"
	fieldDType      = "dtype"
)

// none is a field that means nothing for a layout, plain a schedule with nothing special.
const none, plain = "-", "plain"

// compare gives the verdict on every field of a plan's layout.
func compare(was costmodel.Layout, v *variant) []Field {
	is := v.layout
	judge := func(name, plan, emitted string, same bool, lost Verdict) Field {
		if same {
			return Field{Name: name, Plan: plan, Emitted: plan, Verdict: Exact}
		}
		if plan == none || plan == plain { // there is nothing to drop
			lost = Rounded
		}
		return Field{Name: name, Plan: plan, Emitted: emitted, Verdict: lost, Why: v.why[name]}
	}
	order := slices.EqualFunc(was.Shards, is.Shards, func(a, b costmodel.Shard) bool { return slices.Equal(a.Segments, b.Segments) })
	ranks := judge(fieldRanks, rankNames(was), rankNames(is), slices.Equal(members(was.Groups), members(is.Groups)), Rounded)
	if ranks.Verdict != Exact {
		ranks.Why = "the fastest choice for it"
	}
	return []Field{
		ranks,
		judge(fieldGroups, groupNames(was.Groups), groupNames(is.Groups), slices.EqualFunc(sets(was.Groups), sets(is.Groups), slices.Equal), Rounded),
		judge(fieldTokens, span(was.Tokens()), span(is.Tokens()), slices.Equal(was.Tokens(), is.Tokens()), Rounded),
		judge(fieldHeads, span(heads(was)), span(heads(is)), slices.Equal(heads(was), heads(is)), Rounded),
		judge(fieldOrder, "the plan's", v.order, order, Rounded),
		judge(fieldRing, ringName(was.Groups), ringName(is.Groups), sameRing(was.Groups, is.Groups), Dropped),
		judge(fieldSchedule, scheduleName(was.Schedule), scheduleName(is.Schedule), was.Schedule == is.Schedule, Dropped),
	}
}

// settings give the verdict on every setting of a job.
func settings(f form, was costmodel.Job, v *variant) []Field {
	is := v.job
	var all []Field
	for _, s := range []struct{ name, plan, emitted string }{
		{fieldRecompute, string(was.Recompute), string(is.Recompute)},
		{fieldZero, zeroName(was.Zero), zeroName(is.Zero)},
		{fieldOverlap, fmt.Sprint(was.OverlapZero), fmt.Sprint(is.OverlapZero)},
		{fieldAccumulate, fmt.Sprint(max(1, was.Accumulate)), fmt.Sprint(max(1, is.Accumulate))},
		{fieldBuffers, fmt.Sprint(was.RingBuffers), fmt.Sprint(is.RingBuffers)},
		{fieldLoss, chunkName(was), chunkName(is)},
		{fieldDType, string(was.DType), string(is.DType)},
	} {
		x := Field{Name: s.name, Plan: s.plan, Emitted: s.emitted}
		switch {
		case s.name == fieldBuffers && !v.ring():
			x.Plan, x.Emitted, x.Verdict = none, none, Exact
		case s.name == fieldAccumulate && was.Accumulate <= 1: // nobody has to be told
			x.Verdict = Exact
		case !f.decides(v, s.name):
			x.Emitted, x.Verdict, x.Why = none, Dropped, cmp.Or(v.why[s.name], "the training script's")
		case s.plan == s.emitted:
			x.Verdict = Exact
		default:
			x.Verdict, x.Why = Rounded, v.why[s.name]
		}
		all = append(all, x)
	}
	return all
}

func zeroName(z costmodel.ZeRO) string { return string(cmp.Or(z, costmodel.Zero3)) }

func chunkName(j costmodel.Job) string {
	if j.LossChunk >= j.SeqLen {
		return "all tokens"
	}
	return j.LossChunk.String() + " tokens"
}

// members are the ranks of groups, rising.
func members(groups []costmodel.Group) []int {
	return slices.Sorted(slices.Values(slices.Concat(sets(groups)...)))
}

// sets are the ranks of every group, rising, those of the first rank first.
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
	first := func(g costmodel.Group) int { return members([]costmodel.Group{g})[0] }
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

func rankNames(l costmodel.Layout) string {
	ranks, of := members(l.Groups), len(l.Shards)
	if len(ranks) == of {
		return fmt.Sprintf("all %d", of)
	}
	return fmt.Sprintf("%s (%d of %d)", units.Spans(ranks), len(ranks), of)
}

func groupNames(groups []costmodel.Group) string {
	sizes := map[int]int{}
	for _, g := range groups {
		sizes[len(g)]++
	}
	var parts []string
	for size := len(members(groups)); size > 0; size-- {
		if n := sizes[size]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d of %s", n, units.Count(size, "rank")))
		}
	}
	return strings.Join(parts, ", ")
}

// span is the least and the most of some numbers, of those that are not 0.
func span[T int | units.Tokens](all []T) string {
	some := slices.DeleteFunc(slices.Clone(all), func(n T) bool { return n == 0 })
	if len(some) == 0 {
		return none
	}
	least, most := slices.Min(some), slices.Max(some)
	if least == most {
		return fmt.Sprintf("%d a rank", int64(least))
	}
	return fmt.Sprintf("%d to %d a rank", int64(least), int64(most))
}

func ringName(groups []costmodel.Group) string {
	if len(groups) < 2 {
		return none
	}
	return units.Count(len(groups), "group")
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
		{s.InTurns() != "", s.InTurns() + " in turn"},
	} {
		if p.on {
			parts = append(parts, p.name)
		}
	}
	if len(parts) == 0 {
		return plain
	}
	return strings.Join(parts, ", ")
}
