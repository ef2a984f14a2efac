package emit

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
)

// usp writes the call that makes the process groups of yunchang, USP's library: all-to-all
// groups of one size and rings through them, either of them neighbours in rank order. Heads,
// those of keys and values too, divide over the all-to-all group, and its zigzag gives the ring
// two of twice as many chunks, each pair in equal parts to the members.
// (feifeibear/long-context-attention yunchang/globals.py, comm/extract_local.py.)
type usp struct{}

func (usp) variants(x *asked, ranks []int) ([]variant, error) {
	job, n := x.plan.Job, len(ranks)
	if err := divisible(job.SeqLen, n, 2*n); err != nil {
		return nil, err
	}
	job.RingBuffers = doubleBuffers
	pairs, err := meshes(n, func(hp int) error { return dividing(job.Model, hp) })
	var all []variant
	for _, p := range pairs {
		for _, low := range []bool{true, false} {
			if !low && (p[0] == 1 || p[1] == 1) {
				continue // one placement
			}
			groups := grouped(ranks, p[0], low, job.Model.QHeads)
			all = append(all, variant{
				job: job, ranks: ranks, hp: p[0], cp: p[1], low: low, order: "head and tail chunks, cut in groups",
				layout: costmodel.Layout{Shards: pairsOf(len(x.plan.Ranks), groups, job.SeqLen), Groups: groups},
				why: map[string]string{
					fieldGroups: "of one size", fieldTokens: "equal chunks", fieldHeads: "equal heads", fieldOrder: "its zigzag",
					fieldRing: "in rank order", fieldSchedule: "ring-flash-attention's own", fieldBuffers: "a block computed, one arriving",
				},
			})
		}
	}
	return all, err
}

// pairsOf gives the groups the n-th chunk from the front and from the end, and the members of
// each equal parts of the two, one behind the other.
func pairsOf(total int, groups []costmodel.Group, seq units.Tokens) []costmodel.Shard {
	shards, chunk := make([]costmodel.Shard, total), seq/units.Tokens(2*len(groups))
	if len(groups)*len(groups[0]) == 1 { // a whole sequence, of whatever length
		shards[groups[0][0].Rank] = joined(costmodel.Segment{End: seq})
		return shards
	}
	for g, members := range groups {
		front, end := units.Tokens(g)*chunk, seq-units.Tokens(g+1)*chunk
		part := 2 * chunk / units.Tokens(len(members))
		for i, m := range members {
			from, to := units.Tokens(i)*part, units.Tokens(i+1)*part // of the two as one
			var all []costmodel.Segment
			if from < chunk {
				all = append(all, costmodel.Segment{Start: front + from, End: front + min(to, chunk)})
			}
			if to > chunk {
				all = append(all, costmodel.Segment{Start: end + max(from, chunk) - chunk, End: end + to - chunk})
			}
			shards[m.Rank] = joined(all...)
		}
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

func (usp) decides(_ *variant, setting string) bool { return setting == fieldBuffers }

func (usp) write(x *asked, v *variant) (text, use string) {
	low := "True"
	if !v.low {
		low = "False"
	}
	text = fmt.Sprintf(`from yunchang import set_seq_parallel_pg


def sequence_parallel(rank, world_size):
    """The process groups of a sequence of %d tokens; LongContextAttention(ring_impl_type="zigzag")."""
    assert world_size == %d, world_size
    set_seq_parallel_pg(
        sp_ulysses_degree=%d, sp_ring_degree=%d, rank=rank, world_size=world_size, use_ulysses_low=%s
    )
`, int64(v.job.SeqLen), len(v.ranks), v.hp, v.cp, low)
	return text, "call it once in every process: " + launched(nodesOf(x.plan), v.ranks)
}

func (usp) notes(v *variant) []string {
	if v.low {
		return nil
	}
	return []string{"yunchang's own extraction of tokens presumes use_ulysses_low=True: give every rank its tokens by its ranks in the two groups"}
}
