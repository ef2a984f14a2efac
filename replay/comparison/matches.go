package comparison

import (
	"fmt"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
)

// FLOPs of an unmasked pair of a query and a key, per query head and element:
// forward two products of two FLOPs a multiply-add, backward five.
const (
	flopsForward  = 4
	flopsBackward = 10
)

// visible are the unmasked pairs of a head over a shard's queries, each document
// causal on its own: n queries behind a others of their document have
// n a + n (n+1)/2.
func visible(s costmodel.Shard, docs []units.Tokens) int64 {
	var sum int64
	add := func(from, to, begin units.Tokens) {
		if n := int64(to - from); n > 0 {
			sum += n*int64(from-begin) + n*(n+1)/2
		}
	}
	for _, g := range s.Segments {
		if len(docs) == 0 {
			add(g.Start, g.End, 0)
		}
		at := units.Tokens(0)
		for _, n := range docs {
			add(max(g.Start, at), min(g.End, at+n), at)
			at += n
		}
	}
	return sum
}

func (k *packed) flops() map[int]int64 {
	all := map[int]int64{}
	addFLOPs(all, k.what.Layout, k.what.Packed, k.ranks, int64(max(1, k.what.Micro))*int64(k.what.Layers*k.headDim), k.again)
	return all
}

// addFLOPs adds to those of every rank of the run what its heads take so many times, each of
// one element; again: the forward pass is run a second time.
func addFLOPs(all map[int]int64, l costmodel.Layout, packed []units.Tokens, ranks []int, times int64, again bool) {
	passes := int64(flopsForward + flopsBackward)
	if again {
		passes += flopsForward
	}
	for g, members := range l.Groups {
		of := visible(l.GroupShard(g), packed) * passes * times
		for _, m := range members {
			all[ranks[m.Rank]] += of * int64(m.QHeads)
		}
	}
}

// matches finds spans that are not of the plan they are said to be of: ranks count
// FLOPs, and a plan says how many they are. Traces without counts are believed.
func (c *making) matches(plan int) error {
	for b := range c.rec.runs[plan] {
		r := &c.rec.runs[plan][b]
		if !r.counted() {
			continue
		}
		for m := range r.laps {
			for rank := range r.laps[m] {
				var want int64
				if k := c.courses[plan].micro[m].of[rank]; k != nil {
					want = k.counts[rank]
				}
				if got := r.laps[m][rank].flops; got != want {
					return fmt.Errorf("block %d, rank %d, micro-batch %d: flops: %d of attention in all: the plan has %d there, so these spans are of another plan; make the trace again: evenkeel replay", b, rank, m, got, want)
				}
			}
		}
	}
	return nil
}

// counted says whether a run's spans hold FLOPs.
func (r *run) counted() bool {
	for _, laps := range r.laps {
		for i := range laps {
			if laps[i].flops > 0 {
				return true
			}
		}
	}
	return false
}
