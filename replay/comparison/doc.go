// Package comparison says how far a replayed trace and the predictions of a profile
// are apart, and where the difference comes from.
//
// [Read] takes a trace in, [New] compares it: stretch by stretch (joined on rank,
// micro-batch, chunk or run, layer, direction, ring step and op), step by step, plan by plan.
// It measures nothing and writes no files.
//
// # Where a difference comes from
//
// A step is as long as its longest rank takes, the critical rank c. What c
// measured, M, is
//
//	compute  stretches of attention, merging, linear parts, loss, embedding and optimizer
//	waiting  ring_wait, stage_wait, param_wait, grad_wait and all-to-alls; in a group of one,
//	         where the last move no byte and only copy, they are gaps
//	gaps     M - compute - waiting: time in no span
//
// and waiting is of two kinds, which no rank can tell apart from its own clock:
// for bytes, and for a peer that was not done. Clocks of different ranks are never
// subtracted. Instead the same simulator that predicts runs the layout again with
// every rank computing for as long as it was measured to, gaps included, and
// messages taking what they are predicted to; what c then waits for ranks that are
// not done is the skew that the peers' computing explains:
//
//	skew           = min(waiting, skew of c in that run)
//	communication  = waiting - skew
//
// The prediction P of the step has the same parts along c: its computing, its
// exposed communication, no gaps, and as skew all the rest until the last rank is
// predicted to be done. So the four differences add up to M - P exactly.
//
// The ranks of a plan of batches meet after every micro-batch. There c is the rank
// that was done last with the micro-batch, another one in each perhaps, and the
// parts are added up over them; what c itself spends in the meeting is the meeting,
// which no law knows, and is a gap. A whole step of a batch is one lap of every rank instead,
// for what is exchanged in a micro-batch goes between all its groups: its meetings are
// waiting, and c is the rank whose lap is longest.
//
// The stages of a pipeline never meet: its step is one lap of every rank, c that whose
// lap is longest, and the parts are those of the lap, from the barrier until c's own end.
// What c waits in stage_wait is for bytes as long as the message takes that it waits for,
// and before that for another stage, which is skew. So is all that c is done before the
// last stage, in the prediction. The run with measured computing is that of all stages
// on all chunks, each beginning a pass when what it needs is there.
//
// Tasks are as a pipeline: one lap of every rank. What it waits in stage_wait is for bytes from
// when the last rank was done that it needs something of, and in grad_wait from when the last
// rank of the run was; before that it is skew. Exchanges of gradients that are hidden behind
// computing are nothing that a rank waits for, and take no part in the account.
//
// Of whole steps, what c waits in param_wait and grad_wait is for bytes from when the last rank
// had asked for them; before that it is skew.
//
// M is the median over blocks. The parts are those of the block in the middle, or
// the means over the two in the middle, whose mean the median then is.
package comparison
