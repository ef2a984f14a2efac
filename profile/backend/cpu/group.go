package cpu

import (
	"context"
	"fmt"
	"math"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/profile"
	"github.com/evenkeel/evenkeel/profile/backend/cpu/collective"
)

// rankWork is one rank's part of a group's collectives.
type rankWork struct {
	arena    *arena
	mesh     *collective.Mesh
	verified map[op.Kind]bool
	op       func(context.Context) error
}

func newRankWork(m *collective.Mesh) *rankWork {
	return &rankWork{arena: newArena(), mesh: m, verified: map[op.Kind]bool{}}
}

func (w *rankWork) prepare(ctx context.Context, s op.Shape, seed uint64) error {
	g, ok := s.(op.Grouped)
	if !ok {
		return unsupported(s)
	}
	if g.Ranks() != w.mesh.Size() {
		return fmt.Errorf("a shape for %d ranks on a group of %d", g.Ranks(), w.mesh.Size())
	}
	send, receive, err := w.lengths(s) // refuses what this backend does not run
	if err != nil {
		return err
	}
	if err := w.verify(ctx, s); err != nil {
		return err
	}
	if bytes := 4 * units.Bytes(send+receive); bytes > maxPoint {
		return &profile.OpError{Class: profile.OutOfMemory, Err: fmt.Errorf("needs %s of buffers a rank, more than the %s that one point may take", bytes, units.Bytes(maxPoint))}
	}
	w.arena.reset(send+receive, 2, seed)
	w.op, err = w.bind(s, w.arena.normal(send), w.arena.take(receive))
	return err
}

// lengths are the elements of this rank's send and receive buffers. Ops in
// place have no receive buffer. Sizes are in whole float32 elements.
func (w *rankWork) lengths(s op.Shape) (send, receive int, err error) {
	whole := func(b units.Bytes) int { return int(max(1, b/4)) }
	switch s := s.(type) {
	case op.AllReduce:
		return whole(s.Bytes), 0, nil
	case op.AllGather:
		return whole(s.Bytes), 0, nil
	case op.ReduceScatter:
		return whole(s.Bytes), 0, nil
	case op.AllToAll:
		n := w.mesh.Size()
		each := max(1, whole(s.Bytes)/n) * n
		return each, each, nil
	case op.SendRecv:
		return whole(s.Bytes), whole(s.Bytes), nil
	case op.AllToAllV:
		counts := elementCounts(s)
		for p := range counts {
			send += counts[w.mesh.Rank()][p]
			receive += counts[p][w.mesh.Rank()]
		}
		return send, receive, nil
	}
	return 0, 0, unsupported(s)
}

func elementCounts(s op.AllToAllV) [][]int {
	counts := make([][]int, len(s.Matrix))
	for i, row := range s.Matrix {
		for _, b := range row {
			counts[i] = append(counts[i], int(b/4))
		}
	}
	return counts
}

// bind ties an op to its buffers. Sums are taken in place, so repeated
// all-reduces grow; scaling by the group's size each call would cost time that
// is not the collective's, and a call's time does not depend on the values:
// infinities and normal numbers add at the same speed.
func (w *rankWork) bind(s op.Shape, send, receive []float32) (func(context.Context) error, error) {
	m := w.mesh
	switch s := s.(type) {
	case op.AllReduce:
		return func(ctx context.Context) error { return m.AllReduce(ctx, send) }, nil
	case op.AllGather:
		return func(ctx context.Context) error { return m.AllGather(ctx, send) }, nil
	case op.ReduceScatter:
		return func(ctx context.Context) error { _, err := m.ReduceScatter(ctx, send); return err }, nil
	case op.AllToAll:
		return func(ctx context.Context) error { return m.AllToAll(ctx, receive, send) }, nil
	case op.SendRecv:
		return func(ctx context.Context) error { return m.RingShift(ctx, receive, send) }, nil
	case op.AllToAllV:
		counts := elementCounts(s)
		return func(ctx context.Context) error { return m.AllToAllV(ctx, receive, send, counts) }, nil
	}
	return nil, unsupported(s)
}

