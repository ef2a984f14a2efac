package stats

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"gonum.org/v1/gonum/mat"
)

func sumOfSquares(a mat.Matrix, x, b []float64) float64 {
	sum := 0.0
	for _, r := range residuals(a, x, b) {
		sum += r * r
	}
	return sum
}

// bruteNNLS solves the least-squares problem of every set of columns and keeps the
// best that is non-negative. With full column rank that is the optimum.
func bruteNNLS(a *mat.Dense, b []float64) []float64 {
	m, n := a.Dims()
	best, at := math.Inf(1), make([]float64, n)
	for set := range 1 << n {
		x := make([]float64, n)
		var columns []int
		for j := range n {
			if set>>j&1 == 1 {
				columns = append(columns, j)
			}
		}
		if len(columns) > 0 {
			sub := mat.NewDense(m, len(columns), nil)
			for k, j := range columns {
				sub.SetCol(k, mat.Col(nil, j, a))
			}
			var z mat.VecDense
			if err := z.SolveVec(sub, mat.NewVecDense(m, b)); err != nil {
				continue
			}
			for k, j := range columns {
				x[j] = z.AtVec(k)
			}
		}
		if slices.Min(x) >= 0 && sumOfSquares(a, x, b) < best {
			best, at = sumOfSquares(a, x, b), x
		}
	}
	return at
}

// checkKKT verifies optimality without a reference solution: x >= 0, and the
// gradient is zero where x > 0 and does not point downhill where x = 0.
func checkKKT(t *testing.T, a *mat.Dense, x, b []float64) {
	t.Helper()
	r := residuals(a, x, b)
	for j := range x {
		col := mat.Col(nil, j, a)
		w, scale := 0.0, scaledNorm(col)*scaledNorm(b)
		for i := range r {
			w += col[i] * r[i]
		}
		switch {
		case x[j] < 0:
			t.Fatalf("x[%d] = %v < 0", j, x[j])
		case x[j] > 0 && math.Abs(w) > 1e-9*scale:
			t.Fatalf("x[%d] = %v, gradient %v of %v", j, x[j], w, scale)
		case x[j] == 0 && w > 1e-9*scale:
			t.Fatalf("x[%d] = 0 could grow: gradient %v of %v", j, w, scale)
		}
	}
}

func randomProblem(rng *rand.Rand, m, n int) (*mat.Dense, []float64) {
	a, b := mat.NewDense(m, n, nil), make([]float64, m)
	for j := range n {
		// Columns differ by up to twelve orders of magnitude, as a floor in seconds
		// and a count of bytes do.
		unit := math.Pow(10, float64(rng.IntN(13)-6))
		for i := range m {
			a.Set(i, j, unit*rng.NormFloat64())
		}
	}
	for i := range b {
		b[i] = rng.NormFloat64()
	}
	return a, b
}

func TestNNLSAgainstEnumeration(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for range 1500 {
		n := 1 + rng.IntN(6)
		a, b := randomProblem(rng, n+rng.IntN(6), n)
		x, err := NNLS(a, b)
		if err != nil {
			t.Fatal(err)
		}
		checkKKT(t, a, x, b)
		want := bruteNNLS(a, b)
		if got, want := sumOfSquares(a, x, b), sumOfSquares(a, want, b); !near(got, want, 1e-9) {
			t.Fatalf("objective %v, enumeration finds %v", got, want)
		}
		for j := range x {
			if scale := scaledNorm(mat.Col(nil, j, a)); math.Abs(x[j]-want[j])*scale > 1e-6*max(1, want[j]*scale) {
				t.Fatalf("x = %v, enumeration finds %v", x, want)
			}
		}
	}
}

func TestNNLSDegenerate(t *testing.T) {
	rng := rand.New(rand.NewPCG(8, 9))
	for range 300 {
		m, n := 2+rng.IntN(4), 2+rng.IntN(6) // often more columns than rows
		a, b := randomProblem(rng, m, n)
		a.SetCol(rng.IntN(n), make([]float64, m))           // a zero column
		a.SetCol(rng.IntN(n), mat.Col(nil, rng.IntN(n), a)) // a repeated column
		twice := mat.Col(nil, rng.IntN(n), a)               // and its negative,
		for i := range twice {                              // so that nothing at all
			twice[i] *= -2 // bounds either of them
		}
		a.SetCol(rng.IntN(n), twice)
		x, err := NNLS(a, b)
		if err != nil {
			t.Fatalf("%v\n%v", err, mat.Formatted(a))
		}
		checkKKT(t, a, x, b)
	}
}

