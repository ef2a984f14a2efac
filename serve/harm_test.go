package serve

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/batch"
)

// eventually waits for something that other goroutines bring about.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("not seen within 10 s: " + what)
		}
	}
}

// dial opens a connection to send bytes that no HTTP client would.
func (r *running) dial() net.Conn {
	r.t.Helper()
	c, err := net.Dial("unix", r.socket)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	return c
}

// submitted puts a batch of one sequence into the queue.
func (r *running) submitted(step, length int) {
	r.t.Helper()
	body := fmt.Sprintf(`{"batches":[{"step":%d,"lengths_tokens":[%d]}]}`, step, length)
	if code, text := r.ask("POST", "/v1/jobs/a/batches", body); code != 202 {
		r.t.Fatalf("%d %s", code, text)
	}
}

// A request may wait longer for its plan than it may take to arrive.
func TestWaitingIsNotReading(t *testing.T) {
	r := start(t, func(c *Config) {
		c.Limits.Read = 50 * time.Millisecond
		c.Planners = []Planner{oneGroup{takes: 300 * time.Millisecond}}
	})
	r.submitted(1, 4)
	if a := r.answer("/v1/jobs/a/plans/1?wait_s=5"); a.State != Done {
		t.Fatalf("%+v", a)
	}
	if code, body := r.ask("POST", "/v1/plan", `{"step":9,"lengths_tokens":[5]}`); code != 200 || !strings.Contains(body, `"step":9`) {
		t.Fatalf("%d %q", code, body)
	}
}

// Who waits for a plan gets it, even if it makes room for others at once.
func TestAWaitingClientGetsAPlanThatIsNotKept(t *testing.T) {
	r := start(t, func(c *Config) {
		c.Limits.Kept = 1
		c.Planners = []Planner{oneGroup{takes: 2 * time.Millisecond}}
	})
	var clients sync.WaitGroup
	for i := range 20 {
		r.submitted(i, i+1)
	}
	for i := range 20 {
		clients.Go(func() {
			code, body := r.ask("GET", fmt.Sprintf("/v1/jobs/a/plans/%d?wait_s=5", i), "")
			// Not kept: it may be gone before the client asks, but not while it waits.
			if code != 200 && !strings.Contains(body, "was dropped") {
				t.Errorf("step %d: %d %s", i, code, body)
			}
		})
	}
	clients.Wait()
	e := newEntry(key{"a", 99}, &Batch{Step: 99, Lengths: []units.Tokens{1}})
	r.board.mu.Lock()
	r.board.entries[e.key] = e
	r.board.mu.Unlock()
	r.board.enqueue([]*entry{e})
	req, _ := http.NewRequest("GET", "http://x/", nil)
	<-e.ready
	r.board.remove(e.key)
	if _, data, err := r.await(req, e, time.Second); err != nil || data == nil {
		t.Fatalf("dropped while waited for: %v", err)
	}
}

// A client that vanishes stops the planning of what it alone wanted, and what it
// wanted takes the place of nobody's plan.
func TestAVanishedClientLeavesNothing(t *testing.T) {
	r := start(t, func(c *Config) {
		c.Limits.Kept = 1
		c.Planners = []Planner{oneGroup{}, oneGroup{takes: time.Hour}}
	})
	r.ask("POST", "/v1/jobs/a/batches", `{"batches":[{"step":1,"lengths_tokens":[1],"deadline_s":0.01}]}`)
	r.answer("/v1/jobs/a/plans/1?wait_s=5")
	for i := range 8 {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
		req, _ := http.NewRequestWithContext(ctx, "POST", "http://x/v1/plan", strings.NewReader(fmt.Sprintf(`{"lengths_tokens":[%d]}`, i+2)))
		if res, err := r.client.Do(req); err == nil {
			_ = res.Body.Close()
		}
		cancel()
	}
	eventually(t, "an idle server", func() bool {
		queued, busy, kept, _ := r.board.sizes()
		return queued == 0 && busy == 0 && kept == 1
	})
	if a := r.answer("/v1/jobs/a/plans/1"); a.State != Done {
		t.Fatalf("%+v", a)
	}
}

