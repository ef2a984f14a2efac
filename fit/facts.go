package fit

import (
	"fmt"
	"math"
	"slices"

	"gonum.org/v1/gonum/stat"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/stats"
	"github.com/evenkeel/evenkeel/internal/units"
)

// facts fills in what a profile knows beside its laws, and its warnings.
func (d *Data) facts(p *costmodel.Profile) {
	for _, dev := range d.Devices {
		m, warnings := d.memory(dev.Name)
		p.Warnings = append(p.Warnings, warnings...)
		if m.Capacity > 0 || m.Reserve > 0 || len(m.Layers) > 0 {
			p.Memory = append(p.Memory, m)
		}
	}
	p.Overlaps = d.overlaps()
	p.Outliers = Outliers(d)
	for _, o := range p.Outliers {
		p.Warnings = append(p.Warnings, o.String()+"; look into it, or leave it out of the cluster")
	}
}

// memory takes the memory ops of a device together: of repeated measurements
// the least capacity and the largest reserve, so that a plan that fits does so
// on a bad day, and a line through the peaks of every layer.
func (d *Data) memory(device string) (costmodel.MemoryFacts, []string) {
	m := costmodel.MemoryFacts{Device: device}
	var layers [][]Gauged
	for _, g := range d.Gauged {
		if g.On != device {
			continue
		}
		switch s := g.Shape.(type) {
		case op.MemCapacity:
			if m.Capacity == 0 || g.Size < m.Capacity {
				m.Capacity = g.Size
			}
		case op.MemReserve:
			m.Reserve = max(m.Reserve, g.Size)
		case op.MemLayer:
			i := slices.IndexFunc(layers, func(of []Gauged) bool { return line(of).Of(s.Layer) })
			if i < 0 {
				i = len(layers)
				layers = append(layers, nil)
			}
			layers[i] = append(layers[i], g)
		}
	}
	var warnings []string
	for _, of := range layers {
		switch l := line(of); {
		case l.MinTokens == l.MaxTokens:
			warnings = append(warnings, fmt.Sprintf("%s on %s: measured at %d tokens only, and a slope takes two lengths; measure another: evenkeel calibrate --fresh", op.KindMemLayer, device, int64(l.MinTokens)))
		case !(l.PerToken > 0):
			warnings = append(warnings, fmt.Sprintf("%s on %s: the peak does not grow with the tokens, so it says nothing about a layer; measure longer ones: evenkeel calibrate --fresh", op.KindMemLayer, device))
		default:
			m.Layers = append(m.Layers, l)
		}
	}
	return m, warnings
}

// line is the least-squares line through the peaks of one layer. Peaks repeat to
// the byte, so nothing robust is called for.
func line(of []Gauged) costmodel.LayerMemory {
	first := of[0].Shape.(op.MemLayer)
	l := costmodel.LayerMemory{
		Hidden: first.Hidden, FFN: first.FFN, QHeads: first.QHeads, KVHeads: first.KVHeads, HeadDim: first.HeadDim, DType: first.DType,
		MinTokens: first.Tokens, MaxTokens: first.Tokens, Points: len(of),
	}
	var x, y []float64
	for _, g := range of {
		n := g.Shape.(op.MemLayer).Tokens
		l.MinTokens, l.MaxTokens = min(l.MinTokens, n), max(l.MaxTokens, n)
		x, y = append(x, float64(n)), append(y, float64(g.Size))
	}
	if l.MinTokens < l.MaxTokens {
		base, slope := stat.LinearRegression(x, y, nil, false)
		l.Base, l.PerToken = units.Bytes(math.Round(base)), slope
	}
	return l
}

// overlaps takes the ratios of every pair together, over its sizes.
func (d *Data) overlaps() []costmodel.OverlapFact {
	type pair struct {
		on            string
		compute, comm op.Kind
		slowed        op.Slowed
	}
	ratios := map[pair][]float64{}
	var order []pair
	for _, g := range d.Gauged {
		s, ok := g.Shape.(op.OverlapPair)
		if !ok {
			continue
		}
		k := pair{g.On, s.Compute, s.Comm, s.Slowed}
		if ratios[k] == nil {
			order = append(order, k)
		}
		ratios[k] = append(ratios[k], g.Ratio)
	}
	var facts []costmodel.OverlapFact
	for _, k := range order {
		r := ratios[k]
		facts = append(facts, costmodel.OverlapFact{
			On: k.on, Compute: k.compute, Comm: k.comm, Slowed: k.slowed,
			Ratio: stats.Median(r), Lo: slices.Min(r), Hi: slices.Max(r), Points: len(r),
		})
	}
	return facts
}
