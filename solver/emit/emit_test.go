package emit

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver"
	"github.com/evenkeel/evenkeel/solver/internal/world"
)

var update = flag.Bool("update", false, "write the golden files anew; commit the changes only if you understand and want them")

func askedOf(plan *solver.Plan, profile *costmodel.Profile) *asked {
	return &asked{ctx: context.Background(), plan: plan, profile: profile, known: map[settingsKey]*solver.Problem{}}
}

// solved is a plan of a job.
func solved(t testing.TB, profile *costmodel.Profile, job costmodel.Job, take string) *solver.Plan {
	t.Helper()
	p, err := solver.NewProblem(profile, job)
	if err != nil {
		t.Fatal(err)
	}
	p.Take = take
	plan, err := solver.Solve(context.Background(), p, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return plan
}

// asEmitted is a job with the settings that an emission says its layout is run with.
func asEmitted(t testing.TB, job costmodel.Job, e *Emission) costmodel.Job {
	t.Helper()
	for _, f := range e.Fields {
		if f.Verdict == Dropped {
			continue // priced as planned
		}
		switch f.Name {
		case fieldZero:
			job.Zero = costmodel.ZeRO(f.Emitted)
		case fieldOverlap:
			job.OverlapZero = f.Emitted == "true"
		case fieldBuffers:
			job.RingBuffers = doubleBuffers
		case fieldLoss:
			if f.Emitted == "all tokens" {
				job.LossChunk = job.SeqLen
			}
		}
	}
	return job
}

// emitted is an emission, whose layout is checked to be that of its text, and whose time to be
// the layout's.
func emitted(t testing.TB, f Framework, plan *solver.Plan, profile *costmodel.Profile) (*Emission, error) {
	t.Helper()
	e, err := f.Plan(context.Background(), plan, profile)
	if err != nil {
		return nil, err
	}
	job := plan.Job
	if err := e.Layout.Validate(job.SeqLen, len(plan.Ranks), job.Model.QHeads); err != nil {
		t.Fatalf("%s: %v", f.Name, err)
	}
	read := readers()[f.Name](t, e.Text, len(e.Ranks), job.SeqLen, job.Model.QHeads, job.Model.KVHeads)
	if diff := cmp.Diff(placedOf(e), read, cmp.AllowUnexported(placed{})); diff != "" {
		t.Fatalf("%s: the framework places otherwise: %s\n%s", f.Name, diff, e.Text)
	}
	step, err := costmodel.Simulate(costmodel.NewPredictor(profile), asEmitted(t, job, e), e.Layout, costmodel.SimOptions{})
	if err != nil || step.Time != e.Time {
		t.Fatalf("%s: a step of %v, said to take %v: %v", f.Name, step.Time.Mid, e.Time.Mid, err)
	}
	for r, k := range step.Ranks {
		if !k.Memory.Fits() {
			t.Errorf("%s: rank %d is over its memory", f.Name, r)
		}
	}
	heads, ranks := 0, 0
	for _, g := range e.Layout.Groups {
		for _, m := range g {
			ranks, heads = ranks+1, heads+m.QHeads
		}
	}
	if want := job.Model.QHeads * len(e.Layout.Groups); heads != want || ranks != len(e.Ranks) {
		t.Errorf("%s: %d heads of %d on %d ranks", f.Name, heads, want, ranks)
	}
	return e, nil
}

// What is priced is what the framework would run, on random clusters and on those of GPUs.
func TestFrameworksRunWhatIsPriced(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 9))
	runs := map[string]int{}
	for range 40 {
		p := world.Random(t, r)
		plan := solved(t, p.Profile, p.Job, "")
		for _, f := range Frameworks() {
			e, err := emitted(t, f, plan, p.Profile)
			var no *NotRunError
			switch {
			case errors.As(err, &no):
			case err != nil:
				t.Fatal(err)
			default:
				runs[f.Name]++
				if !strings.HasSuffix(e.Text, "\n") || e.Use == "" || e.Planned.Mid <= 0 {
					t.Errorf("%s: %+v", f.Name, e)
				}
			}
		}
	}
	for _, f := range Frameworks() {
		if runs[f.Name] < 10 {
			t.Errorf("%s runs %d of 40 plans", f.Name, runs[f.Name])
		}
	}
}

