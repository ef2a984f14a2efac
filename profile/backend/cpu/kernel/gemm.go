package kernel

import (
	"fmt"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/blas32"
)

// GEMMShape is the linear layer C[M,N] = A[M,K] B[K,N]; M is tokens. Each pass costs 2*M*N*K FLOPs.
//
// A pass cuts its result into tiles of TileM x TileN, which the team's threads take one after another and compute with
// gonum's sgemm. gonum would cut it into 64x64 blocks itself, with as many goroutines as GOMAXPROCS, and start them anew
// each call; a tile is small enough for it to stay serial. A tile's sums run over the inner axis in order whoever computes
// it, so results do not depend on the number of threads.
type GEMMShape struct {
	M, N, K int
}

// Validate reports a dimension below 1.
func (s GEMMShape) Validate() error {
	if min(s.M, s.N, s.K) < 1 {
		return fmt.Errorf("kernel: gemm shape %+v: every dimension must be at least 1", s)
	}
	return nil
}

// FLOPs of one pass, a multiply-add being 2.
func (s GEMMShape) FLOPs() float64 { return 2 * float64(s.M) * float64(s.N) * float64(s.K) }

func (s GEMMShape) matrices(a, b, c []float32) (ma, mb, mc blas32.General) {
	must(s.Validate())
	wantLen("a", a, s.M*s.K)
	wantLen("b", b, s.K*s.N)
	wantLen("c", c, s.M*s.N)
	return matrix(a, s.M, s.K), matrix(b, s.K, s.N), matrix(c, s.M, s.N)
}

// The tile of a GEMM's result that one thread computes at a time, in rows and columns: two of gonum's 64x64 blocks, since
// from four on it would go parallel by itself.
const (
	TileM = 64
	TileN = 128
)

// GEMMForward overwrites c[M,N] with a[M,K] b[K,N].
func GEMMForward(s GEMMShape, c, a, b []float32, team *Team) {
	ma, mb, mc := s.matrices(a, b, c)
	eachTile(mc, team, func(r0, r1, c0, c1 int, out blas32.General) {
		blas32.Gemm(blas.NoTrans, blas.NoTrans, 1, view(ma, r0, r1, 0, s.K), view(mb, 0, s.K, c0, c1), 0, out)
	})
}

// GEMMDGrad overwrites da[M,K] with dc[M,N] b[K,N]^T.
func GEMMDGrad(s GEMMShape, da, dc, b []float32, team *Team) {
	ma, mb, mc := s.matrices(da, b, dc)
	eachTile(ma, team, func(r0, r1, c0, c1 int, out blas32.General) {
		blas32.Gemm(blas.NoTrans, blas.Trans, 1, view(mc, r0, r1, 0, s.N), view(mb, c0, c1, 0, s.N), 0, out)
	})
}

// GEMMWGrad overwrites db[K,N] with a[M,K]^T dc[M,N].
func GEMMWGrad(s GEMMShape, db, a, dc []float32, team *Team) {
	ma, mb, mc := s.matrices(a, db, dc)
	eachTile(mb, team, func(r0, r1, c0, c1 int, out blas32.General) {
		blas32.Gemm(blas.Trans, blas.NoTrans, 1, view(ma, 0, s.M, r0, r1), view(mc, 0, s.M, c0, c1), 0, out)
	})
}

// eachTile calls do for every tile of a result, rows r0..r1 and columns c0..c1, to compute into `out`, a thread's own
// scratch, which is then copied to its place. gonum's kernels add to the result once for every step of the inner axis:
// in place, two threads on neighbouring tiles fought over the cache lines that both border on, and ran at a quarter of
// their speed or not, depending on the alignment of the matrix.
func eachTile(result blas32.General, team *Team, do func(r0, r1, c0, c1 int, out blas32.General)) {
	across := blocksOf(result.Cols, TileN)
	drain(blocksOf(result.Rows, TileM)*across, team, func() func(int) {
		scratch := matrix(make([]float32, TileM*TileN), TileM, TileN)
		return func(task int) {
			r0, c0 := task/across*TileM, task%across*TileN
			r1, c1 := min(r0+TileM, result.Rows), min(c0+TileN, result.Cols)
			out := view(scratch, 0, r1-r0, 0, c1-c0)
			do(r0, r1, c0, c1, out)
			for r := r0; r < r1; r++ {
				copy(result.Data[r*result.Stride+c0:r*result.Stride+c1], out.Data[(r-r0)*out.Stride:])
			}
		}
	})
}

// view is the part of a matrix with rows r0..r1 and columns c0..c1, not a copy.
func view(m blas32.General, r0, r1, c0, c1 int) blas32.General {
	return blas32.General{Rows: r1 - r0, Cols: c1 - c0, Stride: m.Stride, Data: m.Data[r0*m.Stride+c0 : (r1-1)*m.Stride+c1]}
}
