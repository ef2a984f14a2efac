package costmodel

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

func TestZigZag(t *testing.T) {
	got := ringOf([]units.Tokens{4, 0, 3, 6})
	want := Layout{Groups: []Group{{{0, 4}}, {{2, 4}}, {{3, 4}}}, Shards: []Shard{
		{[]Segment{{0, 2}, {11, 13}}}, {}, {[]Segment{{2, 3}, {9, 11}}}, {[]Segment{{3, 9}}},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if got := ringOf([]units.Tokens{9}); len(got.Shards[0].Segments) != 1 {
		t.Errorf("a single rank has %v", got.Shards[0])
	}
}

func tokensGen(most int) *rapid.Generator[[]units.Tokens] {
	return rapid.SliceOfN(rapid.Map(rapid.IntRange(0, most), func(n int) units.Tokens { return units.Tokens(n) }), 1, 7)
}

func sumTokens(tokens []units.Tokens) units.Tokens {
	var sum units.Tokens
	for _, n := range tokens {
		sum += n
	}
	return sum
}

func TestZigZagCovers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tokens := tokensGen(9).Draw(t, "tokens")
		l := ringOf(tokens)
		if err := l.Validate(sumTokens(tokens), len(tokens), 4); err != nil {
			t.Fatal(err)
		}
		for r, s := range l.Shards {
			if s.Tokens() != tokens[r] {
				t.Fatalf("rank %d has %d of %d tokens", r, s.Tokens(), tokens[r])
			}
		}
	})
}

// pairs counts the pairs that blocks cover.
func pairs(blocks []attnBlock) units.Tokens {
	var n units.Tokens
	for _, b := range blocks {
		if b.Mask == op.Diag {
			n += b.QLen * (b.QLen + 1) / 2
		} else {
			n += b.QLen * b.KVLen
		}
	}
	return n
}

// TestZigZagLemma: with even lengths rank i has s_i s_k / 2 pairs with rank k
// and s_i^2/2 + s_i/2 with itself, whatever the lengths and their order.
func TestZigZagLemma(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tokens := tokensGen(200).Draw(t, "tokens")
		for i := range tokens {
			tokens[i] *= 2
		}
		l := ringOf(tokens)
		for i, si := range tokens {
			for k, sk := range tokens {
				want := si * sk / 2
				if i == k {
					want += si / 2
				}
				if got := pairs(appendBlocks(nil, l.Shards[i], l.Shards[k])); got != want {
					t.Fatalf("%v: ranks %d, %d: %d pairs, want %d", tokens, i, k, got, want)
				}
			}
		}
	})
}

// TestZigZagTiers: the tiers' tokens follow one another, each is a zigzag of its own,
// and queries see all keys of the tiers before and none of those behind.
func TestZigZagTiers(t *testing.T) {
	rng := rand.New(rand.NewPCG(15, 4))
	for range 200 {
		tokens := make([]units.Tokens, 1+rng.IntN(9))
		for i := range tokens {
			tokens[i] = units.Tokens(2 * rng.IntN(50))
		}
		groups := groupsOf(rng, len(tokens))
		tier := make([]int, len(groups))
		for g := range tier {
			tier[g] = rng.IntN(4) - 1
		}
		l := ZigZagTiers(tokens, groups, tier)
		if err := l.validateCover(sumTokens(tokens)); err != nil {
			t.Fatal(err)
		}
		for g := range groups {
			for k := range groups {
				q, kv := l.GroupShard(g), l.GroupShard(k)
				sq, sk := q.Tokens(), kv.Tokens()
				want := sq * sk / 2
				switch {
				case g == k:
					want = sq*sq/2 + sq/2
				case tier[g] > tier[k]:
					want = sq * sk
				case tier[g] < tier[k]:
					want = 0
				}
				if got := pairs(appendBlocks(nil, q, kv)); got != want || len(q.Segments) > 2 {
					t.Fatalf("%v in %v, tiers %v: groups %d, %d: %d pairs, want %d; %v", tokens, groups, tier, g, k, got, want, q)
				}
			}
		}
		if one := ZigZagTiers(tokens, groups, make([]int, len(groups))); !cmp.Equal(one, ZigZag(tokens, groups)) {
			t.Fatalf("%v in %v: in one tier %v", tokens, groups, one)
		}
	}
}

