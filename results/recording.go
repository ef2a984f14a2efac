package results

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/fit"
	"github.com/evenkeel/evenkeel/internal/stats"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/profile"
)

// RecordingSummary is what a recording holds, counted. The zero value is an
// empty one, to be filled by its Visitor.
type RecordingSummary struct {
	Name      string         `json:"name"`
	Header    profile.Header `json:"header"`
	Scheduled int            `json:"scheduled"` // points the last schedule set out to measure
	Resumes   int            `json:"resumes"`
	Torn      bool           `json:"torn"`            // the last line was cut off and does not count
	Copied    string         `json:"copied,omitzero"` // tells of lines that stood there twice, which do not count
	End       *profile.End   `json:"end"`
	Strata    []StratumCount `json:"strata"`    // ordered by device or group, then as op.Table
	Canaries  []CanaryDrift  `json:"canaries"`  // in the order in which they first appear
	Gauged    []Gauged       `json:"gauged"`    // what was measured and is no time
	Peers     []PeerCount    `json:"peers"`     // in the order in which they first appear
	Elapsed   units.Seconds  `json:"elapsed_s"` // of all points together

	first  map[string]float64 // first time of every point, for drift
	shapes int                // of points with times, each with its place; canaries do not count
}

// StratumCount counts the points of one op on one device or group.
type StratumCount struct {
	On        string                `json:"on"`
	Op        op.Kind               `json:"op"`
	Points    int                   `json:"points"` // with times
	Failed    int                   `json:"failed"` // without, see Classes
	Samples   int                   `json:"samples"`
	Discarded int                   `json:"discarded"` // samples dropped by the guards
	Disturbed int                   `json:"disturbed"` // points kept although others held the cores
	Stops     map[profile.Stop]int  `json:"stops"`
	Classes   map[profile.Class]int `json:"classes"`
	Shortest  units.Seconds         `json:"shortest_s"` // smallest and largest median
	Longest   units.Seconds         `json:"longest_s"`
	noise     []float64
	reasons   map[profile.Class]string // the first of each class
}

// CanaryDrift is how a point that was measured again and again moved.
type CanaryDrift struct {
	On      string   `json:"on"`
	Op      op.Kind  `json:"op"`
	Shape   op.Shape `json:"shape"`
	Times   int      `json:"times"`       // how often it was measured again
	Worst   float64  `json:"worst_ratio"` // the repeat farthest from the first time, as a ratio to it
	Last    float64  `json:"last_ratio"`  // the end over the beginning, without disturbed visits
	Drifted bool     `json:"drifted"`     // by more than their noise

	of *fit.Drift
}

// Gauged is a quantity that was measured and is no time, with its op, which a shape alone
// does not tell.
type Gauged struct {
	Op op.Kind `json:"op"`
	fit.Gauged
}

// Summarise reads a recording into a summary. Errors are profile.Read's.
func Summarise(name string, r io.Reader) (*RecordingSummary, error) {
	s := &RecordingSummary{Name: name}
	var copies profile.Copies
	tally, err := copies.Read(name, r, s.Visitor())
	s.Torn, s.Copied = tally.Torn, copies.Warning("the recording")
	return s, err
}

// Visitor returns the functions that fill the summary while a recording is read.
func (s *RecordingSummary) Visitor() profile.Visitor {
	s.first = map[string]float64{}
	return profile.Visitor{
		Header:   func(h *profile.Header) error { s.Header = *h; return nil },
		Schedule: func(c *profile.Schedule) error { s.Scheduled = len(c.Points); return nil },
		Point:    func(p *profile.Point) error { s.point(p); return nil },
		Canary:   func(p *profile.Point) error { s.canary(p); return nil },
		Peer:     func(p *profile.Point) error { s.peer(p); return nil },
		Resume:   func(*profile.Resume) error { s.Resumes++; s.End = nil; return nil },
		End:      func(e *profile.End) error { s.End = e; return nil },
	}
}

