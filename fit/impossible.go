package fit

import (
	"fmt"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/profile"
)

// mostBoost is how far above the bound of its datasheet no board is: the fastest that are sold
// clocked beyond it compute at 1.3 times its peak. The bound of ops that stream their tensors
// is op.CachedRate times the memory's rate already, for what caches hold of them. import, which
// knows the boards, leaves out what lies above the bounds of each; a recording may be of anything.
const mostBoost = 2

// impossible says whether a time, in seconds, is shorter than the device can be, and counts it:
// a law of such points would promise what no machine does, and be right about the others.
func (d *Data) impossible(p *profile.Point, seconds float64) bool {
	sheet := d.sheets[p.On]
	if sheet == (op.Sheet{}) {
		return false // of a group, a processor, a device that nobody described
	}
	least := sheet.Least(p.Shape) / mostBoost
	if seconds >= float64(least) {
		return false
	}
	if d.TooFast++; d.TooFast == 1 {
		const first = "%s on %s in %s, which takes %s at %s of its datasheet"
		d.tooFast = fmt.Sprintf(first, p.Shape.Kind(), p.On, units.Seconds(seconds), least, boostOf(p.Shape.Kind()))
	}
	return true
}

// boostOf says what bounds an op, as the multiple of a datasheet's figure.
func boostOf(k op.Kind) string {
	if spec, err := op.Lookup(k); err == nil && spec.Class == op.Bandwidth {
		return fmt.Sprintf("%d times the memory's rate", mostBoost*op.CachedRate)
	}
	return fmt.Sprintf("%d times the peak", mostBoost)
}

// beyondDevice warns of the points that impossible counts; "" for none.
func (d *Data) beyondDevice() string {
	if d.TooFast == 0 {
		return ""
	}
	return fmt.Sprintf("%s left out, faster than the device can be, the first of %s: is the unit of the times another?", units.Count(d.TooFast, "point"), d.tooFast)
}
