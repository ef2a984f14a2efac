package stats

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"gonum.org/v1/gonum/mat"
)

func TestLinearCovarianceAgainstInverse(t *testing.T) {
	rng := rand.New(rand.NewPCG(31, 32))
	for range 200 {
		n := 1 + rng.IntN(4)
		m := n + 1 + rng.IntN(6)
		a, w := mat.NewDense(m, n, nil), make([]float64, m)
		for i := range m {
			w[i] = 0.1 + rng.Float64()
			for j := range n {
				a.Set(i, j, rng.NormFloat64())
			}
		}
		gram, inverse := mat.NewDense(n, n, nil), mat.NewDense(n, n, nil)
		gram.Product(a.T(), mat.NewDiagDense(m, w), a)
		if err := inverse.Inverse(gram); err != nil {
			continue // too near singular for the naive way to be a reference
		}
		c, err := LinearCovariance(a, w, 0.3)
		if err != nil || len(c.Unidentified) != 0 {
			t.Fatalf("unidentified %v, error %v", c.Unidentified, err)
		}
		for i := range n {
			for j := range n {
				if got, want := c.Matrix.At(i, j), 0.09*inverse.At(i, j); !near(got, want, 1e-7) {
					t.Fatalf("entry %d, %d: %v, want %v", i, j, got, want)
				}
			}
		}
	}
}

func TestLinearCovarianceOfStraightLine(t *testing.T) {
	// Textbook: y = p + q*x at x = -1, 0, 1 has var p = s^2/3, var q = s^2/2, no covariance.
	a := mat.NewDense(3, 2, []float64{1, -1, 1, 0, 1, 1})
	c, err := LinearCovariance(a, []float64{1, 1, 1}, 2)
	if err != nil {
		t.Fatal(err)
	}
	if !near(c.Matrix.At(0, 0), 4.0/3, 1e-12) || !near(c.Matrix.At(1, 1), 2, 1e-12) || math.Abs(c.Matrix.At(0, 1)) > 1e-12 {
		t.Errorf("got %v", mat.Formatted(c.Matrix))
	}
}

// TestLinearCovarianceRankDeficiency: columns 1 and 3 are equal up to their unit,
// column 2 is zero, columns 0 and 4 stand alone.
func TestLinearCovarianceRankDeficiency(t *testing.T) {
	rng := rand.New(rand.NewPCG(33, 34))
	a := mat.NewDense(8, 5, nil)
	alone := mat.NewDense(8, 3, nil)
	w := slices.Repeat([]float64{1}, 8)
	for i := range 8 {
		u, v, z := rng.NormFloat64(), rng.NormFloat64(), rng.NormFloat64()
		a.SetRow(i, []float64{u, v, 0, 1e9 * v, 1e-9 * z})
		alone.SetRow(i, []float64{u, v, 1e-9 * z})
	}
	c, err := LinearCovariance(a, w, 1)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(c.Unidentified, []int{1, 2, 3}) {
		t.Fatalf("unidentified %v, want 1, 2, 3", c.Unidentified)
	}
	reference, err := LinearCovariance(alone, w, 1)
	if err != nil || len(reference.Unidentified) > 0 {
		t.Fatalf("reference: %v, %v", reference.Unidentified, err)
	}
	for _, e := range []struct{ got, want float64 }{
		{c.Matrix.At(0, 0), reference.Matrix.At(0, 0)},
		{c.Matrix.At(0, 4), reference.Matrix.At(0, 2)},
		{c.Matrix.At(4, 4), reference.Matrix.At(2, 2)},
	} {
		if math.Abs(e.got/e.want-1) > 1e-6 {
			t.Errorf("identified entry %v, want %v", e.got, e.want)
		}
	}
	for _, j := range c.Unidentified {
		if !math.IsInf(c.Matrix.At(j, j), 1) || c.Matrix.At(0, j) != 0 {
			t.Errorf("column %d: variance %v, covariance %v", j, c.Matrix.At(j, j), c.Matrix.At(0, j))
		}
	}
}

func TestLinearCovarianceFewRows(t *testing.T) {
	// One row cannot tell two coefficients apart; a zero weight removes a row.
	for _, w := range [][]float64{{1}, {1, 0}} {
		a := mat.NewDense(len(w), 2, nil)
		for i := range w {
			a.SetRow(i, []float64{1, float64(i + 1)})
		}
		c, err := LinearCovariance(a, w, 1)
		if err != nil || !slices.Equal(c.Unidentified, []int{0, 1}) {
			t.Errorf("weights %v: unidentified %v, error %v", w, c.Unidentified, err)
		}
	}
	zero, err := LinearCovariance(mat.NewDense(2, 1, nil), []float64{1, 1}, 1)
	if err != nil || !slices.Equal(zero.Unidentified, []int{0}) {
		t.Errorf("zero matrix: unidentified %v, error %v", zero.Unidentified, err)
	}
}

// TestLinearCovarianceIsTheSpreadOfFits repeats a fit with fresh noise and compares
// the spread of its coefficients with the stated one.
func TestLinearCovarianceIsTheSpreadOfFits(t *testing.T) {
	rng := rand.New(rand.NewPCG(35, 36))
	const rounds, m = 4000, 6
	a := mat.NewDense(m, 2, []float64{1, 1, 1, 2, 1, 3, 1, 4, 1, 5, 1, 9})
	w := []float64{1, 4, 1, 1, 0.25, 1}
	sum := [2]float64{}
	for range rounds {
		b := make([]float64, m)
		for i := range b {
			b[i] = 0.5 * rng.NormFloat64() // of variance 0.25/w before its row is scaled
		}
		var x mat.VecDense
		if err := x.SolveVec(scaledRows(a, w), mat.NewVecDense(m, b)); err != nil {
			t.Fatal(err)
		}
		sum[0] += x.AtVec(0) * x.AtVec(0)
		sum[1] += x.AtVec(1) * x.AtVec(1)
	}
	c, err := LinearCovariance(a, w, 0.5)
	if err != nil {
		t.Fatal(err)
	}
	for j := range sum {
		// A variance of 4000 draws is good to sqrt(2/4000) = 2.2 %; four of them.
		if got, want := sum[j]/rounds, c.Matrix.At(j, j); math.Abs(got/want-1) > 0.09 {
			t.Errorf("coefficient %d: spread %v, stated %v", j, got, want)
		}
	}
}

func TestLinearCovariancePanics(t *testing.T) {
	a := mat.NewDense(2, 1, []float64{1, 2})
	wantPanic(t, "stats: LinearCovariance: A has 2 rows, weights 1", func() { _, _ = LinearCovariance(a, []float64{1}, 1) })
	wantPanic(t, "stats: LinearCovariance: weights[1] = -1, want >= 0", func() { _, _ = LinearCovariance(a, []float64{1, -1}, 1) })
	wantPanic(t, "stats: LinearCovariance: scale = NaN, want a finite number >= 0", func() { _, _ = LinearCovariance(a, []float64{1, 1}, math.NaN()) })
	a.Set(0, 0, math.Inf(1))
	if _, err := LinearCovariance(a, []float64{1, 1}, 1); err == nil || err.Error() != "stats: A[0][0] = +Inf, want a finite number" {
		t.Errorf("got %v", err)
	}
}
