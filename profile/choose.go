package profile

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"

	"gonum.org/v1/gonum/floats"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// Cost is what a pilot found of a space. A call takes about Launch + PerUnit x size, and
// a visit takes Prepare and PrepareCalls further calls in addition to its calls: before a
// backward pass there is a forward one.
type Cost struct {
	Launch       units.Seconds
	PerUnit      units.Seconds // per FLOP of op.Work for compute ops, per byte of op.Volume for the rest
	Prepare      units.Seconds
	PrepareCalls float64
}

// call is what a call is expected to take.
func (c Cost) call(s op.Shape) units.Seconds { return c.Launch + units.Seconds(size(s))*c.PerUnit }

// size is the quantity that a call's time grows with.
func size(s op.Shape) float64 {
	if v := op.Volume(s); v > 0 {
		return float64(v)
	}
	return float64(s.Work().FLOPs)
}

// callsAVisit is how many calls a visit of a point of long calls costs: one to
// warm up and fewestSamples.
const callsAVisit = 1 + fewestSamples

// overhead is the least that a visit costs besides its samples: inputs,
// warm-up, the journal. What a pilot took beyond that counts instead.
const overhead = units.Seconds(0.005)

// The number of points a family gets: below the first a law with a hold-out
// cannot be judged, beyond the second the time is better spent on longer calls.
const (
	fewest = 10
	most   = 400
)

// The time for the samples of one visit: with less than the first a median
// means little, more than the second buys nothing (nvbench's 5 s is for noise
// that a good point never meets).
const (
	leastPointTime = units.Seconds(0.010)
	mostPointTime  = units.Seconds(5)
)

// pointsPerSecond of budget: enough for a dozen points a law in the default
// minute, few enough that a third of the time suffices for short calls and the
// rest can go into long ones, which planners ask for.
const (
	pointsPerSecond = 10
	shortShare      = 0.3
)

// AskedError says that nothing can be measured of what a Config asks for: it asks for too
// little, or for what the backend does not have.
type AskedError struct{ why string }

// Error names what was asked for, and what would do.
func (e *AskedError) Error() string { return e.why }

// aims splits a budget into a number of points, or takes the one that was asked
// for a family, and the time for the samples of one visit.
//
// The error, an *AskedError, names the budget that would suffice.
func aims(families, aFamily int, budget units.Seconds) (points int, each units.Seconds, err error) {
	points = min(max(int(pointsPerSecond*budget), fewest*families), most*families)
	if aFamily > 0 {
		points = aFamily * families
	}
	each = min(shortShare*budget/units.Seconds(visitsAPoint*points), mostPointTime)
	if each < leastPointTime {
		least := fewest * families
		if aFamily > 0 {
			least = points
		}
		need := units.Seconds(visitsAPoint*least) * leastPointTime / shortShare
		return 0, 0, &AskedError{fmt.Sprintf("--budget: %s is too short for %d families of shapes: pass --budget %ds or more, or --only to measure fewer ops", budget, families, int(need)+1)}
	}
	return points, each, nil
}

// choose picks `n` shapes of a space whose calls take at most `longest` seconds
// by the pilot's rate. Half of them are spread as far apart as possible on the
// logarithmic axes (each the candidate farthest from those before), so that the
// measured range reaches into every corner that the limit allows; the others
// are uniform, so that the middle is not empty. The shapes are distinct.
//
// It returns fewer when the space does not hold n distinct shapes short enough.
func choose(sp Space, n int, cost Cost, longest units.Seconds, r *rand.Rand) []op.Shape {
	pool := candidates(sp, 8*n, cost, longest, r)
	var chosen []op.Shape
	const taken = -1
	nearest := make([]float64, len(pool)) // distance to the nearest chosen one, 0 in the same place
	for i := range nearest {
		nearest[i] = math.Inf(1)
	}
	for len(chosen) < min(n, len(pool)) {
		next := slices.IndexFunc(nearest, func(d float64) bool { return d > 0 }) // the pool is in random order
		if len(chosen)%2 == 0 || next < 0 {
			next = floats.MaxIdx(nearest)
		}
		chosen = append(chosen, pool[next].shape)
		for i := range pool {
			nearest[i] = min(nearest[i], floats.Distance(pool[i].u, pool[next].u, 2))
		}
		nearest[next] = taken
	}
	return chosen
}

