package batch

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
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
	// Simulated is true if the prices' laws were made on a simulated backend.
	Simulated bool           `json:"simulated,omitzero"`
	Lengths   []units.Tokens `json:"lengths_tokens"` // of the sequences
	Fleet     []PoolEntry    `json:"fleet"`
	Classes   []ClassEntry   `json:"classes"`  // that the plan uses
	Strategy  string         `json:"strategy"` // whose plan it is
	// Taken is true if the user named the strategy and another one would be recommended:
	// a faster one, or the baseline where the gain over it is within the prices' error.
	Taken bool `json:"taken,omitzero"`
	Plan
	Bound    units.Seconds `json:"lower_bound_s"` // of every plan's time
	Gap      float64       `json:"gap"`           // step time / lower bound - 1
	Compared []Candidate   `json:"considered"`    // all strategies, this one included
	Notes    []string      `json:"notes"`         // what the model leaves out, for the user
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
	Strategy  string        `json:"strategy"`
	Baseline  bool          `json:"baseline,omitzero"`
	Published bool          `json:"published,omitzero"`
	Verdict   Verdict       `json:"verdict"`
	Why       string        `json:"why"`             // what the strategy does, or why it has no plan
	Time      units.Seconds `json:"step_s,omitzero"` // of its plan; 0 where it has none
	// Interval is the 90 % interval of Time and its source. It is empty where the prices
	// have no laws behind them.
	Interval costmodel.Estimate `json:"interval,omitzero"`
	Micro    int                `json:"micro_batches,omitzero"` // how many
	Gap      float64            `json:"gap"`                    // Time / lower bound - 1
	Speedup  float64            `json:"speedup_vs_baseline"`    // time of the strongest baseline / Time
	// GainError is half of the 90 % interval of the difference between Time and the time of
	// the strongest baseline; Doubt names what contributes most to it (costmodel.GainError)
	// and what to measure, to settle it.
	GainError units.Seconds `json:"gain_error_s,omitzero"`
	Doubt     string        `json:"doubt,omitzero"`
	Took      units.Seconds `json:"planning_s,omitzero"` // planning time on the wall
}

// errs says what of the errors of its time and gain cannot be.
func (c *Candidate) errs() error {
	e := c.Interval
	switch {
	case e == costmodel.Estimate{}:
	case !(e.Lo >= 0 && e.Lo <= e.Mid && e.Mid <= e.Hi) || math.IsInf(float64(e.Hi), 1):
		return fmt.Errorf("interval: %v to %v about %v: want times in that order, none below 0", e.Lo, e.Hi, e.Mid)
	case math.Abs(float64(e.Mid/c.Time)-1) > 1e-6:
		return fmt.Errorf("interval.mid_s: %v: step_s is %v", e.Mid, c.Time)
	}
	if !valid(c.GainError) {
		return fmt.Errorf("gain_error_s: %v: want a time of 0 or more", c.GainError)
	}
	return nil
}

// planned says that the strategy has a plan.
func (c *Candidate) planned() bool {
	return slices.Contains([]Verdict{Chosen, Equal, Tie, Slower}, c.Verdict)
}

// Verdict says how a candidate compares with the chosen plan.
type Verdict = recommend.Verdict

// The verdicts.
const (
	Chosen           = recommend.Chosen
	Tie              = recommend.Tie
	Equal            = recommend.Equal
	Slower           = recommend.Slower
	NotLegal Verdict = "not legal" // has no plan for such devices, prices or lengths; see Candidate.Why
	Late     Verdict = "no plan in time"
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
	free := *p
	free.Costs = stated{d}
	plan := d.Plan
	// Times are checked by whoever has the prices; here they are taken as stated.
	found := slices.DeleteFunc(Check(&free, &plan), func(err error) bool { return errors.Is(err, errTime) })
	if len(found) > 0 {
		return found[0]
	}
	if err := d.times(); err != nil {
		return err
	}
	if !valid(d.Time) || !valid(d.Bound) || beaten(d.Bound, d.Time) {
		return fmt.Errorf("lower_bound_s: %v: want a time of at most step_s, %v", d.Bound, d.Time)
	}
	if want := gap(d.Time, d.Bound); !agree(d.Gap, want) {
		return fmt.Errorf("gap: %v: step_s over lower_bound_s - 1 is %v", d.Gap, want)
	}
	return d.compared()
}

