package groupcost

import (
	"context"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
)

// Probe lets tests simulate what a class was priced from.
type Probe struct {
	Uses    []int
	Packer  *costmodel.Packer
	Groups  []costmodel.Group
	Shares  []float64
	Heads   int
	Cap     units.Tokens
	Least   units.Tokens // shortest sequence that is simulated
	Base    units.Seconds
	OwnLast bool
	// Loads are groups for which mechanisms are compared, Times what this one takes over them.
	Loads [2]costmodel.Documents
	Times [2]units.Seconds
	curve curve
}

// Passes simulates documents in a group of the class.
func (p Probe) Passes(docs ...costmodel.Documents) (costmodel.Passes, error) {
	x, err := p.Packer.Passes(p.Groups, p.Shares, docs)
	if err != nil || !p.OwnLast {
		return x, err
	}
	return p.Packer.OwnLast()
}

// Time is the class's price.
func (p Probe) Time(s units.Tokens) units.Seconds { return p.curve.at(s) }

// Few is few.
func Few(lengths []units.Tokens, least units.Tokens) []costmodel.Documents {
	return few(lengths, least)
}

// Probes makes a probe of every kind of group that keeps activations, for sequences of all
// lengths or of one.
func Probes(ctx context.Context, q *costmodel.Predictor, j costmodel.Job, of costmodel.Documents) ([]Probe, error) {
	b := newBuilder(q, j, Options{NoRecompute: true, Of: of})
	if err := b.weighHeads(ctx); err != nil {
		return nil, err
	}
	var probes []Probe
	for _, k := range append(b.singles(), b.mixes()...) {
		g, err := b.groupOf(k)
		if err != nil {
			return nil, err
		}
		ways, err := g.choose(ctx)
		if err != nil {
			return nil, err
		}
		fits, err := g.fitting(ctx)
		if err != nil {
			return nil, err
		}
		for _, m := range ways {
			loads := g.loads(fits)
			for i := range loads {
				loads[i].Tokens = max(loads[i].Tokens, g.shortest(m))
			}
			kept, _, err := g.measure(ctx, m)
			if err != nil {
				return nil, err
			}
			probes = append(probes, Probe{k.uses, g.packer, m.groups, m.share, m.heads, kept.tokens, g.shortest(m), kept.base, m.OwnLast, loads, m.times, kept.curve})
		}
	}
	return probes, nil
}

// Tabulate makes a table of the times that f gives at rising lengths, and its lookup.
func Tabulate(lengths []float64, f func(float64) float64) func(units.Tokens) units.Seconds {
	var points []sample
	for _, s := range lengths {
		points = append(points, sample{s, f(s)})
	}
	c := tabulate(points)
	return c.at
}

// DealHeads lets tests deal heads to pools without pricing anything.
var DealHeads = dealHeads

// Mixes are the devices, by pool, of the groups of several types, and how long a device
// of each pool takes over a head.
func Mixes(ctx context.Context, q *costmodel.Predictor, j costmodel.Job) (uses [][]int, perHead []float64, err error) {
	b := newBuilder(q, j, Options{})
	if err := b.weighHeads(ctx); err != nil {
		return nil, nil, err
	}
	for _, k := range b.mixes() {
		uses = append(uses, k.uses)
	}
	return uses, b.perHead, nil
}
