package costmodel

import (
	"fmt"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// benchPlan is a plan of n ranks, half of them fast, in groups of so many with
// equal heads, on nodes of eight. Ranks of one type have as many tokens, or no
// two groups have. Pairs share the heads in one of two unlike ways by turns.
func benchPlan(n, group int, unlike bool) plan {
	c := Cluster{Network: "net"}
	for i := range n / 8 {
		device := []string{"fast", "slow"}[i*16/n]
		c.Nodes = append(c.Nodes, Node{Name: fmt.Sprint("n", i), Link: "bus", Devices: []op.Member{{Device: device, Count: 8}}})
	}
	j := Job{
		Model: smallModel(), Cluster: c, DType: op.F32, Recompute: RecomputeNone, RingBuffers: 2, LossChunk: 4096, OverlapZero: true,
	}
	j.Model.QHeads, j.Model.KVHeads, j.Model.Layers = 32, 8, 32
	tokens, groups := make([]units.Tokens, n), []Group(nil)
	for r := range n {
		if r%group == 0 {
			groups = append(groups, nil)
		}
		if tokens[r] = units.Tokens(2048 - 1024*(r*2/n)); unlike {
			tokens[r] += units.Tokens(2 * (r / group))
		}
		g := &groups[len(groups)-1]
		*g = append(*g, HeadShare{r, 32 / group})
	}
	for g := range groups {
		if group == 2 {
			groups[g][0].QHeads, groups[g][1].QHeads = 12+g%2*8, 20-g%2*8
		}
	}
	j.SeqLen = sumTokens(tokens)
	return plan{j, ZigZag(tokens, groups)}
}

// manySizes runs a benchmark with groups of eight, with groups of one, with
// groups of one that all differ, and with such pairs of changing shares of heads,
// whose members pass on to several.
func manySizes(b *testing.B, ranks int, f func(*testing.B, *Predictor, plan)) {
	for _, c := range []struct {
		group  int
		unlike bool
		name   string
	}{{8, false, "groups of 8"}, {1, false, "ring"}, {1, true, "unlike ring"}, {2, true, "unlike pairs"}} {
		b.Run(fmt.Sprintf("%d %s", ranks, c.name), func(b *testing.B) {
			q, x := NewPredictor(usual(b)), benchPlan(ranks, c.group, c.unlike)
			b.ReportAllocs()
			f(b, q, x)
		})
	}
}

func simulator(b *testing.B, q *Predictor, x plan) *Simulator {
	s, err := NewSimulator(q, x.job)
	if err != nil {
		b.Fatal(err)
	}
	return s
}

func timeOf(b *testing.B, s *Simulator, l Layout) {
	if _, err := s.Time(l); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkLayer128 is one layer, forward, of 128 ranks whose prices are known.
func BenchmarkLayer128(b *testing.B) {
	manySizes(b, 128, func(b *testing.B, q *Predictor, x plan) {
		s := simulator(b, q, x)
		timeOf(b, s, x.layout)
		for b.Loop() {
			s.fast.layers[0].run(s.fast, false, false)
		}
	})
}

// BenchmarkLayer128Cold is the same without a price, seats included.
func BenchmarkLayer128Cold(b *testing.B) {
	manySizes(b, 128, func(b *testing.B, q *Predictor, x plan) {
		for b.Loop() {
			s := simulator(b, q, x).fast
			s.layout = x.layout
			if err := s.seat(); err != nil {
				b.Fatal(err)
			}
			s.layers[0].run(s, false, false)
		}
	})
}

// BenchmarkTime is a step of a layout like others before it.
func BenchmarkTime(b *testing.B) {
	for _, ranks := range []int{16, 128, 1024} {
		manySizes(b, ranks, func(b *testing.B, q *Predictor, x plan) {
			s := simulator(b, q, x)
			timeOf(b, s, x.layout)
			for b.Loop() {
				timeOf(b, s, x.layout)
			}
		})
	}
}

// BenchmarkTimeInTwos is the same with micro-batches in twos.
func BenchmarkTimeInTwos(b *testing.B) {
	for _, ranks := range []int{16, 128, 1024} {
		manySizes(b, ranks, func(b *testing.B, q *Predictor, x plan) {
			x.job.Accumulate, x.layout.TwoBatch = 2, true
			s := simulator(b, q, x)
			timeOf(b, s, x.layout)
			for b.Loop() {
				timeOf(b, s, x.layout)
			}
		})
	}
}

// BenchmarkTimeInTurns is the same with their rings in turn.
func BenchmarkTimeInTurns(b *testing.B) {
	for _, ranks := range []int{16, 128, 1024} {
		manySizes(b, ranks, func(b *testing.B, q *Predictor, x plan) {
			if len(x.layout.Groups) == 1 {
				b.Skip("one group has no ring")
			}
			x.job.Accumulate, x.layout.TwoBatch, x.layout.WeaveForward, x.layout.WeaveBackward = 2, true, true, true
			s := simulator(b, q, x)
			timeOf(b, s, x.layout)
			for b.Loop() {
				timeOf(b, s, x.layout)
			}
		})
	}
}

// BenchmarkTimeCold is a step of the first layout of all.
func BenchmarkTimeCold(b *testing.B) {
	for _, ranks := range []int{16, 128, 1024} {
		manySizes(b, ranks, func(b *testing.B, q *Predictor, x plan) {
			for b.Loop() {
				timeOf(b, simulator(b, q, x), x.layout)
			}
		})
	}
}
