// Package profile measures: it chooses which shapes to time inside a time budget, samples
// each until its median is known well enough, guards against disturbances, and appends
// every point to a journal that survives a kill. It knows nothing of predicting; files,
// clocks and processes belong to its backends.
//
// # Main types
//
//   - [Backend] does the timed work on one kind of hardware (packages backend/cpu,
//     backend/torch, backend/sim, backend/recorded). Its [Inventory] lists device types,
//     groups and [Space]s, the families of shapes that can be measured; an [Executor]
//     runs points on one device or group.
//   - [Calibrate] runs a calibration by a [Config] and appends to a [Journal]; [DryRun]
//     says what it would measure. A [Chooser] picks further points by those measured so
//     far.
//   - A recording is JSON lines: a [Header], then [Schedule], [Point], [Resume] and [End]
//     lines. [Read] streams one to a [Visitor].
//   - [Past] is what a journal already holds when a calibration is resumed.
//
// # Where to begin
//
//	inv, err := backend.Discover(ctx)
//	outlook, err := profile.DryRun(inv, cfg)                               // what it would measure
//	err = profile.Calibrate(ctx, backend, cfg, past, journal, progress)    // measures; resumes what past holds
//
// calibrate.go is the run, choose.go and adaptive.go the choice of points, sample.go the
// stopping rules of one point, spaces.go the families of shapes, recording.go and read.go
// the file format.
package profile
