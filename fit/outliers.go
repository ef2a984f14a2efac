package fit

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/stats"
	"github.com/evenkeel/evenkeel/profile"
)

// Limits of what counts as an outlier.
const (
	// deviceLimit: devices of one type share laws only if they agree this well,
	// as far as a quiet machine drifts by itself.
	deviceLimit = 0.03
	// groupLimit is that of a group instance against its class, and of a rank
	// against the others of its group.
	groupLimit = 0.15
	// zLimit, in spreads of the class, catches an instance of a class that is
	// otherwise quieter than groupLimit needs.
	zLimit = 4
	// classNoise is the least spread of a class, to which undisturbed points
	// repeat: without it, agreement by chance would make anything an outlier.
	classNoise = 0.02
	// fewestToJudge is the least number of points that a finding rests on.
	fewestToJudge = 3
	// shareToJudge is the least share of a rank's points in an op that must be
	// slow: among hundreds of points three are so by chance.
	shareToJudge = 0.25
	// rankZ, in spreads of the ranks' ratios in an op, is how far out a rank must
	// be beyond groupLimit: where times scatter, some rank is slow at every point.
	rankZ = 3
)

// peer is a point at another place than the one that Points were measured at.
type peer struct {
	place string
	Point
}

// peer adds a point of another place.
func (d *Data) peer(p *profile.Point) {
	if !p.OK() || len(p.Times) == 0 {
		return
	}
	d.peers = append(d.peers, peer{p.Place, Point{
		On: p.On, Shape: p.Shape, Key: profile.NewSpot(p.On, p.Shape).Key(""), Seconds: stats.Median(p.Times), ranks: rankMedians(p),
	}})
}

// place is where the points of a device or group were measured: the first of
// its places, or "" in recordings that name none.
func (d *Data) place(on string) profile.Place {
	for _, p := range d.places {
		if p.On == on {
			return p
		}
	}
	return profile.Place{On: on}
}

// Outliers finds devices, instances of groups, and ranks whose times differ from their
// peers', worst first.
//
// A device is judged by the log ratio of its time to the median over the places where the
// same shape was measured, taken as the median over all shapes. An instance of a group is
// judged the same way, per op. A rank is judged, point by point, by its own time over the
// median of the ranks of its device type. With only two peers the median cannot tell
// which one is off; disturbances make times longer, so the slower one is reported.
//
// Groups whose ranks share cores are not judged, since it changes from point to point
// which rank waits.
func Outliers(d *Data) []costmodel.Outlier {
	found := slices.DeleteFunc(append(d.oddPlaces(), d.oddRanks()...), func(o costmodel.Outlier) bool {
		return slices.ContainsFunc(d.Groups, func(g op.GroupType) bool { return g.Name == o.On && g.Oversubscribed() })
	})
	slices.SortStableFunc(found, func(a, b costmodel.Outlier) int {
		return cmp.Compare(math.Abs(math.Log(b.Scale)), math.Abs(math.Log(a.Scale)))
	})
	return found
}

// reference is what times of the same work are compared with.
func reference(times []float64) float64 {
	if len(times) == 2 {
		return min(times[0], times[1])
	}
	return stats.Median(times)
}

// bout is what one instance of a device type or group signature is judged by:
// all ops of a device together, each op of a group apart.
type bout struct {
	on, place string
	op        op.Kind // "" for a device
}

// class is the places that a bout is compared with.
type class struct {
	on string
	op op.Kind
}

func (d *Data) oddPlaces() []costmodel.Outlier {
	logs, order := d.ratios()
	pooled := map[class][]float64{}
	for _, b := range order {
		k := class{b.on, b.op}
		pooled[k] = append(pooled[k], logs[b]...)
	}
	var found []costmodel.Outlier
	for _, b := range order {
		m := stats.Median(logs[b])
		// Few shapes that scatter say nothing about a device.
		odd := math.Abs(math.Expm1(m)) > deviceLimit && math.Abs(m) > stats.NotchHalfWidth(logs[b])
		if b.op != "" {
			spread := max(classNoise, stats.RobustScale(pooled[class{b.on, b.op}]))
			odd = math.Abs(math.Expm1(m)) > groupLimit || math.Abs(m) > zLimit*spread
		}
		if odd && len(logs[b]) >= fewestToJudge {
			found = append(found, costmodel.Outlier{On: b.on, Place: b.place, Op: b.op, Scale: math.Exp(m), Points: len(logs[b])})
		}
	}
	return found
}

// ratios are the log ratios of every bout, one a shape that was measured at two
// places or more, with the bouts in the order in which they first appear.
func (d *Data) ratios() (logs map[bout][]float64, order []bout) {
	logs = map[bout][]float64{}
	for _, readings := range d.readings() {
		var times []float64
		for _, r := range readings {
			times = append(times, r.Seconds)
		}
		for _, r := range readings {
			b := bout{on: r.On, place: r.place}
			if _, ok := r.Shape.(op.Grouped); ok {
				b.op = r.Shape.Kind()
			}
			if logs[b] == nil {
				order = append(order, b)
			}
			logs[b] = append(logs[b], math.Log(r.Seconds/reference(times)))
		}
	}
	return logs, order
}

