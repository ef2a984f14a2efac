package serve

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// Times of requests are told by route: waiting for a plan is no slow submission.
func TestRequestTimesAreByRoute(t *testing.T) {
	r := start(t, func(c *Config) { c.Planners = []Planner{oneGroup{takes: 60 * time.Millisecond}} })
	r.submitted(1, 3)
	r.answer("/v1/jobs/a/plans/1?wait_s=5")
	r.ask("GET", "/v1/jobs/a/plans/1", "")
	_, body := r.ask("GET", "/metrics", "")
	for _, want := range []string{
		`evenkeel_request_seconds_count{route="submit"} 1`, `evenkeel_request_seconds_count{route="fetch"} 2`,
		`evenkeel_request_seconds_bucket{route="fetch",le="0.05"} 1`, `evenkeel_request_seconds_bucket{route="fetch",le="+Inf"} 2`,
		"evenkeel_waiting 0",
		`evenkeel_planning_seconds_bucket{le="+Inf"} 1`, "evenkeel_planning_seconds_count 1",
	} {
		if !strings.Contains(body, want+"\n") {
			t.Errorf("no %q in\n%s", want, body)
		}
	}
	if n := strings.Count(body, "# TYPE evenkeel_request_seconds histogram\n"); n != 1 {
		t.Errorf("%d types of one metric", n)
	}
}

// Who hangs up while a plan is made was not refused for a full queue.
func TestAClientThatHangsUpIsCountedAsGone(t *testing.T) {
	r := start(t, func(c *Config) {
		hasty(c)
		c.Planners = []Planner{oneGroup{takes: time.Hour}, oneGroup{takes: time.Hour}}
	})
	r.submitted(1, 3)
	for route, method := range map[string]string{"plan": "POST /v1/plan", "fetch": "GET /v1/jobs/a/plans/1?wait_s=30"} {
		method, path, _ := strings.Cut(method, " ")
		eventually(t, route+" of a client that is gone", func() bool { // a request may not be there before its client goes
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
			defer cancel()
			var body io.Reader
			if method == "POST" {
				body = strings.NewReader(`{"lengths_tokens":[1]}`)
			}
			req, err := http.NewRequestWithContext(ctx, method, "http://x"+path, body)
			if err != nil {
				t.Fatal(err)
			}
			if res, err := r.client.Do(req); err == nil {
				_ = res.Body.Close()
				t.Errorf("%s: %d", path, res.StatusCode)
			}
			_, told := r.ask("GET", "/metrics", "")
			return strings.Contains(told, `evenkeel_requests_total{route="`+route+`",code="499"}`)
		})
	}
	if _, told := r.ask("GET", "/metrics", ""); strings.Contains(told, `code="429"`) {
		t.Error(told)
	}
}
