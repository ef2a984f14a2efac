package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/evenkeel/evenkeel/fit"
	"github.com/evenkeel/evenkeel/internal/spelling"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/replay"
	"github.com/evenkeel/evenkeel/results"
	"github.com/spf13/cobra"
)

// checkOptions are the flags of check.
type checkOptions struct {
	profile   string
	limits    string
	maxError  string
	minLen    string
	driftFrom []string
	strict    bool
	all       bool
	junit     string
	markdown  string
	timeline  string
	plan      int
	link      string
	network   string
}

func (a *app) check() *cobra.Command {
	var o checkOptions
	c := &cobra.Command{
		Use:   "check recordings... --profile x.profile.json",
		Short: "Compare recordings with a profile's predictions, or with earlier ones; exit 4 above the limits",
		Long: `Compares measured points with what a profile predicts for them. Of recordings
that the profile was fitted to, only the points that were set aside count; in other
files such points are told where those recordings still lie where the profile names
them.

Errors are |log(predicted / measured)|, judged for every family of ops and for
every stratum: an op on a device type or group, in one band of sizes. Points
outside the measured range, and laws of other devices, are strata of their own.
The limits come from one document (--limits, evenkeel.limits/v1; one is built
in) and apply to the upper 95 % bounds; where repeats of the points scatter more
than a limit of errors allows, their scatter counts instead, if 20 points or a
quarter of them were repeated. At least 70 % of the points must lie inside the
90 % interval, which --max-error leaves as it is; of borrowed and assumed laws,
whose errors have no limit without that flag, too. A stratum with fewer than 20
points is listed as insufficient and fails only with --strict.

With --drift-from the recordings are compared with earlier ones of the same
devices: the points that both measured again and again (canaries), or all that
they share. A point has moved if it is off by more than 3 % and by more than its
noise. On a device or group each of these is a drift: two points moved, of more
than 20 a tenth of them; of one op two points and half of its own; the median of
five points or more is off by more than 3 % for sure (its 99 % interval excludes
none); another fingerprint or another backend, whatever the times. The table says
which it was. Given several times, oldest first, the flag follows the shifts as a
series: one in the last recording alone is no drift yet, one that crept up is.

Given the trace of a replay instead of recordings, it judges plans: how far each
step and what its ranks compute are from the prediction, whether more
computing, communication, waiting for late ranks or time in no span makes the
difference, what the first plan gains over the others, and of three plans and
more whether the model puts them in their order (tau_b, and the regret of its
choice). A verdict needs 6 blocks. Plans of batches are judged along the rank that
is done last with each micro-batch, pipelines along the one that is done last of all.
--timeline writes the predicted and the recorded step of --plan side by side for
Perfetto.

Given whole training steps (python/examples/train_step.py), it compares each with the
plan of its job, part by part, and its peak memory. Steps that the profile has its
ratios from (fit --training) are predicted by those of the others. With --profile
references they are compared with what solve predicts before anything is measured.

With --json the result holds, in "pairs", every point with its op, variant,
shape, band, measured_s and the prediction (lo_s, mid_s, hi_s, source).

Exits 0 when no limit is broken, 4 when one is or the machine drifted, 1 when an
error kept it from judging. What has too few points for a verdict breaks no limit:
--strict fails on that, and where nothing at all could be judged.`,
		Example: `  evenkeel check prof/calibration.rec.jsonl --profile prof/calibration.profile.json
  evenkeel check today.rec.jsonl --profile prof/calibration.profile.json --max-error 10% --json
  evenkeel check gpu.rec.jsonl --profile gpu.profile.json --min-len 4k    # what long contexts rest on
  evenkeel check gpu.rec.jsonl --profile gpu.profile.json --limits limits.json --junit check.xml --markdown summary.md
  evenkeel check today.rec.jsonl --drift-from prof/calibration.rec.jsonl
  evenkeel check a.trace.jsonl --profile prof/calibration.profile.json --timeline a.timeline.json   # of a replay
  evenkeel check steps.json --profile prof/calibration.profile.json       # of whole training steps
  evenkeel check steps.json --profile references                          # by the embedded profiles`,
		Args:   args(cobra.MinimumNArgs(1), "recordings"),
		PreRun: func(*cobra.Command, []string) { a.uncaught() },
		RunE: func(c *cobra.Command, paths []string) error {
			if err := notEmpty(c, "profile", "link", "network", "limits", "max-error", "min-len", "drift-from", "junit", "timeline"); err != nil {
				return err
			}
			if o.markdown == "-" && a.json {
				return usagef("--markdown - and --json both write to stdout: name a file for one")
			}
			if err := o.writable(paths); err != nil {
				return err
			}
			if anyOf(paths, replay.TraceSchema) {
				return a.runCheckTrace(paths, o)
			}
			if anyOf(paths, fit.TrainingSchema) {
				return a.runCheckTraining(paths, o)
			}
			return a.runCheck(paths, o)
		},
	}
	o.flags(c)
	return c
}