// Of all degrees and choices of ranks the fastest is taken, which is no slower than any that
// the framework can run.
func TestTheFastestIsEmitted(t *testing.T) {
	profile, job := world.GPUJob(t, "2x4 h100_sxm + 1x4 a100_sxm", 96<<10)
	plan := solved(t, profile, job, "")
	for _, f := range Frameworks() {
		e, err := emitted(t, f, plan, profile)
		if err != nil {
			t.Fatal(err)
		}
		x := askedOf(plan, profile)
		tried := 0
		for _, ranks := range [][]int{upTo(0, 12), upTo(0, 8)} {
			all, err := f.form.variants(x, ranks)
			if err != nil {
				t.Errorf("%s: %v", f.Name, err)
			}
			for _, v := range all {
				if err := x.price(&v); err != nil {
					t.Fatal(err)
				}
				if tried++; v.step.Time.Mid < e.Time.Mid {
					t.Errorf("%s: %v, and %d x %d on %d ranks take %v", f.Name, e.Time.Mid, v.hp, v.cp, len(ranks), v.step.Time.Mid)
				}
			}
		}
		if tried < 3 {
			t.Errorf("%s: %d layouts tried", f.Name, tried)
		}
	}
}

// Unequal devices get unequal chunks of MagiAttention, which is faster than equal ones.
func TestMagiIsBalanced(t *testing.T) {
	profile, job := world.GPUJob(t, "1x4 h100_sxm + 1x4 a100_sxm", 128<<10)
	plan := solved(t, profile, job, "")
	f, _ := Lookup("magi")
	all, err := f.form.variants(askedOf(plan, profile), upTo(0, 8))
	if err != nil {
		t.Fatal(err)
	}
	first, best := all[0].step.Time.Mid, all[0].step.Time.Mid
	for _, v := range all {
		best = min(best, v.step.Time.Mid)
	}
	if tokens := all[len(all)-1].layout.Tokens(); best > 0.8*first || tokens[0] < tokens[4]*3/2 {
		t.Errorf("%v equally, %v balanced: %v", first, best, tokens)
	}
}

// A plan that the framework can run as it is loses nothing.
func TestEqualPlansAreExact(t *testing.T) {
	profile, job := world.GPUJob(t, "2x4 h100_sxm", 64<<10)
	job.LossChunk = job.SeqLen
	f, _ := Lookup("megatron")
	e, err := emitted(t, f, solved(t, profile, job, "usp"), profile)
	if err != nil {
		t.Fatal(err)
	}
	if !e.Exact() || e.Time != e.Planned {
		t.Errorf("%v, %v as planned: %+v", e.Time.Mid, e.Planned.Mid, e.Fields)
	}
	job.LossChunk, job.RingBuffers = 1<<10, 3
	if e, err = emitted(t, f, solved(t, profile, job, "usp"), profile); err != nil || e.Exact() {
		t.Fatal(err)
	}
	for _, field := range e.Fields {
		if want := field.Name != fieldLoss && field.Name != fieldBuffers; (field.Verdict == Exact) != want {
			t.Errorf("%+v", field)
		}
	}
}

func TestVerdicts(t *testing.T) {
	profile, job := world.GPUJob(t, "1x4 h100_sxm + 1x4 a100_sxm", 128<<10)
	plan := solved(t, profile, job, "evenkeel")
	plan.KeepTail, plan.TwoBatch = true, true // for their names alone
	own := plan.Layout()
	count := func(l costmodel.Layout) map[Verdict]int {
		n := map[Verdict]int{}
		for _, f := range compare(plan.Layout(), &variant{layout: l, order: "another"}) {
			n[f.Verdict]++
		}
		return n
	}
	if got := count(own); got[Exact] != 7 {
		t.Errorf("of itself: %v", got)
	}
	for name, c := range map[string]struct {
		change func(*costmodel.Layout)
		field  string
		want   Verdict
	}{
		"a schedule":  {func(l *costmodel.Layout) { l.KeepTail = false }, fieldSchedule, Dropped},
		"ranks":       {func(l *costmodel.Layout) { l.Groups = l.Groups[1:] }, fieldRanks, Rounded},
		"heads moved": {func(l *costmodel.Layout) { l.Groups[0][0].QHeads++ }, fieldHeads, Rounded},
		"tokens":      {func(l *costmodel.Layout) { l.Shards[0].Segments[0].Start++ }, fieldTokens, Rounded},
	} {
		l := plan.Layout()
		l.Groups, l.Shards = slices.Clone(l.Groups), slices.Clone(l.Shards)
		for i := range l.Groups {
			l.Groups[i] = slices.Clone(l.Groups[i])
		}
		for i := range l.Shards {
			l.Shards[i].Segments = slices.Clone(l.Shards[i].Segments)
		}
		c.change(&l)
		for _, f := range compare(plan.Layout(), &variant{layout: l, order: "another"}) {
			if f.Name == c.field && f.Verdict != c.want {
				t.Errorf("%s: %+v, want %s", name, f, c.want)
			}
		}
	}
}

