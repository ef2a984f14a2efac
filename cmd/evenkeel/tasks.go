package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/evenkeel/evenkeel/costmodel"
	costs "github.com/evenkeel/evenkeel/costmodel/multitask"
	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/internal/ended"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/results"
	"github.com/evenkeel/evenkeel/solver/multitask"
)

// runTasks plans the modules of a file side by side.
func (a *app) runTasks(ctx context.Context, o problem) error {
	if err := o.goodEffort(); err != nil {
		return err
	}
	if err := multitask.Named(o.take); err != nil {
		return usagef("--take: %w", err)
	}
	if o.cluster == "" {
		return usagef("solve: --cluster is missing (see: evenkeel solve --help)")
	}
	var t costs.Tasks
	if err := doc.Load(o.tasks, &t); err != nil {
		return byHand(o.tasks, err)
	}
	prices, err := a.taskPrices(o, &t)
	if err != nil {
		return err
	}
	if o.deadline > 0 {
		var cancel context.CancelFunc
		ctx, cancel = ended.After(ctx, o.deadline, "--deadline")
		defer cancel()
	}
	begin := time.Now()
	clock := func() units.Seconds { return units.Seconds(time.Since(begin).Seconds()) }
	p := &multitask.Problem{Costs: prices.Costs, Effort: o.effort}
	d, err := multitask.Solve(ctx, p, o.take, clock, func(strategy string) { a.note("%s ...", strategy) })
	if err != nil {
		return a.taskError(ctx, o, &t, err)
	}
	d.Schema, d.Tool, d.Created = multitask.Schema, tool, prices.created
	d.Prices, d.Simulated = prices.words, prices.simulated
	d.Options = prices.options
	in, err := inputs(o.out, []string{o.tasks})
	if err != nil {
		return err
	}
	d.Inputs = append(slices.Clone(prices.inputs), in...)
	d.Notes = slices.Concat(d.Notes, prices.remarks, p.Warnings(), acrossMakers(prices.profile, d.Types()))
	if o.out != "" {
		if err := doc.Save(o.out, d); err != nil {
			return err
		}
	}
	if o.timeline != "" {
		if err := writeTo(o.timeline, func(w io.Writer) error { return results.TaskTimeline(w, d) }); err != nil {
			return err
		}
	}
	return a.print(d, func(w io.Writer) error { return results.TaskPlan(w, d) })
}

// byHand says how a file of tasks begins, which people write by hand, where it is none.
func byHand(path string, err error) error {
	data, unread := os.ReadFile(path)
	if unread != nil {
		return err
	}
	if schema, _ := doc.SchemaOf(data); schema == costs.Schema {
		return err
	}
	return fmt.Errorf("%w; a file of tasks begins with {\"schema\": %q, as those in docs/tasks do", err, costs.Schema)
}

// taskError is why there is no plan, with the ways out.
func (a *app) taskError(ctx context.Context, o problem, t *costs.Tasks, err error) error {
	if _, missing := errors.AsType[*costmodel.MissingLawError](err); missing {
		return usageError{o.orReferences(err)}
	}
	if _, infeasible := errors.AsType[*multitask.InfeasibleError](err); infeasible {
		return fmt.Errorf("%w: %s", err, a.roomFor(ctx, o, t))
	}
	return err
}

// mostTries bounds the search for ways out of too little memory, each of which takes as long as
// planning did.
const mostTries = 5 * time.Second

