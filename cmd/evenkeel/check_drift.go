package main

import (
	"errors"
	"os"
	"slices"

	"github.com/evenkeel/evenkeel/fit"
	"github.com/evenkeel/evenkeel/internal/doc"
)

// driftedError says that a check was made and found the machine changed; how
// is in the table on stdout. To the exit code it is a failed check.
type driftedError struct{ drift *fit.DriftReport }

func (e driftedError) Error() string {
	timed := func(p fit.DriftPlace) bool {
		return p.Verdict == fit.Drifted && p.Cause != fit.CauseEnvironment
	}
	if !slices.ContainsFunc(e.drift.Places, timed) {
		return "the machine drifted: its times stayed, its fingerprint is another"
	}
	return "the machine drifted: its times are not what they were"
}

func (driftedError) Is(target error) bool { return target == errCheckFailed }

// addDrift compares the recordings of today with earlier ones, oldest first.
func addDrift(r *fit.Report, earlier, today []string) error {
	// In a series a shift of the last alone is no drift, and one that is named twice is
	// confirmed by itself.
	if err := errors.Join(notTwice(earlier), notTwice(today), notItself(earlier, today)); err != nil {
		return err
	}
	var runs []*fit.Run
	for _, path := range slices.Concat(earlier, today) {
		run, err := readRun(path)
		if err != nil {
			return err
		}
		runs = append(runs, run)
		r.Simulated = r.Simulated || run.Simulated
		if run.Copied != "" {
			r.Warnings = append(r.Warnings, run.Copied)
		}
	}
	d, err := fit.CompareRuns(runs)
	if err != nil {
		return err
	}
	r.Drift = d
	return nil
}

// notItself refuses to compare a recording with itself, which never drifts.
func notItself(earlier, today []string) error {
	for _, path := range today {
		for _, before := range earlier {
			if sum, err := doc.HashFile(path); err == nil {
				if same, err := doc.HashFile(before); err == nil && same == sum {
					return usagef("--drift-from %s: holds the same bytes as %s, and a recording has no drift from itself: name an earlier one", before, path)
				}
			}
		}
	}
	return nil
}

func readRun(path string) (*fit.Run, error) {
	if err := notAnother(path); err != nil {
		return nil, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, openError(err)
	}
	defer f.Close()
	return fit.ReadRun(path, f)
}
