package batch_test

import (
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/groupcost"
	"github.com/evenkeel/evenkeel/internal/reference"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/results/profiles"
	"github.com/evenkeel/evenkeel/solver/batch"
)

// lawJob is a step of so many sequences by the reference profiles' laws.
func lawJob(t testing.TB, cluster string, s units.Tokens, sequences int) (*costmodel.Predictor, costmodel.Job) {
	t.Helper()
	profile, job := reference.Job(t, reference.Llama(32), cluster, s)
	job.Accumulate = sequences
	return costmodel.NewPredictor(profile), job
}

// lawCosts are costs by these laws.
func lawCosts(t testing.TB, cluster string) *groupcost.Costs {
	t.Helper()
	q, j := lawJob(t, cluster, 1, 1)
	costs, err := groupcost.FromLaws(t.Context(), q, j, groupcost.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return costs
}

// publishedCosts are FlexSP's at 30 GB of each of so many GPUs.
func publishedCosts(t testing.TB, devices int) *groupcost.Costs {
	t.Helper()
	g, err := profiles.LookupGroupCost("flexsp-gpt-7b")
	if err != nil {
		t.Fatal(err)
	}
	c, err := g.Model.Costs(groupcost.Parameters{Devices: devices, PerNode: 8, Memory: 30 * units.GiB, Context: 384000})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Costs of either source make valid problems, whose plans can be placed, judged and
// checked: here one group of each class on its own.
func TestProblemsFromCosts(t *testing.T) {
	for name, c := range map[string]*groupcost.Costs{
		"published": publishedCosts(t, 64),
		"equal":     lawCosts(t, "2x8 h100_sxm"),
		"mixed":     lawCosts(t, "2x8 h100_sxm + 2x8 a100_sxm"),
		"in a node": lawCosts(t, "2x(4 h100_sxm + 4 a100_sxm)"),
	} {
		lengths := []units.Tokens{1000, 3000, 500}
		p, err := batch.NewProblem(c, lengths)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if err := p.Feasible(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for i := range p.Classes {
			groups := []batch.Group{{Class: i, Sequences: []int{0, 1, 2}}}
			if err := batch.Place(p, groups); err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			plan := &batch.Plan{Micro: []batch.MicroBatch{{Groups: groups}}}
			batch.Evaluate(p, plan)
			for _, err := range batch.Check(p, plan) {
				t.Errorf("%s, %s: %v", name, p.Classes[i].Name, err)
			}
			if plan.Time <= c.MicroBase+c.Fixed {
				t.Errorf("%s, %s: a step of %v", name, p.Classes[i].Name, plan.Time)
			}
		}
	}
}

// Pools hold the cluster's ranks, each once, in its order.
func TestPoolsFollowTheCluster(t *testing.T) {
	p, err := batch.NewProblem(lawCosts(t, "2x(4 h100_sxm + 4 a100_sxm)"), []units.Tokens{1000})
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Fleet) != 2 || p.Devices() != 16 {
		t.Fatalf("%+v", p.Fleet)
	}
	for i, pool := range p.Fleet {
		for n, node := range pool.Ranks {
			for k, r := range node {
				if want := 8*n + 4*i + k; r != want {
					t.Errorf("%s, node %d: rank %d, want %d", pool.Device, n, r, want)
				}
			}
		}
	}
}

// What a model cannot be trained on is refused with its place in the batch.
func TestSequencesBeyondTheModel(t *testing.T) {
	c := publishedCosts(t, 8)
	c.Longest = 2048
	if _, err := batch.NewProblem(c, []units.Tokens{2048, 2049}); err == nil || !strings.Contains(err.Error(), "lengths_tokens[1]: 2049") {
		t.Error(err)
	}
	if _, err := batch.NewProblem(c, []units.Tokens{2048}); err != nil {
		t.Error(err)
	}
}
