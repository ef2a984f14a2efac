package costmodel

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// inChunk is the simulator of one chunk of the heads: of the distinct key-value heads of
// a member, in order, every one whose number times the chunks falls into this chunk's
// share of them.
func (s *slowSim) inChunk(c int) *slowSim {
	part := *s
	part.members = slices.Clone(s.members)
	each := s.j.Model.QHeads / s.j.Model.KVHeads
	for _, r := range s.working {
		a := &part.members[r]
		var distinct, own []int
		for _, h := range a.heads {
			if kv := h / each; !slices.Contains(distinct, kv) {
				distinct = append(distinct, kv)
			}
		}
		k, w := s.l.HeadChunks, len(distinct)
		for _, h := range a.heads {
			at := slices.Index(distinct, h/each)
			if at*k >= c*w && at*k < (c+1)*w {
				own = append(own, h)
			}
		}
		a.heads, a.kv = own, s.kvOf(own)
	}
	return &part
}

// chunkToAll is one chunk's all-to-all, slower where attention runs beside it.
func (s *slowSim) chunkToAll(x slowTask) float64 {
	in := x.kind == "in"
	t := s.inChunk(x.t).toAll(x.i, in)
	if in && x.t == 0 || !in && x.t == s.l.HeadChunks-1 {
		return t
	}
	slow := 1.0
	for _, m := range s.l.Groups[x.i] {
		slow = max(slow, s.ratio(m.Rank, op.SlowedComm, s.back))
	}
	return t * slow
}

// chunkWork is a rank's attention on one chunk beside the all-to-alls that hide, as many
// of them in each chunk.
func (s *slowSim) chunkWork(x slowTask) float64 {
	w, k := s.inChunk(x.t).work(x.i, 0), s.l.HeadChunks
	moving, ratio := 0.0, s.ratio(x.i, op.SlowedCompute, s.back)
	for c := range k - 1 {
		moving += s.takes(slowTask{"in", c + 1, 0, 0}) + s.takes(slowTask{"out", c, 0, 0})
	}
	if moving /= float64(k); moving/ratio < w {
		return moving + w - moving/ratio
	}
	return w * ratio
}

// afterInChunks lists what a task waits for where heads are computed in chunks.
func (s *slowSim) afterInChunks(x slowTask, g int) []slowTask {
	before := slowTask{x.kind, x.t - 1, x.i, 0}
	switch {
	case x.kind == "in" && x.t == 0:
		return s.all("pre", s.l.Groups[x.i])
	case x.kind == "in":
		return []slowTask{before}
	case x.kind == "compute" && x.t == 0:
		return []slowTask{{"in", 0, g, 0}}
	case x.kind == "compute":
		return []slowTask{{"in", x.t, g, 0}, before}
	case x.kind == "out":
		if x.t == 0 {
			before = slowTask{"in", s.l.HeadChunks - 1, x.i, 0}
		}
		tasks := []slowTask{before}
		for _, m := range s.l.Groups[x.i] {
			tasks = append(tasks, slowTask{"compute", x.t, m.Rank, 0})
		}
		return tasks
	case x.kind == "post":
		return []slowTask{{"out", s.l.HeadChunks - 1, g, 0}}
	}
	return nil
}

func TestChunksAgainstSlowReference(t *testing.T) {
	quicker := 0
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 91))
		p := world(t, rng, faster{})
		x := inOneGroup(rng, randomPlan(rng))
		got, err := Simulate(NewPredictor(p), x.job, x.layout, SimOptions{})
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		slow := newSlowSim(t, p, x)
		if want := units.Seconds(slow.step()); !near(got.Time.Mid, want, 1e-9) {
			t.Fatalf("seed %d: %v, reference %v\n%v, %+v", seed, float64(got.Time.Mid), float64(want), x.job.Cluster, x.layout)
		}
		for _, r := range slow.working {
			if busy := units.Seconds(slow.busy(r)); !near(got.Ranks[r].Busy, busy, 1e-9) {
				t.Fatalf("seed %d, rank %d: busy %v, reference %v", seed, r, got.Ranks[r].Busy, busy)
			}
		}
		y := x
		y.layout.HeadChunks = 0
		whole := mustSimulate(t, p, y.job, y.layout)
		if got.Time.Mid < whole.Time.Mid {
			quicker++
		}
		for i, link := range whole.Traffic {
			if got.Traffic[i] != link {
				t.Fatalf("seed %d: traffic %v in chunks, %v whole", seed, got.Traffic, whole.Traffic)
			}
		}
	}
	if quicker < 60 {
		t.Errorf("%d of 300 layouts are faster in chunks", quicker)
	}
}

// TestEqualRanksInChunksAreNeverIdle: where nobody is slower than another, what is
// waited for is bytes, before the first chunk, after the last and between them alike.
func TestEqualRanksInChunksAreNeverIdle(t *testing.T) {
	for _, link := range []wire{{1e-6, 1e9}, {1e-5, 1e7}} { // attention outlasts messages, and they it
		p := madeUp(t, map[string]speeds{"fast": {3e12, 4e12, 2e12}}, map[string]wire{"bus": link})
		tokens := []units.Tokens{512, 512}
		j := testJob(cluster(t, "1x2 fast", p, "bus", ""), tokens)
		l := ZigZag(tokens, []Group{{{0, j.Model.QHeads / 2}, {1, j.Model.QHeads / 2}}})
		l.HeadChunks = 2
		step := mustSimulate(t, p, j, l)
		for r, x := range step.Ranks {
			if x.Idle > 1e-12 || x.Exposed <= 0 {
				t.Errorf("rank %d waits for another %v and for bytes %v", r, x.Idle, x.Exposed)
			}
		}
	}
}
