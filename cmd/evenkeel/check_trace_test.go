package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/replay"
	"github.com/evenkeel/evenkeel/replay/comparison"
	"github.com/evenkeel/evenkeel/solver"
)

// played is a folder with a profile, plans made with it, and traces that the
// simulator wrote in the place of ranks.
type played struct {
	t       *testing.T
	profile string
	plans   []string
}

// verb runs one, which must end with an exit code.
func (p *played) verb(exit int, args ...string) (stdout, stderr string) {
	p.t.Helper()
	var out, errOut bytes.Buffer
	if got := run(args, strings.NewReader(""), &out, &errOut); got != exit {
		p.t.Fatalf("evenkeel %q ends with %d, want %d\n%s%s", args, got, exit, out.String(), errOut.String())
	}
	return out.String(), errOut.String()
}

func newPlayed(t *testing.T) *played {
	p, dir := &played{t: t}, t.TempDir()
	p.verb(exitDone, "calibrate", "--backend", "sim:1xbig+1xsmall", "--budget", "30s", "--out", dir, "-q")
	p.profile = filepath.Join(dir, "calibration.profile.json")
	for _, strategy := range []string{"evenkeel", "ring", "ulysses"} {
		plan := filepath.Join(dir, strategy+".plan.json")
		p.verb(exitDone, "solve", "--profile", p.profile, "--cluster", "1x(1 sim_big + 1 sim_small)", "--model", "testdata/config.json", "--seq-len", "16k", "--take", strategy, "-o", plan, "-q")
		p.plans = append(p.plans, plan)
	}
	return p
}

// trace writes one in which ranks compute for `slower` times as long as predicted.
func (p *played) trace(name string, blocks int, slower units.Seconds, plans ...string) string {
	p.t.Helper()
	var profile costmodel.Profile
	if err := doc.Load(p.profile, &profile); err != nil {
		p.t.Fatal(err)
	}
	h := &replay.Header{
		Header:  doc.Header{Schema: replay.TraceSchema, Tool: tool, Created: "2026-01-31T12:00:00Z"},
		Backend: "gloo", Mode: replay.ModeCPU, Parts: replay.PartsLayer, Layers: 1, Kernel: "math", Seed: 1, Repeats: blocks, Warmup: 2,
	}
	var steps []*costmodel.Replayed
	for i, path := range plans {
		var plan solver.Plan
		if err := doc.Load(path, &plan); err != nil {
			p.t.Fatal(err)
		}
		h.Plans = append(h.Plans, replay.PlanRun{Path: filepath.Base(path), SHA256: strings.Repeat("ab", 32), Strategy: plan.Strategy, Job: plan.Job, Layout: plan.Layout()})
		h.Numerics = append(h.Numerics, replay.Numerics{Plan: i, Limit: 1e-5, Reference: "dense"})
		h.Exact = append(h.Exact, replay.ExactCounts{Plan: i, Messages: 1, Bytes: 1, FLOPs: 1})
		steps = append(steps, p.step(&profile, h.Plans[i], slower))
		if i > 0 {
			continue
		}
		for r, rank := range plan.Job.Cluster.Ranks() {
			h.Ranks = append(h.Ranks, replay.Rank{Rank: r, Host: "h", Device: rank.Device, Threads: 1, Python: "3.11.2", Torch: "2.1.0"})
		}
	}
	return p.write(name, h, steps)
}

