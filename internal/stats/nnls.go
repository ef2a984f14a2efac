package stats

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/blas64"
	"gonum.org/v1/gonum/lapack/lapack64"
	"gonum.org/v1/gonum/mat"
)

const (
	// nnlsTolerance is the gradient, relative to unit columns and a unit right-hand
	// side, below which a column no longer helps: some hundred roundings.
	nnlsTolerance = 1e-13
	// dependentColumn is the distance from the span of the chosen columns, as a
	// share of the column's own length, below which a column adds nothing but noise.
	dependentColumn = 1e-10
	// nnlsStepsPerColumn bounds the work. Lawson and Hanson report about one step
	// for half the columns; three a column is their own limit, ours is generous.
	nnlsStepsPerColumn = 30
)

// ErrNoConvergence is wrapped by the errors of fits that ran out of steps.
var ErrNoConvergence = errors.New("no convergence")

// NNLS returns the x >= 0 that minimises |A x - b|, by the active-set method of
// Lawson and Hanson, Solving Least Squares Problems (1974), chapter 23, with a QR
// factorisation per step: our systems have tens of columns, so updating the
// factors would save nothing worth its code.
//
// A is m x n with m and n >= 1, b has length m, x has length n. Columns are scaled
// to unit length internally, so they may differ by many orders of magnitude (a
// launch floor beside a cost a byte). A column of zeros, and one that is a
// combination of others, gets 0 where it cannot improve the fit: which of two equal
// columns carries the coefficient is decided by their order.
//
// The error names an entry that is not finite, or wraps [ErrNoConvergence]. It
// panics if the sizes do not fit.
func NNLS(a mat.Matrix, b []float64) ([]float64, error) {
	m, n := a.Dims()
	if m != len(b) {
		panic(fmt.Sprintf("stats: NNLS: A has %d rows, b %d", m, len(b)))
	}
	if err := checkFinite(a, b); err != nil {
		return nil, err
	}
	scaled, norms := unitColumns(a)
	bNorm := scaledNorm(b)
	if bNorm == 0 {
		return make([]float64, n), nil
	}
	p := newNNLSProblem(scaled, b, bNorm)
	p.room = nnlsRooms.Get().(*nnlsRoom)
	defer nnlsRooms.Put(p.room)
	for range nnlsStepsPerColumn*n + 1 {
		j := p.entering()
		if j < 0 {
			return p.unscaled(norms, bNorm)
		}
		if !p.enter(j) {
			p.blocked[j] = true
		}
	}
	return nil, fmt.Errorf("stats: NNLS of %d x %d: %w after %d steps", m, n, ErrNoConvergence, nnlsStepsPerColumn*n)
}

// nnlsProblem is the state of one solve; everything is in scaled units.
type nnlsProblem struct {
	a       *mat.Dense // m x n, unit columns
	b       []float64  // unit length
	x       []float64  // the feasible point
	passive []int      // columns free to be positive, in the order they entered
	blocked []bool     // columns that could not enter from the current point

	left, gradient *mat.VecDense // of entering
	room           *nnlsRoom
}

func newNNLSProblem(a *mat.Dense, b []float64, bNorm float64) *nnlsProblem {
	_, n := a.Dims()
	unit := make([]float64, len(b))
	for i, v := range b {
		unit[i] = v / bNorm
	}
	return &nnlsProblem{
		a: a, b: unit, x: make([]float64, n), blocked: make([]bool, n),
		left: mat.NewVecDense(len(b), nil), gradient: mat.NewVecDense(n, nil),
	}
}

// entering returns the column at zero whose increase lowers the residual fastest,
// or -1 when none does: the Karush-Kuhn-Tucker conditions hold.
func (p *nnlsProblem) entering() int {
	m, n := p.a.Dims()
	r, w := p.left, p.gradient
	r.MulVec(p.a, mat.NewVecDense(n, p.x))
	r.SubVec(mat.NewVecDense(m, p.b), r)
	w.MulVec(p.a.T(), r)
	best, at := nnlsTolerance, -1
	for j := range n {
		if !p.blocked[j] && !slices.Contains(p.passive, j) && w.AtVec(j) > best {
			best, at = w.AtVec(j), j
		}
	}
	return at
}

// enter frees column j and moves to the best feasible point on the way to the new
// unconstrained optimum. It reports false, changing nothing, if rounding makes j
// enter downwards or j depends on the columns already free; trying such a column
// again from the same point would cycle for ever.
func (p *nnlsProblem) enter(j int) bool {
	old := p.passive
	p.passive = append(slices.Clone(old), j)
	z, independent := p.solvePassive()
	if !independent || z[len(z)-1] <= 0 {
		p.passive = old
		return false
	}
	for slices.Min(z) <= 0 {
		p.stepTowards(z)
		if len(p.passive) == 0 {
			break
		}
		z, _ = p.solvePassive()
	}
	for k, c := range p.passive {
		p.x[c] = z[k]
	}
	clear(p.blocked)
	return true
}

