package multitask

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
)

// slowPass is a rank's pass of a run in the slow simulator.
type slowPass struct {
	run, rank int
	back      bool
}

// slow is a replay as a fixed point: every pass begins when what it waits for is there, until
// nothing is later any more.
type slow struct {
	c          *Costs
	p          *Plan
	took       func(costmodel.ReplayKey) units.Seconds
	messages   []Message
	begin, end map[slowPass]units.Seconds
	layers     map[slowPass][]units.Seconds // by layer of the run, from the last: when its backward pass is done
}

// order is what a rank does one after the other.
func (s *slow) order(rank int) (all []slowPass) {
	for i, r := range s.p.Runs {
		if slices.Contains(r.Ranks, rank) {
			all = append(all, slowPass{i, rank, false})
		}
	}
	for _, x := range slices.Backward(slices.Clone(all)) {
		x.back = true
		all = append(all, x)
	}
	return all
}

// sends are the messages of a direction that a rank sends in a pass, in their order.
func (s *slow) sends(x slowPass) (all []Message) {
	for _, m := range s.messages {
		if !x.back && m.Source == x.run && m.From == x.rank {
			all = append(all, m)
		}
		if x.back && m.Target == x.run && m.To == x.rank {
			m.Source, m.Target, m.From, m.To = m.Target, m.Source, m.To, m.From
			all = append(all, m)
		}
	}
	if x.back {
		slices.Reverse(all)
	}
	return all
}

func (s *slow) takes(m Message, back bool) units.Seconds {
	of := m.Source
	if back {
		of = m.Target
	}
	module := s.p.Runs[of].Module
	bytes := s.c.from.result(module, module != s.p.Runs[m.Source].Module || module != s.p.Runs[m.Target].Module)
	return s.c.send(m.From, m.To, bytes*units.Bytes(m.Samples))
}

// leaving is when the messages of a rank leave it, and when they were computed; those of the
// backward pass have a negative number of samples.
func (s *slow) leaving(rank int) map[Message][2]units.Seconds {
	all, port := map[Message][2]units.Seconds{}, units.Seconds(0)
	for _, x := range s.order(rank) {
		for _, m := range s.sends(x) {
			at := max(port, s.end[x])
			port = at + s.takes(m, x.back)
			if x.back {
				m.Samples = -m.Samples
			}
			all[m] = [2]units.Seconds{at, s.end[x]}
		}
	}
	return all
}

// arrived is when all that a pass needs is taken in, and when the last sender was done; false
// where it needs nothing. The port is busy from the message on that is left when it was last idle.
func (s *slow) arrived(x slowPass, port units.Seconds) (at, done units.Seconds, needs bool) {
	type coming struct{ leaves, takes units.Seconds }
	var all []coming
	for rank := range s.c.Devices() {
		for m, when := range s.leaving(rank) {
			back := m.Samples < 0
			if back {
				m.Samples = -m.Samples
			}
			if m.Target == x.run && m.To == x.rank && back == x.back {
				all = append(all, coming{max(port, when[0]), s.takes(m, back)})
				done = max(done, when[1])
			}
		}
	}
	for _, first := range all {
		sum := first.leaves
		for _, m := range all {
			if m.leaves >= first.leaves {
				sum += m.takes
			}
		}
		at = max(at, sum)
	}
	return at, done, len(all) > 0
}

// compute is how long a pass computes; in the backward pass it notes when layers are done.
func (s *slow) compute(x slowPass) units.Seconds {
	r, total := s.p.Runs[x.run], units.Seconds(0)
	first := 0
	for _, before := range s.p.Runs[:x.run] {
		if before.Module == r.Module {
			first += before.Layers
		}
	}
	add := func(layer int, dir string, again bool) {
		for _, o := range []costmodel.ReplayOp{costmodel.LinearIn, costmodel.AttentionOp, costmodel.LinearOut} {
			total += s.took(costmodel.ReplayKey{Rank: x.rank, Micro: x.run, Layer: first + layer, Dir: dir, Again: again, Op: o})
		}
	}
	s.layers[x] = nil
	for i := range r.Layers {
		if !x.back {
			add(i, costmodel.ForwardPass, false)
			continue
		}
		if s.c.from.(*made).full {
			add(r.Layers-1-i, costmodel.ForwardPass, true)
		}
		add(r.Layers-1-i, costmodel.BackwardPass, false)
		s.layers[x] = append(s.layers[x], s.begin[x]+total)
	}
	return total
}

