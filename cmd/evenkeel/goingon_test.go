package main

import (
	"strings"
	"testing"
	"time"

	"github.com/evenkeel/evenkeel/solver"
)

func TestAFitSaysHowFarItIs(t *testing.T) {
	var err strings.Builder
	f := (&app{errOut: &err}).fittingOn(985420)
	f.report(1, 3)
	f.end()
	if got, want := f.line(10*time.Second), "fitting for 10s; 1 of 3 laws of 985420 points done"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if err.Len() > 0 {
		t.Errorf("a short fit says %q", err.String())
	}
}

func TestGoingOnSaysHowFarTheSearchIs(t *testing.T) {
	var err strings.Builder
	g := (&app{errOut: &err}).goingOn()
	if got := g.line(5 * time.Second); got != "planning for 5s" {
		t.Errorf("%q", got)
	}
	g.report(solver.Progress{Strategy: "usp", Evaluated: 1, Best: 4.92})
	g.end()
	if got, want := g.line(10*time.Second), "planning for 10s; usp came to 4.92 s after 1 layout; Ctrl-C takes the best so far"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	g.with("zero1, recompute none") // what was found in another setting is no news of this one
	if got, want := g.line(12*time.Second), "planning for 12s, now with zero1, recompute none"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if err.Len() > 0 {
		t.Errorf("a short search says %q", err.String())
	}
}
