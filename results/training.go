package results

import (
	"fmt"
	"io"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/fit"
	"github.com/evenkeel/evenkeel/internal/units"
)

// TrainingReport prints whole training steps beside the plans of their jobs.
func TrainingReport(w io.Writer, r *fit.TrainingReport) error {
	p := &printer{w: w}
	p.para("", trainingTitle(r))
	for _, line := range trainingBy(r) {
		p.para("", line)
	}
	t := newTable(column{title: "step", most: 24}, column{title: "predicted", number: true}, column{title: "measured", number: true}, column{title: "error", number: true}, column{title: "in 90 %\ninterval"},
		column{title: "forward", number: true}, column{title: "loss", number: true}, column{title: "backward", number: true}, column{title: "optimizer", number: true},
		column{title: "peak memory\npredicted", number: true}, column{title: "measured", number: true}, column{title: "verdict"})
	for _, s := range r.Steps {
		row := []string{s.Name, estimate(s.Predicted), seconds(s.Measured), signed(s.Log), yesNo(s.Inside)}
		for _, x := range s.Parts {
			row = append(row, signed(float64(x.Predicted/x.Measured)-1))
		}
		t.row(append(row, gibibytes(s.PredictedPeak), gibibytes(s.Peak), verdictText(s.Verdict))...)
	}
	p.printf("\n")
	t.render(p)
	p.para("", "errors are log(predicted / measured), those of parts predicted over measured; a positive one predicts too long; measured is the sum of the medians of the parts")
	for _, s := range r.Steps {
		if s.Verdict == fit.Fail {
			p.para("     ", "FAIL "+s.Name+": "+s.Why)
		}
	}
	p.printf("\n")
	p.para("", trainingVerdict(r))
	return p.err
}

func trainingTitle(r *fit.TrainingReport) string {
	return fmt.Sprintf("%s training: %s beside plans of their jobs", stamp(r.Simulated), plural(len(r.Steps), "whole step"))
}

// trainingBy says what the steps were predicted by.
func trainingBy(r *fit.TrainingReport) []string {
	var lines []string
	if r.GPU != "" || r.Stack != "" {
		lines = append(lines, "measured on "+orNone(r.GPU)+", "+orNone(r.Stack))
	}
	for _, f := range r.From {
		switch {
		case f.Fact == nil:
			lines = append(lines, fmt.Sprintf("%s: predicted by calls that were measured one by one; whole steps take longer, and evenkeel fit --training learns by how much", f.Device))
		case f.Fact.Assumed != "":
			lines = append(lines, fmt.Sprintf("%s: no step of it was measured for the profile: calls are taken to slow down as in %s (%s)", f.Device, f.Fact.Assumed, ratiosText(f.Fact)))
		case f.Fact.Lent != "":
			lines = append(lines, fmt.Sprintf("%s: no step of it was measured for the profile, so it is predicted by the ratios of %s (%s)", f.Device, f.Fact.Lent, ratiosText(f.Fact)))
		case f.Own && f.Fact.Steps == 1:
			lines = append(lines, fmt.Sprintf("%s: the profile has its ratios from this step alone, so it is predicted as if it had none", f.Device))
		case f.Own:
			lines = append(lines, fmt.Sprintf("%s: the profile has its ratios from these steps (%s), so each is predicted by those of the others", f.Device, ratiosText(f.Fact)))
		default:
			lines = append(lines, fmt.Sprintf("%s: predicted by the ratios of %s (%s)", f.Device, plural(f.Fact.Steps, "step"), ratiosText(f.Fact)))
		}
	}
	return lines
}

func ratiosText(f *costmodel.TrainingFact) string {
	return fmt.Sprintf("layers %.2f, loss %.2f, optimizer %.2f times as long as alone", f.Layers, f.Loss, f.Optimizer)
}

func trainingVerdict(r *fit.TrainingReport) string {
	failed := 0
	for _, s := range r.Steps {
		if s.Verdict == fit.Fail {
			failed++
		}
	}
	return fmt.Sprintf("verdict: %s (%s): %d of %s within the limits; %s off in the mean, %s at most, limit %s; %d in their intervals",
		verdictText(r.Verdict), stamp(r.Simulated), len(r.Steps)-failed, plural(len(r.Steps), "step"), units.Percent(r.Mean), units.Percent(r.Worst), units.Percent(r.Limit), r.Inside)
}

