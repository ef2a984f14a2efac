package main

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/fit"
	"github.com/evenkeel/evenkeel/internal/units"
)

// mostProfile is the size that a fitted profile should stay under: it is committed, read over
// by people and read whole by every command that plans.
const mostProfile units.Bytes = 200_000

// remarkOnSize warns of a profile that is written and larger than that, with what its laws are
// of. It is no less right for it.
func (a *app) remarkOnSize(out string, p *costmodel.Profile) {
	info, err := os.Stat(out)
	if err != nil || !info.Mode().IsRegular() || units.Bytes(info.Size()) <= mostProfile {
		return
	}
	a.note("warning: %s has %d KB, and a profile should have less than %d: it has %s on %s (%s); fit the recordings of each software version into a profile of its own, and plan with those that the cluster runs: --profile a.profile.json,b.profile.json",
		out, info.Size()/1000, mostProfile/1000, units.Count(len(p.Laws), "law"), units.Count(len(places(p)), "place"), familiesOf(p))
}

// places are the devices and groups that a profile has laws of.
func places(p *costmodel.Profile) []string {
	var all []string
	for i := range p.Laws {
		all = append(all, p.Laws[i].On())
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// familiesOf counts laws by family, the most first: "66 collective, 3 attention".
func familiesOf(p *costmodel.Profile) string {
	laws := map[fit.Family]int{}
	for i := range p.Laws {
		laws[fit.FamilyOf(p.Laws[i].Op)]++
	}
	var parts []string
	for _, f := range slices.SortedStableFunc(slices.Values(fit.Families()), func(a, b fit.Family) int { return cmp.Compare(laws[b], laws[a]) }) {
		if laws[f] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", laws[f], f))
		}
	}
	return strings.Join(parts, ", ")
}
