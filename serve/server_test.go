package serve

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/goccy/go-yaml"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/batch"
)

// oneGroup plans every batch as one group, takes its time and counts.
type oneGroup struct {
	takes time.Duration
	calls *atomic.Int64
}

func (o oneGroup) Plan(ctx context.Context, lengths []units.Tokens) (Planned, error) {
	o.calls.Add(1)
	g := batch.Group{Ranks: []int{0}}
	for k, s := range lengths {
		if s == 666 {
			panic("a length it cannot bear")
		}
		g.Sequences = append(g.Sequences, k)
		g.Tokens += s
	}
	g.Time = units.Seconds(g.Tokens)
	p := Planned{Plan: &batch.Plan{Micro: []batch.MicroBatch{{Groups: []batch.Group{g}, Time: g.Time}}, Time: g.Time}, Bound: g.Time / 2, Interval: within(g.Time)}
	select {
	case <-time.After(o.takes):
	case <-ctx.Done():
		p.Stopped = true
	}
	return p, nil
}

// within is an interval of a tenth either way.
func within(t units.Seconds) costmodel.Estimate {
	return costmodel.Estimate{Lo: 0.9 * t, Mid: t, Hi: 1.1 * t, Source: costmodel.Interpolated}
}

// running is a server on a socket and its client.
type running struct {
	*Server
	t      testing.TB
	client *http.Client
	socket string
	calls  *atomic.Int64
}

func start(t testing.TB, change func(*Config)) *running {
	t.Helper()
	var calls atomic.Int64
	c := Config{Limits: DefaultLimits(), Log: func(s string) { t.Log(s) }}
	c.Limits.Tokens = 1 << 20
	c.Limits.Read = 3 * time.Second // on a busy machine a request may take a tenth of it to arrive
	c.Planners = []Planner{oneGroup{calls: &calls}, oneGroup{calls: &calls}}
	if change != nil {
		change(&c)
	}
	for i, p := range c.Planners {
		if o, ok := p.(oneGroup); ok && o.calls == nil {
			o.calls = &calls
			c.Planners[i] = o
		}
	}
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(t.TempDir(), "s")
	l, err := Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		if err := s.Serve(l); err != nil {
			t.Error(err)
		}
	}()
	t.Cleanup(func() { _ = s.Close() })
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}
	return &running{s, t, &http.Client{Transport: &http.Transport{DialContext: dial}, Timeout: 20 * time.Second}, socket, &calls}
}

// hasty is for tests of clients that keep the server waiting.
func hasty(c *Config) { c.Limits.Read = 300 * time.Millisecond }

