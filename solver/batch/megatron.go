package batch

import (
	"context"
	"slices"

	"github.com/evenkeel/evenkeel/internal/units"
)

// MegatronDynamicCP is the dynamic context parallelism of Megatron-LM (class
// BalancedCPScheduler, 2026): every sequence of l tokens has the degree
// 2^ceil(log2(l/max)), max being what a device holds, and counts for l²/degree
// of work, whatever the devices and the links are. Sequences wait longest first,
// in as many buckets of about equal work as there are degrees; each goes to free
// devices or to the group of its degree that has least, until the groups are
// balanced to 5 %, and what is left goes to the next micro-batch.
//
// There the sequences of a group run one after another and only the longest must
// fit. Here a micro-batch holds all of its sequences at once, so a group is also
// full when its memory is, and no work beyond that is put off to a later turn of
// the same group. Where devices are left over that cannot double a group, the
// original stops with an error; here they stay idle.
type MegatronDynamicCP struct{}

// Name is "megatron-dynamic-cp".
func (MegatronDynamicCP) Name() string { return "megatron-dynamic-cp" }

// Claims says that it is a baseline.
func (MegatronDynamicCP) Claims() Claims {
	return Claims{
		Baseline: true,
		Doc:      "Megatron-LM's rule: the power of two that holds a sequence is its degree, its work is tokens squared over the degree; unequal devices are taken as equal: the smallest memory holds for all",
	}
}

// Solve plans without and with recomputation, where there are such classes, and
// returns the faster plan.
func (MegatronDynamicCP) Solve(ctx context.Context, p *Problem) (*Plan, error) {
	line := lineUp(p)
	var best *Plan
	var why error
	for _, recompute := range []bool{false, true} {
		plan, err := newMegatron(line, recompute).solve(ctx)
		switch {
		case err != nil:
			why = moreTelling(why, err)
		case best == nil || plan.Time < best.Time:
			best = plan
		}
	}
	if best == nil {
		return nil, why
	}
	return best, nil
}

// megatron is the rule on a line-up. Groups of the same degree are alike to it.
type megatron struct {
	line  *lineup
	most  units.Tokens   // that a device holds
	spans map[int][]span // by degree, side by side; only degrees that are legal everywhere
}

func newMegatron(line *lineup, recompute bool) *megatron {
	d := &megatron{line: line, spans: map[int][]span{}}
	for degree := 1; degree <= len(line.seats); degree *= 2 {
		spans := make([]span, 0, len(line.seats)/degree)
		for from := 0; from+degree <= len(line.seats); from += degree {
			s, err := line.span(from, degree, recompute)
			if err != nil {
				spans = nil
				break
			}
			spans = append(spans, s)
		}
		if spans == nil {
			continue
		}
		d.spans[degree] = spans
		for _, s := range spans {
			if c := line.cap(s) / units.Tokens(degree); d.most == 0 || c < d.most {
				d.most = c
			}
		}
	}
	return d
}

// degree is the smallest legal power of two that holds a sequence; 0 if none does.
func (d *megatron) degree(s units.Tokens) int {
	for n := 1; n <= len(d.line.seats); n *= 2 {
		if d.spans[n] != nil && s <= d.most*units.Tokens(n) {
			return n
		}
	}
	return 0
}

// megatronWork is the work of a sequence on each device of its group.
func megatronWork(s units.Tokens, degree int) float64 {
	return float64(s) * float64(s) / float64(degree)
}

// megatronTeam is a group that is being filled.
type megatronTeam struct {
	degree    int
	sequences []int
	tokens    units.Tokens
	load      float64
}

func (d *megatron) solve(ctx context.Context) (*Plan, error) {
	p := d.line.p
	if len(d.spans) == 0 {
		return nil, &IllegalError{Why: "no power of two of neighbouring devices has a class of groups everywhere"}
	}
	for _, s := range p.Lengths {
		if d.degree(s) == 0 {
			k, longest := longestOf(p)
			return nil, &TooLongError{k, longest, d.holds(), "a power of two of neighbouring devices"}
		}
	}
	queue, plan := descending(p.Lengths), &Plan{}
	for len(queue) > 0 {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		var teams []megatronTeam
		teams, queue = d.round(queue)
		plan.Micro = append(plan.Micro, MicroBatch{Groups: d.seat(teams)})
	}
	Evaluate(p, plan)
	return plan, nil
}

// holds is what the largest group holds.
func (d *megatron) holds() units.Tokens {
	most := 0
	for degree := range d.spans {
		most = max(most, degree)
	}
	return d.most * units.Tokens(most)
}

