package costmodel

import (
	"math"
	"testing"

	"github.com/evenkeel/evenkeel/internal/units"
)

// certain is a step of one law's time, which may take less or more by a factor.
func certain(of string, mid units.Seconds, factor float64) *Step {
	l := &Law{Op: "gemm", Device: of, Spread: Spread{Lo: 1 / factor, Hi: factor}}
	e := Estimate{mid / units.Seconds(factor), mid, mid * units.Seconds(factor), Interpolated}
	sides := []side{{laws: map[*Law]Estimate{l: e}}}
	return &Step{Time: interval(mid, Interpolated, sides), sides: sides}
}

// A law is off in all that it takes, different laws err on their own; and a shorter part of
// what runs side by side lengthens it only by what it comes to take beyond the longest.
func TestErrorsOfStepsTogether(t *testing.T) {
	a, b := certain("a", 10, 1.5), certain("b", 9, 1.5)
	same := func(what string, lo, mid, hi units.Seconds, of *Step) {
		t.Helper()
		if e := of.Time; !near(e.Lo, lo, 1e-9) || !near(e.Mid, mid, 1e-9) || !near(e.Hi, hi, 1e-9) {
			t.Errorf("%s: %v, want %v, %v, %v", what, e, lo, mid, hi)
		}
	}
	hypot := func(x, y float64) units.Seconds { return units.Seconds(math.Hypot(x, y)) }
	same("one law twice", 2*10/1.5, 20, 30, InTurn(a, a))
	same("two laws", 19-hypot(10-10/1.5, 9-9/1.5), 19, 19+hypot(5, 4.5), InTurn(a, b))
	same("in turn with oneself in turn", 3*10/1.5, 30, 45, InTurn(a, InTurn(a, a)))
	same("side by side", 10/1.5, 10, 10+hypot(5, 3.5), SideBySide(b, a)) // b has a second to spare
	same("half as long", 5/1.5, 5, 7.5, a.Scaled(5))
	same("nothing", 3, 3, 3, (&Step{}).Scaled(3))

	c := certain("a", 9, 1.5)
	if got := SideBySide(a, c).reasons(); len(got) != 1 || !near(got["gemm on a"].more, 5, 1e-9) {
		t.Errorf("two parts by one law: %+v", got)
	}
	busy := certain("a", 10, 1.5)
	busy.Contention = 3
	late := certain("b", 9, 1.5)
	late.Contention = 3.5
	if got := SideBySide(busy, late).Contention; !near(got, 3, 1e-9) {
		t.Errorf("contention %v, want 3", got)
	}
	if got := InTurn(busy, late); !near(got.Contention, 6.5, 1e-9) || !near(got.Time.Hi, 19+units.Seconds(math.Sqrt(25+4.5*4.5+6.5*6.5)), 1e-9) {
		t.Errorf("contention %v, up to %v", got.Contention, got.Time.Hi)
	}
	// Of a law that both have nothing is left but what one has more of.
	if half, of := GainError(InTurn(a, a), InTurn(a, b)); !near(half, hypot(10-10/1.5, 4.5), 1e-9) || of != "gemm on b" {
		t.Errorf("%v by %s", half, of)
	}
}
