package recorded

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/profile"
)

// add reads one recording. Points at further places and canaries are left out:
// the first would be another device's times, the second tell of drift only. So are
// lines that stand there twice, which would be replayed as further visits.
func (b *Backend) add(name string, r io.Reader, first bool) error {
	spaces := map[string]int{}
	for i, sp := range b.inventory.Spaces {
		spaces[law(sp.On, sp.Shapes[0])] = i
	}
	point := func(p *profile.Point) error {
		if p.Class != profile.Cut { // nothing is known of it
			b.observe(p, spaces)
		}
		return nil
	}
	_, err := b.copies.Read(name, r, profile.Visitor{
		Header: func(h *profile.Header) error { return b.header(h, first) },
		Point:  point,
		Again:  point,
	})
	return err
}

func (b *Backend) header(h *profile.Header, first bool) error {
	inv := &b.inventory
	if first {
		inv.Simulated, inv.Machine, inv.Others = h.Simulated, h.Machine, h.Others
	} else if inv.Simulated != h.Simulated {
		return fmt.Errorf("simulated: %v: simulated and measured recordings are never replayed together", h.Simulated)
	}
	for _, d := range h.Devices {
		i := slices.IndexFunc(inv.Devices, func(o op.DeviceType) bool { return o.Name == d.Name })
		switch {
		case i < 0:
			inv.Devices = append(inv.Devices, d)
		case inv.Devices[i] != d:
			return fmt.Errorf("devices: %q is another device in an earlier recording (fingerprint %.12s, here %.12s): replay them apart", d.Name, inv.Devices[i].Fingerprint, d.Fingerprint)
		}
	}
	for _, g := range h.Groups {
		if !slices.ContainsFunc(inv.Groups, func(o op.GroupType) bool { return o.Name == g.Name }) {
			inv.Groups = append(inv.Groups, g)
		}
	}
	for _, note := range h.Notes {
		if !slices.Contains(inv.Notes, note) {
			inv.Notes = append(inv.Notes, note)
		}
	}
	return nil
}

// law tells families of shapes apart: those that one law is fitted to.
func law(on string, s op.Shape) string {
	return fmt.Sprintf("%s %s %+v", on, s.Kind(), s.Variant())
}

// observe takes in one visit of a point and files its shape under its law.
func (b *Backend) observe(p *profile.Point, spaces map[string]int) {
	key := p.Spot.Key("")
	known := b.points[key]
	if known == nil {
		known = &point{}
		b.points[key] = known
		b.file(p, spaces)
	}
	switch {
	case p.OK() && len(p.Times) > 0:
		known.failed = nil
		known.visits = append(known.visits, secondsOf(p.Times))
		known.ranks = append(known.ranks, rankTimes(p))
	case p.OK():
		known.failed, known.gauge = nil, float64(p.Size)+p.Ratio // a point has but one of them
	case len(known.visits) == 0 && known.gauge == 0:
		known.failed = &profile.OpError{Class: p.Class, Err: errors.New(p.Error)}
	}
}

func (b *Backend) file(p *profile.Point, spaces map[string]int) {
	if spec, err := op.Lookup(p.Op); err == nil && spec.Measures != op.Time {
		b.inventory.Once = append(b.inventory.Once, profile.NewSpot(p.On, p.Shape))
		return
	}
	name := law(p.On, p.Shape)
	i, ok := spaces[name]
	if !ok {
		i = len(b.inventory.Spaces)
		spaces[name] = i
		b.inventory.Spaces = append(b.inventory.Spaces, profile.Space{On: p.On, Kind: p.Op, Share: 1})
	}
	b.inventory.Spaces[i].Shapes = append(b.inventory.Spaces[i].Shapes, p.Shape)
}

func secondsOf(times []float64) []units.Seconds {
	out := make([]units.Seconds, len(times))
	for i, t := range times {
		out[i] = units.Seconds(t)
	}
	return out
}

func rankTimes(p *profile.Point) [][]units.Seconds {
	var all [][]units.Seconds
	for _, times := range p.RankTimes {
		all = append(all, secondsOf(times))
	}
	return all
}
