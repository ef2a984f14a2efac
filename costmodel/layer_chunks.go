package costmodel

import (
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// headChunk is the share of a seat's heads that it computes in one chunk.
type headChunk struct {
	first, heads int // query heads
	kv           int // key-value heads of these
	work         int // row of the prices of its attention
}

// chunkOf is the c-th of k chunks of the query heads first to first+n: of the w
// key-value heads that they read those from c w/k to (c+1) w/k, rounded up, with the
// query heads that read them. So no key-value head is in two chunks, all-to-alls carry
// in all chunks together what they carry in one, and with fewer key-value heads than
// chunks some are empty, though never the first.
func (m Model) chunkOf(first, n, c, k int) headChunk {
	if n == 0 {
		return headChunk{first: first}
	}
	each, w := m.QHeads/m.KVHeads, m.KVHeadsOf(first, n)
	border := func(c int) int { return max(first, min(first+n, (first/each+(c*w+k-1)/k)*each)) }
	from, to := border(c), border(c+1)
	return headChunk{first: from, heads: to - from, kv: m.KVHeadsOf(from, to-from)}
}

// seatChunks cuts the heads of the seats where the layout has chunks.
func (s *sim) seatChunks() {
	s.chunks = s.chunks[:0]
	k := s.layout.chunks()
	if k == 1 {
		return
	}
	whole := make([]headChunk, len(s.seats))
	for i := range s.seats {
		a := &s.seats[i]
		whole[i] = headChunk{a.first, a.heads, a.kv, a.work}
	}
	for c := range k {
		chunk := make([]headChunk, len(s.seats))
		for i := range chunk {
			chunk[i] = s.job.Model.chunkOf(whole[i].first, whole[i].heads, c, k)
		}
		s.chunks = append(s.chunks, chunk)
		s.seatChunk(c)
		for i := range chunk {
			s.seats[i].work = s.workRow(i, s.groups[0].form.shape)
			chunk[i].work = s.seats[i].work
		}
	}
	s.chunks = append(s.chunks, whole)
	s.seatWhole()
	s.chunkSlow = [2]units.Seconds{1, 1}
	for i := range s.seats {
		for dir := range s.chunkSlow {
			s.chunkSlow[dir] = max(s.chunkSlow[dir], units.Seconds(s.q.slowed(s.seats[i].device, dir == 1, op.SlowedComm)))
		}
	}
}

// seatChunk gives the seats the heads of one chunk, seatWhole all of theirs again.
func (s *sim) seatChunk(c int) {
	for i, x := range s.chunks[c] {
		a := &s.seats[i]
		a.first, a.heads, a.kv, a.work = x.first, x.heads, x.kv, x.work
	}
	s.cross = [exchangeKinds][][]crossing{}
}

func (s *sim) seatWhole() { s.seatChunk(len(s.chunks) - 1) }

// chunkMessages is how long the all-to-alls of each chunk take, in and out. Those that
// have attention to hide behind, all but the first in and the last out, are slowed by it
// as messages of a ring are.
func (s *sim) chunkMessages(back bool) (in, out []units.Seconds) {
	x, y, dir := tokensIn, outputOut, 0
	if back {
		x, y, dir = outputIn, tokensOut, 1
	}
	b, k := &s.groups[0], s.layout.chunks()
	for c := range k {
		s.seatChunk(c)
		one, other := s.toAllTime(x, b, nil), s.toAllTime(y, b, nil)
		if c > 0 {
			one *= s.chunkSlow[dir]
		}
		if c < k-1 {
			other *= s.chunkSlow[dir]
		}
		in, out = append(in, one), append(out, other)
	}
	s.seatWhole()
	return in, out
}

// chunkBesides are the slow-downs of the seats' attention by the all-to-alls of chunks
// that hide behind it, which are taken as moving beside all chunks alike.
func (s *sim) chunkBesides(back bool, in, out []units.Seconds) []beside {
	moving, k := units.Seconds(0), len(in)
	for c := range k {
		if c > 0 {
			moving += in[c]
		}
		if c < k-1 {
			moving += out[c]
		}
	}
	all := make([]beside, len(s.seats))
	for i := range all {
		f := s.slowed(s.seats[i].device, back)
		all[i] = beside{f, moving / units.Seconds(k) * (1 - 1/f)}
	}
	return all
}

// inChunks simulates the layer of a layout whose one group computes its heads in
// chunks. All all-to-alls in leave when the group's linear work is done, one after the
// other; a chunk is computed when its own has come, and what it made leaves when all
// members have computed it and the ports are free. So attention of the chunks hides all
// but the first one in and the last one out.
func (r *layerRun) inChunks() {
	s, b := r.sim, &r.sim.groups[0]
	before, after := preForward, postForward
	if r.back {
		before, after = preBackward, postBackward
	}
	in, out := s.chunkMessages(r.back)
	by := s.chunkBesides(r.back, in, out)
	var port units.Seconds
	for i := range r.seats {
		a, c := &r.seats[i], &r.outside[i]
		c.pre, c.post = r.linearTime(i, before), r.linearTime(i, after)
		r.note(event{kind: linearEvent, seat: i, to: i, start: a.free, end: a.free + c.pre})
		a.free += c.pre
		port = max(port, a.free)
	}
	arrived := make([]units.Seconds, len(in))
	for c, took := range in {
		r.exchange(event{chunk: c, start: port, end: port + took})
		port += took
		arrived[c] = port
	}
	for c, took := range out {
		done := r.chunk(c, arrived[c], in[c], by)
		port = max(port, done)
		r.exchange(event{chunk: c, step: r.n, start: port, end: port + took})
		port += took
		if c < len(out)-1 {
			continue
		}
		for i := b.from; i < b.to; i++ {
			r.outside[i].allToAll += port - done
		}
	}
	for i := range r.seats {
		a, c := &r.seats[i], &r.outside[i]
		a.free, a.egress, a.ingress = port+c.post, port, port
		r.note(event{kind: linearEvent, seat: i, to: i, step: r.n, start: port, end: a.free})
		r.length = max(r.length, a.free)
	}
}

// exchange notes one all-to-all of the group, which all of its ports are busy with.
func (r *layerRun) exchange(e event) {
	e.kind = allToAllEvent
	for i := range r.seats {
		r.seats[i].port += e.end - e.start
		e.seat, e.to = i, i
		r.note(e)
	}
}

// chunk computes one, once its all-to-all has come, and returns when all members have.
func (r *layerRun) chunk(c int, arrived, took units.Seconds, by []beside) units.Seconds {
	s := r.sim
	s.seatChunk(c)
	var done units.Seconds
	for i := range r.seats {
		a := &r.seats[i]
		if arrived > a.free {
			// Before the first chunk members also wait for one another.
			r.outside[i].allToAll += min(took, arrived-a.free)
			a.free = arrived
		}
		w := r.chunkTime(c, i, by[i])
		r.note(event{kind: stepEvent, seat: i, to: i, chunk: c, start: a.free, end: a.free + w})
		a.attention += w
		a.free += w
		done = max(done, a.free)
	}
	s.seatWhole()
	return done
}

// chunkTime is what a seat takes over the attention of a chunk, whose heads it has.
func (r *layerRun) chunkTime(c, i int, by beside) units.Seconds {
	if r.given != nil {
		return r.given.attention[c][i]
	}
	s := r.sim
	w := s.work[r.dir][itself].get(s.seats[i].work, r.forms[0].shape)
	if unknown(w) {
		w = s.attentionTime(r.dir, itself, &s.seats[i], 0)
	}
	return by.stretch(w)
}
