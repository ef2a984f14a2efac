package evenkeel

import (
	"math"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
)

// leads looks for chains whose last group has tokens before all others as well. In a
// chain the groups before the last one have tokens that see few keys, and the network
// gives them no time for more of these: each token's keys have to go to all groups
// behind. With the first tokens of the sequence at the last group they compute more on
// as many tokens, for keys that come the other way, where ports are idle; what the last
// group has behind all others stays at home (see costmodel.Layout). What it costs is on
// top of the budget where little is left of that.
func (s *search) leads(chains []point) (found []point) {
	part := s.budget * leadPart
	s.budget = max(s.budget, s.work+part)
	until := s.work + part
	chains = slices.Clone(chains)
	sortPoints(chains)
	chains = chains[:min(len(chains), leadStarts)]
	for i, x := range chains {
		if x.t > s.fastest()*(1+leadFar) {
			break
		}
		w := &walk{search: s, at: x, until: s.work + (until-s.work)/float64(len(chains)-i), gain: minGain}
		w.leads()
		if w.at.d.lead > 0 {
			found = append(found, w.at)
		}
	}
	return found
}

// leadStarts chains are given leads, of those that are no more than leadFar slower than
// the fastest layout, within leadPart of the budget.
const (
	leadStarts = 4
	leadFar    = 0.3
	leadPart   = 1.0 / 8
)

// leads moves the last group's tokens to the beginning and back, and between it and the
// others, in steps that halve, as long as that helps.
func (w *walk) leads() {
	for !w.ended() {
		before := w.at.t
		for step := w.p.Job.SeqLen / 8 / w.p.Block * w.p.Block; step >= w.p.Block && !w.ended(); step = step / 2 / w.p.Block * w.p.Block {
			for again := true; again; {
				again = false
				for _, d := range w.at.d.leadMoves(step, w.p.Block) {
					again = w.try(d) || again
				}
			}
		}
		w.shifts(w.largestShift(), 1)
		if w.at.t > before*(1-leadGain) {
			return
		}
	}
}

// leadGain is the least relative gain of a round of moves for another one.
const leadGain = 1e-3

// leadMoves lists the drafts with a lead that is a step longer or shorter, each with
// as many tokens for all groups as before, and with half a step more or fewer for the
// last kind, the others' in proportion to what they have.
func (d *draft) leadMoves(step, block units.Tokens) (all []*draft) {
	last := d.lastKind()
	for _, by := range []units.Tokens{step, -step} {
		x := d.clone()
		x.lead = max(0, x.lead+by)
		all = append(all, x)
		for _, more := range []units.Tokens{step / 2, -step / 2} {
			if y := x.deal(last, more/block*block, block); y != nil {
				all = append(all, y)
			}
		}
	}
	return all
}

// lastKind is the kind of groups that comes last in the sequence.
func (d *draft) lastKind() int {
	last := 0
	for i := range d.kinds {
		if d.kinds[i].tier > d.kinds[last].tier {
			last = i
		}
	}
	return last
}

// deal gives a kind so many tokens more, or fewer, which the others give or get in
// proportion to what they have; nil if that is none, or somebody has too few.
func (d *draft) deal(kind int, more, block units.Tokens) *draft {
	var all units.Tokens
	for i := range d.kinds {
		if i != kind {
			all += d.kinds[i].total
		}
	}
	if more == 0 || all == 0 {
		return nil
	}
	x, given := d.clone(), units.Tokens(0)
	for i := range x.kinds {
		if i == kind {
			continue
		}
		n := units.Tokens(math.Round(float64(more)*float64(d.kinds[i].total)/float64(all)/float64(block))) * block
		if x.kinds[i].total -= n; x.kinds[i].total < 0 {
			return nil
		}
		given += n
	}
	if x.kinds[kind].total += given; x.kinds[kind].total < 0 {
		return nil
	}
	return x
}

// leading gives a layout whose end is one group's stretch a lead: of the group's tokens
// the first so many go before all others. It is the layout as it is where the end is no
// single stretch, or no longer than that.
func leading(l costmodel.Layout, lead units.Tokens) costmodel.Layout {
	if lead == 0 || len(l.Groups) < 2 {
		return l
	}
	last, of := endOf(l)
	if n := len(of.Segments); n != 1 || of.Segments[0].Len() <= lead {
		return l
	}
	from := of.Segments[0].Start
	l = moved(l, func(g int, s costmodel.Segment) []costmodel.Segment {
		if g != last {
			return []costmodel.Segment{{Start: s.Start + lead, End: s.End + lead}}
		}
		return cutAt(s, from+lead, -from)
	})
	l.KeepTail = true
	return l
}

// following is a layout whose leads are taken back, and how many tokens that was.
func following(l costmodel.Layout) (costmodel.Layout, units.Tokens) {
	if !l.KeepTail {
		return l, 0
	}
	last, of := endOf(l)
	if len(of.Segments) != 2 || of.Segments[0].Start != 0 {
		return l, 0
	}
	lead, from := of.Segments[0].Len(), of.Segments[1].Start-of.Segments[0].Len()
	l = moved(l, func(g int, s costmodel.Segment) []costmodel.Segment {
		if g != last {
			return []costmodel.Segment{{Start: s.Start - lead, End: s.End - lead}}
		}
		return cutAt(s, lead, from)
	})
	l.KeepTail = false
	return l, lead
}

// endOf is the group that has the end of the sequence, and its tokens.
func endOf(l costmodel.Layout) (group int, of costmodel.Shard) {
	end := units.Tokens(-1)
	for g := range l.Groups {
		shard := l.GroupShard(g)
		if n := len(shard.Segments); n > 0 && shard.Segments[n-1].End > end {
			group, of, end = g, shard, shard.Segments[n-1].End
		}
	}
	return group, of
}

// moved is a layout whose groups' segments are others, neighbours of a rank joined.
func moved(l costmodel.Layout, to func(group int, s costmodel.Segment) []costmodel.Segment) costmodel.Layout {
	l.Shards = slices.Clone(l.Shards)
	for g, group := range l.Groups {
		for _, m := range group {
			var all []costmodel.Segment
			for _, s := range l.Shards[m.Rank].Segments {
				for _, x := range to(g, s) {
					if n := len(all); n > 0 && all[n-1].End == x.Start {
						all[n-1].End = x.End
						continue
					}
					all = append(all, x)
				}
			}
			l.Shards[m.Rank].Segments = all
		}
	}
	return l
}

// cutAt is a segment cut at a place, what is before it moved by so many tokens.
func cutAt(s costmodel.Segment, at, by units.Tokens) (all []costmodel.Segment) {
	if s.Start < at {
		all = append(all, costmodel.Segment{Start: s.Start + by, End: min(s.End, at) + by})
	}
	if s.End > at {
		all = append(all, costmodel.Segment{Start: max(s.Start, at), End: s.End})
	}
	return all
}
