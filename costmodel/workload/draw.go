package workload

import (
	"errors"
	"fmt"
	"math"

	"github.com/evenkeel/evenkeel/internal/units"
)

// lognormal draws floor(exp(X)) + 1 with X normal, no length above MaxLength. A
// lognormal variable's mean is its median times exp(sd²/2).
func lognormal(v map[string]float64) (func(n int) []units.Tokens, error) {
	median, isMedian := v["median"]
	mean, isMean := v["mean"]
	if isMedian == isMean {
		return nil, errors.New("give either median or mean, of the lengths in tokens")
	}
	centre := math.Log(median)
	if isMean {
		centre = math.Log(mean) - v["sd"]*v["sd"]/2
	}
	sd, seed := v["sd"], uint64(v["seed"])
	return func(n int) []units.Tokens {
		return draws(n, lognormals(centre, sd, seed))
	}, nil
}

func lognormals(centre, sd float64, seed uint64) func() units.Tokens {
	g := newNormals(newPCG64(seed))
	return func() units.Tokens {
		// The explicit conversion keeps the product from being fused into the sum.
		x := centre + float64(sd*g.next())
		return units.Tokens(min(math.Floor(math.Exp(x))+1, float64(MaxLength)))
	}
}

// draws makes n lengths by a function that draws one.
func draws(n int, next func() units.Tokens) []units.Tokens {
	lengths := make([]units.Tokens, 0, max(0, n))
	for range n {
		lengths = append(lengths, next())
	}
	return lengths
}

func uniform(v map[string]float64) (func(n int) []units.Tokens, error) {
	lo, hi, seed := int64(v["lo"]), int64(v["hi"]), uint64(v["seed"])
	if lo > hi {
		return nil, fmt.Errorf("lo=%d is above hi=%d", lo, hi)
	}
	return func(n int) []units.Tokens {
		g := newPCG64(seed)
		return draws(n, func() units.Tokens { return units.Tokens(g.between(lo, hi)) })
	}, nil
}

// The lengths of the burst generator without a burst, and the scatter of those
// around one.
const (
	burstLow, burstHigh = 512, 4096
	burstScatter        = 0.1
)

// burst is a generator of batches that are now and then dominated by one
// sequence. Micro-batch t has a generator of its own with the seed `seed` + t.
// It draws first whether there is a burst, with probability p. Without one, all
// b lengths are uniform in 512..4096. With one, b-1 fillers have the target
// (total - tokens)/(b-1), at most 4096, scattered by a tenth and held to
// 512..4096, and the long sequence stands at a place drawn last.
func burst(v map[string]float64) (func(n int) []units.Tokens, error) {
	b, seed := int(v["b"]), uint64(v["seed"])
	if v["tokens"] > v["total"] {
		return nil, fmt.Errorf("tokens=%s: one sequence is longer than the micro-batch, total=%s", plain(v["tokens"]), plain(v["total"]))
	}
	return func(n int) []units.Tokens {
		var lengths []units.Tokens
		for t := uint64(0); len(lengths) < n; t++ {
			lengths = append(lengths, burstMicroBatch(newPCG64(seed+t), b, v)...)
		}
		return lengths[:max(0, n)]
	}, nil
}

func burstMicroBatch(g *pcg64, b int, v map[string]float64) []units.Tokens {
	if g.float64() >= v["p"] {
		return draws(b, func() units.Tokens { return units.Tokens(g.between(burstLow, burstHigh)) })
	}
	target := min((v["total"]-v["tokens"])/float64(b-1), burstHigh)
	lengths := draws(b, func() units.Tokens {
		scattered := target * (1 + burstScatter*(2*g.float64()-1))
		return units.Tokens(math.Round(min(max(scattered, burstLow), burstHigh)))
	})
	lengths[g.between(0, int64(b)-1)] = units.Tokens(v["tokens"])
	return lengths
}

func flexspParams(seed float64) []param {
	return []param{
		{name: "context", lo: 1, hi: float64(MaxLength), preset: 384_000, whole: true},
		{name: "gpus", lo: 1, hi: 1 << 20, preset: 64, whole: true},
		{name: "seed", hi: seedMost, preset: seed, whole: true},
	}
}

// flexspShortest is a limit that half of the sequences keep to: with a lower one,
// drawing what passes would take long.
const flexspShortest = 1024

// flexspShape is how FlexSP's solver prepares lengths: padded up to a multiple
// of twice the GPUs, dropped above context less that multiple (Hetu-Galvatron,
// galvatron/flexsp_solver, b466689).
func flexspShape(v map[string]float64) (Shape, error) {
	multiple := units.Tokens(2 * v["gpus"])
	s := Shape{Limit: units.Tokens(v["context"]) - multiple, Multiple: multiple}
	if s.Limit < max(flexspShortest, multiple) {
		return Shape{}, fmt.Errorf("context=%s: want at least %d, when lengths are padded to multiples of %d, twice the GPUs", plain(v["context"]), int64(max(flexspShortest, multiple)+multiple), int64(multiple))
	}
	return s, nil
}

// flexspStandIn stands in for the corpora CommonCrawl and GitHub of FlexSP, whose
// lengths are not public: it reproduces the number of micro-batches and the time
// of the static baseline that the paper shows for them. Seed 7 is the published
// one.
func flexspStandIn(v map[string]float64) (func(n int) []units.Tokens, error) {
	shape, err := flexspShape(v)
	if err != nil {
		return nil, err
	}
	return func(n int) []units.Tokens {
		return shaped(n, shape, lognormals(math.Log(1000), 1.7, uint64(v["seed"])))
	}, nil
}

// flexspWikipedia draws from the lengths of FlexSP's Wikipedia file as their
// quantiles are known, not from the file: its batches are alike and not equal.
func flexspWikipedia(v map[string]float64) (func(n int) []units.Tokens, error) {
	shape, err := flexspShape(v)
	if err != nil {
		return nil, err
	}
	return func(n int) []units.Tokens {
		return shaped(n, shape, wikipedia().drawer(uint64(v["seed"])))
	}, nil
}

// shaped draws until n lengths have passed the shape.
func shaped(n int, s Shape, next func() units.Tokens) []units.Tokens {
	return draws(n, func() units.Tokens {
		for {
			if l, keep := s.one(next()); keep {
				return l
			}
		}
	})
}

// wikipedia is the file's distribution as bins between its known quantiles: a
// million articles and their median, 75th, 90th, 95th, 99th, 99.9th and 99.99th
// percentile and maximum, and the shares up to the powers of two. Only the
// shortest is inferred: with 76 those up to 1024 have their known mean, 320
// tokens.
func wikipedia() *Histogram {
	h := &Histogram{}
	last := Bin{High: 75}
	for _, known := range []struct {
		upTo  units.Tokens
		share float64
	}{
		{347, 0.5},
		{862, 0.75},
		{1024, 0.788},
		{2048, 0.896},
		{2112, 0.9},
		{3720, 0.95},
		{4096, 0.956},
		{8192, 0.984},
		{10919, 0.99},
		{16384, 0.9952},
		{32768, 0.9987},
		{37353, 0.999},
		{65536, 0.9997},
		{101537, 0.9999},
		{131072, 0.99995},
		{262144, 0.99999725},
		{1823777, 1},
	} {
		bin := Bin{Low: last.High + 1, High: known.upTo, Weight: known.share}
		h.Bins = append(h.Bins, Bin{bin.Low, bin.High, bin.Weight - last.Weight})
		last = bin
	}
	return h
}
