// Package replay runs plans on real torch ranks and records what they did.
//
// [LoadPlans] reads plans and refuses those that cannot be run together. [Run] starts
// one process a rank, watches them and fails as a whole when one of them does:
// either every rank has finished and the trace is complete, or there is no trace
// and no process. [ReadTrace] reads a trace back, line by line.
//
// A plan of batches ([batch.Document]) runs its micro-batches one after the other,
// and in each its groups of ranks side by side; all ranks meet after each, in whole steps
// but the last.
//
// What is run of a plan is a number of transformer layers, forward and backward:
// the attention of the plan, and the linear parts around it unless they are left
// out; if asked the loss behind them ([PartsLoss]), or of one sequence or a batch a whole
// training step ([PartsStep]), with embedding, exchange of gradients and parameters, and
// optimizer.
package replay
