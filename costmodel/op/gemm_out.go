package op

// Out is the matrix product behind a pass: the rows and columns of its result
// and the length of its inner product. C[m,n] = A[m,k] B[k,n] forward,
// dA[m,k] = dC[m,n] B^T and dB[k,n] = A^T dC backward.
func (g GEMM) Out() (rows, cols, inner float64) { return g.out() }
