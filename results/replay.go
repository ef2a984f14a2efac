package results

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/evenkeel/evenkeel/internal/stats"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/replay"
)

// ReplaySummary is what a trace of replayed plans holds.
type ReplaySummary struct {
	Name   string         `json:"name"`
	Header *replay.Header `json:"header"`
	Plans  []ReplayedPlan `json:"plans"`
}

// ReplayedPlan is the times of one plan.
type ReplayedPlan struct {
	// Steps are the times of a step in every block: the longest over the ranks.
	Steps []units.Seconds `json:"steps_s"`
	Ranks []ReplayedRank  `json:"ranks"`
}

// ReplayedRank is how one rank spent its steps, block by block: computing,
// waiting for bytes, waiting for others at the end of micro-batches or for another stage
// or run, and between what was recorded.
type ReplayedRank struct {
	Step    []units.Seconds `json:"step_s"`
	Busy    []units.Seconds `json:"busy_s"`
	Exposed []units.Seconds `json:"exposed_s"`
	Met     []units.Seconds `json:"met_s"`
}

// SummariseReplay reads a trace. Errors are replay.ReadTrace's.
func SummariseReplay(name string, r io.Reader) (*ReplaySummary, error) {
	s := &ReplaySummary{Name: name}
	_, err := replay.ReadTrace(name, r, replay.Visitor{Header: s.begin, Span: s.span, Step: s.step})
	if err != nil {
		return nil, err
	}
	for i := range s.Plans {
		s.Plans[i].longest(s.Header.Repeats)
	}
	return s, nil
}

func (s *ReplaySummary) begin(h *replay.Header) error {
	s.Header, s.Plans = h, make([]ReplayedPlan, len(h.Plans))
	for i := range s.Plans {
		s.Plans[i].Ranks = make([]ReplayedRank, len(h.Ranks))
	}
	return nil
}

func (s *ReplaySummary) span(e *replay.Span) error {
	r := &s.Plans[e.Plan].Ranks[e.Rank]
	r.reach(e.Block)
	switch e.Op {
	case replay.RingWait, replay.A2AIn, replay.A2AOut, replay.GradWait, replay.ParamWait:
		r.Exposed[e.Block] += e.Dur()
	case replay.Meet, replay.StageWait:
		r.Met[e.Block] += e.Dur()
	default:
		r.Busy[e.Block] += e.Dur()
	}
	return nil
}

func (s *ReplaySummary) step(e *replay.Step) error {
	r := &s.Plans[e.Plan].Ranks[e.Rank]
	r.reach(e.Block)
	r.Step[e.Block] = e.Dur()
	return nil
}

// reach makes room for a block; the reader lets blocks rise one by one.
func (r *ReplayedRank) reach(block int) {
	for len(r.Step) <= block {
		r.Step, r.Busy, r.Exposed, r.Met = append(r.Step, 0), append(r.Busy, 0), append(r.Exposed, 0), append(r.Met, 0)
	}
}

func (p *ReplayedPlan) longest(blocks int) {
	p.Steps = make([]units.Seconds, blocks)
	for _, r := range p.Ranks {
		for b, d := range r.Step {
			p.Steps[b] = max(p.Steps[b], d)
		}
	}
}

// gaps is what of a rank's steps no span accounts for, and idle how long it was
// done before the slowest, of the step or of a micro-batch, or had nothing to do until
// another stage or run was done.
func (p *ReplayedPlan) gaps(rank int) (gaps, idle []units.Seconds) {
	r := p.Ranks[rank]
	for b := range r.Step {
		gaps = append(gaps, r.Step[b]-r.Busy[b]-r.Exposed[b]-r.Met[b])
		idle = append(idle, p.Steps[b]-r.Step[b]+r.Met[b])
	}
	return gaps, idle
}

// Replay prints what was run, how long it took with its spread, how every rank
// spent it, and what was checked.
func Replay(w io.Writer, s *ReplaySummary) error {
	p, n := &printer{w: w}, &notes{}
	replayHead(p, s)
	replayPlans(p, n, s)
	p.printf("\n")
	replayRanks(p, s)
	replayNotes(n, s.Header)
	n.render(p)
	return p.err
}

func replayHead(p *printer, s *ReplaySummary) {
	h := s.Header
	p.para("", fmt.Sprintf("trace %s: %s on %s, %s after %d of warm-up, order by seed %d",
		s.Name, plural(len(h.Plans), "plan"), plural(len(h.Ranks), "rank"), plural(h.Repeats, "block"), h.Warmup, h.Seed))
	written(p, h.Tool, h.Created)
	whole := len(slices.DeleteFunc(slices.Clone(h.Plans), func(x replay.PlanRun) bool { return x.Pipeline == nil && x.Tasks == nil }))
	what := layersRun(plural(h.Layers, "whole layer"), whole, len(h.Plans))
	switch h.Parts {
	case replay.PartsAttention:
		what = "the attention of " + layersRun(plural(h.Layers, "layer"), whole, len(h.Plans))
	case replay.PartsLoss:
		what += fmt.Sprintf(" and the loss, %s at a time,", h.LossChunk)
	case replay.PartsStep:
		what = fmt.Sprintf("whole training steps (embedding, %s, the loss, %s at a time, exchange, AdamW)", what, h.LossChunk)
	}
	if h.Parts != replay.PartsStep {
		what += " forward and backward"
	}
	p.para("", fmt.Sprintf("%s, mode %s, attention kernel %s, torch %s", what, h.Mode, h.Kernel, orNone(h.Ranks[0].Torch)))
}

