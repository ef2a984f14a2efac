package replay

import (
	"testing"
	"time"
)

// Behind the last layer a rank of a whole step goes from op to op in one place: it does not stand
// still, and of two the one at an earlier op is behind.
func TestARankMovesFromOpToOp(t *testing.T) {
	c, _ := fakeConfig(t, "well")
	seats, backend, mode, err := c.place(0, 2)
	if err != nil {
		t.Fatal(err)
	}
	r := newRun(&c, seats, backend, mode, t.TempDir())
	at := func(o SpanOp) position { return position{Phase: phaseBlock, Dir: Backward, Op: o} }
	r.move(0, at(GradWait))
	m := r.ranks[0]
	m.moved = time.Time{}
	if r.move(0, at(GradWait)); !m.moved.IsZero() {
		t.Error("a rank that stays where it is has moved")
	}
	if r.move(0, at(Optimizer)); m.moved.IsZero() || m.at.String() != "block 0, plan 0, bwd layer 0 step 0 optimizer" {
		t.Errorf("at %s, moved %v", m.at, m.moved)
	}
	r.move(1, at(GradWait)) // the last to move
	if other := r.ranks[1]; m.behind(other) || !other.behind(m) {
		t.Error("who updates is behind who waits for gradients")
	}
}
