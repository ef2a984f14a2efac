package fit

import (
	_ "embed"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/doc"
)

// LimitsSchema is the schema of the limits documents this version reads.
const LimitsSchema = "evenkeel.limits/v1"

//go:embed limits.json
var builtIn []byte

// Limits is the document that holds all limits of errors: of families of ops, of strata,
// and of replayed plans. Every entry states the reason for its value, so that a
// change of a limit is a visible change with a reason.
type Limits struct {
	doc.Header
	Revision int            `json:"revision"` // rises with every change of a limit
	Families []FamilyLimit  `json:"families"`
	Strata   []StratumLimit `json:"strata"` // the first entry that matches a stratum applies
	// Coverage limits how rarely the 90 % interval holds the measured time, of every family,
	// of every stratum that has a limit, and of those of 20 points that no entry matches. A file without it uses the built-in limit.
	Coverage *CoverageLimit `json:"coverage,omitempty"`
	// Replay limits the errors of replayed plans. A file without it uses the built-in limits.
	Replay *ReplayLimits `json:"replay,omitempty"`
}

// FamilyLimit limits the errors of one family of ops.
type FamilyLimit struct {
	Family Family `json:"family"`
	Limit
	Reason string `json:"reason"`
}

// Limit is the largest median and 90th percentile allowed for errors, as
// |log(measured/predicted)|. It applies to upper confidence bounds of both.
type Limit struct {
	Median float64 `json:"median"`
	P90    float64 `json:"p90"`
}

// CoverageLimit is the least share of points whose measured time must lie inside the 90 %
// interval. It applies to the upper confidence bound of the share; 0 is no limit.
type CoverageLimit struct {
	Least  float64 `json:"least"`
	Reason string  `json:"reason"`
}

// StratumLimit limits the errors of all strata that match its selectors. A selector that
// is left out matches everything, but for Sources: without it only interpolated points
// match. An entry without any limit exempts the strata from judgement, and Reason says
// why.
type StratumLimit struct {
	ID      string             `json:"id"`
	Family  Family             `json:"family,omitzero"`
	Ops     []op.Kind          `json:"ops,omitempty"`
	Bands   []string           `json:"bands,omitempty"` // sizes of shapes, such as "<4k"
	On      []string           `json:"on,omitempty"`    // names of devices or groups; * is a wildcard
	Links   []string           `json:"links,omitempty"` // link classes of groups; * is a wildcard
	Nodes   Reach              `json:"nodes,omitzero"`
	Sources []costmodel.Source `json:"sources,omitempty"`
	StratumBound
	Reason string `json:"reason"`
}

// StratumBound limits the upper bounds of a stratum's statistics (StratumUpper), as log
// ratios; 0 is no limit.
type StratumBound struct {
	MAPE float64 `json:"mape,omitzero"`
	P95  float64 `json:"p95,omitzero"`
	Bias float64 `json:"bias,omitzero"` // of the absolute bias
}

// Reach says whether a group lies within one node or spans several.
type Reach string

// The reaches of a group.
const (
	OneNode      Reach = "one"
	SeveralNodes Reach = "several"
)

// DefaultLimits returns the limits that are built in. Those of families apply to upper
// confidence bounds, which lie well above the estimates when a calibration of a minute
// gives a few dozen points (results/evidence/cpu). They are set so that such a calibration
// of a quiet machine passes and a law that is off by a tenth fails. A longer calibration
// deserves tighter limits.
//
// It panics if the limits are not valid, which a test rules out.
func DefaultLimits() *Limits {
	f := new(Limits)
	if err := doc.Decode("limits.json", builtIn, f); err != nil {
		panic(err)
	}
	return f
}

// ReadLimits reads a limits document. Errors are *doc.Error with file, field
// and value.
func ReadLimits(name string, r io.Reader) (*Limits, error) {
	data, err := io.ReadAll(io.LimitReader(r, mostLimits))
	if err != nil {
		return nil, fmt.Errorf("%s: cannot be read: %w", name, err)
	}
	f := new(Limits)
	if err := doc.Decode(name, data, f); err != nil {
		return nil, err
	}
	return f, nil
}

// mostLimits is the most bytes of a limits document: they are written by hand.
const mostLimits = 16 << 20

