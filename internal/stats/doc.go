// Package stats holds the statistics that measuring and fitting share: quantiles
// and other robust summaries, the bootstrap, and non-negative and robust least
// squares.
//
// The package is pure and a leaf: no clock, no global random state, no other
// package of this module. Wherever chance is used the seed is a parameter, and
// the same arguments give the same result.
//
// Timings are skewed to the right and now and then one is absurd, so everything
// here is built on ranks or on bounded influence. Nothing deletes an outlier: an
// estimator that needs clean data is the wrong estimator for a clock.
//
// A caller's programming mistake (an empty sample, a probability outside its
// range, lengths that differ, a sample holding NaN or an infinity) panics: such a
// call has no answer, and a NaN that travels on is worse than a stack trace.
// Trouble that only the data can cause, such as a fit that does not converge, is
// an error.
package stats