// groupsOf cuts ranks, as many as there are tokens, into groups of up to three.
func groupsOf(rng *rand.Rand, ranks int) []Group {
	var groups []Group
	for r, left := 0, 0; r < ranks; r, left = r+1, left-1 {
		if left == 0 {
			left = 1 + rng.IntN(3)
			groups = append(groups, nil)
		}
		g := &groups[len(groups)-1]
		*g = append(*g, HeadShare{r, 1})
	}
	return groups
}

// TestGroupsLemma: between groups it is the same, the members of each nested
// side by side; one piece a rank makes the earlier groups' work the less.
func TestGroupsLemma(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		tokens := make([]units.Tokens, 1+rng.IntN(9))
		for i := range tokens {
			tokens[i] = units.Tokens(2 * rng.IntN(50))
		}
		groups := groupsOf(rng, len(tokens))
		zigzag, plain := ZigZag(tokens, groups), Contiguous(tokens, groups)
		for g := range groups {
			for k := range groups {
				q, kv := zigzag.GroupShard(g), zigzag.GroupShard(k)
				sq, sk := q.Tokens(), kv.Tokens()
				whole, inZigzag, inOrder := sq*(sq+1)/2, sq*sk/2, units.Tokens(0)
				if g > k {
					inOrder = sq * sk
				}
				if g == k {
					inZigzag, inOrder = sq*sq/2+sq/2, whole
				}
				if got := pairs(appendBlocks(nil, q, kv)); got != inZigzag || len(q.Segments) > 2 {
					t.Fatalf("%v in %v: groups %d, %d: %d pairs in zigzag, want %d; %v", tokens, groups, g, k, got, inZigzag, q)
				}
				if got := pairs(appendBlocks(nil, plain.GroupShard(g), plain.GroupShard(k))); got != inOrder {
					t.Fatalf("%v in %v: groups %d, %d: %d pairs in order, want %d", tokens, groups, g, k, got, inOrder)
				}
			}
		}
	}
}

// TestBlocksAreLarge: between two zigzag shards one rectangle is enough.
func TestBlocksAreLarge(t *testing.T) {
	l := ringOf([]units.Tokens{8, 6, 10})
	for _, c := range []struct {
		q, kv int
		want  []attnBlock
	}{
		{0, 1, []attnBlock{{op.Full, 4, 4, 0, 6}}},                                               // the tail sees all
		{1, 0, []attnBlock{{op.Full, 0, 6, 0, 4}}},                                               // all see the head
		{0, 0, []attnBlock{{op.Diag, 0, 4, 0, 4}, {op.Diag, 4, 4, 4, 4}, {op.Full, 4, 4, 0, 4}}}, // two pieces
		{2, 2, []attnBlock{{op.Diag, 0, 10, 0, 10}}},                                             // pieces that touch
	} {
		if diff := cmp.Diff(c.want, appendBlocks(nil, l.Shards[c.q], l.Shards[c.kv])); diff != "" {
			t.Errorf("%d on %d: (-want +got)\n%s", c.q, c.kv, diff)
		}
	}
}

// positions lists the tokens of a shard in storage order.
func (s Shard) positions() []units.Tokens {
	var out []units.Tokens
	for _, g := range s.Segments {
		for p := g.Start; p < g.End; p++ {
			out = append(out, p)
		}
	}
	return out
}

// checkCells marks every cell that the blocks cover and compares with i >= j.
func checkCells(t interface{ Fatalf(string, ...any) }, q, kv Shard) {
	qs, ks := q.positions(), kv.positions()
	covered := map[[2]units.Tokens]int{}
	for _, b := range appendBlocks(nil, q, kv) {
		if b.QLen < 1 || b.KVLen < 1 || (b.Mask == op.Diag && b.QLen != b.KVLen) {
			t.Fatalf("impossible block %+v of %v on %v", b, q, kv)
		}
		for i := range b.QLen {
			for j := range b.KVLen {
				if b.Mask == op.Full || i >= j {
					covered[[2]units.Tokens{b.QStart + i, b.KVStart + j}]++
				}
			}
		}
	}
	for i, qp := range qs {
		for j, kp := range ks {
			want := 0
			if qp >= kp {
				want = 1
			}
			if got := covered[[2]units.Tokens{units.Tokens(i), units.Tokens(j)}]; got != want {
				t.Fatalf("%v on %v: query %d, key %d covered %d times, want %d", q, kv, qp, kp, got, want)
			}
		}
	}
}

