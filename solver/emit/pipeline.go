package emit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel"
	costs "github.com/evenkeel/evenkeel/costmodel/pipeline"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/pipeline"
)

// stager is a form whose framework runs pipelines: stages of as many ranks each, which share
// every chunk of whole sequences by an all-to-all over heads; one forward, one backward.
type stager interface {
	// multiple is what lengths of sequences are padded to multiples of, on stages of so many ranks.
	multiple(ranks int) units.Tokens
	// wide says why no stage can have so many ranks.
	wide(m costmodel.Model, ranks int) error
	// staged is a job as the framework runs it in stages.
	staged(costmodel.Job) costmodel.Job
	// writeStaged is what the framework reads, and what to do with it.
	writeStaged(v *stagedVariant, nodes []string) (text, use string)
	// whyStaged says why fields of a pipeline are as they are.
	whyStaged() map[string]string
	// notesStaged are what users of the emitted text should know.
	notesStaged(v *stagedVariant) []string
}

// stagedVariant is a pipeline that a framework can run.
type stagedVariant struct {
	job     costmodel.Job  // as the framework runs it
	lengths []units.Tokens // of the sequences, padded
	plan    *costs.Plan
	step    *costmodel.Step
}

// ranks are those that train, stage by stage.
func (v *stagedVariant) ranks() []int {
	var all []int
	for _, s := range v.plan.Stages {
		all = append(all, s.Ranks...)
	}
	return all
}

// width is how many ranks each stage has.
func (v *stagedVariant) width() int { return len(v.plan.Stages[0].Ranks) }

// tokens are how many a chunk has.
func (v *stagedVariant) tokens(k int) units.Tokens {
	n := units.Tokens(0)
	for _, w := range v.plan.Chunks[k].Whole {
		n += v.lengths[w]
	}
	return n
}

// again is of how many layers of every stage all chunks' forward pass is computed again.
func (v *stagedVariant) again() int {
	most := 0
	for _, of := range v.plan.Recompute {
		most = max(most, slices.Max(of))
	}
	return most
}

// Staged are the names of the frameworks that run pipelines.
func Staged() []string {
	var names []string
	for _, f := range Frameworks() {
		if _, ok := f.form.(stager); ok {
			names = append(names, f.Name)
		}
	}
	return names
}

// UnpricedError says that a plan does not hold the job that its prices are of.
type UnpricedError struct{}

// Error says so, and the way out.
func (UnpricedError) Error() string {
	return "job: the plan holds none, as those of earlier versions: plan the batch again (evenkeel solve --lengths --pipeline -o)"
}

// Pipeline finds the fastest pipeline that a framework can run of a plan's batch and that fits, by
// the laws of a profile, and writes it. Its stages are those of the plan, if they can be, or of as
// many ranks each as can be, of all devices, of every set of their types, in either order, with
// layers that let all be busy for as long. A plan that was to have an earlier one's stages keeps
// them, for a run does.
//
// Errors: *NotRunError if the framework runs no pipelines, or none that fits; UnpricedError; those
// of costmodel/pipeline.FromLaws, and ctx's.
func (f Framework) Pipeline(ctx context.Context, d *pipeline.Document, profile *costmodel.Profile) (*Emission, error) {
	s, ok := f.form.(stager)
	if !ok {
		return nil, &NotRunError{Framework: f.Name, Reason: "it has no stages", Others: Staged()}
	}
	if !d.Priced() {
		return nil, UnpricedError{}
	}
	x := &stages{ctx: ctx, form: s, of: d, q: costmodel.NewPredictor(profile)}
	if makers := x.q.Makers(d.Types()); makers != nil {
		return nil, &NotRunError{Framework: f.Name, Reason: noCommunicator(len(d.Types()), makers), Others: but(Staged(), f.Name)}
	}
	own, ownStep, err := x.price(d.Job, d.Lengths, &d.Plan)
	if err != nil {
		return nil, fmt.Errorf("the plan cannot be priced by these laws: %w", err)
	}
	best, err := x.best()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		_, full := errors.AsType[*costs.NoRoomError](err)
		return nil, &NotRunError{Framework: f.Name, Reason: err.Error(), Others: but(Staged(), f.Name), Full: full}
	}
	e := &Emission{To: f.Name, Simulated: d.Simulated || profile.Simulated, Time: best.step.Time, Planned: ownStep.Time, Ranks: best.ranks(), Pipeline: best.plan}
	e.Error, _ = costmodel.GainError(ownStep, best.step)
	e.Text, e.Use = s.writeStaged(best, namesOf(d.Job.Cluster))
	e.Fields = compareStaged(d, best, s.whyStaged())
	e.Notes = append(s.notesStaged(best), stagedRemarks(e, d, own)...)
	return e, nil
}

