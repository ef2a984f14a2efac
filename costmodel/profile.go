package costmodel

import (
	"fmt"
	"math"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/doc"
)

// ProfileSchema is the schema of the profile documents this version writes.
const ProfileSchema = "evenkeel.profile/v1"

// Profile is the document that fit writes and solve and check read: the laws
// of one or more device types and group signatures, with their errors and the
// recordings they come from.
type Profile struct {
	doc.Header
	Simulated bool            `json:"simulated"` // true: made from a simulated backend, never to be quoted as measured
	Devices   []op.DeviceType `json:"devices"`
	Groups    []op.GroupType  `json:"groups"`
	Holdout   Holdout         `json:"holdout"`
	Laws      []Law           `json:"laws"`
	Memory    []MemoryFacts   `json:"memory,omitempty"`
	Overlaps  []OverlapFact   `json:"overlaps,omitempty"`
	Outliers  []Outlier       `json:"outliers,omitempty"` // worst first
	Warnings  []string        `json:"warnings,omitempty"`
}

// Holdout says which points were set aside before the fit: in every stratum
// (op, variant, device or group) the given share of points whose hash with the
// seed is smallest. It is enough to set the same points aside again.
type Holdout struct {
	Seed  uint64  `json:"seed"`
	Share float64 `json:"share"`
}

// SchemaName implements doc.Document.
func (*Profile) SchemaName() string { return ProfileSchema }

// Validate implements doc.Document: every number finite and in range, every
// law complete, unique and of a device or group that the profile lists.
func (p *Profile) Validate() error {
	if !(p.Holdout.Share >= 0 && p.Holdout.Share < 1) {
		return fmt.Errorf("holdout.share: %v: want 0 <= share < 1", p.Holdout.Share)
	}
	known := map[string]bool{}
	for i, d := range p.Devices {
		if err := d.Validate(); err != nil {
			return fmt.Errorf("devices[%d].%w", i, err)
		}
		if known[d.Name] {
			return fmt.Errorf("devices[%d].name: %q: listed twice", i, d.Name)
		}
		known[d.Name] = true
	}
	for i, g := range p.Groups {
		if err := g.Validate(); err != nil {
			return fmt.Errorf("groups[%d].%w", i, err)
		}
		if known[g.Name] {
			return fmt.Errorf("groups[%d].name: %q: listed twice", i, g.Name)
		}
		known[g.Name] = true
	}
	seen := map[lawKey]bool{}
	for i := range p.Laws {
		l := &p.Laws[i]
		if err := l.validate(); err != nil {
			return fmt.Errorf("laws[%d].%w", i, err)
		}
		if !known[l.On()] {
			return fmt.Errorf("laws[%d]: %q is no device or group of this profile", i, l.On())
		}
		if seen[l.key()] {
			return fmt.Errorf("laws[%d]: a second law of %s %s on %s", i, l.Op, l.Variant, l.On())
		}
		seen[l.key()] = true
	}
	return p.validateFacts(known)
}

type lawKey struct {
	op      op.Kind
	variant op.Variant
	on      string
}

func (l *Law) key() lawKey { return lawKey{l.Op, l.Variant, l.On()} }

func (l *Law) validate() error {
	spec, err := op.Lookup(l.Op)
	if err != nil {
		return fmt.Errorf("op: %w", err)
	}
	grouped := spec.Class == op.Collective
	switch {
	case spec.Measures != op.Time || spec.Class == op.Composed:
		return fmt.Errorf("op: %s has no law", l.Op)
	case grouped && (l.Group == "" || l.Device != ""):
		return fmt.Errorf("group: a law of %s belongs to a group, not to a device", l.Op)
	case !grouped && (l.Device == "" || l.Group != ""):
		return fmt.Errorf("device: a law of %s belongs to a device, not to a group", l.Op)
	case (l.Linear != nil) == (l.Curve != nil):
		return fmt.Errorf("linear, curve: a law has exactly one of them")
	case l.Linear == nil && spec.Class == op.Compute, l.Linear != nil && !featured(spec):
		return fmt.Errorf("linear, curve: the wrong one for %s: compute ops have linear laws, collectives and transfers curves", l.Op)
	case !(l.Spread.Lo > 0 && l.Spread.Lo <= 1 && l.Spread.Hi >= 1 && l.Spread.Hi < 1e6):
		return fmt.Errorf("spread: [%v, %v]: want 0 < lo <= 1 <= hi", l.Spread.Lo, l.Spread.Hi)
	}
	if err := l.validateRange(); err != nil {
		return err
	}
	if l.Linear != nil {
		return l.Linear.validate()
	}
	return l.Curve.validate()
}

