// Package solver turns a problem (a job and the profile of its devices) into a
// plan: which rank owns which tokens, in which ring.
//
// A strategy proposes a layout; the one simulator of package costmodel judges
// it and every baseline alike; LowerBound says how far from the best possible
// it can be at most; Check verifies the finished plan and shares no code with
// any strategy. Everything here is a pure function of its inputs.
package solver
