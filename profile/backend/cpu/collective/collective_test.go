package collective

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// patience bounds an operation that should succeed; it is only ever waited out by a bug.
const patience = 20 * time.Second

// everywhere runs do on every rank of a fresh in-process mesh at once, reports each rank's error and returns the meshes'
// sent bytes by [source][destination].
func everywhere(t interface {
	Helper()
	Fatalf(string, ...any)
	Errorf(string, ...any)
}, size int, do func(ctx context.Context, m *Mesh) error,
) [][]int64 {
	t.Helper()
	meshes, err := meshesHere(size)
	if err != nil {
		t.Fatalf("%v", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	sent, errs := make([][]int64, size), make([]error, size)
	var wg sync.WaitGroup
	for i, m := range meshes {
		wg.Go(func() {
			errs[i] = do(ctx, m)
			sent[i] = m.SentBytes()
		})
	}
	wg.Wait()
	for i, m := range meshes {
		if errs[i] != nil {
			t.Errorf("rank %d of %d: %v", i, size, errs[i])
		}
		if err := m.Close(); err != nil {
			t.Errorf("closing rank %d: %v", i, err)
		}
	}
	return sent
}

// data is what rank brings: small whole numbers, so that sums are exact in any order.
func data(rank, n int) []float32 {
	rng := rand.New(rand.NewPCG(uint64(rank), uint64(n)))
	buf := make([]float32, n)
	for i := range buf {
		buf[i] = float32(rng.IntN(2001) - 1000)
	}
	return buf
}

func sumOfAll(size, n int) []float32 {
	sum := make([]float32, n)
	for r := range size {
		for i, v := range data(r, n) {
			sum[i] += v
		}
	}
	return sum
}

func expect(what string, got, want []float32) error {
	if !slices.Equal(got, want) {
		return fmt.Errorf("%s: wrong result in %d elements", what, len(want))
	}
	return nil
}

func chunkBytes(n, size, i int) int64 {
	lo, hi := Chunk(n, size, (i+size)%size)
	return int64(4 * (hi - lo))
}

// wire compares sent bytes with a closed form for every ordered pair of different ranks.
func wire(t interface{ Errorf(string, ...any) }, sent [][]int64, want func(from, to int) int64) {
	for from, row := range sent {
		for to, got := range row {
			w := int64(0)
			if from != to {
				w = want(from, to)
			}
			if got != w {
				t.Errorf("rank %d sent %d bytes to rank %d of %d, want %d", from, got, to, len(sent), w)
			}
		}
	}
}

// counts 1 and 3 leave some ranks without a part; 40001 elements exceed neither a piece nor a socket buffer by a multiple.
var elementCounts = []int{0, 1, 3, 7, 1024, 40001}

func overSizes(t *testing.T, do func(t *testing.T, size, n int)) {
	for size := 1; size <= 5; size++ {
		for _, n := range elementCounts {
			t.Run(fmt.Sprintf("ranks=%d/elements=%d", size, n), func(t *testing.T) { do(t, size, n) })
		}
	}
}

func TestAllReduce(t *testing.T) {
	overSizes(t, func(t *testing.T, size, n int) {
		sent := everywhere(t, size, func(ctx context.Context, m *Mesh) error {
			buf := data(m.Rank(), n)
			if err := m.AllReduce(ctx, buf); err != nil {
				return err
			}
			return expect("all_reduce", buf, sumOfAll(size, n))
		})
		wire(t, sent, func(from, to int) int64 {
			if to != (from+1)%size {
				return 0
			}
			return 2*4*int64(n) - chunkBytes(n, size, from) - chunkBytes(n, size, from+1)
		})
	})
}

func TestReduceScatter(t *testing.T) {
	overSizes(t, func(t *testing.T, size, n int) {
		sent := everywhere(t, size, func(ctx context.Context, m *Mesh) error {
			part, err := m.ReduceScatter(ctx, data(m.Rank(), n))
			if err != nil {
				return err
			}
			lo, hi := Chunk(n, size, m.Rank())
			return expect("reduce_scatter", part, sumOfAll(size, n)[lo:hi])
		})
		wire(t, sent, func(from, to int) int64 {
			if to != (from+1)%size {
				return 0
			}
			return 4*int64(n) - chunkBytes(n, size, from)
		})
	})
}

func TestAllGather(t *testing.T) {
	overSizes(t, func(t *testing.T, size, n int) {
		sent := everywhere(t, size, func(ctx context.Context, m *Mesh) error {
			whole, buf := data(0, n), make([]float32, n)
			lo, hi := Chunk(n, size, m.Rank())
			copy(buf[lo:hi], whole[lo:hi])
			if err := m.AllGather(ctx, buf); err != nil {
				return err
			}
			return expect("all_gather", buf, whole)
		})
		wire(t, sent, func(from, to int) int64 {
			if to != (from+1)%size {
				return 0
			}
			return 4*int64(n) - chunkBytes(n, size, from+1)
		})
	})
}

func TestAllToAll(t *testing.T) {
	overSizes(t, func(t *testing.T, size, n int) {
		sent := everywhere(t, size, func(ctx context.Context, m *Mesh) error {
			lo, hi := Chunk(n, size, m.Rank())
			var want []float32
			for src := range size {
				want = append(want, data(src, n)[lo:hi]...)
			}
			out := make([]float32, size*(hi-lo))
			if err := m.AllToAll(ctx, out, data(m.Rank(), n)); err != nil {
				return err
			}
			return expect("all_to_all", out, want)
		})
		wire(t, sent, func(from, to int) int64 { return chunkBytes(n, size, to) })
	})
}

func TestAllToAllV(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		size := rapid.IntRange(1, 5).Draw(rt, "size")
		cell := rapid.SampledFrom([]int{0, 0, 1, 2, 7, 1000, 70001})
		counts := make([][]int, size)
		for i := range counts {
			counts[i] = rapid.SliceOfN(cell, size, size).Draw(rt, "row")
		}
		sent := everywhere(rt, size, func(ctx context.Context, m *Mesh) error { return checkAllToAllV(ctx, m, counts) })
		wire(rt, sent, func(from, to int) int64 { return int64(4 * counts[from][to]) })
	})
}

