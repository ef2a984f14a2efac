package fit

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
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

// TestOneWrongTimeIsNotTheInterval: where the largest of few errors is the interval, a single
// time that was read a hundred times too long does not make it one of a factor of a hundred.
func TestOneWrongTimeIsNotTheInterval(t *testing.T) {
	if testing.Short() {
		t.Skip("fits too much for the race detector")
	}
	t.Parallel()
	dev := coreDevice()
	points := corePoints(12, 5, 1<<14, false)
	kind, _ := coreOf(op.KindAttnFwd, dev)
	half := func(points []Point) float64 {
		law := &costmodel.Law{Op: op.KindAttnFwd, Variant: points[0].Shape.Variant(), Device: dev.Name, Range: hull(op.KindAttnFwd, points)}
		if _, err := kind.tiled(law, dev, points, nil); err != nil {
			t.Fatal(err)
		}
		return math.Log(law.Spread.Hi)
	}
	right := half(points)
	wrong := slices.Clone(points)
	wrong[4].Seconds *= 100
	if got := half(wrong); got > 3*right+0.1 {
		t.Errorf("half width %.2f with one time a hundred times too long, %.2f without", got, right)
	}
	donor := Donor{Law: &costmodel.Law{Op: op.KindAttnFwd, Variant: points[0].Shape.Variant(), Device: dev.Name, Attention: trueCore(), Range: hull(op.KindAttnFwd, points), Spread: costmodel.Spread{Lo: 0.9, Hi: 1.1}}, Device: dev}
	law := &costmodel.Law{Op: op.KindAttnFwd, Variant: points[0].Shape.Variant(), Device: dev.Name, Range: hull(op.KindAttnFwd, wrong)}
	lent, _, err := kind.lent(law, dev, wrong, nil, &donor)
	if err != nil {
		t.Fatal(err)
	}
	if got := math.Log(lent.Spread.Hi); got > 0.8 {
		t.Errorf("half width %.2f of a lent law with one time a hundred times too long", got)
	}
	logs := []float64{0.01, -0.02, 0.03, 0.02, -0.9}
	if got := notAlone(logs); !slices.Equal(got, logs) {
		t.Errorf("of fewer errors than a law's own %v became %v", logs, got)
	}
	logs = append(logs, 0.05)
	if got, want := notAlone(logs), []float64{0.01, -0.02, 0.03, 0.02, -0.1, 0.05}; !slices.Equal(got, want) {
		t.Errorf("%v became %v, want %v", logs, got, want)
	}
}
