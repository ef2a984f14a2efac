package batch

import (
	"slices"

	"github.com/evenkeel/evenkeel/internal/units"
)

// raised is the problem at prices that are raised, each class's by the product of by and
// its own share: a class of share 0.2 with by 0.5 costs 1.1 times as much.
func (p *Problem) raised(shares []float64, by float64) *Problem {
	q := *p
	q.Classes = slices.Clone(p.Classes)
	factors := make([]units.Seconds, len(shares))
	for c, share := range shares {
		factors[c] = units.Seconds(1 + by*share)
		q.Classes[c].Base *= factors[c]
	}
	q.Costs = raisedPrices{p.Costs, factors}
	return &q
}

// raisedPrices are prices times a factor of their class.
type raisedPrices struct {
	Pricer
	factors []units.Seconds
}

// Time implements Pricer.
func (r raisedPrices) Time(class int, s units.Tokens) units.Seconds {
	return r.Pricer.Time(class, s) * r.factors[class]
}
