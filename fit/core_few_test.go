package fit

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/op"
)

// TestIntervalsOfFewPoints: where a core follows its few points, the interval of the corrected
// law is of errors of cores that have not seen the point either. With those of the one core of
// all points intervals of causal attention, fitted to 30 random ones, held 85 % of the others.
func TestIntervalsOfFewPoints(t *testing.T) {
	if testing.Short() {
		t.Skip("fits too much for the race detector")
	}
	t.Parallel()
	const fitted, judged = 30, 300
	sum, n := 0.0, 0
	for _, r := range tables(t, "aiconfigurator/*/context_attention_trtllm.csv") {
		if len(r.points) < fitted+judged || !strings.Contains(r.name, "(diag d128 bf16") {
			continue
		}
		var train, test []Point
		for i, at := range rand.New(rand.NewPCG(0, 3)).Perm(len(r.points))[:fitted+judged] {
			if i < fitted {
				train = append(train, r.points[at])
			} else {
				test = append(test, r.points[at])
			}
		}
		law, err := lawOf(&Data{Devices: []op.DeviceType{r.device}}, Stratum{On: r.on(), Op: op.KindAttnFwd, Variant: train[0].Shape.Variant()}, train)
		if err != nil {
			t.Fatalf("%s: %v", r.name, err)
		}
		e := judge(law, test)
		t.Logf("%s: %d points inside the range, %.2f of them in the interval", r.name, e.Points, e.Coverage)
		sum, n = sum+e.Coverage, n+1
	}
	if mean := sum / float64(n); n < 5 || mean < 0.88 || mean > 0.97 {
		t.Errorf("%.3f of the points are in their intervals, a mean over %d laws, want about 0.9", mean, n)
	}
}
