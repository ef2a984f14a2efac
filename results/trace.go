package results

import (
	"fmt"
	"io"
	"math"
	"path"
	"slices"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/fit"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/replay"
	"github.com/evenkeel/evenkeel/replay/comparison"
)

// mostTracePlans is how many plans have tables of their own without being asked for.
const mostTracePlans = 2

// TraceReport prints what `check` found in a trace: every plan's step as predicted
// and measured, where they differ, op by op and rank by rank, the order of the
// plans, and the verdict in the last line.
func TraceReport(w io.Writer, r *comparison.Report) error { return traceReport(w, r, false) }

// FullTraceReport is TraceReport with the tables of all plans and the ops of
// every rank.
func FullTraceReport(w io.Writer, r *comparison.Report) error { return traceReport(w, r, true) }

func traceReport(w io.Writer, r *comparison.Report, all bool) error {
	p, n := &printer{w: w}, &notes{}
	p.para("", traceTitle(r))
	if r.Simulated {
		p.para("", "the profile is made from a simulated backend; what it predicts is of no hardware")
	}
	traceSteps(p, n, r)
	traceParts(p, r)
	tracePicture(p, r)
	for i := range r.Plans {
		if all || i < mostTracePlans {
			traceOps(p, &r.Plans[i], all)
			traceRanks(p, &r.Plans[i])
		}
	}
	if left := len(r.Plans) - mostTracePlans; left > 0 && !all {
		p.printf("\nops and ranks of %s not listed; --all lists them\n", plural(left, "more plan"))
	}
	traceRanking(p, n, r)
	traceGains(p, r)
	n.add(r.Warnings...)
	n.render(p)
	p.printf("\n")
	p.para("", traceVerdict(r))
	for _, k := range r.Verdicts {
		if k.Verdict == fit.Fail {
			p.para("  ", fmt.Sprintf("%s: %s", k.Name, k.Why))
		}
	}
	return p.err
}

func traceTitle(r *comparison.Report) string {
	whole := len(slices.DeleteFunc(slices.Clone(r.Plans), func(x comparison.Plan) bool { return !x.Pipeline && x.Runs == nil }))
	what := layersRun(plural(r.Layers, "layer"), whole, len(r.Plans))
	switch r.Parts {
	case replay.PartsAttention:
		what = "the attention of " + what
	case replay.PartsLoss:
		what += " and the loss"
	case replay.PartsStep:
		what = "whole training steps of " + what
	}
	if r.Parts != replay.PartsStep {
		what += " forward and backward"
	}
	return fmt.Sprintf("%s replay of %s: %s (%s), %s", stamp(r.Simulated), plural(len(r.Plans), "plan"), what, r.Mode, plural(r.Blocks, "block"))
}

// planTitle is a plan's file, and its strategy where the file is not named by it.
func planTitle(x *comparison.Plan) string {
	name := strings.TrimSuffix(strings.TrimSuffix(path.Base(x.Path), ".plan.json"), ".batchplan.json")
	how := x.Strategy
	if x.Micro > 0 {
		how = fmt.Sprintf("%s in %d", how, x.Micro)
	}
	switch {
	case x.Pipeline:
		how = fmt.Sprintf("%s in %s", x.Strategy, plural(x.Micro, "chunk"))
	case x.Runs != nil:
		how = fmt.Sprintf("%s in %s", x.Strategy, plural(x.Micro, "run"))
	}
	if name == how {
		return name
	}
	return fmt.Sprintf("%s (%s)", name, how)
}

