package fit

import (
	"math"
	"math/rand/v2"
	"testing"
)

// leaning is a function that rises with the octaves of two features and steps along one.
func leaning(x []float64) float64 {
	y := 0.02*math.Log2(x[0]) - 0.01*math.Log2(x[1])
	if x[0] > 300 {
		y += 0.1
	}
	return y
}

// Between few rows lines tell more than level leaves do, and beyond them no more than
// what lies at their edge.
func TestLeavesHaveLines(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 3))
	draw := func(n int) (rows [][]float64, targets []float64) {
		for range n {
			x := []float64{math.Exp2(10 * r.Float64()), math.Exp2(10 * r.Float64()), math.Exp2(10 * r.Float64())}
			rows, targets = append(rows, x), append(targets, leaning(x)+0.005*r.NormFloat64())
		}
		return rows, targets
	}
	rows, targets := draw(300)
	held, _ := draw(300)
	size := gemmBoost()
	size.columns, size.trees, size.leaves = 1, 100, 8
	off := func(doubt float64) (mean float64) {
		size.doubt = doubt
		for i, v := range boost(rows, targets, size).all(held) {
			mean += math.Abs(v-leaning(held[i])) / float64(len(held))
		}
		return mean
	}
	if lines, level := off(2), off(0); lines > 0.7*level {
		t.Errorf("off by %.4f with lines, %.4f with level leaves", lines, level)
	}
	size.doubt = 2
	said := boost(rows, targets, size).all([][]float64{{1 << 10, 1, 1 << 10}, {1 << 30, 1, 1 << 10}})
	if math.Abs(said[0]-said[1]) > 0.01 {
		t.Errorf("%.3f at the edge, %.3f twenty octaves beyond", said[0], said[1])
	}
}

// A leaf's line is the ridge regression of what its rows ask for: here worked out by
// derivatives, which vanish at it.
func TestLeafLinesAreLeastSquares(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 4))
	g := &grower{size: boostSize{rate: 1, doubt: 3}, parts: 1 << 30}
	l := &leaf{}
	for i := range 40 {
		g.at = append(g.at, leafPlace{10 * r.Float64(), 10 * r.Float64(), 10 * r.Float64()})
		g.pull = append(g.pull, 0.1*r.NormFloat64())
		l.rows = append(l.rows, int32(i))
		l.total += binOf(g.pull[i], g.parts)
	}
	line := g.line(l)
	loss := func() float64 {
		sum := 0.0
		for i, x := range g.at {
			e := g.pull[i] - l.total.pull()/g.parts/float64(l.total.count()) - line.at(x)
			sum += e * e
		}
		for _, s := range line.slope {
			sum += g.size.doubt * s * s
		}
		return sum
	}
	least := loss()
	for a := range lineAxes {
		for _, step := range []float64{-1e-4, 1e-4} {
			line.slope[a] += step
			if loss() <= least {
				t.Errorf("slope %d: %g less than the line's loss", a, least-loss())
			}
			line.slope[a] -= step
		}
	}
}

// What one forest puts into a bin, the mean of forests with shifted ones tells apart.
func TestShiftedBinsTellMore(t *testing.T) {
	if testing.Short() {
		t.Skip("nothing in it runs beside anything else")
	}
	var rows [][]float64
	var targets []float64
	for i := range 2000 {
		rows, targets = append(rows, []float64{float64(i + 1)}), append(targets, 0.05*math.Sin(float64(i)/20))
	}
	size := gemmBoost()
	size.columns, size.doubt, size.trees = 1, 0, 150
	off := func(shifted bool) (mean float64) {
		size.shifted = shifted
		var f forests
		for seed := range uint64(4) {
			size.seed = seed
			f = append(f, boost(rows, targets, size))
		}
		for i, v := range f.all(rows) {
			mean += math.Abs(v-targets[i]) / float64(len(rows))
		}
		return mean
	}
	if shifted, same := off(true), off(false); shifted > 0.85*same {
		t.Errorf("off by %.5f with shifted bins, %.5f with the same ones", shifted, same)
	}
	for shift := -0.5; shift < 0.5; shift += 0.125 {
		if cuts := cutsOf(rows[:mostBins+1], 0, shift); len(cuts) >= mostBins || cuts[0] < 1 {
			t.Errorf("shifted by %v: %d cuts from %v on", shift, len(cuts), cuts[0])
		}
	}
}
