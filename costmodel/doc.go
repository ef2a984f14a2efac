// Package costmodel predicts how long a training step takes and how much memory it needs.
// It evaluates the fitted laws of a profile, predicts the peak memory of every rank, and
// simulates a step event by event. Every strategy and every baseline is judged by this
// one simulator.
//
// The package is pure: it never measures, fits or plans, and it touches no files, clocks
// or random numbers. Times are in seconds (units.Seconds), sizes in bytes, lengths in
// tokens.
//
// # Main types
//
//   - [Profile] is the document that package fit writes: a [Law] for each op on each
//     device type or group of devices, and what was measured of memory and of overlap.
//   - [Predictor] indexes a profile's laws and answers for single ops: [Predictor.Time]
//     for an op on a device, [Predictor.Over] for a collective over a class of links.
//   - [Cluster] and [Model] say on what and what is trained, [Job] adds the sequence
//     length, precision, recomputation and ZeRO stage.
//   - [Layout] says which rank owns which tokens and which heads. [ZigZag], [ZigZagTiers]
//     and [Contiguous] build layouts from token counts.
//   - [Simulate] and [Simulator] predict the step of a job under a layout as a
//     [Step]: its makespan with interval and source, the parts along the critical path,
//     each rank's busy, exposed and idle time, and its [Memory].
//   - [Packer] does the same for micro-batches of packed documents, [Simulator.Supposing]
//     for the part of a step that package replay runs.
//
// # Where to begin
//
//	q := costmodel.NewPredictor(profile)
//	layout := costmodel.ZigZag(tokens, costmodel.Singles(tokens, model.QHeads)) // ring attention
//	step, err := costmodel.Simulate(q, job, layout, costmodel.SimOptions{})
//
// A law is evaluated in law.go, with one file each for the larger bodies (curve.go,
// attention_core.go, gemm_core.go) and field.go for the correction of a core. The
// simulation of one layer is in layer.go and the files layer_*.go; sim.go puts layers
// together to a step, and step.go accounts for it. Prices of tasks are looked up once per
// shape (prices.go, coster.go). Memory is in memory.go, the error of a prediction in
// account.go, combined.go and doubt.go.
package costmodel
