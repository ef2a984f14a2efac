package solver

import (
	"fmt"
	"math"
	"slices"
	"sort"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/internal/strategy"
)

// InfeasibleError says that no plan fits, and which constraint is the tightest.
type InfeasibleError struct {
	Proven bool   // false: the search found no plan, which is no proof that there is none
	Asked  string // the strategy whose plan alone was asked for; others may have one
	Reason string // the tightest constraint, or why the strategy has no plan
	WayOut string
}

// Error is the reason and the way out.
func (e *InfeasibleError) Error() string {
	head := "no plan was found that fits: "
	switch {
	case e.Proven:
		head = "no plan fits: "
	case e.Asked != "":
		head = "the plan of " + e.Asked + " was asked for: "
	}
	return head + e.Reason + "; way out: " + e.WayOut
}

// room is what the devices have of memory for a job.
type room struct {
	job    costmodel.Job
	memory []costmodel.DeviceMemory // by rank
	whole  []costmodel.DeviceMemory // the same with nothing kept free; nil where nothing is
	place  func(rank int) string
}

func (p *Problem) room() *room { return p.roomOf(p.posed) }

// roomOf is the room of the ranks in the order of q.
func (p *Problem) roomOf(q *strategy.Problem) *room {
	r := &room{job: p.Job, place: q.Place}
	whole := p.Job
	whole.MemoryReserve = 0
	for _, k := range q.Ranks {
		r.memory = append(r.memory, p.Predictor.DeviceMemory(p.Job, k.Device))
		if p.Job.MemoryReserve > 0 {
			r.whole = append(r.whole, p.Predictor.DeviceMemory(whole, k.Device))
		}
	}
	return r
}

// memoryNeed is the least memory that a rank needs by the memory model, whatever the
// layout: for every token that it owns, for every token whose
// heads it computes (by share of the heads), and in any case.
type memoryNeed struct {
	free    float64 // usable bytes, less the states
	token   float64 // bytes a token of its own: its part of the layers
	logits  float64 // bytes a token of its own: the loss, spread over the most tokens it could own
	heads   float64 // bytes a token of the group for all heads: kept by the attention and its backward pass
	atWork  bool    // states leave room for something
	states  units.Bytes
	usable  units.Bytes
	densest float64 // most tokens it could hold alone, heads and all
}

// ledger is the need of every rank when as many as possible share states.
type ledger struct {
	ranks   []memoryNeed
	working int
}

// ledger asks the memory model what every rank takes at the least. States are
// shared by the ranks at work. One that they overflow cannot be at work, and
// that leaves the rest with more of them; so ranks are struck out until all that
// are left have room.
func (d *room) ledger() ledger {
	l := ledger{ranks: make([]memoryNeed, len(d.memory)), working: len(d.memory)}
	for r := range l.ranks {
		l.ranks[r].atWork = true
	}
	for before := -1; before != l.working && l.working > 0; {
		before = l.working
		l.strike(d, before)
	}
	known := map[costmodel.DeviceMemory]memoryNeed{}
	for r := range l.ranks {
		a, ok := known[d.memory[r]]
		if !ok {
			a = l.ranks[r]
			d.measure(r, &a)
			known[d.memory[r]] = a
		}
		l.ranks[r] = a
	}
	return l
}

// strike marks ranks at work that the states overflow when `working` share them.
func (l *ledger) strike(d *room, working int) {
	for r := range l.ranks {
		a := &l.ranks[r]
		m := d.job.MemoryOf(costmodel.MemoryShare{Ranks: working}, d.memory[r])
		a.states, a.usable = m.States, strategy.Usable(m.Capacity)
		a.free = max(0, costmodel.Usable*float64(m.Capacity)-float64(m.States))
		if a.atWork && a.free == 0 {
			a.atWork = false
			l.working--
		}
	}
}

// probe is how many tokens the memory model is asked for: enough for its
// rounding up to whole bytes not to count.
const probe = 1 << 20

