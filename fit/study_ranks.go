package fit

import (
	"fmt"
	"hash/fnv"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
)

// heldSize holds a quarter of a collective's sizes out, the same ones in every
// library, version and element type: those fitted together are near-repeats of
// each other, and a size that one of them keeps would tell it to the rest.
func heldSize(p Point) bool {
	h := fnv.New32a()
	ranks := 0
	if g, ok := p.Shape.(op.Grouped); ok {
		ranks = g.Ranks()
	}
	fmt.Fprintf(h, "%s %d %d", p.Shape.Kind(), ranks, int64(p.Shape.(op.Located).Coords()[0]))
	// The last byte of FNV-1a moves its high bits little: mix before counting.
	x := h.Sum32()
	return (x^x>>15)*2654435761>>16%4 == 0
}

// fewestSizes of groups must be left to say how a collective grows with its group.
const fewestSizes = 2

// studyRanks fits the collectives of every library without those of its largest
// group and predicts these as a plan would: by the steps over the group's size.
// The simpler forms are those of the largest group that is left, by the bytes on
// the busiest port.
func (d *Data) studyRanks(split Split) []StudyRow {
	var rows []StudyRow
	for _, l := range d.libraries(d.Strata()) {
		most, sizes := d.largest(l.strata)
		if sizes <= fewestSizes || l.group.Nodes != 1 || soleDevice(l.group) == "" {
			continue
		}
		var train, test []Stratum
		for _, s := range l.strata {
			if d.ranksOf(s) < most {
				train = append(train, s)
			} else {
				test = append(test, s)
			}
		}
		together := d.collectives(train)
		for _, s := range test {
			rows = append(rows, d.studyGroup(split, together.steps, train, s, most)...)
		}
	}
	return rows
}

// studyGroup are the rows of one collective of a group that no fit saw.
func (d *Data) studyGroup(split Split, steps []costmodel.Steps, train []Stratum, s Stratum, ranks int) []StudyRow {
	i := slices.IndexFunc(steps, func(x costmodel.Steps) bool { return x.Op == s.Op && x.Variant == s.Variant })
	var near *Stratum
	fitted := 0
	for k := range train {
		t := &train[k]
		if t.Op != s.Op || t.Variant != s.Variant {
			continue
		}
		fitted += len(t.Points)
		if near == nil || d.ranksOf(*t) > d.ranksOf(*near) {
			near = t
		}
	}
	if i < 0 || near == nil || len(steps[i].Ranks) < fewestSizes {
		return nil
	}
	row := StudyRow{On: s.On, Op: s.Op, Variant: s.Variant, Split: split.Name, Fitted: fitted, Held: len(s.Points)}
	rows := []StudyRow{row.ours(steps[i].Law(ranks), s.Points)}
	rows[0].Form = "steps over ranks"
	row.Fitted = len(near.Points)
	return append(rows, row.simpler(d.device(s.On), near.Points, s.Points)...)
}

// largest is the largest group among strata and how many sizes of group there are.
func (d *Data) largest(strata []Stratum) (most, sizes int) {
	seen := map[int]bool{}
	for _, s := range strata {
		n := d.ranksOf(s)
		most, seen[n] = max(most, n), true
	}
	return most, len(seen)
}

// ranksOf is the size of the group that a stratum was measured on; 0 on a device.
func (d *Data) ranksOf(s Stratum) int {
	i := slices.IndexFunc(d.Groups, func(g op.GroupType) bool { return g.Name == s.On })
	if i < 0 {
		return 0
	}
	return d.Groups[i].Ranks()
}