// layersRun says how many layers were run, which are all that there are of pipelines, and of
// tasks, which are run with no plans of other kinds.
func layersRun(layers string, whole, plans int) string {
	switch whole {
	case 0:
		return layers
	case plans:
		return "all layers"
	}
	return layers + ", of pipelines all,"
}

func replayPlans(p *printer, n *notes, s *ReplaySummary) {
	t := newTable(column{title: "plan", number: true}, column{title: "file", most: 34}, column{title: "strategy"}, column{title: "tokens", number: true},
		column{title: "step\nmedian", number: true}, column{title: "quartiles", number: true}, column{title: "of plan 0", number: true},
		column{title: "bytes\nas planned", number: true}, column{title: "worst error\nand limit", number: true})
	first := stats.Median(values(s.Plans[0].Steps))
	for i, run := range s.Header.Plans {
		q1, median, q3 := stats.Quartiles(values(s.Plans[i].Steps))
		e := s.Header.Exact[i]
		size, strategy := run.Job.SeqLen.String(), run.Strategy
		if !ofOneSequence(&run) {
			size = "-"
		}
		if run.Micro > 0 {
			strategy = fmt.Sprintf("%s in %d", strategy, run.Micro)
		}
		t.row(fmt.Sprint(i), run.Path, strategy, size, seconds(units.Seconds(median)),
			seconds(units.Seconds(q1))+".."+seconds(units.Seconds(q3)), number(median/first), e.Bytes.String(), worst(n, s.Header.Numerics[i]))
	}
	t.render(p)
}

// ofOneSequence says whether every rank has a shard of one sequence.
func ofOneSequence(x *replay.PlanRun) bool { return !x.Batch && x.Pipeline == nil && x.Tasks == nil }

// worst is the largest error of a plan beside its limit.
func worst(n *notes, e replay.Numerics) string {
	text := fmt.Sprintf("%.1e of %.0e", max(e.Out, e.DQ, e.DK, e.DV), e.Limit)
	if e.Reference == "sampled" {
		text += n.mark(fmt.Sprintf("compared with one device on %s of the output and of dq, and on one head of dk and dv", plural(e.Rows, "row")))
	}
	switch l := e.Layer; {
	case l == nil:
	case l.Skipped != "":
		text += n.mark("of the attention alone; the whole layer was not compared: " + l.Skipped)
	default:
		text += fmt.Sprintf("\nlayer %.1e of %.0e", max(l.Out, l.DX), l.Limit)
		if l.Samples < l.OfSamples {
			text += n.mark(fmt.Sprintf("layers were compared on %d of %s%s; more would take the reference too long", l.Samples, plural(l.OfSamples, "sample"), leftAside(l.Left)))
		}
		if l.DW > 0 {
			text += fmt.Sprintf("\nweights %.1e of %.0e", l.DW, l.Limit) + n.mark("weights: their gradients once they are added up")
		}
	}
	if x := e.Exchange; x != nil {
		text += fmt.Sprintf("\nsums %.1e of %.0e", x.Sum, x.Limit) + n.mark("sums: of some elements of the ranks' gradients of weights, against their sum in float64")
	}
	if x := e.Update; x != nil {
		text += fmt.Sprintf("\nupdate %.1e of %.0e", x.Params, x.Limit) + n.mark("update: by how much some parameters change, against AdamW in float64 of the same gradients")
	}
	if e.Loss != nil {
		of := "its gradient"
		if e.Loss.DW > 0 {
			of = "its gradients"
		}
		text += fmt.Sprintf("\nloss %.1e of %.0e", max(e.Loss.DX, e.Loss.DW), e.Loss.Limit) + n.mark(fmt.Sprintf("loss: %s, on %s", of, plural(e.Loss.Rows, "token")))
	}
	return text
}

// leftAside names modules of which no sample was compared.
func leftAside(modules []string) string {
	if len(modules) == 0 {
		return ""
	}
	return ", of " + strings.Join(modules, ", ") + " on none"
}