// What clients wait for is planned in the order in which they began to wait: none can
// be overtaken for ever.
func TestWhoWaitsFirstIsServedFirst(t *testing.T) {
	b := newBoard(DefaultLimits())
	var batches []Batch
	for step := range int64(5) {
		batches = append(batches, Batch{Step: step, Lengths: []units.Tokens{1}})
	}
	fresh, refusal := b.submit("a", batches)
	if refusal != nil {
		t.Fatal(refusal)
	}
	b.find(key{"a", 4}, true) // waited for before it is in the queue
	b.enqueue(fresh)
	for _, step := range []int64{2, 3, 2, 4} {
		b.find(key{"a", step}, true)
	}
	var order []int64
	for range batches {
		order = append(order, b.next().step)
	}
	if got := fmt.Sprint(order); got != "[4 2 3 0 1]" {
		t.Fatal(got)
	}
}

// A batch that is on its way to the journal when draining begins is planned too.
func TestDrainWaitsForWhatIsOnItsWay(t *testing.T) {
	b := newBoard(DefaultLimits())
	fresh, _ := b.submit("a", []Batch{{Step: 1, Lengths: []units.Tokens{1}}})
	b.end(drains)
	taken := make(chan *entry)
	go func() {
		for range 2 {
			taken <- b.next()
		}
	}()
	select {
	case e := <-taken:
		t.Fatalf("the planner ended before: %v", e)
	case <-time.After(20 * time.Millisecond):
	}
	b.enqueue(fresh)
	if e := <-taken; e != fresh[0] {
		t.Fatal(e)
	}
	if e := <-taken; e != nil {
		t.Fatal(e)
	}
	if _, refusal := b.submit("a", []Batch{{Step: 2}}); refusal == nil || refusal.Code != "draining" {
		t.Fatal(refusal)
	}
}

// stubborn plans until it is let go, whatever its context says.
type stubborn struct{ goOn chan struct{} }

func (s stubborn) Plan(context.Context, []units.Tokens) (Planned, error) {
	<-s.goOn
	return Planned{}, errors.New("let go")
}

// A planner that ignores its context does not keep the server from ending, and those
// who wait for it are told.
func TestAStubbornPlanner(t *testing.T) {
	free := make(chan struct{})
	r := start(t, func(c *Config) { c.Planners = []Planner{stubborn{free}} })
	r.submitted(1, 4)
	eventually(t, "planning", func() bool { _, busy, _, _ := r.board.sizes(); return busy == 1 })
	if code, body := r.ask("DELETE", "/v1/jobs/a/plans/1", ""); code != 404 {
		t.Fatalf("dropped while it is planned: %d %s", code, body)
	}
	var clients sync.WaitGroup
	for _, ask := range []func() (int, string){
		func() (int, string) { return r.ask("GET", "/v1/jobs/a/plans/1?wait_s=30", "") },
		func() (int, string) { return r.ask("POST", "/v1/plan", `{"lengths_tokens":[1]}`) },
	} {
		clients.Go(func() {
			if code, body := ask(); code != 503 || !strings.Contains(body, "draining") {
				t.Errorf("%d %s", code, body)
			}
		})
	}
	eventually(t, "waiting clients", func() bool { return r.waiting.Load() == 2 })
	began := time.Now()
	if err := r.Close(); err == nil || !strings.Contains(err.Error(), "still runs") {
		t.Fatal(err)
	}
	if took := time.Since(began); took > patience+5*time.Second {
		t.Fatalf("closing took %s", took)
	}
	clients.Wait()
	close(free)
}

// careless returns plans that are none.
type careless struct{}

func (careless) Plan(_ context.Context, lengths []units.Tokens) (Planned, error) {
	if len(lengths) == 1 {
		return Planned{}, nil
	}
	g := batch.Group{Sequences: []int{len(lengths)}}
	return Planned{Plan: &batch.Plan{Micro: []batch.MicroBatch{{Groups: []batch.Group{g}}}}}, nil
}

