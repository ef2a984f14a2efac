package fit

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"

	"gonum.org/v1/gonum/mat"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/stats"
	"github.com/evenkeel/evenkeel/internal/units"
)

// curveForms are tried from the simplest on.
func curveForms() []form {
	return []form{
		curveForm("alpha_beta", func(p []Point) (*costmodel.Curve, error) { return alphaBeta(p, 1) }),
		curveForm("2-piece alpha_beta", func(p []Point) (*costmodel.Curve, error) { return alphaBeta(p, 2) }),
		curveForm("log_log", logLog),
	}
}

// collectiveForms are those of messages, whose library may change protocols many times.
func collectiveForms() []form {
	return append(curveForms(), curveForm("several-piece alpha_beta", severalPieces))
}

// curveForm is a law over sizes, fitted to points sorted by them.
func curveForm(name string, fit func([]Point) (*costmodel.Curve, error)) form {
	return form{name, func(points []Point) (costmodel.Law, error) {
		points = slices.Clone(points)
		slices.SortStableFunc(points, func(a, b Point) int { return cmp.Compare(op.Volume(a.Shape), op.Volume(b.Shape)) })
		c, err := fit(points)
		return costmodel.Law{Curve: c}, err
	}}
}

// fewestInPiece keeps a piece from being fitted to its own noise.
const fewestInPiece = 4

// mostCuts is how many places of a cut are tried: the time of each grows with
// the points too.
const mostCuts = 64

// alphaBeta fits one or two pieces alpha + beta x, the cut between two points
// by enumeration; pieces need not meet, protocols jump.
func alphaBeta(points []Point, pieces int) (*costmodel.Curve, error) {
	whole, _, err := piece(points)
	if err != nil {
		return nil, err
	}
	if pieces == 1 {
		return &costmodel.Curve{Form: costmodel.AlphaBeta, Pieces: []costmodel.Piece{whole}}, nil
	}
	if len(points) < 2*fewestInPiece {
		return nil, fmt.Errorf("%s: too few for two pieces", units.Count(len(points), "point"))
	}
	var best []costmodel.Piece
	least := math.Inf(1)
	for _, cut := range cutPlaces(points) {
		head, lossHead, err1 := piece(points[:cut])
		tail, lossTail, err2 := piece(points[cut:])
		if err1 != nil || err2 != nil || lossHead+lossTail >= least {
			continue
		}
		tail.From = op.Volume(points[cut].Shape)
		best, least = []costmodel.Piece{head, tail}, lossHead+lossTail
	}
	if best == nil {
		return nil, errors.New("no cut leaves two pieces")
	}
	return &costmodel.Curve{Form: costmodel.AlphaBeta, Pieces: best}, nil
}

// cutPlaces are the points before which a second piece may begin, mostCuts of them at most:
// among thousands of points cuts a few points apart are the same.
func cutPlaces(points []Point) []int {
	var places []int
	step := 1 + len(points)/mostCuts
	for cut := fewestInPiece; cut <= len(points)-fewestInPiece; cut += step {
		if op.Volume(points[cut].Shape) != op.Volume(points[cut-1].Shape) {
			places = append(places, cut)
		}
	}
	return places
}

// piece fits alpha + beta x to points and returns the sum of |log ratio|.
func piece(points []Point) (costmodel.Piece, float64, error) {
	rows := mat.NewDense(len(points), 2, nil)
	for i, p := range points {
		rows.SetRow(i, []float64{1, float64(op.Volume(p.Shape))})
	}
	sum, err := fitSum(rows, seconds(points))
	if err != nil {
		return costmodel.Piece{}, 0, err
	}
	if sum.coefs[0]+sum.coefs[1] <= 0 {
		return costmodel.Piece{}, 0, errors.New("the fit costs nothing")
	}
	ci, err := sum.intervals()
	if err != nil {
		return costmodel.Piece{}, 0, err
	}
	loss := 0.0
	for _, r := range sum.resid {
		loss += math.Abs(r)
	}
	return costmodel.Piece{Alpha: ci[0], Beta: ci[1]}, loss, nil
}

// pointsAKnot is how many points stand behind a knot of a log-log curve, at
// least; more knots than mostKnots would follow the noise of the many points.
const (
	pointsAKnot = 3
	mostKnots   = 40
)

// logLog fits a monotone curve of straight pieces in log-log: the height of the
// first knot and the non-negative rises between knots, by Huber's loss.
func logLog(points []Point) (*costmodel.Curve, error) {
	u := make([]float64, len(points))
	for i, p := range points {
		u[i] = math.Log(float64(op.Volume(p.Shape)))
	}
	at := knotPlaces(u)
	if len(at) < 2 {
		return nil, errors.New("the points have one size only")
	}
	lowest := math.Inf(1)
	for _, p := range points {
		lowest = min(lowest, math.Log(p.Seconds))
	}
	// Heights are taken above one unit below the lowest point, which makes the
	// first one a non-negative coefficient like the rises.
	base := lowest - 1
	a, b := mat.NewDense(len(points), len(at), nil), make([]float64, len(points))
	for i, p := range points {
		b[i] = math.Log(p.Seconds) - base
		a.Set(i, 0, 1)
		for k := 1; k < len(at); k++ {
			a.Set(i, k, min(1, max(0, (u[i]-at[k-1])/(at[k]-at[k-1]))))
		}
	}
	h, err := stats.HuberNNLS(a, b, 0.05)
	if err != nil {
		return nil, err
	}
	c := &costmodel.Curve{Form: costmodel.LogLog}
	height := base
	for k, rise := range h.X {
		height += rise
		c.Knots = append(c.Knots, costmodel.Knot{Bytes: units.Bytes(math.Round(math.Exp(at[k]))), Seconds: units.Seconds(math.Exp(height))})
	}
	return c, nil
}

// knotPlaces spreads knots so that about pointsAKnot points lie between two,
// the first and last on the ends, none closer than a tenth of an octave.
func knotPlaces(sorted []float64) []float64 {
	n := len(sorted)
	pieces := max(1, min(n/pointsAKnot, mostKnots))
	var at []float64
	for k := 0; k <= pieces; k++ {
		x := sorted[k*(n-1)/pieces]
		if len(at) == 0 || x > at[len(at)-1]+0.07 {
			at = append(at, x)
		}
	}
	return at
}

// sizeTable is what planners read a table of times with: straight lines in
// log-log from point to point, on through the last two at the ends. It is a
// form to compare with.
func sizeTable(points []Point) (func(op.Shape) float64, error) {
	points = slices.Clone(points)
	slices.SortStableFunc(points, func(a, b Point) int { return cmp.Compare(op.Volume(a.Shape), op.Volume(b.Shape)) })
	var u, y []float64
	for _, p := range points {
		at := math.Log(float64(max(1, op.Volume(p.Shape))))
		if n := len(u); n > 0 && at == u[n-1] {
			continue
		}
		u, y = append(u, at), append(y, math.Log(p.Seconds))
	}
	if len(u) < 2 {
		return nil, errors.New("the points have one size only")
	}
	return func(s op.Shape) float64 {
		at := math.Log(float64(max(1, op.Volume(s))))
		i, _ := slices.BinarySearch(u, at)
		i = max(1, min(i, len(u)-1))
		return math.Exp(y[i-1] + (at-u[i-1])/(u[i]-u[i-1])*(y[i]-y[i-1]))
	}, nil
}
