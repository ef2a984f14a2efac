package comparison

import (
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/fit"
	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/replay"
)

// groupOf packs documents for ranks, each with a share of every document, in
// all-to-alls of places.
func groupOf(ranks []int, docs []units.Tokens, shares []float64, groups []costmodel.Group) replay.GroupRun {
	g := replay.GroupRun{Ranks: ranks, Docs: docs, Recompute: costmodel.RecomputeNone, RingBuffers: 2}
	g.Layout = costmodel.Layout{Shards: make([]costmodel.Shard, len(ranks)), Groups: groups}
	at := units.Tokens(0)
	for _, n := range docs {
		one := costmodel.ZigZag(costmodel.SplitByShares(n, shares), groups)
		for r, s := range one.Shards {
			for _, x := range s.Segments {
				g.Layout.Shards[r].Segments = append(g.Layout.Shards[r].Segments, costmodel.Segment{Start: x.Start + at, End: x.End + at})
			}
		}
		at += n
	}
	return g
}

// alone is a group of one rank.
func alone(rank int, docs ...units.Tokens) replay.GroupRun {
	return groupOf([]int{rank}, docs, []float64{1}, []costmodel.Group{{{Rank: 0, QHeads: 4}}})
}

// ringOfAll and twoPairs are groups of all four ranks.
func ringOfAll(docs ...units.Tokens) replay.GroupRun {
	return groupOf([]int{0, 1, 2, 3}, docs, []float64{0.3, 0.2, 0.3, 0.2}, []costmodel.Group{{{Rank: 0, QHeads: 4}}, {{Rank: 1, QHeads: 4}}, {{Rank: 2, QHeads: 4}}, {{Rank: 3, QHeads: 4}}})
}

func twoPairs(docs ...units.Tokens) replay.GroupRun {
	g := groupOf([]int{0, 1, 2, 3}, docs, []float64{0.3, 0.2, 0.3, 0.2}, []costmodel.Group{{{Rank: 0, QHeads: 3}, {Rank: 1, QHeads: 1}}, {{Rank: 2, QHeads: 2}, {Rank: 3, QHeads: 2}}})
	g.Recompute = costmodel.RecomputeFull
	return g
}

// party is a made-up machine that plays a plan of batches. Its ranks 0 and 2 are
// fast, 1 and 3 slow: another order than a cluster's.
type party struct {
	groups [][]replay.GroupRun
	slower func(costmodel.ReplayKey) float64
	rate   float64       // of links; 0 is linkRate
	late   units.Seconds // what a meeting itself takes
	lost   bool          // meetings are not recorded
	change func(*replay.Header)
}

// usualParty has a packed ring, unequal groups side by side, one of them without
// work for rank 3, and all-to-alls that recompute.
func usualParty() party {
	return party{groups: [][]replay.GroupRun{
		{ringOfAll(900, 60, 3)},
		{groupOf([]int{0, 1}, []units.Tokens{300, 40}, []float64{0.7, 0.3}, []costmodel.Group{{{Rank: 0, QHeads: 3}, {Rank: 1, QHeads: 1}}}), alone(2, 200, 150, 80)},
		{twoPairs(500, 120)},
	}}
}

func (p *party) header() *replay.Header {
	model := jobModel()
	h := &replay.Header{
		Header:  doc.Header{Schema: replay.TraceSchema, Tool: "test", Created: "2026-01-31T12:00:00Z"},
		Backend: "gloo", Mode: replay.ModeCPU, Parts: replay.PartsLayer, Layers: 2, Kernel: "math", Seed: 1, Repeats: 6, Warmup: 2,
		Plans:    []replay.PlanRun{{Path: "a.batchplan.json", SHA256: strings.Repeat("ab", 32), Strategy: "evenkeel", Batch: true, Micro: len(p.groups), Model: &model, DType: op.F32, Groups: p.groups}},
		Numerics: []replay.Numerics{{Limit: 1e-5, Reference: "dense"}},
		Exact:    []replay.ExactCounts{{Messages: 1, Bytes: 1, FLOPs: 1}},
	}
	for r := range 4 {
		h.Ranks = append(h.Ranks, replay.Rank{Rank: r, Host: "h", Device: []string{"fast", "slow"}[r%2], Threads: 1, Python: "3.11.2", Torch: "2.1.0"})
	}
	if p.change != nil {
		p.change(h)
	}
	return h
}

