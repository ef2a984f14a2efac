package costmodel

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/evenkeel/evenkeel/internal/units"
)

// spent is how one seat spends the whole step.
type spent struct {
	busy          [partCount]units.Seconds
	exposed, idle units.Seconds
}

func (s *sim) spent(i int) spent {
	var sum spent
	for _, g := range s.stages {
		n := units.Seconds(g.times)
		h := g.shares[i]
		for p, t := range h.busy {
			sum.busy[p] += n * t
		}
		sum.exposed += n * h.exposed
		// What is neither is idle; rounding may leave a hair less than nothing.
		sum.idle += n * max(0, g.length-h.computing()-h.exposed)
	}
	return sum
}

// step assembles the account.
func (s *sim) step() *Step {
	all := make([]spent, len(s.seats))
	critical := 0
	for i := range s.seats {
		all[i] = s.spent(i)
		if all[i].idle < all[critical].idle {
			critical = i
		}
	}
	var path account
	for _, g := range s.stages {
		path.merge(g.path, g.times)
	}
	whole := path.total()
	whole.Source = s.worst
	parts := s.parts(critical, all[critical], whole)
	var mid units.Seconds
	for _, p := range parts {
		mid += p.Time.Mid
	}
	slices.SortFunc(s.traffic, func(a, b Traffic) int { return cmp.Compare(a.Link, b.Link) })
	return &Step{
		Time: like(mid, whole), Parts: parts, Ranks: s.rankSteps(all, mid),
		Traffic: s.traffic, Warnings: append(s.warnings(), s.q.memoryWarnings(s.job, s.deviceTypes())...), Timeline: s.spans,
	}
}

// parts splits the step along the critical seat, the one that idles least.
// What it computes has the interval of the laws it uses; waiting has that of
// the links it waits for, and idling that of the whole step.
func (s *sim) parts(i int, sum spent, whole Estimate) []Part {
	accounts := s.partAccounts(i)
	var parts []Part
	for p, name := range partNames() {
		var e Estimate
		switch part(p) {
		case ringWait:
			e = like(sum.exposed, accounts[p].total())
		case idle:
			e = like(sum.idle, whole)
		default:
			e = like(sum.busy[p], accounts[p].total())
		}
		if e.Mid > 0 {
			parts = append(parts, Part{name, e})
		}
	}
	return parts
}

// partAccounts prices a seat's parts once more, this time law by law.
func (s *sim) partAccounts(i int) [partCount]account {
	var acc [partCount]account
	a := &s.seats[i]
	n := len(s.seats)
	for _, back := range []bool{false, true} {
		linear, attention := linearForward, attentionForward
		if back {
			linear, attention = linearBackward, attentionBackward
		}
		s.price(taskID{taskPre, i, 0}, back, &acc[linear])
		s.price(taskID{taskPost, i, 0}, back, &acc[linear])
		for t := range n {
			s.price(taskID{taskStep, i, t}, back, &acc[attention])
			if n > 1 && t < n-1 {
				s.price(taskID{taskKV, (i + n - 1) % n, t}, back, &acc[ringWait])
			}
		}
	}
	acc[recompute].merge(acc[linearForward], 1)
	acc[recompute].merge(acc[attentionForward], 1)
	s.loss(a.device, a.tokens, &acc[lossPart])
	s.optimizer(a.device, n, &acc[optimizerPart])
	for _, g := range s.stages {
		if g.what == gradientSync {
			acc[gradientSync] = g.path
		}
	}
	return acc
}

func (s *sim) rankSteps(all []spent, mid units.Seconds) []RankStep {
	tokens := make([]units.Tokens, len(s.ranks))
	for r, shard := range s.layout.Shards {
		tokens[r] = shard.Tokens()
	}
	steps := make([]RankStep, len(s.ranks))
	for r, rank := range s.ranks {
		dev := s.q.DeviceMemory(s.job, rank.Device)
		steps[r] = RankStep{Device: rank.Device, Tokens: tokens[r], Idle: mid, Memory: s.job.MemoryOn(tokens, r, dev)}
	}
	for i, a := range s.seats {
		h := share{busy: all[i].busy}
		r := &steps[a.rank]
		// Synchronising is communication that nothing hides.
		r.Busy = h.computing() - h.busy[gradientSync]
		r.Exposed = all[i].exposed + h.busy[gradientSync]
		r.Idle = all[i].idle
	}
	return steps
}

// deviceTypes are the types in the ring, each once, in its order.
func (s *sim) deviceTypes() []string {
	var types []string
	for _, a := range s.seats {
		if !slices.Contains(types, a.device) {
			types = append(types, a.device)
		}
	}
	return types
}

// drawTimeline draws each stage once, at the time it first happens: of the
// layers the first forward and, in the backward pass, the last layer's. The
// others look the same and would only make the file long.
func (s *sim) drawTimeline(forward, backward *ring) {
	var at units.Seconds
	recomputes := false
	for _, g := range s.stages {
		switch g.what {
		case linearForward:
			s.drawRing(forward, "forward", at)
		case recompute:
			// A layer's backward pass follows its own recomputation.
			recomputes = true
			s.drawRing(forward, "recompute", at)
			s.drawRing(backward, "backward", at+g.length)
		case linearBackward:
			if !recomputes {
				s.drawRing(backward, "backward", at)
			}
		case gradientSync:
			s.drawSync(g, at)
		default:
			s.drawLocal(g, at)
		}
		at += units.Seconds(g.times) * g.length
	}
}

func (s *sim) drawLocal(g stage, at units.Seconds) {
	for i, a := range s.seats {
		s.span(a.rank, "compute", partNames()[g.what], at, at+g.shares[i].busy[g.what])
	}
}

func (s *sim) drawSync(g stage, at units.Seconds) {
	if g.length == 0 {
		return
	}
	for _, a := range s.seats {
		s.span(a.rank, "egress", partNames()[gradientSync], at, at+g.length)
		s.span(a.rank, "ingress", partNames()[gradientSync], at, at+g.length)
	}
}

func (s *sim) drawRing(r *ring, pass string, at units.Seconds) {
	for i, a := range s.seats {
		next := s.seats[r.after(i)].rank
		s.span(a.rank, "compute", "linear "+pass, at, at+r.pre[i])
		for t := range r.n {
			of := s.owner(taskID{taskStep, i, t}).rank
			c := r.compute[i*r.n+t]
			s.span(a.rank, "compute", fmt.Sprintf("attention %s on %d's keys", pass, of), at+c.start, at+c.end)
			if r.n > 1 && t < r.n-1 {
				s.hopSpans(a.rank, next, fmt.Sprintf("keys, values of %d", of), at, r.kvHop[i*r.n+t])
			}
			if r.n > 1 && r.back {
				s.hopSpans(a.rank, next, fmt.Sprintf("gradients for %d", of), at, r.gradHop[i*r.n+t])
			}
		}
		s.span(a.rank, "compute", "linear "+pass, at+r.last[i].start, at+r.last[i].end)
	}
}

func (s *sim) hopSpans(from, to int, name string, at units.Seconds, h task) {
	s.span(from, "egress", name, at+h.start, at+h.end)
	s.span(to, "ingress", name, at+h.start, at+h.end)
}

func (s *sim) span(rank int, resource, name string, start, end units.Seconds) {
	s.spans = append(s.spans, Span{Rank: rank, Resource: resource, Name: name, Start: start, End: end})
}