func replayRanks(p *printer, s *ReplaySummary) {
	t := newTable(column{title: "rank", number: true}, column{title: "device"}, column{title: "host"}, column{title: "tokens", number: true}, column{title: "heads", number: true},
		column{title: "step", number: true}, column{title: "busy", number: true}, column{title: "exposed", number: true}, column{title: "gaps", number: true}, column{title: "idle", number: true})
	for i := range s.Plans {
		plan, run := &s.Plans[i], s.Header.Plans[i]
		title := fmt.Sprintf("plan %d (medians over blocks)%s", i, stagesOf(run.Pipeline)+runsOf(run.Tasks))
		t.section(strings.Join(wrap(title, Width), "\n"))
		heads := map[int]int{}
		for _, g := range run.Layout.Groups {
			for _, m := range g {
				heads[m.Rank] = m.QHeads
			}
		}
		for r, k := range s.Header.Ranks {
			gaps, idle := plan.gaps(r)
			cells := []string{fmt.Sprint(r), k.Device, orNone(k.Host), "-", "-"}
			if ofOneSequence(&run) {
				cells[3], cells[4] = run.Layout.Shards[r].Tokens().String(), fmt.Sprint(heads[r])
			}
			for _, x := range [][]units.Seconds{plan.Ranks[r].Step, plan.Ranks[r].Busy, plan.Ranks[r].Exposed, gaps, idle} {
				cells = append(cells, seconds(units.Seconds(stats.Median(values(x)))))
			}
			t.row(cells...)
		}
	}
	t.render(p)
	p.para("", "busy: computing; exposed: waiting for bytes; gaps: between what was recorded; idle: done before the slowest rank")
}

// stagesOf says which ranks have how many layers of a pipeline; nothing of another plan.
func stagesOf(x *replay.PipelineRun) string {
	if x == nil {
		return ""
	}
	var all []string
	for _, of := range x.Stages {
		all = append(all, fmt.Sprintf("%s on %s", plural(of.Layers, "layer"), onRanks(of.Ranks)))
	}
	return ", stages in order: " + strings.Join(all, "; ")
}

// onRanks names rising ranks.
func onRanks(ranks []int) string {
	if len(ranks) > 1 {
		return "ranks " + units.Spans(ranks)
	}
	return "rank " + units.Spans(ranks)
}

// mostRuns is how many runs of a plan are named in a line.
const mostRuns = 12

// runsOf says which ranks have how many layers of which modules of tasks; nothing of another
// plan.
func runsOf(x *replay.TasksRun) string {
	if x == nil {
		return ""
	}
	var all []string
	for i, of := range x.Runs {
		if i == mostRuns {
			all = append(all, fmt.Sprintf("and %d more", len(x.Runs)-i))
			break
		}
		all = append(all, fmt.Sprintf("%s of %s on %s", plural(of.Layers, "layer"), x.Modules[of.Module].Name, onRanks(of.Ranks)))
	}
	return ", runs in order: " + strings.Join(all, "; ")
}

func replayNotes(n *notes, h *replay.Header) {
	if h.Oversubscribed {
		n.add("the ranks had more threads than there are cores: these times mean nothing; bytes, FLOPs and errors hold")
	}
	if h.Mode == replay.ModeOneGPU {
		n.add("the ranks took turns on one GPU: only the times of compute spans mean something; bytes, FLOPs and errors hold")
	}
	if hosts, nodes := hostsOf(h), len(h.Plans[0].Job.Cluster.Nodes); len(hosts) == 1 && nodes > 1 {
		n.add("all ranks ran on one host: messages between the plan's nodes crossed no network")
	}
	if slices.ContainsFunc(h.Plans, func(p replay.PlanRun) bool { return p.Batch }) {
		but := ""
		if h.Parts == replay.PartsStep {
			but = " but the last"
		}
		n.add("ranks of a plan of batches wait for each other after every micro-batch" + but + ", which is idle time; \"in 3\": 3 micro-batches")
	}
	if slices.ContainsFunc(h.Plans, func(p replay.PlanRun) bool { return p.Pipeline != nil }) {
		n.add("a pipeline runs all its layers; \"in 9\": 9 chunks; idle: also waiting for another stage")
	}
	left := "the embedding, the loss, the traffic of ZeRO and the optimizer were not run"
	if slices.ContainsFunc(h.Plans, func(p replay.PlanRun) bool { return p.Tasks != nil }) {
		n.add("tasks run all layers of all modules, forward in the order of the runs and backward in the other, and add up the gradients of their weights; \"in 5\": 5 runs; idle: also waiting for another run; exposed: waiting for gradients to be added up")
		n.add("bytes are of results and their gradients on their way between runs, not of gradients of weights that are added up")
		left = "the embedding, the loss and the optimizer were not run"
	}
	switch h.Parts {
	case replay.PartsLoss:
		left = "the embedding, the traffic of ZeRO and the optimizer were not run"
	case replay.PartsStep:
		left = "bytes are of attention, not of gradients and parameters"
	}
	if slices.ContainsFunc(h.Plans, func(p replay.PlanRun) bool { return p.Tasks != nil && p.Tasks.Waves }) {
		n.add("waves were not run: a run of the next one begins when its ranks are free and what it needs is there")
	}
	n.add("bytes of every pair of ranks and FLOPs of every rank were counted and equal what the plan says", left)
}

func hostsOf(h *replay.Header) []string {
	var hosts []string
	for _, r := range h.Ranks {
		if !slices.Contains(hosts, r.Host) {
			hosts = append(hosts, r.Host)
		}
	}
	return hosts
}

func values(x []units.Seconds) []float64 {
	v := make([]float64, len(x))
	for i := range x {
		v[i] = float64(x[i])
	}
	return v
}
