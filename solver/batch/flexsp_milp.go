package batch

import (
	"context"
	"math"
	"time"

	"github.com/evenkeel/evenkeel/solver/milp"
)

// programme is the MILP of one micro-batch, equations (17) to (22) of the paper.
//
//	min C
//	Σ_q t(ŝ_q, d_p) A_qp + b_p m_p ≤ C      for all groups p
//	Σ_q ŝ_q A_qp ≤ cap_p                    for all p
//	Σ_p d_p m_p ≤ N
//	m_p ≤ Σ_q A_qp ≤ K m_p                  for all p
//	Σ_p A_qp = b_q                          for all buckets q
//
// m_p says whether virtual group p is formed, A_qp how many members of bucket q it
// trains; there is no A_qp where a sequence of bucket q is beyond the memory of p.
// Times are milliseconds. Of the base the least one counts for groups not formed
// too: C is never below it.
type programme struct {
	model  milp.Model
	groups []int   // level by group
	used   []int   // column of m_p
	counts [][]int // column of A_qp by group and bucket; 0 where there is none
}

const milli = 1e3

// newProgramme writes the programme of a chunk.
func newProgramme(a *alike, c *chunk) *programme {
	g := &programme{groups: c.virtual(a)}
	least := math.Inf(1)
	for _, l := range a.levels {
		least = min(least, float64(l.base)*milli)
	}
	g.column(milp.Column{Cost: 1, Lower: least, Upper: math.Inf(1)}) // C
	ranks := milp.Row{Lower: math.Inf(-1), Upper: float64(a.devices)}
	cover := make([]milp.Row, len(c.buckets))
	for q := range cover {
		n := float64(len(c.buckets[q].members))
		cover[q] = milp.Row{Lower: n, Upper: n}
	}
	for p, i := range g.groups {
		m := g.column(milp.Column{Upper: 1, Integer: true})
		g.used = append(g.used, m)
		ranks.Terms = append(ranks.Terms, milp.Term{Column: m, Value: float64(a.levels[i].degree)})
		g.group(a, c, p, i, least, cover)
	}
	g.model.Rows = append(append(g.model.Rows, ranks), cover...)
	return g
}

func (g *programme) column(c milp.Column) int {
	g.model.Columns = append(g.model.Columns, c)
	return len(g.model.Columns) - 1
}

// group writes the columns and rows of virtual group p, of level i.
func (g *programme) group(a *alike, c *chunk, p, i int, least float64, cover []milp.Row) {
	l := a.levels[i]
	none := math.Inf(-1)
	duration := milp.Row{Lower: none, Upper: -least, Terms: []milp.Term{{Column: 0, Value: -1}}}
	if extra := float64(l.base)*milli - least; extra > 0 {
		duration.Terms = append(duration.Terms, milp.Term{Column: g.used[p], Value: extra})
	}
	memory := milp.Row{Lower: none, Upper: float64(l.cap)}
	most := milp.Row{Lower: none, Upper: 0, Terms: []milp.Term{{Column: g.used[p], Value: -float64(len(c.sequences))}}}
	some := milp.Row{Lower: 0, Upper: math.Inf(1), Terms: []milp.Term{{Column: g.used[p], Value: -1}}}
	columns := make([]int, len(c.buckets))
	for q, b := range c.buckets {
		if b.bound > l.cap {
			continue
		}
		k := g.column(milp.Column{Upper: float64(len(b.members)), Integer: true})
		columns[q] = k
		duration.Terms = append(duration.Terms, milp.Term{Column: k, Value: float64(a.time(i, b.bound)) * milli})
		memory.Terms = append(memory.Terms, milp.Term{Column: k, Value: float64(b.bound)})
		one := milp.Term{Column: k, Value: 1}
		most.Terms, some.Terms = append(most.Terms, one), append(some.Terms, one)
		cover[q].Terms = append(cover[q].Terms, one)
	}
	g.counts = append(g.counts, columns)
	g.model.Rows = append(g.model.Rows, duration, memory, most, some)
}

// virtual lists the levels of the groups that may be formed: as many of each as
// there are devices for; but if n sequences need the degree D of the longest, then
// of a smaller degree as many as N - n D devices give, as in the released code.
func (c *chunk) virtual(a *alike) []int {
	longest := a.holds(c.buckets[len(c.buckets)-1].bound)
	need := 0
	for _, b := range c.buckets {
		if a.holds(b.bound) == longest {
			need += len(b.members)
		}
	}
	var groups []int
	for i, l := range a.levels {
		n := l.most
		if i < longest {
			n = min(n, max(0, a.devices-a.levels[longest].degree*need)/l.degree)
		}
		for range n {
			groups = append(groups, i)
		}
	}
	return groups
}

// enough is how near to the floor of its programme a solution ends the search: the
// engine's own relative gap.
const enough = 1 + 1e-4

// solve improves the chunk's plan by the engine. An engine that finds nothing
// within the limit, or a programme that rounding to buckets made infeasible, leaves
// the chunk as it is.
func (c *chunk) solve(ctx context.Context, a *alike, limit time.Duration) error {
	if ctx.Err() != nil {
		return nil
	}
	g := newProgramme(a, c)
	s, err := milp.Solve(ctx, &g.model, milp.Options{
		CPULimit: limit, Start: g.start(a, c), Enough: float64(c.onBuckets(a)) * milli * enough,
	})
	if err != nil || s.X == nil {
		return err
	}
	c.offer(a, g.shares(c, s.X))
	return nil
}

// shares reads a solution; members of a bucket go to groups longest first.
func (g *programme) shares(c *chunk, x []float64) []share {
	next := make([]int, len(c.buckets))
	var all []share
	for p, level := range g.groups {
		s := share{level: level}
		for q, column := range g.counts[p] {
			if column == 0 {
				continue
			}
			n := int(x[column])
			s.sequences = append(s.sequences, c.buckets[q].members[next[q]:next[q]+n]...)
			next[q] += n
		}
		all = append(all, s)
	}
	return all
}

// start is the chunk's best start that is a solution of the programme; nil if none is.
func (g *programme) start(a *alike, c *chunk) []float64 {
	home := map[int]int{} // bucket by sequence
	for q, b := range c.buckets {
		for _, k := range b.members {
			home[k] = q
		}
	}
	for _, s := range c.starts {
		if x := g.point(a, c, home, s.shares); x != nil && g.model.Feasible(x, 1e-9) {
			return x
		}
	}
	return nil
}

// point is groups as columns; nil if the programme has no such groups.
func (g *programme) point(a *alike, c *chunk, home map[int]int, shares []share) []float64 {
	x := make([]float64, len(g.model.Columns))
	next := map[int]int{} // virtual group by level, of those not looked at yet
	for _, s := range shares {
		if len(s.sequences) == 0 {
			continue
		}
		p := next[s.level]
		for p < len(g.groups) && g.groups[p] != s.level {
			p++
		}
		if p == len(g.groups) {
			return nil
		}
		next[s.level] = p + 1
		t := float64(a.levels[s.level].base) * milli
		x[g.used[p]] = 1
		for _, k := range s.sequences {
			column := g.counts[p][home[k]]
			if column == 0 {
				return nil
			}
			x[column]++
			t += float64(a.time(s.level, c.buckets[home[k]].bound)) * milli
		}
		x[0] = max(x[0], t)
	}
	return x
}
