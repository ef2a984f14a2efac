package profile

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/stats"
	"github.com/evenkeel/evenkeel/internal/units"
)

// Sources compares the times that several sources, such as recordings or the files of an
// import, give of the same points. Repeats within one source are its noise. What two sources
// say of many points may not be taken together where they disagree by more than that: the
// middle of both is a time that nobody measured. The zero value has seen nothing.
type Sources struct {
	names []string // in the order in which they came
	of    map[string]*readings
	order []string // keys of those, as they came
}

// readings are the times of one point by the place of their source in names.
type readings struct {
	on    string
	op    op.Kind
	times map[int][]float64
}

// Bounds of what is kept, since a profiler's trace may hold millions of calls: enough to
// judge by.
const (
	mostCompared = 100_000 // points
	mostRepeats  = 100     // times of one point in one source
)

// Bounds of a contradiction.
const (
	// contradiction is the factor beyond which the medians of a point in two sources count
	// as contradictory. Other days, clocks and neighbours move the times of one machine by
	// less.
	contradiction = 1.5
	// fewestContradicting is the least number of points of an op that both sources have;
	// more than half of them must contradict each other.
	fewestContradicting = 5
	// oneWay is the least share of an op's points that must move to the same side for one
	// source to be called the slower.
	oneWay = 0.9
)

// Observe takes times of one point, in seconds, from a source.
func (s *Sources) Observe(source string, at Spot, seconds ...float64) {
	key := at.Key("")
	r := s.of[key]
	if r == nil {
		if len(s.of) == mostCompared {
			return
		}
		if s.of == nil {
			s.of = map[string]*readings{}
		}
		r = &readings{on: at.On, op: at.Op, times: map[int][]float64{}}
		s.of[key], s.order = r, append(s.order, key)
	}
	i := slices.Index(s.names, source)
	if i < 0 {
		i, s.names = len(s.names), append(s.names, source)
	}
	room := max(0, mostRepeats-len(r.times[i]))
	r.times[i] = append(r.times[i], seconds[:min(room, len(seconds))]...)
}

// compared is what two sources say of one op on one device type or group.
type compared struct {
	first, second int // places in names
	on            string
	op            op.Kind
}

// Contradiction is what two sources disagree about.
type Contradiction struct {
	First, Second string
	What          string // ops with the factor and the number of points
}

// String is the beginning of a warning, which lacks what to do.
func (c Contradiction) String() string {
	return fmt.Sprintf("%s and %s contradict each other: in the second %s", c.First, c.Second, c.What)
}

// Contradictions lists which sources contradict each other, in the order in which they came.
func (s *Sources) Contradictions() []Contradiction {
	logs, order := s.ratios()
	var all []Contradiction
	for i := 0; i < len(order); {
		a, b := order[i].first, order[i].second
		var found []string
		for ; i < len(order) && order[i].first == a && order[i].second == b; i++ {
			if text := contradicting(logs[order[i]]); text != "" {
				found = append(found, fmt.Sprintf("%s on %s takes %s", order[i].op, order[i].on, text))
			}
		}
		if len(found) > 0 {
			all = append(all, Contradiction{s.names[a], s.names[b], strings.Join(found, ", ")})
		}
	}
	return all
}

// ratios are log(second/first) of the points that two sources have, op by op, and what they
// are of, sorted. Every source is compared with the first that has the point, for of a thousand
// sources the pairs would be half a million.
func (s *Sources) ratios() (logs map[compared][]float64, order []compared) {
	logs = map[compared][]float64{}
	for _, key := range s.order {
		r := s.of[key]
		have := slices.Sorted(maps.Keys(r.times))
		for _, b := range have[1:] {
			of := compared{have[0], b, r.on, r.op}
			if logs[of] == nil {
				order = append(order, of)
			}
			logs[of] = append(logs[of], math.Log(stats.Median(r.times[b])/stats.Median(r.times[have[0]])))
		}
	}
	slices.SortFunc(order, func(x, y compared) int {
		return cmp.Or(cmp.Compare(x.first, y.first), cmp.Compare(x.second, y.second), cmp.Compare(x.op, y.op), cmp.Compare(x.on, y.on))
	})
	return logs, order
}

// contradicting says by what factor the points of an op differ between two sources; "" where
// they are few or agree.
func contradicting(logs []float64) string {
	sizes := make([]float64, len(logs))
	longer := 0
	for i, l := range logs {
		sizes[i] = math.Abs(l)
		if l > 0 {
			longer++
		}
	}
	if len(logs) < fewestContradicting || stats.Median(sizes) <= math.Log(contradiction) {
		return ""
	}
	share := float64(longer) / float64(len(logs))
	typical, points := math.Exp(stats.Median(sizes)), units.Count(len(logs), "point")
	switch {
	case share >= oneWay:
		return fmt.Sprintf("typically %.3g times as long (%s)", typical, points)
	case share <= 1-oneWay:
		return fmt.Sprintf("typically 1/%.3g of the time (%s)", typical, points)
	}
	return fmt.Sprintf("typically %.3g times as long or 1/%.3g of the time (%s)", typical, typical, points)
}