func (s *RecordingSummary) point(p *profile.Point) {
	c := s.stratum(p.On, p.Op)
	s.Elapsed += units.Seconds(p.Elapsed)
	c.Discarded += p.Discarded
	if !p.OK() {
		if c.Classes[p.Class]++; p.Class == profile.TooLong {
			return
		}
		if c.Failed++; c.reasons[p.Class] == "" {
			c.reasons[p.Class], _, _ = strings.Cut(strings.TrimSpace(p.Error), "\n")
		}
		return
	}
	if len(p.Times) == 0 {
		c.Points++
		s.Gauged = append(s.Gauged, Gauged{p.Op, fit.Gauged{On: p.On, Shape: p.Shape, Size: p.Size, Ratio: p.Ratio}})
		return
	}
	m := stats.Median(p.Times)
	key := profile.NewSpot(p.On, p.Shape).Key("")
	if _, ok := s.first[key]; !ok {
		s.first[key] = m
		s.shapes++
	}
	if p.Disturbed {
		c.Disturbed++
	}
	if c.Points++; c.Points == 1 {
		c.Shortest = units.Seconds(m)
	}
	c.Shortest, c.Longest = min(c.Shortest, units.Seconds(m)), max(c.Longest, units.Seconds(m))
	c.Samples += len(p.Times)
	c.Stops[p.Stop]++
	if len(p.Times) > 1 {
		c.noise = append(c.noise, stats.NotchHalfWidth(p.Times)/m)
	}
}

// stratum finds or makes the count of an op on a device, keeping the order.
func (s *RecordingSummary) stratum(on string, kind op.Kind) *StratumCount {
	place := func(k op.Kind) int {
		return slices.IndexFunc(op.Table(), func(spec op.Spec) bool { return spec.Kind == k })
	}
	i, ok := slices.BinarySearchFunc(s.Strata, StratumCount{On: on, Op: kind}, func(a, b StratumCount) int {
		return cmp.Or(cmp.Compare(a.On, b.On), cmp.Compare(place(a.Op), place(b.Op)))
	})
	if !ok {
		s.Strata = slices.Insert(s.Strata, i, StratumCount{On: on, Op: kind, Stops: map[profile.Stop]int{}, Classes: map[profile.Class]int{}, reasons: map[profile.Class]string{}})
	}
	return &s.Strata[i]
}

func (s *RecordingSummary) canary(p *profile.Point) {
	s.Elapsed += units.Seconds(p.Elapsed)
	if !p.OK() || len(p.Times) == 0 {
		return
	}
	key, m := profile.NewSpot(p.On, p.Shape).Key(""), stats.Median(p.Times)
	i := slices.IndexFunc(s.Canaries, func(c CanaryDrift) bool { return profile.NewSpot(c.On, c.Shape).Key("") == key })
	if i < 0 {
		first, measured := s.first[key]
		if !measured {
			first = m
		}
		i = len(s.Canaries)
		s.Canaries = append(s.Canaries, CanaryDrift{On: p.On, Op: p.Op, Shape: p.Shape, of: fit.NewDrift(p.On, p.Shape, first)})
	}
	c := &s.Canaries[i]
	c.of.Repeat(m)
	c.Times, c.Last, c.Worst, c.Drifted = c.of.Repeats(), c.of.Ratio(), c.of.Farthest(), c.of.Drifted()
}

// Recording prints what a recording holds: the machine, the points of every op
// and why their sampling stopped, what the guards threw away, and how far the
// machine drifted while it was measured.
func Recording(w io.Writer, s *RecordingSummary) error {
	p, n := &printer{w: w, further: throughTorch(s.Header.Devices)}, &notes{}
	recordingHead(p, s)
	gpus(p, n, s.Header.Machine)
	machines(p, n, s.Header.Others...)
	devices(p, s.Header.Devices, s.Header.Groups)
	pointTable(p, n, s)
	canaryTable(p, n, s)
	gaugedTable(p, s.Gauged)
	peerTable(p, s.Peers)
	n.add(s.Header.Notes...)
	if s.Torn {
		n.add("the last line was cut off and does not count; the calibrate command that began it measures its point again")
	}
	if s.Copied != "" {
		n.add(s.Copied)
	}
	n.render(p)
	return p.err
}

