package solver

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/internal/baseline"
	"github.com/evenkeel/evenkeel/solver/internal/evenkeel"
	"github.com/evenkeel/evenkeel/solver/internal/hexiseq"
	"github.com/evenkeel/evenkeel/solver/internal/strategy"
	"github.com/evenkeel/evenkeel/solver/internal/world"
)

// always are the strategies that every problem is solved with.
func always() []Strategy {
	var all []Strategy
	for _, s := range strategies() {
		if s.Name() != evenkeel.SureName {
			all = append(all, described(s))
		}
	}
	return all
}

func TestStrategiesAreSolvedInTableOrder(t *testing.T) {
	var names []string
	for _, s := range always() {
		names = append(names, s.Name)
		if s.Doc == "" || s.Baseline && s.Published {
			t.Errorf("%+v", s)
		}
	}
	if want := []string{"ring", "ulysses", "usp", "usp-subset", "hexiseq", "evenkeel"}; !slices.Equal(names, want) {
		t.Errorf("%v, want %v", names, want)
	}
	for _, asked := range [][]string{nil, {"evenkeel"}, {"evenkeel-sure"}, {"hexiseq", "evenkeel-sure"}} { // one does not go without the other
		todo, err := chooseStrategies(asked)
		if err != nil || len(todo) != len(names)+1 || todo[len(names)-1].Name() != "evenkeel" || todo[len(names)].Name() != "evenkeel-sure" {
			t.Errorf("asked for %v: %v, %v", asked, todo, err)
		}
	}
	if todo, err := chooseStrategies([]string{"ring"}); err != nil || len(todo) != 5 {
		t.Errorf("beside ring %d strategies are solved: %v", len(todo), err)
	}
}

// Without a law of the all-to-all only rings are left, and the error says what
// to measure.
func TestWithoutAllToAllOnlyRingsAreLeft(t *testing.T) {
	profile := world.Without(world.Profile([]world.Device{world.Fast(), world.Slow()}, []world.Wire{world.Near(), world.Far()}), op.KindAllToAll)
	p := world.ProblemOf(t, profile, world.Job(t, "2x(1 fast + 1 slow)", 8192))
	_, err := baseline.Ulysses{}.Solve(context.Background(), p, nil)
	var none *strategy.IllegalError
	if !errors.As(err, &none) || !strings.Contains(none.Reason, "evenkeel calibrate --fresh --only all_to_all") {
		t.Errorf("ulysses: %v", err)
	}
	for _, s := range []strategy.Strategy{baseline.USP{}, baseline.USPSubset{}, hexiseq.HexiSeq{}} {
		res := world.Solve(t, p, s, baseline.Strategies())
		for _, g := range res.Layout.Groups {
			if len(g) > 1 {
				t.Errorf("%s: group %v needs an all-to-all that has no law", s.Name(), g)
			}
		}
	}
}

// Clusters and jobs on which each strategy is the fastest of those before it.
func TestWhereEachStrategyWins(t *testing.T) {
	cheap, dear := world.Link("near", 1e-7, 1e-12), world.Link("near", 1e-6, 1e-9)
	quiet := world.Link("far", 1e-6, 1e-11)
	slowToAll := func(p *costmodel.Profile, by float64) *costmodel.Profile {
		for i, l := range p.Laws {
			if l.Op == op.KindAllToAll {
				spread := l.Spread
				p.Laws[i] = l.Slowed(by)
				p.Laws[i].Spread = spread
			}
		}
		return p
	}
	for _, c := range []struct {
		winner, cluster string
		kv              int
		seq             units.Tokens
		wires           []world.Wire
		toAll           float64
	}{
		{"ring", "1x4 fast", 1, 65536, []world.Wire{cheap, quiet}, 1e4},
		{"ulysses", "1x8 fast", 8, 2048, []world.Wire{dear, quiet}, 0.01},
		{"usp", "2x4 fast", 8, 32768, []world.Wire{cheap, world.Link("far", 1e-5, 2e-10)}, 1},
		{"usp-subset", "1x4 fast + 1x4 slow", 8, 4096, []world.Wire{cheap, world.Link("far", 1e-4, 1e-8)}, 1},
		{"hexiseq", "1x4 fast + 1x4 slow", 8, 131072, []world.Wire{cheap, quiet}, 1},
	} {
		job := world.Job(t, c.cluster, c.seq)
		job.Model.KVHeads = c.kv
		p := world.ProblemOf(t, slowToAll(world.Profile([]world.Device{world.Fast(), world.Slow()}, c.wires), c.toAll), job)
		others := units.Seconds(0)
		for _, s := range strategies() {
			got, ok := world.FittingTime(t, p, s)
			if s.Name() == c.winner {
				if !ok || others > 0 && got >= others*(1-1e-4) {
					t.Errorf("%s on %s: %v, the best before it %v", c.winner, c.cluster, got, others)
				}
				break
			}
			if ok && (others == 0 || got < others) {
				others = got
			}
		}
		// What comes later contains the winner where it is a baseline of all ranks.
		if c.winner == "ring" || c.winner == "ulysses" {
			winner := slices.IndexFunc(baseline.Strategies(), func(s strategy.Strategy) bool { return s.Name() == c.winner })
			want, _ := world.FittingTime(t, p, baseline.Strategies()[winner])
			if got, ok := world.FittingTime(t, p, baseline.USP{}); !ok || got > want {
				t.Errorf("usp on %s: %v, %s %v", c.cluster, got, c.winner, want)
			}
		}
		if c.winner == "ring" {
			if got, ok := world.FittingTime(t, p, baseline.Ulysses{}); ok && got < others {
				t.Errorf("ulysses on %s: %v", c.cluster, got)
			}
		}
	}
}

// A strategy that time is up for still answers, the ones of today on their own and hexiseq by
// their plans, and says that it was stopped.
func TestStoppedStrategiesAnswer(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	p := world.Problem(t, "2x(2 fast + 2 slow)", 16384)
	for _, s := range []strategy.Strategy{baseline.Ulysses{}, baseline.USP{}, baseline.USPSubset{}, hexiseq.HexiSeq{}} {
		res, err := s.Solve(ctx, p, nil)
		if err != nil {
			t.Errorf("%s: %v", s.Name(), err)
			continue
		}
		world.Time(t, p, res.Layout)
		if s.Name() != "ulysses" && !res.Stopped {
			t.Errorf("%s: %d layouts and not stopped", s.Name(), res.Evaluated)
		}
		p.Seeds = append(p.Seeds, res)
	}
}

// Where nothing fits the nearest layout comes with the error.
func TestMeshesThatDoNotFit(t *testing.T) {
	f, s := world.Fast(), world.Slow()
	f.Memory, s.Memory = 40*units.MiB, 40*units.MiB
	p := world.Problem(t, "1x4 fast + 1x4 slow", 16384, f, s)
	for _, s := range []strategy.Strategy{baseline.Ulysses{}, baseline.USP{}, baseline.USPSubset{}, hexiseq.HexiSeq{}} {
		res, err := s.Solve(context.Background(), p, nil)
		var bad *strategy.MemoryError
		if !errors.As(err, &bad) || bad.Memory.Fits() {
			t.Errorf("%s: %v", s.Name(), err)
			continue
		}
		world.Time(t, p, res.Layout)
	}
}
