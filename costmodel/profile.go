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
	Simulated bool            `json:"simulated"`         // true: made from a simulated backend, never to be quoted as measured
	Origins   []Origin        `json:"origins,omitempty"` // who measured, where others did
	Devices   []op.DeviceType `json:"devices"`
	Groups    []op.GroupType  `json:"groups"`
	Holdout   Holdout         `json:"holdout"`
	Laws      []Law           `json:"laws"`
	Steps     []Steps         `json:"steps,omitempty"` // for groups that were not measured
	Memory    []MemoryFacts   `json:"memory,omitempty"`
	Overlaps  []OverlapFact   `json:"overlaps,omitempty"`
	Training  []TrainingFact  `json:"training,omitempty"`
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
	for i, o := range p.Origins {
		if err := o.validate(); err != nil {
			return fmt.Errorf("origins[%d].%w", i, err)
		}
	}
	known, err := p.validateNames()
	if err != nil {
		return err
	}
	if err := p.validateLaws(known); err != nil {
		return err
	}
	if err := p.validateSteps(known); err != nil {
		return err
	}
	return p.validateFacts(known)
}

// validateNames checks devices and groups and returns their names.
func (p *Profile) validateNames() (map[string]bool, error) {
	known := map[string]bool{}
	for i, d := range p.Devices {
		if err := d.Validate(); err != nil {
			return nil, fmt.Errorf("devices[%d].%w", i, err)
		}
		if known[d.Name] {
			return nil, fmt.Errorf("devices[%d].name: %q: listed twice", i, d.Name)
		}
		known[d.Name] = true
	}
	for i, g := range p.Groups {
		if err := g.Validate(); err != nil {
			return nil, fmt.Errorf("groups[%d].%w", i, err)
		}
		if known[g.Name] {
			return nil, fmt.Errorf("groups[%d].name: %q: listed twice", i, g.Name)
		}
		known[g.Name] = true
	}
	return known, nil
}

// validateLaws checks that every law is complete, the only one of its op, variant and
// place, and of a device or group that is known.
func (p *Profile) validateLaws(known map[string]bool) error {
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
			return fmt.Errorf("laws[%d]: a second law of %s on %s", i, named(l.Op, l.Variant), l.On())
		}
		seen[l.key()] = true
	}
	return nil
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
	case l.bodies() != 1:
		return fmt.Errorf("linear, curve, attention, gemm: a law has exactly one of them")
	case l.Curve != nil && spec.Class == op.Compute, l.Linear != nil && !featured(spec),
		l.Attention != nil && !tiled(l.Op), l.GEMM != nil && l.Op != op.KindGEMM:
		return fmt.Errorf("linear, curve, attention, gemm: the wrong one for %s: collectives and transfers have curves, compute ops the others", l.Op)
	case !(l.Spread.Lo > 0 && l.Spread.Lo <= 1 && l.Spread.Hi >= 1 && l.Spread.Hi < 1e6):
		return fmt.Errorf("spread: [%v, %v]: want 0 < lo <= 1 <= hi", l.Spread.Lo, l.Spread.Hi)
	}
	if err := validateDType(l.Variant.DType, grouped); err != nil {
		return err
	}
	if err := l.validateErrors(); err != nil {
		return err
	}
	if err := validatePort(l.Port, grouped); err != nil {
		return err
	}
	if err := l.validatePeak(spec); err != nil {
		return err
	}
	if err := l.validateDoubts(); err != nil {
		return err
	}
	if err := l.validateRange(); err != nil {
		return err
	}
	if err := l.validateFields(spec); err != nil {
		return err
	}
	switch {
	case l.Linear != nil:
		return l.Linear.validate()
	case l.Attention != nil:
		return l.Attention.Validate()
	case l.GEMM != nil:
		return l.GEMM.Validate()
	}
	return l.Curve.validate()
}

// tiled says whether an op is attention, of blocks or of packed documents.
func tiled(k op.Kind) bool {
	switch k {
	case op.KindAttnFwd, op.KindAttnBwd, op.KindAttnVarlenFwd, op.KindAttnVarlenBwd:
		return true
	}
	return false
}

