package fit

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
)

// mostFalls bounds what is left between the nodes, where the core may rise less
// than at the nodes for which the correction was bent: one pair in so many may
// fall, and by so much log time.
type mostFalls struct {
	share float64
	fall  float64
}

// check demands that no pair of nodes falls, and that of the pairs between them
// hardly any does.
func (m mostFalls) check(t *testing.T, name string, between, nodes fallen) {
	t.Helper()
	t.Logf("%s: between nodes %s; at nodes %s", name, &between, &nodes)
	if nodes.falls > 0 {
		t.Errorf("%s: at the nodes: %s", name, &nodes)
	}
	if between.tried < 1000 || nodes.tried < 500 {
		t.Errorf("%s: only %d and %d pairs were tried", name, between.tried, nodes.tried)
	}
	if float64(between.falls) > m.share*float64(between.tried) || between.most > m.fall {
		t.Errorf("%s: between the nodes: %s", name, &between)
	}
}

// noneFall demands that no pair of a tile's last token and the next one's first falls by more
// than a thousandth.
func noneFall(t *testing.T, name string, edges fallen) {
	t.Helper()
	t.Logf("%s: from tile to tile %s", name, &edges)
	if edges.tried < 500 || edges.most > 0.001 {
		t.Errorf("%s: from tile to tile: %s", name, &edges)
	}
}

// More tokens, batch or heads never predict less time at the nodes of a learnt
// law unless it splits keys differently, and hardly ever between them.
func TestAttentionLawsRise(t *testing.T) {
	if testing.Short() {
		t.Skip("long; goroutines have shorter tests")
	}
	dev := coreDevice()
	for seed := range uint64(2) {
		law := mustCorrect(t, dev, inventedAttention(dev, 600, seed))
		between, edges, nodes := attentionFalls(law, attentionShape(1, 1, 1, 1).Attention, 4000, seed)
		noneFall(t, "invented attention", edges)
		mostFalls{share: 0.0005, fall: 0.005}.check(t, "invented attention", between, nodes)
	}
}

// More rows of a product never predict less time outside the stretches on which
// the law states a change of kernel, and the one that there is, is stated.
func TestGEMMLawsRise(t *testing.T) {
	if testing.Short() {
		t.Skip("long; goroutines have shorter tests")
	}
	law := mustCorrect(t, coreDevice(), inventedGEMM(coreDevice(), 1000, 1))
	between, nodes := gemmFalls(law, 8000, 1)
	mostFalls{share: 0.05, fall: 0.001}.check(t, "invented gemm", between, nodes)
	if !slices.ContainsFunc(law.Correction.Switches, func(s costmodel.Switch) bool {
		return s.Axis == "m" && s.From <= 1024 && s.To > 1024 && s.Fall > 0.1 && s.Share > 0.3 && s.Share <= 1
	}) {
		t.Errorf("beyond 1,024 rows the kernel is a fifth faster; stated is %+v", law.Correction.Switches)
	}
}

// The same for tables of others' recordings.
func TestLawsOfRecordingsRise(t *testing.T) {
	if testing.Short() {
		t.Skip("fits laws of thousands of points")
	}
	t.Parallel()
	rarely := mostFalls{share: 0.0005, fall: 0.005}
	for _, c := range []struct {
		table, of string
		most      mostFalls
	}{
		{"h100_sxm/context_attention_sglang", "d128", rarely},
		{"h100_sxm/context_attention_vllm", "d512", rarely},
		{"rtx_pro_6000_server/context_attention_trtllm", "d64", rarely},
		// Where few short calls fill not all units the core steps up at products of batch
		// and heads, of which cells of both hold many.
		{"h100_sxm/encoder_attention_trtllm", "d64", mostFalls{share: 0.03, fall: 0.001}},
		{"rtx_pro_6000_server/encoder_attention_vllm", "d80", mostFalls{share: 0.15, fall: 0.01}},
		{"a100_sxm/gemm_*", "bf16", mostFalls{share: 0.01, fall: 0.002}},
	} {
		all := slices.DeleteFunc(tables(t, "aiconfigurator/"+c.table+".csv"), func(r recorded) bool { return !strings.Contains(r.name, c.of) || len(r.points) < 300 })
		if len(all) == 0 {
			t.Fatalf("%s: no table of %s", c.table, c.of)
		}
		law := mustCorrect(t, all[0].device, all[0].points)
		if law.GEMM != nil {
			between, nodes := gemmFalls(law, 10000, 1)
			c.most.check(t, all[0].name, between, nodes)
			continue
		}
		block, _ := blockOf(all[0].points[0].Shape)
		between, edges, nodes := attentionFalls(law, block, 6000, 1)
		if law.Correction.Tile > 0 {
			noneFall(t, all[0].name, edges)
		}
		c.most.check(t, all[0].name, between, nodes)
	}
}

// Of a lattice too large to look at all its cells, a share is looked at on every line.
func TestSomeCellsOfALargeLatticeAreLookedAt(t *testing.T) {
	const size, stride = 1 << 18, 64
	all, column := 0, 0
	for i := range size {
		if !oneIn(i, 1) {
			t.Fatalf("node %d is left out where none has to be", i)
		}
		if oneIn(i, 4) {
			all++
			if i%stride == 5 {
				column++
			}
		}
	}
	if share, of := float64(all)/size, float64(column)*stride/size; math.Abs(share-0.25) > 0.01 || math.Abs(of-0.25) > 0.05 {
		t.Errorf("%.3f of all nodes, %.3f of a column, want 0.25", share, of)
	}
}
