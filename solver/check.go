package solver

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
)

// Finding is something wrong with a plan.
type Finding struct {
	Field string // as in the document: ranks[2].segments[0].start_tokens
	Msg   string
}

// Error is the field and what is wrong with it.
func (f Finding) Error() string { return f.Field + ": " + f.Msg }

// CheckError lists everything wrong with a plan.
type CheckError struct{ Findings []Finding }

// Error lists the findings, one a line.
func (e *CheckError) Error() string {
	lines := make([]string, len(e.Findings))
	for i, f := range e.Findings {
		lines[i] = f.Error()
	}
	return strings.Join(lines, "\n")
}

// Check verifies a plan against the profile it was made from: that every token
// is covered exactly once and every head present, that the ring visits the
// ranks with tokens, that devices are the cluster's, that memory fits when
// computed anew, that the layouts cost what the plan says when simulated anew,
// that the bound holds and that the verdicts follow from the numbers. It shares
// no code with any strategy.
//
// The error is a *CheckError with all findings, or says why the plan could not
// be checked at all.
func Check(p *Plan, profile *costmodel.Profile) error {
	if err := p.Job.Validate(); err != nil {
		return &CheckError{[]Finding{{"job", err.Error()}}}
	}
	found := structure(p)
	more, err := costs(p, profile)
	if err != nil {
		return err
	}
	if found = append(found, more...); len(found) > 0 {
		return &CheckError{found}
	}
	return nil
}

func errIn(field string, err error) error { return fmt.Errorf("%s.%w", field, err) }

// findings collects what is wrong.
type findings []Finding

func (f *findings) add(field, format string, args ...any) {
	*f = append(*f, Finding{field, fmt.Sprintf(format, args...)})
}

// structure checks what needs no profile. The job must be valid.
func structure(p *Plan) []Finding {
	var f findings
	f.owners(p)
	f.cover(p)
	f.circle(p)
	f.step(p)
	f.quotients(p)
	f.candidates(p)
	if !slices.Equal(p.Notes, notModelled()) {
		f.add("notes", "not the notes of this version of the cost model")
	}
	return f
}

// owners checks ranks against the cluster.
func (f *findings) owners(p *Plan) {
	want := p.Job.Cluster.Ranks()
	if len(want) != len(p.Ranks) {
		f.add("ranks", "%d of them: the cluster has %d devices", len(p.Ranks), len(want))
		return
	}
	for i, r := range p.Ranks {
		at := fmt.Sprintf("ranks[%d].", i)
		q, kv := p.Job.Model.QHeads, p.Job.Model.KVHeads
		if len(r.Segments) == 0 {
			q, kv = 0, 0
		}
		var tokens units.Tokens
		for _, s := range r.Segments {
			tokens += s.End - s.Start
		}
		switch {
		case r.Rank != i:
			f.add(at+"rank", "%d: ranks are listed in order, want %d", r.Rank, i)
		case r.Device != want[i].Device:
			f.add(at+"device", "%q: the cluster has %q there", r.Device, want[i].Device)
		case r.Node != want[i].NodeName:
			f.add(at+"node", "%q: the cluster has node %q there", r.Node, want[i].NodeName)
		case r.Tokens != tokens:
			f.add(at+"tokens", "%d: the segments have %d", int64(r.Tokens), int64(tokens))
		case r.QHeads != q:
			f.add(at+"q_heads", "%d: want %d: no head may be missing and none doubled", r.QHeads, q)
		case r.KVHeads != kv:
			f.add(at+"kv_heads", "%d: want %d: no head may be missing and none doubled", r.KVHeads, kv)
		}
	}
}

// piece is a segment and where it stands in the document.
type piece struct {
	costmodel.Segment
	field string
}

