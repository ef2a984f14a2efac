package batch

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
)

// oneGroup is a document of one micro-batch whose only group trains sequences.
func oneGroup(c Class, lengths ...units.Tokens) *Document {
	d := &Document{Lengths: lengths, Classes: []ClassEntry{ClassEntry(c)}}
	g := Group{}
	next := 0
	for _, n := range c.Uses {
		p := PoolEntry{Device: "d", Ranks: [][]int{nil}}
		for range n {
			p.Ranks[0] = append(p.Ranks[0], next)
			g.Ranks = append(g.Ranks, next)
			next++
		}
		d.Fleet = append(d.Fleet, p)
	}
	for k := range lengths {
		g.Sequences = append(g.Sequences, k)
	}
	d.Micro = []MicroBatch{{Groups: []Group{g}}}
	return d
}

// randomClass has up to three pools, of equal or unequal shares, and any of the
// ways to share heads.
func randomClass(r *rand.Rand) (c Class, qHeads, kvHeads int) {
	kvHeads = 1 + r.IntN(4)
	qHeads = kvHeads * (1 + r.IntN(6))
	for range 1 + r.IntN(3) {
		c.Uses = append(c.Uses, r.IntN(5))
	}
	c.Uses[0]++
	if r.IntN(2) == 0 {
		sum := 0.0
		for _, n := range c.Uses {
			w := float64(r.IntN(10))
			c.Shares = append(c.Shares, w)
			sum += w * float64(n)
		}
		if sum == 0 {
			c.Shares[0], sum = 1, float64(c.Uses[0])
		}
		for i := range c.Shares {
			c.Shares[i] /= sum
		}
	}
	switch degree := c.Degree(); r.IntN(3) {
	case 0:
		var fit []int
		for h := 1; h <= degree; h++ {
			if degree%h == 0 && qHeads%h == 0 {
				fit = append(fit, h)
			}
		}
		c.Heads = fit[r.IntN(len(fit))]
	case 1:
		c.Groups = randomGroups(r, degree, qHeads)
	}
	return c, qHeads, kvHeads
}

// randomGroups deals places and heads to all-to-alls at random, members without
// heads among them.
func randomGroups(r *rand.Rand, degree, qHeads int) []costmodel.Group {
	groups := make([]costmodel.Group, 1+r.IntN(degree))
	for i, place := range r.Perm(degree) {
		g := i
		if i >= len(groups) {
			g = r.IntN(len(groups))
		}
		groups[g] = append(groups[g], costmodel.HeadShare{Rank: place})
	}
	for _, g := range groups {
		for range qHeads {
			g[r.IntN(len(g))].QHeads++
		}
	}
	return groups
}

// Of random classes and sequences, many shorter than the group: every token is
// owned once, every all-to-all has all heads once, every sequence is split as
// its shares say to within a token, and cut as the prices take it.
func TestGroupLayoutsTileTheirSequencesAsPriced(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7))
	short, idle := 0, 0
	for range 3000 {
		c, qHeads, kvHeads := randomClass(r)
		var lengths []units.Tokens
		for range r.IntN(6) {
			lengths = append(lengths, 1+units.Tokens(r.IntN([]int{3, 40, 5000}[r.IntN(3)])))
		}
		l, docs, err := GroupLayout(oneGroup(c, lengths...), 0, 0, qHeads, kvHeads)
		if err != nil {
			t.Fatal(err, c)
		}
		if !slices.Equal(docs, lengths) {
			t.Fatalf("documents %v of %v", docs, lengths)
		}
		sum := units.Tokens(0)
		for _, n := range lengths {
			sum += n
		}
		if err := l.Validate(sum, c.Degree(), qHeads); err != nil {
			t.Fatalf("%+v %v: %v", c, lengths, err)
		}
		checkDocuments(t, c, l, docs, qHeads)
		for r, s := range l.Shards {
			if len(s.Segments) == 0 && sum > 0 {
				idle++
			}
			for i, g := range s.Segments {
				if i > 0 && s.Segments[i-1].End == g.Start {
					t.Fatalf("rank %d: segments %v touch", r, s.Segments)
				}
			}
		}
		if slices.ContainsFunc(docs, func(n units.Tokens) bool { return int(n) < c.Degree() }) {
			short++
		}
	}
	if short < 300 || idle < 300 {
		t.Errorf("%d layouts with short sequences and %d ranks without tokens: the test looks at too few", short, idle)
	}
}

