package fit

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/op"
)

// stepped is a function that a smooth field blurs: a step at x = 0.3, more
// where y is large.
func stepped(x, y float64) float64 {
	if x < 0.3 {
		return 0
	}
	return 0.2 + 0.3*y
}

func TestBoostFollowsSteps(t *testing.T) {
	sequential(t)
	r := rand.New(rand.NewPCG(1, 1))
	draw := func(n int) (rows [][]float64, targets []float64) {
		for range n {
			x := []float64{r.Float64(), r.Float64(), r.Float64()} // the last says nothing
			rows, targets = append(rows, x), append(targets, stepped(x[0], x[1])+0.01*r.NormFloat64())
		}
		return rows, targets
	}
	rows, targets := draw(2000)
	size := gemmBoost()
	size.columns = 1 // three are too few to leave some out
	trees := boost(rows, targets, size)
	held, want := draw(500)
	off := 0.0
	for i, x := range held {
		off += math.Abs(trees.at(x)-want[i]) / float64(len(held))
	}
	if off > 0.02 {
		t.Errorf("off by %.3f in the mean, with noise of 0.008", off)
	}
	if again := boost(rows, targets, size); again.at(held[0]) != trees.at(held[0]) {
		t.Error("the same rows give other trees")
	}
	edge, beyond := trees.at([]float64{1, 1, 0.5}), trees.at([]float64{100, 100, 0.5})
	if math.Abs(edge-beyond) > 0.03 {
		t.Errorf("%.3f at the edge, %.3f far beyond: want the edge's value kept", edge, beyond)
	}
}

func TestBoostOfNothingToLearn(t *testing.T) {
	rows := [][]float64{{1}, {1}, {1}}
	trees := boost(rows, []float64{0.1, 0.1, 0.1}, gemmBoost())
	if got := trees.at([]float64{1}); math.Abs(got-0.1) > 0.01 {
		t.Errorf("%v where every target is 0.1", got)
	}
}

func TestBoostIgnoresOutliers(t *testing.T) {
	var rows [][]float64
	var targets []float64
	for i := range 400 {
		rows, targets = append(rows, []float64{float64(i % 20)}), append(targets, 0)
	}
	targets[7] = 100
	size := gemmBoost()
	size.trees = 50
	if got := boost(rows, targets, size).at([]float64{7}); got > 0.1 {
		t.Errorf("one wild point of twenty moves its place by %v", got)
	}
}

// The mean of forests says at any place the mean of what they say, one place at
// a time or all at once.
func TestMeanOfForests(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var rows [][]float64
	var targets []float64
	for range 300 {
		x := []float64{r.Float64(), r.Float64(), r.Float64()}
		rows, targets = append(rows, x), append(targets, stepped(x[0], x[1]))
	}
	size := gemmBoost()
	size.trees = 20
	var mean forests
	want := make([]float64, len(rows))
	for seed := range uint64(3) {
		size.seed = seed
		mean = append(mean, boost(rows, targets, size))
		for i, x := range rows {
			want[i] += mean[seed].at(x) / 3
		}
	}
	for i, v := range mean.all(rows) {
		if alone := mean.all(rows[i : i+1])[0]; math.Abs(v-want[i]) > 1e-12 || v != alone {
			t.Fatalf("row %d: %v all at once, %v alone, want %v", i, v, alone, want[i])
		}
	}
}

// Trees are believed a step more than cross-validation says, beyond what was measured
// where that is safe, and at head counts that nobody measured as much as these say.
func TestTreesAreBelieved(t *testing.T) {
	one := forests{{cuts: [][]float64{{}}, trees: []tree{{nodes: []branch{{feature: -1, value: 1}}}}}}
	shapes := []op.Shape{attentionShape(64, 1, 8, 8), attentionShape(4096, 1, 8, 8), attentionShape(64, 1, 7, 7)}
	beyond := func(i int) bool { return i == 1 }
	for _, c := range []struct {
		settled float64
		wary    bool
		want    []float64
	}{
		{0.5, false, []float64{0.625, 0.625, 0.25}},
		{0.5, true, []float64{0.625, 0.5, 0.25}},
		{1, true, []float64{1, 1, 0.25}},
		{0, false, []float64{0, 0, 0.25}},
	} {
		a := &advice{trees: one, of: func(op.Shape) []float64 { return []float64{0} }, axis: "q_heads", known: []float64{8}, apart: 0.25}
		a.believe(c.settled, c.wary)
		if got := a.blend(make([]float64, len(shapes)), shapes, beyond); !slices.Equal(got, c.want) {
			t.Errorf("settled on %v, wary %v: trees that say 1 make %v of a field of 0, want %v", c.settled, c.wary, got, c.want)
		}
		if got := a.blend([]float64{0}, shapes[1:2], nil)[0]; got != c.want[0] {
			t.Errorf("settled on %v: %v at a point, want %v", c.settled, got, c.want[0])
		}
	}
}

// at is the sum of the trees at one place, which all gives for many.
func (b *boosted) at(x []float64) float64 {
	sum := 0.0
	for _, t := range b.trees {
		sum += t.says(b.bin(x), placesInLeaves([][]float64{x})[0])
	}
	return sum
}

// The bins of a leaf sum up what its rows ask for and count them, to a part in millions,
// and what is taken away leaves nothing behind.
func TestBinsSumPullsAndCountRows(t *testing.T) {
	const rows, clip = 5000, 0.1
	r, parts := rand.New(rand.NewPCG(1, 9)), partsOf(rows, clip)
	for _, lean := range []float64{-clip, 0, clip} { // all at one edge, too: the sum still fits
		var b, part bin
		sum := 0.0
		for i := range rows {
			pull := max(-clip, min(clip, lean+0.01*r.NormFloat64()))
			sum += pull
			b += binOf(pull, parts)
			if i%3 == 0 {
				part += binOf(pull, parts)
			}
		}
		if got := b.pull() / parts; math.Abs(got-sum) > 1e-6 || b.count() != rows {
			t.Errorf("lean %g: %d rows ask for %.9f in sum, not %d for %.9f", lean, rows, sum, b.count(), got)
		}
		rest := b - part
		if rest.count()+part.count() != rows || rest.pull()+part.pull() != b.pull() || b-rest-part != 0 {
			t.Errorf("lean %g: a part and the rest are not the whole", lean)
		}
	}
}
