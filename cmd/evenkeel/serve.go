package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/serve"
	"github.com/evenkeel/evenkeel/solver/batch"
	"github.com/spf13/cobra"
)

// serving is what the flags of serve say.
type serving struct {
	problem
	socket, listen, tokenFile string
	journal                   string
	workers                   int
	drain, maxPlanning        time.Duration
	limits                    serve.Limits
}

// mostWorkers is more than any machine has processors: a slip of the hand must not
// take all memory for planners.
const mostWorkers = 1024

// longestWait is more than anybody waits with a connection open.
const longestWait = time.Hour

func (a *app) serve() *cobra.Command {
	o := serving{limits: serve.DefaultLimits()}
	c := &cobra.Command{
		Use:   "serve --socket evenkeel.sock (--costs NAME --devices 64 | --cluster ... --model config.json)",
		Short: "Plan batches of unequal sequences for a training loop, over a Unix socket",
		Long: `Plans global batches of unequal sequences ahead of a training loop: lengths of the
batches to come are submitted, plans are fetched by step, while the step before
trains. It speaks HTTP with JSON on a Unix socket that only its owner may use;
GET /openapi.yaml describes it, and python/evenkeel has a client. The lower bound of an
answer is of plans of groups of the classes of GET /v1/setup, at their prices; by laws a
plan's time has its 90 % interval beside it.

With --stages-of a plan of solve --pipeline, batches are planned on its stages, as chunks
that go through them; the model's layers stay where they are, and the lower bound is of plans
on these stages. The --cluster and --model are to be those that it was planned for: device
types by rank and the number of layers are compared, more of them is not known.

Batches that were acknowledged are planned whatever other clients do; with
--journal that holds across a crash too. On SIGTERM or Ctrl-C no more batches
are taken, those that wait are planned, and the server ends after --drain at
the latest. No network port is opened unless --listen asks for one, which wants
--token-file. There is no TLS: the token and all else go over it in clear text, so listen on
loopback, or behind a proxy that has TLS.`,
		Example: `  evenkeel serve --socket evenkeel.sock --costs flexsp-gpt-7b --devices 64
  evenkeel serve --socket evenkeel.sock --cluster "8x8 h100_sxm + 8x8 a100_sxm" --model config.json --journal plans.journal
  evenkeel serve --socket evenkeel.sock --cluster "2x8 h100_sxm" --model config.json --stages-of p.plan.json
  curl --unix-socket evenkeel.sock -d '{"lengths_tokens":[131072,4096,512]}' http://x/v1/plan`,
		Args: args(cobra.NoArgs, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			o.recomputeGiven = c.Flags().Changed("recompute")
			o.priced.perNodeGiven = c.Flags().Changed("per-node")
			if err := notEmpty(c, "socket", "listen", "token-file", "journal", "stages-of", "profile", "link", "network", "dtype", "costs", "context", "memory-reserve"); err != nil {
				return err
			}
			idle := o.idle
			if o.staged.stagesOf != "" {
				idle = o.idleStages
			}
			if err := idle(c); err != nil {
				return err
			}
			return a.runServe(c.Context(), o)
		},
	}
	f := c.Flags()
	f.StringVar(&o.socket, "socket", "", "Unix socket to listen on, for its owner only")
	f.StringVar(&o.listen, "listen", "", "address to listen on as well, such as 127.0.0.1:8137; wants --token-file")
	f.StringVar(&o.tokenFile, "token-file", "", "file that holds the token which every request must bear")
	f.StringVar(&o.journal, "journal", "", "file that keeps acknowledged batches and their plans across a crash")
	f.IntVar(&o.workers, "workers", runtime.GOMAXPROCS(0), "how many batches are planned side by side")
	f.DurationVar(&o.drain, "drain", 10*time.Second, "how long the server may take to end")
	f.IntVar(&o.limits.Queue, "queue", o.limits.Queue, "batches that may wait to be planned; more are refused until some are done")
	f.IntVar(&o.limits.Kept, "keep", o.limits.Kept, "how many plans are kept for their jobs: the latest")
	f.IntVar(&o.limits.Sequences, "max-sequences", o.limits.Sequences, "most sequences of a batch")
	f.DurationVar(&o.maxPlanning, "max-planning", seconds(o.limits.PlanningS), "longest that planning a batch may take; then the best plan so far is its answer")
	f.DurationVar(&o.limits.Wait, "max-wait", o.limits.Wait, "longest that a request may wait for a plan")
	f.StringVar(&o.staged.stagesOf, "stages-of", "", "the plan of a pipeline, as solve makes one: batches are planned on its stages, ranks and layers, instead of in groups side by side")
	o.lawFlags(c)
	recompute := c.Flags().Lookup("recompute")
	recompute.Usage, recompute.DefValue = "none or full (default: whichever is faster, group by group)", ""
	c.Flags().Lookup("zero").Usage = "zero0 to zero3: what is sharded over the ranks"
	o.priced.flags(c, "384000")
	return c
}

