package serve

import (
	"bytes"
	"crypto/subtle"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json"

	"github.com/evenkeel/evenkeel/internal/doc"
)

//go:embed openapi.yaml
var openAPI []byte

// routes is the whole interface.
func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/jobs/{job}/batches", s.route("submit", s.submit))
	mux.HandleFunc("GET /v1/jobs/{job}/plans/{step}", s.route("fetch", s.fetch))
	mux.HandleFunc("DELETE /v1/jobs/{job}/plans/{step}", s.route("drop", s.dropPlan))
	mux.HandleFunc("POST /v1/plan", s.route("plan", s.planNow))
	mux.HandleFunc("GET /v1/setup", s.route("setup", func(w http.ResponseWriter, _ *http.Request) error { return reply(w, http.StatusOK, s.config.Setup) }))
	mux.HandleFunc("GET /openapi.yaml", s.route("openapi", func(w http.ResponseWriter, _ *http.Request) error {
		w.Header().Set("Content-Type", "application/yaml")
		_, err := w.Write(openAPI)
		return err
	}))
	mux.HandleFunc("GET /healthz", s.route("health", s.health))
	mux.HandleFunc("GET /metrics", s.route("metrics", s.writeMetrics))
	other := s.route("other", func(w http.ResponseWriter, r *http.Request) error {
		if methods := methodsOf(mux, r); len(methods) > 0 && clean(r.URL) {
			w.Header().Set("Allow", strings.Join(methods, ", "))
			return &Problem{"bad_method", "", fmt.Sprintf("%s %s: want %s; GET /openapi.yaml describes what there is", r.Method, r.URL.Path, strings.Join(methods, " or "))}
		}
		return &Problem{"not_found", "", fmt.Sprintf("%s %s: no such thing here; GET /openapi.yaml describes what there is", r.Method, r.URL.Path)}
	})
	mux.HandleFunc("/", other)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if clean(r.URL) {
			mux.ServeHTTP(w, r)
			return
		}
		other(w, r) // the mux would send the client elsewhere, without a Problem and past the token
	})
}

// clean says whether a path has no empty and no dotted elements.
func clean(u *url.URL) bool {
	p := u.EscapedPath()
	return strings.TrimSuffix(p, "/") == strings.TrimSuffix(path.Clean(p), "/")
}

// methodsOf lists the methods that the path of a request knows.
func methodsOf(mux *http.ServeMux, r *http.Request) []string {
	var known []string
	for _, method := range []string{http.MethodDelete, http.MethodGet, http.MethodPost} {
		other := &http.Request{Method: method, URL: r.URL, Host: r.Host}
		if _, pattern := mux.Handler(other); pattern != "/" {
			known = append(known, method)
		}
	}
	return known
}

// route counts a request, checks its token and turns its error into an answer.
func (s *Server) route(name string, handle func(http.ResponseWriter, *http.Request) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		c := &counted{ResponseWriter: w, code: http.StatusOK, within: s.config.Limits.Read}
		begin := s.config.Clock()
		defer func() { s.metrics.request(name, c.code, s.config.Clock().Sub(begin).Seconds()) }()
		if !s.may(r) {
			s.refuse(c, &Problem{"unauthorized", "Authorization", "missing or wrong: send the server's token, Authorization: Bearer ..."})
			return
		}
		if err := queryOf(name, r); err != nil {
			s.refuse(c, err)
			return
		}
		switch err := handle(c, r); {
		case errors.Is(err, errGone):
			c.code = gone
		case err != nil:
			s.refuse(c, err)
		}
	}
}

// errGone ends a request whose client is gone, and gone is the status that it is counted
// with, as is usual: nobody is there to be answered.
var errGone = errors.New("the client is gone")

const gone = 499

// queryOf refuses keys of a query that mean nothing to a route, as unknown fields of a body are.
func queryOf(route string, r *http.Request) error {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return &Problem{"bad_request", "", fmt.Sprintf("the query: %v", err)}
	}
	for _, key := range slices.Sorted(maps.Keys(query)) {
		switch {
		case slices.Contains([]string{"other", "health", "metrics", "openapi"}, route): // no plans depend on it
		case route != "fetch":
			return &Problem{"bad_request", key, "unknown: no query is known here; leave it out"}
		case key != "wait_s":
			return &Problem{"bad_request", key, "unknown: of a query only wait_s is known here"}
		case len(query[key]) > 1:
			return &Problem{"bad_request", key, "given twice: want one"}
		}
	}
	return nil
}

// may says whether a request bears the token, where one is wanted.
func (s *Server) may(r *http.Request) bool {
	if s.config.Token == "" {
		return true
	}
	given, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	return ok && subtle.ConstantTimeCompare([]byte(given), []byte(s.config.Token)) == 1
}