// buckets cuts the waiting sequences into as many parts of about equal work as
// they have degrees: a part is closed where it would pass its share by a tenth.
func (d *megatron) buckets(queue []int) [][]int {
	lengths := d.line.p.Lengths
	degrees := map[int]bool{}
	total := 0.0
	for _, k := range queue {
		n := d.degree(lengths[k])
		degrees[n] = true
		total += megatronWork(lengths[k], n)
	}
	share := total / float64(len(degrees))
	var buckets [][]int
	from, sum, missing := 0, 0.0, len(degrees)
	for i, k := range queue {
		w := megatronWork(lengths[k], d.degree(lengths[k]))
		if i > from && (sum+w > 1.1*share || len(queue)-i <= missing-len(buckets)) {
			buckets = append(buckets, queue[from:i])
			from, sum = i, 0
			missing--
		}
		sum += w
	}
	return append(buckets, queue[from:])
}

// megatronBalanced is the difference between the devices with the most and the least
// work, as a share of the most, that counts as none.
const megatronBalanced = 0.05

// round fills the groups of one micro-batch and returns what is left waiting.
func (d *megatron) round(queue []int) ([]megatronTeam, []int) {
	r := &megatronRound{megatron: d, buckets: d.buckets(queue), free: len(d.line.seats)}
	first, falling := 0, false
	for len(r.buckets) > 0 {
		degree, placed := r.place()
		if !placed {
			break
		}
		if first == 0 {
			first = degree
		}
		falling = falling || degree < first
		if falling && len(r.buckets) > 0 && r.slack() <= 0 {
			break
		}
	}
	left := slices.Concat(r.buckets...)
	left = append(left, r.trim()...)
	r.widen()
	return r.teams, left
}

// megatronRound is the state of one micro-batch.
type megatronRound struct {
	*megatron
	buckets [][]int
	teams   []megatronTeam
	free    int // devices
}

// place takes the first sequence of the first bucket that has one to place.
func (r *megatronRound) place() (degree int, placed bool) {
	for i, b := range r.buckets {
		k := b[0]
		degree := r.degree(r.line.p.Lengths[k])
		t := r.team(degree, r.line.p.Lengths[k])
		if t < 0 {
			continue
		}
		r.teams[t].add(k, r.line.p.Lengths[k])
		if r.buckets[i] = b[1:]; len(b) == 1 {
			r.buckets = slices.Delete(r.buckets, i, i+1)
		}
		return degree, true
	}
	return 0, false
}

// team is the group for a sequence: a new one while enough devices are free,
// else the one of its degree with the least work that has room; -1 for none.
func (r *megatronRound) team(degree int, s units.Tokens) int {
	if r.free >= degree {
		r.free -= degree
		r.teams = append(r.teams, megatronTeam{degree: degree})
		return len(r.teams) - 1
	}
	best := -1
	for i := range r.teams {
		t := &r.teams[i]
		if t.degree == degree && t.tokens+s <= r.most*units.Tokens(degree) && (best < 0 || t.load < r.teams[best].load) {
			best = i
		}
	}
	return best
}

func (t *megatronTeam) add(k int, s units.Tokens) {
	t.sequences = append(t.sequences, k)
	t.tokens += s
	t.load += megatronWork(s, t.degree)
}

// slack is by how much the most loaded device passes the least loaded beyond
// what counts as balanced.
func (r *megatronRound) slack() float64 {
	low, high, _ := r.extremes()
	return high - low - megatronBalanced*high
}

// extremes is the least and the most work of a device, and the group that has most.
func (r *megatronRound) extremes() (low, high float64, most int) {
	for i, t := range r.teams {
		if t.load > high {
			high, most = t.load, i
		}
		if i == 0 || t.load < low {
			low = t.load
		}
	}
	if r.free > 0 {
		low = 0
	}
	return low, high, most
}

// trim takes the last sequence out of the most loaded group for as long as that
// brings the devices closer together.
func (r *megatronRound) trim() []int {
	var out []int
	for {
		low, high, most := r.extremes()
		t := &r.teams[most]
		n := len(t.sequences) - 1
		if high-low <= megatronBalanced*high || low == 0 || n < 1 {
			return out
		}
		k := t.sequences[n]
		before := *t
		t.sequences = t.sequences[:n]
		t.tokens -= r.line.p.Lengths[k]
		t.load -= megatronWork(r.line.p.Lengths[k], t.degree)
		if l, h, _ := r.extremes(); h-l >= high-low {
			*t = before
			return out
		}
		out = append(out, k)
	}
}

// widen doubles the degree of the first of the smallest groups while devices are
// free.
func (r *megatronRound) widen() {
	for r.free > 0 {
		least := 0
		for i, t := range r.teams {
			if t.degree < r.teams[least].degree {
				least = i
			}
		}
		t := &r.teams[least]
		if t.degree > r.free || r.spans[2*t.degree] == nil {
			return
		}
		r.free -= t.degree
		t.degree *= 2
	}
}

// seat puts the groups side by side, the largest first, so that each begins at a
// multiple of its degree.
func (d *megatron) seat(teams []megatronTeam) []Group {
	slices.SortStableFunc(teams, func(a, b megatronTeam) int { return b.degree - a.degree })
	var groups []Group
	from := 0
	for _, t := range teams {
		groups = append(groups, d.line.group(d.spans[t.degree][from/t.degree], t.sequences))
		from += t.degree
	}
	return groups
}
