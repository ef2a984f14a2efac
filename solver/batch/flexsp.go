package batch

import (
	"cmp"
	"context"
	"math/bits"
	"runtime"
	"sync"
	"time"

	"github.com/evenkeel/evenkeel/internal/units"
)

// FlexSP plans as the paper of that name does (arXiv 2412.01523, sections 4 and 5,
// and its released code): sequences are sorted and cut into micro-batches that
// follow one another, those of each micro-batch are put into buckets of like
// length, and a mixed-integer programme forms groups of power-of-two degree and
// assigns the buckets to them. Several numbers of micro-batches are tried.
//
// It differs from the released code in the engine, HiGHS instead of SCIP. Both
// begin with homogeneous groups; here a micro-batch also keeps the best such start
// where the engine's plan, on real lengths instead of buckets, is worse. Members of
// a bucket are handed out longest first, not at random. The released code forms no
// groups of one device, as the paper does; Single decides.
//
// The engine stops by the clock, so a plan may depend on the speed of the machine
// wherever a programme is not solved within Limit.
type FlexSP struct {
	Limit   time.Duration // of one programme; 10 s if 0, as in the released scripts
	Buckets int           // 16 if 0
	Tries   int           // numbers of micro-batches tried; 5 if 0
	Single  bool          // groups of one device are allowed
	Workers int           // programmes at the same time; one a core if 0
}

// Name is "flexsp".
func (FlexSP) Name() string { return "flexsp" }

// Claims says whose algorithm it is.
func (FlexSP) Claims() Claims {
	return Claims{Published: true, Doc: "FlexSP (ASPLOS 2025): sorted consecutive micro-batches, length buckets and a MILP with homogeneous starts; solved by HiGHS, where the paper has SCIP"}
}

const (
	flexLimit   = 10 * time.Second
	flexBuckets = 16
	flexTries   = 5
)

func (f FlexSP) withDefaults() FlexSP {
	if f.Limit <= 0 {
		f.Limit = flexLimit
	}
	if f.Buckets <= 0 {
		f.Buckets = flexBuckets
	}
	if f.Tries <= 0 {
		f.Tries = flexTries
	}
	if f.Workers <= 0 {
		f.Workers = runtime.GOMAXPROCS(0)
	}
	return f
}

// Solve plans the batch. When ctx ends, the programmes that have not been solved
// leave their micro-batches with what homogeneous groups give.
func (f FlexSP) Solve(ctx context.Context, p *Problem) (*Plan, error) {
	f = f.withDefaults()
	if err := cmp.Or(p.Validate(), ctx.Err()); err != nil {
		return nil, err
	}
	if err := p.Feasible(); err != nil {
		return nil, err
	}
	a, err := newAlike(p, func(d int) bool {
		return bits.OnesCount(uint(d)) == 1 && (d > 1 || f.Single || p.Devices() == 1)
	})
	if err != nil {
		return nil, err
	}
	tries := f.cuts(ctx, a)
	if tries == nil && ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if tries == nil {
		return nil, &IllegalError{"no number of micro-batches can be formed of groups of one degree each"}
	}
	if err := f.improve(ctx, a, tries); err != nil {
		return nil, err
	}
	return bestTry(p, tries), nil
}

// chunk is one micro-batch to be.
type chunk struct {
	sequences []int // longest first
	buckets   []bucket
	start     []share // the best homogeneous one on buckets
	best      MicroBatch
	ok        bool // best is a plan
}

// cuts cuts the batch into the fewest micro-batches that the devices hold, one
// more, and so on, each begun with homogeneous groups; more still until one of
// them is a plan.
func (f FlexSP) cuts(ctx context.Context, a *alike) [][]*chunk {
	order := descending(a.p.Lengths)
	capacity := a.capacity()
	fewest := int((tokensOf(a.p.Lengths, order) + capacity - 1) / capacity)
	var tries [][]*chunk
	found := false
	for m := fewest; m <= len(order) && (len(tries) < f.Tries || !found) && ctx.Err() == nil; m++ {
		parts := chunks(a.p.Lengths, order, m)
		if !fits(a.p.Lengths, parts, capacity) {
			continue
		}
		try := make([]*chunk, len(parts))
		whole := true
		for i, part := range parts {
			try[i] = f.begin(a, part)
			whole = whole && try[i].ok
		}
		tries = append(tries, try)
		found = found || whole
	}
	if !found {
		return nil
	}
	return tries
}

func (f FlexSP) begin(a *alike, sequences []int) *chunk {
	c := &chunk{sequences: sequences}
	c.buckets = buckets(a.p.Lengths, sequences, f.Buckets, a.capacity())
	c.homogeneous(a)
	return c
}

// offer keeps a plan of the chunk if it is the best.
func (c *chunk) offer(a *alike, shares []share) {
	m, ok := a.realise(shares)
	if ok && (!c.ok || m.Time < c.best.Time) {
		c.best, c.ok = m, true
	}
}

// improve solves the programmes of all chunks, several at a time.
func (f FlexSP) improve(ctx context.Context, a *alike, tries [][]*chunk) error {
	todo := make(chan *chunk)
	var workers sync.WaitGroup
	var once sync.Once
	var failure error
	for range f.Workers {
		workers.Go(func() {
			for c := range todo {
				if err := c.solve(ctx, a, f.Limit); err != nil {
					once.Do(func() { failure = err })
				}
			}
		})
	}
	for _, try := range tries {
		for _, c := range try {
			todo <- c
		}
	}
	close(todo)
	workers.Wait()
	return failure
}

// bestTry is the plan of least time; earlier ones, of fewer micro-batches, win ties.
func bestTry(p *Problem, tries [][]*chunk) *Plan {
	var best *Plan
	for _, try := range tries {
		plan := &Plan{}
		for _, c := range try {
			if !c.ok {
				plan = nil
				break
			}
			plan.Micro = append(plan.Micro, c.best)
		}
		if plan == nil {
			continue
		}
		Evaluate(p, plan)
		if best == nil || plan.Time < best.Time {
			best = plan
		}
	}
	return best
}

// homogeneous tries groups of one degree each, as many as there are devices for:
// buckets in falling order, each sequence to the group of the fewest tokens. The
// best on buckets becomes the engine's start.
func (c *chunk) homogeneous(a *alike) {
	best := never
	for i := range a.levels {
		shares, t, ok := c.spread(a, i)
		if !ok {
			continue
		}
		c.offer(a, shares)
		if t < best {
			c.start, best = shares, t
		}
	}
}

// spread fills groups of one level; t is their time on buckets. It fails where
// memory does on real lengths; t is never where it does on buckets only.
func (c *chunk) spread(a *alike, i int) (shares []share, t units.Seconds, ok bool) {
	l := a.levels[i]
	shares = make([]share, l.most)
	loads, times := make([]units.Tokens, l.most), make([]units.Seconds, l.most)
	for q := len(c.buckets) - 1; q >= 0; q-- {
		price := a.time(i, c.buckets[q].bound)
		for _, k := range c.buckets[q].members {
			g := 0
			for j := range loads {
				if loads[j] < loads[g] {
					g = j
				}
			}
			shares[g].level = i
			shares[g].sequences = append(shares[g].sequences, k)
			loads[g] += c.buckets[q].bound
			times[g] += price
		}
	}
	t = 0
	for g := range shares {
		if tokensOf(a.p.Lengths, shares[g].sequences) > l.cap {
			return nil, never, false
		}
		if t = max(t, times[g]+l.base); loads[g] > l.cap {
			t = never
		}
	}
	return shares, t, true
}
