package costmodel

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/evenkeel/evenkeel/costmodel/op"
)

// stacks lists a group's members under the names that groups over a link class
// may have for them: their own; or where no group with a law of the collective
// knows one of those, each software stack that the collective was measured under
// on the same GPU models, libraries by name and of each the newest version first. Their own
// names come last.
func (q *Predictor) stacks(link string, kind op.Kind, members []op.Member) [][]op.Member {
	var all [][]op.Member
	for _, g := range q.groups {
		if g.Link != link || !q.answers(g, kind) {
			continue
		}
		for _, m := range members {
			// A group with further types says nothing of how these are named by themselves.
			if typesWithin(g.Members, members) && slices.ContainsFunc(g.Members, func(o op.Member) bool { return o.Device == m.Device }) {
				return [][]op.Member{members}
			}
		}
		as := renamed(members, g.Members)
		same := func(o []op.Member) bool { return slices.Equal(o, as) }
		if as != nil && !same(members) && !slices.ContainsFunc(all, same) {
			all = append(all, as)
		}
	}
	slices.SortStableFunc(all, compareStacks)
	return append(all, members)
}

// having is stacks with those first that a law is of, for whatever number of devices: a group that
// was not measured goes by the nearest of its own stack.
func (q *Predictor) having(stacks [][]op.Member, k wireLaw) [][]op.Member {
	if len(stacks) < 2 {
		return stacks
	}
	var has, lacks [][]op.Member
	for _, m := range stacks {
		if slices.ContainsFunc(q.wired[k], func(w wired) bool { return typesWithin(m, w.group.Members) }) {
			has = append(has, m)
		} else {
			lacks = append(lacks, m)
		}
	}
	return append(has, lacks...)
}

// sameModels says whether groups differ in their software alone.
func sameModels(a, b []op.Member) bool {
	return slices.EqualFunc(a, b, func(x, y op.Member) bool { return x.Count == y.Count && ModelOf(x.Device) == ModelOf(y.Device) })
}

// compareStacks orders members of the same models by their software: see compareSoftware.
func compareStacks(a, b []op.Member) int {
	return slices.CompareFunc(a, b, func(x, y op.Member) int { return compareSoftware(stackOf(x.Device), stackOf(y.Device)) })
}

// stackOf is the software in the name of a device type, behind the slash.
func stackOf(device string) string {
	_, stack, _ := strings.Cut(device, "/")
	return stack
}

// compareSoftware orders libraries by name and each one's versions from the newest to the oldest.
// What nobody measured comes last.
func compareSoftware(a, b string) int {
	if borrowed := a == BorrowedStack; borrowed != (b == BorrowedStack) {
		if borrowed {
			return 1
		}
		return -1
	}
	x, v := libraryOf(a)
	y, w := libraryOf(b)
	return cmp.Or(strings.Compare(x, y), compareVersions(w, v), strings.Compare(a, b))
}

// libraryOf cuts "nccl-2.29.2" into its library and version, which begins with a digit; without
// one it is "".
func libraryOf(stack string) (library, version string) {
	for i := 0; i+1 < len(stack); i++ {
		if stack[i] == '-' && isDigit(stack[i+1]) {
			return stack[:i], stack[i+1:]
		}
	}
	return stack, ""
}

