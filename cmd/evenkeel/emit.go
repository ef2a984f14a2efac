package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/internal/spelling"
	"github.com/evenkeel/evenkeel/results"
	"github.com/evenkeel/evenkeel/solver"
	"github.com/evenkeel/evenkeel/solver/emit"
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
		Long: `Writes a plan of one sequence for a training framework:

` + frameworks.String() + `
No framework runs unequal heads, and most have equal tokens alone. So the fastest layout is
taken that the framework can run and that fits, of all degrees and of the devices of the
plan and of every layout beside it; every field of the plan is said to be exact, rounded or
dropped, and what the step takes then by the same laws is beside it: what the framework costs,
which is little on equal devices. evenkeel replay runs every plan as it is. --profile is as for solve. docs/frameworks.md says what each framework accepts.`,
		Example: `  evenkeel emit a.plan.json --to megatron -o megatron.args
  evenkeel emit a.plan.json --to magi --profile p.profile.json -o partitions.json
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
	kind, _, _ := strings.Cut(schema, "/")
	if want, _, _ := strings.Cut(solver.PlanSchema, "/"); kind != want {
		return usagef("emit %s: is an %s; want a plan of one sequence (solve --seq-len -o)", path, schema)
	}
	plan, _, err := loadPlan(path, schema)
	if err != nil {
		return err
	}
	q := problem{profile: o.profile}
	files, _, err := q.profiles()
	if err != nil {
		return err
	}
	to := output{"-o", o.out}
	if err := notLost([]output{to}, append(files, path)...); err != nil {
		return err
	}
	if err := to.probe(); err != nil {
		return err
	}
	laws, err := q.lawsOf(unassumed(plan.Job.Cluster))
	if err != nil {
		return err
	}
	e, err := framework.Plan(c.Context(), plan, laws.profile)
	if err != nil {
		var no *emit.NotRunError
		if errors.As(err, &no) || c.Context().Err() != nil {
			return err
		}
		return usageError{q.orReferences(err)}
	}
	if o.out != "" {
		if err := doc.WriteAtomic(o.out, []byte(e.Text)); err != nil {
			return err
		}
	}
	if err := a.print(e, func(w io.Writer) error { return results.Emission(w, plan, e, o.out) }); err != nil {
		return err
	}
	if o.strict && !e.Exact() {
		return errNotExact
	}
	return nil
}
