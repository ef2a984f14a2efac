package baseline

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/internal/strategy"
	"github.com/evenkeel/evenkeel/solver/internal/world"
)

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
		p := world.WithHeads(t, c.cluster, 4096, c.q, c.kv)
		res, err := Ulysses{}.Solve(context.Background(), p, nil)
		if c.want != "" {
			var none *strategy.IllegalError
			if !errors.As(err, &none) || none.Strategy != "ulysses" || none.Reason != c.want {
				t.Errorf("%s, %d heads: %v, want %q", c.cluster, c.q, err, c.want)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		world.Time(t, p, res.Layout)
		if each := c.q / len(p.Ranks); strings.HasSuffix(res.Why, " 1 head each") != (each == 1) || strings.HasSuffix(res.Why, fmt.Sprintf(" %d heads each", each)) != (each > 1) {
			t.Errorf("%s, %d heads: %q", c.cluster, c.q, res.Why)
		}
		if len(res.Layout.Groups) != 1 || len(res.Layout.Groups[0]) != len(p.Ranks) {
			t.Errorf("%s: groups %v, want one of all ranks", c.cluster, res.Layout.Groups)
		}
		for _, m := range res.Layout.Groups[0] {
			if m.QHeads != c.q/len(p.Ranks) || res.Layout.Shards[m.Rank].Tokens() != 4096/units.Tokens(len(p.Ranks)) && len(p.Ranks) != 7 {
				t.Errorf("%s: rank %d has %d heads and %v tokens", c.cluster, m.Rank, m.QHeads, res.Layout.Shards[m.Rank].Tokens())
			}
		}
	}
}

func TestMeshesAreEveryLegalPairAndPlacement(t *testing.T) {
	for _, c := range []struct {
		cluster string
		heads   int
	}{{"1x1 fast", 8}, {"1x7 fast", 8}, {"1x7 fast", 7}, {"2x4 fast", 8}, {"3x4 fast", 8}, {"2x8 fast", 40}, {"2x8 fast", 64}} {
		p := world.WithHeads(t, c.cluster, 4096, c.heads, 1)
		n := len(p.Ranks)
		want := map[string]bool{}
		for hp := 1; hp <= n; hp++ {
			if n%hp == 0 && c.heads%hp == 0 {
				want[fmt.Sprint(n/hp, hp, false)] = true
				want[fmt.Sprint(n/hp, hp, hp > 1 && hp < n)] = true
			}
		}
		for _, x := range Meshes(p, p.AllRanks()) {
			key := fmt.Sprint(x.cp, x.hp, x.strided)
			if !want[key] {
				t.Errorf("%s, %d heads: mesh %s is not legal or comes twice", c.cluster, c.heads, key)
			}
			delete(want, key)
			checkMesh(t, p.AllRanks(), x)
		}
		if len(want) > 0 {
			t.Errorf("%s, %d heads: %v not tried", c.cluster, c.heads, want)
		}
	}
}

