package batch

import (
	"errors"
	"fmt"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/workload"
	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/recommend"
)

// Schema is the schema of the batch plans this version writes.
const Schema = "evenkeel.batchplan/v1"

// Document is a plan of one global batch together with the problem and the other
// strategies' times. It does not contain the prices, which follow from the inputs that the
// header names by hash.
type Document struct {
	doc.Header
	Costs   string `json:"costs"` // where the prices come from, for the user
	Assumed bool   `json:"assumed,omitzero"`
	// Zero is what of the model's states is sharded over all ranks but those left out, and
	// OverlapZero says that it is exchanged beside layers; none of a published cost model, and of
	// plans from before they held it.
	Zero        costmodel.ZeRO `json:"zero,omitzero"`
	OverlapZero bool           `json:"overlap_zero,omitzero"`
	// Simulated is true if the prices' laws were made on a simulated backend.
	Simulated bool           `json:"simulated,omitzero"`
	Lengths   []units.Tokens `json:"lengths_tokens"` // of the sequences
	// Rows are the places of the sequences in what they are from, an input or a distribution,
	// counted from 0; none where they are its first ones.
	Rows  []int       `json:"lengths_rows,omitempty"`
	Fleet []PoolEntry `json:"fleet"`
	// LeftOut are the ranks of nodes, or of some device types of nodes, that the others train
	// without: they hold nothing of the model's states and take no part in their exchange. Other
	// ranks without work do.
	LeftOut  []int        `json:"left_out_ranks,omitempty"`
	Classes  []ClassEntry `json:"classes"`  // that the plan uses
	Strategy string       `json:"strategy"` // whose plan it is
	// Taken is true if the user named the strategy and another one would be recommended:
	// a faster one, or the baseline where the gain over it is within the prices' error.
	Taken bool `json:"taken,omitzero"`
	Plan
	Bound    units.Seconds `json:"lower_bound_s"` // of every plan's time
	Gap      float64       `json:"gap"`           // step time / lower bound - 1
	Compared []Candidate   `json:"considered"`    // all strategies, this one included
	Notes    []string      `json:"notes"`         // what the model leaves out, for the user
}

// Types are the device types that the plan is on: all but those that are left out, for who does
// not train keeps states all the same.
func (d *Document) Types() (all []string) {
	for _, p := range d.Fleet {
		if slices.ContainsFunc(slices.Concat(p.Ranks...), func(r int) bool { return !slices.Contains(d.LeftOut, r) }) {
			all = append(all, p.Device)
		}
	}
	return all
}

// PoolEntry is a Pool in a document.
type PoolEntry struct {
	Device string  `json:"device"`
	Ranks  [][]int `json:"ranks"` // by node
}

// ClassEntry is a Class in a document; groupcost.Class describes its fields.
type ClassEntry struct {
	Name   string        `json:"name"`
	Uses   []int         `json:"devices"` // by pool
	One    bool          `json:"one_node,omitzero"`
	Base   units.Seconds `json:"base_s"`
	Cap    units.Tokens  `json:"cap_tokens"`
	Shares []float64     `json:"shares,omitempty"`
	Heads  int           `json:"head_ranks,omitzero"`
	QHeads []int         `json:"q_heads,omitempty"`
	// Groups are the all-to-all groups in ring order. Their ranks are indices into the
	// ranks of a group of the class.
	Groups []costmodel.Group `json:"groups,omitempty"`
	costmodel.Schedule
	Recompute bool `json:"recompute,omitzero"`
}

// Candidate is a strategy's result in a document.
type Candidate struct {
	recommend.Candidate
	Micro int `json:"micro_batches,omitzero"` // how many
	Nodes int `json:"nodes,omitzero"`         // that its plan is of; 0 is all
}

// Verdict says how a candidate compares with the chosen plan.
type Verdict = recommend.Verdict

// The verdicts.
const (
	Chosen   = recommend.Chosen
	Tie      = recommend.Tie
	Equal    = recommend.Equal
	Slower   = recommend.Slower
	NotLegal = recommend.NotLegal
	Late     = recommend.Late
)

