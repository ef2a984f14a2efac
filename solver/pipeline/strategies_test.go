package pipeline

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	costs "github.com/evenkeel/evenkeel/costmodel/pipeline"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/recommend"
)

// keeps says that a strategy's plan follows the rules, takes what the simulator says that it
// takes, and has room.
func keeps(t *testing.T, p *Problem, s Strategy, plan *costs.Plan) {
	t.Helper()
	if found := Check(p.Costs, plan); len(found) > 0 {
		t.Errorf("%s: %v", s.Name(), found)
	}
	again := deep(plan)
	if err := p.Simulate(again); err != nil || again.Time != plan.Time {
		t.Errorf("%s: %v, simulated %v, %v", s.Name(), plan.Time, again.Time, err)
	}
	for i := range plan.Orders {
		if !slices.Equal(again.Orders[i], plan.Orders[i]) {
			t.Errorf("%s: stage %d has other times when it is simulated", s.Name(), i)
		}
	}
	if err := p.Room(plan); err != nil {
		t.Errorf("%s: %v", s.Name(), err)
	}
	if p.Stages > 0 && len(plan.Stages) != p.Stages {
		t.Errorf("%s: %d stages, want %d", s.Name(), len(plan.Stages), p.Stages)
	}
}

// Whatever a strategy plans can be run and has room; what it does not plan it has a reason
// for: that of the room there is, or of shapes.
func TestPlansOfStrategiesCanBeRun(t *testing.T) {
	planned, full, again := 0, 0, 0
	for seed := range uint64(16) {
		r := rand.New(rand.NewPCG(seed, 10))
		m := small(r)
		lengths := drawnLengths(r, 12)
		if seed%4 > 0 {
			least, most := roomOf(t, m, lengths)
			m.Capacity = max(1, units.BytesOf(float64(least)+(1.5*r.Float64()-0.5)*float64(most-least)))
		}
		p := batchOf(t, m, lengths...)
		p.MIPTime = 50 * time.Millisecond
		for _, s := range Published() {
			plan, err := s.Solve(t.Context(), p)
			switch _, lacks := errors.AsType[*costs.NoRoomError](err); {
			case err == nil && plan == nil:
				t.Errorf("seed %d: %s: neither a plan nor an error", seed, s.Name())
			case err == nil:
				planned++
				keeps(t, p, s, plan)
				if slices.ContainsFunc(plan.Recompute, func(x []int) bool { return slices.Max(x) > 0 }) {
					again++
				}
			case lacks:
				full++
			default:
				if _, illegal := errors.AsType[*IllegalError](err); !illegal {
					t.Errorf("seed %d: %s: %v", seed, s.Name(), err)
				}
			}
		}
	}
	if planned < 30 || full < 3 || again < 5 {
		t.Errorf("%d plans, %d with something computed again, %d with no room", planned, again, full)
	}
}

// By laws, on nodes with and without another type of devices.
func TestPlansByLawsCanBeRun(t *testing.T) {
	for seed, cluster := range []string{"1x4 h100_sxm", "2x2 h100_sxm + 1x4 a100_sxm"} {
		r := rand.New(rand.NewPCG(uint64(seed), 11))
		p := byLaws(t, cluster, 4, append(drawnLengths(r, 10), 40000)...)
		p.MIPTime = 50 * time.Millisecond
		for _, stages := range []int{0, 2} {
			p.Stages = stages
			for _, s := range Published() {
				if _, alone := s.(StaticSP); alone && stages > 0 {
					continue
				}
				plan, err := s.Solve(t.Context(), p)
				if err != nil {
					t.Errorf("%s: %s: %v", cluster, s.Name(), err)
					continue
				}
				keeps(t, p, s, plan)
				if again, err := s.Solve(t.Context(), p); err != nil || again.Time != plan.Time {
					t.Errorf("%s: %s takes %v the second time, %v the first", cluster, s.Name(), again.Time, plan.Time)
				}
			}
		}
	}
}

