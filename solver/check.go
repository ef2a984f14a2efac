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

// Finding is one violation that Check found.
type Finding struct {
	Field string // path in the document: ranks[2].segments[0].start_tokens
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
// is covered exactly once, that groups are disjoint and each has every head once,
// that devices are the cluster's, that memory fits when computed anew, that the
// layouts cost what the plan says when simulated anew, that the bound holds and
// that the verdicts follow from the numbers. It shares no code with any strategy.
// A plan of an older version has numbers of an older simulator, and Check says so.
//
// The error is a *CheckError with all findings, or says why the plan could not
// be checked at all.
func Check(p *Plan, profile *costmodel.Profile) error {
	if err := p.Job.Validate(); err != nil {
		return &CheckError{[]Finding{{"job", err.Error()}}}
	}
	if p.old() {
		return &CheckError{[]Finding{olderSimulator()}}
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
	f.groups(p)
	f.step(p)
	f.quotients(p)
	f.sideBySide(p)
	f.settings(p)
	f.candidates(p)
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

// groups checks that every rank with tokens is in one group, that the heads of
// every group are the model's, and that the ranks say the same.
func (f *findings) groups(p *Plan) {
	f.schedule("", p, p.Layout())
	visits := make([]string, len(p.Ranks)) // where
	for i, g := range p.Groups {
		first, tokens := 0, units.Tokens(0)
		for k, m := range g {
			at := fmt.Sprintf("groups[%d][%d]", i, k)
			if m.QHeads < 0 || m.QHeads > p.Job.Model.QHeads {
				f.add(at+".q_heads", "%d: must not be negative, nor above the model's %d", m.QHeads, p.Job.Model.QHeads)
				continue
			}
			if m.Rank < 0 || m.Rank >= len(p.Ranks) {
				f.add(at+".rank", "%d: no rank of this plan", m.Rank)
				continue
			}
			if before := visits[m.Rank]; before != "" {
				f.add(at+".rank", "%d: in a group before; see also %s.rank", m.Rank, before)
			}
			visits[m.Rank] = at
			f.member(p, at, PlanRank{Rank: m.Rank, Group: i, FirstQ: first, QHeads: m.QHeads, KVHeads: p.kvHeads(first, m.QHeads)})
			first += m.QHeads
			tokens += p.Ranks[m.Rank].Tokens
		}
		if first != p.Job.Model.QHeads {
			f.add(fmt.Sprintf("groups[%d]", i), "%d q_heads: want %d: no head may be missing and none doubled", first, p.Job.Model.QHeads)
		}
		if tokens == 0 {
			f.add(fmt.Sprintf("groups[%d]", i), "no member has tokens")
		}
	}
	f.strangers(p, visits)
}

// schedule checks that a layout can be run as its schedule says.
func (f *findings) schedule(at string, p *Plan, l costmodel.Layout) {
	f.ownLast(at+"own_last", l)
	f.keepTail(at+"keep_tail", p, l)
	f.headChunks(at+"head_chunks", l)
	f.twoBatch(at, p.Job, l)
}

// ownLast checks that an own block said to come last has any before it.
func (f *findings) ownLast(field string, l costmodel.Layout) {
	if l.OwnLast && len(l.Groups) < 2 {
		f.add(field, "true: with %d group there are no blocks of others to come before its own", len(l.Groups))
	}
}

// keepTail checks that there is something to keep.
func (f *findings) keepTail(field string, p *Plan, l costmodel.Layout) {
	if !l.KeepTail || l.Validate(p.Job.SeqLen, len(p.Ranks), p.Job.Model.QHeads) != nil {
		return // what is wrong with it is found elsewhere
	}
	if _, kept := l.Tail(); kept == 0 {
		f.add(field, "true: no group has a segment behind all tokens of the others that could stay at home")
	}
}

// headChunks checks that there can be so many chunks of heads.
func (f *findings) headChunks(field string, l costmodel.Layout) {
	switch most := costmodel.MaxHeadChunks; {
	case l.HeadChunks < 0 || l.HeadChunks == 1 || l.HeadChunks > most:
		f.add(field, "%d: want 2 to %d, or none for all heads at once", l.HeadChunks, most)
	case l.HeadChunks > 1 && len(l.Groups) != 1:
		f.add(field, "%d: with %d groups: heads come in chunks in a single all-to-all group only", l.HeadChunks, len(l.Groups))
	}
}

// twoBatch checks that there are two micro-batches to go through the layers together, and two
// rings where these take turns.
func (f *findings) twoBatch(at string, j costmodel.Job, l costmodel.Layout) {
	switch field := at + "two_batch_overlap"; {
	case l.TwoBatch && j.Accumulate < 2:
		f.add(field, "true: with %d micro-batch in a step (job.grad_accumulation): it takes two", max(1, j.Accumulate))
	case l.TwoBatch && l.HeadChunks > 1:
		f.add(field, "true: with %d head_chunks: a plan has one or the other", l.HeadChunks)
	}
	f.weave(at+"weave_forward", l.WeaveForward, l)
	f.weave(at+"weave_backward", l.WeaveBackward, l)
}

// weave checks that there are two rings to take turns.
func (f *findings) weave(field string, on bool, l costmodel.Layout) {
	switch {
	case on && !l.TwoBatch:
		f.add(field, "true: without two_batch_overlap: the rings of two micro-batches take turns")
	case on && len(l.Groups) < 2:
		f.add(field, "true: with a single group: it has no ring")
	}
}

// member checks what a rank says of its place against what its group says.
func (f *findings) member(p *Plan, at string, want PlanRank) {
	r := p.Ranks[want.Rank]
	if r.Tokens == 0 && want.QHeads == 0 {
		f.add(at+".rank", "%d: has neither tokens nor heads", want.Rank)
	}
	for _, c := range []struct {
		field     string
		got, want int
	}{{"group", r.Group, want.Group}, {"first_q_head", r.FirstQ, want.FirstQ}, {"q_heads", r.QHeads, want.QHeads}, {"kv_heads", r.KVHeads, want.KVHeads}} {
		if c.got != c.want {
			f.add(fmt.Sprintf("ranks[%d].%s", want.Rank, c.field), "%d: by %s.q_heads it is %d", c.got, at, c.want)
		}
	}
}

// strangers checks the ranks that no group visits.
func (f *findings) strangers(p *Plan, visits []string) {
	if len(p.Groups) == 0 {
		f.add("groups", "is empty: every rank with tokens has a place in one of the groups")
		return
	}
	for i, where := range visits {
		if where != "" {
			continue
		}
		r, at := p.Ranks[i], fmt.Sprintf("ranks[%d].", i)
		if r.Tokens > 0 {
			f.add("groups", "rank %d has tokens and is in none", i)
		}
		for _, c := range []struct {
			field     string
			got, want int
		}{{"group", r.Group, -1}, {"first_q_head", r.FirstQ, 0}, {"q_heads", r.QHeads, 0}, {"kv_heads", r.KVHeads, 0}} {
			if c.got != c.want {
				f.add(at+c.field, "%d: want %d, for no group has this rank", c.got, c.want)
			}
		}
	}
}

// kvHeads counts the key-value heads of query heads one by one.
func (p *Plan) kvHeads(first, n int) int {
	each, kv := p.Job.Model.QHeads/p.Job.Model.KVHeads, 0
	for h := first; h < first+n; h++ {
		if h == first || h%each == 0 {
			kv++
		}
	}
	return kv
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

// sideBySide checks what can be known of the other kind of plan.
func (f *findings) sideBySide(p *Plan) {
	s := p.SideBySide
	if s == nil {
		return
	}
	if t := float64(s.Time); !(t > 0) || math.IsInf(t, 0) {
		f.add("side_by_side.step_s", "%v: want a time above 0", s.Time)
	}
	if most := p.Job.Accumulate; s.MicroBatches < 1 || s.MicroBatches > most {
		f.add("side_by_side.micro_batches", "%d: want 1 to the job's %d sequences", s.MicroBatches, most)
	}
	if most := min(p.Job.Accumulate, len(p.Ranks)); s.Groups < 1 || s.Groups > most {
		f.add("side_by_side.groups", "%d: want 1 to %d, for each has a sequence and a device", s.Groups, most)
	}
}

// tolerance is how far a derived number may be off, relative: rounding only.
const tolerance = 1e-9

func near(a, b float64) bool {
	return math.Abs(a-b) <= tolerance*max(math.Abs(a), math.Abs(b))
}
