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
	"math"
	"slices"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/costmodel/pipeline"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver"
)

// Verdict says how much of a field of a plan a framework takes over.
type Verdict string

// The verdicts.
const (
	Exact   Verdict = "exact"
	Rounded Verdict = "rounded" // to what the framework can express
	Dropped Verdict = "dropped" // the framework has nothing of the kind, or its file does not say it
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
	// Time is what a step of the emitted layout takes by the plan's cost model, Planned that of
	// the plan, and Error by how much their difference may be off: half its 90 % interval.
	Simulated bool               `json:"simulated"` // by laws of a simulated backend
	Time      costmodel.Estimate `json:"time"`
	Planned   costmodel.Estimate `json:"planned"`
	Error     units.Seconds      `json:"difference_error_s"`
	Ranks     []int              `json:"ranks"` // of the plan that train, in the order of the framework's ranks
	Fields    []Field            `json:"fields"`
	Notes     []string           `json:"notes,omitempty"`

	Layout   costmodel.Layout `json:"-"` // that the framework runs of a sequence
	Pipeline *pipeline.Plan   `json:"-"` // or of a batch in stages
}

// Exact says whether the framework runs the plan as it is.
func (e *Emission) Exact() bool {
	return !slices.ContainsFunc(e.Fields, func(f Field) bool { return f.Verdict != Exact })
}

// NotRunError says that a framework runs nothing of a plan.
type NotRunError struct {
	Framework string
	Reason    string
	Others    []string // frameworks that run plans of the kind
	Full      bool     // for want of memory
}

// Error is the reason and the way out.
func (e *NotRunError) Error() string {
	var ways []string
	if e.Full {
		ways = append(ways, "a plan for more devices or of shorter sequences, ")
	}
	if len(e.Others) > 0 {
		ways = append(ways, fmt.Sprintf("another framework (--to %s), ", strings.Join(e.Others, ", ")))
	}
	if len(ways) > 0 {
		ways = append(ways, "or ")
	}
	return fmt.Sprintf("%s cannot run this: %s; way out: %sevenkeel replay and the Python package, which run every plan", e.Framework, e.Reason, strings.Join(ways, ""))
}

// but are some names without one.
func but(names []string, name string) []string {
	return slices.DeleteFunc(names, func(n string) bool { return n == name })
}

// Framework is one that plans are written for.
type Framework struct {
	Name string
	Doc  string // one sentence for the user

	form form
}

// form is what an emitter knows of its framework.
type form interface {
	// variants lists layouts on some ranks that the framework can run. The error says why
	// there is none.
	variants(x *asked, ranks []int) ([]variant, error)
	// write is what the framework reads, and what to do with it.
	write(x *asked, v *variant) (text, use string)
	// decides says whether a setting of the job is what the variant's job says, by the emitted
	// text or by the framework. Others are the training script's.
	decides(v *variant, setting string) bool
	// notes are what users of the emitted text should know.
	notes(v *variant) []string
}

// variant is a layout that a framework can run.
type variant struct {
	job    costmodel.Job // as the framework runs it
	layout costmodel.Layout
	step   *costmodel.Step   // of the layout; nil until somebody asks
	ranks  []int             // in the order of the framework's ranks
	hp, cp int               // ranks of an all-to-all group, groups of the ring
	low    bool              // all-to-all groups are neighbours in rank order
	chunk  units.Tokens      // of MagiAttention
	order  string            // of the tokens, in words
	why    map[string]string // by field: why it is as it is
}

// ring says whether keys and values go around a ring.
func (v *variant) ring() bool { return v.cp > 1 }

// asked is a plan to be emitted, with its prices.
type asked struct {
	ctx     context.Context
	plan    *solver.Plan
	profile *costmodel.Profile
	known   map[settingsKey]*solver.Problem
	refused error // why there are no variants on all ranks
}