func (a *app) runServe(ctx context.Context, o serving) error {
	if err := o.validate(); err != nil {
		return err
	}
	if err := notLost([]output{{flag: "--socket", path: o.socket}, {flag: "--journal", path: o.journal}}); err != nil {
		return err
	}
	token, err := o.token()
	if err != nil {
		return err
	}
	if err := a.reachable(o); err != nil { // pricing may take a minute
		return err
	}
	o.accumulate, o.limits.PlanningS = 1, o.maxPlanning.Seconds()
	c, err := a.config(ctx, o)
	if err != nil {
		return err
	}
	for _, s := range o.ofConfig([]units.Tokens{c.Limits.Tokens}) {
		a.note("note: of what is planned here, %s", s)
	}
	c.Token, c.Log = token, func(s string) { a.note("%s", s) }
	listeners, err := o.listeners()
	defer func() {
		for _, l := range listeners {
			_ = l.Close() // the server closed it already where it ran
		}
	}()
	if err != nil {
		return err
	}
	// Where planners take all processors, the runtime looks only every 10 ms whether a
	// client has sent something. One more, and the kernel gives way to it at once.
	runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), o.workers+1))
	s, err := serve.New(c)
	if err != nil {
		return err
	}
	for _, l := range listeners {
		if exposed(l.Addr()) {
			a.note("note: %s is no loopback address, and there is no TLS: the token and all else go over the network in clear text; listen on 127.0.0.1, or behind a proxy that has TLS", l.Addr())
		}
		a.note("plans batches on %s: GET /openapi.yaml says how to ask", l.Addr())
	}
	return o.until(ctx, a, s, listeners)
}

// validate reports the first flag that is missing or out of range.
func (o serving) validate() error {
	switch {
	case o.socket == "" && o.listen == "":
		return usagef("serve: --socket is missing (see: evenkeel serve --help)")
	case o.workers > mostWorkers:
		return usagef("--workers %d: want at most %d: each has tables of its own", o.workers, mostWorkers)
	case o.drain < 0:
		return usagef("--drain %s: want a time such as 10s", o.drain)
	}
	if least := serve.DefaultLimits().Wait; o.limits.Wait < least || o.limits.Wait > longestWait {
		return usagef("--max-wait %s: want %s, which clients count on, to %s", o.limits.Wait, least, longestWait)
	}
	if o.maxPlanning < time.Millisecond || o.maxPlanning > longestWait {
		return usagef("--max-planning %s: want 1ms to %s", o.maxPlanning, longestWait)
	}
	for _, n := range []struct {
		flag  string
		value int
	}{{"workers", o.workers}, {"queue", o.limits.Queue}, {"keep", o.limits.Kept}, {"max-sequences", o.limits.Sequences}} {
		if n.value < 1 {
			return usagef("--%s %d: want at least 1", n.flag, n.value)
		}
	}
	return nil
}

// reachable says, before anything is priced, what of the flags cannot be listened on or
// written to.
func (a *app) reachable(o serving) error {
	if o.socket != "" {
		if err := serve.CheckSocket(o.socket); err != nil {
			return err
		}
	}
	if o.listen != "" {
		if _, err := net.ResolveTCPAddr("tcp", o.listen); err != nil {
			return usagef("--listen %s: %w; want an address such as 127.0.0.1:8137", o.listen, err)
		}
	}
	if err := (output{flag: "--journal", path: o.journal}).probe(); err != nil || o.journal == "" {
		return err
	}
	note, err := serve.CheckJournal(o.journal)
	if note != "" {
		a.note("%s", note)
	}
	if err != nil {
		return fmt.Errorf("--journal: %w", err)
	}
	return nil
}

// listeners opens the socket and the port that were asked for. After an error those
// that are open already are returned with it.
func (o serving) listeners() (open []net.Listener, err error) {
	if o.socket != "" {
		l, err := serve.Listen(o.socket)
		if err != nil {
			return open, err
		}
		open = append(open, l)
	}
	if o.listen != "" {
		l, err := net.Listen("tcp", o.listen)
		if err != nil {
			return open, usagef("--listen %s: %w", o.listen, err)
		}
		open = append(open, l)
	}
	return open, nil
}

// exposed says whether others than this machine's users can reach an address.
func exposed(at net.Addr) bool {
	tcp, ok := at.(*net.TCPAddr)
	return ok && !tcp.IP.IsLoopback()
}

// until serves until ctx ends, and drains.
func (o serving) until(ctx context.Context, a *app, s *serve.Server, listeners []net.Listener) error {
	failed := make(chan error, len(listeners))
	for _, l := range listeners {
		go func() { failed <- s.Serve(l) }()
	}
	select {
	case err := <-failed:
		return errors.Join(err, s.Close())
	case <-ctx.Done():
	}
	a.note("ending: no more batches are taken, those that wait are planned")
	end, cancel := context.WithTimeout(context.Background(), o.drain)
	defer cancel()
	return s.Drain(end)
}

