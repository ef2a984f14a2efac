package kernel

import (
	"fmt"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/blas32"
)

// Tile sizes of attention in query and key rows. gonum's sgemm goes parallel by itself from four 64x64 blocks of output on;
// at 64 a score tile is one block and a tile times head_dim at most two, so every product inside a tile is serial and
// parallelism is this package's alone. 64x128 and 64x192 were measured: no faster beyond noise, and a coarser diagonal.
const (
	TileQ  = 64
	TileKV = 64
)

// Mask says which (query, key) pairs attend. Rectangular causal blocks do not exist: every mask is cut into these two.
type Mask uint8

// The masks. The zero value is invalid on purpose.
const (
	Full Mask = iota + 1 // a rectangle, nothing masked
	Diag                 // a causal square: query i sees keys 0..i
)

// String names the mask as recordings do.
func (m Mask) String() string {
	switch m {
	case Full:
		return "full"
	case Diag:
		return "diag"
	}
	return fmt.Sprintf("Mask(%d)", uint8(m))
}

// AttentionShape is one attention call. Query head h reads KV head floor(h*KVHeads/QHeads); QHeads need not be a multiple
// of KVHeads. Scores are scaled by 1/sqrt(HeadDim).
type AttentionShape struct {
	Mask            Mask
	QLen, KVLen     int // tokens
	QHeads, KVHeads int
	HeadDim         int
}

// Validate reports the first impossible field: a count below 1, fewer query than KV heads, or a DIAG that is not square.
func (s AttentionShape) Validate() error {
	switch {
	case s.Mask != Full && s.Mask != Diag:
		return fmt.Errorf("kernel: attention mask %v: want full or diag", s.Mask)
	case min(s.QLen, s.KVLen, s.QHeads, s.KVHeads, s.HeadDim) < 1:
		return fmt.Errorf("kernel: attention shape %+v: every count must be at least 1", s)
	case s.QHeads < s.KVHeads:
		return fmt.Errorf("kernel: attention q_heads %d below kv_heads %d", s.QHeads, s.KVHeads)
	case s.Mask == Diag && s.QLen != s.KVLen:
		return fmt.Errorf("kernel: diag attention with q_len %d, kv_len %d: a causal block is square; cut it into full and diag", s.QLen, s.KVLen)
	}
	return nil
}

// Pairs is the number of unmasked (query, key) pairs of one head.
func (s AttentionShape) Pairs() int {
	if s.Mask == Diag {
		return s.QLen * (s.QLen + 1) / 2
	}
	return s.QLen * s.KVLen
}

// ForwardFLOPs counts under the mask, a multiply-add being 2: 4 * q heads * head_dim * pairs.
func (s AttentionShape) ForwardFLOPs() float64 {
	return 4 * float64(s.QHeads) * float64(s.HeadDim) * float64(s.Pairs())
}

// QSize is the length of q, o, dO and dQ in elements.
func (s AttentionShape) QSize() int { return s.QHeads * s.QLen * s.HeadDim }

// KVSize is the length of each of k, v, dK and dV in elements.
func (s AttentionShape) KVSize() int { return s.KVHeads * s.KVLen * s.HeadDim }

// LSESize is the length of lse in elements.
func (s AttentionShape) LSESize() int { return s.QHeads * s.QLen }

// kvHead returns the KV head that query head h reads.
func (s AttentionShape) kvHead(h int) int { return h * s.KVHeads / s.QHeads }

// group returns the half-open range of query heads that read KV head g: the h with floor(h*KVHeads/QHeads) = g.
func (s AttentionShape) group(g int) (lo, hi int) {
	ceil := func(g int) int { return (g*s.QHeads + s.KVHeads - 1) / s.KVHeads }
	return ceil(g), ceil(g + 1)
}

// visible returns how many of the `cols` keys from k0 on query row q sees.
func (s AttentionShape) visible(q, k0, cols int) int {
	if s.Mask == Full {
		return cols
	}
	return max(0, min(cols, q-k0+1))
}

// Attention is the memory of one forward call; backward reads all of it. O and LSE (natural log) are outputs of forward.
// For backward they are the *global* ones, over every block the queries attended to.
type Attention struct {
	Q, K, V, O, LSE []float32
}

// AttentionGrad is the memory of the backward call: DO is read, DQ, DK, DV are overwritten with this block's part.
type AttentionGrad struct {
	DO, DQ, DK, DV []float32
}

func (a Attention) check(s AttentionShape) {
	must(s.Validate())
	wantLen("q", a.Q, s.QSize())
	wantLen("k", a.K, s.KVSize())
	wantLen("v", a.V, s.KVSize())
	wantLen("o", a.O, s.QSize())
	wantLen("lse", a.LSE, s.LSESize())
}

func (g AttentionGrad) check(s AttentionShape) {
	wantLen("dO", g.DO, s.QSize())
	wantLen("dQ", g.DQ, s.QSize())
	wantLen("dK", g.DK, s.KVSize())
	wantLen("dV", g.DV, s.KVSize())
}

func must(err error) {
	if err != nil {
		panic(err.Error())
	}
}

func wantLen[T any](name string, s []T, want int) {
	if len(s) != want {
		panic(fmt.Sprintf("kernel: %s has %d elements, its shape needs %d", name, len(s), want))
	}
}

// blocksOf is the number of tiles that cover n rows.
func blocksOf(n, tile int) int { return (n + tile - 1) / tile }

// headRows is the matrix of rows [from, from+rows) of one head in a [heads][length][dim] tensor.
func headRows(t []float32, head, length, dim, from, rows int) blas32.General {
	start := (head*length + from) * dim
	return matrix(t[start:start+rows*dim], rows, dim)
}

func matrix(data []float32, rows, cols int) blas32.General {
	return blas32.General{Rows: rows, Cols: cols, Stride: cols, Data: data[:rows*cols]}
}

// mulTile is c = alpha*op(a)*b + beta*c for a tile-sized c, in column strips of 128 so that gonum stays serial (see TileQ)
// for any head_dim.
func mulTile(tA blas.Transpose, a, b blas32.General, beta float32, c blas32.General) {
	const strip = 128
	for j := 0; j < c.Cols; j += strip {
		bs, cs, w := b, c, min(strip, c.Cols-j)
		bs.Cols, bs.Data = w, b.Data[j:]
		cs.Cols, cs.Data = w, c.Data[j:]
		blas32.Gemm(tA, blas.NoTrans, 1, a, bs, beta, cs)
	}
}