// SchemaName implements doc.Document.
func (*Limits) SchemaName() string { return LimitsSchema }

// Validate implements doc.Document: every family has one limit, every entry a
// reason, and every selector names something that exists.
func (f *Limits) Validate() error {
	if f.Revision == 0 {
		return errors.New("revision: 0: must be at least 1, and a document without one reads so: add it")
	}
	if f.Revision < 1 {
		return fmt.Errorf("revision: %d: must be at least 1", f.Revision)
	}
	var seen []Family
	for i, l := range f.Families {
		if err := l.validate(); err != nil {
			return fmt.Errorf("families[%d].%w", i, err)
		}
		if slices.Contains(seen, l.Family) {
			return fmt.Errorf("families[%d].family: %q: listed twice", i, l.Family)
		}
		seen = append(seen, l.Family)
	}
	for _, family := range Families() {
		if !slices.Contains(seen, family) {
			return fmt.Errorf("families: no limit of %s", family)
		}
	}
	var ids []string
	for i, l := range f.Strata {
		if err := l.validate(); err != nil {
			return fmt.Errorf("strata[%d].%w", i, err)
		}
		if slices.Contains(ids, l.ID) {
			return fmt.Errorf("strata[%d].id: %q: listed twice", i, l.ID)
		}
		ids = append(ids, l.ID)
	}
	if f.Coverage != nil {
		if err := f.Coverage.validate(); err != nil {
			return fmt.Errorf("coverage.%w", err)
		}
	}
	if f.Replay != nil {
		if err := f.Replay.validate(); err != nil {
			return fmt.Errorf("replay.%w", err)
		}
	}
	return nil
}

func (l FamilyLimit) validate() error {
	switch {
	case !slices.Contains(Families(), l.Family):
		return unknownFamily(l.Family)
	case !(l.Median > 0 && l.Median < mostLimit) || !(l.P90 > 0 && l.P90 < mostLimit):
		return fmt.Errorf("median, p90: %v, %v: want log ratios above 0 and below %v", l.Median, l.P90, mostLimit)
	case l.Reason == "":
		return fmt.Errorf("reason: missing: say why the limit is what it is")
	}
	return nil
}

func (l *CoverageLimit) validate() error {
	switch {
	case !(l.Least >= 0 && l.Least < 1):
		return fmt.Errorf("least: %v: want a share from 0 (no limit) to below 1", l.Least)
	case l.Reason == "":
		return fmt.Errorf("reason: missing: say why the limit is what it is")
	}
	return nil
}

func unknownFamily(f Family) error {
	return fmt.Errorf("family: %q: want one of %v", f, Families())
}

// mostLimit is a log ratio that no useful limit reaches: a factor of 22000. A
// larger number was meant as a percentage.
const mostLimit = 10

func (l StratumLimit) validate() error {
	switch {
	case l.ID == "":
		return fmt.Errorf("id: missing: reports name the limit by it")
	case l.Reason == "":
		return fmt.Errorf("reason: missing: say why the limit is what it is")
	case l.Family != "" && !slices.Contains(Families(), l.Family):
		return unknownFamily(l.Family)
	case l.Nodes != "" && l.Nodes != OneNode && l.Nodes != SeveralNodes:
		return fmt.Errorf("nodes: %q: want %s or %s", l.Nodes, OneNode, SeveralNodes)
	}
	for i, k := range l.Ops {
		if FamilyOf(k) == "" {
			return fmt.Errorf("ops[%d]: %q: no op of this name measures time", i, k)
		}
	}
	for i, b := range l.Bands {
		if !bandExists(b) {
			return fmt.Errorf("bands[%d]: %q: want one of %v", i, b, allBands())
		}
	}
	for i, s := range l.Sources {
		if !slices.Contains(judgedSources(), s) {
			return fmt.Errorf("sources[%d]: %q: want one of %v", i, s, judgedSources())
		}
	}
	return l.StratumBound.validate()
}

func (b StratumBound) validate() error {
	for _, f := range []struct {
		name  string
		value float64
	}{{"mape", b.MAPE}, {"p95", b.P95}, {"bias", b.Bias}} {
		if !(f.value >= 0 && f.value < mostLimit) {
			return fmt.Errorf("%s: %v: want a log ratio from 0 (no limit) to below %v", f.name, f.value, mostLimit)
		}
	}
	return nil
}

