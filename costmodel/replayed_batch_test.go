package costmodel

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// placed has a layout of some ranks be one of so many ranks of a cluster.
func placed(l Layout, ranks []int, n int) Layout {
	out := Layout{Shards: make([]Shard, n), Schedule: l.Schedule}
	for i, s := range l.Shards {
		out.Shards[ranks[i]] = s
	}
	for _, g := range l.Groups {
		var x Group
		for _, m := range g {
			x = append(x, HeadShare{ranks[m.Rank], m.QHeads})
		}
		out.Groups = append(out.Groups, x)
	}
	return out
}

// randomBatch makes up to four micro-batches of groups side by side, with ranks that have no
// work and such as take no part at all.
func randomBatch(rng *rand.Rand) (Job, ReplayBatch) {
	j := randomPlan(rng).job
	j.Accumulate = 0
	n := len(j.Cluster.Ranks())
	b := ReplayBatch{Members: rng.Perm(n)[:1+rng.IntN(n)], Micro: make([][]ReplayGroup, 1+rng.IntN(4))}
	slices.Sort(b.Members)
	for m := range b.Micro {
		order := slices.Clone(b.Members)
		rng.Shuffle(len(order), func(i, k int) { order[i], order[k] = order[k], order[i] })
		for len(order) > 0 && rng.IntN(5) > 0 {
			ranks := order[:1+rng.IntN(len(order))]
			order = order[len(ranks):]
			g := ReplayGroup{Job: j, Layout: placed(randomLayout(rng, len(ranks), j.Model.QHeads), ranks, n)}
			g.Job.SeqLen = sumTokens(g.Layout.Tokens())
			g.Job.Recompute = []Recompute{RecomputeNone, RecomputeFull}[rng.IntN(2)]
			if g.Job.SeqLen > 1 && rng.IntN(2) == 0 {
				cut := 1 + units.Tokens(rng.IntN(int(g.Job.SeqLen)-1))
				g.Packed = []units.Tokens{cut, g.Job.SeqLen - cut}
			}
			b.Micro[m] = append(b.Micro[m], g)
		}
	}
	return j, b
}

// manyBatches replays whole steps of a variety of batches.
func manyBatches(t *testing.T, check func(q *Predictor, j Job, b ReplayBatch, r *Replayed)) {
	for seed := range uint64(150) {
		rng := rand.New(rand.NewPCG(seed, 81))
		q := NewPredictor(world(t, rng, faster{}))
		j, b := randomBatch(rng)
		r, err := q.ReplayedBatch(j, b, nil)
		if err != nil {
			t.Fatal(err)
		}
		if check(q, j, b, r); t.Failed() {
			t.Fatalf("seed %d: %s, overlap %v, %d micro-batches of %d members", seed, j.zero(), j.OverlapZero, len(b.Micro), len(b.Members))
		}
	}
}

// A batch of one group that trains one sequence once is a whole step of that sequence.
func TestBatchOfOneSequence(t *testing.T) {
	manyUpdates(t, func(x plan, s *Simulator, w ReplayWork, want *Replayed) {
		members := atWork(w.Layout)
		slices.Sort(members)
		b := ReplayBatch{Members: members, Micro: [][]ReplayGroup{{{Job: x.job, Layout: w.Layout}}}, Reduced: w.Reduced}
		r, err := s.q.ReplayedBatch(x.job, b, nil)
		if err != nil {
			t.Fatal(err)
		}
		if !near(r.Step.Mid, want.Step.Mid, 1e-12) || len(r.Tasks) != len(want.Tasks) || r.Step.Source != want.Step.Source {
			t.Errorf("%v, by itself %v; %d tasks and %d", r.Step, want.Step, len(r.Tasks), len(want.Tasks))
		}
		for i := range want.Ranks {
			a, b := r.Ranks[i], want.Ranks[i]
			if !near(a.Compute, b.Compute, 1e-9) || !near(a.Exposed, b.Exposed, 1e-9) || !near(a.End, b.End, 1e-12) {
				t.Errorf("rank %d: %+v, by itself %+v", i, a, b)
			}
		}
		// It may be told along another rank.
		if wide := (r.Step.Hi - r.Step.Lo) / (want.Step.Hi - want.Step.Lo); wide < 0.4 || wide > 2.5 || !(r.Step.Lo < r.Step.Mid) {
			t.Errorf("interval %+v, by itself %+v", r.Step, want.Step)
		}
	})
}

