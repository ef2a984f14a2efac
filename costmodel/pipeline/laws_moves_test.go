package pipeline

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/reference"
	"github.com/evenkeel/evenkeel/internal/units"
)

// What each ZeRO stage moves while a chunk is computed, beside it, and when all are done; a
// table of embeddings is reduced and gathered by all, where it is, and its optimizer sharded.
func TestWhatZeroMovesWhen(t *testing.T) {
	of, x := sliceOf()
	for _, ranks := range [][]int{upTo(0, 8), upTo(4, 12), {5}} {
		for _, zero := range []costmodel.ZeRO{costmodel.Zero0, costmodel.Zero1, costmodel.Zero2, costmodel.Zero3} {
			w := onGPUs(t, "2x8 h100_sxm")
			w.job.Zero = zero
			node, devices := []int{0}, [][]op.Member{members("h100_sxm", len(ranks))}
			if ranks[0] == 4 {
				node, devices = []int{0, 1}, [][]op.Member{members("h100_sxm", 4), members("h100_sxm", 4)}
			}
			bare := w.alone(w.of(node, devices, 0), x)
			gather, scatter := w.exchanged(op.KindAllGather, ranks, 0), w.exchanged(op.KindReduceScatter, ranks, 0)
			forward, backward, finish := units.Seconds(0), units.Seconds(0), Finish{}
			switch zero {
			case costmodel.Zero0:
				finish.Gradients = 3 * w.exchanged(op.KindAllReduce, ranks, 0)
			case costmodel.Zero1:
				finish = Finish{3 * scatter, 3 * gather}
			case costmodel.Zero2:
				backward, finish.Parameters = scatter, 3*gather
			default:
				forward, backward = gather, gather+scatter
			}
			c := w.costs(20000, 900)
			if got := c.Work(ranks, of); !near(got.Forward, bare.Forward+forward) || !near(got.Backward, bare.Backward+backward) || !near(got.Again, bare.Forward) {
				t.Errorf("%s on %v: %+v, want %v and %v beside %+v", zero, ranks, got, forward, backward, bare)
			}
			n := int64(len(ranks))
			for s, tables := range []int64{1, 0, 1} { // embeddings, neither, output projection
				p := &Plan{Stages: slices.Repeat([]Stage{{Ranks: ranks, Layers: 3}}, 3)}
				params, table := 3*w.job.Model.LayerParams(), tables*w.job.Model.TableParams()
				if zero == costmodel.Zero0 {
					params *= n // each rank's own
				}
				want := finish
				want.Parameters += w.updated("h100_sxm", (params+table+n-1)/n)
				if tables > 0 && n > 1 {
					want.Gradients += w.exchanged(op.KindReduceScatter, ranks, units.Bytes(2*table))
					want.Parameters += w.exchanged(op.KindAllGather, ranks, units.Bytes(2*table))
				}
				if got := c.Finish(p, s); !near(got.Gradients, want.Gradients) || !near(got.Parameters, want.Parameters) || want.Parameters <= 0 {
					t.Errorf("%s, stage %d of 3 on %v: %v behind the last pass, want %v", zero, s, ranks, got, want)
				}
			}
		}
	}
}

// What hides behind layers has nothing to hide behind at either end of a step.
func TestTheFirstLayerIsGatheredAndTheLastReducedBehindNothing(t *testing.T) {
	w := onGPUs(t, "2x8 h100_sxm")
	w.job.Zero = costmodel.Zero3
	ranks := upTo(0, 8)
	p := &Plan{Stages: []Stage{{Ranks: ranks, Layers: 3}}}
	gather, scatter := w.exchanged(op.KindAllGather, ranks, 0), w.exchanged(op.KindReduceScatter, ranks, 0)
	bare := w.costs(20000).Finish(p, 0)
	w.job.OverlapZero = true
	if got, want := w.costs(20000).Finish(p, 0), bare.Gradients+2*gather+scatter; !near(got.Gradients, want) || got.Parameters != bare.Parameters || gather <= 0 {
		t.Errorf("%v behind the last pass, want %v before the parameters", got, want)
	}
}

