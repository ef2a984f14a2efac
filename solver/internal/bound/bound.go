package bound

import (
	"math"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
)

// Lower is a time in seconds that no layout which fits the devices can beat in the
// simulator, whatever its split of tokens and heads, its groups and their ring, its
// choice of ranks, and its segments.
//
// Errors: *costmodel.MissingLawError.
func Lower(profile *costmodel.Profile, predictor *costmodel.Predictor, job costmodel.Job) (units.Seconds, error) {
	f, err := newFloors(profile, predictor, job)
	if err != nil {
		return 0, err
	}
	least := f.eitherWay()
	if math.IsInf(least, 1) {
		// Nothing fits; what does not is still bounded by work and wires.
		f.unlimited = true
		least = f.eitherWay()
	}
	return units.Seconds(least), nil
}

// eitherWay is the floor over layouts whose micro-batches run one by one and, if there
// are several, in pairs. Pairs need more memory and mostly have the lower floor.
func (f *floors) eitherWay() float64 {
	least, scopes := math.Inf(1), f.scopes()
	if f.twoBatch = f.job.Accumulate > 1; f.twoBatch {
		least = f.over(scopes, least)
		tight := func(s scope) bool { return !f.roomForAll(s) }
		scopes = slices.DeleteFunc(slices.Clone(scopes), func(s scope) bool { return !slices.ContainsFunc(s.ranges(f.size), tight) })
		f.twoBatch = false
	}
	return f.over(scopes, least)
}

// roomForAll says that memory limits no rank of a scope's layouts: not even one with all
// tokens and heads. Then layouts whose micro-batches go in twos have the lower floors.
func (f *floors) roomForAll(s scope) bool {
	if f.unlimited {
		return true
	}
	all, m := float64(f.job.SeqLen), f.job.Model
	return !slices.ContainsFunc(f.names, func(name string) bool {
		ring, group := f.memory(name, s.most), f.groupMemory(name, s.most)
		fits := ring.room() >= all && ring.pairs(all) >= all*(all+1)/2*float64(m.QHeads) && group.room() >= all && group.pairs(all) >= float64(m.QHeads)
		return s.counts[name] > 0 && !fits
	})
}

// atOnce is how many micro-batches go through a layer together.
func (f *floors) atOnce() float64 {
	if f.twoBatch {
		return 2
	}
	return 1
}

// counts are the layers, the micro-batches and how often a layer's forward pass
// is computed again.
func (f *floors) counts() (layers, micro, again float64) {
	if f.job.Recompute == costmodel.RecomputeFull {
		again = 1
	}
	return float64(f.job.Model.Layers), float64(max(1, f.job.Accumulate)), again
}