func TestAPlanThatIsNoneFailsItsBatchAlone(t *testing.T) {
	r := start(t, func(c *Config) { c.Planners = []Planner{careless{}} })
	for _, body := range []string{`{"lengths_tokens":[1]}`, `{"lengths_tokens":[1,2]}`} {
		if code, text := r.ask("POST", "/v1/plan", body); code != 200 || !strings.Contains(text, `"failed"`) {
			t.Errorf("%s: %d %s", body, code, text)
		}
	}
}

// A plan cut short by a deadline is not the answer to a batch that has more time.
func TestTheCacheKeepsWholePlans(t *testing.T) {
	r := start(t, func(c *Config) { c.Planners = []Planner{oneGroup{takes: 50 * time.Millisecond}} })
	for i, c := range []struct {
		deadline        string
		stopped, cached bool
	}{{"0.001", true, false}, {"0", false, false}, {"0.001", false, true}} {
		r.ask("POST", "/v1/jobs/a/batches", fmt.Sprintf(`{"batches":[{"step":%d,"lengths_tokens":[4,5],"deadline_s":%s}]}`, i, c.deadline))
		if a := r.answer(fmt.Sprintf("/v1/jobs/a/plans/%d?wait_s=5", i)); a.Stopped != c.stopped || a.Cached != c.cached {
			t.Errorf("deadline %s: %+v", c.deadline, a)
		}
	}
}

// Steps are 64-bit numbers, beyond what a float holds; names are any UTF-8.
func TestLargeStepsAndOddNames(t *testing.T) {
	r := start(t, nil)
	for _, step := range []string{"9007199254740993", "9223372036854775807"} {
		r.ask("POST", "/v1/jobs/a/batches", `{"batches":[{"step":`+step+`,"lengths_tokens":[4]}]}`)
		if code, body := r.ask("GET", "/v1/jobs/a/plans/"+step+"?wait_s=5", ""); code != 200 || !strings.Contains(body, `"step":`+step+`,`) {
			t.Errorf("step %s: %d %s", step, code, body)
		}
	}
	for _, step := range []string{"9223372036854775808", "1e3", "1.5", `"1"`} {
		if code, body := r.ask("POST", "/v1/jobs/a/batches", `{"batches":[{"step":`+step+`,"lengths_tokens":[4]}]}`); code != 400 {
			t.Errorf("step %s: %d %s", step, code, body)
		}
	}
	for job, want := range map[string]int{"%2E%2E": 202, "a%2Fb": 202, "%C3%A9%20%00": 202, "%ff": 400} {
		if code, body := r.ask("POST", "/v1/jobs/"+job+"/batches", `{"batches":[{"step":1,"lengths_tokens":[4]}]}`); code != want {
			t.Errorf("job %s: %d %s", job, code, body)
		}
		if code, body := r.ask("GET", "/v1/jobs/"+job+"/plans/1?wait_s=5", ""); want == 202 && code != 200 {
			t.Errorf("job %s: %d %s", job, code, body)
		}
	}
}

// What is not HTTP, or too much of it, ends the connection it came over and no more.
func TestBytesThatAreNoRequest(t *testing.T) {
	r := start(t, hasty)
	for name, c := range map[string]struct {
		send string
		want []string
	}{
		"garbage":         {"\x16\x03\x01\x02\x00 hello\r\n\r\n", []string{"400 Bad Request", `"code":"bad_request"`, "want HTTP/1.1"}},
		"huge header":     {"GET /healthz HTTP/1.1\r\nHost: x\r\nX: " + strings.Repeat("x", 30<<10), []string{"431 ", `"code":"too_large"`, "want at most 16384 bytes"}},
		"no transfer":     {"POST /v1/plan HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\nzz", []string{"501 ", `"code":"bad_request"`, "Unsupported transfer encoding"}},
		"half a header":   {"GET /healthz HTT", []string{"408 ", `"code":"timeout"`, "the header of the request did not end within"}},
		"garbage behind":  {"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n\x00\x01garbage\r\n\r\n", []string{"200 OK", "400 Bad Request", `"code":"bad_request"`}},
		"two lengths":     {"POST /v1/plan HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n{}", []string{"400 Bad Request"}},
		"bad chunk":       {"POST /v1/plan HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", []string{"400 Bad Request"}},
		"body not wanted": {"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{", nil},
	} {
		conn, began := r.dial(), time.Now()
		fmt.Fprint(conn, c.send)
		data, _ := io.ReadAll(conn)
		if took := time.Since(began); took > 9*time.Second {
			t.Errorf("%s: the connection was open for %s", name, took)
		}
		for _, want := range c.want {
			if !strings.Contains(string(data), want) {
				t.Errorf("%s: no %q in %q", name, want, data)
			}
		}
	}
	if code, _ := r.ask("GET", "/healthz", ""); code != 200 {
		t.Fatal(code)
	}
}

