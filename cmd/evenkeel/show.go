package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/fit"
	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/profile"
	"github.com/evenkeel/evenkeel/replay"
	"github.com/evenkeel/evenkeel/results"
	"github.com/evenkeel/evenkeel/serve"
	"github.com/evenkeel/evenkeel/solver"
	"github.com/evenkeel/evenkeel/solver/batch"
	"github.com/evenkeel/evenkeel/solver/multitask"
	"github.com/evenkeel/evenkeel/solver/pipeline"
	"github.com/spf13/cobra"
)

// view is what the flags of show say.
type view struct {
	coefs, explain, learning, references bool
	plot                                 string
	lengths                              lengthView
}

func (a *app) show() *cobra.Command {
	var o view
	c := &cobra.Command{
		Use:   "show document",
		Short: "Show any evenkeel document: tables, plots",
		Long: `Shows a recording, a profile, a plan (of one sequence, of a batch, of a pipeline or of tasks),
a trace or a journal of serve as tables, and what the lengths of a file or of a named
distribution mean for padding and balance. --plot draws the measured against the predicted
times of a profile, and the residuals, on the points that were set aside before the fit, as
SVG and PNG.
--learning-curve fits a recording again, to growing random subsets of its points, and
shows how the error on the points set aside falls: whether more points would pay.`,
		Example: `  evenkeel show prof/calibration.profile.json --coefs
  evenkeel show prof/calibration.profile.json --plot prof/accuracy    # accuracy.svg, .png, accuracy-residuals.svg, .png
  evenkeel show prof/calibration.rec.jsonl --learning-curve --plot prof/learning
  evenkeel show a.plan.json --explain
  evenkeel show a.trace.jsonl
  evenkeel show lengths.parquet --column n_tokens   # what sequence lengths mean for padding and balance
  evenkeel show lognormal:median=1000,sd=1.7,seed=7
  evenkeel show --references            # the GPU types that solve knows without a profile
  evenkeel show --references h100_sxm   # the laws of one`,
		Args: func(c *cobra.Command, given []string) error {
			if o.references {
				return args(cobra.MaximumNArgs(1), "one GPU model or none")(c, given)
			}
			return args(cobra.ExactArgs(1), "one document")(c, given)
		},
		PreRun: func(*cobra.Command, []string) { a.uncaught() },
		RunE: func(c *cobra.Command, given []string) error {
			if err := notEmpty(c, "plot", "column"); err != nil {
				return err
			}
			o.lengths.given = lengthFlagsOf(c)
			if o.references {
				if err := o.ofReferences(given); err != nil {
					return err
				}
				return a.showReferences(given, o)
			}
			return a.runShow(given[0], o)
		},
	}
	c.Flags().BoolVar(&o.coefs, "coefs", false, "of a profile: every coefficient with its 95 % interval")
	c.Flags().BoolVar(&o.explain, "explain", false, "of a plan of one sequence: the account of the step as a tree")
	c.Flags().BoolVar(&o.learning, "learning-curve", false, "of a recording: the held-out error against the number of points fitted")
	c.Flags().BoolVar(&o.references, "references", false, "list the profiles that come with evenkeel, or show the one of a GPU model")
	o.lengths.flags(c)
	c.Flags().StringVar(&o.plot, "plot", "", "of a profile or a learning curve: draw it into files that begin with this name")
	return c
}

// sniffed is enough of a file to hold its schema.
const sniffed = 64 << 10

// shown is what show knows.
const shown = "name a recording, a profile, a plan or a trace, a journal of serve, or lengths in a file called .txt, .csv, .jsonl or .parquet, or in one called .json as an array or a histogram such as {\"[1,1024)\": 5}"

func (a *app) runShow(path string, o view) error {
	if o.lengths.isLengths(path) {
		if o.coefs || o.explain || o.learning || o.plot != "" {
			return usagef("show: --coefs, --explain, --learning-curve and --plot are of documents; %s are lengths: leave them out", path)
		}
		return a.showLengths(path, o.lengths)
	}
	schema, err := sniff(path)
	if err != nil {
		return err
	}
	kind := kindOf(schema)
	recording := strings.TrimSuffix(profile.RecordingSchema, "v1")
	if err := o.misplaced(path, kind); err != nil {
		return err
	}
	if a.json && o.explain {
		return usagef("show: --json prints the plan as it is, and --explain an account of it for people: leave one out")
	}
	if a.json && o.plot != "" && !o.learning {
		return usagef("show: --json prints a profile and --plot draws its errors instead: leave one out")
	}
	switch kind + "/" {
	case recording:
		if o.learning {
			return a.learningCurve(path, o)
		}
		return a.showRecording(path)
	case strings.TrimSuffix(costmodel.ProfileSchema, "v1"):
		return a.showProfile(path, o)
	case strings.TrimSuffix(solver.PlanSchema, "v2"):
		return a.showPlan(path, schema, o)
	case strings.TrimSuffix(batch.Schema, "v1"):
		return a.showBatch(path)
	case strings.TrimSuffix(multitask.Schema, "v1"):
		return a.showTasks(path)
	case strings.TrimSuffix(pipeline.Schema, "v1"):
		return a.showPipeline(path)
	case strings.TrimSuffix(replay.TraceSchema, "v1"):
		return a.showTrace(path)
	case strings.TrimSuffix(fit.TrainingSchema, "v1"):
		return a.showTraining(path)
	case strings.TrimSuffix(journalSchema, "v1"):
		return a.showJournal(path)
	}
	return fmt.Errorf("%s: its schema is %q; show knows recordings, profiles, plans, traces, training steps and journals of serve", path, schema)
}

