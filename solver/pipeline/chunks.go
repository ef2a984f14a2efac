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

// widest is the longest slice of the mesh but for what is left behind the last cut.
func widest(cuts []units.Tokens, longest units.Tokens) units.Tokens {
	if len(cuts) == 0 {
		return longest
	}
	most, from := units.Tokens(0), units.Tokens(0)
	for _, at := range cuts {
		most, from = max(most, at-from), at
	}
	return most
}

// cutAt cuts a sequence at those of the positions that lie within it.
func cutAt(cuts []units.Tokens, sequence int, length units.Tokens) (chunks []pipeline.Chunk) {
	from := units.Tokens(0)
	for _, at := range cuts {
		if at >= length {
			break
		}
		chunks = append(chunks, pipeline.Chunk{Sequence: sequence, Context: from, Slice: at - from})
		from = at
	}
	return append(chunks, pipeline.Chunk{Sequence: sequence, Context: from, Slice: length - from})
}

// bucket is a chunk that is filled.
type bucket struct {
	chunk  *pipeline.Chunk
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
// Where none fits, the paper loosens the time to that of the least chunk with the sequence, and so
// has longer chunks rather than more; here, as in the independent rebuild, there is one more chunk
// and the time is loosened by a fixed 2 %. Of 12 batches on two or four stages infinipipe took 0.4
// to 5 % longer by the paper's rule in 11, and 1.6 % less in one. Chunks of several times a slice's
// time (cuttings) and cuts at multiples of 64 tokens (grain) are not in the paper either.
//
// The result is, by sequence that was cut, its chunks; and the chunks without a slice.
func (p *Problem) balanced(f formula, by cutting) (cut [][]pipeline.Chunk, rest []pipeline.Chunk) {
	order := byLength(p.Lengths)
	longest := p.Lengths[order[0]]
	cuts, target := f.mesh(longest, by.slices), f.of(0, longest)/float64(by.slices)*by.times
	most := units.Tokens(min(max(float64(widest(cuts, longest)), target/f.token), mostTokens*by.times))

	var tails []*bucket
	var short []int
	for _, i := range order {
		length := p.Lengths[i]
		if len(cuts) == 0 || length <= cuts[0] || f.of(0, length) <= target {
			short = append(short, i)
			continue
		}
		chunks := cutAt(cuts, i, length)
		cut = append(cut, chunks)
		if last := &chunks[len(chunks)-1]; !slices.Contains(cuts, length) && length < longest {
			tails = append(tails, &bucket{last, f.of(last.Context, last.Slice), last.Slice})
		}
	}
	for _, b := range p.pack(tails, short, f, target*loosened, most) {
		rest = append(rest, *b.chunk)
	}
	return cut, rest
}

// pack adds sequences one by one to the chunk with the least time a token of those that stay
// within a time and a number of tokens: begun ones, and new ones, which it returns.
func (p *Problem) pack(begun []*bucket, sequences []int, f formula, time float64, most units.Tokens) (made []*bucket) {
	all := slices.Clip(begun)
	for _, i := range sequences {
		length, took := p.Lengths[i], f.of(0, p.Lengths[i])
		var into *bucket
		for _, b := range all {
			if b.time+took <= time && b.tokens+length <= most && (into == nil || b.time/float64(b.tokens) < into.time/float64(into.tokens)) {
				into = b
			}
		}
		if into == nil {
			into = &bucket{chunk: &pipeline.Chunk{Sequence: -1}}
			all = append(all, into)
		}
		into.chunk.Whole = append(into.chunk.Whole, i)
		into.time += took
		into.tokens += length
	}
	return all[len(begun):]
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
