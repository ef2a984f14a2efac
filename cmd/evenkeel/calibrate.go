package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/fit"
	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/profile"
	"github.com/evenkeel/evenkeel/results"
	"github.com/spf13/cobra"
)

// calibration is what the flags of calibrate say.
type calibration struct {
	backend    string
	out        string
	budget     time.Duration
	untimed    bool // nobody asked for the budget, and it is more than there is to do
	points     int
	choose     string
	seed       uint64
	only       []string
	devices    []string
	groupSizes []int
	model      string
	dryRun     bool
	numerics   bool
	fresh      bool

	python       string
	dtype        string
	allowShared  bool
	pointTimeout time.Duration
	printLaunch  string
	nodes, gpus  int
	image        string
	waiting      func(python string, longest time.Duration)
	further      []string               // flags that the command in a printed job has as well
	given        func(flag string) bool // whether the command line has a flag
}

func (a *app) calibrate() *cobra.Command {
	var o calibration
	c := &cobra.Command{
		Use:   "calibrate",
		Short: "Measure this machine's devices and links, fit their laws, report their error",
		Long: `Discovers this machine, verifies every kernel against a reference, measures a
choice of shapes inside the time budget, fits laws and reports their error on
points set aside before the fit.

Every finished point is on disk before the next begins. Ctrl-C (or a kill)
loses none of them; rerun the same command to resume.`,
		Example: `  evenkeel calibrate                                  # this machine, one minute, into ./calibration
  evenkeel calibrate --budget 5m --out prof
  evenkeel calibrate --devices cpu:1,cpu:2 --only attn_fwd,gemm --model config.json
  evenkeel calibrate --dry-run                        # what would be measured, and what would not, and why
  evenkeel calibrate --backend torch --group-sizes 2,4 # torch's kernels, and gloo or NCCL between its ranks
  evenkeel calibrate --backend torch --devices cpu:1,cpu:1@sse4 # unequal ranks on a machine of two cores
  srun -N4 evenkeel calibrate --out /shared/prof      # a cluster: one task a node, one recording
  evenkeel calibrate --print-launch slurm --nodes 4 --gpus-per-node 8
  evenkeel calibrate --backend recorded:h100.rec.jsonl --choose adaptive --points 60   # which points would have sufficed
  evenkeel calibrate --backend sim:2xbig+2xsmall      # a made-up cluster; everything is stamped simulated`,
		Args: args(cobra.NoArgs, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			if err := notEmpty(c, "out", "only", "devices", "model", "dtype", "python", "print-launch", "image"); err != nil {
				return err
			}
			if c.Flags().Changed("points") && o.points < fit.FewestPoints {
				return usagef("--points %d: want %d or more, the fewest that a law is fitted to", o.points, fit.FewestPoints)
			}
			if !c.Flags().Changed("budget") {
				o.budget = o.usualBudget()
				o.untimed = o.budget == unlimited
			}
			if err := o.launchFlags(c); err != nil {
				return err
			}
			o.given, o.waiting = c.Flags().Changed, a.waitingFor
			return a.runCalibrate(c.Context(), o)
		},
	}
	f := c.Flags()
	f.StringVar(&o.backend, "backend", "auto", "auto (torch where there is a GPU or a job of several tasks, else cpu), cpu, torch, recorded:x.rec.jsonl[,...] (replays what was measured), or sim:2xbig+2xsmall[,noise=0.02,seed=1,...]")
	f.StringVar(&o.out, "out", "calibration", "folder for the recording and the profile")
	f.DurationVar(&o.budget, "budget", time.Minute, "time to measure for; of recorded with --points, unless given, as long as they take")
	f.IntVar(&o.points, "points", 0, "most points of a law, each visited twice within the budget (default: as many as the budget allows)")
	f.StringVar(&o.choose, "choose", spreadChoice, "how points are chosen: spread (over the shapes, before the first is measured) or adaptive (in rounds, where the fit so far says that a second of measuring tells most)")
	f.Uint64Var(&o.seed, "seed", 1, "seed of the choice of points, their order and their inputs")
	f.StringSliceVar(&o.only, "only", nil, "ops to measure, such as attn_fwd,gemm (default: all)")
	f.StringSliceVar(&o.devices, "devices", nil, "device types to measure, such as cpu:1,cpu:2; through torch also cpu:1@avx2 or cpu:1@sse4, with narrower vector units, and gpu:0@sm80,gpu:0@sm40, parts of a GPU's multiprocessors (default: one core, and all of them)")
	f.IntSliceVar(&o.groupSizes, "group-sizes", nil, "ranks of the groups to measure collectives in (default: on cores powers of two; through torch all up to 4, then powers of two, and all ranks)")
	f.StringVar(&o.model, "model", "", "a Hugging Face config.json: measure its head width only")
	f.BoolVar(&o.dryRun, "dry-run", false, "list what would be measured, with what and for how long; measure nothing")
	f.BoolVar(&o.numerics, "numerics", false, "torch: compare every op and kernel with its float64 reference at awkward shapes; measure nothing")
	f.BoolVar(&o.fresh, "fresh", false, "begin anew, beside an earlier recording, instead of going on with it")
	f.StringVar(&o.python, "python", "", "torch: the interpreter (default: $EVENKEEL_PYTHON, python3 on PATH, /usr/bin/python3)")
	f.StringVar(&o.dtype, "dtype", "", "torch: precision of compute, bf16, f16 or f32 (default: bf16 on a GPU, f32 on a processor)")
	f.BoolVar(&o.allowShared, "allow-shared", false, "torch: measure a GPU on which other processes compute")
	f.DurationVar(&o.pointTimeout, "point-timeout", 2*time.Minute, "longest that one point may take before its worker counts as hung; one answer of it may take a quarter of that, or of the budget if that is more")
	f.StringVar(&o.printLaunch, "print-launch", "", "print a ready job for slurm, torchrun or k8s that calibrates a cluster; measure nothing")
	f.IntVar(&o.nodes, "nodes", 2, "nodes of the printed job")
	f.IntVar(&o.gpus, "gpus-per-node", 8, "GPUs a node of the printed job")
	f.StringVar(&o.image, "image", "", "container image of a printed k8s job, with evenkeel and torch in it")
	return c
}