// Head implements doc.Document.
func (d *Document) Head() *doc.Header { return &d.Header }

// SchemaName implements doc.Document.
func (*Document) SchemaName() string { return Schema }

// Validate implements doc.Document: all that can be checked without prices.
func (d *Document) Validate() error {
	p := d.problem()
	if err := p.Validate(); err != nil {
		return err
	}
	if err := workload.CheckRows(d.Rows, len(d.Lengths)); err != nil {
		return err
	}
	switch d.Zero {
	case "", costmodel.Zero0, costmodel.Zero1, costmodel.Zero2, costmodel.Zero3:
	default:
		return fmt.Errorf("zero: %q: want zero0, zero1, zero2 or zero3", string(d.Zero))
	}
	free := *p
	free.Costs = stated{d}
	plan := d.Plan
	// Times are checked by whoever has the prices; here they are taken as stated.
	found := slices.DeleteFunc(Check(&free, &plan), func(err error) bool { return errors.Is(err, errTime) })
	if len(found) > 0 {
		return found[0]
	}
	if err := d.heads(); err != nil {
		return err
	}
	if err := d.leftOut(); err != nil {
		return err
	}
	if err := d.times(); err != nil {
		return err
	}
	if !valid(d.Time) || !valid(d.Bound) || recommend.Beaten(d.Bound, d.Time) {
		return fmt.Errorf("lower_bound_s: %v: want a time of at most step_s, %v", d.Bound, d.Time)
	}
	if want := recommend.Gap(d.Time, d.Bound); !recommend.Agree(d.Gap, want) {
		return fmt.Errorf("gap: %v: step_s over lower_bound_s - 1 is %v", d.Gap, want)
	}
	return d.compared()
}

// compared says which of the candidates contradicts the others, the plan or the fleet. A
// document need not have any.
func (d *Document) compared() error {
	nodes := 0
	for _, pool := range d.Fleet {
		nodes += len(pool.Ranks)
	}
	for i, c := range d.Compared {
		switch {
		case c.Micro < 0 || c.Verdict == Chosen && c.Micro > 0 && c.Micro != len(d.Micro):
			return fmt.Errorf("considered[%d].micro_batches: %d: the plan has %d", i, c.Micro, len(d.Micro))
		case c.Nodes < 0 || c.Nodes > nodes:
			return fmt.Errorf("considered[%d].nodes: %d: the fleet has %d", i, c.Nodes, nodes)
		}
	}
	t := recommend.Table{Strategy: d.Strategy, Time: d.Time, Bound: d.Bound, Taken: d.Taken}
	for i := range d.Compared {
		t.Candidates = append(t.Candidates, &d.Compared[i].Candidate)
	}
	return t.Validate()
}

// leftOut says which of the ranks that are left out cannot be: they are all those of some nodes, or
// of a type there, none has work, and the chosen plan is of as many nodes as are left. A node of
// several types is one of several pools, and which of these it is in the fleet does not say: there
// are as many nodes as the pool has that has most of them, or more.
func (d *Document) leftOut() error {
	out := map[int]bool{}
	for i, r := range d.LeftOut {
		if i > 0 && r <= d.LeftOut[i-1] {
			return fmt.Errorf("left_out_ranks[%d]: %d: want ranks that rise", i, r)
		}
		out[r] = true
	}
	least, nodes, left := 0, 0, 0
	for _, pool := range d.Fleet {
		before := nodes
		for _, node := range pool.Ranks {
			n := 0
			for _, r := range node {
				if out[r] {
					n++
				}
			}
			if n > 0 && n < len(node) {
				return fmt.Errorf("left_out_ranks: %d of the %d ranks of a node: want all or none", n, len(node))
			}
			if left += n; n == 0 {
				nodes++
			}
		}
		least = max(least, nodes-before)
	}
	if left != len(out) {
		return fmt.Errorf("left_out_ranks: %v: the fleet has %d of them", d.LeftOut, left)
	}
	for i, m := range d.Micro {
		for j, g := range m.Groups {
			if k := slices.IndexFunc(g.Ranks, func(r int) bool { return out[r] }); k >= 0 {
				return fmt.Errorf("micro_batches[%d].groups[%d].ranks: %d: is left out", i, j, g.Ranks[k])
			}
		}
	}
	if c := d.Chosen(); c != nil && (c.Nodes > 0 || left > 0) && (c.Nodes < least || c.Nodes > nodes) {
		return fmt.Errorf("left_out_ranks: they leave %s: the chosen plan is of %d", units.Count(nodes, "node"), c.Nodes)
	}
	return nil
}

