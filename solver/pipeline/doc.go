// Package pipeline plans a batch of unequal sequences on stages of devices: which layers each
// stage has, into which chunks the sequences are cut and packed, in which order every stage
// computes them, and which layers are computed again in the backward pass.
//
//   - Problem is the batch and what chunks of it take (package costmodel/pipeline), and Solve
//     runs all strategies on it, with a lower bound beside them.
//   - Strategies: what people run today (sequence parallelism without a pipeline, 1F1B with
//     whole sequences, Seq1F1B), InfiniPipe as published (Wang et al., arXiv 2509.21275), and
//     ours, with unequal stages for unequal devices.
//   - Bound is a time that no plan beats.
//   - Check verifies a plan by itself, and shares no code with any strategy.
package pipeline
