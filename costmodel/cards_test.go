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
