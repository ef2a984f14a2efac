package serve

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/evenkeel/evenkeel/internal/units"
)

// Planner plans batches whose lengths come sorted, longest first. One goroutine at a
// time uses it. When ctx ends it returns the best plan so far, marked as stopped.
type Planner interface {
	Plan(ctx context.Context, lengths []units.Tokens) (Planned, error)
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
	log     *log
	metrics *metrics
	http    *http.Server
	wait    sync.WaitGroup
	end     context.CancelFunc // of planning
	ctx     context.Context

	mu       sync.Mutex
	draining bool
}

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
		l, notes, err := openLog(c.Journal, s.board)
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
		WriteTimeout: c.Limits.Wait + c.Limits.Read, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
		ErrorLog: quiet(),
	}
	for _, p := range c.Planners {
		s.wait.Go(func() { s.work(p) })
	}
	return s, nil
}

// Serve answers requests of a listener until Drain or Close; both may be called for
// several listeners.
func (s *Server) Serve(l net.Listener) error {
	err := s.http.Serve(newBounded(l, s.config.Limits.Connections))
	if err == http.ErrServerClosed {
		return nil
	}
	return err
}

// Drain refuses new batches, plans those that wait, lets their jobs fetch the plans
// until ctx ends, and closes. With ctx ended earlier, what was not planned stays in
// the journal.
func (s *Server) Drain(ctx context.Context) error {
	s.mu.Lock()
	s.draining = true
	s.mu.Unlock()
	s.board.end(drains)
	planned := make(chan struct{})
	go func() {
		s.wait.Wait()
		close(planned)
	}()
	select {
	case <-planned:
	case <-ctx.Done():
	}
	return s.Close()
}

// Close ends the server now. What was acknowledged and not planned stays in the
// journal.
func (s *Server) Close() error {
	s.board.end(stopped)
	s.end()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	err := s.http.Shutdown(ctx)
	if err != nil {
		err = s.http.Close()
	}
	s.wait.Wait()
	if closeErr := s.log.close(); err == nil {
		err = closeErr
	}
	return err
}

func (s *Server) isDraining() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.draining
}

// work plans one batch after the other.
func (s *Server) work(p Planner) {
	for e := s.board.next(); e != nil; e = s.board.next() {
		state := Done
		a := s.plan(p, e.lengths, e.deadline)
		a.Job, a.Step = e.job, e.step
		if a.Error != "" {
			state = Failed
		}
		a.State = state
		data, err := json.Marshal(a, json.Deterministic(true))
		if err != nil {
			state, data = Failed, failure(e.key, err)
		}
		if err := s.note(e, state, data); err != nil {
			// It was acknowledged and is planned again after a restart.
			s.config.Log(err.Error())
		}
		s.board.finish(e, state, data)
		if err := s.log.trim(s.board); err != nil {
			s.config.Log(err.Error())
		}
	}
}

// note writes an answer to the journal, but not one that the end of the server cut
// short: the next server makes the whole one.
func (s *Server) note(e *entry, state State, data []byte) error {
	if e.unnamed() || s.ctx.Err() != nil {
		return nil
	}
	return s.log.append(planned{T: "result", Job: e.job, Step: e.step, Digest: e.digest, Failed: state == Failed, Answer: data})
}

func failure(k key, err error) []byte {
	data, _ := json.Marshal(Answer{Job: k.job, Step: k.step, State: Failed, Error: err.Error()}) // strings and numbers always encode
	return data
}

// plan answers a batch from the cache or by planning it.
func (s *Server) plan(p Planner, lengths []units.Tokens, deadline float64) Answer {
	sorted, from := ordered(lengths)
	digest := digestOf(sorted)
	if made, hit := s.cache.get(digest); hit {
		s.metrics.planned("cached", 0)
		a := answer(made, from)
		a.Cached = true
		return a
	}
	if deadline == 0 {
		deadline = s.config.Limits.PlanningS
	}
	ctx, cancel := context.WithTimeout(s.ctx, time.Duration(deadline*float64(time.Second)))
	defer cancel()
	begin := s.config.Clock()
	made, err := guarded(ctx, p, sorted)
	took := s.config.Clock().Sub(begin).Seconds()
	if err != nil {
		s.metrics.planned("failed", took)
		return Answer{Error: err.Error(), Took: took}
	}
	s.metrics.planned("planned", took)
	s.cache.put(digest, made)
	a := answer(made, from)
	a.Took = took
	return a
}

// guarded turns a planner's panic into an error: one batch must not end the server.
func guarded(ctx context.Context, p Planner, lengths []units.Tokens) (made Planned, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("the planner failed on this batch: %v; please report its lengths", r)
		}
	}()
	return p.Plan(ctx, lengths)
}

func answer(made Planned, from []int) Answer {
	a := Answer{State: Done, Plan: rename(made.Plan, from), Bound: made.Bound, Stopped: made.Stopped}
	if made.Bound > 0 {
		a.Gap = float64(made.Plan.Time/made.Bound) - 1
	}
	return a
}
