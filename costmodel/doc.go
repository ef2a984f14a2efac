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
//     and [Contiguous] build layouts from token counts. Its [Schedule] says how it is run:
//     what comes first, and what moves meanwhile.
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
//
// # Vocabulary of the simulator
//
//   - seat: a rank's place in a layout, with its tokens and heads. Ranks without tokens
//     and heads have none.
//   - group: the seats that share tokens and split heads by all-to-all. A group's place in
//     the ring is its index in Layout.Groups.
//   - block: the keys and values of one group (in the backward pass also their gradients),
//     which travel round the ring. A group's own block never leaves it before it is used.
//   - step: the attention of all groups on one block each; at step t group g has the block
//     of group g-t. Hop t carries that block from group g to group g+1.
//   - own last: in the backward pass a group takes its own block last instead of first.
//   - near and reach: how many groups behind a block's owner the first and the last group
//     that needs the block are. Home is the message from that last one to the owner.
//   - outside the ring: linear work and all-to-alls before and after it.
//   - pre and post: linear work before attention (norm, projection of queries, keys and
//     values) and after it (output projection, MLP).
//   - egress and ingress: a rank's ports, one for each direction, each of which carries one
//     message at a time.
//   - exposed: time in which a rank waits for bytes. Idle is time in which it waits for
//     other ranks.
//   - beside: computing while messages move, which slows both (OverlapFact).
//   - in twos: micro-batches that go through a layer in pairs, so that one computes while
//     the other's all-to-alls move (Schedule.TwoBatch). To weave is to have their rings take
//     turns, step by step.
//   - chunk: a part of the heads of the only group, computed while the all-to-alls of the
//     other chunks move (Schedule.HeadChunks).
//   - form and relation: what the time of attention depends on besides device and heads:
//     the lengths of a shard's segments, and how two shards lie to one another.
//   - price: the time of one task by the laws, cached by row (who) and column (which block).
//   - strip: the prices of a few successive steps, laid out for the processor's cache.
//   - fold: to simulate one member of each group of a long ring for all that do the same.
//   - stage: a stretch of the step at whose end all ranks meet.
//   - account: times by law, from which intervals are made.
package costmodel
