package fit

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/stats"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/profile"
)

// DriftVerdict says whether a machine still takes as long as it did.
type DriftVerdict string

// The verdicts, from the best to the worst.
const (
	Same      DriftVerdict = "same"
	Ambiguous DriftVerdict = "ambiguous" // something moved, too little or too unsure for an alarm
	Drifted   DriftVerdict = "drift"
)

func (v DriftVerdict) rank() int { return slices.Index([]DriftVerdict{Same, Ambiguous, Drifted}, v) }

// DriftCause says why times changed.
type DriftCause string

// The causes, told apart by cycles, which are time times clock frequency: if the number
// of cycles is unchanged, only the clock changed.
const (
	CauseClock    DriftCause = "thermal_or_power" // same number of cycles: cool the device or raise its power limit; no new fit is needed
	CauseSoftware DriftCause = "software"         // another number of cycles: calibrate and fit again
	CauseUnknown  DriftCause = "unknown"          // no clock frequencies were recorded
	// CauseEnvironment: too little moved for an alarm, but the fingerprint is another one.
	CauseEnvironment DriftCause = "environment"
)

// DriftReport compares the points that recordings of the same devices have in common. The
// first recording is the reference; the verdict is on the last.
type DriftReport struct {
	From        string       `json:"from"`
	To          string       `json:"to"`
	Runs        []string     `json:"runs"` // all recordings in order, these two included
	Limit       float64      `json:"limit_log"`
	Verdict     DriftVerdict `json:"verdict"`
	Environment []Difference `json:"environment,omitempty"` // what differs from the reference
	Places      []DriftPlace `json:"places"`
}

// DriftPlace is the comparison on one device type or group.
type DriftPlace struct {
	On       string       `json:"on"`
	Verdict  DriftVerdict `json:"verdict"`
	Why      string       `json:"why"`
	Cause    DriftCause   `json:"cause,omitzero"`
	Canaries bool         `json:"canaries"` // false: there are none, and all shared points are used in their place
	Shared   int          `json:"shared"`   // points compared
	Moved    int          `json:"moved"`    // of these, moved by more than the limit and their noise
	Needed   int          `json:"needed"`   // moved points that make a drift
	// Shift is the median over points of log(now/before); Lo and Hi are its 99 % interval.
	Shift  float64      `json:"shift_log"`
	Lo     float64      `json:"shift_lo_log"`
	Hi     float64      `json:"shift_hi_log"`
	Series *DriftSeries `json:"series,omitempty"` // with more than two recordings
	Points []DriftPoint `json:"points"`           // largest shift first
}

// DriftPoint is one point that both recordings have.
type DriftPoint struct {
	Op      op.Kind        `json:"op"`
	Variant op.Variant     `json:"variant,omitzero"`
	Shape   jsontext.Value `json:"shape"`
	Before  float64        `json:"before_s"`
	Now     float64        `json:"now_s"`
	Shift   float64        `json:"shift_log"` // log(now/before)
	Noise   float64        `json:"noise_log"` // standard deviation of the shift that the scatter of repeats leads to expect
	Moved   bool           `json:"moved"`
	Cycles  *float64       `json:"cycles_shift_log,omitempty"` // shift of time times clock frequency; nil if no clocks were recorded
}

// DriftLimit is the shift of a time, as a log ratio, above which a point counts as moved
// between recordings, and above which the change of a canary within one is warned of. The
// time of a point on a quiet machine repeats to about 1 %; smaller shifts than the limit
// occur on it from day to day.
const DriftLimit = 0.03

const (
	// assumedNoise is the deviation of a visit where nothing was visited twice:
	// undisturbed visits repeat to about 2 %.
	assumedNoise = 0.02
	// leastScatter keeps a few lucky repeats from making every shift significant.
	leastScatter = 0.003
	// leastOfPooled is the least deviation of a visit as a share of that on the whole device or
	// group. The scatter of five visits is often a fraction of the true one: relied on alone, of
	// twelve points that scatter by 3 % and did not drift, two moved in one comparison of eleven.
	// With more than this share, points that are quieter than most could not show a drift.
	leastOfPooled = 0.75
	// mostFresh bounds how many visits of one run count as independent: they share
	// the state of the machine that day.
	mostFresh = 4
	// driftError is the chance, over all points of a place together, that noise
	// alone lets one count as moved.
	driftError = 0.01
	// mostCanaries is how many points two of which make a drift; of more, a tenth.
	mostCanaries = 20
	// fewestForShift is the least number of points whose median is judged too.
	fewestForShift = 5
)