// A table of embeddings that is the output projection, too, has gradients on both ends of a
// pipeline: each rank adds up its part, at two bytes each, with a rank of the other end.
func TestTiedEmbeddingsAreAddedUpBetweenBothEnds(t *testing.T) {
	w := onGPUs(t, "2x8 h100_sxm")
	for i := range w.job.Cluster.Nodes {
		w.job.Cluster.Nodes[i].NICs = 4
	}
	stages := func(ranks ...[]int) *Plan {
		p := &Plan{}
		for _, of := range ranks {
			p.Stages = append(p.Stages, Stage{Ranks: of, Layers: 1})
		}
		return p
	}
	table := float64(w.job.Model.TableParams())
	w.job.Model.TiedEmbeddings = true
	costs := w.costs(1000)
	for _, x := range []struct {
		plan  *Plan
		ends  [2]int
		parts float64
		crowd float64
	}{
		{stages([]int{0}, []int{8}), [2]int{0, 8}, 1, 2},
		{stages([]int{0}, []int{1}), [2]int{0, 1}, 1, 1},
		{stages(upTo(0, 8), upTo(8, 16)), [2]int{0, 8}, 8, 2},
		{stages(upTo(0, 4), []int{8}, upTo(4, 8)), [2]int{0, 4}, 4, 1},
		{stages(upTo(0, 8), upTo(8, 12), upTo(12, 14)), [2]int{0, 12}, 2, 2},
		{stages(upTo(2, 6), upTo(6, 10)), [2]int{4, 8}, 4, 2}, // from one end of a node to the next
	} {
		w.job.Model.TiedEmbeddings = false
		if got := w.costs(1000).Tied(x.plan); got != 0 {
			t.Errorf("%v: %v of tables that are not tied", x.plan.Stages, got)
		}
		w.job.Model.TiedEmbeddings = true
		want := w.exchanged(op.KindAllReduce, x.ends[:], units.BytesOf(2*x.crowd*math.Ceil(table/x.parts)))
		if got := costs.Tied(x.plan); !near(got, want) || want <= 0 {
			t.Errorf("%v: %v to add up a table, want %v", x.plan.Stages, got, want)
		}
	}
	if got := costs.Tied(stages(upTo(0, 16))); got != 0 {
		t.Errorf("a single stage has %v to add up with another", got)
	}
}

// Where nobody measured an all-reduce, its halves stand for it.
func TestTiedEmbeddingsWithoutAnAllReduce(t *testing.T) {
	w := onGPUs(t, "1x2 h100_sxm")
	profile, _ := reference.Job(t, reference.Llama(4), "1x2 h100_sxm", 1)
	profile.Laws = slices.DeleteFunc(profile.Laws, func(l costmodel.Law) bool { return l.Op == op.KindAllReduce })
	w.q, w.job.Model.TiedEmbeddings = costmodel.NewPredictor(profile), true
	p, bytes := &Plan{Stages: []Stage{{Ranks: []int{0}, Layers: 2}, {Ranks: []int{1}, Layers: 2}}}, units.Bytes(2*w.job.Model.TableParams())
	want := w.exchanged(op.KindReduceScatter, []int{0, 1}, bytes) + w.exchanged(op.KindAllGather, []int{0, 1}, bytes)
	c := w.costs(1000)
	if got := c.Tied(p); !near(got, want) || c.Missing() != nil {
		t.Errorf("%v to add up a table, want %v: %v", got, want, c.Missing())
	}
	if step, err := c.from.briefTied([]int{0}, []int{1}); err != nil || !near(step.Time.Mid, want) {
		t.Errorf("the account has %+v, want %v: %v", step, want, err)
	}
}

