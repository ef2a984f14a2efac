package groupcost_test

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/groupcost"
	"github.com/evenkeel/evenkeel/internal/units"
)

// fill draws sequences of a long-tailed length until a group holds so many tokens,
// each at least the shortest that is simulated.
func fill(r *rand.Rand, tokens, shortest units.Tokens) []costmodel.Documents {
	counts := map[units.Tokens]int{}
	for left := tokens; ; {
		s := max(shortest, (units.Tokens(math.Exp(math.Log(1000)+1.7*r.NormFloat64()))/128+1)*128)
		if s > left {
			break
		}
		counts[s]++
		left -= s
	}
	var docs []costmodel.Documents
	for s, n := range counts {
		docs = append(docs, costmodel.Documents{Tokens: s, Count: n})
	}
	slices.SortFunc(docs, func(a, b costmodel.Documents) int { return cmp.Compare(b.Tokens, a.Tokens) })
	return docs
}

// priced is what a class charges for documents, and what the simulator takes over
// each of them alone, one after the other.
func priced(t *testing.T, p groupcost.Probe, docs []costmodel.Documents) (sum, alone float64) {
	t.Helper()
	sum = float64(p.Base)
	for _, d := range docs {
		sum += float64(d.Count) * float64(p.Time(d.Tokens))
		x, err := p.Passes(costmodel.Documents{Tokens: d.Tokens, Count: 1})
		if err != nil {
			t.Fatal(err)
		}
		alone += float64(d.Count) * float64(x.Time(false))
	}
	return sum, alone
}

// The sum of prices against the simulation of the packed group, for groups of
// every class a fifth to wholly full of sequences of unequal lengths. The packed
// group lies between its linear work on all tokens at once, which no packing
// saves, and its sequences one after the other; so do the prices.
func TestPricesAgainstPackedSimulation(t *testing.T) {
	if testing.Short() {
		t.Skip("simulates thousands of packed groups, some 10 s")
	}
	r := rand.New(rand.NewPCG(1, 2))
	for _, c := range []struct {
		cluster     string
		median, p90 float64 // the most that they may be off by; less of one type than is said of all
	}{
		{"1x8 h100_sxm", 0.015, 0.03},
		{"4x8 a100_sxm", 0.015, groupcost.PricesOff},
		{"4x8 h100_sxm + 4x8 a100_sxm", groupcost.HalfOff, groupcost.PricesOff},
		{"2x8 rtx_pro_6000_server + 1x8 b200_sxm", groupcost.HalfOff, groupcost.PricesOff},
	} {
		q, j := referenceJob(t, c.cluster, nil)
		probes, err := groupcost.Probes(t.Context(), q, j, costmodel.Documents{})
		if err != nil {
			t.Fatal(err)
		}
		var off []float64
		above, below := 0.0, 0.0
		for _, p := range probes {
			for range 10 {
				docs := fill(r, units.Tokens(float64(p.Cap)*(0.2+0.8*r.Float64())), p.Least)
				if len(docs) == 0 {
					continue
				}
				x, err := p.Passes(docs...)
				if err != nil {
					t.Fatal(err)
				}
				packed := float64(x.Time(false))
				sum, alone := priced(t, p, docs)
				if linear := float64(slices.Max(x.Linear)); packed > alone*1.05 || packed < linear {
					t.Errorf("%s %v: packed %v, one after the other %v, linear work alone %v", c.cluster, p.Uses, packed, alone, linear)
				}
				if sum > alone*1.35 {
					t.Errorf("%s %v: priced %v, one after the other takes %v: %v", c.cluster, p.Uses, sum, alone, docs)
				}
				e := math.Log(sum / packed)
				above, below = max(above, e), min(below, e)
				off = append(off, math.Abs(e))
			}
		}
		slices.Sort(off)
		median, p90 := off[len(off)/2], off[len(off)*9/10]
		t.Logf("%s: %d groups: |log(priced/simulated)| median %.3f, p90 %.3f, from %.3f to %.3f", c.cluster, len(off), median, p90, below, above)
		if median > c.median || p90 > c.p90 {
			t.Errorf("%s: median %.3f, p90 %.3f, want at most %v and %v", c.cluster, median, p90, c.median, c.p90)
		}
	}
}

// A sequence alone that fills at least half a group costs what the simulator says.
func TestPricesOfLongSequences(t *testing.T) {
	q, j := referenceJob(t, "2x8 h100_sxm + 1x8 a100_sxm", nil)
	probes, err := groupcost.Probes(t.Context(), q, j, costmodel.Documents{})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range probes {
		for _, part := range []float64{0.55, 0.7, 0.99} {
			s := units.Tokens(part * float64(p.Cap))
			x, err := p.Passes(costmodel.Documents{Tokens: s, Count: 1})
			if err != nil {
				t.Fatal(err)
			}
			if e := math.Log(float64(p.Base+p.Time(s)) / float64(x.Time(false))); math.Abs(e) > 0.04 {
				t.Errorf("%v: %d tokens: off by %.3f", p.Uses, s, e)
			}
		}
	}
}

