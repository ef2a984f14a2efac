package solver

import (
	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/internal/analytic"
	"github.com/evenkeel/evenkeel/solver/internal/strategy"
)

// ordered is the problem that strategies solve: the same devices in an order which does not
// depend on how the cluster lists them, or plans would differ by a few per cent where many
// layouts are nearly as fast.
type ordered struct {
	*strategy.Problem
	listed []int // by rank of Problem, that rank as the cluster lists it; nil where they are the same
	place  func(listed int) string
}

// inOrder is the problem that strategies solve: see costmodel.Cluster.Ordered.
func (p *Problem) inOrder() (ordered, error) {
	m, err := analytic.New(p.posed)
	if err != nil {
		return ordered{}, err
	}
	c, listed := p.Job.Cluster.Ordered(p.paces(m), func(node int) float64 { return p.linkPace(m, node) })
	if listed == nil {
		return ordered{Problem: p.posed}, nil
	}
	o := ordered{listed: listed, place: p.posed.Place}
	o.Problem, err = p.posed.On(c)
	return o, err
}

// paces are those of each device type: over a layer of half of the sequence.
func (p *Problem) paces(m *analytic.Model) map[string]costmodel.DevicePace {
	paces := map[string]costmodel.DevicePace{}
	for r, k := range p.posed.Ranks {
		if _, known := paces[k.Device]; !known {
			own := m.Block(analytic.Block{Type: m.TypeOf[r], Heads: p.Job.Model.QHeads, KVHeads: p.Job.Model.KVHeads, Q: p.half()})
			paces[k.Device] = costmodel.DevicePace{
				Linear: m.LinearTime(m.TypeOf[r], p.half()), Attention: own.Forward + own.Backward,
				Memory: p.Predictor.DeviceMemory(p.Job, k.Device).Capacity,
			}
		}
	}
	return paces
}

// linkPace is what a node's devices take to pass the keys of half of the sequence on, in seconds.
func (p *Problem) linkPace(m *analytic.Model, node int) float64 {
	j := p.Job
	keys := float64(p.half()) * float64(j.Model.KVHeads*j.Model.HeadDim) * float64(j.DType.Size())
	return m.Inside[node].Seconds(op.KindSendRecv, keys)
}

func (p *Problem) half() units.Tokens { return max(1, p.Job.SeqLen/2) }

// ofListed is a layout of ranks as the cluster lists them, as one of this problem.
func (o ordered) ofListed(l costmodel.Layout) costmodel.Layout {
	if o.listed == nil {
		return l
	}
	to := make([]int, len(o.listed))
	for r, as := range o.listed {
		to[as] = r
	}
	return l.Relabelled(to)
}

// listAll gives attempts the ranks of the cluster as it is listed.
func (o ordered) listAll(found []strategy.Attempt) {
	if o.listed == nil {
		return
	}
	for i := range found {
		a := &found[i]
		if a.Illegal != "" {
			continue
		}
		a.Layout, a.Step = a.Layout.Relabelled(o.listed), a.Step.Relabelled(o.listed)
		if a.MemErr != nil {
			e := *a.MemErr
			e.Rank = o.listed[e.Rank]
			e.Place = o.place(e.Rank)
			a.MemErr = &e
		}
	}
}