// cover checks that the segments rise and tile the sequence.
func (f *findings) cover(p *Plan) {
	var all []piece
	for i, r := range p.Ranks {
		for k, s := range r.Segments {
			at := fmt.Sprintf("ranks[%d].segments[%d]", i, k)
			switch {
			case s.Start < 0:
				f.add(at+".start_tokens", "%d: before the sequence begins", int64(s.Start))
			case s.End > p.Job.SeqLen:
				f.add(at+".end_tokens", "%d: beyond the sequence's %d tokens", int64(s.End), int64(p.Job.SeqLen))
			case s.Start >= s.End:
				f.add(at+".end_tokens", "%d: the segment from %d is empty", int64(s.End), int64(s.Start))
			case k > 0 && s.Start < r.Segments[k-1].End:
				f.add(at+".start_tokens", "%d: segments of a rank must rise, the one before ends at %d", int64(s.Start), int64(r.Segments[k-1].End))
			}
			all = append(all, piece{s, at})
		}
	}
	slices.SortStableFunc(all, func(a, b piece) int { return cmp.Compare(a.Start, b.Start) })
	next := piece{field: "ranks"}
	for _, s := range all {
		switch {
		case s.Start > next.End:
			f.add(s.field+".start_tokens", "nobody has tokens %d to %d, which end before it; see also %s.end_tokens", int64(next.End), int64(s.Start), next.field)
		case s.Start < next.End:
			f.add(s.field+".start_tokens", "token %d is also in %s; see also %s.end_tokens", int64(s.Start), next.field, next.field)
		}
		if s.End > next.End {
			next = s
		}
	}
	if next.End < p.Job.SeqLen {
		f.add(next.field+".end_tokens", "nobody has tokens %d to %d", int64(next.End), int64(p.Job.SeqLen))
	}
}

// circle checks that the ring is a permutation of the ranks with tokens.
func (f *findings) circle(p *Plan) {
	visits := make([]int, len(p.Ranks))
	for i, r := range p.Ring {
		at := fmt.Sprintf("ring[%d]", i)
		if r < 0 || r >= len(p.Ranks) {
			f.add(at, "%d: no rank of this plan", r)
			continue
		}
		if visits[r]++; visits[r] > 1 {
			f.add(at, "%d: visited before", r)
		}
		if p.Ranks[r].Tokens == 0 {
			f.add(at, "%d: has no tokens", r)
		}
	}
	for r, n := range visits {
		if n == 0 && p.Ranks[r].Tokens > 0 {
			f.add("ring", "rank %d has tokens and is not in it", r)
		}
	}
}

// step checks the account of the step against itself and the ranks.
func (f *findings) step(p *Plan) {
	s := &p.Step
	f.estimate("step.time", s.Time)
	var parts units.Seconds
	for i, t := range s.Parts {
		f.estimate(fmt.Sprintf("step.parts[%d].time", i), t.Time)
		parts += t.Time.Mid
	}
	if !near(float64(parts), float64(s.Time.Mid)) {
		f.add("step.parts", "add up to %v, the step takes %v", parts, s.Time.Mid)
	}
	if len(s.Ranks) != len(p.Ranks) {
		f.add("step.ranks", "%d of them: the plan has %d ranks", len(s.Ranks), len(p.Ranks))
		return
	}
	for i, r := range s.Ranks {
		at := fmt.Sprintf("step.ranks[%d].", i)
		if total := r.Busy + r.Exposed + r.Idle; !near(float64(total), float64(s.Time.Mid)) {
			f.add(at+"busy_s", "with exposed_s and idle_s %v, the step takes %v", total, s.Time.Mid)
		}
		if r.Device != p.Ranks[i].Device {
			f.add(at+"device", "%q: ranks[%d] is a %q", r.Device, i, p.Ranks[i].Device)
		}
		if r.Tokens != p.Ranks[i].Tokens {
			f.add(at+"tokens", "%d: ranks[%d] has %d", int64(r.Tokens), i, int64(p.Ranks[i].Tokens))
		}
		if m := r.Memory; !m.Fits() {
			f.add(at+"memory", "%v: more than %v x %v", m.Peak(), costmodel.Usable, m.Capacity)
		}
	}
}

func (f *findings) estimate(field string, e costmodel.Estimate) {
	if !(e.Lo >= 0 && e.Lo <= e.Mid && e.Mid <= e.Hi) || math.IsInf(float64(e.Hi), 0) {
		f.add(field, "%v in [%v, %v]: want 0 <= lo <= mid <= hi", float64(e.Mid), float64(e.Lo), float64(e.Hi))
	}
}