// compared says which of the candidates contradicts the others or the plan. A document
// need not have any.
func (d *Document) compared() error {
	plans, chosen := make([]*recommend.Plan, len(d.Compared)), -1
	for i, c := range d.Compared {
		if err := d.stated(c); err != nil {
			return fmt.Errorf("considered[%d].%w", i, err)
		}
		if c.Verdict == Chosen && chosen >= 0 {
			return fmt.Errorf("considered[%d].verdict: considered[%d] is chosen already", i, chosen)
		}
		if c.Verdict == Chosen {
			chosen = i
		}
		if c.planned() {
			plans[i] = &recommend.Plan{Strategy: c.Strategy, Baseline: c.Baseline, Time: c.Time, GainError: c.GainError}
		}
	}
	if len(d.Compared) == 0 {
		return nil
	}
	if chosen < 0 {
		return errors.New("considered: none of them is chosen")
	}
	return d.choice(plans, chosen)
}

// stated says what of a candidate cannot be, whatever the others are.
func (d *Document) stated(c Candidate) error {
	switch {
	case !c.planned() && c.Verdict != NotLegal && c.Verdict != Late:
		return fmt.Errorf("verdict: %q: want %s, %s, %s, %s, %s or %s", c.Verdict, Chosen, Equal, Tie, Slower, NotLegal, Late)
	case !c.planned():
		return c.errs()
	case !valid(c.Time) || c.Time == 0:
		return fmt.Errorf("step_s: %v: want a time above 0", c.Time)
	case beaten(d.Bound, c.Time):
		return fmt.Errorf("step_s: %v: less than lower_bound_s, %v, which no plan takes", c.Time, d.Bound)
	case c.Verdict == Chosen && c.Strategy != d.Strategy:
		return fmt.Errorf("strategy: %q: is chosen, and the plan is of %q", c.Strategy, d.Strategy)
	case c.Verdict == Chosen && !recommend.Same(c.Time, d.Time):
		return fmt.Errorf("step_s: %v: the plan, which is chosen, takes %v", c.Time, d.Time)
	}
	if want := gap(c.Time, d.Bound); !agree(c.Gap, want) {
		return fmt.Errorf("gap: %v: step_s over lower_bound_s - 1 is %v", c.Gap, want)
	}
	return c.errs()
}

// choice says what of the candidates does not follow from their times and the errors of
// their gains.
func (d *Document) choice(plans []*recommend.Plan, chosen int) error {
	best, at := recommend.Best(plans)
	switch {
	case d.Taken && chosen == best:
		return errors.New("taken: true: the numbers recommend the chosen strategy anyway")
	case !d.Taken && slower(plans[chosen].Time, plans[best].Time):
		return fmt.Errorf("considered[%d].step_s: %v: less than the plan takes that is chosen, %v, and surely so", best, plans[best].Time, plans[chosen].Time)
	}
	var base *recommend.Plan
	if at >= 0 {
		base = plans[at]
	}
	for i, p := range plans {
		c, speedup := d.Compared[i], 0.0
		if p == nil {
			continue
		}
		if base != nil {
			speedup = float64(base.Time / p.Time)
		}
		if !agree(c.Speedup, speedup) {
			return fmt.Errorf("considered[%d].speedup_vs_baseline: %v: the times give %v", i, c.Speedup, speedup)
		}
		if want := p.Verdict(plans[chosen], base); c.Verdict != want && (want != Tie || c.Verdict != Slower) {
			return fmt.Errorf("considered[%d].verdict: %q: takes %v, and the plan %v: the numbers say %q", i, c.Verdict, c.Time, d.Time, want)
		}
	}
	return nil
}

// agree says that two ratios differ by what was lost in writing and bounding at most.
func agree(a, b float64) bool { return math.Abs(a-b) <= 1e-6*(1+math.Abs(b)) }

// times says which time cannot be: a micro-batch is no shorter than a group of it, nor
// the step than its micro-batches together.
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
		if c := &d.Compared[i]; c.Baseline && c.planned() && (best == nil || c.Time < best.Time) {
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