func TestNNLSNearlyDependentColumns(t *testing.T) {
	rng := rand.New(rand.NewPCG(18, 19))
	for _, gap := range []float64{1e-5, 1e-8, 1e-11, 1e-14} {
		for range 100 {
			a, b := randomProblem(rng, 8, 4)
			c := mat.Col(nil, 0, a)
			for i := range c {
				c[i] *= 1 + gap*rng.NormFloat64()
			}
			a.SetCol(2, c)
			x, err := NNLS(a, b)
			if err != nil {
				t.Fatalf("gap %v: %v", gap, err)
			}
			if best, got := sumOfSquares(a, bruteNNLS(a, b), b), sumOfSquares(a, x, b); got > best*(1+1e-4)+1e-9 && gap >= 1e-8 {
				t.Fatalf("gap %v: objective %v, enumeration finds %v", gap, got, best)
			}
		}
	}
}

func TestNNLSSimple(t *testing.T) {
	a := mat.NewDense(3, 2, []float64{1, 0, 0, 1, 0, 0})
	for _, c := range []struct{ b, want []float64 }{
		{[]float64{2, 3, 9}, []float64{2, 3}},
		{[]float64{2, -3, 9}, []float64{2, 0}},
		{[]float64{-2, -3, 9}, []float64{0, 0}},
		{[]float64{0, 0, 0}, []float64{0, 0}},
		{[]float64{1e-300, 2e-300, 0}, []float64{1e-300, 2e-300}},
		{[]float64{1e300, 2e300, 0}, []float64{1e300, 2e300}},
	} {
		x, err := NNLS(a, c.b)
		if err != nil {
			t.Fatal(err)
		}
		for j := range x {
			if math.Abs(x[j]-c.want[j]) > 1e-12*c.want[j] {
				t.Errorf("NNLS(I, %v) = %v, want %v", c.b, x, c.want)
			}
		}
	}
}

func TestNNLSErrors(t *testing.T) {
	a := mat.NewDense(2, 2, []float64{1, 2, 3, math.NaN()})
	if _, err := NNLS(a, []float64{1, 2}); err == nil || err.Error() != "stats: A[1][1] = NaN, want a finite number" {
		t.Errorf("got %v", err)
	}
	if _, err := NNLS(mat.NewDense(1, 1, []float64{1}), []float64{math.Inf(1)}); err == nil || err.Error() != "stats: b[0] = +Inf, want a finite number" {
		t.Errorf("got %v", err)
	}
	_, err := NNLS(mat.NewDense(1, 1, []float64{1e-200}), []float64{1e200})
	if want := "stats: NNLS: coefficient 0 overflows; bring the column nearer to the right-hand side's unit"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %v", err, want)
	}
	if errors.Is(err, ErrNoConvergence) {
		t.Error("an overflow is called no convergence")
	}
	wantPanic(t, "stats: NNLS: A has 2 rows, b 1", func() { _, _ = NNLS(a, []float64{1}) })
}

// lawProblem makes times of a law with three positive terms, 0.5 % noise, and every
// tenth sample slowed down by 1.5x to 6x; rows are divided by the time, so that
// residuals are relative.
func lawProblem(rng *rand.Rand, rows int, truth []float64, outliers bool) (*mat.Dense, []float64) {
	a, b := mat.NewDense(rows, len(truth), nil), make([]float64, rows)
	for i := range rows {
		bytes := math.Pow(10, 3+6*rng.Float64())
		terms := []float64{1, bytes, bytes * math.Sqrt(bytes)}
		y := 0.0
		for j, c := range truth {
			y += c * terms[j]
		}
		y *= 1 + 0.005*rng.NormFloat64()
		if outliers && i%10 == 0 {
			y *= 1.5 + 4.5*rng.Float64()
		}
		for j := range truth {
			a.Set(i, j, terms[j]/y)
		}
		b[i] = 1
	}
	return a, b
}

