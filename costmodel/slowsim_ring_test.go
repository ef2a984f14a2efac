package costmodel

import (
	"slices"

	"github.com/evenkeel/evenkeel/costmodel/op"
)

// program lists the messages of a layer in the order of the ports.
func (s *slowSim) program() {
	s.prev, s.wire = map[slowTask][]slowTask{}, nil
	n := len(s.l.Groups)
	if n < 2 {
		return
	}
	s.pass("kv", 0)
	for t := 1; t < n; t++ {
		s.pass("kv", t)
		if s.back && t > 1 {
			s.pass("grad", t-1)
			s.pass("homeward", t-1)
		}
	}
	if s.back {
		s.pass("grad", n-1)
		s.pass("homeward", n-1)
	}
}

// pass appends a hop of all pairs.
func (s *slowSim) pass(kind string, t int) {
	for _, i := range s.working {
		for _, x := range s.onward(kind, t, i) {
			for k := len(s.wire) - 1; k >= 0; k-- {
				if y := s.wire[k]; y.i == x.i || y.j == x.j {
					s.prev[x] = append(s.prev[x], y)
				}
			}
			s.wire = append(s.wire, x)
		}
	}
}

// end is when a task is done.
func (s *slowSim) end(x slowTask) float64 {
	if e, ok := s.memo[x]; ok {
		return e
	}
	e := s.start(x) + s.takes(x)
	s.memo[x] = e
	return e
}

func (s *slowSim) takes(x slowTask) float64 {
	switch x.kind {
	case "pre", "post":
		return s.linear(x.i, x.kind == "pre")
	case "in", "out": // of group i
		switch {
		case len(s.l.Groups[x.i]) == 1:
			return 0
		case s.l.chunks() > 1:
			return s.chunkToAll(x)
		}
		return s.toAll(x.i, x.kind == "in")
	case "compute":
		if s.l.chunks() > 1 {
			return s.chunkWork(x)
		}
		return s.slowedBy(x.i, s.work(x.i, s.source(x.i, x.t)), s.beside(x.i, x.t))
	case "kv", "grad", "homeward":
		return s.hop(x)
	}
	return 0 // moments: arrived, home, added, sent, gradsent
}

// slowedBy is what w seconds of computing take on a rank beside messages that move for
// some time: while they do, the work is done at 1/ratio of its speed.
func (s *slowSim) slowedBy(r int, w, moving float64) float64 {
	ratio := s.ratio(r, op.SlowedCompute, s.back)
	if done := moving / ratio; done < w {
		return moving + w - done
	}
	return w * ratio
}

// beside is for how long messages of the ring move beside a step of a rank: as many as
// on average over all blocks, but none beside one step.
func (s *slowSim) beside(r, t int) float64 {
	quiet := len(s.l.Groups) - 1
	if s.order()[0] == 1 {
		quiet = 1
	}
	if t == quiet {
		return 0
	}
	return s.movingBeside(r)
}

// movingBeside is the seconds of messages of a rank that move in a step.
func (s *slowSim) movingBeside(r int) float64 {
	key := slowHop{slowTask{i: r}, s.back}
	if t, ok := s.hops[key]; ok {
		return t
	}
	out, in := 0.0, 0.0
	for t := range s.l.Groups {
		kinds := []string{"kv"}
		if s.back {
			kinds = append(kinds, "grad", "homeward")
		}
		for _, kind := range kinds {
			for _, x := range s.onward(kind, t, r) {
				out += s.hop(x)
			}
			for _, x := range s.into(kind, t, r) {
				in += s.hop(x)
			}
		}
	}
	s.hops[key] = max(out, in) / float64(len(s.l.Groups)-1)
	return s.hops[key]
}

// start is the latest end of what a task waits for.
func (s *slowSim) start(x slowTask) float64 {
	latest, n := 0.0, len(s.l.Groups)
	for _, before := range s.after(x, n) {
		latest = max(latest, s.end(before))
	}
	return latest
}

