package evenkeel

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/internal/analytic"
	"github.com/evenkeel/evenkeel/solver/internal/strategy"
	"github.com/evenkeel/evenkeel/solver/internal/world"
)

// TestSurePlansAreImproved: around those that evenkeel came by there are faster ones whose
// gain is beyond doubt as well, and where it came by none there may be some.
func TestSurePlansAreImproved(t *testing.T) {
	world.Sequential(t)
	faster, more := 0, 0
	for _, cluster := range []string{"1x(2 fast + 2 slow + 1 odd)", "1x(1 fast + 3 slow + 1 odd)", "1x(2 fast + 1 odd) + 1x3 slow", "1x2 fast + 1x2 odd"} {
		p := world.DoubtfulOn(t, cluster, 3)
		ours := &Evenkeel{}
		if _, _, err := strategy.SolveEach(t.Context(), p, append(others(), ours), nil); err != nil {
			t.Fatal(err)
		}
		q := newAsker(p)
		starts, err := q.starts(t.Context(), ours.found[0], units.Seconds(math.Inf(1)))
		if err != nil {
			t.Fatal(err)
		}
		before := q.best
		if err := q.improve(newSearch(t.Context(), p, "test", nil), starts, 1); err != nil {
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
		step, err := p.Simulate(context.Background(), q.best.layout)
		if err != nil || math.Abs(float64(step.Time.Mid/q.best.time)-1) > 1e-9 || !surelyFaster(step, p.Base.Step) || p.Overfull(q.best.layout) != nil {
			t.Errorf("%s: %v, %v; want %v, surely faster than %v", cluster, step.Time, err, q.best.time, p.Base.Step.Time.Mid)
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
		job := world.Job(t, tc.cluster, 32768)
		job.Accumulate = 2
		devices := []world.Device{world.Fast(), world.Slow()}
		p := world.ProblemOf(t, world.Profile(devices, []world.Wire{world.Near(), world.Far()}), job)
		twos := p.EqualRing()
		twos.TwoBatch = true
		peak := units.Bytes(0)
		for _, m := range p.Sim.Memory(twos) {
			peak = max(peak, m.Peak())
		}
		for i := range devices {
			devices[i].Memory = units.Bytes(float64(peak) * tc.memory / costmodel.Usable)
		}
		p = world.ProblemOf(t, world.Profile(devices, []world.Wire{world.Near(), world.Far()}), job)
		if _, _, err := strategy.SolveEach(t.Context(), p, others(), nil); err != nil {
			t.Fatal(err)
		}
		if p.Overfull(twos) == nil != tc.fit {
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
			plain.Schedule = costmodel.Schedule{KeepTail: plain.KeepTail}
			if p.SeedLike(plain) == nil || p.SeedLike(k.layout) != nil || p.Overfull(k.layout) != nil {
				t.Errorf("%s: tried %+v, which fits: %v", tc.cluster, k.layout, p.Overfull(k.layout) == nil)
			}
		}
		if len(tried) > 0 && inTwos != tc.fit {
			t.Errorf("%s: a ring in twos is tried: %v", tc.cluster, inTwos)
		}
		// evenkeel has them among its own, or of each kind as many that are faster.
		ours := &Evenkeel{}
		if _, err := ours.Solve(t.Context(), p, nil); err != nil {
			t.Fatal(err)
		}
		for _, k := range tried {
			alike := 0
			for _, own := range ours.found[0].runners {
				if own.kind == k.kind && own.time <= k.time {
					alike++
				}
			}
			if k.time < p.Base.Step.Time.Mid && alike < mostAlike && !slices.ContainsFunc(ours.found[0].runners, func(own runner) bool { return strategy.SameLayout(own.layout, k.layout) }) {
				t.Errorf("%s: %v of %+v is not among evenkeel's", tc.cluster, k.time, k.layout)
			}
		}
		s.asker, s.seen = newAsker(p), map[string]float64{}
		if at := s.judge(twos); math.IsInf(at, 1) == tc.fit {
			t.Errorf("%s: a ring in twos is worth %v", tc.cluster, at)
		}
	}
}

// TestRunnersAreTheFastestOfTheirKinds: of layouts seen in any order, as many of each kind
// as are kept, or fewer where ranks are many.
func TestRunnersAreTheFastestOfTheirKinds(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	model := &analytic.Model{Types: []string{"a", "b"}, TypeOf: []int{0, 0, 1}}
	for _, most := range []int{1000, 30} {
		k := &runners{base: 0.9, model: model, kinds: map[string][]runner{}, most: most}
		byKind := map[string][]units.Seconds{}
		var all []units.Seconds
		for range 400 {
			l := costmodel.Layout{Shards: make([]costmodel.Shard, 3), Schedule: costmodel.Schedule{OwnLast: rng.IntN(2) == 0}}
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