// Where everything computed again has room, InfiniPipe has a plan of the same chunks, which
// takes no longer; also with room for little else.
func TestInfiniPipeUsesTheRoomThereIs(t *testing.T) {
	between := 0
	for seed := range uint64(24) {
		r := rand.New(rand.NewPCG(seed, 12))
		p, _ := tight(t, r)
		p.MIPTime = 50 * time.Millisecond
		stages, err := p.equalStages(2)
		if err != nil {
			t.Fatal(err)
		}
		f := p.fitted(stages[0].Ranks)
		for _, n := range []int{1, 3, 8} {
			all := planOf(stages, []*flight{newFlight(together(p.balanced(f, cutting{n, 1})))}, nil)
			none := all.Clone()
			everything(all)
			if err := p.Run(all); err != nil {
				t.Fatal(err)
			}
			room := p.Room(all)
			got, err := p.infinipipe(t.Context(), stages, f, together(p.balanced(f, cutting{n, 1})), forever)
			if lacks, ok := errors.AsType[*costs.NoRoomError](err); room != nil && ok {
				if lacks.Error() != room.Error() {
					t.Errorf("seed %d, %d slices: %v, want %v", seed, n, lacks, room)
				}
				continue
			}
			if err != nil || got == nil {
				t.Errorf("seed %d, %d slices: %v, and everything computed again: %v", seed, n, err, room)
				continue
			}
			if err := p.Room(got); err != nil {
				t.Errorf("seed %d, %d slices: %v", seed, n, err)
			}
			if room == nil && got.Time > all.Time*(1+1e-9) && len(got.Chunks) == len(all.Chunks) && slices.Equal(got.Orders[0], all.Orders[0]) {
				t.Errorf("seed %d, %d slices: %v, with everything computed again %v", seed, n, got.Time, all.Time)
			}
			if room == nil && p.Room(none) != nil && got.Time < all.Time {
				between++
			}
		}
	}
	if between < 10 {
		t.Errorf("%d plans of which a part is computed again", between)
	}
}

