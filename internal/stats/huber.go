package stats

import (
	"fmt"
	"math"

	"gonum.org/v1/gonum/mat"
)

const (
	huberMinRounds = 10
	huberMaxRounds = 200
	// huberTolerance is the largest relative change of a coefficient at which the
	// reweighting has settled; it is far below any measured coefficient's error.
	huberTolerance = 1e-9
)

// HuberFit is the result of [HuberNNLS].
type HuberFit struct {
	// X are the coefficients, all >= 0, one a column of A.
	X []float64
	// Weights are in (0, 1], one a row: 1 inside the threshold, k/|r| beyond it.
	Weights []float64
	// Residuals are b - A X, one a row, in the unit of b.
	Residuals []float64
	// Rounds is the number of weighted fits done.
	Rounds int
	// Converged says that the coefficients had settled when the rounds ended.
	Converged bool
}

// HuberNNLS returns the x >= 0 that minimises the sum of Huber's loss over the
// residuals b - A x: r^2/2 up to |r| = k, k|r| - k^2/2 beyond (Huber, Annals of
// Mathematical Statistics 35, 1964). k > 0 is in the unit of b. The loss is convex,
// so reweighting reaches the one minimum from any start; weights that fall back to
// zero (Tukey's biweight) would depend on the start, and a law must not.
//
// It does at least 10 and at most 200 rounds of [NNLS] with rows scaled by the
// square root of the weights. Ending without having settled is not an error, since
// the fit is then still a good one: see [HuberFit.Converged].
//
// A is m x n, b has length m. The error is that of [NNLS]. It panics if the sizes
// do not fit or k is not positive.
func HuberNNLS(a mat.Matrix, b []float64, k float64) (HuberFit, error) {
	if !(k > 0) {
		panic(fmt.Sprintf("stats: HuberNNLS: k = %v, want a positive threshold", k))
	}
	m, _ := a.Dims()
	fit := HuberFit{Weights: make([]float64, m)}
	for i := range fit.Weights {
		fit.Weights[i] = 1
	}
	for fit.Rounds < huberMaxRounds && (fit.Rounds < huberMinRounds || !fit.Converged) {
		x, err := weightedNNLS(a, b, fit.Weights)
		if err != nil {
			return HuberFit{}, fmt.Errorf("round %d: %w", fit.Rounds+1, err)
		}
		fit.Converged = fit.X != nil && settled(fit.X, x)
		fit.X, fit.Residuals = x, residuals(a, x, b)
		for i, r := range fit.Residuals {
			fit.Weights[i] = math.Min(1, k/floorPositive(math.Abs(r)))
		}
		fit.Rounds++
	}
	return fit, nil
}

func weightedNNLS(a mat.Matrix, b, weights []float64) ([]float64, error) {
	m, _ := a.Dims()
	if m != len(b) {
		panic(fmt.Sprintf("stats: HuberNNLS: A has %d rows, b %d", m, len(b)))
	}
	wb := make([]float64, m)
	for i, w := range weights {
		wb[i] = b[i] * math.Sqrt(w)
	}
	return NNLS(scaledRows(a, weights), wb)
}

// scaledRows returns a with row i times the square root of weights[i].
func scaledRows(a mat.Matrix, weights []float64) *mat.Dense {
	m, n := a.Dims()
	out := mat.NewDense(m, n, nil)
	for i, w := range weights {
		root := math.Sqrt(w)
		for j := range n {
			out.Set(i, j, a.At(i, j)*root)
		}
	}
	return out
}

func residuals(a mat.Matrix, x, b []float64) []float64 {
	var ax mat.VecDense
	ax.MulVec(a, mat.NewVecDense(len(x), x))
	r := make([]float64, len(b))
	for i := range r {
		r[i] = b[i] - ax.AtVec(i)
	}
	return r
}

// settled reports whether no coefficient moved by more than huberTolerance of
// itself. Coefficients are compared one by one, as they differ by many orders of
// magnitude.
func settled(old, x []float64) bool {
	for j := range x {
		if math.Abs(x[j]-old[j]) > huberTolerance*math.Max(x[j], old[j]) {
			return false
		}
	}
	return true
}
