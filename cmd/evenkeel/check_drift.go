package main

import (
	"os"
	"slices"

	"github.com/evenkeel/evenkeel/fit"
)

// driftedError says that a check was made and found the machine changed; how
// is in the table on stdout. To the exit code it is a failed check.
type driftedError struct{}

func (driftedError) Error() string { return "the machine drifted: its times are not what they were" }

func (driftedError) Is(target error) bool { return target == errCheckFailed }

// addDrift compares the recordings of today with earlier ones, oldest first.
func addDrift(r *fit.Report, earlier, today []string) error {
	var runs []*fit.Run
	for _, path := range slices.Concat(earlier, today) {
		run, err := readRun(path)
		if err != nil {
			return err
		}
		runs = append(runs, run)
		r.Simulated = r.Simulated || run.Simulated
	}
	d, err := fit.CompareRuns(runs)
	if err != nil {
		return err
	}
	r.Drift = d
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
