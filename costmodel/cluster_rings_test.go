package costmodel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// ringNode is a node of so many devices, cards and a link of its own.
func ringNode(i int, device string, count, nics int, link string) Node {
	n := Node{Name: fmt.Sprintf("n%d", i), Devices: []op.Member{{Device: device, Count: count}}, NICs: nics}
	if count > 1 {
		n.Link = link
	}
	return n
}

func ringCluster(nodes ...Node) Cluster {
	return Cluster{
		Network: "ib", Links: []Link{{Name: "ib", Rate: 1e9}, {Name: "narrow", Rate: 2.5e9}, {Name: "wide", Rate: 4e10}}, Nodes: nodes,
	}
}

// A node whose ranks have neither tokens nor states takes nothing from the exchange of
// the others, however slow it is; one that takes part sets the rate.
func TestNodesLeftOutSetNoRate(t *testing.T) {
	p := usual(t)
	step := func(c Cluster, working int) units.Seconds {
		shares := make([]units.Tokens, len(c.Ranks()))
		for r := range working {
			shares[r] = 512
		}
		return mustSimulate(t, AssumeLinks(p, c), testJob(c, shares), ringOf(shares)).Time.Mid
	}
	two := []Node{ringNode(0, "fast", 4, 0, "wide"), ringNode(1, "fast", 4, 0, "wide")}
	alone := step(ringCluster(two...), 8)
	for what, other := range map[string]Node{
		"one device":       ringNode(2, "fast", 1, 0, ""),
		"one network card": ringNode(2, "fast", 4, 1, "wide"),
		"a narrow link":    ringNode(2, "fast", 4, 0, "narrow"),
		"another type":     ringNode(2, "slow", 1, 0, ""),
	} {
		beside := step(ringCluster(append(two, other)...), 8)
		if math.Abs(float64(beside/alone-1)) > 1e-12 {
			t.Errorf("beside a node of %s that is left out: %v, without it %v", what, beside, alone)
		}
	}
	eight := step(ringCluster(two[0], ringNode(1, "fast", 4, 1, "wide")), 8)
	if eight < 1.4*alone {
		t.Errorf("with a node of one card at work: %v, with four %v", eight, alone)
	}
}

// Whichever nodes take part, the law of a ring is of just the rate of the slowest.
func TestRingsGoAtTheSlowestOfTheirNodes(t *testing.T) {
	p := usual(t)
	r := rand.New(rand.NewPCG(3, 8))
	for range 200 {
		var nodes []Node
		for i := range 2 + r.IntN(7) {
			nodes = append(nodes, ringNode(i, []string{"fast", "slow"}[r.IntN(2)], 1+r.IntN(8), r.IntN(3), []string{"wide", "narrow"}[r.IntN(2)]))
		}
		for i := range nodes {
			nodes[i].NICs = min(nodes[i].NICs, nodes[i].Size())
		}
		c := ringCluster(nodes...)
		q := NewPredictor(AssumeLinks(p, c))
		rates := q.NodeRates(c)
		var members []op.Member
		slowest, taken := units.BytesPerS(math.Inf(1)), 0
		for i, n := range nodes {
			if r.IntN(2) == 0 && len(nodes)-i > 2-taken {
				continue
			}
			taken++
			slowest = min(slowest, rates[i])
			for range 1 + r.IntN(n.Size()) {
				members = addMember(members, n.Devices[0].Device)
			}
		}
		for _, k := range []op.Kind{op.KindAllReduce, op.KindAllGather, op.KindReduceScatter} {
			law, factor, err := q.Across("ib", k, members, slowest)
			if err != nil || factor != 1 {
				t.Fatalf("%v, %v: %v", c.Nodes, err, factor)
			}
			if got := q.ringRate(law); rateApart(got, slowest) != 0 {
				t.Fatalf("%s among %v on nodes of %v, of which %v at least: %v", k, members, rates, slowest, got)
			}
		}
		law, _, err := q.Across("ib", op.KindAllToAll, members, slowest)
		if own, _, _ := q.Over("ib", op.KindAllToAll, members); err != nil || law != own {
			t.Fatalf("an all-to-all, which is no ring, by %v: %v", law, err)
		}
	}
}