// quotients checks the bound and the gap.
func (f *findings) quotients(p *Plan) {
	t := float64(p.Step.Time.Mid)
	if b := float64(p.Bound); !(b > 0 && b <= t*(1+tolerance)) {
		f.add("lower_bound_s", "%v: want above 0 and no more than the step's %v", b, t)
	}
	if want := t/float64(p.Bound) - 1; !near(1+p.Gap, 1+want) {
		f.add("gap", "%v: step time over bound - 1 is %v", p.Gap, want)
	}
}

// candidates checks the comparison against itself.
func (f *findings) candidates(p *Plan) {
	seen := map[string]bool{}
	chosen := -1
	for i := range p.Compared {
		c := &p.Compared[i]
		at := fmt.Sprintf("considered[%d].", i)
		f.estimate(at+"time", c.Time)
		if seen[c.Strategy] {
			f.add(at+"strategy", "%q: listed before", c.Strategy)
		}
		seen[c.Strategy] = true
		if s, err := Lookup(c.Strategy); err != nil {
			f.add(at+"strategy", "%v", err)
		} else if s.Claims().Baseline != c.Baseline {
			f.add(at+"baseline", "%v: strategy %s says %v", c.Baseline, c.Strategy, !c.Baseline)
		}
		if want := float64(c.Time.Mid)/float64(p.Bound) - 1; !near(1+c.Gap, 1+want) {
			f.add(at+"gap", "%v: its time over the bound - 1 is %v", c.Gap, want)
		}
		if !slices.Contains([]Verdict{Chosen, Tie, Slower, Infeasible}, c.Verdict) {
			f.add(at+"verdict", "%q: want %s, %s, %s or %s", string(c.Verdict), Chosen, Tie, Slower, Infeasible)
		}
		if (c.Layout == nil) != (c.Verdict == Chosen) {
			f.add(at+"layout", "left out of the chosen candidate and of no other")
		}
		if c.Verdict != Chosen {
			continue
		}
		if chosen >= 0 {
			f.add(at+"verdict", "considered[%d] is chosen already", chosen)
		}
		chosen = i
		if c.Strategy != p.Strategy {
			f.add("strategy", "%q: considered[%d], which is chosen, is %q", p.Strategy, i, c.Strategy)
		}
		f.same(at+"time", c.Time, p.Step.Time)
	}
	if chosen < 0 {
		f.add("considered", "none is chosen")
		return
	}
	f.verdicts(p, &p.Compared[chosen])
}

// verdicts checks speed-ups, gains and who was chosen.
func (f *findings) verdicts(p *Plan, chosen *Candidate) {
	base := p.Baseline()
	for i := range p.Compared {
		c := &p.Compared[i]
		at := fmt.Sprintf("considered[%d].", i)
		speedup, fits := 0.0, c.Verdict != Infeasible
		if base != nil && fits {
			speedup = float64(base.Time.Mid / c.Time.Mid)
		}
		if !near(c.Speedup, speedup) {
			f.add(at+"speedup_vs_baseline", "%v: the times give %v", c.Speedup, speedup)
		}
		if !(c.GainError >= 0) || (c.GainError > 0 && (base == nil || c == base || !fits)) {
			f.add(at+"gain_error_s", "%v: want at least 0, and 0 where there is nothing to compare", float64(c.GainError))
		}
		within := base != nil && c != base && fits && base.Time.Mid-c.Time.Mid <= c.GainError
		want := Slower
		switch {
		case !fits:
			want = Infeasible // costs checks whether it really does not fit
		case c == chosen:
			want = Chosen
		case within && c.Time.Mid <= base.Time.Mid && !c.Baseline:
			want = Tie
		}
		if c.Verdict != want {
			f.add(at+"verdict", "%q: the numbers say %q", string(c.Verdict), string(want))
		}
		if c == chosen && within {
			f.add(at+"verdict", "chosen, but it gains no more over %s than the model can tell", base.Strategy)
		}
		if fits && !within && c.Time.Mid < chosen.Time.Mid*(1-tolerance) && c != chosen {
			f.add(at+"verdict", "%q: it is faster than the chosen one", string(c.Verdict))
		}
	}
}

// tolerance is how far a derived number may be off, relative: rounding only.
const tolerance = 1e-9

func near(a, b float64) bool {
	return math.Abs(a-b) <= tolerance*max(math.Abs(a), math.Abs(b))
}