func featured(spec op.Spec) bool {
	_, ok := spec.Example.(op.Featured)
	return ok
}

func (l *Law) validateRange() error {
	names := op.CoordNames(l.Op)
	// Without the last axis the law is of one block a call.
	if len(names) == batchAxis+1 && len(l.Range) == batchAxis {
		names = names[:batchAxis]
	}
	if len(l.Range) != len(names) {
		return fmt.Errorf("range: %d axes: %s has %v", len(l.Range), l.Op, names)
	}
	for i, r := range l.Range {
		if r.Axis != names[i] {
			return fmt.Errorf("range[%d].axis: %q: want %q", i, r.Axis, names[i])
		}
		if !(r.Min > 0 && r.Max >= r.Min && !math.IsInf(r.Max, 0)) {
			return fmt.Errorf("range[%d]: %s from %v to %v: want 0 < min <= max", i, r.Axis, r.Min, r.Max)
		}
	}
	return nil
}

func (l *Linear) validate() error {
	if l.Parallel < 1 {
		return fmt.Errorf("linear.parallel: %d: must be at least 1", l.Parallel)
	}
	sum := 0.0
	for i, c := range l.Coefs() {
		if err := c.validate(); err != nil {
			return fmt.Errorf("linear.%s: %w", LinearNames()[i], err)
		}
		sum += c.Value
	}
	if sum == 0 {
		return fmt.Errorf("linear: every coefficient is 0")
	}
	return nil
}

func (c Coef) validate() error {
	if !(c.Value >= 0 && c.Lo >= 0 && c.Lo <= c.Value && c.Hi >= c.Value) || math.IsInf(c.Hi, 0) {
		return fmt.Errorf("%v in [%v, %v]: want 0 <= lo95 <= value <= hi95", c.Value, c.Lo, c.Hi)
	}
	return nil
}

func (c *Curve) validate() error {
	switch {
	case c.Form == AlphaBeta && len(c.Pieces) > 0 && len(c.Knots) == 0:
		return c.validatePieces()
	case c.Form == LogLog && len(c.Knots) > 0 && len(c.Pieces) == 0:
		return c.validateKnots()
	}
	return fmt.Errorf("curve.form: %q with %d pieces and %d knots: want alpha_beta with pieces or log_log with knots", c.Form, len(c.Pieces), len(c.Knots))
}

func (c *Curve) validatePieces() error {
	for i, p := range c.Pieces {
		if p.From < 0 || (i > 0 && p.From <= c.Pieces[i-1].From) {
			return fmt.Errorf("curve.pieces[%d].from_bytes: %d: must rise", i, int64(p.From))
		}
		if err := p.Alpha.validate(); err != nil {
			return fmt.Errorf("curve.pieces[%d].alpha_s: %w", i, err)
		}
		if err := p.Beta.validate(); err != nil {
			return fmt.Errorf("curve.pieces[%d].s_per_byte: %w", i, err)
		}
		if p.Alpha.Value+p.Beta.Value <= 0 {
			return fmt.Errorf("curve.pieces[%d]: costs nothing", i)
		}
	}
	return nil
}

func (c *Curve) validateKnots() error {
	for i, k := range c.Knots {
		if k.Bytes <= 0 || !(k.Seconds > 0) || math.IsInf(float64(k.Seconds), 0) {
			return fmt.Errorf("curve.knots[%d]: %d bytes in %v s: want both positive", i, int64(k.Bytes), float64(k.Seconds))
		}
		if i > 0 && (k.Bytes <= c.Knots[i-1].Bytes || k.Seconds < c.Knots[i-1].Seconds) {
			return fmt.Errorf("curve.knots[%d]: must rise", i)
		}
	}
	return nil
}
