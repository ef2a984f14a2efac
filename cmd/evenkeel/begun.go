package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/evenkeel/evenkeel/fit"
	"github.com/evenkeel/evenkeel/profile"
	"github.com/evenkeel/evenkeel/profile/backend/torch/launch"
)

// begun says what becomes of a recording that is there: it is refused, gone on with, or
// complete.
func (a *app) begun(o calibration, cfg profile.Config, past *profile.Past, inv *profile.Inventory, path string) (complete bool, err error) {
	if err := past.Fits(inv); err != nil {
		return false, fmt.Errorf("%s: %w", path, err)
	}
	told, err := o.asBegun(path, past.Differs(inv, cfg))
	if err != nil {
		return false, err
	}
	if told != "" {
		a.note("%s", told)
	}
	switch {
	case past.Complete(cfg.Budget) && past.Ended == profile.EndBudget:
		a.note("%s: the budget of %s is spent, with %d of %d points done: fitting it again; a longer --budget goes on with it, --fresh measures anew beside it",
			path, seconds(past.Schedule.BudgetS), past.Scheduled(), len(past.Schedule.Points))
		return true, nil
	case past.Complete(cfg.Budget):
		a.note("%s is complete: fitting it again; --fresh measures anew beside it", path)
		return true, nil
	case past.Schedule != nil:
		a.note("going on with %s: %d of %d points are done", path, past.Scheduled(), len(past.Schedule.Points))
	}
	return false, nil
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// starved says of a calibration whose time was up before the first point of any law that
// nothing can be fitted, and which command has the time.
func (a *app) starved(path string) error {
	past, err := readPast(path)
	if err != nil || !past.Starved() {
		return err
	}
	if past.Failed > 0 {
		return fmt.Errorf("%s: %s, and no point of any law was measured within the budget of %s: nothing can be fitted yet; %s",
			path, failedPoints(past), seconds(past.Schedule.BudgetS), a.longer(path, past))
	}
	return fmt.Errorf("%s: the budget of %s went into checking kernels and into what is measured once, and no point of any law was measured: nothing can be fitted yet; %s",
		path, seconds(past.Schedule.BudgetS), a.longer(path, past))
}

// tooFew has the error of points too few for any law name the command that goes on, where
// it was the budget that ended the measuring.
func (a *app) tooFew(path string, err error) error {
	var none *fit.NoLawError
	if !errors.As(err, &none) {
		return err
	}
	past, unread := readPast(path)
	if unread != nil {
		return err
	}
	lost := past.Failed - past.CutOff() // more time mends the others, and too few of these
	switch {
	case past.Ended == profile.EndBudget && lost > 0 && 2*lost >= len(past.Measured):
		return fmt.Errorf("%s: %s, and the budget of %s left no time for more: %s; where the cause is mended, measure anew beside it: %s",
			path, failedPoints(past), seconds(past.Schedule.BudgetS), none.What, commandAgain(a.args)+" --fresh")
	case past.Ended != profile.EndBudget && past.Failed > 0:
		return fmt.Errorf("%s: %s: %s; where the cause is mended, measure anew beside it: %s",
			path, failedPoints(past), none.What, commandAgain(a.args)+" --fresh")
	case past.Ended == profile.EndBudget:
		return fmt.Errorf("%s: its budget of %s was too short: %s; %s", path, seconds(past.Schedule.BudgetS), none.What, a.longer(path, past))
	}
	return err
}

// failedPoints tells of the points of a recording that have no result.
func failedPoints(past *profile.Past) string {
	if past.Failed == 1 {
		return "a point failed, " + past.Failure
	}
	return fmt.Sprintf("%d points failed, the first %s", past.Failed, past.Failure)
}

// longer is the command that goes on with a recording for as long as would suffice.
func (a *app) longer(path string, past *profile.Past) string {
	return goesOn(path, withBudget(a.args, past.Suffices()), len(past.Done))
}

// withBudget are the arguments with another --budget.
func withBudget(args []string, budget time.Duration) []string {
	var out []string
	for i := 0; i < len(args); i++ {
		if args[i] == "--budget" {
			i++ // and its value
			continue
		}
		if !strings.HasPrefix(args[i], "--budget=") {
			out = append(out, args[i])
		}
	}
	return append(out, "--budget", brief(budget))
}

// further are the flags of a calibration that a further one of the same needs too.
func (a *app) further() string {
	args := withBudget(a.args, 0)
	if verb := slices.Index(args, "calibrate"); verb >= 0 {
		args = slices.Delete(args, verb, verb+1)
	}
	words := strings.Fields(strings.TrimPrefix(commandAgain(args), "evenkeel"))
	words = slices.DeleteFunc(words, func(w string) bool { return w == "-q" || w == "--quiet" || w == "--json" })
	return strings.Join(words[:len(words)-2], " ") // --budget and its value
}

// brief is a time as a flag takes it: 10m, not 10m0s.
func brief(d time.Duration) string {
	if d >= time.Minute && d%time.Minute == 0 {
		return fmt.Sprintf("%dm", d/time.Minute)
	}
	return d.String()
}

// asBegun refuses flags that say otherwise than what the recording was begun with: it is
// gone on with as it was, or is finished, and they would be passed over. What flags that
// were left out would measure beyond it is told.
func (o calibration) asBegun(path string, differs []profile.Difference) (told string, err error) {
	for _, d := range differs {
		var given []string
		for _, name := range flagsOf(d.Field) {
			if o.given != nil && o.given(name) {
				given = append(given, "--"+name)
			}
		}
		switch {
		case len(given) > 0:
			return "", usagef("%s: %s was begun otherwise and %s: leave the flag out, or add --fresh, which measures anew beside it", strings.Join(given, ", "), path, d.Text)
		case d.Field == profile.DiffersInOps:
			told = fmt.Sprintf("%s was begun with other flags and %s; --fresh measures anew beside it", path, d.Text)
		}
	}
	return told, nil
}

// flagsOf are those that set what of a calibration may differ.
func flagsOf(f profile.DifferingField) []string {
	switch f {
	case profile.DiffersInSeed:
		return []string{"seed"}
	case profile.DiffersInPoints:
		return []string{"points"}
	case profile.DiffersInChooser:
		return []string{"choose"}
	case profile.DiffersInOps:
		return []string{"only"}
	}
	return []string{"model", "dtype"}
}

// commandAgain is the command that goes on where one was interrupted: with --fresh it would begin
// once more.
func commandAgain(args []string) string {
	words := []string{"evenkeel"}
	for _, arg := range args {
		if !strings.HasPrefix(arg, "--fresh") {
			words = append(words, launch.Quote(arg))
		}
	}
	return strings.Join(words, " ")
}

// goesOn says how an interrupted recording is gone on with. One that --fresh began beside
// others is named by no flag, but what it holds can be fitted.
func goesOn(path string, args []string, done int) string {
	switch {
	case filepath.Base(path) == firstRecording:
		return "to go on: " + commandAgain(args)
	case done == 0:
		return "--fresh began it beside another and begins one more the next time"
	}
	fitted := strings.TrimSuffix(path, recordingEnd) + profileEnd
	return fmt.Sprintf("--fresh began it beside another, which is the one that is gone on with; to fit what this holds: evenkeel fit %s -o %s", launch.Quote(path), launch.Quote(fitted))
}
