package results

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/fit"
	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/profile"
)

// Profile prints what a profile knows and how well: its devices and groups, one
// line a family of ops, the held-out error of every law, and where it was
// measured. Errors shown are those of points that the fit never saw.
func Profile(w io.Writer, d *costmodel.Profile) error {
	return ProfileOf(w, d, "")
}

// throughTorch are the flags with which calibrate measures such devices again: where there is
// no GPU, it takes another backend than torch unless told.
func throughTorch(types []op.DeviceType) string {
	if slices.ContainsFunc(types, func(d op.DeviceType) bool { return strings.HasPrefix(d.Name, "torch_cpu:") }) {
		return "--backend torch"
	}
	return ""
}

// ProfileOf is Profile of a calibration that had the given flags, which the advised ones
// have too.
func ProfileOf(w io.Writer, d *costmodel.Profile, flags string) error {
	if !strings.Contains(flags, "--backend") {
		flags = strings.TrimSpace(throughTorch(d.Devices) + " " + flags)
	}
	p, n := &printer{w: w, further: flags}, &notes{}
	profileHead(p, d)
	devices(p, d.Devices, d.Groups)
	if len(d.Laws) > 0 {
		families(p, d.Laws)
		lawErrors(p, n, d)
		lawRanges(p, d.Laws, d.Groups)
	} else {
		p.printf("\n")
		p.para("", "it holds no laws, so nothing can be predicted from it; measure and fit: evenkeel calibrate --fresh --budget 10m")
	}
	memoryTables(p, d.Memory)
	overlapTable(p, d.Overlaps)
	trainingTable(p, d.Training)
	outlierTable(p, d.Outliers)
	n.add(unstamped(d.Warnings)...)
	n.render(p)
	return p.err
}

// profileStamp is the stamp of a profile and its reason: one whose every law was lent
// is not called measured.
func profileStamp(d *costmodel.Profile) (what, from string) {
	if d.Simulated || len(d.Laws) == 0 || slices.ContainsFunc(d.Laws, func(l costmodel.Law) bool { return l.From == "" && l.Assumed == "" }) {
		return stamp(d.Simulated), origin(d.Simulated)
	}
	fitted, held := 0, 0
	for i := range d.Laws {
		f, h := lawPoints(&d.Laws[i])
		fitted, held = fitted+f, held+h
	}
	if n := fitted + held; n > 0 {
		return "BORROWED", fmt.Sprintf("%s of the devices below: too few for laws of their own", plural(n, "point"))
	}
	return "BORROWED", "nobody measured the devices below"
}

// lawPoints are how many points a law was fitted to and how many were set aside. To a
// borrowed law none lies inside, for its errors are no measured law's.
func lawPoints(l *costmodel.Law) (fitted, held int) {
	if l.From == "" {
		return l.Fit.Points, l.Held.Points
	}
	return l.Fit.Points + l.Fit.Outside, l.Held.Points + l.Held.Outside
}

func profileHead(p *printer, d *costmodel.Profile) {
	what, from := profileStamp(d)
	p.para("", fmt.Sprintf("%s profile: %s, %s and %s; %s", what, plural(len(d.Laws), "law"),
		plural(len(d.Devices), "device type"), plural(len(d.Groups), "group"), from))
	written(p, d.Tool, d.Created)
	for _, in := range d.Inputs {
		p.para("", "from "+input(in))
	}
	whose := "measured by others"
	if MeasuredHere(d) {
		whose = "borrowed laws were measured by others"
	}
	for _, o := range d.Origins {
		p.para("", fmt.Sprintf("%s: %s, %s at %.12s, %s", whose, o.Title, o.Repository, o.Commit, o.Licence))
	}
	if d.Holdout.Share > 0 && len(d.Laws) > 0 {
		p.para("", fmt.Sprintf("held out before the fit: %s of the points of every law (seed %d)%s; the errors below are theirs", units.Percent(d.Holdout.Share), d.Holdout.Seed, heldFewer(d)))
	}
}

// heldFewer says of how many laws the hold-out is a smaller share than was asked for: a
// law keeps the fewest points that it can be fitted to.
func heldFewer(d *costmodel.Profile) string {
	fewer := 0
	for _, l := range d.Laws {
		fitted, held := l.Fit.Points+l.Fit.Outside, l.Held.Points+l.Held.Outside
		if float64(held) < d.Holdout.Share*float64(fitted+held) {
			fewer++
		}
	}
	if fewer == 0 {
		return ""
	}
	return fmt.Sprintf(", fewer of the %s that this would leave fewer than %d to fit", plural(fewer, "law"), fit.FewestPoints)
}