// write writes a trace of plans' steps, all blocks alike.
func (p *played) write(name string, h *replay.Header, steps []*costmodel.Replayed) string {
	p.t.Helper()
	path := filepath.Join(p.t.TempDir(), name)
	err := replay.WriteTrace(path, h, func(span func(*replay.Span) error, step func(*replay.Step) error) error {
		for block := range h.Repeats {
			for plan, s := range steps {
				if err := writeStep(block, plan, s, span, step); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		p.t.Fatal(err)
	}
	return path
}

// step is a plan's step where ranks compute more slowly.
func (p *played) step(profile *costmodel.Profile, plan replay.PlanRun, slower units.Seconds) *costmodel.Replayed {
	p.t.Helper()
	s, err := costmodel.NewSimulator(costmodel.NewPredictor(profile), plan.Job)
	if err != nil {
		p.t.Fatal(err)
	}
	predicted, err := s.Replayed(costmodel.ReplayWork{Layout: plan.Layout, Layers: 1})
	if err != nil {
		p.t.Fatal(err)
	}
	took := slowed(predicted, slower)
	r, err := s.Supposing(costmodel.ReplayWork{Layout: plan.Layout, Layers: 1}, func(k costmodel.ReplayKey) (units.Seconds, bool) {
		for _, step := range []int{k.Step, len(plan.Layout.Groups)} { // linear parts after the ring have its steps
			k.Step = step
			if t, ok := took[k]; ok {
				return t, true
			}
		}
		return 0, false
	})
	if err != nil {
		p.t.Fatal(err)
	}
	return r
}

// slowed is for how long ranks compute that take so many times as long as predicted.
func slowed(predicted *costmodel.Replayed, slower units.Seconds) map[costmodel.ReplayKey]units.Seconds {
	took := map[costmodel.ReplayKey]units.Seconds{}
	for _, k := range predicted.Tasks {
		if k.Op == costmodel.MergeOp {
			k.Op = costmodel.AttentionOp
		}
		took[k.ReplayKey] += slower * k.Time
	}
	return took
}

func writeStep(block, plan int, s *costmodel.Replayed, span func(*replay.Span) error, step func(*replay.Step) error) error {
	ns := func(t units.Seconds) int64 { return int64(t * 1e9) }
	for _, k := range s.Tasks {
		x := &replay.Span{Block: block, Plan: plan, Rank: k.Rank, MB: k.Micro, Layer: k.Layer, Dir: replay.Dir(k.Dir), Again: k.Again, Step: k.Step, Chunk: k.Chunk, Op: replay.SpanOp(k.Op), T0NS: ns(k.Start), DurNS: ns(k.Time)}
		if x.Op == replay.A2AIn || x.Op == replay.A2AOut {
			x.In, x.Out = 1, 1
		}
		if err := span(x); err != nil {
			return err
		}
	}
	for r, k := range s.Ranks {
		// Blocks differ by a thousandth, as on a quiet machine.
		if err := step(&replay.Step{Block: block, Plan: plan, Rank: r, DurNS: ns(k.End * units.Seconds(1+0.001*float64(block%3)))}); err != nil {
			return err
		}
	}
	return nil
}

// TestCheckTrace: the gate of replayed plans, from outside.
func TestCheckTrace(t *testing.T) {
	if testing.Short() {
		t.Skip("long; the goroutines in it have shorter tests")
	}
	p := newPlayed(t)
	good := p.trace("good.trace.jsonl", 8, 1, p.plans...)
	out, _ := p.verb(exitDone, "check", good, "--profile", p.profile)
	for _, want := range []string{"where the difference comes from", "ranking of 3 plans: tau_b 1.00", "regret of plan 0", "what plan 0, evenkeel, saves", "verdict: PASS (SIMULATED)"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in\n%s", want, out)
		}
	}
	bad := p.trace("bad.trace.jsonl", 8, 1.4, p.plans[0])
	out, errOut := p.verb(exitCheck, "check", bad, "--profile", p.profile)
	if !strings.Contains(out, "plan 0: compute: 34 %, want at most 15 %") || !strings.Contains(errOut, "differs from its prediction") {
		t.Errorf("%s%s", out, errOut)
	}
	p.verb(exitDone, "check", bad, "--profile", p.profile, "--max-error", "40%")
	few := p.trace("few.trace.jsonl", 5, 1.4, p.plans[0])
	if out, _ = p.verb(exitDone, "check", few, "--profile", p.profile); !strings.Contains(out, "5 blocks, a verdict needs 6") {
		t.Errorf("%s", out)
	}
	p.strictly(few)
	p.forms(good, bad)
	p.refusals(good)
	p.ofBatches()
	p.ofPipelines()
	p.ofTasks()
}

// strictly: where --strict makes the check fail, every report says so.
func (p *played) strictly(few string) {
	dir := p.t.TempDir()
	xml, md := filepath.Join(dir, "strict.xml"), filepath.Join(dir, "strict.md")
	out, errOut := p.verb(exitCheck, "check", few, "--profile", p.profile, "--strict", "--junit", xml, "--markdown", md)
	for got, want := range map[string]string{
		out: "verdict: FAIL (SIMULATED): ", errOut: "--strict: no limit is broken, but checks have too little measured for a verdict",
		string(p.file(xml)): `<failure message="--strict: insufficient: 5 blocks, a verdict needs 6`, string(p.file(md)): "## evenkeel check of a replay: FAIL",
	} {
		if !strings.Contains(got, want) {
			p.t.Errorf("%q is not in\n%s", want, got)
		}
	}
}

// ofBatches: plans of batches of one problem have predictions too, micro-batch by
// micro-batch, and a ranking.
func (p *played) ofBatches() {
	t := p.t
	trace := p.batches("b.trace.jsonl", 7, 1)
	out, _ := p.verb(exitDone, "check", trace, "--profile", p.profile)
	for _, want := range []string{
		"MEASURED replay of 3 plans: 1 layer", "(made up in 1)", "(made up in 2)", "over each micro-batch", "worst (rank, micro-batch, step)",
		"ranking of 3 plans: tau_b 1.00", "packed documents", "groups side by side", "meet", "verdict: PASS",
	} {
		if want = strings.Replace(want, "MEASURED", "SIMULATED", 1); !strings.Contains(out, want) {
			t.Errorf("%q is not in\n%s", want, out)
		}
	}
	out, _ = p.verb(exitCheck, "check", p.batches("slow.trace.jsonl", 7, 1.4), "--profile", p.profile, "--json")
	var report comparison.Report
	if err := json.Unmarshal([]byte(out), &report); err != nil || len(report.Plans) != 3 || len(report.Plans[1].Critical) != 2 || report.Plans[1].Micro != 2 {
		t.Errorf("%v: %.400s", err, out)
	}
	for _, x := range report.Plans {
		if math.Abs(x.Log+math.Log(1.4)) > 0.05 || x.Parts[0].Difference < x.Difference/2 {
			t.Errorf("plan %d: %v, %+v", x.Plan, x.Log, x.Parts)
		}
	}
	timeline := filepath.Join(t.TempDir(), "t.json")
	p.verb(exitDone, "check", trace, "--profile", p.profile, "--timeline", timeline, "--plan", "1")
	if text := string(p.file(timeline)); !strings.Contains(text, `"name":"meet"`) || !strings.Contains(text, `"micro-batch":1`) {
		t.Errorf("%.600s", text)
	}
	_, errOut := p.verb(exitFailed, "check", trace, "--profile", p.profile, "--link", "nvlink")
	if !strings.Contains(errOut, `plan 0 (one.batchplan.json): link between the devices of node n0: link class "nvlink" is not in the profile`) {
		t.Error(errOut)
	}
}

// batches writes a trace of three plans of four sequences: all packed for both
// ranks, two and two for both, and two for each.
func (p *played) batches(name string, blocks int, slower units.Seconds) string {
	p.t.Helper()
	var profile costmodel.Profile
	var plan solver.Plan
	if err := errors.Join(doc.Load(p.profile, &profile), doc.Load(p.plans[0], &plan)); err != nil {
		p.t.Fatal(err)
	}
	heads, lengths := plan.Job.Model.QHeads, []units.Tokens{6000, 300, 2500, 900}
	both := func(share float64, lengths ...units.Tokens) replay.GroupRun {
		return packed([]int{0, 1}, []float64{share, 1 - share}, heads, lengths)
	}
	one := func(rank int, lengths ...units.Tokens) replay.GroupRun {
		return packed([]int{rank}, []float64{1}, heads, lengths)
	}
	plans := map[string][][]replay.GroupRun{
		"one":   {{both(0.7, lengths...)}},
		"two":   {{both(0.5, lengths[:2]...)}, {both(0.5, lengths[2:]...)}},
		"apart": {{one(0, lengths[1:]...), one(1, lengths[0])}},
	}
	h := &replay.Header{
		Header:  doc.Header{Schema: replay.TraceSchema, Tool: tool, Created: "2026-01-31T12:00:00Z"},
		Backend: "gloo", Mode: replay.ModeCPU, Parts: replay.PartsLayer, Layers: 1, Kernel: "math", Seed: 1, Repeats: blocks, Warmup: 2,
	}
	for r, rank := range plan.Job.Cluster.Ranks() {
		h.Ranks = append(h.Ranks, replay.Rank{Rank: r, Host: "h", Device: rank.Device, Threads: 1, Python: "3.11.2", Torch: "2.1.0"})
	}
	for i, name := range []string{"one", "two", "apart"} {
		h.Plans = append(h.Plans, replay.PlanRun{Path: name + ".batchplan.json", SHA256: strings.Repeat("ab", 32), Strategy: "made up", Batch: true, Micro: len(plans[name]), Model: &plan.Job.Model, DType: plan.Job.DType, Groups: plans[name]})
		h.Numerics = append(h.Numerics, replay.Numerics{Plan: i, Limit: 1e-5, Reference: "dense"})
		h.Exact = append(h.Exact, replay.ExactCounts{Plan: i, Messages: 1, Bytes: 1, FLOPs: 1})
	}
	path := filepath.Join(p.t.TempDir(), name)
	err := replay.WriteTrace(path, h, func(span func(*replay.Span) error, step func(*replay.Step) error) error {
		for block := range blocks {
			for i := range h.Plans {
				if err := p.writeBatch(&profile, plan.Job, h, block, i, slower, span, step); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		p.t.Fatal(err)
	}
	return path
}

// packed is a group of ranks that form a ring and hold shares of every sequence.
func packed(ranks []int, shares []float64, heads int, lengths []units.Tokens) replay.GroupRun {
	g := replay.GroupRun{Ranks: ranks, Docs: lengths, Recompute: costmodel.RecomputeNone, RingBuffers: 2}
	g.Layout.Shards = make([]costmodel.Shard, len(ranks))
	for i := range ranks {
		g.Layout.Groups = append(g.Layout.Groups, costmodel.Group{{Rank: i, QHeads: heads}})
	}
	at := units.Tokens(0)
	for _, n := range lengths {
		for r, s := range costmodel.ZigZag(costmodel.SplitByShares(n, shares), g.Layout.Groups).Shards {
			for _, x := range s.Segments {
				g.Layout.Shards[r].Segments = append(g.Layout.Shards[r].Segments, costmodel.Segment{Start: x.Start + at, End: x.End + at})
			}
		}
		at += n
	}
	return g
}

// writeBatch plays a step of a plan of batches, each group as a plan of its own on
// a cluster of its ranks.
func (p *played) writeBatch(profile *costmodel.Profile, j costmodel.Job, h *replay.Header, block, plan int, slower units.Seconds, span func(*replay.Span) error, step func(*replay.Step) error) error {
	ns := func(t units.Seconds) int64 { return int64(t * 1e9) }
	var at units.Seconds
	for m, side := range h.Plans[plan].Groups {
		ends := make([]units.Seconds, len(h.Ranks))
		for _, g := range side {
			r := p.alone(profile, j, h, &g, slower)
			for _, k := range r.Tasks {
				x := &replay.Span{Block: block, Plan: plan, Rank: g.Ranks[k.Rank], MB: m, Dir: replay.Dir(k.Dir), Step: k.Step, Op: replay.SpanOp(k.Op), T0NS: ns(at + k.Start), DurNS: ns(k.Time)}
				if err := span(x); err != nil {
					return err
				}
			}
			for i, k := range r.Ranks {
				ends[g.Ranks[i]] = k.End
			}
		}
		last := slices.Max(ends) * units.Seconds(1+0.001*float64(block%3))
		for r, end := range ends {
			if err := span(&replay.Span{Block: block, Plan: plan, Rank: r, MB: m, Dir: replay.Backward, Op: replay.Meet, T0NS: ns(at + end), DurNS: ns(last - end)}); err != nil {
				return err
			}
		}
		at += last
	}
	for r := range h.Ranks {
		if err := step(&replay.Step{Block: block, Plan: plan, Rank: r, DurNS: ns(at)}); err != nil {
			return err
		}
	}
	return nil
}

// alone is a group that computes more slowly, with nobody beside it.
func (p *played) alone(profile *costmodel.Profile, j costmodel.Job, h *replay.Header, g *replay.GroupRun, slower units.Seconds) *costmodel.Replayed {
	p.t.Helper()
	var devices []string
	for _, r := range g.Ranks {
		devices = append(devices, "1 "+h.Ranks[r].Device)
	}
	c, err := costmodel.ParseCluster("1x(" + strings.Join(devices, " + ") + ")")
	if err == nil {
		c, err = c.Resolve(profile, "", "")
	}
	if err != nil {
		p.t.Fatal(err)
	}
	j.Cluster, j.SeqLen = c, g.Tokens()
	s, err := costmodel.NewSimulator(costmodel.NewPredictor(profile), j)
	if err != nil {
		p.t.Fatal(err)
	}
	work := costmodel.ReplayWork{Layout: g.Layout, Packed: g.Docs, Layers: 1}
	r, err := s.Replayed(work)
	if err != nil {
		p.t.Fatal(err)
	}
	took := slowed(r, slower)
	if r, err = s.Supposing(work, func(k costmodel.ReplayKey) (units.Seconds, bool) { t, ok := took[k]; return t, ok }); err != nil {
		p.t.Fatal(err)
	}
	return r
}

// forms are the ways in which a report is written.
func (p *played) forms(good, bad string) {
	dir := p.t.TempDir()
	junit, markdown, timeline := filepath.Join(dir, "x.xml"), filepath.Join(dir, "x.md"), filepath.Join(dir, "x.json")
	out, _ := p.verb(exitCheck, "check", bad, "--profile", p.profile, "--json", "--junit", junit, "--markdown", markdown)
	var report comparison.Report
	if err := json.Unmarshal([]byte(out), &report); err != nil || len(report.Plans) != 1 || len(report.Plans[0].Parts) != 4 {
		p.t.Errorf("%v: %.300s", err, out)
	}
	var suites struct {
		Failures int `xml:"failures,attr"`
	}
	if err := xml.Unmarshal(p.file(junit), &suites); err != nil || suites.Failures != 2 {
		p.t.Errorf("%v: %s", err, p.file(junit))
	}
	if text := string(p.file(markdown)); !strings.Contains(text, "## evenkeel check of a replay: FAIL") {
		p.t.Errorf("%s", text)
	}
	recorded := p.file(good)
	if _, said := p.verb(exitUsage, "check", good, "--profile", p.profile, "--timeline", good); !strings.Contains(said, "is one of the files that are read") || !bytes.Equal(p.file(good), recorded) {
		p.t.Errorf("a timeline in the place of the trace: %s", said)
	}
	p.verb(exitDone, "check", good, "--profile", p.profile, "--timeline", timeline, "--plan", "2", "--all")
	var events struct {
		TraceEvents []struct {
			Name string         `json:"name"`
			Ph   string         `json:"ph"`
			PID  int            `json:"pid"`
			Args map[string]any `json:"args"`
		} `json:"traceEvents"`
	}
	if err := json.Unmarshal(p.file(timeline), &events); err != nil {
		p.t.Fatal(err)
	}
	spans, names := map[int]int{}, ""
	for _, e := range events.TraceEvents {
		if e.Ph == "X" {
			spans[e.PID]++
		} else if e.Name == "process_name" {
			names += fmt.Sprintln(e.Args["name"])
		}
	}
	if len(spans) != 4 || spans[0] != spans[1] || !strings.Contains(names, "predicted rank 1: sim_small") || !strings.Contains(names, "recorded rank 0: sim_big") {
		p.t.Errorf("%v of\n%s", spans, names)
	}
}

func (p *played) file(path string) []byte {
	p.t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		p.t.Fatal(err)
	}
	return data
}

// refusals are what cannot be judged.
func (p *played) refusals(good string) {
	recording := strings.Replace(p.profile, ".profile.json", ".rec.jsonl", 1)
	torn := filepath.Join(p.t.TempDir(), "torn.trace.jsonl")
	data := p.file(good)
	if err := os.WriteFile(torn, data[:2*len(data)/3], 0o666); err != nil {
		p.t.Fatal(err)
	}
	junit, markdown := filepath.Join(p.t.TempDir(), "x.xml"), filepath.Join(p.t.TempDir(), "x.md")
	for _, c := range []struct {
		exit int
		want string
		args []string
	}{
		{exitUsage, "--profile is missing", []string{good}},
		{exitUsage, "judged by itself", []string{good, recording, "--profile", p.profile}},
		{exitUsage, "are of recordings", []string{good, "--profile", p.profile, "--drift-from", recording}},
		{exitUsage, "are of recordings", []string{good, "--profile", p.profile, "--min-len", "4k"}},
		{exitUsage, "one share", []string{good, "--profile", p.profile, "--max-error", "gemm=5%"}},
		{exitUsage, "has plans 0 to 2", []string{good, "--profile", p.profile, "--plan", "3"}},
		{exitUsage, "name the drawing with --timeline", []string{good, "--profile", p.profile, "--plan", "1"}},
		{exitFailed, "x.md: there is no folder", []string{good, "--profile", p.profile, "--markdown", filepath.Join(junit, "x.md")}},
		{exitFailed, "x.xml: there is no folder", []string{good, "--profile", p.profile, "--junit", filepath.Join(filepath.Dir(junit), "none", "x.xml")}},
		{exitUsage, "other plans hold their link classes", []string{good, "--profile", p.profile, "--link", "nvlink"}},
		{exitUsage, "there is none among the files", []string{recording, "--profile", p.profile, "--plan", "1"}},
		{exitUsage, "both write to stdout", []string{good, "--profile", p.profile, "--json", "--markdown", "-"}},
		{exitFailed, "expected evenkeel.profile", []string{good, "--profile", p.plans[0]}},
		{exitFailed, "cut off", []string{torn, "--profile", p.profile, "--junit", junit, "--markdown", markdown}},
	} {
		_, errOut := p.verb(c.exit, append([]string{"check"}, c.args...)...)
		if !strings.Contains(errOut, c.want) {
			p.t.Errorf("%q: %q, want %q", c.args, errOut, c.want)
		}
	}
	if text := string(p.file(junit)); !strings.Contains(text, `errors="1"`) {
		p.t.Errorf("%s", text)
	}
	if text := string(p.file(markdown)); !strings.Contains(text, "## evenkeel check: ERROR") || !strings.Contains(text, "cut off") {
		p.t.Errorf("%s", text)
	}
}
