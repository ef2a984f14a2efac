package kernel

import (
	"math"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/blas32"
)

// AttentionForward computes O = softmax(Q K^T / sqrt(head_dim)) V and LSE = log sum exp of the scaled scores, a row a
// query, in one pass over KV tiles with a running maximum and sum a row (the online softmax of FlashAttention), so no score
// matrix is ever held. A task is (query head, query tile); under DIAG tiles above the diagonal are skipped and the tasks
// with most tiles start first.
func AttentionForward(s AttentionShape, a Attention, team *Team) {
	a.check(s)
	qBlocks := blocksOf(s.QLen, TileQ)
	drain(s.QHeads*qBlocks, team, func() func(int) {
		w := forwardWorker{
			AttentionShape: s, Attention: a,
			scale:  float32(1 / math.Sqrt(float64(s.HeadDim))),
			scores: make([]float32, TileQ*TileKV),
			top:    make([]float32, TileQ), sum: make([]float32, TileQ),
		}
		return func(task int) { w.block(task%s.QHeads, TileQ*(qBlocks-1-task/s.QHeads)) }
	})
}

// forwardWorker is one thread's view of the call and its scratch: a score tile, and each row's running maximum and sum.
type forwardWorker struct {
	AttentionShape
	Attention
	scale            float32
	scores, top, sum []float32
}

// block computes the O and LSE rows of head h's query tile that starts at row q0.
func (w *forwardWorker) block(h, q0 int) {
	rows := min(TileQ, w.QLen-q0)
	q := headRows(w.Q, h, w.QLen, w.HeadDim, q0, rows)
	o := headRows(w.O, h, w.QLen, w.HeadDim, q0, rows)
	clear(o.Data)
	for i := range rows {
		w.top[i], w.sum[i] = float32(math.Inf(-1)), 0
	}
	keys := w.KVLen
	if w.Mask == Diag {
		keys = q0 + rows
	}
	g := w.kvHead(h)
	for k0 := 0; k0 < keys; k0 += TileKV {
		cols := min(TileKV, keys-k0)
		k := headRows(w.K, g, w.KVLen, w.HeadDim, k0, cols)
		v := headRows(w.V, g, w.KVLen, w.HeadDim, k0, cols)
		p := matrix(w.scores, rows, cols)
		blas32.Gemm(blas.NoTrans, blas.Trans, w.scale, q, k, 0, p)
		w.softmax(p, o, q0, k0)
		mulTile(blas.NoTrans, p, v, 1, o)
	}
	w.finish(o, w.LSE[h*w.QLen+q0:])
}

// softmax turns the scores p into weights relative to the running maximum, rescaling what o holds where that rose. Masked
// entries become exact zeros, which the following product skips.
func (w *forwardWorker) softmax(p, o blas32.General, q0, k0 int) {
	for i := range p.Rows {
		row := p.Data[i*p.Stride : i*p.Stride+p.Cols]
		seen := w.visible(q0+i, k0, p.Cols)
		clear(row[seen:])
		row = row[:seen]
		if m := largest(row); m > w.top[i] {
			if shrink := exp32(w.top[i] - m); k0 > 0 {
				w.sum[i] *= shrink
				scaleRow(o.Data[i*o.Stride:i*o.Stride+o.Cols], shrink)
			}
			w.top[i] = m
		}
		w.sum[i] += expShift(row, row, w.top[i])
	}
}

// finish divides o by the row sums and writes the log-sum-exp.
func (w *forwardWorker) finish(o blas32.General, lse []float32) {
	for i := range o.Rows {
		scaleRow(o.Data[i*o.Stride:i*o.Stride+o.Cols], 1/w.sum[i])
		lse[i] = w.top[i] + float32(math.Log(float64(w.sum[i])))
	}
}

func scaleRow(row []float32, by float32) {
	for j := range row {
		row[j] *= by
	}
}
