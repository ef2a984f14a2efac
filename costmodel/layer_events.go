package costmodel

import (
	"math"
	"slices"

	"github.com/evenkeel/evenkeel/internal/units"
)

// eventKind says what an event is.
type eventKind int8

const (
	linearEvent eventKind = iota
	allToAllEvent
	stepEvent
	kvEvent
	gradEvent
)

// event is one task of a layer.
type event struct {
	kind       eventKind
	seat, to   int  // the same but for messages
	step       int  // of linear work and all-to-alls 0 before the ring
	of         int  // group whose block it is about
	chunk      int  // of heads
	batch      int8 // of two: 1 or 2
	start, end units.Seconds
}

func (r *layerRun) note(e event) {
	if r.events != nil {
		e.batch = r.batch
		*r.events = append(*r.events, e)
	}
}

// criticalPath lists events that each begin at the instant the one before ends,
// from the beginning of the layer to its end, at ranks or ports in common.
func (r *layerRun) criticalPath() []event {
	all := *r.events
	ends := map[units.Seconds][]int{}
	last := 0
	for i, e := range all {
		if e.end > e.start {
			ends[e.end] = append(ends[e.end], i)
		}
		if e.end > all[last].end {
			last = i
		}
	}
	var path []event
	for at := last; at >= 0; {
		path = append(path, all[at])
		at = r.before(all, ends[all[at].start], all[at])
	}
	slices.Reverse(path)
	return path
}

// before finds, of events that end when e begins, one that can have let it
// begin: one of the same rank if there is one, or -1. An all-to-all waits for
// all members of its group.
func (r *layerRun) before(all []event, candidates []int, e event) int {
	group := func(seat int) int { return r.sim.seats[seat].group }
	best := -1
	for _, i := range candidates {
		c := all[i]
		if e.start <= 0 || math.IsInf(float64(e.start), 0) {
			break
		}
		switch {
		case c.to == e.seat && c.seat == e.seat:
			return i
		case c.to == e.seat || c.seat == e.seat || c.to == e.to || c.seat == e.to:
			best = i
		case e.kind == allToAllEvent && (group(c.seat) == group(e.seat) || group(c.to) == group(e.seat)):
			best = i
		}
	}
	return best
}
