package fit

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/stats"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/profile"
)

// Point is one measured shape as a fit sees it. All visits of the shape are taken
// together.
type Point struct {
	On      string // device type or group signature
	Shape   op.Shape
	Key     string  // profile.Spot.Key: identifies the shape on the device or group
	Seconds float64 // of one call on the slowest rank: median of a visit's samples, visits taken together by settle; imported, the median of its rows

	rank      uint64 // hash of the key and the hold-out's seed: fixes folds and hold-out
	visits    []float64
	fastest   float64   // of the visits
	ranks     []float64 // median of every rank's own times in the fastest visit, s; nil on a device
	source    string    // name of the recording that it was first seen in
	shared    bool      // other recordings have it too
	disturbed bool      // other processes held the cores at every visit
	doubtful  bool      // it cannot be told whether the profile's laws were fitted to it: see Data.Unseen
}

// Gauged is a measured quantity that is not a time: the bytes of a memory op (Size) or
// the slow-down of an overlap (Ratio).
type Gauged struct {
	On    string      `json:"on"`
	Shape op.Shape    `json:"shape"`
	Size  units.Bytes `json:"size_bytes,omitzero"`
	Ratio float64     `json:"ratio,omitzero"`
}

// Data is the content of one or more recordings.
type Data struct {
	Simulated bool
	Created   string // of the newest recording
	Devices   []op.DeviceType
	Groups    []op.GroupType
	Points    []Point
	Gauged    []Gauged

	Failed  int       // points without times
	TooFast int       // points left out that take less time than their device can: see impossible
	Torn    int       // recordings whose last line was cut off
	TooLong []Stratum // not measured, because a call takes longer than the budget allowed
	Cut     []Stratum // of which points were cut off, because the budget allowed no longer wait for their worker
	Drift   []*Drift  // of every canary
	Own     int       // points, from other files, that the profile under check was fitted to; see Unseen

	oldest  time.Time // when the first of the recordings began
	undated bool      // some do not tell when they were measured

	tooFast string // the first point that TooFast counts, in words
	sheets  map[string]op.Sheet

	only    only
	foreign bool // of the recording being read: see profile.Header.Imported
	origins origins
	byKey   map[string]int
	repeats map[string]*repeats // of imported points that have several times, by key
	// unsettled are the keys of points with visits that are not in their Seconds yet.
	unsettled map[string]bool
	drift     map[string]*Drift // by key
	copies    profile.Copies
	reading   string          // name of the recording that is being read
	sources   profile.Sources // of the points that several recordings have
	places    []profile.Place // the first of a device or group is where Points were measured
	peers     []peer

	waiting []Stratum // scheduled, of which no point was tried yet
}

// NewData is an empty data set.
func NewData() *Data {
	return &Data{sheets: map[string]op.Sheet{}, byKey: map[string]int{}, repeats: map[string]*repeats{}, unsettled: map[string]bool{}, drift: map[string]*Drift{}}
}

// Add reads a recording into the data set. name is the file's name in errors.
//
// Errors: those of profile.Read, a device or group that is already in the set with
// another definition, and a mix of simulated and measured recordings.
func (d *Data) Add(name string, r io.Reader) error {
	take := func(by func(*profile.Point)) func(*profile.Point) error {
		return func(p *profile.Point) error {
			if !d.only.without[p.On] {
				by(p)
			}
			return nil
		}
	}
	d.reading = name
	tally, err := d.copies.Read(name, r, profile.Visitor{
		Header: func(h *profile.Header) error {
			d.origins.note(name, h)
			return d.header(d.only.of(h))
		},
		Schedule: func(s *profile.Schedule) error {
			for _, p := range s.Points {
				if !d.only.without[p.On] {
					d.waiting = with(d.waiting, p)
				}
			}
			return nil
		},
		Point:  take(d.observe),
		Again:  take(d.observe),
		Canary: take(d.canary),
		Peer:   take(d.peer),
	})
	if tally.Torn {
		d.Torn++
	}
	d.takeTogether()
	return err
}

