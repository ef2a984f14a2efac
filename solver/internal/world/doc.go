// Package world makes up devices, links, clusters and jobs for the tests of the planner, and
// tries all layouts of small ones. Only tests import it.
//
//   - [Device] and [Wire] are what a [Profile] is made of; [Problem] is a small job on a
//     cluster in shorthand, [Random] and [Small] draw one.
//   - [GPUs] is a problem of the reference profiles.
//   - [Exact] is the least time of all layouts in whole blocks; the Every functions list what
//     it tries.
package world