func shardGen(t *rapid.T, label string) Shard {
	var s Shard
	cuts := rapid.SliceOfNDistinct(rapid.IntRange(0, 24), 0, 8, rapid.ID[int]).Draw(t, label)
	in := make([]bool, 26)
	for _, c := range cuts {
		in[c] = true
	}
	start := -1
	for p, on := range in {
		switch {
		case on && start < 0:
			start = p
		case on: // a second mark ends a segment; the next one may touch it
			s.Segments = append(s.Segments, Segment{units.Tokens(start), units.Tokens(p)})
			start = -1
			if p%2 == 0 {
				start = p
			}
		}
	}
	return s
}

func TestBlocksCoverAnyShards(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q, kv := shardGen(t, "q"), shardGen(t, "kv")
		checkCells(t, q, kv)
		checkCells(t, q, q)
	})
}

func TestBlocksCoverLayouts(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		tokens := make([]units.Tokens, 1+rng.IntN(5))
		for i := range tokens {
			tokens[i] = units.Tokens(rng.IntN(9))
		}
		l := ringOf(tokens)
		for _, l := range []Layout{l, Contiguous(tokens, l.Groups), scattered(rng, tokens, groupsOf(rng, len(tokens)))} {
			for _, q := range l.Shards {
				for _, kv := range l.Shards {
					checkCells(t, q, kv)
				}
			}
			for g := range l.Groups {
				for k := range l.Groups {
					checkCells(t, l.GroupShard(g), l.GroupShard(k))
				}
			}
		}
	}
}

func TestLayoutValidateErrors(t *testing.T) {
	seg := func(bounds ...units.Tokens) Shard {
		var s Shard
		for i := 0; i < len(bounds); i += 2 {
			s.Segments = append(s.Segments, Segment{bounds[i], bounds[i+1]})
		}
		return s
	}
	two := func(a, b Shard, groups ...Group) Layout { return Layout{Shards: []Shard{a, b}, Groups: groups} }
	one := func(rank int) Group { return Group{{rank, 4}} }
	halves := two(seg(0, 4), seg(4, 8))
	for name, c := range map[string]struct {
		l    Layout
		want string
	}{
		"shards":      {Layout{Shards: []Shard{seg(0, 8)}, Groups: []Group{one(0)}}, "the cluster has 2 ranks"},
		"negative":    {two(seg(-1, 4), seg(4, 8), one(0), one(1)), "shards[0].segments[0]: [-1, 4)"},
		"beyond":      {two(seg(0, 4), seg(4, 9), one(0), one(1)), "shards[1].segments[0]: [4, 9)"},
		"empty":       {two(seg(0, 4), seg(4, 4, 4, 8), one(0), one(1)), "non-empty"},
		"falling":     {two(seg(0, 4), seg(6, 8, 4, 6), one(0), one(1)), "segments must rise"},
		"overlap":     {two(seg(0, 5), seg(4, 8), one(0), one(1)), "token 4 belongs to two"},
		"hole":        {two(seg(0, 3), seg(4, 8), one(0), one(1)), "7 tokens in all: the sequence has 8"},
		"rank":        {two(seg(0, 4), seg(4, 8), one(0), one(2)), "groups[1][0].rank: 2: want a rank from 0 to 1"},
		"twice":       {two(seg(0, 4), seg(4, 8), one(0), one(0)), "groups[1][0].rank: rank 0 is in two groups"},
		"left out":    {two(seg(0, 4), seg(4, 8), one(0)), "rank 1 has 4 tokens but is in no group"},
		"too few":     {two(halves.Shards[0], halves.Shards[1], Group{{0, 1}, {1, 2}}), "groups[0]: 3 q_heads in all: the model has 4"},
		"too many":    {two(halves.Shards[0], halves.Shards[1], Group{{0, 5}, {1, 0}}), "groups[0][0].q_heads: 5: want 0 to 4"},
		"minus":       {two(halves.Shards[0], halves.Shards[1], Group{{0, 5}, {1, -1}}), "groups[0][0].q_heads: 5"},
		"no place":    {two(seg(0, 8), Shard{}, Group{{0, 4}, {1, 0}}), "groups[0][1]: rank 1 has neither tokens nor heads"},
		"no tokens":   {two(seg(0, 8), Shard{}, one(0), one(1)), "groups[1]: no member has tokens"},
		"empty group": {two(seg(0, 8), Shard{}, one(0), Group{}), "groups[1]: 0 q_heads in all"},
	} {
		if err := c.l.Validate(8, 2, 4); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}
