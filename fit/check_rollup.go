package fit

import (
	"slices"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
)

// All stands for the bands, or the ops, that a rolled-up stratum takes together.
const All = "all"

// strand is a stratum with its points, before it is rolled up with others.
type strand struct {
	stratum CheckedStratum
	place   string // its device type, or device types and link class of its group
	pairs   []Pair
}

// rollUps judges together what is cut too fine to be judged alone: strata with
// too few points are taken with their neighbours of the same limit, first over
// bands and group sizes, then over ops. Without it a sparse table, such as 20
// message sizes for each of four collectives, would never be judged. Sources,
// device types and link classes stay apart.
func rollUps(strands []strand, f *Limits, groups []op.GroupType) []CheckedStratum {
	byOp := gather(strands, func(s *CheckedStratum) op.Kind { return s.Op }, f, groups)
	byFamily := gather(byOp, func(*CheckedStratum) op.Kind { return All }, f, groups)
	var all []CheckedStratum
	for _, s := range byOp {
		if s.stratum.Band == All {
			all = append(all, s.stratum)
		}
	}
	for _, s := range byFamily {
		if s.stratum.Op == All { // an op that is alone in its family is in byOp already
			all = append(all, s.stratum)
		}
	}
	named := map[string]int{}
	for i := range all {
		named[all[i].String()]++
	}
	for i := range all {
		all[i].several = named[all[i].String()] > 1
	}
	return all
}

// gather joins the strands of one limit, place and op as named; those that are
// alone, or with enough points in each, stay as they are.
func gather(strands []strand, named func(*CheckedStratum) op.Kind, f *Limits, groups []op.GroupType) []strand {
	type key struct {
		limit, place string
		source       costmodel.Source
		op           op.Kind
	}
	var order []key
	members := map[key][]strand{}
	for _, s := range strands {
		if !s.stratum.judged() {
			continue
		}
		k := key{s.stratum.LimitID, s.place, s.stratum.Source, named(&s.stratum)}
		if _, ok := members[k]; !ok {
			order = append(order, k)
		}
		members[k] = append(members[k], s)
	}
	var all []strand
	for _, k := range order {
		of := members[k]
		sparse := slices.ContainsFunc(of, func(s strand) bool { return s.stratum.Verdict == Insufficient })
		if len(of) < 2 || !sparse {
			all = append(all, of...)
			continue
		}
		all = append(all, join(of, k.op, f, groups))
	}
	return all
}

func join(of []strand, kind op.Kind, f *Limits, groups []op.GroupType) strand {
	j := strand{place: of[0].place}
	for _, s := range of {
		j.pairs = append(j.pairs, s.pairs...)
	}
	j.stratum = newStratum(j.pairs, f, groups)
	j.stratum.On, j.stratum.Op, j.stratum.Band = j.place, kind, All
	return j
}

// placeOf is where a stratum counts as measured when it is rolled up: groups of
// the same device types over one link class are one place.
func placeOf(on string, groups []op.GroupType) string {
	g := groupNamed(groups, on)
	if g.Link == "" {
		return on
	}
	var devices []string
	for _, m := range g.Members {
		devices = append(devices, m.Device)
	}
	name := strings.Join(devices, " + ") + " over " + g.Link
	if g.Nodes > 1 {
		name += " between nodes"
	}
	return name
}
