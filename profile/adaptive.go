package profile

import (
	"context"
	"math/rand/v2"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// Chooser picks the shapes to measure next by the results so far. Package fit implements
// it: measuring itself knows nothing of laws.
type Chooser interface {
	// Next picks candidates as indices into r.Pool, most useful first: at most r.Want, at a
	// total cost of at most r.Left. It is a pure function, so that a resumed calibration gets
	// the same answer.
	Next(r Round) []int
}

// Round is what a Chooser knows of one family of shapes.
type Round struct {
	// Device or Group is where the family runs; the other is its zero value.
	Device op.DeviceType
	Group  op.GroupType
	Done   []Timed    // measured so far
	Pool   []op.Shape // candidates, none of them measured
	// Call estimates the time of one call of a shape from the pilot, which ran one or two
	// small shapes only. It is good enough for the first round.
	Call func(op.Shape) units.Seconds
	// Cost is the time that measuring a shape takes if one call of it takes call seconds.
	Cost func(s op.Shape, call units.Seconds) units.Seconds
	Want int
	Left units.Seconds // time for this round's points, all their visits together
}

// Timed is a measured shape with the median time of one call.
type Timed struct {
	Shape   op.Shape
	Seconds units.Seconds
}

const (
	// poolSize is how many candidates of a space are drawn: enough for the corners
	// of four axes, few enough to weigh each against each.
	poolSize = 1000
	// firstRound is how many points a family begins with; every later round adds
	// a quarter of what there is, because a law changes little with fewer.
	firstRound = 16
	leastRound = 4
)

// rounds is the state of a calibration that chooses as it goes.
type rounds struct {
	*calibration
	schedule *Schedule
	families []family
	taken    map[string]bool // keys, without a fingerprint, of all scheduled points
	owed     units.Seconds   // to second visits of what is measured
}

// family is a space with its candidates and what its points have cost.
type family struct {
	Space
	cost  Cost
	pool  []op.Shape
	keys  []string // of the pool's spots, without a fingerprint
	done  []Timed
	tried int
	spent units.Seconds // by first visits
}

// rounds draws the candidates of every family from what the first schedule line
// says, so that a resumed run has the same ones, and takes in what is measured.
func (c *calibration) rounds(spaces []Space, s *Schedule, past *Past) *rounds {
	r := &rounds{calibration: c, schedule: s, taken: map[string]bool{}}
	for i, p := range s.Families {
		sp, ok := find(spaces, p)
		if !ok {
			continue // the backend no longer offers it; the fingerprint stands for times, not for what there is
		}
		sp.Share *= pace(s.Families, p)
		f := family{Space: sp, cost: Cost{p.Launch, units.Seconds(p.PerUnit), p.Prepare, p.PrepareCalls}}
		for _, c := range candidates(sp, max(poolSize, len(sp.Shapes)), f.cost, p.Longest, rand.New(rand.NewPCG(c.Seed, uint64(i)))) {
			f.pool, f.keys = append(f.pool, c.shape), append(f.keys, NewSpot(sp.On, c.shape).Key(""))
		}
		r.families = append(r.families, f)
	}
	for _, spot := range s.Points {
		r.taken[spot.Key("")] = true
	}
	for i := range r.families {
		r.families[i].drop(r.taken)
	}
	for _, p := range past.Measured {
		r.observe(p.On, p.Shape, p.Seconds, p.Elapsed)
		if past.Again[p.Key(c.fingerprint)] {
			r.owed -= p.Elapsed
		}
	}
	return r
}

const (
	// outpaced is how many times as long as the fastest an attention kernel may take before
	// its points are fewer: planners ask for the fastest, and plans of the others only
	// where it cannot run.
	outpaced = 1.25
	// outpacedShare of a family's points are enough to tell how much slower it is.
	outpacedShare = 0.25
)

// pace is the share of a family's points that it gets: not all of them if it is attention by
// a kernel that another of the families outpaces.
func pace(families []Piloted, p Piloted) float64 {
	rival := p.Variant
	for _, o := range families {
		if rival.Kernel = o.Variant.Kernel; o.On == p.On && o.Op == p.Op && o.Variant == rival && p.PerUnit > outpaced*o.PerUnit {
			return outpacedShare
		}
	}
	return 1
}

func find(spaces []Space, p Piloted) (Space, bool) {
	i := slices.IndexFunc(spaces, func(sp Space) bool {
		return sp.On == p.On && sp.Kind == p.Op && sp.variant() == p.Variant
	})
	if i < 0 {
		return Space{}, false
	}
	return spaces[i], true
}

// drop takes what is scheduled out of the candidates.
func (f *family) drop(taken map[string]bool) {
	left := 0
	for i, key := range f.keys {
		if !taken[key] {
			f.pool[left], f.keys[left] = f.pool[i], key
			left++
		}
	}
	f.pool, f.keys = f.pool[:left], f.keys[:left]
}

// holds says whether a shape is one of the family's.
func (f *family) holds(on string, s op.Shape) bool {
	return f.On == on && f.Kind == s.Kind() && f.variant() == s.Variant()
}

// observe takes in the first visit of a point; a failed one has no seconds.
func (r *rounds) observe(on string, s op.Shape, seconds, elapsed units.Seconds) {
	for i := range r.families {
		f := &r.families[i]
		if !f.holds(on, s) {
			continue
		}
		f.tried++
		f.spent += elapsed
		r.owed += elapsed
		if seconds > 0 {
			f.done = append(f.done, Timed{s, seconds})
		}
		return
	}
}

// next chooses the points of a further round with what is left of the time,
// in a shuffled order. There are none when time or candidates have run out.
func (r *rounds) next(left units.Seconds) []Spot {
	var chosen []Spot
	parts := r.parts(left)
	for i := range r.families {
		f := &r.families[i]
		for _, k := range r.Chooser.Next(r.round(f, parts[i])) {
			if key := f.keys[k]; !r.taken[key] {
				r.taken[key] = true
				chosen = append(chosen, NewSpot(f.On, f.pool[k]))
			}
		}
		f.drop(r.taken)
	}
	random := rand.New(rand.NewPCG(r.Seed, uint64(len(r.schedule.Points))))
	random.Shuffle(len(chosen), func(i, j int) { chosen[i], chosen[j] = chosen[j], chosen[i] })
	return chosen
}

// round is what the chooser is told of a family.
func (r *rounds) round(f *family, part units.Seconds) Round {
	want := max(leastRound, f.tried/4)
	if f.tried == 0 {
		want = firstRound
	}
	if limit := r.limit(); want > limit-f.tried {
		want = max(0, limit-f.tried)
	}
	device, group := r.inventory.named(f.On)
	return Round{
		Device: device, Group: group, Done: f.done, Pool: f.pool, Want: want, Left: part, Call: f.cost.call,
		Cost: func(s op.Shape, call units.Seconds) units.Seconds { return pointTime(s, call, f.cost, 0) },
	}
}

// limit is the most points that a family gets.
func (r *rounds) limit() int {
	if r.schedule.Limit > 0 {
		return r.schedule.Limit
	}
	return most
}

// parts splits what is left among the families by their shares, so that in the
// end each has had its share of the whole: what one cannot use goes to others.
// The second visits of all points measured so far are paid for first.
func (r *rounds) parts(left units.Seconds) []units.Seconds {
	left -= r.owed
	total, weight := left, 0.0
	open := make([]bool, len(r.families))
	for i, f := range r.families {
		if open[i] = f.tried < r.limit() && len(f.pool) > 0; open[i] {
			total += visitsAPoint * f.spent
			weight += f.Share
		}
	}
	parts, sum := make([]units.Seconds, len(r.families)), units.Seconds(0)
	for i, f := range r.families {
		if open[i] {
			parts[i] = max(0, total*units.Seconds(f.Share/weight)-visitsAPoint*f.spent)
			sum += parts[i]
		}
	}
	if sum > left { // some have had more than their share
		for i := range parts {
			parts[i] *= max(0, left) / sum
		}
	}
	return parts
}

// canaryShare of the time goes to canaries.
const canaryShare = 0.05

// beginRounds pilots the spaces, draws the candidates of all families and
// writes the first round down.
func (c *calibration) beginRounds(ctx context.Context, inv *Inventory) (*Schedule, error) {
	points, each, err := c.aims(inv, units.Seconds(c.Budget.Seconds()))
	if err != nil {
		return nil, err
	}
	costs, spaces, err := c.pilot(ctx, c.wanted(inv.Spaces))
	if err != nil {
		return nil, err
	}
	left := units.Seconds(c.left(c.Budget).Seconds())
	families, none := c.families(spaces, costs, points, each, left)
	s := &Schedule{
		T: lineSchedule, BudgetS: c.Budget.Seconds(), Limit: c.Points, Once: c.wantedOnce(inv.Once), Families: families,
	}
	r := c.rounds(spaces, s, &Past{})
	if inv.peers() > 0 {
		left -= peerShare * left
	}
	s.Points = r.next(left * (1 - canaryShare))
	short := r.short(s.Points)
	s.Canaries = canaries(s.Points, short)
	s.Peers = peers(inv, s.Points, short, each, units.Seconds(c.Budget.Seconds()))
	if err := c.journal.Append(s); err != nil {
		return nil, err
	}
	return s, c.leaveOut(none)
}

// families says how far the calls of every space's candidates may reach: as far
// as those of a spread choice would in the same time; and for which spaces there is
// none.
func (c *calibration) families(spaces []Space, costs []Cost, points int, each, left units.Seconds) (all []Piloted, none []Space) {
	all = piloted(spaces, costs)
	for i, f := range fillAll(spaces, costs, c.counts(spaces, points), each, left, rand.New(rand.NewPCG(c.Seed, 0))) {
		if len(f.shapes) == 0 {
			none = append(none, spaces[i])
		}
		all[i].Longest = f.longest
	}
	return all, none
}

// piloted is what a pilot found of spaces, without the longest calls.
func piloted(spaces []Space, costs []Cost) []Piloted {
	all := make([]Piloted, len(spaces))
	for i, sp := range spaces {
		all[i] = Piloted{
			On: sp.On, Op: sp.Kind, Variant: sp.variant(),
			Launch: costs[i].Launch, PerUnit: float64(costs[i].PerUnit), Prepare: costs[i].Prepare, PrepareCalls: costs[i].PrepareCalls,
		}
	}
	return all
}

// short names the points whose calls are short beside the time of a visit.
func (r *rounds) short(spots []Spot) map[string]bool {
	short := map[string]bool{}
	for _, spot := range spots {
		for _, f := range r.families {
			if f.holds(spot.On, spot.Shape) {
				short[spot.Key("")] = f.cost.call(spot.Shape) < r.protocol.PointTime/callsAVisit
			}
		}
	}
	return short
}

// seen takes in the first visit of a point that this run made; p is nil where
// it failed.
func (r *rounds) seen(spot Spot, p *Point) {
	if p == nil {
		r.observe(spot.On, spot.Shape, 0, 0)
		return
	}
	v := visited(p)
	r.observe(v.On, v.Shape, v.Seconds, v.Elapsed)
}

// named finds a device type or a group.
func (inv *Inventory) named(on string) (op.DeviceType, op.GroupType) {
	for _, d := range inv.Devices {
		if d.Name == on {
			return d, op.GroupType{}
		}
	}
	for _, g := range inv.Groups {
		if g.Name == on {
			return op.DeviceType{}, g
		}
	}
	return op.DeviceType{}, op.GroupType{}
}
