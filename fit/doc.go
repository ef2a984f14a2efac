// Package fit turns recordings into a profile, and judges a profile by recordings.
//
// It first sets points aside by a seeded hash (the hold-out), then fits one law to the
// remaining points of every stratum: one op in one variant on one device type or group of
// devices. Each law states its error on its own points, on the points set aside, and
// under cross-validation. The package is a pure function of the recordings and the seed:
// the same input gives the same bytes.
//
// # Main types
//
//   - [Data] holds the points of one or more recordings; a [Stratum] holds those that one
//     law is fitted to.
//   - [Fit] makes a [costmodel.Profile] of it. [Borrowed] makes one for a GPU that nobody
//     measured, by the ratios of datasheets; [Assume] and [AssumeLinks] add laws that a
//     plan needs and nobody measured, each marked as assumed.
//   - [Check] compares a profile's predictions with points it was not fitted to
//     and returns a [Report]: the errors of each [CheckedStratum] against the limits of a
//     [Limits].
//   - [CompareRuns] looks for drift between recordings of one machine, [Study] compares
//     forms of laws on held-out points, [LearningCurve] says whether more points would
//     help.
//   - [Adaptive] chooses the next points of a running calibration (profile.Chooser).
//
// # Where to begin
//
//	d := fit.NewData()
//	err := d.Add("h100.rec.jsonl", file)
//	profile, err := fit.Fit(d, fit.Defaults())
//	report, err := fit.Check(profile, d, d.Held(profile.Holdout.Seed, profile.Holdout.Share), fit.DefaultLimits())
//
// fit.go runs a fit; form.go and laws.go list the forms of law that are tried and choose
// between them by cross-validation. Attention and GEMM on GPUs are a physical core
// (attention_core*.go, gemm_core*.go) times a correction learnt from its residuals, a
// Gaussian process on a lattice (field*.go); of packed documents the core stands alone,
// where it predicts better than a linear law (attention_packed.go). Collectives are
// curves over bytes (curve*.go) and over group size (steps.go). Everything else is a sum
// of non-negative physical terms (linear.go, sum.go).
package fit