// Rings of sequences of one length compute own blocks last where that is faster over the
// loads that mechanisms are compared by, and are compared by the faster order.
func TestRingsTakeTheFasterOrderOfBlocks(t *testing.T) {
	taken := map[bool]int{}
	for _, slower := range []float64{1, 4, 16} {
		q, j := referenceJob(t, "2x4 h100_sxm + 1x8 a100_sxm", func(p *costmodel.Profile) {
			for i := range p.Laws {
				if p.Laws[i].Group != "" {
					p.Laws[i] = p.Laws[i].Slowed(slower)
				}
			}
		})
		probes, err := groupcost.Probes(t.Context(), q, j, costmodel.Documents{Tokens: 50000, Count: 64})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range probes {
			if len(p.Groups) < 2 {
				if p.OwnLast {
					t.Errorf("%v: own blocks last in one all-to-all", p.Uses)
				}
				continue
			}
			ratio := 1.0
			for i, docs := range p.Loads {
				plain, err := p.Packer.Passes(p.Groups, p.Shares, []costmodel.Documents{docs})
				if err != nil {
					t.Fatal(err)
				}
				last, err := p.Packer.OwnLast()
				if err != nil {
					t.Fatal(err)
				}
				ratio *= float64(last.Time(false) / plain.Time(false))
				if want := map[bool]costmodel.Passes{false: plain, true: last}[p.OwnLast].Time(false); p.Times[i] != want {
					t.Errorf("%v in %d all-to-alls: compared by %v, takes %v", p.Uses, len(p.Groups), p.Times[i], want)
				}
			}
			if p.OwnLast != (ratio < 1) {
				t.Errorf("links %v times slower, %v in %d all-to-alls: own blocks last %t, though that changes the times by %.4f", slower, p.Uses, len(p.Groups), p.OwnLast, ratio)
			}
			taken[p.OwnLast]++
		}
	}
	if taken[false] == 0 || taken[true] == 0 {
		t.Errorf("own blocks are last or not in so many classes: %v", taken)
	}
}

// A table is exact where time is a power of the length, rises whatever its samples
// do, and goes on in proportion below and as a square above.
func TestTables(t *testing.T) {
	grid := []float64{256, 700, 2000, 5000, 20000, 70000, 131072}
	for _, exponent := range []float64{1, 1.5, 2} {
		of := groupcost.Tabulate(grid, func(s float64) float64 { return 1e-6 * math.Pow(s, exponent) })
		for s := units.Tokens(256); s < 131072; s += s/9 + 1 {
			// The error of a straight line over a sixteenth of an octave.
			if got, want := float64(of(s)), 1e-6*math.Pow(float64(s), exponent); math.Abs(got/want-1) > 1e-3 {
				t.Errorf("s^%v at %d: %v, want %v", exponent, s, got, want)
			}
		}
		if got, want := float64(of(16)), 1e-6*math.Pow(256, exponent)/16; math.Abs(got/want-1) > 1e-3 {
			t.Errorf("s^%v at 16: %v, want %v", exponent, got, want)
		}
		if got, want := float64(of(1<<20)), 64*float64(of(1<<17)); math.Abs(got/want-1) > 0.02 {
			t.Errorf("s^%v at 2^20: %v, want %v", exponent, got, want)
		}
	}
	bumpy := groupcost.Tabulate(grid, func(s float64) float64 { return 1 + math.Sin(s)/2 })
	for s := units.Tokens(1); s < 1<<20; s++ {
		if bumpy(s) <= bumpy(s-1) && s > 1 {
			t.Fatalf("falls from %d to %d tokens: %v, %v", s-1, s, bumpy(s-1), bumpy(s))
		}
	}
}

func FuzzTable(f *testing.F) {
	f.Add(uint32(300), uint16(3), uint64(7))
	f.Fuzz(func(t *testing.T, from uint32, n uint16, seed uint64) {
		r := rand.New(rand.NewPCG(seed, 1))
		grid := []float64{float64(from%100000) + 1}
		for range n % 40 {
			grid = append(grid, grid[len(grid)-1]*(1.001+2*r.Float64()))
		}
		if grid[len(grid)-1] > 1<<40 {
			return
		}
		of := groupcost.Tabulate(grid, func(float64) float64 { return 1e-9 + r.Float64() })
		before := units.Seconds(0)
		for s := units.Tokens(1); s < 1<<41; s += s/5 + 1 {
			now := of(s)
			if !(now > before) {
				t.Fatalf("%v: %v at %d after %v", grid, now, s, before)
			}
			before = now
		}
	})
}
