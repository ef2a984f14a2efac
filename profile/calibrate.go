package profile

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/stats"
	"github.com/evenkeel/evenkeel/internal/units"
)

// Config says what a calibration measures and for how long.
type Config struct {
	Tool   string
	Budget time.Duration
	Seed   uint64
	Only   []op.Kind // ops to measure; empty means all that the backend offers
	Points int       // largest number of points per law; 0 leaves it to the budget
	// Chooser picks further points by the results so far. Without one all points are chosen
	// before the first is measured, spread over the shapes.
	Chooser Chooser
	// PointTimeout is the time for one point, preparation included, after which its worker
	// counts as hung. A single answer has less: see calibration.patience.
	PointTimeout time.Duration
	// Wall is the clock that deadlines go by: that of a backend, which budgets go by, may jump.
	Wall func() time.Time
}

// Journal stores the lines of a recording. Once Append has returned nil the line survives
// a crash.
type Journal interface {
	Append(line any) error
}

// Past is what a journal already holds when a calibration is resumed.
type Past struct {
	Header   *Header
	Schedule *Schedule
	Done     map[string]bool // keys of points that were measured or failed for good
	Again    map[string]bool // keys of points that are not to be visited a second time: they were, or must not be
	Peers    map[peerKey]bool
	Spent    time.Duration    // measuring time of all earlier runs
	Ended    EndReason        // why the newest run ended; "" if it did not reach its end
	Measured []Visited        // first visits of points
	Failed   int              // points without a result
	Failure  string           // the first of them, with its cause
	Cut      map[peerKey]bool // points, and those of peers, that a budget had no time to wait for
	LeftOut  []Spot           // the smallest shapes of spaces that were skipped because a call takes too long for the budget
}

// Visited is a point that was measured; Seconds is 0 if it failed.
type Visited struct {
	Spot
	Seconds units.Seconds // median time of one call
	Elapsed units.Seconds
}

// Complete says whether nothing is left to measure within a budget. One that was spent
// before the first point of any law is no end: the same budget goes on.
func (p *Past) Complete(budget time.Duration) bool {
	switch {
	case p.Ended == "" || p.Schedule == nil: // somebody may have deleted its line
		return false
	case p.Starved():
		return false
	case p.Ended == EndDone && p.Schedule.Families == nil:
		return true
	}
	return budget.Seconds() <= p.Schedule.BudgetS
}

// NewPast collects, as a Visitor, what a resume needs to know.
func NewPast() (*Past, Visitor) {
	p := &Past{Done: map[string]bool{}, Again: map[string]bool{}, Peers: map[peerKey]bool{}, Cut: map[peerKey]bool{}}
	spend := func(x *Point) error { p.Spent += time.Duration(x.Elapsed * float64(time.Second)); return nil }
	return p, Visitor{
		Header:   func(h *Header) error { p.Header = h; return nil },
		Schedule: func(s *Schedule) error { p.Schedule = s; return nil },
		Point: func(x *Point) error {
			if x.Class == TooLong {
				p.LeftOut = append(p.LeftOut, x.Spot)
				return nil // of no point that was scheduled
			}
			p.Done[x.Key] = true
			p.cut(x)
			if !x.OK() {
				if p.Failed++; p.Failed == 1 {
					p.Failure = failed(x.Spot, x.Class, x.Error)
				}
			}
			if x.Class.final() {
				p.Again[x.Key] = true
			}
			p.Measured = append(p.Measured, visited(x))
			return spend(x)
		},
		Peer:   func(x *Point) error { p.Peers[peerKey{x.Key, x.Place}] = x.Class != Cut; p.cut(x); return spend(x) },
		Again:  func(x *Point) error { p.Again[x.Key] = true; p.cut(x); return spend(x) },
		Canary: spend,
		Resume: func(*Resume) error { p.Ended = ""; return nil },
		End:    func(e *End) error { p.Ended = e.Reason; return nil },
	}
}

// cut notes whether the newest visit of a point was cut off.
func (p *Past) cut(x *Point) {
	at := peerKey{x.Key, x.Place}
	if delete(p.Cut, at); x.Class == Cut {
		p.Cut[at] = true
	}
}

func visited(x *Point) Visited {
	v := Visited{Spot: x.Spot, Elapsed: units.Seconds(x.Elapsed)}
	if len(x.Times) > 0 {
		v.Seconds = units.Seconds(stats.Median(x.Times))
	}
	return v
}