// refuse answers with a problem.
func (s *Server) refuse(w *counted, err error) {
	var p *Problem
	if !errors.As(err, &p) {
		p = &Problem{"internal", "", err.Error()}
	}
	if p.Code == "queue_full" || p.Code == "draining" {
		w.Header().Set("Retry-After", "1")
	}
	if p.Code == "too_large" || p.Code == "timeout" {
		w.Header().Set("Connection", "close") // the rest of the body is not read
	}
	_ = reply(w, p.status(), p) // a client that is gone needs no answer
}

func reply(w http.ResponseWriter, code int, v any) error {
	data, err := json.Marshal(v, json.Deterministic(true))
	if err != nil {
		return err
	}
	return replyBytes(w, code, data)
}

func replyBytes(w http.ResponseWriter, code int, data []byte) error {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, err := w.Write(append(data, '\n'))
	return err
}

// counted remembers the code of an answer and bounds the time that it may take.
type counted struct {
	http.ResponseWriter
	code   int
	begun  bool
	within time.Duration
}

// WriteHeader implements http.ResponseWriter.
func (c *counted) WriteHeader(code int) {
	c.code, c.begun = code, true
	_ = http.NewResponseController(c.ResponseWriter).SetWriteDeadline(time.Now().Add(c.within)) // sockets have deadlines
	c.ResponseWriter.WriteHeader(code)
}

// Write implements http.ResponseWriter.
func (c *counted) Write(data []byte) (int, error) {
	if !c.begun {
		c.WriteHeader(http.StatusOK)
	}
	return c.ResponseWriter.Write(data)
}

// body decodes a request strictly.
func (s *Server) body(r *http.Request, v any) error {
	data, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, s.config.Limits.Body))
	var large *http.MaxBytesError
	var timeout net.Error
	switch {
	case errors.As(err, &large):
		return &Problem{"too_large", "", fmt.Sprintf("the body has more than %d bytes; submit fewer batches at a time", s.config.Limits.Body)}
	case errors.As(err, &timeout) && timeout.Timeout() || errors.Is(err, os.ErrDeadlineExceeded):
		return &Problem{"timeout", "", fmt.Sprintf("the body did not arrive within %s", s.config.Limits.Read)}
	case err != nil:
		return &Problem{"bad_request", "", "the body broke off: " + err.Error()}
	}
	if len(bytes.TrimSpace(data)) == 0 {
		return &Problem{"bad_request", "", "the body is empty: want JSON, as GET /openapi.yaml describes it"}
	}
	if err := doc.DecodeStrict("body", 0, data, v); err != nil {
		var e *doc.Error
		if errors.As(err, &e) {
			said := *e
			said.Hint = "" // is of files
			if said.Field != "" {
				said.File, said.Line, said.Field = "", 0, "" // the problem names it
			}
			return &Problem{"bad_request", e.Field, strings.TrimLeft(strings.TrimPrefix(said.Error(), "body"), ": ")}
		}
		return &Problem{"bad_request", "", err.Error()}
	}
	return nil
}

// jobOf reads the job of a path.
func jobOf(r *http.Request) (string, error) {
	job := r.PathValue("job")
	switch {
	case len(job) > 100:
		return "", &Problem{"bad_request", "job", fmt.Sprintf("a name of %d bytes: want at most 100", len(job))}
	case !utf8.ValidString(job):
		return "", &Problem{"bad_request", "job", fmt.Sprintf("%q: want UTF-8", job)}
	}
	return job, nil
}

// nameOf reads the job and step of a path.
func nameOf(r *http.Request) (key, error) {
	job, err := jobOf(r)
	if err != nil {
		return key{}, err
	}
	step, err := strconv.ParseInt(r.PathValue("step"), 10, 64)
	if err != nil || step < 0 {
		return key{}, &Problem{"bad_request", "step", fmt.Sprintf("%q: want a whole number of 0 or more", r.PathValue("step"))}
	}
	return key{job, step}, nil
}

// submit takes batches in.
func (s *Server) submit(w http.ResponseWriter, r *http.Request) error {
	job, err := jobOf(r)
	if err != nil {
		return err
	}
	var a asked
	if err := s.body(r, &a); err != nil {
		return err
	}
	sub, p := a.submission(s.config.Limits)
	if p != nil {
		return p
	}
	if err := s.accept(job, sub.Batches); err != nil {
		return err
	}
	steps := make([]int64, len(sub.Batches))
	for i, b := range sub.Batches {
		steps[i] = b.Step
	}
	return reply(w, http.StatusAccepted, map[string]any{"job": job, "steps": steps})
}

// accept puts batches into the queue once they are on the disk.
func (s *Server) accept(job string, batches []Batch) error {
	s.accepting.Lock()
	defer s.accepting.Unlock()
	fresh, refusal := s.board.submit(job, batches)
	if refusal != nil {
		return refusal
	}
	if len(fresh) == 0 {
		return nil
	}
	line := accepted{T: "accept", Job: job}
	for _, e := range fresh {
		line.Batches = append(line.Batches, e.batch())
	}
	if err := s.log.commit(line, func() { s.board.enqueue(fresh) }); err != nil {
		s.board.forget(fresh)
		return &Problem{"journal", "", "not accepted: " + err.Error()}
	}
	return nil
}

