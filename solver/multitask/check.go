package multitask

import (
	"fmt"
	"math"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel/multitask"
	"github.com/evenkeel/evenkeel/internal/units"
)

// Check verifies a plan against what its modules take, and returns all violations, up to a
// hundred. The rules are: every layer of every module is run once, in order, on ranks that
// exist, which share the batch among them; a rank runs one thing at a time; a module begins
// when those that it needs have ended and their results are there; waves do not overlap;
// runs take what the prices say, and the plan as long as its last run. It shares no code
// with any strategy or with the simulator.
func Check(c *multitask.Costs, plan *multitask.Plan) []error {
	found := rules(c.Tasks, c.Devices(), plan)
	if len(found) > 0 {
		return found
	}
	found = order(c.Tasks, c.Devices(), plan)
	before := map[int]*multitask.Run{}
	for i := range plan.Runs {
		r := &plan.Runs[i]
		took := float64(r.End - r.Start)
		if want := float64(r.Layers) * float64(c.Layer(r.Module, r.Ranks, r.Samples)); math.Abs(took-want) > roundingOff*float64(plan.Time) {
			found = violation(found, "runs[%d]: takes %v: %d layers of %s on its ranks take %v", i, units.Seconds(took), r.Layers, c.Tasks.Modules[r.Module].Name, units.Seconds(want))
		}
		arrived := func(of int, from *multitask.Run, last bool) {
			if there := from.End + c.Move(of, from, r, last); float64(r.Start) < float64(there)-roundingOff*float64(plan.Time) {
				found = violation(found, "runs[%d].start_s: %v: what it needs of %s is there at %v", i, r.Start, c.Tasks.Modules[of].Name, there)
			}
		}
		if b := before[r.Module]; b != nil {
			arrived(r.Module, b, false)
		} else {
			for _, need := range c.Needs[r.Module] {
				arrived(need, before[need], true)
			}
		}
		before[r.Module] = r
	}
	return found
}

// roundingOff is by what share of a plan's time its times may be off.
const roundingOff = 1e-9

const mostViolations = 100

func violation(found []error, format string, args ...any) []error {
	if len(found) < mostViolations {
		found = append(found, fmt.Errorf(format, args...))
	}
	return found
}

// rules says what of a plan's runs cannot be, whatever they take.
func rules(t *multitask.Tasks, devices int, plan *multitask.Plan) (found []error) {
	layers, needs := map[int]int{}, t.Needs()
	for i, r := range plan.Runs {
		if r.Module < 0 || r.Module >= len(t.Modules) {
			return violation(found, "runs[%d].module: %d: there are %d modules", i, r.Module, len(t.Modules))
		}
		m := t.Modules[r.Module]
		if r.Layers < 1 || r.Layers > m.Layers { // so that no sum wraps around to what is right
			found = violation(found, "runs[%d].layers: %d: want 1 to %d, as %s has", i, r.Layers, m.Layers, m.Name)
		}
		for _, need := range needs[r.Module] {
			if layers[need] < t.Modules[need].Layers {
				found = violation(found, "runs[%d].module: %s is listed before the last layers of %s, which it needs", i, m.Name, t.Modules[need].Name)
			}
		}
		layers[r.Module] += r.Layers
		total, last := 0, -1
		for _, rank := range r.Ranks {
			if rank <= last || rank >= devices {
				found = violation(found, "runs[%d].ranks: %d after %d: want rising ranks of 0 to %d", i, rank, last, devices-1)
			}
			last = rank
		}
		for _, n := range r.Samples {
			if n < 1 || n > m.Batch {
				found = violation(found, "runs[%d].samples: %d: want 1 to batch_samples of %s, %d, for each rank", i, n, m.Name, m.Batch)
			}
			total += n
		}
		if len(r.Samples) != len(r.Ranks) || total != m.Batch {
			found = violation(found, "runs[%d].samples: %d on %d of %d ranks: want a share for each, together batch_samples of %s, %d", i, total, len(r.Samples), len(r.Ranks), m.Name, m.Batch)
		}
	}
	for m, x := range t.Modules {
		if layers[m] != x.Layers {
			found = violation(found, "runs: %d layers of %s: it has %d", layers[m], x.Name, x.Layers)
		}
	}
	return found
}

// order says which runs of a plan, as far as rules holds, overlap or come too soon by the
// times that it states.
func order(t *multitask.Tasks, devices int, plan *multitask.Plan) (found []error) {
	if !(plan.Time >= 0) || math.IsInf(float64(plan.Time), 1) { // by whose like no time is wrong
		return violation(found, "step_s: %v: want a time of 0 or more", plan.Time)
	}
	slack := units.Seconds(roundingOff) * plan.Time
	busy := make([][]int, devices)
	ends, begins := map[int]units.Seconds{}, map[int]units.Seconds{}
	last := units.Seconds(0)
	for i, r := range plan.Runs {
		if !(r.Start >= 0 && r.End >= r.Start) || math.IsInf(float64(r.End), 1) {
			return violation(found, "runs[%d].end_s: %v after start_s %v: want times in that order, none below 0", i, r.End, r.Start)
		}
		for _, rank := range r.Ranks {
			busy[rank] = append(busy[rank], i)
		}
		if end, known := ends[r.Module]; known && r.Start < end-slack {
			found = violation(found, "runs[%d].start_s: %v: the layers of %s before end at %v", i, r.Start, t.Modules[r.Module].Name, end)
		}
		if _, known := begins[r.Module]; !known {
			begins[r.Module] = r.Start
		}
		ends[r.Module] = max(ends[r.Module], r.End)
		last = max(last, r.End)
	}
	for rank, runs := range busy {
		slices.SortStableFunc(runs, func(a, b int) int {
			return compareTimes(plan.Runs[a].Start, plan.Runs[b].Start)
		})
		for k := 1; k < len(runs); k++ {
			if a, b := plan.Runs[runs[k-1]], plan.Runs[runs[k]]; b.Start < a.End-slack {
				found = violation(found, "runs[%d].start_s: %v: rank %d is busy with runs[%d] until %v", runs[k], b.Start, rank, runs[k-1], a.End)
			}
		}
	}
	for m, needs := range t.Needs() {
		for _, need := range needs {
			if begins[m] < ends[need]-slack {
				found = violation(found, "runs: %s begins at %v, and needs %s, which ends at %v", t.Modules[m].Name, begins[m], t.Modules[need].Name, ends[need])
			}
		}
	}
	if d := plan.Time - last; d > slack || d < -slack {
		found = violation(found, "step_s: %v: the last run ends at %v", plan.Time, last)
	}
	return waved(found, plan, slack)
}

// waved adds which runs of a plan in waves begin before all of the wave before have ended.
func waved(found []error, plan *multitask.Plan, slack units.Seconds) []error {
	ends, wave := map[int]units.Seconds{}, 0
	for i, r := range plan.Runs {
		switch {
		case r.Wave != wave && r.Wave != wave+1:
			found = violation(found, "runs[%d].wave: %d after %d: want the same or the next", i, r.Wave, wave)
		case r.Wave < 0 || r.Wave > 0 && !plan.Waves:
			found = violation(found, "runs[%d].wave: %d: want 0, or more in a plan with waves", i, r.Wave)
		case r.Start < ends[r.Wave-1]-slack:
			found = violation(found, "runs[%d].start_s: %v: the wave before it ends at %v", i, r.Start, ends[r.Wave-1])
		}
		wave = r.Wave
		ends[wave] = max(ends[wave], r.End)
	}
	return found
}

func compareTimes(a, b units.Seconds) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}
