package stats

import (
	"errors"
	"fmt"
	"math"

	"gonum.org/v1/gonum/mat"
)

const (
	// rankTolerance is the singular value of unit columns, relative to the largest,
	// below which a direction counts as not measured.
	rankTolerance = 1e-10
	// nullShare is the part of a coefficient in unmeasured directions from which the
	// coefficient itself counts as not identified. Rounding leaves about 1e-16 divided
	// by the gap between kept and dropped singular values, far below it.
	nullShare = 1e-6
)

// Covariance is the uncertainty of least-squares coefficients.
type Covariance struct {
	// Matrix is n x n: entry (i, j) in the unit of coefficient i times that of
	// coefficient j. The variance of a coefficient that is not identified is +Inf and
	// its covariances are 0, as they are undefined.
	Matrix *mat.SymDense
	// Unidentified lists, ascending, the columns that the rows do not determine.
	Unidentified []int
}

// LinearCovariance returns scale^2 (A' W A)^-1, the covariance of the coefficients
// of weighted least squares without constraints; W is the diagonal of weights >= 0
// and scale the standard deviation of a residual of weight 1. No ridge is added: it
// would turn "not measured" into a small, confident number. Instead the columns
// that A does not determine (zero, repeated, combinations of others, more columns
// than rows) are reported with infinite variance, and all others keep theirs, which
// the pseudo-inverse gives exactly.
//
// A is m x n, weights has length m; scale is finite and >= 0, in the unit of b. The
// error names an entry that is not finite. It panics if sizes do not fit, or a weight
// or the scale is negative or not finite.
func LinearCovariance(a mat.Matrix, weights []float64, scale float64) (Covariance, error) {
	m, _ := a.Dims()
	checkWeights(m, weights, scale)
	if err := checkFinite(a, nil); err != nil {
		return Covariance{}, err
	}
	unit, norms := unitColumns(scaledRows(a, weights))
	var svd mat.SVD
	if !svd.Factorize(unit, mat.SVDFullV) {
		return Covariance{}, errors.New("stats: LinearCovariance: the singular values did not converge")
	}
	var v mat.Dense
	svd.VTo(&v)
	return covarianceFromSVD(svd.Values(nil), &v, norms, scale), nil
}

func checkWeights(m int, weights []float64, scale float64) {
	if m != len(weights) {
		panic(fmt.Sprintf("stats: LinearCovariance: A has %d rows, weights %d", m, len(weights)))
	}
	mustBeFinite("weights", weights)
	for i, w := range weights {
		if w < 0 {
			panic(fmt.Sprintf("stats: LinearCovariance: weights[%d] = %v, want >= 0", i, w))
		}
	}
	if !(scale >= 0) || math.IsInf(scale, 1) {
		panic(fmt.Sprintf("stats: LinearCovariance: scale = %v, want a finite number >= 0", scale))
	}
}

// covarianceFromSVD forms V S^-2 V' over the measured directions, in the caller's
// units. values may be shorter than V is wide: those directions have none.
func covarianceFromSVD(values []float64, v *mat.Dense, norms []float64, scale float64) Covariance {
	n := len(norms)
	rank := 0
	for rank < len(values) && values[rank] > rankTolerance*values[0] {
		rank++
	}
	c := Covariance{Matrix: mat.NewSymDense(n, nil)}
	free := make([]bool, n)
	for j := range n {
		null := mat.Row(nil, j, v)[rank:]
		if norms[j] == 0 || len(null) > 0 && scaledNorm(null) > nullShare {
			free[j] = true
			c.Unidentified = append(c.Unidentified, j)
		}
	}
	for i := range n {
		for j := i; j < n; j++ {
			c.Matrix.SetSym(i, j, covarianceEntry(i, j, free, values[:rank], v, norms, scale))
		}
	}
	return c
}

func covarianceEntry(i, j int, free []bool, values []float64, v *mat.Dense, norms []float64, scale float64) float64 {
	if free[i] || free[j] {
		if i == j {
			return math.Inf(1)
		}
		return 0
	}
	sum := 0.0
	for k, s := range values {
		sum += v.At(i, k) / s * v.At(j, k) / s
	}
	return scale / norms[i] * (scale / norms[j]) * sum
}