// checkDocuments looks at every document alone.
func checkDocuments(t *testing.T, c Class, l costmodel.Layout, docs []units.Tokens, qHeads int) {
	t.Helper()
	shares, err := sharesOf(c)
	if err != nil {
		t.Fatal(err)
	}
	groups, err := allToAlls(c, qHeads)
	if err != nil {
		t.Fatal(err)
	}
	at := units.Tokens(0)
	for _, n := range docs {
		priced := costmodel.ZigZag(costmodel.SplitByShares(n, shares), groups)
		for r := range l.Shards {
			own := within(l.Shards[r].Segments, at, at+n)
			if !slices.Equal(own, priced.Shards[r].Segments) {
				t.Fatalf("rank %d of %v has %v of a document of %d tokens; the prices take %v", r, shares, own, int64(n), priced.Shards[r].Segments)
			}
			if off := float64(costmodel.Shard{Segments: own}.Tokens()) - shares[r]*float64(n); math.Abs(off) > 1+1e-6 {
				t.Fatalf("rank %d of %v has %v tokens of %d more than its share", r, shares, off, int64(n))
			}
		}
		at += n
	}
}

// within is the part of segments inside a document, counted from its beginning.
func within(segments []costmodel.Segment, begin, end units.Tokens) []costmodel.Segment {
	var own []costmodel.Segment
	for _, s := range segments {
		if lo, hi := max(s.Start, begin), min(s.End, end); lo < hi {
			own = append(own, costmodel.Segment{Start: lo - begin, End: hi - begin})
		}
	}
	return own
}

// On equal devices the causal work of every document is dealt evenly: a device
// computes as many pairs of a query and a key as any other, to within a row.
func TestGroupLayoutsBalanceEveryDocument(t *testing.T) {
	for _, degree := range []int{2, 3, 5, 8} {
		c := Class{Uses: []int{degree}}
		docs := []units.Tokens{4000, 960, 17 * units.Tokens(degree)}
		l, _, err := GroupLayout(oneGroup(c, docs...), 0, 0, 8, 2)
		if err != nil {
			t.Fatal(err)
		}
		at := units.Tokens(0)
		for _, n := range docs {
			least, most := math.Inf(1), 0.0
			for r := range degree {
				work := 0.0
				for k := range degree {
					q, kv := costmodel.Shard{Segments: within(l.Shards[r].Segments, at, at+n)}, costmodel.Shard{Segments: within(l.Shards[k].Segments, at, at+n)}
					work += pairs(q, kv)
				}
				least, most = min(least, work), max(most, work)
			}
			if most-least > 2*float64(n) {
				t.Errorf("%d devices, %d tokens: %v to %v pairs", degree, int64(n), least, most)
			}
			at += n
		}
	}
}

// pairs is how many (query, key) pairs of two shards a causal mask leaves.
func pairs(q, kv costmodel.Shard) float64 {
	var sum units.Tokens
	for _, queries := range q.Segments {
		for at := queries.Start; at < queries.End; at++ {
			for _, keys := range kv.Segments {
				sum += min(max(at+1-keys.Start, 0), keys.Len())
			}
		}
	}
	return float64(sum)
}

