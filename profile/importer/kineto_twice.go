package importer

import (
	"hash/fnv"
	"slices"
)

// kernelTwice is the reason to leave out a call one of whose kernels the file holds more
// than once, as traces do that were put together of overlapping ones: the sum of its
// kernels would count that one each time.
const kernelTwice = "a kernel that the trace holds twice: the time of the call would count it twice"

// holds says whether the op has the kernel of an event already, and notes it. A stream
// runs one kernel at a time, so none of the same launch begins where another did.
func (o *traceOp) holds(e *traceEvent) bool {
	h := fnv.New64a()
	for _, f := range []field{fieldName, fieldTs, fieldDur, fieldPid, fieldTid, fieldDevice, fieldCorrelation} {
		_, _ = h.Write(e.raw[f]) // a hash takes everything
		_, _ = h.Write([]byte{'\n'})
	}
	mark := h.Sum64()
	if slices.Contains(o.marks, mark) {
		return true
	}
	if len(o.marks) < mostMarks {
		o.marks = append(o.marks, mark)
	}
	return false
}

// mostMarks is more kernels than a call of attention or of a linear layer has.
const mostMarks = 64