func (o *checkOptions) flags(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&o.profile, "profile", "", "profile to judge; may be left out with --drift-from")
	f.StringVar(&o.limits, "limits", "", "limits document to judge by (default: the one built in)")
	f.StringVar(&o.maxError, "max-error", "", "instead of the limits: most median and mean error, such as 6% or 0.06, or a family's, such as collective=40%; P90 and P95 may be three times that")
	f.StringVar(&o.minLen, "min-len", "", "judge only attention over at least so many tokens, such as 4k, and no other op")
	f.StringArrayVar(&o.driftFrom, "drift-from", nil, "earlier recording to compare with; repeat it for a series, oldest first")
	f.BoolVar(&o.strict, "strict", false, "fail on families and strata with too few points, and on ops without a law")
	f.BoolVar(&o.all, "all", false, "list every stratum; of a replay every plan, and the ops of every rank")
	f.StringVar(&o.junit, "junit", "", "write a JUnit report to this file, a case a stratum")
	f.StringVar(&o.markdown, "markdown", "", "append a Markdown summary to this file; - prints it instead of the table")
	f.StringVar(&o.timeline, "timeline", "", "of a replay: write a step as predicted and as recorded, as a trace that Perfetto opens, to this file")
	f.IntVar(&o.plan, "plan", 0, "of a replay: the plan that --timeline draws, 0 for the first")
	f.StringVar(&o.link, "link", "", "of a replay of batches, pipelines or tasks: link class between ranks of a host, where the profile has several")
	f.StringVar(&o.network, "network", "", "of a replay of batches, pipelines or tasks: link class between hosts, where the profile has several")
}

// writable refuses to write reports over what is judged or judged by, or over each other,
// and where nothing can be written.
func (o checkOptions) writable(paths []string) error {
	read := slices.Concat(paths, o.driftFrom, []string{o.profile, o.limits})
	outs, markdown := []output{{"--junit", o.junit, junit}, {"--timeline", o.timeline, timeline}}, output{flag: "--markdown", path: o.markdown}
	if o.markdown == "-" { // which is stdout
		markdown.path = ""
	}
	if err := notLost(append(outs, markdown), read...); err != nil {
		return err
	}
	for _, to := range outs {
		if err := to.probe(); err != nil {
			return err
		}
	}
	return markdown.probeAppend()
}

// thereAll opens the files before flags are refused for what the files are not.
func thereAll(paths []string) error {
	for _, path := range paths {
		if err := regular(path); err != nil {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return openError(err)
		}
		f.Close()
	}
	return nil
}

// runCheck judges and reports.
func (a *app) runCheck(paths []string, o checkOptions) error {
	report, err := judge(paths, o)
	if err != nil {
		return o.unjudged(err)
	}
	report.Strict = o.strict
	if err := a.printCheck(report, o); err != nil {
		return err
	}
	if d := report.Drift; d != nil && d.Verdict == fit.Ambiguous {
		a.note("warning: drift from %s is ambiguous: some times moved, too few or too little beyond their noise; measure once more", d.From)
	}
	if report.Refused() {
		return advising(checkFailed(report), report.Calibration)
	}
	return nil
}