// misplaced refuses flags that say nothing of a document of this kind.
func (o view) misplaced(path, kind string) error {
	is := func(schema string) bool { return strings.HasPrefix(schema, kind+"/") }
	switch {
	case o.learning && !is(profile.RecordingSchema):
		return usagef("show: --learning-curve is of a recording; %s is an %s: name the recording it was made from", path, kind)
	case o.coefs && !is(costmodel.ProfileSchema):
		return usagef("show: --coefs is of a profile; %s is an %s: name a profile, or leave the flag out", path, kind)
	case o.explain && !is(solver.PlanSchema):
		return usagef("show: --explain is of a plan for one sequence; %s is an %s: name such a plan, or leave the flag out", path, kind)
	case o.plot != "" && !o.learning && !is(costmodel.ProfileSchema):
		return usagef("show: --plot is of a profile or of a --learning-curve; %s is an %s: name a profile, or leave the flag out", path, kind)
	case o.plot != "" && o.coefs:
		return usagef("show: --coefs prints numbers and --plot draws errors instead: leave one out")
	case len(o.lengths.given) > 0:
		return usagef("show: --%s is of sequence lengths; %s is an %s: leave the flag out", o.lengths.given[0], path, kind)
	}
	return nil
}

// ofReferences refuses flags that say nothing of the reference profiles.
func (o view) ofReferences(models []string) error {
	switch {
	case o.coefs && len(models) == 0:
		return usagef("show: --coefs is of one profile: name the GPU model, such as h100_sxm")
	case o.plot != "":
		return usagef("show: --plot draws a profile on the recordings that it was fitted to, and those of the references are not at hand: leave it out")
	case o.learning || o.explain || len(o.lengths.given) > 0:
		return usagef("show: with --references go a GPU model and --coefs alone: leave the other flags out")
	}
	return nil
}

func sniff(path string) (string, error) {
	if err := regular(path); err != nil {
		return "", err
	}
	f, err := os.Open(path)
	if err != nil {
		return "", openError(err)
	}
	defer f.Close()
	head, err := io.ReadAll(io.LimitReader(f, sniffed))
	if err != nil {
		return "", openError(err)
	}
	if len(head) == 0 {
		return "", fmt.Errorf("%s: is empty; %s", path, shown)
	}
	if ext := filepath.Ext(path); ext == ".yaml" || ext == ".yml" {
		return "", fmt.Errorf("%s: YAML is a cluster's, of which plans tell: evenkeel solve --cluster %s; %s", path, path, shown)
	}
	schema, err := doc.SchemaOf(head)
	var whole *doc.Error
	switch {
	case err == nil:
		return schema, nil
	case serve.IsJournal(head):
		return journalSchema, nil
	case bytes.Contains(head, []byte(`"traceEvents"`)):
		return "", fmt.Errorf("%s: is a timeline: open it in Perfetto (https://ui.perfetto.dev) or chrome://tracing; %s", path, shown)
	case errors.Is(err, io.ErrUnexpectedEOF) && len(head) == sniffed: // the file goes on
		err = fmt.Errorf("no \"schema\" key in its first %d bytes", sniffed)
	case errors.As(err, &whole):
		whole.File = path
		return "", whole
	}
	return "", fmt.Errorf("%s: not an evenkeel document: %w; %s", path, err, shown)
}

func (a *app) showBatch(path string) error {
	var d batch.Document
	if err := doc.Load(path, &d); err != nil {
		return err
	}
	return a.print(&d, func(w io.Writer) error { return results.BatchPlan(w, &d) })
}

func (a *app) showTasks(path string) error {
	var d multitask.Document
	if err := doc.Load(path, &d); err != nil {
		return err
	}
	return a.print(&d, func(w io.Writer) error { return results.TaskPlan(w, &d) })
}

func (a *app) showPipeline(path string) error {
	var d pipeline.Document
	if err := doc.Load(path, &d); err != nil {
		return err
	}
	return a.print(&d, func(w io.Writer) error { return results.PipelinePlan(w, &d) })
}

func (a *app) showRecording(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return openError(err)
	}
	defer f.Close()
	s, err := results.Summarise(path, f)
	if err != nil {
		return err
	}
	return a.print(s, func(w io.Writer) error { return results.Recording(w, s) })
}

