package costmodel

import (
	"cmp"
	"maps"
	"math"
	"slices"

	"github.com/evenkeel/evenkeel/internal/units"
)

// spent is how one seat spends the whole step.
type spent struct {
	busy                    [partCount]units.Seconds
	allToAll, exposed, idle units.Seconds
}

func (s *sim) spent(i int) spent {
	var sum spent
	for _, g := range s.stages {
		n := units.Seconds(g.times)
		if g.shares == nil {
			sum.busy[g.what] += n * g.length
			continue
		}
		h := g.shares[i]
		for p, t := range h.busy {
			sum.busy[p] += n * t
		}
		sum.allToAll += n * h.allToAll
		sum.exposed += n * h.exposed
		// What is neither is idle; rounding may leave a hair less than nothing.
		sum.idle += n * max(0, g.length-h.computing()-h.allToAll-h.exposed)
	}
	return sum
}

// step assembles the account.
func (s *sim) step() *Step {
	all := s.allSpent()
	step := s.brief(all)
	s.countTraffic()
	slices.SortFunc(s.traffic, func(a, b Traffic) int { return cmp.Compare(a.Link, b.Link) })
	step.Ranks, step.Traffic = s.rankSteps(all, step.Time.Mid), slices.Clone(s.traffic)
	step.Warnings = append(s.warnings(), s.q.memoryWarnings(s.job, s.deviceTypes())...)
	step.Timeline, step.Path = s.spans, s.path
	return step
}

func (s *sim) allSpent() []spent {
	all := make([]spent, len(s.seats))
	for i := range s.seats {
		all[i] = s.spent(i)
	}
	return all
}

// brief is the account of the step's time.
func (s *sim) brief(all []spent) *Step {
	mid, critical, sides := s.sidesOf(all)
	return &Step{Time: interval(mid, s.worst, sides), Parts: s.parts(critical), sides: sides}
}

// criticalSeat is how the seat that idles least spends the step, and its parts by law.
type criticalSeat struct {
	spent spent
	parts [partCount]account
}

// sidesOf is the most likely time of the step, by what the critical seat spends on its
// parts, and the step's sides, that seat's first.
func (s *sim) sidesOf(all []spent) (mid units.Seconds, x criticalSeat, sides []side) {
	for n, i := range s.leastIdle(all) {
		if n > 0 {
			laws := s.lawsOf(all[i], s.partAccounts(i))
			sides = append(sides, side{laws.byLaw(1), max(0, mid-laws.mid())})
			continue
		}
		x = criticalSeat{all[i], s.partAccounts(i)}
		for p := range partCount {
			mid += max(0, s.spentOn(p, x.spent))
		}
		whole := s.lawsOf(x.spent, x.parts)
		sides = append(sides, side{laws: whole.byLaw(float64(mid / whole.mid()))})
	}
	return mid, x, sides
}

// leastIdle is of each device type at work the seat that idles least, the first of such; of
// these the one that idles least of all comes first.
func (s *sim) leastIdle(all []spent) []int {
	var least []int
	for _, device := range s.deviceTypes() {
		at := -1
		for i := range s.seats {
			if s.seats[i].device == device && (at < 0 || all[i].idle < all[at].idle) {
				at = i
			}
		}
		least = append(least, at)
	}
	first := 0
	for n, i := range least {
		if all[i].idle < all[least[first]].idle {
			first = n
		}
	}
	critical := least[first]
	return slices.Insert(slices.Delete(least, first, first+1), 0, critical)
}

// side is the step as seen by the ranks of one device type: the time that each law
// contributes on the rank of that type that idles least, and by how much sooner than the
// whole step that rank is done (slack).
type side struct {
	laws  map[*Law]Estimate
	slack units.Seconds
}

// reasons returns, for each reason to doubt the laws, how far it may shorten or lengthen
// the step. A law that is too optimistic lengthens the step as soon as the ranks of any
// one device type become the slowest, even if they are not so now; a law that is too
// pessimistic shortens it only as far as all device types gain. (Slack is taken over the
// whole step: where a device type waits in one pass only, an error in the other pass
// lengthens the step more than this says.)
func reasons(sides []side) map[string]doubted {
	of := map[string][]doubted{} // by side
	for i, x := range sides {
		for _, d := range doubts(x.laws) {
			if of[d.of] == nil {
				of[d.of] = make([]doubted, len(sides))
			}
			of[d.of][i] = d
		}
	}
	all := map[string]doubted{}
	for name, each := range of {
		sum := doubted{of: name, less: units.Seconds(math.Inf(1))}
		for i, d := range each {
			sum.less, sum.more = min(sum.less, d.less+sides[i].slack), max(sum.more, d.more-sides[i].slack)
		}
		all[name] = sum
	}
	return all
}

