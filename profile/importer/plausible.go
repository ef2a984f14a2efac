package importer

import (
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/profile"
)

// peakSlack is how far above the datasheet's peak a measured rate may lie:
// boards clock a few percent above the figure that is printed for them. Boards
// that are sold clocked beyond it have a Headroom of their own.
const peakSlack = 1.05

// The reasons for which a rate cannot have been measured. They are flagged as
// well as counted: a table with one such row has others that nobody can see.
const (
	tooFast     = "more FLOPs a second than the device's peak"
	tooMuchLink = "more bytes a second than the device's links carry"
)

// implausible says why a row cannot be a measurement, or "", and the value that
// shows it.
func (s *Sink) implausible(on string, shape op.Shape, seconds []float64) (reason, value string) {
	if err := shape.Validate(); err != nil {
		return invalid(err), err.Error()
	}
	if len(seconds) == 0 {
		return "no time", ""
	}
	shortest := math.Inf(1)
	for _, t := range seconds {
		if !(t > 0) || math.IsInf(t, 0) {
			return "a time that is no positive number", fmt.Sprintf("%v s", t)
		}
		if t > longestCall {
			return "a time of more than a day; is its unit another?", fmt.Sprintf("%v s", t)
		}
		if t < shortestCall {
			return "a time of less than a picosecond; is its unit another?", fmt.Sprintf("%v s", t)
		}
		shortest = min(shortest, t)
	}
	if g, ok := shape.(op.Grouped); ok {
		return s.overLinks(on, g, shortest)
	}
	return s.overPeak(on, shape, shortest)
}

// longestCall and shortestCall are what a recording accepts as the time of one call.
const longestCall, shortestCall = 1e5, 1e-12

// invalid is the reason without the value, so that rows with the same mistake
// are counted together.
func invalid(err error) string {
	var axis *op.AxisError
	if !errors.As(err, &axis) {
		return "a shape out of range"
	}
	return "the shape's " + axis.Axis + " is not possible"
}

// overPeak compares a row's rate with its device's peak.
func (s *Sink) overPeak(on string, shape op.Shape, seconds float64) (reason, value string) {
	for _, d := range s.devices {
		peak := d.Sheet.PeakPerS(dtype(shape)) * s.headroom(d)
		if d.Name != on || peak == 0 {
			continue
		}
		flops := float64(shape.Work().FLOPs)
		if rate := flops / seconds; rate > peak {
			return tooFast, fmt.Sprintf("%s of at most %s", units.FLOPsPerS(rate), units.FLOPsPerS(peak))
		}
		s.observe(on, shape, flops/peak, seconds, largeRow)
	}
	return "", ""
}

func (s *Sink) headroom(d op.DeviceType) float64 {
	if m, ok := s.model(d.Model); ok && m.Headroom > 0 {
		return m.Headroom
	}
	return peakSlack
}

// overLinks compares what a rank must at least send with the rate of its links.
// It applies to groups of one node whose link class is the one that the
// datasheet's rate is of: a bridge, or another network, is not in the sheet.
//
// A switch that reduces lets an all_reduce send its buffer once instead of
// 2(n-1)/n times, so half of the wire bytes bound it.
func (s *Sink) overLinks(on string, shape op.Grouped, seconds float64) (reason, value string) {
	rate := s.linkRate(on)
	if rate == 0 {
		return "", ""
	}
	sent := float64(shape.Work().Wire)
	if shape.Kind() == op.KindAllReduce {
		sent /= 2
	}
	if most := peakSlack * rate; sent/seconds > most {
		return tooMuchLink, fmt.Sprintf("%s of at most %s", units.BytesPerS(sent/seconds), units.BytesPerS(most))
	}
	s.observe(on, shape, sent/rate, seconds, largeMessage)
	return "", ""
}

// linkRate is the fastest rate of a member of a group to the others, or 0 where
// the datasheet does not bound it.
func (s *Sink) linkRate(on string) float64 {
	for _, g := range s.groups {
		if g.Name != on {
			continue
		}
		fastest := 0.0
		for _, member := range g.Members {
			for _, d := range s.devices {
				if d.Name != member.Device {
					continue
				}
				m, known := s.model(d.Model)
				if !known || m.Fabric != g.Link || g.Nodes > 1 || d.Sheet.LinkPerS == 0 {
					return 0
				}
				fastest = max(fastest, d.Sheet.LinkPerS, d.Sheet.HostPerS)
			}
		}
		return fastest
	}
	return 0
}

func dtype(shape op.Shape) op.DType { return shape.Variant().DType }

// utilisation is how close the large rows of one op on one device or group came
// to the peak of the device or of its links.
type utilisation struct {
	rows int
	best float64
}

const (
	// largeRow is the time at peak from which an op is bound by arithmetic.
	largeRow = 1e-3
	// largeMessage is the time at the links' rate from which a collective is
	// bound by bytes.
	largeMessage = 1e-4
	// leastUse is a share of the peak that every kernel and collective in use
	// reaches with large shapes: the slowest of the recordings known to us reach a
	// tenth.
	leastUse = 0.01
	// enoughLarge is the number of large rows from which their best says
	// something about the unit of the table.
	enoughLarge = 3
)

func (s *Sink) observe(on string, shape op.Shape, atPeak, seconds, large float64) {
	if atPeak < large {
		return
	}
	key := string(shape.Kind()) + " on " + on
	u := s.best[key]
	if u == nil {
		u = &utilisation{}
		s.best[key] = u
	}
	u.rows++
	u.best = max(u.best, atPeak/seconds)
}

// flagRates reports what only all rows together show: rows that cannot be
// measurements, and times so long that their unit must be another.
func (s *Sink) flagRates() {
	for _, d := range s.report.Dropped {
		if d.Reason == tooFast || d.Reason == tooMuchLink {
			s.Flag(d.First, fmt.Sprintf("%d of %d rows tell %s; the others of the same table may be wrong too", d.Rows, s.report.Rows, d.Reason))
		}
	}
	var places []string
	for _, d := range s.devices {
		places = append(places, d.Name)
	}
	for _, g := range s.groups {
		places = append(places, g.Name)
	}
	for _, place := range places {
		for _, spec := range op.Table() {
			key := string(spec.Kind) + " on " + place
			if u := s.best[key]; u != nil && u.rows >= enoughLarge && u.best < leastUse {
				s.Flag(strings.Join(s.report.Files, ", "), fmt.Sprintf("the best of %d large rows of %s reaches %.2g %% of the peak; is the unit of its times another?", u.rows, key, 100*u.best))
			}
		}
	}
}

// fingerprint identifies what an import was made from: its format and the
// devices and groups it names.
func fingerprint(h profile.Header) string {
	text := h.Backend
	for _, d := range h.Devices {
		text += "\n" + d.Name + " " + d.Fingerprint
	}
	for _, g := range h.Groups {
		text += "\n" + g.Name
	}
	return profile.Fingerprint(text)
}

// Of makes the device type of a GPU model under a software stack. Both are part
// of its name, because times under different software are never pooled.
func (m Model) Of(stack string) op.DeviceType {
	name := m.Name
	if stack != "" {
		name += "/" + stack
	}
	return op.DeviceType{
		Name: name, Model: m.Name, Stack: stack, Fingerprint: profile.Fingerprint(name),
		Parallel: max(1, m.Parallel), Memory: m.Memory, Sheet: m.Sheet,
	}
}

// gib is a GiB, as datasheets and device tables mean it.
const gib units.Bytes = 1 << 30
