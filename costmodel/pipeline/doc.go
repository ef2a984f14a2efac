// Package pipeline prices a training step in which the layers of a model lie on stages of
// devices, one after the other, and unequal sequences go through them in chunks.
//
// # Main types
//
//   - Costs says what chunks take on stages: FromLaws makes it from the fitted laws of a
//     cluster, Published from the coefficients of a published cost model.
//   - Plan is the stages, the chunks, and the order in which every stage computes them.
//     Simulate says when each begins and ends, and Memory what every stage holds. They are the
//     only judges of a plan. Replayed predicts what replay runs of it.
//
// # Vocabulary
//
//   - stage: devices that have consecutive layers, and share every chunk among them by an
//     all-to-all over heads (Ulysses).
//   - chunk: what goes through the stages at once (a micro-batch): a slice of a long
//     sequence, whole short ones, or both.
//   - slice: consecutive tokens of a sequence. Its queries see the keys and values of the
//     slices before it, so that these come first forward and last backward.
//   - flight: chunks that have gone forward through all stages before any other begins, and
//     backward behind it; a pipeline of InfiniPipe (Wang et al., arXiv 2509.21275).
package pipeline