// traceSteps is the table of plans.
func traceSteps(p *printer, n *notes, r *comparison.Report) {
	t := newTable(column{title: "plan"}, column{title: "file (strategy)", most: 20}, column{title: "predicted", number: true}, column{title: "measured", number: true},
		column{title: "spread", number: true}, column{title: "error of step\n(95 % bound)", number: true}, column{title: "in 90 %\ninterval"},
		column{title: "error of\ncompute", number: true}, column{title: "step, compute"})
	for i := range r.Plans {
		x := &r.Plans[i]
		predicted := estimate(x.Predicted)
		if x.Meeting > x.Predicted.Mid*(1+visiblyLonger) {
			account := "a plan's account lets ranks meet after every layer and pass"
			if x.Runs != nil {
				account = "a plan of tasks is priced with the ranks of a run at work together, forward and backward in one go, and waves one after the other"
			}
			predicted += n.mark(account + "; then these steps would take longer: " + meetings(r))
		}
		t.row(fmt.Sprint(x.Plan), planTitle(x), predicted, seconds(x.Measured.Median), units.Percent(x.Measured.Spread),
			fmt.Sprintf("%s (%s)", signed(x.Log), units.Percent(x.Upper)), yesNo(x.Inside), percent(x.ComputeError, x.Stretches),
			strings.ReplaceAll(traceVerdictOf(n, r, fmt.Sprintf("plan %d: step", i))+", "+traceVerdictOf(n, r, fmt.Sprintf("plan %d: compute", i)), string(fit.Insufficient), none))
	}
	p.printf("\n")
	t.render(p)
	p.para("", "measured is the median over blocks; errors are log(predicted / measured), a positive one predicts too long; that of compute is the mean over stretches, weighted by their time")
}

// visiblyLonger is a difference worth a footnote.
const visiblyLonger = 0.005

