package kernel

import (
	"fmt"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/blas32"
)

// GEMMShape is the linear layer C[M,N] = A[M,K] B[K,N]; M is tokens. Each pass costs 2*M*N*K FLOPs.
//
// The passes take no thread count. gonum's sgemm cuts the output into 64x64 blocks and computes each in a goroutine, with
// at most runtime.GOMAXPROCS(0) of them alive at a time; an output of fewer than four blocks is computed by the caller's
// goroutine alone. The thread count is therefore the process's GOMAXPROCS, and the time steps at multiples of 64 and at
// four blocks: this machine's tile and wave quantisation. A block's sums run over k in order whoever computes them, so
// results do not depend on GOMAXPROCS. Blocks are not packed, so rows a power of two apart fall into the same cache sets: at
// N = 1024 the weight gradient gains little from a second thread, at N = 1040 it does.
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

// GEMMForward overwrites c[M,N] with a[M,K] b[K,N].
func GEMMForward(s GEMMShape, c, a, b []float32) {
	ma, mb, mc := s.matrices(a, b, c)
	blas32.Gemm(blas.NoTrans, blas.NoTrans, 1, ma, mb, 0, mc)
}

// GEMMDGrad overwrites da[M,K] with dc[M,N] b[K,N]^T.
func GEMMDGrad(s GEMMShape, da, dc, b []float32) {
	ma, mb, mc := s.matrices(da, b, dc)
	blas32.Gemm(blas.NoTrans, blas.Trans, 1, mc, mb, 0, ma)
}

// GEMMWGrad overwrites db[K,N] with a[M,K]^T dc[M,N].
func GEMMWGrad(s GEMMShape, db, a, dc []float32) {
	ma, mb, mc := s.matrices(a, db, dc)
	blas32.Gemm(blas.Trans, blas.NoTrans, 1, ma, mc, 0, mb)
}
