package batch

import (
	"context"
	"sync"
	"time"

	"github.com/evenkeel/evenkeel/internal/units"
)

// search solves the programmes of all tries but those that cannot matter. A try
// takes at least the times of its chunks that are solved and the floors of the
// others; where that is more than the best plan so far, the try cannot win, and its
// other programmes are not solved. The plan found takes as long as if all were.
//
// The released code solves all of them, each on a core of its own.
type search struct {
	a     *alike
	limit time.Duration
	all   bool // leave none out
	tries []try

	mu  sync.Mutex // of what follows, and of the chunks
	err error
}

// run solves, so many programmes at a time.
func (s *search) run(ctx context.Context, workers int) error {
	var group sync.WaitGroup
	for range workers {
		group.Go(func() {
			for c := s.next(); c != nil; c = s.next() {
				own := *c
				err := own.solve(ctx, s.a, s.limit)
				s.done(c, &own, err)
			}
		})
	}
	group.Wait()
	return s.err
}

// done takes over what a copy of the chunk was improved to.
func (s *search) done(c, own *chunk, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*c = *own
	c.engine = solved
	if s.err == nil {
		s.err = err
	}
}

// next is the chunk to be solved next; nil if none can matter. It is of the try that
// may become the fastest, and there the one whose plan is the farthest from its
// floor.
func (s *search) next() *chunk {
	s.mu.Lock()
	defer s.mu.Unlock()
	best := s.best()
	var chosen *chunk
	least := never
	for _, t := range s.tries {
		floor := t.floor()
		if floor >= least || !s.all && floor > best*(1+rounding) {
			continue
		}
		if c := t.farthest(s.all); c != nil {
			chosen, least = c, floor
		}
	}
	if chosen != nil {
		chosen.engine = taken
	}
	return chosen
}

// best is the time of the best plan so far, without what all plans take. A floor has nothing of
// the exchange that may be open.
func (s *search) best() units.Seconds {
	best := never
	for _, t := range s.tries {
		sum := units.Seconds(0)
		longest := units.Seconds(0)
		for _, c := range t {
			sum += c.time()
			longest = max(longest, c.best.slowest())
		}
		best = min(best, sum+s.a.p.open(longest))
	}
	return best
}

// time of the best plan.
func (c *chunk) time() units.Seconds {
	if !c.ok {
		return never
	}
	return c.best.Time
}

// floor is the least that the try can come to.
func (t try) floor() units.Seconds {
	sum := units.Seconds(0)
	for _, c := range t {
		if c.engine == solved {
			sum += c.time()
		} else {
			sum += c.chunk.floor
		}
	}
	return sum
}

// farthest is the chunk, of those that nobody has taken, whose plan is the farthest
// from its floor; nil if there is none. One whose plan is at its floor is solved.
func (t try) farthest(all bool) *chunk {
	var chosen *chunk
	most := units.Seconds(-1)
	for _, c := range t {
		if c.engine != fresh {
			continue
		}
		gap := c.time() - c.chunk.floor
		if !all && gap <= c.chunk.floor*rounding {
			continue
		}
		if gap > most {
			chosen, most = c.chunk, gap
		}
	}
	return chosen
}
