package costmodel

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// besideMessages is a profile in which attention on a device takes so many times as long
// beside messages, and messages as long beside attention.
func besideMessages(p *Profile, device string, ratio float64) *Profile {
	q := *p
	q.Overlaps = append([]OverlapFact(nil), p.Overlaps...)
	for _, kind := range []op.Kind{op.KindAttnFwd, op.KindAttnBwd} {
		q.Overlaps = append(q.Overlaps, OverlapFact{On: device, Compute: kind, Comm: op.KindSendRecv, Slowed: op.SlowedCompute, Ratio: ratio, Lo: ratio, Hi: ratio, Points: 1})
	}
	return &q
}

// TestContentionIsAllowedForWhereUnmeasured: what nobody measured is taken as free, and
// the interval reaches up by what the step would take with the slow-down of Contention
// measured; where it was measured, however small, it does not.
func TestContentionIsAllowedForWhereUnmeasured(t *testing.T) {
	rng := rand.New(rand.NewPCG(51, 1))
	kinds := map[string]int{}
	for range 1500 {
		p, x := world(t, rng, faster{}), randomPlan(rng)
		if x.layout.HeadChunks < 2 && rng.IntN(2) == 0 {
			x.job.Accumulate, x.layout.TwoBatch = 2+rng.IntN(2), true
		}
		step := mustSimulate(t, p, x.job, x.layout)
		slow := mustSimulate(t, besideMessages(p, "fast", contention), x.job, x.layout)
		within := 1e-9 * float64(step.Time.Mid)
		if want := slow.Time.Mid - step.Time.Mid; math.Abs(float64(step.Contention-want)) > within || slow.Contention != 0 {
			t.Fatalf("contention %v, and %v where it was measured: want %v and 0", step.Contention, slow.Contention, want)
		}
		free := mustSimulate(t, besideMessages(p, "fast", 1), x.job, x.layout)
		up := math.Hypot(float64(free.Time.Hi-free.Time.Mid), float64(step.Contention))
		if free.Contention != 0 || free.Time.Mid != step.Time.Mid || free.Time.Lo != step.Time.Lo || math.Abs(float64(step.Time.Hi-step.Time.Mid)-up) > within {
			t.Fatalf("without slow-down %+v, not known of %+v and %v", free.Time, step.Time, step.Contention)
		}
		told := strings.Contains(strings.Join(step.Warnings, "\n"), "was not measured on fast")
		if told != (step.Contention > worthTelling*step.Time.Mid) {
			t.Fatalf("contention %v: warnings %q", step.Contention, step.Warnings)
		}
		if !told {
			continue
		}
		switch {
		case x.layout.TwoBatch:
			kinds["twos"]++
		case x.layout.HeadChunks > 1:
			kinds["chunks"]++
		default:
			kinds["ring"]++
		}
	}
	if kinds["twos"] < 20 || kinds["chunks"] < 10 || kinds["ring"] < 20 {
		t.Errorf("plans with contention: %v", kinds)
	}
}

// TestGainsAllowForContention: a gain by computing beside messages is as doubtful as
// these are slow, and what both steps have of it is not.
func TestGainsAllowForContention(t *testing.T) {
	of := func(mid, contention units.Seconds) *Step {
		return &Step{Time: Estimate{Lo: mid, Mid: mid, Hi: mid}, Contention: contention}
	}
	for _, tc := range []struct {
		slower, faster *Step
		want           units.Seconds
	}{
		{of(10, 0), of(9, 2), 2}, {of(10, 2), of(9, 2), 0}, {of(10, 3), of(9, 1), 0}, {of(10, 1), of(9, 1.5), 0.5},
	} {
		half, most := GainError(tc.slower, tc.faster)
		if half != tc.want || (most == "") != (half == 0) || half > 0 && !strings.Contains(most, "overlap") {
			t.Errorf("%v and %v: %v for %q, want %v", tc.slower, tc.faster, half, most, tc.want)
		}
		if again, _ := GainError(tc.faster, tc.slower); again != half {
			t.Errorf("the other way round %v", again)
		}
	}
}
