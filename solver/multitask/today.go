package multitask

import (
	"context"
	"fmt"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel/multitask"
	"github.com/evenkeel/evenkeel/internal/units"
)

// Sequential runs one module after another, each on as many of all devices as make it
// fastest, as Megatron-LM and DeepSpeed train tasks in turn.
type Sequential struct{}

// Name implements Strategy.
func (Sequential) Name() string { return "sequential" }

// Claims implements Strategy.
func (Sequential) Claims() Claims {
	return Claims{Baseline: true, Doc: "one module after another on all devices (Megatron-LM, DeepSpeed)"}
}

// Solve implements Strategy.
func (Sequential) Solve(_ context.Context, p *Problem) (*multitask.Plan, error) {
	return p.fastestWay((*Problem).sequential)
}

func (p *Problem) sequential() (*multitask.Plan, error) {
	plan, f := &multitask.Plan{}, newFree(p)
	for _, m := range p.Tasks.Order() {
		f.reset()
		plan.Runs = append(plan.Runs, p.whole(f, m, fastest(p.equal()[m]).n))
	}
	return plan, p.Simulate(plan)
}

// whole is a run of all layers of a module on n free devices, which it occupies.
func (p *Problem) whole(f *free, module, n int) multitask.Run {
	ranks := f.take(nil, f.any(n), nil)
	return multitask.Run{Module: module, Layers: p.Tasks.Modules[module].Layers, Ranks: ranks, Samples: p.EqualShares(module, len(ranks))}
}

// TowersSideBySide runs one task after another, and the modules of a task that do not need
// each other side by side, as DistMM does with the encoders of one task.
type TowersSideBySide struct{}

// Name implements Strategy.
func (TowersSideBySide) Name() string { return "distmm-mt" }

// Claims implements Strategy.
func (TowersSideBySide) Claims() Claims {
	return Claims{Baseline: true, Doc: "one task after another, the modules of each side by side (DistMM-MT)"}
}

// Solve implements Strategy.
func (TowersSideBySide) Solve(_ context.Context, p *Problem) (*multitask.Plan, error) {
	return p.fastestWay((*Problem).towersSideBySide)
}

func (p *Problem) towersSideBySide() (*multitask.Plan, error) {
	plan, f := &multitask.Plan{Waves: true}, newFree(p)
	wave := 0
	for _, group := range p.byLevelAndTask() {
		for len(group) > 0 {
			now := group[:min(len(group), p.Devices())]
			group = group[len(now):]
			f.reset()
			for i, n := range p.evenly(now) {
				run := p.whole(f, now[i], n)
				run.Wave = wave
				plan.Runs = append(plan.Runs, run)
			}
			wave++
		}
	}
	return plan, p.Simulate(plan)
}

// byLevelAndTask groups the modules of one level and task, in an order that needs allow.
func (p *Problem) byLevelAndTask() [][]int {
	var all [][]int
	for _, level := range levels(p.Costs) {
		for _, task := range p.tasks() {
			var group []int
			for _, m := range level {
				if p.Tasks.Modules[m].Task == task {
					group = append(group, m)
				}
			}
			if len(group) > 0 {
				all = append(all, group)
			}
		}
	}
	return all
}

// tasks are the names of the tasks, in the order of their first modules.
func (p *Problem) tasks() []string {
	var all []string
	for _, m := range p.Tasks.Modules {
		if !slices.Contains(all, m.Task) {
			all = append(all, m.Task)
		}
	}
	return all
}

// evenly spreads the devices over modules, no more than there are devices: who would end last
// gets the next number of devices that may be, until too few are left.
func (p *Problem) evenly(modules []int) []int {
	n, left := make([]int, len(modules)), p.Devices()-len(modules)
	for i := range n {
		n[i] = 1
	}
	for {
		last := -1
		for i := range modules {
			if last < 0 || p.alone(modules[i], n[i]) > p.alone(modules[last], n[last]) {
				last = i
			}
		}
		all := p.equal()[modules[last]]
		k := next(all, n[last])
		if k < 0 || all[k].n-n[last] > left {
			return n
		}
		left -= all[k].n - n[last]
		n[last] = all[k].n
	}
}

