package pipeline

import "github.com/evenkeel/evenkeel/internal/units"

// Bound is a time that no plan beats.
func Bound(p *Problem) units.Seconds { return 0 }
