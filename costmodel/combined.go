package costmodel

import (
	"maps"
	"math"
	"slices"

	"github.com/evenkeel/evenkeel/internal/units"
)

// Brief is the account of what the last call of Passes simulated: the step's time, its
// parts and its error. With recomputed every layer's forward pass runs once more in the
// backward pass; with ownLast the backward pass takes blocks in the order of
// Schedule.OwnLast. The source is the worst of all laws that the packer has used so far.
//
// Errors: a missing law.
func (p *Packer) Brief(recomputed, ownLast bool) (*Step, error) {
	s := p.sim
	s.layout.OwnLast = ownLast
	s.lengthOnly = false
	defer func() { s.layout.OwnLast, s.contended = false, false }()
	p.simulate(recomputed)
	step := s.brief(s.allSpent())
	if len(s.groups) > 1 && len(s.neverBeside()) > 0 {
		free := s.length()
		s.contended = true
		p.simulate(recomputed)
		step.Contention = max(0, s.length()-free)
		step.Time.Hi = reachingUp(step.Time, step.Contention)
	}
	return step, s.err
}

// simulate books the stages of a micro-batch, without what is exchanged beside it.
func (p *Packer) simulate(recomputed bool) {
	s, layers := p.sim, float64(p.sim.job.Model.Layers)
	s.stages, s.alone = s.stages[:0], 1
	for back := range s.layers {
		s.layers[back].run(s, back == 1, false)
	}
	s.addLayers(&s.layers, 0, layers, linearForward, attentionForward)
	s.addLocal(lossPart, 1, s.lossTime)
	if recomputed {
		s.addLayers(&s.layers, 0, layers, recompute, recompute)
	}
	s.addLayers(&s.layers, 1, layers, linearBackward, attentionBackward)
}

// reachingUp is the upper end of an estimate's interval once possible contention is added
// to it in quadrature.
func reachingUp(e Estimate, contention units.Seconds) units.Seconds {
	return e.Mid + units.Seconds(math.Hypot(float64(e.Hi-e.Mid), float64(contention)))
}

// Scaled returns a step of another most likely time mid, with this step's errors in
// proportion. Only time, interval and errors are carried over, not ranks or traffic.
func (s *Step) Scaled(mid units.Seconds) *Step {
	if !(s.Time.Mid > 0) {
		return &Step{Time: Estimate{mid, mid, mid, s.Time.Source}}
	}
	factor := mid / s.Time.Mid
	out := &Step{Time: s.Time.Times(float64(factor)), Contention: factor * s.Contention}
	out.Time.Mid = mid
	for _, x := range s.sides {
		laws := map[*Law]Estimate{}
		for l, e := range x.laws {
			laws[l] = e.Times(float64(factor))
		}
		out.sides = append(out.sides, side{laws, factor * x.slack})
	}
	for _, x := range s.turns {
		out.turns = append(out.turns, x.Scaled(factor*x.Time.Mid))
	}
	return out
}

// SideBySide is the time of steps that start together and end when the longest ends, none
// of them made by InTurn. An error that would make a shorter step the longest one counts
// as far as it exceeds the longest's time.
func SideBySide(steps ...*Step) *Step {
	longest := steps[0]
	for _, s := range steps {
		if s.Time.Mid > longest.Time.Mid {
			longest = s
		}
	}
	out := &Step{}
	var source Source
	for _, s := range steps {
		slack := longest.Time.Mid - s.Time.Mid
		out.Contention = max(out.Contention, s.Contention-slack)
		source = source.Worse(s.Time.Source)
		sides := make([]side, len(s.sides))
		for i, x := range s.sides {
			sides[i] = side{x.laws, x.slack + slack}
		}
		if s == longest {
			out.sides = append(sides, out.sides...)
		} else {
			out.sides = append(out.sides, sides...)
		}
	}
	out.Time = Estimate{longest.Time.Mid, longest.Time.Mid, longest.Time.Mid, source}
	if len(out.sides) > 0 {
		out.Time = interval(longest.Time.Mid, source, out.sides)
	}
	out.Time.Hi = reachingUp(out.Time, out.Contention)
	return out
}

// InTurn is the time of steps that run one after the other. A law's error is the same in
// all of them, so its contributions add up linearly and do not cancel.
func InTurn(steps ...*Step) *Step {
	out := &Step{turns: steps}
	lessOf := map[string]units.Seconds{}
	for _, s := range steps {
		out.Time.Mid += s.Time.Mid
		out.Time.Source = out.Time.Source.Worse(s.Time.Source)
		out.Contention += s.Contention
		s.addShorter(lessOf)
	}
	less, more, reasons := 0.0, 0.0, out.reasons()
	for _, of := range slices.Sorted(maps.Keys(reasons)) {
		more = math.Hypot(more, float64(reasons[of].more))
	}
	for _, of := range slices.Sorted(maps.Keys(lessOf)) {
		less = math.Hypot(less, float64(lessOf[of]))
	}
	out.Time.Lo, out.Time.Hi = out.Time.Mid-units.Seconds(less), out.Time.Mid+units.Seconds(more)
	out.Time.Hi = reachingUp(out.Time, out.Contention)
	return out
}

// addShorter adds, for each reason, how far it may shorten the step, by the rule that
// interval has for its lower end.
func (s *Step) addShorter(of map[string]units.Seconds) {
	if len(s.sides) > 0 {
		for _, d := range doubts(s.sides[0].laws) {
			of[d.of] += d.less
		}
	}
	for _, x := range s.turns {
		x.addShorter(of)
	}
}
