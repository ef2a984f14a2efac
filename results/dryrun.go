package results

import (
	"fmt"
	"io"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/profile"
)

// DryRun prints what a calibration would measure, with what and for how long,
// and what is not there and why.
func DryRun(w io.Writer, inv *profile.Inventory, o *profile.Outlook) error {
	p, n := &printer{w: w}, &notes{}
	points := 0
	for _, f := range o.Families {
		points += f.Points
	}
	what := "measures real work"
	if inv.Simulated {
		what = "measures nothing: the cluster is made up"
	}
	p.para("", fmt.Sprintf("%s dry run: backend %s %s, about %s in %s", stamp(inv.Simulated), inv.Backend, what, plural(points, "point"), seconds(o.Budget)))
	machines(p, n, append([]profile.Machine{inv.Machine}, inv.Others...)...)
	devices(p, inv.Devices, inv.Groups)
	p.printf("\n")
	t := newTable(column{title: "op"}, column{title: "variant"}, column{title: "on"}, column{title: "points", number: true}, column{title: "axes, smallest to largest", most: 60})
	for _, f := range o.Families {
		t.row(string(f.Op), f.Variant.String(), f.On, fmt.Sprint(f.Points), axes(f))
	}
	t.render(p)
	onceAndPeers(p, o)
	n.add("the largest shapes are the ends of the axes: a longer --budget reaches further into them")
	n.add(inv.Notes...)
	n.render(p)
	return p.err
}

// onceAndPeers says what is measured besides the families.
func onceAndPeers(p *printer, o *profile.Outlook) {
	var kinds []string
	count := map[string]int{}
	for _, s := range o.Once {
		if count[string(s.Op)]++; count[string(s.Op)] == 1 {
			kinds = append(kinds, string(s.Op))
		}
	}
	for i, k := range kinds {
		if count[k] > 1 {
			kinds[i] = fmt.Sprintf("%s x%d", k, count[k])
		}
	}
	if len(kinds) > 0 {
		p.para("", "measured once each: "+strings.Join(kinds, ", "))
	}
	if o.Peers > 0 {
		p.para("", "compared with the first of their kind at a few points, so that slow ones are named: "+plural(o.Peers, "further place"))
	}
}

func axes(f profile.Outline) string {
	small, ok1 := f.Smallest.Shape.(op.Located)
	large, ok2 := f.Largest.Shape.(op.Located)
	if !ok1 || !ok2 {
		return none
	}
	text := ""
	for i, name := range op.CoordNames(f.Op) {
		if i > 0 {
			text += ", "
		}
		text += fmt.Sprintf("%s %.0f-%.0f", name, small.Coords()[i], large.Coords()[i])
	}
	return text
}