// compareVersions compares numbers as numbers: 2.9 is before 2.27.3. One that ends is before what
// goes on with a further number, and after what goes on with letters, as a release candidate does.
func compareVersions(a, b string) int {
	for a != "" || b != "" {
		x, y := firstRun(a), firstRun(b)
		a, b = a[len(x):], b[len(y):]
		c := cmp.Compare(runRank(x), runRank(y))
		if c == 0 && isDigit(x[0]) {
			x, y = strings.TrimLeft(x, "0"), strings.TrimLeft(y, "0")
			c = cmp.Compare(len(x), len(y))
		}
		if c = cmp.Or(c, strings.Compare(x, y)); c != 0 {
			return c
		}
	}
	return 0
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

// firstRun is what a version begins with: digits, letters, or what separates these.
func firstRun(version string) string {
	for i := range version {
		if runRank(version[i:]) != runRank(version) {
			return version[:i]
		}
	}
	return version
}

// runRank orders what versions may go on with behind the same beginning.
func runRank(rest string) int {
	switch r, _ := utf8.DecodeRuneInString(rest); {
	case rest == "":
		return 1
	case unicode.IsLetter(r):
		return 0
	case isDigit(rest[0]):
		return 3
	}
	return 2
}

// Software tells of collectives that were measured on GPU models of a cluster under several
// versions of a library, or several libraries, whose laws are used (see stacks).
func (q *Predictor) Software(c Cluster) []string {
	var said []string
	tell := func(link string, members []op.Member) {
		for _, m := range members {
			if w := q.softwareOf(link, m.Device); w != "" && !slices.Contains(said, w) {
				said = append(said, w)
			}
		}
	}
	for _, n := range c.Nodes {
		if n.Size() > 1 {
			tell(n.Link, n.Devices)
		}
		if len(c.Nodes) > 1 {
			tell(c.Network, n.Devices)
		}
	}
	slices.Sort(said) // in whatever order the cluster lists its nodes
	return said
}

// measuredIn is a collective in a group of so many ranks.
type measuredIn struct {
	kind    op.Kind
	variant op.Variant
	ranks   int
}

// softwareOf is Software of one device type over a link class.
func (q *Predictor) softwareOf(link, device string) string {
	of := map[string][]measuredIn{} // by device type
	var several []string            // that were measured in one collective
	for _, kind := range messageOps() {
		if len(q.stacks(link, kind, []op.Member{{Device: device, Count: 1}})) < 2 { // it is named so itself
			continue
		}
		for _, v := range q.types[wireOf{link, kind}] {
			var here []string
			for _, w := range q.wired[wireLaw{wireOf{link, kind}, v}] {
				i := slices.IndexFunc(w.group.Members, func(o op.Member) bool { return ModelOf(o.Device) == ModelOf(device) })
				if i >= 0 && w.law.Assumed == "" {
					name := w.group.Members[i].Device
					of[name] = append(of[name], measuredIn{kind, v, w.group.Ranks()})
					here = append(here, name)
				}
			}
			if slices.Sort(here); len(slices.Compact(slices.Clone(here))) > 1 {
				several = append(several, here...)
			}
		}
	}
	if len(several) == 0 {
		return ""
	}
	slices.SortFunc(several, func(a, b string) int { return cmp.Or(compareSoftware(stackOf(a), stackOf(b)), strings.Compare(a, b)) })
	several = slices.Compact(several)
	lacks, stacks := "", make([]string, len(several))
	for i, name := range several {
		stacks[i] = cmp.Or(stackOf(name), name)
		if slices.ContainsFunc(of[name], func(m measuredIn) bool { return !slices.Contains(of[several[0]], m) }) {
			lacks = "; where it has none, those of the others in that order"
		}
	}
	return fmt.Sprintf("collectives of %s over %s: laws of %s are used, the %s%s; to plan with another, fit its points alone, such as evenkeel fit --stack %s", ModelOf(device), link, stacks[0], amongStacks(stacks), lacks, stacks[1])
}

// amongStacks says why the first of some software stacks, in their order, is used.
func amongStacks(stacks []string) string {
	library, _ := libraryOf(stacks[0])
	var versions []string
	for _, s := range stacks {
		if of, version := libraryOf(s); of == library && version != "" {
			versions = append(versions, version)
		}
	}
	if len(versions) == len(stacks) {
		return fmt.Sprintf("newest of %d versions in the profile (%s)", len(stacks), strings.Join(versions, ", "))
	}
	return fmt.Sprintf("first of %d in the profile by name and then the newest (%s)", len(stacks), strings.Join(stacks, ", "))
}
