package solver

import (
	"github.com/evenkeel/evenkeel/solver/internal/strategy"
)

// baselines lists what people run today, in the order in which they are solved.
func baselines() []strategy.Strategy {
	return []strategy.Strategy{ring{}, ulysses{}, usp{}, uspSubset{}}
}
