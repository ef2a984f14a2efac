package fit

import (
	"math"

	"gonum.org/v1/gonum/mat"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
)

// gemmEstimate is a robust least-squares problem on the logs of a core's
// coefficients:
//
//	minimise  sum_i rho(log(t_i/measured_i) / s) + sum_j ((theta_j - prior_j)/width_j)^2
//	rho(u)  = 2 (sqrt(1 + u^2) - 1)
//
// solved by Levenberg-Marquardt. A prior one width off weighs as much as a
// point that misses by s.
type gemmEstimate struct {
	core   *costmodel.GEMMCore
	coefs  []costmodel.GEMMCoef // of core
	tile   []int                // whose coefficient it is; -1: of no one tile
	prior  []float64            // logs
	width  []float64
	shapes []op.GEMM
	logs   []float64 // of the measured times

	theta []float64
	plans []costmodel.GEMMPlan // by the last residuals
}

// gemmScale is the error, as a log, from which on a point counts as an outlier.
const gemmScale = 0.05

func newGEMMEstimate(prior *costmodel.GEMMCore, points []Point) *gemmEstimate {
	core := *prior
	core.Tiles = append([]costmodel.GEMMTile(nil), prior.Tiles...)
	e := &gemmEstimate{core: &core, coefs: core.Coefs(), plans: make([]costmodel.GEMMPlan, len(points))}
	for _, c := range e.coefs {
		e.prior = append(e.prior, math.Log(*c.At))
		e.width = append(e.width, gemmWidth(c.Name))
		e.tile = append(e.tile, ownTile(&core, c))
	}
	e.theta = append([]float64(nil), e.prior...)
	for _, p := range points {
		e.shapes = append(e.shapes, p.Shape.(op.GEMM))
		e.logs = append(e.logs, math.Log(p.Seconds))
	}
	return e
}

// ownTile is the menu's tile whose coefficient it is, -1 where it is of all.
func ownTile(core *costmodel.GEMMCore, c costmodel.GEMMCoef) int {
	for i := range core.Tiles {
		if t := &core.Tiles[i]; c.At == &t.Rate || c.At == &t.Crowd {
			return i
		}
	}
	return -1
}

// begin moves the start of one coefficient by a factor.
func (e *gemmEstimate) begin(name string, factor float64) {
	for j, c := range e.coefs {
		if c.Name == name {
			e.theta[j] += math.Log(factor)
		}
	}
}

func (e *gemmEstimate) set(theta []float64) {
	for j, c := range e.coefs {
		*c.At = math.Exp(theta[j])
	}
}

// residuals are log(predicted/measured), and plans the menu's entries in use.
func (e *gemmEstimate) residuals(theta, into []float64) {
	e.set(theta)
	for i, g := range e.shapes {
		plan, t := e.core.Plan(g)
		e.plans[i], into[i] = plan, math.Log(t)-e.logs[i]
	}
}

// cost is what is minimised.
func (e *gemmEstimate) cost(theta, residuals []float64) float64 {
	sum := 0.0
	for _, r := range residuals {
		u := r / gemmScale
		sum += 2 * (math.Sqrt(1+u*u) - 1)
	}
	for j := range theta {
		u := (theta[j] - e.prior[j]) / e.width[j]
		sum += u * u
	}
	return sum
}

// jacobian differentiates the residuals by the logs of the coefficients, the
// menu's choice held: where the minimum of smooth functions is differentiable,
// its derivative is that of the least one (envelope theorem).
func (e *gemmEstimate) jacobian(theta, residuals []float64) *mat.Dense {
	const h = 1e-4
	j := mat.NewDense(len(residuals), len(theta), nil)
	e.set(theta)
	for k, c := range e.coefs {
		at := *c.At
		*c.At = math.Exp(theta[k] + h)
		for i, g := range e.shapes {
			if e.tile[k] >= 0 && e.tile[k] != e.plans[i].Tile {
				continue // it is another tile's
			}
			if d := math.Log(e.core.SecondsAs(g, e.plans[i])) - e.logs[i] - residuals[i]; d != 0 {
				j.Set(i, k, d/h)
			}
		}
		*c.At = at
	}
	return j
}

// solve improves the coefficients until steps no longer pay.
func (e *gemmEstimate) solve(rounds int) float64 {
	n := len(e.shapes)
	now, next := make([]float64, n), make([]float64, n)
	e.residuals(e.theta, now)
	cost, damping, stalled := e.cost(e.theta, now), 1e-2, 0
	for round := 0; round < rounds && stalled < 3; round++ { // e.plans are those at e.theta
		before := cost
		a, g := e.normal(e.jacobian(e.theta, now), now)
		for try := 0; try < 10; try++ {
			step, ok := gemmDamped(a, g, damping)
			if ok {
				to := gemmStepped(e.theta, step)
				e.residuals(to, next)
				if c := e.cost(to, next); c < cost {
					e.theta, cost, damping = to, c, max(damping/5, 1e-6)
					now, next = next, now
					break
				}
			}
			damping *= 4
		}
		stalled++
		if before-cost > 1e-3*cost {
			stalled = 0
		}
		if before == cost {
			break
		}
	}
	e.set(e.theta)
	return cost
}

// normal are the normal equations of a step, outliers down-weighted by
// rho'(u)/u = 1/sqrt(1+u^2).
func (e *gemmEstimate) normal(j *mat.Dense, residuals []float64) (*mat.SymDense, *mat.VecDense) {
	n, k := j.Dims()
	right := mat.NewVecDense(n, nil)
	for i, r := range residuals {
		u := r / gemmScale
		w := math.Pow(1+u*u, -0.25) / gemmScale // root of the weight
		row := j.RawRowView(i)
		for c := range row {
			row[c] *= w
		}
		right.SetVec(i, -w*r)
	}
	a, g := mat.NewSymDense(k, nil), mat.NewVecDense(k, nil)
	a.SymOuterK(1, j.T())
	g.MulVec(j.T(), right)
	for c := range k {
		p := 1 / (e.width[c] * e.width[c])
		a.SetSym(c, c, a.At(c, c)+p)
		g.SetVec(c, g.AtVec(c)-p*(e.theta[c]-e.prior[c]))
	}
	return a, g
}

// gemmDamped solves (A + damping diag(A)) x = g.
func gemmDamped(a *mat.SymDense, g *mat.VecDense, damping float64) (*mat.VecDense, bool) {
	k := a.SymmetricDim()
	d := mat.NewSymDense(k, nil)
	d.CopySym(a)
	for c := range k {
		d.SetSym(c, c, a.At(c, c)*(1+damping))
	}
	var chol mat.Cholesky
	if !chol.Factorize(d) {
		return nil, false
	}
	x := mat.NewVecDense(k, nil)
	return x, chol.SolveVecTo(x, g) == nil
}

// gemmStepped goes at most a factor e in any coefficient: beyond, the menu is
// another one.
func gemmStepped(theta []float64, step *mat.VecDense) []float64 {
	to := make([]float64, len(theta))
	for j := range theta {
		to[j] = theta[j] + max(-1, min(1, step.AtVec(j)))
	}
	return to
}
