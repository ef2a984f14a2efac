package evenkeel

import (
	"fmt"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/internal/strategy"
)

// describe says in words what a layout is, and why it leaves ranks out if it does.
func describe(l costmodel.Layout, seq units.Tokens, without string) string {
	sizes := map[int]int{}
	used := 0
	for _, g := range l.Groups {
		sizes[len(g)]++
		used += len(g)
	}
	most, least := units.Tokens(0), seq
	for _, n := range l.Tokens() {
		if n > 0 {
			most, least = max(most, n), min(least, n)
		}
	}
	text := fmt.Sprintf("%s; largest share %d and smallest %s", groupsName(sizes), int64(most), units.Count(least, "token"))
	if used == 1 {
		text = "all tokens on one rank"
	}
	if way := stretches(l); way != "" {
		text += "; " + way
	}
	if l.OwnLast {
		text += "; backward own blocks come last, while gradients travel"
	}
	if _, kept := l.Tail(); kept > 0 {
		text += fmt.Sprintf("; the last %d tokens' keys stay at home", int64(kept))
	}
	if k := l.HeadChunks; k > 1 {
		text += fmt.Sprintf("; heads in %d chunks, behind which all-to-alls hide", k)
	}
	if l.TwoBatch {
		text += "; micro-batches in twos, one computed while the other's " + beside(l) + " move"
		if rings := l.InTurns(); rings != "" {
			text += ", their " + rings + " step by step in turn"
		}
	}
	if n := len(l.Shards); used < n {
		text += fmt.Sprintf("; %d of %d ranks left out, for %s", n-used, n, without)
	}
	return text
}

// moreEffort says how to search on, if there is a way.
func (s *search) moreEffort() string {
	once := max(1, s.p.Effort)
	if once >= strategy.MostEffort {
		return ""
	}
	return fmt.Sprintf("; --effort %g goes on", min(strategy.MostEffort, 4*once))
}

// beside is what moves while another micro-batch is computed.
func beside(l costmodel.Layout) string {
	if slices.ContainsFunc(l.Groups, func(g costmodel.Group) bool { return len(g) > 1 }) {
		return "all-to-alls"
	}
	return "first keys and values"
}

// groupsName says how many groups of which size there are.
func groupsName(sizes map[int]int) string {
	if len(sizes) == 1 && sizes[1] > 0 {
		return fmt.Sprintf("ring of %d ranks", sizes[1])
	}
	var keys []int
	n := 0
	for z, count := range sizes {
		keys = append(keys, z)
		n += count
	}
	slices.Sort(keys)
	text := fmt.Sprintf("ring of %d groups:", n)
	if n == 1 {
		return fmt.Sprintf("one all-to-all group of %d ranks", keys[0])
	}
	for i, z := range keys {
		if i > 0 {
			text += ","
		}
		text += fmt.Sprintf(" %d of %d", sizes[z], z)
	}
	return text
}

// stretches says into how many stretches the sequence is cut; nothing if its zigzag
// is that of all groups.
func stretches(l costmodel.Layout) string {
	plain, lead := following(l)
	tiers := tiersOf(plain)
	switch n := slices.Max(tiers) + 1; {
	case n == 1:
		return ""
	case n == len(tiers) && lead > 0:
		return fmt.Sprintf("a chain with a lead: each group holds one of %d stretches of the sequence, and the last one %d tokens before all others as well", n, int64(lead))
	case n == len(tiers):
		return fmt.Sprintf("a chain: each group holds one of %d stretches of the sequence, and keys go one way", n)
	default:
		return fmt.Sprintf("the sequence is cut into %d stretches, each a zigzag of its groups", n)
	}
}
