package solver

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/internal/world"
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

// considered is what a plan tells of a strategy.
type considered struct {
	Strategy string
	Time     units.Seconds
	Why      string
}

func told(plan *Plan) (all []considered) {
	for _, c := range plan.Compared {
		all = append(all, considered{c.Strategy, c.Time.Mid, c.Why})
	}
	return all
}

// A cluster is a set of nodes: who lists them otherwise gets the same plan, by his numbers of
// ranks, from every strategy and of shares that somebody asked for.
func TestOrderOfNodesChangesNothing(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 29))
	problems := []*Problem{gpuProblem(t, "1x3 a100_sxm + 1x2 h100_sxm + 1x1 a100_sxm + 2x2 h100_sxm", 20_000)}
	for range 6 {
		problems = append(problems, randomWorld(t, r))
	}
	for _, p := range problems {
		plan := solvePlan(t, p)
		for range 2 {
			job := p.Job
			job.Cluster = shuffled(r, job.Cluster)
			other := solvePlan(t, problemOf(t, p.Profile, job))
			if diff := cmp.Diff(told(plan), told(other)); diff != "" {
				t.Errorf("%s as %s: (-want +got)\n%s", p.Job.Cluster, job.Cluster, diff)
			}
			if plan.Bound != other.Bound || plan.Strategy != other.Strategy || plan.Step.Time != other.Step.Time {
				t.Errorf("%s: %s takes %v; as %s: %s takes %v", p.Job.Cluster, plan.Strategy, plan.Step.Time, job.Cluster, other.Strategy, other.Step.Time)
			}
			if err := Check(other, p.Profile); err != nil {
				t.Errorf("%s: %v", job.Cluster, err)
			}
		}
	}
}

// What link classes are called changes nothing: of nodes that differ by them alone the one with
// the faster link comes first.
func TestNamesOfLinksChangeNothing(t *testing.T) {
	var plans []*Plan
	for _, name := range []string{"a", "zz"} {
		profile := world.Profile([]world.Device{world.Fast(), world.Slow()}, []world.Wire{world.Near(), world.Far(), world.Link(name, 1e-5, 1e-9)})
		job := world.Job(t, "2x4 fast", 1<<14)
		job.Cluster.Nodes[0].Link = name
		p := problemOf(t, profile, job)
		o, err := p.inOrder()
		if err != nil {
			t.Fatal(err)
		}
		if got := o.Job.Cluster.Nodes[0].Link; got != "near" {
			t.Errorf("%s, the slower link, comes first", got)
		}
		plans = append(plans, solvePlan(t, p))
	}
	if diff := cmp.Diff(told(plans[0]), told(plans[1])); diff != "" {
		t.Errorf("with another name: (-want +got)\n%s", diff)
	}
}

// What device types are called changes nothing, not where two are equally fast and differ by
// their memory alone, as A100 of 40 and of 80 GB do: that with more memory comes first.
func TestNamesOfEquallyFastDevicesChangeNothing(t *testing.T) {
	type part struct{ large, small int } // devices of a node
	for _, nodes := range [][]part{{{1, 2}, {3, 1}, {2, 3}}, {{2, 1}, {2, 1}}, {{1, 3}, {2, 0}}} {
		var plans []*Plan
		for _, names := range [][2]string{{"a", "z"}, {"z", "a"}} {
			large, small := world.Fast(), world.Fast()
			large.Name, small.Name = names[0], names[1]
			profile := world.Profile([]world.Device{large, small}, []world.Wire{world.Near(), world.Far()})
			job := world.Job(t, "1x1 "+large.Name, 1<<15)
			job.Cluster.Nodes, job.Cluster.Network = nil, "far"
			for i, n := range nodes {
				node := costmodel.Node{Name: fmt.Sprint("n", i), Link: "near", Devices: []op.Member{{Device: large.Name, Count: n.large}}}
				if n.small > 0 {
					node.Devices = append(node.Devices, op.Member{Device: small.Name, Count: n.small})
				}
				job.Cluster.Nodes = append(job.Cluster.Nodes, node)
			}
			need := problemOf(t, profile, job).posed
			peak := need.Sim.Memory(need.EqualRing())[0].Peak()
			for i := range profile.Devices {
				profile.Devices[i].Memory = peak * 3 / 2
				if profile.Devices[i].Name == small.Name {
					profile.Devices[i].Memory = peak * 17 / 20
				}
			}
			p := problemOf(t, profile, job)
			o, err := p.inOrder()
			if err != nil {
				t.Fatal(err)
			}
			for _, n := range o.Job.Cluster.Nodes {
				if n.Devices[0].Device != large.Name {
					t.Errorf("%s: the devices with less memory come first in %v", job.Cluster, n.Devices)
				}
			}
			plans = append(plans, solvePlan(t, p))
		}
		for i, c := range plans[0].Compared {
			if other := plans[1].Compared[i]; c.Time != other.Time {
				t.Errorf("%v, %s: %v, and with names exchanged %v", nodes, c.Strategy, c.Time.Mid, other.Time.Mid)
			}
		}
	}
}

func TestSharesAreOfRanksAsListed(t *testing.T) {
	p := gpuProblem(t, "1x1 a100_sxm + 1x2 h100_sxm", 8192)
	plan, err := SolveGiven(context.Background(), p, Given{Shares: []int{1, 2, 5}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for r, want := range []units.Tokens{1024, 2048, 5120} {
		if got := plan.Ranks[r]; got.Tokens != want || got.Device != p.posed.Ranks[r].Device {
			t.Errorf("rank %d: %d tokens on %s, want %d on %s", r, got.Tokens, got.Device, want, p.posed.Ranks[r].Device)
		}
	}
	if err := Check(plan, p.Profile); err != nil {
		t.Error(err)
	}
}

// What does not fit is said of a rank as the cluster lists it.
func TestRanksThatAreFullAreNamedAsListed(t *testing.T) {
	p := gpuProblem(t, "1x2 a100_sxm + 1x1 h100_sxm", 8192)
	in, err := p.inOrder()
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(in.listed, []int{2, 0, 1}) {
		t.Fatalf("the order is %v, want the H100 first", in.listed)
	}
	profile := *p.Profile
	profile.Devices = slices.Clone(profile.Devices)
	for i := range profile.Devices {
		profile.Devices[i].Memory = p.posed.Sim.Memory(p.posed.EqualRing())[0].Peak() * 11 / 10
	}
	q := problemOf(t, &profile, p.Job)
	_, err = SolveGiven(context.Background(), q, Given{Shares: []int{1, 1, 9}}, nil)
	var none *InfeasibleError
	if !errors.As(err, &none) {
		t.Fatalf("%v, want that it does not fit", err)
	}
	if want := p.posed.Place(2) + " would need"; !strings.Contains(none.Error(), want) {
		t.Errorf("%v, want %s", none, want)
	}
}