// verify runs a collective on a small buffer whose right answer every rank can
// compute for itself, once an op.
func (w *rankWork) verify(ctx context.Context, s op.Shape) error {
	if w.verified[s.Kind()] {
		return nil
	}
	n := w.mesh.Size()
	var small op.Shape = op.AllToAllV{Matrix: smallMatrix(n)}
	if s.Kind() != op.KindAllToAllV {
		small = op.OfMessage(s.Kind(), op.Message{Group: n, Bytes: units.Bytes(4 * 6 * n)})
	}
	send, receive, err := w.lengths(small)
	if err != nil {
		return err
	}
	in, out := make([]float32, send), make([]float32, receive)
	for i := range in {
		in[i] = value(w.mesh.Rank(), i)
	}
	for i := range out {
		out[i] = float32(math.NaN())
	}
	run, err := w.bind(small, in, out)
	if err != nil {
		return err
	}
	if err := run(ctx); err != nil {
		return err
	}
	if place, got, want, ok := w.compare(small, in, out); !ok {
		return &profile.OpError{Class: profile.Wrong, Err: fmt.Errorf("%s: rank %d got %v at element %d, want %v: not timed", s.Kind(), w.mesh.Rank(), got, place, want)}
	}
	w.verified[s.Kind()] = true
	return nil
}

// value is what rank r holds at element i before a verified collective; sums
// over ranks are exact in float32.
func value(r, i int) float32 { return float32(1000*r + i) }

func smallMatrix(n int) [][]units.Bytes {
	m := make([][]units.Bytes, n)
	for i := range m {
		m[i] = make([]units.Bytes, n)
		for j := range m[i] {
			if i != j {
				m[i][j] = units.Bytes(4 * (1 + i + 2*j))
			}
		}
	}
	return m
}

// compare checks the buffers after a verified collective and reports the first
// element that is wrong.
func (w *rankWork) compare(s op.Shape, in, out []float32) (place int, got, want float32, ok bool) {
	n, r := w.mesh.Size(), w.mesh.Rank()
	sum := func(i int) float32 {
		total := float32(0)
		for p := range n {
			total += value(p, i)
		}
		return total
	}
	equal := func(lo, hi int, got []float32, want func(i int) float32) (int, float32, float32, bool) {
		for i := lo; i < hi; i++ {
			if got[i] != want(i) {
				return i, got[i], want(i), false
			}
		}
		return 0, 0, 0, true
	}
	switch s := s.(type) {
	case op.AllReduce:
		return equal(0, len(in), in, sum)
	case op.ReduceScatter:
		lo, hi := collective.Chunk(len(in), n, r)
		return equal(lo, hi, in, sum)
	case op.AllGather:
		return equal(0, len(in), in, func(i int) float32 { return value(ownerOf(len(in), n, i), i) })
	case op.AllToAll:
		each := len(out) / n
		return equal(0, len(out), out, func(i int) float32 { return value(i/each, r*each+i%each) })
	case op.SendRecv:
		return equal(0, len(out), out, func(i int) float32 { return value((r+n-1)%n, i) })
	case op.AllToAllV:
		return compareUneven(elementCounts(s), r, out)
	}
	return 0, 0, 0, false
}

// ownerOf is the rank whose chunk element i of a gathered buffer is in.
func ownerOf(length, n, i int) int {
	for p := range n {
		if lo, hi := collective.Chunk(length, n, p); i >= lo && i < hi {
			return p
		}
	}
	return -1
}

func compareUneven(counts [][]int, r int, out []float32) (place int, got, want float32, ok bool) {
	i := 0
	for p := range counts {
		offset := 0
		for q := range r {
			offset += counts[p][q]
		}
		for k := range counts[p][r] {
			if w := value(p, offset+k); out[i] != w {
				return i, out[i], w, false
			}
			i++
		}
	}
	return 0, 0, 0, true
}