// peerKey is a point at another place.
type peerKey struct{ key, place string }

// Fits says whether a journal was made in the environment of an inventory;
// an empty one was. Otherwise nothing may be appended to it, and a profile
// fitted to it is not this machine's.
func (p *Past) Fits(inv *Inventory) error {
	if fp := fingerprint(inv); p.Header != nil && p.Header.Fingerprint != fp {
		return fmt.Errorf("the recording was made on another machine or software stack, or with other devices (fingerprint %.12s, this is %.12s): nothing is merged; pass another --out to measure this one", p.Header.Fingerprint, fp)
	}
	return nil
}

// Progress is told after every step.
type Progress struct {
	Phase string // "discovering", "piloting", "measuring"
	Now   Spot   // the point at hand
	Done  int
	Total int
	Left  time.Duration // of the budget
	Point *Point        // the point just finished, if any
}

// Calibrate measures: it discovers the machine, pilots every family of shapes
// once, chooses points inside the budget, samples them in shuffled order with
// canaries in between, and appends each to the journal before the next begins.
// Given a Past it goes on where that stopped.
//
// It returns ctx's error when interrupted; what was appended stays. Failures
// of single points are recorded and measuring goes on, until three workers in a
// row or a third of 30 points or more have failed.
func Calibrate(ctx context.Context, b Backend, cfg Config, past *Past, j Journal, report func(Progress)) error {
	c := &calibration{Config: cfg, backend: b, journal: j, report: report, started: b.Clock().Now(), open: map[peerKey]Executor{}, starts: map[peerKey]time.Duration{}, seen: map[law]time.Duration{}, denied: map[string]bool{}}
	defer c.close()
	report(Progress{Phase: "discovering"})
	inv, err := b.Discover(ctx)
	if err != nil {
		return err
	}
	c.inventory = inv
	if c.every = canaryEvery; inv.Unguarded {
		c.every = canaryEveryUnguarded
	}
	if err := c.begin(inv, past); err != nil {
		return err
	}
	schedule := past.Schedule
	switch {
	case schedule != nil:
	case c.Chooser != nil:
		schedule, err = c.beginRounds(ctx, inv)
	default:
		schedule, err = c.schedule(ctx, inv)
	}
	if err != nil {
		return err
	}
	return c.measure(ctx, schedule, past)
}

type calibration struct {
	Config
	backend     Backend
	inventory   *Inventory
	journal     Journal
	report      func(Progress)
	started     time.Time
	protocol    Protocol
	fingerprint string
	every       int                       // points between canaries
	open        map[peerKey]Executor      // by device or group, and place
	denied      map[string]bool           // keys of points that are not run again
	tried       int                       // visits of points of this run
	failed      int                       // points of this run without times
	lost        int                       // workers lost in a row
	cut         bool                      // a point was cut off for which a longer budget has time
	starts      map[peerKey]time.Duration // the longest of a place's workers to start
	seen        map[law]time.Duration     // the longest of a family's answers before further calls
	why         string                    // the last failure
	reached     int                       // how far progress was told: what is put off does not set it back
}

// begin writes the header of a new recording, or checks that a resumed one is
// of this environment.
func (c *calibration) begin(inv *Inventory, past *Past) error {
	fp := fingerprint(inv)
	now := c.now()
	if past.Header != nil {
		if err := past.Fits(inv); err != nil {
			return err
		}
		c.fingerprint, c.protocol = fp, past.Header.Protocol
		c.Seed = past.Header.Seed
		return c.journal.Append(Resume{T: lineResume, Tool: c.Tool, At: now})
	}
	_, each, err := c.aims(inv, units.Seconds(c.Budget.Seconds()))
	if err != nil {
		return err
	}
	c.fingerprint = fp
	c.protocol = defaultProtocol(each)
	h := Header{
		Schema: RecordingSchema, Tool: c.Tool, Created: now, Backend: inv.Backend, Simulated: inv.Simulated,
		Fingerprint: fp, Seed: c.Seed, Machine: inv.Machine, Others: inv.Others, Devices: inv.Devices, Groups: inv.Groups,
		Places: inv.Places, Protocol: c.protocol, Notes: inv.Notes,
	}
	if err := h.Validate(); err != nil { // no reader would take what is measured now
		return fmt.Errorf("what the %s backend found: %w", inv.Backend, err)
	}
	return c.journal.Append(h)
}