// interval is a step's time with its 90 % interval. Upwards all reasons add in
// quadrature, whichever device type they slow down; downwards only those of the ranks
// that idle least (the first side), as if all others kept up with them.
func interval(mid units.Seconds, source Source, sides []side) Estimate {
	less, more := 0.0, 0.0
	for _, d := range doubts(sides[0].laws) {
		less = math.Hypot(less, float64(d.less))
	}
	up := reasons(sides)
	for _, of := range slices.Sorted(maps.Keys(up)) {
		more = math.Hypot(more, float64(up[of].more))
	}
	return Estimate{mid - units.Seconds(less), mid, mid + units.Seconds(more), source}
}

// reasons are those of all that the step is made of, what is done in turn added up.
func (s *Step) reasons() map[string]doubted {
	all := map[string]doubted{}
	if len(s.sides) > 0 {
		all = reasons(s.sides)
	}
	for _, x := range s.turns {
		for of, d := range x.reasons() {
			sum := all[of]
			all[of] = doubted{of, sum.less + d.less, sum.more + d.more}
		}
	}
	return all
}

// GainError says how uncertain the difference between two steps a and b of the same
// predictor is. half is the half width of the 90 % interval of the difference in seconds,
// on the side towards no difference; most names the law that contributes most to it, such
// as "send_recv (bf16) on rdma", or is empty where no law contributes.
//
// Only the part of the model's error that does not cancel counts: a law that is 5 % too
// slow is so under both layouts, and where both use it alike the difference is
// unaffected. So each reason to doubt the steps (a law's own error, or a Doubt that
// several laws share) is moved in turn to the end of its interval that brings the two
// steps nearer. What each takes away from the difference is its contribution, and
// contributions add in quadrature, as everywhere in the cost model. Possible contention
// between messages and computing (Step.Contention) is one more reason.
//
// Comparing the two steps' intervals instead would call nearly every gain a tie, since
// most of their width is common to both. Steps whose intervals do not even overlap always
// differ by more than half.
func GainError(a, b *Step) (half units.Seconds, most string) { return NewContender(a).GainError(b) }

// Contender is a step that others are compared with, many of them maybe.
type Contender struct {
	step    *Step
	reasons map[string]doubted
}

// NewContender asks a step once what there is to doubt of it.
func NewContender(s *Step) *Contender { return &Contender{s, s.reasons()} }

// GainError is that of the contender and another step.
func (r *Contender) GainError(other *Step) (half units.Seconds, most string) {
	a, b, slower, faster := r.step, other, r.reasons, other.reasons()
	if a.Time.Mid < b.Time.Mid {
		a, b, slower, faster = b, a, faster, slower
	}
	// Contention only takes longer: what the faster has more of.
	largest := units.Seconds(0)
	add := func(of string, nearer units.Seconds) {
		half = units.Seconds(math.Hypot(float64(half), float64(nearer)))
		if nearer > largest {
			largest, most = nearer, of
		}
	}
	add(contentionTitle(), max(0, b.Contention-a.Contention))
	names := maps.Clone(slower)
	maps.Copy(names, faster)
	for _, of := range slices.Sorted(maps.Keys(names)) {
		x, y := slower[of], faster[of]
		add(of, max(0, x.less-y.less, y.more-x.more))
	}
	return half, most
}

func contentionTitle() string { return "how much messages slow computing beside them (overlap)" }

// parts splits the step along the critical seat. What it computes has the interval of the laws it uses;
// waiting has that of the links it waits for. Idling has that of all the rest together, which
// is also the relative interval of the whole.
func (s *sim) parts(x criticalSeat) []Part {
	whole := s.lawsOf(x.spent, x.parts)
	all := whole.total()
	var parts []Part
	for p, name := range partNames() {
		e := like(s.spentOn(part(p), x.spent), x.parts[p].total())
		if part(p) == idle {
			e = like(x.spent.idle, all)
		}
		if e.Mid > 0 {
			parts = append(parts, Part{name, e})
		}
	}
	return parts
}