// settle repeats until nothing changes; false if that takes too long.
func (s *slow) settle() (exposed map[int]units.Seconds, ends []units.Seconds, ok bool) {
	for range 200 {
		changed := false
		exposed, ends = map[int]units.Seconds{}, make([]units.Seconds, s.c.Devices())
		for rank := range s.c.Devices() {
			port, at := units.Seconds(0), units.Seconds(0)
			for _, x := range s.order(rank) {
				if arrived, done, needs := s.arrived(x, port); needs {
					port = arrived
					if arrived > at {
						exposed[rank] += arrived - max(at, done)
						at = arrived
					}
				}
				begin := at
				changed = changed || begin != s.begin[x]
				s.begin[x] = begin
				at += s.compute(x)
				changed = changed || at != s.end[x]
				s.end[x] = at
			}
			ends[rank] = at
		}
		if !changed {
			return exposed, ends, true
		}
	}
	return nil, nil, false
}

// exchanges are when those of runs are over, on all their ranks or as if all were like one.
func (s *slow) exchanges(like int) map[int]units.Seconds {
	over := map[int]units.Seconds{}
	for i, r := range slices.Backward(s.p.Runs) {
		if len(r.Ranks) < 2 || like >= 0 && !slices.Contains(r.Ranks, like) {
			continue
		}
		at := units.Seconds(0)
		for j := i + 1; j < len(s.p.Runs); j++ {
			if slices.Equal(s.p.Runs[j].Ranks, r.Ranks) {
				at = max(at, over[j])
			}
		}
		for layer := range r.Layers {
			for _, rank := range r.Ranks {
				if like < 0 || rank == like {
					at = max(at, s.layers[slowPass{i, rank, true}][layer])
				}
			}
			at += s.c.Exchange(r.Module, r.Ranks)
		}
		over[i] = at
	}
	return over
}

// Replays are what a slow simulator makes of them, rank by rank and pass by pass.
func TestReplayedAgreesWithASlowSimulator(t *testing.T) {
	waited := map[costmodel.ReplayOp]int{}
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		w.full = rapid.Bool().Draw(t, "recomputed")
		c, p := w.costs(t), drawPlan(t, w)
		took := map[costmodel.ReplayKey]units.Seconds{}
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 3))
		supposing := rapid.Bool().Draw(t, "supposing")
		r := mustReplay(t, c, p, func(k costmodel.ReplayKey) (units.Seconds, bool) {
			if k.Op.Waits() {
				t.Fatalf("%+v is asked for", k)
			}
			took[k] = units.Seconds(1 + rng.IntN(5))
			return took[k], supposing
		})
		for _, k := range r.Tasks {
			if k.Op.Waits() {
				waited[k.Op]++
			} else if by := k.Time; supposing && by != took[k.ReplayKey] {
				t.Errorf("%+v, supposed %v", k, took[k.ReplayKey])
			} else {
				took[k.ReplayKey] = by
			}
		}
		s := &slow{
			c: c, p: p, messages: p.Messages(w.tasks), begin: map[slowPass]units.Seconds{}, end: map[slowPass]units.Seconds{}, layers: map[slowPass][]units.Seconds{},
			took: func(k costmodel.ReplayKey) units.Seconds {
				by, ok := took[k]
				if !ok {
					t.Fatalf("%+v is in no stretch", k)
				}
				return by
			},
		}
		exposed, ends, ok := s.settle()
		if !ok {
			t.Fatal("passes wait for one another")
		}
		over := s.exchanges(-1)
		for rank := range ends {
			own := s.exchanges(rank)
			for i, run := range slices.Backward(p.Runs) {
				if until := over[i]; slices.Contains(run.Ranks, rank) && until > ends[rank] {
					exposed[rank] += max(0, own[i]-ends[rank])
					ends[rank] = until
				}
			}
			if sum := r.Ranks[rank]; !close(sum.End, ends[rank]) || math.Abs(float64(sum.Exposed-exposed[rank])) > 1e-9*float64(sum.End) {
				t.Errorf("rank %d: %+v, want the end at %v, %v exposed", rank, sum, ends[rank], exposed[rank])
			}
		}
		starts := map[slowPass]units.Seconds{}
		for _, k := range r.Tasks {
			x := slowPass{k.Micro, k.Rank, k.Dir == costmodel.BackwardPass || k.Again}
			if _, known := starts[x]; !known && !k.Op.Waits() {
				if starts[x] = k.Start; !close(k.Start, s.begin[x]) {
					t.Errorf("%+v begins at %v, want %v", x, k.Start, s.begin[x])
				}
			}
		}
		if len(starts) != len(s.begin) {
			t.Errorf("%d passes, want %d", len(starts), len(s.begin))
		}
	})
	least := 100
	if testing.Short() { // a fifth of the cases is drawn
		least = 20
	}
	if waited[costmodel.StageWait] < least || waited[costmodel.GradWait] < least {
		t.Errorf("%v", waited)
	}
}

