package kernel

import (
	"math"
	"runtime"
	"sync/atomic"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/blas32"
)

// AttentionBackward computes this block's dQ, dK and dV from q, k, v, o, dO and the *global* lse and o, without the forward.
// With S the scaled scores, P = exp(S-lse), delta = rowsum(dO*O):
//
//	dV = P^T dO    dP = dO V^T    dS = P*(dP-delta)/sqrt(head_dim)    dQ = dS K    dK = dS^T Q
//
// five products a tile, S recomputed once. Because lse and o are global, the results of the blocks a causal mask is cut
// into simply add up.
//
// A task is (KV head, KV tile): it owns its rows of dK and dV and walks the query tiles of all query heads of the group.
// dQ rows are shared by the tasks along the keys, which add to them in key order, each waiting for its predecessor's turn:
// that keeps results independent of the thread count, at the price of a stagger of one tile a thread when all threads are
// in one head. Parallelism therefore ends at kv_heads * ceil(kv_len/TileKV) threads.
func AttentionBackward(s AttentionShape, a Attention, g AttentionGrad, team *Team) {
	a.check(s)
	g.check(s)
	delta := make([]float32, s.LSESize())
	overRows(len(delta), team, func(lo, hi int) {
		for r := lo; r < hi; r++ {
			x := matrix(g.DO[r*s.HeadDim:], 1, s.HeadDim)
			y := matrix(a.O[r*s.HeadDim:], 1, s.HeadDim)
			delta[r] = dot(x.Data, y.Data)
		}
	})
	turns := make([]atomic.Int32, s.QHeads*blocksOf(s.QLen, TileQ))
	drain(s.KVHeads*blocksOf(s.KVLen, TileKV), team, func() func(int) {
		w := backwardWorker{
			AttentionShape: s, Attention: a, AttentionGrad: g, delta: delta, turns: turns,
			scale: float32(1 / math.Sqrt(float64(s.HeadDim))),
			p:     make([]float32, TileQ*TileKV), ds: make([]float32, TileQ*TileKV),
		}
		// Key-major numbering starts the longest DIAG tasks first, puts neighbours in different heads, and guarantees that
		// whoever waits for a turn waits for a task already taken: no deadlock with any number of threads.
		return func(task int) { w.block(task%s.KVHeads, task/s.KVHeads) }
	})
}

// backwardWorker is one thread's view of the call and its scratch: the P tile and the dP tile that becomes dS.
type backwardWorker struct {
	AttentionShape
	Attention
	AttentionGrad
	scale        float32
	delta, p, ds []float32
	turns        []atomic.Int32 // [q heads][query tiles]: the KV tile whose turn it is to add to dQ
}

// block computes dK and dV of KV head g's tile number kb, and adds the tile's part to dQ.
func (w *backwardWorker) block(g, kb int) {
	k0 := kb * TileKV
	cols := min(TileKV, w.KVLen-k0)
	clear(headRows(w.DK, g, w.KVLen, w.HeadDim, k0, cols).Data)
	clear(headRows(w.DV, g, w.KVLen, w.HeadDim, k0, cols).Data)
	first := 0
	if w.Mask == Diag {
		first = k0 / TileQ // tiles above hold no query that sees key k0
	}
	lo, hi := w.group(g)
	for h := lo; h < hi; h++ {
		for qb := first; qb < blocksOf(w.QLen, TileQ); qb++ {
			w.tile(g, h, kb, qb, cols)
		}
	}
}

func (w *backwardWorker) tile(g, h, kb, qb, cols int) {
	q0, k0 := qb*TileQ, kb*TileKV
	rows := min(TileQ, w.QLen-q0)
	ofQ := func(t []float32) blas32.General { return headRows(t, h, w.QLen, w.HeadDim, q0, rows) }
	ofKV := func(t []float32) blas32.General { return headRows(t, g, w.KVLen, w.HeadDim, k0, cols) }
	p, ds := matrix(w.p, rows, cols), matrix(w.ds, rows, cols)
	blas32.Gemm(blas.NoTrans, blas.Trans, w.scale, ofQ(w.Q), ofKV(w.K), 0, p)
	blas32.Gemm(blas.NoTrans, blas.Trans, 1, ofQ(w.DO), ofKV(w.V), 0, ds)
	w.weights(p, ds, h*w.QLen+q0, q0, k0)
	mulTile(blas.Trans, p, ofQ(w.DO), 1, ofKV(w.DV))
	mulTile(blas.Trans, ds, ofQ(w.Q), 1, ofKV(w.DK))
	turn := &w.turns[h*blocksOf(w.QLen, TileQ)+qb]
	for turn.Load() != int32(kb) {
		runtime.Gosched()
	}
	beta := float32(1)
	if kb == 0 { // every query tile sees KV tile 0, under DIAG too
		beta = 0
	}
	mulTile(blas.NoTrans, ds, ofKV(w.K), beta, ofQ(w.DQ))
	turn.Add(1)
}

// weights turns the scores p into P and the products ds into dS in place; lseRow is the row of lse and delta that the tile
// starts at. Masked entries become exact zeros.
func (w *backwardWorker) weights(p, ds blas32.General, lseRow, q0, k0 int) {
	for i := range p.Rows {
		pRow := p.Data[i*p.Stride : i*p.Stride+p.Cols]
		dsRow := ds.Data[i*ds.Stride : i*ds.Stride+ds.Cols]
		seen := w.visible(q0+i, k0, p.Cols)
		clear(pRow[seen:])
		clear(dsRow[seen:])
		pRow = pRow[:seen]
		expShift(pRow, pRow, w.LSE[lseRow+i])
		delta, dsRow := w.delta[lseRow+i], dsRow[:len(pRow)]
		for j, p := range pRow {
			dsRow[j] = p * (dsRow[j] - delta) * w.scale
		}
	}
}

// dot is the float32 inner product of two rows of one length, four-wide inside.
func dot(x, y []float32) float32 {
	return blas32.Dot(blas32.Vector{N: len(x), Inc: 1, Data: x}, blas32.Vector{N: len(y), Inc: 1, Data: y})
}
