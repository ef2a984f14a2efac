package fit

import (
	"fmt"
	"slices"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
)

// assumeBetween settles what lies between the nodes of a cluster, and adds laws of what of it
// was not measured.
func assumeBetween(p, own *costmodel.Profile, c *costmodel.Cluster) error {
	measured, partly := networks(own, *c)
	if c.Network == "" {
		switch {
		case len(measured) > 1:
			return fmt.Errorf("the profile has collectives between nodes over the link classes %s; choose with --network", strings.Join(measured, ", "))
		case len(measured) == 1:
			c.Network = measured[0]
		default:
			return assumeUnmeasured(p, own, c)
		}
	}
	if slices.Contains(partly, c.Network) && !slices.ContainsFunc(c.Links, func(l costmodel.Link) bool { return l.Name == c.Network }) {
		// A silent datasheet is no error yet: nobody may ask for what was not measured.
		_ = assumeNetwork(p, *c, func(w costmodel.AssumedWire) { complete(p, own, w) })
	}
	return nil
}

// assumeUnmeasured makes up a network that nobody measured.
func assumeUnmeasured(p, own *costmodel.Profile, c *costmodel.Cluster) error {
	c.Network = NetworkLink
	err := assumeNetwork(p, *c, func(w costmodel.AssumedWire) { assumeWire(p, w) })
	if err == nil {
		return nil
	}
	if c.Network = onlyClass(own, devicesOf(*c)); c.Network == "" {
		return choosing(err, own, "--network")
	}
	return nil
}

// networks lists the link classes over which a profile has collectives measured between nodes
// of a cluster's GPU models, sorted: of all of these together or else of some, and in partly
// those of either.
func networks(own *costmodel.Profile, c costmodel.Cluster) (measured, partly []string) {
	have := models(devicesOf(c))
	for _, g := range own.Groups {
		of := models(g.Members)
		if g.Nodes < 2 || !among(of, have) || !slices.ContainsFunc(own.Laws, func(l costmodel.Law) bool { return l.Group == g.Name && l.Assumed == "" }) {
			continue
		}
		partly = append(partly, g.Link)
		if len(of) == len(have) {
			measured = append(measured, g.Link)
		}
	}
	slices.Sort(partly)
	slices.Sort(measured)
	partly, measured = slices.Compact(partly), slices.Compact(measured)
	if len(measured) == 0 {
		measured = partly
	}
	return measured, partly
}

func devicesOf(c costmodel.Cluster) (all []op.Member) {
	for _, n := range c.Nodes {
		all = append(all, n.Devices...)
	}
	return all
}

// among says whether all names are among others.
func among(names, others []string) bool {
	return !slices.ContainsFunc(names, func(n string) bool { return !slices.Contains(others, n) })
}

// complete adds the laws of a measured link class that its user's profile lacks.
func complete(p, own *costmodel.Profile, w costmodel.AssumedWire) {
	w.By = bySheets
	g, laws := w.Laws()
	for _, l := range laws {
		if holdsOver(own, g, l.Op) {
			continue
		}
		if !slices.ContainsFunc(p.Groups, func(o op.GroupType) bool { return o.Name == g.Name }) {
			p.Groups = append(p.Groups, g)
		}
		for _, l.Variant = range variantsOver(own, g.Link, l.Op) {
			if !slices.ContainsFunc(p.Laws, func(o costmodel.Law) bool { return o.Group == g.Name && o.Op == l.Op && o.Variant == l.Variant }) {
				p.Laws = append(p.Laws, l)
			}
		}
	}
}

// holdsOver says whether a profile has a law of a collective between nodes over a group's link
// class that holds for the group: one among its GPU models or among more, for a group is as
// slow as its slowest device. An all_reduce holds for a reduce_scatter (see
// costmodel.Predictor.Over).
func holdsOver(own *costmodel.Profile, g op.GroupType, k op.Kind) bool {
	if k == op.KindReduceScatter && holdsOver(own, g, op.KindAllReduce) {
		return true
	}
	return slices.ContainsFunc(own.Groups, func(o op.GroupType) bool {
		return o.Link == g.Link && o.Nodes > 1 && among(models(g.Members), models(o.Members)) &&
			slices.ContainsFunc(own.Laws, func(l costmodel.Law) bool { return l.Group == o.Name && l.Op == k })
	})
}

// variantsOver lists the element types in which a profile has laws of a collective over a link
// class: laws that are assumed of further devices beside these are of the same, for one without
// an element type would be asked before them.
func variantsOver(own *costmodel.Profile, link string, k op.Kind) []op.Variant {
	var all []op.Variant
	for _, l := range own.Laws {
		if l.Op == k && !slices.Contains(all, l.Variant) && slices.ContainsFunc(own.Groups, func(g op.GroupType) bool { return g.Name == l.Group && g.Link == link && g.Nodes > 1 }) {
			all = append(all, l.Variant)
		}
	}
	if len(all) == 0 {
		return []op.Variant{{}}
	}
	return all
}

// onlyClass is the link class of a profile that has one, where it knows all members.
func onlyClass(own *costmodel.Profile, members []op.Member) string {
	var known []string
	for _, d := range own.Devices {
		known = append(known, costmodel.ModelOf(d.Name))
	}
	if classes := costmodel.LinkClasses(own); len(classes) == 1 && among(models(members), known) {
		return classes[0]
	}
	return ""
}

// choosing adds to the error of a silent datasheet how a link class is chosen.
func choosing(err error, own *costmodel.Profile, flag string) error {
	class := "net"
	if flag == "--link" {
		class = "bus"
	}
	have := "name a link class of the profile"
	if classes := costmodel.LinkClasses(own); len(classes) > 0 {
		have = "name a link class that the profile was measured over (" + strings.Join(classes, ", ") + ")"
	}
	return fmt.Errorf("%w; %s with %s, or one of your own with its rate, such as %s %s=25GB/s", err, have, flag, flag, class)
}
