package solver

import (
	"bytes"
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/internal/units"
)

// doubtful is a cluster with a device whose laws may be off by a factor either way: with it
// plans are fastest, and without it there is something to gain as well.
func doubtful(t *testing.T, factor float64) *Problem {
	return doubtfulOn(t, "1x(2 fast + 2 slow + 1 odd)", factor)
}

func doubtfulOn(t *testing.T, cluster string, factor float64) *Problem {
	odd := fast()
	odd.name, odd.flops = "odd", fast().flops*0.6
	profile := testProfile([]device{fast(), slow(), odd}, []wire{nearLink(), farLink()})
	for i := range profile.Laws {
		if l := &profile.Laws[i]; l.Device == "odd" {
			l.Spread = costmodel.Spread{Lo: 1 / factor, Hi: factor}
		}
	}
	return problemOf(t, profile, testJob(t, cluster, 32768))
}

func compared(plan *Plan, strategy string) *Candidate {
	at := slices.IndexFunc(plan.Compared, func(c Candidate) bool { return c.Strategy == strategy })
	if at < 0 {
		return nil
	}
	return &plan.Compared[at]
}

// TestSurePlanWhereTheFastestIsATie: it is recommended, gains by more than its error and
// does without what the doubt is of.
func TestSurePlanWhereTheFastestIsATie(t *testing.T) {
	p := doubtful(t, 5)
	plan := solvePlan(t, p)
	ours, sure := compared(plan, "evenkeel"), compared(plan, "evenkeel-sure")
	if ours.Verdict != Tie || sure == nil || sure.Verdict != Chosen || plan.Strategy != "evenkeel-sure" || plan.Taken {
		t.Fatalf("%s of %+v", plan.Strategy, plan.Compared)
	}
	base := plan.Baseline()
	if sure.Time.Mid <= ours.Time.Mid || base.Time.Mid-sure.Time.Mid <= sure.GainError {
		t.Errorf("evenkeel %v, sure %v +- %v, baseline %v", ours.Time.Mid, sure.Time.Mid, sure.GainError, base.Time.Mid)
	}
	for _, r := range plan.Ranks {
		if r.Device == "odd" && r.Tokens > 0 {
			t.Errorf("rank %d of the odd device has %d tokens", r.Rank, int64(r.Tokens))
		}
	}
	if !strings.Contains(sure.Why, "ring of 3 groups") || !strings.Contains(sure.Why, "more than the cost model can be wrong by") {
		t.Errorf("why: %s", sure.Why)
	}
	if err := Check(plan, p.Profile); err != nil {
		t.Error(err)
	}
	again, err := doc.Encode(solvePlan(t, doubtful(t, 5)))
	if first, e := doc.Encode(plan); err != nil || e != nil || !bytes.Equal(first, again) {
		t.Errorf("two runs differ: %v, %v", err, e)
	}
	p = doubtful(t, 5)
	p.Take = "evenkeel"
	if plan := solvePlan(t, p); plan.Strategy != p.Take || !plan.Taken || compared(plan, "evenkeel-sure").Verdict != Slower {
		t.Errorf("taken: %s of %+v", plan.Strategy, plan.Compared)
	}
}

