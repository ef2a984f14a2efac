package stats

import (
	"fmt"
	"math"

	"gonum.org/v1/gonum/mat"
)

// SandwichVariance returns the variances of the coefficients of unconstrained
// least squares, one a column, that hold whether or not all rows are equally
// noisy: the jackknife-like HC3 of MacKinnon and White (Journal of Econometrics
// 29, 1985), sum over rows of (pinv[j,i] r_i / (1 - h_i))^2 with leverage h_i.
// Long and Ervin (The American Statistician 54, 2000) recommend it for fewer
// than 250 rows.
//
// A is m x n, residuals (for a robust fit: clipped ones) have length m and the
// unit of b. A column that A does not determine has the variance of its minimum-
// norm solution, which says nothing: see [LinearCovariance]. The error names an
// entry that is not finite. It panics if the sizes do not fit.
func SandwichVariance(a mat.Matrix, residuals []float64) ([]float64, error) {
	m, n := a.Dims()
	if m != len(residuals) {
		panic(fmt.Sprintf("stats: SandwichVariance: A has %d rows, residuals %d", m, len(residuals)))
	}
	if err := checkFinite(a, residuals); err != nil {
		return nil, err
	}
	unit, norms := unitColumns(a)
	var svd mat.SVD
	if !svd.Factorize(unit, mat.SVDThin) {
		return nil, fmt.Errorf("stats: SandwichVariance: the singular values did not converge")
	}
	var u, v mat.Dense
	svd.UTo(&u)
	svd.VTo(&v)
	values := svd.Values(nil)
	variances := make([]float64, n)
	for i, r := range residuals {
		leverage := 0.0
		for k, s := range values {
			if s > values[0]*rankTolerance {
				leverage += u.At(i, k) * u.At(i, k)
			}
		}
		r /= max(1-leverage, leastFreedom)
		for j := range n {
			pinv := 0.0
			for k, s := range values {
				if s > values[0]*rankTolerance {
					pinv += v.At(j, k) * u.At(i, k) / s
				}
			}
			variances[j] += math.Pow(pinv*r/norms[j], 2)
		}
	}
	return variances, nil
}

// leastFreedom keeps a row that determines a coefficient alone (leverage 1,
// residual 0) from dividing by zero.
const leastFreedom = 1e-6