// A layer that is computed again takes room while it is, so that with one there may be less
// than with none, and with two more again.
func TestNothingIsComputedAgainWithoutNeed(t *testing.T) {
	m := published(1, 0)
	m.LogitBytes, m.StateBytes = 0, 0
	_, kept := roomOf(t, m, []units.Tokens{5000})
	for _, x := range []struct {
		room units.Bytes
		want int
	}{{kept, 0}, {kept - 1, 2}, {kept * 3 / 4, 12}, {2 * kept, 0}} {
		m.Capacity = x.room
		p := batchOf(t, m, 5000)
		plan, err := StaticSP{}.Solve(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		if got := plan.Recompute[0][0]; got != x.want {
			t.Errorf("room for %d bytes of %d: %d layers computed again, want %d", int64(x.room), int64(kept), got, x.want)
		}
	}
}

// Baselines are what they say: one stage, two or more, slices or none.
func TestBaselinesAreWhatTheySay(t *testing.T) {
	p := batchOf(t, published(4, 0), 60000, 9000, 500, 8000, 300)
	for _, s := range Published() {
		plan, err := s.Solve(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		sliced := slices.ContainsFunc(plan.Chunks, func(x costs.Chunk) bool { return x.Slice > 0 })
		switch s.(type) {
		case StaticSP:
			if len(plan.Stages) != 1 || sliced {
				t.Errorf("%+v", plan.Stages)
			}
		case OneF1B:
			if len(plan.Stages) < 2 || sliced {
				t.Errorf("%+v", plan.Stages)
			}
		case Seq1F1B:
			if len(plan.Stages) < 2 || !sliced {
				t.Errorf("%+v of %+v", plan.Chunks, plan.Stages)
			}
		}
		for i, x := range plan.Stages {
			if i > 0 && (len(x.Ranks) != len(plan.Stages[0].Ranks) || x.Ranks[0] != plan.Stages[i-1].Ranks[len(x.Ranks)-1]+1) {
				t.Errorf("%s: unequal stages: %+v", s.Name(), plan.Stages)
			}
		}
	}
}

func TestStagesThatAreNotEqual(t *testing.T) {
	p := batchOf(t, published(6, 0), 100)
	p.Layers = 40
	for n, want := range map[int][]int{1: {40}, 2: {20, 20}, 3: {13, 13, 14}, 6: {6, 7, 7, 6, 7, 7}} {
		stages, err := p.equalStages(n)
		if err != nil {
			t.Fatal(err)
		}
		rank := 0
		for s, x := range stages {
			if x.Layers != want[s] || len(x.Ranks) != 6/n {
				t.Errorf("%d stages: %+v, want layers %v", n, stages, want)
			}
			for _, r := range x.Ranks {
				if r != rank {
					t.Errorf("%d stages: %+v", n, stages)
				}
				rank++
			}
		}
	}
	// What does not divide is left out, and the last stage may have fewer layers, which others get.
	for n, layers := range map[int][]int{4: {10, 11, 11, 8}, 5: {8, 9, 8, 9, 6}} {
		stages, err := p.cut(p.all(), n, 2)
		if err != nil {
			t.Fatal(err)
		}
		for s, x := range stages {
			if len(x.Ranks) != 1 || x.Ranks[0] != s || x.Layers != layers[s] {
				t.Errorf("%d stages: %+v, want layers %v", n, stages, layers)
			}
		}
	}
	for _, n := range []int{7, 41} {
		_, err := p.cut(p.all(), n, 0)
		if illegal, ok := errors.AsType[*IllegalError](err); !ok || illegal.Error() != fmt.Sprintf("6 devices and 40 layers do not give %d equal stages", n) {
			t.Errorf("%d stages: %v", n, err)
		}
	}
	if _, err := p.cut(p.all(), 6, 6); err == nil { // the last one had none
		t.Error("a stage without layers")
	}
	p.Stages = 7
	for _, s := range Published()[1:] {
		if _, err := s.Solve(t.Context(), p); err == nil || err.Error() != "6 devices do not give 7 stages, of which at most 64 are tried" {
			t.Errorf("%s: %v", s.Name(), err)
		}
	}
	p.Stages = 1
	for _, s := range Published()[1:3] {
		if _, err := s.Solve(t.Context(), p); err == nil || err.Error() != "the devices and the model's heads do not give two equal stages or more" {
			t.Errorf("%s: %v", s.Name(), err)
		}
	}
	// Three devices cannot share 32 heads; two can.
	plan, err := (StaticSP{}).Solve(t.Context(), byLaws(t, "1x3 h100_sxm", 4, 100))
	if err != nil || !slices.Equal(plan.Stages[0].Ranks, []int{0, 1}) {
		t.Errorf("%+v, %v", plan, err)
	}
}

// What people run is planned on the devices of one type, too, where these are faster alone.
func TestTodaysPlansOfSomeTypes(t *testing.T) {
	lengths := []units.Tokens{30000, 9000, 9000, 700, 700, 700, 300}
	both, alone := byLaws(t, "1x4 h100_sxm + 1x4 a100_sxm", 4, lengths...), byLaws(t, "1x4 h100_sxm", 4, lengths...)
	for _, s := range Published() {
		a, err := s.Solve(t.Context(), both)
		if err != nil {
			t.Fatal(err)
		}
		b, err := s.Solve(t.Context(), alone)
		if err != nil {
			t.Fatal(err)
		}
		if a.Time > b.Time*(1+1e-9) {
			t.Errorf("%s takes %v with more devices, without %v", s.Name(), a.Time, b.Time)
		}
	}
	orders := map[string]bool{} // of seven sets: six of all, two of every pair, one of each
	for _, ranks := range byLaws(t, "1x1 h100_sxm + 1x1 a100_sxm + 1x1 h200_sxm", 4, 10).sets() {
		orders[fmt.Sprint(ranks)] = true
	}
	if len(orders) != 6+3*2+3 {
		t.Errorf("sets of three types: %v", orders)
	}
}

// Where stages are asked for, what sequence parallelism takes without any is said beside the
// plan: it is the strongest of today's here, and no candidate then.
func TestSequenceParallelismIsToldBesideStages(t *testing.T) {
	solve := func(stages int, fixed []costs.Stage) *Document {
		p := byLaws(t, "1x4 h100_sxm", 4, 4096, 4096, 4096, 4096)
		p.Stages, p.Fixed, p.MIPTime, p.Effort = stages, fixed, 50*time.Millisecond, 0.1
		d, err := Solve(t.Context(), p, "", func() units.Seconds { return 0 }, nil)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	told := func(d *Document) string {
		at := slices.IndexFunc(d.Notes, func(n string) bool { return strings.Contains(n, "static-sp") })
		if at < 0 {
			return ""
		}
		return d.Notes[at]
	}
	free, two := solve(0, nil), solve(2, nil)
	alone := free.Compared[0]
	want := fmt.Sprintf("(static-sp), the batch is predicted to take %v by the same laws: %s less than this pipeline", alone.Time, units.Percent(1-float64(alone.Time/two.Time)))
	if got := told(two); alone.Strategy != "static-sp" || !(alone.Time < two.Time) || !strings.Contains(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if got := two.Compared[0]; got.Verdict != recommend.NotLegal {
		t.Errorf("static-sp in two stages: %+v", got)
	}
	for name, d := range map[string]*Document{"any number": free, "one": solve(1, nil), "fixed": solve(0, two.Stages)} {
		if got := told(d); got != "" {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// Without time there is no plan, and the reason is that.
func TestStrategiesStop(t *testing.T) {
	p := batchOf(t, published(4, 0), 60000, 9000)
	ctx, stop := context.WithCancel(t.Context())
	stop()
	for _, s := range Published() {
		if plan, err := s.Solve(ctx, p); plan != nil || !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %+v, %v", s.Name(), plan, err)
		}
	}
}

// Of all reasons why nothing fits that with most room is told, if a shape is another's.
func TestNothingFitsByTheNearestPlan(t *testing.T) {
	near := &costs.NoRoomError{Stage: 1, Memory: costs.Memory{States: 11, Capacity: 10}}
	far := &costs.NoRoomError{Stage: 2, Memory: costs.Memory{States: 30, Capacity: 10}}
	shape := &IllegalError{Why: "not divisible"}
	p := batchOf(t, published(4, 0), 100)
	for _, order := range [][]error{{near, far, shape}, {shape, far, near}, {far, shape, near}, {nil, far, near}, {near}} {
		var attempts []recommend.Attempt
		for _, err := range order {
			attempts = append(attempts, recommend.Attempt{Strategy: "s", Err: err})
		}
		err := none(p, attempts)
		got, ok := errors.AsType[*costs.NoRoomError](err)
		if _, is := errors.AsType[*InfeasibleError](err); !is || !ok || got != near || err.Error() != "no plan fits: "+near.Error() {
			t.Errorf("%v: %v", order, err)
		}
	}
	if err := none(p, []recommend.Attempt{{Strategy: "a", Err: shape}, {Strategy: "b", Err: context.Canceled}}); err == nil || err.Error() != "strategy a: not divisible" {
		t.Error(err)
	}
	if err := none(p, []recommend.Attempt{{Strategy: "a", Err: errors.New("of one stage")}, {Strategy: "infinipipe", Err: shape}}); err == nil || err.Error() != "strategy infinipipe: not divisible" {
		t.Error(err)
	}
}

func TestStrategiesByName(t *testing.T) {
	var names []string
	for _, s := range Strategies() {
		if slices.Contains(names, s.Name()) || Named(s.Name()) != nil || s.Claims().Doc == "" {
			t.Errorf("%s: %+v, %v", s.Name(), s.Claims(), Named(s.Name()))
		}
		names = append(names, s.Name())
	}
	if !slices.Equal(names[:4], []string{"static-sp", "1f1b", "seq1f1b", "infinipipe"}) || Named("") != nil {
		t.Errorf("%v", names)
	}
	if err := Named("infinipip"); err == nil || !strings.Contains(err.Error(), "infinipipe") {
		t.Error(err)
	}
}