// checkFailed says on stderr which kind of failure it was.
func checkFailed(r *fit.Report) error {
	switch {
	case r.Drift != nil && r.Drift.Verdict == fit.Drifted:
		return driftedError{r.Drift}
	case !r.Failed(false):
		return undecidedError{imported: len(r.Imported) > 0}
	}
	return errCheckFailed
}

// undecidedError says that nothing was above its limit, but that --strict wants a
// verdict on all there is; which lacks one is in the tables.
type undecidedError struct{ imported bool }

func (e undecidedError) Error() string {
	way := "measure more: evenkeel calibrate --fresh --budget 10m"
	if e.imported {
		way = "measure more of what was measured here (evenkeel calibrate --fresh --budget 10m), import more of what was imported (evenkeel import)"
	}
	return "--strict: no error is above its limit, but families or strata have too few points for a verdict, or ops no law: evenkeel check --all lists them; " + way
}

func (undecidedError) Is(target error) bool { return target == errCheckFailed }

// judge makes the report that the flags ask for.
func judge(paths []string, o checkOptions) (*fit.Report, error) {
	if o.forOthers() {
		if err := thereAll(paths); err != nil {
			return nil, err
		}
	}
	least, err := o.valid()
	if err != nil {
		return nil, err
	}
	limits, err := limitsOf(o.limits, o.maxError)
	if err != nil {
		return nil, err
	}
	report := new(fit.Report)
	if o.profile != "" {
		if report, err = checkFiles(o.profile, paths, limits, least); err != nil {
			return nil, err
		}
	}
	if len(o.driftFrom) > 0 {
		if err := addDrift(report, o.driftFrom, paths); err != nil {
			return nil, err
		}
	}
	return report, nil
}

// ofTrace says that there are flags of the trace of a replay.
func (o checkOptions) ofTrace() bool {
	return o.timeline != "" || o.plan != 0 || o.link != "" || o.network != ""
}

// forOthers says that there are flags of files other than recordings.
func (o checkOptions) forOthers() bool { return namesReferences(o.profile) || o.ofTrace() }

// valid refuses command lines that cannot be meant and reads --min-len.
func (o checkOptions) valid() (least units.Tokens, err error) {
	switch {
	case o.profile == "" && len(o.driftFrom) == 0:
		return 0, usagef("check: --profile is missing: name the profile to judge")
	case namesReferences(o.profile):
		return 0, usagef("check: --profile %s: the embedded profiles are compared with whole training steps alone (python/examples/train_step.py); points are judged by the profile of a file", o.profile)
	case o.ofTrace():
		return 0, usagef("check: --timeline, --plan, --link and --network are of the trace of a replay, and there is none among the files")
	case o.profile == "" && (o.limits != "" || o.maxError != "" || o.minLen != ""):
		return 0, usagef("check: --limits, --max-error and --min-len judge a profile: name it with --profile")
	case o.minLen == "":
		return 0, nil
	}
	if least, err = units.ParseTokens(o.minLen); err != nil {
		return 0, usagef("--min-len: %w", err)
	}
	return least, nil
}

// printCheck writes the report in every form that was asked for.
func (a *app) printCheck(r *fit.Report, o checkOptions) error {
	return printReport(a, r, o, reportForms[*fit.Report]{results.Report, results.FullReport, results.Markdown, results.JUnit})
}

// reportForms are the forms of what check found: tables for people, the second one with all
// there is, a section for the summary of a CI job, and JUnit XML.
type reportForms[R any] struct {
	table, full, markdown, junit func(io.Writer, R) error
}

// printReport writes a report in every form that was asked for.
func printReport[R any](a *app, r R, o checkOptions, forms reportForms[R]) error {
	table := forms.table
	switch {
	case o.markdown == "-":
		table = forms.markdown
	case o.all:
		table = forms.full
	}
	err := a.print(r, func(w io.Writer) error { return table(w, r) })
	if o.junit != "" {
		err = errors.Join(err, writeReport("--junit", o.junit, func(w io.Writer) error { return forms.junit(w, r) }))
	}
	if o.markdown != "" && o.markdown != "-" {
		err = errors.Join(err, appendTo("--markdown", o.markdown, func(w io.Writer) error { return forms.markdown(w, r) }))
	}
	return err
}