func TestGroupLayoutsOfTheMechanisms(t *testing.T) {
	head := func(rank, n int) costmodel.HeadShare { return costmodel.HeadShare{Rank: rank, QHeads: n} }
	for name, c := range map[string]struct {
		class Class
		want  []costmodel.Group
	}{
		"a ring":          {Class{Uses: []int{3}, Heads: 1}, []costmodel.Group{{head(0, 8)}, {head(1, 8)}, {head(2, 8)}}},
		"not said":        {Class{Uses: []int{2}}, []costmodel.Group{{head(0, 8)}, {head(1, 8)}}},
		"an all-to-all":   {Class{Uses: []int{2, 2}, Heads: 4}, []costmodel.Group{{head(0, 2), head(1, 2), head(2, 2), head(3, 2)}}},
		"both":            {Class{Uses: []int{4}, Heads: 2}, []costmodel.Group{{head(0, 4), head(1, 4)}, {head(2, 4), head(3, 4)}}},
		"unequal heads":   {Class{Uses: []int{1, 2}, Heads: 3, QHeads: []int{4, 2}}, []costmodel.Group{{head(0, 4), head(1, 2), head(2, 2)}}},
		"as it says":      {Class{Uses: []int{3}, Heads: 2, Groups: []costmodel.Group{{head(2, 8)}, {head(1, 3), head(0, 5)}}}, []costmodel.Group{{head(2, 8)}, {head(1, 3), head(0, 5)}}},
		"a pool left out": {Class{Uses: []int{0, 1}, Shares: []float64{7, 1}}, []costmodel.Group{{head(0, 8)}}},
	} {
		l, _, err := GroupLayout(oneGroup(c.class, 120, 50), 0, 0, 8, 2)
		if err != nil {
			t.Fatal(name, err)
		}
		if !slices.EqualFunc(l.Groups, c.want, slices.Equal) {
			t.Errorf("%s: %v, want %v", name, l.Groups, c.want)
		}
	}
	// One token: the middle rank of three has it, and the ring is that rank alone, which
	// has no other blocks.
	l, _, err := GroupLayout(oneGroup(Class{Uses: []int{3}, Schedule: costmodel.Schedule{OwnLast: true}}, 1), 0, 0, 8, 2)
	if err != nil || len(l.Groups) != 1 || l.Groups[0][0].Rank != 1 || l.OwnLast {
		t.Error(l, err)
	}
	if l, _, err := GroupLayout(oneGroup(Class{Uses: []int{3}, Schedule: costmodel.Schedule{OwnLast: true}}, 120), 0, 0, 8, 2); err != nil || len(l.Groups) != 3 || !l.OwnLast {
		t.Error(l, err)
	}
	if l, docs, err := GroupLayout(oneGroup(Class{Uses: []int{3}}), 0, 0, 8, 2); err != nil || len(docs) != 0 || len(l.Groups) != 0 || len(l.Shards) != 3 {
		t.Error("a group without sequences:", l, docs, err)
	}
}

func TestGroupLayoutNamesWhatDoesNotSuit(t *testing.T) {
	head := func(rank, n int) costmodel.HeadShare { return costmodel.HeadShare{Rank: rank, QHeads: n} }
	for want, c := range map[string]Class{
		"classes[0] (x).head_ranks: 3: the model's 8 query heads cannot": {Uses: []int{3}, Heads: 3},
		"head_ranks: 2: want a divisor of the group's 3 devices":         {Uses: []int{3}, Heads: 2},
		"groups[0]: 6 q_heads in all: the model has 8":                   {Uses: []int{2}, Groups: []costmodel.Group{{head(0, 3), head(1, 3)}}},
		"groups[0][1].rank: 2: want each place from 0 to 1 once":         {Uses: []int{2}, Groups: []costmodel.Group{{head(0, 4), head(2, 4)}}},
		"groups[1][0].rank: 0: want each place":                          {Uses: []int{2}, Groups: []costmodel.Group{{head(0, 8)}, {head(0, 8)}}},
		"groups[0][0].q_heads: 9: want 0 to the model's 8":               {Uses: []int{1}, Groups: []costmodel.Group{{head(0, 9)}}},
		"groups: place 1 is in none of them":                             {Uses: []int{2}, Groups: []costmodel.Group{{head(0, 8)}}},
		"q_heads: 1 numbers: the fleet has 2 pools":                      {Uses: []int{1, 1}, Heads: 2, QHeads: []int{4}},
		"groups[0]: 7 q_heads in all":                                    {Uses: []int{1, 1}, Heads: 2, QHeads: []int{4, 3}},
		"shares: [0.5 0.4] for [1 1] devices: they add up to 0.9":        {Uses: []int{1, 1}, Shares: []float64{0.5, 0.4}},
		"shares[1]: NaN: want 0 to 1":                                    {Uses: []int{1, 1}, Shares: []float64{1, math.NaN()}},
		"shares[0]: -0.5: want 0 to 1":                                   {Uses: []int{1, 1}, Shares: []float64{-0.5, 1.5}},
	} {
		c.Name = "x"
		if _, _, err := GroupLayout(oneGroup(c, 100), 0, 0, 8, 2); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	if _, _, err := GroupLayout(oneGroup(Class{Uses: []int{1}}, 100), 0, 0, 8, 3); err == nil || !strings.Contains(err.Error(), "heads: 8 query heads on 3") {
		t.Error(err)
	}
}
