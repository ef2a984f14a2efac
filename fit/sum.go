package fit

import (
	"math"

	"gonum.org/v1/gonum/mat"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/stats"
)

// costSum is a fitted sum of non-negative costs: point i takes about
// sum_j coefs[j] rows[i,j] seconds.
type costSum struct {
	rows    *mat.Dense // points x coefficients
	y       []float64  // measured, s
	coefs   []float64
	fitted  []float64 // predicted, s
	resid   []float64 // log(measured/predicted)
	weights []float64 // Huber's, in (0, 1]
}

const (
	// maxRounds ends an iteration whose weights still flutter; most settle in ten.
	maxRounds = 40
	// settled is the movement of a prediction, in log, that counts as none.
	settled = 1e-7
	// huber is the threshold in robust standard deviations that costs 5 % of
	// efficiency when there are no outliers (Huber 1981).
	huber = 1.345
	// firstThreshold is used before the scale of the residuals is known.
	firstThreshold = 0.1
	// leastScale keeps points that fit exactly from getting infinite weight.
	leastScale = 1e-4
)

// fitSum minimises Huber's loss of log(measured/predicted) over coefficients
// >= 0, by Gauss-Newton: with p the last prediction of a point, its row is
// divided by p and its target is 1 + log(measured/p). Dividing by the measured
// time instead (one step, no iteration) would reward predicting too little, by
// about the square of the misfit.
func fitSum(rows *mat.Dense, y []float64) (*costSum, error) {
	n, _ := rows.Dims()
	s := &costSum{rows: rows, y: y, fitted: append([]float64(nil), y...), resid: make([]float64, n)}
	threshold := firstThreshold
	for round := range maxRounds {
		if err := s.solve(threshold); err != nil {
			return nil, err
		}
		if moved := s.step(); round > 2 && moved < settled {
			break
		}
		threshold = max(huber*stats.RobustScale(s.resid), leastScale)
	}
	return s, nil
}

// solve takes one step of both iterations at once, Gauss-Newton's and that of
// Huber's weights: the row and target of each point are scaled by the root of
// the weight that its last residual deserves.
func (s *costSum) solve(threshold float64) error {
	n, columns := s.rows.Dims()
	a, b := mat.NewDense(n, columns, nil), make([]float64, n)
	s.weights = make([]float64, n)
	for i := range n {
		s.weights[i] = min(1, threshold/max(math.Abs(s.resid[i]), leastScale*leastScale))
		root := math.Sqrt(s.weights[i])
		for j, v := range s.rows.RawRowView(i) {
			a.Set(i, j, root*v/s.fitted[i])
		}
		b[i] = root * (1 + s.resid[i])
	}
	var err error
	s.coefs, err = stats.NNLS(a, b)
	return err
}

// step moves the predictions to the new coefficients and says how far the
// farthest moved. None falls below a tenth at once: the logarithm is linear
// only nearby.
func (s *costSum) step() (moved float64) {
	for i := range s.fitted {
		p := max(s.at(s.rows.RawRowView(i)), s.fitted[i]/10)
		moved = max(moved, math.Abs(math.Log(p/s.fitted[i])))
		s.fitted[i], s.resid[i] = p, math.Log(s.y[i]/p)
	}
	return moved
}

// at is the cost of a row of features.
func (s *costSum) at(row []float64) float64 {
	t := 0.0
	for j, v := range row {
		t += s.coefs[j] * v
	}
	return t
}

// intervals are 95 % intervals around the constrained fit, cut at zero;
// conservative where a coefficient was held at zero. Their variance is the
// larger of Huber's (1981, section 7.6: all points equally noisy) and the
// sandwich's (not so: long calls have fewer samples). With 2 % of noise the
// first alone covered the truth in 92 % of cases, the two together in 97 %.
//
// No coefficient can exceed what the point it costs most would take if nothing
// else cost anything, which bounds those that the points do not determine.
func (s *costSum) intervals() ([]costmodel.Coef, error) {
	n, columns := s.rows.Dims()
	a := mat.NewDense(n, columns, nil)
	ones := make([]float64, n)
	for i := range n {
		ones[i] = 1
		for j, v := range s.rows.RawRowView(i) {
			a.Set(i, j, v/s.fitted[i])
		}
	}
	psi, scale := s.influence()
	cov, err := stats.LinearCovariance(a, ones, scale)
	if err != nil {
		return nil, err
	}
	sandwich, err := stats.SandwichVariance(a, psi)
	if err != nil {
		return nil, err
	}
	// Few of the points carry a coefficient, so its variance is known less well
	// than n - p residuals suggest; for the sandwich about half as many degrees
	// of freedom is usual (Imbens and Kolesar 2016).
	t := stats.StudentQuantile(0.975, max(1, float64(n-columns)/2))
	ci := make([]costmodel.Coef, columns)
	for j, c := range s.coefs {
		half := t * math.Sqrt(max(cov.Matrix.At(j, j), sandwich[j]))
		ci[j] = costmodel.Coef{Value: c, Lo: max(0, c-half), Hi: max(c, min(c+half, s.most(j, scale)))}
	}
	return ci, nil
}

// influence returns the clipped residuals, scaled so that they vary as the
// estimate does, and the standard deviation of one, with Huber's correction for
// the number of coefficients.
func (s *costSum) influence() (psi []float64, scale float64) {
	n, p := float64(len(s.resid)), float64(len(s.coefs))
	unclipped, sq := 0.0, 0.0
	psi = make([]float64, len(s.resid))
	for i, r := range s.resid {
		psi[i] = s.weights[i] * r
		sq += psi[i] * psi[i]
		if s.weights[i] == 1 {
			unclipped += 1 / n
		}
	}
	unclipped = max(unclipped, 0.1)
	for i := range psi {
		psi[i] /= unclipped
	}
	correction := 1 + p/n*(1-unclipped)/unclipped
	return psi, correction * math.Sqrt(sq/max(1, n-p)) / unclipped
}

// most is the largest value that coefficient j could have, given the residuals'
// scale.
func (s *costSum) most(j int, scale float64) float64 {
	bound := math.Inf(1)
	for i, y := range s.y {
		if v := s.rows.At(i, j); v > 0 {
			bound = min(bound, y*(1+3*scale)/v)
		}
	}
	return bound
}