func checkMesh(t *testing.T, ranks []int, x Mesh) {
	t.Helper()
	n := len(ranks)
	if all := slices.Sorted(slices.Values(slices.Concat(x.Groups...))); !slices.Equal(all, ranks) || len(x.Groups) != x.cp {
		t.Fatalf("%+v is no partition of %d ranks into %d", x, n, x.cp)
	}
	for _, g := range x.Groups {
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
	r, turned := rand.New(rand.NewPCG(11, 5)), 0
	for range 20 {
		p := world.Random(t, r)
		best := units.Seconds(0)
		for _, x := range Meshes(p, p.AllRanks()) {
			l := EqualShares(p, x.Groups)
			s := world.Time(t, p, l)
			if l.OwnLast = x.cp > 1; l.OwnLast { // the other order, where it gains half a percent
				if last := world.Time(t, p, l); last < s*0.995 {
					s, turned = last, turned+1
				}
			}
			if best == 0 || s < best {
				best = s
			}
		}
		res := world.Solve(t, p, USP{}, nil)
		if got := world.Time(t, p, res.Layout); got != best {
			t.Errorf("%s: usp takes %v, the best mesh %v", p.Job.Cluster, got, best)
		}
		for _, s := range []strategy.Strategy{Ring{}, Ulysses{}} {
			if base, ok := world.FittingTime(t, p, s); ok && best > base {
				t.Errorf("%s: usp %v, %s %v", p.Job.Cluster, best, s.Name(), base)
			}
		}
	}
	if turned < 5 {
		t.Errorf("%d meshes gain by own blocks last", turned)
	}
}

// Rings of equal devices are run in the faster of both orders, in the known one where that is as
// good as equal; shares are the same in either.
func TestRingsAreRunInTheFasterOrder(t *testing.T) {
	first, last := 0, 0
	for _, cluster := range []string{"1x8 h100_sxm", "2x8 h100_sxm", "3x8 a100_sxm"} {
		for _, seq := range []units.Tokens{16 << 10, 64 << 10} {
			p := world.GPUs(t, cluster, seq)
			for _, s := range []strategy.Strategy{Ring{}, USP{}} {
				found := world.Solve(t, p, s, nil)
				got := found.Layout
				if len(got.Groups) < 2 {
					continue
				}
				if is := world.Time(t, p, got); math.Abs(float64(found.Step.Time.Mid/is)-1) > 1e-12 {
					t.Errorf("%s, %d tokens, %s: %v of a layout that takes %v", cluster, int64(seq), s.Name(), found.Step.Time.Mid, is)
				}
				known, turned := got, got
				known.OwnLast, turned.OwnLast = false, true
				gain := 1 - float64(world.Time(t, p, turned)/world.Time(t, p, known))
				if got.OwnLast != (gain > 0.005) {
					t.Errorf("%s, %d tokens, %s: own blocks last: %v, which gains %v", cluster, int64(seq), s.Name(), got.OwnLast, gain)
				}
				if !reflect.DeepEqual(got.Shards, EqualShares(p, groupsOf(got)).Shards) {
					t.Errorf("%s, %d tokens, %s: shares of %v", cluster, int64(seq), s.Name(), got.Tokens())
				}
				if got.OwnLast {
					last++
				} else {
					first++
				}
			}
		}
	}
	if first == 0 || last == 0 {
		t.Errorf("%d rings in the known order, %d in the other", first, last)
	}
}

func groupsOf(l costmodel.Layout) (all [][]int) {
	for _, g := range l.Groups {
		var ranks []int
		for _, h := range g {
			ranks = append(ranks, h.Rank)
		}
		all = append(all, ranks)
	}
	return all
}

func TestPartsOfACluster(t *testing.T) {
	for _, c := range []struct {
		cluster string
		want    []string
	}{
		{"1x1 fast", nil},
		{"1x4 fast", []string{"[0]", "[0 1]"}},
		{"2x4 fast", []string{"[0 1 2 3]", "[0]", "[0 1]"}},
		{"1x1 fast + 5x2 fast", []string{"[0 1 3 5 7 9]", "[1 2]", "[1 2 3 4]", "[1 2 3 4 5 6]", "[1 2 3 4 5 6 7 8]", "[1 2 3 4 5 6 7 8 9 10]", "[0]", "[1]"}},
		{"2x2 fast + 2x2 slow", []string{"[0 1 2 3]", "[4 5 6 7]", "[0 1]", "[4 5]", "[0 1 2 3 4 5]", "[0]", "[4]"}},
		{"1x4 fast + 3x1 fast + 1x(1 fast + 1 slow)", []string{
			"[0 1 2 3 4 5 6 7]", "[8]", "[0 4 5 6 7]", "[0 1 2 3]", "[0 1 2 3 4]", "[0 1 2 3 4 5]", "[0 1 2 3 4 5 6]",
			"[4]", "[4 5]", "[4 5 6]", "[7 8]", "[7]", "[0 1 2 3 7 8]", "[0 1 2 3 4 7 8]", "[0 1 2 3 4 5 7 8]", "[0]", "[0 1]",
		}},
		{"3x(1 fast + 1 slow)", []string{"[0 2 4]", "[1 3 5]", "[0 1]", "[0 1 2 3]", "[0]", "[0 2]", "[1]", "[1 3]"}},
		{"1x2 fast + 1x2 slow", []string{"[0 1]", "[2 3]", "[0]", "[2]"}},
		{"1x(2 fast + 2 slow)", []string{"[0 1]", "[2 3]", "[0]", "[2]"}},
		{"1x4 fast + 1x2 fast", []string{"[0 1 4 5]", "[0 1 2 3]", "[4 5]", "[0]", "[0 1]", "[4]"}},
		{"1x3 fast + 1x1 slow", []string{"[0 1 2]", "[3]", "[0 3]", "[0]", "[0 1]"}},
		{"1x1 fast + 1x1 slow + 1x1 third", []string{"[0]", "[1]", "[0 1]", "[2]", "[0 2]", "[1 2]"}},
	} {
		third := world.Slow()
		third.Name = "third"
		p := world.Problem(t, c.cluster, 4096, world.Fast(), world.Slow(), third)
		var got []string
		parts, err := parts(p, modelOf(t, p))
		if err != nil {
			t.Errorf("%s: %v", c.cluster, err)
		}
		for _, x := range parts {
			got = append(got, fmt.Sprint(x.ranks))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: parts %v, want %v", c.cluster, got, c.want)
		}
		_, err = USPSubset{}.Solve(context.Background(), p, nil)
		var none *strategy.IllegalError
		if errors.As(err, &none) != (c.want == nil) {
			t.Errorf("%s: %v", c.cluster, err)
		}
	}
}

// A slow network, or an odd node, costs more than some of the nodes bring: what people run on
// these alone counts, whatever their devices.
func TestAPartIsAsFastAsThatClusterAlone(t *testing.T) {
	for _, c := range []struct{ cluster, part string }{
		{"2x(2 fast + 2 slow)", "1x(2 fast + 2 slow)"},
		{"3x4 fast + 1x1 fast", "3x4 fast"},
		{"7x2 fast", "5x2 fast"},
		{"1x4 slow", "1x2 slow"},
		{"1x(3 fast + 1 slow) + 1x1 slow", "1x(3 fast + 1 slow)"},
		{"2x(2 fast + 2 slow)", "1x2 fast"},
	} {
		slow := world.Profile([]world.Device{world.Fast(), world.Slow()}, []world.Wire{world.Link("near", 1e-3, 1e-9), world.Link("far", 1e-1, 1e-8)})
		p := world.ProblemOf(t, slow, world.Job(t, c.cluster, 4096))
		alone := world.ProblemOf(t, slow, world.Job(t, c.part, 4096))
		got, ok := world.FittingTime(t, p, USPSubset{})
		want, fits := world.FittingTime(t, alone, USP{})
		if !ok || !fits || got > want*(1+1e-9) {
			t.Errorf("%s: %v, %s alone takes %v", c.cluster, got, c.part, want)
		}
	}
}

// A part inside one node exchanges gradients over the node's link; without laws
// for that it is not a choice.
func TestPartsNeedLawsOfTheirOwn(t *testing.T) {
	profile := world.Profile([]world.Device{world.Fast(), world.Slow()}, []world.Wire{world.Near(), world.Far()})
	profile.Laws = slices.DeleteFunc(profile.Laws, func(l costmodel.Law) bool {
		return l.Op == op.KindAllGather && strings.Contains(l.Group, "near")
	})
	p := world.ProblemOf(t, profile, world.Job(t, "1x2 fast + 2x1 slow", 8192))
	parts, err := parts(p, modelOf(t, p))
	var missing *costmodel.MissingLawError
	if !errors.As(err, &missing) || missing.Op != op.KindAllGather {
		t.Errorf("no word of the all-gather that has no law: %v", err)
	}
	for _, x := range parts {
		if slices.Equal(x.ranks, []int{0, 1}) {
			t.Errorf("part %s needs an all-gather that has no law", x.name)
		}
	}
	world.Solve(t, p, USPSubset{}, nil)
}