// schedule pilots the spaces, chooses the points and writes them down.
func (c *calibration) schedule(ctx context.Context, inv *Inventory) (*Schedule, error) {
	points, each, err := c.aims(inv, units.Seconds(c.Budget.Seconds()))
	if err != nil {
		return nil, err
	}
	costs, spaces, err := c.pilot(ctx, c.wanted(inv.Spaces))
	if err != nil {
		return nil, err
	}
	known := piloted(spaces, costs)
	for i := range spaces {
		spaces[i].Share *= pace(known, known[i])
	}
	left := c.left(c.Budget)
	spots, short, none := plan(spaces, costs, c.counts(spaces, points), each, units.Seconds(left.Seconds()), rand.New(rand.NewPCG(c.Seed, 0)))
	s := &Schedule{
		T: lineSchedule, BudgetS: c.Budget.Seconds(), Limit: c.Points, Points: spots, Canaries: canaries(spots, short),
		Once: c.wantedOnce(inv.Once), Peers: peers(inv, spots, short, each, units.Seconds(c.Budget.Seconds())),
	}
	if err := c.journal.Append(s); err != nil {
		return nil, err
	}
	return s, c.leaveOut(none)
}

// leaveOut records the spaces for whose calls there is no time, so that nobody
// has to guess why they have no law.
func (c *calibration) leaveOut(none []Space) error {
	for _, sp := range none {
		spot := NewSpot(sp.On, sp.at(0))
		p := &Point{
			T: linePoint, Key: spot.Key(c.fingerprint), Spot: spot, Class: TooLong, At: c.now(),
			Error: fmt.Sprintf("points enough for a law take more time than a budget of %s has for them", c.Budget),
		}
		if err := c.journal.Append(p); err != nil {
			return err
		}
	}
	return nil
}

// left is the time for measuring in what is left of a budget: at least half of that,
// since on a busy machine starting and verifying alone may take a short one.
func (c *calibration) left(budget time.Duration) time.Duration {
	return max(budget-c.backend.Clock().Now().Sub(c.started), budget/2)
}

func (c *calibration) wantedOnce(all []Spot) []Spot {
	if len(c.Only) == 0 {
		return all
	}
	return slices.DeleteFunc(slices.Clone(all), func(s Spot) bool { return !slices.Contains(c.Only, s.Op) })
}

func (c *calibration) wanted(all []Space) []Space {
	if len(c.Only) == 0 {
		return all
	}
	return slices.DeleteFunc(slices.Clone(all), func(s Space) bool { return !slices.Contains(c.Only, s.Kind) })
}

func kinds(spaces []Space) []op.Kind {
	var ks []op.Kind
	for _, s := range spaces {
		if !slices.Contains(ks, s.Kind) {
			ks = append(ks, s.Kind)
		}
	}
	return ks
}

// After how many points the canaries are measured again, so that drift of the
// machine shows: sooner where nothing else would tell.
const (
	canaryEvery          = 25
	canaryEveryUnguarded = 10
)

// measure visits every point twice: what disturbs a machine lasts for fractions
// of a second to seconds, so a second visit at another moment shows which points
// it struck. With a Chooser, the first visits go by rounds, each chosen by those
// before. The second visits have an order of their own.
func (c *calibration) measure(ctx context.Context, s *Schedule, past *Past) error {
	start := c.backend.Clock().Now()
	c.failed, c.lost, c.cut = 0, 0, false // a family whose pilot failed has no points: the health of these is another matter
	// A resume with a longer budget than the points were chosen for measures
	// those that there was no time for.
	budget := max(time.Duration(s.BudgetS*float64(time.Second)), c.Budget)
	deadline := start.Add(c.left(budget - past.countedSpent()))
	var r *rounds
	if c.Chooser != nil && s.Families != nil {
		r = c.rounds(c.inventory.Spaces, s, past)
	}
	round := func() (more, inTime bool, err error) {
		known := len(s.Points)
		next := r.next(units.Seconds(deadline.Sub(c.backend.Clock().Now()).Seconds()) * (1 - canaryShare))
		if len(next) == 0 {
			return false, true, nil
		}
		if err := c.journal.Append(Schedule{T: lineSchedule, BudgetS: budget.Seconds(), Points: next, Canaries: []int{}}); err != nil {
			return false, false, err
		}
		s.Points = append(s.Points, next...)
		inTime, err = c.visitAll(ctx, s, c.firsts(s, past, known), deadline, r)
		return true, inTime, err
	}
	if r == nil {
		round = func() (more, inTime bool, err error) { return false, true, nil }
	}
	inTime, err := c.visitFirsts(ctx, s, past, start, deadline, r, round)
	for more := true; err == nil && inTime && more; {
		more, inTime, err = round()
	}
	if err == nil && inTime {
		inTime, err = c.visitAll(ctx, s, c.seconds(s, past), deadline, nil)
	}
	if err != nil {
		return err
	}
	reason := EndDone
	if !inTime || c.cut {
		reason = EndBudget
	}
	return c.journal.Append(End{T: lineEnd, At: c.now(), Reason: reason, Elapsed: c.backend.Clock().Now().Sub(start).Seconds()})
}

