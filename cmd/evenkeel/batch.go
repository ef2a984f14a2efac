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
	"github.com/evenkeel/evenkeel/costmodel/groupcost"
	"github.com/evenkeel/evenkeel/costmodel/workload"
	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/internal/ended"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/results"
	"github.com/evenkeel/evenkeel/results/profiles"
	"github.com/evenkeel/evenkeel/solver/batch"
	"github.com/spf13/cobra"
)

// sequences is what the flags of solve say of a batch of unequal sequences.
type sequences struct {
	file, column string
	size, index  int
	seed         uint64
	seedGiven    bool
	maxLen       string
	truncate     bool
	pad          string
	mipTime      time.Duration
	fast         bool
}

// priced is what the flags of solve and serve say of where prices come from.
type priced struct {
	costs, memory, context string
	devices, perNode       int
	perNodeGiven           bool
}

func (q *sequences) flags(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&q.file, "lengths", "", "plan a batch of unequal sequences instead of one long one: a file of their lengths (text, CSV, JSONL, parquet, a histogram) or a distribution such as \"lognormal:median=1000,sd=1.7,seed=7\"")
	f.StringVar(&q.column, "column", "", "of --lengths: the column that holds them (default: the one that plainly does)")
	f.IntVar(&q.size, "batch-size", 512, "of --lengths: sequences of a global batch")
	f.IntVar(&q.index, "batch", 0, "of --lengths: which batch of the file, from 0")
	f.Uint64Var(&q.seed, "lengths-seed", 0, "of a histogram: the seed that lengths are drawn with")
	f.StringVar(&q.maxLen, "max-len", "", "of --lengths: drop sequences that are longer after padding, such as 192k")
	f.BoolVar(&q.truncate, "truncate", false, "of --max-len: cut longer sequences instead of dropping them")
	f.StringVar(&q.pad, "pad", "128", "of --lengths: pad each sequence to a multiple of so many tokens")
	f.DurationVar(&q.mipTime, "mip-time", 10*time.Second, "of --lengths: processor time that flexsp's solver, with --pipeline infinipipe's, has for each of its programs (on systems other than Linux, time on the wall)")
	f.BoolVar(&q.fast, "fast", false, "of --lengths: leave out what may take minutes: flexsp, and of large batches a part of the search for a lower bound")
}

// flags are alike for solve and serve, but for the longest context unless it is given.
func (o *priced) flags(c *cobra.Command, longest string) {
	f := c.Flags()
	f.StringVar(&o.costs, "costs", "", "plan with a published cost model of groups instead of laws: "+strings.Join(publishedCosts(), ", "))
	f.IntVar(&o.devices, "devices", 64, "of --costs: devices of the cluster")
	f.IntVar(&o.perNode, "per-node", 8, "of --costs: devices of a node, or all where there are fewer")
	f.StringVar(&o.memory, "memory", "30GiB", "of --costs: memory that a device may use (fcp has a budget of tokens instead)")
	f.StringVar(&o.context, "context", "", "of --costs: the longest context of the model (default: "+longest+")")
}

func publishedCosts() []string {
	var names []string
	for _, g := range profiles.GroupCosts() {
		names = append(names, g.Name)
	}
	return names
}

// priceList is costs with where they come from.
type priceList struct {
	*groupcost.Costs
	words     string
	created   string         // when the laws or published prices were written
	zero      costmodel.ZeRO // of laws, with overlap
	overlap   bool
	assumed   bool
	simulated bool
	inputs    []doc.Input
	remarks   []string
	profile   *costmodel.Profile // of laws; nil without
	beyond    string             // why nothing longer than Costs.Longest is planned
}

