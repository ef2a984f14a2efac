package costmodel

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// plan is a job and a layout of it.
type plan struct {
	job    Job
	layout Layout
}

// faster scales the made-up devices and links of a world; 0 is 1.
type faster struct{ fast, slow, bus, net float64 }

// world is a profile with two device types whose computing takes about as long
// as their messages, two measured groups on a bus, and slow-downs of attention
// and messages beside one another.
func world(t testing.TB, rng *rand.Rand, by faster) *Profile {
	for _, x := range []*float64{&by.fast, &by.slow, &by.bus, &by.net} {
		if *x == 0 {
			*x = 1
		}
	}
	rate := math.Pow(10, 8.5+2*rng.Float64())
	p := madeUp(t, map[string]speeds{
		"fast": {3e12 * by.fast, 4e12 * by.fast, 2e12 * by.fast}, "slow": {1e12 * by.slow, 1.5e12 * by.slow, 1e12 * by.slow},
	}, map[string]wire{"bus": {3e-6 / by.bus, 3 * rate * by.bus}, "net": {1e-5 / by.net, rate * by.net}})
	pair := op.NewGroupType([]op.Member{{Device: "fast", Count: 1}, {Device: "slow", Count: 1}}, 1, "bus")
	p.Groups = append(p.Groups, pair)
	for _, kind := range []op.Kind{op.KindSendRecv, op.KindAllToAll} {
		p.Laws = append(p.Laws, Law{Op: kind, Group: pair.Name, Curve: line(2e-6/by.bus, 2*rate*by.bus), Range: wide(kind), Spread: tenPercent})
	}
	slow := func(compute op.Kind, side op.Slowed, ratio float64) OverlapFact {
		return OverlapFact{On: "slow", Compute: compute, Comm: op.KindSendRecv, Slowed: side, Ratio: ratio, Lo: ratio, Hi: ratio, Points: 1}
	}
	p.Overlaps = []OverlapFact{
		slow(op.KindAttnFwd, op.SlowedCompute, 1.2), slow(op.KindAttnBwd, op.SlowedCompute, 1.1),
		slow(op.KindAttnFwd, op.SlowedComm, 1.3), slow(op.KindAttnBwd, op.SlowedComm, 1.5),
	}
	bits := math.Float64bits(rate) // what is drawn after this stays as it is
	measuredOn(p, "net", 1<<(bits%3), bits%5 < 2)
	if err := p.Validate(); err != nil {
		t.Fatal(err)
	}
	return p
}

// measuredOn says of a link's group of four that it is on so many nodes, or is assumed to be.
func measuredOn(p *Profile, link string, nodes int, assumed bool) {
	for i := range p.Groups {
		g := &p.Groups[i]
		if g.Link != link {
			continue
		}
		was := g.Name
		*g = op.NewGroupType(g.Members, nodes, link)
		for k := range p.Laws {
			if l := &p.Laws[k]; l.Group == was {
				l.Group = g.Name
				if assumed {
					l.Assumed = "a guess"
				}
			}
		}
	}
}

// randomPlan makes a small plan with every kind of imbalance: up to four groups
// of up to four ranks, or more of fewer, on up to three nodes, ranks without tokens, ranks without
// heads, heads that cut key-value heads, few network cards.
func randomPlan(rng *rand.Rand) plan {
	m := smallModel()
	m.Layers = 1 + rng.IntN(3)
	m.KVHeads = 1 + rng.IntN(4)
	m.QHeads = m.KVHeads * (1 + rng.IntN(4))
	j := Job{
		Model: m, Cluster: randomCluster(rng), DType: op.F32, RingBuffers: 2 + rng.IntN(3), LossChunk: units.Tokens(20 + rng.IntN(300)),
		Recompute: []Recompute{RecomputeNone, RecomputeFull}[rng.IntN(2)], Zero: []ZeRO{"", Zero0, Zero1, Zero2, Zero3}[rng.IntN(5)],
		OverlapZero: rng.IntN(2) == 0, Accumulate: rng.IntN(4),
	}
	l := randomLayout(rng, len(j.Cluster.Ranks()), m.QHeads)
	l.OwnLast = rng.IntN(2) == 0
	j.SeqLen = sumTokens(l.Tokens())
	x := plan{j, l}
	if rng.IntN(5) == 0 {
		return inOneGroup(rng, x)
	}
	x.layout.KeepTail = rng.IntN(2) == 0
	return x
}