func written(p *printer, tool, created string) {
	created = toSeconds(created)
	switch {
	case tool != "" && created != "":
		p.para("", fmt.Sprintf("written by %s, %s", tool, created))
	case tool != "":
		p.para("", "written by "+tool)
	}
}

// toSeconds leaves the nanoseconds of a document's time out; what is no time stays as it is.
func toSeconds(created string) string {
	t, err := time.Parse(time.RFC3339Nano, created)
	if err != nil {
		return created
	}
	return t.UTC().Format(time.RFC3339)
}

func input(in doc.Input) string { return fmt.Sprintf("%s (sha256 %.12s)", in.Path, in.SHA256) }

func devices(p *printer, types []op.DeviceType, groups []op.GroupType) {
	t := newTable(column{title: "device", most: 24}, column{title: "model", most: 34}, column{title: "stack", most: 34},
		column{title: "parallel", number: true}, column{title: "memory", number: true})
	for _, d := range types {
		memory := none
		if d.Memory > 0 {
			memory = d.Memory.String()
		}
		t.row(d.Name, d.Model, d.Stack, plural(d.Parallel, "task"), memory)
	}
	p.printf("\n")
	t.render(p)
	if len(groups) == 0 {
		return
	}
	t = newTable(column{title: "group", most: 60}, column{title: "link class", most: 24}, column{title: "ranks", number: true}, column{title: "nodes", number: true})
	for _, g := range groups {
		t.row(g.Name, g.Link, fmt.Sprint(g.Ranks()), fmt.Sprint(g.Nodes))
	}
	p.printf("\n")
	t.render(p)
}

// families says in one line each how good the laws of a family are: the range
// of their medians and the worst tail. A pooled median would need the points,
// which a profile does not hold, and would hide the worst law.
func families(p *printer, laws []costmodel.Law) {
	p.printf("\n")
	for _, f := range fit.Families() {
		var of []*costmodel.Law
		for i := range laws {
			if fit.FamilyOf(laws[i].Op) == f {
				of = append(of, &laws[i])
			}
		}
		if len(of) > 0 {
			p.para(fmt.Sprintf("%-11s ", f), familyLine(of))
		}
	}
}

func familyLine(laws []*costmodel.Law) string {
	fitted, held := 0, 0
	var judged []*costmodel.Law
	for _, l := range laws {
		f, h := lawPoints(l)
		fitted, held = fitted+f, held+h
		if l.Held.Points > 0 {
			judged = append(judged, l)
		}
	}
	head := fmt.Sprintf("%s, %s fitted, %d held out: ", plural(len(laws), "law"), plural(fitted, "point"), held)
	if len(judged) == 0 {
		return head + "error unknown"
	}
	byMedian := func(a, b *costmodel.Law) int { return cmp.Compare(a.Held.Median, b.Held.Median) }
	worst := slices.MaxFunc(judged, func(a, b *costmodel.Law) int { return cmp.Compare(a.Held.P90, b.Held.P90) })
	lo, hi := units.Percent(slices.MinFunc(judged, byMedian).Held.Median), units.Percent(slices.MaxFunc(judged, byMedian).Held.Median)
	medians := "median error " + lo
	if lo != hi {
		medians = fmt.Sprintf("median errors %s to %s", strings.TrimSuffix(lo, " %"), hi)
	}
	return head + fmt.Sprintf("%s, worst p90 %s (%s)", medians, units.Percent(worst.Held.P90), lawTitle(worst))
}

func lawTitle(l *costmodel.Law) string {
	return strings.TrimSpace(string(l.Op) + " " + l.Variant.String())
}

// lawCell is a law's title under its section, broken where a kernel's name makes
// it long.
func lawCell(l *costmodel.Law) string {
	const most = 27
	return "  " + strings.Join(wrap(lawTitle(l), most), "\n    ")
}

// eachSection calls visit for the laws in their order, and before the first one
// on every device or group opens a section named after it.
func eachSection(t *table, laws []costmodel.Law, visit func(*costmodel.Law)) {
	for i := range laws {
		if i == 0 || laws[i].On() != laws[i-1].On() {
			t.section("on " + laws[i].On())
		}
		visit(&laws[i])
	}
}