// A faster stretch, link or exchange makes nothing later.
func TestFasterMakesNothingLater(t *testing.T) {
	sooner := map[string]int{}
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		w.full = rapid.Bool().Draw(t, "recomputed")
		p := drawPlan(t, w)
		before := mustReplay(t, w.costs(t), p, nil)
		var took func(costmodel.ReplayKey) (units.Seconds, bool)
		what := rapid.SampledFrom([]string{"stretch", "device", "messages", "exchange"}).Draw(t, "what")
		switch what {
		case "stretch", "device":
			computing := slices.DeleteFunc(slices.Clone(before.Tasks), func(k costmodel.ReplayTask) bool { return k.Op.Waits() })
			which := rapid.SampledFrom(computing).Draw(t, "which")
			law := map[costmodel.ReplayKey]units.Seconds{}
			for _, k := range computing {
				law[k.ReplayKey] = k.Time
			}
			took = func(k costmodel.ReplayKey) (units.Seconds, bool) {
				return law[k] / 3, k == which.ReplayKey || what == "device" && k.Rank == which.Rank
			}
		case "messages":
			w.bytes[rapid.IntRange(0, len(w.bytes)-1).Draw(t, "module")] /= 3
		case "exchange":
			w.gradients[rapid.IntRange(0, len(w.gradients)-1).Draw(t, "module")] /= 3
		}
		after := mustReplay(t, w.costs(t), p, took)
		ends := map[costmodel.ReplayKey]units.Seconds{}
		for _, k := range before.Tasks {
			ends[k.ReplayKey] = k.Start + k.Time
		}
		for _, k := range after.Tasks {
			if was, ok := ends[k.ReplayKey]; ok && k.Start+k.Time > was*(1+1e-12) {
				t.Errorf("%s: %+v ends at %v, before at %v", what, k, k.Start+k.Time, was)
			}
		}
		for rank := range after.Ranks {
			if after.Ranks[rank].End > before.Ranks[rank].End*(1+1e-12) {
				t.Errorf("%s: rank %d ends at %v, before at %v", what, rank, after.Ranks[rank].End, before.Ranks[rank].End)
			}
		}
		if after.Step.Mid < before.Step.Mid {
			sooner[what]++
		}
	})
	for _, what := range []string{"stretch", "device", "messages", "exchange"} {
		if sooner[what] == 0 {
			t.Errorf("%s: no step is shorter, of %v", what, sooner)
		}
	}
}

// Ranks that have other names, with the same devices in the same order, do the same.
func TestNamesOfRanksChangeNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		p := drawPlan(t, w)
		want := mustReplay(t, w.costs(t), p, nil)
		// Every device stands beside a second one, which has nothing to do.
		for n, node := range w.nodes {
			w.nodes[n] = nil
			for _, d := range node {
				w.nodes[n] = append(w.nodes[n], d, d)
			}
		}
		q := p.Clone()
		for i, r := range p.Runs {
			q.Runs[i].Ranks = nil
			for _, rank := range r.Ranks {
				q.Runs[i].Ranks = append(q.Runs[i].Ranks, 2*rank+1)
			}
		}
		sameUnder(t, want, mustReplay(t, w.costs(t), q, nil), func(rank int) int { return 2*rank + 1 })
	})
}

// Of runs on one device each, among equal devices, it does not matter which are called what.
func TestEqualDevicesMayChangeNames(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		w.nodes = [][]string{{"fast", "fast", "fast", "fast"}}
		p := drawPlan(t, w)
		for i := range p.Runs {
			r := &p.Runs[i]
			r.Ranks, r.Samples = r.Ranks[:1], []int{w.tasks.Modules[r.Module].Batch}
		}
		names, q := rapid.Permutation([]int{0, 1, 2, 3}).Draw(t, "names"), p.Clone()
		for i, r := range p.Runs {
			q.Runs[i].Ranks = []int{names[r.Ranks[0]]}
		}
		sameUnder(t, mustReplay(t, w.costs(t), p, nil), mustReplay(t, w.costs(t), q, nil), func(rank int) int { return names[rank] })
	})
}

