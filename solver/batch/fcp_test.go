package batch

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/workload"
	"github.com/evenkeel/evenkeel/internal/units"
)

// fcpMock is the estimator that code following the paper ships: seconds of a
// sequence of l tokens on c ranks.
type fcpMock struct{ degrees []int }

func (m fcpMock) Time(class int, l units.Tokens) units.Seconds {
	c, s := float64(m.degrees[class]), float64(l)
	return units.Seconds(s*s/(c*1e7) + s/(c*1e5) + s/(c*2e5) + 1e-3)
}

// fcpProblem is n ranks of one node that hold so many tokens each, in groups of the
// degrees.
func fcpProblem(n int, budget units.Tokens, degrees []int, lengths []units.Tokens) *Problem {
	p := &Problem{Lengths: lengths, Fleet: []Pool{{Device: "ascend_910b", Ranks: alikeRanks(n, n)}}, Costs: fcpMock{degrees}}
	for _, d := range degrees {
		p.Classes = append(p.Classes, Class{Name: fmt.Sprint(d), Uses: []int{d}, Cap: budget * units.Tokens(d)})
	}
	return p
}

func ringDegrees(most int) []int {
	var all []int
	for d := range most {
		all = append(all, d+1)
	}
	return all
}

// fcpInNodes is eight nodes of eight ranks, with groups inside a node or of whole ones:
// not all degrees that add up to the ranks find place.
func fcpInNodes(lengths []units.Tokens) *Problem {
	p := fcpProblem(64, 9216, append(ringDegrees(8), 16, 24, 32), lengths)
	p.Fleet[0].Ranks = alikeRanks(64, 8)
	for i := range p.Classes {
		p.Classes[i].One = p.Classes[i].Degree() <= 8
	}
	return p
}

// fcpBursts is a global batch of four micro-batches of the burst generator.
func fcpBursts(t testing.TB, seed int) []units.Tokens {
	t.Helper()
	d, err := workload.ParseDistribution(fmt.Sprintf("burst:b=128,seed=%d", seed))
	if err != nil {
		t.Fatal(err)
	}
	return d.Lengths(512)
}

func TestFCPPlansAreRight(t *testing.T) {
	seeds := 10
	if testing.Short() {
		seeds = 2 // each takes a second under the race detector
	}
	for seed := range seeds {
		lengths := fcpBursts(t, seed)
		for name, p := range map[string]*Problem{
			"ring":            fcpProblem(64, 9216, ringDegrees(32), lengths),
			"powers of two":   fcpProblem(64, 9216, []int{1, 2, 4, 8, 16}, lengths),
			"FlexSP's prices": flexspProblem(64, 30, lengths),
			"nodes of eight":  fcpInNodes(lengths),
			"two pools":       inTwoPools(fcpProblem(64, 9216, ringDegrees(64), lengths)),
		} {
			plan, err := FCP{}.Solve(context.Background(), p)
			if err != nil {
				t.Fatalf("%s, seed %d: %v", name, seed, err)
			}
			for _, e := range Check(p, plan) {
				t.Errorf("%s, seed %d: %v", name, seed, e)
			}
			slow, err := FCP{Programme: true}.Solve(context.Background(), p)
			if err != nil || math.Abs(float64(slow.Time-plan.Time)) > 1e-9 {
				t.Errorf("%s, seed %d: the programme gives %v, %v; the fast way %v", name, seed, slow.Time, err, plan.Time)
			}
		}
	}
}

// tableCosts prices groups of one sequence by a table, of any shape.
type tableCosts map[[2]int]units.Seconds

func (c tableCosts) Time(class int, s units.Tokens) units.Seconds { return c[[2]int{class, int(s)}] }

// fcpRandom is groups of one sequence each with times of any shape, rising and
// falling with the degree, and the ranks to hand out.
func fcpRandom(r *rand.Rand) (*fcpTable, []*atomic) {
	n := 1 + r.IntN(24)
	costs := tableCosts{}
	p := &Problem{Fleet: []Pool{{Device: "x", Ranks: alikeRanks(n, n)}}, Costs: costs}
	a := &alike{p: p, devices: n}
	for d := 1; d <= n; d++ {
		if d > 1 && r.IntN(3) == 0 {
			continue // degrees have gaps
		}
		a.levels = append(a.levels, level{degree: d, classes: []int{d}, base: units.Seconds(r.IntN(3))})
	}
	left := n
	var groups []*atomic
	for k := 0; left > 0 && k < 8; k++ {
		g := &atomic{sequences: []int{k}, least: r.IntN(len(a.levels))}
		if d := a.levels[g.least].degree; d <= left {
			left -= d
			groups = append(groups, g)
			p.Lengths = append(p.Lengths, units.Tokens(k))
			for d := 1; d <= n; d++ {
				costs[[2]int{d, k}] = units.Seconds(1 + r.IntN(30))
			}
		} else {
			p.Lengths = append(p.Lengths, units.Tokens(k))
		}
	}
	return newFCPTable(a), groups
}

