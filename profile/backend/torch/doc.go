// Package torch measures the kernels people train with: a Python worker a
// device, embedded in the binary and driven over pipes, runs them through
// torch; collectives go through torch.distributed (NCCL, gloo). The binary
// builds, starts and passes its tests without Python, torch or a driver.
//
// Layers, from below: a wire carries frames to and from one worker, in a child
// process or through another node's agent; a client asks one worker and
// watches over its deadline and heartbeat; a rank is a device with its worker;
// executors run points on one rank or on the ranks of a group; the backend
// finds interpreters, devices and groups.
//
// A device type on processors is a number of threads and, perhaps, the widest
// vector units that the libraries of a rank may use: torch_cpu:2,
// torch_cpu:1@avx2 (Processor says what such a rank has in its environment). On
// one machine every rank has cores of its own where there are enough.
//
// Nothing here opens a network port. torch.distributed does, as in any
// training job: rank 0's store, and the transport of gloo or NCCL.
package torch
