// Package emit writes of a plan what a training framework reads. No framework runs every
// plan: of each field of it an Emission says whether it is exact, rounded or dropped, and
// what the step takes then by the same cost model. It knows of frameworks only what their
// users write: none needs to be installed.
package emit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver"
)

// Verdict says how much of a field of a plan a framework takes over.
type Verdict string

// The verdicts.
const (
	Exact   Verdict = "exact"
	Rounded Verdict = "rounded" // to what the framework can express
	Dropped Verdict = "dropped" // the framework has nothing of the kind, or decides it itself
)

// Field is one field of a plan and what became of it.
type Field struct {
	Name    string  `json:"field"`
	Plan    string  `json:"plan"`
	Emitted string  `json:"emitted"`
	Verdict Verdict `json:"verdict"`
	Why     string  `json:"why,omitzero"` // where it is not exact
}

// Emission is a plan as a framework can run it.
type Emission struct {
	To   string `json:"to"`   // the framework
	Text string `json:"text"` // what it reads
	Use  string `json:"use"`  // what its user does with the text
	// Time is what the emitted layout takes by the plan's cost model, Planned the plan itself.
	Time    units.Seconds `json:"step_s"`
	Planned units.Seconds `json:"planned_step_s"`
	Ranks   []int         `json:"ranks"` // of the plan that train, in the order of the framework's ranks
	Fields  []Field       `json:"fields"`
	Notes   []string      `json:"notes,omitempty"`

	Layout costmodel.Layout `json:"-"` // that the framework runs
}

// Exact says whether the framework runs the plan as it is.
func (e *Emission) Exact() bool {
	return !slices.ContainsFunc(e.Fields, func(f Field) bool { return f.Verdict != Exact })
}

// Framework is one that plans are written for.
type Framework struct {
	Name string
	Doc  string // one sentence for the user

	form form
}

// form is what an emitter knows of its framework.
type form interface {
	// job is the plan's as the framework runs it, which its layouts are priced for.
	job(costmodel.Job) costmodel.Job
	// variants lists layouts on some ranks that the framework can run. The error says why
	// there is none.
	variants(x *asked, ranks []int) ([]variant, error)
	// write is what the framework reads.
	write(x *asked, v *variant) (text, use string)
	// settings are the verdicts on what is no part of a layout.
	settings(x *asked, v *variant) []Field
	// notes are what users of the emitted file should know.
	notes(x *asked, v *variant) []string
}

// variant is a layout that a framework can run.
type variant struct {
	layout costmodel.Layout
	ranks  []int // in the order of the framework's ranks
	hp, cp int   // ranks of an all-to-all group, groups of the ring
	low    bool  // all-to-all groups are neighbours in rank order
	chunk  units.Tokens
	step   *costmodel.Step   // of the layout; nil where nobody asked yet
	why    map[string]string // by field of a layout: why it is as it is
}

// asked is a plan to be emitted, with its prices.
type asked struct {
	plan  *solver.Plan
	price func(costmodel.Layout) (*costmodel.Step, error)
}

// Frameworks are all that plans are written for, by name.
func Frameworks() []Framework {
	return []Framework{
		{"accelerate", "a configuration of Hugging Face accelerate: context parallelism of torch, or Ulysses of DeepSpeed", accelerate{}},
		{"magi", "partitions for MagiAttention: unequal tokens in whole chunks", magi{}},
		{"megatron", "arguments of Megatron-LM: groups and degrees of context parallelism", megatron{}},
		{"usp", "the process groups of USP (yunchang): a mesh of Ulysses and ring", usp{}},
	}
}

// Names are those of Frameworks.
func Names() []string {
	var names []string
	for _, f := range Frameworks() {
		names = append(names, f.Name)
	}
	return names
}

// Lookup finds a framework by name.
func Lookup(name string) (Framework, bool) {
	all := Frameworks()
	i := slices.IndexFunc(all, func(f Framework) bool { return f.Name == name })
	if i < 0 {
		return Framework{}, false
	}
	return all[i], true
}

