// Package baseline has what people run today: a ring, all-to-all of heads, the best mesh of
// both, and that on a part of the cluster. All shares are equal. [Strategies] lists them;
// [Meshes] are where other strategies may begin.
package baseline

import (
	"github.com/evenkeel/evenkeel/solver/internal/strategy"
)

// Strategies lists what people run today, in the order in which they are solved.
func Strategies() []strategy.Strategy {
	return []strategy.Strategy{Ring{}, Ulysses{}, USP{}, USPSubset{}}
}
