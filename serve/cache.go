package serve

import (
	"cmp"
	"container/list"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"slices"
	"sync"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/batch"
)

// digestOf identifies lengths in their order.
func digestOf(lengths []units.Tokens) string {
	h := sha256.New()
	var b [8]byte
	for _, s := range lengths {
		binary.LittleEndian.PutUint64(b[:], uint64(s))
		h.Write(b[:])
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// ordered sorts lengths, longest first, and returns where each came from: a plan is
// made for the sorted batch, so that the order of a batch changes nothing and
// batches of the same lengths share one plan.
func ordered(lengths []units.Tokens) (sorted []units.Tokens, from []int) {
	from = make([]int, len(lengths))
	for i := range from {
		from[i] = i
	}
	slices.SortStableFunc(from, func(a, b int) int { return cmp.Compare(lengths[b], lengths[a]) })
	sorted = make([]units.Tokens, len(lengths))
	for i, k := range from {
		sorted[i] = lengths[k]
	}
	return sorted, from
}

// restage is rename of a pipeline.
func restage(p *Pipeline, from []int) *Pipeline {
	out := *p
	out.Lengths, out.Chunks = make([]units.Tokens, len(from)), slices.Clone(p.Chunks)
	for i, k := range from {
		out.Lengths[k] = p.Lengths[i]
	}
	for i := range out.Chunks {
		x := &out.Chunks[i]
		if x.Sequence >= 0 {
			x.Sequence = from[x.Sequence]
		}
		x.Whole = slices.Clone(x.Whole)
		for j, w := range x.Whole {
			x.Whole[j] = from[w]
		}
	}
	return &out
}

// rename is a copy of a plan of the sorted batch in terms of the batch as it came.
func rename(p *batch.Plan, from []int) *batch.Plan {
	out := &batch.Plan{Time: p.Time, Micro: slices.Clone(p.Micro)}
	for i := range out.Micro {
		groups := slices.Clone(out.Micro[i].Groups)
		for j := range groups {
			names := make([]int, len(groups[j].Sequences))
			for n, k := range groups[j].Sequences {
				names[n] = from[k]
			}
			groups[j].Sequences = names
		}
		out.Micro[i].Groups = groups
	}
	return out
}

// Planned is what a planner makes of a batch: groups side by side, or a pipeline.
type Planned struct {
	Plan     *batch.Plan
	Pipeline *Pipeline
	Interval costmodel.Estimate // of the plan's time; nothing where it is not known
	Bound    units.Seconds
	Stopped  bool // ctx ended first
}

// cache keeps the plans of the batches seen last, by the digest of their sorted
// lengths.
type cache struct {
	mu    sync.Mutex
	most  int
	byKey map[string]*list.Element
	used  list.List // of cached, the one used last first
}

type cached struct {
	digest string
	plan   Planned
}

func newCache(most int) *cache { return &cache{most: most, byKey: map[string]*list.Element{}} }

func (c *cache) get(digest string) (Planned, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.byKey[digest]
	if e == nil {
		return Planned{}, false
	}
	c.used.MoveToFront(e)
	return e.Value.(cached).plan, true
}

func (c *cache) put(digest string, p Planned) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.most < 1 || p.Stopped || c.byKey[digest] != nil {
		return
	}
	c.byKey[digest] = c.used.PushFront(cached{digest, p})
	if c.used.Len() > c.most {
		delete(c.byKey, c.used.Remove(c.used.Back()).(cached).digest)
	}
}