// A rank's tasks fill its step and add up to its account, ranks that are no members meet the
// others alone, and what the laws say may as well be supposed.
func TestBatchTasksFillTheStep(t *testing.T) {
	manyBatches(t, func(q *Predictor, j Job, b ReplayBatch, r *Replayed) {
		took := fillsTheStep(t, r)
		var last units.Seconds
		for i, k := range r.Ranks {
			if last = max(last, k.End); !slices.Contains(b.Members, i) && k.Compute != 0 {
				t.Errorf("rank %d is no member: %+v", i, k)
			}
		}
		if !near(r.Step.Mid, last, 1e-12) || !(r.Step.Lo < r.Step.Mid && r.Step.Mid < r.Step.Hi) {
			t.Errorf("%+v, the last rank is done at %v", r.Step, last)
		}
		same, err := q.ReplayedBatch(j, b, func(k ReplayKey) (units.Seconds, bool) { return took[k], true })
		if err != nil || !near(same.Step.Mid, r.Step.Mid, 1e-9) || len(same.Tasks) != len(r.Tasks) {
			t.Errorf("%v supposed, %v predicted: %v", same.Step.Mid, r.Step.Mid, err)
		}
	})
}

// Ranks that meet after every layer, and exchange behind it, are never faster than such as do
// not. What they take is what groups take by themselves, the longest of every micro-batch, and
// what is outside them.
func TestBatchMeetsAsItIsPriced(t *testing.T) {
	manyBatches(t, func(q *Predictor, j Job, b ReplayBatch, r *Replayed) {
		behind := j
		behind.OverlapZero = false
		x, err := q.ReplayedBatch(behind, b, nil)
		if err != nil {
			t.Fatal(err)
		}
		if r.Step.Mid > x.Step.Mid*(1+1e-9) || x.Step.Mid > x.Meeting*(1+1e-9) {
			t.Errorf("%v, %v with exchange behind layers, %v with meetings", r.Step.Mid, x.Step.Mid, x.Meeting)
		}
		alone := j
		alone.Cluster = membersOf(j.Cluster, b.Members)
		over, err := q.Overheads(alone)
		if err != nil {
			t.Fatal(err)
		}
		want := over.Step
		for m, side := range b.Micro {
			var longest, forward, backward units.Seconds
			for _, g := range side {
				meeting := func(by Recompute, loss bool) units.Seconds {
					of := g.Job
					of.Recompute = by
					s, err := NewSimulator(q, of)
					if err != nil {
						t.Fatal(err)
					}
					x, err := s.Replayed(ReplayWork{Layout: g.Layout, Packed: g.Packed, Layers: j.Model.Layers, Loss: loss})
					if err != nil {
						t.Fatal(err)
					}
					return x.Meeting
				}
				longest = max(longest, meeting(g.Job.Recompute, true))
				once := meeting(RecomputeFull, false) - meeting(RecomputeNone, false)
				share := units.Seconds(j.Model.Layers-1) / units.Seconds(j.Model.Layers)
				forward, backward = max(forward, share*once), max(backward, share*(meeting(g.Job.Recompute, false)-once))
			}
			if want += longest + over.MicroBatch; j.zero() == Zero3 {
				want += max(0, over.Hidden-forward-backward)
			} else {
				want += max(0, over.Hidden-backward)
			}
			if m == len(b.Micro)-1 {
				want += max(0, over.Behind-backward)
			}
		}
		gathered := units.Seconds(len(b.Micro)) * restGather(t, q, alone)
		if !near(r.Meeting, want-gathered, 1e-9) {
			t.Errorf("meeting %v, want %v less %v", r.Meeting, want, gathered)
		}
	})
}

