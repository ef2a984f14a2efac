package multitask

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/internal/units"
)

// Three ranks: x, of 2 layers of 60 bytes of states and 1 byte of activations a sample, on
// the first two and then on the second; y, of one of 30 and 10, on the last two.
func filled(t *testing.T) (*world, *Plan) {
	w := proportional(t, [][]string{{"a", "a"}, {"b"}}, module("x", 2, 4), module("y", 1, 3))
	w.states, w.kept = []units.Bytes{60, 30}, []units.Bytes{1, 10}
	return w, &Plan{Runs: []Run{
		{Module: 0, Layers: 1, Ranks: []int{0, 1}, Samples: []int{1, 3}},
		{Module: 0, Layers: 1, Ranks: []int{1}, Samples: []int{4}},
		{Module: 1, Layers: 1, Ranks: []int{1, 2}, Samples: []int{2, 1}},
	}}
}

// Plans may fill 97 % of a device.
func TestMemoryByHand(t *testing.T) {
	w, p := filled(t)
	w.room = []units.Bytes{1000, 2000}
	want := []Memory{
		{States: 30, Activations: 1, Capacity: 970},
		{States: 30 + 60 + 15, Activations: 3 + 4 + 20, Capacity: 970},
		{States: 15, Activations: 10, Capacity: 1940},
	}
	if got := w.costs(t).Memory(p); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	// The largest layer that is computed again counts once: 4 samples of 50 bytes on rank 1.
	w.again = 50
	if got := w.costs(t).Memory(p)[1]; got.Activations != 3+4+20+4*50 {
		t.Errorf("computed again: %+v", got)
	}
	w.again = 0
	// All layers of a run count, and another run's on the same rank as well.
	w.tasks.Modules[0].Layers, p.Runs[0].Layers = 5, 4
	if got := w.costs(t).Memory(p)[1]; got.States != 4*30+60+15 || got.Activations != 4*3+4+20 || got.Peak() != 231 {
		t.Errorf("with four layers: %+v", got)
	}
}

// Rank 1 holds 132 bytes and rank 2 holds 25: plans may fill 97 % of a device.
func TestFitsNamesTheFullestRank(t *testing.T) {
	w, p := filled(t)
	for _, c := range []struct {
		room   []units.Bytes
		rank   int // that has too little; -1 for none
		device string
		over   float64
	}{
		{[]units.Bytes{1000, 1000}, -1, "", 0},
		{[]units.Bytes{137, 26}, -1, "", 0},          // 132.9 and 25.2
		{[]units.Bytes{136, 26}, 1, "a", 132. / 131}, // of 131.9
		{[]units.Bytes{137, 25}, 2, "b", 25. / 24},   // of 24.3
		{[]units.Bytes{100, 20}, 1, "a", 132. / 97},
		{[]units.Bytes{100, 15}, 2, "b", 25. / 14}, // of 14.6
		{[]units.Bytes{0, 15}, 2, "b", 25. / 14},   // nobody knows what a holds
		{[]units.Bytes{0, 0}, -1, "", 0},
	} {
		w.room = c.room
		err := w.costs(t).Fits(p)
		room, ok := errors.AsType[*NoRoomError](err)
		switch {
		case ok != (c.rank >= 0) || ok == (err == nil):
			t.Errorf("%v: %v", c.room, err)
		case ok && (room.Rank != c.rank || room.Device != c.device || math.Abs(room.Over()/c.over-1) > 1e-9):
			t.Errorf("%v: %+v, over by %v; want rank %d by %v", c.room, room, room.Over(), c.rank, c.over)
		}
	}
	w.room = []units.Bytes{100, 20}
	want := "rank 1 (a) would hold 132 B, 105 B of it states and 27 B activations, and plans may fill 97 B of it"
	if err := w.costs(t).Fits(p); err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
}

// What exceeds the largest size is that size, and fits nowhere, where a sum that wraps around
// would.
func TestMemoryEndsAtTheLargestSize(t *testing.T) {
	w, p := filled(t)
	w.room = []units.Bytes{1 << 40, 1 << 40}
	w.kept[0] = math.MaxInt64 / 4
	for _, layers := range []int{1, 2, 7} {
		w.tasks.Modules[0].Layers, p.Runs[0].Layers = 1+layers, layers
		c := w.costs(t)
		if got := c.Memory(p)[1]; got.Activations != math.MaxInt64 || got.Peak() != math.MaxInt64 {
			t.Errorf("%d layers: %+v", layers, got)
		}
		if err := c.Fits(p); err == nil {
			t.Errorf("%d layers fit", layers)
		}
	}
}