// judgedSources lists the sources that have strata of their own; measured
// points count as interpolated.
func judgedSources() []costmodel.Source {
	return []costmodel.Source{costmodel.Interpolated, costmodel.Extrapolated, costmodel.Transferred, costmodel.Assumed}
}

// fits says whether the entry is for a stratum, whose group is the zero value
// for ops on a device.
func (l *StratumLimit) fits(s *CheckedStratum, group op.GroupType) bool {
	sources := l.Sources
	if len(sources) == 0 {
		sources = []costmodel.Source{costmodel.Interpolated}
	}
	return slices.Contains(sources, s.Source) &&
		(l.Family == "" || l.Family == s.Family) &&
		(len(l.Ops) == 0 || slices.Contains(l.Ops, s.Op)) &&
		(len(l.Bands) == 0 || slices.Contains(l.Bands, s.Band)) &&
		(len(l.On) == 0 || anyLike(l.On, s.On)) &&
		(len(l.Links) == 0 || group.Link != "" && anyLike(l.Links, group.Link)) &&
		(l.Nodes == "" || group.Nodes > 0 && (l.Nodes == SeveralNodes) == (group.Nodes > 1))
}

// of returns the first entry that fits a stratum, or nil.
func (f *Limits) of(s *CheckedStratum, group op.GroupType) *StratumLimit {
	for i := range f.Strata {
		if f.Strata[i].fits(s, group) {
			return &f.Strata[i]
		}
	}
	return nil
}

func anyLike(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return like(p, name) })
}

// like matches a name against a pattern in which * stands for any text, / and
// nothing included, unlike path.Match: names of groups are no paths.
func like(pattern, name string) bool {
	parts := strings.Split(pattern, "*")
	if len(parts) == 1 {
		return pattern == name
	}
	last := len(parts) - 1
	rest, ok := strings.CutPrefix(name, parts[0])
	if !ok {
		return false
	}
	for _, part := range parts[1:last] {
		i := strings.Index(rest, part)
		if i < 0 {
			return false
		}
		rest = rest[i+len(part):]
	}
	return strings.HasSuffix(rest, parts[last])
}

// OfFamily returns the limit of a family; of an unknown one none.
func (f *Limits) OfFamily(family Family) Limit {
	for _, l := range f.Families {
		if l.Family == family {
			return l.Limit
		}
	}
	return Limit{}
}

// Covered returns the limit of coverage: that of the file, or the built-in one where the
// file has none, as files from before such a limit do.
func (f *Limits) Covered() CoverageLimit {
	if f.Coverage != nil {
		return *f.Coverage
	}
	return *DefaultLimits().Coverage
}

// Override returns a copy of the limits in which most replaces every limit of a family and
// of its strata that have one, and limits those of the other sources that have none: it becomes
// the limit of medians, means and biases, and three times as much that of 90th and 95th
// percentiles. The limit of coverage stays, and so do strata that are exempt.
func (f *Limits) Override(family Family, most float64) *Limits {
	g := *f
	g.Families, g.Strata = slices.Clone(f.Families), nil
	for i := range g.Families {
		if l := &g.Families[i]; l.Family == family {
			l.Limit = Limit{Median: most, P90: 3 * most}
		}
	}
	for _, l := range f.Strata {
		if l.Family != "" && l.Family != family || l.StratumBound == (StratumBound{}) {
			g.Strata = append(g.Strata, l)
			continue
		}
		own := l
		own.ID, own.Family = string(family)+":max-error", family
		own.Reason = "asked for with --max-error instead of " + l.ID
		own.StratumBound = StratumBound{MAPE: most, P95: 3 * most, Bias: most}
		g.Strata = append(g.Strata, own)
		if l.Family == "" {
			g.Strata = append(g.Strata, l)
		}
	}
	g.Strata = append(g.Strata, StratumLimit{
		ID: string(family) + ":max-error", Family: family, Reason: "asked for with --max-error, where no limit applies",
		Sources:      []costmodel.Source{costmodel.Extrapolated, costmodel.Transferred, costmodel.Assumed},
		StratumBound: StratumBound{MAPE: most, P95: 3 * most, Bias: most},
	})
	return &g
}