func TestHuberNNLSRecoversTruthUnderOutliers(t *testing.T) {
	truth := []float64{5e-6, 2e-11, 3e-16}
	for seed := range uint64(10) {
		a, b := lawProblem(rand.New(rand.NewPCG(seed, 1)), 600, truth, true)
		fit, err := HuberNNLS(a, b, 1.345*0.005) // Huber's 95 % efficiency at the noise's sigma
		if err != nil {
			t.Fatal(err)
		}
		if !fit.Converged || fit.Rounds < 10 {
			t.Errorf("seed %d: converged %v after %d rounds", seed, fit.Converged, fit.Rounds)
		}
		plain, err := NNLS(a, b)
		if err != nil {
			t.Fatal(err)
		}
		for j := range truth {
			if e := math.Abs(fit.X[j]/truth[j] - 1); e > 0.01 {
				t.Errorf("seed %d: coefficient %d off by %.2f %% (plain least squares: %.2f %%)", seed, j, 100*e, 100*math.Abs(plain[j]/truth[j]-1))
			}
		}
		for i := 0; i < 600; i += 10 {
			if fit.Weights[i] > 0.1 {
				t.Errorf("seed %d: outlier %d has weight %v", seed, i, fit.Weights[i])
			}
		}
	}
}

// TestHuberNNLSIsOptimal checks the optimality conditions of the Huber loss itself:
// psi(r) = clamp(r, -k, k) takes the place of the residual.
func TestHuberNNLSIsOptimal(t *testing.T) {
	rng := rand.New(rand.NewPCG(21, 22))
	for range 100 {
		n := 1 + rng.IntN(4)
		a, b := randomProblem(rng, n+5+rng.IntN(10), n)
		const k = 0.5
		fit, err := HuberNNLS(a, b, k)
		if err != nil {
			t.Fatal(err)
		}
		for j := range n {
			col := mat.Col(nil, j, a)
			g := 0.0
			for i, r := range fit.Residuals {
				g += col[i] * max(-k, min(k, r))
			}
			g /= scaledNorm(col)
			if g > 1e-5 || fit.X[j] > 0 && g < -1e-5 {
				t.Fatalf("x = %v: gradient %d is %v after %d rounds (converged %v)", fit.X, j, g, fit.Rounds, fit.Converged)
			}
		}
	}
}

func TestHuberNNLSWithoutOutliersIsNNLS(t *testing.T) {
	a, b := lawProblem(rand.New(rand.NewPCG(2, 3)), 50, []float64{5e-6, 2e-11, 3e-16}, false)
	fit, err := HuberNNLS(a, b, 1e3)
	if err != nil {
		t.Fatal(err)
	}
	x, err := NNLS(a, b)
	if err != nil || !slices.Equal(fit.X, x) || fit.Rounds != 10 {
		t.Errorf("x = %v after %d rounds, NNLS gives %v (%v)", fit.X, fit.Rounds, x, err)
	}
	if slices.Min(fit.Weights) != 1 {
		t.Errorf("weights below 1: %v", fit.Weights)
	}
	again, err := HuberNNLS(a, b, 1e3)
	if err != nil || !slices.Equal(again.X, fit.X) {
		t.Error("two runs differ")
	}
}

func TestHuberNNLSErrors(t *testing.T) {
	a := mat.NewDense(1, 1, []float64{1})
	if _, err := HuberNNLS(a, []float64{math.NaN()}, 1); err == nil || err.Error() != "round 1: stats: b[0] = NaN, want a finite number" {
		t.Errorf("got %v", err)
	}
	wantPanic(t, "stats: HuberNNLS: k = 0, want a positive threshold", func() { _, _ = HuberNNLS(a, []float64{1}, 0) })
	wantPanic(t, "stats: HuberNNLS: A has 1 rows, b 2", func() { _, _ = HuberNNLS(a, []float64{1, 2}, 1) })
}
