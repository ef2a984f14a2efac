// Package milp solves mixed-integer linear programmes with the HiGHS solver.
//
// HiGHS is embedded as WebAssembly (highs.wasm, see README.md) and runs in this process
// under wazero. Nothing has to be installed, and a crash of the solver cannot crash this
// process. Compiling it takes seconds, once per process. Each Solve runs an instance of
// its own, so that calls may run concurrently.
package milp
