package profile

import (
	"context"
	"slices"
	"time"

	"github.com/evenkeel/evenkeel/internal/units"
)

// onceShare of a budget may go into what is measured once before there are points for a law
// of every family. On busy cores the memory of two layers and the overlaps of two device
// types took 40 of the 50 s that checks had left of 100.
const onceShare = 0.25

// visitFirsts makes the first visits of what is scheduled: what is measured once comes first,
// for memory is best looked at before anything ran, but for no longer than its share; then
// the points that laws cannot do without, which a round may have yet to choose; then what is
// left of either.
func (c *calibration) visitFirsts(ctx context.Context, s *Schedule, past *Past, start, deadline time.Time, r *rounds, round func() (more, inTime bool, err error)) (inTime bool, err error) {
	once := c.undone(s.Once, past, 0)
	until := start.Add(time.Duration(onceShare * float64(deadline.Sub(start))))
	for len(once) > 0 && c.backend.Clock().Now().Before(until) {
		if inTime, err = c.visitAll(ctx, s, once[:1], deadline, r); err != nil || !inTime {
			return inTime, err
		}
		once = once[1:]
	}
	seeds, others := c.seeds(s, c.firsts(s, past, 0))
	inTime, err = c.visitAll(ctx, s, seeds, deadline, r)
	if err == nil && inTime && len(s.Points) == 0 {
		_, inTime, err = round()
	}
	for _, todo := range [][]visit{once, others} {
		if err == nil && inTime {
			inTime, err = c.visitAll(ctx, s, todo, deadline, r)
		}
	}
	return inTime, err
}

// seeds are the visits of the first points of every family, as many as a law that can be
// judged takes, and the other visits.
func (c *calibration) seeds(s *Schedule, todo []visit) (seeds, others []visit) {
	first := firstOfEach(s.Points)
	for _, v := range todo {
		if first[v.place-len(s.Once)] {
			seeds = append(seeds, v)
		} else {
			others = append(others, v)
		}
	}
	return seeds, others
}

// firstOfEach says which points are among the first `fewest` of their family.
func firstOfEach(points []Spot) []bool {
	first, seen := make([]bool, len(points)), map[law]int{}
	for i, p := range points {
		of := lawOf(p)
		first[i] = seen[of] < fewest
		seen[of]++
	}
	return first
}

// Starved says whether a schedule was begun whose time went into what is measured once, if
// into anything: no point of any law was visited, or chosen in time.
func (p *Past) Starved() bool {
	return p.Header != nil && p.Schedule != nil && !slices.ContainsFunc(p.Schedule.Points, p.done)
}

// Scheduled is how many points of the schedule were visited.
func (p *Past) Scheduled() int {
	n := 0
	for _, s := range p.Schedule.Points {
		if p.done(s) {
			n++
		}
	}
	return n
}

// CutOff is how many points of the schedule have no result because a budget had no time to wait
// for them. They are of those that failed, and a longer budget tries them again.
func (p *Past) CutOff() int {
	if p.Header == nil || p.Schedule == nil {
		return 0
	}
	n := 0
	for _, s := range p.Schedule.Points {
		if p.Cut[peerKey{key: s.Key(p.Header.Fingerprint)}] {
			n++
		}
	}
	return n
}

func (p *Past) done(s Spot) bool {
	key := s.Key(p.Header.Fingerprint)
	return p.Done[key] && !p.Cut[peerKey{key: key}]
}

// countedSpent is what earlier runs took of the budget. Where no law has a point of it, a
// run with the same budget begins anew: else nothing would ever be measured.
func (p *Past) countedSpent() time.Duration {
	if p.Starved() {
		return 0
	}
	return p.Spent
}

// Suffices estimates a budget by which an unfinished recording that is gone on with has
// points for a law of every family: at the pace of what is measured, twice, for a machine
// that was too busy may still be.
func (p *Past) Suffices() time.Duration {
	if p.Header == nil || p.Schedule == nil {
		return 0
	}
	scheduled := map[string]bool{}
	for _, s := range p.Schedule.Points {
		scheduled[s.Key("")] = true
	}
	var took units.Seconds
	visited := 0
	for _, m := range p.Measured {
		if scheduled[m.Key("")] && m.Elapsed > 0 {
			took, visited = took+m.Elapsed, visited+1
		}
	}
	each := p.Header.Protocol.PointTime + overhead
	if visited > 0 {
		each = took / units.Seconds(visited)
	}
	waiting := 0
	for i, first := range firstOfEach(p.Schedule.Points) {
		if first && !p.done(p.Schedule.Points[i]) {
			waiting++
		}
	}
	need := 2*units.Seconds(waiting)*each/(1-onceShare) + units.Seconds(p.countedSpent().Seconds())
	need = max(need, units.Seconds(2*p.Schedule.BudgetS))
	return time.Duration(float64(need) * float64(time.Second)).Round(10 * time.Second)
}
