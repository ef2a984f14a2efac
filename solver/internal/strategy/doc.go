// Package strategy is what a strategy is given, what it has to do and what it may answer.
//
//   - [Strategy] is the interface that all implement; [Claims] and [Result] are its answers,
//     [IllegalError] and [MemoryError] say why there is none.
//   - [Problem] is a job on devices as strategies see it: its ranks, the simulator that
//     judges all layouts, the results of the strategies before, and what can be asked of the
//     cluster (cluster.go) and of its memory (memory.go).
//   - [Contest] judges the layouts of one strategy, one after the other, until its context
//     ends (ended.go).
//   - [SolveEach] runs strategies one after the other, so that the later ones may start from
//     the layouts of those before.
//
// It knows no strategy.
package strategy
