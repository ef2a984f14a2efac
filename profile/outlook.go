package profile

import (
	"fmt"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// Outlook is what a calibration would measure, family by family.
type Outlook struct {
	Budget   units.Seconds `json:"budget_s"`
	Each     units.Seconds `json:"point_time_s"` // for the samples of one point
	Families []Outline     `json:"families"`
	Once     []Spot        `json:"once,omitempty"` // measured once, without a choice of shapes
	Peers    int           `json:"peers,omitzero"` // points at further devices or groups of a kind, to be compared with the first
}

// Outline is one family of shapes of an Outlook.
type Outline struct {
	On       string     `json:"on"`
	Op       op.Kind    `json:"op"`
	Variant  op.Variant `json:"variant,omitzero"`
	Points   int        `json:"points"`
	Smallest Spot       `json:"smallest"`
	Largest  Spot       `json:"largest"` // upper end of the axes; the budget may not suffice for it
}

// DryRun says what a calibration would measure, without running anything. With a Chooser
// the number of points is an estimate.
//
// Errors: nothing to measure, or a budget that is too short.
func DryRun(inv *Inventory, cfg Config) (*Outlook, error) {
	c, budget := &calibration{Config: cfg}, units.Seconds(cfg.Budget.Seconds())
	spaces := c.wanted(inv.Spaces)
	points, each, err := c.aims(inv, budget)
	if err != nil {
		return nil, err
	}
	o := &Outlook{Budget: budget, Each: each, Once: c.wantedOnce(inv.Once), Peers: inv.peers()}
	for i, n := range c.counts(spaces, points) {
		sp := spaces[i]
		small := NewSpot(sp.On, sp.at(0))
		o.Families = append(o.Families, Outline{
			On: sp.On, Op: sp.Kind, Variant: small.Shape.Variant(), Points: n, Smallest: small, Largest: NewSpot(sp.On, sp.at(1)),
		})
	}
	return o, nil
}

// aims is aims for the wanted spaces of an inventory.
func (c *calibration) aims(inv *Inventory, budget units.Seconds) (points int, each units.Seconds, err error) {
	spaces := c.wanted(inv.Spaces)
	if len(spaces) == 0 {
		return 0, 0, &AskedError{fmt.Sprintf("nothing to measure: the %s backend offers %v, --only asks for %v: ask for some of those, or leave --only out", inv.Backend, kinds(inv.Spaces), c.Only)}
	}
	return aims(len(spaces), c.Points, budget)
}

// counts splits a number of points among the spaces.
func (c *calibration) counts(spaces []Space, points int) []int {
	counts := shares(spaces, points)
	for i, sp := range spaces {
		if c.Points > 0 {
			counts[i] = c.Points
		}
		if sp.Shapes != nil {
			counts[i] = min(counts[i], len(sp.Shapes))
		}
	}
	return counts
}