// visitAll makes visits until the time is up, with canaries in between, and says
// whether all could be made.
func (c *calibration) visitAll(ctx context.Context, s *Schedule, todo []visit, deadline time.Time, r *rounds) (inTime bool, err error) {
	for _, v := range todo {
		left := deadline.Sub(c.backend.Clock().Now())
		if left <= 0 {
			return false, nil
		}
		if v.line == lineAgain && c.denied[v.Key(c.fingerprint)] {
			continue
		}
		c.reached = max(c.reached, v.place)
		at := Progress{Phase: "measuring", Now: v.Spot, Done: c.reached, Total: len(s.Once) + len(s.Peers) + visitsAPoint*len(s.Points), Left: left}
		c.report(at)
		p, err := c.point(ctx, v)
		if err != nil {
			return false, err
		}
		at.Done, at.Point = min(at.Done+1, at.Total), p
		c.reached = at.Done
		c.report(at)
		if r != nil {
			r.seen(v.Spot, p)
		}
		if c.tried++; c.tried%c.every == 0 {
			if err := c.repeat(ctx, s, c.tried/c.every); err != nil {
				return false, err
			}
		}
		if err := c.healthy(c.tried); err != nil {
			return false, err
		}
	}
	return true, nil
}

// visitsAPoint is how often a point is measured.
const visitsAPoint = 2

// visit is one measurement that is still to be made.
type visit struct {
	Spot
	line  string
	peer  string // where, of a peer
	place int    // in the whole run
}

// firsts lists the first visits that are still to be made, of the schedule's
// points from an index on.
func (c *calibration) firsts(s *Schedule, past *Past, from int) []visit {
	return c.undone(s.Points[from:], past, len(s.Once)+from)
}

// undone lists the spots that are still to be visited; the first has a place in the run.
func (c *calibration) undone(spots []Spot, past *Past, place int) []visit {
	var todo []visit
	for i, spot := range spots {
		if !past.Done[spot.Key(c.fingerprint)] {
			todo = append(todo, visit{Spot: spot, line: linePoint, place: place + i})
		}
	}
	return todo
}

// seconds lists the peers and the second visits that are still to be made. A
// point that failed has nothing to compare with, but may succeed this time.
func (c *calibration) seconds(s *Schedule, past *Past) []visit {
	var todo []visit
	place := len(s.Once) + len(s.Points)
	add := func(done bool, v visit) {
		if v.place = place; !done {
			todo = append(todo, v)
		}
		place++
	}
	for _, p := range s.Peers {
		spot := s.Points[p.Point]
		add(past.Peers[peerKey{spot.Key(c.fingerprint), p.Place}], visit{Spot: spot, line: linePeer, peer: p.Place})
	}
	for _, k := range rand.New(rand.NewPCG(c.Seed, 2)).Perm(len(s.Points)) {
		spot := s.Points[k]
		add(past.Again[spot.Key(c.fingerprint)], visit{Spot: spot, line: lineAgain})
	}
	// A worker that hangs at a point must not keep every run of a recording from the others.
	slices.SortStableFunc(todo, func(a, b visit) int { return cmp.Compare(c.wasCut(past, a), c.wasCut(past, b)) })
	return todo
}

// wasCut is 1 of a point that an earlier run's budget had no time to wait for, else 0.
func (c *calibration) wasCut(past *Past, v visit) int {
	if past.Cut[peerKey{v.Key(c.fingerprint), v.peer}] {
		return 1
	}
	return 0
}

// repeat measures two of the canaries again, each round the next two.
func (c *calibration) repeat(ctx context.Context, s *Schedule, round int) error {
	for k := range min(2, len(s.Canaries)) {
		spot := s.Points[s.Canaries[(2*round+k)%len(s.Canaries)]]
		if c.denied[spot.Key(c.fingerprint)] {
			continue
		}
		if _, err := c.point(ctx, visit{Spot: spot, line: lineCanary}); err != nil {
			return err
		}
	}
	return nil
}

