package profile

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/go-json-experiment/json/jsontext"
)

// RecordingSchema is the schema of the recordings this version writes.
const RecordingSchema = "evenkeel.recording/v1"

// Header is the first line of a recording.
type Header struct {
	Schema      string          `json:"schema"`
	Tool        string          `json:"tool"`
	Created     string          `json:"created"` // RFC 3339, UTC
	Backend     string          `json:"backend"`
	Simulated   bool            `json:"simulated"`
	Fingerprint string          `json:"fingerprint"` // hash of everything in the environment that affects times; one file has one
	Seed        uint64          `json:"seed"`        // of the choice of points, their order and their inputs
	Machine     Machine         `json:"machine"`
	Others      []Machine       `json:"other_machines,omitempty"` // of a job on several nodes
	Devices     []op.DeviceType `json:"devices"`
	Groups      []op.GroupType  `json:"groups"`
	Places      []Place         `json:"places,omitempty"`
	Protocol    Protocol        `json:"protocol,omitzero"` // absent in a recording made from other tools' files
	Notes       []string        `json:"notes,omitempty"`
}

// Validate reports the first field that is missing or out of range.
func (h *Header) Validate() error {
	if h.Fingerprint == "" {
		return fmt.Errorf("fingerprint: missing")
	}
	known := map[string]bool{}
	for i, d := range h.Devices {
		if err := d.Validate(); err != nil {
			return fmt.Errorf("devices[%d].%w", i, err)
		}
		if known[d.Name] {
			return fmt.Errorf("devices[%d].name: %q: listed twice", i, d.Name)
		}
		known[d.Name] = true
	}
	for i, g := range h.Groups {
		if err := g.Validate(); err != nil {
			return fmt.Errorf("groups[%d].%w", i, err)
		}
		if known[g.Name] {
			return fmt.Errorf("groups[%d].name: %q: listed twice", i, g.Name)
		}
		known[g.Name] = true
	}
	if err := h.validPlaces(); err != nil {
		return err
	}
	if h.Protocol == (Protocol{}) && h.Imported() {
		return nil
	}
	return h.Protocol.Validate()
}

// ImportPrefix begins the backend's name in a recording made from other tools' files.
const ImportPrefix = "import:"

// Imported says whether the recording was made from other tools' files. Their protocol is
// unknown, and each of their numbers counts as one sample.
func (h *Header) Imported() bool { return strings.HasPrefix(h.Backend, ImportPrefix) }

func (h *Header) validPlaces() error {
	ranks := h.ranks()
	for i, p := range h.Places {
		switch n, ok := ranks[p.On]; {
		case !ok:
			return fmt.Errorf("places[%d].on: %q: no such device or group", i, p.On)
		case p.Name == "":
			return fmt.Errorf("places[%d].name: missing", i)
		case len(p.Ranks) != n:
			return fmt.Errorf("places[%d].ranks: %s: %q has %s", i, units.Count(len(p.Ranks), "name"), p.On, units.Count(n, "rank"))
		}
	}
	return nil
}

// ranks is the number of ranks of every device (1) and group.
func (h *Header) ranks() map[string]int {
	n := map[string]int{}
	for _, d := range h.Devices {
		n[d.Name] = 1
	}
	for _, g := range h.Groups {
		n[g.Name] = g.Ranks()
	}
	return n
}

// The kinds of line after the header, in their "t" key.
const (
	lineSchedule = "schedule"
	linePoint    = "point"
	lineAgain    = "again" // a point measured a second time, at another moment
	lineCanary   = "canary"
	linePeer     = "peer" // a point of another device of a type, or of another set of devices of a group's signature
	lineResume   = "resume"
	lineEnd      = "end"
)

// Schedule is the line with the points that a calibration is going to measure, in order.
// A resumed calibration continues with it instead of choosing again.
//
// A calibration with a Chooser writes a schedule line for each further round, with that
// round's points only. Read passes them on joined: Points are all points so far,
// everything else is that of the first line.
type Schedule struct {
	T        string    `json:"t"`
	BudgetS  float64   `json:"budget_s"`
	Points   []Spot    `json:"points"`
	Canaries []int     `json:"canaries"` // indices into Points of those that are repeated throughout, to show drift
	Once     []Spot    `json:"once,omitempty"`
	Peers    []Peer    `json:"peers,omitempty"`
	Families []Piloted `json:"families,omitempty"`    // only of a calibration with a Chooser
	Limit    int       `json:"points_a_law,omitzero"` // --points of calibrate, if it was given
}