// stepTowards moves x towards z until the first coefficient reaches zero, and
// takes those at zero out of the passive set.
func (p *nnlsProblem) stepTowards(z []float64) {
	alpha, first := math.Inf(1), -1
	for k, c := range p.passive {
		if z[k] <= 0 {
			if t := p.x[c] / floorPositive(p.x[c]-z[k]); t < alpha {
				alpha, first = t, c
			}
		}
	}
	kept := p.passive[:0]
	for k, c := range p.passive {
		p.x[c] += alpha * (z[k] - p.x[c])
		if c == first || p.x[c] <= 0 {
			p.x[c] = 0
		} else {
			kept = append(kept, c)
		}
	}
	p.passive = kept
}

// solvePassive returns the unconstrained least-squares coefficients of the passive
// columns, and whether the last of them is independent of the others: |R_kk| is its
// distance from their span. It calls LAPACK as [mat.QR] does, which would take as long
// again over copies and a condition number that is not asked for.
func (p *nnlsProblem) solvePassive() (z []float64, independent bool) {
	m, _ := p.a.Dims()
	k := len(p.passive)
	if k > m {
		return nil, false
	}
	qr := blas64.General{Rows: m, Cols: k, Stride: k, Data: sized(&p.room.qr, m*k)}
	for i := range m {
		row := p.a.RawRowView(i)
		for c, j := range p.passive {
			qr.Data[i*k+c] = row[j]
		}
	}
	tau := sized(&p.room.tau, k)
	p.room.lapack(func(work []float64, n int) { lapack64.Geqrf(qr, tau, work, n) })
	if math.Abs(qr.Data[(k-1)*k+k-1]) < dependentColumn {
		return nil, false
	}
	right := blas64.General{Rows: m, Cols: 1, Stride: 1, Data: sized(&p.room.right, m)}
	copy(right.Data, p.b)
	p.room.lapack(func(work []float64, n int) { lapack64.Ormqr(blas.Left, blas.Trans, qr, tau, right, work, n) })
	r := blas64.Triangular{Uplo: blas.Upper, Diag: blas.NonUnit, N: k, Stride: k, Data: qr.Data}
	if !lapack64.Trtrs(blas.NoTrans, r, right) { // exactly singular
		return nil, false
	}
	return slices.Clone(right.Data[:k]), true
}

// nnlsRoom is what solvePassive works in. LAPACK asks for more of it than most
// systems are large, and to clear that for each took longer than to solve them.
type nnlsRoom struct{ qr, tau, right, work []float64 }

var nnlsRooms = sync.Pool{New: func() any { return &nnlsRoom{} }}

// lapack calls f with as much room to work in as it asks for.
func (r *nnlsRoom) lapack(f func(work []float64, n int)) {
	var most [1]float64
	f(most[:], -1)
	work := sized(&r.work, int(most[0]))
	f(work, len(work))
}

// sized makes a slice of a length of one that holds anything.
func sized(s *[]float64, n int) []float64 {
	if cap(*s) < n {
		*s = make([]float64, n)
	}
	return (*s)[:n]
}

// unscaled returns the solution in the caller's units.
func (p *nnlsProblem) unscaled(norms []float64, bNorm float64) ([]float64, error) {
	for j, norm := range norms {
		if norm > 0 {
			p.x[j] *= bNorm / norm
		}
	}
	if j := indexNotFinite(p.x); j >= 0 {
		return nil, fmt.Errorf("stats: NNLS: coefficient %d overflows; bring the column nearer to the right-hand side's unit", j)
	}
	return p.x, nil
}

// unitColumns returns a copy of a with columns of unit length, and the lengths; a
// column of zeros stays one.
func unitColumns(a mat.Matrix) (*mat.Dense, []float64) {
	m, n := a.Dims()
	scaled := mat.DenseCopyOf(a)
	norms := make([]float64, n)
	col := make([]float64, m)
	for j := range n {
		mat.Col(col, j, a)
		norms[j] = scaledNorm(col)
		if norms[j] > 0 {
			for i := range col {
				col[i] /= norms[j]
			}
			scaled.SetCol(j, col)
		}
	}
	return scaled, norms
}

// scaledNorm is the Euclidean length without overflow or underflow of the squares.
func scaledNorm(x []float64) float64 { return mat.Norm(mat.NewVecDense(len(x), x), 2) }

func checkFinite(a mat.Matrix, b []float64) error {
	m, n := a.Dims()
	for j := range n {
		for i := range m {
			if v := a.At(i, j); math.IsNaN(v) || math.IsInf(v, 0) {
				return fmt.Errorf("stats: A[%d][%d] = %v, want a finite number", i, j, v)
			}
		}
	}
	if i := indexNotFinite(b); i >= 0 {
		return fmt.Errorf("stats: b[%d] = %v, want a finite number", i, b[i])
	}
	return nil
}
