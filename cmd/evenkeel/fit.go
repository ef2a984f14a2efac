package main

import (
	"context"
	"io"
	"slices"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/fit"
	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/results"
	"github.com/spf13/cobra"
)

func (a *app) fit() *cobra.Command {
	o := fit.Defaults()
	out, study, borrow, model, devices := "", "", borrowReferences, "", ""
	var stacks []string
	var ref reference
	c := &cobra.Command{
		Use:   "fit recordings... -o x.profile.json",
		Short: "Fit laws to recordings and state their error on points set aside before the fit",
		Long: `Reads one or more recordings and writes a profile: a law for every op, variant
and device (or group), with coefficients and their 95 % intervals, the range
they hold in, and their error on points that were set aside by seed before the
fit. Of more than 20,000 points a law is fitted to so many, chosen by hash. The same
recordings and seed give the same bytes.

With --study it fits nothing for keeps: it holds points out in the named ways
(interp: shapes at random; heads: odd head counts; some-heads: 10, 20, 24, 40, 96;
ranks: the largest groups; longer: what is longer or larger than the rest), fits
laws to the others, and says how well they and the simpler forms that planners
use predict what they never saw.

A GPU with few points borrows from the most similar GPU of the reference profiles
(--borrow): that GPU's law is scaled by the ratios of the datasheets, adjusted to the
points there are, and marked as transferred until there are enough of them. With 150 to
2,000 points, a GPU borrows only if --borrow is given. With --for it needs no points at all.

Calls are measured one by one. In a training step they take longer, because their load
may slow the clock and tensors are added, converted and copied between them: 11 to 30 %
longer in nine steps on an H100. With --training, plans are predicted from measured
whole steps of single devices (python/examples/train_step.py measures them). With --assume
a device type without such steps is assumed to train as the H100 did.`,
		Example: `  evenkeel fit prof/calibration.rec.jsonl -o prof/calibration.profile.json
  evenkeel fit a.rec.jsonl b.rec.jsonl --holdout 0.3 --seed 7 -o both.profile.json
  evenkeel fit nccl.rec.jsonl --stack nccl-2.27.3 -o nccl.profile.json    # of several versions in one recording
  evenkeel fit gpu.rec.jsonl --study interp,longer
  evenkeel fit gpu.rec.jsonl --training steps.json -o gpu.profile.json   # plans as whole training steps took
  evenkeel fit h100.rec.jsonl --assume -o h100.profile.json    # for solve: fills in what nobody measured
  evenkeel fit --for gh200 -o gh200.profile.json                # nobody measured it: borrowed from h100_sxm
  evenkeel fit --for new --devices devices.csv -o new.profile.json   # whose datasheet is in a table`,
		Args:   args(cobra.ArbitraryArgs, "recordings"),
		PreRun: func(*cobra.Command, []string) { a.uncaught() },
		RunE: func(c *cobra.Command, paths []string) error {
			if err := notEmpty(c, "borrow", "for", "devices", "study", "origin", "remark", "training", "stack"); err != nil {
				return err
			}
			if (len(paths) == 0) == (model == "") {
				return usagef("fit: want recordings, or --for a GPU model that has none (see: evenkeel fit --help)")
			}
			if !(o.Share >= 0 && o.Share < 1) {
				return usagef("--holdout %v: want a share from 0 to below 1, such as 0.2", o.Share)
			}
			if err := fitFlags(c, study != "", model != ""); err != nil {
				return err
			}
			if study != "" {
				return a.study(paths, study, stacks)
			}
			if out == "" {
				return usagef("fit: -o is missing: name the profile to write")
			}
			to := output{"-o", out, document(costmodel.ProfileSchema)}
			if err := notLost([]output{to}, slices.Concat(paths, strings.Split(borrow, ","), []string{ref.training, devices})...); err != nil {
				return err
			}
			if err := to.probe(); err != nil { // a fit may take minutes
				return err
			}
			var p *costmodel.Profile
			var err error
			if model != "" {
				p, err = a.borrow(model, devices, borrow, out)
			} else {
				ref.named, ref.stacks = c.Flags().Changed("borrow"), stacks
				p, err = a.fitBorrowing(paths, borrow, out, o, ref)
			}
			if err != nil {
				return advising(err, calibratedIn(paths...))
			}
			return a.print(p, func(w io.Writer) error { return results.ProfileOf(w, p, calibratedIn(paths...)) })
		},
	}
	c.Flags().StringVarP(&out, "output", "o", "", "profile to write")
	c.Flags().StringVar(&study, "study", "", "hold points out in these ways and compare forms of laws on them, instead of writing a profile: interp, heads, some-heads, longer, ranks")
	c.Flags().Uint64Var(&o.Seed, "seed", o.Seed, "seed of the hold-out")
	c.Flags().StringVar(&borrow, "borrow", borrow, "who lends to GPUs with few points: references, none, or profiles separated by commas")
	c.Flags().StringVar(&model, "for", "", "GPU model that nobody measured, such as gh200: write what can be borrowed for it")
	c.Flags().StringVar(&devices, "devices", "", "with --for: table of GPU models (CSV) beyond, or instead of, the known ones, as import reads it")
	c.Flags().BoolVar(&ref.assume, "assume", false, "fill in the laws a plan needs and nobody measured, from other laws and the datasheet; each is marked as assumed")
	c.Flags().StringArrayVar(&ref.origins, "origin", nil, "who published the measurements, for the profile: title, repository, licence and commit, separated by |; may be repeated")
	c.Flags().StringArrayVar(&ref.remarks, "remark", nil, "a sentence for the profile's warnings, such as what was left out; may be repeated")
	c.Flags().StringVar(&ref.training, "training", "", "whole training steps of python/examples/train_step.py: plans are predicted as these took, not as their calls one by one")
	c.Flags().StringArrayVar(&stacks, "stack", nil, "fit only what was measured under this software, such as nccl-2.27.3, where recordings have several versions; may be repeated")
	c.Flags().Float64Var(&o.Share, "holdout", o.Share, "share of points set aside before the fit")
	return c
}

