package batch

import (
	"cmp"
	"context"
	"encoding/binary"
	"math/bits"
	"runtime"
	"slices"
	"time"

	"github.com/evenkeel/evenkeel/internal/units"
)

// FlexSP plans as the paper of that name does (arXiv 2412.01523, sections 4 and 5,
// and its released code): sequences are sorted and cut into micro-batches that
// follow one another, those of each micro-batch are put into buckets of like
// length, and a mixed-integer programme forms groups of power-of-two degree and
// assigns the buckets to them. Several numbers of micro-batches are tried.
//
// It differs from the released code in this:
//
//   - The engine is HiGHS instead of SCIP. It is handed one start, the best that is a
//     solution of the programme; SCIP is handed all. A micro-batch also keeps the best
//     start where the engine's plan, on real lengths instead of buckets, is worse.
//   - Starts are the homogeneous groups of the released code, the same filled by time
//     instead of tokens, and mixtures of groups for the longest sequence and smaller
//     ones: more than published, and the plan is never worse for it.
//   - Members of a bucket are handed out longest first, not at random.
//   - Groups of one device are formed, as in the paper, if Single says so; the released
//     code forms none.
//   - Programmes that cannot change the plan's time are not solved, equal ones are
//     solved once, and one ends when its solution is within the engine's gap of a
//     bound that needs no search. The released code solves all, side by side.
//
// The engine has Limit of processor time for a programme, of the one thread that it
// works on, not time on the wall: other work on the machine takes none of it, and
// several programmes side by side do not take it from each other. On systems other
// than Linux it is time on the wall. A plan may depend on the speed of the machine
// wherever a programme is not solved within Limit.
type FlexSP struct {
	Limit   time.Duration // of processor time for one programme; 10 s if 0, as in the released scripts
	Buckets int           // 16 if 0
	Tries   int           // numbers of micro-batches tried; 5 if 0
	Single  bool          // groups of one device are allowed
	Workers int           // programmes at the same time; one a core if 0

	all bool // for tests: programmes that cannot matter are solved too
}

// Name is "flexsp".
func (FlexSP) Name() string { return "flexsp" }

// Claims says whose algorithm it is.
func (FlexSP) Claims() Claims {
	return Claims{Published: true, Slow: true, Doc: "FlexSP (ASPLOS 2025): sorted consecutive micro-batches, length buckets and a MILP with homogeneous starts; solved by HiGHS, where the paper has SCIP"}
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
		return nil, &IllegalError{Why: "no number of micro-batches can be formed of groups of one degree each"}
	}
	s := &search{a: a, limit: f.Limit, all: f.all, tries: tries}
	if err := s.run(ctx, f.Workers); err != nil {
		return nil, err
	}
	return bestTry(p, tries), nil
}

// try is one number of micro-batches.
type try []part

// part is a micro-batch to be. Parts of the same lengths have one chunk.
type part struct {
	sequences []int // longest first
	*chunk
}

// chunk is what is known of a micro-batch with these lengths.
type chunk struct {
	sequences []int // of the part it was made for, longest first
	buckets   []bucket
	starts    []begun // on buckets, the best first
	best      MicroBatch
	ok        bool // best is a plan
	floor     units.Seconds
	engine    progress
}

// progress is how far the engine is with a chunk.
type progress int

const (
	fresh progress = iota + 1
	taken
	solved
)

// cuts cuts the batch into the fewest micro-batches that the devices hold, one
// more, and so on, each begun with homogeneous groups; more still until one of
// them is a plan.
func (f FlexSP) cuts(ctx context.Context, a *alike) []try {
	order := descending(a.p.Lengths)
	capacity := a.capacity()
	fewest := int((tokensOf(a.p.Lengths, order) + capacity - 1) / capacity)
	var tries []try
	known := map[string]*chunk{}
	found := false
	for m := fewest; m <= len(order) && (len(tries) < f.Tries || !found) && ctx.Err() == nil; m++ {
		parts := chunks(a.p.Lengths, order, m)
		if !fits(a.p.Lengths, parts, capacity) {
			continue
		}
		t := make(try, len(parts))
		whole := true
		for i, sequences := range parts {
			key := a.lengths(sequences)
			if known[key] == nil {
				known[key] = f.begin(a, sequences)
			}
			t[i] = part{sequences, known[key]}
			whole = whole && t[i].ok
		}
		tries = append(tries, t)
		found = found || whole
	}
	if !found {
		return nil
	}
	return tries
}

// lengths is a name of the sequences' lengths.
func (a *alike) lengths(sequences []int) string {
	var b []byte
	for _, k := range sequences {
		b = binary.AppendVarint(b, int64(a.p.Lengths[k]))
	}
	return string(b)
}

func (f FlexSP) begin(a *alike, sequences []int) *chunk {
	c := &chunk{sequences: sequences, engine: fresh}
	c.buckets = buckets(a.p.Lengths, sequences, f.Buckets, a.capacity())
	c.floor = floorOf(a, lengthsOf(a.p.Lengths, sequences))
	c.begins(a)
	return c
}

// offer keeps a plan of the chunk if it is the best.
func (c *chunk) offer(a *alike, shares []share) {
	m, ok := a.realise(shares)
	if ok && (!c.ok || m.Time < c.best.Time) {
		c.best, c.ok = m, true
	}
}

// bestTry is the plan of least time; earlier ones, of fewer micro-batches, win ties.
func bestTry(p *Problem, tries []try) *Plan {
	var best *Plan
	for _, t := range tries {
		plan := &Plan{}
		for _, c := range t {
			if !c.ok {
				plan = nil
				break
			}
			plan.Micro = append(plan.Micro, c.plan())
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

// plan is the chunk's best plan with the part's own sequences.
func (c part) plan() MicroBatch {
	own := map[int]int{}
	for i, k := range c.chunk.sequences {
		own[k] = c.sequences[i]
	}
	m := MicroBatch{Groups: slices.Clone(c.best.Groups)}
	for i := range m.Groups {
		g := &m.Groups[i]
		g.Ranks = slices.Clone(g.Ranks)
		sequences := make([]int, len(g.Sequences))
		for j, k := range g.Sequences {
			sequences[j] = own[k]
		}
		g.Sequences = sequences
	}
	return m
}
