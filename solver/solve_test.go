package solver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/internal/units"
)

// afterBaselines solves a strategy, and the baselines before it unless others have been.
func afterBaselines(ctx context.Context, p *Problem, s Strategy) (Result, error) {
	if p.seeds == nil && !s.Claims().Baseline {
		if _, _, err := p.solveEach(ctx, baselines(), nil); err != nil {
			return Result{}, err
		}
	}
	return s.Solve(ctx, p, nil)
}

func baselines() []Strategy {
	return slices.DeleteFunc(Strategies(), func(s Strategy) bool { return !s.Claims().Baseline })
}

// solveWith is afterBaselines with the account of what has to be found.
func solveWith(t testing.TB, p *Problem, s Strategy) Result {
	t.Helper()
	res, err := afterBaselines(context.Background(), p, s)
	if err == nil {
		err = p.account(context.Background(), &res)
	}
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// sequential leaves a test that starts no goroutine, as Solve does, out under the race
// detector: it has nothing to find there, and takes ten times as long.
func sequential(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("nothing in it runs beside anything else")
	}
}

func tokensOfLayout(l costmodel.Layout) []units.Tokens {
	var n []units.Tokens
	for _, s := range l.Shards {
		n = append(n, s.Tokens())
	}
	return n
}

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

func TestEqualDevicesGetEqualShares(t *testing.T) {
	d := fast()
	d.launch, d.row = 5e-6, 1e-12
	for _, cluster := range []string{"1x2 fast", "1x4 fast", "2x3 fast"} {
		for _, seq := range []units.Tokens{16384, 10007} {
			p := testProblem(t, cluster, seq, d)
			split := tokensOfLayout(solveWith(t, p, &evenKeel{}).Layout)
			// Kernels hand out tiles of 64 rows whole, so a length that does not
			// divide into equal tiles is best split into unequal ones.
			within := p.Block
			if seq%(64*units.Tokens(len(split))) != 0 {
				within = 64
			}
			if slices.Max(split)-slices.Min(split) > within {
				t.Errorf("%s, %d tokens: %v, more than %d apart", cluster, seq, split, within)
			}
		}
	}
}

func TestFasterDeviceGetsAtLeastAsMuch(t *testing.T) {
	for _, cluster := range []string{"1x(1 fast + 1 slow)", "1x(2 slow + 1 fast)", "1x2 slow + 1x2 fast"} {
		p := testProblem(t, cluster, 16384)
		split := tokensOfLayout(solveWith(t, p, &evenKeel{}).Layout)
		for a, x := range p.devices {
			for b, y := range p.devices {
				if x.Name == "fast" && y.Name == "slow" && split[a] < split[b] {
					t.Errorf("%s: fast rank %d has %d tokens, slow rank %d has %d", cluster, a, split[a], b, split[b])
				}
			}
		}
	}
}

// Where computing is all that counts, a fourfold speed earns a fourfold share
// and the time is the bound but for merging and rounding.
func TestComputeBoundSharesFollowSpeed(t *testing.T) {
	f, s := fast(), slow()
	f.bytes, s.bytes = 1e15, 1e15
	profile := testProfile([]device{f, s}, []wire{{"near", 0, 1e-16}, {"far", 0, 1e-16}})
	p := problemOf(t, profile, testJob(t, "1x(1 fast + 1 slow)", 65536))
	res := solveWith(t, p, &evenKeel{})
	split := tokensOfLayout(res.Layout)
	if ratio := float64(split[0]) / float64(split[1]); ratio < 3.9 || ratio > 4.1 {
		t.Errorf("shares %v, ratio %v, want 4", split, ratio)
	}
	bound, err := LowerBound(p)
	if err != nil {
		t.Fatal(err)
	}
	if g := gapOf(res.Step.Time.Mid, bound); g > 0.01 {
		t.Errorf("gap %v", g)
	}
}

// everySplit calls f with all ways to give blocks to n ranks.
func everySplit(blocks, n int, f func([]int)) {
	split := make([]int, n)
	var fill func(i, left int)
	fill = func(i, left int) {
		if i == n-1 {
			split[i] = left
			f(split)
			return
		}
		for k := 0; k <= left; k++ {
			split[i] = k
			fill(i+1, left-k)
		}
	}
	fill(0, blocks)
}

func TestExhaustiveSmallCases(t *testing.T) {
	sequential(t)
	uneven := slow()
	uneven.launch, uneven.tail = 2e-5, 2e-13
	for _, tc := range []struct {
		cluster string
		blocks  int
		devices []device
		wires   []wire
	}{
		{"1x(1 fast + 1 slow)", 16, []device{fast(), slow()}, []wire{nearLink(), farLink()}},
		{"1x(2 fast + 1 slow)", 16, []device{fast(), slow()}, []wire{nearLink(), farLink()}},
		{"1x(1 fast + 2 slow)", 16, []device{fast(), uneven}, []wire{nearLink(), farLink()}},
		{"1x(1 fast + 1 slow) + 1x1 fast", 16, []device{fast(), uneven}, []wire{nearLink(), {"far", 1e-4, 1e-8}}},
		{"1x1 fast + 1x1 slow", 16, []device{fast(), slow()}, []wire{nearLink(), {"far", 1e-3, 1e-7}}},
		{"1x(1 fast + 1 slow) + 1x1 slow", 12, []device{fast(), slow()}, []wire{nearLink(), {"far", 1e-5, 1e-9}}},
	} {
		p := problemOf(t, testProfile(tc.devices, tc.wires), testJob(t, tc.cluster, units.Tokens(tc.blocks)*256))
		p.Block = 256
		best := bestOf(t, p, tc.blocks)
		bound, err := LowerBound(p)
		if err != nil {
			t.Fatal(err)
		}
		ours := solveWith(t, p, &evenKeel{})
		if ours.Step.Time.Mid > best*1.02 || bound > best*(1+1e-9) {
			t.Errorf("%s: evenkeel %v in %d layouts, best %v, bound %v", tc.cluster, ours.Step.Time.Mid, ours.Evaluated, best, bound)
		}
		t.Logf("%s: evenkeel %v, best %v (%.2f %% above), bound %v, %d layouts", tc.cluster, ours.Step.Time.Mid, best, 100*float64(ours.Step.Time.Mid/best-1), bound, ours.Evaluated)
	}
}

