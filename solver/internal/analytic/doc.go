// Package analytic is a model of a layout's time in closed formulas, for layouts that are too
// many to be simulated. hexiseq scores its candidates by it, usp leaves out what it finds
// hopeless, and evenkeel's estimates are made of its parts.
//
//   - [Model] has the laws of a problem by device type and link: [Model.LinearTime] prices a
//     layer's linear work, [Model.Block] and [Model.WholeBlock] attention, a [Link] messages.
//   - [Crew] is an all-to-all group; a [Pricer] finds the [Cost] of its [Share] while blocks
//     of other groups are [Passing] by.
//   - [Model.Layout] is the time of a whole layout.
package analytic