// published makes the costs of a published model.
func (o priced) published(maxLen units.Tokens) (priceList, error) {
	g, err := profiles.LookupGroupCost(o.costs)
	if err != nil {
		return priceList{}, usagef("--costs: %w", err)
	}
	memory, err := units.ParseBytes(o.memory)
	if err != nil {
		return priceList{}, usagef("--memory: %w", err)
	}
	context, stated := units.Tokens(384000), "by default is"
	if maxLen > 0 {
		context, stated = maxLen, "by --max-len is"
	}
	if o.context != "" {
		stated = "that --context states is"
		if context, err = units.ParseTokens(o.context); err != nil {
			return priceList{}, usagef("--context: %w", err)
		}
	}
	perNode := o.perNode
	if !o.perNodeGiven {
		perNode = min(perNode, max(1, o.devices))
	}
	c, err := g.Model.Costs(groupcost.Parameters{Devices: o.devices, PerNode: perNode, Memory: memory, Context: context})
	if err != nil {
		return priceList{}, usagef("--costs %s: %w", o.costs, err)
	}
	holds := fmt.Sprintf("%s usable memory, context %d", memory, int64(context))
	if f := g.Model.Flexible; f != nil {
		holds = units.Count(f.Budget, "token")
	} else if slices.ContainsFunc(c.Classes, func(k groupcost.Class) bool { return k.Cap > context }) {
		c.Longest = context // else the devices hold no more than that anyway
	}
	beyond := fmt.Sprintf("the context %s %d", stated, int64(context))
	if o.context == "" {
		beyond += " (--context states another)"
	}
	words := fmt.Sprintf("%s (%s), published, not measured by us; %s of %s", g.Name, g.Model.Title, units.Count(o.devices, "device"), holds)
	return priceList{Costs: c, words: words, created: g.Model.Created, inputs: []doc.Input{g.Input}, remarks: g.Model.Warnings, beyond: beyond}, nil
}

// fromLaws makes the costs of a cluster and model from laws, for a batch of the given
// lengths, or any where there are none.
func (a *app) fromLaws(ctx context.Context, o problem, lengths []units.Tokens) (priceList, error) {
	for _, f := range [][2]string{{"--cluster", o.cluster}, {"--model", o.model}} {
		if f[1] == "" {
			return priceList{}, usagef("%s is missing; or name a published cost model with --costs", f[0])
		}
	}
	o, err := o.ofBatch()
	if err != nil {
		return priceList{}, err
	}
	o.seqLen, o.batch = "1k", true // a job has one; costs are of every length
	laws, err := o.laws()
	if err != nil {
		return priceList{}, err
	}
	job, err := o.job(laws)
	if err != nil {
		return priceList{}, err
	}
	a.tell(laws) // pricing may take a minute
	options := groupcost.Options{}
	switch job.Recompute {
	case costmodel.RecomputeFull:
		options.Recompute = true
	case costmodel.RecomputeNone:
		options.NoRecompute = o.recomputeGiven
	}
	q := costmodel.NewPredictor(laws.profile)
	options.Of = equal(lengths)
	c, err := groupcost.FromLaws(ctx, q, job, options)
	if err != nil && options.Of.Tokens > 0 { // the prices of any length say what is too long
		options.Of = costmodel.Documents{}
		c, err = groupcost.FromLaws(ctx, q, job, options)
	}
	var missing *costmodel.MissingLawError
	switch {
	case errors.As(err, &missing): // what was given does not suffice for any plan, as of one sequence
		return priceList{}, usageError{o.orReferences(err)}
	case err != nil:
		return priceList{}, err
	}
	in, err := inputs(o.out, []string{o.model})
	if err != nil {
		return priceList{}, err
	}
	return priceList{
		Costs: c, words: fmt.Sprintf("%s, %s", o.lawWords(laws, job), job.Zero), created: laws.profile.Created, zero: job.Zero, overlap: job.OverlapZero,
		assumed: laws.references, simulated: laws.profile.Simulated,
		inputs: append(slices.Clone(laws.inputs), in...), remarks: slices.Concat(o.ofConfig(lengths), laws.remarks), profile: laws.profile, beyond: job.Model.TooLong(),
	}, nil
}

// lawWords says whose laws prices are by, and of what.
func (o problem) lawWords(laws known, job costmodel.Job) string {
	kind := "laws"
	if laws.profile.Simulated {
		kind = "SIMULATED laws"
	}
	return fmt.Sprintf("%s of %s on %s for %s, %s%s", kind, orUnnamed(o.profile, "the reference profiles"), o.cluster, orUnnamed(job.Model.Name, o.model), job.DType, results.KeptFree(job.MemoryReserve))
}

