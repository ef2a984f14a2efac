package pipeline

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/internal/units"
)

// thirteen is the cost model of 13 billion parameters that the reference to InfiniPipe has, on
// 32 devices.
func thirteen() Published {
	return Published{
		Devices: 32, PerNode: 8, Layers: 40, SquareToken: 9.2852e-9, Token: 0.3060189e-3, Each: 0.02, Hidden: 5120, KVWidth: 1024,
		TokenBytes: 34 * 5120 * 40, LogitBytes: 6 * 32000, ElementBytes: 2, StateBytes: 16 * 13e9, Capacity: 72e9,
	}
}

// Equations 1 to 11, for a slice of 3,000 tokens behind 5,000, with sequences of 700 and 200
// beside it, on eight devices: of 40 layers one.
func TestPublishedByHand(t *testing.T) {
	lengths := []units.Tokens{9000, 700, 200}
	c, err := thirteen().Costs(lengths)
	if err != nil {
		t.Fatal(err)
	}
	ranks := []int{8, 9, 10, 11, 12, 13, 14, 15}
	x := Chunk{Sequence: 0, Context: 5000, Slice: 3000, Whole: []int{1, 2}}
	all := 9.2852e-9*(8000*8000-5000*5000) + 0.3060189e-3*3000 + 9.2852e-9*(700*700+200*200) + 0.3060189e-3*900
	layer := units.Seconds(all/8/40 + 0.02/40)
	w := c.Work(ranks, x)
	if !near(w.Forward, layer/3) || !near(w.Backward, 2*layer/3) || !near(w.Again, layer/3) || w.Loss != 0 {
		t.Errorf("%+v, want a third of %v and two", w, layer)
	}
	b := c.Held(ranks, x)
	const tokens = 3900.0
	for _, f := range []struct {
		what      string
		got, want float64
	}{
		{"kept", b.Kept, 34 * 5120 * tokens / 8},
		{"kept where it is computed again", b.Again, 2 * (5120 + 2*1024) * tokens / 8},
		{"gradients", b.Gradients, 2 * 2 * 1024 * tokens / 8},
		{"logits", b.Logits, 6 * 32000 * tokens / 8},
		{"beside", b.Transient, 0},
	} {
		if math.Abs(f.got-f.want) > 1e-9*f.want {
			t.Errorf("%s: %v bytes, want %v", f.what, f.got, f.want)
		}
	}
	// The last slice, and sequences that are whole, leave no keys and values to others.
	for _, x := range []Chunk{{Sequence: 0, Context: 5000, Slice: 4000}, {Sequence: -1, Whole: []int{1}}} {
		tokens := float64(c.Tokens(x))
		if b := c.Held(ranks, x); b.Gradients != 0 || b.Again != 2*5120*tokens/8 {
			t.Errorf("%+v: %+v", x, b)
		}
	}
	p := f1b(4, 3)
	for s := range p.Stages {
		if got := c.States(p, s); got != 16*13e9/32 {
			t.Errorf("states of %d bytes", int64(got))
		}
		if c.Finish(p, s) != (Finish{}) || c.Tied(p) != 0 || c.Send(ranks, []int{16}, 1000) != 0 || c.Capacity(ranks) != 72e9 || c.Fits([]int{0, 1, 2}) != nil || c.Warnings() != nil {
			t.Error("something is not published")
		}
	}
	if step, err := c.Account(p); step != nil || err != nil {
		t.Errorf("an account without laws: %+v, %v", step, err)
	}
	if c.Devices() != 32 || c.Layers != 40 || len(c.Nodes()) != 4 || len(c.Nodes()[3]) != 8 {
		t.Errorf("%d devices on %v", c.Devices(), c.Nodes())
	}
}