// TestSurePlansAreImproved: around those that evenkeel came by there are faster ones whose
// gain is beyond doubt as well, and where it came by none there may be some.
func TestSurePlansAreImproved(t *testing.T) {
	sequential(t)
	faster, more := 0, 0
	for _, cluster := range []string{"1x(2 fast + 2 slow + 1 odd)", "1x(1 fast + 3 slow + 1 odd)", "1x(2 fast + 1 odd) + 1x3 slow", "1x2 fast + 1x2 odd"} {
		p := doubtfulOn(t, cluster, 3)
		ours := &evenKeel{}
		if _, _, err := p.solveEach(t.Context(), append(Strategies()[:5], ours), nil); err != nil {
			t.Fatal(err)
		}
		q := &asker{p: p, known: map[string]float64{}}
		starts, err := q.starts(t.Context(), ours.runners, units.Seconds(math.Inf(1)))
		if err != nil {
			t.Fatal(err)
		}
		before := q.best
		if err := q.improve(newSearch(t.Context(), p, "test", nil), starts); err != nil {
			t.Fatal(err)
		}
		switch {
		case q.best.time == 0:
			continue
		case before.time == 0:
			more++
		case q.best.time > before.time:
			t.Errorf("%s: %v, and %v before", cluster, q.best.time, before.time)
		case q.best.time < before.time*(1-minGain):
			faster++
		}
		step, err := p.simulate(context.Background(), q.best.layout)
		if err != nil || !near(float64(step.Time.Mid), float64(q.best.time)) || !surelyFaster(step, p.base.Step) || p.overfull(q.best.layout) != nil {
			t.Errorf("%s: %v, %v; want %v, surely faster than %v", cluster, step.Time, err, q.best.time, p.base.Step.Time.Mid)
		}
	}
	if faster+more < 2 {
		t.Errorf("%d plans became faster and %d are new", faster, more)
	}
}

// TestOthersAreTriedWithWhatHides: their layouts go through own blocks last, in chunks of
// heads and in twos, where that fits; on equal devices nothing is tried.
func TestOthersAreTriedWithWhatHides(t *testing.T) {
	for _, tc := range []struct {
		cluster string
		memory  float64 // of what a layout in twos takes at most
		fit     bool
	}{{"1x(2 fast + 2 slow)", 2, true}, {"1x(2 fast + 2 slow)", 0.99, false}, {"1x4 fast", 2, true}} {
		job := testJob(t, tc.cluster, 32768)
		job.Accumulate = 2
		devices := []device{fast(), slow()}
		p := problemOf(t, testProfile(devices, []wire{nearLink(), farLink()}), job)
		twos := p.equalRing()
		twos.TwoBatch = true
		peak := units.Bytes(0)
		for _, m := range p.sim.Memory(twos) {
			peak = max(peak, m.Peak())
		}
		for i := range devices {
			devices[i].memory = units.Bytes(float64(peak) * tc.memory / costmodel.Usable)
		}
		p = problemOf(t, testProfile(devices, []wire{nearLink(), farLink()}), job)
		if _, _, err := p.solveEach(t.Context(), Strategies()[:5], nil); err != nil {
			t.Fatal(err)
		}
		if p.overfull(twos) == nil != tc.fit {
			t.Fatalf("%s: the ring in twos fits: %v", tc.cluster, !tc.fit)
		}
		s := searchOf(t, p)
		s.runners.base = units.Seconds(math.Inf(1))
		s.hide()
		tried := s.runners.inOrder()
		if equal := tc.cluster == "1x4 fast"; equal != (len(tried) == 0) {
			t.Errorf("%s: %d layouts tried", tc.cluster, len(tried))
		}
		inTwos := false
		for _, k := range tried {
			inTwos = inTwos || k.layout.TwoBatch && len(k.layout.Groups) == 4
			plain := k.layout
			plain.OwnLast, plain.TwoBatch, plain.HeadChunks = false, false, 0
			if p.seedLike(plain) == nil || p.seedLike(k.layout) != nil || p.overfull(k.layout) != nil {
				t.Errorf("%s: tried %+v, which fits: %v", tc.cluster, k.layout, p.overfull(k.layout) == nil)
			}
		}
		if len(tried) > 0 && inTwos != tc.fit {
			t.Errorf("%s: a ring in twos is tried: %v", tc.cluster, inTwos)
		}
		// evenkeel has them among its own, or of each kind as many that are faster.
		ours := &evenKeel{}
		if _, err := ours.Solve(t.Context(), p, nil); err != nil {
			t.Fatal(err)
		}
		for _, k := range tried {
			alike := 0
			for _, own := range ours.runners {
				if own.kind == k.kind && own.time <= k.time {
					alike++
				}
			}
			if k.time < p.base.Step.Time.Mid && alike < mostAlike && !slices.ContainsFunc(ours.runners, func(own runner) bool { return sameLayout(own.layout, k.layout) }) {
				t.Errorf("%s: %v of %+v is not among evenkeel's", tc.cluster, k.time, k.layout)
			}
		}
		s.asker, s.seen = &asker{p: p, known: map[string]float64{}}, map[string]float64{}
		if at := s.judge(twos); math.IsInf(at, 1) == tc.fit {
			t.Errorf("%s: a ring in twos is worth %v", tc.cluster, at)
		}
	}
}

