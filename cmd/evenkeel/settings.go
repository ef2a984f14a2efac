package main

import (
	"github.com/evenkeel/evenkeel/costmodel"
)

// auto leaves a setting of the job to the planner.
const auto = "auto"

// settings are the problem with each value of what the flags leave open. The last one takes
// the least memory.
func (o problem) settings() []problem {
	zeros, again := []string{o.zero}, []string{o.recompute}
	if o.zero == auto {
		zeros = nil
		for _, z := range []costmodel.ZeRO{costmodel.Zero0, costmodel.Zero1, costmodel.Zero2, costmodel.Zero3} {
			zeros = append(zeros, string(z))
		}
	}
	if o.recompute == auto {
		again = []string{string(costmodel.RecomputeNone), string(costmodel.RecomputeFull)}
	}
	var all []problem
	for _, r := range again {
		for _, z := range zeros {
			one := o
			one.zero, one.recompute = z, r
			all = append(all, one)
		}
	}
	return all
}

// stages are the problem of a batch in each ZeRO stage; the last one takes the least memory.
func (o problem) stages() []problem {
	if o.recompute == auto { // each group's own choice
		o.recompute, o.recomputeGiven = string(costmodel.RecomputeNone), false
	}
	return o.settings()
}

// ofBatch is the problem of a batch: groups compute again where that is faster, but all of
// them shard their states alike.
func (o problem) ofBatch() (problem, error) {
	if o.zero == auto {
		return o, usagef("--zero auto: solve finds the stage, and serve plans in one that the job has: name zero0, zero1, zero2 or zero3")
	}
	if o.recompute == auto {
		o.recompute, o.recomputeGiven = string(costmodel.RecomputeNone), false
	}
	return o, nil
}