func (d *Data) header(h *profile.Header) error {
	if len(d.Devices) > 0 && d.Simulated != h.Simulated {
		return fmt.Errorf("simulated: %v: simulated and measured recordings are never taken together: name them apart", h.Simulated)
	}
	d.Simulated, d.foreign = h.Simulated, h.Imported()
	d.Created = max(d.Created, h.Created)
	d.date(h.Created, h.Imported())
	for _, dev := range h.Devices {
		i := slices.IndexFunc(d.Devices, func(o op.DeviceType) bool { return o.Name == dev.Name })
		if i < 0 {
			d.Devices, d.sheets[dev.Name] = append(d.Devices, dev), dev.Sheet
		} else if d.Devices[i] != dev {
			return fmt.Errorf("devices: %q is another device in an earlier recording (fingerprint %.12s, here %.12s): they are never pooled; fit them apart", dev.Name, d.Devices[i].Fingerprint, dev.Fingerprint)
		}
	}
	for _, g := range h.Groups {
		if !slices.ContainsFunc(d.Groups, func(o op.GroupType) bool { return o.Name == g.Name }) {
			d.Groups = append(d.Groups, g)
		}
	}
	for _, place := range h.Places {
		if !slices.ContainsFunc(d.places, func(o profile.Place) bool { return o.On == place.On && o.Name == place.Name }) {
			d.places = append(d.places, place)
		}
	}
	return nil
}

// Observe adds one point, whose device or group must be in Devices or Groups.
func (d *Data) Observe(p *profile.Point) {
	d.observe(p)
	d.takeTogether()
}

// takeTogether settles the visits that came since the last time: once for a recording, since
// a table or a profiler's trace may have thousands of one point. Of imported rows nobody knows
// what makes one slower, such as other software, another node or the column of a log: none is
// the right one, and the median stands, which of two is their mean. See disagreeing.
func (d *Data) takeTogether() {
	for key := range d.unsettled {
		q := &d.Points[d.byKey[key]]
		if q.Seconds = settle(q.visits); d.foreign {
			q.Seconds = stats.Median(q.visits)
		}
	}
	clear(d.unsettled)
}

func (d *Data) observe(p *profile.Point) {
	if p.Class == profile.TooLong {
		d.TooLong = with(d.TooLong, p.Spot)
		return
	}
	d.waiting = slices.DeleteFunc(d.waiting, stratum(p.Spot).same)
	if !p.OK() {
		if d.Failed++; p.Class == profile.Cut {
			d.Cut = with(d.Cut, p.Spot)
		}
		return
	}
	if len(p.Times) == 0 {
		d.Gauged = append(d.Gauged, Gauged{On: p.On, Shape: p.Shape, Size: p.Size, Ratio: p.Ratio})
		return
	}
	m := stats.Median(p.Times)
	if d.impossible(p, m) {
		return
	}
	key := profile.NewSpot(p.On, p.Shape).Key("")
	if i, ok := d.byKey[key]; ok {
		q := &d.Points[i]
		d.compare(q, p.Spot, m)
		d.repeated(q, p.Times)
		if m < q.fastest {
			q.fastest, q.ranks = m, rankMedians(p)
		}
		q.visits = append(q.visits, m)
		q.disturbed = q.disturbed && p.Disturbed
		d.unsettled[key] = true
		return
	}
	q := Point{On: p.On, Shape: p.Shape, Key: key, Seconds: m, fastest: m, ranks: rankMedians(p), source: d.reading, disturbed: p.Disturbed}
	if len(p.Times) > 1 {
		d.repeated(&q, p.Times) // before there are visits, which a point's first further row takes in
	}
	q.visits = []float64{m}
	d.byKey[key] = len(d.Points)
	d.Points = append(d.Points, q)
}

// compare notes a further visit of a point where it comes from another recording than the
// first. The first one's visits are then all there, for recordings are read one by one.
func (d *Data) compare(q *Point, at profile.Spot, seconds float64) {
	switch {
	case q.source == d.reading:
		return
	case !q.shared:
		q.shared = true
		d.sources.Observe(q.source, at, q.visits...)
	}
	d.sources.Observe(d.reading, at, seconds)
}

func rankMedians(p *profile.Point) []float64 {
	var all []float64
	for _, times := range p.RankTimes {
		all = append(all, stats.Median(times))
	}
	return all
}

// struck is how far two visits of a point may be apart before the slower counts
// as disturbed; undisturbed ones repeat to about 2 %.
const struck = 0.10