// ask sends a request and returns status and body.
func (r *running) ask(method, path, body string) (int, string) {
	r.t.Helper()
	req, err := http.NewRequest(method, "http://x"+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	res, err := r.client.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return res.StatusCode, string(data)
}

func (r *running) answer(path string) Answer {
	r.t.Helper()
	code, body := r.ask("GET", path, "")
	var a Answer
	if err := json.Unmarshal([]byte(body), &a); err != nil || code != 200 {
		r.t.Fatalf("%d %s %v", code, body, err)
	}
	return a
}

func TestSubmitAndFetch(t *testing.T) {
	r := start(t, nil)
	code, body := r.ask("POST", "/v1/jobs/a/batches", `{"batches":[{"step":7,"lengths_tokens":[3,9,5]},{"step":8,"lengths_tokens":[9,3,5]}]}`)
	if code != 202 {
		t.Fatalf("%d %s", code, body)
	}
	a := r.answer("/v1/jobs/a/plans/7?wait_s=5")
	if a.State != Done || a.Plan.Time != 17 || a.Interval != within(17) || a.Gap != 1 || a.Job != "a" || a.Step != 7 {
		t.Fatalf("%+v", a)
	}
	// Sequences are named as they came, though they were planned longest first.
	if got := fmt.Sprint(a.Plan.Micro[0].Groups[0].Sequences); got != "[1 2 0]" {
		t.Fatalf("sequences %s", got)
	}
	if b := r.answer("/v1/jobs/a/plans/8?wait_s=5"); fmt.Sprint(b.Plan.Micro[0].Groups[0].Sequences) != "[0 2 1]" {
		t.Fatalf("%+v", b)
	}
	if code, body := r.ask("POST", "/v1/plan", `{"lengths_tokens":[5,9,3]}`); code != 200 || !strings.Contains(body, `"cached":true`) || !strings.Contains(body, `"interval":{"lo_s":15.3,"mid_s":17,`) {
		t.Fatalf("%d %s", code, body)
	}
	if code, body := r.ask("DELETE", "/v1/jobs/a/plans/8", ""); code != 204 {
		t.Fatalf("%d %s", code, body)
	}
	if code, body := r.ask("GET", "/v1/jobs/a/plans/8", ""); code != 404 || !strings.Contains(body, "never submitted, or its plan was dropped") {
		t.Fatalf("%d %s", code, body)
	}
}

// Everything a client can do wrong has a status and says where and what.
func TestABadRequestGetsANamedError(t *testing.T) {
	r := start(t, func(c *Config) { c.Limits.Sequences, c.Limits.Body = 1000, 1<<20 })
	if code, body := r.ask("POST", "/v1/jobs/a/batches", `{"batches":[{"step":1,"lengths_tokens":[1]}]}`); code != 202 {
		t.Fatalf("%d %s", code, body)
	}
	million, operations := "1"+strings.Repeat(",1", 400_000), described(t)
	cases := []struct {
		method, path, body string
		code               int
		want               string
	}{
		{"POST", "/v1/jobs/a/batches", `{"batches":[{"step":1,"lengths_tokens":[2]}]}`, 409, `submitted with other lengths`},
		{"POST", "/v1/jobs/a/batches", `{"batches":[]}`, 400, `"batches"`},
		{"POST", "/v1/jobs/a/batches", ``, 400, `{"code":"bad_request","message":"the body is empty: want JSON, as GET /openapi.yaml describes it"}`},
		{"POST", "/v1/plan", `{"lengths_tokens":[9,0]}`, 400, "0 tokens: want 1 to 1048576, what the largest group of this fleet holds; leave out what has none"},
		{"POST", "/v1/plan", `{"lengths_tokens":[9,1048577]}`, 400, "1048577 tokens: want 1 to 1048576, what the largest group of this fleet holds; truncate or drop longer ones"},
		{"POST", "/v1/jobs/a/batches", `garbage`, 400, `bad_request`},
		{"POST", "/v1/jobs/a/batches", `{"batches":[{"step":2,"lengths_tokens":[1,NaN]}]}`, 400, `"field":"batches[0].lengths_tokens[1]","message":"NaN is no JSON`},
		{"POST", "/v1/jobs/a/batches", `{"batches":[{"step":2,"lengths_tokens":[1,1.5]}]}`, 400, `lengths_tokens[1]`},
		{"POST", "/v1/jobs/a/batches", `{"batches":[{"step":2,"lengths_tokens":[1,-4]}]}`, 400, `"batches[0].lengths_tokens[1]"`},
		{"POST", "/v1/jobs/a/batches", `{"batches":[{"step":2,"lengths_tokens":[1,9999999]}]}`, 400, `what the largest group of this fleet holds`},
		{"POST", "/v1/jobs/a/batches", `{"batches":[{"step":-2,"lengths_tokens":[1]}]}`, 400, `"batches[0].step"`},
		{"POST", "/v1/jobs/a/batches", `{"batches":[{"step":7,"lengths_tokens":[1]},{"lengths_tokens":[1]}]}`, 400, `"field":"batches[1].step","message":"missing: name the training step`},
		{"POST", "/v1/jobs/a/batches", `{"batches":[{"step":null,"lengths_tokens":[1]}]}`, 400, `"batches[0].step"`},
		{"POST", "/v1/jobs/a/batches", `{"batches":[{"step":2,"lengths_tokens":[1]},{"step":2,"lengths_tokens":[1]}]}`, 400, `twice`},
		{"POST", "/v1/jobs/a/batches", `{"batches":[{"step":2,"lengths_tokens":[]}]}`, 400, `{"code":"bad_request","field":"batches[0].lengths_tokens","message":"none: want the tokens of at least one sequence"`},
		{"POST", "/v1/jobs/a/batches", `{"batches":[{"step":2,"lengths":[1]}]}`, 400, `lengths_tokens`},
		{"POST", "/v1/jobs/a/batches", `{"batches":[{"step":2,"lengths_tokens":[1],"deadline_s":1e9}]}`, 400, `deadline_s`},
		{"POST", "/v1/jobs/a/batches", `{"batches":[{"step":2,"lengths_tokens":[` + million + `]}]}`, 400, `400001 sequences`},
		{"POST", "/v1/jobs/a/batches", `{"batches":[{"step":2,"lengths_tokens":[` + strings.Repeat(million+",", 2) + `1]}]}`, 413, `more than 1048576 bytes`},
		{"POST", "/v1/jobs/" + strings.Repeat("j", 101) + "/batches", `{}`, 400, `job`},
		{"GET", "/v1/jobs/a/plans/99", "", 404, `never submitted`},
		{"GET", "/v1/jobs/a/plans/x", "", 400, `step`},
		{"GET", "/v1/jobs/a/plans/1?wait_s=NaN", "", 400, `wait_s`},
		{"GET", "/v1/jobs/a/plans/1?wait_s=1e9", "", 400, `wait_s`},
		{"POST", "/v1/plan", `{"lengths_tokens":[0]}`, 400, `"lengths_tokens[0]"`},
		{"DELETE", "/v1/jobs/a/plans/99", "", 404, `no plan that could be dropped`},
		{"GET", "/v2", "", 404, `openapi.yaml`},
		{"GET", "//v1/setup", "", 404, `{"code":"not_found","message":"GET //v1/setup: no such thing here;`},
		{"POST", "//v1/plan", "{}", 404, `no such thing here`},
		{"GET", "/v1/plan", "", 405, `{"code":"bad_method","message":"GET /v1/plan: want POST;`},
		{"PUT", "/v1/jobs/a/plans/1", "", 405, `want DELETE or GET;`},
	}
	for _, c := range cases {
		code, body := r.ask(c.method, c.path, c.body)
		var p Problem
		if err := json.Unmarshal([]byte(body), &p); err != nil || code != c.code || !strings.Contains(body, c.want) || p.Code == "" {
			t.Errorf("%s %s %.80s: %d %.300s, want %d and %q", c.method, c.path, c.body, code, body, c.code, c.want)
		}
		if strings.Contains(body, "the file") {
			t.Errorf("%s %s %.80s: %.300s: a request is no file", c.method, c.path, c.body, body)
		}
		if statuses, known := operations[c.method+" "+templateOf(c.path)]; known && !slices.Contains(statuses, fmt.Sprint(code)) {
			t.Errorf("%s %s: openapi.yaml does not describe %d", c.method, c.path, code)
		}
	}
}

func TestAFullQueueRefuses(t *testing.T) {
	r := start(t, func(c *Config) {
		c.Limits.Queue = 3
		c.Planners = []Planner{oneGroup{takes: time.Hour}}
	})
	r.ask("POST", "/v1/jobs/a/batches", `{"batches":[{"step":0,"lengths_tokens":[1]}]}`)
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) {
		if _, busy, _, _ := r.board.sizes(); busy == 1 {
			break
		} else if time.Now().After(deadline) {
			t.Fatal("nothing is planned")
		}
	}
	three := `{"batches":[{"step":1,"lengths_tokens":[1]},{"step":2,"lengths_tokens":[1]},{"step":3,"lengths_tokens":[1]}]}`
	if code, body := r.ask("POST", "/v1/jobs/a/batches", three); code != 202 {
		t.Fatalf("three batches fit: %d %s", code, body)
	}
	if code, body := r.ask("POST", "/v1/jobs/a/batches", `{"batches":[{"step":4,"lengths_tokens":[1]}]}`); code != 429 || !strings.Contains(body, "queue_full") || !strings.Contains(body, "3 batches wait to be planned") {
		t.Fatalf("%d %s", code, body)
	}
	// What is known takes no place, and what can never fit is told so.
	if code, body := r.ask("POST", "/v1/jobs/a/batches", three); code != 202 {
		t.Fatalf("again: %d %s", code, body)
	}
	if code, body := r.ask("POST", "/v1/jobs/b/batches", strings.TrimSuffix(three, "]}")+`,{"step":4,"lengths_tokens":[1]}]}`); code != 400 || !strings.Contains(body, "the queue holds 3") {
		t.Fatalf("%d %s", code, body)
	}
	if code, body := r.ask("GET", "/v1/jobs/a/plans/2", ""); code != 202 || !strings.Contains(body, `"queued"`) {
		t.Fatalf("%d %s", code, body)
	}
}