func lawErrors(p *printer, n *notes, d *costmodel.Profile) {
	laws, imported := d.Laws, profile.ImportedPlaces(d.Devices, d.Groups)
	t := newTable(column{title: "law"}, column{title: "form"}, column{title: "points\nfit+held", number: true},
		column{title: "error\nmedian", number: true}, column{title: "error\np90", number: true}, column{title: "error\nbias", number: true},
		column{title: "90 % interval\nof the time", number: true}, column{title: "it\ncovers", number: true}, column{title: "notes"})
	eachSection(t, laws, func(l *costmodel.Law) {
		h := l.Held
		bias := none
		if h.Points > 0 {
			bias = signed(-h.Bias)
		}
		fitted, held := lawPoints(l)
		t.row(lawCell(l), lawForm(l), fmt.Sprintf("%d+%d", fitted, held), percent(h.Median, h.Points), percent(h.P90, h.Points),
			bias, interval(l.Spread), percent(h.Coverage, h.Points), lawMarks(n, l, d.Holdout.Share > 0, imported[l.On()]))
	})
	p.printf("\n")
	t.render(p)
	if len(laws) > 0 {
		p.para("", "errors are |log(predicted / measured)| of held-out points; a positive bias predicts too long; the 90 % interval should cover 90 % of the held-out points")
	}
	if slices.ContainsFunc(laws, func(l costmodel.Law) bool { return chosen(&l) == fit.FamilyForm }) {
		p.para("", "family: estimated together with the curves of the same library's other collectives and groups over such links")
	}
}

// lowCoverage is where the stated 90 % interval is called too narrow: four held-out
// points of twenty outside happen to a true one in about 13 of 100 laws.
const lowCoverage = 0.8

// toMeasure is what measures more points than there are.
const toMeasure = "evenkeel calibrate --fresh --budget 10m"

// furtherPoints ends a footnote with the way to more points of a law: to measure them
// where ours were measured, as measure says, and where others' were imported to import more.
func furtherPoints(imported bool, measure string) string {
	if imported {
		return "its points were imported: import more of them: evenkeel import"
	}
	return measure
}

// lawMarks are the footnotes a law needs. Only what a longer or quieter
// measurement would improve, or of imported points more of them, is said, once; without a
// split neither would.
func lawMarks(n *notes, l *costmodel.Law, split, imported bool) string {
	if l.Assumed != "" {
		return strings.TrimSpace(assumedMark(n, l))
	}
	if l.From != "" {
		return strings.TrimSpace(borrowedMark(n, l, imported))
	}
	marks := lentMark(n, l)
	h, limit := l.Held, fit.DefaultLimits().OfFamily(fit.FamilyOf(l.Op))
	switch {
	case h.Points == 0 && !split:
		marks += n.mark("every point was fitted, so the law's error is unknown and check has nothing to judge it by; hold some out: evenkeel fit --holdout 0.2")
	case h.Points == 0:
		marks += n.mark("no point was held out of the fit, so the law's error is unknown; " + furtherPoints(imported, "a longer calibration adds points: "+toMeasure))
	case h.Points < fit.MinPoints:
		marks += n.mark(fmt.Sprintf("fewer than %d points were held out, so the law's errors are rough; %s", fit.MinPoints, furtherPoints(imported, "a longer calibration adds points: "+toMeasure)))
	case h.Coverage < lowCoverage:
		marks += n.mark(fmt.Sprintf("fewer than %s of the held-out points lie inside the 90 %% interval: the interval is too narrow; %s", units.Percent(lowCoverage), furtherPoints(imported, "more points widen it: "+toMeasure)))
	}
	if h.Points > 0 && (h.Median > limit.Median || h.P90 > limit.P90 || math.IsNaN(h.Median)) {
		marks += n.mark(fmt.Sprintf("above the error that check allows for %s (median %s, p90 %s); %s",
			fit.FamilyOf(l.Op), units.Percent(limit.Median), units.Percent(limit.P90), furtherPoints(imported, "measure again on a quiet machine: evenkeel calibrate --fresh")))
	}
	if h.Outside > 0 {
		marks += n.mark("some held-out points lie outside the fitted range and are not in the errors; " + furtherPoints(imported, "a longer calibration covers more: "+toMeasure))
	}
	return strings.TrimSpace(marks)
}

