package profile

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/evenkeel/evenkeel/internal/units"
)

// pilot measures one small shape of every space, which verifies its kernel and
// gives the cost by which shapes are chosen. A space that cannot run at all is
// recorded as failed and left out.
func (c *calibration) pilot(ctx context.Context, spaces []Space) ([]Cost, []Space, error) {
	costs := map[int]Cost{}
	todo := newPilots(spaces)
	first := ""
	for done := 0; len(todo.order) > 0; done++ {
		if err := ctx.Err(); err != nil {
			return nil, nil, err
		}
		i, sp := todo.next()
		spot := NewSpot(sp.On, sp.at(pilotLevel))
		if lost := todo.lost[sp.On]; lost.pilots >= goneAfter && lost.took >= goneAfter*c.patience(sp.On) {
			if err := c.untried(spot, lost.took); err != nil {
				return nil, nil, err
			}
			todo.untried++
			continue
		}
		c.report(Progress{Phase: "piloting", Now: spot, Done: done, Total: len(spaces)})
		start := c.backend.Clock().Now()
		one, err := c.once(ctx, spot)
		todo.ran(sp, err, c.backend.Clock().Now().Sub(start))
		if err != nil {
			if ctx.Err() != nil {
				return nil, nil, ctx.Err()
			}
			if first == "" {
				first = failed(spot, asOpError(err).Class, asOpError(err).Err.Error())
			}
			if err := c.failure(visit{Spot: spot, line: linePoint}, err, c.now()); err != nil {
				return nil, nil, err
			}
			continue
		}
		if costs[i], err = c.cost(ctx, sp, spot, one); err != nil {
			return nil, nil, err
		}
	}
	if len(costs) == 0 {
		text := "no op could be run at all: " + first
		if n := len(spaces) - todo.untried; n > 1 {
			text += fmt.Sprintf("; nor could any other of %d families of shapes", n)
		}
		if todo.untried > 0 {
			text += fmt.Sprintf("; %d more were not tried", todo.untried)
		}
		return nil, nil, &GivenUpError{text}
	}
	var found []Cost
	var able []Space
	for _, i := range slices.Sorted(maps.Keys(costs)) {
		found, able = append(found, costs[i]), append(able, spaces[i])
	}
	return found, able, nil
}

// goneAfter is after how many pilots in a row, and for how many answers in vain, a device's other
// families are not tried. Time alone would not do: one worker that starts slowly and dies, and
// then another in its place, take as much.
const goneAfter = 2

// pilots are the spaces that are still to be piloted.
type pilots struct {
	spaces  []Space
	order   []int
	untried int             // as many were not
	lost    map[string]loss // of workers of a device or group, since one of its pilots ran
}

type loss struct {
	pilots int
	took   time.Duration
}

func newPilots(spaces []Space) *pilots {
	p := &pilots{spaces: spaces, lost: map[string]loss{}}
	for i := range spaces {
		p.order = append(p.order, i)
	}
	return p
}

func (p *pilots) next() (int, Space) {
	i := p.order[0]
	p.order = p.order[1:]
	return i, p.spaces[i]
}

// ran takes in what became of a pilot and how long it took. After one that lost its worker the
// op's other families on the device come last: a kernel that hangs, often in forward and
// backward and at every width, must not make the device look dead to the other ops.
func (p *pilots) ran(sp Space, err error, took time.Duration) {
	switch {
	case err == nil:
		delete(p.lost, sp.On)
	case asOpError(err).Lost:
		l := p.lost[sp.On]
		p.lost[sp.On] = loss{l.pilots + 1, l.took + took}
		slices.SortStableFunc(p.order, func(i, j int) int { return cmp.Compare(p.like(i, sp), p.like(j, sp)) })
	}
}

// like is 1 of a space of the op and device of another, else 0.
func (p *pilots) like(i int, sp Space) int {
	if o := p.spaces[i]; o.On == sp.On && o.Kind == sp.Kind {
		return 1
	}
	return 0
}

// untried records a space whose device or group lost workers for so long that it is not tried.
func (c *calibration) untried(spot Spot, lost time.Duration) error {
	return c.journal.Append(&Point{
		T: linePoint, Key: spot.Key(c.fingerprint), Spot: spot, Class: Cut, At: c.now(),
		Error: fmt.Sprintf("not tried: workers of %s that died or did not answer had taken %s, and a budget of %s has no time for more of them", spot.On, lost.Round(time.Second), c.Budget),
	})
}