// measure reads the bytes a token off the memory model, which is linear in
// tokens. The logits of s tokens, those of one chunk at the most, are at least
// s over the most tokens the rank could own, times those of that many.
func (d *room) measure(r int, a *memoryNeed) {
	own := d.job.MemoryOf(costmodel.MemoryShare{Tokens: probe, Ranks: 1}, d.memory[r])
	a.token = float64(own.Activations.Plus(own.Transient)) / probe
	a.heads = d.headBytes(r)
	most := math.Ceil(min(float64(d.job.SeqLen), a.free/a.token))
	if most > 0 {
		all := d.job.MemoryOf(costmodel.MemoryShare{Tokens: units.Tokens(most), Ranks: len(d.memory)}, d.memory[r])
		a.logits = float64(all.Logits) / most
	}
	a.densest = a.free / (a.token + a.logits + a.heads)
}

// headBytes is the least that a rank keeps for a token of its group, in
// proportion to all heads, over every number of heads that it could have. A
// member of n query heads needs as many key-value heads as they are cut into.
func (d *room) headBytes(r int) float64 {
	m := d.job.Model
	each, least := m.QHeads/m.KVHeads, math.Inf(1)
	for q := 1; q <= m.QHeads; q++ {
		for kv := (q + each - 1) / each; kv <= min(q, m.KVHeads, (q+each-2)/each+1); kv++ {
			got := d.job.MemoryOf(costmodel.MemoryShare{GroupTokens: probe, QHeads: q, KVHeads: kv, Ranks: 1}, d.memory[r])
			least = min(least, float64(got.Activations)/probe*float64(m.QHeads)/float64(q))
		}
	}
	return least
}

// most is the most tokens that all ranks together can hold in any layout. If
// rank r owns s_r tokens and computes the heads of g_r (a token whose heads
// several compute counts in proportion), then
//
//	(token_r + logits_r) s_r + heads_r g_r <= free_r,   sum s_r = sum g_r = tokens.
//
// For prices a + b = 1 of owning a token and of computing its heads, a rank's
// free bytes are worth at most max(a/(token_r + logits_r), b/heads_r) a byte, so
// tokens <= sum of free_r times that: linear programming duality. The sum is
// convex and piecewise linear in a, so one of its corners is the least bound.
func (l *ledger) most() float64 {
	least := l.worth(0)
	corners := map[float64]bool{1: true}
	for _, k := range l.ranks {
		corners[(k.token+k.logits)/(k.token+k.logits+k.heads)] = true
	}
	for a := range corners {
		least = min(least, l.worth(a))
	}
	return least
}

// worth is the sum of what all ranks' free bytes are worth at prices a and 1-a.
func (l *ledger) worth(a float64) float64 {
	sum := 0.0
	for _, k := range l.ranks {
		if k.atWork {
			sum += k.free * max(a/(k.token+k.logits), (1-a)/k.heads)
		}
	}
	return sum
}

// provenBy is how much less than the sequence the ranks must hold for a proof:
// more than rounding could hide.
const provenBy = 1e-6

// proveInfeasible says that no layout fits, if the tokens that the devices can
// hold at the most are too few. Nothing is assumed of the layout: parts of a
// token's activations lie with its owner, the rest with whoever computes its
// heads. The proof needs no search, so it comes before any.
func (d *room) proveInfeasible() *InfeasibleError {
	l := d.ledger()
	most := l.most()
	if most >= float64(d.job.SeqLen)*(1-provenBy) {
		return nil
	}
	return &InfeasibleError{Proven: true, Reason: d.tooFew(&l, most), WayOut: d.wayOut()}
}

// tooFew names the tightest constraint: states that leave no room, or what a
// token takes of the room that they leave, on the rank that has least of it.
func (d *room) tooFew(l *ledger, most float64) string {
	tight := 0
	for r, a := range l.ranks {
		if a.densest < l.ranks[tight].densest {
			tight = r
		}
	}
	a := l.ranks[tight]
	if l.working == 0 {
		return fmt.Sprintf("%v of weights, gradients and optimizer states already exceed the usable %v (%v x %v) of %s",
			a.states, a.usable, costmodel.Usable, d.memory[tight].Capacity, d.place(tight))
	}
	together := fmt.Sprintf("no layout over all ranks holds more than %d of %d tokens", int64(most), int64(d.job.SeqLen))
	if !a.atWork {
		return fmt.Sprintf("%s; on %s the states alone, %v, exceed the usable %v", together, d.place(tight), a.states, a.usable)
	}
	part, bytes := a.largest()
	return fmt.Sprintf("%s; %s has %v left beside %v of states, and every token takes %v or more, most of it %s (%v)",
		together, d.place(tight), units.Bytes(a.free), a.states, units.Bytes(a.token+a.logits+a.heads), part, units.Bytes(bytes))
}

