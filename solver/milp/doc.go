// Package milp solves mixed-integer linear programmes with the HiGHS engine.
//
// HiGHS comes as WebAssembly (highs.wasm, see README.md) and runs inside this
// process under wazero: nothing has to be installed, and an engine that fails
// takes nothing with it. Compiling it takes seconds, once a process; each Solve
// has an instance of its own, so any number may run side by side.
package milp
