package stats

import (
	"fmt"
	"math"
	"slices"

	"gonum.org/v1/gonum/stat/distuv"
)

// madToSigma makes the median absolute deviation of a normal sample estimate its
// standard deviation: 1/Phi^-1(3/4) = 1.4826.
const madToSigma = 1.4826022185056018

// Median returns the middle value of x, or the mean of the two middle ones.
// x needs no order and is not changed. It panics if x is empty or not finite.
func Median(x []float64) float64 { return Quantile(x, 0.5) }

// Quantile returns the p-quantile of x by linear interpolation between the order
// statistics around rank 1+(n-1)p, which is type 7 of Hyndman and Fan (1996) and
// what R, NumPy and most spreadsheets call "the" quantile; using theirs lets a
// reader check a stored median against a notebook.
// x needs no order and is not changed. It panics if x is empty or not finite, or
// if p is outside [0, 1].
func Quantile(x []float64, p float64) float64 { return quantileSorted(sortedCopy(x), p) }

// Quartiles returns the first quartile, the median and the third quartile of x,
// sorting only once. It panics as [Quantile] does.
func Quartiles(x []float64) (q1, median, q3 float64) {
	s := sortedCopy(x)
	return quantileSorted(s, 0.25), quantileSorted(s, 0.5), quantileSorted(s, 0.75)
}

// IQR returns the distance between the quartiles of x, in the unit of x.
// It panics as [Quantile] does.
func IQR(x []float64) float64 {
	q1, _, q3 := Quartiles(x)
	return q3 - q1
}

// MAD returns the median absolute deviation of x from its median, times 1.4826 so
// that it estimates the standard deviation where x is normal. Up to half of x may
// be wild before it breaks. It panics as [Quantile] does.
func MAD(x []float64) float64 {
	m := Median(x)
	d := make([]float64, len(x))
	for i, v := range x {
		d[i] = math.Abs(v - m)
	}
	return madToSigma * Median(d)
}

// RobustScale estimates the standard deviation of residuals r that are known to
// centre on zero, as 1.4826 times the median of |r|. Unlike [MAD] it does not
// subtract the median, so a fit that is off everywhere is not called precise.
// It panics as [Quantile] does.
func RobustScale(r []float64) float64 {
	d := make([]float64, len(r))
	for i, v := range r {
		d[i] = math.Abs(v)
	}
	return madToSigma * Median(d)
}

// NormalQuantile returns the p-quantile of the standard normal distribution.
// It panics if p is outside (0, 1), where the quantile is infinite.
func NormalQuantile(p float64) float64 {
	mustBeInside("NormalQuantile", "p", p)
	return distuv.UnitNormal.Quantile(p)
}

// StudentQuantile returns the p-quantile of Student's t distribution with df > 0
// degrees of freedom. It panics if p is outside (0, 1) or df is not positive.
func StudentQuantile(p, df float64) float64 {
	mustBeInside("StudentQuantile", "p", p)
	if !(df > 0) || math.IsInf(df, 1) {
		panic(fmt.Sprintf("stats: StudentQuantile: df = %v, want a positive finite number", df))
	}
	return distuv.StudentsT{Mu: 0, Sigma: 1, Nu: df}.Quantile(p)
}

// quantileSorted is Quantile for s in ascending order. lo + f*(hi-lo) is used
// rather than (1-f)*lo + f*hi because the latter moves by an ulp when lo == hi,
// and the median of a constant sample has to be that constant.
func quantileSorted(s []float64, p float64) float64 {
	if !(p >= 0 && p <= 1) {
		panic(fmt.Sprintf("stats: quantile p = %v, want 0 <= p <= 1", p))
	}
	h := p * float64(len(s)-1)
	i := int(h)
	if i >= len(s)-1 {
		return s[len(s)-1]
	}
	return s[i] + (h-float64(i))*(s[i+1]-s[i])
}

// sortedCopy returns x in ascending order, refusing what has no quantiles.
func sortedCopy(x []float64) []float64 {
	if len(x) == 0 {
		panic("stats: empty sample")
	}
	mustBeFinite("sample", x)
	s := slices.Clone(x)
	slices.Sort(s)
	return s
}

func mustBeFinite(name string, x []float64) {
	if i := indexNotFinite(x); i >= 0 {
		panic(fmt.Sprintf("stats: %s[%d] = %v, want a finite number", name, i, x[i]))
	}
}

// indexNotFinite returns the place of the first NaN or infinity of x, or -1.
func indexNotFinite(x []float64) int {
	return slices.IndexFunc(x, func(v float64) bool { return math.IsNaN(v) || math.IsInf(v, 0) })
}

func mustBeInside(fn, name string, p float64) {
	if !(p > 0 && p < 1) {
		panic(fmt.Sprintf("stats: %s: %s = %v, want 0 < %s < 1", fn, name, p, name))
	}
}
