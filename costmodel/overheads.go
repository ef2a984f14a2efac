package costmodel

import "github.com/evenkeel/evenkeel/internal/units"

// Overheads is what a step on a whole cluster takes beside the passes of its
// micro-batches: the exchange of parameters and gradients among all its devices,
// which does not depend on how they are grouped for attention, and the optimizer.
type Overheads struct {
	MicroBatch units.Seconds // of each micro-batch
	Step       units.Seconds // once
	// Hidden is what of a micro-batch's exchange hides behind its layers where
	// the job overlaps the two; a micro-batch cannot be shorter.
	Hidden units.Seconds
}

// Overheads predicts them for all devices of a job's cluster. Of the job, SeqLen,
// Recompute and Accumulate do not count.
//
// Errors: an invalid job, a device that the profile lacks, or the first missing
// law as *MissingLawError.
func (q *Predictor) Overheads(j Job) (Overheads, error) {
	ones := make([]units.Tokens, len(j.Cluster.Ranks()))
	for r := range ones {
		ones[r] = 1
	}
	j.SeqLen, j.Accumulate = 1, 0
	s, err := newSim(q, j)
	if err != nil {
		return Overheads{}, err
	}
	s.layout = ZigZag(ones, Singles(ones, j.Model.QHeads))
	if err := s.seat(); err != nil {
		return Overheads{}, err
	}
	var o Overheads
	if len(s.seats) > 1 {
		for _, c := range j.Exchanges() {
			o.add(s, c)
		}
	}
	var slowest units.Seconds
	for i := range s.seats {
		slowest = max(slowest, s.optimizer(s.seats[i].device, len(s.seats), nil))
	}
	o.Step += slowest
	return o, s.err
}

// add books one collective: see sim.exchange.
func (o *Overheads) add(s *sim, c Exchange) {
	one, rest := s.collective(c, s.oneNode(), s.membersOf(0, len(s.seats)), nil)
	layers := units.Seconds(s.job.Model.Layers)
	open, hidden := layers*one+rest, units.Seconds(0)
	if s.job.OverlapZero && c.When != AtTheEnd {
		open, hidden = one+rest, (layers-1)*one
	}
	if c.When.EachMicroBatch() {
		o.MicroBatch += open
		o.Hidden += hidden
	} else { // once a step: what hides, hides behind the last micro-batch alone
		o.Step += open
	}
}
