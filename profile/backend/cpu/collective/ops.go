package collective

import (
	"context"
	"fmt"

	"gonum.org/v1/gonum/blas/blas32"
)

// Chunk returns the half-open range of part i of n elements cut for size ranks: [floor(i*n/size), floor((i+1)*n/size)).
func Chunk(n, size, i int) (lo, hi int) { return i * n / size, (i + 1) * n / size }

func (m *Mesh) chunk(buf []float32, i int) []float32 {
	lo, hi := Chunk(len(buf), m.size, m.wrap(i))
	return buf[lo:hi]
}

func (m *Mesh) wrap(rank int) int { return ((rank % m.size) + m.size) % m.size }

// pieceLen is how many elements are received before they are added: small enough to stay in the L2 cache.
const pieceLen = 1 << 14

// Barrier returns when every rank has entered it: dissemination, ceil(log2 size) rounds of one byte to rank+2^k.
func (m *Mesh) Barrier(ctx context.Context) error {
	return m.run(ctx, "barrier", func(o operation) error {
		m.barriers++
		for step := 1; step < m.size; step *= 2 {
			from, token := m.wrap(m.rank-step), []byte{0}
			if err := o.swap(m.wrap(m.rank+step), []byte{m.barriers}, from, token); err != nil {
				return err
			}
			if token[0] != m.barriers {
				err := fmt.Errorf("rank %d is in another operation: it sent token %d, want %d", from, token[0], m.barriers)
				m.fail(from, err)
				return err
			}
		}
		return nil
	})
}

// AllReduce replaces buf on every rank by the element-wise sum over ranks: a ring reduce-scatter, then a ring all-gather.
// Every rank passes the same length. Each part is summed once, in ring order, so all ranks get the same bits.
func (m *Mesh) AllReduce(ctx context.Context, buf []float32) error {
	return m.run(ctx, "all_reduce", func(o operation) error {
		if err := o.reduceScatter(buf); err != nil {
			return err
		}
		return o.allGather(buf)
	})
}

// ReduceScatter returns this rank's part (see Chunk) of the element-wise sum of buf over ranks; it is a slice of buf. The
// rest of buf is left with partial sums. Every rank passes the same length.
func (m *Mesh) ReduceScatter(ctx context.Context, buf []float32) ([]float32, error) {
	if err := m.run(ctx, "reduce_scatter", func(o operation) error { return o.reduceScatter(buf) }); err != nil {
		return nil, err
	}
	return m.chunk(buf, m.rank), nil
}

// AllGather fills buf on every rank with the parts that each brings: before, rank r's data lie in part r of its own buf
// (see Chunk). Every rank passes the same length.
func (m *Mesh) AllGather(ctx context.Context, buf []float32) error {
	return m.run(ctx, "all_gather", func(o operation) error { return o.allGather(buf) })
}

// reduceScatter: in step s rank r passes part r-1-s on to r+1 and adds what r-1 has gathered of part r-2-s to its own; after
// size-1 steps part r is complete on rank r.
func (o operation) reduceScatter(buf []float32) error {
	for s := range o.size - 1 {
		out, in := o.chunk(buf, o.rank-1-s), o.chunk(buf, o.rank-2-s)
		err := o.exchange(o.wrap(o.rank+1), asBytes(out), func() error { return o.receiveAdding(o.wrap(o.rank-1), in) })
		if err != nil {
			return err
		}
	}
	return nil
}

// allGather: in step s rank r passes part r-s on to r+1 and receives part r-1-s.
func (o operation) allGather(buf []float32) error {
	for s := range o.size - 1 {
		out, in := o.chunk(buf, o.rank-s), o.chunk(buf, o.rank-1-s)
		if err := o.swap(o.wrap(o.rank+1), asBytes(out), o.wrap(o.rank-1), asBytes(in)); err != nil {
			return err
		}
	}
	return nil
}

func (o operation) receiveAdding(from int, sum []float32) error {
	if o.scratch == nil {
		o.scratch = make([]float32, pieceLen)
	}
	for len(sum) > 0 {
		piece := o.scratch[:min(len(sum), pieceLen)]
		if err := o.receive(from, asBytes(piece)); err != nil {
			return err
		}
		blas32.Axpy(1, vector(piece), vector(sum[:len(piece)]))
		sum = sum[len(piece):]
	}
	return nil
}

