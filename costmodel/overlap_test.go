package costmodel

import (
	"math/rand/v2"
	"testing"
)

// TestHidingIsNotSlower: an exchange that hides behind layers never makes a step
// longer than one that does not.
func TestHidingIsNotSlower(t *testing.T) {
	for seed := range uint64(150) {
		rng := rand.New(rand.NewPCG(seed, 26))
		p, x := world(t, rng, faster{}), randomPlan(rng)
		if seed%3 == 2 {
			x = inTwos(rng, x)
		}
		x.job.OverlapZero = false
		open := mustSimulate(t, p, x.job, x.layout).Time.Mid
		x.job.OverlapZero = true
		if hidden := mustSimulate(t, p, x.job, x.layout).Time.Mid; float64(hidden) > float64(open)*(1+1e-12) {
			t.Errorf("seed %d: %v hidden, %v open", seed, float64(hidden), float64(open))
		}
	}
}