// Of what is exchanged beside a layer, what the layer and its own all-to-alls leave the ports
// no time for shows; of all exchanges of a pass together.
func TestOverlapHidesWhatPortsHaveTimeFor(t *testing.T) {
	hidden, partly := 0, 0
	for _, slice := range []units.Tokens{64, 600, 1000, 1500, 2000, 3000, 6000, 20000} {
		for _, ranks := range [][]int{upTo(0, 8), upTo(4, 12)} {
			w := onGPUs(t, "2x8 h100_sxm")
			w.job.Zero, w.job.OverlapZero = costmodel.Zero3, true
			node, devices := []int{0}, [][]op.Member{members("h100_sxm", 8)}
			if ranks[0] == 4 {
				node, devices = []int{0, 1}, [][]op.Member{members("h100_sxm", 4), members("h100_sxm", 4)}
			}
			bare := w.alone(w.of(node, devices, 0), costmodel.Chunk{Slice: slice})
			gather, scatter := w.exchanged(op.KindAllGather, ranks, 0), w.exchanged(op.KindReduceScatter, ranks, 0)
			shows := func(took, layer, moving units.Seconds) units.Seconds {
				open := min(took, max(0, moving+took-layer))
				switch {
				case open == 0:
					hidden++
				case open < took:
					partly++
				}
				return open
			}
			forward := bare.Forward + shows(gather, bare.Forward, bare.ForwardMoving)
			backward := bare.Backward + shows(gather+scatter, bare.Backward, bare.BackwardMoving)
			if got := w.costs(slice).Work(ranks, Chunk{Slice: slice}); !near(got.Forward, forward) || !near(got.Backward, backward) {
				t.Errorf("%d tokens on %v: %+v, want %v and %v", int64(slice), ranks, got, forward, backward)
			}
		}
	}
	if hidden < 3 || partly < 3 {
		t.Errorf("%d exchanges are hidden, %d in part", hidden, partly)
	}
}

// What leaves a stage is a rank's share of a chunk's activations, at two bytes each of 4096: to
// a rank of the same node over its link, to another over the network, of which several ranks
// share a card. The fewer ranks of the two have the larger shares.
func TestSendsGoOverTheLinkBetweenStages(t *testing.T) {
	for _, cards := range [][2]int{{0, 0}, {2, 2}, {8, 8}, {2, 4}, {8, 1}, {0, 2}, {4, 0}} { // of either node
		w := onGPUs(t, "2x8 h100_sxm")
		crowd := 1.0
		for i, n := range cards {
			w.job.Cluster.Nodes[i].NICs = n
			if n > 0 {
				crowd = max(crowd, 8/float64(n))
			}
		}
		for _, x := range []struct {
			from, to []int
			rows     units.Tokens // of 1001
			ends     [2]int
			network  bool
		}{
			{upTo(0, 4), upTo(4, 8), 251, [2]int{0, 4}, false},
			{upTo(0, 2), upTo(2, 8), 501, [2]int{0, 2}, false},
			{upTo(0, 7), upTo(7, 8), 1001, [2]int{0, 7}, false},
			{upTo(0, 8), upTo(8, 16), 126, [2]int{0, 8}, true},
			{upTo(7, 8), upTo(8, 10), 1001, [2]int{7, 8}, true},
			// From one end of a node to the other and on to the next: the slower link decides.
			{upTo(4, 6), upTo(6, 10), 501, [2]int{4, 8}, true},
			{upTo(2, 6), upTo(6, 10), 251, [2]int{2, 8}, true},
			{[]int{0, 8}, []int{9, 10}, 501, [2]int{0, 9}, true},
			{[]int{0, 8}, []int{1, 9}, 501, [2]int{0, 1}, false}, // each in its own node
		} {
			bytes := float64(x.rows) * 4096 * 2
			if x.network {
				bytes *= crowd
			}
			want, err := w.layers().Send(x.ends[0], x.ends[1], units.BytesOf(bytes))
			if err != nil {
				t.Fatal(err)
			}
			if got := w.costs(1001).Send(x.from, x.to, 1001); !near(got, want) {
				t.Errorf("%v cards, %v to %v: %v, want %v", cards, x.from, x.to, got, want)
			}
		}
	}
}

// What a send takes is of its own ends, whichever was asked for before.
func TestSendsAreRememberedByTheirLink(t *testing.T) {
	w := onGPUs(t, "3x8 h100_sxm")
	w.job.Cluster.Nodes[2].NICs = 4
	pairs := [][2][]int{{upTo(0, 2), upTo(2, 4)}, {upTo(0, 2), upTo(8, 10)}, {{0, 8}, {1, 9}}, {{0, 8}, {9, 10}}, {{0, 8}, {2, 10}}, {{0, 8}, {9, 17}}, {{8, 16}, {9, 17}}, {upTo(2, 6), upTo(6, 10)}, {upTo(4, 8), upTo(14, 18)}}
	r := rand.New(rand.NewPCG(1, 7))
	c := w.costs(5000)
	for range 40 {
		x := pairs[r.IntN(len(pairs))]
		if got, want := c.Send(x[0], x[1], 5000), w.costs(5000).Send(x[0], x[1], 5000); got != want {
			t.Errorf("%v to %v: %v behind others, first %v", x[0], x[1], got, want)
		}
	}
}
