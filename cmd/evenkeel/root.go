package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/groupcost"
	"github.com/evenkeel/evenkeel/internal/spelling"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/profile"
	"github.com/evenkeel/evenkeel/replay"
	"github.com/evenkeel/evenkeel/solver"
	"github.com/evenkeel/evenkeel/solver/batch"
	"github.com/evenkeel/evenkeel/solver/emit"
	"github.com/evenkeel/evenkeel/solver/recommend"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/spf13/cobra"
)

// version is what documents name as their tool.
const version = "0.1.0"

const tool = "evenkeel " + version

// Exit codes, as the help and the README document them.
const (
	exitDone       = 0
	exitFailed     = 1
	exitUsage      = 2
	exitInfeasible = 3
	exitCheck      = 4
)

// usageError is a command line that cannot be meant, or whose files, each well-formed,
// suffice for no plan together, or contradict themselves as the cluster's may
// (costmodel.ContradictionError). A file that is missing or malformed is no usage error.
type usageError struct{ error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// errCheckFailed says that a check was made and failed; what failed is in the
// table on stdout.
var errCheckFailed = errors.New("the profile's errors are above the limits")

// app is what every verb shares.
type app struct {
	args        []string
	uncaught    func() // lets signals end the process at once: of verbs that have nothing to keep
	in          io.Reader
	out, errOut io.Writer
	json        bool
	quiet       bool
}

// run is main without the process around it: it parses args, runs the verb and
// returns the exit code. stdout takes results only, stderr the talk.
func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // whoever asks again ends what does not end at the first
	a := &app{args: args, uncaught: stop, in: stdin, out: stdout, errOut: stderr}
	root := a.root()
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitDone
	}
	fmt.Fprintln(stderr, "evenkeel: "+err.Error())
	return exitCode(err)
}

func exitCode(err error) int {
	var usage usageError
	var contradiction *costmodel.ContradictionError
	var asked *profile.AskedError
	var modelless *replay.NoModelError
	var infeasible *solver.InfeasibleError
	var long *batch.TooLongError
	var none *recommend.NotTakenError
	var noRoom *groupcost.NoRoomError
	var noPlan *recommend.InfeasibleError
	var notRun *emit.NotRunError
	switch {
	case errors.As(err, &usage), errors.As(err, &contradiction), errors.As(err, &asked), errors.As(err, &modelless):
		return exitUsage
	case errors.As(err, &infeasible), errors.As(err, &long), errors.As(err, &none), errors.As(err, &noRoom), errors.As(err, &noPlan), errors.As(err, &notRun):
		return exitInfeasible
	case errors.Is(err, errCheckFailed), errors.Is(err, errNotExact):
		return exitCheck
	}
	return exitFailed
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "evenkeel",
		Short: "Measure devices and links, fit a cost model with a stated error, plan training on unequal devices",
		Long: `evenkeel measures what each device and link really does (calibrate), fits a cost
model with a stated error to it (fit), plans long-context training steps that
keep unequal devices evenly loaded (solve), does so for every batch of a training
loop (serve), writes plans in the form that training frameworks read (emit), runs plans on
real ranks (replay), and checks that the model still tells the truth (check).

Exit codes: 0 done, 1 failed, 2 usage, 3 no feasible plan, 4 check or --strict failed. A missing
or malformed file exits 1; flags that make no sense, a cluster that contradicts itself, and
inputs from which no plan can be made exit 2.
Results go to stdout, progress and warnings to stderr.`,
		Example: `  evenkeel calibrate --budget 1m --out prof
  evenkeel solve --profile prof/calibration.profile.json --cluster "1x(1 cpu:2 + 1 cpu:1)" --model config.json --seq-len 8k
  evenkeel check prof/calibration.rec.jsonl --profile prof/calibration.profile.json`,
		Version:       versionLine(),
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          isVerb,
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		var twice twiceError
		if errors.As(err, &twice) { // without what the library calls it
			return usageError{twice}
		}
		if want := wanted(err); want != "" {
			return usagef("%s (see: %s --help)", want, c.CommandPath())
		}
		return usagef("%w%s (see: %s --help)", err, perhaps(c, err), c.CommandPath())
	})
	root.PersistentFlags().BoolVar(&a.json, "json", false, "print the result as JSON")
	root.PersistentFlags().BoolVarP(&a.quiet, "quiet", "q", false, "no progress and no notes on stderr")
	root.AddCommand(a.calibrate(), a.imports(), a.fit(), a.solve(), a.serve(), a.emit(), a.replay(), a.check(), a.show(), a.worker())
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		if c.Name() == completion {
			c.RunE = shellNamed
			c.Args = cobra.ArbitraryArgs
			continue
		}
		complete(c)
		synonymous(c)
		onceEach(c)
		if c.Name() == "help" { // cobra's ends with 0 on a verb that there is not
			c.Args = isVerb
		}
	}
	groupFlags(root)
	return root
}

// isVerb refuses what is called as a verb, or asked after, and is none.
func isVerb(c *cobra.Command, args []string) error {
	root := c.Root()
	if found, _, err := root.Find(args); len(args) == 0 || err == nil && found != root {
		return nil
	}
	near := ""
	root.SuggestionsMinimumDistance = 2
	if args[0] != "" {
		near = spelling.Suggest(root.SuggestionsFor(args[0])...)
	}
	return usagef("unknown verb %q%s; the verbs are %s (evenkeel --help)", args[0], near, strings.Join(verbs(root), ", "))
}

const completion = "completion"

// shellNamed is completion without one of its shells, of which cobra shows the help and ends
// with 0.
func shellNamed(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return c.Help()
	}
	var shells []string
	for _, s := range c.Commands() {
		shells = append(shells, s.Name())
	}
	return usagef("completion %s: want one of %s", args[0], strings.Join(shells, ", "))
}

// verbs are the names of the commands that do the work, as the help lists them.
func verbs(root *cobra.Command) []string {
	var names []string
	for _, c := range root.Commands() {
		if c.IsAvailableCommand() && c.Name() != completion { // the latter is cobra's own
			names = append(names, c.Name())
		}
	}
	return names
}

// note tells the user something that is no result.
func (a *app) note(format string, args ...any) {
	if !a.quiet {
		fmt.Fprintf(a.errOut, format+"\n", args...)
	}
}

// silent is the app without notes: for what is tried, of which nobody is to be told.
func (a *app) silent() *app {
	quiet := *a
	quiet.quiet = true
	return &quiet
}

// print writes a result as JSON or, through table, for reading.
func (a *app) print(result any, table func(io.Writer) error) error {
	if !a.json {
		return table(a.out)
	}
	if err := json.MarshalWrite(a.out, result, json.Deterministic(true), jsontext.WithIndent("  ")); err != nil {
		if disk, ok := errors.AsType[*fs.PathError](err); ok { // without what the library calls it
			return disk
		}
		return err
	}
	_, err := fmt.Fprintln(a.out)
	return err
}

// args wraps cobra's check of positional arguments as a usage error.
func args(check cobra.PositionalArgs, want string) cobra.PositionalArgs {
	return func(c *cobra.Command, given []string) error {
		if err := check(c, given); err != nil {
			return usagef("%s: want %s, got %s%s (see: %s --help)", c.Name(), want, units.Count(len(given), "argument"), apart(c, given), c.CommandPath())
		}
		if i := slices.Index(given, ""); i >= 0 { // as scripts pass whose variable is not set
			return usagef("%s: want %s, and argument %d is empty (see: %s --help)", c.Name(), want, i+1, c.CommandPath())
		}
		return nil
	}
}
