package serve

import (
	"fmt"
	"time"

	"github.com/evenkeel/evenkeel/internal/units"
)

// Limits keep any client from harming another.
type Limits struct {
	Queue       int          // batches that wait to be planned
	Kept        int          // plans that are kept for their jobs
	KeptBytes   int          // and their size, encoded
	Cached      int          // plans that are kept for batches of the same lengths
	Sequences   int          // of a batch
	Tokens      units.Tokens // of a sequence
	TokensOf    string       // what that is; "" is what the largest group of the fleet holds
	Body        int64        // bytes of a request
	Connections int          // at a time
	PlanningS   float64      // seconds that planning a batch may take
	// Read is how long a client may take to send its request.
	Read time.Duration
	// Wait is the longest that a request may wait for a plan.
	Wait time.Duration
}

// DefaultLimits are for a server of one training job or a few.
func DefaultLimits() Limits {
	return Limits{
		Queue: 256, Kept: 1024, KeptBytes: 256 << 20, Cached: 64, Sequences: 16384, Body: 8 << 20,
		Connections: 1024, PlanningS: 10, Read: 10 * time.Second, Wait: 30 * time.Second,
	}
}

// Told is what a setup says of them.
func (l Limits) Told() SetupLimits {
	return SetupLimits{Queue: l.Queue, Kept: l.Kept, Sequences: l.Sequences, Tokens: l.Tokens, PlanningS: l.PlanningS, WaitS: l.Wait.Seconds()}
}

func conflict(k key) *Problem {
	return &Problem{"conflict", "step", fmt.Sprintf("%d of job %q was submitted with other lengths; take another step or job name", k.step, k.job)}
}

func full(waiting, limit int) *Problem {
	return &Problem{"queue_full", "", fmt.Sprintf("%s to be planned and %d may; fetch plans and submit again in a second", batchesWait(waiting), limit)}
}

func batchesWait(n int) string {
	if n == 1 {
		return "1 batch waits"
	}
	return units.Count(n, "batch") + " wait"
}

func tooMany(n, limit int) *Problem {
	return &Problem{"bad_request", "batches", fmt.Sprintf("%d new ones: the queue holds %d; submit fewer at a time", n, limit)}
}

func ended(how string) *Problem {
	return &Problem{"draining", "", "the server is about to end and " + how}
}

// status is the HTTP status of a problem's code.
func (p *Problem) status() int {
	switch p.Code {
	case "unauthorized":
		return 401
	case "not_found":
		return 404
	case "bad_method":
		return 405
	case "conflict":
		return 409
	case "too_large":
		return 413
	case "queue_full":
		return 429
	case "internal", "journal":
		return 500
	case "draining":
		return 503
	case "timeout":
		return 408
	}
	return 400
}