// token reads the token that a network port wants.
func (o serving) token() (string, error) {
	if o.listen != "" && o.tokenFile == "" {
		return "", usagef("--listen %s: others can reach it: --token-file is missing", o.listen)
	}
	if o.tokenFile == "" {
		return "", nil
	}
	data, err := os.ReadFile(o.tokenFile)
	if err != nil {
		return "", openError(err)
	}
	t := strings.TrimSpace(string(data))
	if len(t) < 16 {
		return "", fmt.Errorf("--token-file %s: a token of %s: want at least 16", o.tokenFile, units.Count(len(t), "character"))
	}
	return t, nil
}

// config is the server's, with a planner a worker.
func (a *app) config(ctx context.Context, o serving) (serve.Config, error) {
	if o.staged.stagesOf != "" {
		return a.stagedConfig(o)
	}
	prices, err := a.prices(ctx, o.problem, 0, nil)
	if err != nil {
		return serve.Config{}, err
	}
	c, err := o.config(prices)
	a.warn(prices.profile, c.Setup.Fleet)
	return c, err
}

// warn tells who starts a server what else the notes of every plan would say: clients get none.
func (a *app) warn(p *costmodel.Profile, fleet []serve.SetupPool) {
	var devices []string
	for _, f := range fleet {
		devices = append(devices, f.Device)
	}
	for _, s := range acrossMakers(p, devices) {
		a.note("note: %s", s)
	}
}

// config is the server's where it plans groups.
func (o serving) config(prices priceList) (serve.Config, error) {
	p, err := batch.NewProblem(prices.Costs, []units.Tokens{1})
	if err != nil {
		return serve.Config{}, err
	}
	c := serve.Config{Limits: o.limits, Journal: o.journal, Setup: serve.Setup{Tool: tool, Costs: prices.words}}
	for _, f := range p.Fleet {
		c.Setup.Fleet = append(c.Setup.Fleet, serve.SetupPool(batch.PoolEntry(f)))
	}
	for _, k := range p.Classes {
		c.Limits.Tokens = max(c.Limits.Tokens, k.Cap)
		c.Setup.Classes = append(c.Setup.Classes, setupClass(k))
	}
	if prices.Longest > 0 && prices.Longest < c.Limits.Tokens {
		c.Limits.Tokens, c.Limits.TokensOf = prices.Longest, prices.beyond
	}
	c.Setup.Limits = c.Limits.Told()
	for range o.workers {
		c.Planners = append(c.Planners, newOnline(prices))
	}
	return c, nil
}

// setupClass is all that whoever runs a group must know of its kind.
func setupClass(k batch.Class) serve.SetupClass {
	c := serve.SetupClass{Name: k.Name, Uses: k.Uses, Shares: k.Shares, Heads: k.Heads, QHeads: k.QHeads, Schedule: k.Schedule, Recompute: k.Recompute, Cap: k.Cap}
	for _, g := range k.Groups {
		members := make([]serve.SetupMember, len(g))
		for i, m := range g {
			members[i] = serve.SetupMember{Rank: m.Rank, QHeads: m.QHeads}
		}
		c.Groups = append(c.Groups, members)
	}
	return c
}

// online plans with our own planner, which keeps its tables from batch to batch.
type online struct {
	prices  priceList
	planner groupPlanner
}

// groupPlanner is a *batch.Planner.
type groupPlanner interface {
	Plan(ctx context.Context, p *batch.Problem) (*batch.Plan, error)
	Bound() units.Seconds
}

func newOnline(prices priceList) *online {
	return &online{prices: prices, planner: batch.NewPlanner(batch.Options{})}
}

// Renewed implements serve.Renewer: a panic may leave the tables half made.
func (o *online) Renewed() serve.Planner { return newOnline(o.prices) }

// Plan implements serve.Planner.
func (o *online) Plan(ctx context.Context, lengths []units.Tokens) (serve.Planned, error) {
	p, err := batch.NewProblem(o.prices.Costs, lengths)
	if err != nil {
		return serve.Planned{}, err
	}
	plan, err := o.planner.Plan(ctx, p)
	if err != nil {
		return serve.Planned{}, err
	}
	if err := sound(batch.Check(p, plan)); err != nil {
		return serve.Planned{}, err
	}
	made := serve.Planned{Plan: plan, Bound: o.planner.Bound(), Stopped: ctx.Err() != nil}
	if !made.Stopped { // who set a deadline waits for the plan and not for its error
		made.Interval, err = batch.Interval(p, plan)
	}
	return made, err
}

// sound is an error of a plan that breaks the rules, which nobody is to train by. The check
// is of other hands than the planner, and takes less than a hundredth of its time.
func sound(found []error) error {
	if len(found) == 0 {
		return nil
	}
	return fmt.Errorf("the plan breaks the rules: %w; this is a bug of evenkeel: please report the batch's lengths", found[0])
}
