package main

import (
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/evenkeel/evenkeel/fit"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/results"
	"github.com/spf13/cobra"
)

func (a *app) check() *cobra.Command {
	profilePath, maxError, minLen, strict := "", "", "", false
	c := &cobra.Command{
		Use:   "check recordings... --profile x.profile.json",
		Short: "Compare recordings with a profile's predictions; exit 4 above the limits",
		Long: `Compares measured points with what a profile predicts for them. Of recordings
that the profile was fitted to, only the points that were set aside count. The
limits apply to the upper 95 % bound of each error; a stratum with fewer than
20 points is listed as insufficient and fails only with --strict.

Exits 0 when every limit holds, 4 when one is broken, 1 when it could not judge.`,
		Example: `  evenkeel check prof/calibration.rec.jsonl --profile prof/calibration.profile.json
  evenkeel check today.rec.jsonl --profile prof/calibration.profile.json --max-error 10% --json
  evenkeel check gpu.rec.jsonl --profile gpu.profile.json --min-len 4k    # what long contexts rest on`,
		Args: args(cobra.MinimumNArgs(1), "recordings"),
		RunE: func(_ *cobra.Command, paths []string) error {
			limits, err := limitsOf(maxError)
			if err != nil {
				return err
			}
			if profilePath == "" {
				return usagef("check: --profile is missing: name the profile to judge")
			}
			least := units.Tokens(0)
			if minLen != "" {
				if least, err = units.ParseTokens(minLen); err != nil {
					return usagef("--min-len: %w", err)
				}
			}
			report, err := checkFiles(profilePath, paths, limits, least)
			if err != nil {
				return err
			}
			if err := a.print(report, func(w io.Writer) error { return results.Report(w, report) }); err != nil {
				return err
			}
			if report.Failed(strict) {
				return errCheckFailed
			}
			return nil
		},
	}
	c.Flags().StringVar(&profilePath, "profile", "", "profile to judge")
	c.Flags().StringVar(&maxError, "max-error", "", "limit of median errors, such as 6% or 0.06, or of a family's, such as collective=40%; P90 may be three times that (default: a limit per family of ops)")
	c.Flags().StringVar(&minLen, "min-len", "", "judge only attention over at least so many tokens, such as 4k, and no other op")
	c.Flags().BoolVar(&strict, "strict", false, "fail on strata with too few points and on ops without a law")
	return c
}

func checkFiles(profilePath string, paths []string, limits fit.Limits, least units.Tokens) (*fit.Report, error) {
	p, err := loadProfile(profilePath)
	if err != nil {
		return nil, err
	}
	d, points, err := heldOut(p, paths)
	if err != nil {
		return nil, err
	}
	if least > 0 {
		points = fit.LongAttention(points, least)
	}
	return fit.Check(p, d, points, limits)
}

// limitsOf reads --max-error, or gives the defaults: one number for every
// family of ops, or family=number for one, the later before the earlier.
func limitsOf(s string) (fit.Limits, error) {
	limits := fit.DefaultLimits()
	if s == "" {
		return limits, nil
	}
	for part := range strings.SplitSeq(s, ",") {
		family, number, one := strings.Cut(part, "=")
		if !one {
			number = family
		}
		limit, err := limitOf(number)
		if err != nil {
			return nil, err
		}
		if _, known := limits[fit.Family(family)]; one && !known {
			return nil, usagef("--max-error %q: there is no family %q; the families are %s", part, family, strings.Join(families(limits), ", "))
		}
		for f := range limits {
			if !one || f == fit.Family(family) {
				limits[f] = limit
			}
		}
	}
	return limits, nil
}

func limitOf(s string) (fit.Limit, error) {
	number, percent := strings.CutSuffix(s, "%")
	v, err := strconv.ParseFloat(number, 64)
	if percent {
		v /= 100
	}
	if err != nil || !(v > 0 && v < 10) {
		return fit.Limit{}, usagef("--max-error %q: want a share such as 6%% or 0.06, or family=share", s)
	}
	return fit.Limit{Median: v, P90: 3 * v}, nil
}

func families(limits fit.Limits) []string {
	var names []string
	for f := range limits {
		names = append(names, string(f))
	}
	slices.Sort(names)
	return names
}
