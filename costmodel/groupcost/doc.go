// Package groupcost says what groups of devices cost that train unequal
// sequences side by side: the kinds of groups there are, what each holds, and
// what a sequence adds to the time of a group.
//
// A group trains the sequences s_1, s_2, ... of a micro-batch in the time
//
//	Base + Σ Time(s_k),    Σ s_k <= Cap
//
// which is the form that planners of batches need: additive, so that moving a
// sequence changes two sums. FromLaws makes such costs from the fitted laws of a
// cluster, equal or mixed, by simulating packed documents. Document holds cost
// models that others published, with their coefficients, so that a comparison
// with them uses their numbers.
package groupcost
