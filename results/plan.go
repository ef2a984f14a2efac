package results

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/groupcost"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver"
)

// Plan prints a plan: the job, what was considered with today's baselines
// first, what was chosen and why, what every rank owns and how it spends the
// step, the parts of the step and its traffic, and how far from the best
// possible it can be at most.
func Plan(w io.Writer, d *solver.Plan) error {
	p, n := &printer{w: w}, &notes{}
	planHead(p, d)
	settings(p, n, d)
	considered(p, n, d)
	reasons(p, d)
	rankTable(p, n, d)
	layoutPicture(p, d)
	partTable(p, d)
	trafficTable(p, d)
	n.add(d.Warnings...)
	n.add(d.Step.Warnings...)
	n.render(p)
	leftOut(p, d.Notes)
	return p.err
}

// planHead says on its first line what the numbers rest on: a plan is always a
// prediction, so it is never called measured itself.
func planHead(p *printer, d *solver.Plan) {
	j := d.Job
	stampPlan, because := planStamp(d)
	p.para("", fmt.Sprintf("%s for %s through %s on %s", stampPlan, inTokens(j.SeqLen), orNone(j.Model.Name), orNone(j.Cluster.String())))
	p.para("", because)
	zero := j.Zero
	if zero == "" {
		zero = costmodel.Zero3
	}
	batches := ""
	if j.Accumulate > 1 {
		batches = fmt.Sprintf("%d micro-batches of one sequence, ", j.Accumulate)
	}
	p.para("", fmt.Sprintf("%s, hidden %d, %d query and %s of %d, vocabulary %d; %s%s, recompute %s, %s, %s, loss in chunks of %s%s",
		plural(j.Model.Layers, "layer"), j.Model.Hidden, j.Model.QHeads, plural(j.Model.KVHeads, "KV head"), j.Model.HeadDim, j.Model.Vocab, batches, orNone(string(j.DType)), orNone(string(j.Recompute)), zero, plural(j.RingBuffers, "ring buffer"), inTokens(j.LossChunk), KeptFree(j.MemoryReserve)))
	planned(p, d.Tool, d.Created, "laws")
	for _, in := range d.Inputs {
		p.para("", "from "+input(in))
	}
	if t := d.Step.Time; t.Mid > 0 {
		p.para("", fmt.Sprintf("step time %s (%s), %s tokens/s; %s", estimate(t), t.Source, number(float64(j.SeqLen)*float64(max(1, j.Accumulate))/float64(t.Mid)), boundLine(d)))
		if other := sideBySide(d); other != "" {
			p.para("", other)
		}
	}
}

// planned says what wrote a plan. Its date is that of the laws, curves or published prices that it was planned
// by, whenever that was: the same laws, cluster and model give the same bytes.
func planned(p *printer, tool, created, by string) {
	if tool == "" || created == "" {
		written(p, tool, created)
		return
	}
	p.para("", fmt.Sprintf("written by %s from %s of %s", tool, by, toSeconds(created)))
}

// sideBySide says that the step's sequences would be done sooner as a batch, in groups of
// devices, where that is so by more than prices of groups are off. There may be a single group,
// with several sequences in a micro-batch. Nobody asked whether such a batch is beyond doubt, so
// it has to be faster than plans whose gain is in doubt as well, which are in the table.
func sideBySide(d *solver.Plan) string {
	s, least := d.SideBySide, d.Step.Time.Mid
	for _, c := range d.Compared {
		if c.Runs() && c.Time.Mid > 0 {
			least = min(least, c.Time.Mid)
		}
	}
	if s == nil || !(s.Time < least*(1-groupcost.PricesOff)) {
		return ""
	}
	how, groups := "SIDE BY SIDE", fmt.Sprintf("up to %d groups", s.Groups)
	if s.Groups == 1 {
		how, groups = "AS A BATCH", "one group"
	}
	return fmt.Sprintf("the step's %d sequences %s would take %s (%s): in %s of %s of devices; the same command plans that with --lengths uniform:%d,%d --batch-size %d --take evenkeel in the place of --seq-len, --grad-accumulation and other flags of one sequence%s; without --take it may recommend another plan, where the gain is within the model's error",
		d.Job.Accumulate, how, seconds(s.Time), signed(float64(s.Time/d.Step.Time.Mid)-1), microBatches(s.MicroBatches), groups, int64(d.Job.SeqLen), int64(d.Job.SeqLen), d.Job.Accumulate, zeroNamed(d))
}

