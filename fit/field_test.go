package fit

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"gonum.org/v1/gonum/mat"

	"github.com/evenkeel/evenkeel/costmodel"
)

// randomGrid is a lattice of up to three axes of up to five nodes.
func randomGrid(rng *rand.Rand) *grid {
	var axes [][]float64
	var lengths []float64
	for range 1 + rng.IntN(3) {
		nodes, x := []float64(nil), 4*rng.Float64()
		for range 1 + rng.IntN(5) {
			nodes = append(nodes, x)
			x += 0.3 + rng.Float64()
		}
		axes, lengths = append(axes, nodes), append(lengths, 0.5+5*rng.Float64())
	}
	return newGrid(axes, lengths, 0.01+rng.Float64())
}

// covariance between two nodes by its definition, without the product's form.
func (g *grid) covariance(i, j int, lengths []float64) float64 {
	c, x, y := g.amp, g.at(i), g.at(j)
	for a := range x {
		c *= math.Exp(-math.Abs(x[a]-y[a]) / lengths[a])
	}
	return c
}

// lengthsOf reads the correlation lengths back from neighbouring nodes; an axis
// of one node has none.
func lengthsOf(g *grid) []float64 {
	lengths := make([]float64, len(g.axes))
	for a, nodes := range g.axes {
		lengths[a] = 1
		if len(nodes) > 1 {
			lengths[a] = -(nodes[1] - nodes[0]) / math.Log(g.decays[a][1])
		}
	}
	return lengths
}

// One sweep an axis is the product with the whole covariance matrix.
func TestSmoothIsTheCovarianceMatrix(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for range 200 {
		g := randomGrid(rng)
		lengths, v := lengthsOf(g), make([]float64, g.size)
		for i := range v {
			v[i] = rng.NormFloat64()
		}
		want := make([]float64, g.size)
		for i := range want {
			for j, x := range v {
				want[i] += g.covariance(i, j, lengths) * x
			}
		}
		g.smooth(v, make([]float64, g.size))
		for i := range v {
			if math.Abs(v[i]-want[i]) > 1e-9*(1+math.Abs(want[i])) {
				t.Fatalf("node %d of %v: %v, want %v", i, g.axes, v[i], want[i])
			}
		}
	}
}

// The corners of a place weigh it: they add up to one and to the place itself,
// and a node has one corner.
func TestCornersAreThePlace(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		g := randomGrid(rng)
		x := make([]float64, len(g.axes))
		for a, nodes := range g.axes {
			first, last := nodes[0], nodes[len(nodes)-1]
			x[a] = first + (last-first)*rng.Float64()
		}
		c := g.around(x)
		sum, mean := 0.0, make([]float64, len(x))
		for k, at := range c.at {
			sum += c.weight[k]
			for a, v := range g.at(int(at)) {
				mean[a] += c.weight[k] * v
			}
		}
		for a := range x {
			if math.Abs(mean[a]-x[a]) > 1e-9 {
				t.Fatalf("corners of %v lie around %v", x, mean)
			}
		}
		if math.Abs(sum-1) > 1e-12 {
			t.Fatalf("weights of %v add up to %v", x, sum)
		}
		node := rng.IntN(g.size)
		if c := g.around(g.at(node)); len(c.at) != 1 || int(c.at[0]) != node || c.weight[0] != 1 {
			t.Fatalf("corners of node %d: %+v", node, c)
		}
	}
}

// dense is what a Gaussian process of the grids' covariance says at points, by
// matrices: K_all,seen (K_seen + noise)^-1 y (Rasmussen and Williams 2006, 2.25).
func dense(t *testing.T, k *kriging, y, noise []float64) []float64 {
	n := len(y)
	full := mat.NewSymDense(n, nil)
	for i := range n {
		for j := i; j < n; j++ {
			full.SetSym(i, j, k.covariance(i, j))
		}
	}
	var seen []int
	for i, v := range noise {
		if !math.IsInf(v, 1) {
			seen = append(seen, i)
		}
	}
	small, right := mat.NewSymDense(len(seen), nil), mat.NewVecDense(len(seen), nil)
	for a, i := range seen {
		right.SetVec(a, y[i])
		for b, j := range seen {
			if b >= a {
				small.SetSym(a, b, full.At(i, j))
			}
		}
		small.SetSym(a, a, small.At(a, a)+noise[i])
	}
	var factors mat.Cholesky
	var alpha mat.VecDense
	if !factors.Factorize(small) {
		t.Fatal("no covariance")
	}
	if err := factors.SolveVecTo(&alpha, right); err != nil {
		t.Fatal(err)
	}
	all := make([]float64, n)
	for i := range all {
		for b, j := range seen {
			all[i] += full.At(i, j) * alpha.AtVec(b)
		}
	}
	return all
}