func (a *app) showProfile(path string, o view) error {
	p, err := loadProfile(path)
	if err != nil {
		return err
	}
	if o.plot != "" {
		if err := probePlot(o.plot, ".svg", ".png", "-residuals.svg", "-residuals.png"); err != nil {
			return err
		}
		return a.plot(path, p, plotPrefix(o.plot))
	}
	return a.print(p, func(w io.Writer) error {
		if o.coefs {
			return results.Coefficients(w, p)
		}
		return results.ProfileOf(w, p, calibrated(path, p))
	})
}

// plotPrefix is what the names of drawn files begin with.
func plotPrefix(name string) string {
	return strings.TrimSuffix(strings.TrimSuffix(name, ".svg"), ".png")
}

// probePlot says, before laws are fitted for it, whether the files of a plot can be written,
// whose names end so; "" is none.
func probePlot(name string, ends ...string) error {
	if name == "" {
		return nil
	}
	if dir, base := filepath.Split(plotPrefix(name)); base == "" {
		return usagef("--plot %s: want what the names of the files begin with, such as %saccuracy", name, dir)
	}
	for _, end := range ends {
		what := svg
		if strings.HasSuffix(end, ".png") {
			what = png
		}
		if err := (output{"--plot", plotPrefix(name) + end, what}).probe(); err != nil {
			return err
		}
	}
	return nil
}

// plot draws a profile's accuracy on the points that its own recordings set aside.
func (a *app) plot(path string, p *costmodel.Profile, prefix string) error {
	if len(p.Inputs) == 0 {
		return fmt.Errorf("--plot: %s was fitted to no recording, so there are no points to draw; measure some: evenkeel calibrate", path)
	}
	paths, err := ownRecordings(path, p)
	if err != nil {
		return err
	}
	d, points, err := heldOut(path, p, paths)
	if err != nil {
		return err
	}
	report, err := fit.Check(p, d, points, fit.DefaultLimits())
	if err != nil {
		return err
	}
	accuracy, err := results.MeasuredPredicted(report, "measured against predicted, points set aside before the fit")
	if err != nil {
		return err
	}
	residuals, err := results.Residuals(report, "residuals of points set aside before the fit")
	if err != nil {
		return err
	}
	if err := errors.Join(drawInto(prefix, accuracy), drawInto(prefix+"-residuals", residuals)); err != nil {
		return err
	}
	a.note("wrote %[1]s.svg, %[1]s.png, %[1]s-residuals.svg and %[1]s-residuals.png", prefix)
	return nil
}

func drawInto(prefix string, figure *results.Figure) error {
	return errors.Join(
		writeTo(prefix+".svg", func(w io.Writer) error { return results.WriteSVG(w, figure) }),
		writeTo(prefix+".png", func(w io.Writer) error { return results.WritePNG(w, figure) }))
}

// draws is how often a learning curve draws points at every size: enough to show
// a scatter, few enough for a minute's recording to take seconds.
const draws = 5

func (a *app) learningCurve(path string, o view) error {
	if err := probePlot(o.plot, ".svg", ".png"); err != nil {
		return err
	}
	d, err := loadData([]string{path})
	if err != nil {
		return err
	}
	a.note("fitting every law %d times at every size of its curve, which takes seconds to minutes", draws)
	c, err := fit.LearningCurve(d, fit.Defaults(), nil, draws, a.lawsDone())
	if err != nil {
		return advising(fmt.Errorf("%s: %w", path, err), calibratedIn(path))
	}
	c.Calibration = calibratedIn(path)
	if o.plot == "" {
		return a.print(c, func(w io.Writer) error { return results.LearningCurve(w, c) })
	}
	figure, err := results.LearningPlot(c, "error on points set aside, against the number of points fitted")
	if err != nil {
		return advising(err, c.Calibration)
	}
	prefix := plotPrefix(o.plot)
	if err := drawInto(prefix, figure); err != nil {
		return err
	}
	a.note("wrote %[1]s.svg and %[1]s.png", prefix)
	return a.print(c, func(w io.Writer) error { return results.LearningCurve(w, c) })
}

func (a *app) showPlan(path, schema string, o view) error {
	plan, document, err := loadPlan(path, schema)
	if err != nil {
		return err
	}
	return a.print(document, func(w io.Writer) error {
		if o.explain {
			return results.Explain(w, plan)
		}
		return results.Plan(w, plan)
	})
}

// loadPlan reads a plan of any version, as today's and as it stands in the file.
func loadPlan(path, schema string) (*solver.Plan, doc.Document, error) {
	if schema == solver.PlanSchemaV1 {
		var old solver.PlanV1
		if err := doc.Load(path, &old); err != nil {
			return nil, nil, err
		}
		return old.Plan(), &old, nil
	}
	var p solver.Plan
	err := doc.Load(path, &p)
	return &p, &p, err
}