// unjudged is why there is no report. It is in the JUnit report and the summary too, unless the
// command line is wrong: an old or missing one must not look like success.
func (o checkOptions) unjudged(why error) error {
	var usage usageError
	if errors.As(why, &usage) {
		return why
	}
	err := why
	if o.junit != "" {
		err = errors.Join(err, writeReport("--junit", o.junit, func(w io.Writer) error { return results.JUnitError(w, why) }))
	}
	if o.markdown != "" && o.markdown != "-" {
		err = errors.Join(err, appendTo("--markdown", o.markdown, func(w io.Writer) error { return results.MarkdownError(w, why) }))
	}
	return err
}

// writeReport writes the file that a flag names.
func writeReport(flag, path string, write func(io.Writer) error) error {
	if err := writeTo(path, write); err != nil {
		return fmt.Errorf("%s: %w", flag, err)
	}
	return nil
}

// appendTo writes at the end of the file that a flag names, which is made if need be.
func appendTo(flag, path string, write func(io.Writer) error) error {
	var b bytes.Buffer
	if err := write(&b); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err == nil {
		_, err = f.Write(b.Bytes())
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		return fmt.Errorf("%s: %w; name a file in a folder that is there and can be written", flag, err)
	}
	return nil
}

func checkFiles(profilePath string, paths []string, limits *fit.Limits, least units.Tokens) (*fit.Report, error) {
	p, err := loadProfile(profilePath)
	if err != nil {
		return nil, err
	}
	d, points, err := heldOut(profilePath, p, paths)
	if err != nil {
		return nil, err
	}
	if least > 0 {
		if points = fit.LongAttention(points, least); len(points) == 0 {
			return nil, fmt.Errorf("--min-len %s: no point of attention that counts has as many tokens; name fewer, or measure longer sequences: %s", least, results.Advised("evenkeel calibrate --fresh --budget 10m", calibrated(profilePath, p)))
		}
	}
	report, err := fit.Check(p, d, points, limits)
	if err != nil {
		return nil, err
	}
	report.Calibration = calibrated(profilePath, p)
	return report, nil
}

// limitsOf reads the limits document, or takes the one built in, and puts what
// --max-error asks for in its place: one number for every family of ops, or
// family=number for one, the later before the earlier.
func limitsOf(path, maxError string) (*fit.Limits, error) {
	limits, err := loadLimits(path)
	if err != nil || maxError == "" {
		return limits, err
	}
	for part := range strings.SplitSeq(maxError, ",") {
		family, number, one := strings.Cut(part, "=")
		if !one {
			number = family
		}
		most, err := shareOf(number)
		if err != nil {
			return nil, err
		}
		if one && !slices.Contains(fit.Families(), fit.Family(family)) {
			return nil, usagef("--max-error %q: there is no family %q%s; the families are %s", part, family, spelling.Hint(family, families()), strings.Join(families(), ", "))
		}
		for _, f := range fit.Families() {
			if !one || f == fit.Family(family) {
				limits = limits.Override(f, most)
			}
		}
	}
	return limits, nil
}

func loadLimits(path string) (*fit.Limits, error) {
	if path == "" {
		return fit.DefaultLimits(), nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, openError(err)
	}
	defer f.Close()
	limits, err := fit.ReadLimits(path, f)
	return limits, openError(err)
}

// parseShare reads 6% and 0.06 alike.
func parseShare(s string) (float64, error) {
	number, percent := strings.CutSuffix(s, "%")
	v, err := strconv.ParseFloat(number, 64)
	if percent {
		v /= 100
	}
	return v, err
}

func shareOf(s string) (float64, error) {
	v, err := parseShare(s)
	if err != nil || !(v > 0 && v < mostShare) {
		return 0, usagef("--max-error %q: want a share such as 6%% or 0.06, or family=share", s)
	}
	return v, nil
}

// mostShare keeps three times a share, the limit of the tails, a valid limit.
const mostShare = 3

func families() []string {
	var names []string
	for _, f := range fit.Families() {
		names = append(names, string(f))
	}
	slices.Sort(names)
	return names
}
