package solver

import (
	"math"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// gainError is the half width of the 90 % interval of how much faster layout b
// is than layout a: the part of the model's error that does not cancel between
// the two.
//
// A law that is 5 % too slow is so under both layouts, and where both use it
// alike nothing of that reaches the difference. So every law in turn is slowed
// by the upper end of its measured spread, both layouts are simulated again, and
// the changes of the difference add in quadrature, as errors of different laws
// do throughout the cost model. Comparing the two intervals instead would call
// nearly every gain a tie, for most of their width is common to both.
func (p *Problem) gainError(a, b costmodel.Layout) (units.Seconds, error) {
	usual, err := gain(p.Predictor, p.Job, a, b)
	if err != nil {
		return 0, err
	}
	squares := 0.0
	for i := range p.Profile.Laws {
		if !p.uses(&p.Profile.Laws[i]) {
			continue
		}
		slowed, err := gain(costmodel.NewPredictor(slower(p.Profile, i)), p.Job, a, b)
		if err != nil {
			return 0, err
		}
		squares += float64(slowed-usual) * float64(slowed-usual)
	}
	return units.Seconds(math.Sqrt(squares)), nil
}

func gain(q *costmodel.Predictor, j costmodel.Job, a, b costmodel.Layout) (units.Seconds, error) {
	from, err := costmodel.Simulate(q, j, a)
	if err != nil {
		return 0, err
	}
	to, err := costmodel.Simulate(q, j, b)
	if err != nil {
		return 0, err
	}
	return from.Time.Mid - to.Time.Mid, nil
}

// uses says whether a law is of a device type or link class of the cluster; the
// others change nothing, they would only cost simulations.
func (p *Problem) uses(l *costmodel.Law) bool {
	if l.Group == "" {
		return slices.ContainsFunc(p.devices, func(d op.DeviceType) bool { return d.Name == l.Device })
	}
	at := slices.IndexFunc(p.Profile.Groups, func(g op.GroupType) bool { return g.Name == l.Group })
	link := p.Profile.Groups[at].Link // a valid profile has the groups of its laws
	c := p.Job.Cluster
	return link == c.Network || slices.ContainsFunc(c.Nodes, func(n costmodel.Node) bool { return n.Link == link })
}

// slower is the profile with law i slowed by the upper end of its spread.
func slower(profile *costmodel.Profile, i int) *costmodel.Profile {
	p := *profile
	p.Laws = append([]costmodel.Law(nil), profile.Laws...)
	p.Laws[i] = p.Laws[i].Slowed(p.Laws[i].Spread.Hi)
	return &p
}
