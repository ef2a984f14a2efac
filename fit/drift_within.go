package fit

import (
	"fmt"
	"math"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/stats"
	"github.com/evenkeel/evenkeel/internal/units"
)

// Drift is how the time of a canary, a point that a calibration repeats, went on from its
// first: whether the machine at the end is the one of the beginning.
type Drift struct {
	On    string
	Shape op.Shape

	times []float64 // seconds: the first, then those of the repeats
}

// NewDrift begins with the first time of a point.
func NewDrift(on string, shape op.Shape, first float64) *Drift {
	return &Drift{On: on, Shape: shape, times: []float64{first}}
}

// Repeat takes the time of a repeat, in seconds.
func (c *Drift) Repeat(seconds float64) { c.times = append(c.times, seconds) }

// Repeats is how many there were.
func (c *Drift) Repeats() int { return len(c.times) - 1 }

// mostSettled is of how many times the beginning and the end are taken together. What disturbs
// a measurement makes it slower for a while, and one such visit in three is no drift.
const mostSettled = 3

// settled is the number of times that the beginning and the end consist of; they share none.
func (c *Drift) settled() int { return max(1, min(mostSettled, len(c.times)/2)) }

// Ratio is the time at the end over that at the beginning, each of up to three visits without
// a disturbed one: the middle of three, and of two the faster, if they disagree.
func (c *Drift) Ratio() float64 {
	of := settle
	if c.settled() == mostSettled { // settle would leave out two of three
		of = stats.Median
	}
	return of(c.times[len(c.times)-c.settled():]) / of(c.times[:c.settled()])
}

// Farthest is the repeat farthest from the first time, as a ratio to it; 1 without any.
func (c *Drift) Farthest() float64 {
	worst := 1.0
	for _, t := range c.times[1:] {
		if r := t / c.times[0]; math.Abs(math.Log(r)) > math.Abs(math.Log(worst)) {
			worst = r
		}
	}
	return worst
}

// Drifted says whether the end differs from the beginning by more than DriftLimit, and by more
// than the scatter of visits that follow each other leads to expect, where these suffice to tell.
func (c *Drift) Drifted() bool {
	shift := math.Abs(math.Log(c.Ratio()))
	if len(c.times) <= fewestRepeats {
		return shift > DriftLimit
	}
	steps := make([]float64, c.Repeats())
	for i := range steps {
		steps[i] = math.Log(c.times[i+1] / c.times[i])
	}
	// A step is the difference of two visits, the shift that of two means of some.
	noise := stats.MAD(steps) / math.Sqrt(float64(c.settled()))
	return shift > max(DriftLimit, clearly*noise)
}

// clearly is how many deviations make a shift within a recording more than noise.
const clearly = 3

// String is a warning. It states the change as "takes 20 % more than at first",
// since for a time that doubled "+100 %" is easily misread.
func (c *Drift) String() string {
	ratio, than := c.Ratio(), "more"
	if ratio < 1 {
		than = "less"
	}
	return fmt.Sprintf("the machine drifted: %s on %s takes %.0f %% %s in the end than at first (%s); measure again on a quiet or cooled machine if that is too much", c.Shape.Kind(), c.On, 100*math.Abs(ratio-1), than, units.Count(c.Repeats(), "repeat"))
}