// TestNoSurePlanWhereTheFastestIsSure: then there is none to tell of, unless it is asked for.
func TestNoSurePlanWhereTheFastestIsSure(t *testing.T) {
	p := doubtful(t, 1.02)
	if plan := solvePlan(t, p); plan.Strategy != "evenkeel" || compared(plan, "evenkeel-sure") != nil {
		t.Errorf("%s of %+v", plan.Strategy, plan.Compared)
	}
	plan, err := Solve(context.Background(), p, []string{"evenkeel-sure"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if sure := compared(plan, "evenkeel-sure"); plan.Strategy != "evenkeel" || sure == nil || sure.Verdict != NotLegal || !strings.Contains(sure.Why, "surely gains already") {
		t.Errorf("%s of %+v", plan.Strategy, plan.Compared)
	}
	p.Take = "evenkeel-sure"
	var none *InfeasibleError
	if _, err := Solve(context.Background(), p, nil, nil); !errors.As(err, &none) || !strings.Contains(err.Error(), "surely gains already") {
		t.Errorf("taken: %v", err)
	}
}

// TestNoSurePlanWhereNoneGains: on equal devices the baseline is as good as it gets, and on
// two of which one is in doubt nothing else is to be had.
func TestNoSurePlanWhereNoneGains(t *testing.T) {
	for _, tc := range []struct {
		p    *Problem
		want string
	}{
		{testProblem(t, "1x4 fast", 32768), "no layout that evenkeel simulated is faster"},
		{doubtfulOn(t, "1x(1 fast + 1 odd)", 5), "none gains more over the strongest baseline"},
	} {
		plan, err := Solve(t.Context(), tc.p, []string{"evenkeel-sure"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if sure := compared(plan, "evenkeel-sure"); sure == nil || sure.Verdict != NotLegal || !strings.Contains(sure.Why, tc.want) || plan.Strategy != plan.Baseline().Strategy {
			t.Errorf("%s of %+v", plan.Strategy, plan.Compared)
		}
	}
}

// TestRunnersAreTheFastestOfTheirKinds: of layouts seen in any order, as many of each kind
// as are kept, or fewer where ranks are many.
func TestRunnersAreTheFastestOfTheirKinds(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	model := &perfModel{types: []string{"a", "b"}, dev: []int{0, 0, 1}}
	for _, most := range []int{1000, 30} {
		k := &runners{base: 0.9, model: model, kinds: map[string][]runner{}, most: most}
		byKind := map[string][]units.Seconds{}
		var all []units.Seconds
		for range 400 {
			l := costmodel.Layout{Shards: make([]costmodel.Shard, 3), OwnLast: rng.IntN(2) == 0}
			for r := range 1 + rng.IntN(3) {
				l.Groups = append(l.Groups, costmodel.Group{{Rank: r, QHeads: 1 + rng.IntN(8)}})
			}
			at := units.Seconds(rng.IntN(200)) / 200
			if k.see(l, at); at < k.base {
				kind := k.kindOf(l)
				byKind[kind] = append(byKind[kind], at)
			}
		}
		if len(byKind) != 6 { // one to three groups, own blocks last or not
			t.Fatalf("%d kinds", len(byKind))
		}
		for _, times := range byKind {
			slices.Sort(times)
			all = append(all, times[:min(len(times), mostAlike)]...)
		}
		slices.Sort(all)
		all = all[:min(len(all), most)]
		kept := k.inOrder()
		if len(kept) != len(all) || k.kept() != len(all) {
			t.Fatalf("%d kept, counted as %d, want %d", len(kept), k.kept(), len(all))
		}
		for i, x := range kept {
			if x.time != all[i] || x.kind != k.kindOf(x.layout) {
				t.Fatalf("place %d of %d: %v, want %v", i, len(all), x.time, all[i])
			}
		}
	}
}
