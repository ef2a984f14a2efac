package costmodel

import (
	"fmt"

	"github.com/evenkeel/evenkeel/internal/units"
)

// Hop is one task on the critical path of a layer: computing, or a message.
type Hop struct {
	Pass  string // forward or backward
	Rank  int    // the rank that computes, or the sender
	Name  string
	Start units.Seconds // from the start of the layer
	End   units.Seconds
}

// drawTimeline draws each stage once, at the time it first happens: of the
// layers the first forward and, in the backward pass, the last layer's. The
// others look the same and would only make the file long: a span of every rank stands for
// all of them, computing or not. All micro-batches run
// through a stage before any does the next, which changes no sum; of those in twos the
// first two are drawn, and of an odd number the last.
func (s *sim) drawTimeline() {
	var at units.Seconds
	recomputes := false
	for _, g := range s.stages {
		switch g.what {
		case linearForward:
			s.drawLayer(&g.layers[0], "forward", at)
			s.drawMore(g.times, "forward", at, g.length)
		case recompute:
			// A layer's backward pass follows its own recomputation.
			recomputes = true
			s.drawLayer(&g.layers[0], "recompute", at)
			s.drawLayer(&g.layers[1], "backward", at+g.length)
			s.drawMore(g.times, "recompute and backward", at, g.length+g.layers[1].length)
		case linearBackward:
			if !recomputes {
				s.drawLayer(&g.layers[1], "backward", at)
				s.drawMore(g.times, "backward", at, g.length)
			}
		case gradientSync:
			s.drawSync(g, at)
		default:
			s.drawLocal(g, at)
		}
		at += units.Seconds(g.times) * g.length
	}
	for dir, pass := range []string{"forward", "backward"} {
		for _, e := range s.rounds()[0].layers[dir].criticalPath() {
			s.path = append(s.path, Hop{pass, s.seats[e.seat].rank, s.eventName(e, pass), e.start, e.end})
		}
	}
}

// drawMore draws what a layer stands for that is drawn at `at`: all but itself, of so many
// that take as long.
func (s *sim) drawMore(times float64, pass string, at, length units.Seconds) {
	if times <= 1 {
		return
	}
	layers := "layers"
	if times == 2 {
		layers = "layer"
	}
	for _, a := range s.seats {
		s.span(a.rank, "compute", fmt.Sprintf("%.0f more %s %s, like the one before", times-1, layers, pass), at+length, at+units.Seconds(times)*length)
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

func (s *sim) drawLayer(r *layerRun, pass string, at units.Seconds) {
	for _, e := range *r.events {
		if e.end == e.start {
			continue
		}
		name := s.eventName(e, pass)
		from, to := s.seats[e.seat].rank, s.seats[e.to].rank
		switch e.kind {
		case linearEvent, stepEvent:
			s.span(from, "compute", name, at+e.start, at+e.end)
		default:
			s.span(from, "egress", name, at+e.start, at+e.end)
			s.span(to, "ingress", name, at+e.start, at+e.end)
		}
	}
}

// eventName is what people read in a timeline. A group is named by its first
// rank, for that is how a ring without all-to-alls is spoken of.
func (s *sim) eventName(e event, pass string) string {
	of, chunk := s.layout.Groups[e.of][0].Rank, ""
	batch := [...]string{"", " of batch A", " of batch B"}[e.batch]
	pass += batch
	if k := s.layout.chunks(); k > 1 {
		chunk = fmt.Sprintf(", heads %d of %d", e.chunk+1, k)
	}
	switch e.kind {
	case linearEvent:
		return "linear " + pass
	case allToAllEvent:
		return "all-to-all " + pass + chunk
	case stepEvent:
		return fmt.Sprintf("attention %s on %d's keys%s", pass, of, chunk)
	case kvEvent:
		return fmt.Sprintf("keys, values of %d%s", of, batch)
	}
	return fmt.Sprintf("gradients for %d%s", of, batch)
}

func (s *sim) span(rank int, resource, name string, start, end units.Seconds) {
	s.spans = append(s.spans, Span{Rank: rank, Resource: resource, Name: name, Start: start, End: end})
}
