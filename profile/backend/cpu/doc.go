// Package cpu measures this machine's cores: real attention, GEMM and
// bandwidth-bound kernels in pure Go, and real collectives between worker
// processes of the same binary over Unix sockets. Device types on one machine
// differ by their number of threads (cpu:1, cpu:2, ...), which gives genuinely
// unequal devices without a GPU.
//
// Every device type is a worker process with its GOMAXPROCS, and every group a
// process a rank. A worker is told what to run by lines of JSON on its standard
// input and answers on its standard output; one that dies or misses a deadline
// takes nothing with it.
package cpu
