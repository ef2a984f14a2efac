package pipeline

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	costs "github.com/evenkeel/evenkeel/costmodel/pipeline"
	"github.com/evenkeel/evenkeel/internal/reference"
	"github.com/evenkeel/evenkeel/internal/units"
)

// shuffled is a cluster that lists its nodes, and the devices of each, in another order.
func shuffled(r *rand.Rand, c costmodel.Cluster) costmodel.Cluster {
	c.Nodes = slices.Clone(c.Nodes)
	r.Shuffle(len(c.Nodes), func(i, k int) { c.Nodes[i], c.Nodes[k] = c.Nodes[k], c.Nodes[i] })
	for i := range c.Nodes {
		d := slices.Clone(c.Nodes[i].Devices)
		r.Shuffle(len(d), func(i, k int) { d[i], d[k] = d[k], d[i] })
		c.Nodes[i].Devices = d
	}
	return c
}

// told is what a plan says that no order of nodes may change.
func told(t testing.TB, p *Problem) []string {
	t.Helper()
	d, err := Solve(context.Background(), p, "", func() units.Seconds { return 0 }, nil)
	if err != nil {
		t.Fatal(err)
	}
	if found := Check(p.Costs, &d.Plan); len(found) > 0 {
		t.Error(found)
	}
	if err := p.Room(&d.Plan); err != nil {
		t.Error(err)
	}
	all := []string{d.Strategy, fmt.Sprint(float64(d.Time), float64(d.Bound), d.Memory)}
	for _, c := range d.Compared {
		all = append(all, fmt.Sprint(c.Strategy, float64(c.Time), c.Verdict, c.Why))
	}
	for _, s := range d.Stages {
		kinds := map[string]int{}
		for _, r := range s.Ranks {
			kinds[p.Device(r)]++
		}
		all = append(all, fmt.Sprint(s.Layers, kinds))
	}
	return slices.Concat(all, d.Notes, p.Warnings())
}

// The order of a cluster's nodes, and of the devices in them, changes no plan and no note: by it
// the devices of the first stages were chosen, and those that are left over.
func TestOrderOfNodesChangesNothing(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 30))
	for i, cluster := range []string{
		"1x1 h100_sxm + 1x4 a100_sxm + 1x2 h100_sxm",
		"1x2 a100_sxm + 2x2 h100_sxm + 1x1 h200_sxm",
		"1x4 a100_sxm + 1x4 b200_sxm + 1x2 h100_sxm",
		"2x2 a100_sxm + 2x2 h100_sxm",
	} {
		profile, job := reference.Job(t, reference.Llama(8), cluster, 1)
		if i == 3 { // nodes of both types, and some that share their cards
			nodes := job.Cluster.Nodes
			nodes[1].Devices = []op.Member{nodes[0].Devices[0], nodes[2].Devices[0]}
			nodes[3].Devices = slices.Clone(nodes[1].Devices)
			nodes[1].NICs, nodes[2].NICs = 1, 1
		}
		lengths := drawnLengths(r, 12)
		var want []string
		for again := range 3 {
			now := job
			if again > 0 {
				now.Cluster = shuffled(r, job.Cluster)
			}
			c, err := costs.FromLaws(costmodel.NewPredictor(profile), now, lengths)
			if err != nil {
				t.Fatal(err)
			}
			got := told(t, &Problem{Costs: c, MIPTime: time.Millisecond, Effort: 0.05})
			if want == nil {
				want = got
			} else if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s as %s: (-want +got)\n%s", job.Cluster, now.Cluster, diff)
			}
		}
	}
}
