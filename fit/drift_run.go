package fit

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/stats"
	"github.com/evenkeel/evenkeel/profile"
)

// Run is a recording as the search for drift needs it: the time of every point, its
// scatter over repeats, the clock frequency, and the environment.
type Run struct {
	Name      string
	Simulated bool
	Copied    string // tells of lines that stood there twice and do not count; "" of none

	fields  []field // of the environment
	devices map[string]op.DeviceType
	groups  []op.GroupType
	spots   map[string]*spot // by key
	order   []string         // of the keys, as they came
}

// spot is one point of a run over all its visits.
type spot struct {
	on     string
	shape  op.Shape
	canary bool
	times  []float64 // median of every visit, s
	struck []float64 // the same of visits while others held the cores
	clocks []float64 // mean clock of a visit's batches, Hz
}

// field is one named value of an environment.
type field struct{ name, value string }

// ReadRun reads a recording for CompareRuns.
//
// Errors are those of profile.Read.
func ReadRun(name string, r io.Reader) (*Run, error) {
	run := &Run{Name: name, devices: map[string]op.DeviceType{}, spots: map[string]*spot{}}
	see := func(canary bool) func(*profile.Point) error {
		return func(p *profile.Point) error { run.see(p, canary); return nil }
	}
	var copies profile.Copies
	_, err := copies.Read(name, r, profile.Visitor{
		Header: func(h *profile.Header) error { run.header(h); return nil },
		Point:  see(false), Again: see(false), Canary: see(true),
	})
	run.Copied = copies.Warning(name)
	return run, err
}

// header keeps what moves times: the fingerprint is a hash of it, and the
// fields say which of them changed.
func (r *Run) header(h *profile.Header) {
	r.Simulated, r.groups = h.Simulated, h.Groups
	add := func(name, value string) { r.fields = append(r.fields, field{name, value}) }
	add("backend", h.Backend)
	add("simulated", fmt.Sprint(h.Simulated))
	add("fingerprint", h.Fingerprint)
	add("machine.host", h.Machine.Host)
	add("machine.os", h.Machine.OS)
	add("machine.cpu", h.Machine.CPU)
	add("machine.cores", fmt.Sprint(h.Machine.Cores))
	for _, d := range h.Devices {
		r.devices[d.Name] = d
		add(d.Name+".model", d.Model)
		add(d.Name+".stack", d.Stack)
		add(d.Name+".fingerprint", d.Fingerprint)
	}
}

func (r *Run) see(p *profile.Point, canary bool) {
	if !p.OK() || len(p.Times) == 0 {
		return
	}
	key := profile.NewSpot(p.On, p.Shape).Key("")
	s := r.spots[key]
	if s == nil {
		s = &spot{on: p.On, shape: p.Shape}
		r.spots[key] = s
		r.order = append(r.order, key)
	}
	s.canary = s.canary || canary
	if m := stats.Median(p.Times); p.Disturbed {
		s.struck = append(s.struck, m)
	} else {
		s.times = append(s.times, m)
	}
	if g := p.Guard.GPU; g != nil && g.MinSMClock > 0 && g.MaxSMClock > 0 {
		s.clocks = append(s.clocks, (g.MinSMClock+g.MaxSMClock)/2)
	}
}

// visits are the times of a spot; those of disturbed visits only where there
// are no others.
func (s *spot) visits() []float64 {
	if len(s.times) > 0 {
		return s.times
	}
	return s.struck
}

// scatter is the deviation of a single visit's log, robust against a struck
// one; 0 with fewer visits than tell anything.
func (s *spot) scatter() float64 {
	v := s.visits()
	if len(v) < fewestRepeats {
		return 0
	}
	logs := make([]float64, len(v))
	for i, t := range v {
		logs[i] = math.Log(t)
	}
	return stats.MAD(logs)
}

// fewestRepeats is the least number of visits whose scatter is taken as the
// point's own; below it the whole machine's is used.
const fewestRepeats = 5

// pooled is the deviation of a visit's log over all points of a device or group
// that were visited more than once, from the differences between neighbouring
// visits, whose deviation is sqrt(2) larger; 0 without any.
func (r *Run) pooled(on string) float64 {
	var differences []float64
	for _, key := range r.order {
		s := r.spots[key]
		if s.on != on {
			continue
		}
		v := s.visits()
		for i := 1; i < len(v); i++ {
			differences = append(differences, math.Log(v[i]/v[i-1])/math.Sqrt2)
		}
	}
	if len(differences) < fewestRepeats {
		return 0
	}
	return stats.RobustScale(differences)
}

// Difference is a field of the environment that differs between two recordings.
type Difference struct {
	Field string `json:"field"`
	Was   string `json:"was"`
	Is    string `json:"is"`
}

// differences compares two environments.
func differences(was, is *Run) []Difference {
	var all []Difference
	for _, f := range slices.Concat(was.fields, is.fields) {
		d := Difference{f.name, was.value(f.name), is.value(f.name)}
		if d.Was == d.Is {
			continue
		}
		if strings.HasSuffix(f.name, "fingerprint") {
			d = d.short()
		}
		if !slices.Contains(all, d) {
			all = append(all, d)
		}
	}
	return all
}

// value is a field of the environment, "" where the recording has none.
func (r *Run) value(name string) string {
	for _, f := range r.fields {
		if f.name == name {
			return f.value
		}
	}
	return ""
}

// short cuts hashes that differ from their beginning on; others stay whole.
func (d Difference) short() Difference {
	const digits = 12
	was, is := d.Was[:min(digits, len(d.Was))], d.Is[:min(digits, len(d.Is))]
	if was == is {
		return d
	}
	return Difference{d.Field, was, is}
}

// elsewhere says that two runs did not see a device or group in the same environment: it, or a
// device of the group, has another fingerprint, or the runs have other backends. The fingerprint of
// a run tells nothing more: it covers the devices and groups as they are listed, so that one with more
// of them, or in another order, has another for that alone.
func elsewhere(was, is *Run, on string) bool {
	for _, device := range was.devicesOf(on) {
		a, known := was.devices[device]
		b, still := is.devices[device]
		if known && still && a.Fingerprint != b.Fingerprint {
			return true
		}
	}
	return was.value("fingerprint") != is.value("fingerprint") && was.value("backend") != is.value("backend")
}

// devicesOf are the device types of a group, or the device itself.
func (r *Run) devicesOf(on string) []string {
	i := slices.IndexFunc(r.groups, func(g op.GroupType) bool { return g.Name == on })
	if i < 0 {
		return []string{on}
	}
	var devices []string
	for _, m := range r.groups[i].Members {
		devices = append(devices, m.Device)
	}
	return devices
}
