package pipeline

import (
	"cmp"
	"math"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel/pipeline"
	"github.com/evenkeel/evenkeel/internal/units"
)

// grain is what the lengths of slices are multiples of, but for a sequence's last one.
const grain = 64

// mostTokens bounds a chunk of whole sequences, as an independent rebuild of InfiniPipe does.
const mostTokens = 65536

// loosened is by what factor a chunk may take longer than a slice of the longest sequence.
const loosened = 1.02

// mesh are the positions that cut the longest sequence into n slices of as much time each.
func (f formula) mesh(longest units.Tokens, n int) []units.Tokens {
	total := f.of(0, longest)
	var cuts []units.Tokens
	for i := 1; i < n; i++ {
		at := units.Tokens(f.upTo(total*float64(i)/float64(n))) / grain * grain
		if at > 0 && at < longest && (len(cuts) == 0 || at > cuts[len(cuts)-1]) {
			cuts = append(cuts, at)
		}
	}
	return cuts
}

// bucket is a chunk that is filled.
type bucket struct {
	chunk  pipeline.Chunk
	time   float64
	tokens units.Tokens
}

// cutting is how many slices the longest sequence is cut into, and how many times as long as
// a slice chunks of short ones take.
type cutting struct {
	slices int
	times  float64
}

// cuttings are those that are tried.
func cuttings() []cutting {
	all := []cutting{{1, 16}, {1, 8}, {1, 4}, {1, 2}}
	for _, n := range []int{1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64} {
		all = append(all, cutting{n, 1})
	}
	return all
}

// balanced cuts and packs the sequences of a batch as InfiniPipe's sequence processor does
// (Algorithm 1): cuts every long sequence at the same positions, which give the longest one
// slices of equal time, and packs short ones, the longest first, beside what is left behind the
// last cut (a tail) or one another. A short one goes to the chunk with the least time a token
// where it fits, or to a new one.
//
// The result is, by sequence that was cut, its chunks; and the chunks without a slice.
func (p *Problem) balanced(f formula, by cutting) (cut [][]pipeline.Chunk, rest []pipeline.Chunk) {
	order := byLength(p.Lengths)
	longest := p.Lengths[order[0]]
	cuts, target := f.mesh(longest, by.slices), f.of(0, longest)/float64(by.slices)*by.times
	slice := units.Tokens(0)
	for i, c := range cuts {
		if i == 0 {
			slice = c
		} else {
			slice = max(slice, c-cuts[i-1])
		}
	}
	if len(cuts) == 0 {
		slice = longest
	}
	most := units.Tokens(min(max(float64(slice), target/f.token), mostTokens*by.times))

	var buckets []*bucket
	var tails [][2]int // of a sequence in cut: its bucket
	var short []int
	for _, i := range order {
		length := p.Lengths[i]
		if len(cuts) == 0 || length <= cuts[0] || f.of(0, length) <= target {
			short = append(short, i)
			continue
		}
		var chunks []pipeline.Chunk
		from := units.Tokens(0)
		for _, c := range append(slices.Clone(cuts), longest) {
			if to := min(c, length); to > from {
				chunks = append(chunks, pipeline.Chunk{Sequence: i, Context: from, Slice: to - from})
				from = to
			}
		}
		last := chunks[len(chunks)-1]
		if !slices.Contains(cuts, length) && length < longest {
			tails = append(tails, [2]int{len(cut), len(buckets)})
			buckets = append(buckets, &bucket{last, f.of(last.Context, last.Slice), last.Slice})
		}
		cut = append(cut, chunks)
	}
	own := len(buckets)
	for _, i := range short {
		length, took := p.Lengths[i], f.of(0, p.Lengths[i])
		var into *bucket
		for _, b := range buckets {
			if b.time+took <= target*loosened && b.tokens+length <= most && (into == nil || b.time/float64(b.tokens) < into.time/float64(into.tokens)) {
				into = b
			}
		}
		if into == nil {
			into = &bucket{chunk: pipeline.Chunk{Sequence: -1}}
			buckets = append(buckets, into)
		}
		into.chunk.Whole = append(into.chunk.Whole, i)
		into.time += took
		into.tokens += length
	}
	for _, t := range tails {
		chunks := cut[t[0]]
		chunks[len(chunks)-1] = buckets[t[1]].chunk
	}
	for _, b := range buckets[own:] {
		rest = append(rest, b.chunk)
	}
	return cut, rest
}

// byLength are the sequences, the longest first.
func byLength(lengths []units.Tokens) []int {
	order := make([]int, len(lengths))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(lengths[b], lengths[a]) })
	return order
}

// time is what a chunk takes in one layer, by the formula.
func (p *Problem) time(f formula, x pipeline.Chunk) float64 {
	t := f.each + f.of(x.Context, x.Slice)
	for _, w := range x.Whole {
		t += f.of(0, p.Lengths[w])
	}
	return t
}

// meanTime is that of chunks on average.
func (p *Problem) meanTime(f formula, chunks []pipeline.Chunk) (mean, most float64) {
	for _, x := range chunks {
		t := p.time(f, x)
		mean += t / float64(len(chunks))
		most = math.Max(most, t)
	}
	return mean, most
}