func TestADeadlineGivesTheBestSoFar(t *testing.T) {
	r := start(t, func(c *Config) { c.Planners = []Planner{oneGroup{takes: time.Hour}} })
	r.ask("POST", "/v1/jobs/a/batches", `{"batches":[{"step":1,"lengths_tokens":[4],"deadline_s":0.01}]}`)
	if a := r.answer("/v1/jobs/a/plans/1?wait_s=10"); !a.Stopped || a.Plan.Time != 4 {
		t.Fatalf("%+v", a)
	}
}

func TestAPanicFailsItsBatchAlone(t *testing.T) {
	r := start(t, nil)
	r.ask("POST", "/v1/jobs/a/batches", `{"batches":[{"step":1,"lengths_tokens":[666]},{"step":2,"lengths_tokens":[4]}]}`)
	if a := r.answer("/v1/jobs/a/plans/1?wait_s=10"); a.State != Failed || !strings.Contains(a.Error, "cannot bear") {
		t.Fatalf("%+v", a)
	}
	if a := r.answer("/v1/jobs/a/plans/2?wait_s=10"); a.State != Done {
		t.Fatalf("%+v", a)
	}
}

// Old plans make room: the store does not grow with the number of requests.
func TestTheStoreIsBounded(t *testing.T) {
	r := start(t, func(c *Config) { c.Limits.Kept, c.Limits.Cached = 5, 5 })
	for i := range 200 {
		if code, body := r.ask("POST", "/v1/jobs/a/batches", fmt.Sprintf(`{"batches":[{"step":%d,"lengths_tokens":[%d]}]}`, i, i+1)); code != 202 {
			t.Fatalf("%d %s", code, body)
		}
		r.answer(fmt.Sprintf("/v1/jobs/a/plans/%d?wait_s=5", i))
	}
	queued, busy, kept, _ := r.board.sizes()
	if queued != 0 || busy != 0 || kept != 5 || len(r.board.entries) != 5 || r.cache.used.Len() != 5 || len(r.cache.byKey) != 5 {
		t.Fatalf("%d queued, %d busy, %d kept, %d entries, %d cached", queued, busy, kept, len(r.board.entries), r.cache.used.Len())
	}
	if code, _ := r.ask("GET", "/v1/jobs/a/plans/0", ""); code != 404 {
		t.Fatalf("an old plan: %d", code)
	}
}