func recordingHead(p *printer, s *RecordingSummary) {
	h := &s.Header
	points, failed := 0, 0
	for _, c := range s.Strata {
		points, failed = points+c.Points, failed+c.Failed
	}
	what := plural(points, "point")
	if timed := points - len(s.Gauged); h.Imported() && s.shapes < timed {
		what += fmt.Sprintf(" of %s (fit makes one point of each)", plural(s.shapes, "shape"))
	}
	where := "raw times from real devices"
	if h.Simulated {
		where = "times from a simulated backend; no hardware was measured"
	}
	p.para("", fmt.Sprintf("%s recording %s: %s, %d failed; %s", stamp(h.Simulated), s.Name, what, failed, where))
	written(p, h.Tool, h.Created)
	if h.Imported() {
		p.para("", fmt.Sprintf("imported from files of format %s: others measured, by their own protocols", strings.TrimPrefix(h.Backend, profile.ImportPrefix)))
		return
	}
	m := h.Machine
	p.para("", fmt.Sprintf("backend %s on %s: %s, %s, %s memory, %s", h.Backend, orNone(m.Host), orNone(m.CPU), plural(m.Cores, "core"), m.Memory, orNone(m.OS)))
	p.para("", fmt.Sprintf("environment %.12s, seed %d; %s", orNone(h.Fingerprint), h.Seed, protocol(h.Protocol)))
	p.para("", ending(s))
}

func orNone(s string) string {
	if s == "" {
		return none
	}
	return s
}

func protocol(r profile.Protocol) string {
	return fmt.Sprintf("%d to %d samples a point (%d from %s on), noise target %s, at most %s a point", r.MinSamples, r.MaxSamples, r.MinSamplesLong, r.Long, units.Percent(r.Noise), r.PointTime)
}

func ending(s *RecordingSummary) string {
	text := fmt.Sprintf("%s scheduled, %s measuring, resumed %s", plural(s.Scheduled, "point"), seconds(s.Elapsed), plural(s.Resumes, "time"))
	switch {
	case s.End == nil:
		return text + "; not finished: the same calibrate command resumes it"
	case s.End.Reason == profile.EndBudget:
		return text + "; stopped by its budget: a longer --budget resumes it"
	}
	return text + "; finished"
}

func pointTable(p *printer, n *notes, s *RecordingSummary) {
	t := newTable(column{title: "op"}, column{title: "points", number: true}, column{title: "failed", number: true}, column{title: "samples", number: true},
		column{title: "discarded", number: true}, column{title: "disturbed", number: true}, column{title: "noise\n(median)", number: true},
		column{title: "median times", number: true}, column{title: "stopped by", most: 16}, column{title: "notes"})
	for i, c := range s.Strata {
		if i == 0 || c.On != s.Strata[i-1].On {
			t.section("on " + c.On)
		}
		t.row("  "+string(c.Op), fmt.Sprint(c.Points), fmt.Sprint(c.Failed), fmt.Sprint(c.Samples), fmt.Sprint(c.Discarded), fmt.Sprint(c.Disturbed),
			noise(c.noise), timeSpan(c), stops(c), pointMarks(n, c))
	}
	p.printf("\n")
	t.render(p)
	if len(s.Strata) > 0 {
		p.para("", "noise is the half width of the median's notch; a point stops by noise (its target reached), steady (the noise itself settled), count or time")
	}
}

func noise(half []float64) string {
	if len(half) == 0 {
		return none
	}
	return units.Percent(stats.Median(half))
}