// Piloted is what the pilot found of one family of shapes. Candidates are drawn by it.
type Piloted struct {
	On      string        `json:"on"`
	Op      op.Kind       `json:"op"`
	Variant op.Variant    `json:"variant,omitzero"`
	Launch  units.Seconds `json:"launch_s"`
	PerUnit float64       `json:"s_per_unit"` // per FLOP of compute ops, per byte of the rest
	Prepare units.Seconds `json:"prepare_s"`  // per visit: inputs, warm-up, the journal
	// PrepareCalls is how many calls' time a visit takes to prepare besides.
	PrepareCalls float64       `json:"prepare_calls,omitzero"`
	Longest      units.Seconds `json:"longest_s"` // longest call that a candidate may have
}

// Peer is a point of the schedule that is also measured at another place.
type Peer struct {
	Point int    `json:"point"` // index into the points of the schedule
	Place string `json:"place"`
}

// Spot is a shape of an op on a device or group.
type Spot struct {
	On    string         `json:"on"`
	Op    op.Kind        `json:"op"`
	Raw   jsontext.Value `json:"shape"` // canonical JSON of Shape
	Shape op.Shape       `json:"-"`
}

// NewSpot makes a spot. It panics on a shape that cannot be encoded, which every valid
// shape can.
func NewSpot(on string, s op.Shape) Spot {
	data, err := op.Encode(s)
	if err != nil {
		panic(err)
	}
	return Spot{On: on, Op: s.Kind(), Raw: data, Shape: s}
}

// Key identifies a point within an environment: a hash of the canonical spot
// and the fingerprint.
func (s Spot) Key(fingerprint string) string {
	h := sha256.New()
	fmt.Fprintf(h, "%s\n%s\n%s\n%s\n", fingerprint, s.On, s.Op, s.Raw)
	return hex.EncodeToString(h.Sum(nil)[:12])
}

// decode fills the shape from its JSON and brings that into its canonical form.
func (s *Spot) decode() error {
	shape, err := op.Decode(s.Op, s.Raw)
	if err != nil {
		return err
	}
	s.Shape = shape
	s.Raw, err = op.Encode(shape)
	return err
}

// Point is the result of one visit of a point: its samples, or the failure.
type Point struct {
	T string `json:"t"` // "point" for the first visit, "again" for the second, "canary" or "peer"
	// Key is that of the line's place, op and shape under the fingerprint of the header.
	Key string `json:"key"`
	Spot
	Place     string      `json:"place,omitempty"` // of a peer; else empty for the first place
	Class     Class       `json:"class,omitempty"` // of the failure; empty if the point was measured
	Error     string      `json:"error,omitempty"`
	Times     []float64   `json:"times_s,omitempty"`      // time of one call on the slowest rank, one entry per sample
	RankTimes [][]float64 `json:"rank_times_s,omitempty"` // [rank][sample], for groups
	Inner     int         `json:"inner,omitempty"`        // calls per sample
	Size      units.Bytes `json:"size_bytes,omitzero"`    // measured bytes, of a memory op
	Ratio     float64     `json:"ratio,omitzero"`         // of an overlap: time beside the other op over time alone
	Peak      units.Bytes `json:"peak_bytes,omitzero"`    // peak device memory during the visit; of an oom, what the tensors would have needed
	Stop      Stop        `json:"stop,omitempty"`
	Discarded int         `json:"discarded,omitzero"` // samples dropped by the guards
	Disturbed bool        `json:"disturbed,omitzero"` // samples were kept although other processes held the cores
	Guard     Guard       `json:"guard,omitzero"`
	At        string      `json:"at"`        // RFC 3339 start
	Elapsed   float64     `json:"elapsed_s"` // preparing, warming up and sampling
}

// OK says whether the point has times.
func (p *Point) OK() bool { return p.Class == "" }