// candidate is a shape with its place in the unit cube.
type candidate struct {
	u     []float64
	shape op.Shape
}

// candidates draws distinct shapes uniformly from the part of a space whose
// calls are short enough. Where that part of the unit cube is too small to be
// hit, the cube shrinks towards the small corner.
func candidates(sp Space, n int, cost Cost, longest units.Seconds, r *rand.Rand) []candidate {
	if sp.Shapes != nil {
		return listed(sp, n, cost, longest, r)
	}
	const uniform, shrinking = 64, 128
	var pool []candidate
	seen := map[any]bool{}
	for tries := 0; len(pool) < n && tries < 4*n; tries++ {
		u := make([]float64, sp.Dims)
		for draw := range uniform + shrinking {
			reach := math.Pow(0.97, float64(max(0, draw-uniform)))
			for d := range u {
				u[d] = reach * r.Float64()
			}
			s := sp.Make(u)
			if cost.call(s) > longest {
				continue
			}
			if same := identity(s); !seen[same] {
				seen[same] = true
				pool = append(pool, candidate{u, s})
			}
			break
		}
	}
	return pool
}

// identity is equal for equal shapes: the shape itself where Go can compare it, which
// costs a twentieth of writing it down.
func identity(s op.Shape) any {
	if reflect.TypeOf(s).Comparable() {
		return s
	}
	data, err := op.Encode(s)
	if err != nil {
		return err // equal to nothing else
	}
	return string(data)
}

// listed draws from a space that is a list of shapes.
func listed(sp Space, n int, cost Cost, longest units.Seconds, r *rand.Rand) []candidate {
	var pool []candidate
	for _, i := range r.Perm(len(sp.Shapes)) {
		if s := sp.Shapes[i]; len(pool) < n && cost.call(s) <= longest {
			pool = append(pool, candidate{logs(s), s})
		}
	}
	spans(pool)
	return pool
}

// logs is where a shape lies, in octaves.
func logs(s op.Shape) []float64 {
	located, ok := s.(op.Located)
	if !ok {
		return []float64{math.Log2(max(1, size(s)))}
	}
	at := located.Coords()
	u := make([]float64, len(op.CoordNames(s.Kind())))
	for i := range u {
		u[i] = math.Log2(max(1, at[i]))
	}
	return u
}

// spans scales the places of candidates to the unit cube, axis by axis.
func spans(pool []candidate) {
	if len(pool) == 0 {
		return
	}
	for d := range pool[0].u {
		lo, hi := math.Inf(1), math.Inf(-1)
		for _, c := range pool {
			lo, hi = min(lo, c.u[d]), max(hi, c.u[d])
		}
		for _, c := range pool {
			c.u[d] = (c.u[d] - lo) / max(hi-lo, 1)
		}
	}
}

// at is the shape at a level of a space: 0 is its smallest corner, 1 its largest.
func (sp Space) at(level float64) op.Shape {
	if sp.Shapes == nil {
		return sp.Make(slices.Repeat([]float64{level}, sp.Dims))
	}
	sorted := slices.Clone(sp.Shapes)
	slices.SortStableFunc(sorted, func(a, b op.Shape) int { return cmp.Compare(size(a), size(b)) })
	return sorted[int(level*float64(len(sorted)-1))]
}

// variant is that of every shape of a space. It is asked for at every point, and a
// recording's shapes, of which there may be thousands, need not be sorted for it.
func (sp Space) variant() op.Variant {
	if sp.Shapes == nil {
		return sp.at(0).Variant()
	}
	return sp.Shapes[0].Variant()
}

