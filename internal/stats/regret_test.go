package stats

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// campaign is the simulated one that the gate was designed on: twelve plans, one
// the best, ten slower by |N(0, 6 %)|, and the chosen one slower by the true
// regret; noise of a plan in a block, 1 % of drift that the plans of a block share.
func campaign(rng *rand.Rand, blocks int, noise, regret float64) (times [][]float64, chosen int) {
	truth := make([]float64, 12)
	for i := 1; i < 11; i++ {
		truth[i] = math.Abs(0.06 * rng.NormFloat64())
	}
	truth[11] = math.Log(1 + regret)
	for range blocks {
		b, drift := make([]float64, 12), 0.01*rng.NormFloat64()
		for i := range b {
			b[i] = 1e-2 * math.Exp(truth[i]+drift+noise*rng.NormFloat64())
		}
		times = append(times, b)
	}
	return times, 11
}

// TestRegretPassesAsDesigned compares the probability to pass a limit of 5 % on
// the upper bound, and the mean estimate, with the design's own simulation, 300
// trials as well: two such numbers differ by chance by up to three times their
// standard error. The design's table fits 200 replicates; 2000 must not pass what
// those do not.
func TestRegretPassesAsDesigned(t *testing.T) {
	if testing.Short() {
		t.Skip("simulates 10800 campaigns, some seconds")
	}
	const trials = 300
	regrets := []float64{0, 0.02, 0.08}
	for _, c := range []struct {
		noise    float64
		blocks   int
		split    bool
		want     [3]float64
		estimate [3]float64 // percent, at true regrets; 0 is not given
	}{
		{0.01, 6, true, [3]float64{1, 0.96, 0}, [3]float64{0, 1.7, 7.5}},
		{0.01, 16, true, [3]float64{1, 1, 0}, [3]float64{0, 1.9, 7.7}},
		{0.03, 6, true, [3]float64{0.81, 0.56, 0.04}, [3]float64{0, 1.3, 6.5}},
		{0.03, 10, true, [3]float64{0.78, 0.50, 0.01}, [3]float64{0, 1.1, 7.4}},
		{0.03, 16, true, [3]float64{0.95, 0.69, 0.01}, [3]float64{0, 1.2, 7.2}},
		{0.03, 16, false, [3]float64{1, 0.70, 0}, [3]float64{0, 2.1, 8.0}},
	} {
		for k, regret := range regrets {
			t.Run(fmt.Sprintf("noise %v, %d blocks, split %v, regret %v", c.noise, c.blocks, c.split, regret), func(t *testing.T) {
				passed, strict := 0, 0
				var estimates []float64
				for seed := range uint64(trials) {
					times, chosen := campaign(rand.New(rand.NewPCG(seed, 97)), c.blocks, c.noise, regret)
					r, most := regretOf(times, chosen, 200, seed), Regret(times, chosen, seed)
					estimate, upper, surer := r.Split, r.SplitUpper, most.SplitUpper
					if !c.split {
						estimate, upper, surer = r.Unsplit, r.UnsplitUpper, most.UnsplitUpper
					}
					if upper <= math.Log(1.05) {
						passed++
					}
					if surer <= math.Log(1.05) {
						strict++
					}
					estimates = append(estimates, 100*estimate)
				}
				got, want := float64(passed)/trials, c.want[k]
				if strict > passed+trials/50 {
					t.Errorf("%d pass with 200 replicates, %d with more", passed, strict)
				}
				p := min(0.98, max(0.02, want))
				if most := 3 * math.Sqrt(2*p*(1-p)/trials); math.Abs(got-want) > most {
					t.Errorf("passes in %.2f, the design says %.2f", got, want)
				}
				mean, spread := meanAndSpread(estimates)
				t.Logf("passes %.2f, with 2000 replicates %.2f (design %.2f), estimate %.2f %% (design %.1f)", got, float64(strict)/trials, want, mean, c.estimate[k])
				if most := 0.05 + 3*spread*math.Sqrt(2.0/trials); c.estimate[k] > 0 && math.Abs(mean-c.estimate[k]) > most {
					t.Errorf("estimates %.2f %%, the design says %.1f", mean, c.estimate[k])
				}
			})
		}
	}
}

// TestRegretWithoutNoise is the truth, and what slows whole blocks cancels.
func TestRegretWithoutNoise(t *testing.T) {
	times := [][]float64{}
	for b := range 7 {
		drift := 1 + float64(b*b)
		times = append(times, []float64{1.2 * drift, 1.0 * drift, 1.1 * drift})
	}
	for chosen, want := range []float64{math.Log(1.2), 0, math.Log(1.1)} {
		r := Regret(times, chosen, 1)
		for _, got := range []float64{r.Split, r.SplitUpper, r.Unsplit, r.UnsplitUpper} {
			if math.Abs(got-want) > 1e-12 {
				t.Errorf("option %d: %+v, want %v", chosen, r, want)
			}
		}
		if r.Best != 1 || r.UnsplitBest != 1 || r.Noise > 1e-12 {
			t.Errorf("%+v", r)
		}
	}
}

// TestRegretTakesEachFromItsBlocks: the best by the odd blocks, its time from the
// even ones.
func TestRegretTakesEachFromItsBlocks(t *testing.T) {
	even, odd := []float64{2, 1, 4}, []float64{2, 3, 1}
	r := Regret([][]float64{even, odd, even, odd, even, odd, even}, 0, 1)
	if r.Best != 2 || math.Abs(r.Split-math.Log(0.5)) > 1e-12 {
		t.Errorf("%+v: want the third option, that the even blocks show to take twice as long", r)
	}
}

// TestRegretNoise finds the noise of a plan, whatever blocks have in common.
func TestRegretNoise(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	times, chosen := campaign(rng, 400, 0.03, 0.02)
	if r := Regret(times, chosen, 1); math.Abs(r.Noise-0.03) > 0.003 {
		t.Errorf("noise %v, want 0.03", r.Noise)
	}
}

func TestRegretPanics(t *testing.T) {
	ok := [][]float64{{1, 2}, {1, 2}, {1, 2}, {1, 2}, {1, 2}, {1, 2}}
	for name, f := range map[string]func(){
		"few blocks": func() { Regret(ok[1:], 0, 1) },
		"no option":  func() { Regret(ok, 2, 1) },
		"ragged":     func() { Regret(append(ok[:5:5], []float64{1}), 0, 1) },
		"zero":       func() { Regret(append(ok[:5:5], []float64{0, 1}), 0, 1) },
	} {
		mustPanic(t, name, f)
	}
}

func meanAndSpread(x []float64) (mean, spread float64) {
	for _, v := range x {
		mean += v / float64(len(x))
	}
	for _, v := range x {
		spread += (v - mean) * (v - mean) / float64(len(x))
	}
	return mean, math.Sqrt(spread)
}
