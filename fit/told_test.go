package fit

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
)

// The interval of n errors reaches to the one of rank ceil(0.9 (n + 1)), counted from the
// smallest, whatever their order and direction: the largest where there are no more than ten.
func TestSpreadReachesToItsRank(t *testing.T) {
	for n, rank := range map[int]int{1: 1, 8: 8, 9: 9, 10: 10, 19: 18, 20: 19, 29: 27, 30: 28, 99: 90, 100: 91} {
		logs := make([]float64, n)
		for i, at := range rand.New(rand.NewPCG(1, 2)).Perm(n) {
			logs[at] = float64(i+1) / 100 * float64(1-2*(i%2))
		}
		got := spread(append(logs, math.NaN()))
		want := math.Exp(float64(rank) / 100)
		if math.Abs(got.Hi-want) > 1e-12 || math.Abs(got.Lo-1/want) > 1e-12 {
			t.Errorf("of %d errors %+v, want the %d-th, %v", n, got, rank, want)
		}
	}
}

// A law tells its errors in six digits, by which its own points are still known; and by four or
// by all digits, as profiles told them before.
func TestErrorsAreToldInSixDigits(t *testing.T) {
	e := costmodel.FitError{Points: 7, Outside: 1, Median: 0.0123456789, P90: 1.23454, P95: 1234567, Bias: -9.999996e-6, Coverage: 5. / 7}
	want := costmodel.FitError{Points: 7, Outside: 1, Median: 0.0123457, P90: 1.23454, P95: 1234570, Bias: -1e-5, Coverage: 0.714286}
	if got := told(e); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got := told(costmodel.FitError{Points: 1}); got != (costmodel.FitError{Points: 1}) {
		t.Errorf("no error is told as %+v", got)
	}
	four := costmodel.FitError{Points: 7, Outside: 1, Median: 0.01235, P90: 1.235, P95: 1235000, Bias: -1e-5}
	if !sameErrors(e, e) || !sameErrors(want, e) || !sameErrors(four, e) {
		t.Error("a law does not know its own errors again")
	}
	// At the border of two roundings the order of a sum decides.
	for border, digits := range map[float64]int{0.012345: fewestDigits, 0.01234565: toldDigits} {
		low, high, a, b := e, e, e, e
		low.Median, high.Median = border-1e-15, border+1e-15
		a.Median, b.Median = rounded(low.Median, digits), rounded(high.Median, digits)
		if a == b || !sameErrors(a, high) || !sameErrors(b, low) {
			t.Errorf("%v and %v are taken for errors of other points", a.Median, b.Median)
		}
	}
	for name, other := range map[string]costmodel.FitError{
		"points":  {Points: 6, Outside: 1, Median: e.Median, P90: e.P90, P95: e.P95, Bias: e.Bias},
		"outside": {Points: 7, Median: e.Median, P90: e.P90, P95: e.P95, Bias: e.Bias},
		"median":  {Points: 7, Outside: 1, Median: 0.01236, P90: e.P90, P95: e.P95, Bias: e.Bias},
		"p90":     {Points: 7, Outside: 1, Median: e.Median, P90: 1.234, P95: e.P95, Bias: e.Bias},
		"p95":     {Points: 7, Outside: 1, Median: e.Median, P90: e.P90, P95: 1236000, Bias: e.Bias},
		"bias":    {Points: 7, Outside: 1, Median: e.Median, P90: e.P90, P95: e.P95, Bias: 1e-5},
	} {
		if sameErrors(other, e) {
			t.Errorf("another %s goes for the same", name)
		}
	}
}