// membersOf is a cluster without the ranks that are no members.
func membersOf(c Cluster, members []int) Cluster {
	out, rank := c, 0
	out.Nodes = nil
	for _, n := range c.Nodes {
		kept := n
		kept.Devices = nil
		for _, d := range n.Devices {
			count := 0
			for range d.Count {
				if slices.Contains(members, rank) {
					count++
				}
				rank++
			}
			if count > 0 {
				kept.Devices = append(kept.Devices, op.Member{Device: d.Device, Count: count})
			}
		}
		if kept.NICs = min(kept.NICs, kept.Size()); len(kept.Devices) > 0 {
			out.Nodes = append(out.Nodes, kept)
		}
	}
	return out
}

// restGather is what gathering the parameters in no layer takes, which a price has twice.
func restGather(t *testing.T, q *Predictor, j Job) units.Seconds {
	t.Helper()
	if j.zero() != Zero3 || len(j.Cluster.Ranks()) < 2 {
		return 0
	}
	b := ReplayBatch{Micro: [][]ReplayGroup{nil}}
	for r := range j.Cluster.Ranks() {
		b.Members = append(b.Members, r)
	}
	x, err := q.together(j, b, nil)
	if err != nil {
		t.Fatal(err)
	}
	return x.update.restGather
}

// Two equal ranks, of which one trains by itself in every one of three micro-batches: what is
// left of a step whose layers need no time has a closed form.
func TestBatchUpdateByItself(t *testing.T) {
	p := madeUp(t, map[string]speeds{"any": {memory: 1e9}}, map[string]wire{"bus": {1, 1e6}})
	c := cluster(t, "1x2 any", p, "bus", "")
	j := testJob(c, []units.Tokens{300})
	takes := func(b units.Bytes, times float64) units.Seconds {
		return units.Seconds(1.15 * (1 + times*float64(b)/1e6))
	}
	layer, rest := takes(j.LayerBytes(), 0.5), takes(j.RestBytes(), 0.5)
	const micro = 3
	one := ReplayGroup{Job: j, Layout: Contiguous([]units.Tokens{300, 0}, []Group{{{0, 4}}})}
	other := ReplayGroup{Job: j, Layout: Contiguous([]units.Tokens{0, 300}, []Group{{{1, 4}}})}
	for zero, want := range map[ZeRO]units.Seconds{
		Zero0: 6*takes(j.LayerBytes(), 1) + takes(j.RestBytes(), 1),
		Zero1: 2 * (6*layer + rest),
		Zero2: (micro + 1) * (6*layer + rest),
		Zero3: micro * (2*6*layer + rest + 6*layer + rest),
	} {
		for _, overlap := range []bool{false, true} {
			j.Zero, j.OverlapZero = zero, overlap
			b := ReplayBatch{Members: []int{0, 1}, Micro: [][]ReplayGroup{{one, other}, {other}, {one}}}
			const update = 5 // seconds
			r, err := NewPredictor(p).ReplayedBatch(j, b, func(k ReplayKey) (units.Seconds, bool) {
				if k.Op == OptimizerOp {
					return update, true
				}
				return 0, true
			})
			if err != nil {
				t.Fatal(err)
			}
			met, gathered := map[int]int{}, map[int]int{}
			for _, k := range r.Tasks {
				if k.Op == MeetOp {
					met[k.Micro]++
				}
				if k.Op == ParamWait && k.Rank == 0 {
					gathered[k.Micro]++
				}
			}
			if each := 1 + 2*6; zero == Zero3 && (gathered[0] != each || gathered[1] != each || gathered[2] != each) {
				t.Errorf("parameters are waited for so often by micro-batch: %v, want %d", gathered, each)
			}
			if !near(r.Step.Mid, want+update, 1e-9) || len(met) != micro-1 || met[0] != 2 || met[1] != 2 {
				t.Errorf("%s, overlap %v: %v, want %v; ranks met %v", zero, overlap, r.Step.Mid, want+update, met)
			}
			for i, k := range r.Ranks {
				if !near(k.Compute, update, 1e-9) || k.Skew > 1e-9 {
					t.Errorf("%s: rank %d: %+v", zero, i, k)
				}
			}
		}
	}
}