// unlimited is more time than measuring takes.
const unlimited = 24 * time.Hour

// usualBudget is the time that a calibration has unless told: a minute. A replay takes
// none of it, so there the number of points is all that is asked for, and a day, by the
// clock that counts what measuring would have cost, is more than they take.
func (o calibration) usualBudget() time.Duration {
	if strings.HasPrefix(o.backend, "recorded:") && o.points > 0 {
		return unlimited
	}
	return time.Minute
}

func (a *app) runCalibrate(ctx context.Context, o calibration) error {
	if o.budget <= 0 {
		return usagef("--budget %s: must be positive", o.budget)
	}
	if o.pointTimeout <= 0 {
		return usagef("--point-timeout %s: must be positive", o.pointTimeout)
	}
	if o.points > mostPoints {
		return usagef("--points %d: want %d or fewer", o.points, mostPoints)
	}
	only, err := kinds(o.only)
	if err != nil {
		return err
	}
	cfg, err := o.config(only)
	if err != nil {
		return err
	}
	if o.printLaunch != "" {
		return a.printLaunch(o)
	}
	if err := o.isFolder(); err != nil { // discovering a machine may take a minute
		return err
	}
	b, err := a.newBackend(ctx, o)
	if err != nil {
		return early(ctx, err)
	}
	defer b.close()
	if b.follower != nil {
		return a.follow(ctx, b.follower)
	}
	if o.numerics {
		return a.numerics(ctx, b)
	}
	if o.dryRun {
		return a.dryRun(ctx, b, cfg)
	}
	made := missing(o.out)
	recording, profilePath, err := o.paths()
	defer func() { // what was refused leaves no folder behind
		for _, dir := range made {
			_ = os.Remove(dir) // it stays where something is in it
		}
	}()
	if err != nil {
		return err
	}
	if err := a.record(ctx, b, o, cfg, recording); err != nil {
		return err
	}
	b.close() // its workers would disturb the fit
	if err := a.starved(recording); err != nil {
		return err
	}
	p, err := a.fitFiles(ctx, []string{recording}, profilePath, fit.Defaults())
	if err != nil {
		return a.tooFew(recording, err)
	}
	a.note("wrote %s and %s", recording, profilePath)
	return a.print(p, func(w io.Writer) error { return results.ProfileOf(w, p, a.further()) })
}

// mostPoints of a law take two hours to measure at the least; choosing them takes work
// that grows with their square.
const mostPoints = 100_000

// The ways to choose points.
const (
	spreadChoice   = "spread"
	adaptiveChoice = "adaptive"
)

// config is what the flags say of measuring.
func (o calibration) config(only []op.Kind) (profile.Config, error) {
	c := profile.Config{Tool: tool, Budget: o.budget, Seed: o.seed, Only: only, Points: o.points, PointTimeout: o.pointTimeout, Wall: time.Now}
	switch o.choose {
	case spreadChoice:
	case adaptiveChoice:
		c.Chooser = fit.Adaptive{}
	default:
		return c, usagef("--choose %q: want %s or %s", o.choose, spreadChoice, adaptiveChoice)
	}
	return c, nil
}

