// Package kernel holds the real float32 workloads that the CPU backend times: blocked attention forward and backward, the
// log-sum-exp merge, GEMM in its three passes and the bandwidth-bound ops of a transformer layer, each with an unblocked
// float64 reference to verify it against before its time is believed.
//
// A kernel that takes threads runs on exactly that many goroutines, the caller's included; the process should have
// GOMAXPROCS at that value too, because GEMM takes its parallelism from there. All results are bitwise independent of the
// thread count: work is cut by shape alone, and sums that cross tasks are added in a fixed order.
//
// Tensors are contiguous, row-major, and laid out by head: q, o, dO, dQ are [q heads][q_len][head_dim], k, v, dK, dV are
// [kv heads][kv_len][head_dim], lse is [q heads][q_len]. Slices of the wrong length are a caller's mistake and panic; an
// impossible shape is an error of its Validate method.
//
// Data must not be mostly zeros: gonum's sgemm skips zero multipliers, so zeros are cheaper than numbers.
package kernel