// alone is the seconds of all layers of a module on n devices.
func (p *Problem) alone(module, n int) units.Seconds {
	return units.Seconds(p.Tasks.Modules[module].Layers) * timeAt(p.equal()[module], n)
}

// TasksSideBySide gives every task devices of its own for the whole step, on which its
// modules run one after another: whoever gains most by more devices gets them (Optimus, as
// Spindle compares itself with it).
type TasksSideBySide struct{}

// Name implements Strategy.
func (TasksSideBySide) Name() string { return "spindle-optimus" }

// Claims implements Strategy.
func (TasksSideBySide) Claims() Claims {
	return Claims{Baseline: true, Doc: "every task on devices of its own, shared out by marginal gain (Optimus)"}
}

// Solve implements Strategy.
func (TasksSideBySide) Solve(_ context.Context, p *Problem) (*multitask.Plan, error) {
	return p.fastestWay((*Problem).tasksSideBySide)
}

func (p *Problem) tasksSideBySide() (*multitask.Plan, error) {
	tasks := p.tasks()
	if len(tasks) > p.Devices() {
		return nil, &IllegalError{Why: fmt.Sprintf("%d tasks have no devices of their own among %d", len(tasks), p.Devices())}
	}
	of := make([][]int, len(tasks))
	for _, m := range p.Tasks.Order() {
		t := slices.Index(tasks, p.Tasks.Modules[m].Task)
		of[t] = append(of[t], m)
	}
	n := p.marginal(of)
	ranks, f := make([][]int, len(tasks)), newFree(p)
	for t := range tasks {
		ranks[t] = f.take(nil, f.any(n[t]), nil)
	}
	plan := &multitask.Plan{}
	for _, m := range p.Tasks.Order() {
		t := slices.Index(tasks, p.Tasks.Modules[m].Task)
		k := p.within(m, n[t])
		plan.Runs = append(plan.Runs, multitask.Run{Module: m, Layers: p.Tasks.Modules[m].Layers, Ranks: ranks[t][:k], Samples: p.EqualShares(m, k)})
	}
	return plan, p.Simulate(plan)
}

// within is the fastest number of devices that a module may have of n.
func (p *Problem) within(module, n int) int {
	best := 1
	for _, w := range p.equal()[module] {
		if w.n <= n {
			best = w.n
		}
	}
	return best
}

// marginal shares the devices out over tasks, each one first: the next step goes to the
// task that gains most by it, a device.
func (p *Problem) marginal(of [][]int) []int {
	n, left := make([]int, len(of)), p.Devices()-len(of)
	for t := range n {
		n[t] = 1
	}
	took := func(t, n int) (sum units.Seconds) {
		for _, m := range of[t] {
			sum += p.alone(m, p.within(m, n))
		}
		return sum
	}
	for {
		best, to, most := -1, 0, 0.0
		for t := range of {
			more := p.nextFor(of[t], n[t])
			if more < 0 || more-n[t] > left {
				continue
			}
			if gain := float64(took(t, n[t])-took(t, more)) / float64(more-n[t]); best < 0 || gain > most {
				best, to, most = t, more, gain
			}
		}
		if best < 0 {
			return n
		}
		left -= to - n[best]
		n[best] = to
	}
}

// nextFor is the least number of devices above n with which some module of a task is
// faster; -1 if there is none.
func (p *Problem) nextFor(modules []int, n int) int {
	least := -1
	for _, m := range modules {
		if k := next(p.equal()[m], n); k >= 0 && (least < 0 || p.equal()[m][k].n < least) {
			least = p.equal()[m][k].n
		}
	}
	return least
}