// settle takes the visits of a point together. What disturbs a measurement
// (somebody else on the cores, a host that looks after itself) makes it slower,
// never faster, and a visit lasts less long than the disturbance: its own
// samples do not show it. Of two visits that disagree the faster is right; of
// those that agree, the median is.
func settle(visits []float64) float64 {
	least := slices.Min(visits)
	agree := slices.DeleteFunc(slices.Clone(visits), func(v float64) bool { return v > least*(1+struck) })
	return stats.Median(agree)
}

func (d *Data) canary(p *profile.Point) {
	if !p.OK() || len(p.Times) == 0 {
		return
	}
	key, m := profile.NewSpot(p.On, p.Shape).Key(""), stats.Median(p.Times)
	c := d.drift[key]
	if c == nil {
		first := m
		d.takeTogether()
		if i, measured := d.byKey[key]; measured {
			first = d.Points[i].Seconds
		}
		c = NewDrift(p.On, p.Shape, first)
		d.drift[key], d.Drift = c, append(d.Drift, c)
	}
	c.Repeat(m)
}

// stratum is that of a point, without its points.
func stratum(p profile.Spot) Stratum {
	return Stratum{On: p.On, Op: p.Op, Variant: p.Shape.Variant()}
}

func (s Stratum) same(o Stratum) bool { return s.On == o.On && s.Op == o.Op && s.Variant == o.Variant }

// with adds the stratum of a point to a list that has it at most once.
func with(strata []Stratum, p profile.Spot) []Stratum {
	if s := stratum(p); !slices.ContainsFunc(strata, s.same) {
		return append(strata, s)
	}
	return strata
}

// lacking are those of some strata that should have a law and have no point.
func (d *Data) lacking(strata []Stratum) []Stratum {
	measured := d.Strata()
	return slices.DeleteFunc(slices.Clone(strata), func(s Stratum) bool {
		return !hasLaw(s.Op) || slices.ContainsFunc(measured, s.same)
	})
}

// disturbed counts the points that were measured only while others held the cores.
func (d *Data) disturbed() int {
	n := 0
	for _, p := range d.Points {
		if p.disturbed {
			n++
		}
	}
	return n
}

func (d *Data) warnings() []string {
	var w []string
	if d.Simulated {
		w = append(w, "SIMULATED: made from a simulated backend, no hardware was measured")
	}
	if d.Torn > 0 {
		w = append(w, fmt.Sprintf("the last line of %s was cut off: if a copy broke off there, more than that line is missing; copy the file again", units.Count(d.Torn, "recording")))
	}
	if copied := d.copies.Warning("the recordings"); copied != "" {
		w = append(w, copied)
	}
	contradictions := d.sources.Contradictions()
	for _, c := range contradictions {
		w = append(w, fmt.Sprintf("%s: laws of both describe neither; see what differs, and leave out what does not hold: evenkeel check %s --drift-from %s", c, c.Second, c.First))
	}
	if apart := d.disagreeing(len(contradictions) > 0); apart != "" {
		w = append(w, apart)
	}
	if beyond := d.beyondDevice(); beyond != "" {
		w = append(w, beyond)
	}
	if d.Failed > 0 {
		w = append(w, fmt.Sprintf("%s could not be measured; the recording holds the reasons", units.Count(d.Failed, "point")))
	}
	if d.Own > 0 {
		w = append(w, fmt.Sprintf("%s of another file are among those that the profile was fitted to: only the others count", units.Count(d.Own, "point")))
	}
	for _, s := range d.lacking(d.TooLong) {
		w = append(w, fmt.Sprintf("%s: no law, for its calls are long and the budget had no time for them; measure for longer: evenkeel calibrate --fresh --budget 10m", s))
	}
	for _, s := range d.lacking(d.Cut) {
		w = append(w, fmt.Sprintf("%s: no law, for its workers did not answer and the budget had no time to wait for them, or to try more; wait longer: evenkeel calibrate --fresh --budget 10m", s))
	}
	for _, s := range d.lacking(d.waiting) {
		w = append(w, fmt.Sprintf("%s: no law, for the budget was spent before its first point; the command that began the recording goes on with a longer --budget, such as 10m", s))
	}
	if n := d.disturbed(); n*20 > len(d.Points) {
		w = append(w, fmt.Sprintf("%d of %d points were measured while other processes held the cores: errors are larger than on a quiet machine", n, len(d.Points)))
	}
	for _, c := range d.Drift {
		if c.Drifted() {
			w = append(w, c.String())
		}
	}
	return w
}

