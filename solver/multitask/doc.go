// Package multitask plans the training of several models side by side: which modules run
// when, on which devices, and with how many samples on each.
//
//   - Problem is the modules and what they take (package costmodel/multitask), and Solve
//     runs all strategies on it, with a lower bound beside them.
//   - Strategies: what people run today (one module after another on all devices, modules
//     of one task side by side, tasks side by side), Spindle as published (Wang et al.,
//     ASPLOS 2025), and ours, which needs no waves and plans for unequal devices.
//   - Bound is a time that no plan beats.
//   - Check verifies a plan by itself, and shares no code with any strategy.
package multitask
