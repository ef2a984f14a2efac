package multitask

import (
	"math"

	"github.com/evenkeel/evenkeel/internal/units"
)

var forever = units.Seconds(math.Inf(1))
