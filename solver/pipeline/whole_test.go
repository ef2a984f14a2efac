package pipeline

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	costs "github.com/evenkeel/evenkeel/costmodel/pipeline"
	"github.com/evenkeel/evenkeel/internal/units"
)

// plainly fails unless a plan is what Whole promises: sound, of whole sequences, one forward, one
// backward, the same number of layers computed again everywhere.
func plainly(t testing.TB, p *Problem, plan *costs.Plan) {
	t.Helper()
	if found := Check(p.Costs, plan); len(found) > 0 {
		t.Fatal(found)
	}
	if err := p.Room(plan); err != nil {
		t.Fatal(err)
	}
	most := 0
	for _, of := range plan.Recompute {
		most = max(most, slices.Max(of))
	}
	for s, order := range plan.Orders {
		ahead := min(len(plan.Chunks), len(plan.Stages)-s)
		for i, o := range order[:ahead] {
			if o.Backward || o.Chunk != i {
				t.Fatalf("stage %d begins with %+v", s, order[:ahead])
			}
		}
		for k, n := range plan.Recompute[s] {
			if n != min(most, plan.Stages[s].Layers) || plan.Chunks[k].Slice > 0 {
				t.Fatalf("chunk %d: %+v, %d layers of %d computed again, most %d", k, plan.Chunks[k], n, plan.Stages[s].Layers, most)
			}
		}
	}
}

// bare are stages without layers.
func bare(stages []costs.Stage) []costs.Stage {
	out := slices.Clone(stages)
	for s := range out {
		out[s].Layers = 0
	}
	return out
}

// On the stages of what people run today, plans of whole sequences are no slower, whatever the
// room.
func TestWholeIsNoSlowerThanToday(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 1))
	some := 0
	for range 60 {
		m, lengths := small(r), drawnLengths(r, 12)
		again, kept := roomOf(t, m, lengths)
		m.Capacity = again + units.Bytes(r.Float64()*2*float64(kept-again))
		p := batchOf(t, m, lengths...)
		today, err := OneF1B{}.Solve(context.Background(), p)
		if err != nil {
			continue
		}
		some++
		plan, err := p.Whole(context.Background(), [][]costs.Stage{today.Stages})
		if err != nil {
			t.Fatal(err)
		}
		plainly(t, p, plan)
		if plan.Time > today.Time {
			t.Errorf("%v, and %v today: %+v", plan.Time, today.Time, plan.Stages)
		}
	}
	if some < 20 {
		t.Errorf("today has %d plans of 60", some)
	}
}

// Faster devices get more layers, and fixed stages keep theirs.
func TestWholeDividesLayers(t *testing.T) {
	lengths := slices.Repeat([]units.Tokens{16 << 10}, 12)
	p := byLaws(t, "1x4 h100_sxm + 1x4 a100_sxm", 24, lengths...)
	row := []costs.Stage{{Ranks: []int{0, 1, 2, 3}, Layers: 12}, {Ranks: []int{4, 5, 6, 7}, Layers: 12}}
	free, err := p.Whole(context.Background(), [][]costs.Stage{bare(row)})
	if err != nil {
		t.Fatal(err)
	}
	plainly(t, p, free)
	if n := free.Stages[0].Layers; n < 15 {
		t.Errorf("the faster stage has %d of 24 layers", n)
	}
	given := []costs.Chunk{{Sequence: -1, Whole: []int{3, 4, 5, 6, 7, 8, 9, 10, 11}}, {Sequence: -1, Whole: []int{0, 1, 2}}}
	both, err := p.Whole(context.Background(), [][]costs.Stage{row}, given)
	if err != nil || both.Time > free.Time {
		t.Errorf("%v with more to choose from, %v: %v", both.Time, free.Time, err)
	}
	p.Fixed = row
	fixed, err := p.Whole(context.Background(), [][]costs.Stage{row})
	if err != nil || fixed.Stages[0].Layers != 12 || fixed.Time < 1.2*free.Time {
		t.Errorf("on fixed stages %v, %v free: %v", fixed.Time, free.Time, err)
	}
}