// inOneGroup makes a plan's ranks a single group that computes its heads in chunks.
func inOneGroup(rng *rand.Rand, x plan) plan {
	x.job.Model.KVHeads = 1 + rng.IntN(8)
	x.job.Model.QHeads = x.job.Model.KVHeads * (1 + rng.IntN(3))
	ranks := len(x.layout.Shards)
	tokens, order := make([]units.Tokens, ranks), rng.Perm(ranks)
	order = order[:1+rng.IntN(ranks)]
	var g Group
	for i, heads := range randomHeads(rng, x.job.Model.QHeads, len(order)) {
		g = append(g, HeadShare{order[i], heads})
		tokens[order[i]] = units.Tokens(1 + rng.IntN(500))
		if heads > 0 && i > 0 && rng.IntN(4) == 0 {
			tokens[order[i]] = 0
		}
	}
	x.layout = ZigZag(tokens, []Group{g})
	x.layout.HeadChunks = 2 + rng.IntN(MaxHeadChunks-1)
	x.job.SeqLen = sumTokens(tokens)
	return x
}

// randomCluster makes up to three nodes of up to four devices.
func randomCluster(rng *rand.Rand) Cluster {
	c := Cluster{Network: "net"}
	for n := range 1 + rng.IntN(3) {
		node := Node{Name: string(rune('a' + n)), Link: "bus"}
		fast, slow := rng.IntN(3), rng.IntN(3)
		if fast > 0 {
			node.Devices = append(node.Devices, op.Member{Device: "fast", Count: fast})
		}
		if slow > 0 || fast == 0 {
			node.Devices = append(node.Devices, op.Member{Device: "slow", Count: max(1, slow)})
		}
		node.NICs = rng.IntN(node.Size() + 1)
		c.Nodes = append(c.Nodes, node)
	}
	return c
}

// randomLayout puts some of the ranks into groups and gives them tokens and heads.
func randomLayout(rng *rand.Rand, ranks, qHeads int) Layout {
	order := rng.Perm(ranks)
	tokens := make([]units.Tokens, ranks)
	var groups []Group
	groupSize, most := 4, 4
	if rng.IntN(4) == 0 { // a longer ring
		groupSize, most = 2, 12
	}
	for len(order) > 0 && len(groups) < most {
		n := min(len(order), 1+rng.IntN(groupSize))
		g := make(Group, n)
		for i, share := range randomHeads(rng, qHeads, n) {
			g[i] = HeadShare{order[i], share}
			if tokens[order[i]] = units.Tokens(rng.IntN(400)); rng.IntN(4) == 0 {
				tokens[order[i]] = units.Tokens(rng.IntN(2))
			}
			if share == 0 {
				tokens[order[i]]++ // nobody has neither
			}
		}
		tokens[order[0]]++ // no group has none
		groups, order = append(groups, g), order[n:]
	}
	switch rng.IntN(4) {
	case 0:
		return Contiguous(tokens, groups)
	case 1:
		return scattered(rng, tokens, groups)
	case 2:
		tier := make([]int, len(groups))
		for g := range tier {
			tier[g] = rng.IntN(3)
		}
		return ZigZagTiers(tokens, groups, tier)
	}
	return ZigZag(tokens, groups)
}

// randomHeads cuts the heads into n shares, some of them empty.
func randomHeads(rng *rand.Rand, qHeads, n int) []int {
	cuts := []int{0, qHeads}
	for range n - 1 {
		cuts = append(cuts, rng.IntN(qHeads+1))
	}
	slices.Sort(cuts)
	shares := make([]int, n)
	for i := range shares {
		shares[i] = cuts[i+1] - cuts[i]
	}
	return shares
}

// scattered deals the sequence out in many pieces.
func scattered(rng *rand.Rand, tokens []units.Tokens, groups []Group) Layout {
	l := Layout{Shards: make([]Shard, len(tokens)), Groups: groups}
	left := slices.Clone(tokens)
	for at := units.Tokens(0); at < sumTokens(tokens); {
		r := rng.IntN(len(tokens))
		if left[r] == 0 {
			continue
		}
		n := min(left[r], 1+units.Tokens(rng.IntN(200)))
		segments := &l.Shards[r].Segments
		if k := len(*segments); k > 0 && (*segments)[k-1].End == at {
			(*segments)[k-1].End += n
		} else {
			*segments = append(*segments, Segment{at, at + n})
		}
		at, left[r] = at+n, left[r]-n
	}
	return l
}