// largest is the part of a token's bytes that weighs most.
func (a memoryNeed) largest() (name string, bytes float64) {
	switch most := max(a.token, a.logits, a.heads); most {
	case a.token:
		return "activations of the linear layers", most
	case a.heads:
		return "activations and gradients of the attention", most
	default:
		return "logits", most
	}
}

// way is something a user could change.
type way struct {
	flag   string
	change func(*costmodel.Job)
}

// ways lists what is not done yet, one change each.
func (d *room) ways() []way {
	var list []way
	if z := d.job.Zero; z != "" && z != costmodel.Zero3 {
		list = append(list, way{"--zero zero3", func(j *costmodel.Job) { j.Zero = costmodel.Zero3 }})
	}
	if d.job.Recompute != costmodel.RecomputeFull {
		list = append(list, way{"--recompute full", func(j *costmodel.Job) { j.Recompute = costmodel.RecomputeFull }})
	}
	if d.job.LossChunk > smallChunk {
		list = append(list, way{fmt.Sprintf("--loss-chunk %d", smallChunk), func(j *costmodel.Job) { j.LossChunk = smallChunk }})
	}
	return list
}

// smallChunk is a loss chunk that still fills a GPU's matrix units.
const smallChunk = 256

// wayOut says which flags make room, found by counting again with each alone and with
// all at once, and else for how long a sequence the devices have room. What it names
// suffices: a ring fits then (see ringFits).
func (d *room) wayOut() string {
	out := d.byFlags()
	if d.whole == nil {
		return out
	}
	all, flags := d.job, ""
	for _, w := range d.ways() {
		w.change(&all)
		flags += " " + w.flag
	}
	whole := &room{job: d.job, place: d.place, memory: d.whole}
	switch {
	case d.with(all).ringFits(d.job.SeqLen): // there are ways with less risk
	case whole.ringFits(d.job.SeqLen):
		return NothingKept("") + ", or " + out
	case whole.with(all).ringFits(d.job.SeqLen):
		return NothingKept(flags) + ", or " + out
	}
	return out
}

// NothingKept is the way out of keeping memory free, with the flags that go with it, and its
// risk.
func NothingKept(flags string) string {
	return "--memory-reserve 0%" + flags + " (which leaves nothing to communicators and fragmentation)"
}

// byFlags are the ways out that leave as much memory free as the job asks for.
func (d *room) byFlags() string {
	var helps, flags []string
	all := d.job
	for _, w := range d.ways() {
		one := d.job
		w.change(&one)
		w.change(&all)
		flags = append(flags, w.flag)
		if d.with(one).ringFits(d.job.SeqLen) {
			helps = append(helps, w.flag)
		}
	}
	together, most := strings.Join(flags, " "), d.with(all).ringHolds()
	switch {
	case len(helps) > 0:
		return either(strings.Join(helps, " or "), d.moreDevices())
	case most >= d.job.SeqLen && len(flags) > 0:
		return either(together, d.moreDevices())
	case most >= d.job.SeqLen:
		return "more devices, or a shorter --seq-len"
	case most < 1:
		return d.muchMore(all, together)
	}
	shorter := fmt.Sprintf("a --seq-len of %d or less (perhaps more, none above %d)", int64(most), int64(math.Ceil(d.with(all).holds())))
	if len(flags) == 0 {
		return either(d.moreDevices(), shorter)
	}
	if more := d.with(all).moreDevices(); more != "" {
		return more + ", or " + shorter + ", either with " + together
	}
	return shorter + ", with " + together
}

// ringFits says that so many tokens fit the devices in a ring whose shares are in proportion
// to what each has room for: then there is a plan, buffers and all. Others may hold more.
func (d *room) ringFits(tokens units.Tokens) bool {
	j := d.job
	j.SeqLen = tokens // what the logits of a token take depends on it
	_, fits := d.with(j).ring()
	return fits
}

// ring is that ring for the job's own sequence, and whether it fits: of all ranks, or of those that
// have room for more than others, for what a rank receives is as large as the largest share.
func (d *room) ring() (l costmodel.Layout, fits bool) {
	led := d.ledger()
	var rooms []float64 // for tokens
	for _, a := range led.ranks {
		if a.atWork {
			rooms = append(rooms, a.densest)
		}
	}
	slices.Sort(rooms)
	for i, least := range slices.Compact(rooms) {
		now, ok := d.ringOf(led, least)
		if ok || i == 0 {
			l, fits = now, ok
		}
		if ok {
			break
		}
	}
	return l, fits
}

