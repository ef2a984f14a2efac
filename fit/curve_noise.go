package fit

import (
	"math"
	"slices"

	"gonum.org/v1/gonum/mat"
)

// lessRough are by what the standard deviations of the smooth residuals and of the rough one are
// multiplied where noise is told apart from them.
var lessRough = [...]struct{ smooth, rough float64 }{{1, 1}, {1, 0.25}, {0.4, 0.1}, {0.1, 0.1}}

// asLikely is by how much less log evidence a noise may have than the likeliest for it not to be
// ruled out: one standard deviation.
const asLikely = 0.5

// likelyNoise is the largest noise that the points do not rule out, which intervals are made
// with. A sweep with a point an octave looks the same whether sizes differ by noise or each has
// a deviation of its own that it repeats: the curve runs near every point either way, and that
// it does says nothing of the same sizes measured again. So the rough residual, as wide as it
// is in the estimate, may also be less here. The likeliest noise of the estimate was a third of
// the true one in sweeps with 2 to 4 % of noise, whose intervals held 40 to 60 %.
func (t *familyFit) likelyNoise() float64 {
	rough := t.roughCovariance()
	likely, best := t.noise, math.Inf(-1)
	var noises, evident []float64
	var trust [len(lessRough)][]float64
	for i := range trust {
		trust[i] = slices.Clone(t.trust)
	}
	for noise := t.noise / noiseStep; noise < mostNoise; noise *= noiseStep {
		e := math.Inf(-1)
		for i, share := range lessRough {
			e = max(e, t.evidence(noise, share.smooth, share.rough, rough, trust[i]))
		}
		noises, evident = append(noises, noise), append(evident, e)
		best = max(best, e)
		if e < best-4 {
			break
		}
	}
	for i := range noises {
		if evident[i] < best-asLikely {
			continue
		}
		likely = max(likely, noises[i])
		if i+1 < len(noises) && evident[i+1] < best-asLikely {
			w := (evident[i] - best + asLikely) / (evident[i] - evident[i+1])
			likely = max(likely, noises[i]*math.Pow(noiseStep, w))
		}
	}
	return likely
}

// mostNoise bounds the noise that is looked for.
const mostNoise = 0.5

// roughCovariance is the rough residuals' part of the covariance of the points.
func (t *familyFit) roughCovariance() *mat.SymDense {
	n := len(t.seen)
	k := mat.NewSymDense(n, nil)
	for i, a := range t.seen {
		for j := i; j < n; j++ {
			v := 0.0
			for _, r := range residuals {
				if r.rough {
					v += r.covariance(a.curve, a.u, t.seen[j].curve, t.seen[j].u)
				}
			}
			k.SetSym(i, j, v)
		}
	}
	return k
}

// evidence is the log evidence, but for a constant, of a noise and shares of the residuals, around
// the estimate. Trust holds Huber's weights, which are of the noise before and become this one's:
// where residuals are less, an outlier that the curve ran through is one.
func (t *familyFit) evidence(noise, smooth, share float64, rough *mat.SymDense, trust []float64) float64 {
	n := len(t.seen)
	known := mat.NewSymDense(n, nil)
	for i := range n {
		for j := i; j < n; j++ {
			known.SetSym(i, j, t.known.At(i, j)-(1-smooth*smooth)*t.shared.At(i, j)+(share*share-smooth*smooth)*rough.At(i, j))
		}
	}
	var chol mat.Cholesky
	k, pull := mat.NewSymDense(n, nil), mat.NewVecDense(n, nil)
	solve := func() bool {
		k.CopySym(known)
		for i, o := range t.seen {
			s := t.noiseAt(o.u) + noise - t.noise
			k.SetSym(i, i, k.At(i, i)+s*s/trust[i])
		}
		return chol.Factorize(k) && chol.SolveVecTo(pull, t.over) == nil
	}
	for range 2 {
		if !solve() {
			return math.Inf(-1)
		}
		for i, o := range t.seen {
			trust[i] = trusted(t.noiseAt(o.u)+noise-t.noise, trust[i], pull.AtVec(i))
		}
	}
	if !solve() {
		return math.Inf(-1)
	}
	unusual := math.Log(noise / usualNoise)
	return -(mat.Dot(t.over, pull) + chol.LogDet() + unusual*unusual) / 2
}

// reach is the standard deviation of a prediction at a size, in two parts: of what nobody
// measured there, and of noise, its own and what the points gave the curve: the largest that is
// likely, and what the estimate found.
type reach struct{ untold, noise, found float64 }

// half is half the width of an interval whose untold part is widened by a factor.
func (d reach) half(factor float64) float64 {
	return math.Hypot(ninetyPercent*d.noise, factor*d.untold)
}

// ninetyPercent takes a normal standard deviation to half the width of a 90 % interval.
const ninetyPercent = 1.645

// ratio is by what factor half had to widen the untold part to hold an error.
func (d reach) ratio(log float64) float64 {
	over := log*log - ninetyPercent*ninetyPercent*d.noise*d.noise
	if over <= 0 {
		return 0
	}
	return math.Sqrt(over) / d.untold
}

// reachOf takes the variance that the estimate expects, but for a measurement's own noise, apart,
// given the weights of the points.
func (t *familyFit) reachOf(u, variance float64, weight func(i int) float64) reach {
	more := t.likely - t.noise
	found := math.Pow(t.noiseAt(u), 2)
	noise := math.Pow(t.noiseAt(u)+more, 2)
	for i, o := range t.seen {
		w, s := weight(i), t.noiseAt(o.u)
		variance -= w * w * s * s / t.trust[i]
		found += w * w * s * s / t.trust[i]
		noise += w * w * (s + more) * (s + more)
	}
	return reach{math.Sqrt(max(variance, leastUntold*leastUntold)), math.Sqrt(noise), math.Sqrt(found)}
}

// leastUntold keeps what is untold from being nothing.
const leastUntold = 1e-3
