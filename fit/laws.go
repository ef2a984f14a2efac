package fit

import (
	"cmp"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
)

// task is a law to estimate: a stratum and the points that it may see.
type task struct {
	Stratum
	points []Point
	law    *costmodel.Law
	err    error
}

// estimate fills in the laws of tasks and returns what collectives share
// beyond them. Laws that can learn from each other do: those of a library's
// collectives, and those of one kernel at several head widths, the one with the
// most points first, the others with its correction as what they expect of
// theirs. Donors help where points are few.
func estimate(d *Data, tasks []*task, donors []Donor) collectives {
	return estimateEach(d, tasks, donors, func() {})
}

// estimateEach is estimate that tells of every law when it is done.
func estimateEach(d *Data, tasks []*task, donors []Donor, ready func()) collectives {
	for _, t := range tasks {
		// Trees draw rows by their place: it must not depend on the recording's order. Nor
		// may it change later, since what families say is compared point by point.
		t.points = slices.Clone(t.points)
		slices.SortFunc(t.points, func(a, b Point) int { return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.Key, b.Key)) })
	}
	var strata []Stratum
	for _, t := range tasks {
		s := t.Stratum
		s.Points = t.points
		strata = append(strata, s)
	}
	together := d.collectives(strata)
	order := slices.Clone(tasks)
	slices.SortStableFunc(order, func(a, b *task) int { return cmp.Compare(len(b.points), len(a.points)) })
	siblings := map[string]*costmodel.Field{}
	for _, t := range order {
		family := t.family()
		t.law, t.err = t.Stratum.law(d, t.points, siblings[family], donors)
		ready()
		if _, known := siblings[family]; !known && t.err == nil {
			siblings[family] = t.law.Correction
		}
		if t.err != nil {
			continue
		}
		if l, ok := together.laws[t.Stratum.String()]; ok {
			l.prefer(t.law, t.points)
		}
		t.law.Port = together.ports[t.Stratum.String()]
	}
	return together
}

// family names a stratum but for its head width.
func (s Stratum) family() string {
	v := s.Variant
	v.HeadDim = 0
	return Stratum{On: s.On, Op: s.Op, Variant: v}.String()
}

// lawOf estimates one law by itself.
func lawOf(d *Data, s Stratum, points []Point) (*costmodel.Law, error) {
	t := &task{Stratum: s, points: points}
	estimate(d, []*task{t}, nil)
	return t.law, t.err
}