func jobModel() costmodel.Model {
	return costmodel.Model{Name: "test", Layers: 6, Hidden: 256, FFN: 688, QHeads: 4, KVHeads: 2, HeadDim: 64, Vocab: 1000, GatedMLP: true, MaxLen: 1000}
}

// play writes the party's trace.
func (p *party) play(t testing.TB) string {
	t.Helper()
	if p.rate == 0 {
		p.rate = linkRate
	}
	h := p.header()
	profile := madeUp(t, p.rate)
	c := &making{rec: &Recording{Header: h}, profile: profile, predictor: costmodel.NewPredictor(profile)}
	path := filepath.Join(t.TempDir(), "x.trace.jsonl")
	err := replay.WriteTrace(path, h, func(span func(*replay.Span) error, step func(*replay.Step) error) error {
		for b := range h.Repeats {
			if err := p.block(c, b, span, step); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func (p *party) block(c *making, block int, span func(*replay.Span) error, step func(*replay.Step) error) error {
	x, err := c.courseOf(0)
	if err != nil {
		return err
	}
	ns := func(t units.Seconds) int64 { return int64(math.Round(float64(t) * 1e9)) }
	var begin units.Seconds
	ends := make([]units.Seconds, len(c.rec.Header.Ranks)) // of a whole step
	for m := range x.micro {
		played := map[*part]*costmodel.Replayed{}
		var length units.Seconds
		for _, k := range x.micro[m].of {
			if k == nil || played[k] != nil {
				continue
			}
			if played[k], err = k.supposing(p.took(k.predicted, m, x.batch)); err != nil {
				return err
			}
			length = max(length, played[k].Step.Mid)
			for r, of := range played[k].Ranks {
				ends[r] = max(ends[r], of.End)
			}
			for _, s := range played[k].Tasks {
				mb := m
				if !x.batch {
					mb = s.Micro
				}
				line := &replay.Span{Block: block, MB: mb, Rank: s.Rank, Layer: s.Layer, Dir: replay.Dir(s.Dir), Again: s.Again, Step: s.Step, Op: replay.SpanOp(s.Op), T0NS: ns(begin + s.Start), DurNS: ns(s.Start+s.Time) - ns(s.Start)}
				if line.Op == replay.A2AIn || line.Op == replay.A2AOut {
					line.Out = 1
				}
				if err := span(line); err != nil {
					return err
				}
			}
		}
		for r, k := range x.micro[m].of {
			var end units.Seconds
			if k != nil {
				end = played[k].Ranks[r].End
			}
			if p.lost || !x.batch { // else it is one of the stretches
				continue
			}
			if err := span(&replay.Span{Block: block, MB: m, Rank: r, Dir: replay.Backward, Op: replay.Meet, T0NS: ns(begin + end), DurNS: ns(length + p.late - end)}); err != nil {
				return err
			}
		}
		begin += length + p.late
	}
	for r := range c.rec.Header.Ranks {
		end := begin
		if !x.batch {
			end = ends[r]
		}
		if err := step(&replay.Step{Block: block, Rank: r, DurNS: ns(end)}); err != nil {
			return err
		}
	}
	return nil
}

// took is how long ranks compute in a micro-batch, or else in a whole step.
func (p *party) took(r *costmodel.Replayed, micro int, one bool) func(costmodel.ReplayKey) units.Seconds {
	all := map[costmodel.ReplayKey]units.Seconds{}
	for _, k := range r.Tasks {
		if !k.Op.Waits() {
			all[stretch(joined(k.ReplayKey))] += k.Time
		}
	}
	return func(k costmodel.ReplayKey) units.Seconds {
		t := all[k]
		if p.slower != nil {
			if one {
				k.Micro = micro
			}
			t *= units.Seconds(p.slower(k))
		}
		return t
	}
}

func (p *party) compared(t testing.TB) *Plan {
	t.Helper()
	r, err := New(read(t, p.play(t)), madeUp(t, linkRate), fit.DefaultLimits(), Links{})
	if err != nil {
		t.Fatal(err)
	}
	addsUp(t, &r.Plans[0])
	return &r.Plans[0]
}

// TestBatchUndisturbed: a plan of batches that runs as the profile says has no
// error anywhere, and the documents' masks are in the prediction.
func TestBatchUndisturbed(t *testing.T) {
	p := usualParty()
	x := p.compared(t)
	if math.Abs(x.Log) > 1e-5 || x.ComputeError > 1e-3 || !x.Inside || x.Micro != 3 || len(x.Critical) != 3 {
		t.Errorf("error %v, of computing %v; %+v", x.Log, x.ComputeError, x)
	}
	for _, part := range x.Parts {
		if math.Abs(float64(part.Difference)) > 1e-5*float64(x.Measured.Median) {
			t.Errorf("%+v of %v", part, x.Measured.Median)
		}
	}
	i := slices.IndexFunc(x.Classes, func(c Class) bool { return c.Op == costmodel.MeetOp })
	if i < 0 || x.Classes[i].Predicted <= 0 || x.Classes[i].MeanError > 1e-2 {
		t.Errorf("meetings: %+v", x.Classes)
	}
	for _, r := range x.Ranks {
		if math.Abs(float64(r.Measured-r.Predicted)) > 1e-5*float64(x.Measured.Median) || math.Abs(float64(r.Waited-r.Waits)) > 1e-4*float64(x.Measured.Median) {
			t.Errorf("%+v", r)
		}
	}
}

// TestBatchLengthsAreThoseOfGroupsAlone: a group takes what it takes as a plan of
// its own on its own devices, whatever its ranks are called and whoever is beside.
func TestBatchLengthsAreThoseOfGroupsAlone(t *testing.T) {
	p, profile := usualParty(), madeUp(t, linkRate)
	c := &making{rec: &Recording{Header: p.header()}, profile: profile, predictor: costmodel.NewPredictor(profile)}
	x, err := c.courseOf(0)
	if err != nil {
		t.Fatal(err)
	}
	g := p.groups[1][0] // ranks 0 and 1: a fast and a slow one
	j := jobOf(t, profile)
	if j.Cluster, err = costmodel.ParseCluster("1x(1 fast + 1 slow)"); err == nil {
		j.Cluster, err = j.Cluster.Resolve(profile, "bus", "")
	}
	if err != nil {
		t.Fatal(err)
	}
	j.SeqLen = g.Tokens()
	s, err := costmodel.NewSimulator(costmodel.NewPredictor(profile), j)
	if err != nil {
		t.Fatal(err)
	}
	want, err := s.Replayed(costmodel.ReplayWork{Layout: g.Layout, Packed: g.Docs, Layers: 2})
	if err != nil {
		t.Fatal(err)
	}
	got := x.micro[1].of[0].predicted
	if math.Abs(float64(got.Step.Mid/want.Step.Mid-1)) > 1e-12 || got.Ranks[1].Compute != want.Ranks[1].Compute || x.micro[1].of[3] != nil {
		t.Errorf("%v beside others, %v alone", got.Step.Mid, want.Step.Mid)
	}
	var sum units.Seconds
	for m := range x.micro {
		sum += x.micro[m].length.Mid
	}
	if math.Abs(float64(x.step.Mid/sum-1)) > 1e-12 {
		t.Errorf("step %v, its micro-batches %v", x.step.Mid, sum)
	}
}

// TestBatchLossesAreThoseOfItsMicroBatches: every rank has the loss of the tokens that it has in
// each, of as many at a time as the trace says.
func TestBatchLossesAreThoseOfItsMicroBatches(t *testing.T) {
	p, profile := usualParty(), madeUp(t, linkRate)
	p.change = func(h *replay.Header) { h.Parts, h.LossChunk = replay.PartsLoss, 64 }
	h := p.header()
	c := &making{rec: &Recording{Header: h}, profile: profile, predictor: costmodel.NewPredictor(profile)}
	x, err := c.courseOf(0)
	if err != nil {
		t.Fatal(err)
	}
	j := jobOf(t, profile)
	j.LossChunk = 64
	layers, err := costmodel.NewLayers(costmodel.NewPredictor(profile), j)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, k := range x.tasks {
		if k.Op != costmodel.LossOp {
			continue
		}
		n++
		var tokens units.Tokens
		for _, g := range p.groups[k.Micro] {
			if i := slices.Index(g.Ranks, k.Rank); i >= 0 {
				tokens += g.Layout.Shards[i].Tokens()
			}
		}
		if want, err := layers.Loss(h.Ranks[k.Rank].Device, tokens); err != nil || math.Abs(float64(k.Time/want)-1) > 1e-9 || k.Layer != 1 {
			t.Errorf("%+v of %d tokens, want %v; %v", k, tokens, want, err)
		}
	}
	if n != 11 { // rank 3 has nothing to do in one of three
		t.Errorf("%d losses", n)
	}
}

// TestBatchSlowerGroupIsComputing: where the longest group computes more slowly the
// difference is its computing; where another outlasts it, that is another path.
func TestBatchSlowerGroupIsComputing(t *testing.T) {
	p := usualParty()
	base := p.compared(t)
	for _, rank := range []int{base.Critical[1], 2} {
		p.slower = func(k costmodel.ReplayKey) float64 {
			if k.Rank == rank && k.Micro == 1 {
				return 3
			}
			return 1
		}
		x := p.compared(t)
		if x.Critical[1] != rank || x.Difference <= 0 || math.Abs(share(x, GapsPart)) > 1e-3 || math.Abs(share(x, CommunicationPart)) > 1e-2 || x.Parts[0].Difference <= 0 {
			t.Errorf("rank %d, critical %v, %v: %+v", rank, x.Critical, x.Difference, x.Parts)
		}
	}
}

// TestBatchSlowerLinkAndMeetings: messages that take longer are communication, and
// what a meeting takes by itself is a gap.
func TestBatchSlowerLinkAndMeetings(t *testing.T) {
	p := usualParty()
	p.rate = linkRate / 8
	if x := p.compared(t); x.Difference <= 0 || share(x, CommunicationPart) < 0.9 || x.ComputeError > 1e-3 {
		t.Errorf("slow links: %v: %+v", x.Difference, x.Parts)
	}
	p = usualParty()
	p.late = 1e-3
	if x := p.compared(t); math.Abs(float64(x.Difference)-3e-3) > 1e-6 || share(x, GapsPart) < 0.99 {
		t.Errorf("slow meetings: %v: %+v", x.Difference, x.Parts)
	}
}

// TestBatchLatePeerIsSkew: a rank that stands still until its own group's
// peer is done waits in skew, wherever in the step.
func TestBatchLatePeerIsSkew(t *testing.T) {
	p := usualParty()
	p.slower = func(k costmodel.ReplayKey) float64 {
		switch {
		case k.Micro == 1 && k.Rank == 1 && k.Op == costmodel.LinearOut && k.Dir == costmodel.BackwardPass && k.Layer == 1:
			return 6
		case k.Micro == 1 && k.Rank == 0 && k.Op == costmodel.LinearIn && k.Dir == costmodel.BackwardPass && k.Layer == 0:
			return 30
		}
		return 1
	}
	x := p.compared(t)
	if x.Critical[1] != 0 || x.Parts[2].Difference <= 0 || math.Abs(share(x, CommunicationPart)) > 0.03 || math.Abs(share(x, GapsPart)) > 1e-3 {
		t.Errorf("critical %v, %v: %+v", x.Critical, x.Difference, x.Parts)
	}
}

// TestBatchOneProblem: plans of the same sequences are ranked, whatever their
// groups; of others they are not.
func TestBatchOneProblem(t *testing.T) {
	p := usualParty()
	h := p.header()
	other := h.Plans[0]
	other.Groups = [][]replay.GroupRun{{alone(0, 40, 900, 300), alone(2, 200, 500, 3)}, {ringOfAll(120, 60, 80, 150)}}
	h.Plans = append(h.Plans, other)
	c := &making{rec: &Recording{Header: h}}
	if !c.oneProblem() {
		t.Error("the same sequences in other groups are another problem")
	}
	other.Groups[1][0].Docs[0]++
	if c.oneProblem() {
		t.Error("a token more is the same problem")
	}
}

// TestBatchRefuses: what keeps a plan of batches from being compared is named.
func TestBatchRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		party party
		links Links
		want  string
	}{
		"no groups":   {party{groups: usualParty().groups, change: func(h *replay.Header) { h.Plans[0].Groups = nil }}, Links{}, "plan 0 (a.batchplan.json): groups: missing"},
		"no such bus": {usualParty(), Links{Inside: "rail"}, `link class "rail" is not in the profile`},
		"a device":    {party{groups: usualParty().groups, change: func(h *replay.Header) { h.Ranks[3].Device = "slo" }}, Links{}, `"slo"`},
	} {
		t.Run(name, func(t *testing.T) {
			good := party{groups: c.party.groups}
			rec := read(t, good.play(t))
			rec.Header = c.party.header()
			if _, err := New(rec, madeUp(t, linkRate), fit.DefaultLimits(), c.links); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
	p := usualParty()
	p.lost = true
	file := p.play(t)
	if _, err := Read(file, opened(t, file)); err == nil || !strings.Contains(err.Error(), `plan 0, block 0: rank 0 has no span of op "meet" in micro-batch 0`) {
		t.Errorf("%v", err)
	}
}

// TestManyClaimedMicroBatchesCostNothing: a header may claim what no span shows.
func TestManyClaimedMicroBatchesCostNothing(t *testing.T) {
	p := usualParty()
	h := p.header()
	h.Plans[0].Micro, h.Plans[0].Groups, h.Repeats = 1<<20, nil, 1
	path := filepath.Join(t.TempDir(), "x.trace.jsonl")
	err := replay.WriteTrace(path, h, func(_ func(*replay.Span) error, step func(*replay.Step) error) error {
		var errs []error
		for r := range h.Ranks {
			errs = append(errs, step(&replay.Step{Rank: r, DurNS: 1}))
		}
		return errors.Join(errs...)
	})
	if err != nil {
		t.Fatal(err)
	}
	file := opened(t, path)
	made := testing.AllocsPerRun(1, func() {
		if _, err := file.Seek(0, io.SeekStart); err != nil {
			t.Fatal(err)
		}
		if _, err := Read(path, file); err == nil || !strings.Contains(err.Error(), "in micro-batch 0") {
			t.Error(err)
		}
	})
	if made > 1e5 {
		t.Errorf("%v allocations for four lines", made)
	}
}

// TestBatchTimeline holds every micro-batch where it is in the step.
func TestBatchTimeline(t *testing.T) {
	p := usualParty()
	x, err := NewTimeline(read(t, p.play(t)), madeUp(t, linkRate), 0, Links{})
	if err != nil {
		t.Fatal(err)
	}
	sums := func(tasks []costmodel.ReplayTask) (end units.Seconds, micro [3]int) {
		for _, k := range tasks {
			if k.Time > 0 {
				end, micro[k.Micro] = max(end, k.Start+k.Time), micro[k.Micro]+1
			}
		}
		return end, micro
	}
	e1, n1 := sums(x.Predicted)
	e2, n2 := sums(x.Recorded)
	if math.Abs(float64(e1/e2-1)) > 1e-5 || n1 != n2 || n1[1] == 0 {
		t.Errorf("predicted until %v, %v tasks; recorded until %v, %v", e1, n1, e2, n2)
	}
}

// TestAnyBatchTraceAddsUp: whatever is recorded, the parts are the difference.
func TestAnyBatchTraceAddsUp(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 9))
		p := usualParty()
		p.rate, p.late = linkRate*math.Exp(2*rng.NormFloat64()), units.Seconds(1e-3*rng.Float64())
		p.slower = func(costmodel.ReplayKey) float64 { return math.Exp(rng.NormFloat64()) }
		x := p.compared(t)
		for _, part := range x.Parts[1:3] {
			if part.Measured < 0 {
				t.Errorf("seed %d: %+v", seed, part)
			}
		}
	}
}
