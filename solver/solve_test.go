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

func solveWith(t testing.TB, p *Problem, s Strategy) Result {
	t.Helper()
	res, err := s.Solve(context.Background(), p, nil)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func tokensOfLayout(l costmodel.Layout) []units.Tokens {
	var n []units.Tokens
	for _, s := range l.Shards {
		n = append(n, s.Tokens())
	}
	return n
}

func TestNeverSlowerThanABaselineNorBelowTheBound(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 1))
	for range 25 {
		p := randomWorld(t, r)
		bound, err := LowerBound(p)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range Strategies() {
			if s.Claims().Baseline {
				base, ours := solveWith(t, p, s), solveWith(t, p, evenKeel{})
				if ours.Step.Time.Mid > base.Step.Time.Mid || bound > ours.Step.Time.Mid*(1+1e-9) {
					t.Errorf("%s: bound %v, evenkeel %v, %s %v", p.Job.Cluster, bound, ours.Step.Time.Mid, s.Name(), base.Step.Time.Mid)
				}
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
			split := tokensOfLayout(solveWith(t, p, evenKeel{}).Layout)
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
		split := tokensOfLayout(solveWith(t, p, evenKeel{}).Layout)
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
	res := solveWith(t, p, evenKeel{})
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

func permutations(n int) [][]int {
	if n == 1 {
		return [][]int{{0}}
	}
	var all [][]int
	for _, p := range permutations(n - 1) {
		for i := range n {
			all = append(all, slices.Insert(slices.Clone(p), i, n-1))
		}
	}
	return all
}

func TestExhaustiveSmallCases(t *testing.T) {
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
		ours := solveWith(t, p, evenKeel{})
		if ours.Step.Time.Mid > best*1.02 || bound > best*(1+1e-9) {
			t.Errorf("%s: evenkeel %v in %d layouts, best %v, bound %v", tc.cluster, ours.Step.Time.Mid, ours.Evaluated, best, bound)
		}
		t.Logf("%s: evenkeel %v, best %v (%.2f %% above), bound %v, %d layouts", tc.cluster, ours.Step.Time.Mid, best, 100*float64(ours.Step.Time.Mid/best-1), bound, ours.Evaluated)
	}
}

func bestOf(t *testing.T, p *Problem, blocks int) units.Seconds {
	best := units.Seconds(-1)
	everySplit(blocks, len(p.ranks), func(split []int) {
		tokens := make([]units.Tokens, len(split))
		for r, b := range split {
			tokens[r] = units.Tokens(b) * p.Block
		}
		for _, order := range permutations(len(split)) {
			step, err := p.simulate((&layoutState{split: tokens, order: order}).layout())
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
	if plan.Strategy != "evenkeel" || len(plan.Compared) != 2 || plan.Compared[0].Verdict != Slower || plan.Compared[1].Speedup < 1.3 {
		t.Errorf("%+v", plan.Compared)
	}
	if err := Check(plan, p.Profile); err != nil {
		t.Error(err)
	}
}

func TestEqualDevicesAreATie(t *testing.T) {
	p := testProblem(t, "1x4 fast", 32768)
	plan := solvePlan(t, p)
	if plan.Strategy != "ring" || plan.Compared[1].Verdict != Tie {
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
	if plan := solvePlan(t, problemOf(t, profile, job)); plan.Strategy != "evenkeel" {
		t.Errorf("with sure laws: %+v", plan.Compared)
	}
	for i := range profile.Laws {
		profile.Laws[i].Spread = costmodel.Spread{Lo: 0.6, Hi: 1.6}
	}
	p := problemOf(t, profile, job)
	plan := solvePlan(t, p)
	if plan.Strategy != "ring" || plan.Compared[1].Verdict != Tie || plan.Compared[1].GainError == 0 {
		t.Errorf("with vague laws: %+v", plan.Compared)
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
	if len(plan.Warnings) != 1 || !strings.Contains(plan.Warnings[0], "was stopped") {
		t.Errorf("warnings: %q", plan.Warnings)
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
	need := p.memoryOf(1, seq/2, 2, seq/2).Peak()
	small.memory = units.Bytes(float64(need) * 0.8)
	p = testProblem(t, "1x(1 fast + 1 small)", seq, big, small)
	plan := solvePlan(t, p)
	if plan.Compared[0].Verdict != Infeasible || !strings.Contains(plan.Compared[0].Why, "rank 1 (small on n0)") || !strings.Contains(plan.Compared[0].Why, "activations") {
		t.Errorf("ring: %+v", plan.Compared[0])
	}
	if plan.Strategy != "evenkeel" || plan.Ranks[1].Tokens >= plan.Ranks[0].Tokens || plan.Ranks[1].Tokens == 0 {
		t.Errorf("%s: %+v", plan.Strategy, plan.Ranks)
	}
	if err := Check(plan, p.Profile); err != nil {
		t.Error(err)
	}
}

// Every split within rooms fits.
func TestRoomsAreRooms(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 1))
	tried := 0
	for range 300 {
		p := randomWorld(t, r)
		for i := range p.devices {
			// Between one and all shares' worth of memory.
			all := p.memoryOf(i, p.Job.SeqLen, len(p.ranks), 1).Peak()
			p.devices[i].Memory = units.Bytes((0.3 + r.Float64()) * float64(all))
			p.devices[i].Name = fmt.Sprint(i) // no two alike
		}
		on := make([]bool, len(p.ranks))
		for i := range on {
			on[i] = r.IntN(4) > 0
		}
		rooms := p.rooms(on, 1+units.Tokens(r.IntN(int(p.Job.SeqLen))))
		proven := p.proveInfeasible() != nil
		split := slices.Clone(rooms) // the fullest
		for i, s := range split {
			switch {
			case s > 0 && r.IntN(2) == 0:
				split[i] = 1 + units.Tokens(r.IntN(int(s)))
			case on[i] && s == 0: // counted at work, but has no room
				split = nil
			}
			if split == nil {
				break
			}
		}
		if sum(split) == 0 {
			continue
		}
		tried++
		for i := range split {
			if m := p.Job.Memory(split, i, p.devices[i]); !m.Fits() {
				t.Fatalf("%v within %v: rank %d needs %v of %v", split, rooms, i, m.Peak(), m.Capacity)
			}
		}
		if proven && sum(rooms) >= p.Job.SeqLen {
			t.Fatalf("proven infeasible, but %d tokens fit", sum(rooms))
		}
	}
	if tried < 50 {
		t.Errorf("only %d cases had room", tried)
	}
}

// A proof must not be given where a layout fits.
func TestProofOfInfeasibilityHolds(t *testing.T) {
	r := rand.New(rand.NewPCG(10, 1))
	proofs := 0
	for range 200 {
		p := randomWorld(t, r)
		// Around what an equal split needs.
		equal := equalSplit(p.Job.SeqLen, len(p.ranks))
		for i := range p.devices {
			need := p.Job.Memory(equal, i, p.devices[i]).Peak()
			p.devices[i].Memory = units.Bytes((0.5 + 0.7*r.Float64()) * float64(need))
			p.devices[i].Name = fmt.Sprint(i)
		}
		if p.proveInfeasible() == nil {
			continue
		}
		proofs++
		for range 30 {
			split := randomSplit(r, p.Job.SeqLen, len(p.ranks))
			fits := true
			for i := range split {
				fits = fits && p.Job.Memory(split, i, p.devices[i]).Fits()
			}
			if fits {
				t.Fatalf("proven infeasible, but %v fits", split)
			}
		}
	}
	if proofs < 20 {
		t.Errorf("only %d proofs", proofs)
	}
}

// One node alone beats any ring over this network, and beats its fast rank alone.
func TestSlowNetworkIsAvoided(t *testing.T) {
	profile := testProfile([]device{fast(), slow()}, []wire{nearLink(), {"far", 1e-2, 1e-6}})
	plan := solvePlan(t, problemOf(t, profile, testJob(t, "8x(1 fast + 1 slow)", 32768)))
	if len(plan.Ring) != 2 || plan.Ranks[plan.Ring[0]].Node != plan.Ranks[plan.Ring[1]].Node {
		t.Errorf("ring %v of %+v", plan.Ring, plan.Ranks)
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
	if plan.Gap > 0.03 {
		t.Errorf("gap %v, ring %v", plan.Gap, plan.Ring)
	}
}

func TestInfeasibleNamesTheTightestConstraint(t *testing.T) {
	tiny := fast()
	tiny.memory = 40 * units.MiB
	middling := fast()
	middling.memory = 300 * units.MiB
	for _, tc := range []struct {
		dev  device
		want []string
	}{
		{tiny, []string{"no split fits: ", "of weights, gradients and optimizer states already exceed 0.97 x 40 MiB of rank 0 (fast on n0)", "more devices"}},
		{middling, []string{"no split fits: ", "all ranks together hold at most ", " of 65536 tokens", "--recompute full", "a shorter --seq-len"}},
	} {
		_, err := Solve(context.Background(), testProblem(t, "1x2 fast", 65536, tc.dev), nil, nil)
		var no *InfeasibleError
		if !errors.As(err, &no) || !no.Proven {
			t.Errorf("%v", err)
			continue
		}
		for _, w := range tc.want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%q lacks %q", err, w)
			}
		}
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

// Every law but those of collectives of other ZeRO stages, and reduce_scatter's,
// for which all_reduce's stands in, is needed, and its lack must show before any
// search.
func TestMissingLawsSurfaceBeforeTheSearch(t *testing.T) {
	whole := testProfile([]device{fast(), slow()}, []wire{nearLink(), farLink()})
	job := testJob(t, "1x(1 fast + 1 slow) + 1x2 fast", 4096)
	for i, l := range whole.Laws {
		if l.Op == op.KindAllReduce || l.Op == op.KindReduceScatter || (l.Op != op.KindSendRecv && strings.Contains(l.Group, "near")) {
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

func TestWaterfillLevelsAndDealsEverything(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 1))
	for range 300 {
		n := 1 + r.IntN(6)
		paces, rooms := make([]pace, n), make([]units.Tokens, n)
		for i := range paces {
			paces[i] = pace{r.Float64() * float64(r.IntN(2)), 0.001 + r.Float64()}
			rooms[i] = units.Tokens(r.IntN(2000))
		}
		total, block := units.Tokens(1+r.IntN(3000)), units.Tokens(1+r.IntN(64))
		split, theta := waterfill(total, block, paces, rooms)
		if sum(rooms) < total {
			if split != nil {
				t.Fatal("a split into too little room")
			}
			continue
		}
		if sum(split) != total {
			t.Fatalf("%d tokens dealt of %d", sum(split), total)
		}
		finish, allRoomy := 0.0, true
		for i, s := range split {
			if s < 0 || s > rooms[i] {
				t.Fatalf("%d tokens in a room of %d", s, rooms[i])
			}
			if s > 0 {
				finish = max(finish, paces[i].fixed+paces[i].perToken*float64(s))
			}
			allRoomy = allRoomy && rooms[i] >= s+block
		}
		// Rounding costs the rank that takes the last block no more than a block.
		slowest := 0.0
		for _, c := range paces {
			slowest = max(slowest, c.perToken)
		}
		if allRoomy && finish > theta+slowest*float64(block)*(1+1e-9) {
			t.Fatalf("done at %v, theta is %v and a block takes %v at most", finish, theta, slowest*float64(block))
		}
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