// inOrder is a zigzag of single ranks in the order of their ring.
func (p *Problem) inOrder(tokens []units.Tokens, order []int) costmodel.Layout {
	var groups []costmodel.Group
	for _, r := range order {
		if tokens[r] > 0 {
			groups = append(groups, costmodel.Group{{Rank: r, QHeads: p.Job.Model.QHeads}})
		}
	}
	return costmodel.ZigZag(tokens, groups)
}

func bestOf(t *testing.T, p *Problem, blocks int) units.Seconds {
	best := units.Seconds(-1)
	everySplit(blocks, len(p.ranks), func(split []int) {
		tokens := make([]units.Tokens, len(split))
		for r, b := range split {
			tokens[r] = units.Tokens(b) * p.Block
		}
		for _, order := range ordersOf(len(split)) {
			step, err := p.simulate(context.Background(), p.inOrder(tokens, order))
			if err != nil {
				t.Fatal(err)
			}
			if best < 0 || step.Time.Mid < best {
				best = step.Time.Mid
			}
		}
	})
	return best
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
	if ours := last(plan); len(plan.Compared) != len(Strategies()) || plan.Compared[0].Verdict != Slower || ours.Speedup < 1.2 || plan.Baseline().Strategy == plan.Strategy {
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
	nearly := fast()
	nearly.name, nearly.flops = "nearly", fast().flops*0.9
	profile := testProfile([]device{fast(), nearly}, []wire{nearLink(), farLink()})
	job := testJob(t, "1x(1 fast + 1 nearly)", 32768)
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
	if !strings.Contains(why, "most of the doubt is attn_bwd (") || !strings.Contains(why, ") on nearly: measure that") || !strings.Contains(why, "--take "+last(plan).Strategy) {
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
	if err != nil || len(last) != len(Strategies()) {
		t.Errorf("%v, %v", last, err)
	}
}

// The equal split does not fit the small device, an unequal one does.
func TestMemoryShapesTheSplit(t *testing.T) {
	small := fast()
	small.name = "small"
	seq := units.Tokens(65536)
	big := fast()
	p := testProblem(t, "1x(1 fast + 1 small)", seq, big, small)
	need := p.sim.Memory(p.equalRing())[1].Peak()
	small.memory = units.Bytes(float64(need) * 0.8)
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
	profile := testProfile([]device{fast(), slow()}, []wire{nearLink(), {"far", 1e-2, 1e-6}})
	plan := solvePlan(t, problemOf(t, profile, testJob(t, "8x(1 fast + 1 slow)", 32768)))
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
	profile := testProfile([]device{fast(), slow()}, []wire{nearLink(), farLink()})
	unknown := testJob(t, "1x2 rapid", 1024)
	short := testJob(t, "1x4 fast", 3)
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
	blank := testProfile([]device{{name: "fast", flops: 1, bytes: 1}}, []wire{nearLink(), farLink()})
	if _, err := NewProblem(blank, testJob(t, "1x2 fast", 1024)); err == nil || !strings.Contains(err.Error(), "memory_bytes") {
		t.Errorf("unknown capacity: %v", err)
	}
}

// Every law but those of all-to-alls, which rings do without, of collectives of
// other ZeRO stages, and reduce_scatter's,
// for which all_reduce's stands in, is needed, and its lack must show before any
// search.
func TestMissingLawsSurfaceBeforeTheSearch(t *testing.T) {
	whole := testProfile([]device{fast(), slow()}, []wire{nearLink(), farLink()})
	job := testJob(t, "1x(1 fast + 1 slow) + 1x2 fast", 4096)
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
	for _, s := range Strategies() {
		if seen[s.Name()] || s.Claims().Doc == "" {
			t.Errorf("strategy %q: name twice or no doc", s.Name())
		}
		seen[s.Name()] = true
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
	l := p.equalRing()
	step, err := p.simulate(context.Background(), l)
	if err != nil {
		t.Fatal(err)
	}
	slow := *step
	slow.Time = step.Time.Times(2)
	found := []attempt{
		{Result: Result{Layout: l, Step: &slow}, strategy: ring{}},
		{Result: Result{Layout: l, Step: step}, strategy: hexiSeq{}},
		{Result: Result{Layout: l, Step: step}, strategy: &evenKeel{}},
	}
	plan, err := p.pick(found, step.Time.Mid/2)
	if err != nil {
		t.Fatal(err)
	}
	if plan.Strategy != Default || plan.Compared[1].Verdict != Equal || plan.Compared[2].Verdict != Chosen {
		t.Errorf("%s: %s, %s", plan.Strategy, plan.Compared[1].Verdict, plan.Compared[2].Verdict)
	}
}
