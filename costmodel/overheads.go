package costmodel

import "github.com/evenkeel/evenkeel/internal/units"

// Overheads is the time of a step on a whole cluster outside its micro-batches' passes:
// the exchange of parameters and gradients among all devices, which does not depend on
// how they are grouped for attention, and the optimizer.
type Overheads struct {
	MicroBatch units.Seconds // exposed in every micro-batch
	Step       units.Seconds // exposed once a step
	// Hidden is the part of a micro-batch's exchange that overlaps with the passes of its layers
	// where the job overlaps the two: with both passes, or with the backward pass alone. The
	// micro-batch is longer by what these are too short for.
	Hidden     units.Seconds
	BothPasses bool
	// Behind is the part of the exchange once a step that overlaps with the backward pass of
	// the last micro-batch's layers, where the job overlaps the two: gradients are reduced
	// once the last micro-batch has added its own. The step is longer by what that pass is
	// too short for.
	Behind units.Seconds
	Update units.Seconds // the part of Step that is the optimizer's
	// Accounts hold the first four times with their errors.
	Accounts struct{ MicroBatch, Step, Hidden, Behind *Step }
}

// overheads adds to Overheads the account of each time, law by law.
type overheads struct {
	Overheads
	micro, step, hidden, behind account
}

// Overheads predicts the overheads of a step in which all devices of the job's cluster
// take part. It ignores the job's SeqLen, Recompute and Accumulate.
//
// Errors: an invalid job, a device that the profile lacks, or what laws are missing,
// as of Simulate.
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
	var o overheads
	if len(s.seats) > 1 {
		for _, c := range j.Exchanges() {
			o.add(s, c)
		}
	}
	var slowest units.Seconds
	var update account
	for _, device := range s.deviceTypes() {
		var acc account
		if t := s.optimizer(device, len(s.seats), &acc); t > slowest {
			slowest, update = t, acc
		}
	}
	o.Step += slowest
	o.Update = slowest
	o.step.merge(update, 1)
	o.Accounts.MicroBatch, o.Accounts.Step = s.timeOf(o.micro), s.timeOf(o.step)
	o.Accounts.Hidden, o.Accounts.Behind = s.timeOf(o.hidden), s.timeOf(o.behind)
	return o.Overheads, s.err
}

// add books one collective: see sim.exchange.
func (o *overheads) add(s *sim, c Exchange) {
	var acc account
	one, rest := s.collective(c, s.oneNode(), s.membersOf(0, len(s.seats)), &acc)
	layers := units.Seconds(s.job.Model.Layers)
	open, hidden := layers*one+rest, units.Seconds(0)
	if s.job.OverlapZero && c.When != AtTheEnd {
		open, hidden = one+rest, (layers-1)*one
	}
	times := func(t units.Seconds) float64 { return float64(t / (one + rest)) }
	if c.When.EachMicroBatch() {
		o.MicroBatch += open
		o.Hidden += hidden
		o.BothPasses = o.BothPasses || c.When == InForward
		o.micro.merge(acc, times(open))
		o.hidden.merge(acc, times(hidden))
	} else {
		o.Step += open
		o.Behind += hidden
		o.step.merge(acc, times(open))
		o.behind.merge(acc, times(hidden))
	}
}

// timeOf makes a step of an account's time and errors.
func (s *sim) timeOf(a account) *Step {
	sides := []side{{laws: a.byLaw(1)}}
	return &Step{Time: interval(a.mid(), s.worst, sides), sides: sides}
}
