package solver

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// withHeads is the test problem with so many query and key-value heads.
func withHeads(t testing.TB, cluster string, seq units.Tokens, q, kv int) *Problem {
	t.Helper()
	job := testJob(t, cluster, seq)
	job.Model.QHeads, job.Model.KVHeads = q, kv
	return problemOf(t, testProfile([]device{fast(), slow()}, []wire{nearLink(), farLink()}), job)
}

// without is a profile that lacks the laws of a collective.
func withoutLaws(p *costmodel.Profile, kind op.Kind) *costmodel.Profile {
	p.Laws = slices.DeleteFunc(p.Laws, func(l costmodel.Law) bool { return l.Op == kind })
	return p
}

func timeOf(t testing.TB, p *Problem, l costmodel.Layout) units.Seconds {
	t.Helper()
	if err := l.Validate(p.Job.SeqLen, len(p.ranks), p.Job.Model.QHeads); err != nil {
		t.Fatalf("%s: %v: %+v", p.Job.Cluster, err, l)
	}
	s, err := p.sim.Time(l)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// fittingTime is the time of a strategy's layout, false where it has none that fits.
func fittingTime(t testing.TB, p *Problem, s Strategy) (units.Seconds, bool) {
	t.Helper()
	res, err := s.Solve(context.Background(), p, nil)
	var bad *MemoryError
	var none *IllegalError
	if errors.As(err, &bad) || errors.As(err, &none) {
		return 0, false
	}
	if err != nil {
		t.Fatalf("%s on %s: %v", s.Name(), p.Job.Cluster, err)
	}
	return timeOf(t, p, res.Layout), true
}

func TestUlyssesNeedsHeadsThatDivide(t *testing.T) {
	for _, c := range []struct {
		cluster string
		q, kv   int
		want    string // of the error; empty where it is legal
	}{
		{"1x4 fast", 8, 2, ""},
		{"2x4 fast", 8, 1, ""}, // one key-value head is held by all
		{"1x1 fast", 7, 7, ""},
		{"1x7 fast", 7, 7, ""},
		{"1x7 fast", 8, 2, "8 heads do not divide over 7 ranks"},
		{"1x4 fast", 7, 1, "7 heads do not divide over 4 ranks"},
		{"2x8 fast", 8, 8, "8 heads do not divide over 16 ranks"},
		{"2x8 fast", 40, 8, "40 heads do not divide over 16 ranks"},
	} {
		p := withHeads(t, c.cluster, 4096, c.q, c.kv)
		res, err := ulysses{}.Solve(context.Background(), p, nil)
		if c.want != "" {
			var none *IllegalError
			if !errors.As(err, &none) || none.Strategy != "ulysses" || none.Reason != c.want {
				t.Errorf("%s, %d heads: %v, want %q", c.cluster, c.q, err, c.want)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		timeOf(t, p, res.Layout)
		if len(res.Layout.Groups) != 1 || len(res.Layout.Groups[0]) != len(p.ranks) {
			t.Errorf("%s: groups %v, want one of all ranks", c.cluster, res.Layout.Groups)
		}
		for _, m := range res.Layout.Groups[0] {
			if m.QHeads != c.q/len(p.ranks) || res.Layout.Shards[m.Rank].Tokens() != 4096/units.Tokens(len(p.ranks)) && len(p.ranks) != 7 {
				t.Errorf("%s: rank %d has %d heads and %v tokens", c.cluster, m.Rank, m.QHeads, res.Layout.Shards[m.Rank].Tokens())
			}
		}
	}
}

// Without a law of the all-to-all only rings are left, and the error says what
// to measure.
func TestWithoutAllToAllOnlyRingsAreLeft(t *testing.T) {
	profile := withoutLaws(testProfile([]device{fast(), slow()}, []wire{nearLink(), farLink()}), op.KindAllToAll)
	p := problemOf(t, profile, testJob(t, "2x(1 fast + 1 slow)", 8192))
	_, err := ulysses{}.Solve(context.Background(), p, nil)
	var none *IllegalError
	if !errors.As(err, &none) || !strings.Contains(none.Reason, "evenkeel calibrate --fresh --only all_to_all") {
		t.Errorf("ulysses: %v", err)
	}
	for _, s := range []Strategy{usp{}, uspSubset{}, hexiSeq{}} {
		res := solveWith(t, p, s)
		for _, g := range res.Layout.Groups {
			if len(g) > 1 {
				t.Errorf("%s: group %v needs an all-to-all that has no law", s.Name(), g)
			}
		}
	}
}

func TestMeshesAreEveryLegalPairAndPlacement(t *testing.T) {
	for _, c := range []struct {
		cluster string
		heads   int
	}{{"1x1 fast", 8}, {"1x7 fast", 8}, {"1x7 fast", 7}, {"2x4 fast", 8}, {"3x4 fast", 8}, {"2x8 fast", 40}, {"2x8 fast", 64}} {
		p := withHeads(t, c.cluster, 4096, c.heads, 1)
		n := len(p.ranks)
		want := map[string]bool{}
		for hp := 1; hp <= n; hp++ {
			if n%hp == 0 && c.heads%hp == 0 {
				want[fmt.Sprint(n/hp, hp, false)] = true
				want[fmt.Sprint(n/hp, hp, hp > 1 && hp < n)] = true
			}
		}
		for _, x := range meshes(p, countTo(n)) {
			key := fmt.Sprint(x.cp, x.hp, x.strided)
			if !want[key] {
				t.Errorf("%s, %d heads: mesh %s is not legal or comes twice", c.cluster, c.heads, key)
			}
			delete(want, key)
			checkMesh(t, x, n)
		}
		if len(want) > 0 {
			t.Errorf("%s, %d heads: %v not tried", c.cluster, c.heads, want)
		}
	}
}

func checkMesh(t *testing.T, x mesh, n int) {
	t.Helper()
	if all := slices.Sorted(slices.Values(slices.Concat(x.groups...))); !slices.Equal(all, countTo(n)) || len(x.groups) != x.cp {
		t.Fatalf("%+v is no partition of %d ranks into %d", x, n, x.cp)
	}
	for _, g := range x.groups {
		for i := 1; i < len(g); i++ {
			step := 1
			if x.strided {
				step = x.cp
			}
			if g[i]-g[i-1] != step {
				t.Errorf("%d x %d, strided %v: group %v", x.cp, x.hp, x.strided, g)
			}
		}
	}
}

func TestUSPIsTheBestMesh(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 5))
	for range 20 {
		p := randomWorld(t, r)
		best := units.Seconds(0)
		for _, x := range meshes(p, countTo(len(p.ranks))) {
			if s := timeOf(t, p, equalShares(p, x.groups)); best == 0 || s < best {
				best = s
			}
		}
		res := solveWith(t, p, usp{})
		if got := timeOf(t, p, res.Layout); got != best {
			t.Errorf("%s: usp takes %v, the best mesh %v", p.Job.Cluster, got, best)
		}
		for _, s := range []Strategy{ring{}, ulysses{}} {
			if base, ok := fittingTime(t, p, s); ok && best > base {
				t.Errorf("%s: usp %v, %s %v", p.Job.Cluster, best, s.Name(), base)
			}
		}
	}
}

func TestPartsOfACluster(t *testing.T) {
	for _, c := range []struct {
		cluster string
		want    []string
	}{
		{"1x4 fast", nil},
		{"2x4 fast", nil},
		{"1x2 fast + 1x2 slow", []string{"[0 1]", "[2 3]"}},
		{"1x(2 fast + 2 slow)", []string{"[0 1]", "[2 3]"}},
		{"1x4 fast + 1x2 fast", []string{"[0 1 4 5]"}},
		{"1x3 fast + 1x1 slow", []string{"[0 1 2]", "[3]", "[0 3]"}},
		{"1x1 fast + 1x1 slow + 1x1 third", []string{"[0]", "[1]", "[0 1]", "[2]", "[0 2]", "[1 2]"}},
	} {
		third := slow()
		third.name = "third"
		p := testProblem(t, c.cluster, 4096, fast(), slow(), third)
		var got []string
		parts, err := parts(p)
		if err != nil {
			t.Errorf("%s: %v", c.cluster, err)
		}
		for _, x := range parts {
			got = append(got, fmt.Sprint(x.ranks))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: parts %v, want %v", c.cluster, got, c.want)
		}
		_, err = uspSubset{}.Solve(context.Background(), p, nil)
		var none *IllegalError
		if errors.As(err, &none) != (c.want == nil) {
			t.Errorf("%s: %v", c.cluster, err)
		}
	}
}

// A part inside one node exchanges gradients over the node's link; without laws
// for that it is not a choice.
func TestPartsNeedLawsOfTheirOwn(t *testing.T) {
	profile := testProfile([]device{fast(), slow()}, []wire{nearLink(), farLink()})
	profile.Laws = slices.DeleteFunc(profile.Laws, func(l costmodel.Law) bool {
		return l.Op == op.KindAllGather && strings.Contains(l.Group, "near")
	})
	p := problemOf(t, profile, testJob(t, "1x2 fast + 2x1 slow", 8192))
	parts, err := parts(p)
	var missing *costmodel.MissingLawError
	if !errors.As(err, &missing) || missing.Op != op.KindAllGather {
		t.Errorf("no word of the all-gather that has no law: %v", err)
	}
	for _, x := range parts {
		if slices.Equal(x.ranks, []int{0, 1}) {
			t.Errorf("part %s needs an all-gather that has no law", x.name)
		}
	}
	solveWith(t, p, uspSubset{})
}

// Clusters and jobs on which each strategy is the fastest of those before it.
func TestWhereEachStrategyWins(t *testing.T) {
	cheap, dear := wire{"near", 1e-7, 1e-12}, wire{"near", 1e-6, 1e-9}
	quiet := wire{"far", 1e-6, 1e-11}
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
		wires           []wire
		toAll           float64
	}{
		{"ring", "1x4 fast", 1, 65536, []wire{cheap, quiet}, 1e4},
		{"ulysses", "1x8 fast", 8, 2048, []wire{dear, quiet}, 0.01},
		{"usp", "2x4 fast", 8, 32768, []wire{cheap, {"far", 1e-5, 2e-10}}, 1},
		{"usp-subset", "1x4 fast + 1x4 slow", 8, 4096, []wire{cheap, {"far", 1e-4, 1e-8}}, 1},
		{"hexiseq", "1x4 fast + 1x4 slow", 8, 131072, []wire{cheap, quiet}, 1},
	} {
		job := testJob(t, c.cluster, c.seq)
		job.Model.KVHeads = c.kv
		p := problemOf(t, slowToAll(testProfile([]device{fast(), slow()}, c.wires), c.toAll), job)
		others := units.Seconds(0)
		for _, s := range Strategies() {
			got, ok := fittingTime(t, p, s)
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
			w, _ := Lookup(c.winner)
			want, _ := fittingTime(t, p, w)
			if got, ok := fittingTime(t, p, usp{}); !ok || got > want {
				t.Errorf("usp on %s: %v, %s %v", c.cluster, got, c.winner, want)
			}
		}
		if c.winner == "ring" {
			if got, ok := fittingTime(t, p, ulysses{}); ok && got < others {
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
	p := testProblem(t, "2x(2 fast + 2 slow)", 16384)
	for _, s := range []Strategy{ulysses{}, usp{}, uspSubset{}, hexiSeq{}} {
		res, err := s.Solve(ctx, p, nil)
		if err != nil {
			t.Errorf("%s: %v", s.Name(), err)
			continue
		}
		timeOf(t, p, res.Layout)
		if s.Name() != "ulysses" && !res.Stopped {
			t.Errorf("%s: %d layouts and not stopped", s.Name(), res.Evaluated)
		}
		p.seeds = append(p.seeds, res)
	}
}

// Where nothing fits the nearest layout comes with the error.
func TestMeshesThatDoNotFit(t *testing.T) {
	f, s := fast(), slow()
	f.memory, s.memory = 40*units.MiB, 40*units.MiB
	p := testProblem(t, "1x4 fast + 1x4 slow", 16384, f, s)
	for _, s := range []Strategy{ulysses{}, usp{}, uspSubset{}, hexiSeq{}} {
		res, err := s.Solve(context.Background(), p, nil)
		var bad *MemoryError
		if !errors.As(err, &bad) || bad.Memory.Fits() {
			t.Errorf("%s: %v", s.Name(), err)
			continue
		}
		timeOf(t, p, res.Layout)
	}
}