// zeroNamed is how a command goes on that a batch is to be planned by, where the planner chose
// what is sharded: of a batch the user says that. It is what the time side by side is of.
func zeroNamed(d *solver.Plan) string {
	if !slices.ContainsFunc(d.Settings, func(s solver.Setting) bool { return s.Zero != d.Job.Zero }) {
		return ""
	}
	return fmt.Sprintf(", and with --zero %s in that of --zero auto", d.Job.Zero)
}

// KeptFree says what part of the memory plans leave; nothing where they leave none.
func KeptFree(reserve float64) string {
	if reserve == 0 {
		return ""
	}
	return fmt.Sprintf(", %.3g %% of the memory kept free", 100*reserve)
}

func planStamp(d *solver.Plan) (stamp, because string) {
	some := ""
	if d.Step.Time.Source == costmodel.Assumed {
		some = ", some of them assumed"
	}
	switch s := d.Step.Time.Source; {
	case d.Simulated:
		return "SIMULATED plan", "predicted from laws of a simulated backend; no hardware was measured"
	case (s == costmodel.Transferred || s == costmodel.Assumed) && allBorrowed(d):
		return "HYPOTHETICAL plan", fmt.Sprintf("predicted from BORROWED laws%s: nobody measured these devices, whose laws of computing are those of others by the ratios of the datasheets; see the notes", some)
	case s == costmodel.Transferred || s == costmodel.Assumed:
		return "HYPOTHETICAL plan", fmt.Sprintf("predicted from MEASURED laws, but some of them are %s: they were measured elsewhere or not at all; see the notes", s)
	}
	return "PREDICTED from MEASURED laws: plan", "predicted by the simulator of a training step from laws that were fitted to measured times; the step itself was not measured"
}

// allBorrowed says that every device with work is of a type that nobody measured.
func allBorrowed(d *solver.Plan) bool {
	return !slices.ContainsFunc(d.Ranks, func(r solver.PlanRank) bool { return r.Group >= 0 && !costmodel.IsBorrowed(r.Device) })
}

func boundLine(d *solver.Plan) string {
	if !(d.Bound > 0) {
		return "no lower bound is known"
	}
	// Plans of a batch have a bound of their own, over groups at their prices.
	which := "no layout of the sequence"
	if d.Job.Accumulate > 1 {
		which = "no plan that trains sequence after sequence, or two in turns,"
	}
	return fmt.Sprintf("%s can be faster than %s by the same laws, so at most %s of this step could still be gained", which, seconds(d.Bound), units.Percent(1-1/(1+d.Gap)))
}

func considered(p *printer, n *notes, d *solver.Plan) {
	t := newTable(column{title: "strategy"}, column{title: "step time", number: true}, column{title: "against baseline", number: true}, column{title: "speed-up", number: true},
		column{title: "memory peak", number: true}, column{title: "gap", number: true}, column{title: "source"}, column{title: "verdict"})
	base := d.Baseline()
	for _, c := range baselinesFirst(d.Compared) {
		name, gap := c.Strategy, none
		if c.Baseline {
			name += " (today)"
		}
		if c.Verdict == solver.NotLegal {
			t.row(name, none, none, none, none, none, none, string(c.Verdict))
			continue
		}
		if d.Bound > 0 {
			gap = percent(c.Gap, 1)
		}
		t.row(name, estimate(c.Time), against(c, base), speedup(c), peak(candidateMemory(d, c)), gap, string(c.Time.Source), became(d, c))
	}
	if len(t.rows) == 0 {
		return
	}
	p.printf("\n")
	t.render(p)
	n.add("gap: step time above the lower bound; baseline: the fastest of today's that fits")
	n.add("~: the model's error leaves open whether there is a difference from the baseline; slower and faster: than the chosen plan, by the predicted times alone")
	if base == nil {
		n.add("no baseline fits the devices' memory, so there is nothing to compare with")
	}
	n.add(memorySource(d))
}