func verdictText(v fit.Verdict) string {
	if v == fit.Fail {
		return "FAIL"
	}
	return string(v)
}

func gibibytes(b units.Bytes) string {
	if b == 0 {
		return none
	}
	return fmt.Sprintf("%.1f GiB", gib(b))
}

// TrainingJUnit writes the report as JUnit XML, a case a step.
func TrainingJUnit(w io.Writer, r *fit.TrainingReport) error {
	s := junitSuite{Name: "evenkeel.check.training"}
	for _, x := range r.Steps {
		c := junitCase{Class: "training", Name: x.Name + " on " + x.Device, Out: fmt.Sprintf("predicted %s, measured %s: %s, limit %s", estimate(x.Predicted), seconds(x.Measured), signed(x.Log), units.Percent(r.Limit))}
		if x.Verdict == fit.Fail {
			c.Failure = &junitMessage{Message: x.Why}
		}
		s.Cases = append(s.Cases, c)
	}
	return writeJUnit(w, []junitSuite{s})
}

// TrainingMarkdown writes the report as a section that can be appended to the summary of a CI
// job. It begins with an empty line.
func TrainingMarkdown(w io.Writer, r *fit.TrainingReport) error {
	p := &printer{w: w}
	p.printf("\n## evenkeel check of training steps: %s\n\n%s. %s.\n", verdictText(r.Verdict), cell(trainingVerdict(r)), cell(trainingTitle(r)))
	p.printf("\n| step | predicted | measured | error | in 90 %% interval | verdict |\n|---|---:|---:|---:|---|---|\n")
	for _, s := range r.Steps {
		p.printf("| %s | %s | %s | %s | %s | %s |\n", cell(s.Name), estimate(s.Predicted), seconds(s.Measured), signed(s.Log), yesNo(s.Inside), cell(verdictText(s.Verdict)))
	}
	markdownList(p, trainingBy(r))
	return p.err
}

// TrainingSteps prints what was measured of whole training steps.
func TrainingSteps(w io.Writer, t *fit.Training) error {
	p := &printer{w: w}
	p.para("", fmt.Sprintf("MEASURED training: whole steps of %s; evenkeel check compares them with a profile, evenkeel fit --training predicts plans by them", plural(len(t.Steps), "job")))
	written(p, t.Tool, t.Created)
	if t.GPU != "" || t.Stack != "" {
		p.para("", "measured on "+orNone(t.GPU)+", "+orNone(t.Stack))
	}
	rows := newTable(column{title: "step", most: 24}, column{title: "on", most: 24}, column{title: "tokens", number: true}, column{title: "recompute"}, column{title: "kernel"}, column{title: "steps", number: true},
		column{title: "took", number: true}, column{title: "forward", number: true}, column{title: "loss", number: true}, column{title: "backward", number: true}, column{title: "optimizer", number: true}, column{title: "peak memory", number: true}, column{title: "SM clock\n(MHz)", number: true}, column{title: "power\n(W)", number: true})
	for i := range t.Steps {
		s := &t.Steps[i]
		row := []string{s.Name, s.Device(), s.Job.SeqLen.String(), string(s.Job.Recompute), orNone(s.Kernel), fmt.Sprint(len(s.Times))}
		var whole units.Seconds
		var parts []string
		for _, part := range costmodel.StepParts() {
			whole += s.Median(part)
			parts = append(parts, seconds(s.Median(part)))
		}
		rows.row(append(append(append(row, seconds(whole)), parts...), gibibytes(s.Peak), watched(s.SMClock/1e6), watched(s.Power))...)
	}
	p.printf("\n")
	rows.render(p)
	p.para("", "times are medians over the steps, the whole their sum")
	return p.err
}

// watched is a quantity that a driver told, or nothing.
func watched(v float64) string {
	if v == 0 {
		return orNone("")
	}
	return fmt.Sprintf("%.0f", v)
}
