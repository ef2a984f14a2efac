// Package results is what people look at: the tables, trees and pictures of
// profiles, accuracy reports, recordings and plans.
//
// A rendering is a pure function of its document. Its first line says whether
// the numbers were MEASURED or SIMULATED; every number has its unit, its spread
// and its source beside it; nothing is wider than Width; warnings are numbered
// footnotes, once each, that end in the command which would improve them.
// Only ASCII is printed, so that a CI log shows what a terminal shows.
//
// Errors are those of the writer, unless a function says otherwise.
package results