// stages is a plan of a pipeline to be emitted, with its prices.
type stages struct {
	ctx  context.Context
	form stager
	of   *pipeline.Document
	q    *costmodel.Predictor
}

// price simulates a plan anew, and says how far off that may be.
func (x *stages) price(job costmodel.Job, lengths []units.Tokens, plan *costs.Plan) (*costs.Plan, *costmodel.Step, error) {
	c, err := costs.FromLaws(x.q, job, lengths)
	if err != nil {
		return nil, nil, err
	}
	now := plan.Clone()
	if err := c.Simulate(now); err != nil {
		return nil, nil, err
	}
	step, err := c.Account(now)
	return now, step, err
}

// best is the fastest pipeline that fits; the error says why there is none.
func (x *stages) best() (*stagedVariant, error) {
	job := x.form.staged(x.of.Job)
	ranks := len(x.of.Devices)
	var best *stagedVariant
	var narrow, no, full error
	for n := 1; n <= ranks; n++ {
		if err := x.form.wide(job.Model, n); err != nil {
			narrow = cmp.Or(narrow, err)
			continue
		}
		narrow = nil // what counts is why there are none wider than all that were tried
		v, err := x.on(job, n)
		if x.ctx.Err() != nil {
			return nil, x.ctx.Err()
		}
		if _, is := errors.AsType[*costs.NoRoomError](err); is {
			full = nearest(full, err)
		} else {
			no = cmp.Or(no, err)
		}
		if v != nil && (best == nil || v.step.Time.Mid < best.step.Time.Mid) {
			best = v
		}
	}
	switch {
	case best != nil:
		return best, nil
	case full != nil && narrow != nil: // more ranks a stage might have the memory
		return nil, fmt.Errorf("%w, and wider stages cannot be: %w", full, narrow)
	}
	return nil, cmp.Or(full, no)
}

// nearest is of two reasons why nothing fits the one with more room.
func nearest(a, b error) error {
	x, ok := errors.AsType[*costs.NoRoomError](a)
	y, is := errors.AsType[*costs.NoRoomError](b)
	if !ok || is && y.Over() < x.Over() {
		return b
	}
	return a
}

// on is the fastest on stages of n ranks.
func (x *stages) on(job costmodel.Job, n int) (*stagedVariant, error) {
	v := &stagedVariant{job: job}
	m, all := x.form.multiple(n), units.Tokens(0)
	for _, l := range x.of.Lengths {
		padded := (l + m - 1) / m * m
		v.lengths, all = append(v.lengths, padded), all+padded
	}
	v.job.LossChunk = min(all, math.MaxInt32) // no more than a chunk has
	c, err := costs.FromLaws(x.q, v.job, v.lengths)
	if err != nil {
		return nil, fmt.Errorf("%s a stage, for which sequences are padded to multiples of %s: %w", units.Count(n, "rank"), units.Count(int(m), "token"), err)
	}
	rows := x.rows(n)
	switch {
	case len(rows) == 0 && x.settled():
		return nil, fmt.Errorf("the stages of %s (stages_of), %s, cannot be: want as many ranks each, those of a node one after the other", x.of.StagesOf, stageNames(&x.of.Plan))
	case len(rows) == 0:
		return nil, fmt.Errorf("no stage of %s is of one device type", units.Count(n, "rank"))
	}
	var given [][]costs.Chunk
	if !slices.ContainsFunc(x.of.Chunks, func(k costs.Chunk) bool { return k.Slice > 0 }) {
		given = append(given, x.of.Chunks)
	}
	p := &pipeline.Problem{Costs: c}
	if x.settled() {
		p.Fixed, p.Stages = x.of.Stages, len(x.of.Stages)
	}
	if v.plan, err = p.Whole(x.ctx, rows, given...); err != nil {
		return nil, err
	}
	if v.step, err = c.Account(v.plan); err != nil {
		return nil, err
	}
	return v, nil
}

