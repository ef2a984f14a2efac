package batch_test

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/groupcost"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/reference"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/batch"
)

// A device that costs more than it brings stays out in whatever node it is: the plan and the bound
// are those of a cluster without it.
func TestDevicesOfATypeInsideNodesAreLeftOut(t *testing.T) {
	lengths := slices.Repeat([]units.Tokens{4000}, 16)
	for _, c := range []struct {
		cluster string
		out     []int
		nodes   int
	}{
		{"1x(4 h100_sxm + 1 b60)", []int{4}, 1},
		{"1x(1 b60 + 4 h100_sxm)", []int{0}, 1},
		{"2x(2 h100_sxm + 1 b60)", []int{2, 5}, 2},
		{"1x(4 h100_sxm + 4 h200_sxm) + 1x1 b60", []int{8}, 1}, // a node of two pools stays
		{"1x(2 h100_sxm + 1 b60) + 1x2 a100_sxm", []int{2}, 2},
	} {
		var docs []*batch.Document
		for _, without := range []string{"", "b60"} {
			q, j := networkJob(t, c.cluster, fastNet, 1)
			j.Zero, j.Model = costmodel.Zero3, reference.Llama(8)
			if without != "" { // the links of the nodes stay what they are
				for i, node := range j.Cluster.Nodes {
					j.Cluster.Nodes[i].Devices = slices.DeleteFunc(slices.Clone(node.Devices), func(m op.Member) bool { return costmodel.ModelOf(m.Device) == without })
				}
				j.Cluster.Nodes = slices.DeleteFunc(j.Cluster.Nodes, func(n costmodel.Node) bool { return n.Size() == 0 })
			}
			p, err := batch.NewProblem(priced(t, q, j, groupcost.Options{}), lengths)
			if err != nil {
				t.Fatal(err)
			}
			d, attempts, _ := contest(t, p)
			if d, err = batch.Choose(p, d.Bound, attempts, batch.Evenkeel{}.Name()); err != nil {
				t.Fatal(err)
			}
			if err := d.Validate(); err != nil {
				t.Errorf("%s: %v", c.cluster, err)
			}
			docs = append(docs, d)
		}
		d, alone := docs[0], docs[1]
		if math.Abs(float64(d.Time/alone.Time-1)) > 1e-9 || math.Abs(float64(d.Bound/alone.Bound-1)) > 1e-9 {
			t.Errorf("%s: %v, no less than %v; without b60 %v, no less than %v", c.cluster, d.Time, d.Bound, alone.Time, alone.Bound)
		}
		if !slices.Equal(d.LeftOut, c.out) || d.Chosen().Nodes != c.nodes || !strings.Contains(d.Chosen().Why, "h100_sxm") || strings.Contains(d.Chosen().Why, "b60") {
			t.Errorf("%s: ranks %v left out, %d nodes, %q", c.cluster, d.LeftOut, d.Chosen().Nodes, d.Chosen().Why)
		}
	}
}
