package evenkeel

import (
	"math/rand/v2"
	"testing"

	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/internal/world"
)

// A leaner kind keeps about its part, the others get the rest, and no token is lost.
func TestLeanerKeepsAllTokens(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 2))
	for range 200 {
		d := &draft{}
		var total units.Tokens
		for range 2 + r.IntN(3) {
			k := groupKind{total: units.Tokens(128 * r.IntN(50))}
			total += k.total
			d.kinds = append(d.kinds, k)
		}
		kind := r.IntN(len(d.kinds))
		for _, part := range leanParts() {
			x := d.leaner(kind, part, 128)
			var now units.Tokens
			for i, k := range x.kinds {
				now += k.total
				if i != kind && k.total < d.kinds[i].total {
					t.Errorf("kind %d lost tokens: %d of %d", i, k.total, d.kinds[i].total)
				}
			}
			kept, want := float64(x.kinds[kind].total), part*float64(d.kinds[kind].total)
			if now != total || kept < want || kept > want+128 {
				t.Errorf("%d of %d tokens; kind %d keeps %v, want %v: %v", now, total, kind, kept, want, d.kinds)
			}
		}
	}
}

// Where one node is fast and the link between nodes slow, the slow node is best
// given less than it could compute.
func TestSlowLinksMakeKindsLeaner(t *testing.T) {
	p := world.Problem(t, "1x4 fast + 1x4 slow", 8192, world.Fast(), world.Slow())
	s := searchOf(t, p)
	points := s.simulateBest(newBestFirst(s.candidates()))
	if found := s.leaner(points); len(found) == 0 {
		t.Error("nothing was tried")
	}
	if s.work > s.budget {
		t.Errorf("%v of a budget of %v", s.work, s.budget)
	}
}
