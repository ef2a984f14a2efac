package emit

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
)

// magi writes partitions for MagiAttention: every rank owns whole chunks of tokens, of which
// it may have more or fewer than others (uneven_shard), and computes all heads for them. Which
// rows of keys and values it gets from whom its group-cast decides; they are priced as a ring.
// (SandAI-org/MagiAttention meta/solver/dispatch_solver.py, functional/dist_attn.py.)
type magi struct{}

// Chunks of a rank on average, so that a share is rounded by 2 % at most, and sizes of chunks:
// kernels compute tiles of 128 rows, and larger ones than 2048 are no cheaper.
const (
	magiChunks   = 32
	magiSmallest = 128
	magiLargest  = 2048
)

// magiTurns is how often shares are balanced by what each rank was busy.
const magiTurns = 8

func (magi) variants(x *asked, ranks []int) ([]variant, error) {
	job, n := x.plan.Job, len(ranks)
	if job.SeqLen < units.Tokens(n) {
		return nil, fmt.Errorf("%d tokens for %d ranks", int64(job.SeqLen), n)
	}
	chunk := units.Tokens(magiLargest)
	for chunk > magiSmallest && chunk*units.Tokens(magiChunks*n) > job.SeqLen {
		chunk /= 2
	}
	for chunk > 1 && chunk*units.Tokens(n) > job.SeqLen {
		chunk /= 2
	}
	var all []variant
	weights := make([]float64, n)
	for i := range weights {
		weights[i] = 1
	}
	for range magiTurns {
		v := variant{
			ranks: ranks, hp: 1, cp: n, chunk: chunk,
			layout: costmodel.Layout{Shards: chunked(len(x.plan.Ranks), ranks, weights, chunk, job.SeqLen), Groups: grouped(ranks, 1, true, job.Model.QHeads)},
			why: map[string]string{
				fieldGroups: "heads are not split, so that every rank is a group of its own", fieldTokens: "whole chunks, balanced for all heads a rank",
				fieldHeads: "all heads on every rank", fieldOrder: "whole chunks", fieldRing: "group-cast instead", fieldSchedule: "MagiAttention's own",
			},
		}
		step, err := x.price(v.layout)
		if err != nil {
			return nil, err
		}
		v.step = step
		all = append(all, v)
		mean := 0.0
		for _, r := range ranks {
			mean += float64(step.Ranks[r].Busy) / float64(n)
		}
		for i, r := range ranks {
			if busy := float64(step.Ranks[r].Busy); busy > 0 {
				weights[i] *= mean / busy
			}
		}
	}
	return all, nil
}

// chunked gives ranks numbers of chunks by their weights, at least one, the first ones from the
// front and from the end, the last ones the middle. The last chunk may be short.
func chunked(total int, ranks []int, weights []float64, chunk, seq units.Tokens) []costmodel.Shard {
	chunks := int((seq + chunk - 1) / chunk)
	counts := apportioned(chunks, weights)
	shards := make([]costmodel.Shard, total)
	front, end := 0, chunks
	for i, r := range ranks {
		head := counts[i] / 2
		tail := counts[i] - head
		at := func(c int) units.Tokens { return min(units.Tokens(c)*chunk, seq) }
		all := []costmodel.Segment{{Start: at(end - tail), End: at(end)}}
		if head > 0 {
			all = append(all, costmodel.Segment{Start: at(front), End: at(front + head)})
		}
		shards[r] = joined(all...)
		front, end = front+head, end-tail
	}
	return shards
}

// apportioned divides n by weights into whole numbers of at least 1, by largest remainders.
// There are at least as many as weights.
func apportioned(n int, weights []float64) []int {
	sum := 0.0
	for _, w := range weights {
		sum += w
	}
	counts, order, left := make([]int, len(weights)), make([]int, len(weights)), n
	rest := make([]float64, len(weights))
	for i, w := range weights {
		share := w / sum * float64(n)
		counts[i] = max(1, int(math.Floor(share)))
		rest[i], order[i] = share-float64(counts[i]), i
		left -= counts[i]
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(rest[b], rest[a]) })
	for i := 0; left > 0; i++ {
		counts[order[i%len(order)]]++
		left--
	}
	for left < 0 { // several weights are far below 1
		most := slices.Index(counts, slices.Max(counts))
		counts[most]--
		left++
	}
	return counts
}

// partitions are the chunks of every rank, rising.
func partitions(v *variant) [][]int {
	all := make([][]int, len(v.ranks))
	for i, r := range v.ranks {
		for _, s := range v.layout.Shards[r].Segments {
			for c := s.Start / v.chunk; c*v.chunk < s.End; c++ {
				all[i] = append(all[i], int(c))
			}
		}
	}
	return all
}

func (magi) write(x *asked, v *variant) (text, use string) {
	parts := partitions(v)
	text = fmt.Sprintf("{\n  \"total_seqlen_tokens\": %d,\n  \"chunk_size_tokens\": %d,\n  \"uneven_shard\": true,\n  \"partitions\": [\n", int64(x.plan.Job.SeqLen), int64(v.chunk))
	for i, p := range parts {
		line, err := json.Marshal(p)
		if err != nil { // of whole numbers there is none
			panic(err)
		}
		text += "    " + string(line)
		if i < len(parts)-1 {
			text += ","
		}
		text += "\n"
	}
	return text + "  ]\n}\n", "make a DispatchMeta for every rank of the cp group (" + ranksToRun(x.plan, v) + ", in this order) of these partitions and give it as ref_dispatch_meta_q and ref_dispatch_meta_k"
}

func (magi) job(j costmodel.Job) costmodel.Job { return j }

func (magi) settings(x *asked, _ *variant) []Field {
	return elsewhere(x.plan.Job, "the training script's")
}

func (magi) notes(*asked, *variant) []string {
	return []string{
		"MagiAttention's own dispatch balances areas of the mask and not devices: these partitions take its place",
		"priced as ring attention: a group-cast sends a rank only what its mask needs",
	}
}
