package costmodel

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/internal/units"
)

// Two nodes of two ranks, each a group with half of the sequence: keys and values of the
// first go to the second, and their gradients home. Over one card a node both ranks'
// messages take what the card takes for all of them, whoever has more heads.
func TestACardServesAllRanksOfItsNode(t *testing.T) {
	p := world(t, rand.New(rand.NewPCG(5, 6)), faster{})
	tokens := []units.Tokens{200, 200, 200, 200}
	j := testJob(cluster(t, "2x2 fast", p, "bus", "net"), tokens)
	j.Model.KVHeads = 4
	took := func(nics int, heads ...int) map[string][]units.Seconds {
		for i := range j.Cluster.Nodes {
			j.Cluster.Nodes[i].NICs = nics
		}
		l := Contiguous(tokens, []Group{{{0, heads[0]}, {1, heads[1]}}, {{2, heads[0]}, {3, heads[1]}}})
		all := map[string][]units.Seconds{}
		for _, x := range mustSimulate(t, p, j, l).Timeline {
			for _, what := range []string{"keys, values", "gradients for"} {
				if x.Resource == "egress" && strings.HasPrefix(x.Name, what) {
					all[what] = append(all[what], x.End-x.Start)
				}
			}
		}
		return all
	}
	// A rank with all heads has a card of its own, then two share one evenly or not.
	whole, even, uneven := took(0, 4, 0), took(1, 2, 2), took(1, 3, 1)
	for what, alone := range whole {
		for _, shared := range [][]units.Seconds{even[what], uneven[what]} {
			if len(shared) != 2*len(alone) {
				t.Fatalf("%s: %d messages, %d of a rank alone", what, len(shared), len(alone))
			}
			for _, x := range shared {
				if !near(x, alone[0], 1e-6) {
					t.Errorf("%s: %v over a card for two, %v of all heads alone", what, x, alone[0])
				}
			}
		}
	}
	if len(whole) != 2 {
		t.Errorf("messages of %d kinds", len(whole))
	}
}

// Two nodes of two ranks in one all-to-all group, with equal shares: of the three parts of
// its rows that a rank sends, two cross the network and one the node's own link, at the same
// time. A law that was measured on such nodes counts all three, and one of a network that is
// the node's link as well, or that was measured who knows where, charges for them.
func TestAllToAllsCrossTheNetworkBetweenNodesAlone(t *testing.T) {
	tokens := []units.Tokens{256, 256, 256, 256}
	for name, x := range map[string]struct {
		inside  string // link of a node
		bus     float64
		nodes   int
		assumed bool
		counted float64 // of the three parts, what takes longest, in those of the network; a measured law stands in
	}{
		"assumed":                {"bus", 1e12, 2, true, 2},
		"measured on such nodes": {"bus", 1e12, 2, false, 3 * transferFactor},
		"a rank a node":          {"bus", 1e12, 4, false, 2 * transferFactor},
		"slow inside":            {"bus", 1e8, 2, true, 10 * transferFactor},
		"one link for all":       {"net", 1e12, 2, true, 3},
		"who knows where":        {"bus", 1e12, 1, true, 3},
	} {
		p := madeUp(t, map[string]speeds{"fast": {}}, map[string]wire{"bus": {0, x.bus}, "net": {0, 1e9}})
		measuredOn(p, "net", x.nodes, x.assumed)
		j := testJob(cluster(t, "2x2 fast", p, x.inside, "net"), tokens)
		j.Model.KVHeads = j.Model.QHeads
		l := Contiguous(tokens, []Group{{{0, 1}, {1, 1}, {2, 1}, {3, 1}}})
		var got units.Seconds
		for _, e := range mustSimulate(t, p, j, l).Timeline {
			if e.Resource == "egress" && e.Rank == 0 && got == 0 {
				got = e.End - e.Start
			}
		}
		// A part is the queries, keys and values of a rank's tokens for another's one head.
		part := float64(256 * 3 * 64 * j.DType.Size())
		if want := units.Seconds(x.counted * part / 1e9); !near(got, want, 1e-6) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}
