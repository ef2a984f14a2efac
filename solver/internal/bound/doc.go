// Package bound proves a time that no layout can beat. It knows the laws and the job, and no
// strategy.
//
// The ranks that take part are one alone, several of one node, or some of several nodes
// and of certain device types; and their number lies in a certain range (see scope). The
// bound is the least over all these cases. In each case let F and B be the time of a
// layer's forward and backward pass, including what they do not hide of the exchange of
// gradients and parameters. The step then takes
//
//	micro layers (F + [recomputed] F + B) + micro loss + open exchange + optimizer
//
// where micro is the number of micro-batches. F, B and the loss each last until the
// slowest rank is done. Two floors follow, of which the larger counts: that of the
// slowest rank in each stage by itself, and that of a single rank over all stages, which
// cannot exceed the sum of the slowest. With two or more micro-batches these may go
// through the layers in pairs (costmodel.Schedule.TwoBatch): all-to-alls then occupy ports
// but no rank's computing, and members of a group wait less for each other. F and B are
// then half the time of a pair.
//
// Each floor is the optimum of a small program over shares of tokens and of (query, key,
// head) triples (leastWork), with lower bounds
//
//   - on linear work: what the laws charge for the tokens (linearFloor);
//   - on attention: the best rate of the kernels on blocks no larger, and with no more
//     heads, than the rank has in all, including the merging of results (attentionFloor);
//   - on communication: what has to pass the ports of a rank, exposed or hidden behind
//     attention (border), and what all ports together carry besides gradients and
//     parameters, or the network cards of nodes whose ranks share them (ports);
//   - on memory: what tokens and heads need at least (memoryFloor).
//
// Ranks that form a single group have a floor of their own (oneGroup): the causal square
// of all tokens by whole heads, and all-to-alls at their price. It is within about a
// percent of the time of equal ranks.
//
// Not bounded, so that plans of several groups stay further above: that a rank has both
// squares on the diagonal and rectangles, of which one may run at a lower rate; waiting
// for the first and the last block of a ring; which links are inside a node, except for
// collectives and single groups; and of network cards that ranks share, what one of them
// carries beyond the mean, and what a single group loses by them.
//
// # Where to begin
//
// [Lower] in bound.go. scope.go and choices.go list the cases; ring.go bounds layouts of
// several groups and group.go those of a single one, both by work.go, with border.go, ports.go
// and exchange.go for what has to be sent. floors.go, linear.go, attention.go, memory.go and
// wire.go are the floors of single resources, which they are made of.
//
// # Vocabulary
//
//   - floor: a lower bound of the time that some part of the work takes.
//   - scope: a set of ranks, of which a layout that a bound is for uses some.
//   - border: what has to pass between a rank and all others.
package bound
