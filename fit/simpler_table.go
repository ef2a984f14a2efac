package fit

import (
	"errors"
	"math"
	"slices"

	"gonum.org/v1/gonum/mat"

	"github.com/evenkeel/evenkeel/costmodel/op"
)

// tableForm names the tables of measured times that most planners carry.
const tableForm = "log-log table"

// interpolated reads a table of shapes as planners do at their best: through
// the measured shapes nearest to the one asked for runs a plane in log-log,
// weighted by the inverse square of their distance in octaves; beyond the table
// the rate of work is that of the table's edge.
func interpolated(points []Point) (func(op.Shape) float64, error) {
	if len(points) == 0 {
		return nil, errors.New("no points")
	}
	t := &shapeTable{}
	for i, p := range points {
		at := octaves(p.Shape)
		t.places, t.rates = append(t.places, at), append(t.rates, math.Log(p.Seconds/size(p.Shape)))
		if i == 0 {
			t.lo, t.hi = slices.Clone(at), slices.Clone(at)
		}
		for a, v := range at {
			t.lo[a], t.hi[a] = min(t.lo[a], v), max(t.hi[a], v)
		}
	}
	return func(s op.Shape) float64 {
		at := octaves(s)
		for a := range at {
			at[a] = max(t.lo[a], min(at[a], t.hi[a]))
		}
		return size(s) * math.Exp(t.rate(at))
	}, nil
}

// shapeTable is a table of log(time/work) by the octaves of the shape's axes,
// with the range of each axis.
type shapeTable struct {
	places [][]float64
	rates  []float64
	lo, hi []float64
}

// neighbour is a point of a table and the square of its distance in octaves.
type neighbour struct {
	apart float64
	point int
}

// rate is the plane through the nearest points, at a place. A slope that they
// do not determine stays near zero by a small ridge.
func (t *shapeTable) rate(at []float64) float64 {
	const soft, ridge = 0.01, 0.05
	n := len(at)
	normal, right := mat.NewSymDense(n+1, nil), mat.NewVecDense(n+1, nil)
	row := make([]float64, n+1)
	for _, x := range t.nearest(at) {
		row[n] = 1
		for a, v := range t.places[x.point] {
			row[a] = v - at[a]
		}
		weight := 1 / (x.apart + soft)
		for i, v := range row {
			right.SetVec(i, right.AtVec(i)+weight*v*t.rates[x.point])
		}
		normal.SymRankOne(normal, weight, mat.NewVecDense(n+1, row))
	}
	for a := range n {
		normal.SetSym(a, a, normal.At(a, a)+ridge)
	}
	var chol mat.Cholesky
	var plane mat.VecDense
	if !chol.Factorize(normal) || chol.SolveVecTo(&plane, right) != nil {
		return right.AtVec(n) / normal.At(n, n) // the weighted mean
	}
	return plane.AtVec(n)
}

// nearest finds the points nearest to a place, by rising distance, the earlier
// first where two are equally far: three to an axis, which a plane needs.
func (t *shapeTable) nearest(at []float64) []neighbour {
	most := 3 * len(at)
	found := make([]neighbour, 0, most+1)
	for i, y := range t.places {
		limit := math.Inf(1)
		if len(found) == most {
			limit = found[most-1].apart
		}
		apart := 0.0
		for a := 0; a < len(at) && apart < limit; a++ {
			apart += (at[a] - y[a]) * (at[a] - y[a])
		}
		if apart >= limit {
			continue
		}
		k := len(found)
		for k > 0 && found[k-1].apart > apart {
			k--
		}
		found = slices.Insert(found, k, neighbour{apart, i})
		found = found[:min(len(found), most)]
	}
	return found
}

// size is the work that a table scales its times by.
func size(s op.Shape) float64 {
	if w := s.Work(); w.FLOPs > 0 {
		return float64(w.FLOPs)
	}
	return float64(op.Volume(s))
}

func octaves(s op.Shape) []float64 {
	at := s.(op.Located).Coords()
	x := make([]float64, len(at))
	for i, v := range at {
		x[i] = math.Log2(max(v, 1))
	}
	return x
}