// equal is sequences that are as long as one another, nothing where they are not.
func equal(lengths []units.Tokens) costmodel.Documents {
	if len(lengths) == 0 || slices.Min(lengths) != slices.Max(lengths) {
		return costmodel.Documents{}
	}
	return costmodel.Documents{Tokens: lengths[0], Count: len(lengths)}
}

func orUnnamed(name, other string) string {
	if name == "" {
		return other
	}
	return name
}

// read is all lengths of the file or distribution, shaped.
func (q sequences) read(a *app) (workload.Shaped, units.Tokens, error) {
	shape := workload.Shape{Truncate: q.truncate}
	var err error
	if q.maxLen != "" {
		if shape.Limit, err = units.ParseTokens(q.maxLen); err != nil {
			return workload.Shaped{}, 0, usagef("--max-len: %w", err)
		}
	}
	if shape.Multiple, err = units.ParseTokens(q.pad); err != nil {
		return workload.Shaped{}, 0, usagef("--pad: %w", err)
	}
	if shape.Limit > 0 && shape.Limit < shape.Multiple {
		return workload.Shaped{}, 0, usagef("--max-len %s: below --pad %s, to a multiple of which every sequence is padded: no sequence is left; raise the one or lower the other", q.maxLen, q.pad)
	}
	if err := shape.Validate(); err != nil {
		return workload.Shaped{}, 0, usagef("--max-len, --pad: %w", err)
	}
	if q.size < 1 || q.index < 0 {
		return workload.Shaped{}, 0, usagef("--batch-size %d, --batch %d: want at least 1 and 0", q.size, q.index)
	}
	if q.size > workload.MaxLengths || q.index > workload.MaxLengths/q.size-2 {
		return workload.Shaped{}, 0, usagef("--batch-size %d, --batch %d: beyond the first %d lengths", q.size, q.index, workload.MaxLengths)
	}
	draw, err := q.source()
	if err != nil {
		return workload.Shaped{}, 0, err
	}
	need := q.size * (q.index + 1)
	lengths := draw(need + q.size)
	s := shape.Apply(lengths)
	// Some may be dropped, and a source that is drawn from has more.
	for len(s.Lengths) < need && 2*len(lengths) <= min(mostDrawn*need, workload.MaxLengths) {
		more := draw(2 * len(lengths))
		if len(more) <= len(lengths) {
			break
		}
		lengths, s = more, shape.Apply(more)
	}
	if s.Dropped == len(lengths) {
		return s, 0, usagef("--max-len %s: no sequence is that short once padded, of %d: raise it, or cut them with --truncate", q.maxLen, len(lengths))
	}
	if s.Dropped > 0 {
		a.note("dropped, for they are longer than %s: %d of %s", shape.Limit, s.Dropped, units.Count(len(lengths), "sequence"))
	}
	if s.Truncated > 0 {
		a.note("cut to %s: %s, which lose %s tokens", shape.Limit, units.Count(s.Truncated, "sequence"), s.Cut)
	}
	return s, shape.Limit, nil
}

// mostDrawn is how many times as many lengths as are wanted are drawn at most, where
// the others are dropped.
const mostDrawn = 64

// source gives the first so many lengths of a distribution or a histogram, or all
// that a file lists.
func (q sequences) source() (func(n int) []units.Tokens, error) {
	if _, err := os.Stat(q.file); errors.Is(err, os.ErrNotExist) {
		d, unknown := workload.ParseDistribution(q.file)
		if unknown != nil {
			err := fmt.Errorf("--lengths %q: no such file; nor a distribution: %w", q.file, unknown)
			if namedLikeFile(q.file) && !isDistribution(q.file) {
				return nil, err
			}
			return nil, usageError{err}
		}
		switch {
		case q.column != "":
			return nil, usagef("--column %s: --lengths %s is a distribution, which has no columns: leave it out", q.column, q.file)
		case q.seedGiven:
			return nil, usagef("--lengths-seed %d: is of a histogram; --lengths %s draws with a seed of its own: %s", q.seed, q.file, d)
		}
		return d.Lengths, nil
	}
	sample, err := loadSample(q.file, q.column)
	if err != nil {
		return nil, err
	}
	if h := sample.Histogram; h != nil {
		return func(n int) []units.Tokens { return h.Draw(n, q.seed) }, nil
	}
	if q.seedGiven {
		return nil, usagef("--lengths-seed %d: is of a histogram, and %s lists lengths one by one: leave it out", q.seed, q.file)
	}
	return func(int) []units.Tokens { return sample.Lengths }, nil
}

