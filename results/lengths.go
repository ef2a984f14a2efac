package results

import (
	"fmt"
	"math"
	"math/bits"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel/workload"
	"github.com/evenkeel/evenkeel/internal/units"
)

// LengthSummary is what a set of sequence lengths means for training: how they
// are spread, what padding wastes and how unevenly they load ranks.
type LengthSummary struct {
	Name      string           `json:"name"`
	Source    string           `json:"source"` // "read", or how they were drawn
	Sequences int              `json:"sequences"`
	Total     units.Tokens     `json:"total_tokens"`
	Mean      float64          `json:"mean_tokens"`
	Quantiles []LengthQuantile `json:"quantiles"`
	Bands     []LengthBand     `json:"bands"`
	Padding   []PaddingWaste   `json:"padding"`
	Batch     int              `json:"batch_sequences"`
	Batches   int              `json:"batches"`
	Imbalance []RankImbalance  `json:"imbalance"`
}

// LengthQuantile is the length that a share of the sequences does not pass.
type LengthQuantile struct {
	Share  float64      `json:"share"`
	Length units.Tokens `json:"length_tokens"`
}

// LengthBand is the sequences from Low to High tokens, both included.
type LengthBand struct {
	Low       units.Tokens `json:"low_tokens"`
	High      units.Tokens `json:"high_tokens"`
	Sequences int          `json:"sequences"`
	Tokens    units.Tokens `json:"tokens"`
}

// PaddingWaste is one way of making sequences fit together, and what it costs.
type PaddingWaste struct {
	Way     string `json:"way"`
	Buffers int    `json:"buffers,omitzero"`
	LeftOut int    `json:"left_out,omitzero"` // sequences that are too long for it
	// Waste is the share of the tokens computed that are padding, Attention the
	// work of causal attention over that of the sequences alone.
	Waste     float64 `json:"waste"`
	Attention float64 `json:"attention_ratio"`
}

// RankImbalance is the load of the most loaded rank over the mean, where the
// sequences of a batch are dealt to the ranks in turn.
type RankImbalance struct {
	Ranks  int     `json:"ranks"`
	Tokens float64 `json:"tokens_max_over_mean"` // middle batch
	Work   float64 `json:"work_max_over_mean"`   // the same of tokens squared
	Worst  float64 `json:"worst_work_max_over_mean"`
	// Whole is the middle batch's if sequences are dealt as evenly as can be and
	// none is cut: no less than the longest alone.
	Whole float64 `json:"whole_work_max_over_mean"`
}

// packInto is the buffers that packing is judged by: a common context.
const packInto units.Tokens = 128 << 10

// SummariseLengths describes lengths, of which there is at least one, in global
// batches of a size: all of them are one batch where there are fewer.
func SummariseLengths(name, source string, lengths []units.Tokens, batch int) (*LengthSummary, error) {
	s := &LengthSummary{Name: name, Source: source, Sequences: len(lengths), Batch: min(batch, len(lengths))}
	sorted := slices.Sorted(slices.Values(lengths))
	for _, l := range sorted {
		s.Total += l
	}
	s.Mean = float64(s.Total) / float64(len(sorted))
	for _, share := range []float64{0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 1} {
		i := max(0, int(math.Ceil(share*float64(len(sorted))))-1)
		s.Quantiles = append(s.Quantiles, LengthQuantile{share, sorted[i]})
	}
	s.Bands = lengthBands(sorted)
	if err := s.pad(sorted); err != nil {
		return nil, err
	}
	s.Batches = workload.Batches(lengths, s.Batch)
	for _, ranks := range []int{2, 8, 64, 512} {
		if ranks < s.Batch || len(s.Imbalance) == 0 {
			s.Imbalance = append(s.Imbalance, s.deal(lengths, ranks))
		}
	}
	return s, nil
}

// lowestBand ends the first band; each further one is twice as wide.
const lowestBand units.Tokens = 64

