package costmodel

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// cutAtRandom packs documents that add up to a sequence.
func cutAtRandom(rng *rand.Rand, seqLen units.Tokens) []units.Tokens {
	var docs []units.Tokens
	for seqLen > 0 {
		n := 1 + units.Tokens(rng.Int64N(int64(seqLen)))
		docs, seqLen = append(docs, n), seqLen-n
	}
	return docs
}

// TestPackedBlocksCoverTheMask counts pairs one by one: each that a document's
// causal mask shows is in exactly one block, and no other pair is in any.
func TestPackedBlocksCoverTheMask(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 21))
		total := units.Tokens(2 + rng.IntN(60))
		docs, err := (&ReplayWork{Packed: cutAtRandom(rng, total)}).documents(total)
		if err != nil {
			t.Fatal(err)
		}
		var shards [2]Shard // tokens dealt at random; a third part is nobody's
		owner := 0
		for at := units.Tokens(0); at < total; at++ {
			if rng.IntN(3) == 0 {
				owner = rng.IntN(3)
			}
			if owner == 2 {
				continue
			}
			s := &shards[owner].Segments
			if n := len(*s); n > 0 && (*s)[n-1].End == at {
				(*s)[n-1].End++
				continue
			}
			*s = append(*s, Segment{at, at + 1})
		}
		for _, pair := range [][2]Shard{{shards[0], shards[0]}, {shards[0], shards[1]}, {shards[1], shards[0]}} {
			if at := wrongPair(pair[0], pair[1], docs); at != "" {
				t.Fatalf("seed %d: %s of %v on %v in %v", seed, at, pair[0], pair[1], docs)
			}
		}
	}
}

// wrongPair names a pair that blocks hold wrongly.
func wrongPair(q, kv Shard, docs []Segment) string {
	rows, cols := positions(q), positions(kv)
	seen := map[[2]units.Tokens]int{}
	for _, b := range appendPacked(nil, q, kv, docs) {
		for i := range b.QLen {
			for j := range b.KVLen {
				if b.Mask == op.Full || j <= i {
					seen[[2]units.Tokens{b.QStart + i, b.KVStart + j}]++
				}
			}
		}
	}
	for i, at := range rows {
		for j, key := range cols {
			want := 0
			if key <= at && docOf(docs, at) == docOf(docs, key) {
				want = 1
			}
			if seen[[2]units.Tokens{units.Tokens(i), units.Tokens(j)}] != want {
				return "a pair"
			}
			delete(seen, [2]units.Tokens{units.Tokens(i), units.Tokens(j)})
		}
	}
	if len(seen) > 0 {
		return "a pair beyond the shards"
	}
	return ""
}

func positions(s Shard) []units.Tokens {
	var all []units.Tokens
	for _, g := range s.Segments {
		for at := g.Start; at < g.End; at++ {
			all = append(all, at)
		}
	}
	return all
}

func docOf(docs []Segment, at units.Tokens) int {
	for i, d := range docs {
		if at < d.End {
			return i
		}
	}
	return -1
}

// attentionOf is how long each rank computes attention in a replayed step.
func attentionOf(r *Replayed) []units.Seconds {
	all := make([]units.Seconds, len(r.Ranks))
	for _, k := range r.Tasks {
		if k.Op == AttentionOp || k.Op == MergeOp {
			all[k.Rank] += k.Time
		}
	}
	return all
}

// TestPackedDocumentsAreSequences: documents that each lie as a sequence of its own
// would take the attention of these sequences together, rank by rank, where no
// message slows another's computing; one document is the plain sequence.
func TestPackedDocumentsAreSequences(t *testing.T) {
	manyReplays(t, func(x plan, s *Simulator, w ReplayWork, r *Replayed) {
		w.Packed = []units.Tokens{x.job.SeqLen}
		one, err := s.Replayed(w)
		if err != nil || one.Step != r.Step {
			t.Fatalf("%v as one document, %v plain: %v", one.Step, r.Step, err)
		}
	})
	p := madeUp(t, map[string]speeds{"any": {attention: 1e12, gemm: 1e12}}, map[string]wire{"bus": {1e-6, 1e9}})
	groups := []Group{{{0, 4}}, {{1, 4}}, {{2, 2}, {3, 2}}}
	whole := Layout{Shards: make([]Shard, 4), Groups: groups}
	want := make([]units.Seconds, 4)
	docs, at := []units.Tokens{1000, 30, 400}, units.Tokens(0)
	run := func(seqLen units.Tokens, w ReplayWork) *Replayed {
		j := testJob(cluster(t, "1x4 any", p, "bus", ""), []units.Tokens{seqLen})
		s, err := NewSimulator(NewPredictor(p), j)
		if err != nil {
			t.Fatal(err)
		}
		r, err := s.Replayed(w)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	for _, n := range docs {
		l := ZigZag(SplitByShares(n, []float64{0.3, 0.2, 0.4, 0.1}), groups)
		for i, took := range attentionOf(run(n, ReplayWork{Layout: l, Layers: 2})) {
			want[i] += took
		}
		for r, s := range l.Shards {
			for _, g := range s.Segments {
				whole.Shards[r].Segments = append(whole.Shards[r].Segments, Segment{g.Start + at, g.End + at})
			}
		}
		at += n
	}
	for i, took := range attentionOf(run(at, ReplayWork{Layout: whole, Packed: docs, Layers: 2})) {
		if !near(took, want[i], 1e-9) {
			t.Errorf("rank %d: %v packed, %v apart", i, took, want[i])
		}
	}
	if plain := run(at, ReplayWork{Layout: whole, Layers: 2}); !(attentionOf(plain)[0] > 1.2*want[0]) {
		t.Errorf("one sequence takes %v, its documents apart %v", attentionOf(plain)[0], want[0])
	}
}

func TestPackedRefuses(t *testing.T) {
	p := usual(t)
	s, err := NewSimulator(NewPredictor(p), testJob(cluster(t, "1x2 fast", p, "bus", ""), []units.Tokens{300, 200}))
	if err != nil {
		t.Fatal(err)
	}
	for want, docs := range map[string][]units.Tokens{
		"docs_tokens[1]: 0: want 1 to the 200": {300, 0, 200}, "docs_tokens[1]: 201: want": {300, 201}, "docs_tokens: 499 tokens in all": {300, 199},
	} {
		_, err := s.Replayed(ReplayWork{Layout: ringOf([]units.Tokens{300, 200}), Packed: docs, Layers: 1})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", docs, err, want)
		}
	}
}
