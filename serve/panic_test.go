package serve

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/evenkeel/evenkeel/internal/units"
)

// tabled is a planner with tables, which a panic leaves half made.
type tabled struct {
	oneGroup
	broken *bool
}

func (p tabled) Plan(ctx context.Context, lengths []units.Tokens) (Planned, error) {
	if *p.broken {
		panic("tables that are half made")
	}
	*p.broken = lengths[0] == 666
	made, err := p.oneGroup.Plan(ctx, lengths)
	return made, err
}

func (p tabled) Renewed() Planner { return tabled{p.oneGroup, new(bool)} }

// A planner that panicked plans nothing more, and where it fell is in the log.
func TestAPlannerThatPanickedIsReplaced(t *testing.T) {
	var mu sync.Mutex
	var told []string
	r := start(t, func(c *Config) {
		c.Planners = []Planner{tabled{oneGroup{calls: new(atomic.Int64)}, new(bool)}}
		c.Log = func(s string) {
			mu.Lock()
			defer mu.Unlock()
			told = append(told, s)
		}
	})
	r.submitted(1, 666)
	if a := r.answer("/v1/jobs/a/plans/1?wait_s=10"); a.State != Failed || strings.Contains(a.Error, "goroutine") {
		t.Errorf("%+v", a)
	}
	r.submitted(2, 4)
	if a := r.answer("/v1/jobs/a/plans/2?wait_s=10"); a.State != Done {
		t.Errorf("the next batch: %+v", a)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(told) != 1 || !strings.Contains(told[0], `(job "a", step 1)`) || !strings.Contains(told[0], "oneGroup.Plan") {
		t.Errorf("%q", told)
	}
}
