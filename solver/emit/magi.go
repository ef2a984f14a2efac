package emit

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
)

// magi writes partitions for MagiAttention: every rank owns whole chunks of tokens, of which
// it may have more or fewer than others (uneven_shard), and computes all heads for them. Which
// rows of keys and values it gets from whom its group-cast decides; they are priced as a ring.
// (SandAI-org/MagiAttention meta/solver/dispatch_solver.py, api/magi_attn_interface.py.)
type magi struct{}

// Chunks of a rank on average, so that a share is rounded by 2 % at most; fewer where chunks
// would have less than a kernel's tile of 128 rows, but not fewer than MagiAttention makes them
// at least. Larger chunks than 2048 are no cheaper.
const (
	magiChunks = 32
	magiFewest = 8
	magiTile   = 128
	magiMost   = 2048
)

// magiTurns is how often shares are balanced by what each rank was busy.
const magiTurns = 8

// chunkOf is the size of chunks.
func (magi) chunkOf(seq units.Tokens, ranks int) units.Tokens {
	chunk := units.Tokens(magiMost)
	for chunk > magiTile && chunk*units.Tokens(magiChunks*ranks) > seq {
		chunk /= 2
	}
	for chunk > 1 && chunk*units.Tokens(magiFewest*ranks) > seq {
		chunk /= 2
	}
	return chunk
}

func (f magi) variants(x *asked, ranks []int) ([]variant, error) {
	job, n := x.plan.Job, len(ranks)
	if job.SeqLen < units.Tokens(n) {
		return nil, fmt.Errorf("%d tokens are fewer than ranks", int64(job.SeqLen))
	}
	chunk := f.chunkOf(job.SeqLen, n)
	var all []variant
	weights := make([]float64, n)
	for i := range weights {
		weights[i] = 1
	}
	for range magiTurns {
		v := variant{
			job: job, ranks: ranks, hp: 1, cp: n, chunk: chunk, order: "whole chunks",
			layout: costmodel.Layout{Shards: chunked(len(x.plan.Ranks), ranks, weights, chunk, job.SeqLen), Groups: grouped(ranks, 1, true, job.Model.QHeads)},
			why: map[string]string{
				fieldGroups: "heads are not split", fieldTokens: "whole chunks, for all heads", fieldHeads: "all heads on every rank",
				fieldOrder: "whole chunks", fieldRing: "group-cast instead", fieldSchedule: "MagiAttention's own", fieldBuffers: "MagiAttention's own",
			},
		}
		if err := x.price(&v); err != nil {
			return nil, err
		}
		all = append(all, v)
		mean := 0.0
		for _, r := range ranks {
			mean += float64(v.step.Ranks[r].Busy) / float64(n)
		}
		for i, r := range ranks {
			if busy := float64(v.step.Ranks[r].Busy); busy > 0 {
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

func (magi) decides(*variant, string) bool { return false }

func (magi) write(x *asked, v *variant) (text, use string) {
	var parts []string
	for _, r := range v.ranks {
		var chunks []string
		for _, s := range v.layout.Shards[r].Segments {
			for c := s.Start / v.chunk; c*v.chunk < s.End; c++ {
				chunks = append(chunks, fmt.Sprint(int64(c)))
			}
		}
		parts = append(parts, "    ["+strings.Join(chunks, ",")+"]")
	}
	text = fmt.Sprintf("{\n  \"total_seqlen_tokens\": %d,\n  \"chunk_size_tokens\": %d,\n  \"uneven_shard\": true,\n  \"partitions\": [\n%s\n  ]\n}\n",
		int64(v.job.SeqLen), int64(v.chunk), strings.Join(parts, ",\n"))
	return text, "make a DispatchMeta for every rank of the cp group of these partitions, and give it as ref_dispatch_meta_q and ref_dispatch_meta_k: " + launched(nodesOf(x.plan), v.ranks)
}

func (magi) notes(*variant) []string {
	return []string{
		"MagiAttention's own dispatch balances areas of the mask and not devices: these partitions take its place",
		"priced as ring attention: a group-cast sends a rank only what its mask needs",
	}
}