// lawsOf is what each law accounts for of what a seat spends.
func (s *sim) lawsOf(sum spent, parts [partCount]account) account {
	var whole account
	for p := range parts {
		whole.merge(parts[p], s.timesOf(part(p), sum, &parts[p]))
	}
	return whole
}

func (s *sim) spentOn(p part, sum spent) units.Seconds {
	switch p {
	case ringWait:
		return sum.exposed
	case allToAll:
		return sum.allToAll
	case idle:
		return sum.idle
	}
	return sum.busy[p]
}

// timesOf is how often a part's account, priced once, is in the step.
func (s *sim) timesOf(p part, sum spent, acc *account) float64 {
	if once := acc.mid(); once > 0 {
		return float64(s.spentOn(p, sum) / once)
	}
	return 0
}

// partAccounts prices a seat's parts once more, this time law by law.
func (s *sim) partAccounts(i int) [partCount]account {
	var acc [partCount]account
	a := &s.seats[i]
	g, n := a.group, len(s.groups)
	for _, back := range []bool{false, true} {
		linear, attention, before, after, in, out := linearForward, attentionForward, preForward, postForward, tokensIn, outputOut
		if back {
			linear, attention, before, after, in, out = linearBackward, attentionBackward, preBackward, postBackward, outputIn, tokensOut
		}
		s.linearCost(a, before, &acc[linear])
		s.linearCost(a, after, &acc[linear])
		for k := range n {
			if s.pack != nil {
				s.pack.attention(back, a, k, &acc[attention])
				continue
			}
			s.attentionCost(back, a, &s.groups[k], &acc[attention])
		}
		if b := &s.groups[g]; b.to-b.from > 1 {
			s.toAllTime(in, b, &acc[allToAll])
			s.toAllTime(out, b, &acc[allToAll])
		}
	}
	s.messageAccount(i, &acc[ringWait])
	acc[recompute].merge(acc[linearForward], 1)
	acc[recompute].merge(acc[attentionForward], 1)
	if a.tokens > 0 {
		s.loss(a.device, a.tokens, &acc[lossPart])
	}
	if s.pack != nil { // a micro-batch has neither
		return acc
	}
	s.optimizer(a.device, len(s.seats), &acc[optimizerPart])
	if len(s.seats) > 1 {
		for _, c := range s.exchanges() {
			s.collective(c, s.oneNode(), s.membersOf(0, len(s.seats)), &acc[gradientSync])
		}
	}
	return acc
}

// messageAccount books one round of the messages that a seat waits for.
func (s *sim) messageAccount(i int, acc *account) {
	g, n := s.seats[i].group, len(s.groups)
	from := (g + n - 1) % n
	for _, h := range s.groups[from].out {
		if h.to != i {
			continue
		}
		for k := range n {
			kv, gradients := s.passes(from, k)
			if kv {
				s.hopCost(false, h.price[0], &s.groups[k], acc)
			}
			if gradients {
				s.hopCost(true, h.price[1], &s.groups[k], acc)
			}
		}
	}
	for _, h := range s.groups[g].home {
		if h.to == i {
			s.hopCost(true, h.price[1], &s.groups[g], acc)
		}
	}
}

func (s *sim) rankSteps(all []spent, mid units.Seconds) []RankStep {
	memory := s.q.MemoryIn(s.job, s.layout)
	steps := make([]RankStep, len(s.ranks))
	for r, rank := range s.ranks {
		steps[r] = RankStep{Device: rank.Device, Tokens: s.layout.Shards[r].Tokens(), Idle: mid, Memory: memory[r]}
	}
	for i, a := range s.seats {
		h := share{busy: all[i].busy}
		r := &steps[a.rank]
		// Synchronising is communication that nothing hides.
		r.Busy = h.computing() - h.busy[gradientSync]
		r.Exposed = all[i].exposed + all[i].allToAll + h.busy[gradientSync]
		r.Idle = all[i].idle
	}
	return steps
}

// deviceTypes are the types at work, each once, in the order of the seats.
func (s *sim) deviceTypes() []string {
	var types []string
	for _, a := range s.seats {
		if !slices.Contains(types, a.device) {
			types = append(types, a.device)
		}
	}
	return types
}
