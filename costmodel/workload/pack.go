package workload

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/evenkeel/evenkeel/internal/units"
)

// Buffer is a set of sequences packed one after the other, Tokens long in all.
type Buffer struct {
	Sequences []int // indices into the lengths that were packed, longest sequence first
	Tokens    units.Tokens
}

// Pack packs sequences into buffers of capacity tokens by best fit decreasing: longest
// first, each into the buffer with the least room that still holds it, the oldest of
// several. Buffers are in the order in which they were opened.
//
// Error: a sequence is longer than the capacity.
func Pack(lengths []units.Tokens, capacity units.Tokens) ([]Buffer, error) {
	order := make([]int, len(lengths))
	for i, l := range lengths {
		if order[i] = i; l > capacity {
			return nil, fmt.Errorf("sequence %d: %s: a buffer holds %d; truncate or drop longer ones, or pack into larger buffers", i, units.Count(l, "token"), int64(capacity))
		}
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Or(cmp.Compare(lengths[b], lengths[a]), cmp.Compare(a, b)) })
	var buffers []Buffer
	var open rooms
	for _, k := range order {
		room, i, found := open.take(lengths[k])
		if !found {
			room, i = capacity, len(buffers)
			buffers = append(buffers, Buffer{})
		}
		buffers[i].Sequences = append(buffers[i].Sequences, k)
		buffers[i].Tokens += lengths[k]
		if room -= lengths[k]; room >= lengths[order[len(order)-1]] {
			open.put(room, i)
		}
	}
	return buffers, nil
}

// roomsChunk is the most entries of a chunk: small enough to be moved quickly,
// large enough for few chunks.
const roomsChunk = 512

// rooms is a sorted list of buffers by room, then by age, in chunks, so that a
// million sequences can be packed without moving the whole list for each.
type rooms struct{ chunks [][]entry }

type entry struct {
	room   units.Tokens
	buffer int
}

func (e entry) compare(o entry) int {
	return cmp.Or(cmp.Compare(e.room, o.room), cmp.Compare(e.buffer, o.buffer))
}

// chunk is the first whose last entry is not below e.
func (r *rooms) chunk(e entry) int {
	i, _ := slices.BinarySearchFunc(r.chunks, e, func(c []entry, e entry) int { return c[len(c)-1].compare(e) })
	return i
}

// take removes the buffer with the least room of at least l.
func (r *rooms) take(l units.Tokens) (units.Tokens, int, bool) {
	i := r.chunk(entry{l, 0})
	if i == len(r.chunks) {
		return 0, 0, false
	}
	c := r.chunks[i]
	j, _ := slices.BinarySearchFunc(c, entry{l, 0}, entry.compare)
	e := c[j]
	if r.chunks[i] = slices.Delete(c, j, j+1); len(r.chunks[i]) == 0 {
		r.chunks = slices.Delete(r.chunks, i, i+1)
	}
	return e.room, e.buffer, true
}

// put enters a buffer with its room.
func (r *rooms) put(room units.Tokens, buffer int) {
	e := entry{room, buffer}
	if len(r.chunks) == 0 {
		r.chunks = append(r.chunks, []entry{e})
		return
	}
	i := min(r.chunk(e), len(r.chunks)-1)
	j, _ := slices.BinarySearchFunc(r.chunks[i], e, entry.compare)
	c := slices.Insert(r.chunks[i], j, e)
	r.chunks[i] = c
	if len(c) > roomsChunk {
		half := len(c) / 2
		r.chunks = slices.Insert(r.chunks, i+1, slices.Clone(c[half:]))
		r.chunks[i] = c[:half]
	}
}
