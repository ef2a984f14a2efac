package groupcost_test

import (
	"math"
	"slices"
	"sync"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/groupcost"
	"github.com/evenkeel/evenkeel/internal/units"
)

// An account is of the time that the prices give the group, in every class, whatever its
// lengths: many, shorter than a token for every rank, or one.
func TestAccountsAreOfTheirPrices(t *testing.T) {
	q, j := referenceJob(t, "1x4 h100_sxm + 1x4 a100_sxm", nil)
	costs := fromLaws(t, q, j)
	many := make([]units.Tokens, 300)
	for i := range many {
		many[i] = units.Tokens(1 + i*i/20)
	}
	for class, c := range costs.Classes {
		for _, lengths := range [][]units.Tokens{{c.Cap}, {1}, {5000, 80, 80, 3}, many} {
			step, err := costs.Account(class, lengths)
			if err != nil {
				t.Fatal(c.Name, err)
			}
			want := c.Base
			for _, n := range lengths {
				want += costs.Time(class, n)
			}
			if e := step.Time; math.Abs(float64(e.Mid/want)-1) > 1e-9 || !(e.Lo < e.Mid && e.Mid < e.Hi) || e.Source == "" {
				t.Errorf("%s, %d lengths: %+v, priced %v", c.Name, len(lengths), e, want)
			}
		}
	}
	if _, lawful := costs.Exchange(); !lawful {
		t.Error("no account of the exchange")
	}
	if _, lawful := (&groupcost.Costs{}).Exchange(); lawful {
		t.Error("costs from nowhere have laws")
	}
}

// A server's planners ask side by side, of the same costs.
func TestAccountsSideBySide(t *testing.T) {
	q, j := referenceJob(t, "1x2 h100_sxm + 1x2 a100_sxm", nil)
	costs := fromLaws(t, q, j)
	ask := func() (all []costmodel.Estimate) {
		for class := range costs.Classes {
			step, err := costs.Account(class, []units.Tokens{5000, 800, 80})
			if err != nil {
				t.Error(err)
				return nil
			}
			all = append(all, step.Time)
		}
		return all
	}
	want := ask()
	var asked sync.WaitGroup
	for range 4 {
		asked.Go(func() {
			if got := ask(); !slices.Equal(got, want) {
				t.Errorf("%v, alone %v", got, want)
			}
		})
	}
	asked.Wait()
}

// Lengths that are put together are as many sequences, of nearly as many tokens.
func TestFewLengthsAreOfAll(t *testing.T) {
	for _, lengths := range [][]units.Tokens{{7}, {900, 900, 900}, {1, 2, 3, 4, 5}, {100000, 3, 3, 50, 4000, 4100, 70000, 123, 9, 9, 8, 7, 6, 5, 400, 401, 10000, 30000}} {
		const least = 4
		docs := groupcost.Few(lengths, least)
		count, tokens, want := 0, units.Tokens(0), units.Tokens(0)
		for i, d := range docs {
			count += d.Count
			tokens += d.Tokens * units.Tokens(d.Count)
			if d.Tokens < least || d.Count < 1 || i > 0 && d.Tokens >= docs[i-1].Tokens {
				t.Errorf("%v: %v", lengths, docs)
			}
		}
		for _, n := range lengths {
			want += max(n, least)
		}
		if count != len(lengths) || tokens > want || want-tokens > units.Tokens(len(lengths)) || len(docs) > 12 {
			t.Errorf("%v: %v are %d of %d tokens, want %d", lengths, docs, count, int64(tokens), int64(want))
		}
	}
}