// GivenUpError says that measuring came to little but failures. The recording, whose name
// the caller knows, holds all of their reasons.
type GivenUpError struct{ what string }

// Error names the last or first of the failures with its cause.
func (e *GivenUpError) Error() string { return e.what }

// failed says what failed and how: "gemm on cpu:1: crashed: signal: killed".
func failed(s Spot, class Class, why string) string {
	why, _, _ = strings.Cut(strings.TrimSpace(why), "\n")
	return fmt.Sprintf("%s on %s: %s: %s", s.Op, s.On, class, why)
}

const (
	pilotLevel = 0.35
	// launchBound calls may be all launch: a rate taken from them alone would make
	// long calls look too long to be measured.
	launchBound = units.Seconds(1e-3)
	// pilotCall is how long a call of the second pilot may take at the rate of the
	// first, which is the most that it can take.
	pilotCall = units.Seconds(10e-3)
)

// cost visits a space again after its kernel was verified: the pilot's shape,
// for what a visit takes besides its calls, and where that was launch-bound a
// larger one for the rate. What fails here leaves the first pilot's word, and a
// failure that no second try would mend is recorded.
func (c *calibration) cost(ctx context.Context, sp Space, spot Spot, one units.Seconds) (Cost, error) {
	cost := Cost{PerUnit: one / units.Seconds(size(spot.Shape))}
	again, prepare, err := c.prepared(ctx, spot)
	if err != nil {
		return cost, c.note(ctx, spot, err)
	}
	cost.Prepare = prepare
	// What grows with the shape is none of small ones': taken for the same of all, it would leave a
	// space of slow calls no time but for the smallest.
	if least := NewSpot(sp.On, sp.at(0)); prepare > overhead && least.Key("") != spot.Key("") {
		_, fixed, err := c.prepared(ctx, least)
		if err != nil {
			return cost, c.note(ctx, least, err)
		}
		cost.Prepare = min(prepare, max(0, fixed))
		cost.PrepareCalls = float64((prepare - cost.Prepare) / again)
	}
	if one >= launchBound {
		return cost, nil
	}
	for _, level := range []float64{0.8, 0.65, 0.5} {
		larger := NewSpot(sp.On, sp.at(level))
		if cost.call(larger.Shape) > pilotCall {
			continue
		}
		t, err := c.tryOnce(ctx, larger)
		if err != nil {
			return cost, c.note(ctx, larger, err)
		}
		cost.PerUnit = min(cost.PerUnit, t/units.Seconds(size(larger.Shape)))
		cost.Launch = max(0, one-cost.PerUnit*units.Seconds(size(spot.Shape)))
		break
	}
	return cost, nil
}

// prepared runs a spot a few times, and gives the time of one call and what preparing it took.
func (c *calibration) prepared(ctx context.Context, spot Spot) (one, prepare units.Seconds, err error) {
	start := c.backend.Clock().Now()
	one, err = c.tryOnce(ctx, spot)
	return one, units.Seconds(c.backend.Clock().Now().Sub(start).Seconds()) - callsToWarm*one, err
}

// note records a failure of a pilot that counts as the shape's own, such as a
// hang; one that a fresh worker may not have is left to the points.
func (c *calibration) note(ctx context.Context, spot Spot, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if class := asOpError(err).Class; class.retried() || class == Cut {
		return nil
	}
	return c.failure(visit{Spot: spot, line: linePoint}, err, c.now())
}

// once runs a spot a few times and gives the time of one call; like a point, it
// gets a second try on a fresh worker where that may help.
func (c *calibration) once(ctx context.Context, spot Spot) (units.Seconds, error) {
	one, err := c.tryOnce(ctx, spot)
	if err != nil && ctx.Err() == nil && asOpError(err).Class.retried() {
		c.drop(spot.On, "")
		one, err = c.tryOnce(ctx, spot)
	}
	return one, err
}

func (c *calibration) tryOnce(ctx context.Context, spot Spot) (units.Seconds, error) {
	x, err := c.executor(ctx, spot.On, "")
	if err != nil {
		return 0, err
	}
	x = c.patient(x, spot)
	err = x.Prepare(ctx, spot.Shape, c.inputSeed(spot))
	var one units.Seconds
	if err == nil {
		one, _, err = warmUp(ctx, x)
	}
	if err != nil && asOpError(err).Lost {
		c.drop(spot.On, "")
	}
	return one, err
}