// healthy stops a run that produces little but failures.
func (c *calibration) healthy(tried int) error {
	if c.lost >= 3 {
		return &GivenUpError{fmt.Sprintf("the workers died three times in a row, at last of %s. What was measured is kept", c.why)}
	}
	if tried >= 30 && c.failed*3 >= tried {
		return &GivenUpError{fmt.Sprintf("%d of %d points failed, the last %s. What was measured is kept", c.failed, tried, c.why)}
	}
	return nil
}

// point measures one spot, with one retry on a fresh worker if the failure may
// be the worker's, and appends what came of it. The error is the journal's or
// ctx's.
func (c *calibration) point(ctx context.Context, v visit) (*Point, error) {
	at, start := c.now(), c.backend.Clock().Now()
	m, err := c.sample(ctx, v)
	if err != nil && ctx.Err() == nil && asOpError(err).Class.retried() {
		c.drop(v.On, v.peer)
		m, err = c.sample(ctx, v)
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		return nil, c.failure(v, err, at)
	}
	c.lost = 0
	p := &Point{
		T: v.line, Key: v.Key(c.fingerprint), Spot: v.Spot, Place: v.peer, Times: m.times, Inner: m.inner, Stop: m.stop,
		Size: m.size, Ratio: m.ratio, Peak: m.peak, Discarded: m.discarded, Disturbed: m.disturbed, Guard: m.guard,
		At: at, Elapsed: c.backend.Clock().Now().Sub(start).Seconds(),
	}
	if len(m.ranks) > 1 {
		p.RankTimes = m.ranks
	}
	return p, c.journal.Append(p)
}

func (c *calibration) sample(ctx context.Context, v visit) (*sampling, error) {
	x, err := c.executor(ctx, v.On, v.peer)
	if err != nil {
		return nil, err
	}
	var m *sampling
	if measures := quantity(v.Op); measures == op.Time {
		m, err = samplePoint(ctx, c.backend.Clock(), c.patient(x, v.Spot), v.Shape, c.inputSeed(v.Spot), c.protocol)
	} else {
		ctx, cancel := context.WithDeadline(ctx, c.Wall().Add(c.PointTimeout))
		defer cancel()
		m, err = gaugePoint(ctx, x, v.Shape, c.inputSeed(v.Spot), measures)
	}
	if err != nil && asOpError(err).Lost {
		c.drop(v.On, v.peer)
	}
	return m, err
}

// failure records a point that could not be measured. Later visits of a point
// are not recorded: its first measurement stands, or its failure.
func (c *calibration) failure(v visit, err error, at string) error {
	e := asOpError(err)
	c.cut = c.cut || e.Class == Cut
	if e.Class.final() || e.Class == Cut { // by this run
		c.denied[v.Key(c.fingerprint)] = true
	}
	if v.line == lineAgain || v.line == lineCanary {
		return nil
	}
	if c.why = failed(v.Spot, e.Class, e.Err.Error()); e.Class != Cut { // which says nothing against the machine
		if c.failed++; e.Lost {
			c.lost++
		}
	}
	p := &Point{T: v.line, Key: v.Key(c.fingerprint), Spot: v.Spot, Place: v.peer, Class: e.Class, Error: e.Err.Error(), At: at}
	if e.Class == OutOfMemory {
		p.Peak = v.Shape.Work().Bytes()
	}
	c.report(Progress{Phase: "measuring", Now: v.Spot, Point: p})
	return c.journal.Append(p)
}

// inputSeed makes a point's inputs its own, whatever the order of measuring.
func (c *calibration) inputSeed(s Spot) uint64 {
	var h uint64 = 14695981039346656037 // FNV-1a
	for _, b := range []byte(s.Key("")) {
		h = (h ^ uint64(b)) * 1099511628211
	}
	return h ^ c.Seed
}

func (c *calibration) now() string { return c.backend.Clock().Now().UTC().Format(time.RFC3339Nano) }

// fingerprint names the environment: devices of other fingerprints, or another
// backend, are another recording.
func fingerprint(inv *Inventory) string {
	s := inv.Backend
	for _, d := range inv.Devices {
		s += "\n" + d.Name + " " + d.Fingerprint
	}
	for _, g := range inv.Groups {
		s += "\n" + g.Name
	}
	return hash(s)
}