// borrowedMark is the footnote of a law that another device type lent.
func borrowedMark(n *notes, l *costmodel.Law, imported bool) string {
	by, none := l.From+" by the ratios of the datasheets", "no point of it"
	if l.Group != "" {
		by, none = l.From+", whose links have the same datasheet rate", "no message"
	}
	if fitted, held := lawPoints(l); fitted+held == 0 {
		return n.mark(fmt.Sprintf("borrowed from %s; %s was measured here, so its error is unknown: evenkeel calibrate", by, none))
	}
	if l.Group != "" {
		by += ","
	}
	return n.mark(fmt.Sprintf("borrowed from %s and held against points of its own, too few for a law of its own: plans call it transferred, and its error is unknown; %s", by, furtherPoints(imported, "a longer calibration adds points: "+toMeasure)))
}

// chosen is the name of the form that won against its rivals, "" where none was tried.
func chosen(l *costmodel.Law) string {
	for _, r := range l.Rivals {
		if r.Chosen {
			return r.Form
		}
	}
	return ""
}

// lawForm is a law's form. A curve whose shape several groups share looks like one of
// its own and was chosen over that, so it is called what it is.
func lawForm(l *costmodel.Law) string {
	if chosen(l) == fit.FamilyForm {
		return l.Form() + ", family"
	}
	return l.Form()
}

// lentMark is the footnote of a law that has points enough to count as measured, and
// whose shape is another device type's all the same.
func lentMark(n *notes, l *costmodel.Law) string {
	form := chosen(l)
	if !strings.HasPrefix(form, fit.BorrowedForm) {
		return ""
	}
	return n.mark(fmt.Sprintf("its form is %s by the ratios of the datasheets, and was adjusted to its own points", form))
}

func lawRanges(p *printer, laws []costmodel.Law, groups []op.GroupType) {
	t := newTable(column{title: "law"}, column{title: "measured range", most: 58}, column{title: "other forms tried,\ntheir median error", most: 32})
	eachSection(t, laws, func(l *costmodel.Law) {
		var axes, rivals []string
		for _, r := range l.Range {
			axes = append(axes, span(r))
		}
		for _, r := range l.Rivals {
			// Of a borrowed law this is the only error that its own points tell.
			taken := ""
			if r.Chosen && strings.HasPrefix(r.Form, fit.BorrowedForm) {
				taken = " (taken)"
			}
			if !r.Chosen || taken != "" {
				rivals = append(rivals, fmt.Sprintf("%s %s%s", r.Form, units.Percent(r.Median), taken))
			}
		}
		if len(rivals) == 0 {
			rivals = []string{none}
		}
		if bw, ok := busbw(l, groups); ok {
			axes = append(axes, fmt.Sprintf("busbw %s at the largest", bw))
		}
		t.row(lawCell(l), measuredRange(l, axes), strings.Join(rivals, ", "))
	})
	p.printf("\n")
	t.render(p)
}

// measuredRange says of a law that was lent or assumed whose range it is: not one
// that was measured on its device.
func measuredRange(l *costmodel.Law, axes []string) string {
	fitted, held := lawPoints(l)
	switch {
	case l.Assumed != "" && slices.ContainsFunc(l.Range, func(r costmodel.AxisRange) bool { return r.Max >= endless }):
		return "not measured; assumed at every size"
	case l.Assumed != "":
		return "not measured; assumed at " + strings.Join(axes, ", ")
	case l.From != "" && fitted+held == 0:
		return "not measured; by the lender at " + strings.Join(axes, ", ")
	case l.From != "":
		return "the lender's included: " + strings.Join(axes, ", ")
	}
	return strings.Join(axes, ", ")
}

// endless is the end of a range that no shape reaches.
const endless = 1 << 50

// busbw is the bus bandwidth of a collective at its largest measured message, as
// nccl-tests defines it: bytes through the busiest port over time, so that it can
// be held against what a link is sold for.
func busbw(l *costmodel.Law, groups []op.GroupType) (units.BytesPerS, bool) {
	i := slices.IndexFunc(groups, func(g op.GroupType) bool { return g.Name == l.Group })
	if i < 0 || l.Op == op.KindAllToAllV || l.Op == op.KindSendRecvPairs || len(l.Range) == 0 {
		return 0, false
	}
	s := op.OfMessage(l.Op, op.Message{Group: groups[i].Ranks(), Bytes: units.Bytes(l.Range[0].Max)})
	t := l.Predict(s).Mid
	return units.BytesPerS(float64(op.Volume(s)) / float64(t)), t > 0
}
