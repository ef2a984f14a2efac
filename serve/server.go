package serve

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/evenkeel/evenkeel/internal/units"
)

// Planner plans batches whose lengths come sorted, longest first. One goroutine at a
// time uses it. When ctx ends it returns the best plan so far, marked as stopped.
type Planner interface {
	Plan(ctx context.Context, lengths []units.Tokens) (Planned, error)
}

// Renewer is a Planner that keeps something from batch to batch. A panic may leave that half
// changed, and then another one that Renewed makes goes on in its place.
type Renewer interface {
	Planner
	Renewed() Planner
}

// Config of a server.
type Config struct {
	Planners []Planner // that plan side by side
	Setup    Setup
	Limits   Limits
	Journal  string           // a file; "": a crash loses what was not fetched
	Token    string           // that requests must bear; "": none, for a socket of the user's own
	Log      func(string)     // tells what happens; nil: nobody
	Clock    func() time.Time // nil: the machine's
}

// Server plans batches.
type Server struct {
	config  Config
	board   *board
	cache   *cache
	log     *journal
	metrics *metrics
	http    *http.Server
	wait    sync.WaitGroup
	end     context.CancelFunc // of planning
	ctx     context.Context
	waiting atomic.Int64 // requests that wait for a plan

	// accepting is held while a submission or a dropping is on its way to the disk: a
	// client that submits the same batch meanwhile is acknowledged after that.
	accepting sync.Mutex
}

// headerBytes is the most that the header of a request may have.
const headerBytes = 16 << 10

const (
	// patience is how long planners may take to end once their context has.
	patience = 2 * time.Second
	// farewell is how long those who wait for an answer may take to be told that there is
	// none, on a host that has much to do; then their connections are cut.
	farewell = 4 * time.Second
)

// New makes a server and starts its planners. Errors are of the journal.
func New(c Config) (*Server, error) {
	if c.Log == nil {
		c.Log = func(string) {}
	}
	if c.Clock == nil {
		c.Clock = time.Now
	}
	s := &Server{config: c, board: newBoard(c.Limits), cache: newCache(c.Limits.Cached), metrics: newMetrics()}
	s.ctx, s.end = context.WithCancel(context.Background())
	if c.Journal != "" {
		l, notes, err := openLog(c.Journal, s.board, c.Setup.planning())
		if err != nil {
			return nil, err
		}
		s.log = l
		for _, n := range notes {
			c.Log(n)
		}
	}
	s.http = &http.Server{
		Handler: s.routes(), ReadHeaderTimeout: c.Limits.Read, ReadTimeout: c.Limits.Read,
		// Of all: reading, waiting, writing. counted sets a tighter one when an answer
		// begins.
		WriteTimeout: c.Limits.Wait + 3*c.Limits.Read, IdleTimeout: time.Minute, MaxHeaderBytes: headerBytes,
		ErrorLog: quiet(), ConnState: follow,
	}
	for _, p := range c.Planners {
		s.wait.Go(func() { s.work(p) })
	}
	return s, nil
}

