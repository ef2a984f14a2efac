package fit

import (
	"math"
	"slices"

	"gonum.org/v1/gonum/mat"

	"github.com/evenkeel/evenkeel/costmodel"
)

// coreFit is the estimate of a core's coefficients for one structure: the
// least sum over the points of weight * soft-L1(log(predicted/measured)) plus
// the squared distances of the coefficients' logarithms from what is expected.
type coreFit struct {
	core     costmodel.AttentionCore
	coefs    []coreCoef
	geometry []costmodel.AttentionGeometry
	norms    []costmodel.AttentionNorms // where the residuals were last taken
	logs     []float64                  // of the measured times
	weights  []float64
}

// coreCoef is a coefficient on its way: value = base + exp(u).
type coreCoef struct {
	value  *float64
	base   float64
	lo, hi float64 // bounds of u
	mean   float64 // expected u
	pull   float64 // weight of the squared distance from it
}

// belief is how far a coefficient may be from what is expected: sd in log
// units, and the factor up or down that it may not exceed.
type belief struct{ sd, factor, most float64 }

const (
	// coreScale is the residual from which on a point counts as an outlier.
	coreScale = 0.05
	// beliefWeight counts a standard deviation of a belief as so many points
	// that are off by coreScale.
	beliefWeight = 0.9
	// nearPrior is what a prior from a sibling narrows the beliefs by.
	nearPrior = 0.5
)

// beliefOf holds the exceptions: most coefficients are known to a factor of e.
func beliefOf(name string) belief {
	switch name {
	case "tile_s":
		return belief{1, 30, 1e6}
	case "alone_ratio":
		return belief{0.5, 4, 1e6}
	case "s_per_byte", "cache_bytes":
		return belief{0.5, 10, 1e12}
	case "cached_ratio":
		return belief{1, 20, 1}
	case "traffic_ratio":
		return belief{0.2, 10, 1e6}
	case "overlap_norm", "memory_norm":
		return belief{1, 15, 1e6}
	case "side_q_ratio":
		return belief{1.5, 100, 1e6}
	case "slow_ratio":
		return belief{1, 100, 0.8}
	case "slow_at_s":
		return belief{0.7, 10, 1e6}
	case "slow_norm":
		return belief{0.5, 3, 1e6}
	}
	return belief{1, 100, 1e6}
}

func newCoreFit(start costmodel.AttentionCore, backward, sibling bool, points []Point) *coreFit {
	f := &coreFit{core: start, weights: loadWeights(points)}
	for _, k := range f.core.Coefficients() {
		b := beliefOf(k.Name)
		mean := math.Log(max(*k.Value-k.Least, 1e-3*k.Least, math.SmallestNonzeroFloat64))
		c := coreCoef{value: k.Value, base: k.Least, mean: mean, lo: mean - math.Log(b.factor), pull: beliefWeight / b.sd}
		c.hi = min(mean+math.Log(b.factor), math.Log(b.most))
		if sibling {
			c.pull /= nearPrior
		}
		c.pull *= c.pull
		f.coefs = append(f.coefs, c)
	}
	for _, p := range points {
		a, _ := calledFor(p.Shape)
		f.geometry = append(f.geometry, a.geometry(&start, backward))
		f.logs = append(f.logs, math.Log(p.Seconds))
	}
	f.norms = make([]costmodel.AttentionNorms, len(points))
	return f
}

// loadWeights weighs points by the rate they reach, from 0.15 for those that
// are all overhead: long calls, to which a law is extrapolated, stand on the
// arithmetic alone, and whatever of the overheads the core does not describe
// must not bend it. The weights' mean is 1.
//
// The highest rate is one that a quarter of the points come within a factor of two of: by
// that of one time that was read a hundred times too short all others would be overhead. Of
// others' 61 tables of attention, laws of 30 points with such a one were off by 14.7 %, a mean
// over the tables, and are by 7.6, where without it they are by 5.8.
func loadWeights(points []Point) []float64 {
	w := make([]float64, len(points))
	sum := 0.0
	for i, p := range points {
		w[i] = float64(p.Shape.Work().FLOPs) / p.Seconds
	}
	rates := slices.Sorted(slices.Values(w))
	most := min(rates[len(w)-1], 2*rates[len(w)-1-len(w)/4])
	for i := range w {
		w[i] = 0.15 + min(1, w[i]/most)
		sum += w[i]
	}
	for i := range w {
		w[i] *= float64(len(w)) / sum
	}
	return w
}