// settled says whether the plan was to have an earlier one's stages: a run keeps them.
func (x *stages) settled() bool { return x.of.StagesOf != "" }

// equal says whether the plan's stages have n ranks each.
func (x *stages) equal(n int) bool {
	return !slices.ContainsFunc(x.of.Stages, func(s costs.Stage) bool { return len(s.Ranks) != n })
}

// mostTypes is of how many device types all sets are tried.
const mostTypes = 4

// rows are the stages of n ranks that are tried, without layers, but for those of the plan, which
// have its own.
func (x *stages) rows(n int) [][]costs.Stage {
	var all [][]costs.Stage
	add := func(row []costs.Stage) {
		same := func(o []costs.Stage) bool {
			return slices.EqualFunc(o, row, func(a, b costs.Stage) bool { return slices.Equal(a.Ranks, b.Ranks) })
		}
		if len(row) > 0 && x.launchable(row) && !slices.ContainsFunc(all, same) {
			all = append(all, row)
		}
	}
	if x.equal(n) {
		add(x.of.Stages)
	}
	if x.settled() {
		return all
	}
	var cut [][]costs.Stage // by device type
	for _, ranks := range x.types() {
		var row []costs.Stage
		for ; len(ranks) >= n; ranks = ranks[n:] {
			row = append(row, costs.Stage{Ranks: ranks[:n]})
		}
		cut = append(cut, row)
	}
	take := func(in func(kind int) bool) {
		var row, back []costs.Stage
		for kind, of := range cut {
			if in(kind) {
				row, back = slices.Concat(row, of), slices.Concat(of, back)
			}
		}
		most := x.of.Layers
		add(row[:min(most, len(row))])
		add(back[:min(most, len(back))])
		for few := len(row) / 2; few > 1; few /= 2 { // of few chunks most stages wait
			add(row[:min(most, few)])
		}
	}
	take(func(int) bool { return true })
	for set := 1; len(cut) > 1 && len(cut) <= mostTypes && set < 1<<len(cut)-1; set++ {
		take(func(kind int) bool { return set>>kind&1 == 1 })
	}
	for only := 0; len(cut) > mostTypes && only < len(cut); only++ {
		take(func(kind int) bool { return kind == only })
	}
	return all
}

// types are the ranks of every device type.
func (x *stages) types() [][]int {
	var all [][]int
	place := map[string]int{}
	for r, device := range x.of.Devices {
		at, known := place[device]
		if !known {
			at = len(all)
			place[device], all = at, append(all, nil)
		}
		all[at] = append(all[at], r)
	}
	return all
}

// launchable says whether a launcher can number a row's ranks one after the other: those of a
// node follow each other.
func (x *stages) launchable(row []costs.Stage) bool {
	var ranks []int
	for _, s := range row {
		ranks = append(ranks, s.Ranks...)
	}
	seen := map[string]bool{}
	for _, h := range hosts(namesOf(x.of.Job.Cluster), ranks) {
		if seen[h.node] {
			return false
		}
		seen[h.node] = true
	}
	return true
}

