package costmodel

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// layersOf is how long one layer takes forward and backward.
func layersOf(t *testing.T, p *Profile, j Job, l Layout) (forward, backward float64) {
	t.Helper()
	s, err := newSim(NewPredictor(p), j)
	if err == nil {
		err = s.run(l, SimOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	layers := s.rounds()[0].layers
	return float64(layers[0].length), float64(layers[1].length)
}

// TestFreeWiresLeaveTheBusiestRank: with equal tokens, messages that cost
// nothing and a buffer for every block nobody waits but at barriers, so the
// busiest rank of the layer decides.
func TestFreeWiresLeaveTheBusiestRank(t *testing.T) {
	p := madeUp(t, map[string]speeds{"fast": {3e12, 4e12, 2e12}, "slow": {1e12, 1.5e12, 1e12}}, map[string]wire{"bus": {}})
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 26))
		x := randomPlan(rng)
		n := 1 + rng.IntN(8)
		x.job.Cluster = cluster(t, []string{"1x8 fast", "1x8 slow"}[rng.IntN(2)], p, "bus", "")
		tokens, order := make([]units.Tokens, 8), rng.Perm(8)
		var groups []Group
		for size := 1 + rng.IntN(3); n > 0; n -= size {
			g := make(Group, min(n, size))
			for i, heads := range randomHeads(rng, x.job.Model.QHeads, len(g)) {
				g[i] = HeadShare{order[n-1-i], heads}
				tokens[order[n-1-i]] = 240
			}
			groups = append(groups, g)
		}
		x.layout = ZigZag(tokens, groups)
		x.job.SeqLen, x.job.RingBuffers = sumTokens(tokens), max(2, len(groups))
		slow := newSlowSim(t, p, x)
		var want [2]float64
		for dir := range want {
			slow.back = dir == 1
			want[dir] = slow.slowest(func(r int) float64 {
				busy := slow.linear(r, true) + slow.linear(r, false)
				for k := range groups {
					busy += slow.work(r, k)
				}
				return busy
			})
		}
		forward, backward := layersOf(t, p, x.job, x.layout)
		if math.Abs(forward/want[0]-1) > 1e-9 || math.Abs(backward/want[1]-1) > 1e-9 {
			t.Errorf("seed %d: %v and %v, the busiest ranks compute %v", seed, forward, backward, want)
		}
	}
}

// uniform is a job of equal groups on equal devices that compute nothing but
// attention at a rate, over links of a rate and no latency.
type uniform struct {
	groups, members int
	tokens          units.Tokens // of a rank
	attention, link float64      // FLOP/s, B/s
}

// layers simulates a layer of the small model with `members` times 2 query heads
// and as many key-value heads.
func (u uniform) layers(t *testing.T) (forward, backward float64) {
	p := madeUp(t, map[string]speeds{"any": {attention: u.attention}}, map[string]wire{"bus": {0, u.link}})
	n := u.groups * u.members
	tokens, groups := make([]units.Tokens, n), make([]Group, u.groups)
	for r := range tokens {
		tokens[r] = u.tokens
		groups[r/u.members] = append(groups[r/u.members], HeadShare{r, 2})
	}
	j := testJob(Cluster{Nodes: []Node{node("n", op.Member{Device: "any", Count: n})}}, tokens)
	j.Cluster.Nodes[0].Link = "bus"
	j.Model.QHeads, j.Model.KVHeads, j.RingBuffers = 2*u.members, 2*u.members, max(2, u.groups)
	return layersOf(t, p, j, ZigZag(tokens, groups))
}

// parts are a rank's own block, any other, a hop of keys and values or of their
// gradients, and both all-to-alls of either pass: per rank 2 heads of 64, in
// float32; backward attention has 2.5 times the FLOPs. The law of another group
// is slowed by 15 %.
func (u uniform) parts() (own, other, hop, toAllForward, toAllBackward float64) {
	group := float64(u.tokens) * float64(u.members)
	slower := 1.15
	if n := u.groups * u.members; n == 4 {
		slower = 1
	}
	own = 4 * 64 * 2 * group * (group + 1) / 2 * per(u.attention)
	other = 4 * 64 * 2 * group * group / 2 * per(u.attention)
	hop = slower * 2 * group * 2 * 64 * 4 * per(u.link)
	if u.members > 1 {
		if u.members == 4 {
			slower = 1
		} else {
			slower = 1.15
		}
		// To each of the others the q, k and v of 2 heads, or an output.
		word := slower * float64(u.tokens) * float64(u.members-1) * 2 * 64 * 4 * per(u.link)
		toAllForward, toAllBackward = 3*word+word, word+3*word
	}
	return own, other, hop, toAllForward, toAllBackward
}

// TestEqualGroupsClosedForms: ring, Ulysses and USP. Forward, block t of n
// arrives after t hops and is followed by n-t blocks' work. Backward, where every
// message is hidden, the last gradient's way home shows; where computing is free,
// the ports never rest.
func TestEqualGroupsClosedForms(t *testing.T) {
	for name, u := range map[string]uniform{
		"ring, free links":      {6, 1, 512, 1e12, 0},
		"ring, hidden":          {6, 1, 512, 1e12, 5e10},
		"ring, balanced":        {6, 1, 512, 1e12, 1.5e9},
		"ring, slow links":      {6, 1, 512, 1e13, 1e9},
		"ring, free compute":    {6, 1, 512, 0, 1e9},
		"two ranks":             {2, 1, 512, 1e12, 5e10},
		"ulysses":               {1, 4, 512, 1e12, 1e9},
		"ulysses, slow links":   {1, 6, 256, 1e13, 1e8},
		"usp, hidden":           {4, 2, 256, 1e12, 5e10},
		"usp, slow links":       {4, 3, 256, 1e13, 1e9},
		"usp, free compute":     {3, 2, 256, 0, 1e9},
		"usp, two large groups": {2, 4, 128, 1e12, 5e9},
	} {
		own, other, hop, in, out := u.parts()
		n := float64(u.groups)
		ring := own + (n-1)*other
		for t := 1.0; t < n; t++ {
			ring = max(ring, t*hop+(n-t)*other)
		}
		forward, backward := u.layers(t)
		if want := in + ring; math.Abs(forward/want-1) > 1e-9 {
			t.Errorf("%s: forward %v, want %v", name, forward, want)
		}
		want := 0.0
		switch {
		case n == 1:
			want = out + 2.5*own
		case u.attention == 0:
			want = out + 2*(n-1)*hop
		case 2.5*other > 2*hop:
			want = out + 2.5*(own+(n-1)*other) + hop
		default:
			continue
		}
		if math.Abs(backward/want-1) > 1e-9 {
			t.Errorf("%s: backward %v, want %v", name, backward, want)
		}
	}
}
