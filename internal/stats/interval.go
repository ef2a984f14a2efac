package stats

import (
	"fmt"
	"math"
)

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

// z95 is the standard normal's 95 % quantile.
const z95 = 1.6448536269514722

// ShareUpper returns the upper 95 % bound of the share that hits of n draws estimate: the
// largest share of which so few hits are no surprise to a one-sided score test (Wilson,
// Journal of the American Statistical Association 22, 1927). Unlike a bootstrap's it stays
// above 0 where nothing was hit.
// It panics unless hits are from 0 to n and n is at least 1.
func ShareUpper(hits, n int) float64 {
	if n < 1 || hits < 0 || hits > n {
		panic(fmt.Sprintf("stats: ShareUpper of %d hits in %d draws", hits, n))
	}
	size := float64(n)
	share, z2 := float64(hits)/size, z95*z95/size
	return min(1, (share+z2/2+math.Sqrt(z2*(share*(1-share)+z2/4)))/(1+z2)) // rounding may pass 1
}