// Validate reports the first field that is missing or out of range.
func (p *Point) Validate() error {
	switch {
	case !p.OK() && (len(p.Times) > 0 || p.Size != 0 || p.Ratio != 0):
		return fmt.Errorf("times_s: a point of class %q has no result", p.Class)
	case !p.OK() && p.Error == "":
		return fmt.Errorf("error: missing: say why the point is of class %q", p.Class)
	case p.Discarded < 0 || p.Inner < 0 || p.Peak < 0:
		return fmt.Errorf("discarded, inner, peak_bytes: must not be negative")
	case !(p.Elapsed >= 0):
		return fmt.Errorf("elapsed_s: %v: want a number of seconds, 0 or more", p.Elapsed)
	case (p.T == linePeer) != (p.Place != ""):
		return fmt.Errorf("place: %q: every peer names its place, and no other line does", p.Place)
	}
	if err := p.validQuantity(); err != nil {
		return err
	}
	if err := validTimes("times_s", p.Times); err != nil {
		return err
	}
	for r, times := range p.RankTimes {
		if len(times) != len(p.Times) {
			return fmt.Errorf("rank_times_s[%d]: %d samples: times_s has %d", r, len(times), len(p.Times))
		}
		if err := validTimes(fmt.Sprintf("rank_times_s[%d]", r), times); err != nil {
			return err
		}
	}
	return nil
}

// validQuantity checks that a measured point holds what its op measures, and
// nothing else.
func (p *Point) validQuantity() error {
	measures := quantity(p.Op)
	switch {
	case !p.OK():
		return nil
	case measures == op.Time && len(p.Times) == 0:
		return fmt.Errorf("times_s: 0 samples (%d discarded); measure the point again: evenkeel calibrate --fresh --only %s", p.Discarded, p.Op)
	case measures != op.Time && len(p.Times) > 0:
		return fmt.Errorf("times_s: %s measures %s, not time", p.Op, measures)
	case measures == op.Size && p.Size <= 0 || measures != op.Size && p.Size != 0:
		return fmt.Errorf("size_bytes: %d: want a positive number of a memory op, and none of another", int64(p.Size))
	case measures == op.Ratio && !(p.Ratio > 0 && p.Ratio < 1e6) || measures != op.Ratio && p.Ratio != 0:
		return fmt.Errorf("ratio: %v: want a positive number of an overlap, and none of another op", p.Ratio)
	}
	return nil
}

// quantity is what an op measures; unknown ops are refused before.
func quantity(k op.Kind) op.Quantity {
	spec, err := op.Lookup(k)
	if err != nil {
		return op.Time
	}
	return spec.Measures
}

// longest is a call nobody waits for, and in shortest no clock of a device ticks: a
// time beyond either is a wrong unit.
const longest, shortest = 1e5, 1e-12

func validTimes(field string, times []float64) error {
	for i, t := range times {
		if !(t > 0) || math.IsInf(t, 0) {
			return fmt.Errorf("%s[%d]: %v: want a positive number of seconds", field, i, t)
		}
		if t > longest {
			return fmt.Errorf("%s[%d]: %v: more than a day; are these seconds?", field, i, t)
		}
		if t < shortest {
			return fmt.Errorf("%s[%d]: %v: less than a picosecond; are these seconds?", field, i, t)
		}
	}
	return nil
}

// Resume is the line that a resumed calibration begins with.
type Resume struct {
	T    string `json:"t"`
	Tool string `json:"tool"`
	At   string `json:"at"`
	Note string `json:"note,omitempty"` // such as a torn line that was dropped
}

// EndReason says why a calibration stopped.
type EndReason string

// The reasons why a calibration stops.
const (
	EndDone   EndReason = "done"   // every scheduled point was measured or failed for good
	EndBudget EndReason = "budget" // the time was up
)

// End is the line that a calibration ends with; a later one may follow a resume.
type End struct {
	T       string    `json:"t"`
	At      string    `json:"at"`
	Reason  EndReason `json:"reason"`
	Elapsed float64   `json:"elapsed_s"` // of this run
}

func hash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

// Imported makes a point of calls that another tool timed, in seconds. The recording that
// it is added to fills in its key.
func Imported(on string, s op.Shape, seconds []float64) *Point {
	return &Point{T: linePoint, Spot: NewSpot(on, s), Times: seconds}
}

// Fingerprint hashes what identifies an environment.
func Fingerprint(text string) string { return hash(text) }

// ImportedPlaces are the devices, and the groups of such, whose points were imported: of
// those nothing is known but their names, which alone are in their fingerprints. A profile
// does not say otherwise where its points came from.
func ImportedPlaces(devices []op.DeviceType, groups []op.GroupType) map[string]bool {
	imported := map[string]bool{}
	for _, d := range devices {
		if d.Fingerprint == Fingerprint(d.Name) {
			imported[d.Name] = true
		}
	}
	for _, g := range groups {
		measured := func(m op.Member) bool { return !imported[m.Device] }
		if len(g.Members) > 0 && !slices.ContainsFunc(g.Members, measured) {
			imported[g.Name] = true
		}
	}
	return imported
}