// device finds a device type by name; a group has none.
func (d *Data) device(on string) op.DeviceType {
	for _, dev := range d.Devices {
		if dev.Name == on {
			return dev
		}
	}
	return op.DeviceType{}
}

// Stratum is the set of points that one law is fitted to: one op in one variant on one
// device type or group.
type Stratum struct {
	On      string
	Op      op.Kind
	Variant op.Variant
	Points  []Point
}

// String names the stratum as reports do: "gemm (fwd f32) on cpu:1".
func (s Stratum) String() string {
	if v := s.Variant.String(); v != "" {
		return fmt.Sprintf("%s (%s) on %s", s.Op, v, s.On)
	}
	return fmt.Sprintf("%s on %s", s.Op, s.On)
}

// hasLaw says whether a law is fitted to points of an op: composed ones have none,
// and what is no time is no law's.
func hasLaw(kind op.Kind) bool {
	spec, err := op.Lookup(kind)
	return err == nil && spec.Measures == op.Time && spec.Class != op.Composed
}

// Strata groups the points by law, ordered by device or group and then as
// op.Table orders the ops; only ops that measure time have laws, and of these
// composed ones have none.
func (d *Data) Strata() []Stratum {
	var strata []Stratum
	for _, p := range d.Points {
		of := stratumOf(p)
		if !hasLaw(of.Op) {
			continue
		}
		i := slices.IndexFunc(strata, of.same)
		if i < 0 {
			i = len(strata)
			strata = append(strata, of)
		}
		strata[i].Points = append(strata[i].Points, p)
	}
	place := map[op.Kind]int{}
	for i, spec := range op.Table() {
		place[spec.Kind] = i
	}
	slices.SortStableFunc(strata, func(a, b Stratum) int {
		return cmp.Or(cmp.Compare(a.On, b.On), cmp.Compare(place[a.Op], place[b.Op]), cmp.Compare(a.Variant.String(), b.Variant.String()))
	})
	return strata
}

// split sets the hold-out aside: the given share of the points, rounded up,
// whose hash with the seed is smallest. It looks at nothing that was measured.
// Points at an end of an axis are set aside last: outside the range of the
// others they would say nothing about the law inside it.
func (s Stratum) split(o Options) (fitted, held []Point) {
	points := slices.Clone(s.Points)
	for i := range points {
		points[i].rank = rank(o.Seed, points[i].Key)
	}
	ends := endsOf(s.Op, points)
	slices.SortFunc(points, func(a, b Point) int {
		return cmp.Or(boolCompare(ends[a.Key], ends[b.Key]), cmp.Compare(a.rank, b.rank))
	})
	n := int(math.Ceil(o.Share * float64(len(points))))
	if len(points)-n < fewestToFit {
		n = max(0, len(points)-fewestToFit)
	}
	return points[n:], points[:n]
}

// endsOf names the points that alone reach an end of an axis.
func endsOf(k op.Kind, points []Point) map[string]bool {
	ends := map[string]bool{}
	for i, r := range hull(k, points) {
		for _, end := range []float64{r.Min, r.Max} {
			var there []string
			for _, p := range points {
				if p.Shape.(op.Located).Coords()[i] == end {
					there = append(there, p.Key)
				}
			}
			if len(there) == 1 {
				ends[there[0]] = true
			}
		}
	}
	return ends
}

func boolCompare(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

func rank(seed uint64, key string) uint64 {
	sum := sha256.Sum256(fmt.Appendf(nil, "%d %s", seed, key))
	return binary.BigEndian.Uint64(sum[:])
}

// Held returns the points of a data set that a profile set aside, and those of
// composed ops, which no law is ever fitted to.
func (d *Data) Held(seed uint64, share float64) []Point {
	var all []Point
	for _, s := range d.Strata() {
		_, held := s.split(Options{Seed: seed, Share: share})
		all = append(all, held...)
	}
	for _, p := range d.Points {
		if _, ok := p.Shape.(op.Compound); ok {
			all = append(all, p)
		}
	}
	return all
}
