package importer

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/profile"
)

// The reasons for which a rate cannot have been measured. They are flagged as
// well as counted: a table with one such row has others that nobody can see.
const (
	tooFast       = "more FLOPs a second than the device's peak"
	tooMuchLink   = "more bytes a second than the device's links carry"
	tooMuchMemory = "more bytes a second than the device's memory and caches deliver"
)

func impossible(reason string) bool {
	return reason == tooFast || reason == tooMuchLink || reason == tooMuchMemory
}

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
	for _, d := range s.devices {
		if d.Name == on {
			return s.overDevice(d, shape, shortest)
		}
	}
	return "", ""
}

// overDevice compares a row's rate with what bounds its op on its device: arithmetic, memory,
// or the link to the host.
func (s *Sink) overDevice(d op.DeviceType, shape op.Shape, seconds float64) (reason, value string) {
	spec, err := op.Lookup(shape.Kind())
	switch {
	case err == nil && spec.Class == op.Transfer:
		return s.overHost(d, shape, seconds)
	case err == nil && spec.Class == op.Bandwidth:
		return s.overMemory(d, shape, seconds)
	}
	return s.overPeak(d, shape, seconds)
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
func (s *Sink) overPeak(d op.DeviceType, shape op.Shape, seconds float64) (reason, value string) {
	peak := d.Sheet.PeakPerS(dtype(shape)) * s.headroom(d)
	if peak == 0 {
		return "", ""
	}
	flops := float64(shape.Work().FLOPs)
	if rate := flops / seconds; rate > peak {
		return tooFast, fmt.Sprintf("%s of at most %s", units.FLOPsPerS(rate), units.FLOPsPerS(peak))
	}
	s.observe(d.Name, shape, flops/peak, seconds, largeRow, leastUse)
	return "", ""
}

// overHost compares a copy's rate with that of the link to the host.
func (s *Sink) overHost(d op.DeviceType, shape op.Shape, seconds float64) (reason, value string) {
	rate := d.Sheet.HostPerS
	if rate == 0 {
		return "", ""
	}
	return s.overBytes(d.Name, shape, float64(shape.Work().Wire), seconds, link{port: op.Port{PerS: units.BytesPerS(rate)}, usual: rate, least: leastUse})
}

// overMemory compares the rate of an op that streams its tensors with the memory's. Small
// tensors come from the cache, which no datasheet bounds.
func (s *Sink) overMemory(d op.DeviceType, shape op.Shape, seconds float64) (reason, value string) {
	least, size := float64(d.Sheet.Least(shape)), float64(shape.Work().Bytes())
	if least == 0 {
		return "", ""
	}
	if seconds < least {
		return tooMuchMemory, fmt.Sprintf("%s of at most %s", units.BytesPerS(size/seconds), units.BytesPerS(size/least))
	}
	s.observe(d.Name, shape, size/d.Sheet.MemoryPerS, seconds, largeMessage, leastUse)
	return "", ""
}

// headroom is op.PeakSlack, but for boards that are sold clocked beyond their datasheet.
func (s *Sink) headroom(d op.DeviceType) float64 {
	if m, ok := s.model(d.Model); ok && m.Headroom > 0 {
		return m.Headroom
	}
	return op.PeakSlack
}

// overLinks compares what a rank must at least send with the rate of its links.
func (s *Sink) overLinks(on string, shape op.Grouped, seconds float64) (reason, value string) {
	l := s.linkOf(on)
	if l.port.PerS == 0 {
		return "", ""
	}
	return s.overBytes(on, shape, l.port.Sent(shape.Kind(), shape.Ranks(), shape.Work().Wire), seconds, l)
}

// overBytes compares what goes over a link with what the link carries.
func (s *Sink) overBytes(on string, shape op.Shape, sent, seconds float64, l link) (reason, value string) {
	if most := op.PeakSlack * float64(l.port.PerS); sent/seconds > most {
		return tooMuchLink, fmt.Sprintf("%s of at most %s", units.BytesPerS(sent/seconds), units.BytesPerS(most))
	}
	if l.usual > 0 {
		s.observe(on, shape, sent/l.usual, seconds, largeMessage, l.least)
	}
	return "", ""
}

// link is what bounds messages: what none exceeds, the zero Port if nothing is known, and
// what large ones reach the share `least` of, in bytes a second, 0 if that is not known.
type link struct {
	port         op.Port
	usual, least float64
}

// linkOf is the fastest link of a member of a group to the others.
func (s *Sink) linkOf(on string) link {
	i := slices.IndexFunc(s.groups, func(g op.GroupType) bool { return g.Name == on })
	if i < 0 {
		return link{}
	}
	var all []link
	for _, member := range s.groups[i].Members {
		for _, d := range s.devices {
			if d.Name == member.Device {
				all = append(all, s.linkFrom(d, s.groups[i]))
			}
		}
	}
	fastest := link{}
	for _, l := range all {
		if l.port.PerS == 0 {
			return link{}
		}
		fastest = link{fastest.port.Or(l.port), max(fastest.usual, l.usual), max(fastest.least, l.least)}
	}
	return fastest
}

// linkFrom is how a device talks to the others of a group.
func (s *Sink) linkFrom(d op.DeviceType, g op.GroupType) link {
	m, known := s.model(d.Model)
	l := link{port: d.Sheet.Port(g, m.Fabric)}
	switch {
	case known && g.Nodes > 1:
		l.usual, l.least = d.Sheet.NetPerS, leastOfNet
	case known && m.Fabric == g.Link && d.Sheet.LinkPerS > 0:
		l.usual, l.least = float64(l.port.PerS), leastUse
	}
	return l
}

func dtype(shape op.Shape) op.DType { return shape.Variant().DType }

// utilisation is how close the large rows of one op on one device or group came
// to the peak of the device or of its links.
type utilisation struct {
	rows  int
	best  float64
	least float64 // what the best of such rows reaches at least
}

const (
	// largeRow is the time at peak from which an op is bound by arithmetic.
	largeRow = 1e-3
	// largeMessage is the time at the links' rate from which the bytes of a collective
	// weigh as much as its launch.
	largeMessage = 1e-5
	// leastUse is a share of the peak that every kernel and collective in use
	// reaches with large shapes: the slowest of the recordings known to us reach a
	// tenth.
	leastUse = 0.01
	// leastOfNet is that of the network of a usual server, which may be a slower one
	// that the GPUs of a node share.
	leastOfNet = 0.001
	// enoughLarge is the number of large rows from which their best says
	// something about the unit of the table.
	enoughLarge = 3
)

func (s *Sink) observe(on string, shape op.Shape, atPeak, seconds, large, least float64) {
	if atPeak < large {
		return
	}
	key := string(shape.Kind()) + " on " + on
	u := s.best[key]
	if u == nil {
		u = &utilisation{least: least}
		s.best[key] = u
	}
	u.rows++
	u.best = max(u.best, atPeak/seconds)
}

// flagRates reports what only all rows together show: rows that cannot be
// measurements, and times so long that their unit must be another.
func (s *Sink) flagRates() {
	for _, d := range s.report.Dropped {
		if impossible(d.Reason) {
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
			if u := s.best[key]; u != nil && u.rows >= enoughLarge && u.best < u.least {
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
