package profile

import (
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// Costs holds what a pilot measured: seconds a unit of work (op.Work.FLOPs for
// compute, op.Volume for the rest) in each space, so that shapes can be chosen
// by how long they will take.
type Costs []units.Seconds

// size is the quantity that a call's time grows with.
func size(s op.Shape) float64 {
	if v := op.Volume(s); v > 0 {
		return float64(v)
	}
	return float64(s.Work().FLOPs)
}

// callsAPoint is about how many calls a point of long calls costs in all:
// warm-up, estimate and samples.
const callsAPoint = 8

// overhead is what a point costs besides its samples: inputs, warm-up, the
// journal. Only an expectation, used to choose.
const overhead = units.Seconds(0.008)

// The number of points a family gets: below the first a law with a hold-out
// cannot be judged, beyond the second the time is better spent on longer calls.
const (
	fewest = 10
	most   = 120
)

// The time for one point: with less than the first a median means little, more
// than the second buys nothing (nvbench's 5 s is for noise that a good point
// never meets).
const (
	leastPointTime = units.Seconds(0.02)
	mostPointTime  = units.Seconds(5)
)

// aims splits a budget into a number of points and the time for one: twelve
// points a second while that is fewer than `most` a family, the rest into time.
//
// The error names the budget that would suffice.
func aims(families int, budget units.Seconds) (points int, each units.Seconds, err error) {
	points = min(max(int(12*budget), fewest*families), most*families)
	each = min(budget/units.Seconds(points)-overhead, mostPointTime)
	if each < leastPointTime {
		need := units.Seconds(fewest*families) * (leastPointTime + overhead)
		return 0, 0, fmt.Errorf("a budget of %s is too short for %d families of shapes: pass --budget %ds or more, or --only to measure fewer ops", budget, families, int(need)+1)
	}
	return points, each, nil
}

// choose picks `n` shapes of a space whose calls take at most `longest`
// seconds by the pilot's rate. The places are a Latin hypercube (McKay et al.
// 1979) on logarithmic axes, so that every axis is covered evenly however few
// the points; the shapes are distinct.
//
// It returns fewer when the space does not hold n distinct shapes short enough.
func choose(sp Space, n int, rate, longest units.Seconds, r *rand.Rand) []op.Shape {
	var shapes []op.Shape
	seen := map[string]bool{}
	for round := 0; len(shapes) < n && round < 8; round++ {
		for _, u := range latinHypercube(n, sp.Dims, r) {
			s := shorten(sp, u, rate, longest)
			if s == nil || len(shapes) == n {
				continue
			}
			data, err := op.Encode(s)
			if err != nil || seen[string(data)] {
				continue
			}
			seen[string(data)] = true
			shapes = append(shapes, s)
		}
	}
	return shapes
}

// shorten walks from a place towards the small corner until the call is short
// enough: the hypercube's large corner is beyond any budget, and dropping its
// points would leave the range just below the limit empty, which is where the
// planner's shapes are.
func shorten(sp Space, u []float64, rate, longest units.Seconds) op.Shape {
	for f := 1.0; f > 0.02; f *= 0.93 {
		v := make([]float64, len(u))
		for i := range u {
			v[i] = u[i] * f
		}
		if s := sp.Make(v); units.Seconds(size(s))*rate <= longest {
			return s
		}
	}
	return nil
}

func latinHypercube(n, dims int, r *rand.Rand) [][]float64 {
	places := make([][]float64, n)
	for i := range places {
		places[i] = make([]float64, dims)
	}
	for d := range dims {
		for i, cell := range r.Perm(n) {
			places[i][d] = (float64(cell) + r.Float64()) / float64(n)
		}
	}
	return places
}

// plan chooses the points of all spaces so that measuring them takes about
// `budget`, in a shuffled order, so that drift of the machine is not confounded
// with size.
func plan(spaces []Space, costs Costs, points int, each, budget units.Seconds, r *rand.Rand) []Spot {
	counts := shares(spaces, points)
	total := 0
	for _, n := range counts {
		total += n
	}
	var spots []Spot
	for i, sp := range spaces {
		part := budget * units.Seconds(float64(counts[i])/float64(total))
		for _, s := range fill(sp, counts[i], costs[i], each, part, r.Uint64()) {
			spots = append(spots, NewSpot(sp.On, s))
		}
	}
	r.Shuffle(len(spots), func(i, j int) { spots[i], spots[j] = spots[j], spots[i] })
	return spots
}

// shares splits a number of points among the spaces.
func shares(spaces []Space, points int) []int {
	total := 0.0
	for _, sp := range spaces {
		total += sp.Share
	}
	counts := make([]int, len(spaces))
	for i, sp := range spaces {
		counts[i] = min(max(fewest, int(float64(points)*sp.Share/total)), most)
	}
	return counts
}

// fill chooses n shapes of a space whose longest call is as long as the
// space's part of the budget allows, by bisection: a planner asks for large
// shapes, so the range should reach as far as there is time for.
func fill(sp Space, n int, rate, each, part units.Seconds, seed uint64) []op.Shape {
	at := func(longest units.Seconds) []op.Shape {
		return choose(sp, n, rate, longest, rand.New(rand.NewPCG(seed, 0)))
	}
	lo, hi := units.Seconds(1e-3), 5*each+part/callsAPoint
	best := at(lo)
	for range 12 {
		mid := units.Seconds(math.Sqrt(float64(lo * hi)))
		if shapes := at(mid); pointsTime(shapes, rate, each) <= part {
			best, lo = shapes, mid
		} else {
			hi = mid
		}
	}
	return best
}

func pointsTime(shapes []op.Shape, rate, each units.Seconds) units.Seconds {
	var t units.Seconds
	for _, s := range shapes {
		t += overhead + max(each, callsAPoint*units.Seconds(size(s))*rate)
	}
	return t
}

// LogScale maps 0..1 to min..max, evenly in the logarithm and rounded to whole
// numbers: the axis of a Space.
func LogScale(u, min, max float64) float64 {
	return math.Round(min * math.Pow(max/min, u))
}
