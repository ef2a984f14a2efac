package main

import (
	"io"
	"os"
	"slices"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/fit"
	"github.com/evenkeel/evenkeel/replay"
	"github.com/evenkeel/evenkeel/replay/comparison"
	"github.com/evenkeel/evenkeel/results"
)

// farOffError says that a replay was compared and is further from its prediction
// than the limits allow; where is in the table on stdout. To the exit code it is
// a failed check.
type farOffError struct {
	undecided bool // no limit is broken, and --strict wants a verdict on all checks
}

func (e farOffError) Error() string {
	if e.undecided {
		return "--strict: no limit is broken, but checks have too little measured for a verdict, which the table names; replay it with more blocks (evenkeel replay --repeats)"
	}
	return "the replay differs from its prediction by more than the limits allow"
}

func (farOffError) Is(target error) bool { return target == errCheckFailed }

// isOf says whether a file is a document of a schema, of whatever version; what cannot be
// read is not, and whoever reads it next says why.
func isOf(path, schema string) bool {
	found, err := sniff(path)
	return err == nil && kindOf(found) == kindOf(schema)
}

// anyOf says whether one of the files is.
func anyOf(paths []string, schema string) bool {
	return slices.ContainsFunc(paths, func(path string) bool { return isOf(path, schema) })
}

// runCheckTrace compares a replay with a profile's prediction.
func (a *app) runCheckTrace(paths []string, o checkOptions) error {
	if err := o.validTrace(paths); err != nil {
		return err
	}
	report, err := compareTrace(paths[0], o)
	if err != nil {
		return o.unjudged(err)
	}
	report.Strict = o.strict
	if err := a.printTrace(report, o); err != nil {
		return err
	}
	if report.Failed(o.strict) {
		return farOffError{undecided: !report.Failed(false)}
	}
	return nil
}

// validTrace refuses command lines that cannot be meant of a trace.
func (o checkOptions) validTrace(paths []string) error {
	switch {
	case len(paths) > 1:
		return usagef("check: the trace of a replay is judged by itself, and %d files are named", len(paths))
	case o.profile == "":
		return usagef("check: --profile is missing: name the profile whose predictions the replay is compared with")
	case len(o.driftFrom) > 0 || o.minLen != "":
		return usagef("check: --drift-from and --min-len are of recordings; %s is the trace of a replay", paths[0])
	case strings.Contains(o.maxError, "="):
		return usagef("--max-error %q: of a replay it is one share, of steps and of what ranks compute", o.maxError)
	}
	return nil
}

// compareTrace makes the report, and writes the timeline if that is asked for.
func compareTrace(path string, o checkOptions) (*comparison.Report, error) {
	limits, err := traceLimits(o)
	if err != nil {
		return nil, err
	}
	p, err := loadProfile(o.profile)
	if err != nil {
		return nil, err
	}
	rec, err := readTrace(path)
	if err != nil {
		return nil, err
	}
	if err := o.suits(path, rec.Header.Plans); err != nil {
		return nil, err
	}
	if o.timeline != "" {
		if err := drawTrace(rec, p, o); err != nil {
			return nil, err
		}
	}
	return comparison.New(rec, p, limits, o.links())
}

// suits refuses flags that a trace has no plans for.
func (o checkOptions) suits(path string, plans []replay.PlanRun) error {
	unplaced := slices.ContainsFunc(plans, func(x replay.PlanRun) bool { return x.Batch || x.Pipeline != nil || x.Tasks != nil })
	switch {
	case o.plan < 0 || o.plan >= len(plans):
		return usagef("--plan %d: %s has plans 0 to %d", o.plan, path, len(plans)-1)
	case o.plan != 0 && o.timeline == "":
		return usagef("--plan %d says which plan is drawn: name the drawing with --timeline", o.plan)
	case !unplaced && (o.link != "" || o.network != ""):
		return usagef("check: --link and --network are of plans of batches, pipelines and tasks, and %s has none: other plans hold their link classes", path)
	}
	return nil
}

func drawTrace(rec *comparison.Recording, p *costmodel.Profile, o checkOptions) error {
	t, err := comparison.NewTimeline(rec, p, o.plan, o.links())
	if err != nil {
		return err
	}
	return writeReport("--timeline", o.timeline, func(w io.Writer) error { return results.TraceTimeline(w, t) })
}

func (o checkOptions) links() comparison.Links {
	return comparison.Links{Inside: o.link, Network: o.network}
}

func readTrace(path string) (*comparison.Recording, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, openError(err)
	}
	defer f.Close()
	return comparison.Read(path, f)
}

// traceLimits are the limits of the document, with what --max-error asks for in
// the place of those of steps and computing.
func traceLimits(o checkOptions) (*fit.Limits, error) {
	limits, err := loadLimits(o.limits)
	if err != nil || o.maxError == "" {
		return limits, err
	}
	most, err := shareOf(o.maxError)
	if err != nil {
		return nil, err
	}
	own, file := limits.Replayed(), *limits
	own.Step, own.Compute, own.Reason = most, most, "asked for with --max-error"
	file.Replay = &own
	return &file, nil
}

// printTrace writes the report in every form that was asked for.
func (a *app) printTrace(r *comparison.Report, o checkOptions) error {
	return printReport(a, r, o, reportForms[*comparison.Report]{results.TraceReport, results.FullTraceReport, results.TraceMarkdown, results.TraceJUnit})
}
