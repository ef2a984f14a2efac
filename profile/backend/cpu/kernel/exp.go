package kernel

import "math"

// ExpULP bounds the error of the package's exponential in units in the last place of the exact result, for arguments in
// [ExpMin, ExpMax]. The polynomial is off by 1.1e-8 relative (0.17 ulp), reduction and evaluation round five times.
const ExpULP = 2

// Arguments below ExpMin give 0 and above ExpMax +Inf. The exact limits of a normal float32 are -87.34 and 88.72; the
// narrower ones leave the exponent field one step of room, so that no subnormal and no overflow case is needed inside.
const (
	ExpMin = -87
	ExpMax = 88.37
)

// Constants of exp(x) = 2^n * exp(r), n = round(x/ln 2), |r| <= ln(2)/2. ln 2 is split so that n*ln2Hi is exact for every
// n that occurs (ln2Hi = 355/512 has 9 significant bits). Adding roundMagic = 1.5*2^23 leaves n in the low mantissa bits.
const (
	log2e      = 1.44269504088896341
	ln2Hi      = 0.693359375
	ln2Lo      = -2.12194440e-4
	roundMagic = 12582912
)

// exp(r) = 1 + r + r^2*P(r), P interpolating (exp(r)-1-r)/r^2 at the five Chebyshev nodes of [-ln(2)/2, ln(2)/2].
const (
	expP0 = 0.5
	expP1 = 0.166665763
	expP2 = 0.0416665524
	expP3 = 0.00836323295
	expP4 = 0.00139262504
)

// expReduce splits x into r and the bits that multiply a float32 by 2^n when added to its representation.
func expReduce(x float32) (r float32, power uint32) {
	t := x*log2e + roundMagic
	n := t - roundMagic
	return x - n*ln2Hi - n*ln2Lo, math.Float32bits(t) << 23
}

func expPoly(r float32) float32 {
	return 1 + (r + r*r*(expP0+r*(expP1+r*(expP2+r*(expP3+r*expP4)))))
}

// exp32 is e^x within ExpULP; math.Exp works in float64 and costs several times as much, which would dominate attention.
func exp32(x float32) float32 {
	r, power := expReduce(x)
	y := math.Float32frombits(math.Float32bits(expPoly(r)) + power)
	switch {
	case x >= ExpMin && x <= ExpMax:
		return y
	case x < ExpMin:
		return 0
	case x > ExpMax:
		return float32(math.Inf(1))
	}
	return x // NaN
}

// expShift writes exp(src[i]-shift) to dst and returns the sum. The body repeats exp32's because the call is too large to
// inline; only the lower limit is tested, for shift is never below the largest src by more than rounding. A NaN stays one.
func expShift(dst, src []float32, shift float32) (sum float32) {
	dst = dst[:len(src)]
	for i, s := range src {
		x := s - shift
		r, power := expReduce(x)
		y := math.Float32frombits(math.Float32bits(expPoly(r)) + power)
		if !(x >= ExpMin) {
			y = exp32(x)
		}
		dst[i] = y
		sum += y
	}
	return sum
}

// largest returns the maximum of row, four lanes wide to break the dependency between successive comparisons.
func largest(row []float32) float32 {
	m0 := float32(math.Inf(-1))
	m1, m2, m3 := m0, m0, m0
	for len(row) >= 4 {
		m0, m1, m2, m3 = max(m0, row[0]), max(m1, row[1]), max(m2, row[2]), max(m3, row[3])
		row = row[4:]
	}
	for _, v := range row {
		m0 = max(m0, v)
	}
	return max(max(m0, m1), max(m2, m3))
}