// stagedRemarks are what is to be known of the prices.
func stagedRemarks(e *Emission, d *pipeline.Document, own *costs.Plan) []string {
	var all []string
	if e.Planned.Mid-e.Time.Mid > max(e.Error, e.Planned.Mid*faster) {
		all = append(all, "faster than the plan: that was asked for (--take, --stages, --stages-of), planned in little time, shards more of the states, or was made with other laws")
	}
	if math.Abs(float64(own.Time/d.Time)-1) > otherLaws {
		all = append(all, fmt.Sprintf("these are not the laws that the plan was made with, by which it takes %v: name its profile as it was then (--profile)", d.Time))
	}
	return all
}

// The fields of a pipeline.
const (
	fieldStages  = "stages"
	fieldLayers  = "layers"
	fieldSlices  = "slices"
	fieldChunks  = "chunks"
	fieldPasses  = "order"
	fieldPadding = "padding"
)

// compareStaged gives the verdict on every field of a pipeline.
func compareStaged(d *pipeline.Document, v *stagedVariant, why map[string]string) []Field {
	was, is := &d.Plan, v.plan
	judge := func(name, plan, emitted string, same bool, lost Verdict) Field {
		if same {
			return Field{Name: name, Plan: plan, Emitted: plan, Verdict: Exact}
		}
		if plan == none {
			lost = Rounded
		}
		return Field{Name: name, Plan: plan, Emitted: emitted, Verdict: lost, Why: why[name]}
	}
	sameRanks := func(a, b costs.Stage) bool { return slices.Equal(a.Ranks, b.Ranks) }
	sameStages := slices.EqualFunc(was.Stages, is.Stages, sameRanks)
	sameLayers := slices.EqualFunc(was.Stages, is.Stages, func(a, b costs.Stage) bool { return a.Layers == b.Layers })
	sameChunks := slices.EqualFunc(was.Chunks, is.Chunks, func(a, b costs.Chunk) bool {
		return a.Sequence == b.Sequence && a.Context == b.Context && a.Slice == b.Slice && slices.Equal(a.Whole, b.Whole)
	})
	ranks := judge(fieldRanks, stagedRanks(was, len(d.Devices)), stagedRanks(is, len(d.Devices)), slices.Equal(slices.Sorted(slices.Values(ranksOf(was))), slices.Sorted(slices.Values(ranksOf(is)))), Rounded)
	again := recomputedName(was)
	all := []Field{
		ranks,
		judge(fieldStages, stageNames(was), stageNames(is), sameStages, Rounded),
		judge(fieldLayers, layerNames(was), layerNames(is), sameStages && sameLayers, Rounded),
		judge(fieldSlices, sliceNames(d), none, sliceNames(d) == none, Dropped),
		judge(fieldChunks, chunkNames(was), chunkNames(is), sameChunks, Rounded),
		judge(fieldPasses, orderName(was), orderName(is), orderName(was) == orderName(is), Dropped),
		judge(fieldPadding, none, paddingName(d.Lengths, v.lengths), slices.Equal(d.Lengths, v.lengths), Rounded),
		judge(fieldRecompute, again, recomputedName(is), again == recomputedName(is) && !strings.Contains(again, " to "), Rounded),
	}
	for _, s := range []struct{ name, plan, emitted string }{
		{fieldZero, zeroName(d.Job.Zero), zeroName(v.job.Zero)},
		{fieldOverlap, fmt.Sprint(d.Job.OverlapZero), fmt.Sprint(v.job.OverlapZero)},
		{fieldLoss, stagedLoss(d), "all tokens"},
		{fieldDType, string(d.Job.DType), string(v.job.DType)},
	} {
		all = append(all, judge(s.name, s.plan, s.emitted, s.plan == s.emitted, Rounded))
	}
	return all
}

// stagedLoss is of how many tokens logits are in memory at a time, of a chunk's.
func stagedLoss(d *pipeline.Document) string {
	for _, x := range d.Chunks {
		n := x.Slice
		for _, w := range x.Whole {
			n += d.Lengths[w]
		}
		if n > d.Job.LossChunk {
			return d.Job.LossChunk.String() + " tokens"
		}
	}
	return "all tokens"
}

