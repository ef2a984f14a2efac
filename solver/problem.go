package solver

import (
	"context"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/internal/baseline"
	"github.com/evenkeel/evenkeel/solver/internal/bound"
	"github.com/evenkeel/evenkeel/solver/internal/strategy"
)

// Problem is a job on the devices of a profile, which NewProblem sets for good: only Take and
// Effort may be set afterwards. It keeps what was simulated, so it is not safe for concurrent
// use.
type Problem struct {
	Job       costmodel.Job
	Profile   *costmodel.Profile
	Predictor *costmodel.Predictor
	// Take names the strategy whose plan Solve returns however the others compare; empty
	// leaves the choice to Solve.
	Take string
	// Effort above 1 adds a second search with Effort times the usual work. It starts
	// afresh, and the better result of the two counts, so that no plan gets slower by it. At
	// most MostEffort.
	Effort float64

	posed *strategy.Problem // as strategies see it
	lower units.Seconds     // its lower bound, once asked for
}

// MostEffort bounds Problem.Effort.
const MostEffort = strategy.MostEffort

// NewProblem checks that a job can be planned on the devices of a valid
// profile. The job's cluster must be resolved (costmodel.Cluster.Resolve).
//
// Errors: an invalid job, a device type the profile lacks or whose capacity it
// does not know, fewer tokens than ranks, or the laws that any plan on
// this cluster would need and nobody measured, as *costmodel.MissingLawError.
func NewProblem(profile *costmodel.Profile, job costmodel.Job) (*Problem, error) {
	posed, err := strategy.New(profile, job)
	if err != nil {
		return nil, err
	}
	return &Problem{Job: job, Profile: profile, Predictor: posed.Predictor, posed: posed}, nil
}

// LowerBound is a time that no layout which fits the devices can beat in the simulator,
// whatever its split of tokens and heads, its groups and their ring, its choice of ranks,
// and its segments.
//
// Errors: *costmodel.MissingLawError.
func LowerBound(p *Problem) (units.Seconds, error) {
	if p.lower == 0 {
		lower, err := bound.Lower(p.Profile, p.Predictor, p.Job)
		if err != nil {
			return 0, err
		}
		p.lower = lower
	}
	return p.lower, nil
}

// Price is the account of a step under a layout of the caller's, in the ranks of the job's
// cluster: what the plan of that layout would say.
//
// Errors: a layout that the problem cannot have, *costmodel.MissingLawError, or ctx's.
func (p *Problem) Price(ctx context.Context, l costmodel.Layout) (*costmodel.Step, error) {
	if err := l.Validate(p.Job.SeqLen, len(p.posed.Ranks), p.Job.Model.QHeads); err != nil {
		return nil, err
	}
	return p.posed.Simulate(ctx, l)
}

// Overfull says by how much a layout exceeds the memory of the rank that it exceeds most; nil if
// it fits.
func (p *Problem) Overfull(l costmodel.Layout) error {
	if e := p.posed.Overfull(l); e != nil {
		return e
	}
	return nil
}

// Progress is the state of a running strategy.
type Progress struct {
	Strategy  string
	Evaluated int           // layouts simulated so far
	Best      units.Seconds // step time of the best layout that fits; 0 while there is none
}

// inHaste puts the ring behind the other baselines where time is given and many ranks take it to
// simulate one: it is the slowest plan of all there, and the time would be up after it.
func inHaste(ctx context.Context, p *strategy.Problem, todo []strategy.Strategy) []strategy.Strategy {
	at := slices.IndexFunc(todo, func(s strategy.Strategy) bool { return s.Name() == baseline.Ring{}.Name() })
	if _, hurry := ctx.Deadline(); at < 0 || !hurry || !strategy.Costly(p.EqualRing()) {
		return todo
	}
	ring, all := todo[at], slices.Delete(slices.Clone(todo), at, at+1)
	behind := at
	for behind < len(all) && all[behind].Claims().Baseline {
		behind++
	}
	return slices.Insert(all, behind, ring)
}

// solveEach solves strategies one after the other, and returns why some were skipped.
func (p *Problem) solveEach(ctx context.Context, in ordered, todo []strategy.Strategy, report func(Progress)) (found []strategy.Attempt, skipped []string, err error) {
	in.Effort = p.Effort
	var tell func(strategy.Progress)
	if report != nil {
		tell = func(x strategy.Progress) { report(Progress(x)) }
	}
	found, skipped, err = strategy.SolveEach(ctx, in.Problem, inHaste(ctx, in.Problem, todo), tell)
	place := func(a strategy.Attempt) int {
		return slices.IndexFunc(todo, func(s strategy.Strategy) bool { return s.Name() == a.Strategy.Name() })
	}
	slices.SortStableFunc(found, func(a, b strategy.Attempt) int { return place(a) - place(b) })
	return found, skipped, err
}