func vector(x []float32) blas32.Vector { return blas32.Vector{N: len(x), Inc: 1, Data: x} }

// AllToAll sends part j of send (see Chunk) to rank j, the own part included, and lays what it receives in out, ordered by
// source. Every rank passes the same len(send) = n; out holds size parts of this rank's length, which is n elements when
// size divides n. The schedule is AllToAllV's.
func (m *Mesh) AllToAll(ctx context.Context, out, send []float32) error {
	row := make([]int, m.size)
	counts := make([][]int, m.size)
	for i := range m.size {
		lo, hi := Chunk(len(send), m.size, i)
		row[i], counts[i] = hi-lo, row
	}
	return m.allToAll(ctx, "all_to_all", out, send, counts)
}

// AllToAllV sends counts[r][j] elements from rank r to rank j, for every r and j at once; zeros are allowed. send holds
// this rank's row of parts in order of destination, out receives its column in order of source. Every rank passes the same
// matrix. There are size rounds: in round k rank r sends to r+k and receives from r-k, at the same time; a rank enters its
// next round when its own part of the last is done, without a barrier. A pair with nothing to send skips its half.
func (m *Mesh) AllToAllV(ctx context.Context, out, send []float32, counts [][]int) error {
	return m.allToAll(ctx, "all_to_all_v", out, send, counts)
}

func (m *Mesh) allToAll(ctx context.Context, name string, out, send []float32, counts [][]int) error {
	sendAt, recvAt, err := m.offsets(counts, len(send), len(out))
	if err != nil {
		return fmt.Errorf("rank %d: %s: %w", m.rank, name, err)
	}
	return m.run(ctx, name, func(o operation) error {
		copy(out[recvAt[m.rank]:recvAt[m.rank+1]], send[sendAt[m.rank]:sendAt[m.rank+1]])
		for k := 1; k < m.size; k++ {
			to, from := m.wrap(m.rank+k), m.wrap(m.rank-k)
			x, y := send[sendAt[to]:sendAt[to+1]], out[recvAt[from]:recvAt[from+1]]
			if err := o.swap(to, asBytes(x), from, asBytes(y)); err != nil {
				return err
			}
		}
		return nil
	})
}

// offsets turns this rank's row and column of counts into where parts begin (size+1 values each), and checks that the
// matrix is square, not negative, and fits the buffers.
func (m *Mesh) offsets(counts [][]int, sendLen, outLen int) (send, recv []int, err error) {
	if len(counts) != m.size {
		return nil, nil, fmt.Errorf("counts has %d rows for %d ranks", len(counts), m.size)
	}
	for i, row := range counts {
		if len(row) != m.size {
			return nil, nil, fmt.Errorf("counts[%d] has %d entries for %d ranks", i, len(row), m.size)
		}
		for j, n := range row {
			if n < 0 {
				return nil, nil, fmt.Errorf("counts[%d][%d] = %d is negative", i, j, n)
			}
		}
	}
	send, recv = make([]int, m.size+1), make([]int, m.size+1)
	for i := range m.size {
		send[i+1] = send[i] + counts[m.rank][i]
		recv[i+1] = recv[i] + counts[i][m.rank]
	}
	if send[m.size] != sendLen || recv[m.size] != outLen {
		return nil, nil, fmt.Errorf("counts ask for %d elements to send and %d to receive, the buffers hold %d and %d",
			send[m.size], recv[m.size], sendLen, outLen)
	}
	return send, recv, nil
}

// RingShift sends send to rank+1 and receives out from rank-1, both at once: one step of ring attention. Ranks may pass
// different lengths, as long as out is as long as what the previous rank sends. The two must not overlap.
func (m *Mesh) RingShift(ctx context.Context, out, send []float32) error {
	return m.run(ctx, "send_recv", func(o operation) error {
		if m.size == 1 {
			copy(out, send)
			return nil
		}
		return o.swap(m.wrap(m.rank+1), asBytes(send), m.wrap(m.rank-1), asBytes(out))
	})
}