func ranksOf(p *costs.Plan) []int { return (&stagedVariant{plan: p}).ranks() }

func stagedRanks(p *costs.Plan, of int) string {
	ranks := slices.Sorted(slices.Values(ranksOf(p)))
	if len(ranks) == of {
		return fmt.Sprintf("all %d", of)
	}
	return fmt.Sprintf("%s (%d of %d)", units.Spans(ranks), len(ranks), of)
}

// stageNames is how many stages of how many ranks there are.
func stageNames(p *costs.Plan) string {
	return inRuns(p, func(s costs.Stage) int { return len(s.Ranks) }, func(stages, ranks int) string {
		return fmt.Sprintf("%d of %s", stages, units.Count(ranks, "rank"))
	})
}

// layerNames are the layers of every stage.
func layerNames(p *costs.Plan) string {
	return inRuns(p, func(s costs.Stage) int { return s.Layers }, func(stages, layers int) string {
		if stages == 1 {
			return fmt.Sprint(layers)
		}
		return fmt.Sprintf("%d x %d", stages, layers)
	})
}

// inRuns names a number of every stage, once for stages that follow each other and have the same.
func inRuns(p *costs.Plan, of func(costs.Stage) int, name func(stages, n int) string) string {
	var parts []string
	for from := 0; from < len(p.Stages); {
		to, n := from, of(p.Stages[from])
		for to < len(p.Stages) && of(p.Stages[to]) == n {
			to++
		}
		parts = append(parts, name(to-from, n))
		from = to
	}
	return strings.Join(parts, ", ")
}

// sliceNames is how many sequences are cut, and into how many slices.
func sliceNames(d *pipeline.Document) string {
	cut, all := map[int]bool{}, 0
	for _, x := range d.Chunks {
		if x.Slice > 0 {
			cut[x.Sequence] = true
			all++
		}
	}
	if all == 0 {
		return none
	}
	return fmt.Sprintf("%d of %s", all, units.Count(len(cut), "sequence"))
}

func chunkNames(p *costs.Plan) string { return units.Count(len(p.Chunks), "chunk") }

// orderName is the order of passes: one forward, one backward, or the plan's own.
func orderName(p *costs.Plan) string {
	last := len(p.Stages) - 1
	for s, order := range p.Orders {
		forward, backward := 0, 0
		for i, o := range order {
			ahead := min(len(p.Chunks), last-s+1)
			back := i >= ahead && (i-ahead)%2 == 0 || forward == len(p.Chunks)
			next := forward
			if back {
				next = backward
			}
			if o.Backward != back || o.Chunk != next {
				return "its own"
			}
			if back {
				backward++
			} else {
				forward++
			}
		}
	}
	return "1F1B"
}

// paddingName is how many tokens padding adds.
func paddingName(was, is []units.Tokens) string {
	more := units.Tokens(0)
	for i := range was {
		more += is[i] - was[i]
	}
	if more == 0 {
		return none
	}
	return fmt.Sprintf("%d tokens in all", int64(more))
}

// recomputedName is of how many layers of a stage chunks' forward pass is computed again: of as
// many of all, where all stages that have so many do, or from how few to how many.
func recomputedName(p *costs.Plan) string {
	least, most := math.MaxInt, 0
	for _, of := range p.Recompute {
		least, most = min(least, slices.Min(of)), max(most, slices.Max(of))
	}
	all, alike := true, true
	for s, of := range p.Recompute {
		for _, n := range of {
			all = all && n == p.Stages[s].Layers
			alike = alike && n == min(most, p.Stages[s].Layers)
		}
	}
	switch {
	case most == 0:
		return "none"
	case all:
		return "all layers"
	case alike:
		return fmt.Sprintf("%s a stage", units.Count(most, "layer"))
	}
	return fmt.Sprintf("%d to %s a stage", least, units.Count(most, "layer"))
}
