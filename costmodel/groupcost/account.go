package groupcost

import (
	"math"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
)

// origin is what costs were made from.
type origin struct {
	builder *builder
	groups  []way // by class
	Exchange
}

// way is how the devices of a class share a sequence.
type way struct {
	kind kind
	by   *mechanism
}

// Exchange holds Costs.MicroBase, Costs.Fixed (as Step), Costs.Hidden and Costs.Behind with
// the errors of their laws.
type Exchange struct{ MicroBatch, Step, Hidden, Behind *costmodel.Step }

// Exchange returns the times outside groups with their errors. ok is false for costs of a
// published model, whose error is unknown.
func (c *Costs) Exchange() (x Exchange, ok bool) {
	if c.from == nil {
		return Exchange{}, false
	}
	return c.from.Exchange, true
}

// mostLengths is how many lengths an account tells apart: those between are told by their
// mean, for laws' shares of a group's time change little with it.
const mostLengths = 12

// Account is the time of a group of a class with one or more sequences of the given
// lengths, as Base and Time give it, with its error by the laws that the group's
// simulation uses. It is possible for costs made by FromLaws only (see Exchange).
//
// Errors: a missing law.
func (c *Costs) Account(class int, lengths []units.Tokens) (*costmodel.Step, error) {
	w := c.from.groups[class]
	g, err := c.from.builder.groupOf(w.kind)
	if err != nil {
		return nil, err
	}
	if _, err := g.packer.Passes(w.by.groups, w.by.share, few(lengths, g.shortest(w.by))); err != nil {
		return nil, err
	}
	x := c.Classes[class]
	step, err := g.packer.Brief(x.Recompute, x.OwnLast)
	if err != nil {
		return nil, err
	}
	priced := x.Base
	for _, n := range lengths {
		priced += c.Time(class, n)
	}
	return step.Scaled(priced), nil
}

// few puts lengths together, the longest first, until they are no more than mostLengths.
// None is shorter than the least.
func few(lengths []units.Tokens, least units.Tokens) []costmodel.Documents {
	lengths = slices.Clone(lengths)
	slices.Sort(lengths)
	lo, hi := max(least, lengths[0]), max(least, lengths[len(lengths)-1])
	width := math.Log(float64(hi)/float64(lo)) / mostLengths
	var sums [mostLengths]costmodel.Documents // by logarithm
	for _, n := range lengths {
		n = max(n, least)
		at := 0
		if width > 0 {
			at = min(mostLengths-1, int(math.Log(float64(n)/float64(lo))/width))
		}
		sums[at].Tokens += n
		sums[at].Count++
	}
	var docs []costmodel.Documents
	for _, d := range slices.Backward(sums[:]) {
		if d.Count > 0 {
			docs = append(docs, costmodel.Documents{Tokens: d.Tokens / units.Tokens(d.Count), Count: d.Count})
		}
	}
	return docs
}