// A body that arrives byte by byte without an end is given up when its time is over.
func TestABodyWithoutEnd(t *testing.T) {
	r := start(t, hasty)
	conn := r.dial()
	fmt.Fprintf(conn, "POST /v1/plan HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
	began := time.Now()
	go func() {
		for err := error(nil); err == nil; time.Sleep(20 * time.Millisecond) {
			_, err = fmt.Fprintf(conn, "1\r\n \r\n")
		}
	}()
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil || res.StatusCode != 408 || time.Since(began) > 9*time.Second {
		t.Fatalf("%v %v after %s", res, err, time.Since(began))
	}
	_ = res.Body.Close()
}

// A client that asks and does not read loses its connection, not the server its time.
func TestAClientThatDoesNotRead(t *testing.T) {
	r := start(t, func(c *Config) { c.Limits.Read = 200 * time.Millisecond })
	const sequences, asks = 3000, 300
	body := `{"batches":[{"step":1,"lengths_tokens":[1` + strings.Repeat(",1", sequences-1) + `]}]}`
	r.ask("POST", "/v1/jobs/a/batches", body)
	_, answer := r.ask("GET", "/v1/jobs/a/plans/1?wait_s=5", "")
	conn := r.dial()
	fmt.Fprint(conn, strings.Repeat("GET /v1/jobs/a/plans/1 HTTP/1.1\r\nHost: x\r\n\r\n", asks))
	time.Sleep(time.Second)
	data, _ := io.ReadAll(conn)
	if whole := asks * len(answer); len(data) > whole/2 {
		t.Fatalf("%d bytes of %d were kept for it", len(data), whole)
	}
}

// flaky fails to accept now and then, as a process does that is out of descriptors.
type flaky struct {
	net.Listener
	fails atomic.Int64
}

func (f *flaky) Accept() (net.Conn, error) {
	if f.fails.Add(-1) >= 0 {
		return nil, &net.OpError{Op: "accept", Err: syscall.EMFILE}
	}
	return f.Listener.Accept()
}

// Accepting goes on after it failed, and a place that was taken for it is free again.
// Over TCP the token is wanted of everyone.
func TestAcceptingGoesOnOverTCP(t *testing.T) {
	r := start(t, func(c *Config) { c.Limits.Connections, c.Token = 1, "secret" })
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &flaky{Listener: l}
	f.fails.Store(3)
	go func() { _ = r.Serve(f) }()
	for header, want := range map[string]int{"": 401, "secret": 401, "Basic secret": 401, "Bearer secreT": 401, "Bearer ": 401, "Bearer secret": 200} {
		req, _ := http.NewRequest("POST", "http://"+l.Addr().String()+"/v1/plan", strings.NewReader(`{"lengths_tokens":[1]}`))
		req.Header.Set("Authorization", header)
		req.Close = true // the one place is for the next
		res, err := http.DefaultClient.Do(req)
		if err != nil || res.StatusCode != want {
			t.Fatalf("%q: %v %v", header, res, err)
		}
		_ = res.Body.Close()
	}
}

// A living server whose backlog is full does not answer, but its socket is its own.
func TestABusySocketIsNotTaken(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fd)
	if err := errors.Join(syscall.Bind(fd, &syscall.SockaddrUnix{Name: path}), syscall.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	for range 4 {
		if c, err := net.DialTimeout("unix", path, 50*time.Millisecond); err == nil {
			defer c.Close()
		}
	}
	if l, err := Listen(path); err == nil || !strings.Contains(err.Error(), "remove it if no server uses it") {
		t.Fatal(l, err)
	}
}