// fetch answers with a plan, or how far it is.
func (s *Server) fetch(w http.ResponseWriter, r *http.Request) error {
	k, err := nameOf(r)
	if err != nil {
		return err
	}
	wait, err := s.waitOf(r)
	if err != nil {
		return err
	}
	e, state, data := s.board.find(k, wait > 0)
	if e == nil {
		return &Problem{"not_found", "step", fmt.Sprintf("%d of job %q: never submitted, or its plan was dropped: the server keeps the last %d", k.step, k.job, s.config.Limits.Kept)}
	}
	if data == nil && wait > 0 {
		if state, data, err = s.await(r, e, wait); err != nil {
			return err
		}
	}
	if data == nil {
		return reply(w, http.StatusAccepted, Answer{Job: k.job, Step: k.step, State: state})
	}
	return replyBytes(w, http.StatusOK, data)
}

// await waits for the answer of a batch, for the end of wait or for that of the client
// or the server. The answer is the entry's: by its name there may be none any more,
// for it has made room for others.
func (s *Server) await(r *http.Request, e *entry, wait time.Duration) (State, []byte, error) {
	s.waiting.Add(1)
	defer s.waiting.Add(-1)
	timer := time.NewTimer(wait)
	defer timer.Stop()
	var none error
	select {
	case <-e.ready:
		none = &Problem{"not_found", "step", fmt.Sprintf("%d of job %q: its submission failed; submit it again", e.step, e.job)}
	case <-timer.C:
	case <-r.Context().Done():
	case <-s.ctx.Done():
		none = ended("does not plan this batch any more; with a journal the next one does")
	}
	if r.Context().Err() != nil {
		return "", nil, errGone // its end stops its planner, whose half a plan may be there first
	}
	state, data := s.board.look(e)
	if data != nil {
		none = nil
	}
	return state, data, none
}

func (s *Server) waitOf(r *http.Request) (time.Duration, error) {
	text := r.URL.Query().Get("wait_s")
	if text == "" {
		return 0, nil
	}
	t, err := strconv.ParseFloat(text, 64)
	if most := s.config.Limits.Wait.Seconds(); err != nil || !(t >= 0 && t <= most) {
		return 0, &Problem{"bad_request", "wait_s", fmt.Sprintf("%q: want 0 to %v seconds; see --max-wait", text, most)}
	}
	return time.Duration(t * float64(time.Second)), nil
}

// dropPlan forgets a plan that was fetched.
func (s *Server) dropPlan(w http.ResponseWriter, r *http.Request) error {
	k, err := nameOf(r)
	if err != nil {
		return err
	}
	s.accepting.Lock()
	defer s.accepting.Unlock()
	if !s.board.planned(k) {
		return &Problem{"not_found", "step", fmt.Sprintf("%d of job %q: no plan that could be dropped", k.step, k.job)}
	}
	if err := s.log.commit(dropped{T: "drop", Job: k.job, Step: k.step}, func() { s.board.remove(k) }); err != nil {
		return &Problem{"journal", "", "not dropped: " + err.Error()}
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// planNow submits a batch under a name of its own, waits for its plan and drops it.
func (s *Server) planNow(w http.ResponseWriter, r *http.Request) error {
	var b Batch
	if err := s.body(r, &b); err != nil {
		return err
	}
	if p := b.check("", s.config.Limits); p != nil {
		p.Field = strings.TrimPrefix(p.Field, ".")
		return p
	}
	job, step := s.metrics.next()
	fresh, refusal := s.board.submit(job, []Batch{{Step: step, Lengths: b.Lengths, DeadlineS: b.DeadlineS}})
	if refusal != nil {
		return refusal
	}
	e := fresh[0]
	e.urgent, e.asked, e.client = true, b.Step, r.Context()
	s.board.enqueue(fresh)
	defer s.board.abandon(e)
	_, data, err := s.await(r, e, s.config.Limits.Wait)
	if err != nil {
		return err
	}
	if data != nil {
		return replyBytes(w, http.StatusOK, data)
	}
	queued, _, _, _ := s.board.sizes()
	return &Problem{"queue_full", "", fmt.Sprintf("not planned within %s: %s; submit it as a batch of a job and fetch its plan later", s.config.Limits.Wait, batchesWait(queued))}
}

// health says whether the server takes batches.
func (s *Server) health(w http.ResponseWriter, _ *http.Request) error {
	queued, busy, _, _ := s.board.sizes()
	code, state := http.StatusOK, "ok"
	if s.isDraining() {
		code, state = http.StatusServiceUnavailable, "draining"
	}
	return reply(w, code, map[string]any{"state": state, "queued": queued, "planning": busy})
}
