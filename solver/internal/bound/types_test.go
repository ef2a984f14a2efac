package bound

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/internal/strategy"
	"github.com/evenkeel/evenkeel/solver/internal/world"
)

// withTypes is a random world of two nodes whose links have laws by the device
// types of a group, each a different one, some in two sizes.
func withTypes(t *testing.T, r *rand.Rand) *strategy.Problem {
	p := world.Random(t, r)
	profile := *p.Profile
	names := []string{"fast", "slow", "third"}
	for bits := 1; bits < 8; bits++ {
		for range r.IntN(3) {
			var members []op.Member
			for i, name := range names {
				if bits>>i&1 == 1 {
					members = append(members, op.Member{Device: name, Count: 1 + r.IntN(3)})
				}
			}
			g := op.NewGroupType(members, 1+r.IntN(2), []string{"far", "near"}[r.IntN(2)])
			if g.Ranks() < 2 || slices.ContainsFunc(profile.Groups, func(o op.GroupType) bool { return o.Name == g.Name }) {
				continue
			}
			profile.Groups = append(profile.Groups, g)
			for _, k := range costmodel.StepCollectives() {
				law := costmodel.Law{Op: k, Group: g.Name, Range: world.AnyRange(k), Spread: costmodel.Spread{Lo: 0.98, Hi: 1.02}, Curve: world.Line(1e-4*r.Float64(), 1e-8*r.Float64()*r.Float64()+1e-13)}
				if k != op.KindAllToAllV && (k != op.KindReduceScatter || r.IntN(2) == 0) {
					profile.Laws = append(profile.Laws, law)
				}
			}
		}
	}
	return world.ProblemOf(t, &profile, p.Job)
}

// onSome is a layout of some of the ranks, the others left out.
func onSome(r *rand.Rand, p *strategy.Problem) costmodel.Layout {
	some := r.Perm(len(p.Ranks))[:1+r.IntN(len(p.Ranks))]
	part := world.RandomSplit(r, p.Job.SeqLen, len(some))
	layout := costmodel.Layout{Shards: make([]costmodel.Shard, len(p.Ranks))}
	tokens := make([]units.Tokens, len(p.Ranks))
	for i, rank := range some {
		tokens[rank] = part[i]
	}
	for left := some; len(left) > 0; {
		k := 1 + r.IntN(len(left))
		if g := world.RandomGroup(r, left[:k], tokens, p.Job.Model.QHeads); g != nil {
			layout.Groups = append(layout.Groups, g)
		}
		left = left[k:]
	}
	return world.Lay(r, tokens, layout.Groups)
}

// What the predictor answers for ranks of just the types of a scope is among the
// laws that the scope's floors are taken over.
func TestLawsAmongHoldThePredictorsAnswer(t *testing.T) {
	world.Sequential(t)
	r := rand.New(rand.NewPCG(31, 1))
	asked := 0
	for range 60 {
		p := withTypes(t, r)
		f, err := newFloors(p.Profile, p.Predictor, p.Job)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range f.scopes() {
			if s.node >= 0 {
				continue
			}
			for _, k := range []op.Kind{op.KindAllGather, op.KindReduceScatter, op.KindAllReduce, op.KindAllToAll, op.KindSendRecv} {
				members, n := someOf(r, f, s)
				law, factor, err := p.Predictor.Over(f.linkOf(s), k, members)
				if err != nil || n < 2 {
					continue
				}
				asked++
				if !slices.ContainsFunc(f.lawsAmong(s, f.linkOf(s), k, n), func(u lawUse) bool { return u.law == law && u.factor <= factor }) {
					t.Fatalf("%s among %v: the predictor takes %+v, times %v, which is not among the scope's laws", k, members, law, factor)
				}
			}
		}
	}
	if asked < 500 {
		t.Errorf("asked only %d times", asked)
	}
}

// someOf draws ranks of all types of a scope.
func someOf(r *rand.Rand, f *floors, s scope) (members []op.Member, n int) {
	for _, name := range f.names {
		if s.counts[name] > 0 {
			m := op.Member{Device: name, Count: 1 + r.IntN(s.counts[name])}
			members, n = append(members, m), n+m.Count
		}
	}
	return members, n
}

// Layouts that leave ranks, and so device types, out are not below the bound
// either, however cheap the links among the others are.
func TestBoundIsBelowLayoutsOfSomeTypes(t *testing.T) {
	if testing.Short() {
		t.Skip("long; goroutines have shorter tests")
	}
	r := rand.New(rand.NewPCG(32, 1))
	for range 50 {
		p := withTypes(t, r)
		p = world.ProblemOf(t, p.Profile, varied(r, p.Job))
		bound := lower(t, p)
		for range 50 {
			l := onSome(r, p)
			if took := world.Seconds(t, p, l); bound > took*(1+1e-9) {
				t.Fatalf("bound %v above %v of %+v on %s, %+v", bound, took, l, p.Job.Cluster, p.Job)
			}
		}
	}
}

// A device type that makes every exchange slow is not planned with and costs the
// bound nothing: it is that of the cluster without it, but for how finely either is
// looked at, and not what the fast type's links and all devices would reach together.
func TestBoundPricesExchangeByTheTypesAtWork(t *testing.T) {
	p := world.Profile([]world.Device{world.Fast(), world.Slow()}, []world.Wire{world.Near(), world.Far()})
	group := func(beta float64, members ...op.Member) {
		g := op.NewGroupType(members, 2, "far")
		p.Groups = append(p.Groups, g)
		for _, k := range []op.Kind{op.KindReduceScatter, op.KindAllGather, op.KindAllReduce} {
			p.Laws = append(p.Laws, costmodel.Law{Op: k, Group: g.Name, Range: world.AnyRange(k), Spread: costmodel.Spread{Lo: 1, Hi: 1}, Curve: world.Line(1e-6, beta)})
		}
	}
	group(1e-12, op.Member{Device: "fast", Count: 4})
	group(1e-6, op.Member{Device: "fast", Count: 4}, op.Member{Device: "slow", Count: 4})
	group(1e-6, op.Member{Device: "slow", Count: 4})
	of := func(cluster string) float64 {
		b, err := Lower(p, costmodel.NewPredictor(p), world.Job(t, cluster, 8192))
		if err != nil {
			t.Fatal(err)
		}
		return float64(b)
	}
	without, with := of("2x2 fast"), of("2x2 fast + 2x2 slow")
	if math.Abs(with/without-1) > 0.01 {
		t.Errorf("bound %v with slow devices that nobody can afford to exchange with, %v without", with, without)
	}
}