// Clients that stall, vanish or send without end harm nobody else.
func TestBadClientsHarmNobody(t *testing.T) {
	r := start(t, func(c *Config) {
		hasty(c)
		c.Limits.Body = 1 << 16
	})
	var bad sync.WaitGroup
	for i := range 30 {
		bad.Go(func() {
			c, err := net.Dial("unix", r.socket)
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(5 * time.Second))
			switch i % 4 {
			case 0: // stalls in its header
				fmt.Fprintf(c, "POST /v1/plan HTTP/1.1\r\nHo")
				_, _ = io.ReadAll(c)
			case 1: // stalls in its body
				fmt.Fprintf(c, "POST /v1/plan HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{\"len")
				_, _ = io.ReadAll(c)
			case 2: // vanishes
				fmt.Fprintf(c, "POST /v1/plan HTTP/1.1\r\nHost: x\r\nContent-Length: 24\r\n\r\n{\"lengths_tokens\":[1,2]}")
			case 3: // sends a gigabyte
				fmt.Fprintf(c, "POST /v1/plan HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n")
				_, err := io.Copy(c, io.LimitReader(zeros{}, 1e9))
				if err == nil {
					t.Error("a gigabyte was taken")
				}
			}
		})
	}
	for i := range 100 {
		if code, body := r.ask("POST", "/v1/plan", fmt.Sprintf(`{"lengths_tokens":[%d]}`, i+1)); code != 200 {
			t.Fatalf("%d %s", code, body)
		}
	}
	bad.Wait()
	if code, _ := r.ask("GET", "/healthz", ""); code != 200 {
		t.Fatalf("health: %d", code)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

// described are the statuses that the description has, by method and path.
func described(t *testing.T) map[string][]string {
	t.Helper()
	var d struct {
		Paths map[string]map[string]any
	}
	if err := yaml.Unmarshal(openAPI, &d); err != nil {
		t.Fatal(err)
	}
	all := map[string][]string{}
	for path, methods := range d.Paths {
		for method, operation := range methods {
			if method != "parameters" {
				responses := operation.(map[string]any)["responses"].(map[string]any)
				all[strings.ToUpper(method)+" "+path] = slices.Collect(maps.Keys(responses))
			}
		}
	}
	return all
}

// templateOf is a path as the description has it.
func templateOf(path string) string {
	path, _, _ = strings.Cut(path, "?")
	parts := strings.Split(path, "/")
	if len(parts) > 3 && parts[2] == "jobs" {
		parts[3] = "{job}"
	}
	if len(parts) > 5 {
		parts[5] = "{step}"
	}
	return strings.Join(parts, "/")
}

// Of every path and method: what is described is there, and wants the token.
func TestATokenIsWanted(t *testing.T) {
	r, open := start(t, func(c *Config) { c.Token = "secret" }), start(t, nil)
	operations := described(t)
	if len(operations) != 8 {
		t.Errorf("%d operations are described: %v", len(operations), operations)
	}
	for operation, statuses := range operations {
		method, path, _ := strings.Cut(operation, " ")
		path = strings.NewReplacer("{job}", "a", "{step}", "1").Replace(path)
		if code, body := r.ask(method, path, ""); code != 401 || !strings.Contains(body, "Authorization") || !slices.Contains(statuses, "401") {
			t.Errorf("%s: %d %s, described are %v", operation, code, body, statuses)
		}
		if code, body := open.ask(method, path, ""); !slices.Contains(statuses, fmt.Sprint(code)) || strings.Contains(body, "no such thing here") {
			t.Errorf("%s: %d %s, described are %v", operation, code, body, statuses)
		}
	}
	req, _ := http.NewRequest("GET", "http://x/healthz", nil)
	req.Header.Set("Authorization", "Bearer secret")
	res, err := r.client.Do(req)
	if err != nil || res.StatusCode != 200 {
		t.Fatal(res, err)
	}
	_ = res.Body.Close()
}

func TestTheSocketIsTheOwnersAndSingle(t *testing.T) {
	r := start(t, nil)
	info, err := os.Stat(r.socket)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("%v %v", info.Mode(), err)
	}
	if _, err := Listen(r.socket); err == nil || !strings.Contains(err.Error(), "another server answers") {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(file); err == nil || !strings.Contains(err.Error(), "another kind") {
		t.Fatal(err)
	}
	for path, want := range map[string]string{file: "another kind", filepath.Join(file, "s"): "there is no folder", strings.Repeat("x", 108): "at most 107"} {
		if err := CheckSocket(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
	// What a killed server leaves is replaced.
	dead := filepath.Join(t.TempDir(), "d")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: dead, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	_ = l.Close()
	again, err := Listen(dead)
	if err != nil {
		t.Fatal(err)
	}
	_ = again.Close()
}

// A drained server plans what it acknowledged and takes nothing new.
func TestDrain(t *testing.T) {
	r := start(t, func(c *Config) { c.Planners = []Planner{oneGroup{takes: 50 * time.Millisecond}} })
	for i := range 4 {
		r.ask("POST", "/v1/jobs/a/batches", fmt.Sprintf(`{"batches":[{"step":%d,"lengths_tokens":[%d]}]}`, i, i+1))
	}
	done := make(chan error)
	go func() { done <- r.Drain(t.Context()) }()
	for !r.isDraining() {
		time.Sleep(time.Millisecond)
	}
	if code, body := r.ask("POST", "/v1/jobs/a/batches", `{"batches":[{"step":9,"lengths_tokens":[1]}]}`); code != 503 {
		t.Fatalf("%d %s", code, body)
	}
	if code, _ := r.ask("GET", "/healthz", ""); code != 503 {
		t.Fatalf("health: %d", code)
	}
	if a := r.answer("/v1/jobs/a/plans/3?wait_s=5"); a.State != Done {
		t.Fatalf("%+v", a)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestMetricsCount(t *testing.T) {
	r := start(t, nil)
	r.ask("POST", "/v1/plan", `{"lengths_tokens":[3]}`)
	r.ask("POST", "/v1/plan", `{"lengths_tokens":[3]}`)
	r.ask("POST", "/v1/plan", `{"lengths_tokens":[]}`)
	_, body := r.ask("GET", "/metrics", "")
	for _, want := range []string{
		`evenkeel_requests_total{route="plan",code="200"} 2`, `evenkeel_requests_total{route="plan",code="400"} 1`,
		`evenkeel_plans_total{result="planned"} 1`, `evenkeel_plans_total{result="cached"} 1`,
		`evenkeel_planning_seconds_count 1`, "evenkeel_queue_length 0",
	} {
		if !strings.Contains(body, want) {
			t.Errorf("no %q in\n%s", want, body)
		}
	}
}

// A server that is killed loses nothing that it acknowledged.
func TestTheJournalKeepsWhatWasAcknowledged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "j")
	first := start(t, func(c *Config) {
		c.Journal = path
		c.Planners = []Planner{oneGroup{takes: 20 * time.Millisecond}}
	})
	for i := range 20 {
		if code, body := first.ask("POST", "/v1/jobs/a/batches", fmt.Sprintf(`{"batches":[{"step":%d,"lengths_tokens":[%d,1]}]}`, i, i+1)); code != 202 {
			t.Fatalf("%d %s", code, body)
		}
	}
	first.answer("/v1/jobs/a/plans/19?wait_s=5")
	// As kill -9 leaves it: the file as it is now, half a line at its end.
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	after := filepath.Join(t.TempDir(), "j")
	if err := os.WriteFile(after, append(data, `{"t":"accept","job":"a","st`...), 0o600); err != nil {
		t.Fatal(err)
	}
	second := start(t, func(c *Config) { c.Journal = after })
	for i := range 20 {
		if a := second.answer(fmt.Sprintf("/v1/jobs/a/plans/%d?wait_s=5", i)); a.Plan.Time != units.Seconds(i+2) {
			t.Fatalf("step %d: %+v", i, a)
		}
	}
	if n := second.calls.Load(); n >= 20 {
		t.Fatalf("%d batches were planned again: those with answers need not be", n)
	}
	if code, body := second.ask("POST", "/v1/jobs/a/batches", `{"batches":[{"step":3,"lengths_tokens":[4,1]},{"step":20,"lengths_tokens":[4]}]}`); code != 202 {
		t.Fatalf("the same batch again: %d %s", code, body)
	}
}

func TestAJournalOfAnotherKindIsRefused(t *testing.T) {
	for name, text := range map[string]string{
		"no such kind": `{"t":"other"}` + "\n", "lengths_tokens": `{"t":"accept","job":"a","batches":[{"step":1,"lengths_tokens":"x"}]}` + "\n", ":2": `{"t":"accept","job":"a","batches":[{"step":1,"lengths_tokens":[1]}]}` + "\n{\n",
	} {
		path := filepath.Join(t.TempDir(), "j")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := New(Config{Limits: DefaultLimits(), Journal: path})
		if _, first := CheckJournal(path); err == nil || !strings.Contains(err.Error(), name) || fmt.Sprint(first) != err.Error() {
			t.Errorf("%q: %v, checked before pricing: %v", text, err, first)
		}
		if kept, _ := os.ReadFile(path); string(kept) != text {
			t.Errorf("the journal was changed")
		}
	}
}

// A journal is rewritten without what is no longer kept.
func TestTheJournalIsRewritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "j")
	r := start(t, func(c *Config) { c.Journal, c.Limits.Kept = path, 3 })
	for i := range 50 {
		r.ask("POST", "/v1/jobs/a/batches", fmt.Sprintf(`{"batches":[{"step":%d,"lengths_tokens":[%d]}]}`, i, i+1))
		r.answer(fmt.Sprintf("/v1/jobs/a/plans/%d?wait_s=5", i))
	}
	before := r.log.j.Size()
	if err := r.log.rewrite(r.board); err != nil {
		t.Fatal(err)
	}
	if after := r.log.j.Size(); after*10 > before {
		t.Fatalf("%d bytes of %d are left", after, before)
	}
	r.ask("POST", "/v1/jobs/a/batches", `{"batches":[{"step":50,"lengths_tokens":[51]}]}`)
	r.answer("/v1/jobs/a/plans/50?wait_s=5")
	data, _ := os.ReadFile(path)
	if n := strings.Count(string(data), "\n"); n != 6 {
		t.Fatalf("%d lines: want what they are for, 3 answers, a batch and its answer\n%s", n, data)
	}
}

// FuzzSubmission: no body ends the server, and what is taken is sound.
func FuzzSubmission(f *testing.F) {
	f.Add(`{"batches":[{"step":1,"lengths_tokens":[1,2,3],"deadline_s":0.1}]}`)
	f.Add(`{"batches":[{"step":1e3,"lengths_tokens":[1e99]}]}`)
	f.Add(`{"batches":null}`)
	f.Add(`{"batches":[{"lengths_tokens":[1,2,3]},{"step":null,"lengths_tokens":[1]}]}`)
	l := DefaultLimits()
	l.Tokens = 1000
	s := &Server{config: Config{Limits: l}}
	f.Fuzz(func(t *testing.T, body string) {
		req, err := http.NewRequest("POST", "http://x/", strings.NewReader(body))
		if err != nil {
			t.Skip()
		}
		var a asked
		if err := s.body(req, &a); err != nil {
			var p *Problem
			if !errors.As(err, &p) || p.Message == "" {
				t.Fatalf("%v", err)
			}
			return
		}
		sub, p := a.submission(l)
		if p != nil {
			return
		}
		for _, b := range sub.Batches {
			for _, n := range b.Lengths {
				if n < 1 || n > 1000 || b.Step < 0 || b.DeadlineS < 0 {
					t.Fatalf("taken: %+v", b)
				}
			}
		}
	})
}