func lengthBands(sorted []units.Tokens) []LengthBand {
	low, high := units.Tokens(1), lowestBand
	for high < sorted[0] {
		low, high = high+1, 2*high
	}
	bands := []LengthBand{{Low: low, High: high}}
	for _, l := range sorted {
		for l > high {
			low, high = high+1, 2*high
			bands = append(bands, LengthBand{Low: low, High: high})
		}
		b := &bands[len(bands)-1]
		b.Sequences++
		b.Tokens += l
	}
	return bands
}

// pairs is the work of causal attention over n tokens: the pairs of tokens.
func pairs(n units.Tokens) float64 { return float64(n) * float64(n+1) / 2 }

// pad works out what each way of padding wastes.
func (s *LengthSummary) pad(sorted []units.Tokens) error {
	longest := sorted[len(sorted)-1]
	s.Padding = append(s.Padding,
		padded("each padded to the longest", sorted, func(units.Tokens) units.Tokens { return longest }),
		padded("each padded to the next power of two", sorted, func(l units.Tokens) units.Tokens { return 1 << bits.Len64(uint64(l-1)) }),
		padded("each padded to a multiple of 128", sorted, func(l units.Tokens) units.Tokens { return (l + 127) / 128 * 128 }))
	short := sorted
	if i, _ := slices.BinarySearch(sorted, packInto+1); i < len(sorted) {
		short = sorted[:i]
	}
	if len(short) == 0 {
		return nil
	}
	buffers, err := workload.Pack(short, packInto)
	if err != nil {
		return err
	}
	p := PaddingWaste{Buffers: len(buffers), LeftOut: len(sorted) - len(short)}
	tokens, work := 0.0, 0.0
	for _, l := range short {
		tokens += float64(l)
		work += pairs(l)
	}
	room := float64(len(buffers)) * float64(packInto)
	p.Waste = 1 - tokens/room
	p.Way, p.Attention = fmt.Sprintf("packed into buffers of %s, documents masked", packInto), 1
	s.Padding = append(s.Padding, p)
	p.Way, p.Attention = fmt.Sprintf("packed into buffers of %s, no document mask", packInto), float64(len(buffers))*pairs(packInto)/work
	s.Padding = append(s.Padding, p)
	return nil
}

func padded(way string, lengths []units.Tokens, to func(units.Tokens) units.Tokens) PaddingWaste {
	var tokens, all, work, full float64
	for _, l := range lengths {
		tokens += float64(l)
		all += float64(to(l))
		work += pairs(l)
		full += pairs(to(l))
	}
	return PaddingWaste{Way: way, Waste: 1 - tokens/all, Attention: full / work}
}

// deal deals every batch to ranks in turn.
func (s *LengthSummary) deal(lengths []units.Tokens, ranks int) RankImbalance {
	var tokens, work, whole []float64
	for i := range s.Batches {
		var perTokens, perWork []float64 = make([]float64, ranks), make([]float64, ranks)
		longest, total := 0.0, 0.0
		for k, l := range lengths[i*s.Batch : (i+1)*s.Batch] {
			square := float64(l) * float64(l)
			perTokens[k%ranks] += float64(l)
			perWork[k%ranks] += square
			longest, total = max(longest, square), total+square
		}
		tokens = append(tokens, maxOverMean(perTokens))
		work = append(work, maxOverMean(perWork))
		whole = append(whole, max(1, longest/(total/float64(ranks))))
	}
	return RankImbalance{Ranks: ranks, Tokens: middle(tokens), Work: middle(work), Worst: slices.Max(work), Whole: middle(whole)}
}

func maxOverMean(v []float64) float64 {
	sum := 0.0
	for _, x := range v {
		sum += x
	}
	return slices.Max(v) / (sum / float64(len(v)))
}

// middle is the median, of an even number the greater of the two in the middle.
func middle(v []float64) float64 { return slices.Sorted(slices.Values(v))[len(v)/2] }