// covariance between two points: of the fields' interpolations from their nodes.
func (k *kriging) covariance(i, j int) float64 {
	sum := 0.0
	for n, g := range k.grids {
		lengths := lengthsOf(g)
		from, to := k.places[n].of(i), k.places[n].of(j)
		for a, p := range from.at {
			for b, q := range to.at {
				sum += from.weight[a] * to.weight[b] * g.covariance(int(p), int(q), lengths)
			}
		}
	}
	return sum
}

// Conjugate gradients on lattices find what dense matrices do, also at points
// that are held out.
func TestKrigingIsAGaussianProcess(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 3))
	for round := range 60 {
		grids := []*grid{randomGrid(rng)}
		for range rng.IntN(3) {
			grids = append(grids, randomGrid(rng))
		}
		n := 1 + rng.IntN(14)
		coords := make([][][]float64, len(grids))
		y, noise := make([]float64, n), make([]float64, n)
		for i := range n {
			y[i], noise[i] = rng.NormFloat64(), 0.01+rng.Float64()
			if i > 0 && rng.IntN(4) == 0 {
				noise[i] = math.Inf(1)
			}
			for g, gr := range grids {
				x := make([]float64, len(gr.axes))
				for a, nodes := range gr.axes {
					x[a] = nodes[0] - 0.5 + (nodes[len(nodes)-1]-nodes[0]+1)*rng.Float64()
				}
				coords[g] = append(coords[g], x)
			}
		}
		k, alpha := newKriging(grids, coords), make([]float64, n)
		for i := range alpha {
			alpha[i] = rng.NormFloat64() // wherever it starts from
		}
		if err := k.solve(alpha, y, noise, 1e-12, 1000); err != nil {
			t.Fatal(err)
		}
		want := dense(t, k, y, noise)
		for i := range n {
			if got := k.at(i); math.Abs(got-want[i]) > 1e-6 {
				t.Errorf("round %d, point %d of %d (noise %v): %v, want %v", round, i, n, noise[i], got, want[i])
			}
		}
	}
}

// nearestRising tries every way to cut a line into blocks of equal values.
func nearestRising(v, weight []float64) []float64 {
	var best []float64
	least := math.Inf(1)
	for cuts := range 1 << (len(v) - 1) {
		fit, loss, from := make([]float64, len(v)), 0.0, 0
		for i := range v {
			if i < len(v)-1 && cuts>>i&1 == 0 {
				continue
			}
			sum, w := 0.0, 0.0
			for k := from; k <= i; k++ {
				sum, w = sum+v[k]*weight[k], w+weight[k]
			}
			for k := from; k <= i; k++ {
				fit[k] = sum / w
				loss += weight[k] * (v[k] - fit[k]) * (v[k] - fit[k])
			}
			from = i + 1
		}
		if loss < least && slices.IsSorted(fit) {
			best, least = fit, loss
		}
	}
	return best
}

func TestIsotonicIsTheNearestRisingLine(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 4))
	for range 500 {
		n := 1 + rng.IntN(9)
		v, weight := make([]float64, n), make([]float64, n)
		for i := range v {
			v[i], weight[i] = float64(rng.IntN(7))+0.3*float64(i), 0.02+3*rng.Float64()
		}
		want := nearestRising(v, weight)
		got := slices.Clone(v)
		isotonic(got, weight, nil)
		for i := range got {
			if math.Abs(got[i]-want[i]) > 1e-9 {
				t.Fatalf("%v weighted %v: %v, want %v", v, weight, got, want)
			}
		}
	}
}

// randomRising is a lattice that must rise along some of its axes.
func randomRising(rng *rand.Rand) (*rising, []float64) {
	r := &rising{g: randomGrid(rng)}
	weight := make([]float64, r.g.size)
	for i := range weight {
		r.values = append(r.values, 0.2*rng.NormFloat64())
		weight[i] = 0.02 + rng.Float64()
	}
	for a := range r.g.axes {
		var steps []float64
		if a == 0 || rng.IntN(3) > 0 {
			for range r.g.size {
				steps = append(steps, 0.1*rng.Float64())
			}
		}
		r.steps = append(r.steps, steps)
	}
	return r, weight
}

// fallsMost is the most by which values fall beyond what they may.
func (r *rising) fallsMost(values []float64) float64 {
	most := math.Inf(-1)
	for i := range values {
		for a, steps := range r.steps {
			if before := i - r.g.stride[a]; steps != nil && i/r.g.stride[a]%len(r.g.axes[a]) > 0 {
				most = max(most, values[before]-steps[before]-values[i])
			}
		}
	}
	return most
}

