package pipeline

import (
	"errors"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/evenkeel/evenkeel/internal/units"
)

// recounted is what a stage's ranks hold besides states, at its peak, counted anew at every
// pass from which passes lie before and behind it.
func recounted(c *Costs, p *Plan, s int) units.Bytes {
	peak := 0.0
	layers := float64(p.Stages[s].Layers)
	for at, o := range p.Orders[s] {
		over := func(k int, back bool) bool { // before the pass at work
			for _, x := range p.Orders[s][:at] {
				if x.Chunk == k && x.Backward == back {
					return true
				}
			}
			return false
		}
		// The last slice of a sequence goes backward first, and gives gradients to all others.
		begun := func(sequence int) bool {
			for k, x := range p.Chunks {
				if x.Slice > 0 && x.Sequence == sequence && x.Context+x.Slice == c.Lengths[sequence] {
					return over(k, true) || o.Chunk == k && o.Backward
				}
			}
			return false
		}
		now := 0.0
		for k, x := range p.Chunks {
			b, again := c.Held(p.Stages[s].Ranks, x), float64(p.Recompute[s][k])
			if over(k, true) {
				continue
			}
			if over(k, false) || o.Chunk == k {
				now += (layers-again)*b.Kept + again*b.Again
			}
			if x.Slice > 0 && x.Context+x.Slice < c.Lengths[x.Sequence] && begun(x.Sequence) {
				now += layers * b.Gradients
			}
		}
		b := c.Held(p.Stages[s].Ranks, p.Chunks[o.Chunk])
		switch {
		case o.Backward:
			now += b.Transient
			if p.Recompute[s][o.Chunk] > 0 {
				now += b.Kept
			}
		case s == len(p.Stages)-1:
			now += b.Logits
		}
		peak = math.Max(peak, now)
	}
	return units.BytesOf(peak)
}

func TestMemoryIsWhatIsHeldAtAnyPass(t *testing.T) {
	gradients, again := 0, 0
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 4))
		m := &made{salt: seed, room: 12345}
		c := costsOf(t, drawnLengths(r, 7), 1+r.IntN(9), 1+r.IntN(70), m)
		p := drawnPlan(r, c)
		for s, got := range c.Memory(p) {
			want := Memory{States: c.States(p, s), Activations: recounted(c, p, s), Capacity: 12345}
			if got != want {
				t.Fatalf("seed %d: stage %d: %+v, want %+v", seed, s, got, want)
			}
			if got.Peak() != got.States+got.Activations {
				t.Errorf("%+v: a peak of %d", got, int64(got.Peak()))
			}
			for k := range p.Chunks {
				if p.Recompute[s][k] > 0 {
					again++
				}
				if c.Held(p.Stages[s].Ranks, p.Chunks[k]).Gradients > 0 {
					gradients++
				}
			}
		}
	}
	if gradients < 300 || again < 300 {
		t.Errorf("%d slices with gradients, %d chunks computed again", gradients, again)
	}
}

// By hand: a sequence of three slices on one stage of two layers, forward and then backward,
// of which the last one is computed again in one layer. States are of the first and last
// stage.
func TestMemoryByHand(t *testing.T) {
	c := costsOf(t, []units.Tokens{30}, 2, 1, &made{salt: 9})
	p := &Plan{
		Stages:    []Stage{{Ranks: []int{0}, Layers: 2}},
		Chunks:    []Chunk{{Slice: 10}, {Context: 10, Slice: 15}, {Context: 25, Slice: 5}},
		Recompute: [][]int{{0, 0, 1}},
		Orders:    [][]Op{{{Chunk: 0}, {Chunk: 1}, {Chunk: 2}, {Chunk: 2, Backward: true}, {Chunk: 1, Backward: true}, {Chunk: 0, Backward: true}}},
	}
	x, y, z := c.Held([]int{0}, p.Chunks[0]), c.Held([]int{0}, p.Chunks[1]), c.Held([]int{0}, p.Chunks[2])
	both := 2*x.Kept + 2*y.Kept
	want := 0.0
	for _, now := range []float64{
		2*x.Kept + x.Logits, both + y.Logits, both + z.Kept + z.Again + z.Logits,
		both + z.Kept + z.Again + 2*x.Gradients + 2*y.Gradients + z.Transient + z.Kept,
		both + 2*x.Gradients + 2*y.Gradients + y.Transient, 2*x.Kept + 2*x.Gradients + x.Transient,
	} {
		want = max(want, now)
	}
	if got := c.Memory(p)[0].Activations; float64(got) != want || z.Gradients != 0 || x.Gradients == 0 {
		t.Errorf("%d bytes, want %v", int64(got), want)
	}
}

// Room is what the fullest stage has, by what it may fill; where nobody knows that, any plan
// has room.
func TestRoom(t *testing.T) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 5))
		m := &made{salt: seed}
		c := costsOf(t, drawnLengths(r, 5), 1+r.IntN(5), 1+r.IntN(7), m)
		p := drawnPlan(r, c)
		if err := c.Room(p); err != nil {
			t.Errorf("without a limit: %v", err)
		}
		fullest, worst := units.Bytes(0), 0
		for s, x := range c.Memory(p) {
			if x.Peak() > fullest {
				fullest, worst = x.Peak(), s
			}
		}
		m.room = fullest
		if err := c.Room(p); err != nil {
			t.Errorf("as much as it needs: %v", err)
		}
		m.room--
		full, ok := errors.AsType[*NoRoomError](c.Room(p))
		if !ok || full.Stage != worst || full.Memory.Peak() != fullest || full.Over() != float64(fullest)/float64(fullest-1) {
			t.Errorf("a byte less: %+v, want stage %d with %d bytes", full, worst, int64(fullest))
		}
	}
	e := &NoRoomError{Stage: 3, Memory: Memory{States: 3 << 30, Activations: 2 << 30, Capacity: 4 << 30}}
	if got, want := e.Error(), "each rank of stage 3 would hold 5 GiB, 3 GiB of it states and 2 GiB activations, and has room for 4 GiB"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