func meetings(r *comparison.Report) string {
	var list []string
	for _, x := range r.Plans {
		if x.Meeting > x.Predicted.Mid*(1+visiblyLonger) {
			list = append(list, fmt.Sprintf("plan %d %s", x.Plan, seconds(x.Meeting)))
		}
	}
	return strings.Join(list, ", ")
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// traceVerdictOf is the verdict of a check, with the reason as a footnote where
// there is none.
func traceVerdictOf(n *notes, r *comparison.Report, name string) string {
	for _, k := range r.Verdicts {
		if k.Name != name {
			continue
		}
		switch k.Verdict {
		case fit.Fail:
			return "FAIL"
		case fit.Pass:
			return string(k.Verdict)
		}
		return string(k.Verdict) + n.mark(k.Why)
	}
	return none
}

// traceParts is the table of what steps differ by.
func traceParts(p *printer, r *comparison.Report) {
	columns := []column{
		{title: "plan"},
		{title: "longest\nrank", number: true},
		{title: "measured less\npredicted", number: true},
		{title: "compute:\nattention", number: true},
		{title: "\nlinear", number: true},
		{title: "exposed\ncommunication", number: true},
		{title: "\nskew", number: true},
		{title: "unmodelled\ngaps", number: true},
	}
	if r.Parts == replay.PartsStep {
		columns = slices.Insert(columns, 5, column{title: "\nupdate", number: true})
	}
	t := newTable(columns...)
	for _, x := range r.Plans {
		cells := []string{fmt.Sprint(x.Plan), traceLongest(x.Critical), more(x.Difference)}
		for _, d := range append(append([]comparison.Part{}, x.Compute...), x.Parts[1:]...) {
			cells = append(cells, more(d.Difference))
		}
		t.row(cells...)
	}
	p.printf("\nwhere the difference comes from, along the rank that took longest%s; the parts add up to it\n", map[bool]string{true: " over each micro-batch"}[traceBatches(r)])
	t.render(p)
	p.para("", "skew is waiting for ranks that were not done, as far as what they were measured to compute explains it; the rest of waiting is communication")
}

// traceBatches says whether plans are among a report's whose ranks meet after every micro-batch.
func traceBatches(r *comparison.Report) bool {
	return r.Parts != replay.PartsStep && slices.ContainsFunc(r.Plans, func(x comparison.Plan) bool { return x.Batch })
}

// mostLongest is how many micro-batches have their longest rank listed.
const mostLongest = 4

// traceLongest lists the ranks that took longest, by micro-batch.
func traceLongest(ranks []int) string {
	var list []string
	for i, r := range ranks {
		if i == mostLongest {
			list = append(list, "..")
			break
		}
		list = append(list, fmt.Sprint(r))
	}
	return strings.Join(list, " ")
}

// more prints a difference of times with its sign.
func more(s units.Seconds) string {
	switch {
	case !finite(float64(s)):
		return none
	case math.Abs(float64(s)) < 5e-10: // times are recorded in nanoseconds
		return "0 s"
	case s < 0:
		return "-" + (-s).String()
	}
	return "+" + s.String()
}

// The picture's width and its signs, by part.
const (
	traceWidth = 72
	traceSigns = "#=.?"
)

// tracePicture draws every plan's step twice, on one scale.
func tracePicture(p *printer, r *comparison.Report) {
	longest := units.Seconds(0)
	for _, x := range r.Plans {
		longest = max(longest, x.Measured.Median, x.Predicted.Mid)
	}
	p.printf("\n")
	for _, x := range r.Plans {
		p.printf("plan %-3d predicted |%s %s\n", x.Plan, traceBar(x.Parts, longest, func(d comparison.Part) units.Seconds { return d.Predicted }), seconds(x.Predicted.Mid))
		p.printf("         measured  |%s %s\n", traceBar(x.Parts, longest, func(d comparison.Part) units.Seconds { return d.Measured }), seconds(x.Measured.Median))
	}
	p.printf("%s\n", "# compute   = exposed communication   . skew   ? in no span")
}

// traceBar stacks the parts; borders are rounded, not lengths, so that nothing is
// lost on the way.
func traceBar(parts []comparison.Part, longest units.Seconds, of func(comparison.Part) units.Seconds) string {
	var b strings.Builder
	var sum units.Seconds
	for i, d := range parts {
		sum += max(0, of(d))
		for b.Len() < int(math.Round(float64(sum/longest)*traceWidth)) {
			b.WriteByte(traceSigns[i])
		}
	}
	return b.String()
}

// traceOps is the table of a plan's ops, on all ranks together or on each.
func traceOps(p *printer, x *comparison.Plan, each bool) {
	t := newTable(column{title: "op"}, column{title: "pass"}, column{title: "rank", number: true}, column{title: "n", number: true},
		column{title: "predicted", number: true}, column{title: "measured", number: true}, column{title: "mean error", number: true},
		column{title: "bias", number: true}, column{title: "p95", number: true}, column{title: "worst (" + traceAt(x) + ")", most: 36})
	list := x.Classes
	if each {
		list = x.RankClasses
	}
	for _, c := range list {
		rank := "all"
		if c.Rank != comparison.AllRanks {
			rank = fmt.Sprint(c.Rank)
		}
		t.row(string(c.Op), tracePass(c), rank, fmt.Sprint(c.Stretches), seconds(c.Predicted), seconds(c.Measured),
			percent(c.MeanError, c.Compared), bias(c.Bias, c.Compared), percent(c.P95, c.Compared), traceWorst(c, x, each))
	}
	p.printf("\nplan %d by op: sums over %s, n stretches of time\n", x.Plan, map[bool]string{true: "the stretches of a rank", false: "all ranks"}[each])
	t.render(p)
}

// traceAt says what a stretch is named by.
func traceAt(x *comparison.Plan) string {
	switch {
	case x.Pipeline:
		return "rank, chunk, layer"
	case x.Runs != nil:
		return "rank, run, layer"
	case x.Micro > 0:
		return "rank, micro-batch, step"
	}
	return "rank, step"
}

func tracePass(c comparison.Class) string {
	switch {
	case c.Op == costmodel.MeetOp:
		return none
	case c.Dir == costmodel.BackwardPass:
		return "backward"
	case c.Again:
		return "again"
	}
	return "forward"
}

// traceWorst names the worst stretches; without all ranks one is enough.
func traceWorst(c comparison.Class, x *comparison.Plan, all bool) string {
	var list []string
	for _, w := range c.Worst {
		at := fmt.Sprintf("%d, %d", w.Rank, w.Step)
		switch {
		case x.Pipeline:
			at = fmt.Sprintf("%d, %d, %d", w.Rank, w.Micro, w.Layer)
		case x.Runs != nil:
			at = fmt.Sprintf("%d, %d of %s, %d", w.Rank, w.Micro, x.Runs[w.Micro], w.Layer)
		case x.Micro > 0:
			at = fmt.Sprintf("%d, %d, %d", w.Rank, w.Micro, w.Step)
		}
		list = append(list, fmt.Sprintf("%s (%s)", signed(w.Log), at))
		if !all {
			break
		}
	}
	if len(list) == 0 {
		return none
	}
	return strings.Join(list, " ")
}

// traceRanks is the table of a plan's ranks.
func traceRanks(p *printer, x *comparison.Plan) {
	t := newTable(column{title: "rank", number: true}, column{title: "device"}, column{title: "step\npredicted", number: true}, column{title: "\nmeasured", number: true},
		column{title: "compute\npredicted", number: true}, column{title: "\nmeasured", number: true}, column{title: "waiting\npredicted", number: true},
		column{title: "\nmeasured", number: true}, column{title: "gaps\nmeasured", number: true})
	for _, k := range x.Ranks {
		t.row(fmt.Sprint(k.Rank), k.Device, seconds(k.Predicted), seconds(k.Measured), seconds(k.Computes), seconds(k.Computed), seconds(k.Waits), seconds(k.Waited), seconds(k.Gaps))
	}
	p.printf("\nplan %d by rank, until its own end\n", x.Plan)
	t.render(p)
}

// traceRanking says whether the plans are in their order.
func traceRanking(p *printer, n *notes, r *comparison.Report) {
	k := r.Ranking
	if k == nil {
		return
	}
	p.printf("\nranking of %s: tau_b %.2f over %s, %s by measurement: %s\n", plural(k.Plans, "plan"), k.TauB, plural(k.Pairs, "pair"), plural(k.Ties, "tie"), traceVerdictOf(n, r, "ranking: tau_b"))
	p.para("", fmt.Sprintf("regret of plan %d, which the model ranks first: %s, 95 %% bound %s (blocks split; unsplit %s, bound %s); %s, noise %s: %s",
		k.Chosen, signed(k.Regret), signed(k.RegretUpper), signed(k.Unsplit), signed(k.UnsplitUpper), plural(k.Blocks, "block"), units.Percent(k.Noise), traceVerdictOf(n, r, "ranking: regret")))
}

// traceGains is what the first plan saves over the others.
func traceGains(p *printer, r *comparison.Report) {
	if len(r.Gains) == 0 {
		return
	}
	t := newTable(column{title: "over"}, column{title: "file (strategy)", most: 30}, column{title: "predicted gain", number: true}, column{title: "measured gain", number: true},
		column{title: "95 % interval", number: true}, column{title: "achieved", number: true})
	for _, g := range r.Gains {
		share := none
		if g.Predicted > 0 {
			share = units.Percent(g.Share)
		}
		t.row(fmt.Sprintf("plan %d", g.Over), planTitle(&r.Plans[g.Over]), signed(g.Predicted), signed(g.Measured), fmt.Sprintf("%s..%s", signed(g.Lo), signed(g.Hi)), share)
	}
	p.printf("\nwhat plan 0, %s, saves of another's step; medians of ratios block by block\n", planTitle(&r.Plans[0]))
	t.render(p)
}

// traceVerdict is the last line.
func traceVerdict(r *comparison.Report) string {
	counts := map[fit.Verdict]int{}
	for _, k := range r.Verdicts {
		counts[k.Verdict]++
	}
	s := fmt.Sprintf("verdict: %s (%s): %s", traceState(r), stamp(r.Simulated), traceCounted(counts, len(r.Verdicts)))
	if r.Failed(r.Strict) && !r.Failed(false) {
		s += "; --strict: too little measured to say fails"
	}
	return s
}

func traceCounted(counts map[fit.Verdict]int, of int) string {
	s := fmt.Sprintf("%d of %s within their limits", counts[fit.Pass], plural(of, "check"))
	if n := counts[fit.Fail]; n > 0 {
		s += fmt.Sprintf(", %d above", n)
	}
	if n := counts[fit.Insufficient]; n > 0 {
		s += fmt.Sprintf(", %d with too little measured to say", n)
	}
	if n := counts[fit.Ungated]; n > 0 {
		s += fmt.Sprintf(", %d not judged", n)
	}
	return s
}

func traceState(r *comparison.Report) string {
	passed := func(k comparison.Check) bool { return k.Verdict == fit.Pass }
	switch {
	case r.Failed(r.Strict):
		return "FAIL"
	case slices.ContainsFunc(r.Verdicts, passed):
		return "PASS"
	}
	return "NO VERDICT"
}