// Where gradients leave once a step, what travels beside layers does so beside the last
// micro-batch's, on ranks without work in it too.
func TestBatchGradientsLeaveBesideTheLastMicroBatch(t *testing.T) {
	p := madeUp(t, map[string]speeds{"any": {memory: 1e9}}, map[string]wire{"bus": {0, 1e6}})
	c := cluster(t, "1x2 any", p, "bus", "")
	j := testJob(c, []units.Tokens{300})
	j.Zero, j.OverlapZero = Zero0, true
	layer, rest := units.Seconds(1.15*float64(j.LayerBytes())/1e6), units.Seconds(1.15*float64(j.RestBytes())/1e6)
	group := func(rank int) ReplayGroup {
		tokens := []units.Tokens{0, 0}
		tokens[rank] = 300
		return ReplayGroup{Job: j, Layout: Contiguous(tokens, []Group{{{rank, 4}}})}
	}
	waits := func(lasts units.Seconds) (sum units.Seconds) {
		b := ReplayBatch{Members: []int{0, 1}, Micro: [][]ReplayGroup{{group(0), group(1)}, {group(0)}}}
		r, err := NewPredictor(p).ReplayedBatch(j, b, func(k ReplayKey) (units.Seconds, bool) {
			switch {
			case k.Op == LinearOut && k.Dir == BackwardPass && k.Micro == 0:
				return 100 * layer, true
			case k.Op == LinearOut && k.Dir == BackwardPass:
				return lasts, true
			}
			return 0, true
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, k := range r.Tasks {
			if k.Op == GradWait && k.Micro == 0 {
				t.Errorf("%+v: gradients leave once", k)
			}
			if k.Rank == 0 && k.Op == GradWait {
				sum += k.Time
			}
		}
		return sum
	}
	for _, x := range []struct{ lasts, want units.Seconds }{
		{0, 6*layer + rest},
		{10 * layer, layer + rest},
		{layer / 2, 6*layer + rest - 5*layer/2}, // beside five layers' backward passes
	} {
		if got := waits(x.lasts); !near(got, x.want, 1e-9) {
			t.Errorf("beside passes of %v: waits for %v, want %v", x.lasts, got, x.want)
		}
	}
}

// Groups of a micro-batch run side by side: in which order they are listed is nothing.
func TestBatchGroupsHaveNoOrder(t *testing.T) {
	manyBatches(t, func(q *Predictor, j Job, b ReplayBatch, r *Replayed) {
		for m := range b.Micro {
			slices.Reverse(b.Micro[m])
		}
		other, err := q.ReplayedBatch(j, b, nil)
		if err != nil || !near(other.Step.Mid, r.Step.Mid, 1e-9) || !near(other.Meeting, r.Meeting, 1e-9) || len(other.Tasks) != len(r.Tasks) {
			t.Errorf("%v, in another order %v: %v", r.Step, other.Step, err)
		}
	})
}

// A step is as sure as all of its micro-batches are, and no more measured.
func TestBatchIsAsSureAsItsMicroBatches(t *testing.T) {
	p := usual(t)
	j := testJob(cluster(t, "1x(1 fast + 1 slow)", p, "bus", ""), []units.Tokens{300})
	group := func(rank int) ReplayGroup {
		tokens := []units.Tokens{0, 0}
		tokens[rank] = 300
		return ReplayGroup{Job: j, Layout: Contiguous(tokens, []Group{{{rank, 4}}})}
	}
	replayed := func(micro ...[]ReplayGroup) Estimate {
		r, err := NewPredictor(p).ReplayedBatch(j, ReplayBatch{Members: []int{0}, Micro: micro}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return r.Step
	}
	wide := func(e Estimate) units.Seconds { return (e.Hi - e.Lo) / e.Mid }
	long := group(0)
	long.Job.SeqLen, long.Layout = 900, Contiguous([]units.Tokens{900, 0}, []Group{{{0, 4}}})
	narrow := replayed([]ReplayGroup{group(0)})
	for i := range p.Laws { // of blocks that only the packed sequence has
		if l := &p.Laws[i]; l.Device == "fast" && l.Variant.Mask == op.Full && (l.Op == op.KindAttnFwd || l.Op == op.KindAttnBwd) {
			l.Spread, l.Assumed = Spread{Lo: 0.2, Hi: 5}, "a guess"
		}
	}
	ring := ReplayGroup{Job: j, Layout: ZigZag([]units.Tokens{150, 150}, Singles([]units.Tokens{150, 150}, 4))}
	both := func(micro ...[]ReplayGroup) Estimate {
		r, err := NewPredictor(p).ReplayedBatch(j, ReplayBatch{Members: []int{0, 1}, Micro: micro}, func(k ReplayKey) (units.Seconds, bool) {
			return 0, k.Rank == 1 || k.Op == OptimizerOp
		})
		if err != nil {
			t.Fatal(err)
		}
		return r.Step
	}
	if sure := replayed([]ReplayGroup{long}); sure.Source == Assumed || wide(sure) > 1.5*wide(narrow) {
		t.Errorf("%+v of blocks that are measured, %+v", sure, narrow)
	}
	for name, e := range map[string]Estimate{
		"first": both([]ReplayGroup{ring}, []ReplayGroup{group(0)}),
		"last":  both([]ReplayGroup{group(0)}, []ReplayGroup{ring}),
	} {
		if e.Source != Assumed || wide(e) < 1.5*wide(narrow) {
			t.Errorf("a guess in the %s of two micro-batches: %+v, without %+v", name, e, narrow)
		}
	}
}

func TestBatchRefuses(t *testing.T) {
	p := usual(t)
	c := cluster(t, "1x3 fast", p, "bus", "")
	j := testJob(c, []units.Tokens{300})
	group := func(rank int) ReplayGroup {
		tokens := make([]units.Tokens, 3)
		tokens[rank] = 300
		return ReplayGroup{Job: j, Layout: Contiguous(tokens, []Group{{{rank, 4}}})}
	}
	for want, change := range map[string]func(b *ReplayBatch){
		"members: none":       func(b *ReplayBatch) { b.Members = nil },
		"members[1]: 0: want": func(b *ReplayBatch) { b.Members = []int{1, 0} },
		"members[1]: 3: want": func(b *ReplayBatch) { b.Members = []int{1, 3} },
		"micro-batches: none": func(b *ReplayBatch) { b.Micro = nil },
		"micro-batch 0: group 1: rank 2: want members, each in one": func(b *ReplayBatch) { b.Micro[0] = append(b.Micro[0], group(2)) },
		"micro-batch 0: group 1: rank 0: want members, each in one": func(b *ReplayBatch) { b.Micro[0] = append(b.Micro[0], group(0)) },
		"micro-batch 0: group 0: layers: 2: want the step's 6":      func(b *ReplayBatch) { b.Micro[0][0].Job.Model.Layers = 2 },
		"group 0: docs_tokens: 100 tokens in all":                   func(b *ReplayBatch) { b.Micro[0][0].Packed = []units.Tokens{100} },
	} {
		b := ReplayBatch{Members: []int{0, 1}, Micro: [][]ReplayGroup{{group(0)}}}
		change(&b)
		if _, err := NewPredictor(p).ReplayedBatch(j, b, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