// Dykstra's projections end where every constraint holds, at the nearest such
// values: from there, the way to any other that rise leads away from the start
// (the projection theorem). What rises already stays.
func TestProjectionIsTheNearestThatRises(t *testing.T) {
	sequential(t)
	const enough = 3000
	rng := rand.New(rand.NewPCG(1, 5))
	for range 100 {
		r, weight := randomRising(rng)
		start, kept := slices.Clone(r.values), r.nothingKept()
		for range enough {
			r.turn(weight, kept)
		}
		if over := r.fallsMost(r.values); over > 1e-6 {
			t.Fatalf("falls by %v too much", over)
		}
		for range 20 {
			other := r.someRising(rng)
			leads := 0.0
			for i, v := range r.values {
				leads += weight[i] * (start[i] - v) * (other[i] - v)
			}
			if leads > 1e-5 {
				t.Fatalf("%v to %v: %v is nearer", start, r.values, other)
			}
		}
		once := slices.Clone(r.values)
		r.project(weight)
		for i := range once {
			if math.Abs(r.values[i]-once[i]) > 1e-5 {
				t.Fatalf("projected again, node %d moves from %v to %v", i, once[i], r.values[i])
			}
		}
	}
}

// someRising are values that rise as they must: random ones, each raised to what
// those before it ask for.
func (r *rising) someRising(rng *rand.Rand) []float64 {
	v := make([]float64, len(r.values))
	for i := range v {
		v[i] = r.values[i] + 0.1*rng.NormFloat64()
		for a, steps := range r.steps {
			if before := i - r.g.stride[a]; steps != nil && i/r.g.stride[a]%len(r.g.axes[a]) > 0 {
				v[i] = max(v[i], v[before]-steps[before])
			}
		}
	}
	return v
}

// Counts rise exactly after lifting, none falls, and none is lifted higher than
// some node before it asks for.
func TestLiftMakesCountsRise(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 6))
	for range 300 {
		r, _ := randomRising(rng)
		counts := make(costmodel.NodeValues, r.g.size)
		for i := range counts {
			counts[i] = int16(rng.IntN(2000) - 1000)
		}
		before := slices.Clone(counts)
		r.lift(counts)
		for i, c := range counts {
			asked := before[i]
			for a, steps := range r.steps {
				if steps != nil && i/r.g.stride[a]%len(r.g.axes[a]) > 0 {
					p := i - r.g.stride[a]
					least := counts[p] - int16(math.Floor(steps[p]/fieldStep))
					asked = max(asked, least)
					if c < least {
						t.Fatalf("node %d: %d after %d, may fall by %v", i, c, counts[p], steps[p])
					}
				}
			}
			if c != asked {
				t.Fatalf("node %d is %d, asked for %d", i, c, asked)
			}
		}
	}
}

// Nodes are rising, of the places, both ends among them, no closer than asked
// and no more than there may be.
func TestNodesOfPlaces(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 7))
	for range 200 {
		var places [][]float64
		for range 1 + rng.IntN(300) {
			places = append(places, []float64{float64(rng.IntN(20)), 20 * rng.Float64()})
		}
		thin := []float64{rng.Float64(), rng.Float64()}
		for a, nodes := range nodesOf(places, thin) {
			var all []float64
			for _, x := range places {
				all = append(all, x[a])
			}
			if nodes[0] != slices.Min(all) || nodes[len(nodes)-1] != slices.Max(all) || len(nodes) > mostNodesAnAxis {
				t.Fatalf("%d nodes from %v to %v", len(nodes), nodes[0], nodes[len(nodes)-1])
			}
			for i, x := range nodes {
				if !slices.Contains(all, x) || i > 0 && x < nodes[i-1]+thin[a] {
					t.Fatalf("node %v after %v", x, nodes[max(0, i-1)])
				}
			}
		}
	}
}

// Where nodes have to go those stay that most points lie at or far from others, and
// neither end goes.
func TestNodesAreWhereThePointsAre(t *testing.T) {
	var all []float64
	for i := range 100 { // evenly over ten octaves
		all = append(all, float64(i)/10)
	}
	for i := range 100 { // a hundred times as many over the one around the middle
		for range 10 {
			all = append(all, 5+float64(i)/100)
		}
	}
	slices.Sort(all)
	nodes := telling(all, slices.Compact(slices.Clone(all)), 40)
	middle := 0
	for _, x := range nodes {
		if x >= 5 && x < 6 {
			middle++
		}
	}
	if len(nodes) != 40 || nodes[0] != 0 || nodes[39] != 9.9 || middle < 16 || middle > 30 {
		t.Errorf("%d nodes of 40 in the middle tenth, where nine of ten points are: %v", middle, nodes)
	}
	if got := telling([]float64{0, 1, 1, 2, 3}, []float64{0, 1, 2, 3}, 3); !slices.Equal(got, []float64{0, 1, 3}) {
		t.Errorf("%v: the node with two points should stay", got)
	}
}