// Plan finds the fastest layout that a framework can run of a plan's job and that fits, by
// the laws of a profile, and writes it. The layouts are on all ranks of the cluster, on those
// of the plan and on those of every layout that it was compared with.
//
// Errors: *solver.InfeasibleError if the framework can run nothing of the job or nothing that
// fits, those of solver.NewProblem, and ctx's.
func (f Framework) Plan(ctx context.Context, p *solver.Plan, profile *costmodel.Profile) (*Emission, error) {
	planned, err := solver.NewProblem(profile, p.Job)
	if err != nil {
		return nil, err
	}
	own, err := planned.Price(ctx, p.Layout())
	if err != nil {
		return nil, fmt.Errorf("the plan cannot be priced by these laws: %w", err)
	}
	run, err := solver.NewProblem(profile, f.form.job(p.Job))
	if err != nil {
		return nil, err
	}
	x := &asked{plan: p, price: func(l costmodel.Layout) (*costmodel.Step, error) { return run.Price(ctx, l) }}
	best, step, err := f.best(ctx, x)
	if err != nil {
		return nil, err
	}
	e := &Emission{To: f.Name, Time: step.Time.Mid, Planned: own.Time.Mid, Ranks: best.ranks, Layout: best.layout}
	e.Text, e.Use = f.form.write(x, best)
	e.Fields = append(x.compare(best), f.form.settings(x, best)...)
	e.Notes = f.form.notes(x, best)
	return e, nil
}

// best is the fastest variant that fits.
func (f Framework) best(ctx context.Context, x *asked) (*variant, *costmodel.Step, error) {
	var best *variant
	var step *costmodel.Step
	var no, full error
	for _, ranks := range x.rankSets() {
		all, err := f.form.variants(x, ranks)
		if err != nil && no == nil { // of all ranks, which come first
			no = fmt.Errorf("of %s: %w", units.Count(len(ranks), "rank"), err)
		}
		for i := range all {
			s, err := all[i].step, error(nil)
			if s == nil {
				s, err = x.price(all[i].layout)
			}
			switch {
			case ctx.Err() != nil:
				return nil, nil, ctx.Err()
			case err != nil:
				no = cmp.Or(no, err)
			case !fits(s):
				full = errors.New("none of its layouts fits the devices' memory")
			case best == nil || s.Time.Mid < step.Time.Mid:
				best, step = &all[i], s
			}
		}
	}
	if best == nil {
		why := cmp.Or(full, no)
		return nil, nil, &solver.InfeasibleError{Asked: f.Name, Reason: why.Error(), WayOut: "another framework (" + strings.Join(Names(), ", ") + "), or evenkeel replay, whose executor runs every plan"}
	}
	return best, step, nil
}

func fits(s *costmodel.Step) bool {
	return !slices.ContainsFunc(s.Ranks, func(r costmodel.RankStep) bool { return !r.Memory.Fits() })
}

// rankSets are the choices of ranks to train on: all, those of the plan, and those of the
// layouts beside it, which leave slow devices out, say.
func (x *asked) rankSets() [][]int {
	all := make([]int, len(x.plan.Ranks))
	for r := range all {
		all[r] = r
	}
	sets := [][]int{all}
	add := func(groups []costmodel.Group) {
		var ranks []int
		for _, g := range groups {
			for _, m := range g {
				ranks = append(ranks, m.Rank)
			}
		}
		slices.Sort(ranks)
		if len(ranks) > 0 && !slices.ContainsFunc(sets, func(s []int) bool { return slices.Equal(s, ranks) }) {
			sets = append(sets, ranks)
		}
	}
	add(x.plan.Groups)
	for _, c := range x.plan.Compared {
		if c.Layout != nil {
			add(c.Layout.Groups)
		}
	}
	return sets
}
