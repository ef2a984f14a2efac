package torch

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"strings"
	"time"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/profile"
)

// rank is one device of the job with the worker that runs on it.
type rank struct {
	place    string // "n1/g3": node 1, GPU 3; "n0/r1": rank 1 on the processor of node 0
	node     int
	host     string // the machine's own name, which several nodes of a test cluster may share
	greeting greeting
	own      []int // cores that no other rank has; nil: it shares
	sms      int   // multiprocessors of its GPU that it is confined to; 0: all
	device   op.DeviceType
	// dial starts a worker on the rank's device and greets it.
	dial func(ctx context.Context) (*client, greeting, error)

	client *client // nil: not running
	world  int     // the world it has joined; 0: none

	best map[op.Kind]float64 // highest SM clock seen, by op
}

// ready starts the rank's worker unless it runs.
func (r *rank) ready(ctx context.Context) error {
	if r.client != nil && r.client.gone == nil {
		return nil
	}
	c, _, err := r.dial(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return lost(profile.Crashed, fmt.Errorf("%s: its worker does not start: %w", r.place, plain(err)))
	}
	r.client, r.world = c, 0
	return nil
}

// stop ends the rank's worker.
func (r *rank) stop() {
	if r.client != nil {
		r.client.close()
	}
	r.client, r.world = nil, 0
}

// grace is how long the other ranks get to answer once one has failed. Those
// that waited for it notice at once or have given up already; who still says
// nothing is the one they waited for.
const grace = 2 * time.Second

// answer is what asking one of several ranks came to.
type answer struct {
	rank   int
	frame  frame
	err    error
	silent bool // it had not answered when the grace was over
}

// askAll sends every rank its request and waits for all of them. When one
// fails, the others are given a grace and then killed, and the error names the
// rank that was the cause as far as can be told.
func askAll(ctx context.Context, ranks []*rank, q func(i int) request) ([]frame, error) {
	inner, cancel := context.WithCancel(ctx)
	defer cancel()
	arrived := make(chan answer, len(ranks))
	for i, r := range ranks {
		go func() {
			f, err := r.client.ask(inner, q(i))
			arrived <- answer{rank: i, frame: f, err: err}
		}()
	}
	answers := make([]answer, len(ranks))
	known := make([]bool, len(ranks))
	var over <-chan time.Time
	for range ranks {
		var a answer
		select {
		case a = <-arrived:
		case <-over:
			cancel()
			a = <-arrived
		}
		a.silent = inner.Err() != nil && ctx.Err() == nil
		answers[a.rank], known[a.rank] = a, true
		if isLost(a.err) && over == nil {
			over = time.After(grace)
		}
	}
	frames := make([]frame, len(ranks))
	for i, a := range answers {
		frames[i] = a.frame
	}
	return frames, cause(ctx, ranks, answers)
}

func isLost(err error) bool {
	var e *profile.OpError
	return errors.As(err, &e) && e.Lost
}

// cause picks the error that explains the others: a worker that ended by
// itself, then one that stayed silent while its peers gave up, then the first.
func cause(ctx context.Context, ranks []*rank, answers []answer) error {
	if ctx.Err() != nil && !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return ctx.Err()
	}
	byWeight := append([]answer(nil), answers...)
	sort.SliceStable(byWeight, func(i, j int) bool { return weight(byWeight[i]) < weight(byWeight[j]) })
	worst := byWeight[0]
	if worst.err == nil {
		return nil
	}
	var e *profile.OpError
	if len(ranks) == 1 || !errors.As(worst.err, &e) && !worst.silent {
		return worst.err
	}
	name := fmt.Sprintf("rank %d (%s)", worst.rank, ranks[worst.rank].place)
	if worst.silent {
		return lost(profile.Hung, fmt.Errorf("%s did not answer while its peers gave up (%s); all ranks were stopped", name, peers(byWeight)))
	}
	if e.Class == profile.Hung && hung(answers) == len(ranks) {
		return lost(profile.Hung, fmt.Errorf("no rank of %d answered before the deadline; all were stopped", len(ranks)))
	}
	err := fmt.Errorf("%s: %w", name, e.Err)
	if e.Lost {
		err = fmt.Errorf("%w; all ranks were stopped", err)
	}
	return &profile.OpError{Class: e.Class, Lost: e.Lost, Err: err}
}

// weight orders answers by how much they explain, least first.
func weight(a answer) int {
	var e *profile.OpError
	switch {
	case a.err == nil:
		return 9
	case a.silent:
		return 1
	case !errors.As(a.err, &e):
		return 8
	case e.Class == profile.Crashed && strings.HasPrefix(e.Err.Error(), "worker: "):
		return 0 // its process ended
	case e.Class == profile.Hung:
		return 1
	case e.Lost:
		return 3
	}
	return 2 // a reasoned refusal explains that its peers gave up
}

func hung(answers []answer) int {
	n := 0
	for _, a := range answers {
		var e *profile.OpError
		if errors.As(a.err, &e) && e.Class == profile.Hung {
			n++
		}
	}
	return n
}

// peers is what the first rank that did answer said.
func peers(answers []answer) string {
	for _, a := range answers {
		if a.err != nil && !a.silent {
			return strings.SplitN(a.err.Error(), "\n", 2)[0]
		}
	}
	return "they were stopped"
}
