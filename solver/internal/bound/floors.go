package bound

import (
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// floors is what is known of a problem.
type floors struct {
	profile   *costmodel.Profile
	predictor *costmodel.Predictor
	job       costmodel.Job
	groups    map[string]op.GroupType // by name
	size      int                     // ranks of the cluster
	names     []string                // of device types, in order of their first rank
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
	rates    []units.BytesPerS // by node: see Predictor.NodeRates
	byRate   []int             // nodes, the fastest first
}

func newFloors(profile *costmodel.Profile, predictor *costmodel.Predictor, job costmodel.Job) (*floors, error) {
	ranks := job.Cluster.Ranks()
	f := &floors{
		profile: profile, predictor: predictor, job: job, size: len(ranks), groups: map[string]op.GroupType{}, types: map[string]class{}, adamw: map[string]*costmodel.Law{}, bytes: map[linkUse]float64{}, ranks: map[string]int{},
		equal: map[equalUse]lawUse{}, linkLaws: map[linkUse][]*costmodel.Law{}, stands: map[linkUse]float64{},
	}
	for _, g := range profile.Groups {
		f.groups[g.Name] = g
	}
	pairs := f.pairSteps()
	for _, r := range ranks {
		name := r.Device
		f.ranks[name]++
		if _, ok := f.types[name]; ok {
			continue
		}
		f.names = append(f.names, name)
		c := class{device: name}
		var err error
		if c.linear, err = f.linear(name); err != nil {
			return nil, err
		}
		if c.grouped, err = f.grouped(name, pairs); err != nil {
			return nil, err
		}
		c.forward, c.backward = c.grouped[0].forward, c.grouped[0].backward
		if f.size > 1 {
			if c.heads, err = f.headTimes(name); err != nil {
				return nil, err
			}
		}
		if f.adamw[name], err = predictor.Law(name, op.KindAdamW, op.AdamW{}.Variant()); err != nil {
			return nil, err
		}
		f.types[name] = c
	}
	return f, nil
}

// stepRatio is the ratio between two of them.
const stepRatio = 1.3

// pairSteps are the ends of the stretches by which attention is known: from
// little more than a rank's share to all pairs.
func (f *floors) pairSteps() []float64 {
	s := float64(f.job.SeqLen)
	all := s * (s + 1) / 2 * float64(f.job.Model.QHeads)
	var steps []float64
	for n := all / float64(16*f.size); n < all; n *= stepRatio {
		steps = append(steps, n)
	}
	return append(steps, all)
}

// classes are the devices of a scope.
func (f *floors) classes(s scope) []class {
	var all []class
	for _, name := range f.names {
		n := s.counts[name]
		if n == 0 {
			continue
		}
		c := f.types[name]
		c.count = n
		if !f.unlimited {
			c.memory = f.memory(name, s.most)
		}
		if s.least > 1 {
			row, hop := f.perByteOf(name, op.KindAllToAll, s), f.perByteOf(name, op.KindSendRecv, s)
			c.rank = f.borderOf(row, hop)
		}
		all = append(all, c)
	}
	return all
}

// optimizer is the least time of the update: of n ranks at work the slowest is
// at best the n-th fastest, and none has less than its share among the most.
func (f *floors) optimizer(s scope) float64 {
	params := f.job.Model.Params()
	if f.job.Zero != costmodel.Zero0 {
		params = (params + int64(s.most) - 1) / int64(s.most)
	}
	var t []float64
	for _, name := range f.names {
		for range min(s.fewest, s.counts[name]) {
			t = append(t, float64(f.adamw[name].Seconds(op.AdamW{Params: params})))
		}
	}
	slices.Sort(t)
	return t[s.fewest-1]
}