func timeSpan(c StratumCount) string {
	if c.Samples == 0 { // no points, or of an op that measures no time
		return none
	}
	return fmt.Sprintf("%s - %s", seconds(c.Shortest), seconds(c.Longest))
}

func stops(c StratumCount) string {
	text := ""
	for _, stop := range []profile.Stop{profile.StopNoise, profile.StopSteady, profile.StopCount, profile.StopTime} {
		if c.Stops[stop] > 0 {
			text += fmt.Sprintf(" %s %d", stop, c.Stops[stop])
		}
	}
	if text == "" {
		return none
	}
	return text[1:]
}

// onlyOf is the flag that has nothing but an op measured; what is measured once beside the
// points of laws has none, for it makes no profile by itself.
func onlyOf(k op.Kind) string {
	if spec, err := op.Lookup(k); err != nil || spec.Measures != op.Time {
		return ""
	}
	return " --only " + string(k)
}

func firstOf(n int) string {
	if n == 1 {
		return "the reason"
	}
	return "the first reason"
}

func pointMarks(n *notes, c StratumCount) string {
	marks := ""
	classes := []profile.Class{profile.OutOfMemory, profile.Unsupported, profile.Wrong, profile.Failed, profile.Crashed, profile.Hung, profile.Throttled}
	for _, class := range classes {
		if c.Classes[class] > 0 {
			marks += n.mark(fmt.Sprintf("%s of %s on %s failed: %s; %s: %s; to try again: evenkeel calibrate --fresh%s", plural(c.Classes[class], "point"), c.Op, c.On, class, firstOf(c.Classes[class]), c.reasons[class], onlyOf(c.Op)))
		}
	}
	if c.Classes[profile.TooLong] > 0 {
		marks += n.mark("a variant of it was left out, for the budget had no time for calls as long; measure for longer: evenkeel calibrate --fresh --budget 10m")
	}
	if cut := c.Classes[profile.Cut]; cut > 0 {
		marks += n.mark(fmt.Sprintf("%s of %s on %s without a result, for the budget had no time to wait longer for a worker; %s: %s; wait longer: evenkeel calibrate --fresh --budget 10m%s", plural(cut, "point"), c.Op, c.On, firstOf(cut), c.reasons[profile.Cut], onlyOf(c.Op)))
	}
	if c.Disturbed > 0 {
		marks += n.mark("points were kept although other processes held the cores, after several tries; on a quiet machine measure again: evenkeel calibrate --fresh")
	}
	if marks == "" {
		return ""
	}
	return marks[1:]
}

func canaryTable(p *printer, n *notes, s *RecordingSummary) {
	if len(s.Canaries) == 0 {
		return
	}
	t := newTable(column{title: "canary", most: 60}, column{title: "repeats", number: true}, column{title: "end against start", number: true},
		column{title: "farthest", number: true}, column{title: "notes"})
	for _, c := range s.Canaries {
		mark := ""
		if c.Drifted {
			mark = n.mark("the machine drifted while it was measured, and the laws' errors with it; let it cool or become quiet and measure again: evenkeel calibrate --fresh")[1:]
		}
		t.row(fmt.Sprintf("%s on %s", shapeTitle(c.Shape), c.On), fmt.Sprint(c.Times), signed(c.Last-1), signed(c.Worst-1), mark)
	}
	p.printf("\n")
	t.render(p)
}

// shapeTitle names a shape by its op, variant and the axes its time depends on.
func shapeTitle(s op.Shape) string {
	title := string(s.Kind())
	if v := s.Variant().String(); v != "" {
		title += " " + v
	}
	if l, ok := s.(op.Located); ok {
		for i, axis := range op.CoordNames(s.Kind()) {
			title += fmt.Sprintf(" %s=%s", axis, units.Tokens(l.Coords()[i]))
		}
	}
	return title
}
