package pipeline

import (
	"testing"

	"github.com/evenkeel/evenkeel/internal/units"
)

// sound is a plan of a long sequence in two slices and two short ones on two stages, of three
// layers on three of four devices.
func sound() *Plan {
	order := func() []Op {
		return []Op{{Chunk: 0}, {Chunk: 1}, {Chunk: 1, Backward: true}, {Chunk: 0, Backward: true}, {Chunk: 2}, {Chunk: 2, Backward: true}}
	}
	return &Plan{
		Stages:    []Stage{{Ranks: []int{0, 1}, Layers: 2}, {Ranks: []int{3}, Layers: 1}},
		Chunks:    []Chunk{{Sequence: 1, Slice: 60}, {Sequence: 1, Context: 60, Slice: 40, Whole: []int{0}}, {Sequence: -1, Whole: []int{2}}},
		Recompute: [][]int{{2, 0, 1}, {0, 1, 0}},
		Orders:    [][]Op{order(), order()},
	}
}

// Each break is one thing wrong with a plan, and what the simulator must say of it.
func TestSimulateRefusesWhatIsNoPlan(t *testing.T) {
	lengths := []units.Tokens{30, 100, 20}
	c := costsOf(t, lengths, 3, 4, &made{})
	if err := c.Simulate(sound()); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		want   string
		damage func(*Plan)
	}{
		{"stages[0].layers: 0: want 1 to 3, which no stage before has", func(p *Plan) { p.Stages[0].Layers = 0 }},
		{"stages[0].layers: -1: want 1 to 3, which no stage before has", func(p *Plan) { p.Stages[0].Layers = -1 }},
		{"stages[1].layers: 2: want 1 to 1, which no stage before has", func(p *Plan) { p.Stages[1].Layers = 2 }},
		{"stages[1].layers: 1: want 1 to 0, which no stage before has", func(p *Plan) { p.Stages[0].Layers = 3 }},
		{"stages: have 2 layers: want the model's 3", func(p *Plan) { p.Stages[0].Layers = 1 }},
		{"stages: have 0 layers: want the model's 3", func(p *Plan) { p.Stages = nil }},
		{"stages[1].ranks: none", func(p *Plan) { p.Stages[1].Ranks = nil }},
		{"stages[1].ranks[0]: 4: want rising ranks of 0 to 3, each in one stage", func(p *Plan) { p.Stages[1].Ranks[0] = 4 }},
		{"stages[1].ranks[0]: -1: want rising ranks of 0 to 3, each in one stage", func(p *Plan) { p.Stages[1].Ranks[0] = -1 }},
		{"stages[1].ranks[0]: 1: want rising ranks of 0 to 3, each in one stage", func(p *Plan) { p.Stages[1].Ranks[0] = 1 }},
		{"stages[0].ranks[1]: 0: want rising ranks of 0 to 3, each in one stage", func(p *Plan) { p.Stages[0].Ranks = []int{1, 0} }},
		{"stages[0].ranks[1]: 1: want rising ranks of 0 to 3, each in one stage", func(p *Plan) { p.Stages[0].Ranks = []int{1, 1} }},

		{"chunks[0]: sequence 3: want 0 to 2", func(p *Plan) { p.Chunks[0].Sequence = 3 }},
		{"chunks[0]: sequence -1: want 0 to 2", func(p *Plan) { p.Chunks[0].Sequence = -1 }},
		{"chunks[1].whole: 3: want 0 to 2", func(p *Plan) { p.Chunks[1].Whole[0] = 3 }},
		{"chunks[1].whole: -1: want 0 to 2", func(p *Plan) { p.Chunks[1].Whole[0] = -1 }},
		{"chunks[0]: has sequence 1 from token 1 on: the chunks before end at 0", func(p *Plan) { p.Chunks[0].Context = 1 }},
		{"chunks[1]: has sequence 1 from token 59 on: the chunks before end at 60", func(p *Plan) { p.Chunks[1].Context = 59 }},
		{"chunks[0]: has sequence 1 from token 60 on: the chunks before end at 0", func(p *Plan) { p.Chunks[0], p.Chunks[1] = p.Chunks[1], p.Chunks[0] }},
		{"chunks[2]: has sequence 0 from token 0 on: the chunks before end at 30", func(p *Plan) { p.Chunks[2].Whole[0] = 0 }},
		{"chunks[2]: has sequence 1 from token 0 on: the chunks before end at 100", func(p *Plan) { p.Chunks[2].Whole = []int{2, 1} }},
		{"chunks[0]: has -5 tokens of sequence 1: want 1 to 100, which no chunk before has", func(p *Plan) { p.Chunks[0].Slice = -5 }},
		{"chunks[1]: has 41 tokens of sequence 1: want 1 to 40, which no chunk before has", func(p *Plan) { p.Chunks[1].Slice = 41 }},
		{"chunks: 1 of the 100 tokens of sequence 1 are in none", func(p *Plan) { p.Chunks[1].Slice = 39 }},
		{"chunks: 30 of the 30 tokens of sequence 0 are in none", func(p *Plan) { p.Chunks[1].Whole = nil }},
		{"chunks: 30 of the 30 tokens of sequence 0 are in none", func(p *Plan) { p.Chunks = nil }},
		{"chunks[2]: without a slice: want sequence -1, no context and whole sequences", func(p *Plan) { p.Chunks[2].Sequence = 2 }},
		{"chunks[2]: without a slice: want sequence -1, no context and whole sequences", func(p *Plan) { p.Chunks[2].Context = 2 }},
		{"chunks[2]: without a slice: want sequence -1, no context and whole sequences", func(p *Plan) { p.Chunks[2].Whole = nil }},

		{"recomputed_layers, orders: of 1 and 2 stages: want 2", func(p *Plan) { p.Recompute = p.Recompute[:1] }},
		{"recomputed_layers, orders: of 2 and 3 stages: want 2", func(p *Plan) { p.Orders = append(p.Orders, nil) }},
		{"recomputed_layers[1]: of 2 chunks: want 3", func(p *Plan) { p.Recompute[1] = p.Recompute[1][:2] }},
		{"recomputed_layers[0][0]: 3: want 0 to the stage's 2", func(p *Plan) { p.Recompute[0][0] = 3 }},
		{"recomputed_layers[1][2]: -1: want 0 to the stage's 1", func(p *Plan) { p.Recompute[1][2] = -1 }},

		{"orders[1]: 5 passes: want 2 of each of 3 chunks", func(p *Plan) { p.Orders[1] = p.Orders[1][:5] }},
		{"orders[1][4].chunk: 3: want 0 to 2", func(p *Plan) { p.Orders[1][4].Chunk = 3 }},
		{"orders[0][0].chunk: -1: want 0 to 2", func(p *Plan) { p.Orders[0][0].Chunk = -1 }},
		{"orders[0][4].chunk: 0: is there before", func(p *Plan) { p.Orders[0][4].Chunk = 0 }},
		{"orders[0][5].chunk: 0: is there before", func(p *Plan) { p.Orders[0][5].Chunk = 0 }},
		{"orders[0][0].chunk: 1 goes forward before chunk 0, whose keys and values it needs", func(p *Plan) { p.Orders[0][0].Chunk, p.Orders[0][1].Chunk = 1, 0 }},
		{"orders[1][2].chunk: 0 goes backward before chunk 1, whose gradients it needs", func(p *Plan) { p.Orders[1][2].Chunk, p.Orders[1][3].Chunk = 0, 1 }},
		{"orders[1][4].chunk: 2 goes backward before it goes forward", func(p *Plan) { p.Orders[1][4].Backward, p.Orders[1][5].Backward = true, false }},
	} {
		p := sound()
		x.damage(p)
		if err := c.Simulate(p); err == nil || err.Error() != x.want {
			t.Errorf("want %q, got %v", x.want, err)
		}
	}
}
