package batch_test

import (
	"context"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/groupcost"
	"github.com/evenkeel/evenkeel/internal/reference"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/batch"
)

// overNetwork are costs by laws of nodes that a network of so many bytes/s joins.
func overNetwork(t testing.TB, cluster string, rate units.BytesPerS, zero costmodel.ZeRO) *groupcost.Costs {
	t.Helper()
	q, j := networkJob(t, cluster, rate, 1)
	j.Zero = zero
	return priced(t, q, j, groupcost.Options{})
}

// networkJob is a step of one sequence on such a cluster.
func networkJob(t testing.TB, cluster string, rate units.BytesPerS, s units.Tokens) (*costmodel.Predictor, costmodel.Job) {
	t.Helper()
	profile, j := reference.Job(t, reference.Llama(32), cluster, s)
	j.Cluster.Network, j.Cluster.Links = "net", []costmodel.Link{{Name: "net", Rate: rate}}
	return costmodel.NewPredictor(costmodel.AssumeLinks(profile, j.Cluster)), j
}

func priced(t testing.TB, q *costmodel.Predictor, j costmodel.Job, o groupcost.Options) *groupcost.Costs {
	t.Helper()
	c, err := groupcost.FromLaws(t.Context(), q, j, o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// slowNet is 25 Gb/s, fastNet 400.
const slowNet, fastNet = units.BytesPerS(25e9 / 8), units.BytesPerS(400e9 / 8)

// contest is what solve does with a batch, in short.
func contest(t *testing.T, p *batch.Problem) (d *batch.Document, attempts []batch.Attempt, priced []int) {
	t.Helper()
	all := batch.Strategies(batch.Settings{Longest: slices.Max(p.Lengths), Fast: true})
	for _, s := range all {
		attempts = append(attempts, batch.Try(t.Context(), s, p, stopped))
	}
	parts, err := batch.OnParts(t.Context(), p, attempts, stopped, func(x groupcost.Part) { priced = append(priced, x.Nodes) })
	if err != nil {
		t.Fatal(err)
	}
	bound, err := batch.BoundOf(t.Context(), p, parts, batch.FastBound)
	if err != nil {
		t.Fatal(err)
	}
	sure := batch.TrySure(t.Context(), p, parts, attempts, batch.Options{}, stopped)
	if d, err = batch.Choose(p, bound, append(slices.Clone(attempts), sure), ""); err != nil {
		t.Fatal(err)
	}
	return d, attempts, priced
}

// A batch that a node trains sooner than two or four over a slow network is trained by one,
// the baselines' as well as ours, and then it takes what a cluster of that node takes.
func TestNodesAreLeftOutWhereTheyMakeTheStepLonger(t *testing.T) {
	if testing.Short() {
		t.Skip("long; goroutines have shorter tests")
	}
	lengths := drawn(t, "lognormal:median=1000,sd=1.7,seed=12", 8)
	alone, err := batch.NewProblem(overNetwork(t, "1x8 h100_sxm", slowNet, costmodel.Zero3), lengths)
	if err != nil {
		t.Fatal(err)
	}
	one, _, _ := contest(t, alone)
	for _, cluster := range []string{"2x8 h100_sxm", "4x8 h100_sxm", "1x4 h100_sxm + 1x8 h100_sxm"} {
		p, err := batch.NewProblem(overNetwork(t, cluster, slowNet, costmodel.Zero3), lengths)
		if err != nil {
			t.Fatal(err)
		}
		d, attempts, priced := contest(t, p)
		if !slices.Equal(priced, []int{1}) {
			t.Errorf("%s: parts of %v nodes were priced: that of 1 comes first, and no other is faster", cluster, priced)
		}
		if err := d.Validate(); err != nil {
			t.Errorf("%s: %v", cluster, err)
		}
		whole := batch.Try(t.Context(), batch.Evenkeel{}, p, stopped)
		if d.Time != one.Time || d.Bound != one.Bound || whole.Plan.Time < 3*d.Time {
			t.Errorf("%s: %v, no less than %v; a node alone takes %v, no less than %v; all nodes take %v", cluster, d.Time, d.Bound, one.Time, one.Bound, whole.Plan.Time)
		}
		for i, c := range d.Compared[:len(attempts)] {
			if x := one.Compared[i]; c.Nodes != 1 || c.Time != x.Time || !strings.Contains(c.Why, "; on 1 of the ") {
				t.Errorf("%s, %s: %v on %d nodes, %q; a node alone takes %v", cluster, c.Strategy, c.Time, c.Nodes, c.Why, x.Time)
			}
		}
		kept := 0 // the first rank of the first node of eight
		if strings.HasPrefix(cluster, "1x4") {
			kept = 4
		}
		for r := range p.Devices() {
			if out := r < kept || r >= kept+8; slices.Contains(d.LeftOut, r) != out {
				t.Errorf("%s: %v are left out, and rank %d is wrong", cluster, d.LeftOut, r)
			}
		}
		if note := batch.NotModelled(p, d.LeftOut)[2]; !strings.Contains(note, "left out keep nothing") {
			t.Errorf("%s: %s", cluster, note)
		}
		if note := batch.NotModelled(p, nil)[2]; !strings.Contains(note, "all nodes but one or all of a kind") {
			t.Errorf("%s, with nobody left out: %s", cluster, note)
		}
	}
}

// Devices of other kinds that cost more in the exchange than they compute stay out as well: the
// plan is that of the rest alone, with the whole fleet's pools.
func TestNodesOfOneKindBesideOthers(t *testing.T) {
	if testing.Short() {
		t.Skip("long; goroutines have shorter tests")
	}
	lengths := drawn(t, "lognormal:median=1000,sd=1.7,seed=12", 16)
	for _, c := range []struct {
		cluster, alone string
		from, nodes    int
	}{
		{"1x8 h100_sxm + 1x1 a100_sxm", "1x8 h100_sxm", 0, 1},
		{"1x1 a100_sxm + 1x8 h100_sxm", "1x8 h100_sxm", 1, 1},
		{"1x1 h100_sxm + 1x(1 h100_sxm + 1 a100_sxm) + 1x8 h100_sxm", "1x8 h100_sxm", 3, 1},
	} {
		p, err := batch.NewProblem(overNetwork(t, c.cluster, slowNet, costmodel.Zero3), lengths)
		if err != nil {
			t.Fatal(err)
		}
		d, _, _ := contest(t, p)
		alone, err := batch.NewProblem(lawCosts(t, c.alone), lengths)
		if err != nil {
			t.Fatal(err)
		}
		one, _, _ := contest(t, alone)
		if math.Abs(float64(d.Time/one.Time-1)) > 1e-9 || len(d.LeftOut) != p.Devices()-8 || slices.ContainsFunc(d.LeftOut, func(r int) bool { return r >= c.from && r < c.from+8 }) {
			t.Errorf("%s: %v, ranks %v left out; %s alone takes %v", c.cluster, d.Time, d.LeftOut, c.alone, one.Time)
		}
		if d.Compared[0].Nodes != c.nodes || !strings.Contains(d.Compared[0].Why, "; on 1 node of h100_sxm") {
			t.Errorf("%s: %+v", c.cluster, d.Compared[0])
		}
		for _, k := range d.Classes {
			if len(k.Uses) != len(p.Fleet) {
				t.Errorf("%s: class %s has %v of %d pools", c.cluster, k.Name, k.Uses, len(p.Fleet))
			}
		}
		if err := d.Validate(); err != nil {
			t.Errorf("%s: %v", c.cluster, err)
		}
	}
}

// A node that costs more than it brings beside nodes of several kinds changes neither plan nor
// bound: the others together are a part.
func TestANodeBesideOthersOfSeveralKindsIsLeftOut(t *testing.T) {
	if testing.Short() {
		t.Skip("long; goroutines have shorter tests")
	}
	lengths := slices.Repeat([]units.Tokens{4000}, 16)
	for _, c := range []struct{ beside, rest string }{
		{"1x1 b60 + 1x1 h100_sxm + 1x1 a100_sxm", "1x1 h100_sxm + 1x1 a100_sxm"},
		{"2x1 b60 + 1x4 h100_sxm + 1x4 a100_sxm", "1x4 h100_sxm + 1x4 a100_sxm"},
	} {
		var docs []*batch.Document
		for _, cluster := range []string{c.beside, c.rest} {
			q, j := networkJob(t, cluster, fastNet, 1)
			j.Zero, j.Model = costmodel.Zero3, reference.Llama(8)
			p, err := batch.NewProblem(priced(t, q, j, groupcost.Options{}), lengths)
			if err != nil {
				t.Fatal(err)
			}
			d, attempts, _ := contest(t, p)
			if d, err = batch.Choose(p, d.Bound, attempts, batch.Evenkeel{}.Name()); err != nil {
				t.Fatal(err)
			}
			if err := d.Validate(); err != nil {
				t.Errorf("%s: %v", cluster, err)
			}
			docs = append(docs, d)
		}
		d, alone := docs[0], docs[1]
		if d.Time > alone.Time*(1+1e-9) || d.Bound > alone.Bound*(1+1e-9) {
			t.Errorf("%s: %v, no less than %v; without the first kind %v, no less than %v", c.beside, d.Time, d.Bound, alone.Time, alone.Bound)
		}
		if why := d.Chosen().Why; len(d.LeftOut) == 0 || !strings.Contains(why, "; on 2 nodes of h100_sxm") || !strings.Contains(why, " and a100_sxm") {
			t.Errorf("%s: ranks %v left out, %q", c.beside, d.LeftOut, why)
		}
		for _, k := range d.Classes {
			if len(k.Uses) != len(d.Fleet) || k.Uses[0] != 0 {
				t.Errorf("%s: class %s has %v of %d pools", c.beside, k.Name, k.Uses, len(d.Fleet))
			}
		}
	}
}

// Where a further node pays, no part is priced, and all is as without parts; nor where nothing
// is known of the exchange.
func TestNoPartIsPricedWhereItCannotBeFaster(t *testing.T) {
	if testing.Short() {
		t.Skip("long; goroutines have shorter tests")
	}
	many := drawn(t, "lognormal:median=1000,sd=1.7,seed=12", 128)
	for name, costs := range map[string]*groupcost.Costs{
		"fast":      overNetwork(t, "4x8 h100_sxm", fastNet, costmodel.Zero3),
		"one node":  lawCosts(t, "1x8 h100_sxm"),
		"mixed":     overNetwork(t, "1x(4 h100_sxm + 4 h200_sxm)", slowNet, costmodel.Zero3), // types that baselines may take for equal
		"published": publishedCosts(t, 16),
	} {
		p, err := batch.NewProblem(costs, many)
		if err != nil {
			t.Fatal(err)
		}
		d, _, priced := contest(t, p)
		if len(priced) > 0 || d.LeftOut != nil || slices.ContainsFunc(d.Compared, func(c batch.Candidate) bool { return c.Nodes > 0 }) {
			t.Errorf("%s: parts of %v nodes were priced, ranks %v left out", name, priced, d.LeftOut)
		}
	}
}

// What a slow strategy takes is not known before it is asked, which is after the parts: its
// place among the attempts is empty until then.
func TestPartsBesideAStrategyThatIsAskedLater(t *testing.T) {
	p, err := batch.NewProblem(overNetwork(t, "2x8 h100_sxm", slowNet, costmodel.Zero3), drawn(t, "lognormal:median=1000,sd=1.7,seed=12", 8))
	if err != nil {
		t.Fatal(err)
	}
	attempts := []batch.Attempt{{}, batch.Try(t.Context(), batch.Adaptive{}, p, stopped)}
	if parts, err := batch.OnParts(t.Context(), p, attempts, stopped, func(groupcost.Part) {}); err != nil || len(parts) != 1 || attempts[0].Plan != nil || attempts[1].On == nil {
		t.Errorf("%v, %d parts, attempts %+v", err, len(parts), attempts)
	}
}

// When the time is up before a part is priced, what there is stays: the bound is of the part
// too, and who searches says that it was stopped.
func TestPartsThatAreNotPricedInTime(t *testing.T) {
	p, err := batch.NewProblem(overNetwork(t, "2x8 h100_sxm", slowNet, costmodel.Zero3), drawn(t, "lognormal:median=1000,sd=1.7,seed=12", 8))
	if err != nil {
		t.Fatal(err)
	}
	var attempts []batch.Attempt
	for _, s := range []batch.Strategy{batch.Adaptive{}, batch.Evenkeel{}} {
		attempts = append(attempts, batch.Try(t.Context(), s, p, stopped))
	}
	was := attempts[1].Plan
	ctx, cancel := context.WithCancel(t.Context())
	parts, err := batch.OnParts(ctx, p, attempts, stopped, func(groupcost.Part) { cancel() })
	if err != nil || len(parts) != 1 || parts[0].Problem != nil || attempts[1].Plan != was || attempts[1].Stopped == nil || attempts[0].Stopped != nil {
		t.Fatalf("%v, %+v, stopped: %v, %v", err, parts, attempts[0].Stopped, attempts[1].Stopped)
	}
	bound, err := batch.BoundOf(ctx, p, parts, batch.FastBound)
	if err != nil || bound != parts[0].Least || bound > was.Time/3 {
		t.Errorf("%v: bound %v, of the part %v, the plan takes %v", err, bound, parts[0].Least, was.Time)
	}
	if sure := batch.TrySure(ctx, p, parts, attempts, batch.Options{}, stopped); sure.Plan != nil {
		t.Errorf("%+v", sure)
	}
}

// No plan of a part takes less than what it is left out for, whatever room its devices have
// for tokens beside a larger share of the states; and that is not far from what one takes.
func TestPartsTakeNoLessThanTheirFloor(t *testing.T) {
	for _, x := range []struct {
		zero    costmodel.ZeRO
		overlap bool
	}{{costmodel.Zero1, false}, {costmodel.Zero1, true}, {costmodel.Zero2, true}, {costmodel.Zero3, false}, {costmodel.Zero3, true}} {
		nearest := 0.0
		for _, rate := range []units.BytesPerS{slowNet, fastNet} {
			q, j := networkJob(t, "4x4 h100_sxm", rate, 1)
			j.Zero, j.OverlapZero = x.zero, x.overlap
			whole := priced(t, q, j, groupcost.Options{})
			for _, n := range []int{4, 32, 128} {
				p, err := batch.NewProblem(whole, drawn(t, "lognormal:median=3000,sd=1.2,seed=5", n))
				if err != nil {
					t.Fatal(err)
				}
				for _, of := range p.Costs.(*groupcost.Costs).Parts() {
					floor := batch.Floor(p, of)
					costs, err := of.Costs(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					if beside := [4]units.Seconds{of.MicroBase, of.Fixed, of.Hidden, of.Behind}; beside != [4]units.Seconds{costs.MicroBase, costs.Fixed, costs.Hidden, costs.Behind} {
						t.Errorf("%+v on %d nodes: %v beside groups, and its costs have another", x, of.Nodes, beside)
					}
					part, err := batch.NewProblem(costs, p.Lengths)
					if err != nil {
						t.Fatal(err)
					}
					a := batch.Try(t.Context(), batch.Evenkeel{}, part, stopped)
					if a.Err != nil {
						t.Fatal(a.Err)
					}
					if floor > a.Plan.Time {
						t.Errorf("%+v, %v, %d sequences on %d nodes: a plan takes %v, and the floor is %v", x, rate, n, of.Nodes, a.Plan.Time, floor)
					}
					nearest = max(nearest, float64(floor/a.Plan.Time))
				}
			}
		}
		if nearest < 0.85 {
			t.Errorf("%+v: the floor is %.2f of what a plan takes at best", x, nearest)
		}
	}
}
