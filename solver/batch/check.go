package batch

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/evenkeel/evenkeel/internal/units"
)

// Check verifies a plan against its problem and returns all violations, up to a hundred.
// The rules are: every sequence is trained exactly once, by a group whose class can hold
// all of its sequences; groups of a micro-batch share no device; each group has the devices
// of its class; times and tokens follow from the prices. It shares no code with any
// strategy, with Evaluate or with Place.
func Check(p *Problem, plan *Plan) []error {
	c := checker{p: p, seen: make([]int, len(p.Lengths)), home: make(map[int][2]int, p.Devices()), used: make(map[int]int, p.Devices())}
	for i, pool := range p.Fleet {
		for n, node := range pool.Ranks {
			for _, r := range node {
				c.home[r] = [2]int{i, n}
			}
		}
	}
	total, last := float64(p.Fixed), 0.0
	for i := range plan.Micro {
		var time float64
		time, last = c.micro(i, &plan.Micro[i])
		total += time
	}
	total += c.left(p.Behind, backwardShare*last)
	for k, n := range c.seen {
		if n != 1 {
			c.add("sequence %d (%s) is trained %s", k, units.Count(p.Lengths[k], "token"), units.Count(n, "time"))
		}
	}
	c.same("step_s", float64(plan.Time), total)
	return c.found
}

// errTime marks violations that are of times alone; it adds no words.
var errTime = errors.New("")

type checker struct {
	p     *Problem
	seen  []int          // by sequence, how often it is trained
	home  map[int][2]int // by rank, its pool and node
	used  map[int]int    // by rank, its group of the micro-batch at hand
	found []error
}

const mostViolations = 100

func (c *checker) add(format string, args ...any) {
	if len(c.found) < mostViolations {
		c.found = append(c.found, fmt.Errorf(format, args...))
	}
}

// same compares a stated time with the one worked out here; their sums may have
// been taken in another order.
func (c *checker) same(field string, stated, worked float64) {
	if !(math.Abs(stated-worked) <= 1e-9*math.Abs(worked)) {
		c.add("%s: %v: the prices say %v%w", field, stated, worked, errTime)
	}
}

// micro checks one micro-batch and returns its time and that of its slowest group.
func (c *checker) micro(i int, m *MicroBatch) (time, slowest float64) {
	at := fmt.Sprintf("micro_batches[%d]", i)
	if len(m.Groups) == 0 {
		c.add("%s: no groups", at)
	}
	clear(c.used)
	for j := range m.Groups {
		where := fmt.Sprintf("%s.groups[%d]", at, j)
		slowest = max(slowest, c.group(where, &m.Groups[j]))
		for _, r := range m.Groups[j].Ranks {
			if other, taken := c.used[r]; taken {
				c.add("%s.ranks: rank %d is also in groups[%d]", where, r, other)
			}
			c.used[r] = j
		}
	}
	beside := backwardShare * slowest
	if c.p.BothPasses {
		beside += forwardShare * slowest
	}
	time = slowest + c.left(c.p.Hidden, beside) + float64(c.p.MicroBase)
	c.same(at+".time_s", float64(m.Time), time)
	return time, slowest
}

// left is what an exchange adds that travels beside passes of all layers, but for one of them.
func (c *checker) left(exchange units.Seconds, passes float64) float64 {
	if n := float64(c.p.Layers); n > 0 {
		passes *= (n - 1) / n
	}
	if open := float64(exchange) - passes; open > 0 {
		return open
	}
	return 0
}

// group checks one group and returns its time.
func (c *checker) group(at string, g *Group) float64 {
	if g.Class < 0 || g.Class >= len(c.p.Classes) {
		c.add("%s.class: %d: the problem has %d", at, g.Class, len(c.p.Classes))
		return math.NaN()
	}
	class := c.p.Classes[g.Class]
	var tokens units.Tokens
	time := 0.0
	for _, k := range g.Sequences {
		if k < 0 || k >= len(c.seen) {
			c.add("%s.sequences: %d: the batch has %d", at, k, len(c.seen))
			continue
		}
		c.seen[k]++
		tokens += c.p.Lengths[k]
		time += float64(c.p.Costs.Time(g.Class, c.p.Lengths[k]))
	}
	if len(g.Sequences) > 0 {
		time += float64(class.Base)
	}
	if tokens > class.Cap {
		c.add("%s: %s: a group of %s holds %d", at, units.Count(tokens, "token"), class.Name, int64(class.Cap))
	}
	if tokens != g.Tokens {
		c.add("%s.length_tokens: %d: its sequences have %d", at, int64(g.Tokens), int64(tokens))
	}
	c.same(at+".time_s", float64(g.Time), time)
	c.ranks(at, class, g.Ranks)
	return time
}

// ranks checks that a group has the devices of its class.
func (c *checker) ranks(at string, class Class, ranks []int) {
	have := make([]int, len(class.Uses))
	nodes := map[[2]int]bool{}
	for _, r := range ranks {
		home, known := c.home[r]
		if !known {
			c.add("%s.ranks: %d: no such rank in the fleet", at, r)
			continue
		}
		have[home[0]]++
		nodes[home] = true
	}
	if !slices.Equal(have, class.Uses) {
		c.add("%s.ranks: %v devices by pool: a group of %s has %v", at, have, class.Name, class.Uses)
	}
	if class.One && len(nodes) > 1 {
		c.add("%s.ranks: on %d nodes: a group of %s is in one", at, len(nodes), class.Name)
	}
}
