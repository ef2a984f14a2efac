package costmodel

import (
	"errors"
	"fmt"
	"testing"

	"github.com/evenkeel/evenkeel/internal/units"
)

// A long simulation asks once in each of its two passes whether to go on. Given up it leaves
// nothing behind, and a short one does not ask.
func TestALongSimulationAsksWhetherToGoOn(t *testing.T) {
	enough := errors.New("enough")
	asked := 0
	at := func(question int) func() error {
		asked = 0
		return func() error {
			if asked++; asked == question {
				return enough
			}
			return nil
		}
	}
	s, ring := ringSimulator(t, 1040) // whose square is above askEvery
	want, err := s.Time(ring)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		question int
		want     error
	}{{1, enough}, {2, enough}, {3, nil}} {
		s.Until(at(c.question))
		if _, err := s.Time(ring); err != c.want || asked != min(2, c.question) {
			t.Errorf("told at question %d: %v after %d", c.question, err, asked)
		}
		s.Until(nil)
		if got, err := s.Time(ring); err != nil || got != want {
			t.Errorf("begun anew: %v, want %v: %v", got, want, err)
		}
	}
	if _, err := s.Step(ring, SimOptions{Until: at(2)}); err != enough {
		t.Errorf("the account: %v after %d questions", err, asked)
	}
	few, short := ringSimulator(t, 8)
	few.Until(at(1))
	if _, err := few.Time(short); err != nil || asked > 0 {
		t.Errorf("8 ranks: %v after %d questions", err, asked)
	}
}

func ringSimulator(t *testing.T, ranks int) (*Simulator, Layout) {
	t.Helper()
	p := usual(t)
	tokens := make([]units.Tokens, ranks)
	for r := range tokens {
		tokens[r] = 64
	}
	c := cluster(t, fmt.Sprintf("%dx4 fast", ranks/4), p, "bus", "net")
	s, err := NewSimulator(NewPredictor(p), testJob(c, tokens))
	if err != nil {
		t.Fatal(err)
	}
	return s, ringOf(tokens)
}
