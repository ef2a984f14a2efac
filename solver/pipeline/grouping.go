package pipeline

import (
	"cmp"
	"math"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel/pipeline"
)

// grouped is a batch's sequences in flights, with what each computes again.
type grouped struct {
	flights    []*flight
	again      []*solution
	programmes int // that were solved
}

// group puts sequences of neighbouring numbers of chunks into flights, those with most
// first, by InfiniPipe's dynamic programme (its equation 14): each flight costs the filling
// and draining of the stages, stages-1 mean chunks, and its recomputation, at layer seconds
// for each of C's sum. solve finds what a flight computes again; nil where it has no room.
// The result is nil if nothing fits.
func group(sequences [][]pipeline.Chunk, stages int, mean, layer float64, solve func(*flight) (*solution, error)) (*grouped, error) {
	sequences = slices.Clone(sequences)
	slices.SortStableFunc(sequences, func(a, b []pipeline.Chunk) int { return cmp.Compare(len(b), len(a)) })
	var ends []int // of those with as many chunks
	for i := range sequences {
		if i+1 == len(sequences) || len(sequences[i+1]) != len(sequences[i]) {
			ends = append(ends, i+1)
		}
	}
	type state struct {
		cost   float64
		from   int
		flight *flight
		again  *solution
	}
	best := make([]state, len(ends)+1)
	programmes := 0
	for i := range ends {
		best[i+1].cost = math.Inf(1)
		for k := range i + 1 {
			if math.IsInf(best[k].cost, 1) {
				continue
			}
			from := 0
			if k > 0 {
				from = ends[k-1]
			}
			f := newFlight(sequences[from:ends[i]])
			again, err := solve(f)
			programmes++
			if err != nil {
				return nil, err
			}
			if again == nil {
				continue
			}
			if cost := best[k].cost + float64(stages-1)*mean + layer*float64(again.sum); cost < best[i+1].cost {
				best[i+1] = state{cost, k, f, again}
			}
		}
	}
	out := &grouped{programmes: programmes}
	for i := len(ends); i > 0; i = best[i].from {
		if best[i].flight == nil {
			return nil, nil
		}
		out.flights, out.again = append(out.flights, best[i].flight), append(out.again, best[i].again)
	}
	slices.Reverse(out.flights)
	slices.Reverse(out.again)
	return out, nil
}
