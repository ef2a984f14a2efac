package pipeline

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel/pipeline"
)

// annealing improves a draft by simulated annealing.
type annealing struct {
	p    *Problem
	x    *dispatcher
	rand *rand.Rand
	d    *draft
	time float64
}

// passes is how many passes a search of usual effort simulates.
const passes = 1.2e7

// heats are the shares of the step by which a change may make it longer, at the beginning and
// at the end.
const hot, cold = 0.002, 0.00002

// improve changes a draft step by step, for a share of a turn's effort, and returns the best.
func improve(ctx context.Context, p *Problem, d *draft, u turn, share float64) *draft {
	y := &annealing{p: p, x: newDispatcher(p), rand: rand.New(rand.NewPCG(3, 5+u.seed)), d: d}
	y.x.settle(d)
	y.time = y.x.run(d, false)
	best, least := d, y.time
	rounds := int(share * u.effort * min(20000, max(1000, passes/float64(2*len(d.items)*len(d.stages)))))
	for i := range rounds {
		if i%16 == 0 && ctx.Err() != nil {
			break
		}
		heat := hot * math.Pow(cold/hot, float64(i)/float64(rounds))
		now := y.change()
		if now == nil {
			continue
		}
		y.x.settle(now)
		t := y.x.run(now, false)
		if t <= y.time || y.rand.Float64() < math.Exp((y.time-t)/(heat*y.time)) {
			y.d, y.time = now, t
		}
		if t < least {
			best, least = now, t
		}
	}
	return best
}

// change is the draft with something changed; nil where that cannot be.
func (y *annealing) change() *draft {
	switch r := y.rand.IntN(100); {
	case r < 45, r < 55 && y.p.Fixed != nil:
		return y.reorder()
	case r < 55:
		return y.shiftLayer()
	case r < 75:
		return y.recompute()
	case r < 97:
		return y.repack()
	}
	return y.split()
}

// reorder has a sequence begin earlier or later.
func (y *annealing) reorder() *draft {
	n := len(y.d.order)
	if n < 2 {
		return nil
	}
	now := y.d.clone()
	from, to := y.rand.IntN(n), y.rand.IntN(n)
	if y.rand.IntN(2) == 0 {
		now.order[from], now.order[to] = now.order[to], now.order[from]
		return now
	}
	q := now.order[from]
	now.order = slices.Insert(slices.Delete(now.order, from, from+1), to, q)
	return now
}

// shiftLayer gives a layer of one stage to another.
func (y *annealing) shiftLayer() *draft {
	n := len(y.d.stages)
	from, to := y.rand.IntN(n), y.rand.IntN(n)
	if from == to || y.d.stages[from].Layers < 2 {
		return nil
	}
	now := y.d.clone()
	now.stages[from].Layers--
	now.stages[to].Layers++
	for k, again := range now.again[from] {
		now.again[from][k] = min(again, now.stages[from].Layers)
	}
	return now
}

// recompute changes how much of a sequence, or of all, a stage computes again, or all do.
func (y *annealing) recompute() *draft {
	q := y.d.order[y.rand.IntN(len(y.d.order))]
	if y.rand.IntN(8) == 0 {
		q = slices.Concat(y.d.order...)
	}
	s := y.rand.IntN(2*len(y.d.stages)) - len(y.d.stages) // below 0: all stages
	by := y.rand.IntN(5) - 2
	if by == 0 {
		return nil
	}
	if len(q) > 1 && y.rand.IntN(3) == 0 { // of one chunk alone
		at := y.rand.IntN(len(q))
		q = q[at : at+1]
	}
	now, changed := y.d.clone(), false
	for i := range now.stages {
		if s >= 0 && i != s {
			continue
		}
		for _, k := range q {
			n := min(max(0, now.again[i][k]+by), now.stages[i].Layers)
			changed = changed || n != now.again[i][k]
			now.again[i][k] = n
		}
	}
	if !changed {
		return nil
	}
	return now
}

// repack moves a whole sequence from one chunk to another, or swaps two.
func (y *annealing) repack() *draft {
	from, to := y.rand.IntN(len(y.d.items)), y.rand.IntN(len(y.d.items))
	a, b := y.d.items[from], y.d.items[to]
	if from == to || len(a.Whole) == 0 {
		return nil
	}
	i := y.rand.IntN(len(a.Whole))
	rest, more := without(a.Whole, i), b.Whole
	if len(b.Whole) > 0 && y.rand.IntN(2) == 0 {
		j := y.rand.IntN(len(b.Whole))
		rest, more = append(rest, b.Whole[j]), without(b.Whole, j)
	}
	more = append(slices.Clone(more), a.Whole[i])
	now := y.d.clone()
	now.items[to] = y.p.priced(now.stages, with(b.Chunk, more))
	if len(rest) == 0 && a.Slice == 0 {
		now.remove(from)
		return now
	}
	now.items[from] = y.p.priced(now.stages, with(a.Chunk, rest))
	return now
}

// split puts half of the whole sequences of a chunk into a new one.
func (y *annealing) split() *draft {
	at := y.rand.IntN(len(y.d.items))
	a := y.d.items[at]
	if len(a.Whole) < 2 {
		return nil
	}
	cut := 1 + y.rand.IntN(len(a.Whole)-1)
	now := y.d.clone()
	now.items[at] = y.p.priced(now.stages, with(a.Chunk, a.Whole[:cut]))
	now.order = slices.Insert(now.order, y.rand.IntN(len(now.order)+1), []int{len(now.items)})
	now.items = append(now.items, y.p.priced(now.stages, pipeline.Chunk{Sequence: -1, Whole: a.Whole[cut:]}))
	for s := range now.again {
		now.again[s] = append(now.again[s], min(now.again[s][at], now.stages[s].Layers))
	}
	return now
}

// remove takes an item away, which is a sequence's only one.
func (d *draft) remove(at int) {
	d.items = slices.Delete(d.items, at, at+1)
	for s := range d.again {
		d.again[s] = slices.Delete(d.again[s], at, at+1)
	}
	order := make([][]int, 0, len(d.order)-1)
	for _, items := range d.order {
		if items[0] == at {
			continue
		}
		of := slices.Clone(items)
		for i, k := range of {
			if k > at {
				of[i]--
			}
		}
		order = append(order, of)
	}
	d.order = order
}

func with(c pipeline.Chunk, whole []int) pipeline.Chunk {
	c.Whole = whole
	return c
}

func without(of []int, at int) []int { return slices.Delete(slices.Clone(of), at, at+1) }
