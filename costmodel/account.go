package costmodel

import "github.com/evenkeel/evenkeel/internal/units"

// account adds up predicted times law by law. A law that is 5 % too slow is so
// in every call, so within a law widths add; different laws err independently,
// so between laws they add in quadrature.
type account struct{ laws []Estimate } // by the coster's number of the law

func (a *account) add(law int, e Estimate) {
	for len(a.laws) <= law {
		a.laws = append(a.laws, Estimate{})
	}
	a.laws[law] = a.laws[law].Plus(e)
}

// merge adds another account `times` over.
func (a *account) merge(o account, times float64) {
	for law, e := range o.laws {
		a.add(law, e.Times(times))
	}
}

// total is the estimate of the sum.
func (a *account) total() Estimate {
	var sum Estimate
	for _, e := range a.laws {
		sum = sum.PlusIndependent(e)
	}
	return sum
}

// like gives a time the relative interval and the source of an estimate.
func like(mid units.Seconds, e Estimate) Estimate {
	if e.Mid == 0 {
		return Estimate{mid, mid, mid, e.Source}
	}
	scale := mid / e.Mid
	return Estimate{scale * e.Lo, mid, scale * e.Hi, e.Source}
}
