package emit

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
)

// meshes are the pairs of degrees of some ranks: hp of an all-to-all group, cp of the ring.
// legal says why the framework cannot have a pair; what it says first is the error where it
// can have none.
func meshes(n int, legal func(hp, cp int) error) (all [][2]int, err error) {
	for hp := 1; hp <= n; hp++ {
		if n%hp != 0 {
			continue
		}
		switch no := legal(hp, n/hp); {
		case no == nil:
			all = append(all, [2]int{hp, n / hp})
		case err == nil:
			err = no
		}
	}
	if len(all) > 0 {
		err = nil
	}
	return all, err
}

// multiple says that a sequence must be a multiple of some parts.
func multiple(seq units.Tokens, of int, what string) error {
	if seq%units.Tokens(of) == 0 {
		return nil
	}
	return fmt.Errorf("--seq-len %d is no multiple of %d, %s: plan the sequence padded to %d", int64(seq), of, what, (int64(seq)/int64(of)+1)*int64(of))
}

// dividing says that heads must divide over an all-to-all group.
func dividing(m costmodel.Model, hp int) error {
	if m.QHeads%hp != 0 || m.KVHeads%hp != 0 {
		return fmt.Errorf("%d query and %d KV heads do not divide over %s", m.QHeads, m.KVHeads, units.Count(hp, "rank"))
	}
	return nil
}

// grouped makes the groups of a mesh of ranks, with equal heads: neighbours share an
// all-to-all where it is low, a ring otherwise.
func grouped(ranks []int, hp int, low bool, qHeads int) []costmodel.Group {
	cp := len(ranks) / hp
	groups := make([]costmodel.Group, cp)
	for i, r := range ranks {
		g := i / hp
		if !low {
			g = i % cp
		}
		groups[g] = append(groups[g], costmodel.HeadShare{Rank: r, QHeads: qHeads / hp})
	}
	return groups
}

// headTail gives each of the ranks two of twice as many chunks, the i-th from the front and
// the i-th from the end: what context parallelism balances causal attention by today.
func headTail(total int, ranks []int, seq units.Tokens) []costmodel.Shard {
	shards, chunk := make([]costmodel.Shard, total), seq/units.Tokens(2*len(ranks))
	for i, r := range ranks {
		at := units.Tokens(i) * chunk
		shards[r] = joined(costmodel.Segment{Start: at, End: at + chunk}, costmodel.Segment{Start: seq - at - chunk, End: seq - at})
	}
	return shards
}

// contiguous gives each of the ranks an equal stretch.
func contiguous(total int, ranks []int, seq units.Tokens) []costmodel.Shard {
	shards, part := make([]costmodel.Shard, total), seq/units.Tokens(len(ranks))
	for i, r := range ranks {
		shards[r] = joined(costmodel.Segment{Start: units.Tokens(i) * part, End: units.Tokens(i+1) * part})
	}
	return shards
}

// joined are segments in rising order, those that touch as one.
func joined(all ...costmodel.Segment) costmodel.Shard {
	slices.SortFunc(all, func(a, b costmodel.Segment) int { return cmp.Compare(a.Start, b.Start) })
	kept := all[:0]
	for _, s := range all {
		if n := len(kept); n > 0 && kept[n-1].End == s.Start {
			kept[n-1].End = s.End
			continue
		}
		kept = append(kept, s)
	}
	return costmodel.Shard{Segments: kept}
}