// after lists what a task waits for in a ring of n groups.
func (s *slowSim) after(x slowTask, n int) []slowTask {
	g := s.members[x.i].group
	if s.l.chunks() > 1 {
		return s.afterInChunks(x, g)
	}
	switch x.kind {
	case "in":
		before := s.all("pre", s.l.Groups[x.i])
		for _, y := range s.wire { // what left when the pass began is through their ports
			if s.leavesAtOnce(y) && len(s.l.Groups[x.i]) > 1 && (s.members[y.i].group == x.i || s.members[y.j].group == x.i) {
				before = append(before, y)
			}
		}
		return before
	case "arrived":
		if x.t == 0 {
			return []slowTask{{"in", 0, g, 0}}
		}
		return s.into("kv", x.t-1, x.i)
	case "compute":
		before := []slowTask{{"in", 0, g, 0}, {"arrived", x.t, x.i, 0}}
		order := s.order()
		if at := slices.Index(order, x.t); at > 0 {
			before = append(before, slowTask{"compute", order[at-1], x.i, 0})
		}
		if u := x.t - s.j.RingBuffers; s.back && u >= 0 && slices.Index(order, u) < slices.Index(order, x.t) {
			before = append(before, slowTask{"added", u, x.i, 0})
		}
		return before
	case "added":
		before := []slowTask{{"compute", x.t, x.i, 0}}
		if x.t > 1 { // the owner's share stays at home
			if coming := s.into("grad", x.t-1, x.i); len(coming) > 0 {
				before = append(before, coming...)
				before = append(before, s.into("homeward", x.t-1, x.i)...) // of the same hop
			}
		}
		return before
	case "kv", "grad", "homeward":
		return append(s.atPorts(x), s.atBuffer(x)...)
	case "home":
		before := []slowTask{{"compute", s.order()[n-1], x.i, 0}}
		for t := range n {
			if s.back {
				before = append(before, s.into("homeward", t, x.i)...)
			}
		}
		return before
	case "out":
		before := s.all("home", s.l.Groups[x.i])
		exchanges := len(s.l.Groups[x.i]) > 1 && s.toAll(x.i, false) > 0
		for _, y := range s.wire { // nothing is left on their ports
			if exchanges && s.members[y.i].group == x.i {
				before = append(before, y)
			}
		}
		return before
	case "post":
		return []slowTask{{"out", 0, g, 0}}
	}
	return nil
}

// leavesAtOnce says whether a message is there when the pass begins: the first keys and
// values backward, where own blocks come last.
func (s *slowSim) leavesAtOnce(x slowTask) bool {
	return x.kind == "kv" && x.t == 0 && s.order()[0] == 1
}

// order is that in which a rank computes the steps.
func (s *slowSim) order() []int {
	var steps []int
	for t := range s.l.Groups {
		steps = append(steps, t)
	}
	if s.back && s.l.OwnLast {
		steps = append(steps[1:], 0)
	}
	return steps
}

func (s *slowSim) all(kind string, g Group) []slowTask {
	var tasks []slowTask
	for _, m := range g {
		tasks = append(tasks, slowTask{kind, 0, m.Rank, 0})
	}
	return tasks
}

// into lists the messages of a hop to rank j, onward those from rank i.
func (s *slowSim) into(kind string, t, j int) []slowTask {
	var tasks []slowTask
	for _, i := range s.working {
		if s.moves(kind, t, i, j) {
			tasks = append(tasks, slowTask{kind, t, i, j})
		}
	}
	return tasks
}

func (s *slowSim) onward(kind string, t, i int) []slowTask {
	var tasks []slowTask
	for _, j := range s.working {
		if s.moves(kind, t, i, j) {
			tasks = append(tasks, slowTask{kind, t, i, j})
		}
	}
	return tasks
}

// moves says whether there is a message of rank i to rank j about the block that is
// at i in step t: it is passed on as far as somebody needs it, and from there its
// gradients go home.
func (s *slowSim) moves(kind string, t, i, j int) bool {
	n, k := len(s.l.Groups), s.source(i, t)
	from, to, far := s.members[i].group, s.members[j].group, s.reach[k]
	if s.w[[2]int{i, j}] == 0 {
		return false
	}
	switch kind {
	case "kv":
		return to == (from+1)%n && t < far
	case "grad":
		return to == (from+1)%n && t > 0 && t >= s.first[k] && t < far
	}
	return to == k && t > 0 && t == far
}

// atPorts lists what a message's two ports do before it.
func (s *slowSim) atPorts(x slowTask) []slowTask {
	before := slices.Clone(s.prev[x])
	if s.leavesAtOnce(x) {
		return before
	}
	for _, r := range []int{x.i, x.j} {
		if g := s.members[r].group; len(s.l.Groups[g]) > 1 {
			before = append(before, slowTask{"in", 0, g, 0})
		}
	}
	return before
}

// atBuffer lists what makes a message ready and frees the buffer it goes to; what
// goes home has a place of its own there.
func (s *slowSim) atBuffer(x slowTask) []slowTask {
	freed := x.t + 1 - s.j.RingBuffers
	if s.leavesAtOnce(x) {
		return nil
	}
	if x.kind == "kv" {
		before := []slowTask{{"arrived", x.t, x.i, 0}}
		if freed >= 1 {
			before = append(before, slowTask{"compute", freed, x.j, 0})
			before = append(before, s.lastFrom(freed, x.j, "kv")...)
		}
		return before
	}
	before := []slowTask{{"added", x.t, x.i, 0}}
	if freed >= 1 && x.kind == "grad" {
		before = append(before, s.lastFrom(freed, x.j, "grad", "homeward")...)
	}
	return before
}

// lastFrom lists the messages that a rank sent last from the buffer of a step.
func (s *slowSim) lastFrom(t, i int, kinds ...string) []slowTask {
	var tasks []slowTask
	for ; t >= 1 && len(tasks) == 0; t -= s.j.RingBuffers {
		for _, kind := range kinds {
			tasks = append(tasks, s.onward(kind, t, i)...)
		}
	}
	return tasks
}