func kinds(names []string) ([]op.Kind, error) {
	var ks []op.Kind
	for _, n := range names {
		spec, err := op.Lookup(op.Kind(strings.TrimSpace(n)))
		if err != nil {
			return nil, usagef("--only: %w", err)
		}
		ks = append(ks, spec.Kind)
	}
	return ks, nil
}

// missing are the folders that would be made for one, the innermost first.
func missing(dir string) (dirs []string) {
	for dir = filepath.Clean(dir); !exists(dir) && dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		dirs = append(dirs, dir)
	}
	return dirs
}

// isFolder refuses an --out that is there and is no folder, without making one: other tasks
// of a job, and those that only list, write nothing.
func (o calibration) isFolder() error {
	if info, err := os.Stat(o.out); err == nil && !info.IsDir() {
		return fmt.Errorf("--out %s: is a file; name a folder, which need not be there", o.out)
	}
	return nil
}

// paths names the files of a calibration, after checking that they can be
// written at all: better now than after the measuring.
func (o calibration) paths() (recording, profilePath string, err error) {
	if err := doc.Probe(o.out); err != nil {
		return "", "", fmt.Errorf("--out: %w", err)
	}
	name := strings.TrimSuffix(firstRecording, recordingEnd)
	for i := 2; o.fresh && exists(filepath.Join(o.out, name+recordingEnd)); i++ {
		name = fmt.Sprintf("calibration-%d", i)
	}
	profilePath = filepath.Join(o.out, name+profileEnd)
	if info, err := os.Stat(profilePath); err == nil && info.IsDir() {
		return "", "", fmt.Errorf("--out %s: %s is a folder, and the profile goes there: move it, or pass another --out", o.out, profilePath)
	}
	return filepath.Join(o.out, name+recordingEnd), profilePath, nil
}

// The names of a calibration's files in its folder: the first is the one that a further
// calibration goes on with.
const (
	recordingEnd   = ".rec.jsonl"
	profileEnd     = ".profile.json"
	firstRecording = "calibration" + recordingEnd
)

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// record measures into a journal, going on with what it already holds.
func (a *app) record(ctx context.Context, b profile.Backend, o calibration, cfg profile.Config, path string) (err error) {
	j, err := doc.OpenJournal(path)
	if err != nil {
		return err
	}
	defer func() {
		if info, unread := os.Stat(path); err != nil && unread == nil && info.Size() == 0 {
			_ = os.Remove(path) // it holds nothing, and err is the news
		}
		j.Close()
	}()
	past, err := readPast(path)
	if err != nil {
		return err
	}
	inv, err := b.Discover(ctx)
	if err != nil {
		return early(ctx, err)
	}
	if complete, err := a.begun(o, cfg, past, inv, path); err != nil || complete {
		return err
	}
	if j.Dropped() > 0 {
		a.note("%s: dropped an unfinished last line of %d bytes; its point is measured again", path, j.Dropped())
	}
	show := newProgress(a.errOut, a.quiet, inv)
	show.untimed = o.untimed
	err = profile.Calibrate(ctx, b, cfg, past, j, show.step)
	show.close()
	if errors.Is(err, context.Canceled) {
		return fmt.Errorf("interrupted: what this run measured is kept in %s, %s; %s", path, units.Count(show.done, "measurement"), goesOn(path, a.args, show.done))
	}
	var failed *profile.GivenUpError
	if errors.As(err, &failed) {
		return fmt.Errorf("%s: %w; it holds all reasons", path, err)
	}
	return err
}

// early says of an interruption that it came before anything was measured.
func early(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return errors.New("interrupted while the devices were looked for, before anything was measured; the same command begins again")
	}
	return err
}

// readPast collects what a recording holds; an empty or new file holds nothing.
func readPast(path string) (*profile.Past, error) {
	past, visitor := profile.NewPast()
	f, err := os.Open(path)
	if err != nil {
		return nil, openError(err)
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || info.Size() == 0 {
		return past, err
	}
	_, err = profile.Read(path, f, visitor)
	return past, err
}

// dryRun lists what a calibration would do.
func (a *app) dryRun(ctx context.Context, b profile.Backend, cfg profile.Config) error {
	inv, err := b.Discover(ctx)
	if err != nil {
		return early(ctx, err)
	}
	plan, err := profile.DryRun(inv, cfg)
	if err != nil {
		return err
	}
	return a.print(plan, func(w io.Writer) error { return results.DryRun(w, inv, plan) })
}