// CompareRuns looks for drift between recordings, oldest first, of the same
// devices. More than two are also followed as a series.
//
// Errors: fewer than two recordings, a device of the same name but another
// model, or not two points in common on any device.
func CompareRuns(runs []*Run) (*DriftReport, error) {
	if len(runs) < 2 {
		return nil, fmt.Errorf("%s: drift needs two or more of the same devices", units.Count(len(runs), "recording"))
	}
	from, to := runs[0], runs[len(runs)-1]
	if err := sameModels(from, to); err != nil {
		return nil, err
	}
	r := &DriftReport{From: from.Name, To: to.Name, Limit: DriftLimit, Verdict: Same, Environment: differences(from, to)}
	for _, run := range runs {
		r.Runs = append(r.Runs, run.Name)
	}
	for _, on := range placesOf(from) {
		p := comparePlace(from, to, on)
		if p.Shared < 2 {
			continue
		}
		if len(runs) > 2 {
			p.follow(runs)
		}
		p.blame()
		r.Places = append(r.Places, p)
		if p.Verdict.rank() > r.Verdict.rank() {
			r.Verdict = p.Verdict
		}
	}
	if len(r.Places) == 0 {
		return nil, fmt.Errorf("%s and %s have no two points in common on any device or group: drift is told from the same shapes measured twice; calibrate with the same --budget and --seed as the first", from.Name, to.Name)
	}
	return r, nil
}

func sameModels(from, to *Run) error {
	for name, was := range from.devices {
		if is, ok := to.devices[name]; ok && is.Model != was.Model {
			return fmt.Errorf("%s is another device in %s (%s) than in %s (%s): drift is between recordings of the same device", name, to.Name, is.Model, from.Name, was.Model)
		}
	}
	return nil
}

// placesOf lists the devices and groups of a run in the order of their names.
func placesOf(r *Run) []string {
	var all []string
	for _, key := range r.order {
		if on := r.spots[key].on; !slices.Contains(all, on) {
			all = append(all, on)
		}
	}
	slices.Sort(all)
	return all
}

// shared lists the keys that two runs have in common on a device or group: the
// canaries if there are two or more, else all points.
func shared(from, to *Run, on string) (keys []string, canaries bool) {
	var all, quick []string
	for _, key := range from.order {
		a, b := from.spots[key], to.spots[key]
		if a.on != on || b == nil {
			continue
		}
		all = append(all, key)
		if a.canary || b.canary {
			quick = append(quick, key)
		}
	}
	if len(quick) >= 2 {
		return quick, true
	}
	return all, false
}

// comparePlace compares two runs on one device or group.
func comparePlace(from, to *Run, on string) DriftPlace {
	keys, canaries := shared(from, to, on)
	p := DriftPlace{On: on, Canaries: canaries, Shared: len(keys), Needed: max(2, int(math.Ceil(float64(len(keys))*2/mostCanaries)))}
	if p.Shared < 2 {
		return p
	}
	noise := [2]float64{cmp.Or(from.pooled(on), assumedNoise), cmp.Or(to.pooled(on), assumedNoise)}
	significant := stats.NormalQuantile(1 - driftError/2/float64(len(keys)))
	var shifts []float64
	for _, key := range keys {
		x := comparePoint(from.spots[key], to.spots[key], noise)
		x.Moved = math.Abs(x.Shift) > DriftLimit && math.Abs(x.Shift) > significant*x.Noise
		if x.Moved {
			p.Moved++
		}
		shifts = append(shifts, x.Shift)
		p.Points = append(p.Points, x)
	}
	slices.SortStableFunc(p.Points, func(a, b DriftPoint) int { return cmp.Compare(math.Abs(b.Shift), math.Abs(a.Shift)) })
	p.Shift = stats.Median(shifts)
	middle := stats.BootstrapInterval(stats.Bootstrap(shifts, stats.Median, bootstrapDraws, bootstrapSeed), 0.99)
	p.Lo, p.Hi = middle.Lo, middle.Hi
	p.judge(elsewhere(from, to, on))
	return p
}