// Serve answers requests of a listener until Drain or Close; both may be called for
// several listeners.
func (s *Server) Serve(l net.Listener) error {
	err := s.http.Serve(newBounded(l, s.config.Limits))
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// Drain refuses new batches, plans those that wait, answers the requests that wait
// for them, and closes. Plans that nobody asked for by then stay in the journal, as
// does, with ctx ended earlier, what was not planned.
func (s *Server) Drain(ctx context.Context) error {
	s.board.end(drains)
	select {
	case <-s.planned():
	case <-ctx.Done():
	}
	return s.Close()
}

// planned is closed when all planners have ended.
func (s *Server) planned() <-chan struct{} {
	c := make(chan struct{})
	go func() {
		s.wait.Wait()
		close(c)
	}()
	return c
}

// Close ends the server now. What was acknowledged and not planned stays in the
// journal; requests that wait for it are told that the server ends. An error may be
// that a planner did not end when its context did.
func (s *Server) Close() error {
	s.board.end(stopped)
	s.end()
	ctx, cancel := context.WithTimeout(context.Background(), farewell)
	defer cancel()
	err := s.http.Shutdown(ctx)
	if err != nil {
		err = s.http.Close()
	}
	select {
	case <-s.planned():
	case <-time.After(patience):
		err = errors.Join(err, fmt.Errorf("a planner still runs %s after the end of the server", patience))
	}
	return errors.Join(err, s.log.close())
}

func (s *Server) isDraining() bool { return s.board.isEnding() }

// work plans one batch after the other.
func (s *Server) work(p Planner) {
	for e := s.board.next(); e != nil; e = s.board.next() {
		a, panicked := s.plan(p, e)
		if r, ok := p.(Renewer); ok && panicked {
			p = r.Renewed()
		}
		if s.ctx.Err() != nil && (a.Stopped || a.Error != "") {
			// The end of the server cut it short. The next server makes the whole plan, and
			// ranks that fetch from either must not get different ones.
			return
		}
		s.publish(e, a)
		if err := s.log.trim(s.board); err != nil {
			s.config.Log(err.Error())
		}
	}
}

// publish writes an answer to the journal and gives it to who asks for it.
func (s *Server) publish(e *entry, a Answer) {
	a.Job, a.Step, a.State = e.job, e.step, Done
	if e.unnamed() {
		a.Step = e.asked
	}
	if a.Error != "" {
		a.State = Failed
	}
	data, err := json.Marshal(a, json.Deterministic(true))
	if err != nil {
		a.State, data = Failed, failure(e.key, err)
	}
	finish := func() { s.board.finish(e, a.State, data) }
	if e.unnamed() {
		finish()
		return
	}
	if err := s.log.commit(result(e, a.State == Failed, data), finish); err != nil {
		// It was acknowledged and is planned again after a restart.
		s.config.Log(err.Error())
		finish()
	}
}

func failure(k key, err error) []byte {
	data, _ := json.Marshal(Answer{Job: k.job, Step: k.step, State: Failed, Error: err.Error()}) // strings and numbers always encode
	return data
}

// plan answers a batch from the cache or by planning it, and says whether the planner panicked.
func (s *Server) plan(p Planner, e *entry) (a Answer, panicked bool) {
	sorted, from := ordered(e.lengths)
	digest := digestOf(sorted)
	if made, hit := s.cache.get(digest); hit {
		s.metrics.planned("cached", 0)
		a = answer(made, from)
		a.Cached = true
		return a, false
	}
	ctx, cancel := s.deadline(e)
	defer cancel()
	begin := s.config.Clock()
	made, a, err := guarded(ctx, p, sorted, from)
	took := s.config.Clock().Sub(begin).Seconds()
	if err != nil {
		s.metrics.planned("failed", took)
		fell, panicked := errors.AsType[*panicError](err)
		if panicked {
			s.config.Log(fmt.Sprintf("a planner panicked on a batch of %s (job %q, step %d), and is replaced: %v\n%s", units.Count(len(sorted), "sequence"), e.job, e.step, fell.value, fell.stack))
		}
		return Answer{Error: err.Error(), Took: took}, panicked
	}
	s.metrics.planned("planned", took)
	s.cache.put(digest, made)
	a.Took = took
	return a, false
}

// deadline ends with the time for planning a batch, with the server, and with the
// client that alone wants it.
func (s *Server) deadline(e *entry) (context.Context, context.CancelFunc) {
	limit := e.deadline
	if limit == 0 {
		limit = s.config.Limits.PlanningS
	}
	ctx, cancel := context.WithTimeout(s.ctx, time.Duration(limit*float64(time.Second)))
	if e.client == nil {
		return ctx, cancel
	}
	stop := context.AfterFunc(e.client, cancel)
	return ctx, func() {
		stop()
		cancel()
	}
}

// panicError is a planner's panic.
type panicError struct {
	value any
	stack []byte // for who mends it
}

// Error says what a client can do.
func (e *panicError) Error() string {
	return fmt.Sprintf("the planner failed on this batch: %v; please report its lengths", e.value)
}

// guarded turns a planner's panic, or a plan that is none, into an error: one batch
// must not end the server.
func guarded(ctx context.Context, p Planner, sorted []units.Tokens, from []int) (made Planned, a Answer, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = &panicError{r, debug.Stack()}
		}
	}()
	if made, err = p.Plan(ctx, sorted); err != nil {
		return Planned{}, Answer{}, err
	}
	return made, answer(made, from), nil
}

func answer(made Planned, from []int) Answer {
	a := Answer{State: Done, Interval: made.Interval, Bound: made.Bound, Stopped: made.Stopped}
	var time units.Seconds
	if made.Pipeline != nil {
		a.Pipeline, time = restage(made.Pipeline, from), made.Pipeline.Time
	} else {
		a.Plan, time = rename(made.Plan, from), made.Plan.Time
	}
	if made.Bound > 0 {
		a.Gap = float64(time/made.Bound) - 1
	}
	return a
}
