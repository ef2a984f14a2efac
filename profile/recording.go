package profile

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math"

	"github.com/evenkeel/evenkeel/costmodel/op"
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
	Fingerprint string          `json:"fingerprint"` // of everything that moves times; no two in one file
	Seed        uint64          `json:"seed"`        // of the choice, the order and the inputs of points
	Machine     Machine         `json:"machine"`
	Devices     []op.DeviceType `json:"devices"`
	Groups      []op.GroupType  `json:"groups"`
	Protocol    Protocol        `json:"protocol"`
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
	return h.Protocol.Validate()
}

// The kinds of line after the header, in their "t" key.
const (
	lineSchedule = "schedule"
	linePoint    = "point"
	lineAgain    = "again" // a point measured a second time, at another moment
	lineCanary   = "canary"
	lineResume   = "resume"
	lineEnd      = "end"
)

// Schedule is the line with the points that a calibration set out to measure,
// in their order. A resume goes on with it instead of choosing anew.
type Schedule struct {
	T        string  `json:"t"`
	BudgetS  float64 `json:"budget_s"`
	Points   []Spot  `json:"points"`
	Canaries []int   `json:"canaries"` // indices of Points that are measured again and again
}

// Spot is an op at a shape on a device or group.
type Spot struct {
	On    string         `json:"on"`
	Op    op.Kind        `json:"op"`
	Raw   jsontext.Value `json:"shape"` // Shape in its canonical JSON
	Shape op.Shape       `json:"-"`
}

// NewSpot places a shape. It panics on a shape that cannot be encoded, which a
// valid shape always can.
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

// Point is one measured point, or one that failed and why.
type Point struct {
	T   string `json:"t"` // "point" the first time, "again", or "canary"
	Key string `json:"key"`
	Spot
	Class     Class       `json:"class,omitempty"` // of the failure; absent when it was measured
	Error     string      `json:"error,omitempty"`
	Times     []float64   `json:"times_s,omitempty"`      // a call, slowest rank, one entry a sample
	RankTimes [][]float64 `json:"rank_times_s,omitempty"` // [rank][sample], for groups
	Inner     int         `json:"inner,omitempty"`        // calls in a sample
	Stop      Stop        `json:"stop,omitempty"`
	Discarded int         `json:"discarded,omitzero"` // samples dropped by the guards
	Disturbed bool        `json:"disturbed,omitzero"` // kept although others held the cores
	Guard     Guard       `json:"guard,omitzero"`
	At        string      `json:"at"`        // RFC 3339 start
	Elapsed   float64     `json:"elapsed_s"` // preparing, warming up and sampling
}

// OK says whether the point has times.
func (p *Point) OK() bool { return p.Class == "" }

// Validate reports the first field that is missing or out of range.
func (p *Point) Validate() error {
	switch {
	case p.OK() && len(p.Times) == 0:
		return fmt.Errorf("times_s: 0 samples (%d discarded); measure the point again: evenkeel calibrate --only %s", p.Discarded, p.Op)
	case !p.OK() && len(p.Times) > 0:
		return fmt.Errorf("times_s: a point of class %q has no times", p.Class)
	case !p.OK() && p.Error == "":
		return fmt.Errorf("error: missing: say why the point is of class %q", p.Class)
	case p.Discarded < 0 || p.Inner < 0:
		return fmt.Errorf("discarded, inner: must not be negative")
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

// longest is a call nobody waits for: a time beyond it is a wrong unit.
const longest = 1e5

func validTimes(field string, times []float64) error {
	for i, t := range times {
		if !(t > 0) || math.IsInf(t, 0) {
			return fmt.Errorf("%s[%d]: %v: want a positive number of seconds", field, i, t)
		}
		if t > longest {
			return fmt.Errorf("%s[%d]: %v: more than a day; are these seconds?", field, i, t)
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
