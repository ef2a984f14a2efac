package costmodel

import (
	"math"

	"github.com/evenkeel/evenkeel/internal/units"
)

// account adds up predicted times law by law. A law that is 5 % too slow is so
// in every call, so within a law widths add; different laws err independently but for
// the doubts that they share, so between reasons to doubt they add in quadrature.
type account struct{ laws []booked } // few, in the order of their first use

// booked is the time by one law.
type booked struct {
	Estimate
	of  *Law
	law int // the coster's number
}

func (a *account) add(law int, of *Law, e Estimate) {
	for i := range a.laws {
		if x := &a.laws[i]; x.law == law {
			x.Estimate = x.Plus(e)
			return
		}
	}
	a.laws = append(a.laws, booked{Estimate{}.Plus(e), of, law})
}

// merge adds another account `times` over.
func (a *account) merge(o account, times float64) {
	for _, e := range o.laws {
		a.add(e.law, e.of, e.Times(times))
	}
}

// mid is the most likely sum.
func (a *account) mid() (sum units.Seconds) {
	for _, e := range a.laws {
		sum += e.Mid
	}
	return sum
}

// total is the estimate of the sum.
func (a *account) total() Estimate {
	var sum Estimate
	for _, e := range a.laws {
		sum = sum.Plus(e.Estimate)
	}
	less, more := 0.0, 0.0
	for _, d := range doubts(a.byLaw(1)) {
		less, more = math.Hypot(less, float64(d.less)), math.Hypot(more, float64(d.more))
	}
	sum.Lo, sum.Hi = sum.Mid-units.Seconds(less), sum.Mid+units.Seconds(more)
	return sum
}

// byLaw is the time of every law, times over.
func (a *account) byLaw(times float64) map[*Law]Estimate {
	out := map[*Law]Estimate{}
	for _, e := range a.laws {
		if e.Mid > 0 {
			out[e.of] = out[e.of].Plus(e.Times(times))
		}
	}
	return out
}

// like gives a time the relative interval and the source of an estimate.
func like(mid units.Seconds, e Estimate) Estimate {
	if e.Mid == 0 {
		return Estimate{mid, mid, mid, e.Source}
	}
	scale := mid / e.Mid
	return Estimate{scale * e.Lo, mid, scale * e.Hi, e.Source}
}