// comparePoint compares the visits of a point in two runs; noise is the
// deviation of a visit on the whole device in each.
func comparePoint(a, b *spot, noise [2]float64) DriftPoint {
	x := DriftPoint{
		Op: a.shape.Kind(), Variant: a.shape.Variant(), Shape: profile.NewSpot(a.on, a.shape).Raw,
		Before: settle(a.visits()), Now: settle(b.visits()),
	}
	x.Shift = math.Log(x.Now / x.Before)
	x.Noise = math.Hypot(a.deviation(noise[0]), b.deviation(noise[1]))
	if len(a.clocks) > 0 && len(b.clocks) > 0 {
		cycles := x.Shift + math.Log(stats.Median(b.clocks)/stats.Median(a.clocks))
		x.Cycles = &cycles
	}
	return x
}

// deviation is that of the log of a spot's time: of a visit by the square root
// of their number. A spot whose few visits happened to agree is not much quieter than others.
func (s *spot) deviation(pooled float64) float64 {
	visit := max(leastScatter, cmp.Or(s.scatter(), pooled), leastOfPooled*pooled)
	return visit / math.Sqrt(float64(min(mostFresh, len(s.visits()))))
}

// judge gives the verdict of two runs. An alarm needs both size and
// significance: enough points that each moved by more than the limit and their
// noise, or a middle of all points beyond the limit whose interval excludes
// zero. environment says that the fingerprint is another, which is an alarm whatever the
// times do: laws belong to a fingerprint.
func (p *DriftPlace) judge(environment bool) {
	beyond, expected := 0, 0.0
	for _, x := range p.Points {
		if math.Abs(x.Shift) > DriftLimit {
			beyond++
		}
		expected += math.Erfc(DriftLimit / x.Noise / math.Sqrt2)
	}
	middle := math.Abs(p.Shift) > DriftLimit
	switch {
	case p.Moved >= p.Needed:
		p.Verdict, p.Why = Drifted, fmt.Sprintf("%d of %s moved by more than their noise and 3 %%; %d make a drift", p.Moved, units.Count(p.Shared, "point"), p.Needed)
	case p.wholeOp() != "":
		p.Verdict, p.Why = Drifted, fmt.Sprintf("half or more of the points of %s moved by more than their noise and 3 %%", p.wholeOp())
	case middle && p.Lo*p.Hi > 0 && p.Shared >= fewestForShift:
		p.Verdict, p.Why = Drifted, "the middle of all points moved by more than 3 %, and its interval excludes zero"
	case p.Moved > 0:
		p.Verdict, p.Why = Ambiguous, fmt.Sprintf("%d of %s moved; %d make a drift", p.Moved, units.Count(p.Shared, "point"), p.Needed)
	case middle || beyond >= p.Needed && float64(beyond) > expected+3*math.Sqrt(expected):
		p.Verdict, p.Why = Ambiguous, fmt.Sprintf("%d of %d points lie beyond 3 %%, but none by more than its noise", beyond, p.Shared)
	default:
		p.Verdict, p.Why = Same, "no point moved by more than its noise and 3 %"
	}
	if environment && p.Verdict != Drifted {
		p.Verdict, p.Cause = Drifted, CauseEnvironment
		p.Why = "the fingerprint is another, to which the laws do not belong, although " + p.Why + "; measure again (evenkeel calibrate --fresh, or import what was) and fit"
	}
}

// wholeOp is an op of which half or more of the points moved, and two at least:
// one op may drift alone, as with a new version of its library. "" if there is none.
func (p *DriftPlace) wholeOp() op.Kind {
	all, moved := map[op.Kind]int{}, map[op.Kind]int{}
	for _, x := range p.Points {
		all[x.Op]++
		if x.Moved {
			moved[x.Op]++
		}
	}
	for _, spec := range op.Table() {
		if n := moved[spec.Kind]; n >= 2 && 2*n >= all[spec.Kind] {
			return spec.Kind
		}
	}
	return ""
}

// blame tells clocks from software by the cycles of the points that moved: a
// time that moved while its cycles stayed is the clock's doing.
func (p *DriftPlace) blame() {
	if p.Verdict != Drifted || p.Cause == CauseEnvironment {
		return
	}
	var cycles, times []float64
	for _, x := range p.Points {
		if x.Cycles != nil && (x.Moved || p.Moved == 0) {
			cycles = append(cycles, *x.Cycles)
			times = append(times, x.Shift)
		}
	}
	p.Cause = CauseUnknown
	if len(cycles) == 0 {
		return
	}
	p.Cause = CauseSoftware
	if c := math.Abs(stats.Median(cycles)); c <= DriftLimit && c < math.Abs(stats.Median(times)) {
		p.Cause = CauseClock
	}
}