// fitFlags refuses flags that a study, or a profile that is borrowed whole, would pass over.
func fitFlags(c *cobra.Command, study, model bool) error {
	of := func(what, way string, flags ...string) error {
		for _, name := range flags {
			if c.Flags().Changed(name) {
				return usagef("fit: --%s says nothing of %s: leave it out%s", name, what, way)
			}
		}
		return nil
	}
	switch {
	case study && model:
		return usagef("fit: --study is of recordings, and with --for there are none: leave one out")
	case study:
		return of("a --study, which writes no profile", ", or fit without --study", "output", "seed", "holdout", "borrow", "assume", "origin", "remark", "training", "devices")
	case model:
		return of("a GPU model that nobody measured", "", "seed", "holdout", "assume", "origin", "remark", "training", "stack")
	}
	return of("recordings, whose devices import describes", ", or give it to import", "devices")
}

// fitFiles fits recordings and saves the profile. Its creation time is that of
// the newest recording, so that the same inputs give the same bytes.
func (a *app) fitFiles(_ context.Context, paths []string, out string, o fit.Options) (*costmodel.Profile, error) {
	return a.fitBorrowing(paths, borrowReferences, out, o, reference{})
}

// fitBorrowing is fitWith by who lends to devices with few points.
func (a *app) fitBorrowing(paths []string, from, out string, o fit.Options, ref reference) (*costmodel.Profile, error) {
	lenders, err := lendersOf(from)
	if err != nil {
		return nil, err
	}
	o.Donors, o.Lenders, ref.lenders = fit.Donors(lenders...), lenders, lenders
	for i := range o.Donors {
		o.Donors[i].Named = ref.named
	}
	return a.fitWith(paths, out, o, ref)
}

// fitWith is fitFiles with what a reference profile has beyond its fit.
func (a *app) fitWith(paths []string, out string, o fit.Options, ref reference) (*costmodel.Profile, error) {
	origins, err := ref.published()
	if err != nil {
		return nil, err
	}
	steps, err := ref.steps()
	if err != nil {
		return nil, err
	}
	d, err := loadOnly(paths, ref.stacks)
	if err != nil {
		return nil, err
	}
	going := a.fittingOn(len(d.Points))
	o.Report = going.report
	p, err := fit.Fit(d, o)
	going.end()
	if err != nil {
		return nil, err
	}
	if without := fit.NothingToAssume(p); ref.assume && len(without) > 0 {
		a.note("--assume adds nothing to %s: it goes by laws of attention and of matrix products, and the recordings lack one of them or both; measure or import it of the same device type as well, or plan with --profile %s,references", strings.Join(without, ", "), out)
	}
	ref.onto(p, origins)
	if err := ref.trained(p, steps, out); err != nil {
		return nil, err
	}
	p.Tool, p.Created = tool, d.Created
	if p.Inputs, err = inputs(out, paths); err != nil {
		return nil, err
	}
	if err := doc.Save(out, p); err != nil {
		return p, err
	}
	a.remarkOnSize(out, p)
	return p, nil
}

// study compares forms of laws on points kept from them.
func (a *app) study(paths []string, names string, stacks []string) error {
	splits, err := fit.SplitsNamed(names)
	if err != nil {
		return usagef("--study: %w", err)
	}
	d, err := loadOnly(paths, stacks)
	if err != nil {
		return err
	}
	rows, err := fit.Study(d, splits, a.lawsDone())
	if err != nil {
		return err
	}
	return a.print(rows, func(w io.Writer) error { return results.Study(w, d.Simulated, splits, rows) })
}
