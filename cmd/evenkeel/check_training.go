package main

import (
	"errors"
	"io"
	"slices"
	"strings"

	"github.com/evenkeel/evenkeel/fit"
	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/results"
)

// stepsOffError says that whole training steps were further from their predictions than the
// limits allow. To the exit code it is a failed check.
type stepsOffError struct{}

func (stepsOffError) Error() string {
	return "whole training steps differ from their predictions by more than the limits allow"
}

func (stepsOffError) Is(target error) bool { return target == errCheckFailed }

// isTraining says whether a file is one of whole training steps, of whatever version.
func isTraining(path string) bool {
	schema, err := sniff(path)
	kind, _, _ := strings.Cut(schema, "/")
	want, _, _ := strings.Cut(fit.TrainingSchema, "/")
	return err == nil && kind == want
}

func hasTraining(paths []string) bool { return slices.ContainsFunc(paths, isTraining) }

// runCheckTraining compares whole training steps with a profile's plans. As with recordings,
// what it could not do is in the JUnit report too.
func (a *app) runCheckTraining(paths []string, o checkOptions) error {
	if err := o.validTraining(paths); err != nil {
		return err
	}
	report, err := checkTraining(paths[0], o)
	if err != nil {
		var usage usageError
		if o.junit != "" && !errors.As(err, &usage) {
			err = errors.Join(err, writeReport("--junit", o.junit, func(w io.Writer) error { return results.JUnitError(w, err) }))
		}
		return err
	}
	if err := a.printTraining(report, o); err != nil {
		return err
	}
	if report.Failed() {
		return stepsOffError{}
	}
	return nil
}

// validTraining refuses command lines that cannot be meant of training steps.
func (o checkOptions) validTraining(paths []string) error {
	switch {
	case len(paths) > 1:
		return usagef("check: training steps are judged by themselves, and %d files are named", len(paths))
	case o.profile == "":
		return usagef("check: --profile is missing: name the profile whose predictions the steps are compared with")
	case len(o.driftFrom) > 0 || o.minLen != "" || o.timeline != "" || o.plan != 0 || o.link != "" || o.network != "":
		return usagef("check: --drift-from, --min-len, --timeline, --plan, --link and --network say nothing of training steps, as %s has", paths[0])
	case o.all || o.strict:
		return usagef("check: --all and --strict say nothing of training steps: all are listed, and each has a verdict")
	case strings.Contains(o.maxError, "="):
		return usagef("--max-error %q: of training steps it is one share", o.maxError)
	}
	return nil
}

func checkTraining(path string, o checkOptions) (*fit.TrainingReport, error) {
	limits, err := traceLimits(o)
	if err != nil {
		return nil, err
	}
	p, err := loadProfile(o.profile)
	if err != nil {
		return nil, err
	}
	var t fit.Training
	if err := doc.Load(path, &t); err != nil {
		return nil, err
	}
	hash, err := doc.HashFile(path)
	if err != nil {
		return nil, err
	}
	r, err := t.Check(p, hash, limits.Replayed())
	if err != nil {
		return nil, &doc.Error{File: path, Msg: err.Error(), Err: err}
	}
	return r, nil
}

// printTraining writes the report in every form that was asked for.
func (a *app) printTraining(r *fit.TrainingReport, o checkOptions) error {
	table := results.TrainingReport
	if o.markdown == "-" {
		table = results.TrainingMarkdown
	}
	err := a.print(r, func(w io.Writer) error { return table(w, r) })
	if o.junit != "" {
		err = errors.Join(err, writeReport("--junit", o.junit, func(w io.Writer) error { return results.TrainingJUnit(w, r) }))
	}
	if o.markdown != "" && o.markdown != "-" {
		err = errors.Join(err, appendTo("--markdown", o.markdown, func(w io.Writer) error { return results.TrainingMarkdown(w, r) }))
	}
	return err
}

// showTraining prints whole training steps as they were measured.
func (a *app) showTraining(path string) error {
	var t fit.Training
	if err := doc.Load(path, &t); err != nil {
		return err
	}
	return a.print(&t, func(w io.Writer) error { return results.TrainingSteps(w, &t) })
}
