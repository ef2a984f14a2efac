package batch

import (
	"math"
	"slices"

	"github.com/evenkeel/evenkeel/internal/units"
)

// floor is a time that no plan of a chunk beats, with groups of the levels and the
// sequences' own lengths.
//
// Let T be the micro-batch's time. A group of level i, of d devices, with the
// sequences k has Σ t_ik <= T - base_i and Σ s_k <= cap_i; with any part θ of it
// taken as time and the rest as memory
//
//	Σ_k d f_ik <= d,  f_ik = θ t_ik/(T - base_i) + (1 - θ) s_k/cap_i.
//
// All groups together have at most N devices, hence Σ_k min_i d_i f_ik <= N, where
// the least is over the levels that can train sequence k alone within T. The floor
// is the least T that this allows for every θ tried: as T grows, the left side falls.
type floor struct {
	devices float64
	lengths []float64
	level   []floorLevel
}

type floorLevel struct {
	degree, base, cap float64
	times             []float64 // by sequence
}

// floorParts are the θ tried: time is what nearly always matters.
func floorParts() [4]float64 { return [...]float64{1, 0.95, 0.8, 0} }

// floorOf is the floor of a chunk of these lengths. Of unlike classes of a level the
// fastest and the largest count.
func floorOf(a *alike, lengths []units.Tokens) units.Seconds {
	f := floor{devices: float64(a.devices)}
	for _, s := range lengths {
		f.lengths = append(f.lengths, float64(s))
	}
	for _, l := range a.levels {
		v := floorLevel{degree: float64(l.degree), base: math.Inf(1), times: make([]float64, len(lengths))}
		for _, c := range l.classes {
			v.base, v.cap = min(v.base, float64(a.p.Classes[c].Base)), max(v.cap, float64(a.p.Classes[c].Cap))
		}
		for j, s := range lengths {
			v.times[j] = math.Inf(1)
			for _, c := range l.classes {
				v.times[j] = min(v.times[j], float64(a.p.Costs.Time(c, s)))
			}
		}
		f.level = append(f.level, v)
	}
	return a.p.MicroBase + units.Seconds(f.least()*(1-rounding))
}

// least bisects T.
func (f *floor) least() float64 {
	low, high := 0.0, 1.0
	for !f.allows(high) {
		if low, high = high, 2*high; math.IsInf(high, 1) {
			return low
		}
	}
	for high-low > 1e-6*high {
		if mid := (low + high) / 2; f.allows(mid) {
			high = mid
		} else {
			low = mid
		}
	}
	return low
}

func (f *floor) allows(t float64) bool {
	for _, part := range floorParts() {
		if !f.fits(t, part) {
			return false
		}
	}
	return true
}

func (f *floor) fits(t, part float64) bool {
	sum := 0.0
	for j, s := range f.lengths {
		least := math.Inf(1)
		for i := range f.level {
			l := &f.level[i]
			if s <= l.cap && l.base+l.times[j] <= t {
				least = min(least, l.degree*(part*l.times[j]/(t-l.base)+(1-part)*s/l.cap))
			}
		}
		sum += least
	}
	return sum <= f.devices
}

func lengthsOf(lengths []units.Tokens, sequences []int) []units.Tokens {
	own := make([]units.Tokens, len(sequences))
	for i, k := range sequences {
		own[i] = lengths[k]
	}
	return own
}

// onBuckets is the floor of the chunk's programme: that of its lengths rounded up,
// without what a micro-batch takes beside its groups.
func (c *chunk) onBuckets(a *alike) units.Seconds {
	var lengths []units.Tokens
	for _, b := range c.buckets {
		lengths = append(lengths, slices.Repeat([]units.Tokens{b.bound}, len(b.members))...)
	}
	return floorOf(a, lengths) - a.p.MicroBase
}