// batchOf is the lengths of a batch, with the longest of all that it is taken from, and the
// limit that these have; 0 is none. rows are the lengths' places in the file or distribution,
// nil where they are its first ones.
type batchOf struct {
	lengths        []units.Tokens
	rows           []int
	longest, limit units.Tokens
}

// batch is the one that the flags ask for.
func (q sequences) batch(a *app) (batchOf, error) {
	shaped, limit, err := q.read(a)
	if err != nil {
		return batchOf{}, err
	}
	size := min(q.size, max(1, len(shaped.Lengths)))
	lengths, err := workload.Batch(shaped.Lengths, size, q.index)
	if err != nil {
		return batchOf{}, usagef("--batch %d: %w", q.index, err)
	}
	return batchOf{lengths, rowsOf(shaped, size*q.index, len(lengths)), slices.Max(shaped.Lengths), limit}, nil
}

// rowsOf is where n shaped lengths from the one numbered `first` on were, nil where they were
// first.
func rowsOf(s workload.Shaped, first, n int) []int {
	if first == 0 && (s.Kept == nil || s.Kept[n-1] == n-1) {
		return nil
	}
	rows := make([]int, n)
	for i := range rows {
		if rows[i] = first + i; s.Kept != nil {
			rows[i] = s.Kept[first+i]
		}
	}
	return rows
}

// files are what the lengths are read from: none of a distribution, nor of a pipe, which is
// read once.
func (q sequences) files() []string {
	if info, err := os.Stat(q.file); err != nil || !info.Mode().IsRegular() {
		return nil
	}
	return []string{q.file}
}

// takes says whether the plan that is asked for by name is of a strategy that runs.
func (q sequences) takes(name string) error {
	if err := batch.Named(name); err != nil {
		return usagef("--take: %w", err)
	}
	if s := (batch.FlexSP{}); q.fast && name == s.Name() {
		return usagef("--take %s: --fast leaves it out: leave out one of them", name)
	}
	return nil
}

// runBatch plans a batch of unequal sequences.
func (a *app) runBatch(ctx context.Context, o problem) error {
	if err := o.sequences.takes(o.take); err != nil {
		return err
	}
	if o.deadline > 0 {
		var cancel context.CancelFunc
		ctx, cancel = ended.After(ctx, o.deadline, "--deadline")
		defer cancel()
	}
	of, err := o.sequences.batch(a)
	if err != nil {
		return err
	}
	read, err := inputs(o.out, o.sequences.files()) // what it is now: planning may take minutes
	if err != nil {
		return err
	}
	x, err := a.inStages(ctx, o, of)
	if err != nil {
		return err
	}
	d, prices := x.doc, x.prices
	d.Schema, d.Tool, d.Created = batch.Schema, tool, prices.created // as of every plan
	d.Costs, d.Zero, d.OverlapZero, d.Assumed, d.Simulated, d.Rows = prices.words, prices.zero, prices.overlap, prices.assumed, prices.simulated, of.rows
	d.Inputs = append(slices.Clone(prices.inputs), read...)
	d.Notes = slices.Concat(x.ofZero(o), d.Notes, prices.remarks, batch.NotModelled(x.problem, d.LeftOut), acrossMakers(prices.profile, d.Types()))
	if o.out != "" {
		if err := doc.Save(o.out, d); err != nil {
			return err
		}
	}
	return a.print(d, func(w io.Writer) error { return results.BatchPlan(w, d) })
}

// tooLong is a sequence that no group holds, with the flags that are ways out.
type tooLong struct {
	*batch.TooLongError
	problem
	less string // the way out of keeping memory free, if it is one
}

// holds says whether some group holds a sequence, as a problem prices them.
func (a *app) holds(tokens units.Tokens) func(context.Context, problem) bool {
	one := []units.Tokens{tokens}
	return func(ctx context.Context, o problem) bool {
		prices, err := a.silent().fromLaws(ctx, o, one)
		if err != nil {
			return false
		}
		p, err := batch.NewProblem(prices.Costs, one)
		return err == nil && p.Feasible() == nil
	}
}