// settingsKey is what of a job a framework may run otherwise: forms change nothing else of it.
type settingsKey struct {
	recompute      costmodel.Recompute
	zero           costmodel.ZeRO
	overlap        bool
	buffers, micro int
	loss           units.Tokens
	dtype          op.DType
}

// problem is that of the plan's job, run with other settings.
func (x *asked) problem(j costmodel.Job) (*solver.Problem, error) {
	key := settingsKey{j.Recompute, j.Zero, j.OverlapZero, j.RingBuffers, j.Accumulate, j.LossChunk, j.DType}
	if p := x.known[key]; p != nil {
		return p, nil
	}
	p, err := solver.NewProblem(x.profile, j)
	if err != nil {
		return nil, err
	}
	x.known[key] = p
	return p, nil
}

// price simulates a variant, once.
func (x *asked) price(v *variant) error {
	if v.step != nil {
		return nil
	}
	p, err := x.problem(v.job)
	if err != nil {
		return err
	}
	v.step, err = p.Price(x.ctx, v.layout)
	return err
}

// Frameworks are all that plans are written for, by name.
func Frameworks() []Framework {
	return []Framework{
		{"accelerate", "a configuration of Hugging Face accelerate: context parallelism of torch, or Ulysses of DeepSpeed", accelerate{}},
		{"magi", "partitions for MagiAttention: unequal tokens in whole chunks", magi{}},
		{"megatron", "arguments of Megatron-LM: degrees of context parallelism, ring and all-to-all", megatron{}},
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
// the laws of a profile, and writes it. The layouts are of all degrees, on all ranks of the
// cluster, on those of each device type, on those of the plan and on those of every layout that
// it was compared with; where as many cannot divide the work, on as many of them as can.
//
// Errors: *NotRunError if the framework can run nothing of the job or nothing that fits, those
// of solver.NewProblem, and ctx's.
func (f Framework) Plan(ctx context.Context, p *solver.Plan, profile *costmodel.Profile) (*Emission, error) {
	x := &asked{ctx: ctx, plan: p, profile: profile, known: map[settingsKey]*solver.Problem{}}
	own := &variant{job: p.Job, layout: p.Layout()}
	if err := x.price(own); err != nil {
		return nil, fmt.Errorf("the plan cannot be priced by these laws: %w", err)
	}
	best, err := f.best(x)
	if err != nil {
		return nil, err
	}
	e := &Emission{To: f.Name, Simulated: p.Simulated || profile.Simulated, Time: best.step.Time, Planned: own.step.Time, Ranks: best.ranks, Layout: best.layout}
	e.Error, _ = costmodel.GainError(own.step, best.step)
	e.Text, e.Use = f.form.write(x, best)
	set := settings(f.form, p.Job, best)
	e.Fields = append(compare(p.Layout(), best), set...)
	e.Notes = append(f.form.notes(best), x.remarks(e, set)...)
	return e, nil
}

// otherLaws is by how much two prices of a plan differ at most if they are of the same laws.
const otherLaws = 1e-6

// faster is what of a step buffers and whole logits of a framework may save on their own.
const faster = 0.01

// remarks are what is to be known of the prices.
func (x *asked) remarks(e *Emission, set []Field) []string {
	var all, script []string
	if x.refused != nil && len(e.Ranks) < len(members(x.plan.Groups)) {
		all = append(all, "not on all ranks: "+x.refused.Error())
	}
	for _, s := range set {
		if s.Verdict == Dropped {
			script = append(script, s.Name+" "+s.Plan)
		}
	}
	if len(script) > 0 {
		all = append(all, "priced as if the training script had the plan's "+strings.Join(script, ", "))
	}
	if e.Planned.Mid-e.Time.Mid > max(e.Error, e.Planned.Mid*faster) {
		all = append(all, "faster than the plan, whose layout is not the fastest of its job: it was asked for (--shares, --take), or made with other laws")
	}
	if was := x.plan.Step.Time.Mid; math.Abs(float64(e.Planned.Mid/was)-1) > otherLaws {
		all = append(all, fmt.Sprintf("these are not the laws that the plan was made with, by which it takes %v: name its profile as it was then (--profile)", was))
	}
	return all
}

// best is the fastest variant that fits, priced.
func (f Framework) best(x *asked) (*variant, error) {
	var best *variant
	var no, full error
	for _, ranks := range x.rankSets() {
		all, err := f.somewhere(x, ranks)
		if apart := x.apart(ranks); apart != nil {
			all, err = nil, apart
		}
		if len(ranks) == len(x.plan.Ranks) {
			x.refused = err
		}
		no = cmp.Or(no, err)
		for i := range all {
			v := &all[i]
			err := x.price(v)
			if x.ctx.Err() != nil {
				return nil, x.ctx.Err()
			}
			if err != nil {
				no = cmp.Or(no, err)
				continue
			}
			if best != nil && best.step.Time.Mid <= v.step.Time.Mid {
				continue
			}
			p, err := x.problem(v.job)
			if err != nil {
				return nil, err
			}
			if err := p.Overfull(v.layout); err != nil {
				full = cmp.Or(full, err)
				continue
			}
			best = v
		}
	}
	if best == nil {
		why := cmp.Or(full, no).Error()
		if full != nil && x.refused != nil { // more ranks might have the memory
			why += ", and not on all ranks: " + x.refused.Error()
		}
		return nil, &NotRunError{Framework: f.Name, Reason: why, Others: but(Names(), f.Name), Full: full != nil}
	}
	return best, nil
}

// apart says why no framework trains on some ranks together: their GPUs are of several makers.
func (x *asked) apart(ranks []int) error {
	p, err := x.problem(x.plan.Job)
	if err != nil {
		return err
	}
	var devices []string
	for _, r := range ranks {
		devices = append(devices, x.plan.Ranks[r].Device)
	}
	if makers := p.Predictor.Makers(devices); makers != nil {
		return errors.New(noCommunicator(len(ranks), makers))
	}
	return nil
}

func noCommunicator(ranks int, makers []string) string {
	return fmt.Sprintf("%s: GPUs of %s form no communicator, for neither NCCL nor RCCL nor oneCCL talks to GPUs of another maker", units.Count(ranks, "rank"), strings.Join(makers, " and "))
}

// somewhere lists the variants on some ranks or, where there are none on so many, on as many of
// the first as there are variants on. The error says why there are none on all.
func (f Framework) somewhere(x *asked, ranks []int) ([]variant, error) {
	all, no := f.form.variants(x, ranks)
	for n := len(ranks) - 1; len(all) == 0 && n > 0 && x.ctx.Err() == nil; n-- {
		all, _ = f.form.variants(x, ranks[:n])
	}
	if no != nil {
		no = fmt.Errorf("%s: %w", units.Count(len(ranks), "rank"), no)
	}
	return all, no
}

// rankSets are the choices of ranks to train on: all, those of each device type, those of the
// plan, and those of the layouts beside it.
func (x *asked) rankSets() [][]int {
	var sets [][]int
	add := func(ranks []int) {
		if len(ranks) > 0 && !slices.ContainsFunc(sets, func(s []int) bool { return slices.Equal(s, ranks) }) {
			sets = append(sets, ranks)
		}
	}
	all, types := []int{}, map[string][]int{}
	var names []string
	for _, k := range x.plan.Ranks {
		all = append(all, k.Rank)
		if types[k.Device] == nil {
			names = append(names, k.Device)
		}
		types[k.Device] = append(types[k.Device], k.Rank)
	}
	add(all)
	for _, name := range names {
		add(types[name])
	}
	add(members(x.plan.Groups))
	for _, c := range x.plan.Compared {
		if c.Layout != nil {
			add(members(c.Layout.Groups))
		}
	}
	return sets
}
