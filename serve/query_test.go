package serve

import (
	"strings"
	"testing"
)

// A slip in a query is told, as one in a body is: waits=1 waits for nothing.
func TestUnknownQueriesAreRefused(t *testing.T) {
	r := start(t, nil)
	r.submitted(1, 3)
	for request, want := range map[string]string{
		"GET /v1/jobs/a/plans/1?waits=1":           `{"code":"bad_request","field":"waits","message":"unknown: of a query only wait_s is known here"}`,
		"GET /v1/jobs/a/plans/1?wait_s=1&wait_s=2": `"field":"wait_s","message":"given twice: want one"`,
		"GET /v1/jobs/a/plans/1?wait_s=1;x":        `"message":"the query: `,
		"DELETE /v1/jobs/a/plans/1?wait_s=1":       `"field":"wait_s","message":"unknown: no query is known here; leave it out"`,
		"GET /v1/setup?verbose":                    `"field":"verbose"`,
		"POST /v1/plan?wait_s=1":                   `"field":"wait_s"`,
		"POST /v1/jobs/a/batches?deadline_s=1":     `"field":"deadline_s"`,
	} {
		method, path, _ := strings.Cut(request, " ")
		if code, body := r.ask(method, path, `{"lengths_tokens":[1]}`); code != 400 || !strings.Contains(body, want) {
			t.Errorf("%s: %d %s, want %s", request, code, body, want)
		}
	}
	for _, c := range []struct {
		path string
		want int
	}{
		{"/v1/jobs/a/plans/1?wait_s=5", 200}, // first: then there is a plan
		{"/v1/jobs/a/plans/1?", 200},
		{"/v2?x=1", 404},
		{"/metrics?x=1", 200},
	} {
		if code, body := r.ask("GET", c.path, ""); code != c.want {
			t.Errorf("%s: %d %s", c.path, code, body)
		}
	}
}
