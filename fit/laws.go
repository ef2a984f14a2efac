package fit

import (
	"cmp"
	"runtime"
	"slices"
	"sync"

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
// theirs. Donors help where points are few. Others are estimated side by side.
func estimate(d *Data, tasks []*task, donors []Donor) collectives {
	return estimateEach(d, tasks, donors, func() {})
}

// estimateEach is estimate that tells of every law when it is done, of one at a time.
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
	var told sync.Mutex
	atOnce(byFamily(tasks), func(_ int, family []*task) {
		var sibling *costmodel.Field
		known := false
		for _, t := range family {
			t.law, t.err = t.Stratum.law(d, t.points, lentTo(t.Stratum, tasks), sibling, donors)
			told.Lock()
			ready()
			told.Unlock()
			if t.err != nil {
				continue
			}
			if !known {
				sibling, known = t.law.Correction, true
			}
			if l, ok := together.laws[t.Stratum.String()]; ok {
				l.prefer(t.law, t.points)
			}
			t.law.Port = together.ports[t.Stratum.String()]
			t.law.Peak = peakOf(d.device(t.On), t.Op, t.Variant, t.points)
		}
	})
	return together
}

// atOnce does a thing to each of a list, as many at a time as there are processors. Each
// writes its own result alone, so that the order in which they end shows nowhere.
func atOnce[T any](list []T, do func(i int, one T)) {
	var all sync.WaitGroup
	slots := make(chan struct{}, runtime.GOMAXPROCS(0))
	for i, one := range list {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			do(i, one)
		})
	}
	all.Wait()
}

// byFamily groups the tasks that learn from each other, the one with the most points
// first, and so the groups.
func byFamily(tasks []*task) [][]*task {
	order := slices.Clone(tasks)
	slices.SortStableFunc(order, func(a, b *task) int { return cmp.Compare(len(b.points), len(a.points)) })
	var all [][]*task
	at := map[string]int{}
	for _, t := range order {
		name := t.family()
		i, ok := at[name]
		if !ok {
			i = len(all)
			at[name], all = i, append(all, nil)
		}
		all[i] = append(all[i], t)
	}
	return all
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