// readings groups the shapes that were measured at two places or more, own
// points first. Of several at one place the fastest stands, as in settle.
func (d *Data) readings() [][]peer {
	var all [][]peer
	at := map[string]int{}
	for _, p := range d.peers {
		i, ok := at[p.Key]
		if !ok {
			i = len(all)
			at[p.Key] = i
			var first []peer
			if own, measured := d.byKey[p.Key]; measured {
				first = []peer{{d.place(p.On).Name, d.Points[own]}}
			}
			all = append(all, first)
		}
		same := slices.IndexFunc(all[i], func(r peer) bool { return r.place == p.place })
		switch {
		case same < 0:
			all[i] = append(all[i], p)
		case p.Seconds < all[i][same].Seconds:
			all[i][same] = p
		}
	}
	return slices.DeleteFunc(all, func(r []peer) bool { return len(r) < 2 })
}

// member is one rank of one instance of a group, at work on one op.
type member struct {
	on, place string
	op        op.Kind
	rank      int
}

func (d *Data) oddRanks() []costmodel.Outlier {
	logs := map[member][]float64{}
	pooled := map[class][]float64{}
	var order []member
	judge := func(p Point, place profile.Place) {
		for r, ratio := range d.rankRatios(p, place) {
			if math.IsNaN(ratio) {
				continue
			}
			m := member{p.On, place.Name, p.Shape.Kind(), r}
			if logs[m] == nil {
				order = append(order, m)
			}
			logs[m] = append(logs[m], math.Log(ratio))
			k := class{p.On, m.op}
			pooled[k] = append(pooled[k], math.Log(ratio))
		}
	}
	for _, p := range d.Points {
		judge(p, d.place(p.On))
	}
	for _, p := range d.peers {
		judge(p.Point, d.named(p.On, p.place))
	}
	var found []costmodel.Outlier
	for _, m := range order {
		limit := max(math.Log1p(groupLimit), rankZ*stats.RobustScale(pooled[class{m.on, m.op}]))
		slow := slices.DeleteFunc(slices.Clone(logs[m]), func(l float64) bool { return l <= limit })
		if n := len(slow); n >= fewestToJudge && float64(n) >= shareToJudge*float64(len(logs[m])) {
			found = append(found, costmodel.Outlier{
				On: m.on, Place: cmp.Or(m.place, m.on), Rank: rankName(d.named(m.on, m.place), m.rank), Op: m.op,
				Scale: math.Exp(stats.Median(slow)), Points: n,
			})
		}
	}
	return found
}

// named finds a place of a device or group.
func (d *Data) named(on, name string) profile.Place {
	for _, p := range d.places {
		if p.On == on && p.Name == name {
			return p
		}
	}
	return profile.Place{On: on, Name: name}
}

func rankName(p profile.Place, rank int) string {
	if rank < len(p.Ranks) {
		return p.Ranks[rank]
	}
	return fmt.Sprintf("rank %d", rank)
}

// rankRatios are the times of a point's ranks over those of their like: the
// ranks of their device type that take part. NaN where there is none to compare
// with. In an uneven all-to-all the ranks do unequal work, so it has none.
func (d *Data) rankRatios(p Point, place profile.Place) []float64 {
	if _, uneven := p.Shape.(op.AllToAllV); uneven {
		return nil
	}
	pairs, some := p.Shape.(op.Pairs)
	idle := func(r int) bool { return some && pairs.Idle(r) }
	types := d.rankTypes(place, len(p.ranks))
	like := map[string][]float64{}
	for r, t := range p.ranks {
		if !idle(r) {
			like[types[r]] = append(like[types[r]], t)
		}
	}
	ratios := make([]float64, len(p.ranks))
	for r, t := range p.ranks {
		ratios[r] = math.NaN()
		if of := like[types[r]]; !idle(r) && len(of) > 1 {
			ratios[r] = t / reference(of)
		}
	}
	return ratios
}

// rankTypes are the device types of a place's ranks. Where the recording does
// not say whose devices they are, all ranks of a group of one type are alike and
// those of a mixed one each for itself.
func (d *Data) rankTypes(place profile.Place, ranks int) []string {
	types := make([]string, ranks)
	known := true
	for r := range types {
		types[r] = d.deviceOf(rankName(place, r))
		known = known && types[r] != ""
	}
	if known {
		return types
	}
	mixed := slices.ContainsFunc(d.Groups, func(g op.GroupType) bool { return g.Name == place.On && len(g.Members) > 1 })
	for r := range types {
		types[r] = ""
		if mixed {
			types[r] = fmt.Sprint(r)
		}
	}
	return types
}

// deviceOf is the type of the device of a name, "" if no place says it.
func (d *Data) deviceOf(name string) string {
	for _, p := range d.places {
		if p.Name == name && slices.ContainsFunc(d.Devices, func(o op.DeviceType) bool { return o.Name == p.On }) {
			return p.On
		}
	}
	return ""
}