func (t *fcpTable) makespan(groups []*atomic) (longest units.Seconds, ranks int) {
	for _, g := range groups {
		longest = max(longest, t.time(g, g.at))
		ranks += t.a.levels[g.at].degree
	}
	return longest, ranks
}

// Of any times, also such as rise with more ranks, the fast way and the programme
// have one makespan, and handing out the ranks left over does not raise it.
func TestAllotGivesTheProgrammesMakespan(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 5000 {
		table, groups := fcpRandom(r)
		if len(groups) == 0 {
			continue
		}
		table.programme(groups)
		want, ranks := table.makespan(groups)
		if ranks > table.a.devices {
			t.Fatalf("the programme hands out %d of %d ranks", ranks, table.a.devices)
		}
		table.allot(groups)
		got, _ := table.makespan(groups)
		table.conserve(groups)
		after, ranks := table.makespan(groups)
		if got != want || after > want || ranks > table.a.devices {
			t.Fatalf("makespan %v, then %v on %d of %d ranks: the programme has %v", got, after, ranks, table.a.devices, want)
		}
	}
}

// The programme is no worse than any choice of degrees.
func TestProgrammeExhaustive(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 300 {
		table, groups := fcpRandom(r)
		if len(groups) == 0 || len(groups) > 4 {
			continue
		}
		best := never
		var try func(i, left int, longest units.Seconds)
		try = func(i, left int, longest units.Seconds) {
			if i == len(groups) {
				best = min(best, longest)
				return
			}
			for l := groups[i].least; l < len(table.a.levels); l++ {
				if d := table.a.levels[l].degree; d <= left {
					try(i+1, left-d, max(longest, table.time(groups[i], l)))
				}
			}
		}
		try(0, table.a.devices, 0)
		table.programme(groups)
		if got, _ := table.makespan(groups); got != best {
			t.Fatalf("the programme has %v, the best choice %v", got, best)
		}
	}
}

// A sequence of just what the largest group holds is planned, one token more is
// named; least degrees beyond the ranks take more micro-batches.
func TestFCPMendedDefects(t *testing.T) {
	p := fcpProblem(64, 8192, ringDegrees(16), []units.Tokens{131072, 100})
	plan, err := FCP{}.Solve(context.Background(), p)
	if err != nil || len(Check(p, plan)) > 0 {
		t.Fatalf("a sequence that just fits: %v, %v", err, plan)
	}
	p.Lengths[0]++
	var long *TooLongError
	if _, err := (FCP{}).Solve(context.Background(), p); !errors.As(err, &long) {
		t.Errorf("a sequence one token too long: %v", err)
	}
	p = fcpProblem(8, 100, ringDegrees(8), []units.Tokens{750, 750, 750})
	plan, err = FCP{}.Solve(context.Background(), p)
	if err != nil || len(plan.Micro) != 3 {
		t.Errorf("three sequences of all ranks each: %v, %v", err, plan)
	}
	slower := tableCosts{}
	for d := range 9 {
		slower[[2]int{d, 10}] = units.Seconds(1 + d)
	}
	p = fcpProblem(8, 100, ringDegrees(8), []units.Tokens{10})
	p.Costs = slower
	if plan, err = (FCP{}).Solve(context.Background(), p); err != nil || plan.Time != 1 {
		t.Errorf("a sequence that more ranks slow: %v, %v: want one rank", err, plan)
	}
}

// Three sequences that 3, 3 and 2 ranks train in 1 s each find no place in two nodes of four: with
// powers of two all go in one micro-batch of 1.5 s, whose base is paid once.
func TestFCPInNodesHasPowersOfTwoToo(t *testing.T) {
	p := fcpProblem(8, 150, append(ringDegrees(4), 8), []units.Tokens{300, 300, 200})
	p.Fleet[0].Ranks, p.MicroBase = alikeRanks(8, 4), 1
	costs := tableCosts{}
	for i, c := range p.Classes {
		p.Classes[i].One = c.Degree() <= 4
		for _, s := range p.Lengths {
			costs[[2]int{i, int(s)}] = units.Seconds(s) / 100 / units.Seconds(c.Degree())
		}
	}
	p.Costs = costs
	plan, err := FCP{}.Solve(context.Background(), p)
	if err != nil || len(plan.Micro) != 1 || math.Abs(float64(plan.Time)-2.5) > 1e-9 || len(Check(p, plan)) > 0 {
		t.Errorf("%+v, %v", plan, err)
	}
}

// 64 ranks and 512 sequences: the paper's solver takes 86 ms, its scheduling 921.
func BenchmarkFCP(b *testing.B) {
	lengths := fcpBursts(b, 0)
	for name, f := range map[string]FCP{"fast": {}, "programme": {Programme: true}} {
		b.Run(name, func(b *testing.B) {
			p := fcpProblem(64, 9216, ringDegrees(32), lengths)
			for b.Loop() {
				if _, err := f.Solve(context.Background(), p); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