func TestRingsAreComparedAsCircles(t *testing.T) {
	g := func(firsts ...int) []costmodel.Group {
		var all []costmodel.Group
		for _, r := range firsts {
			all = append(all, costmodel.Group{{Rank: r + 1}, {Rank: r}})
		}
		return all
	}
	for _, c := range []struct {
		a, b []costmodel.Group
		want bool
	}{
		{g(0, 2, 4), g(2, 4, 0), true}, {g(0, 2, 4), g(4, 2, 0), false}, {g(0, 2), g(2, 0), true}, {g(0, 2), g(0), false},
	} {
		if got := sameRing(c.a, c.b); got != c.want {
			t.Errorf("%v and %v: %v", c.a, c.b, got)
		}
	}
}

// Where as many ranks cannot divide the work, fewer take it, and why is said.
func TestFewerRanksWhereAllCannot(t *testing.T) {
	for _, c := range []struct {
		cluster   string
		seq       units.Tokens
		framework string
		ranks     int
		why       string
	}{
		{"1x3 h100_sxm", 8191, "megatron", 1, "not on all ranks: 3 ranks: --seq-len 8191 does not divide into 6 equal parts: plan the sequence padded to 8196"},
		{"1x3 h100_sxm", 8191, "usp", 1, "does not divide into 6 equal parts"},
		{"1x3 h100_sxm", 8191, "accelerate", 1, "does not divide into 6 equal parts: plan the sequence padded to 8196; 32 query and 8 KV heads do not suit Ulysses of 3 ranks"},
		{"1x3 h100_sxm", 8191, "magi", 3, ""},
		{"1x5 h100_sxm", 1 << 16, "megatron", 4, "5 ranks: --seq-len 65536 does not divide into 10 equal parts"},
		{"1x1 h100_sxm", 8191, "megatron", 1, ""},
		{"1x1 h100_sxm", 8191, "usp", 1, ""},
		{"1x1 h100_sxm", 8191, "accelerate", 1, ""},
		{"1x4 h100_sxm + 1x2 h100_sxm", 3 << 14, "accelerate", 4, "not as many devices of each are here as of n0: plan on equal nodes"},
	} {
		profile, job := world.GPUJob(t, c.cluster, c.seq)
		f, _ := Lookup(c.framework)
		e, err := emitted(t, f, solved(t, profile, job, ""), profile)
		if err != nil {
			t.Fatal(err)
		}
		notes := strings.Join(e.Notes, "\n")
		if len(e.Ranks) != c.ranks || !strings.Contains(notes, c.why) || strings.Contains(notes, "not on all") != (c.why != "") {
			t.Errorf("%s on %s: ranks %v, %s", c.framework, c.cluster, e.Ranks, notes)
		}
	}
}

// The ranks of every layout beside the plan are tried, those of the plan, and those of every
// device type.
func TestChoicesOfRanks(t *testing.T) {
	plan := &solver.Plan{}
	for r, device := range []string{"x", "x", "y", "y"} {
		plan.Ranks = append(plan.Ranks, solver.PlanRank{Rank: r, Device: device})
	}
	one := func(ranks ...int) (groups []costmodel.Group) {
		for _, r := range ranks {
			groups = append(groups, costmodel.Group{{Rank: r}})
		}
		return groups
	}
	plan.Groups = one(2, 1)
	plan.Compared = []solver.Candidate{{}, {Layout: &costmodel.Layout{Groups: one(0, 3)}}, {Layout: &costmodel.Layout{Groups: one(3, 2)}}}
	want := [][]int{{0, 1, 2, 3}, {0, 1}, {2, 3}, {1, 2}, {0, 3}}
	if diff := cmp.Diff(want, askedOf(plan, nil).rankSets()); diff != "" {
		t.Error(diff)
	}
}