// roomFor tries what may make room, since what helps depends on what fills it: fewer samples have fewer
// activations, and more samples share the states of a module between more devices.
func (a *app) roomFor(ctx context.Context, o problem, t *costs.Tasks) string {
	ctx, cancel := context.WithTimeout(ctx, mostTries)
	defer cancel()
	fits := func(o problem, t *costs.Tasks) bool {
		prices, err := a.silent().taskPrices(o, t)
		if err == nil {
			_, err = multitask.Solve(ctx, &multitask.Problem{Costs: prices.Costs, Effort: o.effort}, "", func() units.Seconds { return 0 }, nil)
		}
		return err == nil
	}
	samples := func(of func(int) int) *costs.Tasks {
		other := *t
		other.Modules = slices.Clone(t.Modules)
		for i := range other.Modules {
			other.Modules[i].Batch = max(1, of(t.Modules[i].Batch))
		}
		return &other
	}
	full, more := o, o
	full.recompute = string(costmodel.RecomputeFull)
	more.cluster = o.cluster + " + " + o.cluster
	type try struct {
		way string
		o   problem
		t   *costs.Tasks
	}
	var tries []try
	if full.recompute != o.recompute {
		tries = append(tries, try{"--recompute full", full, t})
	}
	tries = append(tries,
		try{"half of batch_samples in " + o.tasks, o, samples(func(n int) int { return n / 2 })},
		try{"twice batch_samples in " + o.tasks + " (devices share the states)", o, samples(func(n int) int { return 2 * n })},
	)
	if less := o.lessFree(); less != "" {
		none := o
		none.reserve = "0%"
		tries = append(tries, try{less, none, t})
	}
	if _, err := readCluster(more.cluster); err == nil { // not of a file
		tries = append(tries, try{"twice the devices in --cluster", more, t})
	}
	var ways, all []string
	for _, x := range tries {
		fits := fits(x.o, x.t)
		if ctx.Err() != nil { // what it would have been nobody knows
			break
		}
		all = append(all, x.way)
		if fits {
			ways = append(ways, x.way)
		}
	}
	switch {
	case len(all) == 0:
		return "fewer samples or layers a module may make room, or more devices"
	case len(ways) == 0:
		return fmt.Sprintf("%s were tried and make no room; fewer layers a module may, or devices with more memory", strings.Join(all, ", "))
	}
	return "what makes room is " + strings.Join(ways, ", or ")
}

// taskPriceList is what tasks take, with where that comes from.
type taskPriceList struct {
	*costs.Costs
	words     string
	created   string // the laws' date, so that the same inputs give the same bytes
	simulated bool
	options   costs.Options // of laws
	inputs    []doc.Input
	remarks   []string
	profile   *costmodel.Profile // of laws; nil without
}

// taskPrices are the curves of a file, or laws for the shapes that it has.
func (a *app) taskPrices(o problem, t *costs.Tasks) (taskPriceList, error) {
	if t.Published() {
		if o.profile != "" {
			return taskPriceList{}, usagef("--profile %s: the modules of --tasks %s have curves of their own, which need no laws: leave it out", o.profile, o.tasks)
		}
		cluster, err := readCluster(o.cluster)
		if err != nil {
			return taskPriceList{}, err
		}
		c, err := costs.Published(t, cluster)
		if err != nil {
			return taskPriceList{}, usageError{err}
		}
		return taskPriceList{Costs: c, words: fmt.Sprintf("curves of %s, not measured by us, on %s", o.tasks, o.cluster), created: t.Created}, nil
	}
	laws, err := o.laws()
	if err != nil {
		return taskPriceList{}, err
	}
	dtype, err := o.precision(laws)
	if err != nil {
		return taskPriceList{}, err
	}
	recompute := costmodel.Recompute(o.recompute)
	if recompute != costmodel.RecomputeNone && recompute != costmodel.RecomputeFull {
		return taskPriceList{}, usagef("--recompute %s: want none or full for --tasks%s", o.recompute, insteadOf(o.recompute))
	}
	reserve, err := o.memoryReserve()
	if err != nil {
		return taskPriceList{}, err
	}
	options := costs.Options{DType: dtype, Recompute: recompute, MemoryReserve: reserve}
	c, err := costs.FromLaws(costmodel.NewPredictor(laws.profile), t, laws.cluster, options)
	if _, missing := errors.AsType[*costmodel.MissingLawError](err); missing {
		return taskPriceList{}, usageError{o.orReferences(err)} // what was given does not suffice for any plan
	}
	if err != nil {
		return taskPriceList{}, usageError{err}
	}
	a.tell(laws)
	kind := "laws"
	if laws.profile.Simulated {
		kind = "SIMULATED laws"
	}
	return taskPriceList{
		Costs: c, words: fmt.Sprintf("%s of %s on %s, %s%s", kind, orUnnamed(o.profile, "the reference profiles"), o.cluster, dtype, results.KeptFree(reserve)),
		created: laws.profile.Created, simulated: laws.profile.Simulated, options: options, inputs: laws.inputs, remarks: laws.remarks, profile: laws.profile,
	}, nil
}
