package comparison

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/fit"
	"github.com/evenkeel/evenkeel/internal/units"
)

// TestVisiblePairsOneByOne counts the pairs of a mask.
func TestVisiblePairsOneByOne(t *testing.T) {
	for seed := range uint64(100) {
		rng := rand.New(rand.NewPCG(seed, 3))
		var docs, begins []units.Tokens
		var s costmodel.Shard
		for range 1 + rng.IntN(5) {
			n, begin := units.Tokens(1+rng.IntN(9)), units.Tokens(len(begins))
			docs = append(docs, n)
			for range n {
				begins = append(begins, begin)
			}
		}
		var want int64
		for at, begin := range begins {
			if rng.IntN(2) == 0 {
				continue
			}
			if want += int64(units.Tokens(at)-begin) + 1; len(s.Segments) > 0 && s.Segments[len(s.Segments)-1].End == units.Tokens(at) {
				s.Segments[len(s.Segments)-1].End++
				continue
			}
			s.Segments = append(s.Segments, costmodel.Segment{Start: units.Tokens(at), End: units.Tokens(at) + 1})
		}
		if got := visible(s, docs); got != want {
			t.Fatalf("seed %d: %d, want %d of %v in %v", seed, got, want, s, docs)
		}
		if got, one := visible(s, nil), visible(s, []units.Tokens{units.Tokens(len(begins))}); got != one {
			t.Fatalf("seed %d: %d without documents, %d of one", seed, got, one)
		}
	}
}

// TestSpansOfAnotherPlanAreRefused: FLOPs that ranks counted and the plan does not
// have. Those of case A of two groups on four ranks are known: forward 35,854,336,
// 25,610,240, 41,330,688 and 123,992,064, and 2.5 times as many backward.
func TestSpansOfAnotherPlanAreRefused(t *testing.T) {
	known := []int64{35854336, 25610240, 41330688, 123992064}
	k := &packed{ranks: []int{0, 1, 2, 3}, headDim: 16, what: costmodel.ReplayWork{Layers: 1}}
	segment := func(from, to units.Tokens) costmodel.Segment { return costmodel.Segment{Start: from, End: to} }
	k.what.Layout = costmodel.Layout{
		Shards: []costmodel.Shard{{Segments: []costmodel.Segment{segment(0, 64), segment(704, 768)}}, {Segments: []costmodel.Segment{segment(64, 256)}}, {Segments: []costmodel.Segment{segment(256, 300), segment(512, 704)}}, {Segments: []costmodel.Segment{segment(300, 512)}}},
		Groups: []costmodel.Group{{{Rank: 0, QHeads: 7}, {Rank: 1, QHeads: 5}}, {{Rank: 2, QHeads: 3}, {Rank: 3, QHeads: 9}}},
	}
	for rank, forward := range known {
		if got := k.flops()[rank]; 2*got != 7*forward {
			t.Errorf("rank %d: %d, want 3.5 times %d", rank, got, forward)
		}
	}
	p := usualParty()
	rec := read(t, p.play(t))
	profile := madeUp(t, linkRate)
	c, err := newComparison(rec, profile, Links{})
	if err != nil {
		t.Fatal(err)
	}
	for b := range rec.runs[0] {
		for m, laps := range rec.runs[0][b].laps {
			for rank := range laps {
				if k := c.courses[0].micro[m].of[rank]; k != nil {
					laps[rank].flops = k.counts[rank]
				}
			}
		}
	}
	if _, err := New(rec, profile, fit.DefaultLimits(), Links{}); err != nil {
		t.Errorf("counts as planned: %v", err)
	}
	rec.runs[0][2].laps[1][3].flops = 7 // rank 3 has no work there
	if _, err := New(rec, profile, fit.DefaultLimits(), Links{}); err == nil || !strings.Contains(err.Error(), "block 2, rank 3, micro-batch 1: flops: 7 of attention in all: the plan has 0") {
		t.Error(err)
	}
}