// validateDType checks a law's precision. No call has an unknown one, so that the law would
// never be asked for, and the one that was meant would be missing.
func validateDType(t op.DType, grouped bool) error {
	switch {
	case t == "":
		return nil
	case grouped && t.Size() == 0:
		return fmt.Errorf("variant.dtype: %q: want f64, f32, bf16, f16, fp8, i64, i32 or i8, or none", string(t))
	case !grouped && !t.Computes():
		return fmt.Errorf("variant.dtype: %q: want f32, bf16, f16 or fp8", string(t))
	}
	return nil
}

// validateErrors checks what is said of a law's errors, which reports print as they stand.
func (l *Law) validateErrors() error {
	for _, e := range []struct {
		name string
		of   FitError
	}{{"fit", l.Fit}, {"held", l.Held}} {
		if err := e.of.validate(); err != nil {
			return fmt.Errorf("%s.%w", e.name, err)
		}
	}
	for i, r := range l.Rivals {
		if !finiteError(r.Median) {
			return fmt.Errorf("rivals[%d].median: %v: want a finite error of 0 or more", i, r.Median)
		}
	}
	return nil
}

func (e FitError) validate() error {
	switch {
	case e.Points < 0:
		return fmt.Errorf("points: %d: want 0 or more", e.Points)
	case e.Outside < 0:
		return fmt.Errorf("outside: %d: want 0 or more", e.Outside)
	case !finiteError(e.Median):
		return fmt.Errorf("median: %v: want a finite error of 0 or more", e.Median)
	case !finiteError(e.P90):
		return fmt.Errorf("p90: %v: want a finite error of 0 or more", e.P90)
	case !finiteError(e.P95):
		return fmt.Errorf("p95: %v: want a finite error of 0 or more", e.P95)
	case !finiteError(math.Abs(e.Bias)):
		return fmt.Errorf("bias: %v: want a finite log of a ratio", e.Bias)
	case !(e.Coverage >= 0 && e.Coverage <= 1):
		return fmt.Errorf("coverage: %v: want a share of 0 to 1", e.Coverage)
	}
	return nil
}

func finiteError(x float64) bool { return x >= 0 && !math.IsInf(x, 0) }

func validatePort(p *op.Port, grouped bool) error {
	switch {
	case p == nil:
		return nil
	case !grouped:
		return fmt.Errorf("port: only collectives have one")
	}
	if err := p.Validate(); err != nil {
		return fmt.Errorf("port.%w", err)
	}
	return nil
}

func (l *Law) validatePeak(spec op.Spec) error {
	switch {
	case l.Peak != 0 && !(l.Peak >= 1) || math.IsInf(float64(l.Peak), 0):
		return fmt.Errorf("peak_flops_per_s: %v: want a rate of at least 1, or none", float64(l.Peak))
	case l.Peak > 0 && spec.Class != op.Compute:
		return fmt.Errorf("peak_flops_per_s: only compute ops have one, and %s is none", l.Op)
	}
	return nil
}

// bodies counts the bodies of a law.
func (l *Law) bodies() int {
	n := 0
	for _, set := range []bool{l.Linear != nil, l.Curve != nil, l.Attention != nil, l.GEMM != nil} {
		if set {
			n++
		}
	}
	return n
}

func (l *Law) validateFields(spec op.Spec) error {
	if !(l.Widen >= 0 && l.Widen < 100) {
		return fmt.Errorf("widen_per_doubling: %v: want 0 to 100", l.Widen)
	}
	if !(l.Scale >= 0 && l.Scale < 1e6) {
		return fmt.Errorf("scale: %v: want a positive factor below 1e6, or none; are the measured times seconds?", l.Scale)
	}
	for _, field := range []struct {
		name string
		f    *Field
	}{{"correction", l.Correction}, {"width", l.Width}} {
		if field.f == nil {
			continue
		}
		if err := field.f.validate(spec.Example); err != nil {
			return fmt.Errorf("%s.%w", field.name, err)
		}
	}
	return nil
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
	ends := op.Coords{batchAxis: 1}
	for i, r := range l.Range {
		ends[i] = r.Max
	}
	if most := Cells(l.Op, ends); !(l.MaxCells >= 0 && l.MaxCells <= most) {
		return fmt.Errorf("range_max_cells: %v: want 0 to %v, which is what the ends of the range have", l.MaxCells, most)
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
