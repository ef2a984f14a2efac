package emit

import (
	"fmt"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
)

// meshes are the pairs of degrees of some ranks: hp of an all-to-all group, cp of the ring.
// legal says why the framework cannot have a pair; what it says first is the error where it
// can have none.
func meshes(n int, legal func(hp int) error) (all [][2]int, err error) {
	for hp := 1; hp <= n; hp++ {
		if n%hp != 0 {
			continue
		}
		switch no := legal(hp); {
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

// divisible says that a sequence must divide into so many parts, if there are several ranks.
func divisible(seq units.Tokens, ranks, parts int) error {
	if ranks == 1 || seq%units.Tokens(parts) == 0 {
		return nil
	}
	return fmt.Errorf("--seq-len %d does not divide into %d equal parts: plan the sequence padded to %d", int64(seq), parts, (int64(seq)/int64(parts)+1)*int64(parts))
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

// equal gives each of the ranks as many tokens, of a sequence that divides.
func equal(total int, ranks []int, seq units.Tokens) []units.Tokens {
	tokens := make([]units.Tokens, total)
	for _, r := range ranks {
		tokens[r] = seq / units.Tokens(len(ranks))
	}
	return tokens
}

// asToday is a job with the buffers of rings and the logits of frameworks as they are: a KV
// block that is computed and one that arrives, and the logits of all of a rank's tokens at once.
func asToday(job costmodel.Job) costmodel.Job {
	job.RingBuffers, job.LossChunk = doubleBuffers, job.SeqLen
	return job
}

const doubleBuffers = 2