// plan chooses the points of all spaces so that measuring them takes about
// `budget`. The order is shuffled, so that drift of the machine is not
// confounded with size, in two rounds: `fewest` points of every space come
// first, so that a run that ends early still has a law for every op. It
// also says, by key, which points' calls are short beside `each`, and for which
// spaces there is no time.
func plan(spaces []Space, costs []Cost, counts []int, each, budget units.Seconds, r *rand.Rand) (spots []Spot, short map[string]bool, none []Space) {
	var first, rest []Spot
	short = map[string]bool{}
	for i, f := range fillAll(spaces, costs, counts, each, budget, r) {
		sp := spaces[i]
		if len(f.shapes) == 0 {
			none = append(none, sp)
		}
		for k, s := range f.shapes {
			spot := NewSpot(sp.On, s)
			short[spot.Key("")] = costs[i].call(s) < each/callsAVisit
			if k < fewest {
				first = append(first, spot)
			} else {
				rest = append(rest, spot)
			}
		}
	}
	for _, round := range [][]Spot{first, rest} {
		r.Shuffle(len(round), func(i, j int) { round[i], round[j] = round[j], round[i] })
	}
	return append(first, rest...), short, none
}

// canaries are the first points of each device and group whose calls are
// short: they are measured again and again, and one long call of them took a
// quarter of a minute's budget.
func canaries(spots []Spot, short map[string]bool) []int {
	var chosen []int
	seen := map[string]bool{}
	for i, s := range spots {
		if !seen[s.On] && short[s.Key("")] {
			seen[s.On] = true
			chosen = append(chosen, i)
		}
	}
	return chosen
}

// shares splits a number of points among the spaces.
func shares(spaces []Space, points int) []int {
	total := 0.0
	for _, sp := range spaces {
		total += sp.Share
	}
	counts := make([]int, len(spaces))
	for i, sp := range spaces {
		counts[i] = min(max(fewest, int(float64(points)*sp.Share/total)), most)
	}
	return counts
}

// filling is what was chosen of a space: its shapes, and how long the longest
// call may be.
type filling struct {
	shapes  []op.Shape
	longest units.Seconds
	seed    uint64
}

// firstShare of a budget may go into the first visits of the points that come
// first, for a law of every op, before an op of long calls has to do without.
const firstShare = 0.5

// overdraw is how many times its part of the budget a space may take for a law
// in any case.
const overdraw = 2

// fillAll chooses the points of all spaces. Where the part of a space holds too
// few short calls for a law, longer ones are chosen as far as there is time for
// first visits, the spaces of the shortest calls before the others: so that on a
// slow or busy machine as many ops as possible have a law.
func fillAll(spaces []Space, costs []Cost, counts []int, each, budget units.Seconds, r *rand.Rand) []filling {
	total := 0
	for _, n := range counts {
		total += n
	}
	part := func(i int) units.Seconds { return budget * units.Seconds(float64(counts[i])/float64(total)) }
	all := make([]filling, len(spaces))
	left := firstShare * budget
	var lacking []int
	for i, sp := range spaces {
		all[i] = fill(sp, counts[i], costs[i], each, part(i), r.Uint64())
		left -= pointsTime(all[i].shapes[:min(len(all[i].shapes), fewest)], costs[i], each) / visitsAPoint
		if len(all[i].shapes) < min(counts[i], fewest) {
			lacking = append(lacking, i)
		}
	}
	slices.SortStableFunc(lacking, func(i, j int) int {
		return cmp.Compare(costs[i].call(spaces[i].at(0)), costs[j].call(spaces[j].at(0)))
	})
	for _, i := range lacking {
		before := pointsTime(all[i].shapes, costs[i], each)
		all[i].lengthen(spaces[i], min(counts[i], fewest), costs[i], each, max(overdraw*part(i), before+visitsAPoint*left))
		left -= (pointsTime(all[i].shapes, costs[i], each) - before) / visitsAPoint
	}
	return all
}

