package main

import (
	"io"
	"slices"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/fit"
	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/results"
	"github.com/evenkeel/evenkeel/results/profiles"
)

// stepsOffError says that whole training steps were further from their predictions than the
// limits allow. To the exit code it is a failed check.
type stepsOffError struct{}

func (stepsOffError) Error() string {
	return "whole training steps differ from their predictions by more than the limits allow"
}

func (stepsOffError) Is(target error) bool { return target == errCheckFailed }

// runCheckTraining compares whole training steps with a profile's plans.
func (a *app) runCheckTraining(paths []string, o checkOptions) error {
	if err := o.validTraining(paths); err != nil {
		return err
	}
	report, err := checkTraining(paths[0], o)
	if err != nil {
		return o.unjudged(err)
	}
	forms := reportForms[*fit.TrainingReport]{results.TrainingReport, results.TrainingReport, results.TrainingMarkdown, results.TrainingJUnit}
	if err := printReport(a, report, o, forms); err != nil {
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
	case namesReferences(o.profile) && o.profile != borrowReferences:
		return usagef("check: --profile %s: steps are compared with one profile: name a file, or %s alone", o.profile, borrowReferences)
	case len(o.driftFrom) > 0 || o.minLen != "" || o.ofTrace():
		return usagef("check: --drift-from, --min-len, --timeline, --plan, --link and --network say nothing of training steps, as %s has", paths[0])
	case o.all || o.strict:
		return usagef("check: --all and --strict say nothing of training steps: all are listed, and each has a verdict")
	case strings.Contains(o.maxError, "="):
		return usagef("--max-error %q: of training steps it is one share", o.maxError)
	}
	return nil
}

// namesReferences says that the embedded profiles are among those that --profile names.
func namesReferences(profile string) bool {
	return slices.Contains(strings.Split(profile, ","), borrowReferences)
}

func checkTraining(path string, o checkOptions) (*fit.TrainingReport, error) {
	limits, err := traceLimits(o)
	if err != nil {
		return nil, err
	}
	t, err := loadTraining(path)
	if err != nil {
		return nil, err
	}
	p, err := o.trained(path, t)
	if err != nil {
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

// trained is the profile that steps are compared with. Of references those of the GPU models of
// the steps' devices, whatever else their names say.
func (o checkOptions) trained(path string, t *fit.Training) (*costmodel.Profile, error) {
	if o.profile != borrowReferences {
		return loadProfile(o.profile)
	}
	var all costmodel.Cluster
	for i := range t.Steps {
		node := t.Steps[i].Job.Cluster.Nodes[0]
		node.Devices[0].Device = costmodel.ModelOf(node.Devices[0].Device)
		all.Nodes = append(all.Nodes, node)
	}
	refs, err := lacking(all, nil)
	if err != nil {
		return nil, usagef("%s: %v", path, err)
	}
	return profiles.Merge(refs), nil
}

// showTraining prints whole training steps as they were measured.
func (a *app) showTraining(path string) error {
	var t fit.Training
	if err := doc.Load(path, &t); err != nil {
		return err
	}
	return a.print(&t, func(w io.Writer) error { return results.TrainingSteps(w, &t) })
}
