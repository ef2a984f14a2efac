package stats

import (
	"math"

	"gonum.org/v1/gonum/stat/distuv"
)

// notchFactor is the 1.57 of McGill, Tukey and Larsen, "Variations of Box Plots",
// The American Statistician 32 (1978): 1.7 * 1.25/1.35, where 1.25*sigma/sqrt(n)
// is the normal median's standard error, 1.35*sigma its IQR, and 1.7 sits between
// the factors for comparing two medians of very unequal and of equal spread.
const notchFactor = 1.57

// Interval is a range that contains an unknown quantity with a stated confidence.
type Interval struct {
	// Lo and Hi are the ends, in the unit of the sample.
	Lo, Hi float64
	// Confidence is the level really reached. Order statistics come in steps, so
	// it is mostly above the level asked for; it is below only if TooFew.
	Confidence float64
	// TooFew says that no interval of the sample reaches the level asked for.
	// Lo and Hi are then the sample's extremes.
	TooFew bool
}

// MedianInterval returns the narrowest interval between two order statistics at
// equal distance from both ends of the sorted sample that covers the median of
// the population with at least the given confidence, whatever its distribution:
// [x(l), x(n+1-l)] covers it with probability 1 - 2*P(B < l), B ~ Binomial(n, 1/2)
// (David and Nagaraja, Order Statistics, section 7.1). For distributions with
// atoms the coverage is higher still.
// It panics if x is empty or not finite, or confidence is outside (0, 1).
func MedianInterval(x []float64, confidence float64) Interval {
	mustBeInside("MedianInterval", "confidence", confidence)
	s := sortedCopy(x)
	n := len(s)
	best := Interval{Lo: s[0], Hi: s[n-1], Confidence: max(0, 1-2*math.Exp2(-float64(n))), TooFew: true}
	below := 0.0 // P(B < l)
	for l, pmf := range binomialPMF(n, 0.5) {
		if level := 1 - 2*below; l >= 1 && 2*l <= n+1 && level >= confidence {
			best = Interval{Lo: s[l-1], Hi: s[n-l], Confidence: level}
		}
		below += pmf
	}
	return best
}

// QuantileInterval returns the interval [x(l), x(u)] between order statistics that
// covers the p-quantile of the population with at least the given confidence and
// spans the fewest ranks; among equals the one of highest coverage, then the lower
// one. The coverage is P(l <= B < u), B ~ Binomial(n, p). Unlike [MedianInterval]
// it need not be symmetric. A high quantile needs many samples (its upper end is
// beyond the maximum with probability p^n): see [Interval.TooFew].
// It panics if x is empty or not finite, or p or confidence is outside (0, 1).
func QuantileInterval(x []float64, p, confidence float64) Interval {
	mustBeInside("QuantileInterval", "p", p)
	mustBeInside("QuantileInterval", "confidence", confidence)
	s := sortedCopy(x)
	l, u, level := quantileRanks(len(s), p, confidence)
	return Interval{Lo: s[l-1], Hi: s[u-1], Confidence: level, TooFew: level < confidence}
}

// quantileRanks returns the 1-based ranks l <= u of QuantileInterval and their
// coverage. For growing l the smallest sufficient u grows too, so one pass with
// two pointers finds the narrowest pair.
func quantileRanks(n int, p, confidence float64) (l, u int, level float64) {
	pmf := binomialPMF(n, p)
	cdf := make([]float64, n+2) // cdf[i] = P(B < i)
	for i, q := range pmf {
		cdf[i+1] = cdf[i] + q
	}
	l, u, level = 1, n, cdf[n]-cdf[1]
	if level < confidence {
		return l, u, max(0, level)
	}
	hi := 1
	for lo := 1; lo <= n; lo++ {
		hi = max(hi, lo)
		for hi < n && cdf[hi]-cdf[lo] < confidence {
			hi++
		}
		c := cdf[hi] - cdf[lo]
		if c >= confidence && (hi-lo < u-l || hi-lo == u-l && c > level) {
			l, u, level = lo, hi, c
		}
	}
	return l, u, level
}

// binomialPMF returns P(B = k) for k = 0..n, computed through logarithms because
// 0.5^n underflows from n = 1075 on.
func binomialPMF(n int, p float64) []float64 {
	b := distuv.Binomial{N: float64(n), P: p}
	pmf := make([]float64, n+1)
	for k := range pmf {
		pmf[k] = math.Exp(b.LogProb(float64(k)))
	}
	return pmf
}

// NotchHalfWidth returns 1.57*IQR/sqrt(n), the half width of the median's notch
// (McGill et al. 1978), in the unit of x: roughly a 95 % interval of the median
// that, unlike [MedianInterval], shrinks smoothly with every further sample, which
// is what a stopping rule wants. It panics as [Quantile] does.
func NotchHalfWidth(x []float64) float64 {
	return notchFactor * IQR(x) / math.Sqrt(float64(len(x)))
}
