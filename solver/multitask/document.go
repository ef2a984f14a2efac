package multitask

import (
	"fmt"
	"math"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel/multitask"
	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/recommend"
)

// Schema is the schema of the plans this version writes.
const Schema = "evenkeel.taskplan/v1"

// Document is a plan of tasks together with the problem and the other strategies' times.
// It does not contain the prices, which follow from the inputs that the header names by
// hash.
type Document struct {
	doc.Header
	Name   string `json:"name"`
	Prices string `json:"prices"` // where they come from, for the user
	// Simulated is true if the prices' laws were made on a simulated backend.
	Simulated bool               `json:"simulated,omitzero"`
	Modules   []multitask.Module `json:"modules"`
	// Options are empty of modules with curves.
	multitask.Options
	Devices  []PoolEntry `json:"devices"`
	Strategy string      `json:"strategy"` // whose plan it is
	// Taken is true if the user named the strategy and another one would be recommended.
	Taken bool `json:"taken,omitzero"`
	multitask.Plan
	Bound    units.Seconds         `json:"lower_bound_s"` // of every plan's time
	Gap      float64               `json:"gap"`           // step time / lower bound - 1
	Memory   []multitask.Memory    `json:"memory"`        // by rank
	Compared []recommend.Candidate `json:"considered"`    // all strategies, this one included
	Notes    []string              `json:"notes"`         // what the model leaves out, for the user
}

// PoolEntry is the devices of one type in a document.
type PoolEntry struct {
	Device string  `json:"device"`
	Ranks  [][]int `json:"ranks"` // by node
}

// Head implements doc.Document.
func (d *Document) Head() *doc.Header { return &d.Header }

// SchemaName implements doc.Document.
func (*Document) SchemaName() string { return Schema }

// Validate implements doc.Document: all that can be checked without prices.
func (d *Document) Validate() error {
	tasks := multitask.Tasks{Modules: d.Modules}
	if err := tasks.Validate(); err != nil {
		return err
	}
	ranks, err := d.ranks()
	if err != nil {
		return err
	}
	if found := rules(&tasks, ranks, &d.Plan); len(found) > 0 {
		return found[0]
	}
	if found := order(&tasks, ranks, &d.Plan); len(found) > 0 {
		return found[0]
	}
	if d.Options != (multitask.Options{}) {
		if err := d.Options.Validate(); err != nil {
			return err
		}
	}
	switch {
	case len(d.Memory) != ranks:
		return fmt.Errorf("memory: of %d ranks: the devices are %d", len(d.Memory), ranks)
	case !(d.Bound >= 0) || math.IsInf(float64(d.Bound), 1) || recommend.Beaten(d.Bound, d.Time):
		return fmt.Errorf("lower_bound_s: %v: want a time of at most step_s, %v", d.Bound, d.Time)
	}
	if want := recommend.Gap(d.Time, d.Bound); !recommend.Agree(d.Gap, want) {
		return fmt.Errorf("gap: %v: step_s over lower_bound_s - 1 is %v", d.Gap, want)
	}
	for r, m := range d.Memory {
		if m.States < 0 || m.Activations < 0 || m.Capacity < 0 {
			return fmt.Errorf("memory[%d]: want bytes of 0 or more", r)
		}
		if m.Capacity > 0 && m.Peak() > m.Capacity {
			return fmt.Errorf("memory[%d]: %v: want at most what plans may fill, %v", r, m.Peak(), m.Capacity)
		}
	}
	t := recommend.Table{Strategy: d.Strategy, Time: d.Time, Bound: d.Bound, Taken: d.Taken}
	for i := range d.Compared {
		t.Candidates = append(t.Candidates, &d.Compared[i])
	}
	return t.Validate()
}

// ranks is the number of devices. Every rank is in one pool.
func (d *Document) ranks() (int, error) {
	var all []int
	for i, p := range d.Devices {
		if p.Device == "" {
			return 0, fmt.Errorf("devices[%d].device: empty", i)
		}
		for _, node := range p.Ranks {
			all = append(all, node...)
		}
	}
	slices.Sort(all)
	for i, r := range all {
		if r != i {
			return 0, fmt.Errorf("devices: ranks are not 0 to %d, each once", len(all)-1)
		}
	}
	if len(all) == 0 {
		return 0, fmt.Errorf("devices: none")
	}
	return len(all), nil
}

// Types are the device types that the plan is on.
func (d *Document) Types() (all []string) {
	on := map[int]bool{}
	for _, x := range d.Runs {
		for _, r := range x.Ranks {
			on[r] = true
		}
	}
	for _, p := range d.Devices {
		if slices.ContainsFunc(slices.Concat(p.Ranks...), func(r int) bool { return on[r] }) {
			all = append(all, p.Device)
		}
	}
	return all
}

// Chosen is the candidate whose plan the document holds; nil if Compared does not list it.
func (d *Document) Chosen() *recommend.Candidate { return recommend.ChosenOf(d.Compared) }

// Baseline is the fastest of the baselines' candidates; nil if no baseline has a plan.
func (d *Document) Baseline() *recommend.Candidate { return recommend.BaselineOf(d.Compared) }
