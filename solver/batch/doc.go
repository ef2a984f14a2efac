// Package batch plans the unequal sequences of a global batch: which groups of
// devices are formed for each micro-batch, and which sequences each group trains.
//
// Everything a planner needs to know of devices and laws is in the classes of
// groups that a Problem lists, each with its devices, its memory and its prices;
// so the published cost models of other systems and laws fitted to recordings,
// equal devices and unequal ones, are all the same to every strategy here. One
// evaluator (Evaluate) prices all of them, and Check verifies them alone.
package batch