// Prices by other laws than the plan's say so, and differences have the error that they have in
// plans.
func TestOtherLaws(t *testing.T) {
	profile, job := world.GPUJob(t, "1x2 h100_sxm + 1x2 a100_sxm", 64<<10)
	plan := solved(t, profile, job, "")
	f, _ := Lookup("megatron")
	e, err := emitted(t, f, plan, profile)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(strings.Join(e.Notes, ""), "not the laws") {
		t.Error(e.Notes)
	}
	own, err := costmodel.Simulate(costmodel.NewPredictor(profile), job, plan.Layout(), costmodel.SimOptions{})
	if err != nil {
		t.Fatal(err)
	}
	run, err := costmodel.Simulate(costmodel.NewPredictor(profile), asEmitted(t, job, e), e.Layout, costmodel.SimOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if half, _ := costmodel.GainError(own, run); half <= 0 || e.Error != half {
		t.Errorf("%v, want %v", e.Error, half)
	}
	plan.Step.Time.Mid *= 1.001
	if e, err = f.Plan(context.Background(), plan, profile); err != nil || !strings.Contains(strings.Join(e.Notes, ""), "these are not the laws that the plan was made with") {
		t.Errorf("%v, %v", e, err)
	}
}

// A layout that is slower than what the framework would run of its job says so.
func TestFasterThanPlanned(t *testing.T) {
	profile, job := world.GPUJob(t, "1x4 h100_sxm", 64<<10)
	p, err := solver.NewProblem(profile, job)
	if err != nil {
		t.Fatal(err)
	}
	plan, err := solver.SolveGiven(context.Background(), p, solver.Given{Shares: []int{9, 1, 1, 1}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	f, _ := Lookup("megatron")
	e, err := emitted(t, f, plan, profile)
	if err != nil || !strings.Contains(strings.Join(e.Notes, ""), "faster than the plan") {
		t.Errorf("%+v, %v", e, err)
	}
}

func TestWhatNoFrameworkRuns(t *testing.T) {
	profile, job := world.GPUJob(t, "1x3 h100_sxm", 8192)
	plan := solved(t, profile, job, "")
	small := *profile
	small.Devices = slices.Clone(small.Devices)
	for i := range small.Devices {
		small.Devices[i].Memory = units.GiB
	}
	f, _ := Lookup("magi")
	var no *NotRunError
	if _, err := f.Plan(context.Background(), plan, &small); !errors.As(err, &no) || !strings.Contains(err.Error(), "states is the largest part; way out: a plan for more devices or of shorter sequences, another framework (--to accelerate, megatron, usp), or") {
		t.Errorf("on devices of 1 GiB: %v", err)
	}
	odd := plan.Job
	odd.SeqLen--
	both := regexp.MustCompile(`^megatron cannot run this: rank 0 .* is the largest part, and not on all ranks: 3 ranks: --seq-len 8191 does not divide into 6 equal parts: plan the sequence padded to 8196; way out: a plan for more devices or of shorter sequences, another framework`)
	if _, err := (Framework{"megatron", "", megatron{}}).Plan(context.Background(), solved(t, profile, odd, ""), &small); err == nil || !both.MatchString(err.Error()) {
		t.Errorf("of an odd length on devices of 1 GiB: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := f.Plan(ctx, plan, profile); !errors.Is(err, context.Canceled) {
		t.Errorf("once cancelled: %v", err)
	}
	if _, ok := Lookup("nemo"); ok {
		t.Error("a framework is known that is not")
	}
}

// Three canonical plans: of equal devices on one node, of unequal ones, and of several
// micro-batches with ZeRO 1.
func TestGolden(t *testing.T) {
	for name, c := range map[string]struct {
		cluster string
		seq     units.Tokens
		change  func(*costmodel.Job)
	}{
		"equal":        {"1x8 h100_sxm", 64 << 10, func(*costmodel.Job) {}},
		"unequal":      {"2x4 h100_sxm + 2x4 a100_sxm", 256 << 10, func(j *costmodel.Job) { j.Recompute = costmodel.RecomputeFull }},
		"accumulating": {"1x4 h100_sxm + 1x2 a100_sxm", 24 << 10, func(j *costmodel.Job) { j.Accumulate, j.Zero = 4, costmodel.Zero1 }},
	} {
		profile, job := world.GPUJob(t, c.cluster, c.seq)
		c.change(&job)
		plan := solved(t, profile, job, "")
		var b strings.Builder
		for _, f := range Frameworks() {
			e, err := emitted(t, f, plan, profile)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&b, "== %s: %s\n%s", f.Name, e.Use, e.Text)
			for _, x := range e.Fields {
				fmt.Fprintf(&b, "%s: %s -> %s: %s; %s\n", x.Name, x.Plan, x.Emitted, x.Verdict, x.Why)
			}
			fmt.Fprintf(&b, "%q\n", e.Notes)
		}
		golden(t, "testdata/"+name+".golden", b.String())
	}
}
