package serve

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// serverFolder tells the test binary to be a server in that folder.
const serverFolder = "EVENKEEL_TEST_SERVER_FOLDER"

// TestMain lets the binary be a server that can be killed.
func TestMain(m *testing.M) {
	if folder := os.Getenv(serverFolder); folder != "" {
		fmt.Fprintln(os.Stderr, serveUntilKilled(folder))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func serveUntilKilled(folder string) error {
	var calls atomic.Int64
	c := Config{Limits: DefaultLimits(), Journal: filepath.Join(folder, "journal"), Log: func(s string) { fmt.Fprintln(os.Stderr, s) }}
	c.Limits.Tokens = 1 << 20
	for range 2 {
		c.Planners = append(c.Planners, oneGroup{takes: 3 * time.Millisecond, calls: &calls})
	}
	s, err := New(c)
	if err != nil {
		return err
	}
	l, err := Listen(filepath.Join(folder, "s"))
	if err != nil {
		return err
	}
	return s.Serve(l)
}

// process is a server in a process of its own.
type process struct {
	*exec.Cmd
	client *http.Client
}

func startProcess(t *testing.T, folder string) *process {
	t.Helper()
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), serverFolder+"="+folder)
	c.Stderr = os.Stderr
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(folder, "s"))
	}
	p := &process{c, &http.Client{Transport: &http.Transport{DialContext: dial}, Timeout: 20 * time.Second}}
	eventually(t, "a server that answers", func() bool {
		code, _, err := p.ask("GET", "/healthz", "")
		return err == nil && code == 200
	})
	return p
}

func (p *process) ask(method, path, body string) (int, []byte, error) {
	req, err := http.NewRequest(method, "http://x"+path, strings.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	res, err := p.client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	return res.StatusCode, data, err
}

// lengthsOf are those of a step of the load, all steps different.
func lengthsOf(step int) string { return fmt.Sprintf("[%d,%d,%d]", 1+step%7, 1000+step, 1+step%13) }

// load submits batches from some clients until the server is gone, fetches some
// plans, and returns the steps that were acknowledged.
func (p *process) load(from int) (acknowledged []int) {
	var mu sync.Mutex
	var clients sync.WaitGroup
	for client := range 4 {
		clients.Go(func() {
			for i := 0; ; i++ {
				// A thousand plans are kept: fewer are submitted in all.
				step := from + 4*i + client
				body := fmt.Sprintf(`{"batches":[{"step":%d,"lengths_tokens":%s}]}`, step, lengthsOf(step))
				code, _, err := p.ask("POST", "/v1/jobs/a/batches", body)
				if err != nil {
					return
				}
				if code == http.StatusAccepted {
					mu.Lock()
					acknowledged = append(acknowledged, step)
					mu.Unlock()
				}
				if i%2 == 0 {
					_, _, _ = p.ask("GET", fmt.Sprintf("/v1/jobs/a/plans/%d?wait_s=1", step), "")
				}
				time.Sleep(2 * time.Millisecond)
				if i >= 40 {
					return
				}
			}
		})
	}
	clients.Wait()
	return acknowledged
}

// planOf is the plan of an answer as its bytes, without how long it took.
func planOf(t *testing.T, data []byte) string {
	t.Helper()
	var a struct {
		State State          `json:"state"`
		Plan  jsontext.Value `json:"plan"`
		Bound float64        `json:"lower_bound_s"`
	}
	if err := json.Unmarshal(data, &a); err != nil || a.State != Done {
		t.Fatalf("%s: %v", data, err)
	}
	return fmt.Sprintf("%s %v", a.Plan, a.Bound)
}

// A server is killed (SIGKILL) five times under load and started again: each step that
// was ever acknowledged has a plan in the end, and the same as an undisturbed server.
func TestKilledFiveTimes(t *testing.T) {
	folder := t.TempDir()
	var acknowledged []int
	for kill := range 5 {
		p := startProcess(t, folder)
		time.AfterFunc(time.Duration(20+35*kill)*time.Millisecond, func() { _ = p.Process.Kill() })
		acknowledged = append(acknowledged, p.load(1000*kill)...)
		_ = p.Wait()
	}
	if len(acknowledged) < 20 {
		t.Fatalf("only %d steps were acknowledged: no load", len(acknowledged))
	}
	t.Logf("%d steps were acknowledged", len(acknowledged))
	survivor, undisturbed := startProcess(t, folder), startProcess(t, t.TempDir())
	for _, step := range acknowledged {
		path := fmt.Sprintf("/v1/jobs/a/plans/%d?wait_s=10", step)
		code, got, err := survivor.ask("GET", path, "")
		if err != nil || code != 200 {
			t.Fatalf("step %d was acknowledged and is lost: %d %s %v", step, code, got, err)
		}
		body := fmt.Sprintf(`{"batches":[{"step":%d,"lengths_tokens":%s}]}`, step, lengthsOf(step))
		if code, text, err := undisturbed.ask("POST", "/v1/jobs/a/batches", body); err != nil || code != 202 {
			t.Fatalf("%d %s %v", code, text, err)
		}
		code, want, err := undisturbed.ask("GET", path, "")
		if err != nil || code != 200 || planOf(t, got) != planOf(t, want) {
			t.Fatalf("step %d: %s after the kills, %d %s %v undisturbed", step, got, code, want, err)
		}
	}
}
