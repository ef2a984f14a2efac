package bound

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/evenkeel/evenkeel/solver/internal/world"
)

// What holds of ranks of whatever types holds of each choice of types, and looking at
// choices in an order, and at few of them, finds the floor that looking at all does.
func TestBoundOfFewChoicesIsThatOfAll(t *testing.T) {
	if testing.Short() {
		t.Skip("finds too many floors for the race detector")
	}
	r := rand.New(rand.NewPCG(33, 1))
	skipped := 0
	for skipped < 50 {
		p := withTypes(t, r)
		p = world.ProblemOf(t, p.Profile, varied(r, p.Job))
		f, err := newFloors(p.Profile, p.Predictor, p.Job)
		if err != nil {
			t.Fatal(err)
		}
		if len(f.names) < 3 {
			continue // there is nothing to skip
		}
		scopes, all := f.scopes(), math.Inf(1)
		for _, c := range f.choices(scopes) {
			one, ring := math.Inf(1), f.ofRing(c.scope, math.Inf(1))
			if c.least > 1 {
				one = f.oneGroup(c.scope, math.Inf(1))
			}
			all = min(all, one, ring)
			if c.whatever == nil {
				continue
			}
			w := c.whatever.scope
			if least := f.oneGroup(w, math.Inf(1)); least > one*(1+1e-3) {
				t.Fatalf("one group of %d to %d of %v: %v, of whatever types %v", c.fewest, c.most, c.counts, one, least)
			}
			if least := f.ofRing(w, math.Inf(1)); least > ring*(1+1e-3) {
				t.Fatalf("groups of %d to %d of %v: %v, of whatever types %v", c.fewest, c.most, c.counts, ring, least)
			}
			skipped++
		}
		if least := f.over(scopes, math.Inf(1)); least < all*(1-2e-3) || least > all*(1+2e-3) {
			t.Fatalf("floor %v, by looking at all choices %v, of %s, %+v", least, all, p.Job.Cluster, p.Job)
		}
	}
}

// Of a wide range the parts are looked at: the floor is between that of the range, whose
// ranks compute like many and exchange like few, and the least of its numbers of ranks.
func TestWideRangesAreLookedAtClosely(t *testing.T) {
	if testing.Short() {
		t.Skip("long; goroutines have shorter tests")
	}
	r := rand.New(rand.NewPCG(62, 1))
	raised := 0
	for _, cluster := range []string{"3x8 fast", "2x12 fast + 1x8 slow"} {
		for range 3 {
			job := varied(r, world.Job(t, cluster, 1<<14))
			p := world.ProblemOf(t, world.Profile([]world.Device{world.Fast(), world.Slow()}, []world.Wire{world.Link("near", 1e-6, 1e-11), world.Link("far", 1e-4, 2e-9)}), job)
			f, err := newFloors(p.Profile, p.Predictor, p.Job)
			if err != nil {
				t.Fatal(err)
			}
			wide, each := math.Inf(1), math.Inf(1)
			for _, c := range f.choices(f.scopes()) {
				for _, floor := range []func(scope, float64) float64{f.oneGroup, f.ofRing} {
					if c.most <= eachRank {
						continue
					}
					wide = min(wide, floor(c.scope, math.Inf(1)))
					for n := c.fewest; n <= c.most; n++ {
						one := c.scope
						one.fewest, one.most = n, n
						each = min(each, floor(one, math.Inf(1)))
					}
				}
			}
			least := math.Inf(1)
			for _, c := range f.choices(f.scopes()) {
				for _, floor := range []func(scope, float64) float64{f.oneGroup, f.ofRing} {
					if c.most > eachRank {
						least = c.closely(floor, least)
					}
				}
			}
			if least < wide*(1-2e-3) || least > each*(1+2e-3) {
				t.Fatalf("%s: %v, of the whole ranges %v, of every number %v", cluster, least, wide, each)
			}
			if least > wide*(1+1e-3) {
				raised++
			}
		}
	}
	if raised == 0 {
		t.Error("no floor is higher for being looked at closely")
	}
}

// What is soon known of ranks is no more than what is found at last.
func TestRoughFloorsAreBelow(t *testing.T) {
	if testing.Short() {
		t.Skip("finds too many floors for the race detector")
	}
	r := rand.New(rand.NewPCG(34, 1))
	for range 12 {
		p := withTypes(t, r)
		p = world.ProblemOf(t, p.Profile, varied(r, p.Job))
		f, err := newFloors(p.Profile, p.Predictor, p.Job)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range f.choices(f.scopes()) {
			ring := f.ofRing(c.scope, math.Inf(1))
			if math.IsInf(ring, 1) {
				continue
			}
			for _, enough := range []float64{ring * (0.2 + r.Float64()), ring * (1 + r.Float64())} {
				switch rough := f.roughly(c.scope, enough); {
				case rough > enough, rough > ring*(1+1e-3) && rough < enough:
					t.Fatalf("roughly %v of %v, enough %v", rough, ring, enough)
				case rough == enough && ring < enough*(1-1e-3):
					t.Fatalf("at least %v of %v", enough, ring)
				}
			}
		}
	}
}
