package solver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/internal/baseline"
	"github.com/evenkeel/evenkeel/solver/internal/evenkeel"
	"github.com/evenkeel/evenkeel/solver/internal/hexiseq"
	"github.com/evenkeel/evenkeel/solver/internal/strategy"
	"github.com/evenkeel/evenkeel/solver/internal/world"
)

func TestNeverSlowerThanABaselineNorBelowTheBound(t *testing.T) {
	r, worlds := rand.New(rand.NewPCG(7, 1)), 25
	if testing.Short() {
		worlds = 5 // all run the same two goroutines
	}
	for range worlds {
		p := randomWorld(t, r)
		bound, err := LowerBound(p)
		if err != nil {
			t.Fatal(err)
		}
		plan, err := Solve(context.Background(), p, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		ours := last(plan)
		for _, c := range plan.Compared {
			if c.Runs() && (ours.Time.Mid > c.Time.Mid*(1+1e-12) || bound > c.Time.Mid*(1+1e-9)) {
				t.Errorf("%s: bound %v, %s %v, %s %v", p.Job.Cluster, bound, ours.Strategy, ours.Time.Mid, c.Strategy, c.Time.Mid)
			}
		}
	}
}

func solvePlan(t testing.TB, p *Problem) *Plan {
	t.Helper()
	plan, err := Solve(context.Background(), p, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return plan
}

// last is the candidate of the strategy that is solved last: ours.
func last(plan *Plan) *Candidate { return &plan.Compared[len(plan.Compared)-1] }

func TestSameProblemSameBytes(t *testing.T) {
	var first []byte
	for range 2 {
		got, err := doc.Encode(solvePlan(t, testProblem(t, "1x2 fast + 1x(1 fast + 2 slow)", 12000)))
		if err != nil {
			t.Fatal(err)
		}
		if first != nil && !bytes.Equal(first, got) {
			t.Error("two runs differ")
		}
		first = got
	}
	var back Plan
	if err := doc.Decode("plan", first, &back); err != nil {
		t.Fatal(err)
	}
	again, err := doc.Encode(&back)
	if err != nil || !bytes.Equal(first, again) {
		t.Errorf("a plan changes by reading and writing it: %v", err)
	}
}

func TestPlanBeatsTheBaselineOnUnequalDevices(t *testing.T) {
	p := testProblem(t, "1x(2 fast + 2 slow)", 32768)
	plan := solvePlan(t, p)
	if ours := last(plan); len(plan.Compared) != len(always()) || plan.Compared[0].Verdict != Slower || ours.Speedup < 1.2 || plan.Baseline().Strategy == plan.Strategy {
		t.Errorf("%+v", plan.Compared)
	}
	if err := Check(plan, p.Profile); err != nil {
		t.Error(err)
	}
}

func TestEqualDevicesGiveEqualPlans(t *testing.T) {
	p := testProblem(t, "1x4 fast", 32768)
	plan := solvePlan(t, p)
	if plan.Strategy != plan.Baseline().Strategy || last(plan).Verdict != Equal {
		t.Errorf("%s chosen: %+v", plan.Strategy, plan.Compared)
	}
	if err := Check(plan, p.Profile); err != nil {
		t.Error(err)
	}
}

// A gain is real or not by the laws that it rests on: with laws this vague the
// same plan is a tie.
func TestVagueLawsMakeATie(t *testing.T) {
	nearly := world.Fast()
	nearly.Name, nearly.FLOPS = "nearly", world.Fast().FLOPS*0.9
	profile := world.Profile([]world.Device{world.Fast(), nearly}, []world.Wire{world.Near(), world.Far()})
	job := world.Job(t, "1x(1 fast + 1 nearly)", 32768)
	if plan := solvePlan(t, problemOf(t, profile, job)); plan.Strategy == plan.Baseline().Strategy {
		t.Errorf("with sure laws: %+v", plan.Compared)
	}
	for i := range profile.Laws {
		profile.Laws[i].Spread = costmodel.Spread{Lo: 0.6, Hi: 1.6}
		if l := &profile.Laws[i]; l.Op == op.KindAttnBwd && l.Device == "nearly" {
			l.Spread = costmodel.Spread{Lo: 0.2, Hi: 5}
		}
	}
	p := problemOf(t, profile, job)
	plan := solvePlan(t, p)
	if plan.Strategy != plan.Baseline().Strategy || last(plan).Verdict != Tie || last(plan).GainError == 0 {
		t.Errorf("with vague laws: %+v", plan.Compared)
	}
	// The law to measure is the vaguest one that both do not use alike.
	why := last(plan).Why
	if !strings.Contains(why, "most of the doubt is attn_bwd (") || !strings.Contains(why, ") on nearly; to settle it, on nearly: evenkeel calibrate --fresh --only attn_bwd; or") || !strings.Contains(why, "--take "+last(plan).Strategy) {
		t.Errorf("why: %s", why)
	}
	if err := Check(plan, p.Profile); err != nil {
		t.Error(err)
	}
}

func TestCancelledContextStillGivesAPlan(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	p := testProblem(t, "1x(2 fast + 2 slow)", 32768)
	plan, err := Solve(ctx, p, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := Check(plan, p.Profile); err != nil {
		t.Error(err)
	}
	if len(plan.Warnings) == 0 {
		t.Error("no warning that the search was stopped")
	}
	for _, w := range plan.Warnings {
		if !strings.Contains(w, "was stopped") {
			t.Errorf("warning: %q", w)
		}
	}
}

func TestProgressFallsAndNamesItsStrategy(t *testing.T) {
	last := map[string]units.Seconds{}
	_, err := Solve(context.Background(), testProblem(t, "1x(2 fast + 2 slow)", 8192), nil, func(g Progress) {
		if was, ok := last[g.Strategy]; ok && g.Best >= was {
			t.Errorf("%s went from %v to %v", g.Strategy, was, g.Best)
		}
		last[g.Strategy] = g.Best
	})
	if err != nil || len(last) != len(always()) {
		t.Errorf("%v, %v", last, err)
	}
}

// The equal split does not fit the small device, an unequal one does.
func TestMemoryShapesTheSplit(t *testing.T) {
	small := world.Fast()
	small.Name = "small"
	seq := units.Tokens(65536)
	big := world.Fast()
	p := testProblem(t, "1x(1 fast + 1 small)", seq, big, small)
	need := p.posed.Sim.Memory(p.posed.EqualRing())[1].Peak()
	small.Memory = units.Bytes(float64(need) * 0.8)
	p = testProblem(t, "1x(1 fast + 1 small)", seq, big, small)
	plan := solvePlan(t, p)
	if plan.Compared[0].Verdict != Infeasible || !strings.Contains(plan.Compared[0].Why, "rank 1 (small on n0)") || !strings.Contains(plan.Compared[0].Why, "activations") {
		t.Errorf("ring: %+v", plan.Compared[0])
	}
	if plan.Ranks[1].Tokens >= plan.Ranks[0].Tokens || plan.Ranks[1].QHeads+int(plan.Ranks[1].Tokens) == 0 {
		t.Errorf("%s: %+v", plan.Strategy, plan.Ranks)
	}
	if err := Check(plan, p.Profile); err != nil {
		t.Error(err)
	}
}

// One node alone beats any ring over this network, and beats its fast rank alone.
func TestSlowNetworkIsAvoided(t *testing.T) {
	profile := world.Profile([]world.Device{world.Fast(), world.Slow()}, []world.Wire{world.Near(), world.Link("far", 1e-2, 1e-6)})
	plan := solvePlan(t, problemOf(t, profile, world.Job(t, "8x(1 fast + 1 slow)", 32768)))
	nodes := map[string]bool{}
	for _, r := range plan.Ranks {
		if r.Group >= 0 {
			nodes[r.Node] = true
		}
	}
	if len(nodes) != 1 {
		t.Errorf("groups %v of %+v", plan.Groups, plan.Ranks)
	}
	if err := Check(plan, profile); err != nil {
		t.Error(err)
	}
}

// Sixteen ranks of two kinds: only a ring that mixes them runs at full speed
// with two buffers.
func TestUnequalRanksAreMixedInTheRing(t *testing.T) {
	p := testProblem(t, "1x8 fast + 1x8 slow", 131072)
	plan := solvePlan(t, p)
	if plan.Gap > 0.03 { // what a ring that visits the fast ranks first cannot reach
		t.Errorf("gap %v, groups %v", plan.Gap, plan.Groups)
	}
}

func TestNewProblemRefuses(t *testing.T) {
	profile := world.Profile([]world.Device{world.Fast(), world.Slow()}, []world.Wire{world.Near(), world.Far()})
	unknown := world.Job(t, "1x2 rapid", 1024)
	short := world.Job(t, "1x4 fast", 3)
	for _, tc := range []struct {
		job  costmodel.Job
		want string
	}{
		{unknown, `device type "rapid" is not in the profile`},
		{short, "seq_len_tokens: 3: fewer tokens than the cluster's 4 ranks"},
	} {
		if _, err := NewProblem(profile, tc.job); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%v: want %q", err, tc.want)
		}
	}
	blank := world.Profile([]world.Device{{Name: "fast", FLOPS: 1, Bytes: 1}}, []world.Wire{world.Near(), world.Far()})
	if _, err := NewProblem(blank, world.Job(t, "1x2 fast", 1024)); err == nil || !strings.Contains(err.Error(), "memory_bytes") {
		t.Errorf("unknown capacity: %v", err)
	}
}

// Every law but those of all-to-alls, which rings do without, of collectives of
// other ZeRO stages, and reduce_scatter's,
// for which all_reduce's stands in, is needed, and its lack must show before any
// search.
func TestMissingLawsSurfaceBeforeTheSearch(t *testing.T) {
	whole := world.Profile([]world.Device{world.Fast(), world.Slow()}, []world.Wire{world.Near(), world.Far()})
	job := world.Job(t, "1x(1 fast + 1 slow) + 1x2 fast", 4096)
	for i, l := range whole.Laws {
		if l.Op == op.KindAllReduce || l.Op == op.KindReduceScatter || l.Op == op.KindAllToAll || (l.Op != op.KindSendRecv && strings.Contains(l.Group, "near")) {
			continue
		}
		part := *whole
		part.Laws = slices.Delete(slices.Clone(whole.Laws), i, i+1)
		var missing *costmodel.MissingLawError
		if _, err := NewProblem(&part, job); !errors.As(err, &missing) || missing.Op != l.Op {
			t.Errorf("without %s %s on %s: %v", l.Op, l.Variant, l.On(), err)
		}
	}
}

func TestLookupSuggests(t *testing.T) {
	if _, err := Lookup("evenkeal"); err == nil || !strings.Contains(err.Error(), `did you mean "evenkeel"?`) || !strings.Contains(err.Error(), "ring") {
		t.Error(err)
	}
	if _, err := Solve(context.Background(), testProblem(t, "1x2 fast", 1024), []string{"rign"}, nil); err == nil || !strings.Contains(err.Error(), `"ring"`) {
		t.Error(err)
	}
	seen := map[string]bool{}
	for _, s := range always() {
		if seen[s.Name] || s.Doc == "" {
			t.Errorf("strategy %q: name twice or no doc", s.Name)
		}
		seen[s.Name] = true
	}
}

func BenchmarkSolve(b *testing.B) {
	for _, tc := range []struct {
		ranks   int
		cluster string
	}{{2, "1x(1 fast + 1 slow)"}, {8, "1x4 fast + 1x4 slow"}, {32, "2x8 fast + 2x8 slow"}, {128, "8x8 fast + 8x8 slow"}} {
		b.Run(fmt.Sprint(tc.ranks), func(b *testing.B) {
			p := testProblem(b, tc.cluster, 262144)
			for b.Loop() {
				plan := solvePlan(b, p)
				b.ReportMetric(100*plan.Gap, "gap-%")
			}
		})
	}
}

// Where a published strategy and ours find plans that are equally fast, ours, which
// starts from the others', is the one to take.
func TestOfEqualPlansOursIsChosen(t *testing.T) {
	p := testProblem(t, "1x(2 fast + 2 slow)", 32768)
	l := p.posed.EqualRing()
	step, err := p.posed.Simulate(context.Background(), l)
	if err != nil {
		t.Fatal(err)
	}
	slow := *step
	slow.Time = step.Time.Times(2)
	found := []strategy.Attempt{
		{Result: strategy.Result{Layout: l, Step: &slow}, Strategy: baseline.Ring{}},
		{Result: strategy.Result{Layout: l, Step: step}, Strategy: hexiseq.HexiSeq{}},
		{Result: strategy.Result{Layout: l, Step: step}, Strategy: &evenkeel.Evenkeel{}},
	}
	late := []string{"strategy ulysses: the time was up", "strategy usp: the time was up", "strategy usp-subset: the time was up"}
	plan, err := p.pick(found, late, step.Time.Mid/2)
	if err != nil {
		t.Fatal(err)
	}
	if plan.Strategy != Default || plan.Compared[1].Verdict != Equal || plan.Compared[2].Verdict != Chosen {
		t.Errorf("%s: %s, %s", plan.Strategy, plan.Compared[1].Verdict, plan.Compared[2].Verdict)
	}
}

// Asking for the other of two plans that are equally fast, and gain as surely, is no wish against
// the numbers: where there is a baseline, and where none fits.
func TestTheOtherOfEqualPlansMayBeTaken(t *testing.T) {
	p := testProblem(t, "1x(2 fast + 2 slow)", 32768)
	l := p.posed.EqualRing()
	step, err := p.posed.Simulate(context.Background(), l)
	if err != nil {
		t.Fatal(err)
	}
	slow := *step
	slow.Time = step.Time.Times(2)
	ours := []strategy.Attempt{
		{Result: strategy.Result{Layout: l, Step: step}, Strategy: &evenkeel.Evenkeel{}},
		{Result: strategy.Result{Layout: l, Step: step}, Strategy: &evenkeel.Sure{}},
	}
	var late []string // the others, and where it is not there the ring as well
	for _, name := range []string{"ring", "ulysses", "usp", "usp-subset", "hexiseq"} {
		late = append(late, "strategy "+name+": the time was up")
	}
	for name, found := range map[string][]strategy.Attempt{
		"beside a slower ring": append([]strategy.Attempt{{Result: strategy.Result{Layout: l, Step: &slow}, Strategy: baseline.Ring{}}}, ours...),
		"alone":                ours,
	} {
		for _, p.Take = range []string{evenkeel.Name, evenkeel.SureName} {
			plan, err := p.pick(found, slices.Clone(late), step.Time.Mid/2)
			if err != nil {
				t.Fatalf("%s, --take %s: %v", name, p.Take, err)
			}
			if plan.Strategy != p.Take || plan.Taken {
				t.Errorf("%s, --take %s: %s, taken: %v", name, p.Take, plan.Strategy, plan.Taken)
			}
		}
	}
}

// A deadline that is over before anything begins leaves a plan, which the strategies that
// come later take as well; one that was asked for by name and not solved says so.
func TestADeadlineLeavesTheFirstPlan(t *testing.T) {
	late, cancel := context.WithDeadline(context.Background(), time.Unix(0, 0))
	defer cancel()
	p := testProblem(t, world.LongRing, 1<<18)
	plan, err := Solve(late, p, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if plan.Strategy == "ring" || !slices.Contains(plan.Warnings, "strategy ring: the time that it was given was up") {
		t.Errorf("by %s: %q", plan.Strategy, plan.Warnings)
	}
	p.Take = "ring"
	if _, err = Solve(late, p, nil, nil); err == nil || errors.As(err, new(*InfeasibleError)) {
		t.Errorf("with --take ring: %v", err)
	}
}

// Where time is up before a sure gain is looked for, that is not to say that there is none.
func TestADeadlineIsNoDoubt(t *testing.T) {
	late, cancel := context.WithDeadline(context.Background(), time.Unix(0, 0))
	defer cancel()
	p := testProblem(t, "1x(2 fast + 2 slow)", 1<<15)
	plan, err := Solve(late, p, nil, nil)
	if want := "strategy evenkeel-sure: was stopped before a gain beyond doubt was found: the time that it was given was up"; err != nil || !slices.Contains(plan.Warnings, want) {
		t.Errorf("%q, want %q: %v", plan.Warnings, want, err)
	}
	p.Take = "evenkeel-sure"
	if _, err = Solve(late, p, nil, nil); err == nil || errors.As(err, new(*InfeasibleError)) || !strings.Contains(err.Error(), "the time was up before it was found") {
		t.Errorf("with --take evenkeel-sure: %v", err)
	}
}

// Planning with all strategies on a half-new, half-old cluster.
func BenchmarkSolveOnReferences(b *testing.B) {
	for _, n := range []int{2, 16, 128, 1024, 8192} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			half := max(1, n/16)
			cluster, seq := fmt.Sprintf("%dx8 h100_sxm + %dx8 a100_sxm", half, half), units.Tokens(1<<20)
			if n < 16 {
				cluster, seq = "1x1 h100_sxm + 1x1 a100_sxm", 1<<15
			}
			given := gpuProblem(b, cluster, seq)
			given.Job.OverlapZero, given.Job.Recompute = true, costmodel.RecomputeFull // as a million tokens on 16 need
			b.ResetTimer()
			for b.Loop() {
				p, err := NewProblem(given.Profile, given.Job) // prices forgotten
				if err != nil {
					b.Fatal(err)
				}
				if _, err := Solve(context.Background(), p, nil, nil); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// One device has no shares, no ring and no choice, and its plan's words do not count what is one.
func TestWordsOfOneDevice(t *testing.T) {
	plan := solvePlan(t, testProblem(t, "1x1 fast", 4096))
	odd := regexp.MustCompile(`\b1 (tokens|equal shares|ranks|simulated layouts)|best of 0`)
	for _, c := range plan.Compared {
		if odd.MatchString(c.Why) {
			t.Errorf("%s: %s", c.Strategy, c.Why)
		}
	}
	for name, want := range map[string]string{"ring": "all tokens on one rank, plain ring", "evenkeel": "all tokens on one rank"} {
		if !slices.ContainsFunc(plan.Compared, func(c Candidate) bool { return c.Strategy == name && strings.HasPrefix(c.Why, want) }) {
			t.Errorf("%s does not say %q", name, want)
		}
	}
}

// Where nobody measured what a program has of a device's memory, a plan that fills nearly all
// of it says so, and how to plan with less.
func TestNearlyFullMemoryIsToldOf(t *testing.T) {
	p := testProblem(t, "1x2 fast", 8192)
	need := p.posed.Sim.Memory(p.posed.EqualRing())[0].Peak()
	told := func(fill, reserve float64, measured bool) bool {
		d := world.Fast()
		d.Memory = units.BytesOf(float64(need) / fill)
		profile := world.Profile([]world.Device{d}, []world.Wire{world.Near()})
		if measured {
			profile.Memory = append(profile.Memory, costmodel.MemoryFacts{Device: d.Name, Capacity: d.Memory})
		}
		job := p.Job
		job.MemoryReserve = reserve
		plan := solvePlan(t, problemOf(t, profile, job))
		if got := plan.Step.Ranks[0].Memory.Capacity; got != units.BytesOf((1-reserve)*float64(d.Memory)) {
			t.Errorf("the capacity is %v of %v with a reserve of %v", got, d.Memory, reserve)
		}
		if err := Check(plan, profile); err != nil {
			t.Error(err)
		}
		return slices.ContainsFunc(plan.Warnings, func(w string) bool {
			return strings.HasPrefix(w, "rank 0 (fast on n0) is planned to ") && strings.Contains(w, "--memory-reserve 6%")
		})
	}
	for _, tc := range []struct {
		fill, reserve  float64
		measured, want bool
	}{
		{0.96, 0, false, true},
		{0.96, 0, true, false},
		{0.85, 0, false, false},
		{0.88, 0.06, false, false},
	} {
		if got := told(tc.fill, tc.reserve, tc.measured); got != tc.want {
			t.Errorf("%+v: told is %v", tc, got)
		}
	}
}

// Where time is given, a ring of very many ranks, which takes longer to simulate than all other
// baselines, comes after them; a plan tells of it first all the same.
func TestALongRingComesLastInHaste(t *testing.T) {
	hurry, cancel := context.WithDeadline(context.Background(), time.Now().Add(time.Hour))
	defer cancel()
	names := func(todo []strategy.Strategy) (all []string) {
		for _, s := range todo {
			all = append(all, s.Name())
		}
		return all
	}
	known := []string{"ring", "ulysses", "usp", "usp-subset", "hexiseq"}
	todo, err := chooseStrategies(known)
	if err != nil {
		t.Fatal(err)
	}
	todo = todo[:len(known)]
	long, short := testProblem(t, "8x64 fast", 1<<16), testProblem(t, "2x4 fast", 1<<14)
	if got := names(inHaste(hurry, long.posed, todo)); !slices.Equal(got, []string{"ulysses", "usp", "usp-subset", "ring", "hexiseq"}) {
		t.Errorf("512 ranks in haste: %v", got)
	}
	if got := names(inHaste(context.Background(), long.posed, todo)); !slices.Equal(got, known) {
		t.Errorf("512 ranks: %v", got)
	}
	if got := names(inHaste(hurry, short.posed, todo)); !slices.Equal(got, known) {
		t.Errorf("8 ranks in haste: %v", got)
	}
	in, err := long.inOrder()
	if err != nil {
		t.Fatal(err)
	}
	found, _, err := long.solveEach(hurry, in, todo[:3], nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, a := range found {
		if a.Strategy.Name() != known[i] {
			t.Errorf("%s comes as number %d", a.Strategy.Name(), i)
		}
	}
}
