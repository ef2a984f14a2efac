package costmodel

import (
	"github.com/evenkeel/evenkeel/internal/units"
)

// Source says what a predicted time rests on, from the surest to the least sure.
type Source string

// The sources of a prediction. A sum takes the worst of its parts.
const (
	Measured     Source = "measured"     // this very point was measured
	Interpolated Source = "interpolated" // inside the measured range of a law
	Extrapolated Source = "extrapolated" // outside it
	Transferred  Source = "transferred"  // from another device type or group
	Assumed      Source = "assumed"      // from a datasheet or a formula nobody measured
)

func (s Source) rank() int {
	switch s {
	case Measured:
		return 1
	case Interpolated:
		return 2
	case Extrapolated:
		return 3
	case Transferred:
		return 4
	case Assumed:
		return 5
	}
	return 0
}

// Worse returns the less sure of two sources; the zero Source is surer than any.
func (s Source) Worse(o Source) Source {
	if o.rank() > s.rank() {
		return o
	}
	return s
}

// Estimate is a predicted time: the most likely value with the ends of its
// 90 % interval, and what it rests on. The zero value is no time at all.
type Estimate struct {
	Lo     units.Seconds `json:"lo_s"`
	Mid    units.Seconds `json:"mid_s"`
	Hi     units.Seconds `json:"hi_s"`
	Source Source        `json:"source,omitzero"`
}

// Spread is the relative half width of the interval, (hi-lo)/(2 mid).
func (e Estimate) Spread() float64 {
	if e.Mid == 0 {
		return 0
	}
	return float64(e.Hi-e.Lo) / (2 * float64(e.Mid))
}

// Times repeats an estimate n times; the repeats share their error.
func (e Estimate) Times(n float64) Estimate {
	e.Lo, e.Mid, e.Hi = e.Lo*units.Seconds(n), e.Mid*units.Seconds(n), e.Hi*units.Seconds(n)
	return e
}

// Plus adds two estimates whose errors are the same law's, so that they move
// together and the widths add.
func (e Estimate) Plus(o Estimate) Estimate {
	return Estimate{e.Lo + o.Lo, e.Mid + o.Mid, e.Hi + o.Hi, e.Source.Worse(o.Source)}
}