// memorySource says what the memory of a plan rests on.
func memorySource(d *solver.Plan) string {
	measured := 0
	for _, r := range d.Step.Ranks {
		if r.Memory.LayerToken > 0 {
			measured++
		}
	}
	how := "memory is by formula (assumed)"
	switch {
	case measured > 0 && measured == len(d.Step.Ranks):
		return "activations rest on a layer's measured bytes a token; the rest of the memory is by formula (assumed)"
	case measured > 0:
		how = fmt.Sprintf("activations rest on a layer's measured bytes a token on %d of %s; all other memory is by formula (assumed)", measured, plural(len(d.Step.Ranks), "rank"))
	}
	return how + "; a backend that measures memory replaces some of it: evenkeel calibrate --fresh"
}

func baselinesFirst(all []solver.Candidate) []solver.Candidate {
	sorted := slices.Clone(all)
	slices.SortStableFunc(sorted, func(a, b solver.Candidate) int {
		first := func(c solver.Candidate) int {
			if c.Baseline {
				return 0
			}
			return 1
		}
		return cmp.Compare(first(a), first(b))
	})
	return sorted
}

// against prints how much less (or more) time a candidate takes than the
// strongest baseline, and how much nearer to it the difference may be. A "~" says
// that there may be none.
func against(c solver.Candidate, base *solver.Candidate) string {
	switch {
	case base == nil || !(c.Speedup > 0) || !(base.Time.Mid > 0):
		return none
	case c.Strategy == base.Strategy:
		return "baseline"
	}
	gained := base.Time.Mid - c.Time.Mid
	return changed(c.Speedup, float64(c.GainError/base.Time.Mid), c.Verdict == solver.Tie || math.Abs(float64(gained)) <= float64(c.GainError))
}

// changed prints what a speed-up makes of a time, by how much of that the change may be
// less, if that is known, and a "~" where there may be none.
func changed(speedup, half float64, doubtful bool) string {
	change := signed(1/speedup - 1)
	if half > 0 {
		change += " +- " + units.Percent(half)
	}
	if doubtful {
		change = "~ " + change
	}
	return change
}

// speedup is the strongest baseline's time over the candidate's: "1.36x".
func speedup(c solver.Candidate) string {
	if !(c.Speedup > 0) || !finite(c.Speedup) {
		return none
	}
	return fmt.Sprintf("%.2fx", c.Speedup)
}

// candidateMemory is the memory of a candidate's fullest rank. A candidate
// knows its peak only; the capacity follows from whose peak that is. Equal shares
// need as much on every device, and the fullest rank is on the smallest.
func candidateMemory(d *solver.Plan, c solver.Candidate) costmodel.Memory {
	layout := layoutOf(d, c)
	if len(layout.Shards) != len(d.Step.Ranks) {
		return costmodel.Memory{States: c.Peak}
	}
	fullest := costmodel.Memory{States: c.Peak}
	for _, m := range d.Job.MemoryWith(layout, func(r int) costmodel.DeviceMemory {
		of := d.Step.Ranks[r].Memory
		return costmodel.DeviceMemory{Capacity: of.Capacity, LayerToken: of.LayerToken}
	}) {
		if m.Peak() == c.Peak && m.Capacity > 0 && (fullest.Capacity == 0 || m.Capacity < fullest.Capacity) {
			fullest = m
		}
	}
	return fullest
}

// layoutOf is a candidate's layout, which may be the plan's own.
func layoutOf(d *solver.Plan, c solver.Candidate) costmodel.Layout {
	if c.Layout != nil {
		return *c.Layout
	}
	return d.Layout()
}

