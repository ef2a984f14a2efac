package solver

import (
	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
)

// floors is what LowerBound knows of a problem.
type floors struct {
	groups    map[string]op.GroupType // by name
	p         *Problem
	names     []string // of device types, in order of their first rank
	types     map[string]class
	adamw     map[string]*costmodel.Law
	bytes     map[linkUse]float64
	ranks     map[string]int // by device type
	unlimited bool           // memory is left out
	twoBatch  bool           // of layouts whose micro-batches go in twos
	// What was asked of the profile and the predictor before.
	equal    map[equalUse]lawUse
	linkLaws map[linkUse][]*costmodel.Law
	stands   map[linkUse]float64
}

func newFloors(p *Problem) (*floors, error) {
	f := &floors{
		p: p, groups: map[string]op.GroupType{}, types: map[string]class{}, adamw: map[string]*costmodel.Law{}, bytes: map[linkUse]float64{}, ranks: map[string]int{},
		equal: map[equalUse]lawUse{}, linkLaws: map[linkUse][]*costmodel.Law{}, stands: map[linkUse]float64{},
	}
	for _, g := range p.Profile.Groups {
		f.groups[g.Name] = g
	}
	pairs := f.pairSteps()
	for _, d := range p.devices {
		f.ranks[d.Name]++
		if _, ok := f.types[d.Name]; ok {
			continue
		}
		f.names = append(f.names, d.Name)
		c := class{device: d.Name}
		var err error
		if c.linear, err = f.linear(d.Name); err != nil {
			return nil, err
		}
		if c.grouped, err = f.grouped(d.Name, pairs); err != nil {
			return nil, err
		}
		c.forward, c.backward = c.grouped[0].forward, c.grouped[0].backward
		if len(p.ranks) > 1 {
			if c.heads, err = f.headTimes(d.Name); err != nil {
				return nil, err
			}
		}
		if f.adamw[d.Name], err = p.Predictor.Law(d.Name, op.KindAdamW, op.AdamW{}.Variant()); err != nil {
			return nil, err
		}
		f.types[d.Name] = c
	}
	return f, nil
}

// stepRatio is the ratio between two of them.
const stepRatio = 1.3

// pairSteps are the ends of the stretches by which attention is known: from
// little more than a rank's share to all pairs.
func (f *floors) pairSteps() []float64 {
	s := float64(f.p.Job.SeqLen)
	all := s * (s + 1) / 2 * float64(f.p.Job.Model.QHeads)
	var steps []float64
	for n := all / float64(16*len(f.p.ranks)); n < all; n *= stepRatio {
		steps = append(steps, n)
	}
	return append(steps, all)
}