// No layer moved from the stage that is at work for longest makes a plan faster, though work
// alone, by which layers are divided first, does not tell.
func TestWholeMovesLayers(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 2))
	some := 0
	for range 40 {
		m, lengths := small(r), drawnLengths(r, 12)
		p := batchOf(t, m, lengths...)
		today, err := OneF1B{}.Solve(context.Background(), p)
		if err != nil || len(today.Stages) < 2 {
			continue
		}
		some++
		plan, err := p.Whole(context.Background(), [][]costs.Stage{bare(today.Stages)})
		if err != nil {
			t.Fatal(err)
		}
		if moved := p.shifted(context.Background(), plan); moved.Time < plan.Time {
			t.Errorf("%+v take %v, %+v %v", plan.Stages, plan.Time, moved.Stages, moved.Time)
		}
	}
	if some < 10 {
		t.Errorf("%d of 40 have stages", some)
	}
}

// A packing that is given is taken where it is the fastest.
func TestWholeTakesGivenChunks(t *testing.T) {
	m := published(4, 0)
	m.PerNode, m.Layers, m.Each = 4, 8, 0
	p := batchOf(t, m, 40000, 30000, 20000, 10000)
	row := []costs.Stage{{Ranks: []int{0, 1}, Layers: 4}, {Ranks: []int{2, 3}, Layers: 4}}
	p.Fixed = row
	own, err := p.Whole(context.Background(), [][]costs.Stage{row})
	if err != nil {
		t.Fatal(err)
	}
	var turned []costs.Chunk // the shortest first: the last stage begins sooner
	for i := range 4 {
		turned = append(turned, costs.Chunk{Sequence: -1, Whole: []int{3 - i}})
	}
	given, err := p.Whole(context.Background(), [][]costs.Stage{row}, turned)
	if err != nil {
		t.Fatal(err)
	}
	if given.Time >= own.Time || given.Chunks[0].Whole[0] != 3 {
		t.Errorf("%v given, %v by itself: %+v", given.Time, own.Time, given.Chunks)
	}
}

func TestWholeWithoutAPlan(t *testing.T) {
	m := published(4, 0)
	m.Layers = 8
	p := batchOf(t, m, 4000, 2000)
	if _, err := p.Whole(context.Background(), nil); !errors.As(err, new(*IllegalError)) {
		t.Errorf("without stages: %v", err)
	}
	row := []costs.Stage{{Ranks: []int{0, 1}}, {Ranks: []int{2, 3}}}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := p.Whole(ctx, [][]costs.Stage{row}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	m.Capacity = units.MiB
	if _, err := batchOf(t, m, 4000, 2000).Whole(context.Background(), [][]costs.Stage{row}); !errors.As(err, new(*costs.NoRoomError)) {
		t.Errorf("without room: %v", err)
	}
}

// A stage that has room for fewer layers than would be best gets no more: the others take them,
// though slower.
func TestWholeMindsRoom(t *testing.T) {
	first := func(layers int) (have, room int) {
		p := byLaws(t, "1x4 h100_sxm + 1x4 a100_sxm", layers, slices.Repeat([]units.Tokens{16 << 10}, 8)...)
		row := []costs.Stage{{Ranks: []int{0, 1, 2, 3}}, {Ranks: []int{4, 5, 6, 7}}}
		plan, err := p.Whole(context.Background(), [][]costs.Stage{row})
		if err != nil {
			t.Fatal(err)
		}
		plainly(t, p, plan)
		return plan.Stages[0].Layers, p.mostLayers(row, p.packings(nil)[0], 0)
	}
	free, _ := first(30)
	if have, room := first(120); have > room || have < room-3 || room >= 4*free {
		t.Errorf("of 120 layers the faster stage has %d, and room for %d: of 30, for which there is room, it has %d", have, room, free)
	}
}