// reasons explains the choice by its alternatives.
func reasons(p *printer, d *solver.Plan) {
	if d.Strategy == "" {
		return
	}
	p.printf("\n")
	for _, c := range d.Compared {
		if c.Verdict == solver.Chosen {
			whyChosen(p, d.Taken, c.Strategy, c.Why)
			if why := spendsBetter(d, c, d.Baseline()); why != "" {
				p.para("  ", why)
			}
		}
	}
	for _, c := range d.Compared {
		if c.Verdict != solver.Chosen && c.Why != "" {
			whyNot(p, c.Strategy, became(d, c), c.Why)
		}
	}
}

// whyChosen and whyNot say of a strategy how it came to its verdict.
func whyChosen(p *printer, taken bool, strategy, why string) {
	how := "chosen"
	if taken {
		how = "taken as asked"
	}
	p.para("", fmt.Sprintf("%s: %s. Why: %s", how, strategy, orNone(why)))
}

func whyNot(p *printer, strategy, verdict, why string) {
	if verdict == string(solver.Tie) {
		verdict = "~, no difference beyond the model's error"
	}
	p.para("  ", fmt.Sprintf("%s (%s): %s", strategy, verdict, why))
}

// spendsBetter says where a plan's gain over the strongest baseline comes from: what
// the ranks that work do on average in either step.
func spendsBetter(d *solver.Plan, c solver.Candidate, base *solver.Candidate) string {
	if base == nil || c.Strategy == base.Strategy || !(base.Busy > 0) || !(c.Busy > 0) {
		return ""
	}
	told := func(t, step units.Seconds) string {
		if t < hair*step {
			t = 0
		}
		return seconds(t)
	}
	change := func(what string, from, to units.Seconds) string {
		return fmt.Sprintf("%s %s instead of %s", what, told(to, c.Time.Mid), told(from, base.Time.Mid))
	}
	own, before := ofWorking(d, c), ofWorking(d, *base)
	return fmt.Sprintf("against %s, the strongest of today's, the ranks %son average %s, %s, %s", base.Strategy, thatWork(own.leftOut, before.leftOut, len(d.Ranks)),
		change("wait for slower ranks", before.Idle, own.Idle), change("wait for bytes", before.Exposed, own.Exposed), change("compute", before.Busy, own.Busy))
}

// spent is what the ranks with work do on average in a candidate's step.
type spent struct {
	costmodel.RankStep
	leftOut int // ranks without work, whose whole step is idle
}

// ofWorking is of a candidate, whose own averages are over all ranks.
func ofWorking(d *solver.Plan, c solver.Candidate) spent {
	layout := layoutOf(d, c)
	s := spent{RankStep: costmodel.RankStep{Busy: c.Busy, Exposed: c.Exposed, Idle: c.Idle}, leftOut: withoutWork(layout)}
	all, work := units.Seconds(len(layout.Shards)), units.Seconds(len(layout.Shards)-s.leftOut)
	if s.leftOut == 0 || work == 0 {
		return s
	}
	s.Busy, s.Exposed = s.Busy*all/work, s.Exposed*all/work
	s.Idle = max(0, s.Idle*all-units.Seconds(s.leftOut)*c.Time.Mid) / work
	return s
}

// withoutWork counts the ranks that are in no group. One in a group works, if with heads alone.
func withoutWork(l costmodel.Layout) int {
	n := len(l.Shards)
	for _, g := range l.Groups {
		n -= len(g)
	}
	return n
}

// orLeftOut completes what idle time is where the plan leaves ranks out.
func orLeftOut(d *solver.Plan) string {
	if withoutWork(d.Layout()) == 0 {
		return ""
	}
	return ", or left out of the step"
}

// thatWork says how many of the ranks the averages are over, where that is not all of them.
func thatWork(own, before, all int) string {
	switch {
	case own == 0 && before == 0:
		return ""
	case own == before:
		return fmt.Sprintf("that work (%d of %d) ", all-own, all)
	}
	return fmt.Sprintf("that work (%d instead of %d, of %d) ", all-own, all-before, all)
}

// hair is the part of a step that rounding leaves of a difference that is none: equal ranks
// would be said to wait for one another for attoseconds.
const hair = 1e-9

