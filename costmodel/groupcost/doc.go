// Package groupcost prices groups of devices that train unequal sequences side by side:
// which kinds of groups (classes) a cluster has, how many tokens each can hold, and how
// much time a sequence adds to a group.
//
// A group of a class trains the sequences s_1, s_2, ... of a micro-batch in the time
//
//	Base + Σ Time(s_k),    Σ s_k <= Cap
//
// with Base and Time in seconds and Cap in tokens. Planners of batches need this additive
// form, since moving a sequence then changes two sums only.
//
// # Main types
//
//   - [Costs] are the classes of a cluster with their prices. A [Class] is a kind of
//     group, made of devices of one or more [Pool]s of equal devices.
//   - [FromLaws] makes costs from the fitted laws of an equal or a mixed cluster, by
//     simulating packed documents (costmodel.Packer).
//   - [Costs.Parts] are of some of the cluster's nodes alone, the others left out.
//   - [Document] is a published cost model with its own coefficients ([AllToAll] of
//     FlexSP, [Flexible] of FCP), so that comparisons use the published numbers;
//     [Document.Costs] makes costs from it.
//
// Begin with [FromLaws] in laws.go; mixes.go lists classes of several device types,
// mechanism.go chooses between ring and all-to-all for each, measure.go prices them,
// published.go holds the documents.
package groupcost