// checkAllToAllV sends the pair's own random stream over each pair and looks for it at the other end.
func checkAllToAllV(ctx context.Context, m *Mesh, counts [][]int) error {
	var send, want []float32
	for j, n := range counts[m.Rank()] {
		send = append(send, data(100*m.Rank()+j, n)...)
	}
	for i := range counts {
		want = append(want, data(100*i+m.Rank(), counts[i][m.Rank()])...)
	}
	out := make([]float32, len(want))
	if err := m.AllToAllV(ctx, out, send, counts); err != nil {
		return err
	}
	return expect("all_to_all_v", out, want)
}

func TestAllToAllVRefusesBadCounts(t *testing.T) {
	meshes, err := meshesHere(1)
	if err != nil {
		t.Fatal(err)
	}
	defer meshes[0].Close()
	buf := make([]float32, 2)
	for want, counts := range map[string][][]int{
		"rank 0: all_to_all_v: counts has 0 rows for 1 ranks":                                                {},
		"rank 0: all_to_all_v: counts[0] has 2 entries for 1 ranks":                                          {{1, 1}},
		"rank 0: all_to_all_v: counts[0][0] = -1 is negative":                                                {{-1}},
		"rank 0: all_to_all_v: counts ask for 3 elements to send and 3 to receive, the buffers hold 2 and 2": {{3}},
	} {
		if err := meshes[0].AllToAllV(context.Background(), buf, buf, counts); err == nil || err.Error() != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
}

// 1<<20 elements are 4 MiB a message, far beyond any socket buffer: without simultaneous sending and receiving the ring
// would stand still.
func TestRingShift(t *testing.T) {
	for size := 1; size <= 5; size++ {
		for _, n := range []int{0, 1, 1<<20 + 1} {
			sent := everywhere(t, size, func(ctx context.Context, m *Mesh) error {
				out := make([]float32, n)
				if err := m.RingShift(ctx, out, data(m.Rank(), n)); err != nil {
					return err
				}
				return expect("send_recv", out, data((m.Rank()+size-1)%size, n))
			})
			wire(t, sent, func(from, to int) int64 {
				if to != (from+1)%size {
					return 0
				}
				return int64(4 * n)
			})
		}
	}
}

// No rank may leave a barrier before the last has entered it.
func TestBarrier(t *testing.T) {
	for size := 1; size <= 5; size++ {
		var mu sync.Mutex
		entered := 0
		sent := everywhere(t, size, func(ctx context.Context, m *Mesh) error {
			for round := 1; round <= 300; round++ { // more than a token byte can count
				mu.Lock()
				entered++
				mu.Unlock()
				if err := m.Barrier(ctx); err != nil {
					return err
				}
				mu.Lock()
				seen := entered
				mu.Unlock()
				if seen < round*size {
					return fmt.Errorf("left barrier %d after %d entries", round, seen)
				}
			}
			return nil
		})
		wire(t, sent, func(from, to int) (bytes int64) {
			for step := 1; step < size; step *= 2 {
				if to == (from+step)%size {
					bytes += 300
				}
			}
			return bytes
		})
	}
}

// A hundred operations in a row, of all kinds, on one mesh: nothing of one may leak into the next.
func TestManyOperationsInSequence(t *testing.T) {
	const size = 3
	everywhere(t, size, func(ctx context.Context, m *Mesh) error {
		rng := rand.New(rand.NewPCG(1, 2)) // the same stream on every rank: all draw the same operation
		for range 100 {
			n := rng.IntN(5000)
			var err error
			switch rng.IntN(4) {
			case 0:
				err = m.Barrier(ctx)
			case 1:
				buf := data(m.Rank(), n)
				if err = m.AllReduce(ctx, buf); err == nil {
					err = expect("all_reduce", buf, sumOfAll(size, n))
				}
			case 2:
				err = checkAllToAllV(ctx, m, [][]int{{n, 0, 1}, {2, n, 0}, {5, n, n}})
			case 3:
				out := make([]float32, n)
				if err = m.RingShift(ctx, out, data(m.Rank(), n)); err == nil {
					err = expect("send_recv", out, data((m.Rank()+size-1)%size, n))
				}
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

func TestChunksCoverExactlyOnce(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n, size := rapid.IntRange(0, 1000).Draw(rt, "n"), rapid.IntRange(1, 20).Draw(rt, "size")
		at := 0
		for i := range size {
			lo, hi := Chunk(n, size, i)
			if lo != at || hi-lo < n/size || hi-lo > n/size+1 {
				rt.Fatalf("part %d of %d/%d is [%d, %d), want it to start at %d", i, n, size, lo, hi, at)
			}
			at = hi
		}
		if at != n {
			rt.Fatalf("parts end at %d of %d", at, n)
		}
	})
}