func (f *coreFit) place() []float64 {
	u := make([]float64, len(f.coefs))
	for j, c := range f.coefs {
		u[j] = min(c.hi, max(c.lo, math.Log(max(*c.value-c.base, math.SmallestNonzeroFloat64))))
	}
	return u
}

// residuals fills in log(predicted/measured) at u.
func (f *coreFit) residuals(u, r []float64) {
	for j, c := range f.coefs {
		*c.value = c.base + math.Exp(u[j])
	}
	for i := range f.geometry {
		r[i] = math.Log(f.core.AtWith(&f.geometry[i], &f.norms[i])) - f.logs[i]
	}
}

// moved fills in the residuals where a coefficient is at u, near those last taken.
func (f *coreFit) moved(coef int, u float64, r []float64) {
	c := &f.coefs[coef]
	at := *c.value
	*c.value = c.base + math.Exp(u)
	for i := range f.geometry {
		n := f.norms[i]
		r[i] = math.Log(f.core.AtWith(&f.geometry[i], &n)) - f.logs[i]
	}
	*c.value = at
}

func (f *coreFit) loss(u, r []float64) float64 {
	sum := 0.0
	for i, v := range r {
		z := v / coreScale
		sum += 2 * f.weights[i] * (math.Sqrt(1+z*z) - 1)
	}
	for j, c := range f.coefs {
		sum += c.pull * (u[j] - c.mean) * (u[j] - c.mean)
	}
	return sum
}

// solve minimises the loss by Levenberg and Marquardt's steps (Marquardt 1963)
// with weights for the soft-L1, leaves the best coefficients in core and
// returns their loss.
func (f *coreFit) solve(rounds int) float64 {
	u, r := f.place(), make([]float64, len(f.logs))
	f.residuals(u, r)
	loss, damping := f.loss(u, r), 1e-2
	for range rounds {
		normal, gradient := f.normal(u, r)
		gain := 0.0
		for tries := 0; tries < 6 && gain == 0; tries++ {
			next, ok := f.step(u, normal, gradient, damping)
			if ok {
				moved := make([]float64, len(r))
				f.residuals(next, moved)
				if l := f.loss(next, moved); l < loss {
					gain, loss, u, r = loss-l, l, next, moved
					damping = max(damping/5, 1e-6)
					continue
				}
			}
			damping *= 5
		}
		if gain <= 1e-4*loss {
			break
		}
	}
	f.residuals(u, r)
	return loss
}

// normal is the matrix and right side of Gauss-Newton's step at u, where the residuals
// were last taken, with the derivatives taken by differences.
func (f *coreFit) normal(u, r []float64) (*mat.SymDense, []float64) {
	const h = 1e-4
	n, m := len(r), len(u)
	jacobian := make([][]float64, m)
	for j := range m {
		jacobian[j] = make([]float64, n)
		f.moved(j, u[j]+h, jacobian[j])
		for i := range n {
			jacobian[j][i] = (jacobian[j][i] - r[i]) / h
		}
	}
	return f.product(jacobian, u, r)
}

func (f *coreFit) product(jacobian [][]float64, u, r []float64) (*mat.SymDense, []float64) {
	m := len(u)
	a, b := mat.NewSymDense(m, nil), make([]float64, m)
	scaled := make([]float64, len(r))
	for j := range m {
		for i, v := range r {
			z := v / coreScale
			scaled[i] = f.weights[i] / (coreScale * coreScale * math.Sqrt(1+z*z)) * jacobian[j][i]
			b[j] -= scaled[i] * v
		}
		for k := j; k < m; k++ {
			sum := 0.0
			for i, s := range scaled {
				sum += s * jacobian[k][i]
			}
			a.SetSym(j, k, sum)
		}
		a.SetSym(j, j, a.At(j, j)+f.coefs[j].pull)
		b[j] -= f.coefs[j].pull * (u[j] - f.coefs[j].mean)
	}
	return a, b
}

// step solves for the next place, none farther than a factor of e and inside
// the bounds.
func (f *coreFit) step(u []float64, normal *mat.SymDense, gradient []float64, damping float64) ([]float64, bool) {
	m := len(u)
	damped := mat.NewSymDense(m, nil)
	damped.CopySym(normal)
	for j := range m {
		damped.SetSym(j, j, normal.At(j, j)*(1+damping))
	}
	var chol mat.Cholesky
	var d mat.VecDense
	if !chol.Factorize(damped) || chol.SolveVecTo(&d, mat.NewVecDense(m, gradient)) != nil {
		return nil, false
	}
	next := make([]float64, m)
	for j, c := range f.coefs {
		next[j] = min(c.hi, max(c.lo, u[j]+max(-1, min(1, d.AtVec(j)))))
	}
	return next, true
}
