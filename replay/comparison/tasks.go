package comparison

import (
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/multitask"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/replay"
)

// tasked is the work of all runs of tasks.
type tasked struct {
	costs *multitask.Costs // by ranks of the run, in whose order these have samples
	of    *replay.TasksRun
}

// tasks are the one part of a plan of tasks.
func (c *making) tasks(plan int) (*part, error) {
	x := &c.rec.Header.Plans[plan]
	place, err := c.place(x)
	if err != nil {
		return nil, err
	}
	run := x.Tasks
	costs, err := multitask.FromLaws(c.predictor, &multitask.Tasks{Modules: run.Modules}, place.cluster, run.Options)
	if err != nil {
		return nil, err
	}
	return newPart(&tasked{costs.Seated(place.at), run})
}

func (k *tasked) supposing(took func(costmodel.ReplayKey) units.Seconds) (*costmodel.Replayed, error) {
	if took == nil {
		return k.costs.Replayed(&k.of.Plan, nil)
	}
	return k.costs.Replayed(&k.of.Plan, func(key costmodel.ReplayKey) (units.Seconds, bool) {
		t := took(key)
		return t, t >= 0
	})
}

func (k *tasked) members() []int {
	var all []int
	for _, x := range k.of.Runs {
		all = append(all, x.Ranks...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func (k *tasked) rings(int, int) int { return 1 }

func (k *tasked) flops() map[int]int64 {
	all, passes := map[int]int64{}, int64(flopsForward+flopsBackward)
	if k.of.Recompute == costmodel.RecomputeFull {
		passes += flopsForward
	}
	for _, x := range k.of.Runs {
		m := &k.of.Modules[x.Module]
		n := int64(m.Shape.SeqLen)
		pairs := n * n
		if m.Shape.Causal {
			pairs = n * (n + 1) / 2
		}
		model := m.Model()
		sample := passes * pairs * int64(x.Layers*model.QHeads*model.HeadDim)
		for i, rank := range x.Ranks {
			all[rank] += sample * int64(x.Samples[i])
		}
	}
	return all
}

// runsOf are the modules of the runs of tasks, by name; nil of other plans.
func runsOf(x *replay.PlanRun) (all []string) {
	if x.Tasks == nil {
		return nil
	}
	for _, r := range x.Tasks.Runs {
		all = append(all, x.Tasks.Modules[r.Module].Name)
	}
	return all
}

// tasksTalk says whether ranks of tasks exchange any bytes.
func tasksTalk(x *replay.TasksRun) bool {
	wide := slices.ContainsFunc(x.Runs, func(r multitask.Run) bool { return len(r.Ranks) > 1 })
	return wide || len(x.Messages(&multitask.Tasks{Modules: x.Modules})) > 0
}

// sideBySide says whether runs of tasks are on different ranks.
func sideBySide(x *replay.TasksRun) bool {
	return slices.ContainsFunc(x.Runs, func(r multitask.Run) bool {
		return !slices.Equal(r.Ranks, x.Runs[0].Ranks)
	})
}