// became is a candidate's verdict.
func became(d *solver.Plan, c solver.Candidate) string {
	return verdictWord(c.Verdict, d.Taken && c.Time.Mid < d.Step.Time.Mid)
}

// verdictWord is a verdict in words. Where a slower plan was taken as asked, what is called
// slower in the document, for it was not chosen, may be faster.
func verdictWord(v solver.Verdict, faster bool) string {
	if v == solver.Slower && faster {
		return "faster"
	}
	return string(v)
}

// pictureWidth is how wide the bars of a rank are.
const pictureWidth = 16

// rankTable shows every rank; neighbours that would print alike share a line.
func rankTable(p *printer, n *notes, d *solver.Plan) {
	if len(d.Step.Ranks) != len(d.Ranks) || len(d.Ranks) == 0 {
		return
	}
	t := newTable(column{title: "rank", number: true}, column{title: "device", most: 34}, column{title: "tokens", number: true}, column{title: "share", number: true},
		column{title: ""}, column{title: "busy", number: true}, column{title: "exposed", number: true}, column{title: "idle", number: true},
		column{title: ""}, column{title: "memory peak", number: true})
	most := units.Tokens(1)
	for _, k := range d.Ranks {
		most = max(most, k.Tokens)
	}
	first, short := 0, shortDevices(d)
	var before []string // cells, before they were broken into lines
	for r := range d.Ranks {
		cells := rankCells(n, d, short[d.Ranks[r].Device], r, most)
		if last := len(t.rows) - 1; last >= 0 && slices.Equal(before, cells) {
			t.rows[last][0] = fmt.Sprintf("%d-%d", first, r)
			continue
		}
		first, before = r, cells
		t.row(append([]string{fmt.Sprint(r)}, cells...)...)
	}
	p.printf("\n")
	if len(t.rows) > mostRows {
		typeTable(p, d)
		return
	}
	t.render(p)
	p.para("", "left bars: tokens, the fullest rank being the whole width; right bars: the step, # computing, ! waiting for bytes (exposed), . waiting for slower ranks"+orLeftOut(d)+" (idle)")
}

// typeTable sums ranks up by device type where they are too many to list.
func typeTable(p *printer, d *solver.Plan) {
	t := newTable(column{title: "ranks", number: true}, column{title: "device", most: 24}, column{title: "tokens", number: true}, column{title: "query heads", number: true},
		column{title: "busy", number: true}, column{title: "exposed", number: true}, column{title: "idle", number: true}, column{title: ""}, column{title: "fullest memory", number: true})
	short := shortDevices(d)
	for _, name := range deviceTypes(d) {
		t.row(ofType(d, name).cells(short[name])...)
	}
	t.render(p)
	p.para("", "from the least to the most of any rank, and times on average; bars: the step, # computing, ! waiting for bytes (exposed), . waiting for slower ranks"+orLeftOut(d)+" (idle); the file that solve writes with -o has every rank")
}

// typeSum is what the ranks of a device type do together.
type typeSum struct {
	ranks                int
	least, most          units.Tokens
	fewest, heads        int
	busy, exposed, whole units.Seconds // of all of them
	fullest              costmodel.Memory
}

func deviceTypes(d *solver.Plan) []string {
	var names []string
	for _, r := range d.Ranks {
		if !slices.Contains(names, r.Device) {
			names = append(names, r.Device)
		}
	}
	return names
}

func ofType(d *solver.Plan, name string) typeSum {
	sum := typeSum{least: d.Job.SeqLen, fewest: d.Job.Model.QHeads}
	for r, k := range d.Ranks {
		if k.Device != name {
			continue
		}
		s := d.Step.Ranks[r]
		sum.ranks++
		sum.least, sum.most = min(sum.least, k.Tokens), max(sum.most, k.Tokens)
		sum.fewest, sum.heads = min(sum.fewest, k.QHeads), max(sum.heads, k.QHeads)
		sum.busy, sum.exposed, sum.whole = sum.busy+s.Busy, sum.exposed+s.Exposed, sum.whole+s.Busy+s.Exposed+s.Idle
		if s.Memory.Peak() >= sum.fullest.Peak() {
			sum.fullest = s.Memory
		}
	}
	return sum
}

