package pipeline

import (
	"github.com/evenkeel/evenkeel/costmodel/pipeline"
	"github.com/evenkeel/evenkeel/internal/units"
)

// Bound is a time that no plan beats, whatever its chunks, stages and orders. A stage of d
// devices of a type that takes t seconds for the batch in one layer (Costs.Floor) has at most
// T/t layers in a step of T seconds, so that T suffices only if stages of all devices have the
// model's layers together. The last stage has the loss as well. A stage of several types has as
// many layers as one of the slowest of them would; where too many of these are possible, every
// device counts for its share.
//
// It leaves out what a stage waits for, the filling and draining of the stages, memory,
// and what is done behind the last pass; and so may be well below what is possible. Where
// stages are fixed it is of plans on these, and no less than what each of them has to do.
func Bound(p *Problem) units.Seconds {
	return max(ofAnyStages(p), ofFixedStages(p))
}

// ofFixedStages is how long the fixed stage that has most to do takes at least: all chunks in its
// layers, the last stage's loss, and what is done behind the last pass, which is known then: the
// first stage and the last one wait for each other where they have a table to add up. It is 0
// where there is none, or are no prices.
func ofFixedStages(p *Problem) units.Seconds {
	plan, last := &pipeline.Plan{Stages: p.Fixed}, len(p.Fixed)-1
	added := make([]units.Seconds, len(p.Fixed)) // when a stage's gradients are, among its ranks
	for s, x := range p.Fixed {
		layer, loss := p.FloorOn(x.Ranks)
		added[s] = units.Seconds(x.Layers)*layer + p.Finish(plan, s).Gradients
		if s == last {
			added[s] += loss
		}
	}
	if tied := p.Tied(plan); tied > 0 {
		both := max(added[0], added[last]) + tied
		added[0], added[last] = both, both
	}
	most := units.Seconds(0)
	for s, at := range added {
		most = max(most, at+p.Finish(plan, s).Parameters)
	}
	if most < forever {
		return most
	}
	return 0
}

// ofAnyStages is the bound of plans whose stages may be any.
func ofAnyStages(p *Problem) units.Seconds {
	b := newBounder(p)
	lo, hi := 0.0, 1e-6
	for !b.suffices(hi) {
		if lo, hi = hi, 2*hi; hi > 1e12 {
			return 0 // not even prices for a floor
		}
	}
	for hi-lo > 1e-4*hi {
		if mid := (lo + hi) / 2; b.suffices(mid) {
			hi = mid
		} else {
			lo = mid
		}
	}
	return units.Seconds(lo)
}

// bounder is, by device type, how many there are, and what a layer takes at least on stages
// of them.
type bounder struct {
	layers int
	types  []boundType
	// mixes are the stages of several types, told apart by how many devices of each they have,
	// unless there are too many of them.
	mixes []mix
	told  bool
}

type boundType struct {
	count int
	// alone are the stages of this type by itself, mixed those that have others too.
	alone, mixed []boundStage
}

// mix is what one layer and the loss take on a stage of several types, on the slowest of them.
type mix struct {
	take        []int // devices, by type
	layer, loss float64
}

// boundStage is what one layer and the loss take on so many devices.
type boundStage struct {
	devices     int
	layer, loss float64
}

func newBounder(p *Problem) *bounder {
	b := &bounder{layers: p.Layers}
	at := map[string]int{}
	rank := map[string]int{}
	for r := range p.Devices() {
		device := p.Device(r)
		if _, ok := at[device]; !ok {
			at[device] = len(b.types)
			rank[device] = r
			b.types = append(b.types, boundType{})
		}
		b.types[at[device]].count++
	}
	for device, i := range at {
		t := &b.types[i]
		for d := 1; d <= p.Devices(); d++ {
			if p.Fits(make([]int, d)) != nil {
				continue
			}
			if d <= t.count {
				layer, loss := p.Floor(device, d, true)
				t.alone = append(t.alone, boundStage{d, float64(layer), float64(loss)})
			}
			if len(at) > 1 && d > 1 {
				layer, loss := p.Floor(device, d, false)
				t.mixed = append(t.mixed, boundStage{d, float64(layer), float64(loss)})
			}
		}
	}
	b.tell()
	return b
}