// times says which time cannot be: a micro-batch is no shorter than a group of it, nor
// the step than its micro-batches together, and no group with sequences takes no time.
func (d *Document) times() error {
	const rounding = 1 + 1e-9
	total := units.Seconds(0)
	for i, m := range d.Micro {
		at := fmt.Sprintf("micro_batches[%d]", i)
		if !valid(m.Time) {
			return fmt.Errorf("%s.time_s: %v: want a time of 0 or more", at, m.Time)
		}
		for j, g := range m.Groups {
			if !valid(g.Time) || g.Time > m.Time*rounding {
				return fmt.Errorf("%s.groups[%d].time_s: %v: want a time of at most its micro-batch's, %v", at, j, g.Time, m.Time)
			}
			base := d.Classes[g.Class].Base
			if n := len(g.Sequences); n > 0 && (g.Time == 0 || g.Time*rounding < base) {
				return fmt.Errorf("%s.groups[%d].time_s: %v: want a time above 0 of %s, and no less than base_s, %v", at, j, g.Time, units.Count(n, "sequence"), base)
			}
		}
		total += m.Time
	}
	if total > d.Time*rounding {
		return fmt.Errorf("step_s: %v: its micro-batches take %v", d.Time, total)
	}
	return nil
}

// Chosen is the candidate whose plan the document holds; nil if Compared does not list it.
func (d *Document) Chosen() *Candidate {
	at := slices.IndexFunc(d.Compared, func(c Candidate) bool { return c.Verdict == Chosen })
	if at < 0 {
		return nil
	}
	return &d.Compared[at]
}

// Baseline is the fastest of the baselines' candidates; nil if no baseline has a plan.
func (d *Document) Baseline() *Candidate {
	var best *Candidate
	for i := range d.Compared {
		if c := &d.Compared[i]; c.Baseline && c.Planned() && (best == nil || c.Time < best.Time) {
			best = c
		}
	}
	return best
}

// problem is the document's batch and devices, without prices.
func (d *Document) problem() *Problem {
	p := &Problem{Lengths: d.Lengths, Costs: stated{d}}
	for _, f := range d.Fleet {
		p.Fleet = append(p.Fleet, Pool(f))
	}
	for _, c := range d.Classes {
		p.Classes = append(p.Classes, Class(c))
	}
	return p
}

// stated prices nothing: it stands where only the form of a plan is checked.
type stated struct{ d *Document }

// Time implements Pricer.
func (stated) Time(int, units.Tokens) units.Seconds { return 0 }

// compact is a plan in terms of the classes that it uses.
func compact(p *Problem, plan *Plan) (Plan, []ClassEntry) {
	place := map[int]int{}
	var classes []ClassEntry
	out := Plan{Time: plan.Time, Micro: slices.Clone(plan.Micro)}
	for i := range out.Micro {
		out.Micro[i].Groups = slices.Clone(out.Micro[i].Groups)
		for j := range out.Micro[i].Groups {
			g := &out.Micro[i].Groups[j]
			at, known := place[g.Class]
			if !known {
				at = len(classes)
				place[g.Class] = at
				classes = append(classes, ClassEntry(p.Classes[g.Class]))
			}
			g.Class = at
		}
	}
	return out, classes
}