func (s typeSum) cells(name string) []string {
	tokens, heads := s.most.String(), fmt.Sprint(s.heads)
	if s.least != s.most {
		tokens = s.least.String() + " to " + tokens
	}
	if s.fewest != s.heads {
		heads = fmt.Sprintf("%d to %d", s.fewest, s.heads)
	}
	busy, exposed := 0.0, 0.0
	if s.whole > 0 {
		busy, exposed = float64(s.busy/s.whole), float64(s.exposed/s.whole)
	}
	return []string{
		fmt.Sprint(s.ranks), name, tokens, heads, units.Percent(busy), units.Percent(exposed), units.Percent(max(0, 1-busy-exposed)), timeBar(busy, exposed), peak(s.fullest),
	}
}

func rankCells(n *notes, d *solver.Plan, device string, r int, most units.Tokens) []string {
	k, s := d.Ranks[r], d.Step.Ranks[r]
	whole := float64(s.Busy + s.Exposed + s.Idle)
	of := func(t units.Seconds) float64 {
		if !(whole > 0) {
			return 0
		}
		return float64(t) / whole
	}
	memory := peak(s.Memory)
	if s.Memory.Capacity > 0 && !s.Memory.Fits() {
		memory += n.mark(fmt.Sprintf("above %s of the capacity: this rank runs out of memory", units.Percent(costmodel.Usable)))
	}
	return []string{
		device + " on " + k.Node, k.Tokens.String(), percent(float64(k.Tokens)/float64(max(1, d.Job.SeqLen)), 1), bar(float64(k.Tokens)/float64(most), pictureWidth, '#', ' '),
		units.Percent(of(s.Busy)), units.Percent(of(s.Exposed)), units.Percent(of(s.Idle)), timeBar(of(s.Busy), of(s.Exposed)), memory,
	}
}

// timeBar draws the busy and exposed shares of a step, and idling in the rest.
func timeBar(busy, exposed float64) string {
	waiting := bar(busy+exposed, pictureWidth, '!', '.')
	full := bar(busy, pictureWidth, '#', ' ')
	n := strings.Count(full, "#")
	return full[:n] + waiting[n:]
}

// negligible says that a part is what rounding leaves of none.
func negligible(part costmodel.Part, whole costmodel.Estimate) bool {
	return part.Time.Mid < 1e-9*whole.Mid
}

func partTable(p *printer, d *solver.Plan) {
	t := newTable(column{title: "part of the step"}, column{title: "time", number: true}, column{title: "share", number: true}, column{title: "source"}, column{title: ""})
	whole := float64(d.Step.Time.Mid)
	for _, part := range d.Step.Parts {
		if negligible(part, d.Step.Time) {
			continue
		}
		share := 0.0
		if whole > 0 {
			share = float64(part.Time.Mid) / whole
		}
		t.row(part.Name, estimate(part.Time), units.Percent(share), string(part.Time.Source), bar(share, 2*pictureWidth, '#', ' '))
	}
	if len(t.rows) > 0 {
		p.printf("\n")
		t.render(p)
	}
}

func trafficTable(p *printer, d *solver.Plan) {
	t := newTable(column{title: "link class", most: 40}, column{title: "bytes a step, all ranks", number: true}, column{title: "on average", number: true})
	for _, x := range d.Step.Traffic {
		average := none
		if d.Step.Time.Mid > 0 {
			average = units.BytesPerS(float64(x.Bytes) / float64(d.Step.Time.Mid)).String()
		}
		t.row(x.Link, x.Bytes.String(), average)
	}
	if len(t.rows) > 0 {
		p.printf("\n")
		t.render(p)
		p.para("", "bytes follow from the layout exactly, those of gradients and parameters as of a ring through the nodes")
	}
}

func leftOut(p *printer, what []string) {
	if len(what) == 0 {
		return
	}
	p.printf("\nthe cost model leaves out:\n")
	for _, s := range what {
		p.para("- ", s)
	}
}