// fill chooses n shapes of a space whose longest call is as long as the
// space's part of the budget allows, by bisection: a planner asks for large
// shapes, so the range should reach as far as there is time for.
func fill(sp Space, n int, cost Cost, each, part units.Seconds, seed uint64) filling {
	hi := 5*each + part/callsAVisit
	best := filling{longest: 1e-3, seed: seed}
	best.shapes = best.choose(sp, n, cost)
	for range 12 {
		f := filling{longest: units.Seconds(math.Sqrt(float64(best.longest * hi))), seed: seed}
		if f.shapes = f.choose(sp, n, cost); pointsTime(f.shapes, cost, each) <= part {
			best = f
		} else {
			hi = f.longest
		}
	}
	return best
}

// choose is choose with what is known beforehand: no call is shorter than that of
// the smallest shape, and to find that by drawing takes long.
func (f filling) choose(sp Space, n int, cost Cost) []op.Shape {
	if cost.call(sp.at(0)) > f.longest {
		return nil
	}
	return choose(sp, n, cost, f.longest, rand.New(rand.NewPCG(f.seed, 0)))
}

// lengthen chooses longer calls until there are n points, as far as all visits
// together take no longer than a limit.
func (f *filling) lengthen(sp Space, n int, cost Cost, each, limit units.Seconds) {
	for g := *f; len(g.shapes) < n && g.longest < mostPointTime; {
		g.longest *= 1.25
		g.shapes = g.choose(sp, n, cost)
		if pointsTime(g.shapes, cost, each) > limit {
			return
		}
		*f = g
	}
}

func pointsTime(shapes []op.Shape, cost Cost, each units.Seconds) units.Seconds {
	var t units.Seconds
	for _, s := range shapes {
		t += pointTime(s, cost.call(s), cost, each)
	}
	return t
}

// fillRate is how fast inputs are made: random numbers into fresh memory.
const fillRate = units.BytesPerS(3e9)

// pointTime is what a point whose call takes so long is expected to cost, all
// visits together.
func pointTime(s op.Shape, call units.Seconds, cost Cost, each units.Seconds) units.Seconds {
	return visitsAPoint * (max(overhead, cost.Prepare+units.Seconds(cost.PrepareCalls)*call) + s.Work().Bytes().Over(fillRate) + max(each, callsAVisit*call))
}

// LogScale maps u in 0 to 1 to min to max, evenly in the logarithm, rounded to whole
// numbers: an axis of a Space.
func LogScale(u, min, max float64) float64 {
	return math.Round(min * math.Pow(max/min, u))
}

// Peers take at most this share of a budget and this many points a place:
// enough to tell a slow device from a slow moment.
const (
	peerShare      = 0.15
	mostPeerPoints = 4
)

// peers chooses points to be measured at the other places of every device and
// group: the first short ones of different ops, the same at all its places.
func peers(inv *Inventory, spots []Spot, short map[string]bool, each, budget units.Seconds) []Peer {
	others := inv.peers()
	if others == 0 {
		return nil
	}
	n := min(max(1, int(peerShare*budget/(units.Seconds(others)*(each+10*overhead)))), mostPeerPoints)
	chosen := map[string][]int{}
	for i, s := range spots {
		known := slices.ContainsFunc(chosen[s.On], func(k int) bool { return spots[k].Op == s.Op })
		if len(chosen[s.On]) < n && !known && short[s.Key("")] {
			chosen[s.On] = append(chosen[s.On], i)
		}
	}
	var all []Peer
	for _, p := range inv.Places {
		if home(inv, p) {
			continue
		}
		for _, i := range chosen[p.On] {
			all = append(all, Peer{Point: i, Place: p.Name})
		}
	}
	return all
}

// peers counts the places that are compared with the first of their kind.
func (inv *Inventory) peers() int {
	n := 0
	for _, p := range inv.Places {
		if !home(inv, p) {
			n++
		}
	}
	return n
}

// home says whether a device's or group's own points are measured at a place.
func home(inv *Inventory, p Place) bool { return inv.at(p.On)[0].Name == p.Name }
