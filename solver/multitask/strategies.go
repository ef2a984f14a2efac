package multitask

import (
	"github.com/evenkeel/evenkeel/solver/recommend"
)

// Published lists what others run or have published, in the order in which it is shown.
func Published() []Strategy {
	return []Strategy{Sequential{}, TowersSideBySide{}, TasksSideBySide{}, Spindle{}}
}

// Strategies lists all strategies in the order in which they are shown: baselines, then
// published algorithms, then ours.
func Strategies() []Strategy { return append(Published(), Evenkeel{}) }

// Named returns an error if no strategy has the name, which may be empty. The error lists
// all names and suggests the nearest.
func Named(name string) error { return recommend.Known(name, Strategies()) }