// Passes of a plan are of a stage's layers, and what is computed again comes on top.
func TestPassesOfLayers(t *testing.T) {
	c := costsOf(t, []units.Tokens{100, 70}, 7, 2, &made{salt: 3})
	p := f1b(2, 2)
	p.Stages[0].Layers, p.Stages[1].Layers, p.Recompute[0][1] = 4, 3, 2
	for s, layers := range []units.Seconds{4, 3} {
		for k := range 2 {
			w := c.Work([]int{s}, p.Chunks[k])
			forward, backward := layers*w.Forward, layers*w.Backward+units.Seconds(p.Recompute[s][k])*w.Again
			if s == 1 {
				forward += w.Loss
			}
			if f, b := c.Passes(p, s, k); !near(f, forward) || !near(b, backward) {
				t.Errorf("stage %d, chunk %d: %v and %v, want %v and %v", s, k, f, b, forward, backward)
			}
		}
	}
}

// The slices of a sequence take together what it takes at once, but for what each takes by
// itself; and a chunk what its sequences take.
func TestPublishedAddsUp(t *testing.T) {
	m := thirteen()
	m.Each = 0
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 6))
		lengths := drawnLengths(r, 8)
		c, err := m.Costs(lengths)
		if err != nil {
			t.Fatal(err)
		}
		sum, want := units.Seconds(0), units.Seconds(0)
		for _, x := range drawnChunks(r, lengths) {
			sum += c.Work([]int{0, 1}, x).Forward
		}
		for i := range lengths {
			want += c.Work([]int{0, 1}, Chunk{Sequence: -1, Whole: []int{i}}).Forward
		}
		if !near(sum, want) {
			t.Errorf("seed %d: %v in chunks, %v by sequence", seed, sum, want)
		}
	}
}

func TestPublishedNamesAFieldOutOfRange(t *testing.T) {
	if err := thirteen().Validate(); err != nil {
		t.Fatal(err)
	}
	nan := math.NaN()
	for want, damage := range map[string]func(*Published){
		"devices, devices of a node, layers: 0, 8, 40: want 1 to 65536, 1 at least, and 1 to 4096":     func(m *Published) { m.Devices = 0 },
		"devices, devices of a node, layers: 65537, 8, 40: want 1 to 65536, 1 at least, and 1 to 4096": func(m *Published) { m.Devices = 65537 },
		"devices, devices of a node, layers: 32, 0, 40: want 1 to 65536, 1 at least, and 1 to 4096":    func(m *Published) { m.PerNode = 0 },
		"devices, devices of a node, layers: 32, 8, 0: want 1 to 65536, 1 at least, and 1 to 4096":     func(m *Published) { m.Layers = 0 },
		"devices, devices of a node, layers: 32, 8, 4097: want 1 to 65536, 1 at least, and 1 to 4096":  func(m *Published) { m.Layers = 4097 },
		"square_token: -1: want a number of 0 or more":                                                 func(m *Published) { m.SquareToken = -1 },
		"token: NaN: want a number of 0 or more":                                                       func(m *Published) { m.Token = nan },
		"each: +Inf: want a number of 0 or more":                                                       func(m *Published) { m.Each = units.Seconds(math.Inf(1)) },
		"hidden: -2: want a number of 0 or more":                                                       func(m *Published) { m.Hidden = -2 },
		"kv_width: -2: want a number of 0 or more":                                                     func(m *Published) { m.KVWidth = -2 },
		"token_bytes: -3: want a number of 0 or more":                                                  func(m *Published) { m.TokenBytes = -3 },
		"logit_bytes: NaN: want a number of 0 or more":                                                 func(m *Published) { m.LogitBytes = nan },
		"element_bytes: 1e+48: want a number of 0 or more":                                             func(m *Published) { m.ElementBytes = 1e48 },
		"state_bytes: -1: want a number of 0 or more":                                                  func(m *Published) { m.StateBytes = -1 },
		"capacity: -1: want a number of 0 or more":                                                     func(m *Published) { m.Capacity = -1 },
		"square_token, token: 0: tokens take some time":                                                func(m *Published) { m.SquareToken, m.Token = 0, 0 },
	} {
		m := thirteen()
		damage(&m)
		if _, err := m.Costs([]units.Tokens{1}); err == nil || err.Error() != want {
			t.Errorf("want %q, got %v", want, err)
		}
	}
	if _, err := thirteen().Costs([]units.Tokens{1, 0}); err == nil || !strings.Contains(err.Error(), "lengths[1]: 0: want at least one token") {
		t.Error(err)
	}
}