// ringOf is the ring of the ranks that have room for so many tokens at least.
func (d *room) ringOf(led ledger, least float64) (l costmodel.Layout, fits bool) {
	shares, sum := make([]float64, len(led.ranks)), 0.0
	for r, a := range led.ranks {
		if a.atWork && a.densest >= least {
			shares[r] = a.densest
			sum += a.densest
		}
	}
	if !(sum > 0) {
		return l, false
	}
	for r := range shares {
		shares[r] /= sum
	}
	memory := func(r int) costmodel.DeviceMemory { return d.memory[r] }
	before := math.Inf(1)
	for range evenings {
		split := costmodel.SplitByShares(d.job.SeqLen, shares)
		l = costmodel.ZigZag(split, costmodel.Singles(split, d.job.Model.QHeads))
		need := d.job.MemoryWith(l, memory)
		if !slices.ContainsFunc(need, func(m costmodel.Memory) bool { return !m.Fits() }) {
			return l, true
		}
		fullest := even(shares, need)
		if fullest > helps*before {
			break
		}
		before = fullest
	}
	return l, false
}

// evenings is how often the shares of a ring are made more even before it is given up. A token
// takes more of its rank than the ledger says, by the buffers, which are as large on all as the
// largest share asks for. It is given up where the fullest rank is hardly less full by it.
const (
	evenings = 12
	helps    = 0.999
)

// even moves shares to where they fill less of the room beside the states, and returns how full
// of these the fullest is.
func even(shares []float64, need []costmodel.Memory) (fullest float64) {
	sum := 0.0
	for r, m := range need {
		if taken := float64(m.Peak() - m.States); shares[r] > 0 && taken > 0 {
			fill := taken / max(1, costmodel.Usable*float64(m.Capacity)-float64(m.States))
			shares[r] /= fill
			fullest = max(fullest, fill)
		}
		sum += shares[r]
	}
	for r := range shares {
		shares[r] /= max(sum, math.SmallestNonzeroFloat64)
	}
	return fullest
}

// ringHolds is about the most tokens that ringFits, 0 where there are none.
func (d *room) ringHolds() units.Tokens {
	most := int(min(d.holds(), float64(d.job.SeqLen)))
	return units.Tokens(sort.Search(most, func(i int) bool { return !d.ringFits(units.Tokens(i + 1)) }))
}

// muchMore is the way out where the devices hold no token with all flags together.
func (d *room) muchMore(all costmodel.Job, flags string) string {
	more, smaller := d.moreDevices(), "a smaller model"
	switch {
	case flags == "":
		return either(more, smaller)
	case more != "":
		return either(more, smaller) + "; not enough: " + flags
	}
	if more = d.with(all).moreDevices(); more != "" {
		return more + ", with " + flags + ", or " + smaller
	}
	return smaller + "; not enough: " + flags
}

// either joins the ways that there are; an empty one is none.
func either(first, second string) string {
	if first == "" || second == "" {
		return first + second
	}
	return first + ", or " + second
}

// mostTimes is how many times the devices at hand are tried, as far as plans go.
const mostTimes = 1024

// moreDevices says how many times the cluster's devices have room for the sequence, of which
// fewer may do where one time less has none, or nothing where no number that can be planned for has: states that nobody shares, as
// under zero0, overflow each device however many there are.
func (d *room) moreDevices() string {
	holds := func(times int) bool {
		q := *d
		q.memory = slices.Repeat(d.memory, times)
		return q.ringFits(d.job.SeqLen)
	}
	most := min(mostTimes, costmodel.MaxRanks/max(1, len(d.memory)))
	if !holds(most) {
		return ""
	}
	times := 1 + sort.Search(most, func(i int) bool { return holds(i + 1) })
	if times < 2 {
		return "more devices"
	}
	return fmt.Sprintf("more devices, up to %d times as many", times)
}

// with is the room that the same devices have for another job.
func (d *room) with(j costmodel.Job) *room {
	q := *d
	q.job = j
	return &q
}

// holds is the most tokens that the devices can hold.
func (d *room) holds() float64 {
	l := d.ledger()
	return l.most()
}