// sameUnder says where two replays differ but for the names of ranks.
func sameUnder(t rapid.TB, want, got *costmodel.Replayed, name func(int) int) {
	t.Helper()
	// The doubt of a step is a sum over ranks, in their order.
	same := close(got.Step.Lo, want.Step.Lo) && got.Step.Mid == want.Step.Mid && close(got.Step.Hi, want.Step.Hi) && got.Step.Source == want.Step.Source
	if !same || got.Meeting != want.Meeting || len(got.Tasks) != len(want.Tasks) {
		t.Errorf("%+v and %d tasks, want %+v and %d", got.Step, len(got.Tasks), want.Step, len(want.Tasks))
	}
	tasks := map[costmodel.ReplayKey]costmodel.ReplayTask{}
	for _, k := range got.Tasks {
		tasks[k.ReplayKey] = k
	}
	for _, k := range want.Tasks {
		if k.Rank = name(k.Rank); tasks[k.ReplayKey] != k {
			t.Errorf("%+v, want %+v", tasks[k.ReplayKey], k)
		}
	}
	for rank, sum := range want.Ranks {
		if got.Ranks[name(rank)] != sum {
			t.Errorf("rank %d: %+v, want %+v", name(rank), got.Ranks[name(rank)], sum)
		}
	}
}

// Prices under other names are those of a machine that has its devices in that order.
func TestSeatedIsAMachineInAnotherOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		c := w.costs(t)
		c.from = rising{w.made, t}
		at := make([]int, c.Devices())
		for r := range at {
			at[r] = r
		}
		at = rapid.Permutation(at).Draw(t, "order")
		// The same machine whose ranks have these names from the first.
		other := *w.made
		other.node, other.pool = nil, nil
		var ranks []costmodel.Rank
		for _, was := range at {
			other.node, other.pool = append(other.node, c.node[was]), append(other.pool, c.pool[was])
			ranks = append(ranks, costmodel.Rank{Node: c.node[was], Device: c.Pools[c.pool[was]].Device})
		}
		native := &Costs{
			Tasks: c.Tasks, Pools: c.Pools, Needs: c.Needs, node: other.node, pool: other.pool, from: &other,
			passes: map[passKey]pass{}, exchanges: map[exchangeKey]units.Seconds{}, sends: map[sendKey]units.Seconds{},
		}
		p, seated := drawPlan(t, w), c.Seated(at)
		sameUnder(t, mustReplay(t, native, p, nil), mustReplay(t, seated, p, nil), func(rank int) int { return rank })
		if _, err := seated.Account(p); err != nil {
			t.Error(err)
		}
		q := p.Clone() // by the names that the machine has
		for i := range q.Runs {
			r, samples := &q.Runs[i], map[int]int{}
			for k, rank := range r.Ranks {
				samples[at[rank]] = r.Samples[k]
			}
			r.Ranks = slices.Sorted(maps.Keys(samples))
			r.Samples = nil
			for _, rank := range r.Ranks {
				r.Samples = append(r.Samples, samples[rank])
			}
		}
		if err := errors.Join(c.Simulate(q), seated.Simulate(p)); err != nil || !close(p.Time, q.Time) {
			t.Errorf("%v, by the names that the machine has %v; %v", p.Time, q.Time, err)
		}
		seen := 0
		for i, pool := range seated.Pools {
			for _, node := range pool.Ranks {
				for _, rank := range node {
					seen++
					if ranks[rank].Device != pool.Device || seated.PoolOf(rank) != i || ranks[rank].Node != ranks[node[0]].Node {
						t.Errorf("%+v of %v", pool, at)
					}
				}
			}
		}
		if seen != len(at) {
			t.Errorf("%+v: %d ranks of %d", seated.Pools, seen, len(at))
		}
	})
}

// rising are prices that want ranks in order.
type rising struct {
	source
	t *rapid.T
}

func (r rising) exchange(module int, ranks []int) (units.Seconds, error) {
	r.want(ranks)
	return r.source.exchange(module, ranks)
}

func (r rising) brief(module, pool, samples int, ranks []int, layers int) (*costmodel.Step, error) {
	r.want(ranks)
	return r.source.brief(module, pool, samples, ranks, layers)
}

func (r rising) want(ranks []int) {
	if !slices.IsSorted(ranks) {
		r.t.Errorf("%v: not rising", ranks)
	}
}