// Unwrap gives what the exit code is of.
func (e tooLong) Unwrap() error { return e.TooLongError }

// Error names the sequence and the flags.
func (e tooLong) Error() string {
	more := "more devices in --cluster"
	switch {
	case e.priced.costs != "":
		more = "more --devices"
	case e.recomputeGiven && costmodel.Recompute(e.recompute) == costmodel.RecomputeNone:
		more = "no --recompute none, or " + more
	}
	if e.less != "" {
		more += ", or with " + e.less
	}
	return fmt.Sprintf("sequence %d: %s: the largest group of this fleet holds %d; %s; or plan with %s", e.Sequence, units.Count(e.Tokens, "token"), int64(e.Most), e.sequences.shortened(e.Most), more)
}

// beyondModel is a sequence that is too long for the model, and why, with the flags that are
// ways out.
func (q sequences) beyondModel(sequence int, tokens, most units.Tokens, why string) error {
	return usagef("sequence %d: %s: %s; %s", sequence, units.Count(tokens, "token"), why, q.shortened(most))
}

// shortened is the way out of sequences that are longer than the most that there may be.
func (q sequences) shortened(most units.Tokens) string {
	if pad, err := units.ParseTokens(q.pad); err == nil && pad > most { // a shorter --max-len alone is refused
		return fmt.Sprintf("drop such sequences with --max-len %[1]d and a --pad of at most %[1]d (it is %[2]s), or cut them with --truncate as well", int64(most), q.pad)
	}
	return fmt.Sprintf("drop such sequences with --max-len %d, or cut them with --truncate as well", int64(most))
}

// prices are published ones or those of laws, for a batch of the given lengths, or any
// where there are none.
func (a *app) prices(ctx context.Context, o problem, limit units.Tokens, lengths []units.Tokens) (priceList, error) {
	if o.priced.costs != "" {
		return o.priced.published(limit)
	}
	return a.fromLaws(ctx, o, lengths)
}

// contest runs all strategies and chooses. Slow ones come last, so that no deadline passes
// before the others have a plan. The problem is that of the nodes which the plan is of.
func (a *app) contest(ctx context.Context, o problem, p *batch.Problem, longest units.Tokens) (*batch.Document, *batch.Problem, error) {
	begin := time.Now()
	clock := func() units.Seconds { return units.Seconds(time.Since(begin).Seconds()) }
	fast := o.sequences.fast
	all := batch.Strategies(batch.Settings{
		Longest: longest, ProgramTime: o.sequences.mipTime, Fast: fast,
		Search: batch.Options{Effort: batch.Thorough, Times: o.effort},
	})
	attempts := make([]batch.Attempt, len(all))
	for i, s := range all {
		if !s.Claims().Slow {
			a.note("%s ...", s.Name())
			attempts[i] = batch.Try(ctx, s, p, clock)
		}
	}
	parts, err := batch.OnParts(ctx, p, attempts, clock, func(x groupcost.Part) {
		a.note("all of these on %s alone ...", x.Cluster()) // the same number of nodes of another type may be next
	})
	if err != nil {
		return nil, nil, err
	}
	sure := batch.TrySure(ctx, p, parts, attempts, batch.Options{}, clock)
	lowerBound := batch.LowerBound
	if fast {
		lowerBound = batch.FastBound
	}
	bound, err := batch.BoundOf(ctx, p, parts, lowerBound)
	if err != nil {
		return nil, nil, err
	}
	alone := batch.Fastest(attempts)
	for i, s := range all {
		if s.Claims().Slow {
			a.note("%s ... (minutes for hundreds of sequences on tens of devices; Ctrl-C goes on with the best so far, --fast leaves it out)", s.Name())
			attempts[i] = batch.Try(ctx, s, p, clock)
			if alone != nil {
				attempts[i].OnPart(ctx, alone, clock)
			}
		}
	}
	batch.Overtake(ctx, p, attempts, clock)
	attempts = append(attempts, sure)
	d, err := batch.Choose(p, bound, attempts, o.take)
	if err != nil {
		return nil, nil, err
	}
	of := p
	for _, x := range attempts {
		if x.Plan != nil && x.On != nil && x.Strategy.Name() == d.Strategy {
			of = x.On.Problem
		}
	}
	return d, of, nil
}
