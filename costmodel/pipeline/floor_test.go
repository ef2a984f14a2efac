package pipeline

import (
	"math/bits"
	"math/rand/v2"
	"testing"

	"github.com/evenkeel/evenkeel/internal/units"
)

// On stages that are known no chunks take less than the floor, however they are cut; where the
// devices are of one type, in one node or over two, all-to-alls are in it, and it is no less
// than that of any such devices.
func TestFloorOnRanks(t *testing.T) {
	for _, of := range []struct {
		cluster string
		ranks   []int
		types   int
		atLeast float64 // of the batch in one chunk
	}{
		{"2x4 h100_sxm", []int{1}, 1, 0.9},
		{"2x4 h100_sxm", []int{0, 1, 2, 3}, 1, 0.9},
		{"2x4 h100_sxm", []int{2, 3, 4, 5}, 1, 0.85},
		{"1x4 h100_sxm + 1x4 a100_sxm", []int{2, 3, 4, 5}, 2, 0.5}, // without its all-to-alls
	} {
		lengths := []units.Tokens{30000, 900, 9000, 64, 2000}
		c := onGPUs(t, of.cluster).costs(lengths...)
		layer, loss := c.FloorOn(of.ranks)
		for _, r := range of.ranks {
			if l, x := c.Floor(c.Device(r), len(of.ranks), of.types == 1); l > layer || x > loss {
				t.Errorf("%v of %s: %v and %v, of any such devices %v and %v", of.ranks, of.cluster, layer, loss, l, x)
			}
		}
		sum := func(chunks []Chunk) (forwardAndBack, loss units.Seconds) {
			for _, x := range chunks {
				w := c.Work(of.ranks, x)
				forwardAndBack, loss = forwardAndBack+w.Forward+w.Backward, loss+w.Loss
			}
			return forwardAndBack, loss
		}
		for seed := range uint64(50) {
			chunks := drawnChunks(rand.New(rand.NewPCG(seed, 6)), lengths)
			if took, losses := sum(chunks); took < layer || losses < loss {
				t.Errorf("seed %d: chunks take %v and %v, at least %v and %v were said to be taken", seed, took, losses, layer, loss)
			}
		}
		if took, _ := sum([]Chunk{{Sequence: -1, Whole: []int{0, 1, 2, 3, 4}}}); float64(layer) < of.atLeast*float64(took) {
			t.Errorf("%v of %s: all at once take %v, and at least %v was said to be taken", of.ranks, of.cluster, took, layer)
		}
		if c.Missing() != nil {
			t.Error(c.Missing())
		}
	}
	lacks := costsOf(t, []units.Tokens{10}, 1, 2, &made{lacks: "floor"})
	if layer, loss := lacks.FloorOn([]int{0, 1}); layer != forever || loss != forever {
		t.Errorf("%v and %v without prices", layer, loss)
	}
}

// Whichever ranks of a type a stage has, their all-to-alls take no less than was said; of four
// ranks whose nodes have one network card each, three on a node send it 3/4 of a rank's rows, and
// two a whole. Evenly spread ranks that have cards of their own, or a node, take just that.
func TestLeastMovingOfAnyRanks(t *testing.T) {
	for _, of := range []struct {
		cluster string
		cards   int
		n       int
		reached bool
	}{
		{"2x3 h100_sxm", 0, 4, true},
		{"2x3 h100_sxm", 1, 4, false},
		{"3x3 h100_sxm", 2, 4, false},
		{"2x5 h100_sxm", 1, 8, false},
		{"2x4 h100_sxm", 1, 4, true},
	} {
		w := onGPUs(t, of.cluster)
		for i := range w.job.Cluster.Nodes {
			w.job.Cluster.Nodes[i].NICs = of.cards
		}
		c := w.costs(30000, 9000)
		said, least := c.leastMoving(c.Device(0), of.n), forever
		for set := range 1 << c.Devices() {
			if bits.OnesCount(uint(set)) != of.n {
				continue
			}
			var ranks []int
			for r := range c.Devices() {
				if set>>r&1 == 1 {
					ranks = append(ranks, r)
				}
			}
			least = min(least, c.leastMovingOn(ranks, false))
		}
		if said > least || said == 0 || of.reached && said < least {
			t.Errorf("%d of %s with %d cards a node: at least %v was said, and %v is possible", of.n, of.cluster, of.cards, said, least)
		}
	}
}