// By the laws of GPUs a replay on one device takes what the layers of its job do, and on several
// what their parts and messages say.
func TestReplayedByLaws(t *testing.T) {
	for _, recompute := range []costmodel.Recompute{costmodel.RecomputeNone, costmodel.RecomputeFull} {
		c, _, _ := onGPUs(t, "1x2 h100_sxm", Options{Recompute: recompute}, clip(3, 12), llama(2, 2048, 3, "clip"))
		replay := func(p *Plan) *costmodel.Replayed {
			r, err := c.Replayed(p, nil)
			if err != nil {
				t.Fatal(err)
			}
			return r
		}
		alone := replay(&Plan{Runs: []Run{{Layers: 3, Ranks: []int{1}, Samples: []int{12}}, {Module: 1, Layers: 2, Ranks: []int{1}, Samples: []int{3}}}})
		sum := 3*c.Alone(0, 0, 12) + 2*c.Alone(1, 0, 3)
		if !close(alone.Step.Mid, sum) || !close(alone.Ranks[1].Compute, sum) || alone.Ranks[0] != (costmodel.ReplayedRank{}) || !(alone.Step.Lo < sum && sum < alone.Step.Hi) || alone.Step.Source == "" {
			t.Errorf("%s: %+v, want %v", recompute, alone.Step, sum)
		}
		chain := replay(&Plan{Runs: []Run{{Layers: 3, Ranks: []int{0}, Samples: []int{12}}, {Module: 1, Layers: 2, Ranks: []int{1}, Samples: []int{3}}}})
		sum += 2 * c.send(0, 1, 12*257*1024*2)
		if !close(chain.Step.Mid, sum) || !close(chain.Meeting, sum) {
			t.Errorf("%s: %v, want %v", recompute, chain.Step.Mid, sum)
		}
		both := replay(&Plan{Runs: []Run{{Layers: 3, Ranks: []int{0, 1}, Samples: []int{6, 6}}, {Module: 1, Layers: 2, Ranks: []int{1}, Samples: []int{3}}}})
		again := slices.ContainsFunc(both.Tasks, func(k costmodel.ReplayTask) bool { return k.Again })
		if again != (recompute == costmodel.RecomputeFull) || both.Ranks[0].End < 3*c.Alone(0, 0, 6)+c.Exchange(0, []int{0, 1}) {
			t.Errorf("%s: %+v", recompute, both.Ranks)
		}
	}
}

func TestReplayedSaysWhyNot(t *testing.T) {
	says := func(c *Costs, p *Plan, want string) {
		t.Helper()
		if _, err := c.Replayed(p, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	w := proportional(t, [][]string{{"a", "a"}}, module("m", 2, 3), module("n", 1, 2, "m"))
	one := []Run{{Layers: 2, Ranks: []int{0, 1}, Samples: []int{1, 2}}, {Module: 1, Layers: 1, Ranks: []int{0, 1}, Samples: []int{1, 1}}}
	says(w.costs(t), &Plan{Runs: one[:1]}, "runs: 1 of the 1 layers of n are in none")
	w.bytes[0], w.lacks = 1, errMissing
	_, err := w.costs(t).Replayed(&Plan{Runs: one}, nil)
	if !errors.Is(err, errMissing) {
		t.Error(err)
	}
	cluster, err := costmodel.ParseCluster("1x1 a")
	if err != nil {
		t.Fatal(err)
	}
	published, err := Published(&Tasks{Modules: []Module{module("m", 1, 1)}}, cluster)
	if err != nil {
		t.Fatal(err)
	}
	says(published, &Plan{Runs: []Run{{Layers: 1, Ranks: []int{0}, Samples: []int{1}}}}, "runs[0]: module m: has a curve and no shape")
}

// Messages between ranks that Simulate moves nothing between may lack a law.
func TestReplayedNeedsTheMessagesOfItsOwn(t *testing.T) {
	w := proportional(t, [][]string{{"a", "a"}}, module("m", 1, 3), module("n", 1, 2, "m"))
	w.bytes[0] = 1
	c := w.costs(t)
	c.from = sendless{w.made}
	p := &Plan{Runs: []Run{{Layers: 1, Ranks: []int{0, 1}, Samples: []int{1, 2}}, {Module: 1, Layers: 1, Ranks: []int{0, 1}, Samples: []int{1, 1}}}}
	if err := c.Simulate(p.Clone()); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Replayed(p, nil); !errors.Is(err, errMissing) {
		t.Error(err)
	}
}

// sendless lack the law of messages.
type sendless struct{ source }

func (sendless) send(from, to int, _ units.Bytes) (units.Seconds, error) {
	return 0, fmt.Errorf("from %d to %d: %w", from, to, errMissing)
}
