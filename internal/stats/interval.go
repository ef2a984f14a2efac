package stats

import "math"

// notchFactor is the 1.57 of McGill, Tukey and Larsen, "Variations of Box Plots",
// The American Statistician 32 (1978): 1.7 * 1.25/1.35, where 1.25*sigma/sqrt(n)
// is the normal median's standard error, 1.35*sigma its IQR, and 1.7 sits between
// the factors for comparing two medians of very unequal and of equal spread.
const notchFactor = 1.57

// Interval is a range that contains an unknown quantity with the confidence that was
// asked for; Lo and Hi are its ends, in the unit of the sample.
type Interval struct{ Lo, Hi float64 }

// NotchHalfWidth returns 1.57*IQR/sqrt(n), the half width of the median's notch
// (McGill et al. 1978), in the unit of x: roughly a 95 % interval of the median.
// It shrinks smoothly with every further sample, as a stopping rule needs; an
// interval between order statistics would shrink in steps.
// It panics as [Quantile] does.
func NotchHalfWidth(x []float64) float64 {
	return notchFactor * IQR(x) / math.Sqrt(float64(len(x)))
}
