package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/internal/spelling"
	"github.com/evenkeel/evenkeel/results"
	"github.com/evenkeel/evenkeel/solver"
	"github.com/evenkeel/evenkeel/solver/emit"
	"github.com/evenkeel/evenkeel/solver/pipeline"
	"github.com/spf13/cobra"
)

// errNotExact says that --strict was asked for and a plan was emitted that is not whole.
var errNotExact = errors.New("the framework does not run the plan as it is, and --strict asks for that: leave it out, or run the plan with evenkeel replay")

// emission is what the flags of emit say.
type emission struct {
	to, profile, out string
	strict           bool
}

func (a *app) emit() *cobra.Command {
	var o emission
	var frameworks strings.Builder
	for _, f := range emit.Frameworks() {
		fmt.Fprintf(&frameworks, "  %-12s%s\n", f.Name, f.Doc)
	}
	c := &cobra.Command{
		Use:   "emit x.plan.json --to framework [--profile x.profile.json]",
		Short: "Write what a training framework reads of a plan, and say what it loses",
		Long: `Writes a plan of one sequence, or of a pipeline, for a training framework:

` + frameworks.String() + `
No framework runs unequal heads, and most run only equal numbers of tokens. So emit takes the
fastest layout that the framework can run and that fits, of all degrees and of the devices of
the plan and of every layout compared with it. It marks every field of the plan as exact,
rounded or dropped, and predicts the resulting step time by the same laws: what the framework
costs, which is little on equal devices. evenkeel replay runs every plan as it is. --profile is
as for solve.

Plans of pipelines (solve --lengths --pipeline) are written for ` + strings.Join(emit.Staged(), ", ") + `: the
fastest stages of as many ranks each, with layers of their own, and micro-batches of
whole sequences, re-priced as pipelines. docs/frameworks.md says what each framework accepts.`,
		Example: `  evenkeel emit a.plan.json --to megatron -o megatron.args
  evenkeel emit a.plan.json --to magi --profile p.profile.json -o partitions.json
  evenkeel emit p.plan.json --to megatron -o p.json   # of a pipeline
  evenkeel emit a.plan.json --to megatron --strict   # exit 4 unless the framework runs the plan as it is`,
		Args: args(cobra.ExactArgs(1), "one plan"),
		RunE: func(c *cobra.Command, given []string) error {
			if err := notEmpty(c, "to", "profile", "output"); err != nil {
				return err
			}
			return a.runEmit(c, given[0], o)
		},
	}
	c.Flags().StringVar(&o.to, "to", "", "framework to write for: "+strings.Join(emit.Names(), ", "))
	c.Flags().StringVar(&o.profile, "profile", "", "profiles that the plan was made with, separated by commas; \"references\" among them stands for the embedded ones (default: those alone)")
	c.Flags().StringVarP(&o.out, "output", "o", "", "file to write for the framework (default: shown below the table)")
	c.Flags().BoolVar(&o.strict, "strict", false, "exit 4 unless every field is exact")
	return c
}

func (a *app) runEmit(c *cobra.Command, path string, o emission) error {
	if o.to == "" {
		return usagef("emit: --to is missing: want %s", strings.Join(emit.Names(), ", "))
	}
	framework, ok := emit.Lookup(o.to)
	if !ok {
		return usagef("--to %s: no such framework%s; want %s", o.to, spelling.Suggest(spelling.Nearest(o.to, emit.Names())), strings.Join(emit.Names(), ", "))
	}
	schema, err := sniff(path)
	if err != nil {
		return err
	}
	plan, err := emittable(path, schema)
	if err != nil {
		return err
	}
	q := problem{profile: o.profile}
	files, _, err := q.profiles()
	if err != nil {
		return err
	}
	to := output{flag: "-o", path: o.out}
	if err := notLost([]output{to}, append(files, path)...); err != nil {
		return err
	}
	if err := to.probe(); err != nil {
		return err
	}
	laws, err := q.lawsOf(unassumed(plan.cluster))
	if err != nil {
		return plan.madeWith(err, o.profile)
	}
	e, err := plan.emit(c.Context(), framework, laws.profile)
	if err != nil {
		var no *emit.NotRunError
		if errors.As(err, &no) || c.Context().Err() != nil {
			return err
		}
		return usageError{q.orReferences(err)}
	}
	if o.out != "" {
		to.what = textLike("what "+e.To+" reads", e.Text)
		if err := to.replaces(); err != nil {
			return err
		}
		if err := doc.WriteAtomic(o.out, []byte(e.Text)); err != nil {
			return err
		}
	}
	if err := a.print(e, func(w io.Writer) error { return plan.show(w, e, o.out) }); err != nil {
		return err
	}
	if o.strict && !e.Exact() {
		return errNotExact
	}
	return nil
}

// emitted is a plan that frameworks may run.
type emitted struct {
	cluster costmodel.Cluster
	inputs  []doc.Input
	emit    func(context.Context, emit.Framework, *costmodel.Profile) (*emit.Emission, error)
	show    func(w io.Writer, e *emit.Emission, file string) error
}

// madeWith adds to an error of the references the profiles that the plan was made with, where none are named.
func (e *emitted) madeWith(err error, profile string) error {
	var made []string
	for _, in := range e.inputs {
		if strings.HasSuffix(in.Path, ".profile.json") {
			made = append(made, in.Path)
		}
	}
	if profile != "" || made == nil {
		return err
	}
	return usageError{fmt.Errorf("%w; the plan was made with a profile: --profile %s", err, strings.Join(made, ","))}
}

// emittable reads a plan of one of the kinds that are emitted.
func emittable(path, schema string) (*emitted, error) {
	is := func(of string) bool {
		return kindOf(schema) == kindOf(of)
	}
	switch {
	case is(solver.PlanSchema):
		plan, _, err := loadPlan(path, schema)
		if err != nil {
			return nil, err
		}
		return &emitted{
			cluster: plan.Job.Cluster,
			inputs:  plan.Inputs,
			emit: func(ctx context.Context, f emit.Framework, laws *costmodel.Profile) (*emit.Emission, error) {
				return f.Plan(ctx, plan, laws)
			},
			show: func(w io.Writer, e *emit.Emission, file string) error { return results.Emission(w, plan, e, file) },
		}, nil
	case is(pipeline.Schema):
		d := new(pipeline.Document)
		if err := doc.Load(path, d); err != nil {
			return nil, err
		}
		if !d.Priced() {
			return nil, usagef("emit %s: %w", path, emit.UnpricedError{})
		}
		return &emitted{
			cluster: d.Job.Cluster,
			inputs:  d.Inputs,
			emit: func(ctx context.Context, f emit.Framework, laws *costmodel.Profile) (*emit.Emission, error) {
				return f.Pipeline(ctx, d, laws)
			},
			show: func(w io.Writer, e *emit.Emission, file string) error {
				return results.PipelineEmission(w, d, e, file)
			},
		}, nil
	}
	return nil, usagef("emit %s: is an %s; want a plan of one sequence (solve --seq-len -o) or of a pipeline (solve --lengths --pipeline -o)", path, schema)
}
